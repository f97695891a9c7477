//! Plans of several process groups that communicate at the same time over the same links.

use netsum_topo::Ratio;
use netsum_topo::links::TreePlan;
use serde::{Deserialize, Serialize};

use crate::pack::ArcLength;

/// A process group's part of a plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannedGroup {
    /// What the user calls it.
    pub name: String,
    /// Bytes of its whole buffer.
    pub bytes: u64,
    /// Its trees, over its own GPUs and all switches; the rate is the one that it has beside the others.
    pub plan: TreePlan,
}

/// Trees of several groups whose collectives begin and end together. Its JSON is described in `docs/tree-plan.md`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupPlan {
    /// [`GROUP_PLAN_FORMAT`].
    pub format: String,
    /// Name of the fabric.
    pub fabric: String,
    /// How often in a second all groups can do their collectives, once each.
    pub rounds_per_s: Ratio,
    /// The groups.
    pub groups: Vec<PlannedGroup>,
    /// A whole length per link, of the fabric's vertices, under which the trees of all groups together cost so much
    /// that links do not offer more rounds. Other links have length 0.
    pub lengths: Vec<ArcLength>,
}

/// The only version so far.
pub const GROUP_PLAN_FORMAT: &str = "netsum-group-plan-1";
