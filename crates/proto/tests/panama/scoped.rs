//! Reduce-scatter, all-gather, broadcast, reduce and barrier of `panama` against an oracle: on any network, every rank
//! gets exactly its part of the result, bit-identical to the order of additions, whatever is lost and whoever dies.

use std::sync::Arc;

use netsum_proto::panama::*;
use netsum_proto::{CongestionRule, Time};
use netsum_wire::*;
use proptest::prelude::*;

use crate::world::network::start;
use crate::world::transition::transition;
use crate::world::{Faults, Layout, Random, World};
use crate::{bits, check_memory_returns, faults, format, oracle, seed_of};

const SECOND: u64 = 1_000_000_000;
/// Limit of simulated time.
const BOUND: Time = Time(3600 * SECOND);
const F32_SUM: Format = Format { dtype: Dtype::F32, op: ReduceOp::Sum };

fn values(job: usize, operation: usize, format: Format, numel: usize, rank: u32) -> Vec<u8> {
    bits(format, numel, seed_of(job, operation, rank))
}

fn shards(random: &mut Random, workers: u32, most: u64) -> Arc<[u64]> {
    let uneven = random.chance(0.5);
    let same = 1 + random.below(most);
    let mut sizes: Vec<u64> =
        (0..workers).map(|_| if uneven { random.below(most + 1) } else { same }).collect();
    let some = random.below(workers.into()) as usize;
    sizes[some] = sizes[some].max(1);
    sizes.into()
}

fn pattern(random: &mut Random, workers: u32, most: u64) -> (Pattern, usize) {
    let root = Rank(random.below(workers.into()) as u32);
    let numel = 1 + random.below(most * u64::from(workers)) as usize;
    match random.below(8) {
        0 => (Pattern::Allreduce, numel),
        1 => (Pattern::Reduce(root), numel),
        2 => (Pattern::Broadcast(root), numel),
        3 => (Pattern::Barrier, 0),
        4 | 5 => {
            let sizes = shards(random, workers, most);
            let numel = sizes.iter().sum::<u64>() as usize;
            (Pattern::ReduceScatter(sizes), numel)
        }
        _ => {
            let sizes = shards(random, workers, most);
            let numel = sizes.iter().sum::<u64>() as usize;
            (Pattern::Allgather(sizes), numel)
        }
    }
}

/// Submits the same operation at all ranks of a job.
fn submit(world: &mut World, job: usize, format: Format, numel: usize, pattern: &Pattern) {
    for rank in 0..world.layout.workers {
        submit_at(world, job, rank, format, numel, pattern);
    }
}

fn submit_at(
    world: &mut World,
    job: usize,
    rank: u32,
    format: Format,
    numel: usize,
    pattern: &Pattern,
) {
    let host = world.jobs[job].hosts[rank as usize];
    let i = world.hosts[host].operations.len();
    let values = values(job, i, format, numel, rank);
    world.submit_pattern(job, rank, format, numel, values, pattern.clone());
}

fn submit_some(world: &mut World, job: usize, random: &mut Random, operations: u64, most: u64) {
    for _ in 0..operations {
        let (pattern, numel) = pattern(random, world.layout.workers, most);
        let format = format(random);
        submit(world, job, format, numel, &pattern);
    }
}

/// First element and rank of the shard to which an element belongs.
fn shard_of(sizes: &[u64], element: u64) -> u32 {
    let mut end = 0;
    let owner = sizes.iter().position(|size| {
        end += size;
        element < end
    });
    owner.unwrap() as u32
}

/// Checks all results of all ranks, element by element.
fn check(world: &World) -> Result<(), TestCaseError> {
    for (j, job) in world.jobs.iter().enumerate() {
        let everyone = job.shape.mask();
        for i in 0..world.hosts[job.hosts[0]].operations.len() {
            let first = &world.hosts[job.hosts[0]].operations[i];
            let (format, numel) = (first.format, first.numel);
            let size = format.dtype.size();
            let inputs: Vec<Vec<u8>> =
                (0..job.hosts.len() as u32).map(|rank| values(j, i, format, numel, rank)).collect();
            for element in 0..numel {
                let at = element * size..(element + 1) * size;
                let of = |rank: u32| inputs[rank as usize][at.clone()].to_vec();
                let sum = || oracle::element(format, &job.shape, everyone, &of);
                // The expected value at the ranks that take the element.
                let (taker, expected) = match &first.pattern {
                    Pattern::Allreduce => (None, sum()),
                    Pattern::Reduce(to) => (Some(to.0), sum()),
                    Pattern::ReduceScatter(sizes) => (Some(shard_of(sizes, element as u64)), sum()),
                    Pattern::Broadcast(from) => (None, of(from.0)),
                    Pattern::Allgather(sizes) => (None, of(shard_of(sizes, element as u64))),
                    Pattern::Barrier => (None, Vec::new()),
                };
                for (rank, &host) in job.hosts.iter().enumerate() {
                    if taker.is_none_or(|taker| taker == rank as u32) {
                        let got = &world.hosts[host].operations[i].values()[at.clone()];
                        prop_assert_eq!(
                            got,
                            &expected[..],
                            "job {} operation {} {:?} {:?} element {} rank {}",
                            j,
                            i,
                            first.pattern,
                            format,
                            element,
                            rank
                        );
                    }
                }
            }
        }
    }
    Ok(())
}

/// Room for one fragment in flight, or some more, in each tree of two jobs.
fn memory(workers: u32, trees: u8, room: u32) -> u64 {
    let (shares, buffers) = (2 * 2 * u32::from(trees) + 2, workers + 11 + room);
    u64::from(shares * buffers) * Slab::new(0).cost(64)
}

fn layout() -> impl Strategy<Value = Layout> {
    let rule = prop_oneof![Just(CongestionRule::PerBranch), Just(CongestionRule::Fixed(48))];
    let workers = prop_oneof![4 => 2..=9u32, 1 => 10..=33u32];
    (workers, 1..=3u32, 1..=3u8, 1..=64u16, 0..100u32, rule, start()).prop_map(
        |(workers, levels, trees, window_max, room, congestion, start)| {
            let memory = memory(workers, trees, room);
            let layout = Layout { copies: true, ..Layout::default() };
            Layout { workers, levels, trees, window_max, memory, congestion, start, ..layout }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn every_rank_gets_its_part_on_any_network(
        seed: u64, layout in layout(), faults in faults(), jobs in 1..=2usize,
    ) {
        let mut world = World::new(seed, layout, faults);
        let mut random = Random(seed ^ 1);
        for _ in 0..jobs {
            let job = world.add_job();
            let operations = 1 + random.below(5);
            submit_some(&mut world, job, &mut random, operations, 120);
        }
        prop_assert!(world.run(BOUND, World::all_done), "not done in time");
        check(&world)?;
        check_memory_returns(&mut world)?;
    }

    #[test]
    fn a_dead_switch_costs_only_a_transition(
        seed: u64, layout in layout(), faults in faults(), kill_after in 0..4_000u64, rack: bool, which in 0..4usize,
    ) {
        let trees = layout.trees;
        let mut world = World::new(seed, layout, faults);
        let mut random = Random(seed ^ 2);
        let job = world.add_job();
        submit_some(&mut world, job, &mut random, 5, 400);
        world.run(Time(kill_after * 1000), World::all_done);
        let racks = 101..world.switches.len().max(101);
        let killed = match rack && !racks.is_empty() {
            true => racks.start + which % racks.len(),
            false => which % usize::from(trees),
        };
        world.kill_switch(killed);
        world.run(Time(300 * SECOND), |w| w.all_done() || w.hosts.iter().any(|h| h.silent));
        transition(&mut world, job, trees.max(2) - 1);
        prop_assert!(world.run(BOUND, World::all_done), "not done in time");
        check(&world)?;
    }
}

/// The last rank of its shard lacks the result, and the others, who know that it is complete, have used their buffers
/// for something else: the sum is made again from what they retain.
#[test]
fn a_shard_that_only_its_rank_lacks_is_summed_again() {
    let mut repeated = 0;
    for seed in 0..200 {
        let faults = Faults { loss: 0.05, jitter_ns: 50_000, ..Faults::default() };
        let layout = Layout { copies: true, trees: 1, ..Layout::default() };
        let mut world = World::new(seed, layout, faults);
        let job = world.add_job();
        let sizes: Arc<[u64]> = vec![60; 4].into();
        submit(&mut world, job, F32_SUM, 240, &Pattern::ReduceScatter(sizes));
        let some_done = |world: &World| {
            world.hosts.iter().filter(|host| host.operations[0].done.is_some()).count() >= 2
        };
        world.run(BOUND, some_done);
        world.kill_switch(0);
        world.run(Time(300 * SECOND), |w| w.all_done() || w.hosts.iter().any(|h| h.silent));
        transition(&mut world, job, 1);
        repeated += world.hosts.iter().filter(|host| host.operations[0].again).count();
        assert!(world.run(BOUND, World::all_done), "seed {seed}");
        check(&world).unwrap();
    }
    assert!(repeated > 20, "{repeated} ranks contributed again");
}

#[test]
fn no_rank_leaves_a_barrier_before_the_last_has_come() {
    for levels in 1..=3 {
        let layout = Layout { workers: 8, levels, copies: true, ..Layout::default() };
        let mut world = World::new(1, layout, Faults { loss: 0.1, ..Faults::default() });
        let job = world.add_job();
        for rank in 0..7 {
            submit_at(&mut world, job, rank, F32_SUM, 0, &Pattern::Barrier);
        }
        world.run(Time(SECOND / 2), World::all_done);
        assert!(world.hosts.iter().all(|host| host.operations.iter().all(|o| o.done.is_none())));
        submit_at(&mut world, job, 7, F32_SUM, 0, &Pattern::Barrier);
        assert!(world.run(BOUND, World::all_done), "{levels} levels");
    }
}

/// Bytes that the first rank sends and receives, headers included, per byte of a lossless operation.
fn traffic(pattern: &Pattern, numel: usize, window_max: u16, trees: u8) -> (f64, f64) {
    let layout = Layout {
        workers: 8,
        levels: 2,
        copies: true,
        trees,
        window_max,
        fragment_bytes: 1408,
        memory: 1 << 28,
        congestion: CongestionRule::Fixed(window_max),
        ..Layout::default()
    };
    let mut world = World::new(1, layout, Faults::default());
    let job = world.add_job();
    submit(&mut world, job, F32_SUM, numel, pattern);
    assert!(world.run(BOUND, World::all_done));
    check(&world).unwrap();
    let bytes = (numel * 4) as f64;
    let (sent, received) = world.traffic_of_host(0);
    (sent as f64 / bytes, received as f64 / bytes)
}

/// At an MTU of 1500, with 42 bytes of Ethernet, IP and UDP and 16 of a tag on each packet.
#[test]
fn a_rank_receives_only_its_shard_and_sends_only_its_shard() {
    let numel = 8 * 352 * 200;
    let sizes: Arc<[u64]> = vec![numel as u64 / 8; 8].into();
    for trees in [1, 2] {
        let (up, down) = traffic(&Pattern::ReduceScatter(sizes.clone()), numel, 64, trees);
        assert!(up <= 1.08 && down <= 1.08 / 8.0, "{trees} trees: {up} up, {down} × 8 down");
        let (up, down) = traffic(&Pattern::Allgather(sizes.clone()), numel, 64, trees);
        assert!(
            up <= 1.08 / 8.0 && down <= 1.08,
            "{trees} trees: {} × 8 up, {down} down",
            up * 8.0
        );
    }
}

#[test]
fn disagreement_on_who_takes_is_reported_to_all_ranks() {
    let sizes: Arc<[u64]> = vec![50; 4].into();
    let uneven: Arc<[u64]> = vec![50, 49, 51, 50].into();
    let pairs = [
        (Pattern::ReduceScatter(sizes.clone()), Pattern::Allreduce),
        (Pattern::ReduceScatter(sizes.clone()), Pattern::ReduceScatter(uneven.clone())),
        (Pattern::Reduce(Rank(0)), Pattern::Reduce(Rank(1))),
        (Pattern::Broadcast(Rank(0)), Pattern::Broadcast(Rank(1))),
        (Pattern::Broadcast(Rank(2)), Pattern::Allgather(sizes.clone())),
        (Pattern::Allgather(sizes), Pattern::Allgather(uneven)),
    ];
    for (most, other) in pairs {
        for differs in 0..4 {
            let layout = Layout { copies: true, ..Layout::default() };
            let mut world = World::new(1, layout, Faults::default());
            let job = world.add_job();
            for rank in 0..4 {
                let pattern = if rank == differs { &other } else { &most };
                submit_at(&mut world, job, rank, F32_SUM, 200, pattern);
            }
            world.run(Time(5 * SECOND), |w| w.hosts.iter().all(|h| h.mismatch));
            let told: Vec<bool> = world.hosts.iter().map(|h| h.mismatch).collect();
            assert_eq!(told, [true; 4], "{most:?}, rank {differs}: {other:?}");
        }
    }
}
