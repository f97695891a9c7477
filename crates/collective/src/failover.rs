//! From one plan to the next: what the ranks tell each other, and what each concludes from it alike.
//!
//! A transition has a number (its generation). Who has a reason begins it, and whoever hears of it joins: each rank
//! stops its trees and sends every other a [`Report`]. With all reports in hand every rank takes the same
//! [`Decision`] by itself; nobody is in charge.

use std::ops::Range;

use netsum_control::{JobPlan, plan_from_bytes, plan_to_bytes};
use netsum_proto::panama::{
    Fragments, Progress, Resolution, Submission, elements_per_fragment, fragments_of, resolve,
};

use crate::Error;

/// What one rank knows when its trees have stopped.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Report {
    /// Epoch of the plan that was in use; 0: none.
    pub(crate) epoch: u16,
    /// Its trees did not answer.
    pub(crate) failed: bool,
    /// One more than the highest operation that this rank has given to the trees' lane.
    pub(crate) issued: u64,
    /// Which results are here; `None` if the plan in use had no trees.
    pub(crate) progress: Option<Progress>,
    /// The newest plan that the controller has sent.
    pub(crate) newest: Option<JobPlan>,
}

impl Report {
    /// Big-endian: epoch u16, flags u8 (1 failed, 2 progress follows, 4 plan follows), issued u64, length u32 and
    /// bytes of the progress, the plan's bytes.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let flags = u8::from(self.failed)
            | u8::from(self.progress.is_some()) << 1
            | u8::from(self.newest.is_some()) << 2;
        let progress = self.progress.as_ref().map_or_else(Vec::new, Progress::to_bytes);
        let mut bytes = self.epoch.to_be_bytes().to_vec();
        bytes.push(flags);
        bytes.extend(self.issued.to_be_bytes());
        bytes.extend((progress.len() as u32).to_be_bytes());
        bytes.extend(progress);
        if let Some(plan) = &self.newest {
            bytes.extend(plan_to_bytes(plan));
        }
        bytes
    }

    /// The inverse; a plan is checked for a group of `size`. `None` for anything malformed.
    pub(crate) fn from_bytes(bytes: &[u8], size: u32) -> Option<Report> {
        let (head, rest) = bytes.split_first_chunk::<15>()?;
        let flags = head[2];
        let issued = u64::from_be_bytes(head[3..11].try_into().ok()?);
        let len = u32::from_be_bytes(head[11..].try_into().ok()?) as usize;
        let (progress, plan) = rest.split_at_checked(len)?;
        let progress = match flags & 2 {
            0 => None,
            _ => Some(Progress::from_bytes(progress).ok()?),
        };
        let newest = match flags & 4 {
            0 => None,
            _ => Some(plan_from_bytes(plan, size).ok()?),
        };
        let epoch = u16::from_be_bytes([head[0], head[1]]);
        Some(Report { epoch, failed: flags & 1 != 0, issued, progress, newest })
    }
}

/// What all ranks conclude from the same reports.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Decision {
    /// The newest plan that any rank has, if it is newer than the one that was in use.
    pub(crate) plan: Option<JobPlan>,
    /// Whether sums go on trees from now on.
    pub(crate) trees: bool,
    /// The old trees did not answer some rank.
    pub(crate) failed: bool,
    /// Which results of the old epoch are finished, and who hands over which; `None` if it had no trees.
    pub(crate) resolution: Option<Resolution>,
    /// Operations below this were given to the lane by some rank before the transition.
    pub(crate) cut: u64,
}

/// Concludes from the reports of all ranks, by rank. Errors: ranks that were not in the same epoch.
pub(crate) fn decide(reports: &[Report]) -> Result<Decision, Error> {
    let epoch = reports[0].epoch;
    let counts: Vec<Option<usize>> =
        reports.iter().map(|r| r.progress.as_ref().map(|p| p.trees.len())).collect();
    if reports.iter().any(|r| r.epoch != epoch) || counts.iter().any(|n| *n != counts[0]) {
        let epochs: Vec<u16> = reports.iter().map(|r| r.epoch).collect();
        return Err(Error::Internal(format!("ranks in epochs {epochs:?} met in a transition")));
    }
    let newest =
        reports.iter().filter_map(|r| r.newest.as_ref()).max_by_key(|plan| plan.plan.epoch);
    let plan = newest.filter(|plan| plan.plan.epoch > epoch).cloned();
    // Trees are used for one epoch only: in the next, fragments are numbered anew.
    let trees = plan.as_ref().is_some_and(|plan| !plan.plan.trees.is_empty());
    let failed = reports.iter().any(|r| r.failed);
    let progress: Option<Vec<Progress>> = reports.iter().map(|r| r.progress.clone()).collect();
    let cut = reports.iter().map(|r| r.issued).max().unwrap_or(0);
    Ok(Decision { plan, trees, failed, resolution: progress.map(|p| resolve(&p)), cut })
}

/// Fragments of a submission.
pub(crate) fn count(submission: &Submission, fragment_bytes: u16) -> u64 {
    match &submission.fragments {
        Fragments::All => fragments_of(submission.numel, fragment_bytes, submission.format.dtype),
        Fragments::Some(list) => list.len() as u64,
    }
}

/// The elements that a submission covers, as few ranges as possible.
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

/// Results on their way to a rank that lacks them: per result its number u64, length u32, bytes.
pub(crate) fn pack(results: &[(u64, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (g, result) in results {
        bytes.extend(g.to_be_bytes());
        bytes.extend((result.len() as u32).to_be_bytes());
        bytes.extend(result);
    }
    bytes
}

/// The inverse; `None` for anything malformed.
pub(crate) fn unpack(mut bytes: &[u8]) -> Option<Vec<(u64, Vec<u8>)>> {
    let mut results = Vec::new();
    while let Some((head, rest)) = bytes.split_first_chunk::<12>() {
        let g = u64::from_be_bytes(head[..8].try_into().ok()?);
        let len = u32::from_be_bytes(head[8..].try_into().ok()?) as usize;
        let (result, rest) = rest.split_at_checked(len)?;
        results.push((g, result.to_vec()));
        bytes = rest;
    }
    bytes.is_empty().then_some(results)
}

#[cfg(test)]
mod tests {
    use super::*;
    use netsum_lease::Aggregator;
    use netsum_proto::panama::TreeProgress;
    use netsum_topo::{
        AggregationTree, Child, CongestionRule, NodeId, Plan, Protocol, SumOrder, TreeNode,
    };
    use netsum_wire::{Dtype, Format, ReduceOp};
    use proptest::prelude::*;

    fn plan(epoch: u16, trees: usize) -> JobPlan {
        let root = NodeId(0);
        let children = vec![Child::Rank(0), Child::Rank(1)];
        let nodes = vec![TreeNode { switch: root, children, parent: None }];
        let address = Some("127.0.0.1:1".parse().unwrap());
        let switch = Aggregator { name: "s".to_owned(), address };
        JobPlan {
            plan: Plan {
                job: 1,
                epoch,
                order: SumOrder::flat(2),
                protocol: Protocol::Panama,
                choice: String::new(),
                trees: vec![AggregationTree { root, nodes }; trees],
                fragment_bytes: 1408,
                window_max: 8,
                slot_space: 0,
                scale: 0.0,
                release_fraction: 1.0,
                congestion: CongestionRule::Panama,
                min_bytes: 0,
                reason: String::new(),
            },
            aggregators: if trees == 0 { Vec::new() } else { vec![switch] },
            key: None,
        }
    }

    fn report(epoch: u16, newest: Option<JobPlan>, base: Option<u32>) -> Report {
        let progress = base.map(|base| Progress {
            trees: vec![TreeProgress { base: base.into(), above: vec![] }],
        });
        Report { epoch, failed: false, issued: 0, progress, newest }
    }

    #[test]
    fn reports_survive_the_wire() {
        for report in [
            Report::default(),
            Report { failed: true, issued: 9, ..report(3, None, Some(5)) },
            report(0, Some(plan(2, 1)), None),
        ] {
            assert_eq!(Report::from_bytes(&report.to_bytes(), 2), Some(report));
        }
        let wrong = report(0, Some(plan(0, 1)), None);
        assert_eq!(Report::from_bytes(&wrong.to_bytes(), 2), None);
    }

    #[test]
    fn the_newest_plan_wins_whoever_has_it() {
        let first = [report(0, None, None), report(0, Some(plan(1, 1)), None)];
        let decision = decide(&first).unwrap();
        assert_eq!(decision.plan, Some(plan(1, 1)));
        assert!(decision.trees && decision.resolution.is_none());
        let next = [report(1, Some(plan(2, 0)), Some(4)), report(1, Some(plan(1, 1)), Some(3))];
        let decision = decide(&next).unwrap();
        assert_eq!(decision.plan, Some(plan(2, 0)));
        assert!(!decision.trees);
        assert_eq!(decision.resolution.unwrap().serve.len(), 1);
    }

    #[test]
    fn trees_that_failed_are_not_used_again() {
        let silent = Report { failed: true, issued: 7, ..report(1, Some(plan(1, 1)), Some(0)) };
        let other = report(1, Some(plan(1, 1)), Some(0));
        let decision = decide(&[silent, other]).unwrap();
        assert_eq!((decision.plan, decision.trees, decision.cut), (None, false, 7));
    }

    #[test]
    fn ranks_of_different_epochs_are_an_error() {
        assert!(decide(&[report(1, None, Some(0)), report(2, None, Some(0))]).is_err());
        assert!(decide(&[report(1, None, Some(0)), report(1, None, None)]).is_err());
    }

    #[test]
    fn ranges_join_neighbours() {
        let format = Format { dtype: Dtype::F32, op: ReduceOp::Sum };
        let of = |fragments| Submission { id: 0, format, numel: 1000, fingerprint: 0, fragments };
        let some = of(Fragments::Some(vec![0, 2, 1, 2]));
        assert_eq!(ranges(&some, 1408), [0..352, 704..1000, 352..1000]);
        let joined = of(Fragments::Some(vec![1, 2]));
        assert_eq!(ranges(&joined, 1408).as_slice(), std::slice::from_ref(&(352..1000)));
        assert_eq!(ranges(&of(Fragments::All), 1408).as_slice(), std::slice::from_ref(&(0..1000)));
        assert_eq!((count(&joined, 1408), count(&of(Fragments::All), 1408)), (2, 3));
    }

    proptest! {
        #[test]
        fn results_survive_the_wire(results in prop::collection::vec((any::<u64>(), prop::collection::vec(any::<u8>(), 0..20)), 0..5)) {
            prop_assert_eq!(unpack(&pack(&results)), Some(results));
        }

        #[test]
        fn any_bytes_are_understood_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = (unpack(&bytes), Report::from_bytes(&bytes, 2));
        }
    }
}
