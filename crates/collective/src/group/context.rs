//! Parameters of the steps that connect a group.

use std::time::Instant;

use crate::GroupConfig;
use crate::address::Address;

pub(super) struct Context<'a> {
    pub(super) config: &'a GroupConfig,
    /// Address of this rank.
    pub(super) address: &'a Address,
    /// Addresses of all ranks, by rank.
    pub(super) all: &'a [Address],
    /// Deadline for connecting all ranks.
    pub(super) until: Instant,
}
