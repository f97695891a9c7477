//! The plan in the form that workers receive.

use std::collections::HashSet;
use std::net::SocketAddr;

use netsum_proto::atp::WorkerPosition;
use netsum_topo::{AggregationTree, Child, NodeId, Plan, Protocol};
use netsum_wire::MAX_SCOPED_RANKS;

use crate::PlanError;
use crate::racks::Racks;

/// A plan with the names and addresses of its nodes and the keys of packets. A worker has no fabric file, so
/// node numbers in `plan` are indices into `aggregators`.
#[derive(Debug, Clone, PartialEq)]
pub struct JobPlan {
    /// The plan.
    pub plan: Plan,
    /// Switches and servers, by node number.
    pub aggregators: Vec<Aggregator>,
    /// Which of their keys ranks use for sealed packets; 0: packets are not sealed.
    pub key_id: u64,
}

/// A switch or server of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Aggregator {
    /// Name in the fabric file.
    pub name: String,
    /// UDP address for data packets; `None` for a switch that only forwards.
    pub address: Option<SocketAddr>,
}

/// Attachment of a rank to one tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attachment {
    /// Tree number.
    pub tree: u8,
    /// The switch that the rank sends to.
    pub switch: String,
    /// Its UDP address.
    pub address: SocketAddr,
    /// The rank's index among the switch's children.
    pub child: u8,
}

impl JobPlan {
    /// The attachments of `rank`, by tree number. Errors: a tree without the rank, a number out of range, a switch
    /// without address.
    pub fn attachments(&self, rank: u32) -> Result<Vec<Attachment>, PlanError> {
        (0..self.plan.trees.len()).map(|tree| self.attachment(tree, rank)).collect()
    }

    /// The positions of `rank` below each server of a plan of protocol `atp`.
    pub fn places(&self, rank: u32) -> Result<Vec<WorkerPosition>, PlanError> {
        let no_rank = || PlanError::new(format!("a tree has no rank {rank}"));
        let place = |tree| Racks::of(tree)?.place(rank).ok_or_else(no_rank);
        self.plan.trees.iter().map(place).collect()
    }

    /// How long ranks wait for a new plan after a tree falls silent before they give up the trees, in nanoseconds.
    pub fn patience_ns(&self) -> u64 {
        if self.plan.protocol.has_pools() { POOL_PATIENCE_NS } else { PATIENCE_NS }
    }

    /// Checks the job and epoch numbers, that the order contains ranks `0..size` once each, that sizes are in range,
    /// and that every rank is attached to every tree.
    pub fn validate(&self, size: u32) -> Result<(), PlanError> {
        let plan = &self.plan;
        if plan.job == 0 || plan.epoch == 0 {
            return Err(PlanError::new(format!("job {}, epoch {}", plan.job, plan.epoch)));
        }
        let ranks: HashSet<u32> = plan.order.ranks().into_iter().collect();
        if ranks.len() != size as usize || ranks.iter().any(|&rank| rank >= size) {
            let problem = format!("order {} is not of ranks 0..{size}", plan.order);
            return Err(PlanError::new(problem));
        }
        if !(plan.release_fraction > 0.0 && plan.release_fraction <= 1.0) {
            return Err(PlanError::new(format!("release fraction {}", plan.release_fraction)));
        }
        let sizes = [plan.fragment_bytes, plan.window_max];
        if !plan.trees.is_empty() && sizes.iter().any(|&n| n == 0 || n > u32::from(u16::MAX)) {
            let problem = format!("fragments of {} bytes, window {}", sizes[0], sizes[1]);
            return Err(PlanError::new(problem));
        }
        if !(plan.scale == 0.0 || plan.scale.is_normal() && plan.scale > 0.0) {
            return Err(PlanError::new(format!("scale {}", plan.scale)));
        }
        if plan.copies {
            self.check_copies(size)?;
        }
        if plan.protocol == Protocol::Atp {
            for tree in &plan.trees {
                Racks::of(tree)?.check(size)?;
            }
        }
        (0..size).try_for_each(|rank| self.attachments(rank).map(drop))
    }

    /// Checks that every tree has a copy, and that the job may have them.
    fn check_copies(&self, size: u32) -> Result<(), PlanError> {
        let Plan { protocol, trees, release_fraction, .. } = &self.plan;
        let (first, second) = trees.split_at(trees.len() / 2);
        if first != second {
            return Err(PlanError::new(
                "the second half of its trees are no copies of the first half",
            ));
        }
        if *release_fraction < 1.0 || size > MAX_SCOPED_RANKS {
            let problem = format!("copies of trees for {size} ranks with protocol {protocol}");
            return Err(PlanError::new(problem));
        }
        // Packets name workers of a pool by their number, and parties by their rank.
        let ranks = || (0..size).map(Child::Rank);
        let by_rank = |tree: &AggregationTree| {
            tree.nodes.iter().all(|node| node.children.iter().copied().eq(ranks()))
        };
        if protocol.has_pools() && !trees.iter().all(by_rank) {
            return Err(PlanError::new(
                "the workers of a pool with a copy are not in order of ranks",
            ));
        }
        Ok(())
    }

    fn attachment(&self, tree: usize, rank: u32) -> Result<Attachment, PlanError> {
        let found = self.plan.trees[tree].attachment(rank);
        let (NodeId(node), child) =
            found.ok_or_else(|| PlanError::new(format!("tree {tree} has no rank {rank}")))?;
        let node = self.aggregators.get(node as usize);
        let node = node.ok_or_else(|| PlanError::new("a node without a name"))?;
        let name = &node.name;
        let no_address = || PlanError::new(format!("{name:?} has no address"));
        Ok(Attachment {
            tree: tree.try_into().map_err(|_| PlanError::new(format!("tree {tree}")))?,
            switch: name.clone(),
            address: node.address.ok_or_else(no_address)?,
            child: u8::try_from(child)
                .map_err(|_| PlanError::new(format!("{name} has {child} children")))?,
        })
    }
}

const PATIENCE_NS: u64 = 1_000_000_000;
/// A pool sends nothing while a worker is late, so silence does not indicate a failed switch; the controller detects
/// failures sooner.
const POOL_PATIENCE_NS: u64 = 20_000_000_000;
