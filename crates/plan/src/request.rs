//! What the search for trees is asked for.

use std::collections::{HashMap, HashSet};

use netsum_topo::{EdgeId, NodeId, SumOrder, Topology};

/// Input of the search for trees.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// The fabric.
    pub topology: &'a Topology,
    /// The host of each rank.
    pub placement: &'a [NodeId],
    /// Switches that may be used.
    pub live: &'a HashSet<NodeId>,
    /// Maximum number of trees; at least 1.
    pub max_trees: usize,
    /// Load of each switch, in any unit; absent is 0.
    pub load: &'a HashMap<NodeId, u64>,
    /// Load of each link between switches, in any unit; absent is 0.
    pub links: &'a HashMap<EdgeId, u64>,
    /// The order in which the job has added so far; `None` for its first plan.
    pub order: Option<&'a SumOrder>,
}
