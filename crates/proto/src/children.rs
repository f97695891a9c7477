//! Sets of a tree node's children.

/// Children by bit, in the order of a lease.
pub(crate) type ChildSet = u128;
