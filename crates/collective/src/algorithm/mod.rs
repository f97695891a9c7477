//! Collectives on the host path: blocking functions over the messages of one operation.
//!
//! Each moves bytes straight between the callers' buffers where it can. What is added is added in the group's
//! order, so the bits are those of the trees.

mod allreduce;
mod barrier;
mod broadcast;
mod exchange;
mod reduce;

pub(crate) use allreduce::{allreduce, allreduce_ranges};
pub(crate) use barrier::barrier;
pub(crate) use broadcast::broadcast;
pub(crate) use exchange::{allgather, alltoall, gather, scatter};
pub(crate) use reduce::{reduce, reduce_scatter};

use std::ops::Range;

use netsum_net::Buffer;

/// Copies all of `from` to the start of `to`; the two may be the same memory, or overlap.
fn copy(from: &Buffer, to: &Buffer) {
    let source = from.slice(0..from.len());
    let (target, origin) = (to.slice(0..to.len()).as_ptr_range(), source.as_ptr_range());
    if target.start == origin.start {
        return;
    }
    if target.end <= origin.start || origin.end <= target.start {
        to.write(0, source);
    } else {
        let apart = source.to_vec();
        to.write(0, &apart);
    }
}

/// Cuts `range` into pieces of at most `step`.
fn pieces(range: Range<usize>, step: usize) -> impl Iterator<Item = Range<usize>> {
    let end = range.end;
    range.step_by(step).map(move |start| start..end.min(start + step))
}

/// Bytes of a message in a pipeline: long enough that its cost per message is small, short enough that several
/// are under way.
const CHUNK: usize = 256 << 10;
