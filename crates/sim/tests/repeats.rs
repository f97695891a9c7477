//! Runs that skip what repeats itself: every byte of the results equals that of a run that simulates everything.

mod common;

use std::cell::Cell;
use std::fmt::Write;

use common::{FABRICS, assert_same_files, files};
use netsum_proto::CongestionRule;
use netsum_sim::aggregation::TreeConfig;
use netsum_sim::job::{Bucket, HostAlgorithm, JobSpec, Scheme};
use netsum_sim::tcp::TcpConfig;
use netsum_sim::workload::FlowSpec;
use netsum_sim::{HostQueue, PathChoice, Pause, Simulation, Switching};
use netsum_topo::{Addressing, Rate, Topology, fat_tree, leaf_spine, single_switch};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::TestRunner;

fn assert_same(text: &str, faults: &str) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("faults.toml"), faults).unwrap();
    let run = |skip: bool| files(text, folder.path(), |config| config.skip_repeats = skip);
    let what = format!("a run with skips, beside one without\n{text}\n{faults}");
    assert_same_files(&run(true), &run(false), &what);
}

/// Schemes between hosts and by trees repeat themselves; with the others nothing may be skipped.
const SCHEMES: &[&str] = &[
    "ring",
    "ring",
    "ring",
    "ring-no-ecn",
    "halving-doubling",
    "halving-doubling",
    "parameter-server",
    "shares",
    "ideal",
    "panama",
    "panama-per-branch",
    "panama-coupled",
    "panama-0.88",
    "switchml*",
    "switchml",
    "atp",
    "atp-no-control",
];
const BUFFERS: &[&str] = &[
    "",
    "",
    "queue_packets = 12",
    "pause = { high_packets = 12, low_packets = 6 }",
    "pause = { high_packets = 40, low_packets = 10 }\nmemory = \"200kB\"",
    "shared = { bytes = \"60kB\", alpha = 1.0 }",
];
/// Hosts' queues and transports.
const HOSTS: &[&str] = &[
    "",
    "[host]\nqueue = \"fifo\"\n",
    "[host]\nsmall_queue = \"6kB\"\n",
    "[host]\nce_threshold = \"7us\"\n",
    "[tcp.swift]\ntarget = \"30us\"\nrange = \"50us\"\n",
];
const FAULTS: &[&str] = &[
    "",
    "",
    "kind = \"loss\"\nshare = 0.01\nat = \"1ms\"\nuntil = \"3ms\"",
    "kind = \"straggler\"\nhost = \"h2\"\nfactor = 2.5\nat = \"2ms\"\nuntil = \"5ms\"",
    "kind = \"drop\"\nlink = \"h1>rack0\"\npackets = [100, 5000]",
];

fn flows() -> impl Strategy<Value = String> {
    prop_oneof![
        Just(String::new()),
        Just(String::new()),
        (20_000u32..200_000).prop_map(|bytes| format!("kind = \"permutation\"\nbytes = {bytes}")),
        (1u32..4).prop_map(|load| {
            format!("kind = \"poisson\"\nload = 0.{load}\nsizes = \"web-search\"")
        }),
        (0u32..4_000).prop_map(|start| {
            format!("kind = \"one\"\nstart = \"{start}us\"\nsrc = 0\ndst = 5\nbytes = 400000")
        }),
    ]
}

/// Start and compute time in microseconds, bytes, workers, steps, buckets.
fn jobs() -> impl Strategy<Value = Vec<(u32, u32, u32, u32, u32, u32)>> {
    let bytes = prop_oneof![10_000u32..300_000, (1u32..80).prop_map(|n| n * 27_720)];
    let job = (prop_oneof![Just(0), 0u32..3_000], 0u32..300, bytes, 2u32..12, 5u32..60, 1u32..4);
    proptest::collection::vec(job, 1..3)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 50, ..ProptestConfig::default() })]

    #[test]
    fn skips_change_no_byte(
        (fabric, hosts) in select(FABRICS),
        latency in select(&["0ns", "150ns", "1us", "2500ns"][..]),
        scheme in select(SCHEMES),
        (buffers, marks, host) in (
            select(BUFFERS),
            4u32..80,
            select(HOSTS),
        ),
        paths in select(&["flow", "flow", "destination", "packet"][..]),
        fault in select(FAULTS),
        samples in select(&["", "", "[samples]\nevery = \"1370us\"\nlinks = [\"h0>rack0\"]\n"][..]),
        flows in proptest::collection::vec(flows(), 0..3),
        jobs in jobs(),
        (seed, stop, checked) in (1u32..1000, any::<bool>(), any::<bool>()),
    ) {
        let names = ["fat-tree", "dumbbell"].map(|kind| fabric.contains(kind));
        let rack = match names {
            [true, _] => "rack0.0",
            [_, true] => "left",
            _ => "rack0",
        };
        let mut text = format!(
            "duration = \"4ms\"\ndrain = \"300ms\"\nseed = {seed}\nstop_with_jobs = {stop}\nchecked = {checked}\n\
             scenario = \"faults.toml\"\n[fabric]\n{fabric}\nlatency = \"{latency}\"\n\
             [switch]\nmark_packets = {marks}\npaths = \"{paths}\"\n{buffers}\n{host}{samples}\
             [scheme]\nkind = \"{scheme}\"\n"
        );
        for flows in flows.iter().filter(|flows| !flows.is_empty()) {
            write!(text, "[[flows]]\n{flows}\n").unwrap();
        }
        for (start, compute, bytes, workers, steps, buckets) in jobs {
            let workers = workers.min(hosts);
            let overlap = if buckets > 1 { format!("buckets = {buckets}\n") } else { String::new() };
            write!(
                text,
                "[[jobs]]\nstart = \"{start}us\"\ncompute = \"{compute}us\"\nbytes = {bytes}\n\
                 workers = {workers}\nsteps = {steps}\n{overlap}"
            ).unwrap();
        }
        let text = text.replace("rack0\"]", &format!("{rack}\"]"));
        let faults = match fault.is_empty() {
            false => format!("name = \"one\"\nconverges_after = \"120us\"\n[[faults]]\n{fault}\n"),
            true => "name = \"none\"\nfaults = []\n".to_owned(),
        };
        let faults = faults.replace("rack0", rack);
        assert_same(&text, &faults);
    }
}

/// What a run leaves: steps, jobs, flows, and all counters.
fn results(simulation: &mut Simulation) -> String {
    let (steps, jobs) = (simulation.take_steps(), simulation.take_jobs());
    let (flows, unfinished) = (simulation.take_finished(), simulation.unfinished());
    let net = simulation.network();
    let links = 0..net.link_count();
    let links: Vec<_> = links.map(|link| (net.carried_bytes(link), net.counters(link))).collect();
    let totals = (net.now_ps(), net.hops(), net.balance());
    format!("{steps:?}\n{jobs:?}\n{flows:?}\n{unfinished:?}\n{links:?}\n{totals:?}")
}

const RATE: Rate = Rate(10_000_000_000);

const SWITCHING: Switching = Switching {
    mark_packets: 85,
    queue_packets: 250,
    shared: None,
    pause: None,
    host_queue: HostQueue::Fair { small_bytes: 131_072 },
    host_mark_ps: u64::MAX,
    paths: PathChoice::Flow,
    latency_ns: 1_000,
};

/// Workers wait for room in their hosts.
const SMALL: Switching =
    Switching { host_queue: HostQueue::Fair { small_bytes: 6_000 }, ..SWITCHING };

/// Simulates jobs beside flows; the share of packet-hops that were skipped. The results are those of a run without
/// skips.
fn share(topology: &Topology, switching: Switching, jobs: &[JobSpec], flows: &[FlowSpec]) -> f64 {
    let run = |skip: bool| {
        let mut simulation: Simulation =
            Simulation::new(topology, switching, TcpConfig::default(), 1).unwrap();
        if !skip {
            simulation.simulate_repeats();
        }
        let arrivals = flows.to_vec();
        simulation.set_flows(arrivals.into_iter());
        jobs.iter().for_each(|job| simulation.add_job(job.clone()));
        simulation.run(20_000_000_000_000);
        let skipped = simulation.skipped();
        (skipped, simulation.network().hops(), results(&mut simulation))
    };
    let ((none, _, without), (skipped, hops, with)) = (run(false), run(true));
    assert_eq!(none.skips, 0);
    let first = with.lines().zip(without.lines()).find(|(a, b)| a != b);
    assert!(first.is_none(), "{jobs:?} {flows:?}: {first:?}");
    skipped.hops as f64 / hops as f64
}

fn job(algorithm: HostAlgorithm, workers: u32, steps: u32, period_ps: u64, bytes: u64) -> JobSpec {
    JobSpec {
        start_ps: 0,
        placement: (0..workers).collect(),
        steps,
        period_ps,
        buckets: vec![
            Bucket { ready_ps: 200_000_000, bytes },
            Bucket { ready_ps: 230_000_000, bytes: bytes / 2 },
        ],
        scheme: Scheme::Hosts { algorithm, ecn: true, rings: 1 },
        roots: Vec::new(),
        servers: Vec::new(),
        work: None,
    }
}

/// A fabric on which the job's flows are not marked: those of a ring seldom meet, others do on all but one switch.
fn fabric_for(algorithm: HostAlgorithm) -> Topology {
    let fabric = match algorithm {
        HostAlgorithm::Ring => fat_tree(4, RATE, Addressing::default()),
        _ => single_switch(16, RATE, Addressing::default()),
    };
    fabric.unwrap().topology()
}

const PERIOD_PS: u64 = 10_000_000_000;

/// Workers that begin their steps together do the same in every step: nearly all of a training alone is skipped.
#[test]
fn training_alone_is_skipped() {
    for algorithm in [HostAlgorithm::Ring, HostAlgorithm::HalvingDoubling] {
        for bytes in [1_600_000, 1_234_568] {
            let jobs = [job(algorithm, 16, 60, PERIOD_PS, bytes)];
            let share = share(&fabric_for(algorithm), SWITCHING, &jobs, &[]);
            assert!(share > 0.9, "{algorithm:?}, {bytes} bytes: {share}");
        }
    }
}

/// Steps of one allreduce are skipped if all of them are alike.
#[test]
fn steps_of_a_ring_are_skipped() {
    for (hosts, bytes, least) in [(32, 1_536_000, 0.3), (64, 6_144_000, 0.5)] {
        let topology = single_switch(hosts, RATE, Addressing::default()).unwrap().topology();
        let mut one = job(HostAlgorithm::Ring, hosts, 1, 0, bytes);
        one.buckets.truncate(1);
        let share = share(&topology, SWITCHING, &[one], &[]);
        assert!(share > least, "{hosts} hosts: {share}");
    }
}

fn trees(workers: u32, steps: u32, period_ps: u64, bytes: u64, config: TreeConfig) -> JobSpec {
    let scheme = Scheme::Trees { trees: 4, config };
    JobSpec { scheme, ..job(HostAlgorithm::Ring, workers, steps, period_ps, bytes) }
}

/// Within an allreduce by trees everything repeats itself once windows do not grow any more, and training repeats its
/// steps.
#[test]
fn fragments_and_steps_of_trees_are_skipped() {
    let topology = fat_tree(4, RATE, Addressing::default()).unwrap().topology();
    for (congestion, fragment_bytes) in [
        (CongestionRule::Panama, 1408),
        (CongestionRule::PerBranch, 1000),
        (CongestionRule::Fixed(6), 1408),
        (CongestionRule::Coupled { trees: 4 }, 1408),
    ] {
        for (window_max, switching) in [(8, SWITCHING), (16, SMALL)] {
            let config =
                TreeConfig { window_max, fragment_bytes, congestion, ..TreeConfig::default() };
            let mut one = trees(16, 1, 0, 20_000_000, config);
            one.buckets.truncate(1);
            let skipped = share(&topology, switching, &[one], &[]);
            let what = format!("{congestion:?}, {fragment_bytes} bytes, windows of {window_max}");
            assert!(skipped > 0.8, "{what}: {skipped}");
        }
    }
    // The marks that a flow brings after a skip cut the windows by the share of marks that there would have been: that of
    // large windows has hardly decayed before the skip.
    let config = TreeConfig { window_max: 12, ..TreeConfig::default() };
    let scheme = Scheme::Trees { trees: 1, config };
    let mut one = JobSpec { scheme, ..trees(16, 1, 0, 20_000_000, config) };
    one.buckets.truncate(1);
    let late = |src| FlowSpec { start_ps: 12_000_000_000, src, dst: 9, bytes: 2_000_000 };
    let marking = Switching { mark_packets: 5, ..SWITCHING };
    let skipped = share(&topology, marking, &[one], &[late(3), late(12)]);
    assert!(skipped > 0.5, "{skipped}");
    let config = TreeConfig { window_max: 8, ..TreeConfig::default() };
    let steps = trees(16, 60, PERIOD_PS, 400_000, config);
    let skipped = share(&topology, SWITCHING, &[steps], &[]);
    assert!(skipped > 0.3, "{skipped}");
}

/// Steps by trees of which most is skipped repeat themselves as well: alone, between flows, and beside a ring's, whose
/// samples of round-trip times are in the log of the same steps. The fragments of a step are no multiple of those after
/// which a state is written down.
#[test]
fn steps_with_skips_are_skipped() {
    let topology = fat_tree(4, RATE, Addressing::default()).unwrap().topology();
    let config = TreeConfig { window_max: 5, ..TreeConfig::default() };
    let mut steps = trees(16, 24, PERIOD_PS, 4_000_000, config);
    steps.buckets.truncate(1);
    let mut ring = job(HostAlgorithm::Ring, 16, 24, PERIOD_PS, 64_000);
    ring.buckets.truncate(1);
    let flow = |bytes| FlowSpec { start_ps: 111_000_000_000, src: 3, dst: 9, bytes };
    for (jobs, flows, least) in [
        (vec![steps.clone()], vec![], 0.97),
        (vec![steps.clone()], vec![flow(100_000)], 0.95),
        (vec![steps.clone()], vec![flow(20_000_000)], 0.8),
        (vec![steps, ring], vec![], 0.9),
    ] {
        let skipped = share(&topology, SWITCHING, &jobs, &flows);
        assert!(skipped > least, "{jobs:?} {flows:?}: {skipped}");
    }
}

/// Between the steps that a flow meets all others are skipped.
#[test]
fn training_beside_a_few_flows_is_skipped_in_between() {
    let flow = |n: u64| FlowSpec {
        start_ps: 10 * n * PERIOD_PS + 5 * PERIOD_PS + 300_000_000,
        src: 3,
        dst: 9,
        bytes: 300_000,
    };
    let flows: Vec<FlowSpec> = (0..4).map(flow).collect();
    let algorithm = HostAlgorithm::Ring;
    let jobs = [job(algorithm, 16, 50, PERIOD_PS, 1_600_000)];
    let share = share(&fabric_for(algorithm), SWITCHING, &jobs, &flows);
    assert!(share > 0.5, "{share}");
}

/// Random jobs, some of which begin their steps together, beside random flows. Some of these runs skip something.
#[test]
fn skips_change_no_result() {
    let mut runner = TestRunner::new(ProptestConfig { cases: 50, ..ProptestConfig::default() });
    let (ring, halving) = (Some(HostAlgorithm::Ring), Some(HostAlgorithm::HalvingDoubling));
    let jobs = (
        // The others reduce by trees, with this window.
        select(vec![ring, ring, halving, None]),
        select(&[2u16, 7, 30][..]),
        2u32..9,
        3u32..25,
        select(&[0, 3_000_000_000, 7_000_000_001][..]),
        prop_oneof![10_000u64..200_000, (1u64..100).prop_map(|n| 4 * 840 * n)],
        (0u32..8, 0u64..5_000_000_000),
    );
    let flows = (0u64..60_000_000_000, 0u32..16, 1u32..16, 1_000u64..300_000);
    let network = (
        select(&[5u32, 20, 85][..]),
        select(&[12u32, 250][..]),
        any::<bool>(),
        select(&[HostQueue::Fifo, SWITCHING.host_queue, SMALL.host_queue][..]),
        select(&[u64::MAX, u64::MAX, 7_000_000][..]),
        select(&[PathChoice::Flow, PathChoice::Destination][..]),
        select(&[0u32, 300, 1_000][..]),
    );
    let cases = (
        any::<bool>(),
        network,
        proptest::collection::vec(jobs, 1..3),
        proptest::collection::vec(flows, 0..3),
    );
    let skipping = Cell::new(0);
    let outcome = runner.run(&cases, |(is_tree, network, jobs, mut flows)| {
        let (mark_packets, queue_packets, pauses, host_queue, host_mark_ps, paths, latency_ns) =
            network;
        let pause = pauses.then_some(Pause { high_packets: 40, low_packets: 10 });
        let network = Switching {
            mark_packets,
            queue_packets,
            pause,
            host_queue,
            host_mark_ps,
            paths,
            latency_ns,
            ..SWITCHING
        };
        let fabric = match is_tree {
            true => fat_tree(4, RATE, Addressing::default()),
            false => leaf_spine(4, 4, 3, RATE, RATE, Addressing::default()),
        };
        let jobs =
            jobs.into_iter().map(|(algorithm, window_max, workers, steps, period, bytes, at)| {
                let config = TreeConfig { window_max, ..TreeConfig::default() };
                let job = match algorithm {
                    Some(algorithm) => job(algorithm, workers, steps, period, bytes),
                    None => trees(workers, steps, period, bytes, config),
                };
                let placement = job.placement.iter().map(|host| host + at.0).collect();
                JobSpec { placement, start_ps: at.1, ..job }
            });
        flows.sort_unstable();
        let flows = flows.into_iter().map(|(start_ps, src, other, bytes)| FlowSpec {
            start_ps,
            src,
            dst: (src + other) % 16,
            bytes,
        });
        let (jobs, flows): (Vec<_>, Vec<_>) = (jobs.collect(), flows.collect());
        let share = share(&fabric.unwrap().topology(), network, &jobs, &flows);
        skipping.set(skipping.get() + u32::from(share > 0.0));
        Ok(())
    });
    outcome.unwrap();
    assert!(skipping.get() > 0, "no run skips anything");
}
