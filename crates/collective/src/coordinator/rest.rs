//! The rest of an operation after a hand-over, in elements.

use std::ops::Range;

use netsum_proto::panama::{Fragments, Submission, elements_per_fragment, fragments_of};

/// Number of fragments of a submission.
pub(crate) fn count(submission: &Submission, fragment_bytes: u16) -> u64 {
    match &submission.fragments {
        Fragments::All => fragments_of(submission.numel, fragment_bytes, submission.format.dtype),
        Fragments::Some(list) => list.len() as u64,
    }
}

/// The elements that a submission covers, as few ranges.
pub(crate) fn ranges(submission: &Submission, fragment_bytes: u16) -> Vec<Range<u64>> {
    let numel = submission.numel;
    let list = match &submission.fragments {
        Fragments::All => return std::iter::once(0..numel).collect(),
        Fragments::Some(list) => list,
    };
    let step = elements_per_fragment(fragment_bytes, submission.format.dtype);
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for &fragment in list {
        let start = u64::from(fragment) * step;
        let end = numel.min(start + step);
        match ranges.last_mut() {
            Some(last) if last.end == start => last.end = end,
            _ => ranges.push(start..end),
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;
    use netsum_wire::{Dtype, Format, ReduceOp};

    #[test]
    fn ranges_join_neighbours() {
        let format = Format { dtype: Dtype::F32, op: ReduceOp::Sum };
        let of = |fragments| Submission {
            id: 0,
            format,
            numel: 1000,
            fingerprint: 0,
            fragments,
            pattern: netsum_proto::Pattern::default(),
        };
        let some = of(Fragments::Some(vec![0, 2, 1, 2]));
        assert_eq!(ranges(&some, 1408), [0..352, 704..1000, 352..1000]);
        let joined = of(Fragments::Some(vec![1, 2]));
        assert_eq!(ranges(&joined, 1408).as_slice(), std::slice::from_ref(&(352..1000)));
        assert_eq!(ranges(&of(Fragments::All), 1408).as_slice(), std::slice::from_ref(&(0..1000)));
        assert_eq!((count(&joined, 1408), count(&of(Fragments::All), 1408)), (2, 3));
    }
}
