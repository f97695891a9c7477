//! Fixtures of the tests.
#![allow(dead_code)] // Each test program uses a part.

pub mod bottleneck;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use netsum_sim::config::{Built, Config, parse};
use netsum_sim::job::{Bucket, JobSpec, LocalLinks, Scheme, Work};
use netsum_sim::network::Network;
use netsum_sim::schedule::Schedule;
use netsum_sim::simulation::FlowRecord;
use netsum_sim::tcp::TcpConfig;
use netsum_sim::workload::FlowSpec;
use netsum_sim::{HostQueue, PathChoice, Simulation, Switching, run};
use netsum_topo::{Addressing, Fabric, Rate, Topology};

pub const TEN_GBIT: Rate = Rate(10_000_000_000);
pub const US: u64 = 1_000_000;
pub const MS: u64 = 1_000_000_000;

/// No marks, no loss, 10 µs per link, hosts that send in order.
pub const PLAIN: Switching = Switching {
    mark_packets: u32::MAX,
    queue_packets: u32::MAX,
    shared: None,
    pause: None,
    host_queue: HostQueue::Fifo,
    host_mark_ps: u64::MAX,
    paths: PathChoice::Flow,
    latency_ns: 10_000,
};

pub fn dumbbell(pairs: u32) -> Topology {
    graph(netsum_topo::dumbbell(pairs, TEN_GBIT, TEN_GBIT, Addressing::default()))
}

pub fn fat_tree(k: u32) -> Topology {
    graph(netsum_topo::fat_tree(k, TEN_GBIT, Addressing::default()))
}

pub fn single_switch(hosts: u32) -> Topology {
    graph(netsum_topo::single_switch(hosts, TEN_GBIT, Addressing::default()))
}

fn graph(fabric: Result<Fabric, netsum_topo::TopoError>) -> Topology {
    fabric.expect("a sound fabric").topology()
}

/// Runs flows to completion with all checks; returns records by number.
pub fn run(
    topology: &Topology,
    switching: Switching,
    tcp: TcpConfig,
    flows: Vec<FlowSpec>,
) -> (Vec<FlowRecord>, Simulation) {
    let mut simulation = Simulation::new(topology, switching, tcp, 1).unwrap();
    simulation.check();
    let count = flows.len();
    simulation.set_flows(flows.into_iter());
    assert!(simulation.run(60_000 * MS), "flows do not end");
    let mut records = simulation.take_finished();
    records.sort_by_key(|r| r.number);
    assert_eq!(records.len(), count);
    (records, simulation)
}

pub fn flow(start_ps: u64, src: u32, dst: u32, bytes: u64) -> FlowSpec {
    FlowSpec { start_ps, src, dst, bytes }
}

/// A job whose steps are a schedule; ranks of one host send at 1 Tbit/s, and a message takes 3 µs in addition.
pub fn scheduled(schedule: Schedule, placement: Vec<u32>, steps: u32, scheme: Scheme) -> JobSpec {
    JobSpec {
        start_ps: 0,
        placement,
        steps,
        period_ps: 0,
        buckets: vec![Bucket { ready_ps: 0, bytes: 0 }],
        scheme,
        roots: vec![],
        servers: vec![],
        work: Some(Work {
            schedule: Arc::new(schedule),
            eager_bytes: 64 << 10,
            local: LocalLinks { rate_bps: 1_000_000_000_000, latency_ps: 3 * US },
        }),
    }
}

/// The link between two nodes, by their names.
pub fn link(net: &Network, from: &str, to: &str) -> u32 {
    let graph = net.topology();
    let [a, b] = [from, to].map(|name| graph.find(name).expect("a node"));
    let edge = graph.edge_between(a, b).expect("a link").0;
    (2 * edge..2 * edge + 2).find(|&l| net.far_end(l) == b.0).expect("a direction")
}

/// Nearest-rank percentile of sorted values.
pub fn percentile(sorted: &[f64], p: f64) -> f64 {
    sorted[((p / 100.0 * sorted.len() as f64).ceil() as usize).max(1) - 1]
}

/// Small fabrics of every kind in a configuration, and their number of hosts.
pub const FABRICS: &[(&str, u32)] = &[
    ("kind = \"fat-tree\"\nk = 4", 16),
    ("kind = \"leaf-spine\"\nracks = 3\nhosts_per_rack = 4\nspines = 3", 12),
    (
        "kind = \"leaf-spine\"\nracks = 4\nhosts_per_rack = 3\nspines = 2\nuplink_rate = \"25Gbit/s\"",
        12,
    ),
    ("kind = \"dumbbell\"\npairs = 4", 8),
    ("kind = \"single-switch\"\nhosts = 7", 7),
];

/// Files by name.
pub type Files = BTreeMap<String, Vec<u8>>;

/// All files of a run of a configuration, which `change` may change.
pub fn files(text: &str, folder: &Path, change: impl FnOnce(&mut Config)) -> Files {
    files_with(text, folder, |config, _| change(config))
}

/// The same; `change` may change what was built from the configuration, too.
pub fn files_with(
    text: &str,
    folder: &Path,
    change: impl FnOnce(&mut Config, &mut Built),
) -> Files {
    let (mut config, mut built) =
        parse(text, "run.toml", folder).unwrap_or_else(|e| panic!("{e}\n{text}"));
    change(&mut config, &mut built);
    let out = tempfile::tempdir().unwrap();
    run::run(&config, built, out.path(), None, |_| ControlFlow::Continue(())).unwrap();
    let files = std::fs::read_dir(out.path()).unwrap().map(|file| {
        let file = file.unwrap();
        (file.file_name().into_string().unwrap(), std::fs::read(file.path()).unwrap())
    });
    files.collect()
}

/// Fails with the first line that differs; `what` says of which run.
pub fn assert_same_files(ours: &Files, theirs: &Files, what: &str) {
    assert!(ours.keys().eq(theirs.keys()), "{what}: {:?}, {:?}", ours.keys(), theirs.keys());
    for (name, content) in ours {
        if *content != theirs[name] {
            let [ours, theirs] = [content, &theirs[name]].map(|c| String::from_utf8_lossy(c));
            let differs = |(a, b): &(&str, &str)| a != b;
            let first = ours.lines().zip(theirs.lines()).find(differs);
            panic!("{name} differs: {first:?}: {what}");
        }
    }
}
