//! Irregular fabrics: every search ends within its work, and every plan is accepted by the verifier.

mod common;

use netsum_plan::pack::{
    Budget, KindCost, Packed, coarse, front, pack, pack_blink, pack_hybrid, pack_rings,
    pack_within, report,
};
use netsum_plan::program::verify_plan;
use netsum_topo::links::{Collective, LinkGraph, LinkKind, Role, TreePlan, Vertex, WeightedLink};
use netsum_topo::{Rate, Ratio};

use common::{collective, irregular};

/// Six GPUs, thirteen links.
fn unequal() -> LinkGraph {
    let gbits = [112, 296, 144, 152, 64, 40, 248, 176, 8, 200, 96, 136, 280];
    let pairs = (0..6).flat_map(|a| (a + 1..6).map(move |b| [a, b])).filter(|pair| {
        // Two of the fifteen pairs have no link.
        *pair != [1, 4] && *pair != [2, 5]
    });
    let link = |(ends, gbits): ([usize; 2], u64)| WeightedLink {
        ends,
        rate: Rate(gbits * 1_000_000_000),
        latency_ns: 0,
        kind: LinkKind::Nvlink,
        one_way: false,
    };
    let vertices = (0..6).map(|v| Vertex { name: format!("gpu{v}"), role: Role::Gpu });
    LinkGraph::new("unequal", vertices.collect(), pairs.zip(gbits).map(link).collect()).unwrap()
}

/// A plan as it is written and read.
fn read_back(plan: &TreePlan) -> TreePlan {
    serde_json::from_str(&serde_json::to_string(plan).unwrap()).unwrap()
}

fn accepted(graph: &LinkGraph, plan: &TreePlan, what: &str) {
    let plan = read_back(plan);
    verify_plan(graph, &plan).unwrap_or_else(|fault| panic!("{what}: {fault}"));
}

/// The reports of these compare with rings: whole numbers of rings on links of unequal rates took longer than a day.
#[test]
fn six_gpus_with_unequal_links_are_planned_for() {
    let graph = unequal();
    for seed in 0..5 {
        let collective = collective(seed);
        let packed = pack(&graph, collective).unwrap();
        let report = report(&graph, &packed);
        assert!(report.optimal, "{collective:?}: {}", report.gap);
        accepted(&graph, &report.plan, "exact");
        let rings = report.others.iter().find(|(name, _)| name == "rings").unwrap().1.unwrap();
        assert!(0.0 < rings && rings <= report.rate * 1.000_001, "{collective:?}: {rings}");
    }
    let rings = pack_rings(&graph).unwrap().unwrap();
    assert!(rings.rate <= rings.bound.as_ref().unwrap().rate);
    accepted(&graph, &rings.plan(&graph), "rings");
}

#[test]
fn any_fabric_is_planned_for_within_the_work_of_two_seconds() {
    let (mut limited, mut short) = (0, 0);
    for seed in 0..1000 {
        let (graph, collective) = (irregular(seed), collective(seed));
        let budget = Budget::standard(graph.gpus().len());
        let packed = pack_within(&graph, collective, &budget).unwrap();
        assert!(budget.spent() <= 2_000_000_000, "{seed}: {}", budget.spent());
        let bound = packed.bound.as_ref().unwrap().rate;
        assert!(packed.rate <= bound, "{seed}");
        assert!(packed.gap() < 0.25, "{seed}: {:?} {}", collective, packed.gap());
        limited += usize::from(packed.limited);
        short += usize::from(packed.rate < bound);
        let report = report(&graph, &packed);
        assert_eq!(report.limited, packed.limited);
        accepted(&graph, &report.plan, &format!("{seed}"));
    }
    assert!(limited <= 5, "{limited} searches ended early");
    assert!(short <= 20, "{short} plans are below their bound");
}

/// Rates from one bit per second to the most that a link may have, without common factors.
#[test]
fn any_rates_are_planned_for() {
    for seed in 0..200 {
        let shape = irregular(seed);
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let links = shape.links().iter().map(|link| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let most = 10u64.pow(1 + (state >> 32) as u32 % 15);
            WeightedLink { rate: Rate(1 + state % most), ..*link }
        });
        let links = links.collect();
        let graph = LinkGraph::new("any rates", shape.vertices().to_vec(), links).unwrap();
        let packed = pack(&graph, collective(seed)).unwrap();
        let report = report(&graph, &packed);
        assert!(report.rate <= report.bound * 1.000_001, "{seed}");
        accepted(&graph, &report.plan, &format!("{seed}"));
    }
}

/// Whatever a search had when its work ended is a valid plan, with a bound.
#[test]
fn a_search_that_ends_early_has_a_plan() {
    for seed in 0..120 {
        let (graph, collective) = (irregular(seed), collective(seed));
        let best = pack(&graph, collective).unwrap();
        for work in [1, 10_000, 1_000_000, 30_000_000] {
            let packed = pack_within(&graph, collective, &Budget::of_work(work)).unwrap();
            let bound = packed.bound.as_ref().unwrap().rate;
            assert!(packed.rate.is_positive() && packed.rate <= bound, "{seed} {work}");
            assert!(packed.rate <= best.bound.as_ref().unwrap().rate, "{seed} {work}");
            assert!(packed.limited || packed.rate == best.rate, "{seed} {work}");
            accepted(&graph, &packed.plan(&graph), &format!("{seed} {work}"));
        }
    }
}

#[test]
fn every_method_writes_what_the_verifier_accepts() {
    for seed in 0..60 {
        let (graph, collective) = (irregular(seed), collective(seed));
        let best = pack(&graph, collective).unwrap();
        let check = |packed: &Packed, what: &str| {
            accepted(&graph, &packed.plan(&graph), &format!("{what} of {seed}"));
        };
        front(&best).iter().for_each(|point| check(point, "front"));
        for pieces in [16, 960, 1 << 32] {
            if let Some(rough) = coarse(&best, pieces) {
                check(&rough, "coarse");
            }
        }
        if let Ok(blink) = pack_blink(&graph, collective) {
            check(&blink, "blink");
        }
        if collective == Collective::Allreduce
            && let Some(rings) = pack_rings(&graph).unwrap()
        {
            check(&rings, "rings");
        }
        let kinds = [KindCost { kind: LinkKind::Nvlink, setup: 1e-5 }];
        let hybrid = pack_hybrid(&graph, collective, &kinds, 1e8).unwrap();
        accepted(&graph, &hybrid.plan, &format!("kinds of {seed}"));
    }
}

/// Two kinds of links whose shares have no common denominator that a plan can hold.
#[test]
fn kinds_of_links_together_are_written_with_simple_shares() {
    for seed in 0..40 {
        let (fast, slow) = (irregular(7 * seed), irregular(7 * seed + 1));
        let gpus = fast.gpus().len().min(slow.gpus().len());
        let names: Vec<String> = (0..gpus).map(|gpu| gpu.to_string()).collect();
        let (Ok(fast), Ok(slow)) = (fast.select(&names), slow.select(&names)) else { continue };
        let vertices = fast.vertices().iter().filter(|vertex| vertex.role == Role::Gpu).cloned();
        let between = |graph: &LinkGraph, kind: LinkKind| -> Vec<WeightedLink> {
            let links = graph.links().iter().filter(|link| link.ends.iter().all(|&v| v < gpus));
            links.map(|link| WeightedLink { kind, ..*link }).collect()
        };
        let links = [between(&fast, LinkKind::Nvlink), between(&slow, LinkKind::Pcie)].concat();
        let graph = LinkGraph::new("both", vertices.collect(), links).unwrap();
        let kinds = [LinkKind::Nvlink, LinkKind::Pcie].map(|kind| KindCost { kind, setup: 0.0 });
        let Ok(found) = pack_hybrid(&graph, collective(seed), &kinds, 1e9) else { continue };
        accepted(&graph, &found.plan, &format!("kinds of {seed}"));
    }
}

/// Shares and rates from files: any text gives a clear error or a number, and never a panic.
#[test]
fn crafted_fractions_are_refused() {
    let graph = unequal();
    let good = pack(&graph, Collective::Allreduce).unwrap().plan(&graph);
    let text = serde_json::to_string(&good).unwrap();
    let parts =
        ["0", "1", "-1", "9223372036854775807", "-9223372036854775808", "4611686018427387847"];
    let share = format!("\"share\":\"{}\"", good.flows[0].share);
    let rate = format!("\"rate_bps\":\"{}\"", good.rate_bps);
    for (known, key) in [(&share, "share"), (&rate, "rate_bps")] {
        assert!(text.contains(known.as_str()), "{known} in {text}");
        for num in parts {
            for den in parts {
                let crafted =
                    text.replacen(known.as_str(), &format!("\"{key}\":\"{num}/{den}\""), 1);
                match serde_json::from_str::<TreePlan>(&crafted) {
                    Err(error) => {
                        assert!(error.to_string().contains("is no fraction"), "{error}");
                    }
                    Ok(plan)
                        if key == "rate_bps"
                            && plan.rate_bps.is_positive()
                            && plan.rate_bps <= good.rate_bps =>
                    {
                        verify_plan(&graph, &plan).unwrap();
                    }
                    Ok(plan) => {
                        verify_plan(&graph, &plan).unwrap_err();
                    }
                }
            }
        }
    }
    let mut many = good.clone();
    let primes = [9223372036854775783i64, 9223372036854775643, 9223372036854775549];
    let flow = good.flows[0].clone();
    many.flows = primes
        .iter()
        .map(|&prime| netsum_topo::links::PlannedFlow {
            share: Ratio::new(1, prime.into()),
            ..flow.clone()
        })
        .collect();
    let fault = verify_plan(&graph, &many).unwrap_err().to_string();
    assert!(fault.contains("too fine to be added up; round them"), "{fault}");
}
