//! Which lease each node of a plan gets.

use netsum_proto::atp::{self, Claim, Members};
use netsum_proto::{Lease, panama, switchml};
use netsum_topo::{AggregationTree, Child, NodeId, Plan, Protocol, Tenant, TreeNode};
use netsum_wire::{Epoch, JobId, TreeId};

use crate::PlanError;
use crate::racks::{Racks, all};

/// What the leases of a plan follow from.
#[derive(Debug, Clone, Copy)]
pub struct Terms<'a> {
    /// Job.
    pub job: JobId,
    /// Version of the plan.
    pub epoch: Epoch,
    /// How sums are made.
    pub protocol: Protocol,
    /// By tree id.
    pub trees: &'a [AggregationTree],
    /// The most fragments in flight per tree.
    pub window: u16,
    /// Payload bytes of a full fragment.
    pub fragment_bytes: u16,
    /// Children, in thousandths, that suffice to release a sum of protocol `panama`.
    pub release_permille: u16,
    /// Slot numbers that workers and servers of protocol `atp` compute with.
    pub slot_space: u32,
    /// Claim of each tree on the slots of the switches of protocol `atp`.
    pub claim: Claim,
}

impl<'a> Terms<'a> {
    /// Those of a plan. The trees of a job share its tenant's claim evenly: they meet at the same switches.
    pub fn of(plan: &'a Plan, tenant: &Tenant) -> Terms<'a> {
        let trees = plan.trees.len().max(1) as u32;
        Terms {
            job: JobId(plan.job),
            epoch: Epoch(plan.epoch),
            protocol: plan.protocol,
            trees: &plan.trees,
            window: plan.window_max.try_into().unwrap_or(u16::MAX),
            fragment_bytes: plan.fragment_bytes.try_into().unwrap_or(u16::MAX),
            release_permille: permille(plan.release_fraction),
            slot_space: plan.slot_space,
            claim: Claim {
                guaranteed: tenant.guaranteed / trees,
                limit: (tenant.limit / trees).max(1),
                priority: tenant.priority,
            },
        }
    }
}

/// A share of children, above 0, in thousandths.
fn permille(fraction: f32) -> u16 {
    (fraction * 1000.0).round().max(1.0) as u16
}

/// A lease and the node that it is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Granted<A> {
    /// Number of the tree.
    pub tree: usize,
    /// Switch or server.
    pub node: NodeId,
    /// What it is granted.
    pub lease: Lease<A>,
}

/// The leases of a plan, one per tree node, in the order of trees and of their nodes. `address` says how a node of a tree
/// names a neighbour. Errors: a tree of protocol `atp` that has not the two levels of that protocol.
pub fn leases<A: Copy>(
    terms: &Terms,
    mut address: impl FnMut(TreeId, NodeId, Child) -> A,
) -> Result<Vec<Granted<A>>, PlanError> {
    let mut leases = Vec::new();
    for (number, tree) in terms.trees.iter().enumerate() {
        let id = TreeId(number as u8);
        let mut branches = (0..panama::MAX_BRANCHES).cycle();
        let racks = match terms.protocol {
            Protocol::Atp => Some(Racks::of(tree)?),
            Protocol::Panama | Protocol::Switchml => None,
        };
        for node in &tree.nodes {
            let address = |neighbour| address(id, node.switch, neighbour);
            let lease = match &racks {
                Some(racks) => atp_lease(terms, id, tree, node, racks, address)?,
                None if terms.protocol == Protocol::Switchml => pool(terms, node, address),
                None => tree_lease(terms, id, tree, node, &mut branches, address),
            };
            leases.push(Granted { tree: number, node: node.switch, lease });
        }
    }
    Ok(leases)
}

fn tree_lease<A>(
    terms: &Terms,
    id: TreeId,
    tree: &AggregationTree,
    node: &TreeNode,
    branches: &mut impl Iterator<Item = u8>,
    mut address: impl FnMut(Child) -> A,
) -> Lease<A> {
    let mask = |ranks: Vec<u32>| ranks.into_iter().fold(0, |mask, rank| mask | 1 << (rank % 64));
    let children = node.children.iter().zip(branches).map(|(&child, branch)| panama::Child {
        port: address(child),
        ranks: match child {
            Child::Rank(rank) => mask(vec![rank]),
            Child::Switch(switch) => mask(tree.ranks_below(switch)),
        },
        branch,
    });
    let children = children.collect();
    Lease::Tree(panama::Lease {
        job: terms.job,
        epoch: terms.epoch,
        tree: id,
        children,
        parent: node.parent.as_ref().map(|parent| address(Child::Switch(parent.switch))),
        slots: terms.window,
        fragment_bytes: terms.fragment_bytes,
        release_permille: terms.release_permille,
    })
}

fn pool<A>(terms: &Terms, node: &TreeNode, address: impl FnMut(Child) -> A) -> Lease<A> {
    Lease::Pool(switchml::Lease {
        job: terms.job,
        epoch: terms.epoch,
        workers: node.children.iter().copied().map(address).collect(),
        slots: terms.window,
        fragment_bytes: terms.fragment_bytes,
    })
}

fn atp_lease<A>(
    terms: &Terms,
    tree: TreeId,
    of: &AggregationTree,
    node: &TreeNode,
    racks: &Racks,
    mut address: impl FnMut(Child) -> A,
) -> Result<Lease<A>, PlanError> {
    let each = racks.racks.iter().zip(&node.children);
    if node.switch == of.root {
        let neighbour = |address, racks, workers| atp::Neighbour { port: address, racks, workers };
        let neighbours = match racks.middle {
            Some(middle) => {
                vec![neighbour(address(Child::Switch(middle)), racks.all_racks(), u32::MAX)]
            }
            None => (0..)
                .zip(each)
                .map(|(n, (rack, &child)): (u32, _)| {
                    neighbour(address(child), 1 << n, all(rack.ranks.len()))
                })
                .collect(),
        };
        return Ok(Lease::Server(atp::ServerLease {
            job: terms.job,
            epoch: terms.epoch,
            tree,
            racks: racks.racks.iter().map(|rack| rack.ranks.clone()).collect(),
            neighbours,
            window: terms.window,
            fragment_bytes: terms.fragment_bytes,
            slots: terms.slot_space,
        }));
    }
    let members = if racks.middle == Some(node.switch) {
        let rack = |(rack, &child): (&crate::Rack, &Child)| atp::Rack {
            port: address(child),
            workers: rack.ranks.len() as u8,
        };
        Members::Server { racks: each.map(rack).collect() }
    } else {
        let number = racks.racks.iter().position(|rack| rack.switch == Some(node.switch));
        let number = number.ok_or_else(|| PlanError::new("a switch that is no rack's"))?;
        Members::Rack {
            workers: node.children.iter().map(|&child| address(child)).collect(),
            rack: number as u8,
            racks: racks.racks.len() as u8,
        }
    };
    let parent = node.parent.as_ref();
    let parent = parent.ok_or_else(|| PlanError::new("a switch without a way to the server"))?;
    Ok(Lease::Slots(atp::Lease {
        job: terms.job,
        epoch: terms.epoch,
        tree,
        members,
        parent: address(Child::Switch(parent.switch)),
        window: terms.window,
        fragment_bytes: terms.fragment_bytes,
        claim: terms.claim,
    }))
}
