//! Several kinds of links at once, each with a set-up time: the buffer is split so that all finish together.
//!
//! With rates Bᵢ and set-up times Tᵢ, D bytes are over at T = (D + Σ Bᵢ·Tᵢ) / Σ Bᵢ over the kinds with Tᵢ < T, and
//! kind i carries Bᵢ·(T − Tᵢ). For NVLink (T = 0) and PCIe that is Blink's (MLSys 2020)
//! D_PCIe = D·B_P/(B_P + B_N) − T_P·B_P·B_N/(B_P + B_N), and PCIe only from D > T_P·B_N on.

use netsum_topo::links::{
    Collective, LinkGraph, LinkKind, PlannedFlow, TREE_PLAN_FORMAT, TreePlan,
};
use netsum_topo::{Ratio, lcm};
use serde::Serialize;

use super::convert::written;
use super::packed::Packed;
use super::packing::pack;
use super::shares::rounded;
use crate::error::PackError;

/// A kind of links and its set-up time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct KindCost {
    /// Kind; its links are planned separately.
    pub kind: LinkKind,
    /// Set-up time in seconds.
    pub setup: f64,
}

/// The part of one kind of links.
#[derive(Debug, Clone, Serialize)]
pub struct Part {
    /// Kind.
    pub kind: LinkKind,
    /// Set-up time in seconds.
    pub setup: f64,
    /// algbw of its trees alone, GB/s.
    pub rate: f64,
    /// Bytes of the buffer; 0 if its set-up takes longer than everything else.
    pub bytes: f64,
}

/// Several kinds of links used at once.
#[derive(Debug, Clone, Serialize)]
pub struct Hybrid {
    /// By kind, in the order requested; kinds that do not connect the GPUs are missing.
    pub parts: Vec<Part>,
    /// Total time, with set-up and without latency.
    pub seconds: f64,
    /// Total time with the best kind alone.
    pub alone_seconds: f64,
    /// All trees; the plan's rate includes set-up.
    pub plan: TreePlan,
}

/// Bytes for each of some classes of `(bytes per second, seconds of set-up)`, and the total time.
///
/// Classes are used in the order of their set-up, as long as the set-up ends before everything else.
pub fn split(classes: &[(f64, f64)], bytes: f64) -> (Vec<f64>, f64) {
    let mut order: Vec<usize> = (0..classes.len()).collect();
    order.sort_by(|&a, &b| classes[a].1.total_cmp(&classes[b].1));
    let (mut rate, mut owed, mut end) = (0.0, bytes, f64::INFINITY);
    for class in order {
        let (own, setup) = classes[class];
        if setup >= end {
            break;
        }
        rate += own;
        owed += own * setup;
        end = owed / rate;
    }
    (classes.iter().map(|&(own, setup)| own * (end - setup).max(0.0)).collect(), end)
}

/// The best trees on each kind of links separately, and the buffer split so that all finish together.
///
/// Errors: no kind connects the GPUs.
pub fn pack_hybrid(
    graph: &LinkGraph,
    collective: Collective,
    kinds: &[KindCost],
    bytes: f64,
) -> Result<Hybrid, PackError> {
    let mut found = Vec::new();
    let mut refused = None;
    for cost in kinds {
        match graph.only(&[cost.kind]) {
            Ok(part) => {
                let packed = pack(&part, collective)?;
                found.push((*cost, packed, part));
            }
            Err(error) => refused = Some(error),
        }
    }
    if found.is_empty() {
        return Err(refused.map_or(PackError::FewGpus { found: 0 }, PackError::from));
    }
    let classes: Vec<(f64, f64)> =
        found.iter().map(|(cost, packed, _)| (packed.rate_bps() / 8.0, cost.setup)).collect();
    let (amounts, seconds) = split(&classes, bytes);
    let alone = classes.iter().map(|(rate, setup)| setup + bytes / rate);
    let part = |((cost, packed, _), &bytes): (&(KindCost, Packed, LinkGraph), &f64)| Part {
        kind: cost.kind,
        setup: cost.setup,
        rate: packed.rate_bps() / 8e9,
        bytes,
    };
    let parts = found.iter().zip(&amounts).map(part).collect();
    let alone_seconds = alone.fold(f64::INFINITY, f64::min);
    let plans: Vec<TreePlan> = found.iter().map(|(_, packed, part)| packed.plan(part)).collect();
    let mut plan = merged(graph, &plans, &amounts, bytes);
    if common(&plan).is_none() {
        let coarse = |(_, packed, part): &(KindCost, Packed, LinkGraph)| {
            Some(rounded(packed, PART_SHARES)?.plan(part))
        };
        let plans: Option<Vec<TreePlan>> = found.iter().map(coarse).collect();
        plan = merged(graph, &plans.expect("more shares than GPUs"), &amounts, bytes);
    }
    Ok(Hybrid { parts, seconds, alone_seconds, plan })
}

/// The common denominator of all shares, if plans can hold it.
fn common(plan: &TreePlan) -> Option<i128> {
    let mut shares = plan.flows.iter().map(|flow| flow.share.den());
    let start = plan.gpus.len() as i128;
    shares.try_fold(start, |all, den| lcm(all, den).filter(|&all| all < COMMON_MAX))
}

/// The plans of parts of the graph as one, each with its share of the buffer.
fn merged(graph: &LinkGraph, plans: &[TreePlan], amounts: &[f64], bytes: f64) -> TreePlan {
    let names: Vec<String> = graph.vertices().iter().map(|vertex| vertex.name.clone()).collect();
    let place =
        |name: &String| names.iter().position(|known| known == name).expect("a part's vertex");
    // Shares are multiples of one over this: fractions that executors can handle.
    let mut pieces: Vec<i128> =
        amounts.iter().map(|amount| (amount / bytes * SHARES as f64).round() as i128).collect();
    let largest = (0..pieces.len()).max_by_key(|&i| pieces[i]).expect("a plan at least");
    pieces[largest] += SHARES - pieces.iter().sum::<i128>();
    let mut flows = Vec::new();
    let mut rate: Option<Ratio> = None;
    for (plan, &pieces) in plans.iter().zip(&pieces).filter(|(_, pieces)| **pieces > 0) {
        let share = Ratio::new(pieces, SHARES);
        let at: Vec<usize> = plan.vertices.iter().map(place).collect();
        let moved = |ways: &[Vec<usize>]| -> Vec<Vec<usize>> {
            ways.iter().map(|way| way.iter().map(|&v| at[v]).collect()).collect()
        };
        flows.extend(plan.flows.iter().map(|flow| PlannedFlow {
            share: flow.share * share,
            root: at[flow.root],
            up: moved(&flow.up),
            down: moved(&flow.down),
        }));
        let allowed = written(plan.rate_bps / share, 1);
        rate = Some(rate.map_or(allowed, |rate| rate.min(allowed)));
    }
    let gpus = graph.gpus();
    flows.sort_by_key(|flow| gpus.iter().position(|&gpu| gpu == flow.root));
    TreePlan {
        format: TREE_PLAN_FORMAT.to_owned(),
        collective: plans[0].collective,
        fabric: graph.name().to_owned(),
        vertices: names.clone(),
        gpus,
        rate_bps: rate.expect("a plan at least"),
        flows,
    }
}

const SHARES: i128 = 1 << 12;
/// Shares of the trees of one kind, if their exact ones are too fine together.
const PART_SHARES: u64 = 1 << 24;
const COMMON_MAX: i128 = 1 << 62;
