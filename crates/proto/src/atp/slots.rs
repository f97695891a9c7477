//! The slots of a switch: each holds the sum of one fragment.

use netsum_wire::atp::Header;
use netsum_wire::{JobId, Sequence, TreeId};

use crate::Time;

/// State of a slot, for observers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotState {
    /// Nothing.
    Empty,
    /// Empty, but its last fragment was released before it was complete.
    Vacated(JobId, TreeId, Sequence),
    /// The sum of some children.
    Filling(JobId, TreeId, Sequence, u32),
    /// The sum of all children; the result has not arrived.
    Complete(JobId, TreeId, Sequence),
}

/// One slot.
#[derive(Clone, Copy, Debug, Hash)]
pub(crate) enum Slot<B> {
    /// Free.
    Empty,
    /// Free, but its contributions were sent up incomplete: a late member of the same fragment would wait for them in
    /// vain.
    Vacated(Fragment),
    /// Held by a fragment.
    Held(Sum<B>),
}

/// Properties of a fragment; members can be added if they agree on all of them.
#[derive(Clone, Copy, Debug, Hash)]
pub(crate) struct Fragment(Header);

/// The sum so far.
#[derive(Clone, Copy, Debug, Hash)]
pub(crate) struct Sum<B> {
    pub(crate) fragment: Fragment,
    /// Children that have contributed, by bit.
    pub(crate) arrived: u32,
    /// Whether all have contributed and the sum has been sent; the slot then waits for the result.
    pub(crate) complete: bool,
    /// OR of all members' overflow flags.
    pub(crate) overflow: bool,
    /// OR of all members' marks, and of marks met on the way here.
    pub(crate) ecn: bool,
    pub(crate) values: B,
    /// Time of the last addition.
    pub(crate) touched: Time,
}

impl Fragment {
    pub(crate) fn of(header: &Header) -> Fragment {
        Fragment(*header)
    }

    /// Header of its first member.
    pub(crate) fn header(&self) -> &Header {
        &self.0
    }

    /// The lease that holds the slot.
    pub(crate) fn tenant(&self) -> (JobId, TreeId) {
        (self.0.job, self.0.tree)
    }

    /// Whether a packet belongs to the same number of the same job.
    pub(crate) fn has_number_of(&self, header: &Header) -> bool {
        self.tenant() == (header.job, header.tree)
            && self.0.epoch == header.epoch
            && self.0.sequence == header.sequence
    }

    /// Whether a packet is another member of this fragment.
    pub(crate) fn is_of(&self, header: &Header) -> bool {
        self.has_number_of(header)
            && self.0.chunk == header.chunk
            && self.0.arithmetic == header.arithmetic
            && self.0.n_elems == header.n_elems
            && self.0.parties == header.parties
    }
}

impl<B> Slot<B> {
    /// The last fragment of the slot.
    pub(crate) fn fragment(&self) -> Option<&Fragment> {
        match self {
            Slot::Empty => None,
            Slot::Vacated(fragment) => Some(fragment),
            Slot::Held(sum) => Some(&sum.fragment),
        }
    }

    /// State for observers.
    pub(crate) fn state(&self) -> SlotState {
        let name = |f: &Fragment| (f.0.job, f.0.tree, f.0.sequence);
        match self {
            Slot::Empty => SlotState::Empty,
            Slot::Vacated(fragment) => {
                let (job, tree, sequence) = name(fragment);
                SlotState::Vacated(job, tree, sequence)
            }
            Slot::Held(sum) => {
                let (job, tree, sequence) = name(&sum.fragment);
                match sum.complete {
                    true => SlotState::Complete(job, tree, sequence),
                    false => SlotState::Filling(job, tree, sequence, sum.arrived),
                }
            }
        }
    }
}
