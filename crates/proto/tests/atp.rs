//! Protocol `atp` against an oracle: for any network and any number of slots, every sum is exact, complete once, and
//! bit-identical at every rank; and all slots are freed.

#[path = "world/network.rs"]
mod network;
#[path = "slots/oracle.rs"]
mod oracle;
#[path = "slots/patterns.rs"]
mod patterns;
#[path = "atp/scoped.rs"]
mod scoped;
mod slots;

use netsum_proto::atp::*;
use netsum_proto::{CongestionRule, DropReason, Time};
use netsum_wire::fixed::Scale;
use netsum_wire::*;
use network::{Faults, Random, start};
use oracle::Path;
use proptest::prelude::*;
use slots::{Layout, World};

const SECOND: u64 = 1_000_000_000;
/// Limit of simulated time.
const BOUND: Time = Time(3600 * SECOND);
const SUM: Format = Format { dtype: Dtype::F32, op: ReduceOp::Sum };

fn operation(random: &mut Random) -> (Format, Scaling) {
    let scaling = match random.below(2) {
        0 => Scaling::Fixed(Scale::PAPER),
        _ => Scaling::Shared,
    };
    match random.below(2) {
        0 => (oracle::WORDS[random.below(oracle::WORDS.len() as u64) as usize], scaling),
        _ => (SUM, scaling),
    }
}

/// Buffers in which integers overflow, and some fragments of floats do not fit or are not finite.
fn bits(format: Format, numel: usize, seed: u64) -> Vec<u8> {
    let mut random = Random(seed);
    let element = |i: usize| {
        let bits = random.next();
        let unit = (bits >> 40) as f32 / 8_388_608.0 - 1.0;
        let odd = i.is_multiple_of(37) && bits.is_multiple_of(3);
        let value = match bits >> 8 & 3 {
            0 if odd => f32::INFINITY,
            1 if odd => f32::NAN,
            2 if odd => unit.signum() * (40.0 + unit.abs()),
            _ => unit * 1e-2,
        };
        oracle::bits_of(format, bits, value)
    };
    (0..numel).flat_map(element).collect()
}

fn seed_of(job: usize, operation: usize, rank: usize) -> u64 {
    (job as u64) << 40 | (operation as u64) << 20 | rank as u64
}

/// Checks that every element at every rank equals the oracle's.
fn check_sums(world: &World) -> Result<(), TestCaseError> {
    for (j, job) in world.jobs.iter().enumerate() {
        if world.hosts[job.hosts[0]].machine.is_none() {
            continue;
        }
        let first = &world.hosts[job.hosts[0]];
        for (i, reference) in first.operations.iter().enumerate() {
            let (format, numel) = (reference.what.format, reference.what.numel as usize);
            let inputs: Vec<Vec<u8>> =
                (0..job.hosts.len()).map(|rank| bits(format, numel, seed_of(j, i, rank))).collect();
            let scale = match reference.scaling {
                Scaling::Fixed(scale) => Some(scale.factor()),
                Scaling::Shared => None,
            };
            let (size, len) = (format.dtype.size(), numel * format.dtype.size());
            let step = oracle::fragment_bytes(format, world.layout.fragment_bytes.into());
            for start in (0..len).step_by(step) {
                let end = (start + step).min(len);
                let values: Vec<&[u8]> = inputs.iter().map(|v| &v[start..end]).collect();
                let path = oracle::path(format, scale, &values);
                for at in (start..end).step_by(size) {
                    let of: Vec<&[u8]> = inputs.iter().map(|v| &v[at..at + size]).collect();
                    let expected = oracle::element(format, path, &of);
                    prop_assert_eq!(
                        &reference.buffer[at..at + size],
                        &expected[..],
                        "job {} operation {} {:?} by {:?} element {}",
                        j,
                        i,
                        format,
                        path,
                        at / size
                    );
                }
            }
            for &host in &job.hosts[1..] {
                prop_assert!(world.hosts[host].operations[i].buffer == reference.buffer);
            }
        }
    }
    Ok(())
}

/// Checks that no slot is held once nothing is left to send.
fn check_slots_return(world: &mut World) -> Result<(), TestCaseError> {
    for host in 0..world.hosts.len() {
        if let Some(machine) = &mut world.hosts[host].machine {
            machine.finish();
        }
        world.pump_host(host);
    }
    prop_assert!(!world.run(Time(u64::MAX - 1), |_| false), "the network falls silent");
    for (node, (switch, _)) in &world.switches {
        prop_assert_eq!(switch.held(), 0, "switch {}", node);
        prop_assert!(switch.leases().all(|(_, held, _)| held == 0));
        prop_assert_eq!(switch.drops().get(DropReason::NoMemory), 0);
        prop_assert_eq!(switch.drops().get(DropReason::Members), 0);
    }
    for server in world.servers.values() {
        prop_assert_eq!(server.drops().get(DropReason::NoMemory), 0);
        prop_assert_eq!(server.drops().get(DropReason::Members), 0);
        prop_assert_eq!(server.drops().get(DropReason::BeyondWindow), 0);
    }
    Ok(())
}

fn policy() -> impl Strategy<Value = Policy> {
    prop_oneof![
        Just(Policy::FirstCome),
        Just(Policy::Partition),
        (0..30_000_000u64).prop_map(|patience_ns| Policy::Preempt { patience_ns }),
    ]
}

/// From ten times too few slots to enough, so that collisions are frequent or rare.
fn layout() -> impl Strategy<Value = Layout> {
    let shape = (prop::collection::vec(1..=5u8, 1..=4), any::<bool>(), any::<bool>(), 1..=3u8);
    let sizes = (1..=24u16, 1..=40u32, policy(), 100_000..50_000_000u64);
    (shape, sizes, start()).prop_map(
        |(
            (racks, lone_switches, middle, servers),
            (window_max, slots, policy, straggler_ns),
            start,
        )| {
            let layout = Layout::default();
            Layout {
                racks,
                lone_switches,
                middle,
                servers,
                slots,
                window_max,
                policy,
                straggler_ns,
                start,
                ..layout
            }
        },
    )
}

fn faults() -> impl Strategy<Value = Faults> {
    (0.0..0.08f64, 0.0..0.05f64, 0.0..0.03f64, 0.0..0.2f64, 0..200_000u64).prop_map(
        |(loss, duplication, corruption, marking, jitter_ns)| Faults {
            loss,
            duplication,
            corruption,
            marking,
            jitter_ns,
        },
    )
}

/// Claims that fit even if there is one slot.
fn claim(random: &mut Random, layout: &Layout, jobs: usize) -> Claim {
    let guaranteed = random.below(1 + u64::from(layout.slots) / (8 * jobs as u64)) as u32;
    let limit = if random.below(2) == 0 { u32::MAX } else { random.below(20) as u32 };
    Claim { guaranteed, limit, priority: random.below(3) as u8 }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn every_sum_is_exact_and_identical_on_any_network(
        seed: u64, layout in layout(), faults in faults(), jobs in 1..=3usize,
    ) {
        let mut world = World::new(seed, layout.clone(), faults);
        let mut random = Random(seed ^ 1);
        for _ in 0..jobs {
            let job = world.add_job(claim(&mut random, &layout, jobs));
            for i in 0..=random.below(3) as usize {
                let (format, scaling) = operation(&mut random);
                let numel = 1 + random.below(300) as usize;
                world.submit(job, format, scaling, numel, |rank| {
                    bits(format, numel, seed_of(job, i, rank as usize))
                });
            }
        }
        prop_assert!(world.run(BOUND, World::all_done), "not done in time");
        check_sums(&world)?;
        check_slots_return(&mut world)?;
    }

    #[test]
    fn jobs_that_come_go_and_restart_do_not_disturb_others(
        seed: u64, layout in layout(), faults in faults(), at in 0..3_000u64,
    ) {
        let mut world = World::new(seed, layout.clone(), faults);
        let mut random = Random(seed ^ 2);
        let submit = |world: &mut World, job: usize, i: usize, random: &mut Random| {
            let (format, scaling) = operation(random);
            let numel = 1 + random.below(600) as usize;
            world.submit(job, format, scaling, numel, |rank| bits(format, numel, seed_of(job, i, rank as usize)));
        };
        for _ in 0..3 {
            let job = world.add_job(claim(&mut random, &layout, 4));
            submit(&mut world, job, 0, &mut random);
        }
        world.run(Time(at * 1000), World::all_done);
        // Job 0 dies silently.
        for host in world.jobs[0].hosts.clone() {
            world.hosts[host].machine = None;
        }
        // Job 1 begins a new epoch with its initial buffers; its old packets are still in flight.
        let again = world.jobs[1].hosts.clone();
        world.begin(1);
        for (rank, &host) in again.iter().enumerate() {
            let operation = &mut world.hosts[host].operations[0];
            let (format, numel) = (operation.what.format, operation.what.numel as usize);
            operation.buffer = bits(format, numel, seed_of(1, 0, rank));
            operation.done = false;
            let (what, scaling) = (operation.what.clone(), operation.scaling);
            world.hosts[host].machine.as_mut().unwrap().submit_scaled(what, scaling);
            world.pump_host(host);
        }
        // A fourth job arrives.
        let job = world.add_job(claim(&mut random, &layout, 4));
        submit(&mut world, job, 0, &mut random);
        prop_assert!(world.run(BOUND, World::all_done), "not done in time");
        check_sums(&world)?;
        check_slots_return(&mut world)?;
    }
}

fn ordinary(layout: Layout, numel: usize) -> World {
    let mut world = World::new(1, layout, Faults::default());
    let job = world.add_job(Claim::default());
    world.submit(job, SUM, Scaling::Shared, numel, |rank| {
        let values = Random(rank.into()).next() as u32;
        (0..numel).flat_map(|i| ((values as f32) * i as f32 * 1e-15).to_le_bytes()).collect()
    });
    world
}

/// The paper's example: four racks, of two workers each but for two workers at the server's own switch. Without level 2
/// the server receives a packet per rack, with it one.
#[test]
fn two_levels_leave_one_packet_per_fragment() {
    let packets = |middle| {
        let layout = Layout { racks: vec![2, 2, 1, 1], middle, slots: 512, ..Layout::default() };
        let mut world = ordinary(layout, 4000);
        assert!(world.run(BOUND, World::all_done));
        let server = world.servers.values().next().unwrap();
        let (_, counters) = server.leases().next().unwrap();
        assert_eq!(counters.contributions, counters.results * 6);
        counters.packets as f64 / counters.results as f64
    };
    assert_eq!(packets(false), 4.0);
    assert_eq!(packets(true), 1.0);
}

#[test]
fn collisions_move_an_entry_until_its_slot_is_free() {
    // Two jobs on slots that suffice for both: the second round of entries hardly collides.
    let layout = Layout { slots: 64, window_max: 16, ..Layout::default() };
    let mut world = World::new(5, layout, Faults::default());
    for job in 0..2 {
        world.add_job(Claim::default());
        world.submit(job, SUM, Scaling::Shared, 20_000, |_| vec![0; 80_000]);
    }
    assert!(world.run(BOUND, World::all_done));
    for (node, (switch, _)) in &world.switches {
        for (_, _, counters) in switch.leases() {
            let share = counters.collisions as f64 / (counters.collisions + counters.added) as f64;
            assert!(share < 0.05, "switch {node}: {counters:?}");
        }
    }
    let counters: Vec<_> = world.servers[&1].leases().map(|(_, c)| *c).collect();
    assert!(counters.iter().any(|c| c.rehashes > 0), "they did collide: {counters:?}");
}

/// One packet in a hundred is lost, and retransmissions go to the server worker by worker. Holes are detected by
/// results that overtake them; only the end of an operation may have to wait for a time-out.
#[test]
fn losses_cost_round_trips() {
    for seed in 1..=4 {
        let congestion = CongestionRule::Fixed(64);
        let layout = Layout {
            racks: vec![4, 4],
            slots: 512,
            window_max: 64,
            congestion,
            ..Layout::default()
        };
        let mut world = World::new(seed, layout, Faults { loss: 0.01, ..Faults::default() });
        let job = world.add_job(Claim::default());
        world.submit(job, SUM, Scaling::Fixed(Scale::PAPER), 16_000, |_| vec![0; 64_000]);
        assert!(world.run(BOUND, World::all_done));
        assert!(world.network.now < Time(100_000_000), "{:?}", world.network.now);
    }
}

#[test]
fn a_straggler_holds_no_memory() {
    let layout = Layout { racks: vec![3], window_max: 16, ..Layout::default() };
    let mut world = World::new(1, layout, Faults::default());
    let job = world.add_job(Claim::default());
    for rank in 0..2 {
        world.submit_at(job, rank, SUM, Scaling::Fixed(Scale::PAPER), 100, vec![0; 400]);
    }
    world.run(Time(SECOND), |_| false);
    for (switch, _) in world.switches.values() {
        assert_eq!(switch.held(), 0, "partial sums went on to the server");
    }
    assert!(!world.hosts[0].silent, "the server said that it waits");
    world.submit_at(job, 2, SUM, Scaling::Fixed(Scale::PAPER), 100, vec![0; 400]);
    let before = world.network.now;
    assert!(world.run(BOUND, World::all_done));
    let waited = world.network.now.since(before);
    assert!(waited < 1_000_000, "its fragments went straight to the server, in {waited} ns");
}

#[test]
fn disagreement_is_reported_to_all_ranks() {
    let mut world = World::new(1, Layout::default(), Faults::default());
    let job = world.add_job(Claim::default());
    for rank in 0..4 {
        let numel = if rank == 2 { 101 } else { 100 };
        world.submit_at(job, rank, SUM, Scaling::Shared, numel, vec![0; numel * 4]);
    }
    world.run(Time(SECOND), |w| w.hosts.iter().all(|h| h.mismatch));
    assert!(world.hosts.iter().all(|h| h.mismatch));
}

#[test]
fn a_dead_server_is_silence() {
    let mut world = ordinary(Layout::default(), 1000);
    world.servers.clear();
    assert!(world.run(Time(10 * SECOND), |w| w.hosts.iter().all(|h| h.silent)));
}

#[test]
fn floats_are_requested_once_and_only_where_needed() {
    let layout = Layout { racks: vec![2, 2], slots: 512, ..Layout::default() };
    let mut world = World::new(1, layout, Faults::default());
    let job = world.add_job(Claim::default());
    // Element 8 of the second fragment: 4 · 6 = 24 is beyond 21.47.
    let values: Vec<u8> =
        (0..24).flat_map(|i| (if i == 8 { 6.0f32 } else { 0.5 }).to_le_bytes()).collect();
    world.submit(job, SUM, Scaling::Fixed(Scale::PAPER), 24, |_| values.clone());
    assert!(world.run(BOUND, World::all_done));
    let (_, counters) = world.servers[&1].leases().next().unwrap();
    assert_eq!((counters.float_requests, counters.results), (1, 3));
    let sum = oracle::f32_of(&world.hosts[0].operations[0].buffer[32..36]);
    assert_eq!(sum, 24.0);
    assert_eq!(oracle::path(SUM, Some(1e8), &[&values[..32]; 4]), Path::Scaled(1e8));
}
