//! Checked views of messages, for those who receive them.

use std::collections::HashSet;
use std::net::SocketAddr;

use netsum_topo::{CongestionRule, Protocol, SumOrder};

use netsum_wire::tag::JobKey;

use crate::error::ControlError;
use crate::pb;

/// Where a rank hangs on one tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attachment {
    /// Tree number.
    pub tree: u8,
    /// The switch that the rank sends to.
    pub switch: String,
    /// Its UDP address.
    pub address: SocketAddr,
    /// The rank's place among its children.
    pub child: u8,
}

impl pb::Plan {
    /// Where `rank` hangs on each tree, by tree number. Errors: a tree without the rank, a number or
    /// an address out of range.
    pub fn attachments(&self, rank: u32) -> Result<Vec<Attachment>, ControlError> {
        let trees = self.trees.iter().enumerate();
        trees.map(|(number, tree)| attachment(number, tree, rank)).collect()
    }

    /// The order in which every path must add.
    pub fn sum_order(&self) -> Result<SumOrder, ControlError> {
        self.order.parse().map_err(|error: netsum_topo::OrderError| malformed(error.to_string()))
    }

    /// How to answer congestion marks.
    pub fn congestion_rule(&self) -> Result<CongestionRule, ControlError> {
        self.congestion.parse().map_err(malformed)
    }

    /// How sums are made.
    pub fn protocol(&self) -> Result<Protocol, ControlError> {
        match self.protocol.as_str() {
            "" => Ok(Protocol::Panama),
            name => name.parse().map_err(malformed),
        }
    }

    /// Of its packets' tags, if they have any.
    pub fn job_key(&self) -> Result<Option<JobKey>, ControlError> {
        self.key.as_ref().map(pb::JobKey::key).transpose()
    }

    /// Checks what a worker relies on: key, epoch, order with ranks `0..size` once each, sizes in range,
    /// tree numbers in sequence, and an attachment of every rank on every tree.
    pub fn validate(&self, size: u32) -> Result<(), ControlError> {
        if self.job == 0 || self.epoch == 0 || self.epoch > u32::from(u16::MAX) {
            return Err(malformed(format!("job {}, epoch {}", self.job, self.epoch)));
        }
        let ranks: HashSet<u32> = self.sum_order()?.ranks().into_iter().collect();
        if ranks.len() != size as usize || ranks.iter().any(|&rank| rank >= size) {
            return Err(malformed(format!("order {} is not of ranks 0..{size}", self.order)));
        }
        self.congestion_rule()?;
        if !(self.release_fraction > 0.0 && self.release_fraction <= 1.0) {
            return Err(malformed(format!("release fraction {}", self.release_fraction)));
        }
        let sizes = [self.fragment_bytes, self.window_max];
        if !self.trees.is_empty() && sizes.iter().any(|&n| n == 0 || n > u32::from(u16::MAX)) {
            return Err(malformed(format!("fragments of {} bytes, window {}", sizes[0], sizes[1])));
        }
        if !(self.scale == 0.0 || self.scale.is_normal() && self.scale > 0.0) {
            return Err(malformed(format!("scale {}", self.scale)));
        }
        self.job_key()?;
        if self.protocol()? == Protocol::Atp {
            for tree in &self.trees {
                tree.racks()?.check(size)?;
            }
        }
        (0..size).try_for_each(|rank| self.attachments(rank).map(drop))
    }
}

fn attachment(number: usize, tree: &pb::Tree, rank: u32) -> Result<Attachment, ControlError> {
    let wanted = Some(pb::tree_child::Child::Rank(rank));
    let place = |node: &pb::TreeNode| node.children.iter().position(|child| child.child == wanted);
    let found = tree.nodes.iter().find_map(|node| Some((node, place(node)?)));
    let (node, child) =
        found.ok_or_else(|| malformed(format!("tree {} has no rank {rank}", tree.tree)))?;
    let address = node.address.parse();
    Ok(Attachment {
        tree: u8::try_from(number)
            .ok()
            .filter(|&number| u32::from(number) == tree.tree)
            .ok_or_else(|| malformed(format!("tree {} stands in place {number}", tree.tree)))?,
        switch: node.switch.clone(),
        address: address
            .map_err(|_| malformed(format!("address {:?} of {}", node.address, node.switch)))?,
        child: u8::try_from(child)
            .map_err(|_| malformed(format!("{} has {child} children", node.switch)))?,
    })
}

pub(crate) fn malformed(problem: impl Into<String>) -> ControlError {
    ControlError::Malformed { what: "plan", problem: problem.into() }
}
