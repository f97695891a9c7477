//! Collectives on the host path, as blocking functions over the messages of one operation.
//!
//! Bytes move directly between the callers' buffers where possible. Sums are added in the group's order, so they have
//! the bits of the trees.
//!
//! Each operation has a [`registry`] of algorithms: one file each, and one line in `operations`. The registry uses the
//! algorithm that the group's options name, or the cheapest one by the cost model. Its inputs are equal at all ranks,
//! so all ranks choose the same. docs/algorithms.md shows how to write one.

mod allreduce;
mod barrier;
mod broadcast;
mod bruck;
mod chain;
mod exchange;
mod halving_doubling;
mod hierarchical;
mod in_memory;
mod operations;
mod ranges;
mod reduce;
mod registry;
mod request;
mod ring;

pub(crate) use operations::{
    ALLGATHER, ALLREDUCE, ALLTOALL, BARRIER, BROADCAST, GATHER, REDUCE, REDUCE_SCATTER, SCATTER,
    allgather, allreduce, alltoall, barrier, broadcast, gather, names, operations, reduce,
    reduce_scatter, scatter,
};
pub(crate) use ranges::allreduce_ranges;
pub(crate) use registry::{Algorithm, Registry};
pub(crate) use request::{
    Allgather, Allreduce, Alltoall, Barrier, Broadcast, Gather, GatherShape, Reduce, ReduceScatter,
    Request, Scatter, ScatterShape, SumShape,
};
