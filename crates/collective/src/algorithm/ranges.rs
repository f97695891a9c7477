//! The sum of a part of a buffer.

use std::ops::Range;
use std::sync::Arc;

use netsum_net::Buffer;
use netsum_net::mesh::MeshError;
use netsum_net::worker::Parts;
use netsum_topo::SumOrder;
use netsum_wire::Format;

use super::operations::allreduce;
use super::request::Allreduce;
use crate::comm::Comm;

/// The sum of some ranges of elements, equal at all ranks; the other elements do not change. With each range: whether
/// this rank takes the sum.
pub(crate) fn allreduce_ranges(
    comm: &mut Comm<'_>,
    order: &Arc<SumOrder>,
    format: Format,
    memory: &mut Parts,
    ranges: &[(Range<u64>, bool)],
) -> Result<(), MeshError> {
    let size = format.dtype.size();
    let bytes = |range: &Range<u64>| range.start as usize * size..range.end as usize * size;
    let sum = |buffer| Allreduce { order: order.clone(), format, buffer };
    if let [(range, true)] = ranges
        && bytes(range) == (0..memory.len())
        && let Some(buffer) = memory.one()
    {
        return allreduce(comm, &mut sum(buffer.lend_all()));
    }
    let parts: Vec<_> = ranges.iter().map(|(range, taken)| (bytes(range), *taken)).collect();
    let mut packed = Vec::with_capacity(parts.iter().map(|(part, _)| part.len()).sum());
    parts.iter().for_each(|(part, _)| packed.extend_from_slice(memory.slice(part.clone())));
    let mut packed = sum(Buffer::from_vec(packed));
    allreduce(comm, &mut packed)?;
    comm.finish()?;
    let mut at = 0;
    for (part, taken) in parts {
        let len = part.len();
        if taken {
            memory.result_mut(part).copy_from_slice(packed.buffer.slice(at..at + len));
        }
        at += len;
    }
    Ok(())
}
