//! Allreduce without detours: everybody sends straight to who adds.

use std::ops::Range;

use netsum_net::Buffer;
use netsum_net::mesh::MeshError;

use super::reduce::{Collector, Parts, chunks, contribute};
use super::{Algorithm, Link, Sum, allreduce, share};
use crate::comm::Comm;

/// Everybody's whole buffer to everybody.
pub(super) const ONE_HOP: Algorithm<Sum> = Algorithm {
    name: "one-hop",
    cost: |link, sum| Some(link.latency_s + sent(link, sum.bytes) / link.bytes_per_s),
    run: direct,
};
/// A share to each rank, and its sum to all.
pub(super) const SHARES: Algorithm<Sum> = Algorithm {
    name: "shares",
    cost: |link, sum| {
        let of_all = 2.0 / f64::from(link.ranks);
        Some(2.0 * link.latency_s + sent(link, sum.bytes) * of_all / link.bytes_per_s)
    },
    run: by_shares,
};

/// Bytes that a rank sends if it sends all to all others.
fn sent(link: &Link, bytes: usize) -> f64 {
    bytes as f64 * f64::from(link.ranks - 1)
}

/// The sum of some ranges of elements, equal at every rank; the other elements are left alone.
pub(crate) fn allreduce_ranges(
    comm: &mut Comm<'_>,
    sum: &Sum,
    ranges: &[Range<u64>],
) -> Result<(), MeshError> {
    let (size, buffer) = (sum.format.dtype.size(), &sum.buffer);
    let bytes = |range: &Range<u64>| range.start as usize * size..range.end as usize * size;
    if let [range] = ranges
        && bytes(range) == (0..buffer.len())
    {
        return allreduce(comm, sum);
    }
    let parts: Vec<Range<usize>> = ranges.iter().map(bytes).collect();
    let mut packed = Vec::with_capacity(parts.iter().map(Range::len).sum());
    for part in &parts {
        packed.extend_from_slice(buffer.slice(part.clone()));
    }
    let packed = Buffer::from_vec(packed);
    let (order, format) = (sum.order.clone(), sum.format);
    allreduce(comm, &Sum { order, format, buffer: packed.clone() })?;
    comm.finish()?;
    let mut at = 0;
    for part in parts {
        buffer.write(part.start, packed.slice(at..at + part.len()));
        at += part.len();
    }
    Ok(())
}

fn direct(comm: &mut Comm<'_>, sum: &Sum) -> Result<(), MeshError> {
    let Sum { order, format, buffer } = sum;
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

fn by_shares(comm: &mut Comm<'_>, sum: &Sum) -> Result<(), MeshError> {
    let Sum { order, format, buffer } = sum;
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
