//! What every step of connecting a group uses.

use std::time::Instant;

use crate::GroupConfig;
use crate::address::Address;

pub(super) struct Context<'a> {
    pub(super) config: &'a GroupConfig,
    /// This rank's.
    pub(super) address: &'a Address,
    /// Everybody's, by rank.
    pub(super) all: &'a [Address],
    /// All ranks must be connected by then.
    pub(super) until: Instant,
}
