//! Reduce-scatter, all-gather, broadcast, reduce and barrier of `atp` against an oracle: on any network and with any
//! number of slots, every rank gets exactly its part of the result.

use std::sync::Arc;

use netsum_proto::atp::*;
use netsum_proto::{CongestionRule, DropReason, Pattern, Time};
use netsum_wire::*;
use proptest::prelude::*;

use super::network::{Faults, Random};
use super::patterns::{COPIED, disagreements, is_copied, pattern, results};
use super::slots::{FIRST_HOST, Layout, World};
use super::{
    BOUND, SECOND, SUM, bits, check_slots_return, claim, faults, layout, operation, oracle, seed_of,
};

fn values(job: usize, operation: usize, format: Format, numel: usize, rank: u32) -> Vec<u8> {
    bits(format, numel, seed_of(job, operation, rank as usize))
}

/// Submits the same operation at some ranks of a job.
fn submit(
    world: &mut World,
    job: usize,
    ranks: impl Iterator<Item = u32>,
    how: (Format, Scaling),
    numel: usize,
    pattern: &Pattern,
) {
    let format = if is_copied(pattern) { COPIED } else { how.0 };
    for rank in ranks {
        let host = world.jobs[job].hosts[rank as usize];
        let i = world.hosts[host].operations.len();
        let values = values(job, i, format, numel, rank);
        world.submit_pattern(job, rank, (format, how.1), numel, values, pattern.clone());
    }
}

/// Checks all results of all ranks, element by element.
fn check(world: &World) -> Result<(), TestCaseError> {
    for (j, job) in world.jobs.iter().enumerate() {
        for i in 0..world.hosts[job.hosts[0]].operations.len() {
            let first = &world.hosts[job.hosts[0]].operations[i];
            let (format, numel) = (first.what.format, first.what.numel as usize);
            let scale = match first.scaling {
                Scaling::Fixed(scale) => Some(scale.factor()),
                Scaling::Shared => None,
            };
            let inputs: Vec<Vec<u8>> =
                (0..job.hosts.len() as u32).map(|rank| values(j, i, format, numel, rank)).collect();
            let pattern = &first.what.pattern;
            let words = world.layout.fragment_bytes.into();
            let element = |path, each: &[&[u8]]| oracle::element(format, path, each);
            let expected = results(pattern, format, (scale, words), &inputs, element);
            for (rank, &host) in job.hosts.iter().enumerate() {
                let got = &world.hosts[host].operations[i].buffer;
                let name = format!("job {j} operation {i} {pattern:?} {format:?} rank {rank}");
                prop_assert!(got == &expected[rank], "{name}: {:?}, {:?}", got, expected[rank]);
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn every_rank_gets_its_part_on_any_network(
        seed: u64, layout in layout(), faults in faults(), jobs in 1..=2usize,
    ) {
        let layout = Layout { copies: true, ..layout };
        let mut world = World::new(seed, layout.clone(), faults);
        let mut random = Random(seed ^ 1);
        for _ in 0..jobs {
            let job = world.add_job(claim(&mut random, &layout, 2 * jobs));
            let workers = world.jobs[job].hosts.len() as u32;
            for _ in 0..=random.below(4) {
                let how = operation(&mut random);
                let (pattern, numel) = pattern(&mut random, workers.into(), 60);
                submit(&mut world, job, 0..workers, how, numel, &pattern);
            }
        }
        prop_assert!(world.run(BOUND, World::all_done), "not done in time");
        check(&world)?;
        check_slots_return(&mut world)?;
    }
}

#[test]
fn no_rank_leaves_a_barrier_before_the_last_has_come() {
    let layout = Layout { racks: vec![2, 3, 1], copies: true, ..Layout::default() };
    let mut world = World::new(1, layout, Faults { loss: 0.1, ..Faults::default() });
    let job = world.add_job(Claim::default());
    let how = (COPIED, Scaling::Shared);
    submit(&mut world, job, 0..5, how, 0, &Pattern::Barrier);
    world.run(Time(SECOND / 2), World::all_done);
    assert!(world.hosts.iter().all(|host| host.operations.iter().all(|o| !o.done)));
    submit(&mut world, job, 5..6, how, 0, &Pattern::Barrier);
    assert!(world.run(BOUND, World::all_done));
}

/// Bytes that the first rank sends and receives, of Ethernet, IP, UDP and tags too, per byte of a lossless operation.
fn traffic(pattern: &Pattern, numel: usize) -> (f64, f64) {
    let congestion = CongestionRule::Fixed(64);
    let layout = Layout {
        racks: vec![4, 4],
        copies: true,
        slots: 512,
        window_max: 64,
        fragment_bytes: 1408,
        congestion,
        ..Layout::default()
    };
    let mut world = World::new(1, layout, Faults::default());
    let job = world.add_job(Claim::default());
    let format = Format { dtype: Dtype::I32, op: ReduceOp::Sum };
    submit(&mut world, job, 0..8, (format, Scaling::Shared), numel, pattern);
    assert!(world.run(BOUND, World::all_done));
    check(&world).unwrap();
    let (sent, received) = world.network.traffic_of(FIRST_HOST);
    let bytes = (numel * 4) as f64;
    (sent as f64 / bytes, received as f64 / bytes)
}

/// At an MTU of 1500. A sum of which another rank takes the result costs a packet without elements, as does telling the
/// server before each own fragment of the others before it.
#[test]
fn a_rank_receives_only_its_shard_and_sends_only_its_shard() {
    let numel = 8 * 352 * 100;
    let sizes: Arc<[u64]> = vec![numel as u64 / 8; 8].into();
    let (up, down) = traffic(&Pattern::ReduceScatter(sizes.clone()), numel);
    assert!(up <= 1.08 && down <= 1.08 / 8.0 + 0.08, "{up} up, {down} down");
    let (up, down) = traffic(&Pattern::Allgather(sizes), numel);
    assert!(up <= 1.16 / 8.0 && down <= 1.08, "{} × 8 up, {down} down", up * 8.0);
}

#[test]
fn disagreement_on_who_takes_is_reported_to_all_ranks() {
    for (most, other) in disagreements() {
        for differs in 0..4 {
            let layout = Layout { copies: true, ..Layout::default() };
            let mut world = World::new(1, layout, Faults::default());
            let job = world.add_job(Claim::default());
            for rank in 0..4 {
                let pattern = if rank == differs { &other } else { &most };
                submit(&mut world, job, rank..rank + 1, (SUM, Scaling::Shared), 200, pattern);
            }
            world.run(Time(5 * SECOND), |w| w.hosts.iter().all(|h| h.mismatch));
            let told: Vec<bool> = world.hosts.iter().map(|h| h.mismatch).collect();
            assert_eq!(told, [true; 4], "{most:?}, rank {differs}: {other:?}");
        }
    }
}

/// Slots are for sums alone: what one rank contributes, and the notices of the others, pass by them.
#[test]
fn copies_take_no_slots() {
    let layout = Layout { copies: true, racks: vec![3, 2], slots: 4, ..Layout::default() };
    let mut world = World::new(1, layout, Faults::default());
    let job = world.add_job(Claim::default());
    let pattern = Pattern::Broadcast(Rank(1));
    submit(&mut world, job, 0..5, (COPIED, Scaling::Shared), 500, &pattern);
    while !world.run(Time(world.network.now.0 + 10_000), World::all_done) {
        assert!(world.switches.values().all(|(switch, _)| switch.held() == 0));
    }
    check(&world).unwrap();
    for (switch, _) in world.switches.values() {
        assert!(switch.leases().all(|(_, _, counters)| counters.added == 0));
        assert_eq!(switch.drops().get(DropReason::Duplicate), 0);
    }
}
