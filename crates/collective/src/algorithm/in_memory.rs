//! Where all ranks share memory, that is the way.

use super::{Algorithm, Cast, Gather, Link, Sum};
use crate::shared;

pub(super) const ALLREDUCE: Algorithm<Sum> = Algorithm {
    name: "shared-memory",
    cost: |link, sum| cost(link, sum.bytes),
    run: |comm, sum| {
        let rounds = comm.memory()?;
        shared::allreduce(rounds, &sum.order, sum.format, &mut sum.buffer.clone())
    },
};
pub(super) const ALLGATHER: Algorithm<Gather> = Algorithm {
    name: "shared-memory",
    cost: |link, pieces| cost(link, pieces.all),
    run: |comm, gather| shared::allgather(comm.memory()?, &gather.input, &gather.outputs),
};
pub(super) const BROADCAST: Algorithm<Cast> = Algorithm {
    name: "shared-memory",
    cost: |link, &bytes| cost(link, bytes),
    run: |comm, cast| shared::broadcast(comm.memory()?, &cast.buffer, cast.root),
};

/// A cache line there and back, and the memory's rate: no other way comes near.
fn cost(link: &Link, bytes: usize) -> Option<f64> {
    link.shared_memory.then(|| memory_s(bytes))
}

/// Seconds of an operation on `bytes` per rank in shared memory.
pub(super) fn memory_s(bytes: usize) -> f64 {
    1e-6 + bytes as f64 / 5e9
}
