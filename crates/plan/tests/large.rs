//! Fabrics beyond the exact programme, of GPUs that are linked to each other: whole, with faults, and irregular.

mod common;

use netsum_plan::pack::{Budget, Packed, pack, pack_within};
use netsum_plan::program::verify_plan;
use netsum_topo::Rate;
use netsum_topo::links::{Collective, LinkGraph, built};

use common::random;

const COLLECTIVES: [Collective; 5] = [
    Collective::Broadcast { root: 0 },
    Collective::Reduce { root: 1 },
    Collective::Allgather,
    Collective::ReduceScatter,
    Collective::Allreduce,
];

/// A machine without some of its links, and with some at half of their rate.
fn faulty(machine: &str, lost: &[usize], slow: &[usize]) -> LinkGraph {
    let whole = built(machine).unwrap();
    let mut links = whole.links().to_vec();
    slow.iter().for_each(|&link| links[link].rate = Rate(links[link].rate.0 / 2));
    let left = (0..links.len()).filter(|link| !lost.contains(link)).map(|link| links[link]);
    LinkGraph::new(machine, whole.vertices().to_vec(), left.collect()).unwrap()
}

fn reaches_its_bound(graph: &LinkGraph, collective: Collective) {
    let packed = pack(graph, collective).unwrap();
    let what = format!("{} of {} GPUs: {collective:?}", graph.name(), graph.gpus().len());
    verify_plan(graph, &packed.plan(graph)).unwrap_or_else(|fault| panic!("{what}: {fault}"));
    let bound = packed.bound.as_ref().expect("cuts give one").rate;
    assert_eq!(packed.rate, bound, "{what}");
    assert!(!packed.limited, "{what}");
}

#[test]
fn whole_and_faulty_tori_reach_their_bound() {
    for graph in [
        built("torus:12x12").unwrap(),
        faulty("torus:12x12", &[0], &[]),
        faulty("torus:12x12", &[5, 100, 101], &[7, 200]),
    ] {
        for collective in COLLECTIVES {
            reaches_its_bound(&graph, collective);
        }
    }
    for collective in [Collective::Broadcast { root: 9 }, Collective::Allreduce] {
        reaches_its_bound(&built("torus:16x16").unwrap(), collective);
        reaches_its_bound(&faulty("torus:8x8x8", &[3], &[50]), collective);
    }
}

/// The programme took its whole budget, 96 s of work, and left 1.3 %.
#[test]
fn trees_of_one_root_reach_the_bound_with_little_work() {
    for machine in ["torus:8x16", "torus:6x8", "torus:4x4x8"] {
        for collective in [Collective::Broadcast { root: 0 }, Collective::Reduce { root: 3 }] {
            let graph = built(machine).unwrap();
            let packed = pack_within(&graph, collective, &Budget::of_work(6_000_000_000)).unwrap();
            verify_plan(&graph, &packed.plan(&graph)).unwrap();
            assert_eq!(packed.gap(), 0.0, "{machine} {collective:?}");
        }
    }
}

#[test]
fn irregular_fabrics_reach_their_bound() {
    for (seed, gpus, links) in [(1, 150, 300), (2, 200, 600), (3, 130, 1000)] {
        let graph = random(seed, gpus, links);
        for collective in COLLECTIVES {
            reaches_its_bound(&graph, collective);
        }
    }
}

/// A search that ends early has what it found before.
#[test]
fn little_work_leaves_valid_trees() {
    let graph = faulty("torus:12x12", &[0], &[1]);
    for collective in COLLECTIVES {
        let best = pack(&graph, collective).unwrap();
        for work in [1, 1_000_000, 30_000_000] {
            let packed: Packed = pack_within(&graph, collective, &Budget::of_work(work)).unwrap();
            verify_plan(&graph, &packed.plan(&graph)).unwrap();
            assert!(packed.rate.is_positive() && packed.rate <= best.rate);
            assert!(packed.limited || packed.rate == best.rate, "{collective:?} {work}");
        }
    }
}

/// Plans in which not every GPU is a root are not limited to so few GPUs as those in which it is.
#[test]
fn very_many_gpus() {
    let graph = built("torus:46x46").unwrap();
    let root = Collective::Broadcast { root: 0 };
    for (collective, work) in [(root, 20_000_000_000), (Collective::Allreduce, 1_000_000_000)] {
        let packed = pack_within(&graph, collective, &Budget::of_work(work)).unwrap();
        verify_plan(&graph, &packed.plan(&graph)).unwrap();
        assert!(packed.gap() < 0.1, "{collective:?}: {}", packed.gap());
    }
    let error = pack(&graph, Collective::Allgather).unwrap_err().to_string();
    assert!(error.contains("2116 is more than 2048"), "{error}");
}
