//! Converts packed trees to the plan that is written and executed.

use netsum_topo::Ratio;
use netsum_topo::links::{LinkGraph, PlannedFlow, TREE_PLAN_FORMAT, TreePlan};

use super::packed::Packed;
use super::tree::{Hop, Tree};

impl Packed {
    /// The plan, with [simple](Packed::simple) shares. `graph` is the one that was packed.
    pub fn plan(&self, graph: &LinkGraph) -> TreePlan {
        if self.has_simple_shares() { self.as_plan(graph) } else { self.simple().as_plan(graph) }
    }

    /// The plan with the shares as they are.
    pub(super) fn as_plan(&self, graph: &LinkGraph) -> TreePlan {
        let rank = |root: usize| self.net.gpus.iter().position(|&gpu| gpu == root);
        let mut flows: Vec<_> = self.flows.iter().collect();
        flows.sort_by_key(|flow| rank(flow.root));
        let flows = flows.into_iter().map(|flow| PlannedFlow {
            share: flow.weight / self.rate,
            root: flow.root,
            up: flow.up.as_ref().map_or_else(Vec::new, upward),
            down: flow.down.as_ref().map_or_else(Vec::new, downward),
        });
        TreePlan {
            format: TREE_PLAN_FORMAT.to_owned(),
            collective: self.collective,
            fabric: graph.name().to_owned(),
            vertices: graph.vertices().iter().map(|vertex| vertex.name.clone()).collect(),
            gpus: self.net.gpus.clone(),
            rate_bps: written(self.rate, self.net.unit_bps),
            flows: flows.collect(),
        }
    }
}

/// A rate of so many units in bits per second, with parts that plans can hold; rounded down if it has others.
pub(super) fn written(rate: Ratio, unit_bps: u64) -> Ratio {
    let unit = Ratio::new(unit_bps.into(), 1);
    let fits = |rate: &Ratio| rate.num().max(rate.den()) <= i64::MAX.into();
    let exact = rate.checked_mul(unit).filter(fits);
    exact.unwrap_or_else(|| {
        let bps = rate.to_f64() * unit_bps as f64;
        // Below the rounding error of the product, and a whole number of a fraction that leaves it below 2⁶².
        let parts = 1i128 << (60 - (bps.log2().ceil() as i32).clamp(0, 60));
        Ratio::new((bps * (1.0 - ROUNDING) * parts as f64).floor() as i128, parts)
    })
}

fn downward(tree: &Tree) -> Vec<Vec<usize>> {
    tree.hops.iter().map(way).collect()
}

/// The hops from the leaves to the root, each path reversed.
fn upward(tree: &Tree) -> Vec<Vec<usize>> {
    let turned = |hop: &Hop| way(hop).into_iter().rev().collect();
    tree.hops.iter().rev().map(turned).collect()
}

fn way(hop: &Hop) -> Vec<usize> {
    [hop.from].into_iter().chain(hop.via.iter().copied()).chain([hop.to]).collect()
}

/// More than the relative error of a few operations in floating point.
const ROUNDING: f64 = 1e-15;
