//! A plan over GPUs: parts of a buffer, and the trees that each part takes.

use serde::{Deserialize, Serialize};

use crate::ratio::Ratio;

/// Collective operation. Roots are ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum Collective {
    /// The root's buffer to all.
    Broadcast {
        /// Rank that has the data.
        root: usize,
    },
    /// The sum of all buffers to the root.
    Reduce {
        /// Rank that gets the sum.
        root: usize,
    },
    /// All shards, which have equal size, to all.
    Allgather,
    /// The sum of a shard to its owner.
    ReduceScatter,
    /// The sum of all buffers to all.
    Allreduce,
    /// Another block of every rank's buffer to every rank.
    Alltoall,
}

/// All trees of a collective. Its JSON is described in `docs/tree-plan.md`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TreePlan {
    /// [`TREE_PLAN_FORMAT`].
    pub format: String,
    /// The collective.
    pub collective: Collective,
    /// Name of the fabric.
    pub fabric: String,
    /// Names of GPUs and switches; other fields refer to them by index.
    pub vertices: Vec<String>,
    /// The vertex of each rank.
    pub gpus: Vec<usize>,
    /// algbw in bits per second that the plan reaches: bytes of the whole buffer over time.
    pub rate_bps: Ratio,
    /// Flows, whose shares add up to 1. Flows of one root are adjacent, in the order of ranks.
    pub flows: Vec<PlannedFlow>,
}

/// A part of the buffer and its tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannedFlow {
    /// Share of the buffer; for all-gather and reduce-scatter, of the concatenated shards.
    pub share: Ratio,
    /// Vertex where the sum is completed, or where the data comes from.
    pub root: usize,
    /// Paths to the root, in an order in which data can take them: sender, switches that only forward, receiver, which
    /// adds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub up: Vec<Vec<usize>>,
    /// Paths from the root, in an order in which data can take them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub down: Vec<Vec<usize>>,
}

/// The only version so far.
pub const TREE_PLAN_FORMAT: &str = "netsum-tree-plan-1";
