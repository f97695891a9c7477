//! Why a packet was dropped: every reason has a name and a counter.

use netsum_wire::DecodeError;

macro_rules! drops {
    ($($(#[$doc:meta])* $variant:ident => $text:literal,)*) => {
        /// Why a machine did not take a packet.
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
    /// First byte names no protocol that we speak.
    UnknownVersion => "unknown_version",
    /// Kind or reserved flag.
    UnknownKind => "unknown_kind",
    /// Dtype or operation.
    UnknownFormat => "unknown_format",
    /// Length does not follow from the header.
    PayloadLength => "payload_length",
    /// No elements.
    EmptyFragment => "empty_fragment",
    /// Reserved field in use.
    Reserved => "reserved_field",
    /// A bitmap or fan-in that no packet of the job can have.
    Members => "impossible_members",
    /// The tag is not the one under the job's key.
    BadTag => "bad_tag",
    /// The sender is no neighbour in any lease.
    UnknownSender => "unknown_sender",
    /// No lease for this job and tree.
    NoLease => "no_lease",
    /// An epoch that is over.
    StaleEpoch => "stale_epoch",
    /// An epoch whose lease is not here yet.
    FutureEpoch => "future_epoch",
    /// The sender is not a child (or the parent) in this tree.
    NotANeighbour => "not_a_neighbour",
    /// A kind that does not travel in this direction.
    WrongDirection => "wrong_direction",
    /// More elements than the plan's fragments have.
    TooLarge => "too_large",
    /// Ahead of what `window_cap` allows.
    BeyondWindow => "beyond_window",
    /// Older than what is retained.
    TooOld => "too_old",
    /// Already counted.
    Duplicate => "duplicate",
    /// Its sum was released without it (partial synchronisation).
    Late => "late",
    /// Children disagree on what this fragment is.
    Mismatch => "mismatch",
    /// Some of it is already counted, so none of it can be.
    Overlap => "overlap",
    /// Aggregation memory is full.
    NoMemory => "no_memory",
    /// Another processor held the slot for too long.
    Busy => "busy",
    /// Nobody asked for this.
    Unexpected => "unexpected",
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

/// How often each reason occurred.
#[derive(Clone, Debug)]
pub struct DropCounters([u64; DropReason::ALL.len()]);

impl Default for DropCounters {
    fn default() -> Self {
        DropCounters([0; DropReason::ALL.len()])
    }
}

impl DropCounters {
    /// Counts one.
    #[inline]
    pub fn count(&mut self, reason: DropReason) {
        self.0[reason as usize] += 1;
    }

    /// Counts what others have.
    pub fn add(&mut self, more: &DropCounters) {
        self.0.iter_mut().zip(more.0).for_each(|(sum, n)| *sum += n);
    }

    /// Counts some.
    pub fn count_many(&mut self, reason: DropReason, count: u64) {
        self.0[reason as usize] += count;
    }

    /// How often `reason` occurred.
    pub fn get(&self, reason: DropReason) -> u64 {
        self.0[reason as usize]
    }

    /// Reasons that occurred, by label.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        let all = DropReason::ALL.iter().map(|&d| (d.label(), self.get(d)));
        all.filter(|&(_, n)| n > 0)
    }
}
