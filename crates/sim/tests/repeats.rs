//! Runs that skip what repeats itself: every byte of the results equals that of a run that simulates everything.

mod common;

use std::cell::Cell;
use std::fmt::Write;

use common::{FABRICS, US, assert_same_files, files, scheduled};
use netsum_proto::CongestionRule;
use netsum_sim::aggregation::TreeConfig;
use netsum_sim::job::{Bucket, HostAlgorithm, JobSpec, LocalLinks, Scheme};
use netsum_sim::schedule::parallel::{Parallel, Sharding};
use netsum_sim::schedule::{Builder, Collective, Names, Op, Schedule};
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
/// Schemes by which jobs with schedules can do all collectives in the network.
const ALL_COLLECTIVES: &[&str] =
    &["panama", "panama-per-branch", "panama-coupled", "atp", "switchml"];
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

/// Least time between steps in microseconds: none, or more than most steps take.
fn periods() -> impl Strategy<Value = u32> {
    select(&[0u32, 0, 700, 4_000][..])
}

/// Start and compute time in microseconds, bytes, workers, steps, buckets, period.
fn jobs() -> impl Strategy<Value = Vec<(u32, u32, u32, u32, u32, u32, u32)>> {
    let bytes = prop_oneof![10_000u32..300_000, (1u32..80).prop_map(|n| n * 27_720)];
    let start = prop_oneof![Just(0), 0u32..3_000];
    let job = (start, 0u32..300, bytes, 2u32..12, 5u32..60, 1u32..4, periods());
    proptest::collection::vec(job, 1..3)
}

/// Parallel training, with a rank or two per host, messages within hosts that take their time or none, steps, period.
fn parallels() -> impl Strategy<Value = Vec<(Parallel, u32, bool, u32, u32)>> {
    let job = (parallel(), 1u32..3, any::<bool>(), 5u32..40, periods());
    proptest::collection::vec(job, 0..2)
}

/// A training step of one to twelve ranks.
fn parallel() -> impl Strategy<Value = Parallel> {
    let ranks = (1u32..3, 1u32..3, select(&[1u32, 1, 2, 3][..]), any::<bool>());
    let layers = (1u32..3, 1u32..3, 0u32..3);
    let times = (0u64..40, 0u64..40, 0u64..20);
    let bytes = (0u64..60_000, prop_oneof![1_000u64..200_000, (1u64..12).prop_map(|n| n * 27_720)]);
    let sharding = select(&[Sharding::None, Sharding::Optimizer, Sharding::Full][..]);
    (ranks, layers, times, bytes, sharding).prop_map(|(ranks, layers, times, bytes, sharding)| {
        let (tensor, pipeline, data, experts) = ranks;
        Parallel {
            tensor,
            pipeline,
            data,
            expert: if experts { data } else { 1 },
            layers: layers.0 * pipeline,
            microbatches: layers.1,
            forward_ps: times.0 * US,
            backward_ps: times.1 * US,
            optimizer_ps: times.2 * US,
            activation_bytes: bytes.0,
            parameter_bytes: bytes.1,
            token_bytes: bytes.0 / 2,
            sharding,
            prefetch: layers.2,
        }
    })
}

/// The job in a configuration.
fn written(step: &Parallel) -> String {
    let sharding = match step.sharding {
        Sharding::None => "none",
        Sharding::Optimizer => "optimizer",
        Sharding::Full => "full",
    };
    let [forward, backward, optimizer] =
        [step.forward_ps, step.backward_ps, step.optimizer_ps].map(|ps| format!("{}us", ps / US));
    let Parallel { tensor, pipeline, data, expert, layers, microbatches, prefetch, .. } = step;
    format!(
        "parallel = {{ tensor = {tensor}, pipeline = {pipeline}, data = {data}, expert = {expert}, \
         layers = {layers}, microbatches = {microbatches}, forward = \"{forward}\", \
         backward = \"{backward}\", optimizer = \"{optimizer}\", activations = \"{}B\", \
         parameters = \"{}B\", tokens = \"{}B\", sharding = \"{sharding}\", prefetch = {prefetch} }}",
        step.activation_bytes, step.parameter_bytes, step.token_bytes
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 50, ..ProptestConfig::default() })]

    #[test]
    fn skips_change_no_byte(
        (fabric, hosts) in select(FABRICS),
        latency in select(&["0ns", "150ns", "1us", "2500ns"][..]),
        (scheme, collectives) in (select(SCHEMES), any::<bool>()),
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
        parallels in parallels(),
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
        if collectives && ALL_COLLECTIVES.contains(&scheme) {
            text.push_str("collectives = \"all\"\n");
        }
        for flows in flows.iter().filter(|flows| !flows.is_empty()) {
            write!(text, "[[flows]]\n{flows}\n").unwrap();
        }
        for (start, compute, bytes, workers, steps, buckets, period) in jobs {
            let workers = workers.min(hosts);
            let overlap = if buckets > 1 { format!("buckets = {buckets}\n") } else { String::new() };
            write!(
                text,
                "[[jobs]]\nstart = \"{start}us\"\ncompute = \"{compute}us\"\nbytes = {bytes}\n\
                 workers = {workers}\nsteps = {steps}\nperiod = \"{period}us\"\n{overlap}"
            ).unwrap();
        }
        for (step, per_host, is_timed, steps, period) in parallels {
            let latency = if is_timed { "2500ns" } else { "0ns" };
            let rate = if is_timed { "40Gbit/s" } else { "9000Gbit/s" };
            if step.ranks() as u32 <= hosts * per_host {
                write!(
                    text,
                    "[[jobs]]\n{}\nsteps = {steps}\nperiod = \"{period}us\"\nranks = {{ per_host = {per_host}, eager = \"20kB\", \
                     local_rate = \"{rate}\", local_latency = \"{latency}\" }}\n",
                    written(&step)
                ).unwrap();
            }
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

/// A schedule by rings.
fn replayed(schedule: Schedule, per_host: u32, steps: u32, period_ps: u64) -> JobSpec {
    let placement = (0..schedule.ranks.len() as u32).map(|rank| rank / per_host).collect();
    let scheme = Scheme::Hosts { algorithm: HostAlgorithm::Ring, ecn: true, rings: 1 };
    JobSpec { period_ps, ..scheduled(schedule, placement, steps, scheme) }
}

/// Sharded training of 16 ranks.
const SHARDED: Parallel = Parallel {
    tensor: 1,
    pipeline: 1,
    data: 16,
    expert: 1,
    layers: 4,
    microbatches: 1,
    forward_ps: 30 * US,
    backward_ps: 60 * US,
    optimizer_ps: 20 * US,
    activation_bytes: 20_000,
    parameter_bytes: 160_000,
    token_bytes: 9_000,
    sharding: Sharding::Full,
    prefetch: 1,
};

/// Ranks that begin their steps together do the same in every step, whatever the schedule is: nearly all of a training
/// alone is skipped. Nothing is marked.
#[test]
fn schedules_alone_are_skipped() {
    let topology = fat_tree(4, RATE, Addressing::default()).unwrap().topology();
    let network = Switching { mark_packets: 250, ..SWITCHING };
    let optimizer = Parallel { sharding: Sharding::Optimizer, parameter_bytes: 123_456, ..SHARDED };
    let staged = Parallel { pipeline: 4, data: 4, microbatches: 6, ..SHARDED };
    let tensor = Parallel { tensor: 2, expert: 2, layers: 4, ..staged.clone() };
    let parallel = |step: Parallel| step.schedule("test").unwrap();
    let kinds = [Kind::Message, Kind::Sum, Kind::Barrier, Kind::Exchange, Kind::Broadcast];
    let part = |(number, kind): (u32, Kind)| Part {
        kind,
        members: (number, 9),
        bytes: 70_001,
        compute_ps: 5 * US,
        waits: Waits::End,
    };
    let mixed = schedule_of(12, &(0..).zip(kinds).map(part).collect::<Vec<Part>>(), None);
    for (schedule, per_host) in [
        (parallel(SHARDED), 1),
        (parallel(optimizer), 1),
        (parallel(staged), 1),
        (parallel(tensor), 2),
        (mixed.clone(), 1),
        (mixed, 3),
    ] {
        let job = replayed(schedule, per_host, 60, PERIOD_PS);
        let share = share(&topology, network, std::slice::from_ref(&job), &[]);
        assert!(share > 0.85, "{job:?}: {share}");
    }
}

/// Trees; with `copies` they do all collectives.
fn by_trees(trees: u8, window_max: u16, copies: bool) -> Scheme {
    Scheme::Trees { trees, config: TreeConfig { window_max, copies, ..TreeConfig::default() } }
}

/// The same by trees: sharded training, and all that switches help with.
#[test]
fn schedules_by_trees_are_skipped() {
    let topology = fat_tree(4, RATE, Addressing::default()).unwrap().topology();
    let network = Switching { mark_packets: 250, ..SWITCHING };
    let part = |(number, kind): (u32, Kind)| Part {
        kind,
        members: (number % 3, 9),
        bytes: 70_001,
        compute_ps: 5 * US,
        waits: Waits::End,
    };
    let mixed = schedule_of(12, &(0..).zip(KINDS).map(part).collect::<Vec<Part>>(), None);
    let optimizer = Parallel { sharding: Sharding::Optimizer, parameter_bytes: 123_456, ..SHARDED };
    for schedule in [SHARDED.schedule("test").unwrap(), optimizer.schedule("test").unwrap(), mixed]
    {
        for (trees, window_max) in [(1, 5), (2, 64), (4, 7)] {
            let job = replayed(schedule.clone(), 1, 60, PERIOD_PS);
            let job = JobSpec { scheme: by_trees(trees, window_max, true), ..job };
            let share = share(&topology, network, std::slice::from_ref(&job), &[]);
            assert!(share > 0.6, "{job:?}: {share}");
        }
    }
}

/// Rings of one packet each that wait for each other fall into step by themselves.
#[test]
fn sharded_training_falls_into_step() {
    let topology = fat_tree(8, RATE, Addressing::default()).unwrap().topology();
    let step = Parallel { data: 128, parameter_bytes: 128 * 1448, layers: 2, ..SHARDED };
    let job = replayed(step.schedule("test").unwrap(), 1, 60, 0);
    let share = share(&topology, SWITCHING, &[job], &[]);
    assert!(share > 0.7, "{share}");
}

/// Steps of a ring are skipped while a job beside it computes.
#[test]
fn steps_of_a_ring_beside_a_schedule_are_skipped() {
    let topology = single_switch(40, RATE, Addressing::default()).unwrap().topology();
    let mut one = job(HostAlgorithm::Ring, 32, 1, 0, 1_536_000);
    one.buckets.truncate(1);
    let part = Part {
        kind: Kind::Sum,
        members: (0, 2),
        bytes: 9_000,
        compute_ps: 100_000 * US,
        waits: Waits::End,
    };
    let mut other = replayed(schedule_of(2, &[part], None), 1, 2, 0);
    other.placement = vec![38, 39];
    let share = share(&topology, SWITCHING, &[one, other], &[]);
    assert!(share > 0.3, "{share}");
}

/// What the members of a group do together.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// Each sends a message to the next one.
    Message,
    Sum,
    Gather,
    Scatter,
    Exchange,
    Broadcast,
    Reduce,
    ToRoot,
    FromRoot,
    Barrier,
}

const KINDS: [Kind; 10] = [
    Kind::Message,
    Kind::Sum,
    Kind::Gather,
    Kind::Scatter,
    Kind::Exchange,
    Kind::Broadcast,
    Kind::Reduce,
    Kind::ToRoot,
    Kind::FromRoot,
    Kind::Barrier,
];

/// What the next computing of a rank waits for: an end or a start of what it does with others, or neither.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Waits {
    End,
    Start,
    Nothing,
}

/// Some ranks compute, and do something together.
#[derive(Clone, Debug)]
struct Part {
    kind: Kind,
    /// First of them, and their number.
    members: (u32, u32),
    bytes: u64,
    compute_ps: u64,
    waits: Waits,
}

fn parts() -> impl Strategy<Value = Vec<Part>> {
    let waits = select(&[Waits::End, Waits::Start, Waits::Nothing][..]);
    // Some groups have several operations.
    let members = prop_oneof![(0u32..12, 1u32..12), (0u32..2, 3u32..5)];
    let part = (select(&KINDS[..]), members, 0u64..150_000, 0u64..50, waits);
    let part = part.prop_map(|(kind, members, bytes, compute_us, waits)| Part {
        kind,
        members,
        bytes,
        compute_ps: compute_us * US,
        waits,
    });
    proptest::collection::vec(part, 1..8)
}

/// A schedule in which every rank does its parts in this order. With `lead_ps` the first rank only computes for so long
/// and then tells the others to begin, so that they are not at the beginning of a step when it is.
fn schedule_of(ranks: u32, parts: &[Part], lead_ps: Option<u64>) -> Schedule {
    let mut builder = Builder::new(Names::Numbers("parts".to_owned()), ranks).unwrap();
    let leaders = u32::from(lead_ps.is_some());
    let others = ranks - leaders;
    let members = |part: &Part| -> Vec<u32> {
        let at = 0..part.members.1.min(others);
        at.map(|at| leaders + (part.members.0 + at) % others).collect()
    };
    const TOLD: u32 = 99;
    if let Some(ps) = lead_ps {
        let compute = builder.add(0, 0, Op::Compute { ps, unit: 0 }).unwrap();
        for to in 1..ranks {
            let send = builder.add(0, 0, Op::Send { to, bytes: 500, tag: TOLD }).unwrap();
            builder.wait(0, send, compute, false).unwrap();
        }
    }
    let mut groups: Vec<Vec<u32>> = Vec::new();
    for group in parts.iter().map(members) {
        if !groups.contains(&group) {
            builder.group(group.clone()).unwrap();
            groups.push(group);
        }
    }
    for rank in 0..ranks {
        let told = Op::Recv { from: 0, bytes: 500, tag: TOLD };
        let is_told = lead_ps.is_some() && rank > 0;
        let mut last = is_told.then(|| (builder.add(rank, 0, told).unwrap(), false));
        for (name, part) in (0..).zip(parts) {
            let members = members(part);
            let Some(at) = members.iter().position(|&member| member == rank) else { continue };
            let unit = (name % 2) as u8;
            let compute = Op::Compute { ps: part.compute_ps, unit };
            let compute = builder.add(rank, name, compute).unwrap();
            if let Some((last, at_start)) = last {
                builder.wait(rank, compute, last, at_start).unwrap();
            }
            let mut together = Vec::new();
            match collective(part.kind, members.len() as u32) {
                Some(kind) => {
                    let group = groups.iter().position(|group| *group == members).unwrap() as u32;
                    let op = Op::Collective { kind, group, bytes: part.bytes, number: 0 };
                    together.push(builder.add(rank, name, op).unwrap());
                }
                None if members.len() > 1 => {
                    let count = members.len();
                    let (to, from) = (members[(at + 1) % count], members[(at + count - 1) % count]);
                    let (bytes, tag) = (part.bytes, name as u32 % 3);
                    together.push(builder.add(rank, name, Op::Send { to, bytes, tag }).unwrap());
                    let bytes = 1 << 20;
                    together.push(builder.add(rank, name, Op::Recv { from, bytes, tag }).unwrap());
                }
                None => {}
            }
            for &node in &together {
                builder.wait(rank, node, compute, false).unwrap();
            }
            last = match (part.waits, together.last()) {
                (Waits::End, Some(&node)) => Some((node, false)),
                (Waits::Start, Some(&node)) => Some((node, true)),
                _ => Some((compute, false)),
            };
        }
    }
    builder.build().unwrap()
}

fn collective(kind: Kind, members: u32) -> Option<Collective> {
    let root = members / 2;
    Some(match kind {
        Kind::Message => return None,
        Kind::Sum => Collective::Allreduce,
        Kind::Gather => Collective::AllGather,
        Kind::Scatter => Collective::ReduceScatter,
        Kind::Exchange => Collective::AllToAll,
        Kind::Broadcast => Collective::Broadcast { root },
        Kind::Reduce => Collective::Reduce { root },
        Kind::ToRoot => Collective::Gather { root },
        Kind::FromRoot => Collective::Scatter { root },
        Kind::Barrier => Collective::Barrier,
    })
}

/// Random schedules, some of which begin their steps together, beside a ring's job and random flows. Many of these runs
/// skip something.
#[test]
fn skips_change_no_result_of_schedules() {
    let mut runner = TestRunner::new(ProptestConfig { cases: 300, ..ProptestConfig::default() });
    let of = |algorithm| Scheme::Hosts { algorithm, ecn: true, rings: 1 };
    let schemes = [
        of(HostAlgorithm::Ring),
        of(HostAlgorithm::Ring),
        of(HostAlgorithm::HalvingDoubling),
        of(HostAlgorithm::ParameterServer),
        of(HostAlgorithm::Shares),
        by_trees(2, 7, false),
        by_trees(1, 3, true),
        by_trees(2, 7, true),
        by_trees(3, 40, true),
    ];
    let job = (
        (parts(), 2u32..12),
        (1u32..4, 0u32..4, 0u64..5_000_000_000),
        (3u32..30, select(&[0, 5_000_000_000, 20_000_000_000, 20_000_000_001][..])),
        select(schemes.to_vec()),
        (
            select(&[0u64, 20_000, 1 << 40][..]),
            any::<bool>(),
            select(&[5_000_000_000u64, 1_000_000_000_000][..]),
            proptest::option::of(800u64..1_000),
        ),
    );
    let flows = (0u64..60_000_000_000, 0u32..16, 1u32..16, 1_000u64..300_000);
    let network = (
        select(&[5u32, 85, 250, 250][..]),
        select(&[12u32, 250, 250][..]),
        select(&[HostQueue::Fifo, SWITCHING.host_queue, SMALL.host_queue][..]),
        select(&[0u32, 300, 1_000][..]),
    );
    let cases = (
        (any::<bool>(), network),
        proptest::collection::vec(job, 1..3),
        any::<bool>(),
        proptest::collection::vec(flows, 0..3),
    );
    let skipping = Cell::new(0);
    let outcome = runner.run(&cases, |((is_tree, network), jobs, has_ring, mut flows)| {
        let (mark_packets, queue_packets, host_queue, latency_ns) = network;
        let network =
            Switching { mark_packets, queue_packets, host_queue, latency_ns, ..SWITCHING };
        let fabric = match is_tree {
            true => fat_tree(4, RATE, Addressing::default()),
            false => leaf_spine(4, 4, 3, RATE, RATE, Addressing::default()),
        };
        let jobs =
            jobs.into_iter().map(|((parts, ranks), place, (steps, period_ps), scheme, way)| {
                let (per_host, first, start_ps) = place;
                let (eager_bytes, is_late, rate_bps, lead) = way;
                let lead_ps = lead.map(|thousandths| thousandths * (period_ps / 1_000));
                let schedule = schedule_of(ranks, &parts, lead_ps.filter(|&ps| ps > 0));
                let mut job = replayed(schedule, per_host, steps, period_ps);
                job.placement.iter_mut().for_each(|host| *host += first);
                let work = job.work.as_mut().unwrap();
                work.eager_bytes = eager_bytes;
                let latency_ps = if is_late { work.local.latency_ps } else { 0 };
                work.local = LocalLinks { rate_bps, latency_ps };
                JobSpec { start_ps, scheme, ..job }
            });
        let ring = has_ring.then(|| self::job(HostAlgorithm::Ring, 9, 12, 5_000_000_000, 99_000));
        let jobs: Vec<JobSpec> = jobs.chain(ring).collect();
        flows.sort_unstable();
        let flows = flows.into_iter().map(|(start_ps, src, other, bytes)| FlowSpec {
            start_ps,
            src,
            dst: (src + other) % 16,
            bytes,
        });
        let flows: Vec<FlowSpec> = flows.collect();
        let share = share(&fabric.unwrap().topology(), network, &jobs, &flows);
        skipping.set(skipping.get() + u32::from(share > 0.0));
        Ok(())
    });
    outcome.unwrap();
    assert!(skipping.get() > 40, "only {} runs skip something", skipping.get());
}
