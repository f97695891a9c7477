//! Converts packed trees to the plan that is written and executed.

use netsum_topo::Ratio;
use netsum_topo::links::{LinkGraph, PlannedFlow, TREE_PLAN_FORMAT, TreePlan};

use super::packed::Packed;
use super::tree::{Hop, Tree};

impl Packed {
    /// The plan. `graph` is the one that was packed.
    pub fn plan(&self, graph: &LinkGraph) -> TreePlan {
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
            rate_bps: self.rate * Ratio::new(self.net.unit_bps.into(), 1),
            flows: flows.collect(),
        }
    }
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
