//! Sources of a group's plan: the first one and later ones.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use netsum_topo::links::{Collective, TreePlan};

use super::routes::Routes;
use super::shares::Sharing;
use super::{LostLink, networks};

/// Finds a plan without the lost links; errors give the reason.
pub type Replan = dyn Fn(&[LostLink]) -> Result<TreePlan, String> + Send + Sync;

/// The size in bytes from which a plan is faster than hosts without it; `None` if it never is.
pub type Turn = dyn Fn(&TreePlan) -> Option<u64> + Send + Sync;

/// Origin of a group's first plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Rank 0 reads it at the start, and again before an operation when it has changed. The other ranks need no file.
    File(PathBuf),
    /// A number of networks that connect all hosts, with one rank per host.
    Networks(usize),
}

/// Source of the tree plan for a group's allreduces.
#[derive(Clone)]
pub struct PlanSource {
    /// The first plan.
    pub origin: Origin,
    /// Called at rank 0 when links are lost; without it, sums then use the host path.
    pub replan: Option<Arc<Replan>>,
    /// By name of the neighbouring vertex the own address on the link to it. Links without one use shared memory within
    /// a host, else the group's address.
    pub ways: BTreeMap<String, IpAddr>,
    /// A link that accepts no data for this long is lost.
    pub silence: Duration,
    /// Called at rank 0 for the plan that it read at the start; without it, [`MIN_BYTES`] applies.
    pub turn: Option<Arc<Turn>>,
    /// Smaller buffers use the host path, in place of the result of `turn`.
    pub min_bytes: Option<u64>,
    /// Whether the links of the first plan are measured before use; the same at all ranks.
    pub measure: bool,
    /// Whether shares follow the flows' times. Rank 0's value applies.
    pub sharing: Sharing,
}

impl PlanSource {
    /// A source with default settings.
    pub fn new(file: PathBuf) -> PlanSource {
        PlanSource::of(Origin::File(file))
    }

    /// A source of plans over several networks at once. `interfaces`: this host's, by name or by address, in the order of
    /// the networks, which must be the same at all ranks. Errors name the interface.
    pub fn over_interfaces(interfaces: &str) -> Result<PlanSource, String> {
        let mut ways = BTreeMap::new();
        for (network, word) in interfaces.split(',').map(str::trim).enumerate() {
            let found = word.parse().ok().or_else(|| netsum_net::address_of(word));
            let none = || format!("{word:?} is no address, and no interface that has one");
            let address = found.ok_or_else(none)?;
            if ways.values().any(|known| *known == address) {
                return Err(format!("{word:?} is named twice"));
            }
            ways.insert(networks::name(network), address);
        }
        let source = PlanSource::of(Origin::Networks(ways.len()));
        Ok(PlanSource { ways, min_bytes: Some(NETWORKS_MIN_BYTES), ..source })
    }

    fn of(origin: Origin) -> PlanSource {
        PlanSource {
            origin,
            replan: None,
            ways: BTreeMap::new(),
            silence: Duration::from_secs(3),
            turn: None,
            min_bytes: None,
            measure: false,
            sharing: Sharing::default(),
        }
    }

    /// The size from which a plan is used, as long as the job runs: ranks number operations before they know of another
    /// plan, and must decide alike.
    pub(crate) fn least_bytes(&self, plan: &TreePlan) -> u64 {
        match (self.min_bytes, &self.turn) {
            (Some(bytes), _) => bytes,
            (None, Some(turn)) => turn(plan).map_or(u64::MAX, |bytes| bytes.max(MIN_BYTES)),
            (None, None) => MIN_BYTES,
        }
    }

    /// Modification time of the file, if there is one.
    pub(crate) fn modified(&self) -> Option<SystemTime> {
        match &self.origin {
            Origin::File(path) => std::fs::metadata(path).and_then(|m| m.modified()).ok(),
            Origin::Networks(_) => None,
        }
    }

    /// A plan without the lost links. Errors give the reason.
    pub(crate) fn replanned(&self, lost: &[LostLink], ranks: u32) -> Result<TreePlan, String> {
        match (&self.origin, &self.replan) {
            (Origin::Networks(count), _) => networks::plan(ranks as usize, *count, lost),
            (_, Some(replan)) => replan(lost),
            (_, None) => {
                Err("no topology was given to plan anew on; set NETSUM_PLAN_TOPOLOGY".into())
            }
        }
    }

    /// Reads a plan for an allreduce of `ranks`. Errors name the file and the problem.
    pub(crate) fn read(&self, ranks: u32) -> Result<TreePlan, String> {
        let path = match &self.origin {
            Origin::File(path) => path,
            Origin::Networks(count) => return networks::plan(ranks as usize, *count, &[]),
        };
        let file = path.display();
        let text = std::fs::read_to_string(path).map_err(|e| format!("{file}: {e}"))?;
        let plan: TreePlan =
            serde_json::from_str(&text).map_err(|e| format!("{file}: not a tree plan: {e}"))?;
        check(&plan, ranks).map_err(|problem| format!("{file}: {problem}"))?;
        Ok(plan)
    }
}

/// Checks that a plan is an allreduce of `ranks` that hosts can run.
pub(crate) fn check(plan: &TreePlan, ranks: u32) -> Result<(), String> {
    if plan.collective != Collective::Allreduce {
        let kind = match plan.collective {
            Collective::Broadcast { .. } => "a broadcast",
            Collective::Reduce { .. } => "a reduce",
            Collective::Allgather => "an all-gather",
            Collective::ReduceScatter => "a reduce-scatter",
            Collective::Allreduce => "an allreduce",
            Collective::Alltoall => "an all-to-all",
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
        write!(f, "PlanSource({:?}, replan: {})", self.origin, self.replan.is_some())
    }
}

/// The host path sends buffers up to this size in one step from every rank to every other, which no tree is faster
/// than, whatever latencies a topology file has.
const MIN_BYTES: u64 = 16 << 10;
/// Below this size, a peer link's threads cost more than several networks save.
const NETWORKS_MIN_BYTES: u64 = 256 << 10;
