//! Between plans as the controller holds them (numbers of a graph) and as they travel and are kept
//! (names and addresses).

use netsum_topo::{
    AggregationTree, Child, Fabric, NodeId, NodeKind, Parent, Plan, Topology, TreeNode,
};

use netsum_wire::tag::JobKey;

use crate::error::ControlError;
use crate::pb;

impl pb::Plan {
    /// A plan as it travels and is shown and kept, without its job's key.
    pub fn from_plan(plan: &Plan, fabric: &Fabric, topology: &Topology) -> pb::Plan {
        let trees = (0..).zip(&plan.trees);
        pb::Plan {
            job: plan.job,
            epoch: plan.epoch.into(),
            order: plan.order.to_string(),
            protocol: plan.protocol.to_string(),
            choice: plan.choice.clone(),
            slot_space: plan.slot_space,
            scale: plan.scale,
            trees: trees
                .map(|(number, tree)| pb::Tree::from_tree(number, tree, fabric, topology))
                .collect(),
            fragment_bytes: plan.fragment_bytes,
            window_max: plan.window_max,
            release_fraction: plan.release_fraction,
            congestion: plan.congestion.to_string(),
            min_bytes: plan.min_bytes,
            reason: plan.reason.clone(),
            key: None,
        }
    }

    /// Back to numbers of `topology`. Errors: a switch that is not in it (the fabric file changed),
    /// or a field that no plan has.
    pub fn to_plan(&self, topology: &Topology) -> Result<Plan, ControlError> {
        Ok(Plan {
            job: self.job,
            epoch: u16::try_from(self.epoch)
                .map_err(|_| malformed(format!("epoch {}", self.epoch)))?,
            order: self.sum_order()?,
            protocol: self.protocol()?,
            choice: self.choice.clone(),
            slot_space: self.slot_space,
            scale: self.scale,
            trees: self
                .trees
                .iter()
                .map(|tree| tree.to_tree(topology))
                .collect::<Result<_, _>>()?,
            fragment_bytes: self.fragment_bytes,
            window_max: self.window_max,
            release_fraction: self.release_fraction,
            congestion: self.congestion_rule()?,
            min_bytes: self.min_bytes,
            reason: self.reason.clone(),
        })
    }
}

impl From<JobKey> for pb::JobKey {
    fn from(key: JobKey) -> pb::JobKey {
        pb::JobKey { value: key.bytes().to_vec() }
    }
}

impl pb::JobKey {
    /// Errors: another length.
    pub fn key(&self) -> Result<JobKey, ControlError> {
        let bytes = self.value.as_slice().try_into();
        bytes.map(JobKey::new).map_err(|_| ControlError::Malformed {
            what: "job key",
            problem: format!("it has {} bytes, not 16", self.value.len()),
        })
    }
}

/// Keys do not go into logs.
impl std::fmt::Debug for pb::JobKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("JobKey(..)")
    }
}

impl pb::Tree {
    /// Tree `number` of a plan as it travels.
    pub fn from_tree(
        number: u32,
        tree: &AggregationTree,
        fabric: &Fabric,
        topology: &Topology,
    ) -> pb::Tree {
        let name = |node: NodeId| topology.name(node).to_owned();
        let mut branch = 0..;
        let nodes = tree.nodes.iter().map(|node| pb::TreeNode {
            switch: name(node.switch),
            address: address(node.switch, fabric, topology),
            children: node
                .children
                .iter()
                .zip(branch.by_ref())
                .map(|(child, edge)| child_of(*child, edge, topology))
                .collect(),
            parent: node.parent.as_ref().map(|parent| name(parent.switch)).unwrap_or_default(),
            via: node
                .parent
                .iter()
                .flat_map(|parent| &parent.via)
                .map(|&switch| name(switch))
                .collect(),
        });
        let nodes = nodes.collect();
        pb::Tree { tree: number, root: name(tree.root), nodes }
    }

    fn to_tree(&self, topology: &Topology) -> Result<AggregationTree, ControlError> {
        let find = |name: &String| {
            let aggregates = |&node: &NodeId| topology.node(node).kind != NodeKind::Host;
            let found = topology.find(name).filter(aggregates);
            found.ok_or_else(|| malformed(format!("{name:?} is no switch or server of the fabric")))
        };
        let mut nodes = Vec::new();
        for node in &self.nodes {
            let child = |child: &pb::TreeChild| match &child.child {
                Some(pb::tree_child::Child::Rank(rank)) => Ok(Child::Rank(*rank)),
                Some(pb::tree_child::Child::Switch(name)) => find(name).map(Child::Switch),
                None => Err(malformed("a child that is neither rank nor switch")),
            };
            let parent = match node.parent.is_empty() {
                true => None,
                false => {
                    let via = node.via.iter().map(find).collect::<Result<_, _>>()?;
                    Some(Parent { switch: find(&node.parent)?, via })
                }
            };
            let children = node.children.iter().map(child).collect::<Result<_, _>>()?;
            nodes.push(TreeNode { switch: find(&node.switch)?, children, parent });
        }
        Ok(AggregationTree { root: find(&self.root)?, nodes })
    }
}

impl pb::Lease {
    /// The leases of a plan, one per tree node. `member`: UDP address of a rank.
    pub fn of_plan(
        plan: &Plan,
        fabric: &Fabric,
        topology: &Topology,
        member: &dyn Fn(u32) -> Option<String>,
        idle_expiry_s: u32,
    ) -> Vec<(NodeId, pb::Lease)> {
        let mut leases = Vec::new();
        for (number, tree) in (0..).zip(&plan.trees) {
            let mut branch = 0..;
            for node in &tree.nodes {
                let edges = node.children.iter().zip(branch.by_ref());
                let children = edges
                    .map(|(&child, edge)| lease_child(tree, child, edge, fabric, topology, member));
                let lease = pb::Lease {
                    job: plan.job,
                    tree: number,
                    epoch: plan.epoch.into(),
                    children: children.collect(),
                    parent_address: node
                        .parent
                        .as_ref()
                        .map(|parent| address(parent.switch, fabric, topology))
                        .unwrap_or_default(),
                    slots: plan.window_max,
                    fragment_bytes: plan.fragment_bytes,
                    release_fraction: plan.release_fraction,
                    idle_expiry_s,
                    protocol: plan.protocol.to_string(),
                    slot: None,
                    key: None,
                };
                leases.push((node.switch, lease));
            }
        }
        leases
    }
}

fn lease_child(
    tree: &AggregationTree,
    child: Child,
    edge: u32,
    fabric: &Fabric,
    topology: &Topology,
    member: &dyn Fn(u32) -> Option<String>,
) -> pb::LeaseChild {
    let branch = edge % BRANCHES;
    match child {
        Child::Rank(rank) => pb::LeaseChild {
            address: member(rank).unwrap_or_default(),
            ranks: vec![rank],
            branch,
            name: format!("rank {rank}"),
            ..pb::LeaseChild::default()
        },
        Child::Switch(switch) => pb::LeaseChild {
            address: address(switch, fabric, topology),
            ranks: tree.ranks_below(switch),
            branch,
            name: topology.name(switch).to_owned(),
            ..pb::LeaseChild::default()
        },
    }
}

fn child_of(child: Child, edge: u32, topology: &Topology) -> pb::TreeChild {
    let child = match child {
        Child::Rank(rank) => pb::tree_child::Child::Rank(rank),
        Child::Switch(switch) => pb::tree_child::Child::Switch(topology.name(switch).to_owned()),
    };
    pb::TreeChild { child: Some(child), branch: edge % BRANCHES }
}

pub(crate) fn address(switch: NodeId, fabric: &Fabric, topology: &Topology) -> String {
    let known = fabric.aggregator_address(topology.name(switch));
    known.map(|address| address.to_string()).unwrap_or_default()
}

fn malformed(problem: impl Into<String>) -> ControlError {
    ControlError::Malformed { what: "plan", problem: problem.into() }
}

/// Bits of a packet's `marks`; edges of a tree beyond that share them.
const BRANCHES: u32 = 32;
