//! A tree plan in which what one rank does, all do, moved: some trees, and automorphisms of the fabric that give the
//! others.

use netsum_topo::Ratio;
use netsum_topo::links::{Collective, LinkGraph, PlannedFlow, TREE_PLAN_FORMAT, TreePlan};
use serde::{Deserialize, Serialize};

/// A permutation of all vertices that keeps every link and its rate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Automorphism {
    /// After so many times every vertex is back.
    pub order: usize,
    /// By vertex the one that takes its place.
    pub to: Vec<usize>,
}

/// Trees of the first rank, and automorphisms whose combinations move that rank to every other one exactly once. Its
/// JSON is described in `docs/tree-plan.md`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OrbitPlan {
    /// [`ORBIT_PLAN_FORMAT`].
    pub format: String,
    /// All-gather, reduce-scatter or allreduce.
    pub collective: Collective,
    /// Name of the fabric.
    pub fabric: String,
    /// Names of GPUs and switches; other fields refer to them by index.
    pub vertices: Vec<String>,
    /// The vertex of each rank.
    pub gpus: Vec<usize>,
    /// algbw in bits per second: bytes of the whole buffer over time.
    pub rate_bps: Ratio,
    /// Automorphisms in any order: they commute. Their orders multiply to the number of ranks.
    pub automorphisms: Vec<Automorphism>,
    /// Flows of the first rank; those of the others are their images. The shares of all images add up to 1.
    pub flows: Vec<PlannedFlow>,
    /// Why no plan is faster. All-gather, reduce-scatter: a set whose shards must leave it, or get into it. Allreduce:
    /// disjoint sets, between which 2(p − 1) messages cross per element.
    pub sets: Vec<Vec<usize>>,
}

impl OrbitPlan {
    /// All trees of all ranks: their number grows with the square of the ranks.
    pub fn expanded(&self) -> TreePlan {
        let mut moved: Vec<Vec<usize>> = vec![(0..self.vertices.len()).collect()];
        for automorphism in &self.automorphisms {
            let before = moved.len();
            for _ in 1..automorphism.order {
                let last = moved.len() - before;
                for at in last..last + before {
                    moved.push(moved[at].iter().map(|&v| automorphism.to[v]).collect());
                }
            }
        }
        let first = self.gpus.first().copied().unwrap_or(0);
        moved.sort_by_key(|to| to[first]);
        let flow = |to: &Vec<usize>, flow: &PlannedFlow| {
            let ways = |ways: &Vec<Vec<usize>>| -> Vec<Vec<usize>> {
                ways.iter().map(|way| way.iter().map(|&v| to[v]).collect()).collect()
            };
            let (up, down) = (ways(&flow.up), ways(&flow.down));
            PlannedFlow { share: flow.share, root: to[flow.root], up, down }
        };
        let all = moved.iter().flat_map(|to| self.flows.iter().map(move |one| flow(to, one)));
        let mut flows: Vec<PlannedFlow> = all.collect();
        let mut rank = vec![usize::MAX; self.vertices.len()];
        self.gpus.iter().enumerate().for_each(|(at, &gpu)| rank[gpu] = at);
        flows.sort_by_key(|flow| rank[flow.root]);
        TreePlan {
            format: TREE_PLAN_FORMAT.to_owned(),
            collective: self.collective,
            fabric: self.fabric.clone(),
            vertices: self.vertices.clone(),
            gpus: self.gpus.clone(),
            rate_bps: self.rate_bps,
            flows,
        }
    }

    /// Names of a fabric's vertices, as plans have them.
    pub(crate) fn names(graph: &LinkGraph) -> Vec<String> {
        graph.vertices().iter().map(|vertex| vertex.name.clone()).collect()
    }
}

/// The only version so far.
pub const ORBIT_PLAN_FORMAT: &str = "netsum-orbit-plan-1";
