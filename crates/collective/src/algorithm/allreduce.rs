//! Direct allreduce: every rank sends straight to the ranks that add.

use std::collections::VecDeque;
use std::ops::Range;

use netsum_net::Buffer;
use netsum_net::mesh::MeshError;

use super::reduce::{Collector, Parts, chunks, contribute};
use super::{Algorithm, Allreduce};
use crate::comm::Comm;
use crate::link_cost::LinkCost;
use crate::pieces::share;

/// Every rank sends its whole buffer to all others.
pub(super) const ONE_HOP: Algorithm<Allreduce> = Algorithm {
    name: "one-hop",
    cost: |link, sum| Some(link.latency_s + sent(link, sum.bytes) / link.bytes_per_s),
    run: direct,
};
/// Every rank sends a share to each rank, which sends its sum to all.
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

fn direct(comm: &mut Comm<'_>, sum: &mut Allreduce) -> Result<(), MeshError> {
    let Allreduce { order, format, buffer } = sum;
    let format = *format;
    let all = 0..buffer.len();
    // The sum overwrites memory that the messages still refer to: they get a copy.
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

fn by_shares(comm: &mut Comm<'_>, sum: &mut Allreduce) -> Result<(), MeshError> {
    let Allreduce { order, format, buffer } = sum;
    let format = *format;
    let (rank, size) = (comm.rank(), comm.size());
    let len = buffer.len();
    let share = |rank: u32| share(len, format.dtype.size(), rank, size);
    let mut collector = Collector::new(comm, order, format, share(rank), CONTRIBUTIONS);
    for owner in comm.others() {
        contribute(comm, owner, buffer, share(owner), format, CONTRIBUTIONS);
    }
    let of = |owner: u32| (owner, chunks(share(owner), format).enumerate().collect());
    let mut awaited: Vec<Awaited> = comm.others().map(of).collect();
    let mut index = 0;
    loop {
        expect(comm, buffer, &mut awaited);
        let Some(chunk) = collector.next(comm)? else { break };
        let sum = collector.add(comm, buffer, &chunk);
        buffer.write(chunk.start, sum);
        for to in comm.others() {
            comm.send(to, result(index), buffer, chunk.start, chunk.len());
        }
        index += 1;
    }
    for (owner, sums) in awaited {
        for (index, chunk) in sums {
            comm.receive(owner, result(index), buffer, chunk.start, chunk.len());
        }
    }
    comm.finish()
}

/// The owner of sums, and the numbers and ranges of those that are not posted yet.
type Awaited = (u32, VecDeque<(usize, Range<usize>)>);

/// Posts receives of the sums that may be written: a sum overwrites own values, which are lent until they have been
/// sent.
fn expect(comm: &mut Comm<'_>, buffer: &mut Buffer, awaited: &mut [Awaited]) {
    for (owner, sums) in awaited {
        while sums.front().is_some_and(|(_, chunk)| !buffer.is_lent(chunk.clone()))
            && let Some((index, chunk)) = sums.pop_front()
        {
            comm.receive(*owner, result(index), buffer, chunk.start, chunk.len());
        }
    }
}

const CONTRIBUTIONS: Parts = Parts { first: 0, step: 2 };

fn result(index: usize) -> u64 {
    2 * index as u64 + 1
}
