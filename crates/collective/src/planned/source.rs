//! Where a group's plan comes from, at first and later.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use netsum_topo::links::{Collective, TreePlan};

use super::LostLink;
use super::routes::Routes;
use super::shares::Sharing;

/// Finds a plan without the links that were lost; errors say why there is none.
pub type Replan = dyn Fn(&[LostLink]) -> Result<TreePlan, String> + Send + Sync;

/// The size in bytes from which a plan is faster than what hosts do without it; `None` if it never is.
pub type Turn = dyn Fn(&TreePlan) -> Option<u64> + Send + Sync;

/// Allreduces of a group go over a tree plan.
#[derive(Clone)]
pub struct PlanSource {
    /// Rank 0 reads it at the start, and again before an operation when it has changed. The others need not have it.
    pub file: PathBuf,
    /// Asked at rank 0 when links are lost; without one, sums go over the hosts then.
    pub replan: Option<Arc<Replan>>,
    /// By name of the neighbouring vertex our own address on the link to it. Links without one go over shared memory
    /// within a host, else over the group's address.
    pub ways: BTreeMap<String, IpAddr>,
    /// A link that takes nothing for so long is lost.
    pub silence: Duration,
    /// Asked at rank 0 for the plan that it read at the start; without one, [`MIN_BYTES`] counts.
    pub turn: Option<Arc<Turn>>,
    /// Smaller buffers go over the hosts, whatever `turn` says.
    pub min_bytes: Option<u64>,
    /// Whether the links of the first plan are measured before it is used; the same at all ranks.
    pub measure: bool,
    /// Whether shares follow what flows take. That of rank 0 counts.
    pub sharing: Sharing,
}

impl PlanSource {
    /// A source with the usual settings.
    pub fn new(file: PathBuf) -> PlanSource {
        PlanSource {
            file,
            replan: None,
            ways: BTreeMap::new(),
            silence: Duration::from_secs(3),
            turn: None,
            min_bytes: None,
            measure: false,
            sharing: Sharing::default(),
        }
    }

    /// From which size on a plan is used, for as long as the job runs: ranks number operations before they know of
    /// another plan, and must decide alike.
    pub(crate) fn least_bytes(&self, plan: &TreePlan) -> u64 {
        match (self.min_bytes, &self.turn) {
            (Some(bytes), _) => bytes,
            (None, Some(turn)) => turn(plan).map_or(u64::MAX, |bytes| bytes.max(MIN_BYTES)),
            (None, None) => MIN_BYTES,
        }
    }

    /// Reads a plan for an allreduce of `ranks`. Errors name the file and the problem.
    pub(crate) fn read(&self, ranks: u32) -> Result<TreePlan, String> {
        let file = self.file.display();
        let text = std::fs::read_to_string(&self.file).map_err(|e| format!("{file}: {e}"))?;
        let plan: TreePlan =
            serde_json::from_str(&text).map_err(|e| format!("{file}: not a tree plan: {e}"))?;
        check(&plan, ranks).map_err(|problem| format!("{file}: {problem}"))?;
        Ok(plan)
    }
}

/// Whether a plan is one for an allreduce of `ranks` that hosts can run.
pub(crate) fn check(plan: &TreePlan, ranks: u32) -> Result<(), String> {
    if plan.collective != Collective::Allreduce {
        let kind = match plan.collective {
            Collective::Broadcast { .. } => "a broadcast",
            Collective::Reduce { .. } => "a reduce",
            Collective::Allgather => "an all-gather",
            Collective::ReduceScatter => "a reduce-scatter",
            Collective::Allreduce => "an allreduce",
        };
        return Err(format!("the plan is for {kind}; a job takes plans for an allreduce"));
    }
    if plan.gpus.len() != ranks as usize {
        return Err(format!("the plan has {} ranks, and the group has {ranks}", plan.gpus.len()));
    }
    Routes::of_rank(plan, 0).map(drop).map_err(|error| error.to_string())
}

impl fmt::Debug for PlanSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PlanSource({}, replan: {})", self.file.display(), self.replan.is_some())
    }
}

/// The hosts' path sends up to this much in one step from everybody to everybody, which no tree is ahead of, whatever
/// a topology file says of latencies.
const MIN_BYTES: u64 = 16 << 10;
