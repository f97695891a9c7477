//! The sum of a part of a buffer.

use std::ops::Range;

use netsum_net::Buffer;
use netsum_net::mesh::MeshError;

use super::operations::allreduce;
use super::request::Allreduce;
use crate::comm::Comm;

/// The sum of some ranges of elements, equal at every rank; the other elements are left alone.
pub(crate) fn allreduce_ranges(
    comm: &mut Comm<'_>,
    sum: &mut Allreduce,
    ranges: &[Range<u64>],
) -> Result<(), MeshError> {
    let (size, buffer) = (sum.format.dtype.size(), &mut sum.buffer);
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
    let (order, format) = (sum.order.clone(), sum.format);
    let mut packed = Allreduce { order, format, buffer: Buffer::from_vec(packed) };
    allreduce(comm, &mut packed)?;
    comm.finish()?;
    let mut at = 0;
    for part in parts {
        buffer.write(part.start, packed.buffer.slice(at..at + part.len()));
        at += part.len();
    }
    Ok(())
}
