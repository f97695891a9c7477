//! Suspected switches: they have a control stream but seem not to answer on the data plane.
//!
//! Workers report silent trees. Switches that belong to a silent tree and to no working tree are suspected; the next
//! plan avoids the most likely one. If that plan does not work either, the job uses the host path. Periodically a plan
//! on trial uses all switches again, so after the end of a fault the job is back on its trees within `trial_max_ms`
//! more.

use std::collections::{BTreeMap, BTreeSet};

use netsum_topo::{AggregationTree, NodeId, Plan};

use super::settings::Settings;

/// History of a fault on a job's trees.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Suspicion {
    pub stage: Stage,
    /// Number of times that a switch was on a silent tree and on no working tree.
    scores: BTreeMap<NodeId, u32>,
    pub avoided: BTreeSet<NodeId>,
    /// Number of plans with the fault.
    failures: u32,
    /// Number of consecutive plans without a working tree.
    dead_plans: u32,
    /// Whether all trees of the last such plan were silent.
    all_silent: bool,
    /// When the fault was first detected.
    since_ms: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// The plan has silent trees; more reports are expected until then.
    Collecting { until_ms: u64 },
    /// Plans avoid the suspected switches until then.
    Avoiding { trial_at_ms: u64 },
    /// Plans use all switches again, on trial.
    Trial,
    /// The trial has passed. The history applies if the fault returns before that time.
    Passed { forget_at_ms: u64 },
}

impl Suspicion {
    pub(super) fn new(now_ms: u64) -> Suspicion {
        Suspicion {
            stage: Stage::Trial,
            scores: BTreeMap::new(),
            avoided: BTreeSet::new(),
            failures: 0,
            dead_plans: 0,
            all_silent: false,
            since_ms: now_ms,
        }
    }

    /// Switches that plans avoid at present.
    pub(super) fn avoided(&self) -> impl Iterator<Item = NodeId> {
        let avoids = !matches!(self.stage, Stage::Trial | Stage::Passed { .. });
        self.avoided.iter().copied().filter(move |_| avoids)
    }

    /// Whether the next plan has no trees: neither the plan in use nor one that avoids the suspects works. One of
    /// [`DEAD_PLANS_PER_SEARCH`] plans avoids the suspects again, because the most likely suspects may have changed.
    pub(super) fn gives_up(&self) -> bool {
        let avoids = !matches!(self.stage, Stage::Trial | Stage::Passed { .. });
        avoids && self.dead_plans >= 2 && !self.dead_plans.is_multiple_of(DEAD_PLANS_PER_SEARCH)
    }

    /// Whether the plan in use, which avoids the suspects, has not brought results yet.
    pub(super) fn is_unproven(&self) -> bool {
        self.dead_plans > 0 && self.all_silent && !self.gives_up()
    }

    /// Records that the plan in use brings results.
    pub(super) fn proven(&mut self) {
        self.dead_plans = 0;
    }

    /// Records a plan with `silent` trees, reported since `since_ms`: the most likely suspects are avoided until the
    /// next trial. `some_work`: whether ranks have received results of other trees since.
    pub(super) fn meet(
        &mut self,
        since_ms: u64,
        plan: &Plan,
        silent: &BTreeSet<usize>,
        some_work: bool,
        settings: &Settings,
    ) {
        let working: BTreeSet<NodeId> = trees_where(plan, |tree| !silent.contains(&tree))
            .flat_map(AggregationTree::switches)
            .collect();
        let suspects: Vec<Vec<NodeId>> = trees_where(plan, |tree| silent.contains(&tree))
            .map(|tree| suspects(tree, &working))
            .collect();
        for &switch in suspects.iter().flatten() {
            *self.scores.entry(switch).or_default() += 1;
        }
        // An avoided switch that is used again on trial is no suspect unless its trees are silent again.
        self.avoided.retain(|switch| !working.contains(switch));
        for of_tree in &suspects {
            if of_tree.iter().any(|switch| self.avoided.contains(switch)) {
                continue;
            }
            // The root comes first: among equal scores it is the one that the planner can replace.
            let likeliest = of_tree.iter().rev().max_by_key(|&switch| self.scores[switch]);
            self.avoided.extend(likeliest);
        }
        self.failures += 1;
        self.dead_plans = if some_work { 0 } else { self.dead_plans + 1 };
        self.all_silent = silent.len() == plan.trees.len();
        let trial_at_ms = since_ms + self.trial_delay_ms(since_ms, settings);
        self.stage = Stage::Avoiding { trial_at_ms };
    }

    /// Delay of the next trial: doubles up to `trial_max_ms`, and grows further for a fault that lasts for minutes.
    fn trial_delay_ms(&self, now_ms: u64, settings: &Settings) -> u64 {
        let doublings = self.failures.saturating_sub(1).min(16);
        let age_ms = now_ms.saturating_sub(self.since_ms);
        let most_ms = match age_ms {
            ..TRIALS_OFTEN_MS => settings.trial_max_ms,
            age_ms => (age_ms / 20).clamp(settings.trial_max_ms, TRIAL_RARE_MS),
        };
        (settings.trial_first_ms << doublings).min(most_ms)
    }
}

fn trees_where(
    plan: &Plan,
    wanted: impl Fn(usize) -> bool,
) -> impl Iterator<Item = &AggregationTree> {
    let trees = plan.trees.iter().enumerate();
    trees.filter(move |&(number, _)| wanted(number)).map(|(_, tree)| tree)
}

/// Suspects of a tree, the root first: switches on no working tree, or the root if all are on working trees.
fn suspects(tree: &AggregationTree, working: &BTreeSet<NodeId>) -> Vec<NodeId> {
    let own: Vec<NodeId> = tree.switches().filter(|switch| !working.contains(switch)).collect();
    if own.is_empty() { vec![tree.root] } else { own }
}

/// Of this many plans without a working tree, one avoids the suspects.
const DEAD_PLANS_PER_SEARCH: u32 = 4;
/// For this long after the start of a fault, trials occur at least every `trial_max_ms`.
const TRIALS_OFTEN_MS: u64 = 75_000;
const TRIAL_RARE_MS: u64 = 60_000;
