//! Byte ranges handled by ranks and messages, and copies between buffers.

use std::ops::Range;

use netsum_net::Buffer;

/// The byte range of the elements that `rank` adds: shares differ by at most one element.
pub(crate) fn share(bytes: usize, element: usize, rank: u32, size: u32) -> Range<usize> {
    let (n, size) = ((bytes / element) as u64, u64::from(size));
    let start = |rank: u64| (n * rank / size) as usize * element;
    start(u64::from(rank))..start(u64::from(rank) + 1)
}

/// Copies all of `from` to the start of `to`; the two may be identical or overlap.
pub(crate) fn copy(from: &Buffer, to: &mut Buffer) {
    let source = from.slice(0..from.len());
    let (target, origin) = (to.slice(0..to.len()).as_ptr_range(), source.as_ptr_range());
    if target.start == origin.start {
        return;
    }
    if target.end <= origin.start || origin.end <= target.start {
        to.write(0, source);
    } else {
        let apart = source.to_vec();
        to.write(0, &apart);
    }
}

/// Divides `range` into pieces of at most `step` bytes.
pub(crate) fn pieces(range: Range<usize>, step: usize) -> impl Iterator<Item = Range<usize>> {
    let end = range.end;
    range.step_by(step).map(move |start| start..end.min(start + step))
}

/// Assumed size of a piece, in bytes, when algorithms are compared but only some ranks know the sizes.
pub(crate) const TYPICAL: usize = 64 << 10;

/// Size of a pipelined message, in bytes: large enough that the cost per message is small, small enough that several
/// messages are in flight.
pub(crate) const CHUNK: usize = 256 << 10;
