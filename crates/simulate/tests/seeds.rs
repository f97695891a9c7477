//! A bounded run of the simulation.

use std::time::{Duration, Instant};

use netsum_simulate::scenario::{AdversaryShape, Noise};
use netsum_simulate::{Scenario, run};

/// Without faults and noise every job completes all operations on its trees.
#[test]
fn jobs_complete_without_faults() {
    for seed in 1..=12 {
        let mut scenario = Scenario::of_seed(seed);
        scenario.faults.clear();
        scenario.noise = calm();
        let ranks: usize = scenario.jobs.iter().map(|job| job.hosts.len()).sum();
        let report = run(&scenario);
        assert_eq!(report.violations, [], "seed {seed}");
        assert_eq!((report.completed as usize, report.failed), (ranks, 0), "seed {seed}");
    }
}

/// A seed can be replayed: two runs have identical event sequences.
#[test]
fn a_run_depends_on_its_seed_alone() {
    for seed in 1..=12 {
        let scenario = Scenario::of_seed(seed);
        assert_eq!(run(&scenario), run(&scenario), "seed {seed}");
    }
}

/// Scenarios survive a JSON round trip.
#[test]
fn scenarios_are_json() {
    for seed in 0..200 {
        let scenario = Scenario::of_seed(seed);
        let text = serde_json::to_string(&scenario).unwrap();
        assert_eq!(serde_json::from_str::<Scenario>(&text).unwrap(), scenario);
    }
}

#[test]
fn invariants_hold_on_the_first_seeds() {
    let begun = Instant::now();
    for seed in 1..=200 {
        let report = run(&Scenario::of_seed(seed));
        assert_eq!(report.worst(), None, "make simulate SEED={seed} TRACE=1");
        if begun.elapsed() > BUDGET {
            return;
        }
    }
}

/// An adversary who hears and sends any packet, half of them, changes no sum and ends no job; with one job's key, it
/// spoils no other.
#[test]
fn an_adversary_changes_no_sum_and_ends_no_job() {
    let mut forged = 0;
    for seed in 1..=24 {
        let mut scenario = Scenario::of_seed(seed);
        scenario.fabric.trusted = false;
        for (number, job) in scenario.jobs.iter_mut().enumerate() {
            job.protocol = ["panama", "atp", "switchml"][(seed as usize + number) % 3].to_owned();
        }
        let job = (scenario.jobs.len() > 1).then_some(0);
        scenario.adversary = Some(AdversaryShape { per_million: 500_000, job });
        let report = run(&scenario);
        assert_eq!(report.worst(), None, "seed {seed}");
        forged += report.forged;
    }
    assert!(forged > 10_000, "{forged} hostile packets");
}

fn calm() -> Noise {
    Noise {
        loss: 0,
        duplication: 0,
        corruption: 0,
        marking: 0,
        jitter_us: 0,
        slow: 0,
        message_jitter_us: 0,
        drift_permille: 0,
    }
}

/// Time budget of `invariants_hold_on_the_first_seeds`.
const BUDGET: Duration = Duration::from_secs(12);
