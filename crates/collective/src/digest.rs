//! Comparison of results: now and then every rank hashes a part of the sum that it got, and one of them compares the
//! hashes of all.
//!
//! All ranks must have the same bits. If they have not, a switch, a network or a rank changes values, by mistake or by
//! malice; this finds it and names the ranks that differ. Nothing waits: a hash is a message beside others, and a rank
//! that sends none is not compared. The ranks take turns as the one that compares.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hasher;

use netsum_net::Buffer;
use parking_lot::Mutex;
use siphasher::sip::SipHasher13;

/// Hashes that wait for those of other ranks.
#[derive(Debug)]
pub(crate) struct Digests {
    /// One operation of so many is compared; 0: none.
    every: u64,
    rank: u32,
    size: u32,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The last operation that this rank has hashed.
    latest: u64,
    /// By operation and rank.
    waiting: BTreeMap<u64, Vec<Option<u64>>>,
}

/// The ranks whose results differ from those of the most.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Difference {
    /// Empty if no result is that of a majority.
    pub(crate) ranks: Vec<u32>,
}

impl Digests {
    pub(crate) fn new(every: u64, rank: u32, size: u32) -> Digests {
        Digests { every, rank, size, state: Mutex::default() }
    }

    /// Whether the results of that operation are compared.
    pub(crate) fn is_due(&self, sequence: u64) -> bool {
        self.every > 0 && self.size > 1 && sequence.is_multiple_of(self.every)
    }

    /// Hashes the result of an operation that is due; returns the hash, and the rank that compares.
    pub(crate) fn hash(&self, sequence: u64, result: &Buffer) -> (u64, u32) {
        let mut state = self.state.lock();
        state.latest = state.latest.max(sequence);
        let oldest = state.latest.saturating_sub(self.reach());
        state.waiting.retain(|&sequence, _| sequence >= oldest);
        drop(state);
        let turn = sequence / self.every;
        (of(turn, result), (turn % u64::from(self.size)) as u32)
    }

    /// Takes a rank's hash. `Some` once all ranks have sent theirs, if they differ. A hash that this rank does not
    /// compare, or that is too far from its own operations, has no effect.
    pub(crate) fn take(&self, sequence: u64, from: u32, digest: u64) -> Option<Difference> {
        let turn = sequence.checked_div(self.every)?;
        let own = turn % u64::from(self.size) == u64::from(self.rank);
        let mut state = self.state.lock();
        let near = sequence.abs_diff(state.latest) <= self.reach();
        if !own || !near || !self.is_due(sequence) || from >= self.size {
            return None;
        }
        let nobody = || vec![None; self.size as usize];
        let hashes = state.waiting.entry(sequence).or_insert_with(nobody);
        hashes[from as usize] = Some(digest);
        let hashes: Vec<u64> = hashes.iter().copied().collect::<Option<_>>()?;
        state.waiting.remove(&sequence);
        difference(&hashes)
    }

    /// Ranks are ahead of each other by at most so many operations.
    fn reach(&self) -> u64 {
        self.every.saturating_mul(TURNS_MAX)
    }
}

fn difference(hashes: &[u64]) -> Option<Difference> {
    let mut ranks = HashMap::new();
    hashes.iter().for_each(|hash| *ranks.entry(hash).or_insert(0) += 1);
    if ranks.len() < 2 {
        return None;
    }
    let most = ranks.into_iter().find(|(_, count)| 2 * count > hashes.len());
    let differ =
        |most: &u64| (0..).zip(hashes).filter(|(_, hash)| *hash != most).map(|(r, _)| r).collect();
    Some(Difference { ranks: most.map(|(hash, _)| differ(hash)).unwrap_or_default() })
}

/// A hash of the length and of at most [`PART`] bytes, of another part in each turn.
fn of(turn: u64, result: &Buffer) -> u64 {
    let len = result.len();
    let parts = len.div_ceil(PART).max(1) as u64;
    let start = (turn % parts) as usize * PART;
    let mut hasher = SipHasher13::new();
    hasher.write_u64(len as u64);
    hasher.write(result.slice(start..len.min(start + PART)));
    hasher.finish()
}

/// Hashing so many bytes takes half a millisecond: two microseconds of each operation, if one of 256 is compared.
const PART: usize = 1 << 20;
/// Comparisons that may be incomplete at once.
const TURNS_MAX: u64 = 16;

#[cfg(test)]
mod tests {
    use super::*;

    fn buffer(len: usize, change: Option<usize>) -> Buffer {
        let mut bytes = vec![7; len];
        change.into_iter().for_each(|at| bytes[at] ^= 1);
        Buffer::from_vec(bytes)
    }

    #[test]
    fn a_rank_that_differs_is_named() {
        let digests = Digests::new(4, 1, 4);
        assert!(digests.is_due(4) && !digests.is_due(5));
        let (good, judge) = digests.hash(4, &buffer(100, None));
        let (bad, _) = digests.hash(4, &buffer(100, Some(3)));
        assert_eq!(judge, 1);
        assert!((0..3).all(|rank| digests.take(4, rank, good).is_none()));
        assert_eq!(digests.take(4, 3, bad), Some(Difference { ranks: vec![3] }));
        // A rank sends its hash once more: it is the first of a new comparison.
        assert_eq!(digests.take(4, 3, bad), None);
        assert!((0..4).all(|rank| digests.take(20, rank, good).is_none()), "all are equal");
    }

    #[test]
    fn without_a_majority_nobody_is_blamed() {
        assert_eq!(difference(&[1, 2]), Some(Difference { ranks: vec![] }));
        assert_eq!(difference(&[1, 1, 2, 2]), Some(Difference { ranks: vec![] }));
        assert_eq!(difference(&[1, 2, 2]), Some(Difference { ranks: vec![0] }));
        assert_eq!(difference(&[5, 5, 5]), None);
    }

    #[test]
    fn every_part_of_a_long_result_has_its_turn() {
        let len = 3 * PART + 5;
        for at in [0, PART, 3 * PART + 4, len - 1] {
            let (good, bad) = (buffer(len, None), buffer(len, Some(at)));
            let found = (0..4).filter(|&turn| of(turn, &good) != of(turn, &bad)).count();
            assert_eq!(found, 1, "byte {at}");
        }
        assert_ne!(of(0, &buffer(10, None)), of(0, &buffer(11, None)));
        of(3, &buffer(0, None));
    }

    #[test]
    fn a_hostile_rank_fills_no_memory_and_hides_nobody() {
        let digests = Digests::new(1, 0, 2);
        let (hash, _) = digests.hash(100, &buffer(1, None));
        assert_eq!(digests.take(100, 0, hash), None);
        (0..10_000).for_each(|sequence| _ = digests.take(sequence, 1, 0));
        assert_eq!(digests.take(u64::MAX, 1, 0), None);
        assert!(digests.state.lock().waiting.len() <= 2 * TURNS_MAX as usize + 1);
        assert_eq!(digests.take(100, 7, 0), None, "there is no rank 7");
        let off = Digests::new(0, 0, 2);
        assert!(!off.is_due(0) && off.take(0, 1, 5).is_none());
    }
}
