//! Faults of the data plane: what workers report of silent trees, and plans that avoid and try suspected switches.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::job::{Job, Member};
use super::state::State;
use super::suspicion::{Stage, Suspicion};

impl State {
    /// Avoids switches of silent trees, and tries them again.
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
            // Reports of the plan before say nothing of the next one.
            return;
        }
        let silent = silent_trees(job);
        job.silent_since_ms = job.silent_since_ms.or(Some(now_ms)).filter(|_| !silent.is_empty());
        let since_ms = job.silent_since_ms.unwrap_or(now_ms);
        let Some(plan) = &job.current else { return };
        if silent.len() == plan.trees.len() && !silent.is_empty() && !all_report(job, now_ms) {
            // A rank that does not run stops all trees. No plan helps, and none can be agreed on without it.
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
                    // A rank did not report for a while. The others may have long been on the host path.
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

/// Trees of the plan in use that connected ranks report as silent: some rank, or for a pool every rank. A pool answers
/// nobody until all have contributed, so a single late rank looks to the others like a dead switch.
fn silent_trees(job: &Job) -> BTreeSet<usize> {
    let Some(plan) = &job.current else { return BTreeSet::new() };
    let epoch = u32::from(plan.epoch);
    let connected = || job.members.iter().filter(|member| member.session().is_some());
    let is_silent = |tree: &usize| {
        let says = |member: &Arc<Member>| {
            let statistics = &member.statistics;
            statistics.plan_epoch == epoch && statistics.silent_trees.contains(&(*tree as u32))
        };
        match plan.protocol.has_pools() {
            true => connected().next().is_some() && connected().all(says),
            false => connected().any(says),
        }
    };
    (0..plan.trees.len()).filter(is_silent).collect()
}

/// Whether every rank is connected and has reported lately.
fn all_report(job: &Job, now_ms: u64) -> bool {
    job.members.iter().all(|member| {
        let lately = |at: u64| at + REPORT_LATE_MS > now_ms;
        member.session().is_some() && member.reported_ms.is_some_and(lately)
    })
}

/// A plan on trial without a silent tree for so long works: longer than a worker takes to notice silence.
const TRIAL_PASSED_MS: u64 = 3_000;
/// Results that a worker reports no longer than this before a tree is seen to be silent are younger than the silence.
const REPORT_LEAD_MS: u64 = 200;
/// Reports of silence that are older than this do not show that the fault lasts.
const REPORT_OLD_MS: u64 = 600;
/// A plan that avoids suspected switches is given so long to bring results before the next trial. Workers report first
/// results at once.
const UNPROVEN_MS: u64 = 1_000;
/// A fault that is back within this time goes on from where the last one was.
const HISTORY_MS: u64 = 30_000;
/// Workers report once a second.
const REPORT_LATE_MS: u64 = 2_500;
