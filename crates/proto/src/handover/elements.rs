//! Sets of elements of one operation as ranges: ordered, disjoint, not empty.

use std::ops::Range;

use netsum_wire::Rank;

/// A set of elements.
pub type Ranges = Vec<Range<u64>>;

/// Elements that one rank gives to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Rank that has them.
    pub from: Rank,
    /// Rank that lacks them.
    pub to: Rank,
    /// The elements.
    pub elements: Range<u64>,
    /// Number of the piece among all of this hand-over; the same at both ranks.
    pub number: u32,
}

/// The union of two sets.
pub fn union(a: &[Range<u64>], b: &[Range<u64>]) -> Ranges {
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

/// The complement of `ranges` below `len`.
pub fn without(len: u64, ranges: &[Range<u64>]) -> Ranges {
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

/// The intersection of two sets.
pub fn common(a: &[Range<u64>], b: &[Range<u64>]) -> Ranges {
    let mut both = Vec::new();
    let (mut a, mut b) = (a.iter().peekable(), b.iter().peekable());
    while let (Some(x), Some(y)) = (a.peek(), b.peek()) {
        let range = x.start.max(y.start)..x.end.min(y.end);
        if x.end <= y.end {
            a.next()
        } else {
            b.next()
        };
        if !range.is_empty() {
            both.push(range);
        }
    }
    both
}

/// Whether another rank's ranges are valid: ordered, disjoint, not empty, within `len` elements.
pub fn are_sane(ranges: &[Range<u64>], len: u64) -> bool {
    let ordered = ranges.windows(2).all(|pair| pair[0].end <= pair[1].start);
    ordered && ranges.iter().all(|range| range.start < range.end && range.end <= len)
}

/// The transfers between ranks, from what each rank has: every rank gets all elements that are finished anywhere, from
/// the lowest rank that has them. All ranks compute the same list.
pub(super) fn pieces(finals: &[Ranges], len: u64) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut done: Ranges = Vec::new();
    for (holder, has) in finals.iter().enumerate() {
        // Lower ranks send what they have.
        let to_send = common(has, &without(len, &done));
        for (rank, has) in finals.iter().enumerate() {
            for elements in common(&to_send, &without(len, has)) {
                let (from, to) = (Rank(holder as u32), Rank(rank as u32));
                pieces.push(Piece { from, to, elements, number: pieces.len() as u32 });
            }
        }
        done = union(&done, has);
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LEN: u64 = 64;

    fn set(ranges: &[Range<u64>]) -> Vec<bool> {
        let mut set = vec![false; LEN as usize];
        ranges.iter().flat_map(Clone::clone).for_each(|i| set[i as usize] = true);
        set
    }

    fn ranges() -> impl Strategy<Value = Ranges> {
        proptest::collection::vec((0..LEN, 0..12u64), 0..8).prop_map(|pairs| {
            let all: Ranges = pairs.iter().map(|&(at, len)| at..(at + len).min(LEN)).collect();
            union(&all, &[])
        })
    }

    proptest! {
        #[test]
        fn ranges_behave_as_sets(a in ranges(), b in ranges()) {
            let (x, y) = (set(&a), set(&b));
            let both = |f: fn(bool, bool) -> bool| -> Vec<bool> {
                x.iter().zip(&y).map(|(&x, &y)| f(x, y)).collect()
            };
            prop_assert_eq!(set(&union(&a, &b)), both(|x, y| x | y));
            prop_assert_eq!(set(&common(&a, &b)), both(|x, y| x & y));
            prop_assert_eq!(set(&without(LEN, &a)), both(|x, _| !x));
            let all = [union(&a, &b), without(LEN, &a), common(&a, &b)];
            prop_assert!(all.iter().all(|ranges| are_sane(ranges, LEN)));
        }

        #[test]
        fn each_rank_is_given_each_element_once(finals in proptest::collection::vec(ranges(), 1..5)) {
            let everything = finals.iter().fold(Vec::new(), |all, has| union(&all, has));
            let mut has: Vec<Vec<bool>> = finals.iter().map(|has| set(has)).collect();
            let before = has.clone();
            for piece in pieces(&finals, LEN) {
                for i in piece.elements {
                    prop_assert!(before[piece.from.0 as usize][i as usize], "the sender has it");
                    let received = &mut has[piece.to.0 as usize][i as usize];
                    prop_assert!(!*received, "given twice");
                    *received = true;
                }
            }
            for has in has {
                prop_assert_eq!(has, set(&everything));
            }
        }
    }
}
