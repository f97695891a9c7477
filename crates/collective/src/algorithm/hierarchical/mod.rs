//! Collectives of a group on several hosts: through memory within each host, over the network between them.
//!
//! The first ranks of every host, as many as the smallest host has, are its *lanes*: each handles a part of the buffer,
//! together with the lanes of the same index on the other hosts. A sum keeps the group's order: it is cut at the hosts
//! ([`Cut`]); each host adds the largest subtrees whose ranks are all its own, and sends their partials. If the ranks
//! of a host are an aligned block of the order, there is one partial; otherwise there are more, at worst one per rank,
//! which the cost includes.

mod allgather;
mod allreduce;
mod barrier;
mod broadcast;
mod cut;
mod exchange;
mod reduce;
mod reduce_scatter;

pub(super) use allgather::ALLGATHER;
pub(super) use allreduce::ALLREDUCE;
pub(super) use barrier::BARRIER;
pub(super) use broadcast::BROADCAST;
pub(super) use exchange::{ALLTOALL, GATHER, SCATTER};
pub(super) use reduce::REDUCE;
pub(super) use reduce_scatter::REDUCE_SCATTER;

use std::ops::Range;

use netsum_net::mesh::MeshError;
use netsum_wire::Format;

use super::SumShape;
use crate::comm::Comm;
use crate::link_cost::Across;
use crate::pieces::share;

impl Across {
    fn portion(&self, sum: &SumShape) -> f64 {
        sum.bytes as f64 / self.hosts.lanes() as f64
    }

    fn count(&self) -> f64 {
        self.hosts.all().len() as f64
    }
}

/// The hosts, for an algorithm that requires several.
fn apart(comm: &Comm<'_>) -> Result<Across, MeshError> {
    let none = || MeshError::Aborted("these ranks are not on several hosts".to_owned());
    comm.link().across.ok_or_else(none)
}

/// The part of a range that the rank at a position of its host handles: an equal part for a lane, else nothing.
fn portion_of(range: &Range<usize>, format: Format, lanes: usize, index: usize) -> Range<usize> {
    if index >= lanes {
        return range.end..range.end;
    }
    let part = share(range.len(), format.dtype.size(), index as u32, lanes as u32);
    range.start + part.start..range.start + part.end
}

/// Tag of a message between two lanes: a part's partials of a block, or results.
fn tag(block: u64, part: usize) -> u64 {
    block << 32 | part as u64
}

/// Part number of results; parts have smaller numbers, because there are at most as many as ranks.
const RESULT: usize = u32::MAX as usize;
/// Maximum bytes of a block; several blocks are in memory at the same time.
const BLOCK_MOST: usize = 8 << 20;
