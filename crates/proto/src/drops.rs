//! Reasons for dropping packets, each with a label and a counter.

use netsum_wire::DecodeError;

use crate::visit::Visitor;

macro_rules! drops {
    ($($(#[$doc:meta])* $variant:ident => $text:literal,)*) => {
        /// Why a machine refused a packet.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
        #[repr(u8)]
        pub enum DropReason {
            $($(#[$doc])* #[error($text)] $variant,)*
        }

        impl DropReason {
            /// Every reason, in counter order.
            pub const ALL: &'static [DropReason] = &[$(DropReason::$variant,)*];

            /// The reason as a metric label.
            pub const fn label(self) -> &'static str {
                match self {
                    $(DropReason::$variant => $text,)*
                }
            }
        }
    };
}

drops! {
    /// Shorter than a header.
    TruncatedHeader => "truncated_header",
    /// First byte that names no known protocol.
    UnknownVersion => "unknown_version",
    /// Invalid kind or reserved flag.
    UnknownKind => "unknown_kind",
    /// Invalid dtype or operation.
    UnknownFormat => "unknown_format",
    /// Length that does not follow from the header.
    PayloadLength => "payload_length",
    /// No elements.
    EmptyFragment => "empty_fragment",
    /// Reserved field in use.
    Reserved => "reserved_field",
    /// A bitmap or fan-in that is impossible for the job's packets.
    Members => "impossible_members",
    /// Invalid tag under the key of the job or the hop, or no tag where there must be one.
    BadTag => "bad_tag",
    /// A sealed packet whose number was accepted before, or is far behind.
    Replay => "replay",
    /// Sender that no lease names as a neighbour.
    UnknownSender => "unknown_sender",
    /// No lease for this job and tree.
    NoLease => "no_lease",
    /// Epoch before the installed one.
    StaleEpoch => "stale_epoch",
    /// Epoch whose lease has not arrived.
    FutureEpoch => "future_epoch",
    /// The sender is not a child (or the parent) in this tree.
    NotANeighbour => "not_a_neighbour",
    /// A kind that does not travel in this direction.
    WrongDirection => "wrong_direction",
    /// More elements than the plan's fragments have.
    TooLarge => "too_large",
    /// Beyond the accepted window.
    BeyondWindow => "beyond_window",
    /// Older than what is retained.
    TooOld => "too_old",
    /// Already counted.
    Duplicate => "duplicate",
    /// Its sum was released without it (partial synchronisation).
    Late => "late",
    /// Disagreement of children on the properties of a fragment.
    Mismatch => "mismatch",
    /// Not what the same child has contributed to the fragment before.
    Contradiction => "contradiction",
    /// Some contributions already counted, so that none can be.
    Overlap => "overlap",
    /// Aggregation memory is full.
    NoMemory => "no_memory",
    /// Another processor held the slot for too long.
    Busy => "busy",
    /// No operation or request that the packet answers.
    Unexpected => "unexpected",
    /// Beyond the rate of its tenant.
    OverRate => "over_rate",
    /// Beyond the fair share of its tenant at an overloaded switch.
    OverShare => "over_share",
}

impl From<DecodeError> for DropReason {
    fn from(error: DecodeError) -> DropReason {
        match error {
            DecodeError::TruncatedHeader => DropReason::TruncatedHeader,
            DecodeError::UnknownVersion => DropReason::UnknownVersion,
            DecodeError::UnknownKind => DropReason::UnknownKind,
            DecodeError::UnknownFormat => DropReason::UnknownFormat,
            DecodeError::PayloadLength => DropReason::PayloadLength,
            DecodeError::EmptyFragment => DropReason::EmptyFragment,
            DecodeError::Reserved => DropReason::Reserved,
            DecodeError::Members => DropReason::Members,
        }
    }
}

/// Number of drops by reason.
#[derive(Clone, Debug)]
pub struct DropCounters([u64; DropReason::ALL.len()]);

impl Default for DropCounters {
    fn default() -> Self {
        DropCounters([0; DropReason::ALL.len()])
    }
}

impl DropCounters {
    /// Visits the counters.
    pub(crate) fn visit(&mut self, v: &mut impl Visitor) {
        self.0.iter_mut().for_each(|count| v.count(count));
    }

    /// Counts one.
    #[inline]
    pub fn count(&mut self, reason: DropReason) {
        self.0[reason as usize] += 1;
    }

    /// Adds the counts of `more`.
    pub fn add(&mut self, more: &DropCounters) {
        self.0.iter_mut().zip(more.0).for_each(|(sum, n)| *sum += n);
    }

    /// Counts `count` drops.
    pub fn count_many(&mut self, reason: DropReason, count: u64) {
        self.0[reason as usize] += count;
    }

    /// Number of drops for `reason`.
    pub fn get(&self, reason: DropReason) -> u64 {
        self.0[reason as usize]
    }

    /// Counts above 0, by label.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        let all = DropReason::ALL.iter().map(|&d| (d.label(), self.get(d)));
        all.filter(|&(_, n)| n > 0)
    }
}
