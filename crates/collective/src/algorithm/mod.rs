//! Collectives on the host path: blocking functions over the messages of one operation.
//!
//! Each moves bytes straight between the callers' buffers where it can. What is added is added in the group's
//! order, so the bits are those of the trees.
//!
//! An operation has a [`registry`] of algorithms: one file each, and one line in `operations`. The registry chooses the
//! algorithm that the group's options name, or the cheapest by the cost model; since it sees only what
//! all ranks agree on, all ranks choose the same. docs/algorithms.md writes one from scratch.

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
