//! Allreduce: each rank adds one share of the elements and gives the sums to all.
//!
//! Small buffers go whole from everybody to everybody, and everybody adds: one step in place of two.

use std::ops::Range;

use netsum_net::Buffer;
use netsum_net::mesh::MeshError;
use netsum_topo::SumOrder;
use netsum_wire::Format;

use super::reduce::{Collector, Parts, chunks, contribute};
use crate::comm::Comm;

/// The sum of everybody's `buffer`, in place.
pub(crate) fn allreduce(
    comm: &mut Comm<'_>,
    order: &SumOrder,
    format: Format,
    buffer: &Buffer,
) -> Result<(), MeshError> {
    let others = comm.size() as usize - 1;
    if buffer.len() * others <= DIRECT_MAX {
        direct(comm, order, format, buffer)
    } else {
        by_shares(comm, order, format, buffer)
    }
}

/// The same for some ranges of elements, equal at every rank; the other elements are left alone.
pub(crate) fn allreduce_ranges(
    comm: &mut Comm<'_>,
    order: &SumOrder,
    format: Format,
    buffer: &Buffer,
    ranges: &[Range<u64>],
) -> Result<(), MeshError> {
    let size = format.dtype.size();
    let bytes = |range: &Range<u64>| range.start as usize * size..range.end as usize * size;
    if let [range] = ranges
        && bytes(range) == (0..buffer.len())
    {
        return allreduce(comm, order, format, buffer);
    }
    let parts: Vec<Range<usize>> = ranges.iter().map(bytes).collect();
    let mut packed = Vec::with_capacity(parts.iter().map(Range::len).sum());
    for part in &parts {
        packed.extend_from_slice(buffer.slice(part.clone()));
    }
    let packed = Buffer::from_vec(packed);
    allreduce(comm, order, format, &packed)?;
    comm.finish()?;
    let mut at = 0;
    for part in parts {
        buffer.write(part.start, packed.slice(at..at + part.len()));
        at += part.len();
    }
    Ok(())
}

fn direct(
    comm: &mut Comm<'_>,
    order: &SumOrder,
    format: Format,
    buffer: &Buffer,
) -> Result<(), MeshError> {
    let all = 0..buffer.len();
    // The sum is written over what the messages still refer to: they get a copy.
    let own = Buffer::from_vec(buffer.slice(all.clone()).to_vec());
    for to in comm.others() {
        contribute(comm, to, &own, all.clone(), format, CONTRIBUTIONS);
    }
    let mut collector = Collector::new(comm, order, format, all, CONTRIBUTIONS);
    while let Some(chunk) = collector.next(comm)? {
        collector.add(comm, &own, &chunk, |at, sum| buffer.write(chunk.start + at, sum));
    }
    comm.finish()
}

fn by_shares(
    comm: &mut Comm<'_>,
    order: &SumOrder,
    format: Format,
    buffer: &Buffer,
) -> Result<(), MeshError> {
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
        collector.add(comm, buffer, &chunk, |at, sum| buffer.write(chunk.start + at, sum));
        for to in comm.others() {
            comm.send(to, result(index), buffer, chunk.start, chunk.len());
        }
        index += 1;
    }
    comm.finish()
}

/// Bytes of the elements that `rank` adds: shares differ by at most one element.
fn share(bytes: usize, element: usize, rank: u32, size: u32) -> Range<usize> {
    let (n, size) = ((bytes / element) as u64, u64::from(size));
    let start = |rank: u64| (n * rank / size) as usize * element;
    start(u64::from(rank))..start(u64::from(rank) + 1)
}

const CONTRIBUTIONS: Parts = Parts { first: 0, step: 2 };

fn result(index: usize) -> u64 {
    2 * index as u64 + 1
}

/// Bytes that a rank sends at most when everybody adds everything.
const DIRECT_MAX: usize = 64 << 10;
