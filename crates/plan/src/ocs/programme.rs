//! The slides' dynamic programme.

use netsum_topo::OcsSpec;

use super::composition::Composition;
use super::pieces::Numbers;

/// The best composition of trees and rings for every number of devices from 0 to M, by the knapsack of
/// slide 22: maximise Σ xᵢ·algbwᵢ with Σ xᵢ·devicesᵢ ≤ M and Σ xᵢ·portsᵢ ≤ N·D.
///
/// One stage per tree. All trees have algbw 1, so of the states with equal trees and devices only the one with the
/// fewest worker ports can be part of an optimum; this makes it O(D·M·K) instead of a table over worker ports
/// (N³D²/E²). It makes no assumption about the savings of devices, and so checks [`closed`](super::closed).
pub fn dp(spec: &OcsSpec) -> Vec<Composition> {
    let numbers = Numbers::of(spec);
    let stages = stages(&numbers);
    (0..=numbers.m as usize).map(|budget| best(&numbers, &stages, budget)).collect()
}

/// State after some trees, by number of devices allowed: fewest worker ports, and devices of the last tree.
type Stage = Vec<(u64, u32)>;

fn stages(numbers: &Numbers) -> Vec<Stage> {
    let budgets = numbers.m as usize + 1;
    let ports: Vec<u64> = (0..=numbers.full()).map(|k| numbers.tree_ports(k)).collect();
    let mut stages = vec![vec![(0, 0); budgets]];
    for _ in 0..numbers.d {
        let before = &stages[stages.len() - 1];
        let fewest = |budget: usize| {
            let of = |k: usize| (before[budget - k].0 + ports[k], k as u32);
            (0..ports.len().min(budget + 1)).map(of).min().expect("a tree without devices")
        };
        let stage: Stage = (0..budgets).map(fewest).collect();
        stages.push(stage);
    }
    stages
}

fn best(numbers: &Numbers, stages: &[Stage], budget: usize) -> Composition {
    let units = |trees: usize| {
        let left = numbers.worker_ports().checked_sub(stages[trees][budget].0)?;
        Some(trees as u64 * numbers.line() + numbers.rings(left) * numbers.n)
    };
    let trees = (0..stages.len()).max_by_key(|&trees| units(trees)).expect("no tree at all");
    let rings = numbers.rings(numbers.worker_ports() - stages[trees][budget].0);
    let mut counts = Vec::with_capacity(trees);
    let mut left = budget;
    for stage in stages[1..=trees].iter().rev() {
        counts.push(u64::from(stage[left].1));
        left -= stage[left].1 as usize;
    }
    Composition::of_counts(numbers, &counts, rings)
}
