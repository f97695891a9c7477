//! Identifiers that travel in packets.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id!(
    /// One training run that reduces together. Never reused by a controller.
    JobId(u32)
);
id!(
    /// One of a job's aggregation trees, from 0.
    TreeId(u8)
);
id!(
    /// Version of a job's plan. A packet of another epoch is never taken for one of this.
    Epoch(u16)
);
id!(
    /// Packet number on one tree, from 0 in each epoch (PANAMA's VID).
    ///
    /// 2³² fragments of 1,408 bytes are 6 TB on one tree; the worker asks for a new epoch before it wraps.
    Vid(u32)
);
id!(
    /// Number of a fragment on its way to one server, from 0 in each epoch (ATP's sequence number).
    Sequence(u32)
);
id!(
    /// Where a fragment's sum is to stand, as the workers computed it; an aggregator takes it modulo what
    /// it has.
    SlotIndex(u32)
);
id!(
    /// A worker's index in its job, from 0.
    Rank(u32)
);
id!(
    /// A child's place at one tree node; it fixes the order of additions. Never a rank.
    ChildIndex(u8)
);
