//! Sets of elements as ranges: in order, apart, not empty.

use std::ops::Range;

use netsum_net::Buffer;

pub(super) type Ranges = Vec<Range<usize>>;

/// What is in one of them.
pub(super) fn union(a: &[Range<usize>], b: &[Range<usize>]) -> Ranges {
    let mut all: Ranges = a.iter().chain(b).filter(|range| !range.is_empty()).cloned().collect();
    all.sort_unstable_by_key(|range| range.start);
    let mut merged: Ranges = Vec::new();
    for range in all {
        match merged.last_mut() {
            Some(last) if last.end >= range.start => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}

/// What is below `len` and not in `ranges`.
pub(super) fn without(len: usize, ranges: &[Range<usize>]) -> Ranges {
    let mut rest = Vec::new();
    let mut at = 0;
    for range in ranges {
        if at < range.start {
            rest.push(at..range.start);
        }
        at = range.end;
    }
    if at < len {
        rest.push(at..len);
    }
    rest
}

/// What is in both.
pub(super) fn common(a: &[Range<usize>], b: &[Range<usize>]) -> Ranges {
    let pairs = a.iter().flat_map(|a| b.iter().map(move |b| (a, b)));
    let both = pairs.map(|(a, b)| a.start.max(b.start)..a.end.min(b.end));
    let mut both: Ranges = both.filter(|range| range.start < range.end).collect();
    both.sort_unstable_by_key(|range| range.start);
    both
}

/// Ranges of a packed buffer as ranges of the one that it was packed from.
pub(super) fn unpacked(parts: &[Range<usize>], packed: &[Range<usize>]) -> Ranges {
    let mut at = 0;
    let mut found = Vec::new();
    for part in parts {
        let window = at..at + part.len();
        let shift =
            |range: &Range<usize>| range.start - at + part.start..range.end - at + part.start;
        found.extend(common(packed, std::slice::from_ref(&window)).iter().map(shift));
        at += part.len();
    }
    found
}

/// Whether another rank's ranges can be believed: in order, apart, within `len` elements.
pub(super) fn are_sane(ranges: &[Range<usize>], len: usize) -> bool {
    let ordered = ranges.windows(2).all(|pair| pair[0].end <= pair[1].start);
    ordered && ranges.iter().all(|range| range.start < range.end && range.end <= len)
}

/// The elements of `parts`, one after another.
pub(super) fn pack(buffer: &Buffer, parts: &[Range<usize>], element: usize) -> Vec<u8> {
    let mut packed = Vec::with_capacity(parts.iter().map(Range::len).sum::<usize>() * element);
    for part in parts {
        packed.extend_from_slice(buffer.slice(part.start * element..part.end * element));
    }
    packed
}

/// Writes back those elements of `parts` that are in `wanted`.
pub(super) fn unpack(
    buffer: &Buffer,
    parts: &[Range<usize>],
    wanted: &[Range<usize>],
    packed: &[u8],
    element: usize,
) {
    let mut at = 0;
    for part in parts {
        for piece in common(wanted, std::slice::from_ref(part)) {
            let from = (at + piece.start - part.start) * element;
            let bytes = &packed[from..from + piece.len() * element];
            buffer.write(piece.start * element, bytes);
        }
        at += part.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn set(ranges: &[Range<usize>]) -> Vec<bool> {
        let mut set = vec![false; 64];
        ranges.iter().flat_map(Clone::clone).for_each(|i| set[i] = true);
        set
    }

    fn ranges() -> impl Strategy<Value = Ranges> {
        proptest::collection::vec((0usize..64, 0usize..12), 0..8).prop_map(|pairs| {
            let all: Ranges = pairs.iter().map(|&(at, len)| at..(at + len).min(64)).collect();
            union(&all, &[])
        })
    }

    proptest! {
        #[test]
        fn they_are_sets(a in ranges(), b in ranges()) {
            let (x, y) = (set(&a), set(&b));
            let both = |f: fn(bool, bool) -> bool| -> Vec<bool> {
                x.iter().zip(&y).map(|(&x, &y)| f(x, y)).collect()
            };
            prop_assert_eq!(set(&union(&a, &b)), both(|x, y| x | y));
            prop_assert_eq!(set(&common(&a, &b)), both(|x, y| x & y));
            prop_assert_eq!(set(&without(64, &a)), both(|x, _| !x));
            prop_assert!(are_sane(&union(&a, &b), 64) && are_sane(&without(64, &a), 64));
        }

        #[test]
        fn what_is_packed_is_unpacked(parts in ranges(), wanted in ranges()) {
            let buffer = Buffer::from_vec((0..128).collect());
            let packed: Vec<u8> = pack(&buffer, &parts, 2).iter().map(|x| x ^ 0x80).collect();
            let count = packed.len() / 2;
            prop_assert_eq!(unpacked(&parts, std::slice::from_ref(&(0..count))), parts.clone());
            unpack(&buffer, &parts, &wanted, &packed, 2);
            let changed = set(&common(&parts, &wanted));
            for (i, changed) in changed.iter().enumerate() {
                let expected = (2 * i as u8) ^ if *changed { 0x80 } else { 0 };
                prop_assert_eq!(buffer.slice(2 * i..2 * i + 1)[0], expected);
            }
        }
    }
}
