//! The straggler meter on a simulated fabric: a rank that is 3 % slow among 16 is found within 20 steps, and told from
//! a slow link and a slow rack.

mod common;

use common::*;
use netsum_proto::Time;
use netsum_proto::lateness::{NodeReading, Slow, Straggler, stragglers};
use netsum_sim::aggregation::TreeConfig;
use netsum_sim::faults::Fault;
use netsum_sim::job::{Bucket, JobSpec, Scheme};
use netsum_sim::tcp::TcpConfig;
use netsum_sim::{Simulation, Switching};
use netsum_topo::{Addressing, Child, Fabric, Rate, leaf_spine};

const SWITCHING: Switching = Switching { latency_ns: 1_000, ..PLAIN };
const STEPS: u32 = 20;
/// Computing takes 4 ms of a step, the gradients 1.6 ms on free links.
const COMPUTE_PS: u64 = 4 * MS;
const BYTES: u64 = 2_000_000;

fn fabric() -> Fabric {
    leaf_spine(4, 4, 1, TEN_GBIT, TEN_GBIT, Addressing::default()).unwrap()
}

/// What the meter finds in `STEPS` steps of 16 ranks, rank r on host r: (what, child, at).
fn found(fabric: &Fabric, slow: &[(u32, f64)]) -> Vec<(Slow, String, String)> {
    let topology = fabric.topology();
    let mut simulation = Simulation::new(&topology, SWITCHING, TcpConfig::default(), 1).unwrap();
    for &(host, factor) in slow {
        simulation.add_fault(0, Fault::Straggler { host, factor, over: false });
    }
    simulation.add_job(JobSpec {
        start_ps: 0,
        placement: (0..16).collect(),
        // One more, which does not end: the leases of an ended job are gone.
        steps: STEPS + 1,
        period_ps: 0,
        buckets: vec![Bucket { ready_ps: COMPUTE_PS, bytes: BYTES }],
        scheme: Scheme::Trees { trees: 1, config: TreeConfig::default() },
        roots: vec![],
        servers: vec![],
        work: None,
    });
    let mut now_ps = 0;
    let mut steps = 0;
    while steps < STEPS as usize {
        now_ps += MS;
        simulation.run(now_ps);
        steps += simulation.take_steps().len();
    }
    let elapsed_ns = now_ps / 1000;
    let name = |child: Child| match child {
        Child::Rank(rank) => format!("rank {rank}"),
        Child::Switch(node) => topology.name(node).to_owned(),
    };
    let lateness = simulation.aggregation().trees.lateness(Time(elapsed_ns));
    assert_eq!(lateness.len(), 16 + 4);
    let readings: Vec<_> = lateness
        .into_iter()
        .map(|(node, _, child, lateness)| {
            (name(Child::Switch(netsum_topo::NodeId(node))), name(child), lateness)
        })
        .collect();
    let mut nodes: Vec<NodeReading<'_>> = Vec::new();
    for (node, child, lateness) in &readings {
        match nodes.iter_mut().find(|known| known.name == node) {
            Some(known) => known.children.push((child, *lateness)),
            None => nodes.push(NodeReading { name: node, children: vec![(child, *lateness)] }),
        }
    }
    let found = stragglers(&nodes, elapsed_ns);
    let text = |s: &Straggler<'_>| (s.slow, s.child.to_owned(), s.at.to_owned());
    found.iter().map(text).collect()
}

fn one(slow: Slow, child: &str, at: &str) -> Vec<(Slow, String, String)> {
    vec![(slow, child.to_owned(), at.to_owned())]
}

#[test]
fn a_rank_that_is_three_percent_slow_is_found_within_20_steps() {
    let plain = fabric();
    assert_eq!(found(&plain, &[]), []);
    let leaf = |host: usize| {
        let name = &plain.hosts[host].name;
        let link = plain.links.iter().find(|link| link.ends.contains(name)).unwrap();
        link.ends.iter().find(|end| *end != name).unwrap().clone()
    };
    for rank in [0, 6, 15] {
        let expected = one(Slow::Rank, &format!("rank {rank}"), &leaf(rank as usize));
        assert_eq!(found(&plain, &[(rank, 1.03)]), expected);
    }
}

#[test]
fn a_slow_link_and_a_slow_rack_are_told_from_a_slow_rank() {
    let plain = fabric();
    let of = |ends: [&str; 2]| {
        plain
            .links
            .iter()
            .position(|link| ends.iter().all(|end| link.ends.contains(&(*end).to_owned())))
    };
    let spine = "spine0";
    let leaf = {
        let name = &plain.hosts[5].name;
        let link = plain.links.iter().find(|link| link.ends.contains(name)).unwrap();
        link.ends.iter().find(|end| *end != name).unwrap().clone()
    };
    let slower = |link: Option<usize>| {
        let mut fabric = plain.clone();
        let rate = &mut fabric.links[link.unwrap()].rate;
        *rate = Rate(rate.0 * 9 / 10);
        fabric
    };
    let host = slower(of([&plain.hosts[5].name, &leaf]));
    assert_eq!(found(&host, &[]), one(Slow::Link, "rank 5", &leaf));
    let uplink = slower(of([&leaf, spine]));
    assert_eq!(found(&uplink, &[]), one(Slow::Link, &leaf, spine));
    let rack: Vec<(u32, f64)> = (4..8).map(|host| (host, 1.03)).collect();
    assert_eq!(found(&plain, &rack), one(Slow::Rack, &leaf, spine));
}
