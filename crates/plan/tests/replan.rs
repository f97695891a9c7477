//! Plans after losses: what is mended is valid, and as good as what a search from nothing finds, whatever was lost and
//! whatever the plan in use says.

mod common;

use netsum_plan::PackError;
use netsum_plan::pack::{Loss, Replanned, pack, replan, without};
use netsum_plan::program::verify_plan;
use netsum_topo::links::{Collective, LinkGraph, PlannedFlow, TreePlan, WeightedLink, built};
use netsum_topo::{Rate, Ratio};

use common::{Numbers, collective, irregular, random};

const ALL: [Collective; 5] = [
    Collective::Broadcast { root: 1 },
    Collective::Reduce { root: 2 },
    Collective::Allgather,
    Collective::ReduceScatter,
    Collective::Allreduce,
];

/// One to three losses, of links mostly. A vertex is lost last: it takes links along.
fn losses(graph: &LinkGraph, numbers: &mut Numbers) -> Vec<Loss> {
    let mut lost: Vec<Loss> = Vec::new();
    for _ in 0..1 + numbers.below(3) {
        let link = graph.links()[numbers.below(graph.links().len())];
        let [a, b] = link.ends;
        let known = |loss: &Loss| match loss {
            Loss::Link(ends) | Loss::Slower(ends, _) => *ends == [a, b] || *ends == [b, a],
            Loss::Vertex(_) => false,
        };
        if !lost.iter().any(known) {
            let slower = Loss::Slower([a, b], Rate(1_000_000_000 * (1 + numbers.below(7)) as u64));
            lost.push(if numbers.below(3) == 0 { slower } else { Loss::Link([a, b]) });
        }
    }
    if numbers.below(4) == 0 {
        lost.push(Loss::Vertex(numbers.below(graph.vertices().len())));
    }
    lost
}

/// The collective of the ranks that are left, by the names of GPUs; `None` if its root is lost.
fn moved(graph: &LinkGraph, left: &LinkGraph, collective: Collective) -> Option<Collective> {
    let rank = |root: usize| {
        let name = &graph.vertices()[graph.gpus()[root]].name;
        left.gpus().iter().position(|&gpu| left.vertices()[gpu].name == *name)
    };
    Some(match collective {
        Collective::Broadcast { root } => Collective::Broadcast { root: rank(root)? },
        Collective::Reduce { root } => Collective::Reduce { root: rank(root)? },
        other => other,
    })
}

/// The plan is valid, and no worse than that of a search from nothing, whose bound it keeps.
fn accepted(found: &Replanned, anew: &netsum_plan::pack::Packed, what: &str) {
    let plan = found.packed.plan(&found.graph);
    verify_plan(&found.graph, &plan).unwrap_or_else(|fault| panic!("{what}: {fault}"));
    let (rate, bound) = (found.packed.rate, found.packed.bound.as_ref().unwrap().rate);
    assert_eq!(found.packed.collective, anew.collective, "{what}");
    assert!(rate >= anew.rate && rate <= bound, "{what}: {rate} and not {}", anew.rate);
    assert!(rate <= anew.bound.as_ref().unwrap().rate, "{what}: {rate} is above the bound");
    assert!(!found.mended || found.packed.limited == (rate < bound), "{what}");
    assert!((0.0..=1.000_001).contains(&found.kept), "{what}: {}", found.kept);
}

#[test]
fn random_losses_of_irregular_fabrics_cost_no_more_than_they_must() {
    let (mut plans, mut mended, mut kept) = (0, 0, 0.0);
    for seed in 0..200 {
        let (graph, collective) = (irregular(seed), collective(seed));
        let old = pack(&graph, collective).unwrap().plan(&graph);
        let losses = losses(&graph, &mut Numbers::new(seed + 1000));
        let found = replan(&graph, &old, &losses);
        let (left, _) = without(&graph, &losses).unwrap();
        let Some(collective) = moved(&graph, &left, collective) else {
            let error = found.unwrap_err();
            let PackError::Left { error, .. } = error else { panic!("{seed}: {error}") };
            assert!(matches!(*error, PackError::RootLost { .. }), "{seed}: {error}");
            continue;
        };
        match pack(&left, collective) {
            Ok(anew) => {
                let found = found.unwrap();
                accepted(&found, &anew, &format!("{seed}"));
                plans += 1;
                mended += usize::from(found.mended);
                kept += found.kept;
            }
            Err(_) => assert!(found.is_err(), "{seed}"),
        }
    }
    assert!(plans >= 80, "{plans} fabrics are connected");
    assert!(mended * 10 >= plans * 6, "{mended} of {plans} plans were mended");
    assert!(kept / plans as f64 > 0.1, "{} of buffers keep their trees", kept / plans as f64);
}

/// The trees of fabrics of GPUs alone can always be mended to the bound, if directions are alike.
#[test]
fn fabrics_of_gpus_alone_are_always_mended() {
    for seed in 0..60 {
        let mut numbers = Numbers::new(seed + 7);
        let graph = random(seed, 12 + numbers.below(13), 60);
        let collective = ALL[seed as usize % ALL.len()];
        let old = pack(&graph, collective).unwrap().plan(&graph);
        let links = graph.links();
        let lost = links[numbers.below(links.len())].ends;
        let Ok(found) = replan(&graph, &old, &[Loss::Link(lost)]) else { continue };
        let anew = pack(&found.graph, collective).unwrap();
        accepted(&found, &anew, &format!("{seed}"));
        let tight = found.packed.bound.as_ref().unwrap().rate == found.packed.rate;
        assert!(found.mended && tight, "{seed} {collective:?}: {}", found.packed.gap());
    }
}

#[test]
fn losses_of_128_gpus_behind_switches_are_mended_to_the_bound() {
    for name in ["a100x16", "h100x16", "fat-tree:8"] {
        let graph = built(name).unwrap();
        for collective in ALL {
            let old = pack(&graph, collective).unwrap().plan(&graph);
            // The last link is one between servers or switches, which is not a GPU's only one.
            let lost = graph.links()[graph.links().len() - 1].ends;
            let found = replan(&graph, &old, &[Loss::Link(lost)]).unwrap();
            let what = format!("{name} {collective:?}");
            verify_plan(&found.graph, &found.packed.plan(&found.graph)).expect(&what);
            assert_eq!(found.packed.gap(), 0.0, "{what}");
            assert!(found.mended && found.kept > 0.3, "{what}: {}", found.kept);
        }
    }
}

/// Loss after loss: each plan is mended from the one before.
#[test]
fn losses_add_up() {
    for collective in ALL {
        let mut graph = built("torus:4x4").unwrap();
        let mut old = pack(&graph, collective).unwrap().plan(&graph);
        let mut numbers = Numbers::new(3);
        for step in 0..12 {
            let lost = graph.links()[numbers.below(graph.links().len())].ends;
            let Ok(found) = replan(&graph, &old, &[Loss::Link(lost)]) else { break };
            let anew = pack(&found.graph, collective).unwrap();
            accepted(&found, &anew, &format!("{collective:?} {step}"));
            (old, graph) = (found.packed.plan(&found.graph), found.graph);
        }
        assert!(graph.links().len() < 26, "{collective:?}: {} links", graph.links().len());
    }
}

/// A plan of any kind is a hint: the new one is valid and as good as ever.
#[test]
fn any_plan_is_a_hint() {
    for seed in 0..80 {
        let mut numbers = Numbers::new(seed + 77);
        let (graph, collective) = (irregular(seed), collective(seed));
        let n = graph.vertices().len() + 2;
        let mut ways = |count: usize| -> Vec<Vec<usize>> {
            let mut way = || (0..numbers.below(5)).map(|_| numbers.below(n)).collect();
            (0..count).map(|_| way()).collect()
        };
        let flow = |at: usize, up: Vec<Vec<usize>>, down: Vec<Vec<usize>>| PlannedFlow {
            share: Ratio::new(1 + seed as i128 * at as i128, (1i128 << 62) - at as i128),
            root: at % n,
            up,
            down,
        };
        let mut flows: Vec<PlannedFlow> = Vec::new();
        for at in 0..6 {
            let up = ways(2 * n);
            let down = match at % 2 {
                0 => up.iter().rev().map(|way| way.iter().rev().copied().collect()).collect(),
                _ => ways(2 * n),
            };
            flows.push(flow(at, up, down));
        }
        let mut vertices: Vec<String> =
            graph.vertices().iter().map(|vertex| vertex.name.clone()).collect();
        vertices.push("nowhere".to_owned());
        let old = TreePlan { flows, vertices, ..pack(&graph, collective).unwrap().plan(&graph) };
        let found = replan(&graph, &old, &[]).unwrap();
        accepted(&found, &pack(&graph, collective).unwrap(), &format!("{seed}"));
    }
}

/// Without a loss everything stays as it is.
#[test]
fn nothing_lost_changes_nothing() {
    for seed in 0..60 {
        let (graph, collective) = (irregular(seed), collective(seed));
        let packed = pack(&graph, collective).unwrap();
        let lopsided = collective == Collective::Allreduce && packed.net.mirror.is_none();
        let old = packed.plan(&graph);
        let found = replan(&graph, &old, &[]).unwrap();
        accepted(&found, &packed, &format!("{seed}"));
        if packed.gap() == 0.0 && !lopsided && packed.simple().rate == packed.rate {
            assert!((found.kept - 1.0).abs() < 1e-9, "{seed} {collective:?}: {}", found.kept);
        }
    }
}

/// The links of a new plan have their new rates.
#[test]
fn a_slower_link_is_not_overloaded() {
    let graph = built("torus:4x4").unwrap();
    let WeightedLink { ends, rate, .. } = graph.links()[5];
    for part in [2, 3, 7, 1000] {
        for collective in ALL {
            let old = pack(&graph, collective).unwrap().plan(&graph);
            let slower = Loss::Slower(ends, Rate(rate.0 / part));
            let found = replan(&graph, &old, &[slower]).unwrap();
            let anew = pack(&found.graph, collective).unwrap();
            accepted(&found, &anew, &format!("{collective:?} {part}"));
        }
    }
}
