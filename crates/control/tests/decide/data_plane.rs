//! Faults that only the data plane shows: control streams stay, trees fall silent.

use std::collections::BTreeSet;

use netsum_control::decide::{Event, Settings};
use netsum_control::{JobPlan, pb};
use netsum_topo::{Addressing, fat_tree};
use proptest::prelude::*;

use crate::world::{NOTICE_MS, RATE, World};

/// After the end of a fault, a job must be offered all of its trees within this time.
const BACK_MS: u64 = 2_000;

/// Breaks a part for some time, then waits until the job has `trees` trees without a silent one; returns the waiting
/// time.
fn recovery_ms(world: &mut World, job: u32, part: &str, fault_ms: u64, trees: usize) -> u64 {
    world.broken.insert(part.to_owned());
    world.wait(fault_ms);
    world.broken.remove(part);
    let end = world.now_ms;
    while !works(world, job, trees) {
        assert!(
            world.now_ms < end + 20_000,
            "{part} for {fault_ms} ms: {:?}",
            world.plan(job).reason
        );
        world.wait(100);
    }
    world.now_ms - end
}

/// Whether the workers have a plan with all trees and none of them has fallen silent.
fn works(world: &World, job: u32, trees: usize) -> bool {
    let silent = |rank: u32| {
        let report = world.reports.get(&(job, rank)).map(|report| &report.heartbeat);
        report.is_some_and(|report| {
            report.plan_epoch == world.plan(job).epoch && !report.silent_trees.is_empty()
        })
    };
    world.plan(job).trees.len() == trees && !(0..4).any(silent)
}

#[test]
fn a_switch_that_is_dead_on_the_data_plane_is_planned_around_at_once() {
    let mut world = World::standard();
    let job = world.job();
    world.broken.insert("spine1".to_owned());
    world.wait(NOTICE_MS + 500);
    assert_eq!(world.roots(job), ["spine0"]);
    assert_eq!(world.plan(job).reason, "1 of 2 trees: spine1 does not answer on the data plane");
    world.check_leases();
}

#[test]
fn a_dead_link_costs_the_tree_that_uses_it() {
    for link in ["rack0-spine1", "rack1-spine1"] {
        let mut world = World::standard();
        let job = world.job();
        world.broken.insert(link.to_owned());
        world.wait(NOTICE_MS + 500);
        assert_eq!(world.roots(job), ["spine0"], "{link}");
    }
}

#[test]
fn a_dead_rack_switch_leaves_the_host_path() {
    let mut world = World::standard();
    let job = world.job();
    world.broken.insert("rack0".to_owned());
    world.wait(NOTICE_MS + 400);
    assert_eq!(world.plan(job).trees.len(), 0);
    assert!(
        world.plan(job).reason.contains("does not answer on the data plane"),
        "{}",
        world.plan(job).reason
    );
}

#[test]
fn after_any_fault_the_job_is_back_on_all_trees_within_two_seconds() {
    for part in [
        "spine0",
        "spine1",
        "rack0",
        "rack1",
        "rack0-spine1",
        "rack1-spine0",
        "h0-rack0",
        "h3-rack1",
    ] {
        for fault_ms in
            [100, 300, 500, 700, 1_000, 1_500, 2_000, 3_000, 4_000, 6_000, 10_000, 30_000, 60_000]
        {
            let mut world = World::standard();
            let job = world.job();
            world.wait(1_000);
            let took = recovery_ms(&mut world, job, part, fault_ms, 2);
            assert!(took <= BACK_MS, "{part} for {fault_ms} ms: {took} ms");
            world.wait(5_000);
            assert!(works(&world, job, 2));
            world.check_leases();
        }
    }
}

#[test]
fn a_lasting_fault_is_tried_less_and_less_often() {
    let mut world = World::standard();
    let job = world.job();
    world.broken.insert("spine1".to_owned());
    world.wait(75_000);
    let after_a_minute = world.plan(job).epoch;
    assert!(after_a_minute < 110, "{after_a_minute} plans in 75 s");
    world.wait(3_600_000);
    let in_an_hour = world.plan(job).epoch - after_a_minute;
    assert!(in_an_hour < 240, "{in_an_hour} plans in an hour");
    assert!(world.roots(job).contains(&"spine0"));
}

#[test]
fn a_fault_that_comes_and_goes_is_not_tried_at_full_rate() {
    let mut world = World::standard();
    let job = world.job();
    for _ in 0..30 {
        world.broken.insert("spine1".to_owned());
        world.wait(1_000);
        world.broken.clear();
        world.wait(1_000);
    }
    assert!(world.plan(job).epoch < 90, "{} plans in a minute", world.plan(job).epoch);
    world.wait(BACK_MS);
    assert!(works(&world, job, 2));
}

#[test]
fn a_stopped_worker_is_not_a_fault_of_the_trees() {
    let mut world = World::standard();
    let job = world.job();
    // All others report all trees as silent; the stopped worker reports nothing.
    let (session, plan) = world.workers.remove(&(job, 2)).unwrap();
    world.broken.insert("h2-rack1".to_owned());
    world.wait(3_000);
    world.play(Event::WorkerClosed { session, hung_up: false }).unwrap();
    world.wait(6_000);
    assert_eq!(world.plan(job).epoch, 1);
    world.broken.clear();
    world.workers.insert((job, 2), (session, plan));
    world.join(job, 2, "h2", 1).unwrap();
    world.wait(1_200);
    let end = world.now_ms;
    while !works(&world, job, 2) {
        assert!(world.now_ms < end + BACK_MS);
        world.wait(100);
    }
}

#[test]
fn reports_of_an_older_plan_do_not_count() {
    let mut world = World::standard();
    let job = world.job();
    world.down("spine1");
    world.up("spine1", &[]).unwrap();
    world.wait(1_000);
    let epoch = world.plan(job).epoch;
    let (session, _) = world.workers[&(job, 0)];
    let statistics = pb::WorkerHeartbeat {
        plan_epoch: epoch - 1,
        silent_trees: vec![0, 1],
        ..Default::default()
    };
    world.play(Event::WorkerHeartbeat { session, statistics }).unwrap();
    let statistics = pb::WorkerHeartbeat {
        plan_epoch: epoch,
        silent_trees: vec![7, 9_999],
        ..Default::default()
    };
    let (session, _) = world.workers[&(job, 1)];
    world.play(Event::WorkerHeartbeat { session, statistics }).unwrap();
    world.now_ms += 500;
    world.play(Event::Tick).unwrap();
    assert_eq!(world.plan(job).epoch, epoch);
}

#[test]
fn in_a_fat_tree_the_working_trees_continue() {
    let fabric = fat_tree(4, RATE, Addressing::default()).unwrap();
    let mut world = World::new(fabric, Settings::default());
    world.all_up();
    let job = world.job_on(&[0, 4, 8, 12], 0);
    let trees = world.plan(job).trees.len();
    assert!(trees >= 2);
    let uplink = |tree: &pb::Tree| {
        let node = tree
            .nodes
            .iter()
            .find(|node| !node.parent.is_empty() && node.parent == tree.root)
            .unwrap();
        format!("{}-{}", node.switch, node.parent)
    };
    let part = uplink(&world.plan(job).trees[0]);
    world.broken.insert(part.clone());
    world.wait(NOTICE_MS + 500);
    assert!(!world.plan(job).trees.is_empty(), "{}", world.plan(job).reason);
    world.broken.clear();
    let took = recovery_ms(&mut world, job, &part, 8_000, trees);
    assert!(took <= BACK_MS, "{took} ms");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Any sequence of faults of the data plane, including simultaneous ones and failures of switches.
    #[test]
    fn any_faults_end_with_all_trees(
        faults in prop::collection::vec((0usize..8, 100u64..5_000, any::<bool>()), 1..8),
    ) {
        const PARTS: [&str; 8] =
            ["spine0", "spine1", "rack0", "rack1", "rack0-spine0", "rack1-spine1", "h1-rack0", "h2-rack1"];
        let mut world = World::standard();
        let job = world.job();
        for (part, ms, mend) in faults {
            world.broken.insert(PARTS[part].to_owned());
            world.wait(ms);
            if mend {
                world.broken.clear();
            }
            for rank in 0..4 {
                let plan = world.workers[&(job, rank)].1.clone().unwrap();
                prop_assert!(JobPlan::try_from(&plan).unwrap().validate(4).is_ok());
                prop_assert_eq!(&plan.order, "[[0,1],[2,3]]");
            }
        }
        let broken: BTreeSet<String> = std::mem::take(&mut world.broken);
        let end = world.now_ms;
        while !works(&world, job, 2) {
            prop_assert!(world.now_ms <= end + BACK_MS, "{:?}", broken);
            world.wait(100);
        }
        world.wait(10_000);
        prop_assert!(works(&world, job, 2));
        world.check_leases();
    }
}
