//! Where all ranks share memory, that is the way.

use super::{
    Algorithm, Allgather, Allreduce, Alltoall, Barrier, Broadcast, Gather, Reduce, ReduceScatter,
    Scatter,
};
use crate::link_cost::LinkCost;
use crate::pieces::{TYPICAL, copy};
use crate::shared;

pub(super) const ALLREDUCE: Algorithm<Allreduce> = Algorithm {
    name: "shared-memory",
    cost: |link, sum| cost(link, sum.bytes),
    run: |comm, sum| {
        let rounds = comm.memory()?;
        shared::allreduce(rounds, &sum.order, sum.format, &mut sum.buffer)
    },
};
pub(super) const ALLGATHER: Algorithm<Allgather> = Algorithm {
    name: "shared-memory",
    cost: |link, pieces| cost(link, pieces.all),
    run: |comm, gather| {
        let Allgather { input, outputs } = gather;
        copy(input, &mut outputs[comm.rank() as usize]);
        shared::allgather(comm.memory()?, input.slice(0..input.len()), outputs)
    },
};
pub(super) const BROADCAST: Algorithm<Broadcast> = Algorithm {
    name: "shared-memory",
    cost: |link, &bytes| cost(link, bytes),
    run: |comm, cast| {
        let all = 0..cast.buffer.len();
        shared::broadcast(comm.memory()?, &mut cast.buffer, all, cast.root)
    },
};

pub(super) const REDUCE: Algorithm<Reduce> = Algorithm {
    name: "shared-memory",
    cost: |link, sum| cost(link, sum.bytes),
    run: |comm, sum| {
        let rounds = comm.memory()?;
        shared::reduce(rounds, &sum.order, sum.format, &mut sum.buffer, sum.root)
    },
};
pub(super) const REDUCE_SCATTER: Algorithm<ReduceScatter> = Algorithm {
    name: "shared-memory",
    cost: |link, sum| cost(link, sum.longest * link.ranks as usize),
    run: |comm, sum| {
        let ReduceScatter { order, format, output, inputs } = sum;
        shared::reduce_scatter(comm.memory()?, order, *format, output.as_mut(), inputs)
    },
};
pub(super) const GATHER: Algorithm<Gather> = Algorithm {
    name: "shared-memory",
    cost: |link, ()| cost(link, TYPICAL),
    run: |comm, g| shared::gather(comm.memory()?, &g.input, &mut g.outputs, g.root),
};
pub(super) const SCATTER: Algorithm<Scatter> = Algorithm {
    name: "shared-memory",
    cost: |link, ()| cost(link, TYPICAL),
    run: |comm, deal| shared::scatter(comm.memory()?, &mut deal.output, &deal.inputs, deal.root),
};
pub(super) const ALLTOALL: Algorithm<Alltoall> = Algorithm {
    name: "shared-memory",
    cost: |link, ()| cost(link, TYPICAL),
    run: |comm, all| shared::alltoall(comm.memory()?, &mut all.outputs, &all.inputs),
};
pub(super) const BARRIER: Algorithm<Barrier> = Algorithm {
    name: "shared-memory",
    cost: |link, ()| cost(link, 0),
    run: |comm, _| shared::barrier(comm.memory()?),
};

/// A cache line there and back, and the memory's rate: no other way comes near.
fn cost(link: &LinkCost, bytes: usize) -> Option<f64> {
    link.shared_memory.then(|| memory_s(bytes))
}

/// Seconds of an operation on `bytes` per rank in shared memory.
pub(super) fn memory_s(bytes: usize) -> f64 {
    1e-6 + bytes as f64 / 5e9
}
