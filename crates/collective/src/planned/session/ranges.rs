//! The remaining elements of an operation, packed contiguously.

use std::ops::Range;

use netsum_net::Buffer;
use netsum_proto::handover::Ranges;
use netsum_proto::handover::elements::common;

/// Converts ranges of the plan's engine.
pub(super) fn of_engine(ranges: &[Range<usize>]) -> Ranges {
    ranges.iter().map(|range| range.start as u64..range.end as u64).collect()
}

/// Maps ranges of a packed buffer to ranges of the original buffer.
pub(super) fn unpacked(parts: &[Range<u64>], packed: &[Range<u64>]) -> Ranges {
    let mut at = 0;
    let mut found = Vec::new();
    for part in parts {
        let len = part.end - part.start;
        let window = at..at + len;
        let shift = |range: &Range<u64>| range.start - at + part.start..range.end - at + part.start;
        found.extend(common(packed, std::slice::from_ref(&window)).iter().map(shift));
        at += len;
    }
    found
}

/// The elements of `parts`, packed contiguously.
pub(super) fn pack(buffer: &Buffer, parts: &[Range<u64>], element: usize) -> Vec<u8> {
    let len: usize = parts.iter().map(|part| bytes_of(part, element).len()).sum();
    let mut packed = Vec::with_capacity(len);
    for part in parts {
        packed.extend_from_slice(buffer.slice(bytes_of(part, element)));
    }
    packed
}

/// Writes back those elements of `parts` that are in `wanted`.
pub(super) fn unpack(
    buffer: &mut Buffer,
    parts: &[Range<u64>],
    wanted: &[Range<u64>],
    packed: &[u8],
    element: usize,
) {
    let mut at = 0;
    for part in parts {
        for piece in common(wanted, std::slice::from_ref(part)) {
            let (place, offset) = (bytes_of(&piece, element), bytes_of(part, element).start);
            let from = at + place.start - offset;
            buffer.write(place.start, &packed[from..from + place.len()]);
        }
        at += bytes_of(part, element).len();
    }
}

/// The byte range of elements in a buffer.
pub(super) fn bytes_of(elements: &Range<u64>, element: usize) -> Range<usize> {
    elements.start as usize * element..elements.end as usize * element
}

#[cfg(test)]
mod tests {
    use super::*;
    use netsum_proto::handover::elements::union;
    use proptest::prelude::*;

    fn set(ranges: &[Range<u64>]) -> Vec<bool> {
        let mut set = vec![false; 64];
        ranges.iter().flat_map(Clone::clone).for_each(|i| set[i as usize] = true);
        set
    }

    fn ranges() -> impl Strategy<Value = Ranges> {
        proptest::collection::vec((0..64u64, 0..12u64), 0..8).prop_map(|pairs| {
            let all: Ranges = pairs.iter().map(|&(at, len)| at..(at + len).min(64)).collect();
            union(&all, &[])
        })
    }

    proptest! {
        #[test]
        fn packing_round_trips(parts in ranges(), wanted in ranges()) {
            let mut buffer = Buffer::from_vec((0..128).collect());
            let packed: Vec<u8> = pack(&buffer, &parts, 2).iter().map(|x| x ^ 0x80).collect();
            let count = packed.len() as u64 / 2;
            prop_assert_eq!(unpacked(&parts, std::slice::from_ref(&(0..count))), parts.clone());
            unpack(&mut buffer, &parts, &wanted, &packed, 2);
            let changed = set(&common(&parts, &wanted));
            for (i, changed) in changed.iter().enumerate() {
                let expected = (2 * i as u8) ^ if *changed { 0x80 } else { 0 };
                prop_assert_eq!(buffer.slice(2 * i..2 * i + 1)[0], expected);
            }
        }
    }
}
