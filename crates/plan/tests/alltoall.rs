//! All-to-all: rates that are known, random fabrics with a proof of each rate, and what the verifiers refuse.

mod common;

use netsum_plan::pack::{ArcLength, Budget, Certificate, Packed, coarse, front, pack, pack_within};
use netsum_plan::program::{distance_bound, verify_plan};
use netsum_topo::links::{Collective, LinkGraph, TreePlan, built};
use netsum_topo::{Rate, Ratio};

use common::{Numbers, irregular, random};

const ALLTOALL: Collective = Collective::Alltoall;

/// The plan is valid, and the bound is what its lengths prove.
fn accepted(graph: &LinkGraph, packed: &Packed, what: &str) {
    verify_plan(graph, &packed.plan(graph)).unwrap_or_else(|fault| panic!("{what}: {fault}"));
    let unit = Ratio::from(packed.net.unit_bps as i64);
    let bound = packed.bound.as_ref().expect("there always is one");
    assert_eq!(distance_bound(graph, lengths(packed)), Ok(bound.rate * unit), "{what}");
    assert!(packed.rate.is_positive() && packed.rate <= bound.rate, "{what}");
}

fn lengths(packed: &Packed) -> &[ArcLength] {
    match &packed.bound.as_ref().expect("there always is one").certificate {
        Certificate::Distances { arcs, .. } => arcs,
        other => panic!("{other:?} is no proof for an all-to-all"),
    }
}

fn optimal(graph: &LinkGraph) -> f64 {
    let packed = pack(graph, ALLTOALL).unwrap();
    accepted(graph, &packed, graph.name());
    assert_eq!(packed.gap(), 0.0, "{} of {} GPUs", graph.name(), graph.gpus().len());
    packed.rate_bps() / 8e9
}

/// Rates in GB/s of a rank's buffer, by hand: capacity over the distance that blocks travel.
#[test]
fn rates_that_are_known() {
    let known = [
        // 16 GPUs of 150 GB/s at one switch: 15 of 16 blocks leave.
        ("dgx2", 150.0 * 16.0 / 15.0),
        // 8 of 16 blocks leave each box, over 25 GB/s per GPU; of 512, 504.
        ("a100x2", 25.0 * 16.0 / 8.0),
        ("a100x64", 25.0 * 512.0 / 504.0),
        ("h100x16", 50.0 * 128.0 / 120.0),
        // Blocks go 2 hops on average over 4 links of 50 GB/s, and 6 over 6.
        ("torus:4x4", 200.0 * 16.0 / 32.0),
        ("torus:8x8x8", 300.0 * 512.0 / (6.0 * 512.0)),
        // Blocks go 4 hops on average along the ring of 16, and 8 along the ring of 32, whose links are the limit.
        ("torus:16x32", 100.0 / 8.0),
        ("torus:5x5x5", 300.0 * 125.0 / (3.6 * 125.0)),
        // A cut of half the fabric carries a quarter of all blocks.
        ("torus:2x2x2x2x2x2x2", 50.0 * 2.0),
        // Racks of 32 with 16 links up, each of the rate of a host's.
        ("leaf-spine:16x32x16", 1.25 * 16.0 * 512.0 / (32.0 * 480.0)),
        ("fat-tree:8", 1.25 * 128.0 / 127.0),
    ];
    for (name, rate) in known {
        let found = optimal(&built(name).unwrap());
        assert!((found / rate - 1.0).abs() < 1e-9, "{name}: {found} and not {rate}");
    }
}

#[test]
fn random_fabrics_reach_what_distances_prove() {
    let (mut short, mut worst) = (0, 0.0f64);
    for seed in 0..500 {
        let graph = irregular(seed);
        let packed = pack(&graph, ALLTOALL).unwrap();
        accepted(&graph, &packed, &format!("{seed}"));
        short += usize::from(packed.gap() > 0.0);
        worst = worst.max(packed.gap());
    }
    // Weights of many optima have denominators that no plan can hold.
    assert!(short <= 80, "{short} plans are below their bounds, up to {worst}");
    assert!(worst < 1e-3, "a plan is {worst} below its bound");
}

#[test]
fn fabrics_beyond_the_exact_programme_come_near_their_bounds() {
    let faulty = |name: &str| {
        let whole = built(name).unwrap();
        let mut links = whole.links()[1..].to_vec();
        links[40].rate = Rate(links[40].rate.0 / 2);
        LinkGraph::new(name, whole.vertices().to_vec(), links).unwrap()
    };
    for (graph, most) in [
        (faulty("torus:8x16"), 0.005),
        (faulty("a100x24"), 0.005),
        (random(1, 150, 300), 0.002),
        (random(2, 200, 600), 0.002),
    ] {
        let packed = pack(&graph, ALLTOALL).unwrap();
        accepted(&graph, &packed, graph.name());
        assert!(packed.gap() < most, "{}: {}", graph.name(), packed.gap());
    }
}

/// Any lengths bound every rate, whoever chose them.
#[test]
fn any_lengths_are_a_bound() {
    for seed in 0..200 {
        let graph = irregular(seed);
        let packed = pack(&graph, ALLTOALL).unwrap();
        let rate = packed.rate * Ratio::from(packed.net.unit_bps as i64);
        let mut numbers = Numbers::new(seed);
        let arcs = packed.net.arcs.iter().map(|arc| {
            let length = Ratio::from(1 + numbers.below(9) as i64);
            ArcLength { from: arc.from, to: arc.to, length }
        });
        assert!(rate <= distance_bound(&graph, &arcs.collect::<Vec<_>>()).unwrap(), "{seed}");
    }
}

#[test]
fn proofs_that_prove_nothing_are_refused() {
    let graph = built("torus:4x4").unwrap();
    let packed = pack(&graph, ALLTOALL).unwrap();
    let good = lengths(&packed);
    let refused = |change: &dyn Fn(&mut Vec<ArcLength>), says: &str| {
        let mut arcs = good.to_vec();
        change(&mut arcs);
        let fault = distance_bound(&graph, &arcs).unwrap_err().to_string();
        assert!(fault.contains(says), "{fault}");
    };
    refused(&|arcs| arcs[0].length = Ratio::from(-1), "is no length of");
    refused(&|arcs| arcs[0].length = Ratio::new(1, 2), "is no length of");
    refused(&|arcs| arcs[0].length = Ratio::from(1 << 50), "is no length of");
    refused(&|arcs| arcs.push(arcs[0]), "has two lengths");
    refused(&|arcs| (arcs[0].from, arcs[0].to) = (0, 10), "that the fabric lacks");
    refused(&Vec::clear, "all distances are 0");
}

#[test]
fn damaged_plans_are_refused() {
    for seed in 0..40 {
        let graph = irregular(seed);
        let good = pack(&graph, ALLTOALL).unwrap().plan(&graph);
        let refused = |what: &str, change: &dyn Fn(&mut TreePlan) -> bool| {
            let mut plan = good.clone();
            if change(&mut plan) {
                assert!(verify_plan(&graph, &plan).is_err(), "{seed}: {what}");
            }
        };
        let ways = good.flows[0].down.len();
        for way in 0..ways {
            refused("a way less", &|plan| {
                plan.flows[0].down.remove(way);
                true
            });
            refused("a way twice", &|plan| {
                let again = plan.flows[0].down[way].clone();
                plan.flows[0].down.push(again);
                true
            });
            refused("a way turned", &|plan| {
                plan.flows[0].down[way].reverse();
                true
            });
        }
        refused("too fast", &|plan| {
            plan.rate_bps = plan.rate_bps * Ratio::new(1001, 1000);
            pack(&graph, ALLTOALL).unwrap().gap() < 1e-4
        });
        refused("a smaller share", &|plan| {
            plan.flows[0].share = plan.flows[0].share * Ratio::new(1, 2);
            true
        });
        refused("another root", &|plan| {
            plan.flows[0].root = plan.flows.last().unwrap().root;
            true
        });
        refused("a way up", &|plan| {
            let way = plan.flows[0].down.pop().unwrap();
            plan.flows[0].up.push(way);
            true
        });
        refused("an all-gather of the same trees", &|plan| {
            plan.collective = Collective::ReduceScatter;
            true
        });
    }
}

/// The load of a link is that of all blocks behind it: a line of three has 2 of 6 blocks on each arc.
#[test]
fn links_carry_the_blocks_of_all_behind_them() {
    let graph = built("torus:1x3").unwrap();
    let line = LinkGraph::new("line", graph.vertices().to_vec(), graph.links()[..2].to_vec());
    let line = line.unwrap();
    let mut plan = pack(&line, ALLTOALL).unwrap().plan(&line);
    // 50 GB/s carry 2 blocks of a third of the buffer.
    assert_eq!(plan.rate_bps, Ratio::from(600_000_000_000));
    plan.rate_bps = plan.rate_bps + Ratio::ONE;
    let fault = verify_plan(&line, &plan).unwrap_err().to_string();
    assert!(fault.contains("would carry"), "{fault}");
}

#[test]
fn searches_that_end_early_have_a_plan() {
    for seed in 0..60 {
        let graph = irregular(seed);
        let best = pack(&graph, ALLTOALL).unwrap();
        for work in [1, 10_000, 1_000_000] {
            let packed = pack_within(&graph, ALLTOALL, &Budget::of_work(work)).unwrap();
            accepted(&graph, &packed, &format!("{seed} {work}"));
            assert!(packed.rate <= best.bound.as_ref().unwrap().rate, "{seed} {work}");
            assert_eq!(packed.limited, packed.gap() > 0.0, "{seed} {work}");
        }
    }
    let large = random(5, 160, 400);
    let packed = pack_within(&large, ALLTOALL, &Budget::of_work(1)).unwrap();
    accepted(&large, &packed, "little work");
}

#[test]
fn plans_in_pieces_are_valid() {
    for seed in 0..60 {
        let graph = irregular(seed);
        let best = pack(&graph, ALLTOALL).unwrap();
        let gpus = graph.gpus().len() as u64;
        for pieces in [gpus, 8 * gpus, 1 << 30] {
            let rough = coarse(&best, pieces).unwrap();
            accepted(&graph, &rough, &format!("{seed} in {pieces}"));
            assert!(rough.rate <= best.bound.as_ref().unwrap().rate, "{seed}");
        }
        assert_eq!(front(&best).len(), 1);
    }
}

#[test]
fn too_many_gpus_are_refused() {
    let graph = built("torus:33x32").unwrap();
    let error = pack(&graph, ALLTOALL).unwrap_err().to_string();
    assert!(error.contains("1056 is more than 1024"), "{error}");
}
