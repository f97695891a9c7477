//! Protocols `atp` and `switchml` on the network: exact sums under loss and with few slots, saved traffic, sharing.

mod common;

use std::sync::{Arc, Mutex};

use common::*;
use netsum_proto::CongestionRule;
use netsum_proto::atp::{Claim, Policy};
use netsum_proto::panama::Slab;
use netsum_sim::aggregation::{Payload, PoolConfig, SlotConfig, SlotSharing, value};
use netsum_sim::faults::Fault;
use netsum_sim::job::{Bucket, JobSpec, Scheme};
use netsum_sim::tcp::TcpConfig;
use netsum_sim::{Simulation, Switching};
use netsum_topo::{Addressing, Rate, Topology};

const SWITCHING: Switching = Switching { latency_ns: 1_000, ..PLAIN };
const AIMD: CongestionRule = CongestionRule::Aimd { packet_bytes: 1496 };

fn slots(window: u16, congestion: CongestionRule) -> Scheme {
    let claim = Claim::default();
    let config =
        SlotConfig { window_max: window, fragment_bytes: 1408, congestion, claim, copies: false };
    Scheme::Slots { servers: 1, config }
}

fn pool(slots: u16) -> Scheme {
    let timeout_ns = PoolConfig::TIMEOUT_NS;
    Scheme::Pool(PoolConfig { slots, fragment_bytes: 1408, timeout_ns, copies: false })
}

fn job(placement: Vec<u32>, servers: Vec<u32>, bytes: u64, steps: u32, scheme: Scheme) -> JobSpec {
    JobSpec {
        start_ps: 0,
        placement,
        steps,
        period_ps: 0,
        buckets: vec![Bucket { ready_ps: 0, bytes }],
        scheme,
        roots: vec![],
        servers,
        work: None,
    }
}

fn leaf_spine() -> Topology {
    let fabric = netsum_topo::leaf_spine(4, 4, 2, TEN_GBIT, TEN_GBIT, Default::default());
    fabric.unwrap().topology()
}

/// A simulation that checks every sum of every rank: the total of all contributions, as integers.
fn exact(
    topology: &Topology,
    switching: Switching,
    ranks: u32,
    elements: u64,
) -> (Simulation<Slab>, Arc<Mutex<Vec<u8>>>) {
    let tcp = TcpConfig::default();
    let simulation = Simulation::<Slab>::with_payload(topology, switching, tcp, 1, 1 << 30);
    let mut simulation = simulation.unwrap();
    simulation.check();
    let seen = Arc::new(Mutex::new(vec![0u8; (u64::from(ranks) * elements) as usize]));
    let inspector = || {
        let shown = Arc::clone(&seen);
        Box::new(move |_, rank: u32, id, start: u64, payload: &<Slab as Payload>::Owned| {
            for (i, bytes) in payload.as_chunks::<4>().0.iter().enumerate() {
                let element = start + i as u64;
                let bits = |rank| value(rank, id, element).to_bits();
                let expected = (0..ranks).fold(0u32, |sum, rank| sum.wrapping_add(bits(rank)));
                assert_eq!(u32::from_le_bytes(*bytes), expected, "rank {rank}, element {element}");
                shown.lock().unwrap()[(u64::from(rank) * elements + element) as usize] += 1;
            }
        })
    };
    simulation.aggregation().slots.inspect(inspector());
    simulation.aggregation().pools.inspect(inspector());
    (simulation, seen)
}

/// Two levels, three racks beside the server's, slots for the whole window or a tenth of it, with and without loss:
/// every rank gets every sum once, bit for bit, and all slots are freed.
#[test]
fn sums_are_exact_with_few_slots_and_loss() {
    let placement: Vec<u32> = vec![0, 1, 2, 4, 5, 8, 9, 10, 11];
    for (count, queue_packets, congestion) in [
        (4096, u32::MAX, AIMD),
        (12, u32::MAX, AIMD),
        (12, 8, AIMD),
        (4096, 8, CongestionRule::Fixed(128)),
        (1, 8, CongestionRule::Fixed(128)),
    ] {
        let elements = 60_000;
        let switching = Switching { queue_packets, mark_packets: 40, ..SWITCHING };
        let ranks = placement.len() as u32;
        let (mut simulation, seen) = exact(&leaf_spine(), switching, ranks, elements);
        simulation.aggregation().sharing = SlotSharing { slots: count, ..SlotSharing::default() };
        simulation.set_flows((0..4).map(|i| flow(0, i, 12 + i, 400_000)));
        simulation.add_job(job(
            placement.clone(),
            vec![3],
            elements * 4,
            1,
            slots(128, congestion),
        ));
        assert!(simulation.run(1_000_000 * MS), "{count} slots: the job does not end");
        assert_eq!(simulation.refused(), []);
        assert!(seen.lock().unwrap().iter().all(|&n| n == 1), "each element once per rank");
        assert_eq!(simulation.aggregation().slots.held(), 0, "{count} slots: some stay taken");
        let dropped = simulation.network().balance().dropped.0;
        assert_eq!(dropped > 0, queue_packets == 8, "{dropped} packets were lost");
    }
}

/// With hardly any slots and much loss, workers send again what the server has: it counts each once per fragment.
#[test]
fn the_server_counts_every_worker_once() {
    let (placement, fragments) = (vec![0, 1, 2, 4, 5, 8, 9, 10, 11], 1_000);
    for congestion in [AIMD, CongestionRule::Fixed(128)] {
        let switching = Switching { queue_packets: 8, mark_packets: 40, ..SWITCHING };
        let tcp = TcpConfig::default();
        let mut simulation = Simulation::new(&leaf_spine(), switching, tcp, 1).unwrap();
        simulation.check();
        simulation.aggregation().sharing = SlotSharing { slots: 1, ..SlotSharing::default() };
        let ranks = placement.len() as u64;
        // A second step, long after the first, keeps the job's counters alive.
        let mut spec = job(placement.clone(), vec![3], fragments * 1408, 2, slots(128, congestion));
        spec.buckets[0].ready_ps = 100_000 * MS;
        simulation.add_job(spec);
        let first = (1..).find_map(|ms| {
            simulation.run((100_000 + ms) * MS);
            simulation.take_steps().pop()
        });
        assert_eq!(first.map(|step| step.step), Some(0));
        let slots = &simulation.aggregation().slots;
        let [counters] = slots.server_counters().map(|(_, _, c)| *c).collect::<Vec<_>>()[..] else {
            panic!("one server")
        };
        assert_eq!(counters.contributions, ranks * fragments, "{counters:?}");
        assert_eq!(counters.results, fragments, "{counters:?}");
        assert!(counters.duplicates > 100, "{counters:?}");
    }
}

/// ATP's example: workers of two racks, the server in a third. Their racks add, so that one stream instead of three
/// goes up; without slots, three do and the server adds.
#[test]
fn slots_save_two_thirds_of_the_traffic_between_racks() {
    let carried = |slot_count| {
        let mut simulation =
            Simulation::new(&leaf_spine(), SWITCHING, TcpConfig::default(), 1).unwrap();
        simulation.check();
        simulation.aggregation().sharing =
            SlotSharing { slots: slot_count, ..SlotSharing::default() };
        let bytes = 2_000_000;
        let scheme = slots(64, CongestionRule::Fixed(64));
        simulation.add_job(job(vec![0, 1, 2, 4, 5, 6], vec![8], bytes, 1, scheme));
        assert!(simulation.run(100_000 * MS));
        assert_eq!(simulation.aggregation().violations(), []);
        let net = simulation.network();
        let up = |spine: &str| net.carried_bytes(link(net, "rack0", spine));
        up("spine0") + up("spine1")
    };
    let (enough, hardly_any) = (carried(1 << 16) as f64, carried(1) as f64);
    let saved = 1.0 - enough / hardly_any;
    assert!((saved - 2.0 / 3.0).abs() < 0.01, "{saved:.3} of the traffic is saved");
}

/// With a window beyond the bandwidth-delay product, an allreduce takes the time of its bytes on the slowest link. A
/// server on its own host receives and sends each byte once; on a worker's host, the worker's fragments double that.
/// (Results for several racks leave the server's rack one by one: no multicast.)
#[test]
fn a_single_job_runs_at_line_rate() {
    for (placement, server, times) in
        [((0..4).collect::<Vec<u32>>(), 0, 2), ((0..4).collect(), 9, 1), (vec![0, 1, 2], 3, 1)]
    {
        let fragments = 2_000u64;
        let mut simulation =
            Simulation::new(&leaf_spine(), SWITCHING, TcpConfig::default(), 1).unwrap();
        simulation.check();
        let scheme = slots(512, CongestionRule::Fixed(512));
        simulation.add_job(job(placement, vec![server], fragments * 1408, 1, scheme));
        assert!(simulation.run(100_000 * MS));
        let step = simulation.take_steps()[0];
        let wire_ps = (2 + 20 + 8 + 46 + 1408) * 800;
        let least_ps = times * fragments * wire_ps;
        // Eight links at most, in both directions, each with store and forward and 1 µs; with two streams on one link,
        // their last fragments do not coincide.
        let most_ps = least_ps + 8 * (wire_ps + US) + (times - 1) * least_ps / 100;
        assert!((least_ps..most_ps).contains(&step.end_ps), "{} of {least_ps}", step.end_ps);
    }
}

/// Two jobs need twice the available slots. First come, first served completes both with exact sums; so does a
/// partition; with preemption the job of higher priority is not slower than with first come.
#[test]
fn jobs_share_slots_by_every_policy() {
    let durations = |policy: Policy, guaranteed: [u32; 2], priorities: [u8; 2]| {
        let mut simulation =
            Simulation::new(&leaf_spine(), SWITCHING, TcpConfig::default(), 1).unwrap();
        simulation.check();
        simulation.aggregation().sharing =
            SlotSharing { slots: 128, policy, ..SlotSharing::default() };
        for (i, placement) in [vec![0, 1, 4, 5], vec![2, 3, 6, 7]].into_iter().enumerate() {
            let claim =
                Claim { guaranteed: guaranteed[i], priority: priorities[i], ..Claim::default() };
            let congestion = CongestionRule::Fixed(128);
            let config = SlotConfig {
                window_max: 128,
                fragment_bytes: 1408,
                congestion,
                claim,
                copies: false,
            };
            let scheme = Scheme::Slots { servers: 1, config };
            simulation.add_job(job(placement, vec![8 + i as u32], 2_000_000, 2, scheme));
        }
        assert!(simulation.run(100_000 * MS), "{policy:?}");
        assert_eq!((simulation.aggregation().violations(), simulation.refused()), (vec![], vec![]));
        assert_eq!(simulation.aggregation().slots.held(), 0);
        let jobs = simulation.take_jobs();
        let end = |job: u32| jobs.iter().find(|j| j.job == job).expect("it ended").end_ps;
        [end(0), end(1)]
    };
    let first_come = durations(Policy::FirstCome, [0, 0], [0, 0]);
    durations(Policy::Partition, [64, 64], [0, 0]);
    let preempt = durations(Policy::Preempt { patience_ns: 1_000_000 }, [64, 0], [1, 0]);
    assert!(preempt[0] <= first_come[0] * 101 / 100, "{preempt:?} against {first_come:?}");
}

/// A pool adds exactly with and without loss, in one rack or three; its window is its number of slots.
#[test]
fn pools_add_exactly() {
    for (placement, queue_packets) in
        [(vec![0, 1, 2, 3], u32::MAX), (vec![0, 1, 4, 8, 9], u32::MAX), (vec![0, 1, 4, 8, 9], 6)]
    {
        let elements = 60_000;
        let switching = Switching { queue_packets, ..SWITCHING };
        let ranks = placement.len() as u32;
        let (mut simulation, seen) = exact(&leaf_spine(), switching, ranks, elements);
        simulation.set_flows((0..4).map(|i| flow(0, 12 + i, i, 400_000)));
        simulation.add_job(job(placement, vec![], elements * 4, 1, pool(64)));
        assert!(simulation.run(1_000_000 * MS));
        assert_eq!(simulation.refused(), []);
        assert!(seen.lock().unwrap().iter().all(|&n| n == 1), "each element once per rank");
        let dropped = simulation.network().balance().dropped.0;
        assert_eq!(dropped > 0, queue_packets == 6, "{dropped} packets were lost");
    }
}

/// More workers than a rack or a pool supports: refused with the reason, and the job uses the ring.
#[test]
fn too_many_workers_use_the_ring() {
    let topology = single_switch(40);
    for (scheme, reason) in [(pool(64), "1 to 32 workers"), (slots(64, AIMD), "1 to 32 members")] {
        let mut simulation =
            Simulation::new(&topology, SWITCHING, TcpConfig::default(), 1).unwrap();
        simulation.add_job(job((0..40).collect(), vec![], 100_000, 1, scheme));
        assert!(simulation.run(100_000 * MS));
        assert!(simulation.refused()[0].1.contains(reason), "{:?}", simulation.refused());
        assert_eq!(simulation.take_steps().len(), 1);
    }
}

/// With 1 % loss on every link, slots recover in round trips; a pool waits for its time-outs of 10 ms. ATP's claim is a
/// throughput that is 34 % better.
#[test]
fn slots_tolerate_loss_better_than_pools() {
    let took = |scheme, share| {
        let mut simulation =
            Simulation::new(&leaf_spine(), SWITCHING, TcpConfig::default(), 1).unwrap();
        for link in 0..simulation.network().link_count() {
            simulation.add_fault(0, Fault::Loss { link, share, over: false });
        }
        simulation.add_job(job(vec![0, 1, 2, 4, 5, 6, 8, 9], vec![12], 4_000_000, 1, scheme));
        assert!(simulation.run(100_000 * MS));
        assert_eq!(simulation.aggregation().violations(), []);
        simulation.take_steps()[0].end_ps
    };
    for share in [0.0001, 0.001, 0.01] {
        let (atp, pool) = (took(slots(128, AIMD), share), took(pool(128), share));
        assert!(atp * 134 / 100 < pool, "loss {share}: {atp} and {pool} ps");
    }
}

/// Three jobs that start one after the other share slots for half of a window, and a job that is below its guarantee
/// takes them from the others. What these have in slots then goes to their server, one packet per worker, and much of it
/// is lost. All are done within a time-out of 10 ms: contributions are asked for that would wait in slots for others
/// that have passed by, or that are lost.
#[test]
fn jobs_that_lose_their_slots_recover_in_round_trips() {
    let rate = Rate(100_000_000_000);
    let fabric = netsum_topo::single_switch(15, rate, Addressing::default()).unwrap();
    let queues = Switching { mark_packets: 85, queue_packets: 250, ..SWITCHING };
    let mut simulation =
        Simulation::new(&fabric.topology(), queues, TcpConfig::default(), 1).unwrap();
    let policy = Policy::Preempt { patience_ns: 1_000_000 };
    simulation.aggregation().sharing = SlotSharing { slots: 128, policy, ..SlotSharing::default() };
    let congestion = CongestionRule::Aimd { packet_bytes: 336 };
    for i in 0..3 {
        let claim = Claim { guaranteed: 42, ..Claim::default() };
        let config =
            SlotConfig { window_max: 256, fragment_bytes: 248, congestion, claim, copies: false };
        let scheme = Scheme::Slots { servers: 1, config };
        let hosts = (4 * i..4 * i + 4).collect();
        let mut job = job(hosts, vec![12 + i], 4_000_000, 1, scheme);
        job.start_ps = u64::from(i) * 320 * US;
        simulation.add_job(job);
    }
    assert!(simulation.run(100_000 * MS));
    assert_eq!(simulation.refused(), []);
    assert!(simulation.network().balance().dropped.0 > 1_000, "it is about losses");
    let steps = simulation.take_steps();
    let took: Vec<u64> = steps.iter().map(|step| step.end_ps - step.start_ps).collect();
    assert!(took.len() == 3 && took.iter().all(|&ps| ps < 10 * MS), "{took:?} ps");
}
