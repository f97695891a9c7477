//! Identifiers in packets.

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
    /// Version of a job's plan. Packets of other epochs are dropped.
    Epoch(u16)
);
id!(
    /// Packet number on one tree, from 0 in each epoch (PANAMA's VID).
    ///
    /// Wraps around after 2³² fragments (of 1,408 bytes: 6 TB); machines reconstruct or compare it as `netsum_proto`
    /// documents.
    Vid(u32)
);
id!(
    /// Number of a fragment on its way to one server, from 0 in each epoch (ATP's sequence number).
    Sequence(u32)
);
id!(
    /// Slot for a fragment's sum, computed by the workers; an aggregator takes it modulo its number of slots.
    SlotIndex(u32)
);
id!(
    /// A worker's index in its job, from 0.
    Rank(u32)
);
id!(
    /// A child's position at one tree node; it determines the order of additions. Never a rank.
    ChildIndex(u8)
);
