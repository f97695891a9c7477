//! Plans of fabrics that look the same from every rank: the trees of one rank, moved. Checked without writing out all
//! trees, and beside that with all of them.

use netsum_plan::OrbitPlan;
use netsum_plan::pack::{bound, pack, pack_orbits};
use netsum_plan::program::{verify_orbits, verify_plan};
use netsum_topo::links::{Collective, LinkGraph, LinkKind, Role, Vertex, WeightedLink, built};
use netsum_topo::{Rate, Ratio};

const COLLECTIVES: [Collective; 3] =
    [Collective::Allgather, Collective::ReduceScatter, Collective::Allreduce];

const FABRICS: [&str; 8] =
    ["torus:4x4", "torus:3x5", "torus:2x3x4", "torus:7", "torus:6x8", "a100x3", "h100x5", "a100x8"];

/// The least cut or partition, as a search over all of them finds it.
fn least(graph: &LinkGraph, collective: Collective) -> Ratio {
    let (net, bound) = bound(graph, collective).unwrap();
    bound.unwrap().rate * Ratio::from(net.unit_bps as i64)
}

#[test]
fn plans_reach_the_bound_of_all_cuts() {
    for name in FABRICS {
        let graph = built(name).unwrap();
        for collective in COLLECTIVES {
            let what = format!("{name} {collective:?}");
            let plan = pack_orbits(&graph, collective).expect(&what);
            let proven = verify_orbits(&graph, &plan).expect(&what);
            assert_eq!(proven, Some(least(&graph, collective)), "{what}");
            assert_eq!(proven, Some(plan.rate_bps), "{what}");
            // All trees, written out, and checked by a verifier that knows nothing of automorphisms.
            let all = plan.expanded();
            assert_eq!(all.flows.len(), plan.flows.len() * graph.gpus().len(), "{what}");
            verify_plan(&graph, &all).expect(&what);
        }
    }
}

/// Where other limits than those of one GPU or one server hold, plans are right, and their bounds are bounds.
#[test]
fn plans_of_few_servers_are_right() {
    for name in ["a100x2", "h100x2", "h100x3", "h100x4"] {
        let graph = built(name).unwrap();
        for collective in COLLECTIVES {
            let what = format!("{name} {collective:?}");
            let plan = pack_orbits(&graph, collective).expect(&what);
            let proven = verify_orbits(&graph, &plan).expect(&what).unwrap();
            let best = pack(&graph, collective).unwrap();
            let best = best.rate * Ratio::from(best.net.unit_bps as i64);
            assert!(plan.rate_bps <= best && best <= proven, "{what}: {best}");
            verify_plan(&graph, &plan.expanded()).expect(&what);
        }
    }
}

/// Racks of GPUs behind a switch each, which one more switch joins over links that several GPUs share.
fn racks(racks: usize, gpus: usize) -> LinkGraph {
    let all = racks * gpus;
    let plain = Role::Switch { aggregates: false, multicasts: false };
    let vertex =
        |v: usize| Vertex { name: format!("v{v}"), role: if v < all { Role::Gpu } else { plain } };
    let link = |a: usize, b: usize, gbits: u64| WeightedLink {
        ends: [a, b],
        rate: Rate(gbits * 1_000_000_000),
        latency_ns: 0,
        kind: LinkKind::Nic,
        one_way: false,
    };
    let mut links: Vec<WeightedLink> =
        (0..all).map(|gpu| link(gpu, all + gpu / gpus, 100)).collect();
    links.extend((0..racks).map(|rack| link(all + rack, all + racks, 60)));
    LinkGraph::new("racks", (0..all + racks + 1).map(vertex).collect(), links).unwrap()
}

#[test]
fn links_between_switches_carry_the_trees_of_several_ranks() {
    let graph = racks(4, 3);
    for collective in COLLECTIVES {
        let plan = pack_orbits(&graph, collective).unwrap();
        verify_orbits(&graph, &plan).unwrap();
        verify_plan(&graph, &plan.expanded()).unwrap();
        // What is too much for all trees is too much for the orbits.
        let mut more = plan.clone();
        more.sets.clear();
        more.rate_bps = plan.rate_bps * Ratio::new(1_000_001, 1_000_000);
        assert!(verify_plan(&graph, &more.expanded()).is_err(), "{collective:?}");
        assert!(verify_orbits(&graph, &more).is_err(), "{collective:?}");
    }
}

#[test]
fn other_fabrics_are_refused() {
    for name in ["dgx1v", "mi250"] {
        let graph = built(name).unwrap();
        let error = pack_orbits(&graph, Collective::Allgather).unwrap_err().to_string();
        assert!(error.contains("does not look alike from all ranks"), "{error}");
    }
    let graph = built("torus:4x4").unwrap();
    let less = graph.links()[1..].to_vec();
    let less = LinkGraph::new("less", graph.vertices().to_vec(), less).unwrap();
    assert!(pack_orbits(&less, Collective::Allreduce).is_err());
    assert!(pack_orbits(&graph, Collective::Broadcast { root: 0 }).is_err());
}

/// Every change of a plan is refused, or leaves a right plan: as the verifier of all trees says.
#[test]
fn damaged_plans_are_refused() {
    for (name, collective) in [
        ("torus:3x4", Collective::Allgather),
        ("a100x2", Collective::ReduceScatter),
        ("h100x2", Collective::Allreduce),
    ] {
        let graph = built(name).unwrap();
        let plan = pack_orbits(&graph, collective).unwrap();
        let mut refused = 0;
        let mut check = |damaged: OrbitPlan, what: &str| {
            assert_ne!(damaged, plan, "{what}");
            if verify_orbits(&graph, &damaged).is_ok() {
                let all = verify_plan(&graph, &damaged.expanded());
                assert!(all.is_ok(), "{name} {collective:?} {what}: {all:?}");
            } else {
                refused += 1;
            }
        };
        let n = plan.vertices.len();
        for at in 0..plan.automorphisms.len() {
            for v in 0..n {
                let mut damaged = plan.clone();
                damaged.automorphisms[at].to.swap(v, (v + 1) % n);
                check(damaged, &format!("automorphism {at} at {v}"));
            }
            for order in [0, 1, plan.automorphisms[at].order + 1, 2 * plan.automorphisms[at].order]
            {
                let mut damaged = plan.clone();
                damaged.automorphisms[at].order = order;
                if order != plan.automorphisms[at].order {
                    assert!(verify_orbits(&graph, &damaged).is_err(), "order {order}");
                }
            }
            let mut damaged = plan.clone();
            damaged.automorphisms.remove(at);
            assert!(verify_orbits(&graph, &damaged).is_err());
        }
        for flow in 0..plan.flows.len() {
            let ways = plan.flows[flow].down.len().max(plan.flows[flow].up.len());
            for way in 0..ways {
                for v in 0..n {
                    let mut damaged = plan.clone();
                    let flow = &mut damaged.flows[flow];
                    let list = if flow.down.is_empty() { &mut flow.up } else { &mut flow.down };
                    if list[way][0] == v {
                        continue;
                    }
                    list[way][0] = v;
                    check(damaged, &format!("flow, way {way} from {v}"));
                }
            }
            let mut damaged = plan.clone();
            damaged.flows[flow].share = damaged.flows[flow].share * Ratio::new(1, 2);
            assert!(verify_orbits(&graph, &damaged).is_err());
        }
        // One part in a million more than the links carry.
        let mut damaged = plan.clone();
        damaged.rate_bps = plan.rate_bps * Ratio::new(1_000_001, 1_000_000);
        damaged.sets.clear();
        assert!(verify_orbits(&graph, &damaged).is_err());
        assert!(refused > 2 * n, "{refused}");
    }
}

/// Sets that are no proof give no bound.
#[test]
fn bounds_are_those_of_the_sets() {
    let graph = built("h100x4").unwrap();
    let plan = pack_orbits(&graph, Collective::Allreduce).unwrap();
    let part = plan.sets.len();
    assert_eq!(part, 4);
    // Without the switch of a server its sums may be added outside of all sets.
    let mut damaged = plan.clone();
    damaged.sets[1].retain(|&v| plan.gpus.contains(&v));
    assert!(verify_orbits(&graph, &damaged).is_err());
    let mut damaged = plan.clone();
    let shared = damaged.sets[0][0];
    damaged.sets[1].push(shared);
    assert!(verify_orbits(&graph, &damaged).is_err());
    let mut damaged = plan.clone();
    damaged.sets.remove(0);
    assert!(verify_orbits(&graph, &damaged).is_err());
    // Fewer, larger sets are a proof too, of a higher bound.
    let mut merged = plan.clone();
    let last = merged.sets.pop().unwrap();
    merged.sets[0].extend(last);
    let higher = verify_orbits(&graph, &merged).unwrap().unwrap();
    assert!(higher > plan.rate_bps);
}

/// Beyond the programme's size the planner itself uses the automorphisms: trees of 1,024 GPUs are exact.
#[test]
fn a_thousand_gpus_are_exact() {
    for collective in [Collective::Allgather, Collective::Allreduce] {
        let graph = built("h100x128").unwrap();
        let packed = pack(&graph, collective).unwrap();
        assert_eq!(packed.gap(), 0.0, "{collective:?}");
        assert_eq!(packed.flows.len(), 1024, "{collective:?}");
        verify_plan(&graph, &packed.plan(&graph)).unwrap();
    }
}

#[test]
fn sixteen_thousand_gpus_are_exact() {
    let graph = built("torus:128x128").unwrap();
    for collective in COLLECTIVES {
        let plan = pack_orbits(&graph, collective).unwrap();
        let proven = verify_orbits(&graph, &plan).unwrap();
        assert_eq!(proven, Some(plan.rate_bps), "{collective:?}");
    }
}
