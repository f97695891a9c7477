//! Operations on which ranks disagree: who differs from most.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use netsum_topo::Child;

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
        let Some(named) = self.disputes.0.get(&sequence).and_then(|one| one.named.clone()) else {
            return;
        };
        let Some(job) = self.jobs.get(&sequence) else { return };
        let ranks = culprits(&named, self.core.size);
        let error = Error::Contradiction { operation: job.work.operation(), ranks };
        self.end_dispute(sequence, error);
    }

    /// A rank that had completed its part when this rank noticed must fail, too.
    fn end_dispute(&mut self, sequence: u64, error: Error) {
        self.disputes.0.remove(&sequence);
        self.core.send_all(MessageKind::Failed, 1, error.to_string().as_bytes());
        self.fail(error);
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
        let new = || Dispute { until: Instant::now() + PATIENCE, named: None };
        self.0.entry(sequence).or_insert_with(new)
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

/// Calls are short messages, sent at once; a busy machine may take longer.
const PATIENCE: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_differs_from_most_is_to_blame() {
        let of = |named: &[u32]| culprits(&named.iter().copied().collect(), 4);
        assert_eq!(of(&[2]), [2]);
        assert_eq!(of(&[0, 1, 3]), [2], "rank 2 came first");
        assert_eq!(of(&[1, 2]), [1, 2]);
        assert_eq!(of(&[]), [0u32; 0]);
    }
}
