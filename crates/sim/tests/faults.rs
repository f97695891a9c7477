//! Scenario files: whatever goes wrong and ends, every job and every flow completes, each contribution counted once.

mod common;

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Arc, Mutex};

use common::*;
use netsum_proto::panama::Slab;
use netsum_sim::aggregation::value;
use netsum_sim::config::parse;
use netsum_sim::faults::Fault;
use netsum_sim::job::{Bucket, JobSpec, Scheme};
use netsum_sim::tcp::TcpConfig;
use netsum_sim::{Simulation, Switching, run};

fn configuration(scenario: &str, scheme: &str) -> String {
    format!(
        "duration = \"10ms\"\ndrain = \"20s\"\nscenario = \"{scenario}.toml\"\nchecked = true\n\
         [fabric]\nkind = \"leaf-spine\"\nracks = 3\nhosts_per_rack = 4\nspines = 3\n\
         [scheme]\nkind = \"{scheme}\"\nwindow = 128\ntrees = 3\n\
         [[flows]]\nkind = \"poisson\"\nload = 0.2\nsizes = \"web-search\"\n\
         [[jobs]]\ncompute = \"300us\"\nbytes = 1000000\nworkers = 12\nsteps = 6\n"
    )
}

#[test]
fn every_scenario_ends_well_under_every_scheme() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
    let plain = tempfile::tempdir().unwrap();
    std::fs::write(plain.path().join("nothing.toml"), "name = \"nothing\"\nfaults = []\n").unwrap();
    for scheme in [
        "panama",
        "panama-per-branch",
        "panama-coupled",
        "switchml*",
        "panama-0.88",
        "atp",
        "ring",
        "ring-no-ecn",
        "halving-doubling",
    ] {
        let duration = |scenario: &str, folder: &Path| {
            let text = configuration(scenario, scheme);
            let (config, built) = parse(&text, "run.toml", folder).unwrap();
            let out = tempfile::tempdir().unwrap();
            run::run(&config, built, out.path(), |_| ControlFlow::Continue(())).unwrap();
            let read = |file| std::fs::read_to_string(out.path().join(file)).unwrap();
            assert_eq!(read("steps.csv").lines().count(), 7, "{scheme}, {scenario}");
            assert!(!read("flows.csv").contains(",,,"), "{scheme}, {scenario}: a flow did not end");
            assert!(read("summary.json").contains("\"refused\": []"), "{scheme}, {scenario}");
            let last = read("steps.csv").lines().last().unwrap().to_owned();
            last.rsplit(',').next().unwrap().parse::<f64>().unwrap()
        };
        let undisturbed = duration("nothing", plain.path());
        for scenario in ["spine-dies", "uplink-flaps", "one-percent"] {
            let disturbed = duration(scenario, &folder);
            assert_ne!(disturbed, undisturbed, "{scheme}: {scenario} changed nothing");
        }
    }
}

/// A switch dies while sums are in it: the workers move on to other trees, and every element is still the exact sum of
/// all contributions, once.
#[test]
fn a_death_between_two_epochs_loses_and_repeats_nothing() {
    let fabric = netsum_topo::leaf_spine(3, 4, 3, TEN_GBIT, TEN_GBIT, Default::default());
    let topology = fabric.unwrap().topology();
    let spines: Vec<u32> = ["spine0", "spine1"].map(|s| topology.find(s).unwrap().0).into();
    for death_us in [150, 151, 170, 333] {
        let switching = Switching { latency_ns: 1_000, ..PLAIN };
        let mut simulation = Simulation::<Slab>::with_payload(
            &topology,
            switching,
            TcpConfig::default(),
            1,
            1 << 23,
        )
        .unwrap();
        simulation.check();
        let elements = 300_000u64;
        let seen = Arc::new(Mutex::new(vec![vec![0u8; elements as usize]; 12]));
        let shown = Arc::clone(&seen);
        simulation.aggregation().trees.inspect(Box::new(
            move |_, rank, id, start, payload: &Vec<u8>| {
                for (i, bytes) in payload.as_chunks::<4>().0.iter().enumerate() {
                    let element = start + i as u64;
                    let pair = |a: f32, b: f32| a + b;
                    let v = |r: u32| value(r, id, element);
                    let rack = |r: u32| pair(pair(v(r), v(r + 1)), pair(v(r + 2), v(r + 3)));
                    let expected = pair(pair(rack(0), rack(4)), rack(8));
                    assert_eq!(f32::from_le_bytes(*bytes).to_bits(), expected.to_bits());
                    shown.lock().unwrap()[rank as usize][element as usize] += 1;
                }
            },
        ));
        simulation.add_job(JobSpec {
            start_ps: 0,
            placement: (0..12).collect(),
            steps: 1,
            period_ps: 0,
            buckets: vec![Bucket { ready_ps: 0, bytes: elements * 4 }],
            scheme: Scheme::Trees { trees: 3, config: Default::default() },
            roots: vec![],
            servers: vec![],
        });
        for (i, &node) in spines.iter().enumerate() {
            let at_ps = (death_us + 200 * i as u64) * US;
            simulation.add_fault(at_ps, Fault::Switch { node, alive: false });
            simulation.add_fault(at_ps + 100 * US, Fault::Converge);
        }
        assert!(simulation.run(60_000 * MS), "the job does not end");
        assert_eq!(simulation.refused(), []);
        // An element that a peer hands over is shown to nobody; at most a window per tree and death is.
        let seen = seen.lock().unwrap();
        let counts = |n: u8| seen.iter().flatten().filter(|&&c| c == n).count();
        assert_eq!(counts(0) + counts(1), 12 * elements as usize, "an element came twice");
        assert!(
            counts(0) <= 2 * 3 * 512 * 352 * 12,
            "more was handed over than there was in flight"
        );
    }
}

#[test]
fn a_scenario_that_makes_no_sense_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    for (fault, line, reason) in [
        ("kind = \"switch-down\"\nswitch = \"spine9\"\nat = \"1ms\"", 4, "no switch is named"),
        ("kind = \"link-down\"\nlink = \"rack0-rack1\"\nat = \"1ms\"", 4, "neighbours' names"),
        ("kind = \"loss\"\nshare = 1.5", 4, "not above 0 and at most 1"),
        ("kind = \"straggler\"\nhost = \"h0\"\nfactor = 0.5", 5, "at least as long"),
        ("kind = \"loss\"\nshare = 0.5\nat = \"2ms\"\nuntil = \"1ms\"", 6, "ends before it begins"),
    ] {
        let text = format!("name = \"x\"\n[[faults]]\n{fault}\n");
        std::fs::write(folder.path().join("bad.toml"), text).unwrap();
        let error = parse(&configuration("bad", "panama"), "run.toml", folder.path());
        let error = error.map(|_| ()).unwrap_err().to_string();
        assert!(error.contains(&format!("bad.toml:{line}: ")) && error.contains(reason), "{error}");
    }
}
