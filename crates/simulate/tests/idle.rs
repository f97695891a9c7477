//! Idle jobs yield the memory of switches and get it back, on the whole system in simulated time, while a switch dies.

use netsum_simulate::fault::{Fault, Kind, Process, StoreAfter};
use netsum_simulate::{Scenario, run_with_trace};

/// Jobs that fill the memory of all switches and compute a sum every few seconds.
const IDLE: usize = 8;
/// A spine of the fabric: racks come first.
const SPINE: u32 = 2;

fn scenario(seed: u64) -> Scenario {
    let mut scenario = Scenario::of_seed(seed);
    let fabric = &mut scenario.fabric;
    (fabric.racks, fabric.hosts, fabric.spines, fabric.servers) = (2, 2, 2, 0);
    (fabric.memory, fabric.receive_buffer, fabric.mtu) = (256 << 10, 64 << 20, 1500);
    let mut shape = scenario.jobs[0].clone();
    shape.protocol = "panama".to_owned();
    (shape.hosts, shape.max_trees) = (vec![0, 2], 0);
    (shape.starts_ms, shape.gap_ms, shape.elements, shape.depth) = (0, 12_000, 2_000, 2);
    scenario.jobs = vec![shape.clone(); IDLE];
    shape.hosts = (0..4).collect();
    (shape.starts_ms, shape.gap_ms) = (12_000, 50);
    scenario.jobs.push(shape);
    let kind = Kind::Kill { process: Process::Aggregator(SPINE), store: StoreAfter::Kept };
    scenario.faults = vec![Fault { at_ms: 30_000, for_ms: Some(1_000), kind }];
    scenario
}

#[test]
fn idle_jobs_make_room_and_every_sum_is_exact() {
    // One of a hundred pauses of an application lasts for minutes; in these seeds none delays the end of the run.
    for seed in 1..=3 {
        let scenario = scenario(seed);
        let (report, trace) = run_with_trace(&scenario);
        assert_eq!(report.worst(), None, "seed {seed}: {:?}", report.violations);
        let ranks: usize = scenario.jobs.iter().map(|job| job.hosts.len()).sum();
        assert_eq!((report.completed as usize, report.failed), (ranks, 0), "seed {seed}");
        let told = |what: &str| trace.iter().filter(|line| line.contains(what)).count();
        assert!(told("made room for job") > 0, "seed {seed}: nobody yields");
    }
}
