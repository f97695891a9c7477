//! Training jobs on the network: closed forms of trees and rings, bit-exact sums, competition with other traffic.

mod common;

use std::sync::{Arc, Mutex};

use common::*;
use netsum_proto::CongestionRule;
use netsum_proto::panama::Slab;
use netsum_sim::aggregation::{Counts, OVERHEAD_BYTES, TreeConfig, value};
use netsum_sim::job::{Bucket, HostAlgorithm, JobSpec, Scheme, StepRecord};
use netsum_sim::tcp::TcpConfig;
use netsum_sim::{Pause, Simulation, Switching};
use netsum_topo::Topology;

const SWITCHING: Switching = Switching { latency_ns: 1_000, ..PLAIN };

fn trees(trees: u8, config: TreeConfig) -> Scheme {
    Scheme::Trees { trees, config }
}

fn fixed(window: u16) -> TreeConfig {
    let congestion = CongestionRule::Fixed(window);
    TreeConfig { congestion, window_max: window, ..TreeConfig::default() }
}

fn job(placement: Vec<u32>, bytes: u64, steps: u32, scheme: Scheme) -> JobSpec {
    JobSpec {
        start_ps: 0,
        placement,
        steps,
        period_ps: 0,
        buckets: vec![Bucket { ready_ps: 0, bytes }],
        scheme,
        roots: vec![],
        servers: vec![],
        work: None,
    }
}

/// Steps of a single job.
fn alone(
    topology: &Topology,
    switching: Switching,
    tcp: TcpConfig,
    spec: JobSpec,
) -> Vec<StepRecord> {
    let mut simulation = Simulation::new(topology, switching, tcp, 1).unwrap();
    simulation.check();
    simulation.add_job(spec);
    assert!(simulation.run(100_000 * MS), "the job does not end");
    assert_eq!(simulation.aggregation().violations(), []);
    assert_eq!(simulation.refused(), []);
    assert_eq!(simulation.take_jobs().len(), 1);
    simulation.take_steps()
}

/// A9: with window W a tree's rate is min(C, W packets per round trip), exact to the picosecond.
#[test]
fn a_tree_takes_its_window_per_round_trip() {
    let wire_ps = u64::from(OVERHEAD_BYTES + 1408) * 800;
    let rtt_ps = 4 * (1_000_000 + wire_ps) / 2;
    for (window, fragments) in [(1, 7), (2, 9), (3, 10), (64, 500), (512, 2000)] {
        let spec = job((0..8).collect(), fragments * 1408, 1, trees(1, fixed(window)));
        let steps = alone(&single_switch(8), SWITCHING, TcpConfig::default(), spec);
        let (window, n) = (u64::from(window), fragments - 1);
        let expected = match window * wire_ps < rtt_ps {
            true => rtt_ps * (1 + n / window) + n % window * wire_ps,
            false => rtt_ps + n * wire_ps,
        };
        assert_eq!(steps[0].end_ps, expected, "window {window}, {fragments} fragments");
    }
}

/// A10: a ring takes 2(N−1) chunk times; without latency a tree is faster by 2(N−1)/N.
#[test]
fn a_ring_takes_two_n_minus_one_chunks() {
    // Acknowledgements of length 0: they share the links, and the closed form ignores them.
    let tcp =
        TcpConfig { ack_bytes: 0, window_initial: 1e4, window_max: 1e4, ..TcpConfig::default() };
    let segments = 200;
    for n in [2, 3, 8, 16] {
        let bytes = n * segments * 1448;
        let scheme = Scheme::Hosts { algorithm: HostAlgorithm::Ring, ecn: true, rings: 1 };
        let spec = job((0..n as u32).collect(), bytes, 1, scheme);
        let steps = alone(&single_switch(n as u32), SWITCHING, tcp, spec);
        let one_step = segments * 1502 * 800 + 2 * 1_000_000 + 1502 * 800;
        assert_eq!(steps[0].end_ps, 2 * (n - 1) * one_step, "{n} workers");
    }
}

/// Several rings keep a link busy while the chunks of each are on their way: their shares take the time in which the
/// link carries them all, and once the way of a packet.
#[test]
fn several_rings_hide_the_way_of_a_chunk() {
    let tcp =
        TcpConfig { ack_bytes: 0, window_initial: 1e4, window_max: 1e4, ..TcpConfig::default() };
    let segments = 200;
    for (n, rings) in [(2, 2), (3, 4), (8, 4), (8, 7)] {
        let bytes = u64::from(rings) * n * segments * 1448;
        let scheme = Scheme::Hosts { algorithm: HostAlgorithm::Ring, ecn: true, rings };
        let spec = job((0..n as u32).collect(), bytes, 2, scheme);
        let steps = alone(&single_switch(n as u32), SWITCHING, tcp, spec);
        let carried = 2 * (n - 1) * u64::from(rings) * segments * 1502 * 800;
        let way = 2 * 1_000_000 + 1502 * 800;
        assert_eq!(steps[0].end_ps, carried + way, "{rings} rings of {n} workers");
        assert_eq!(steps[1].end_ps, 2 * (carried + way), "{rings} rings of {n} workers");
    }
}

/// A ring whose connections ignore marks takes bandwidth from a flow that reacts; a ring that reacts shares it.
#[test]
fn a_ring_that_ignores_marks_takes_more() {
    let share_of_the_flow = |ecn| {
        let switching = Switching { mark_packets: 65, ..SWITCHING };
        let tcp = TcpConfig { window_max: 700.0, ..TcpConfig::default() };
        let mut simulation = Simulation::new(&dumbbell(2), switching, tcp, 1).unwrap();
        simulation.check();
        // Hosts 0 and 1 are on the left, 2 and 3 on the right: the job's stream and the flow share the middle link.
        let scheme = Scheme::Hosts { algorithm: HostAlgorithm::Ring, ecn, rings: 1 };
        simulation.add_job(job(vec![0, 2], 1_000_000_000, 1, scheme));
        simulation.set_flows(std::iter::once(flow(0, 1, 3, 1_000_000_000)));
        simulation.run(100 * MS);
        let (.., bytes) = simulation.unfinished()[0];
        bytes as f64 * 8.0 / (10e9 * 0.1)
    };
    let (shared, taken) = (share_of_the_flow(true), share_of_the_flow(false));
    assert!((0.3..0.6).contains(&shared), "{shared}");
    assert!(taken < 0.05, "{taken}");
}

/// Each aggregator sends one packet up per fragment: N arrive, one is forwarded, N are returned.
#[test]
fn an_aggregator_sends_one_packet_per_fragment() {
    let mut simulation = Simulation::new(&fat_tree(4), SWITCHING, TcpConfig::default(), 1).unwrap();
    simulation.check();
    let fragments = 1000;
    let config = TreeConfig::default();
    simulation.add_job(job((0..16).collect(), fragments * 1408, 1, trees(4, config)));
    assert!(simulation.run(1000 * MS));
    let wire = u64::from(OVERHEAD_BYTES) + 1408;
    let net = simulation.network();
    for host in 0..16 {
        let up = net.uplink(host);
        assert_eq!(net.carried_bytes(up), fragments * wire);
        assert_eq!(net.carried_bytes(up ^ 1), fragments * wire);
    }
    // Four racks' switches in pods of two: one partial per fragment leaves a rack, whatever its tree.
    for rack in ["rack0.0", "rack1.1", "rack3.0"] {
        let ups = ["agg0", "agg1"].map(|agg| {
            let pod = &rack[4..5];
            link(net, rack, &format!("agg{pod}.{}", &agg[3..]))
        });
        let carried: u64 = ups.iter().map(|&l| net.carried_bytes(l)).sum();
        assert_eq!(carried, fragments * wire, "{rack}");
        assert!(
            ups.iter().all(|&l| net.carried_bytes(l) > 0),
            "two trees leave {rack} on two ways"
        );
    }
}

/// The balanced order of a node's children: an independent version of `netsum_wire`'s.
fn balanced(values: &[f32]) -> f32 {
    match values {
        [one] => *one,
        all => {
            let (left, right) = all.split_at(all.len().next_power_of_two() / 2);
            balanced(left) + balanced(right)
        }
    }
}

/// Real numbers through two levels of switches, over lossy queues: every rank's result equals, bit for bit, sums added
/// per rack and then across racks.
#[test]
fn sums_are_bit_exact_under_loss() {
    for (queue_packets, window) in [(u32::MAX, 512), (6, 64)] {
        let switching = Switching { queue_packets, ..SWITCHING };
        let fabric = netsum_topo::leaf_spine(3, 5, 2, TEN_GBIT, TEN_GBIT, Default::default());
        let topology = fabric.unwrap().topology();
        let mut simulation = Simulation::<Slab>::with_payload(
            &topology,
            switching,
            TcpConfig::default(),
            1,
            1 << 22,
        )
        .unwrap();
        simulation.check();
        let placement: Vec<u32> = vec![0, 1, 2, 3, 4, 5, 6, 7, 10, 11];
        let racks = [vec![0, 1, 2, 3, 4], vec![5, 6, 7], vec![8, 9]];
        let elements = 40_000u64;
        let seen = Arc::new(Mutex::new(vec![0u64; 2 * placement.len()]));
        let counted = Arc::clone(&seen);
        simulation.aggregation().trees.inspect(Box::new(
            move |_, rank, id, start, payload: &Vec<u8>| {
                for (offset, bytes) in payload.as_chunks::<4>().0.iter().enumerate() {
                    let element = start + offset as u64;
                    let of_rack = |rack: &Vec<u32>| {
                        balanced(&rack.iter().map(|&r| value(r, id, element)).collect::<Vec<_>>())
                    };
                    let expected = balanced(&racks.iter().map(of_rack).collect::<Vec<_>>());
                    assert_eq!(f32::from_le_bytes(*bytes).to_bits(), expected.to_bits());
                }
                counted.lock().unwrap()[2 * rank as usize + id as usize] +=
                    payload.len() as u64 / 4;
            },
        ));
        simulation.set_flows((0..4).map(|i| flow(0, i, 5 + i, 400_000)));
        simulation.add_job(job(placement, elements * 4, 2, trees(2, fixed(window))));
        assert!(simulation.run(1_000_000 * MS));
        assert!(seen.lock().unwrap().iter().all(|&n| n == elements), "each element once per rank");
        let drops = simulation.network().balance().dropped.0;
        assert_eq!(drops > 0, queue_packets == 6, "{drops} packets were lost");
    }
}

/// Every result has the same number of contributions under loss, retransmission and partial release.
#[test]
fn every_contribution_counts_once_under_loss() {
    for release_permille in [1000, 880] {
        let switching = Switching { queue_packets: 6, ..SWITCHING };
        let config = TreeConfig { release_permille, ..fixed(64) };
        let mut simulation =
            Simulation::new(&fat_tree(4), switching, TcpConfig::default(), 1).unwrap();
        simulation.check();
        simulation.set_flows((0..12).map(|i| flow(0, i, (i * 7 + 5) % 16, 2_000_000)));
        simulation.add_job(job((0..16).collect(), 3_000_000, 2, trees(4, config)));
        assert!(simulation.run(1_000_000 * MS));
        assert_eq!(simulation.aggregation().violations(), []);
        assert_eq!(simulation.take_steps().len(), 2);
        let resent: u64 = simulation
            .aggregation()
            .trees
            .drops()
            .map(|(_, d)| d.get(netsum_proto::DropReason::Duplicate))
            .sum();
        assert!(resent > 0, "nothing of the job was lost");
    }
}

/// All host algorithms complete for jobs of any size; a step takes at least the time of its bytes.
#[test]
fn host_algorithms_end() {
    let algorithms = [
        HostAlgorithm::Ring,
        HostAlgorithm::HalvingDoubling,
        HostAlgorithm::ParameterServer,
        HostAlgorithm::Shares,
    ];
    for algorithm in algorithms {
        for n in [1u32, 2, 3, 5, 8, 13] {
            let spec = job(
                (0..n).collect(),
                1_000_000,
                3,
                Scheme::Hosts { algorithm, ecn: true, rings: 1 },
            );
            let switching = Switching { mark_packets: 85, queue_packets: 250, ..SWITCHING };
            let steps = alone(&fat_tree(4), switching, TcpConfig::default(), spec);
            assert_eq!(steps.len(), 3);
            let least_ps = 2 * u64::from(n - 1) * (1_000_000 / u64::from(n)) * 800;
            assert!(steps.iter().all(|s| s.end_ps - s.start_ps >= least_ps), "{algorithm:?} {n}");
        }
    }
}

/// PANAMA Fig. 10: one bottleneck, a DCTCP flow from time 0, aggregation from 250 ms; equal shares with congestion
/// control, starvation without.
#[test]
fn aggregation_shares_a_bottleneck_with_dctcp() {
    for (congestion, job_share) in [
        (CongestionRule::Panama, 0.45..0.55),
        (CongestionRule::PerBranch, 0.45..0.55),
        (CongestionRule::Fixed(600), 0.95..1.0),
    ] {
        let switching = Switching { mark_packets: 85, latency_ns: 5_000, ..PLAIN };
        let fabric = netsum_topo::leaf_spine(2, 4, 1, TEN_GBIT, TEN_GBIT, Default::default());
        let topology = fabric.unwrap().topology();
        let mut simulation =
            Simulation::new(&topology, switching, TcpConfig::default(), 1).unwrap();
        let config = TreeConfig { congestion, window_max: 600, ..TreeConfig::default() };
        simulation.set_flows(std::iter::once(flow(0, 0, 4, 1 << 40)));
        let mut spec = job(vec![1, 2, 3, 5, 6, 7], 1 << 40, 1, trees(1, config));
        spec.start_ps = 250 * MS;
        simulation.add_job(spec);
        simulation.run(300 * MS);
        let bottleneck = link(simulation.network(), "rack0", "spine0");
        let before =
            (simulation.network().carried_bytes(bottleneck), simulation.transport().received(0));
        simulation.run(500 * MS);
        let carried = simulation.network().carried_bytes(bottleneck) - before.0;
        let flow = u64::from(simulation.transport().received(0) - before.1) * 1502;
        let share = 1.0 - flow as f64 / carried as f64;
        println!("{congestion:?}: the job has {share:.3} of the bottleneck");
        assert!(job_share.contains(&share), "{congestion:?}: {share}");
    }
}

/// A switch waits for all children, which adds dependencies between buffers; jobs with crossing trees and windows far
/// beyond what PAUSE lets through still complete.
#[test]
fn paused_trees_make_progress() {
    let pause = Some(Pause { high_packets: 15, low_packets: 12 });
    let switching = Switching { pause, mark_packets: u32::MAX, ..SWITCHING };
    let tcp = TcpConfig { ecn: false, window_initial: 200.0, ..TcpConfig::default() };
    let mut simulation = Simulation::new(&fat_tree(4), switching, tcp, 1).unwrap();
    simulation.check();
    simulation.set_flows((8..16).map(|src| flow(0, src, 0, 3_000_000)));
    for shift in 0..4 {
        let placement = (0..8).map(|i| (i * 3 + shift * 5) % 16).collect();
        simulation.add_job(job(placement, 2_000_000, 3, trees(4, fixed(512))));
    }
    assert!(simulation.run(10_000 * MS), "the fabric stands still");
    assert_eq!(simulation.aggregation().violations(), []);
    assert_eq!(simulation.network().balance().dropped, (0, 0));
    let net = simulation.network();
    assert!((0..net.link_count()).any(|l| net.counters(l).pauses > 0), "nothing was paused");
}

/// With any memory size and any numbers of children, no more fragments are in flight than all levels can hold.
#[test]
fn trees_of_two_levels_complete_with_little_memory() {
    let leaves = netsum_topo::leaf_spine(4, 2, 2, TEN_GBIT, TEN_GBIT, Default::default());
    for topology in [dumbbell(4), leaves.unwrap().topology(), single_switch(8)] {
        for config in [TreeConfig::default(), fixed(512)] {
            for memory_bytes in [20_000, 30_000, 50_000, 70_000, 80_000, 100_000, 200_000] {
                let tcp = TcpConfig::default();
                let simulation =
                    Simulation::<Counts>::with_payload(&topology, SWITCHING, tcp, 1, memory_bytes);
                let mut simulation = simulation.unwrap();
                simulation.check();
                simulation.add_job(job((0..8).collect(), 20_000, 1, trees(1, config)));
                assert!(simulation.run(1_000 * MS), "{memory_bytes} bytes, {config:?}");
                assert_eq!(simulation.refused(), []);
                assert_eq!(simulation.network().balance().dropped.0, 0);
            }
        }
    }
}
