//! The verifier accepts every plan of the packer, and refuses every damaged plan or program.

use netsum_plan::pack::{ArcLength, Bound, Certificate, Net, pack};
use netsum_plan::program::{
    Action, Program, check, lower, read_msccl, read_mscclpp, verify_plan, write_msccl,
    write_mscclpp,
};
use netsum_topo::links::{
    Collective, LinkGraph, LinkKind, Role, TreePlan, Vertex, WeightedLink, built, link_classes,
};
use netsum_topo::{Rate, Ratio};
use proptest::prelude::*;

const COLLECTIVES: [Collective; 5] = [
    Collective::Broadcast { root: 0 },
    Collective::Reduce { root: 1 },
    Collective::Allgather,
    Collective::ReduceScatter,
    Collective::Allreduce,
];

fn fragments() -> Vec<LinkGraph> {
    let graph = built("dgx1v").unwrap().only(&[LinkKind::Nvlink]).unwrap();
    let names = |gpus: &[usize]| gpus.iter().map(usize::to_string).collect::<Vec<_>>();
    let classes = link_classes(&graph, 3..=8);
    classes.iter().map(|class| graph.select(&names(&class.gpus)).unwrap()).collect()
}

fn plan(graph: &LinkGraph, collective: Collective) -> TreePlan {
    pack(graph, collective).unwrap().plan(graph)
}

#[test]
fn every_plan_is_right() {
    let machines =
        ["dgx2", "h100", "mi250", "torus:3x3", "h100x2", "leaf-spine:2x2x2", "fat-tree:2"];
    let machines = machines.into_iter().map(|name| built(name).unwrap());
    for graph in fragments().into_iter().chain(machines) {
        for collective in COLLECTIVES {
            let plan = plan(&graph, collective);
            verify_plan(&graph, &plan).unwrap_or_else(|fault| {
                panic!("{collective:?} on {} GPUs of {}: {fault}", plan.gpus.len(), graph.name())
            });
        }
    }
}

#[test]
fn plans_read_back() {
    let graph = built("h100").unwrap();
    let plan = plan(&graph, Collective::Allreduce);
    let text = serde_json::to_string(&plan).unwrap();
    assert_eq!(serde_json::from_str::<TreePlan>(&text).unwrap(), plan);
}

#[test]
fn msccl_reads_back_as_a_correct_program() {
    for graph in fragments() {
        for collective in COLLECTIVES {
            let program = lower(&plan(&graph, collective)).unwrap();
            let text = write_msccl(&program, "a \"b\" & <c>").unwrap();
            let read = read_msccl(&text).unwrap();
            check(&read).unwrap_or_else(|fault| panic!("{collective:?}: {fault}\n{text}"));
        }
    }
}

/// Plans that MSCCL++ can run read back as correct programs, and damaged ones do not.
#[test]
fn mscclpp_reads_back_as_a_correct_program() {
    let mut written = 0;
    for graph in fragments() {
        for collective in [Collective::Allreduce, Collective::Allgather, Collective::ReduceScatter]
        {
            let text = match write_mscclpp(&plan(&graph, collective)) {
                Ok(text) => text,
                Err(error) => panic!("{collective:?}: {error}"),
            };
            check(&read_mscclpp(&text).unwrap())
                .unwrap_or_else(|fault| panic!("{collective:?}: {fault}"));
            written += 1;
        }
    }
    assert_eq!(written, 3 * 46);
    let graph = fragments().swap_remove(4);
    let text = write_mscclpp(&plan(&graph, Collective::Allreduce)).unwrap();
    for (from, to) in
        [("\"re\"", "\"nop\""), ("\"put\"", "\"nop\""), ("\"wait\"", "\"nop\""), ("\"s\"", "\"i\"")]
    {
        assert!(text.contains(from));
        let damaged = read_mscclpp(&text.replacen(from, to, 9)).map(|program| check(&program));
        assert!(!matches!(damaged, Ok(Ok(()))), "{from} as {to} passed");
    }
    let unknown = text.replacen("\"protocol\"", "\"protocoll\"", 1);
    assert!(read_mscclpp(&unknown).unwrap_err().to_string().contains("unknown field `protocoll`"));
    for collective in [Collective::Broadcast { root: 1 }, Collective::Reduce { root: 2 }] {
        let read = read_mscclpp(&write_mscclpp(&plan(&graph, collective)).unwrap()).unwrap();
        assert_eq!(read.collective, collective);
        check(&read).unwrap_or_else(|fault| panic!("{collective:?}: {fault}"));
    }
    let switches = plan(&built("h100").unwrap(), Collective::Allreduce);
    assert!(write_mscclpp(&switches).unwrap_err().to_string().contains("plan without switches"));
}

/// Plans come from untrusted files: invalid ones are refused with the reason.
#[test]
fn crafted_plans_are_refused() {
    let graph = built("h100").unwrap();
    let good = plan(&graph, Collective::Allreduce);
    let refused = |change: &dyn Fn(&mut TreePlan), words: &str| {
        let mut crafted = good.clone();
        change(&mut crafted);
        let fault = verify_plan(&graph, &crafted).unwrap_err().to_string();
        assert!(fault.contains(words), "{fault}");
    };
    refused(&|plan| plan.flows[0].up[0].clear(), "way [] has fewer than two vertices");
    refused(&|plan| plan.flows[0].down[0].clear(), "way [] has fewer than two vertices");
    refused(&|plan| plan.flows[0].up[0].truncate(1), "fewer than two vertices");
    // Primes just below 2⁶³: three of them have no common multiple of 127 bits.
    let share = |offset: i64| Ratio::new(1, (i64::MAX - offset).into());
    let fine = |plan: &mut TreePlan| {
        let flow = plan.flows[0].clone();
        plan.flows = [24, 164, 258]
            .map(share)
            .map(|share| {
                let mut flow = flow.clone();
                flow.share = share;
                flow
            })
            .to_vec();
    };
    refused(&fine, "too fine to be added up");
    let rate = |plan: &mut TreePlan| {
        plan.flows[0].share = Ratio::new(i64::MAX.into(), 1);
        plan.rate_bps = Ratio::new(1 << 100, 1);
    };
    refused(&rate, "too fine to be added up");
    let mut nobody = plan(&graph, Collective::Allgather);
    nobody.gpus.clear();
    assert!(lower(&nobody).unwrap_err().to_string().contains("it has no GPUs"));
}

/// All ways to damage a plan at one place, each of which makes it invalid.
fn damaged_plans(plan: &TreePlan) -> Vec<(String, TreePlan)> {
    let mut found = Vec::new();
    let mut damage = |what: String, change: &dyn Fn(&mut TreePlan)| {
        let mut other = plan.clone();
        change(&mut other);
        found.push((what, other));
    };
    damage("rate".into(), &|plan| plan.rate_bps = plan.rate_bps * Ratio::new(1_000_001, 1_000_000));
    for f in 0..plan.flows.len() {
        damage(format!("share of flow {f}"), &|plan| {
            plan.flows[f].share = plan.flows[f].share * Ratio::new(1, 2);
        });
        damage(format!("no flow {f}"), &|plan| {
            plan.flows.remove(f);
        });
        damage(format!("flow {f} twice"), &|plan| plan.flows.push(plan.flows[f].clone()));
        for up in [true, false] {
            let ways = |plan: &TreePlan| {
                let flow = &plan.flows[f];
                if up { flow.up.clone() } else { flow.down.clone() }
            };
            for w in 0..ways(plan).len() {
                let mut with = |what: &str, change: &dyn Fn(&mut Vec<Vec<usize>>)| {
                    damage(format!("{what} way {w} (up {up}) of flow {f}"), &|plan| {
                        let flow = &mut plan.flows[f];
                        change(if up { &mut flow.up } else { &mut flow.down });
                    });
                };
                with("without", &|ways| {
                    ways.remove(w);
                });
                with("turned", &|ways| ways[w].reverse());
                if up {
                    // Downward the second copy is the same data again, and only loads its link.
                    with("twice", &|ways| ways.push(ways[w].clone()));
                }
            }
        }
    }
    found
}

#[test]
fn every_damaged_plan_is_refused() {
    let graphs = fragments();
    for graph in [&graphs[0], &graphs[4], &graphs[23], &graphs[45], &built("h100").unwrap()] {
        for collective in COLLECTIVES {
            let plan = plan(graph, collective);
            for (what, damaged) in damaged_plans(&plan) {
                assert!(verify_plan(graph, &damaged).is_err(), "{collective:?}: {what} passed");
            }
        }
    }
}

/// All ways to damage one step of a program, each of which makes it invalid.
fn damaged_programs(program: &Program) -> Vec<(String, Program)> {
    let mut found = Vec::new();
    for (agent, threads) in program.threads.iter().enumerate() {
        for (thread, own) in threads.iter().enumerate() {
            for step in 0..own.steps.len() {
                let mut damage = |what: &str, change: &dyn Fn(&mut Program)| {
                    let mut other = program.clone();
                    change(&mut other);
                    if other != *program {
                        found.push((format!("{what} of step {agent}.{thread}.{step}"), other));
                    }
                };
                damage("loss", &|p| {
                    p.threads[agent][thread].steps.remove(step);
                });
                damage("dependency", &|p| p.threads[agent][thread].steps[step].after = None);
                damage("exchange of add and copy", &|p| {
                    let action = &mut p.threads[agent][thread].steps[step].action;
                    *action = match *action {
                        Action::Receive => Action::ReceiveReduce,
                        Action::ReceiveReduce => Action::Receive,
                        other => other,
                    };
                });
                damage("place", &|p| {
                    let pieces = p.pieces;
                    let step = &mut p.threads[agent][thread].steps[step];
                    let end = step.to.at + step.count;
                    let shifted =
                        if end < pieces { step.to.at + 1 } else { step.to.at.saturating_sub(1) };
                    step.to.at = shifted;
                    step.from.at = shifted;
                });
                damage("count", &|p| p.threads[agent][thread].steps[step].count += 1);
            }
            let swapped = own.steps.len() == 2 && own.steps[0] != own.steps[1];
            if swapped {
                let mut other = program.clone();
                other.threads[agent][thread].steps.swap(0, 1);
                found.push((format!("order of {agent}.{thread}"), other));
            }
        }
    }
    found
}

#[test]
fn every_damaged_program_is_refused() {
    let graphs = fragments();
    for graph in [&graphs[0], &graphs[4], &graphs[33], &built("h100").unwrap()] {
        for collective in COLLECTIVES {
            let program = lower(&plan(graph, collective)).unwrap();
            check(&program).unwrap();
            for (what, damaged) in damaged_programs(&program) {
                assert!(check(&damaged).is_err(), "{collective:?}: {what} passed");
            }
        }
    }
}

/// A connected graph of 2 to 7 GPUs and up to two switches; rates differ by direction if `one_way`.
fn graphs() -> impl Strategy<Value = LinkGraph> {
    (2usize..7, 0usize..3, any::<bool>(), any::<u64>()).prop_map(
        |(gpus, switches, one_way, seed)| {
            let mut state = seed | 1;
            let mut next = |below: usize| {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                (state >> 33) as usize % below
            };
            let n = gpus + switches;
            let vertices = (0..n).map(|v| {
                let adds = next(2) == 0;
                let role = if v < gpus {
                    Role::Gpu
                } else {
                    Role::Switch { aggregates: adds, multicasts: adds }
                };
                Vertex { name: format!("v{v}"), role }
            });
            let vertices: Vec<Vertex> = vertices.collect();
            let mut links = Vec::new();
            for v in 1..n {
                for _ in 0..1 + next(2) {
                    let (other, rate) = (next(v), 1 + next(7) as u64);
                    let link = |ends, rate| WeightedLink {
                        ends,
                        rate: Rate(rate),
                        latency_ns: 0,
                        kind: LinkKind::Link,
                        one_way,
                    };
                    links.push(link([v, other], rate));
                    if one_way {
                        links.push(link([other, v], 1 + next(7) as u64));
                    }
                }
            }
            LinkGraph::new("random", vertices, links).unwrap()
        },
    )
}

/// The rate that follows from a certificate's numbers.
fn certified(net: &Net, bound: &Bound) -> Ratio {
    let leaving = |inside: &[usize]| -> i64 {
        let arcs = net.arcs.iter();
        arcs.filter(|arc| inside.contains(&arc.from) != inside.contains(&arc.to))
            .map(|arc| arc.cap)
            .sum()
    };
    match &bound.certificate {
        // The direction of the collective.
        Certificate::Cut { inside, capacity } => {
            assert!(*capacity <= leaving(inside));
            Ratio::from(*capacity)
        }
        Certificate::Shards { inside, gpus, capacity } => {
            assert_eq!(inside.iter().filter(|v| net.gpus.contains(v)).count(), *gpus);
            Ratio::new(i128::from(*capacity) * net.gpus.len() as i128, *gpus as i128)
        }
        Certificate::Partition { parts, cuts } => {
            assert_eq!(parts.iter().map(Vec::len).sum::<usize>(), net.gpus.len());
            Ratio::new(cuts.iter().sum::<i64>().into(), 2 * (parts.len() as i128 - 1))
        }
        Certificate::Distances { .. } => panic!("no proof of these collectives"),
        Certificate::Lengths { arcs } => {
            let cost = |at: &ArcLength| {
                let arc = net.arc(at.from, at.to).expect("a length of an arc");
                at.length * Ratio::from(net.arcs[arc].cap)
            };
            let both_ways = net.mirror.is_some()
                && arcs
                    .iter()
                    .all(|at| arcs.iter().any(|back| (back.from, back.to) == (at.to, at.from)));
            let all: Ratio = arcs.iter().map(cost).sum();
            // Trees that are used in both directions have one price for both.
            if both_ways && all == bound.rate + bound.rate { bound.rate } else { all }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    /// On any graph, the plan is valid and reaches its proven bound.
    #[test]
    fn plans_of_any_graph_are_valid_and_optimal(graph in graphs()) {
        for collective in COLLECTIVES {
            let packed = pack(&graph, collective).unwrap();
            let plan = packed.plan(&graph);
            prop_assert!(verify_plan(&graph, &plan).is_ok(), "{:?}: {:?}", collective, verify_plan(&graph, &plan));
            let bound = packed.bound.as_ref().unwrap();
            prop_assert_eq!(bound.rate, packed.rate, "{:?}", collective);
            prop_assert_eq!(certified(&packed.net, bound), bound.rate, "{:?}", collective);
        }
    }
}
