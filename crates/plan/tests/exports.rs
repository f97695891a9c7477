//! Files for executors: each computes its collective, and breaks no rule of the parser that reads it.

mod common;

use netsum_plan::export::{Executor, export, mscclpp_refuses, rccl_refuses};
use netsum_plan::pack::pack;
use netsum_plan::program::{check, read_msccl, read_mscclpp, verify_plan};
use netsum_topo::Ratio;
use netsum_topo::links::{Collective, LinkGraph, LinkKind, built};

use common::{collective, irregular};

const COLLECTIVES: [Collective; 5] = [
    Collective::Broadcast { root: 0 },
    Collective::Reduce { root: 1 },
    Collective::Allgather,
    Collective::ReduceScatter,
    Collective::Allreduce,
];

fn fast(name: &str) -> LinkGraph {
    let kinds = [LinkKind::Nvlink, LinkKind::Xgmi, LinkKind::Nic, LinkKind::Link];
    built(name).unwrap().only(&kinds).unwrap()
}

/// Exports a plan to an executor, checks the file, and returns the part of the rate that is kept.
fn exported(graph: &LinkGraph, collective: Collective, executor: Executor) -> f64 {
    let what = format!("{} {collective:?} {executor:?}", graph.name());
    let plan = pack(graph, collective).unwrap().plan(graph);
    let file = export(graph, &plan, executor).unwrap_or_else(|error| panic!("{what}: {error}"));
    let (refused, program) = match executor {
        Executor::Msccl => (rccl_refuses(&file.text), read_msccl(&file.text)),
        Executor::Mscclpp => (mscclpp_refuses(&file.text), read_mscclpp(&file.text)),
    };
    assert_eq!(refused, None, "{what}");
    let program = program.unwrap();
    assert_eq!(program.collective, collective, "{what}");
    assert_eq!(program.pieces, file.pieces, "{what}");
    check(&program).unwrap_or_else(|fault| panic!("{what}: {fault}"));
    assert!(file.kept <= 1.000_001, "{what}: {}", file.kept);
    file.kept
}

#[test]
fn machines_run_on_executors() {
    for (name, least) in [
        ("dgx1p", 0.97),
        ("dgx1v", 0.97),
        ("dgx2", 0.97),
        ("a100", 0.97),
        ("h100", 0.5),
        ("mi250", 0.9),
        ("torus:4x4", 0.9),
        ("a100x2", 0.9),
    ] {
        let graph = fast(name);
        for collective in COLLECTIVES {
            for executor in [Executor::Msccl, Executor::Mscclpp] {
                let kept = exported(&graph, collective, executor);
                println!("{name} {collective:?} {executor:?} keeps {kept:.3}");
                assert!(kept >= least, "{name} {collective:?} {executor:?} keeps {kept}");
            }
        }
    }
}

#[test]
fn irregular_fabrics_run_on_executors() {
    for seed in 0..80 {
        let graph = irregular(seed);
        let executor = if seed % 2 == 0 { Executor::Msccl } else { Executor::Mscclpp };
        let kept = exported(&graph, collective(seed / 2), executor);
        assert!(kept > 0.5, "{seed}: {kept}");
    }
}

/// A plan from a file that is valid, but whose rate and shares multiply to fractions of more than 127 bits.
#[test]
fn plans_too_fine_to_be_computed_with_are_refused() {
    let graph = fast("dgx1v");
    let mut plan = pack(&graph, Collective::Allreduce).unwrap().plan(&graph);
    let part = Ratio::new(1, 1 << 40);
    let mut other = plan.flows[0].clone();
    plan.flows[0].share = plan.flows[0].share - part;
    other.share = part;
    plan.flows.push(other);
    plan.rate_bps = Ratio::new(1, i64::MAX.into());
    verify_plan(&graph, &plan).unwrap();
    let error = export(&graph, &plan, Executor::Msccl).unwrap_err().to_string();
    assert!(error.contains("too fine to be multiplied; round them"), "{error}");
}

/// The rules find what the parsers of the executors find.
#[test]
fn files_against_the_rules_are_refused() {
    let graph = fast("dgx1v");
    let plan = pack(&graph, Collective::ReduceScatter).unwrap().plan(&graph);
    let file = export(&graph, &plan, Executor::Msccl).unwrap().text;
    for (from, to, words) in [
        ("\"reducescatter\"", "\"reduce_scatter\"", "collective \"reduce_scatter\" is not known"),
        ("cnt=\"", "cnt=\"72", "chunks of a step"),
        ("inplace=\"1\"", "inplace=\"0\"", "neither in place nor out of place"),
        ("type=\"rrc\"", "type=\"rrx\"", "type \"rrx\" is not known"),
        ("hasdep=\"1\"", "hasdep=\"0\"", "hasdep and depid differ"),
        ("s=\"0\" type", "s=\"64\" type", "not in its place"),
        ("<tb id=\"0\"", "<tb id=\"64\"", "do not count from 0"),
        ("nchannels=\"", "nchannels=\"9", "nchannels"),
        ("minBytes=\"0\"", "minBytes=\"-1\"", "no buffer has"),
        ("srcoff=\"", "srcoff=\"9999", "srcoff"),
    ] {
        assert!(file.contains(from), "{from}");
        let problem = rccl_refuses(&file.replacen(from, to, 1)).unwrap_or_default();
        assert!(problem.contains(words), "{from} as {to}: {problem:?}");
    }
    let file = export(&graph, &plan, Executor::Mscclpp).unwrap().text;
    for (from, to, words) in [
        ("\"inplace\"", "\"in_place\"", "inplace is not given"),
        ("\"signal\"", "\"sgnal\"", "is not known"),
        ("\"memory\"", "\"port\"", "is not memory"),
        ("\"sum\"", "\"max\"", "not a sum"),
        ("\"buffer_id\": 0", "\"buffer_id\": 99", "its remote buffer"),
        ("\"id\": 0", "\"id\": 5", "not its place"),
    ] {
        assert!(file.contains(from), "{from}");
        let problem = mscclpp_refuses(&file.replacen(from, to, 1)).unwrap_or_default();
        assert!(problem.contains(words), "{from} as {to}: {problem:?}");
    }
}
