//! Leases of idle jobs yield: a job whose trees have carried nothing for a while gives its leases up as soon as another
//! job finds no room at a switch. It goes on over the host path, and gets trees again when its ranks report operations
//! that trees would have carried.
//!
//! Only switches' counters say that a job is active. What ranks report about their trees does not count here: a
//! tenant's ranks may report anything.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use netsum_topo::{NodeId, Plan};

use super::job::{Job, Phase};
use super::propose::{Proposal, WINDOW_WANTED};
use super::state::State;
use crate::pb;

/// A proposal, and the jobs that must yield for it.
pub(super) struct Room {
    pub proposal: Proposal,
    /// Idle jobs, by number; empty if the proposal fits beside them.
    pub yielding: Vec<u32>,
}

impl State {
    /// The job's next plan. If it finds too little room and the job has something to send, idle jobs yield: the longest
    /// idle first, and no more than twice as many as needed.
    pub(super) fn room(&self, now_ms: u64, id: u32) -> Room {
        let job = &self.jobs[&id];
        let mut best = Room { proposal: self.propose(job), yielding: Vec::new() };
        if best.proposal.short.is_empty() || !self.may_displace(now_ms, job) {
            return best;
        }
        let mut without = self.clone();
        let mut yielding = Vec::new();
        let mut short = best.proposal.short.clone();
        while !short.is_empty() {
            let idle = without.longest_idle(now_ms, id, &short, yielding.len().max(1));
            if idle.is_empty() {
                break;
            }
            for other in idle {
                without.forget_plans(other);
                yielding.push(other);
            }
            let proposal = without.propose(job);
            short = proposal.short.clone();
            if gains(&best.proposal, &proposal) {
                best = Room { proposal, yielding: yielding.clone() };
            }
        }
        best
    }

    /// Takes the leases of a job for `by`.
    pub(super) fn yield_leases(&mut self, now_ms: u64, id: u32, by: u32) {
        let idle_s = now_ms.saturating_sub(idle_since_ms(&self.jobs[&id])) / 1000;
        let job = self.job_mut(id).expect("the caller has it");
        job.yielded = Some(format!(
            "idle for {idle_s} s, it made room for job {by}; it gets trees again when it sends"
        ));
        job.improve_at_ms = None;
        self.replan(now_ms, id);
    }

    /// Schedules another attempt of a job that found too little room: when the next job there has been idle for long
    /// enough to yield. `short`: the switches without room.
    pub(super) fn await_room(&mut self, now_ms: u64, id: u32, short: &BTreeSet<NodeId>) {
        let patience_ms = self.settings.idle_yield_ms;
        let others = self.holders(id, short).map(|other| idle_since_ms(other) + patience_ms);
        let at_ms = others.map(|at| if at > now_ms { at } else { now_ms + patience_ms }).min();
        let job = self.job_mut(id).expect("the caller has it");
        job.awaits_room = at_ms.is_some();
        job.improve_at_ms = [job.improve_at_ms, at_ms].into_iter().flatten().min();
    }

    /// A job displaces others if it is new or has sent lately.
    fn may_displace(&self, now_ms: u64, job: &Job) -> bool {
        let lately = |at: u64| at + self.settings.idle_yield_ms > now_ms;
        let sends =
            job.asked_ms.is_some_and(lately) || job.carried_ms > 0 && lately(job.carried_ms);
        job.yielded.is_none() && (job.current.is_none() || sends)
    }

    /// At most `most` other jobs with leases at `short` that have been idle for long enough to yield, the longest idle
    /// first.
    fn longest_idle(
        &self,
        now_ms: u64,
        id: u32,
        short: &BTreeSet<NodeId>,
        most: usize,
    ) -> Vec<u32> {
        let due = |job: &&Job| idle_since_ms(job) + self.settings.idle_yield_ms <= now_ms;
        let settled = |job: &&Job| {
            job.pending.is_none() && job.replan_at_ms.is_none() && job.can_change_plans()
        };
        let holders = self.holders(id, short).filter(due).filter(settled);
        let mut idle: Vec<(u64, u32)> = holders.map(|job| (idle_since_ms(job), job.id)).collect();
        idle.sort_unstable();
        idle.into_iter().take(most).map(|(_, job)| job).collect()
    }

    /// Other running jobs with leases at one of these switches.
    fn holders<'a>(
        &'a self,
        id: u32,
        switches: &'a BTreeSet<NodeId>,
    ) -> impl Iterator<Item = &'a Job> {
        let others = self.jobs.values().map(AsRef::as_ref);
        others.filter(move |job: &&Job| {
            let holds = || switches.iter().any(|&switch| job.uses(switch));
            job.id != id && job.phase == Phase::Running && holds()
        })
    }

    fn forget_plans(&mut self, id: u32) {
        let job = self.job_mut(id).expect("the caller has it");
        (job.current, job.pending) = (None, None);
    }
}

impl Job {
    /// A rank has reported operations that trees would have carried.
    pub(super) fn asks(&mut self, now_ms: u64) {
        self.asked_ms = Some(now_ms);
        let treeless = self.current.as_ref().is_some_and(|plan| plan.trees.is_empty());
        let waits = std::mem::take(&mut self.awaits_room) && treeless;
        if self.yielded.take().is_some() || waits {
            self.improve_at_ms = Some(now_ms);
        }
    }
}

/// Whether a rank has sent operations over the host path, between two reports, that trees would have carried: large
/// ones, or a lot.
pub(super) fn asks(
    before: &pb::WorkerHeartbeat,
    after: &pb::WorkerHeartbeat,
    min_bytes: u64,
) -> bool {
    let operations = after.operations.saturating_sub(before.operations);
    let bytes = after.host_bytes_tx.saturating_sub(before.host_bytes_tx);
    operations > 0 && bytes >= (operations.saturating_mul(min_bytes) / 2).min(MUCH_BYTES)
}

/// Whether a proposal has as many trees as the plan in use, with windows so much wider that a new epoch pays off.
pub(super) fn widens(current: Option<&Plan>, proposal: &Proposal) -> bool {
    current.is_some_and(|plan| {
        let narrow = plan.window_max < WINDOW_WANTED && !plan.trees.is_empty();
        let same = plan.trees.len() == proposal.trees.len() && plan.protocol == proposal.protocol;
        narrow && same && proposal.window_max >= WIDER * plan.window_max
    })
}

/// Whether others should yield for `after`: it has more trees, or windows that are enough or much wider.
fn gains(before: &Proposal, after: &Proposal) -> bool {
    let wanted = (2 * before.window_max).min(WINDOW_WANTED);
    let wider = after.window_max > before.window_max && after.window_max >= wanted;
    match after.trees.len().cmp(&before.trees.len()) {
        Ordering::Greater => true,
        Ordering::Equal => wider,
        Ordering::Less => false,
    }
}

/// When a switch last counted packets of the job's plan, or its workers received the plan.
fn idle_since_ms(job: &Job) -> u64 {
    job.adopted_ms.max(job.carried_ms)
}

/// Bytes on the host path between two reports that are worth trees whatever the size of operations.
const MUCH_BYTES: u64 = 1 << 20;
/// A pause for a new epoch is worth a window that is wider by this factor.
const WIDER: u32 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_operations_or_many_bytes_ask_for_trees() {
        let report = |operations, host_bytes_tx| pb::WorkerHeartbeat {
            operations,
            host_bytes_tx,
            ..Default::default()
        };
        let before = report(10, 5_000);
        let asked = |operations: u64, bytes: u64| {
            asks(&before, &report(10 + operations, 5_000 + bytes), 16 << 10)
        };
        assert!(!asked(0, 0) && !asked(0, 1 << 30), "no operation has ended");
        assert!(!asked(100, 100 * 64), "barriers");
        assert!(asked(2, 64 << 10));
        assert!(asked(100, 1 << 20), "few large operations between barriers");
        assert!(!asks(&report(10, 5_000), &report(3, 100), 0), "another process");
    }
}
