//! Plans: node numbers of a graph in memory, names and addresses in messages.

use netsum_lease::{Aggregator, JobPlan};
use netsum_topo::{
    AggregationTree, Child, Fabric, NodeId, NodeKind, Parent, Plan, Protocol, Topology, TreeNode,
};
use prost::Message;

use crate::error::ControlError;
use crate::pb;

/// A plan as a message, for transfer, display and storage, without its job's key.
pub(crate) fn plan_message(plan: &Plan, fabric: &Fabric, topology: &Topology) -> pb::Plan {
    let tree = |(number, tree)| tree_message(number, tree, &OfFabric { fabric, topology });
    let trees = (0..).zip(&plan.trees).map(tree).collect();
    message(plan, trees)
}

/// A plan from a message, with node numbers of `topology`. Errors: a switch that is not in it (the fabric file
/// changed), or an invalid field.
pub(crate) fn plan_from_message(
    message: &pb::Plan,
    topology: &Topology,
) -> Result<Plan, ControlError> {
    let find = |name: &str| {
        let aggregates = |&node: &NodeId| topology.node(node).kind != NodeKind::Host;
        let found = topology.find(name).filter(aggregates);
        found.ok_or_else(|| malformed(format!("{name:?} is no switch or server of the fabric")))
    };
    plan_with(message, find)
}

impl TryFrom<&pb::Plan> for JobPlan {
    type Error = ControlError;

    /// A plan as a worker uses it. Errors: an invalid field; [`JobPlan::validate`] checks further requirements of a
    /// worker.
    fn try_from(message: &pb::Plan) -> Result<JobPlan, ControlError> {
        let mut aggregators: Vec<Aggregator> = Vec::new();
        let plan = plan_with(message, |name| {
            let known = aggregators.iter().position(|known| known.name == name);
            let number = known.unwrap_or_else(|| {
                aggregators.push(Aggregator { name: name.to_owned(), address: None });
                aggregators.len() - 1
            });
            Ok(NodeId(number as u32))
        })?;
        for node in message.trees.iter().flat_map(|tree| &tree.nodes) {
            let address = node.address.as_str();
            let parsed =
                match address {
                    "" => None,
                    _ => Some(address.parse().map_err(|_| {
                        malformed(format!("address {address:?} of {}", node.switch))
                    })?),
                };
            let known = aggregators.iter_mut().find(|known| known.name == node.switch);
            known.expect("every node was given a number").address = parsed;
        }
        Ok(JobPlan { plan, aggregators, key_id: message.key_id })
    }
}

/// A plan as bytes, for peers that have not received it from the controller.
pub(crate) fn plan_to_bytes(plan: &JobPlan) -> Vec<u8> {
    let tree = |(number, tree)| tree_message(number, tree, plan);
    let trees = (0..).zip(&plan.plan.trees).map(tree).collect();
    pb::Plan { key_id: plan.key_id, ..message(&plan.plan, trees) }.encode_to_vec()
}

/// Decodes a plan and validates it for a job of `size` ranks.
pub(crate) fn plan_from_bytes(bytes: &[u8], size: u32) -> Result<JobPlan, ControlError> {
    let message = pb::Plan::decode(bytes).map_err(|error| malformed(error.to_string()))?;
    let plan = JobPlan::try_from(&message)?;
    plan.validate(size).map_err(|error| malformed(error.to_string()))?;
    Ok(plan)
}

/// Names and addresses of nodes.
trait Directory {
    fn name(&self, node: NodeId) -> String;
    /// The node's address; empty if it has none.
    fn address(&self, node: NodeId) -> String;
}

/// Names and addresses of a fabric file.
struct OfFabric<'a> {
    fabric: &'a Fabric,
    topology: &'a Topology,
}

impl Directory for OfFabric<'_> {
    fn name(&self, node: NodeId) -> String {
        self.topology.name(node).to_owned()
    }

    fn address(&self, node: NodeId) -> String {
        let address = self.fabric.aggregator_address(self.topology.name(node));
        address.map(|address| address.to_string()).unwrap_or_default()
    }
}

impl Directory for JobPlan {
    fn name(&self, node: NodeId) -> String {
        self.aggregators[node.0 as usize].name.clone()
    }

    fn address(&self, node: NodeId) -> String {
        let address = self.aggregators[node.0 as usize].address;
        address.map(|address| address.to_string()).unwrap_or_default()
    }
}

/// Tree `number` of a plan as a message.
fn tree_message(number: u32, tree: &AggregationTree, directory: &impl Directory) -> pb::Tree {
    let name = |node: NodeId| directory.name(node);
    let mut branches = 0..;
    let nodes = tree.nodes.iter().map(|node| {
        let child = |(child, edge): (&Child, u32)| pb::TreeChild {
            child: Some(match *child {
                Child::Rank(rank) => pb::tree_child::Child::Rank(rank),
                Child::Switch(switch) => pb::tree_child::Child::Switch(name(switch)),
            }),
            branch: edge % BRANCHES,
        };
        let via = node.parent.iter().flat_map(|parent| &parent.via);
        pb::TreeNode {
            switch: name(node.switch),
            address: directory.address(node.switch),
            children: node.children.iter().zip(branches.by_ref()).map(child).collect(),
            parent: node.parent.as_ref().map(|parent| name(parent.switch)).unwrap_or_default(),
            via: via.map(|&switch| name(switch)).collect(),
        }
    });
    let nodes = nodes.collect();
    pb::Tree { tree: number, root: name(tree.root), nodes }
}

fn message(plan: &Plan, trees: Vec<pb::Tree>) -> pb::Plan {
    pb::Plan {
        job: plan.job,
        epoch: plan.epoch.into(),
        order: plan.order.to_string(),
        protocol: plan.protocol.to_string(),
        choice: plan.choice.clone(),
        slot_space: plan.slot_space,
        scale: plan.scale,
        trees,
        copies: plan.copies,
        fragment_bytes: plan.fragment_bytes,
        window_max: plan.window_max,
        release_fraction: plan.release_fraction,
        congestion: plan.congestion.to_string(),
        min_bytes: plan.min_bytes,
        reason: plan.reason.clone(),
        key_id: 0,
        incarnation: 0,
    }
}

fn plan_with(
    message: &pb::Plan,
    mut find: impl FnMut(&str) -> Result<NodeId, ControlError>,
) -> Result<Plan, ControlError> {
    let mut trees = Vec::new();
    for (number, tree) in (0..).zip(&message.trees) {
        if tree.tree != number {
            return Err(malformed(format!("tree {} stands in place {number}", tree.tree)));
        }
        trees.push(tree_with(tree, &mut find)?);
    }
    let order = message.order.parse();
    Ok(Plan {
        job: message.job,
        epoch: u16::try_from(message.epoch)
            .map_err(|_| malformed(format!("epoch {}", message.epoch)))?,
        order: order.map_err(|error: netsum_topo::OrderError| malformed(error.to_string()))?,
        protocol: match message.protocol.as_str() {
            "" => Protocol::Panama,
            name => name.parse().map_err(malformed)?,
        },
        choice: message.choice.clone(),
        slot_space: message.slot_space,
        scale: message.scale,
        trees,
        copies: message.copies,
        fragment_bytes: message.fragment_bytes,
        window_max: message.window_max,
        release_fraction: message.release_fraction,
        congestion: message.congestion.parse().map_err(malformed)?,
        min_bytes: message.min_bytes,
        reason: message.reason.clone(),
    })
}

fn tree_with(
    tree: &pb::Tree,
    mut find: impl FnMut(&str) -> Result<NodeId, ControlError>,
) -> Result<AggregationTree, ControlError> {
    let mut nodes = Vec::new();
    for node in &tree.nodes {
        let switch = find(&node.switch)?;
        let mut children = Vec::new();
        for child in &node.children {
            children.push(match &child.child {
                Some(pb::tree_child::Child::Rank(rank)) => Child::Rank(*rank),
                Some(pb::tree_child::Child::Switch(name)) => Child::Switch(find(name)?),
                None => return Err(malformed("a child that is neither rank nor switch")),
            });
        }
        let parent = match node.parent.is_empty() {
            true => None,
            false => {
                let switch = find(&node.parent)?;
                let via = node.via.iter().map(|name| find(name)).collect::<Result<_, _>>()?;
                Some(Parent { switch, via })
            }
        };
        nodes.push(TreeNode { switch, children, parent });
    }
    Ok(AggregationTree { root: find(&tree.root)?, nodes })
}

fn malformed(problem: impl Into<String>) -> ControlError {
    ControlError::Malformed { what: "plan", problem: problem.into() }
}

/// Bits of a packet's `marks`; further edges of a tree share them.
const BRANCHES: u32 = netsum_proto::panama::MAX_BRANCHES as u32;
