//! Data-plane faults: workers' reports of silent trees, and plans that avoid suspected switches and later try them
//! again.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::job::{Job, Member};
use super::state::State;
use super::suspicion::{Stage, Suspicion};

impl State {
    /// Avoids the switches of silent trees, and schedules trials of them.
    pub(super) fn tick_suspicions(&mut self, now_ms: u64) {
        let concerned = |job: &Job| job.suspicion.is_some() || !silent_trees(job).is_empty();
        for id in self.running(concerned) {
            self.tick_suspicion(now_ms, id);
        }
    }

    fn tick_suspicion(&mut self, now_ms: u64, id: u32) {
        let settings = self.settings.clone();
        let Some(job) = self.job_mut(id) else { return };
        if job.pending.is_some() || job.replan_at_ms.is_some_and(|at| at <= now_ms) {
            // Reports about the previous plan do not apply to the next one.
            return;
        }
        let silent = silent_trees(job);
        job.silent_since_ms = job.silent_since_ms.or(Some(now_ms)).filter(|_| !silent.is_empty());
        let since_ms = job.silent_since_ms.unwrap_or(now_ms);
        let Some(plan) = &job.current else { return };
        if silent.len() == plan.trees.len() && !silent.is_empty() && !all_report(job, now_ms) {
            // A stopped rank stops all trees: no plan helps, and the ranks cannot agree on one without it.
            return;
        }
        let mut suspicion = job.suspicion.take().unwrap_or_else(|| Suspicion::new(now_ms));
        if job.worked_ms.is_some() && matches!(suspicion.stage, Stage::Avoiding { .. }) {
            suspicion.proven();
        }
        let is_new = job.adopted_ms + UNPROVEN_MS > now_ms;
        let waits = suspicion.is_unproven() && is_new && !plan.trees.is_empty();
        match suspicion.stage {
            Stage::Collecting { until_ms } if until_ms <= now_ms => {
                let some_work = job.worked_ms.is_some_and(|at| at + REPORT_LEAD_MS >= since_ms);
                suspicion.meet(since_ms, plan, &silent, some_work, &settings);
                if since_ms + REPORT_OLD_MS <= now_ms {
                    // A rank has not reported for a while. The others may be on the host path by now.
                    suspicion.stage = Stage::Trial;
                }
                job.replan_at_ms = Some(now_ms);
            }
            Stage::Collecting { .. } => {}
            _ if !silent.is_empty() => {
                let until_ms = now_ms + settings.silence_settle_ms;
                suspicion.stage = Stage::Collecting { until_ms };
            }
            Stage::Avoiding { trial_at_ms } if trial_at_ms <= now_ms && !waits => {
                suspicion.stage = Stage::Trial;
                job.improve_at_ms = Some(now_ms);
            }
            Stage::Trial if job.adopted_ms + TRIAL_PASSED_MS <= now_ms => {
                suspicion.stage = Stage::Passed { forget_at_ms: now_ms + HISTORY_MS };
            }
            Stage::Passed { forget_at_ms } if forget_at_ms <= now_ms => return,
            _ => {}
        }
        job.suspicion = Some(suspicion);
    }
}

/// Trees of the plan in use that connected ranks report as silent: at least one rank, or for a pool every rank. A pool
/// answers no rank until all have contributed, so to the others one late rank looks like a failed switch.
fn silent_trees(job: &Job) -> BTreeSet<usize> {
    let Some(plan) = &job.current else { return BTreeSet::new() };
    let epoch = u32::from(plan.epoch);
    let connected = || job.members.iter().filter(|member| member.session().is_some());
    let is_silent = |tree: &usize| {
        let reports = |member: &Arc<Member>| {
            let statistics = &member.statistics;
            statistics.plan_epoch == epoch && statistics.silent_trees.contains(&(*tree as u32))
        };
        match plan.protocol.has_pools() {
            true => connected().next().is_some() && connected().all(reports),
            false => connected().any(reports),
        }
    };
    (0..plan.trees.len()).filter(is_silent).collect()
}

/// Whether every rank is connected and has reported recently.
fn all_report(job: &Job, now_ms: u64) -> bool {
    job.members.iter().all(|member| {
        let lately = |at: u64| at + REPORT_LATE_MS > now_ms;
        member.session().is_some() && member.reported_ms.is_some_and(lately)
    })
}

/// A trial passes if no tree is silent for this long, which is longer than a worker takes to detect silence.
const TRIAL_PASSED_MS: u64 = 3_000;
/// Results reported at most this long before the detection of a tree's silence count as later than the silence.
const REPORT_LEAD_MS: u64 = 200;
/// Reports of silence older than this do not prove that the fault persists.
const REPORT_OLD_MS: u64 = 600;
/// Time for a plan that avoids suspected switches to bring results before the next trial. Workers report their first
/// results at once.
const UNPROVEN_MS: u64 = 1_000;
/// A fault that returns within this time continues the history of the previous one.
const HISTORY_MS: u64 = 30_000;
/// Workers report once a second.
const REPORT_LATE_MS: u64 = 2_500;
