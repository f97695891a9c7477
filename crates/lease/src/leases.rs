//! Computes the lease of each node of a plan.

use netsum_proto::atp::{self, Claim, Members};
use netsum_proto::{Lease, panama, switchml};
use netsum_topo::{AggregationTree, Child, NodeId, Plan, Protocol, Tenant, TreeNode};
use netsum_wire::{Epoch, JobId, TreeId};

use crate::PlanError;
use crate::racks::{Racks, all};

/// The parameters that determine the leases of a plan.
#[derive(Debug, Clone, Copy)]
pub struct Terms<'a> {
    /// Job number.
    pub job: JobId,
    /// Version of the plan.
    pub epoch: Epoch,
    /// Aggregation protocol.
    pub protocol: Protocol,
    /// Trees, by tree id.
    pub trees: &'a [AggregationTree],
    /// Whether the second half of them are copies.
    pub copies: bool,
    /// Maximum number of fragments in flight per tree.
    pub window: u16,
    /// Payload bytes of a full fragment.
    pub fragment_bytes: u16,
    /// Share of children, in thousandths, that suffices to release a sum of protocol `panama`.
    pub release_permille: u16,
    /// Size of the slot number space that workers and servers of protocol `atp` compute with.
    pub slot_space: u32,
    /// Claim of each tree on the slots of the switches of protocol `atp`; copies use no slots.
    pub claim: Claim,
}

impl<'a> Terms<'a> {
    /// The terms of a plan. The trees of a job, without copies, divide its tenant's claim evenly, because they use the
    /// same switches.
    pub fn of(plan: &'a Plan, tenant: &Tenant) -> Terms<'a> {
        let trees = plan.trees.len() / if plan.copies { 2 } else { 1 };
        let trees = trees.max(1) as u32;
        Terms {
            job: JobId(plan.job),
            epoch: Epoch(plan.epoch),
            protocol: plan.protocol,
            trees: &plan.trees,
            copies: plan.copies,
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

/// Converts a share of children, above 0, to thousandths.
fn permille(fraction: f32) -> u16 {
    (fraction * 1000.0).round().max(1.0) as u16
}

/// A lease and the node that receives it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Granted<A> {
    /// Tree number.
    pub tree: usize,
    /// Switch or server.
    pub node: NodeId,
    /// The lease.
    pub lease: Lease<A>,
}

/// The leases of a plan, one per tree node, in the order of trees and of their nodes. `address` maps a neighbour of a
/// node in a tree to its address. Errors: a tree of protocol `atp` without the protocol's two levels.
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
                None if terms.protocol == Protocol::Switchml => pool(terms, id, node, address),
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

fn pool<A>(
    terms: &Terms,
    tree: TreeId,
    node: &TreeNode,
    address: impl FnMut(Child) -> A,
) -> Lease<A> {
    Lease::Pool(switchml::Lease {
        job: terms.job,
        epoch: terms.epoch,
        tree,
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
    let is_copy = terms.copies && usize::from(tree.0) >= terms.trees.len() / 2;
    let guaranteed = if is_copy { 0 } else { terms.claim.guaranteed };
    Ok(Lease::Slots(atp::Lease {
        job: terms.job,
        epoch: terms.epoch,
        tree,
        members,
        parent: address(Child::Switch(parent.switch)),
        window: terms.window,
        fragment_bytes: terms.fragment_bytes,
        claim: Claim { guaranteed, ..terms.claim },
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use netsum_topo::Parent;

    /// Test address of a neighbour: tree, node and the neighbour.
    type Name = (u8, NodeId, Child);

    fn name(tree: TreeId, node: NodeId, neighbour: Child) -> Name {
        (tree.0, node, neighbour)
    }

    fn node(switch: u32, children: Vec<Child>, parent: Option<u32>) -> TreeNode {
        let parent = parent.map(|switch| Parent { switch: NodeId(switch), via: Vec::new() });
        TreeNode { switch: NodeId(switch), children, parent }
    }

    fn two_racks() -> AggregationTree {
        let rack = |a, b| vec![Child::Rank(a), Child::Rank(b)];
        let racks = vec![Child::Switch(NodeId(1)), Child::Switch(NodeId(2))];
        let nodes =
            vec![node(0, racks, None), node(1, rack(0, 64), Some(0)), node(2, rack(1, 2), Some(0))];
        AggregationTree { root: NodeId(0), nodes }
    }

    fn terms(protocol: Protocol, trees: &[AggregationTree]) -> Terms<'_> {
        Terms {
            job: JobId(7),
            epoch: Epoch(3),
            protocol,
            trees,
            copies: false,
            window: 5,
            fragment_bytes: 1408,
            release_permille: 880,
            slot_space: 9,
            claim: Claim { guaranteed: 1, limit: 2, priority: 3 },
        }
    }

    #[test]
    fn leases_of_panama_trees() {
        let trees = [two_racks(), two_racks()];
        let granted = leases(&terms(Protocol::Panama, &trees), name).unwrap();
        let nodes: Vec<_> = granted.iter().map(|granted| (granted.tree, granted.node.0)).collect();
        assert_eq!(nodes, [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]);
        let Lease::Tree(root) = &granted[3].lease else { panic!("{:?}", granted[3]) };
        assert_eq!((root.job, root.epoch, root.tree), (JobId(7), Epoch(3), TreeId(1)));
        assert_eq!((root.slots, root.fragment_bytes, root.release_permille), (5, 1408, 880));
        assert_eq!(root.parent, None);
        let Lease::Tree(rack) = &granted[4].lease else { panic!("{:?}", granted[4]) };
        let here = NodeId(1);
        assert_eq!(rack.parent, Some((1, here, Child::Switch(NodeId(0)))));
        let child = |rank, ranks, branch| panama::Child {
            port: (1, here, Child::Rank(rank)),
            ranks,
            branch,
        };
        // Rank bits are the rank modulo 64; each edge of the tree has its own branch.
        assert_eq!(rack.children, [child(0, 1, 2), child(64, 1, 3)]);
        assert_eq!(root.children.iter().map(|child| child.ranks).collect::<Vec<_>>(), [1, 0b110]);
    }

    #[test]
    fn branch_numbers_wrap_around() {
        let children = (0..40).map(Child::Rank).collect();
        let trees = [AggregationTree { root: NodeId(0), nodes: vec![node(0, children, None)] }];
        let granted = leases(&terms(Protocol::Panama, &trees), name).unwrap();
        let Lease::Tree(root) = &granted[0].lease else { panic!("{:?}", granted[0]) };
        assert_eq!((root.children[31].branch, root.children[32].branch), (31, 0));
    }

    #[test]
    fn a_pool_is_leased_and_a_tree_too_deep_for_atp_is_rejected() {
        let children = vec![Child::Rank(0), Child::Rank(1)];
        let trees = [AggregationTree { root: NodeId(4), nodes: vec![node(4, children, None)] }];
        let granted = leases(&terms(Protocol::Switchml, &trees), name).unwrap();
        let Lease::Pool(pool) = &granted[0].lease else { panic!("{:?}", granted[0]) };
        assert_eq!(pool.workers[1], (0, NodeId(4), Child::Rank(1)));
        assert_eq!(granted[0].lease.reservation(1408).pool_slots, 5);
        let both = [trees[0].clone(), trees[0].clone()];
        let with_copies = Terms { copies: true, ..terms(Protocol::Switchml, &both) };
        let granted = leases(&with_copies, name).unwrap();
        let pools: Vec<TreeId> = granted.iter().map(|granted| granted.lease.key().tree).collect();
        assert_eq!(pools, [TreeId(0), TreeId(1)]);
        let mut deep = two_racks();
        deep.nodes[1].children[0] = Child::Switch(NodeId(2));
        assert!(leases(&terms(Protocol::Atp, &[deep]), name).is_err());
    }
}
