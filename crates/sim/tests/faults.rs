//! Scenario files: after any faults that end, every job and every flow completes, and each contribution is counted
//! once.

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
fn every_scheme_completes_in_every_scenario() {
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
            run::run(&config, built, out.path(), None, |_| ControlFlow::Continue(())).unwrap();
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

/// A switch fails while it holds sums: the workers move to other trees, and every element is the exact sum of all
/// contributions.
#[test]
fn a_transition_after_a_failure_loses_and_repeats_nothing() {
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
            work: None,
        });
        for (i, &node) in spines.iter().enumerate() {
            let at_ps = (death_us + 200 * i as u64) * US;
            simulation.add_fault(at_ps, Fault::Switch { node, alive: false });
            simulation.add_fault(at_ps + 100 * US, Fault::Converge);
        }
        assert!(simulation.run(60_000 * MS), "the job does not end");
        assert_eq!(simulation.refused(), []);
        // The inspector does not see elements that a peer hands over: at most a window per tree and failure.
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
fn an_invalid_scenario_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    for (fault, line, reason) in [
        ("kind = \"switch-down\"\nswitch = \"spine9\"\nat = \"1ms\"", 4, "no switch is named"),
        ("kind = \"link-down\"\nlink = \"rack0-rack1\"\nat = \"1ms\"", 4, "neighbours' names"),
        ("kind = \"loss\"\nshare = 1.5", 4, "not above 0 and at most 1"),
        ("kind = \"straggler\"\nhost = \"h0\"\nfactor = 0.5", 5, "at least as long"),
        ("kind = \"drop\"\nlink = \"rack0-spine0\"\npackets = [1]", 4, "name one direction"),
        (
            "kind = \"drop\"\nlink = \"rack0>spine0\"\npackets = [2, 1]",
            5,
            "numbers from 0 on that ascend",
        ),
        (
            "kind = \"drop\"\nlink = \"rack0>spine0\"\npackets = []",
            5,
            "numbers from 0 on that ascend",
        ),
        ("kind = \"loss\"\nshare = 0.5\nat = \"2ms\"\nuntil = \"1ms\"", 6, "ends before it begins"),
    ] {
        let text = format!("name = \"x\"\n[[faults]]\n{fault}\n");
        std::fs::write(folder.path().join("bad.toml"), text).unwrap();
        let error = parse(&configuration("bad", "panama"), "run.toml", folder.path());
        let error = error.map(|_| ()).unwrap_err().to_string();
        assert!(error.contains(&format!("bad.toml:{line}: ")) && error.contains(reason), "{error}");
    }
}

/// Completion time of a flow from rack to rack, in picoseconds; `None` if it exceeds 500 ms.
fn flow_under(faults: &str) -> Option<u64> {
    let folder = tempfile::tempdir().unwrap();
    let scenario = format!("name = \"x\"\nconverges_after = \"1us\"\n{faults}");
    std::fs::write(folder.path().join("s.toml"), scenario).unwrap();
    let text = "duration = \"1ms\"\nscenario = \"s.toml\"\n[fabric]\nkind = \"leaf-spine\"\nracks = 2\nhosts_per_rack = 1\n\
                spines = 1\n[[flows]]\nkind = \"one\"\nsrc = 0\ndst = 1\nbytes = 1000000\n";
    let (_, built) = parse(text, "run.toml", folder.path()).unwrap();
    let mut simulation =
        Simulation::new(&built.topology, built.switching, TcpConfig::default(), 1).unwrap();
    simulation.check();
    built.faults.iter().for_each(|&(at_ps, fault)| simulation.add_fault(at_ps, fault));
    simulation.set_flows(built.flows.clone().into_iter());
    simulation.run(500 * MS);
    simulation.take_finished().first().map(|record| record.end_ps)
}

/// Of two overlapping faults, the end of one leaves the other in effect.
#[test]
fn a_fault_that_ends_leaves_overlapping_faults_in_effect() {
    let fault = |kind: &str, place: &str, span: &str| {
        format!("[[faults]]\nkind = \"{kind}\"\n{place}\n{span}\n")
    };
    let host = "link = \"h0-rack0\"";
    let (good, short) = ("at = \"0ns\"", "at = \"100us\"\nuntil = \"200us\"");
    let all = |share: &str| format!("{host}\nshare = {share}");
    for faults in [
        fault("loss", &all("1.0"), good) + &fault("corruption", &all("0.01"), short),
        fault("link-down", host, good) + &fault("link-down", host, short),
        fault("link-down", host, good) + &fault("switch-down", "switch = \"rack0\"", short),
        fault("switch-down", "switch = \"spine0\"", good)
            + &fault("link-down", "link = \"rack0-spine0\"", short)
            + &fault("link-down", "link = \"rack1-spine0\"", short),
        fault("switch-down", "switch = \"spine0\"", good)
            + &fault("switch-down", "switch = \"spine0\"", short),
    ] {
        assert_eq!(flow_under(&faults), None, "the flow ended under\n{faults}");
    }
    let flap = fault("link-down", host, "at = \"100us\"\nuntil = \"300us\"");
    let once = flow_under(&flap);
    assert!(once.is_some(), "the flow does not end after the last fault");
    assert_eq!(flow_under(&(flap + &fault("link-down", host, short))), once);
}

/// Two faults lose 30 % each, independently: 49 % of the packets arrive. A fault that has ended loses none.
#[test]
fn losses_of_a_link_are_independent() {
    let mut simulation =
        Simulation::new(&single_switch(2), PLAIN, TcpConfig::default(), 1).unwrap();
    let uplink = link(simulation.network(), "h0", "rack0");
    let loss = |share, over| Fault::Loss { link: uplink, share, over };
    simulation.add_fault(0, loss(0.3, false));
    simulation.add_fault(0, loss(0.3, false));
    simulation.add_fault(0, loss(0.25, false));
    simulation.add_fault(0, loss(0.25, true));
    let config = JobSpec {
        start_ps: 0,
        placement: vec![0, 1],
        steps: 1,
        period_ps: 0,
        buckets: vec![Bucket { ready_ps: 0, bytes: 3_000_000 }],
        scheme: Scheme::Trees { trees: 1, config: Default::default() },
        roots: vec![],
        servers: vec![],
        work: None,
    };
    simulation.add_job(config);
    assert!(simulation.run(60_000 * MS));
    // No other link loses packets.
    let (lost, came) =
        (simulation.network().balance().dropped.1, simulation.network().carried_bytes(uplink));
    let share = came as f64 / (lost + came) as f64;
    assert!((share - 0.49).abs() < 0.02, "{share} of the bytes came");
}

/// Two faults that slow a host down multiply; when one ends, the other's factor remains.
#[test]
fn a_straggler_stays_slow_while_any_fault_slows_it() {
    let straggler = |factor, over| Fault::Straggler { host: 0, factor, over };
    let mut simulation =
        Simulation::new(&single_switch(2), PLAIN, TcpConfig::default(), 1).unwrap();
    simulation.add_fault(0, straggler(10.0, false));
    simulation.add_fault(500 * US, straggler(2.0, false));
    simulation.add_fault(1500 * US, straggler(2.0, true));
    simulation.add_fault(4500 * US, straggler(10.0, true));
    simulation.add_job(JobSpec {
        start_ps: 0,
        placement: vec![0, 1],
        steps: 6,
        period_ps: 0,
        buckets: vec![Bucket { ready_ps: 100 * US, bytes: 4 }],
        scheme: Scheme::Trees { trees: 1, config: Default::default() },
        roots: vec![],
        servers: vec![],
        work: None,
    });
    assert!(simulation.run(60_000 * MS));
    let steps = simulation.take_steps();
    let computing: Vec<u64> = steps.iter().map(|s| (s.end_ps - s.start_ps) / (100 * US)).collect();
    // The factor at a step's start holds for the whole step.
    assert_eq!(computing, [10, 20, 10, 10, 1, 1]);
}

/// A job of one step on all four hosts.
fn of_one_step(start_ps: u64) -> JobSpec {
    JobSpec {
        start_ps,
        placement: vec![0, 1, 2, 3],
        steps: 1,
        period_ps: 0,
        buckets: vec![Bucket { ready_ps: 0, bytes: 100_000 }],
        scheme: Scheme::Trees { trees: 2, config: Default::default() },
        roots: vec![],
        servers: vec![],
        work: None,
    }
}

/// Two racks of two hosts, idle.
fn leaves(spines: u32) -> Simulation {
    let fabric = netsum_topo::leaf_spine(2, 2, spines, TEN_GBIT, TEN_GBIT, Default::default());
    Simulation::new(&fabric.unwrap().topology(), PLAIN, TcpConfig::default(), 1).unwrap()
}

/// A job is planned after the faults of the instant in which it starts, in any order of announcement.
#[test]
fn a_switch_that_is_down_from_the_start_is_not_used() {
    for at_ps in [0, 30 * US] {
        for spine in ["spine0", "spine1"] {
            let mut simulation = leaves(2);
            simulation.add_job(of_one_step(at_ps));
            let node = simulation.network().topology().find(spine).unwrap().0;
            simulation.add_fault(at_ps, Fault::Switch { node, alive: false });
            // Without convergence, a job planned over the switch would stay there.
            assert!(simulation.run(200 * MS), "{spine} dies at {at_ps} ps: the job does not end");
            assert_eq!(simulation.refused(), []);
        }
    }
}

/// There is no convergence afterwards, so no attempt to plan another tree.
#[test]
fn a_job_that_starts_over_a_dead_link_is_reported_as_stalled() {
    let mut simulation = leaves(1);
    let uplink = link(simulation.network(), "rack0", "spine0");
    simulation.add_fault(0, Fault::Edge { edge: uplink / 2, alive: false });
    simulation.add_job(of_one_step(MS));
    simulation.run(200 * MS);
    let reason = "stands still: a link of its trees is down".to_owned();
    assert_eq!(simulation.refused(), [(0, reason)]);
}

/// Steps of a job of 20 after 200 ms, and its reported state, if a part of the fabric fails after 1 ms.
fn job_under(scheme: &str, fabric: &str, fault: &str, until: &str) -> (usize, Vec<(u32, String)>) {
    let folder = tempfile::tempdir().unwrap();
    let scenario = format!(
        "name = \"x\"\nconverges_after = \"50us\"\n[[faults]]\n{fault}\nat = \"1ms\"\n{until}\n"
    );
    std::fs::write(folder.path().join("s.toml"), scenario).unwrap();
    let text = format!(
        "duration = \"1ms\"\nscenario = \"s.toml\"\n[fabric]\n{fabric}\n[scheme]\nkind = \"{scheme}\"\n\
         [[jobs]]\ncompute = \"100us\"\nbytes = 100000\nworkers = 4\nsteps = 20\n"
    );
    let (_, built) = parse(&text, "run.toml", folder.path()).unwrap();
    let mut simulation: Simulation =
        Simulation::new(&built.topology, built.switching, TcpConfig::default(), 1).unwrap();
    simulation.check();
    built.faults.iter().for_each(|&(at_ps, fault)| simulation.add_fault(at_ps, fault));
    built.jobs.iter().for_each(|(_, job)| simulation.add_job(job.clone()));
    simulation.run(200 * MS);
    assert_eq!(simulation.aggregation().violations(), []);
    (simulation.take_steps().len(), simulation.refused())
}

const SINGLE: &str = "kind = \"single-switch\"\nhosts = 4";
const LEAVES: &str = "kind = \"leaf-spine\"\nracks = 2\nhosts_per_rack = 2\nspines = 2";
const ONE_SPINE: &str = "kind = \"leaf-spine\"\nracks = 2\nhosts_per_rack = 2\nspines = 1";
const RACK: &str = "kind = \"switch-down\"\nswitch = \"rack0\"";
const SPINE: &str = "kind = \"switch-down\"\nswitch = \"spine0\"";
const HOST: &str = "kind = \"link-down\"\nlink = \"h0-rack0\"";
const UPLINK: &str = "kind = \"link-down\"\nlink = \"rack0-spine0\"";

/// Jobs continue after any failure and return, even one shorter than convergence, and are then not reported.
#[test]
fn a_job_continues_when_its_part_of_the_fabric_returns() {
    for scheme in ["panama", "panama-coupled", "switchml*", "atp", "atp-no-control"] {
        for (fabric, fault) in
            [(SINGLE, RACK), (LEAVES, RACK), (LEAVES, SPINE), (LEAVES, HOST), (LEAVES, UPLINK)]
        {
            for until in ["2ms", "1010us"] {
                let outcome = job_under(scheme, fabric, fault, &format!("until = \"{until}\""));
                assert_eq!(outcome, (20, vec![]), "{scheme}: {fault} until {until}, {fabric}");
            }
        }
    }
    // A pool ends with its switch, a spine here, and survives all other faults.
    for fault in [RACK, HOST] {
        assert_eq!(
            job_under("switchml", LEAVES, fault, "until = \"2ms\""),
            (20, vec![]),
            "{fault}"
        );
    }
}

/// The state of a job reported at the end is its state then.
#[test]
fn a_stalled_job_is_reported() {
    for (scheme, reason) in [
        ("panama", "stands still: host \"h0\" has no live switch: rack0 is down"),
        ("atp", "stands still: the link of h0 is down"),
        ("switchml", "stands still: its pool has died"),
    ] {
        let (steps, said) = job_under(scheme, SINGLE, RACK, "");
        assert!(steps < 20 && said.len() == 1, "{scheme}: {steps} steps, {said:?}");
        assert!(said[0].1.starts_with(reason), "{scheme}: {said:?}");
    }
    // A host with a single link cannot be planned around: leases stay until its return.
    for scheme in ["panama", "panama-0.88", "switchml*", "atp", "switchml", "ring"] {
        for fabric in [SINGLE, LEAVES] {
            let (steps, said) = job_under(scheme, fabric, HOST, "");
            let reason = "stands still: the link of h0 is down".to_owned();
            assert!(steps < 20, "{scheme}");
            assert_eq!(said, [(0, reason)], "{scheme}, {fabric}");
        }
    }
    // The only path between two racks.
    for scheme in ["panama", "switchml"] {
        let (_, said) = job_under(scheme, ONE_SPINE, UPLINK, "");
        assert!(said.len() == 1 && said[0].1.starts_with("stands still: "), "{scheme}: {said:?}");
    }
    // A link that stays down is planned around.
    for scheme in ["panama", "switchml*", "atp"] {
        assert_eq!(job_under(scheme, LEAVES, UPLINK, ""), (20, vec![]), "{scheme}");
    }
}
