//! Operations on which ranks disagree: who differs from most.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use netsum_proto::Refusal;
use netsum_topo::{AggregationTree, Child, TreeNode};

use super::State;
use crate::Error;
use crate::ledger::Opinion;
use crate::messages::MessageKind;

/// Open disputes, by operation.
#[derive(Default)]
pub(super) struct Disputes(BTreeMap<u64, Dispute>);

struct Dispute {
    /// When it is decided by what is known then.
    until: Instant,
    /// Ranks whose packets differ from the first ones, as switches say; `None`: switches have not reported any.
    named: Option<BTreeSet<u32>>,
    /// Ranks whose packets a switch has refused, and that are not of this rank's call.
    unlike: BTreeSet<u32>,
    /// The same, and they are: the packets that came before them are not.
    alike: BTreeSet<u32>,
}

impl State {
    /// A switch has found packets that differ. Every rank sends its call; if these are equal, a rank has sent other
    /// packets than those of its call.
    pub(super) fn packets_differ(&mut self, sequence: u64, named: Option<u32>) {
        let ranks = named.and_then(|named| self.rank_of(named));
        let known = self.disputes.at(sequence).named.get_or_insert_default();
        known.extend(ranks);
        self.compare(sequence);
    }

    /// A switch has refused packets of some ranks (mod 64).
    pub(super) fn refused(&mut self, sequence: u64, ranks: u64, refusal: Refusal) {
        let ranks = (0..self.core.size).filter(|rank| ranks >> (rank % 64) & 1 == 1);
        let dispute = self.disputes.at(sequence);
        match refusal {
            Refusal::Unlike => dispute.unlike.extend(ranks),
            Refusal::LikeOurs => dispute.alike.extend(ranks),
            Refusal::Changed => self.changed(sequence, ranks.collect()),
        }
    }

    /// Ranks have contributed to the same elements twice, with different values: nothing else need be known.
    fn changed(&mut self, sequence: u64, ranks: Vec<u32>) {
        let Some(job) = self.jobs.get(&sequence) else { return };
        let error = Error::Changed { operation: job.work.operation(), ranks };
        self.end_dispute(sequence, error);
    }

    /// Ends the group if the calls of an operation differ: as soon as those of most ranks are known, or by what is known
    /// when the patience is over.
    pub(super) fn judge(&mut self, sequence: u64, now: Instant) {
        let own = (self.core.rank, self.core.size);
        let opinion = self.core.ledger.opinion(sequence, own);
        let mismatch = self.core.ledger.mismatch(sequence, self.core.rank);
        let is_late = self.disputes.0.get(&sequence).is_some_and(|dispute| dispute.until <= now);
        match (opinion, mismatch) {
            (Opinion::Majority { differing: found }, Some(mut error)) => {
                if let Error::Mismatch { differing, .. } = &mut error {
                    *differing = found;
                }
                self.end_dispute(sequence, error);
            }
            (_, Some(error)) if is_late => self.end_dispute(sequence, error),
            (Opinion::Open, Some(_)) => _ = self.disputes.at(sequence),
            // Packets that are still under way may name others.
            (Opinion::Same, None) if is_late => self.contradiction(sequence),
            _ => {}
        }
    }

    pub(super) fn watch_disputes(&mut self, now: Instant) {
        let late: Vec<u64> = (self.disputes.0.iter())
            .filter(|(_, dispute)| dispute.until <= now)
            .map(|(&sequence, _)| sequence)
            .collect();
        for sequence in late {
            self.judge(sequence, now);
            // What cannot be decided is left to the operation's time-out.
            self.disputes.0.remove(&sequence);
        }
    }

    fn contradiction(&mut self, sequence: u64) {
        let Some(dispute) = self.disputes.0.get(&sequence) else { return };
        let Some(named) = &dispute.named else { return };
        let Some(job) = self.jobs.get(&sequence) else { return };
        let before = || self.before(&dispute.alike);
        let ranks = match (dispute.unlike.is_empty(), dispute.alike.is_empty()) {
            (false, _) => minority(&dispute.unlike, self.core.size),
            (true, false) => minority(&before(), self.core.size),
            (true, true) => culprits(named, self.core.size),
        };
        let error = Error::Contradiction { operation: job.work.operation(), ranks };
        self.end_dispute(sequence, error);
    }

    /// A rank that had completed its part when this rank noticed must fail, too.
    fn end_dispute(&mut self, sequence: u64, error: Error) {
        self.disputes.0.remove(&sequence);
        self.core.send_all(MessageKind::Failed, 1, error.to_string().as_bytes());
        self.fail(error);
    }

    /// The ranks of whom some sent the packets that came before those of `refused` at a switch.
    fn before(&self, refused: &BTreeSet<u32>) -> BTreeSet<u32> {
        let trees = self.plan.iter().flat_map(|plan| &plan.0.plan.trees);
        let found: BTreeSet<u32> = trees.flat_map(|tree| beside(tree, refused)).collect();
        match found.is_empty() {
            true => (0..self.core.size).filter(|rank| !refused.contains(rank)).collect(),
            false => found,
        }
    }

    /// The rank that a switch has named: static pools number the children of their switch.
    fn rank_of(&self, named: u32) -> Option<u32> {
        let plan = &self.plan.as_ref()?.0.plan;
        if !plan.protocol.has_pools() {
            return Some(named);
        }
        match plan.trees.first()?.nodes.first()?.children.get(named as usize)? {
            Child::Rank(rank) => Some(*rank),
            Child::Switch(_) => None,
        }
    }
}

impl Disputes {
    fn at(&mut self, sequence: u64) -> &mut Dispute {
        self.0.entry(sequence).or_insert_with(|| Dispute {
            until: Instant::now() + PATIENCE,
            named: None,
            unlike: BTreeSet::new(),
            alike: BTreeSet::new(),
        })
    }
}

/// The ranks that differ from most. `named` are those that differ from whoever came first: if they are more than half,
/// the first one is to blame, and the others are not named.
fn culprits(named: &BTreeSet<u32>, size: u32) -> Vec<u32> {
    match 2 * named.len() > size as usize {
        true => (0..size).filter(|rank| !named.contains(rank)).collect(),
        false => named.iter().copied().collect(),
    }
}

/// The ranks that differ from most, if `unlike` are all that differ from this one: both sides if these are equal.
fn minority(unlike: &BTreeSet<u32>, size: u32) -> Vec<u32> {
    let like = || (0..size).filter(|rank| !unlike.contains(rank));
    match (2 * unlike.len()).cmp(&(size as usize)) {
        Ordering::Less => unlike.iter().copied().collect(),
        Ordering::Equal => (0..size).collect(),
        Ordering::Greater => like().collect(),
    }
}

/// The ranks beneath the other children of switches that have children with ranks of `refused` only.
fn beside(tree: &AggregationTree, refused: &BTreeSet<u32>) -> BTreeSet<u32> {
    let below = |child: &Child| match *child {
        Child::Rank(rank) => vec![rank],
        Child::Switch(switch) => tree.ranks_below(switch),
    };
    let others = |node: &TreeNode| {
        let (refused, others): (Vec<_>, Vec<_>) = (node.children.iter().map(below))
            .partition(|ranks| ranks.iter().all(|rank| refused.contains(rank)));
        if refused.is_empty() { Vec::new() } else { others.concat() }
    };
    let found = tree.nodes.iter().flat_map(others);
    found.filter(|rank| !refused.contains(rank)).collect()
}

/// Calls are short messages, sent at once; a busy machine may take longer.
const PATIENCE: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests {
    use netsum_topo::{NodeId, Parent};

    use super::*;

    #[test]
    fn who_differs_from_most_is_to_blame() {
        let of = |named: &[u32]| culprits(&named.iter().copied().collect(), 4);
        assert_eq!(of(&[2]), [2]);
        assert_eq!(of(&[0, 1, 3]), [2], "rank 2 came first");
        assert_eq!(of(&[1, 2]), [1, 2]);
        assert_eq!(of(&[]), [0u32; 0]);
    }

    fn set(ranks: &[u32]) -> BTreeSet<u32> {
        ranks.iter().copied().collect()
    }

    #[test]
    fn both_sides_are_named_if_none_is_the_minority() {
        let of = |unlike: &[u32]| minority(&set(unlike), 4);
        assert_eq!(of(&[2]), [2]);
        assert_eq!(of(&[0, 1, 3]), [2], "this rank differs from the others");
        assert_eq!(of(&[1, 2]), [0, 1, 2, 3]);
        assert_eq!(minority(&set(&[1]), 2), [0, 1]);
    }

    #[test]
    fn who_came_first_at_the_switch_that_refused_the_others_is_found() {
        let node = |switch, children: &[Child], parent: Option<u32>| TreeNode {
            switch: NodeId(switch),
            children: children.to_vec(),
            parent: parent.map(|of| Parent { switch: NodeId(of), via: Vec::new() }),
        };
        let racks = [Child::Switch(NodeId(7)), Child::Switch(NodeId(8))];
        let tree = AggregationTree {
            root: NodeId(9),
            nodes: vec![
                node(9, &racks, None),
                node(7, &[0, 1].map(Child::Rank), Some(9)),
                node(8, &[2, 3, 4].map(Child::Rank), Some(9)),
            ],
        };
        assert_eq!(beside(&tree, &set(&[1])), set(&[0]));
        assert_eq!(beside(&tree, &set(&[2, 4])), set(&[3]));
        assert_eq!(beside(&tree, &set(&[2])), set(&[3, 4]), "it may be either");
        assert_eq!(beside(&tree, &set(&[0, 1])), set(&[2, 3, 4]), "a whole rack was refused");
    }
}
