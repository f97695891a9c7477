//! Allreduce without detours: everybody sends straight to who adds.

use netsum_net::Buffer;
use netsum_net::mesh::MeshError;

use super::reduce::{Collector, Parts, chunks, contribute};
use super::{Algorithm, Allreduce};
use crate::comm::Comm;
use crate::link_cost::LinkCost;
use crate::pieces::share;

/// Everybody's whole buffer to everybody.
pub(super) const ONE_HOP: Algorithm<Allreduce> = Algorithm {
    name: "one-hop",
    cost: |link, sum| Some(link.latency_s + sent(link, sum.bytes) / link.bytes_per_s),
    run: direct,
};
/// A share to each rank, and its sum to all.
pub(super) const SHARES: Algorithm<Allreduce> = Algorithm {
    name: "shares",
    cost: |link, sum| {
        let of_all = 2.0 / f64::from(link.ranks);
        Some(2.0 * link.latency_s + sent(link, sum.bytes) * of_all / link.bytes_per_s)
    },
    run: by_shares,
};

/// Bytes that a rank sends if it sends all to all others.
fn sent(link: &LinkCost, bytes: usize) -> f64 {
    bytes as f64 * f64::from(link.ranks - 1)
}

fn direct(comm: &mut Comm<'_>, sum: &Allreduce) -> Result<(), MeshError> {
    let Allreduce { order, format, buffer } = sum;
    let format = *format;
    let all = 0..buffer.len();
    // The sum is written over what the messages still refer to: they get a copy.
    let own = Buffer::from_vec(buffer.slice(all.clone()).to_vec());
    for to in comm.others() {
        contribute(comm, to, &own, all.clone(), format, CONTRIBUTIONS);
    }
    let mut collector = Collector::new(comm, order, format, all, CONTRIBUTIONS);
    while let Some(chunk) = collector.next(comm)? {
        let sum = collector.add(comm, &own, &chunk);
        buffer.write(chunk.start, sum);
    }
    comm.finish()
}

fn by_shares(comm: &mut Comm<'_>, sum: &Allreduce) -> Result<(), MeshError> {
    let Allreduce { order, format, buffer } = sum;
    let format = *format;
    let (rank, size) = (comm.rank(), comm.size());
    let share = |rank: u32| share(buffer.len(), format.dtype.size(), rank, size);
    for owner in comm.others() {
        for (index, chunk) in chunks(share(owner), format).enumerate() {
            // A sum overwrites our values; it cannot come before its owner has them.
            comm.receive(owner, result(index), buffer, chunk.start, chunk.len());
        }
    }
    let mut collector = Collector::new(comm, order, format, share(rank), CONTRIBUTIONS);
    for owner in comm.others() {
        contribute(comm, owner, buffer, share(owner), format, CONTRIBUTIONS);
    }
    let mut index = 0;
    while let Some(chunk) = collector.next(comm)? {
        let sum = collector.add(comm, buffer, &chunk);
        buffer.write(chunk.start, sum);
        for to in comm.others() {
            comm.send(to, result(index), buffer, chunk.start, chunk.len());
        }
        index += 1;
    }
    comm.finish()
}

const CONTRIBUTIONS: Parts = Parts { first: 0, step: 2 };

fn result(index: usize) -> u64 {
    2 * index as u64 + 1
}
