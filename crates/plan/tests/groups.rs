//! Several process groups at the same time: plans are right for each group and for the links that they share, and no
//! plan does more rounds, as lengths prove to a verifier that knows nothing of the search.

mod common;

use netsum_plan::GroupPlan;
use netsum_plan::pack::{Budget, Group, pack, pack_groups};
use netsum_plan::program::verify_groups;
use netsum_topo::Ratio;
use netsum_topo::links::{Collective, LinkGraph, built};

use common::{Numbers, irregular, random};

fn planned(graph: &LinkGraph, groups: &[Group]) -> GroupPlan {
    let budget = Budget::standard(graph.gpus().len());
    pack_groups(graph, groups, &budget).unwrap_or_else(|error| panic!("{error}"))
}

fn group(name: &str, gpus: &[usize], collective: Collective, bytes: u64) -> Group {
    Group { name: name.to_owned(), gpus: gpus.to_vec(), collective, bytes }
}

/// The plan reaches its bound; exactly, or but for weights that have no common denominator and are rounded.
fn proven(graph: &LinkGraph, plan: &GroupPlan, what: &str) -> bool {
    let bound = verify_groups(graph, plan).unwrap_or_else(|fault| panic!("{what}: {fault}"));
    let bound = bound.expect("there are lengths");
    let part = plan.rounds_per_s.to_f64() / bound.to_f64();
    assert!(part > 1.0 - 1e-9 && part <= 1.0, "{what}: {part}");
    plan.rounds_per_s == bound
}

/// Rounds per second of one group alone.
fn alone(graph: &LinkGraph, gpus: &[usize], collective: Collective, bytes: u64) -> f64 {
    let names: Vec<String> = gpus.iter().map(|&v| graph.vertices()[v].name.clone()).collect();
    pack(&graph.select(&names).unwrap(), collective).unwrap().rate_bps() / 8.0 / bytes as f64
}

#[test]
fn groups_that_share_nothing_are_as_fast_as_alone() {
    let graph = built("a100").unwrap();
    let (low, high) = ([0, 1, 2, 3], [4, 5, 6, 7]);
    let groups = [
        group("low", &low, Collective::Allreduce, 1 << 30),
        group("high", &high, Collective::Allgather, 1 << 30),
    ];
    let plan = planned(&graph, &groups);
    let bound = verify_groups(&graph, &plan).unwrap();
    assert_eq!(bound, Some(plan.rounds_per_s));
    let slower = alone(&graph, &low, Collective::Allreduce, 1 << 30);
    assert!((plan.rounds_per_s.to_f64() / slower - 1.0).abs() < 1e-12);
}

#[test]
fn equal_groups_share_links_equally() {
    for name in ["dgx1v", "torus:3x3", "a100", "h100"] {
        let graph = built(name).unwrap();
        for collective in
            [Collective::Allreduce, Collective::Allgather, Collective::Broadcast { root: 1 }]
        {
            let one = alone(&graph, &graph.gpus(), collective, 1 << 20);
            let twin = |name: &str| group(name, &graph.gpus(), collective, 1 << 20);
            let plan = planned(&graph, &[twin("a"), twin("b")]);
            proven(&graph, &plan, &format!("{name} {collective:?}"));
            let part = plan.rounds_per_s.to_f64() / one;
            // Allreduces up and down different trees can be faster than those of `pack`, never slower.
            assert!(part > 0.5 - 1e-9, "{name} {collective:?}: {part}");
            assert!(
                part < 0.5 + 1e-9 || collective == Collective::Allreduce,
                "{name} {collective:?}: {part}"
            );
        }
    }
}

/// Data, tensor and pipeline parallelism on one box, with buffers of other sizes each.
#[test]
fn groups_that_overlap_are_proven_optimal() {
    let graph = built("dgx1v").unwrap();
    let mut groups = Vec::new();
    for half in [[0, 1, 2, 3], [4, 5, 6, 7]] {
        groups.push(group("tensor", &half, Collective::Allreduce, 64 << 20));
    }
    for pair in [[0, 4], [1, 5], [2, 6], [3, 7]] {
        groups.push(group("data", &pair, Collective::Allgather, 16 << 20));
        groups.push(group("gradients", &pair, Collective::ReduceScatter, 16 << 20));
    }
    let plan = planned(&graph, &groups);
    proven(&graph, &plan, "dgx1v");
    // One after the other they take longer.
    let apart: f64 = [&groups[0], &groups[2], &groups[3]]
        .map(|group| 1.0 / alone(&graph, &group.gpus, group.collective, group.bytes))
        .iter()
        .sum();
    assert!(plan.rounds_per_s.to_f64() * apart > 1.0);
}

#[test]
fn random_groups_on_random_fabrics_reach_the_bound_of_their_lengths() {
    let (mut plans, mut exact) = (0, 0);
    for seed in 0..120 {
        let mut numbers = Numbers::new(seed);
        let graph =
            if seed % 2 == 0 { irregular(seed) } else { random(seed, 4 + numbers.below(4), 6) };
        let gpus = graph.gpus();
        let mut groups = Vec::new();
        for number in 0..1 + numbers.below(3) {
            let own: Vec<usize> = gpus.iter().copied().filter(|_| numbers.below(3) > 0).collect();
            let collective = match numbers.below(5) {
                0 => Collective::Broadcast { root: 0 },
                1 => Collective::Reduce { root: 1 },
                2 => Collective::Allgather,
                3 => Collective::ReduceScatter,
                _ => Collective::Allreduce,
            };
            let bytes = 1000 * (1 + numbers.below(12)) as u64;
            groups.push(group(&number.to_string(), &own, collective, bytes));
        }
        let budget = Budget::standard(gpus.len());
        // Some groups have too few GPUs, or reach each other through others only.
        let Ok(plan) = pack_groups(&graph, &groups, &budget) else { continue };
        // Too many switches that branch leave no proof.
        if graph.vertices().len() - gpus.len() > 8 {
            continue;
        }
        plans += 1;
        exact += usize::from(proven(&graph, &plan, &format!("{seed}: {groups:?}")));
    }
    assert!(plans >= 30, "{plans} plans");
    assert!(exact * 2 >= plans, "{exact} of {plans} are exact");
}

/// No plan passes that promises more, or in which one group has less than its part.
#[test]
fn damaged_plans_are_refused() {
    let graph = built("torus:3x3").unwrap();
    let groups = [
        group("rows", &[0, 1, 2], Collective::Allreduce, 3000),
        group("all", &graph.gpus(), Collective::Allgather, 7000),
    ];
    let plan = planned(&graph, &groups);
    assert!(verify_groups(&graph, &plan).is_ok());
    let more = Ratio::new(1_000_001, 1_000_000);
    let mut damaged = plan.clone();
    damaged.rounds_per_s = plan.rounds_per_s * more;
    assert!(verify_groups(&graph, &damaged).is_err());
    // All groups alike: links are too full.
    damaged.groups.iter_mut().for_each(|group| group.plan.rate_bps = group.plan.rate_bps * more);
    damaged.lengths.clear();
    let fault = verify_groups(&graph, &damaged).unwrap_err().to_string();
    assert!(fault.contains("would carry"), "{fault}");
    for at in 0..plan.groups.len() {
        let mut damaged = plan.clone();
        damaged.groups[at].bytes += 1;
        assert!(verify_groups(&graph, &damaged).is_err());
        for flow in 0..plan.groups[at].plan.flows.len() {
            let mut damaged = plan.clone();
            let flow = &mut damaged.groups[at].plan.flows[flow];
            if flow.down.pop().is_some() {
                assert!(verify_groups(&graph, &damaged).is_err());
            }
        }
    }
    // Other lengths are a bound as well, of more rounds.
    for at in 0..plan.lengths.len() {
        let mut other = plan.clone();
        other.lengths[at].length = other.lengths[at].length * Ratio::new(2, 1);
        let bound = verify_groups(&graph, &other).unwrap().unwrap();
        assert!(bound >= plan.rounds_per_s);
    }
}

#[test]
fn impossible_groups_are_named() {
    let graph = built("dgx1v").unwrap();
    let budget = Budget::standard(8);
    let fail = |groups: &[Group]| pack_groups(&graph, groups, &budget).unwrap_err().to_string();
    assert!(fail(&[]).contains("at least one group"));
    assert!(fail(&[group("x", &[0, 1], Collective::Alltoall, 8)]).contains("x: an all-to-all"));
    let odd = [
        group("a", &[0, 1], Collective::Allgather, 1),
        group("b", &[0, 1], Collective::Allgather, 1 << 30),
    ];
    assert!(fail(&odd).contains("simple proportions"));
}
