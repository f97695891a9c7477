//! Switches that have a control stream but seem not to answer on the data plane.
//!
//! Workers report trees that are silent. The switches that such a tree has and no working tree has are suspected; the
//! next plan avoids the likeliest. From time to time a plan on trial uses them again: a fault that is over costs the job
//! its trees for at most `trial_max_ms` more.

use std::collections::{BTreeMap, BTreeSet};

use netsum_topo::{AggregationTree, NodeId, Plan};

use super::job::Job;
use super::settings::Settings;
use super::state::State;

/// What is known of a fault on a job's trees.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Suspicion {
    stage: Stage,
    /// How often a switch was on a silent tree and on no tree that worked.
    scores: BTreeMap<NodeId, u32>,
    avoided: BTreeSet<NodeId>,
    /// Plans that met the fault.
    failures: u32,
    /// When the fault was first seen.
    since_ms: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The plan has silent trees; more reports are expected until then.
    Collecting { until_ms: u64 },
    /// Plans avoid the suspected switches until then.
    Avoiding { trial_at_ms: u64 },
    /// Plans use all switches again, on trial.
    Trial,
    /// The trial went well. The history counts if the fault comes back before that time.
    Passed { forget_at_ms: u64 },
}

impl Suspicion {
    fn new(now_ms: u64) -> Suspicion {
        Suspicion {
            stage: Stage::Trial,
            scores: BTreeMap::new(),
            avoided: BTreeSet::new(),
            failures: 0,
            since_ms: now_ms,
        }
    }

    /// Switches that plans avoid now.
    pub(super) fn avoided(&self) -> impl Iterator<Item = NodeId> {
        let avoids = !matches!(self.stage, Stage::Trial | Stage::Passed { .. });
        self.avoided.iter().copied().filter(move |_| avoids)
    }

    /// Takes note of a plan with `silent` trees: its likeliest culprits are avoided until the next trial.
    fn meet(&mut self, now_ms: u64, plan: &Plan, silent: &BTreeSet<usize>, settings: &Settings) {
        let working: BTreeSet<NodeId> = trees_where(plan, |tree| !silent.contains(&tree))
            .flat_map(AggregationTree::switches)
            .collect();
        let suspects: Vec<Vec<NodeId>> = trees_where(plan, |tree| silent.contains(&tree))
            .map(|tree| suspects(tree, &working))
            .collect();
        for &switch in suspects.iter().flatten() {
            *self.scores.entry(switch).or_default() += 1;
        }
        if self.avoided().next().is_none() {
            self.avoided.clear();
        }
        for of_tree in &suspects {
            if of_tree.iter().any(|switch| self.avoided.contains(switch)) {
                continue;
            }
            // The root comes first: of equals it is the one that the planner can replace.
            let likeliest = of_tree.iter().rev().max_by_key(|&switch| self.scores[switch]);
            self.avoided.extend(likeliest);
        }
        self.failures += 1;
        let trial_at_ms = now_ms + self.trial_delay_ms(now_ms, settings);
        self.stage = Stage::Avoiding { trial_at_ms };
    }

    /// Doubles up to `trial_max_ms`; a fault that lasts for minutes is tried ever more rarely.
    fn trial_delay_ms(&self, now_ms: u64, settings: &Settings) -> u64 {
        let doublings = self.failures.saturating_sub(1).min(16);
        let age_ms = now_ms - self.since_ms;
        let most_ms = match age_ms {
            ..TRIALS_OFTEN_MS => settings.trial_max_ms,
            age_ms => (age_ms / 20).clamp(settings.trial_max_ms, TRIAL_RARE_MS),
        };
        (settings.trial_first_ms << doublings).min(most_ms)
    }
}

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
        let Some(plan) = &job.current else { return };
        if silent.len() == plan.trees.len() && !silent.is_empty() && !all_report(job, now_ms) {
            // A rank that does not run stops all trees. No plan helps, and none can be agreed on without it.
            return;
        }
        let mut suspicion = job.suspicion.take().unwrap_or_else(|| Suspicion::new(now_ms));
        let avoids = suspicion.avoided().next().is_some();
        match suspicion.stage {
            Stage::Collecting { until_ms } if until_ms <= now_ms => {
                suspicion.meet(now_ms, plan, &silent, &settings);
                job.replan_at_ms = Some(now_ms);
            }
            Stage::Collecting { .. } => {}
            _ if !silent.is_empty() => {
                if !avoids {
                    suspicion.avoided.clear();
                }
                let until_ms = now_ms + settings.silence_settle_ms;
                suspicion.stage = Stage::Collecting { until_ms };
            }
            Stage::Avoiding { trial_at_ms } if trial_at_ms <= now_ms => {
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

/// Trees of the plan in use that some connected rank reports as silent.
fn silent_trees(job: &Job) -> BTreeSet<usize> {
    let Some(plan) = &job.current else { return BTreeSet::new() };
    let epoch = u32::from(plan.epoch);
    let reports = job.members.iter().filter(|member| member.session().is_some());
    let reports = reports.map(|member| &member.statistics).filter(|s| s.plan_epoch == epoch);
    let trees = reports.flat_map(|statistics| &statistics.silent_trees);
    trees.map(|&tree| tree as usize).filter(|&tree| tree < plan.trees.len()).collect()
}

/// Whether every rank is connected and has reported lately.
fn all_report(job: &Job, now_ms: u64) -> bool {
    job.members.iter().all(|member| {
        let lately = |at: u64| at + REPORT_LATE_MS > now_ms;
        member.session().is_some() && member.reported_ms.is_some_and(lately)
    })
}

fn trees_where(
    plan: &Plan,
    wanted: impl Fn(usize) -> bool,
) -> impl Iterator<Item = &AggregationTree> {
    let trees = plan.trees.iter().enumerate();
    trees.filter(move |&(number, _)| wanted(number)).map(|(_, tree)| tree)
}

/// Switches of a tree, the root first, that no working tree has; the root if all are on working trees.
fn suspects(tree: &AggregationTree, working: &BTreeSet<NodeId>) -> Vec<NodeId> {
    let own: Vec<NodeId> = tree.switches().filter(|switch| !working.contains(switch)).collect();
    if own.is_empty() { vec![tree.root] } else { own }
}

/// A plan on trial without a silent tree for so long works: longer than a worker takes to notice silence.
const TRIAL_PASSED_MS: u64 = 3_000;
/// A fault that is back within this time goes on from where the last one was.
const HISTORY_MS: u64 = 30_000;
/// For so long after a fault's begin, trials come at least every `trial_max_ms`.
const TRIALS_OFTEN_MS: u64 = 75_000;
const TRIAL_RARE_MS: u64 = 60_000;
/// Workers report once a second.
const REPORT_LATE_MS: u64 = 2_500;
