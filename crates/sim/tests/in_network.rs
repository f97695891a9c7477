//! All collectives of schedules by trees, slots and pools: exact values at those who take them, whatever is lost; bytes
//! and times of sharded training.

mod common;

use std::sync::{Arc, Mutex};

use common::*;
use netsum_proto::CongestionRule;
use netsum_proto::atp::Claim;
use netsum_proto::panama::Slab;
use netsum_sim::aggregation::{PoolConfig, SlotConfig, TreeConfig, value};
use netsum_sim::config::parse;
use netsum_sim::faults::Fault;
use netsum_sim::job::{HostAlgorithm, Scheme};
use netsum_sim::schedule::parallel::{Parallel, Sharding};
use netsum_sim::schedule::{Builder, Collective, Names, Op, Schedule};
use netsum_sim::tcp::TcpConfig;
use netsum_sim::{HostQueue, Simulation, Switching};
use netsum_topo::Topology;

const SWITCHING: Switching = Switching { latency_ns: 1_000, ..PLAIN };
const KINDS: [Collective; 7] = [
    Collective::ReduceScatter,
    Collective::AllGather,
    Collective::Broadcast { root: 2 },
    Collective::Reduce { root: 1 },
    Collective::Allreduce,
    Collective::Barrier,
    // Between hosts, among the others.
    Collective::AllToAll,
];
const RANKS: u32 = 6;
/// No multiple of the ranks, or of a fragment.
const ELEMENTS: u64 = 20_003;
const STEPS: u32 = 2;

fn trees() -> Scheme {
    trees_with(TreeConfig::default().window_max)
}

fn trees_with(window_max: u16) -> Scheme {
    let congestion = CongestionRule::Panama;
    let config = TreeConfig { congestion, copies: true, window_max, ..TreeConfig::default() };
    Scheme::Trees { trees: 2, config }
}

fn slots() -> Scheme {
    let congestion = CongestionRule::Aimd { packet_bytes: 1496 };
    let (claim, copies) = (Claim::default(), true);
    let config = SlotConfig { window_max: 128, fragment_bytes: 1408, congestion, claim, copies };
    Scheme::Slots { servers: 2, config }
}

fn pool() -> Scheme {
    let timeout_ns = PoolConfig::TIMEOUT_NS;
    Scheme::Pool(PoolConfig { slots: 128, fragment_bytes: 1408, timeout_ns, copies: true })
}

fn leaf_spine() -> Topology {
    let fabric = netsum_topo::leaf_spine(3, 3, 2, TEN_GBIT, TEN_GBIT, Default::default());
    fabric.unwrap().topology()
}

/// One operation of each kind, all of which begin at once.
fn all_kinds() -> Schedule {
    let mut builder = Builder::new(Names::Numbers("test".to_owned()), RANKS).unwrap();
    let group = builder.group((0..RANKS).collect()).unwrap();
    for rank in 0..RANKS {
        for (name, kind) in (0..).zip(KINDS) {
            let op = Op::Collective { kind, group, bytes: 4 * ELEMENTS, number: 0 };
            builder.add(rank, name, op).unwrap();
        }
    }
    builder.build().unwrap()
}

fn first_of_shard(rank: u32) -> u64 {
    ELEMENTS * u64::from(rank) / u64::from(RANKS)
}

fn owner(element: u64) -> u32 {
    (0..RANKS).rfind(|&rank| first_of_shard(rank) <= element).expect("an element has an owner")
}

/// Whether a rank takes an element of an operation, and who contributes to it; `None`: all.
fn parties(kind: Collective, rank: u32, element: u64) -> (bool, Option<u32>) {
    match kind {
        Collective::ReduceScatter => (owner(element) == rank, None),
        Collective::AllGather => (true, Some(owner(element))),
        Collective::Broadcast { root } => (true, Some(root)),
        Collective::Reduce { root } => (rank == root, None),
        Collective::Allreduce => (true, None),
        _ => (false, None),
    }
}

/// Elements that each rank has got of each operation.
type Seen = Arc<Mutex<Vec<[u64; KINDS.len()]>>>;

/// A simulation whose results are checked: each is the sum of what its contributors have, by `add`, at a rank that takes
/// it. The switches of trees add what comes from below them in pairs.
fn checked(topology: &Topology) -> (Simulation<Slab>, Seen) {
    let tcp = TcpConfig::default();
    let mut simulation =
        Simulation::<Slab>::with_payload(topology, SWITCHING, tcp, 1, 1 << 30).unwrap();
    simulation.check();
    let seen: Seen = Arc::new(Mutex::new(vec![[0; KINDS.len()]; RANKS as usize]));
    let inspector = |add: fn(u64, u64) -> u32| {
        let seen = Arc::clone(&seen);
        Box::new(move |_: u32, rank: u32, id: u64, start: u64, payload: &Vec<u8>| {
            let number = id as usize % KINDS.len();
            for (element, bytes) in (start..).zip(payload.as_chunks::<4>().0) {
                let (takes, from) = parties(KINDS[number], rank, element);
                assert!(takes, "rank {rank} has element {element} of {:?}", KINDS[number]);
                let expected = match from {
                    Some(from) => value(from, id, element).to_bits(),
                    None => add(id, element),
                };
                assert_eq!(u32::from_le_bytes(*bytes), expected, "{:?}", KINDS[number]);
            }
            seen.lock().unwrap()[rank as usize][number] += payload.len() as u64 / 4;
        })
    };
    simulation.aggregation().trees.inspect(inspector(|id, element| {
        // Two ranks in each of three racks; then two of the racks, and the third.
        let rack = |rack: u32| value(2 * rack, id, element) + value(2 * rack + 1, id, element);
        ((rack(0) + rack(1)) + rack(2)).to_bits()
    }));
    let words = |id, element| {
        (0..RANKS).fold(0, |sum: u32, rank| sum.wrapping_add(value(rank, id, element).to_bits()))
    };
    simulation.aggregation().slots.inspect(inspector(words));
    simulation.aggregation().pools.inspect(inspector(words));
    (simulation, seen)
}

/// Two hosts of each rack.
fn placement() -> Vec<u32> {
    vec![0, 1, 3, 4, 6, 7]
}

#[test]
fn all_collectives_are_exact_with_and_without_loss() {
    let schemes = [trees(), slots(), pool()];
    for (scheme, loss) in [0.0, 0.01].into_iter().flat_map(|loss| schemes.map(|s| (s, loss))) {
        let (mut simulation, seen) = checked(&leaf_spine());
        for link in (0..simulation.network().link_count()).filter(|_| loss > 0.0) {
            simulation.add_fault(0, Fault::Loss { link, share: loss, over: false });
        }
        simulation.add_job(scheduled(all_kinds(), placement(), STEPS, scheme));
        assert!(simulation.run(100_000 * MS), "{:?}", simulation.refused());
        assert_eq!(simulation.refused(), []);
        assert_eq!(simulation.aggregation().violations(), []);
        assert_eq!(simulation.take_steps().len(), STEPS as usize);
        assert_eq!(simulation.network().balance().dropped.0 > 0, loss > 0.0);
        for (rank, seen) in (0..).zip(seen.lock().unwrap().iter()) {
            for (kind, &seen) in KINDS.into_iter().zip(seen) {
                let taken = (0..ELEMENTS).filter(|&e| parties(kind, rank, e).0).count() as u64;
                let own = (0..ELEMENTS).filter(|&e| parties(kind, rank, e).1 == Some(rank));
                // Who sends a fragment to all gets it back from some protocols.
                let least = taken - own.count() as u64;
                let all = u64::from(STEPS) * least..=u64::from(STEPS) * taken;
                assert!(all.contains(&seen), "{kind:?}: rank {rank} got {seen} of {taken}");
            }
        }
    }
}

/// The switch of a rack dies in the middle, and comes back.
#[test]
fn all_collectives_survive_the_death_of_a_switch() {
    for scheme in [trees(), slots()] {
        let topology = leaf_spine();
        for switch in ["spine0", "rack1"] {
            let node = topology.find(switch).unwrap().0;
            let (mut simulation, _) = checked(&topology);
            simulation.add_fault(60 * US, Fault::Switch { node, alive: false });
            simulation.add_fault(2 * MS, Fault::Converge);
            simulation.add_fault(3 * MS, Fault::Switch { node, alive: true });
            simulation.add_fault(4 * MS, Fault::Converge);
            simulation.add_job(scheduled(all_kinds(), placement(), STEPS, scheme));
            assert!(simulation.run(100_000 * MS), "{switch}: {:?}", simulation.refused());
            assert_eq!(simulation.aggregation().violations(), [], "{switch}");
            let steps = simulation.take_steps();
            assert_eq!(steps.len(), STEPS as usize, "{switch}");
            assert!(steps[0].end_ps > 2 * MS, "{switch} died too late");
        }
    }
}

const SHARDED_RANKS: u32 = 8;

/// Steps of fully sharded training whose layers compute nothing, on hosts of two racks.
fn sharded(
    (layers, layer_bytes): (u32, u64),
    steps: u32,
    host_queue: HostQueue,
    scheme: Scheme,
) -> Simulation {
    let training = Parallel {
        tensor: 1,
        pipeline: 1,
        data: SHARDED_RANKS,
        expert: 1,
        layers,
        microbatches: 1,
        forward_ps: 0,
        backward_ps: 0,
        optimizer_ps: 0,
        activation_bytes: 0,
        parameter_bytes: layer_bytes,
        token_bytes: 0,
        sharding: Sharding::Full,
        prefetch: 1,
    };
    let fabric = netsum_topo::leaf_spine(2, 4, 2, TEN_GBIT, TEN_GBIT, Default::default());
    let topology = fabric.unwrap().topology();
    let switching = Switching { mark_packets: 65, host_queue, ..SWITCHING };
    let mut simulation = Simulation::new(&topology, switching, TcpConfig::default(), 1).unwrap();
    simulation.check();
    let placement = (0..SHARDED_RANKS).collect();
    simulation.add_job(scheduled(training.schedule("test").unwrap(), placement, steps, scheme));
    simulation
}

/// How long a host's link takes for the others' shards in two gathers, its own shard of the sums, and then the last
/// layer's gradients the other way, at 10 Gbit/s with headers.
fn two_gathers_ps(layers: u32, layer_bytes: u64) -> f64 {
    let (all, ranks) = (u64::from(layers) * layer_bytes, u64::from(SHARDED_RANKS));
    let bytes = all * (2 * (ranks - 1) + 1) / ranks + layer_bytes;
    bytes as f64 * 1476.0 / 1408.0 * 800.0
}

/// M bytes of parameters are gathered in both passes, and M bytes of gradients scattered during the second. Switches
/// copy and add, so that a host's link carries 2 M without its own shares down, and M and its shares up; the backward
/// pass takes hardly longer than the forward pass. A ring takes 7/8 of M three times, one way and after the other.
#[test]
fn sharded_training_takes_the_time_of_two_gathers() {
    let (layers, layer_bytes) = (16, 4 << 20);
    let run = |scheme| {
        let mut simulation = sharded((layers, layer_bytes), 1, HostQueue::Fifo, scheme);
        assert!(simulation.run(100_000 * MS));
        assert_eq!((simulation.aggregation().violations(), simulation.refused()), (vec![], vec![]));
        let net = simulation.network();
        let (up, down): (Vec<u64>, Vec<u64>) = (0..SHARDED_RANKS)
            .map(|host| {
                (net.carried_bytes(net.uplink(host)), net.carried_bytes(net.uplink(host) ^ 1))
            })
            .unzip();
        let busiest = |of: Vec<u64>| of.into_iter().max().unwrap_or(0) as f64;
        (simulation.take_steps()[0].end_ps as f64, busiest(up), busiest(down))
    };
    let all = (u64::from(layers) * layer_bytes) as f64;
    let (switches_ps, up, down) = run(trees());
    let share = all / f64::from(SHARDED_RANKS);
    assert!(up < 1.08 * (all + 2.0 * share), "{} M up", up / all);
    assert!(down < 1.08 * (2.0 * all - share), "{} M down", down / all);
    let least_ps = two_gathers_ps(layers, layer_bytes);
    assert!(switches_ps < 1.2 * least_ps, "{} of what the links take", switches_ps / least_ps);
    let ring = Scheme::Hosts { algorithm: HostAlgorithm::Ring, ecn: true, rings: 1 };
    let (ring_ps, ..) = run(ring);
    assert!(ring_ps > 1.15 * switches_ps, "a ring takes {} of that", ring_ps / switches_ps);
}

/// A worker keeps little of its windows in its host's queue, whatever they are, so that a layer's parameters do not wait
/// there behind the last layer's gradients.
#[test]
fn sharded_training_takes_no_longer_with_large_windows() {
    let (layers, layer_bytes, small_bytes, steps) = (8, 8 << 20, 128 << 10, 4);
    // One more and the driver's ring; few packets are short.
    let most = (small_bytes / 1476 + 1 + 8) * 11 / 10;
    let [(small_ps, _), (large_ps, waiting)] = [64, 512].map(|window_max| {
        let host_queue = HostQueue::Fair { small_bytes };
        let scheme = trees_with(window_max);
        let mut simulation = sharded((layers, layer_bytes), steps, host_queue, scheme);
        let mut waiting = 0;
        for at_us in (0..).step_by(50) {
            if simulation.run(at_us * US) {
                break;
            }
            let net = simulation.network();
            let waits = (0..SHARDED_RANKS).map(|host| net.waiting(net.uplink(host)));
            waiting = waits.fold(waiting, u32::max);
        }
        assert_eq!((simulation.aggregation().violations(), simulation.refused()), (vec![], vec![]));
        (simulation.take_steps()[steps as usize - 1].end_ps as f64, waiting)
    });
    let least_ps = f64::from(steps) * two_gathers_ps(layers, layer_bytes);
    let [small, large] = [small_ps, large_ps].map(|ps| ps / least_ps);
    println!("{small:.3} and {large:.3} of what the links take; {waiting} packets wait, at most");
    assert!(small < 1.1 && large < 1.1, "{small} and {large} of what the links take");
    assert!(waiting <= most, "{waiting} packets wait in a host");
}

/// Ranks beyond 64 have no bit of their own: a group of 65 does its allreduces by trees and the rest between hosts, and
/// the run says so.
#[test]
fn larger_groups_do_allreduces_alone_in_the_network() {
    let text = r#"
        duration = "1s"
        [fabric]
        kind = "single-switch"
        hosts = 65
        rate = "10Gbit/s"
        latency = "1us"
        [scheme]
        collectives = "all"
        [[jobs]]
        steps = 1
        parallel = { data = 65, layers = 2, forward = "1us", parameters = "100kB", sharding = "full" }
    "#;
    let (_, built) =
        parse(text, "wide.toml", ".".as_ref()).unwrap_or_else(|error| panic!("{error}"));
    assert!(
        built.notes.iter().any(|note| note.contains("more than 64 ranks")),
        "{:?}",
        built.notes
    );
    let mut builder = Builder::new(Names::Numbers("test".to_owned()), 65).unwrap();
    let group = builder.group((0..65).collect()).unwrap();
    for rank in 0..65 {
        for (name, kind) in [(0, Collective::ReduceScatter), (1, Collective::Allreduce)] {
            let op = Op::Collective { kind, group, bytes: 1 << 20, number: 0 };
            builder.add(rank, name, op).unwrap();
        }
    }
    let mut simulation =
        Simulation::new(&single_switch(65), SWITCHING, TcpConfig::default(), 1).unwrap();
    simulation.check();
    simulation.add_job(scheduled(builder.build().unwrap(), (0..65).collect(), 1, trees()));
    assert!(simulation.run(100_000 * MS));
    assert_eq!((simulation.aggregation().violations(), simulation.refused()), (vec![], vec![]));
    // The allreduce's fragments, and 64 of 65 shares of the reduce-scatter, with headers and acknowledgements.
    let net = simulation.network();
    let sent = net.carried_bytes(net.uplink(0)) as f64 / f64::from(1 << 20);
    assert!((1.98..2.2).contains(&sent), "{sent} of the buffer");
}
