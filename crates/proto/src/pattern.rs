//! Who contributes to each fragment of an operation, and who takes its result.
//!
//! A reduce-scatter and an all-gather have a shard per rank. A fragment lies within one shard, and fragments go round
//! the shards: so every rank sends and receives all the time, at the same rate, and a packet for a rank, which also tells
//! it of the fragments of other ranks, is never far away.

use std::ops::Range;
use std::sync::Arc;

use netsum_wire::Parties;
use netsum_wire::Rank;

/// A collective operation, as its fragments see it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Pattern {
    /// All ranks get the sum.
    #[default]
    Allreduce,
    /// One rank gets the sum.
    Reduce(Rank),
    /// Each rank gets its shard of the sum. Elements by rank; all together are the buffer.
    ReduceScatter(Arc<[u64]>),
    /// All ranks get one rank's elements.
    Broadcast(Rank),
    /// All ranks get each rank's shard. Elements by rank; all together are the buffer.
    Allgather(Arc<[u64]>),
    /// Ends when all ranks have begun it.
    Barrier,
}

impl Pattern {
    /// Whether it only copies what one rank sends to others.
    pub fn copies(&self) -> bool {
        matches!(self, Pattern::Broadcast(_) | Pattern::Allgather(_))
    }

    /// Whether some rank's contributions are in results that it does not take: it must retain them.
    pub fn gives_away(&self) -> bool {
        matches!(self, Pattern::Reduce(_) | Pattern::ReduceScatter(_))
    }
}

/// A buffer cut into fragments.
#[derive(Clone, Debug)]
pub(crate) struct Cut {
    pattern: Pattern,
    numel: u64,
    per_fragment: u64,
    shards: Option<Shards>,
}

/// The order of the shards' fragments.
#[derive(Clone, Debug)]
struct Shards {
    /// First element of each shard, and the end of the last.
    bounds: Vec<u64>,
    /// Runs of rounds with the same shards.
    runs: Vec<Run>,
    count: u64,
}

/// Rounds in which each of these ranks has one fragment.
#[derive(Clone, Debug)]
struct Run {
    /// Index of the first fragment.
    first: u64,
    first_round: u64,
    ranks: Vec<u8>,
}

impl Cut {
    pub(crate) fn new(pattern: Pattern, numel: u64, per_fragment: u64) -> Cut {
        let shards = match &pattern {
            Pattern::ReduceScatter(sizes) | Pattern::Allgather(sizes) => {
                Some(Shards::new(sizes, per_fragment))
            }
            _ => None,
        };
        Cut { pattern, numel, per_fragment, shards }
    }

    /// Number of fragments.
    pub(crate) fn count(&self) -> u64 {
        match (&self.pattern, &self.shards) {
            (Pattern::Barrier, _) => 1,
            (_, Some(shards)) => shards.count,
            _ => self.numel.div_ceil(self.per_fragment),
        }
    }

    /// Parties and elements of a fragment.
    pub(crate) fn fragment(&self, index: u64) -> (Parties, Range<u64>) {
        if let Some(shards) = &self.shards {
            let (rank, elements) = shards.fragment(index, self.per_fragment);
            let reduces = matches!(self.pattern, Pattern::ReduceScatter(_));
            let parties = if reduces { Parties::ToOne(rank) } else { Parties::FromOne(rank) };
            return (parties, elements);
        }
        let start = index * self.per_fragment;
        let elements = start..(start + self.per_fragment).min(self.numel);
        match self.pattern {
            Pattern::Reduce(to) => (Parties::ToOne(to.0 as u8), elements),
            Pattern::Broadcast(from) => (Parties::FromOne(from.0 as u8), elements),
            Pattern::Barrier => (Parties::Nobody, 0..0),
            _ => (Parties::All, elements),
        }
    }
}

impl Shards {
    fn new(sizes: &[u64], per_fragment: u64) -> Shards {
        let mut bounds = vec![0];
        bounds.extend(sizes.iter().scan(0, |end, size| {
            *end += size;
            Some(*end)
        }));
        let counts: Vec<u64> = sizes.iter().map(|size| size.div_ceil(per_fragment)).collect();
        let mut ends = counts.clone();
        ends.sort_unstable();
        ends.dedup();
        let (mut runs, mut first, mut first_round) = (Vec::new(), 0, 0);
        for end in ends.into_iter().filter(|&end| end > 0) {
            let active = counts.iter().enumerate().filter(|(_, count)| **count >= end);
            let ranks: Vec<u8> = active.map(|(rank, _)| rank as u8).collect();
            let fragments = (end - first_round) * ranks.len() as u64;
            runs.push(Run { first, first_round, ranks });
            (first, first_round) = (first + fragments, end);
        }
        Shards { bounds, runs, count: first }
    }

    fn fragment(&self, index: u64, per_fragment: u64) -> (u8, Range<u64>) {
        let run = &self.runs[self.runs.partition_point(|run| run.first <= index) - 1];
        let (offset, n) = (index - run.first, run.ranks.len() as u64);
        let round = offset / n;
        // With an even number of trees, too, every rank has fragments on every tree.
        let turn = if n.is_multiple_of(2) { round } else { 0 };
        let rank = run.ranks[((offset + turn) % n) as usize];
        let shard = &self.bounds[usize::from(rank)..];
        let start = shard[0] + (run.first_round + round) * per_fragment;
        (rank, start..(start + per_fragment).min(shard[1]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn fragments(cut: &Cut) -> Vec<(Parties, Range<u64>)> {
        (0..cut.count()).map(|index| cut.fragment(index)).collect()
    }

    #[test]
    fn shards_take_turns_until_they_are_used_up() {
        let sizes: Arc<[u64]> = [5, 0, 12, 4].into();
        let order: Vec<_> = fragments(&Cut::new(Pattern::ReduceScatter(sizes), 21, 4));
        let expected = [(0, 0..4), (2, 5..9), (3, 17..21), (0, 4..5), (2, 9..13), (2, 13..17)];
        let expected = expected.map(|(rank, elements)| (Parties::ToOne(rank), elements));
        assert_eq!(order, expected);
    }

    #[test]
    fn every_rank_has_fragments_on_every_tree() {
        for (ranks, trees) in [(8, 2), (8, 4), (3, 2), (6, 2), (4, 2), (2, 2)] {
            let sizes: Arc<[u64]> = vec![64; ranks].into();
            let order = fragments(&Cut::new(Pattern::Allgather(sizes), 64 * ranks as u64, 4));
            for rank in 0..ranks as u8 {
                let mine = order.iter().enumerate().filter(|(_, f)| f.0 == Parties::FromOne(rank));
                let used: std::collections::BTreeSet<_> = mine.map(|(i, _)| i % trees).collect();
                assert_eq!(used.len(), trees, "rank {rank} of {ranks}, {trees} trees");
            }
        }
    }

    proptest! {
        #[test]
        fn fragments_cover_each_shard_once(
            sizes in prop::collection::vec(0..60u64, 1..9), per_fragment in 1..9u64,
        ) {
            let sizes: Arc<[u64]> = sizes.into();
            let numel = sizes.iter().sum();
            let cut = Cut::new(Pattern::Allgather(sizes.clone()), numel, per_fragment);
            let mut owners = vec![None; numel as usize];
            for (parties, elements) in fragments(&cut) {
                prop_assert!(!elements.is_empty() && elements.end - elements.start <= per_fragment);
                let Parties::FromOne(rank) = parties else { panic!("{parties:?}") };
                for element in elements {
                    prop_assert_eq!(owners[element as usize].replace(rank), None);
                }
            }
            let expected = sizes.iter().enumerate();
            let expected = expected.flat_map(|(r, &n)| std::iter::repeat_n(Some(r as u8), n as usize));
            prop_assert_eq!(owners, expected.collect::<Vec<_>>());
        }
    }
}
