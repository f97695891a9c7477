//! What a plan over GPUs is: parts of a buffer, and the trees that each part takes.

use serde::{Deserialize, Serialize};

use crate::ratio::Ratio;

/// What all GPUs do together. Roots are ranks.
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
    /// Everybody's equal shard to all.
    Allgather,
    /// The sum of everybody's shard to each.
    ReduceScatter,
    /// The sum of all buffers to all.
    Allreduce,
}

/// All trees of a collective. Its JSON is described in `docs/tree-plan.md`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TreePlan {
    /// [`TREE_PLAN_FORMAT`].
    pub format: String,
    /// What is done.
    pub collective: Collective,
    /// Name of the fabric.
    pub fabric: String,
    /// Names of GPUs and switches; all else names them by index.
    pub vertices: Vec<String>,
    /// By rank the vertex.
    pub gpus: Vec<usize>,
    /// algbw in bits per second that the links allow: bytes of the whole buffer over time.
    pub rate_bps: Ratio,
    /// Shares add up to 1. Flows of one root are neighbours, in the order of ranks.
    pub flows: Vec<PlannedFlow>,
}

/// A part of the buffer and its way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannedFlow {
    /// Part of the buffer. All-gather and reduce-scatter: of the concatenated shards.
    pub share: Ratio,
    /// Vertex where the sum is complete, or where the data is from.
    pub root: usize,
    /// Ways to the root, in the order in which data can take them: sender, switches that only pass,
    /// receiver, which adds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub up: Vec<Vec<usize>>,
    /// Ways from the root, in the order in which data can take them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub down: Vec<Vec<usize>>,
}

/// The only version so far.
pub const TREE_PLAN_FORMAT: &str = "netsum-tree-plan-1";
