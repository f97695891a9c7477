//! Racks of a tree of protocol `atp`, as used alike by workers, switches and the server.

use netsum_proto::atp::WorkerPosition;
use netsum_topo::{AggregationTree, Child, NodeId};
use netsum_wire::atp::Level;

use crate::PlanError;

/// The two levels of a tree: racks, and the switch of the server's rack if it aggregates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Racks {
    /// Switch of the server's rack, if it aggregates.
    pub middle: Option<NodeId>,
    /// Racks, by number.
    pub racks: Vec<Rack>,
}

/// A group of workers below one switch, or a single worker without a switch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rack {
    /// Switch of the rack; `None` if its only worker sends to the switch of the server's rack, or to the server.
    pub switch: Option<NodeId>,
    /// Ranks, by index in the rack.
    pub ranks: Vec<u32>,
}

/// Width of the protocol's largest bitmap.
pub const FAN_IN_MAX: usize = netsum_wire::atp::MAX_FAN_IN as usize;

impl Racks {
    /// The racks of a tree whose root is a server. If the root's only child is a switch, that switch belongs to the
    /// server's rack, and its children are the racks; otherwise the root's own children are. Errors: a child that is
    /// not a node of the tree, or a rack with children other than workers.
    pub fn of(tree: &AggregationTree) -> Result<Racks, PlanError> {
        let node = |switch: NodeId| {
            let found = tree.node(switch);
            found.ok_or_else(|| PlanError::new("a child that is no node of its tree"))
        };
        let root = node(tree.root)?;
        let (middle, level) = match root.children.as_slice() {
            &[Child::Switch(middle)] => (Some(middle), &node(middle)?.children),
            _ => (None, &root.children),
        };
        let worker = |child: &Child| match child {
            Child::Rank(rank) => Ok(*rank),
            Child::Switch(_) => Err(PlanError::new("a rack that holds more than workers")),
        };
        let rack = |child: &Child| match *child {
            Child::Switch(switch) => {
                let ranks = node(switch)?.children.iter().map(worker).collect::<Result<_, _>>()?;
                Ok(Rack { switch: Some(switch), ranks })
            }
            Child::Rank(rank) => Ok(Rack { switch: None, ranks: vec![rank] }),
        };
        Ok(Racks { middle, racks: level.iter().map(rack).collect::<Result<_, PlanError>>()? })
    }

    /// Position of a worker below the server.
    pub fn place(&self, rank: u32) -> Option<WorkerPosition> {
        let worker = |rack: &Rack| rack.ranks.iter().position(|&other| other == rank);
        let mut racks = self.racks.iter().enumerate();
        let (number, rack, worker) = racks.find_map(|(n, rack)| Some((n, rack, worker(rack)?)))?;
        Some(WorkerPosition {
            level: if rack.switch.is_some() { Level::Rack } else { Level::Server },
            worker: worker as u8,
            rack_fan_in: rack.ranks.len() as u8,
            rack: number as u8,
            server_fan_in: self.racks.len() as u8,
        })
    }

    /// Bitmap of all racks.
    pub(crate) fn all_racks(&self) -> u32 {
        all(self.racks.len())
    }

    /// Checks that the racks contain ranks `0..size` once each and are within the protocol's bounds.
    pub(crate) fn check(&self, size: u32) -> Result<(), PlanError> {
        let sizes = self.racks.iter().map(|rack| rack.ranks.len()).chain([self.racks.len()]);
        if let Some(wrong) = sizes.into_iter().find(|&n| n == 0 || n > FAN_IN_MAX) {
            let problem = format!("{wrong} members of a level; it has 1 to {FAN_IN_MAX}");
            return Err(PlanError::new(problem));
        }
        let mut ranks: Vec<u32> = self.racks.iter().flat_map(|rack| &rack.ranks).copied().collect();
        ranks.sort_unstable();
        match ranks.into_iter().eq(0..size) {
            true => Ok(()),
            false => Err(PlanError::new(format!("racks do not hold ranks 0..{size} once each"))),
        }
    }
}

/// Bitmap of the lowest `count` bits.
pub(crate) fn all(count: usize) -> u32 {
    u32::MAX.checked_shr(32 - count.min(32) as u32).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use netsum_topo::TreeNode;

    const SERVER: NodeId = NodeId(9);
    const A: NodeId = NodeId(1);
    const B: NodeId = NodeId(2);
    const C: NodeId = NodeId(3);

    fn node(switch: NodeId, children: Vec<Child>) -> TreeNode {
        TreeNode { switch, children, parent: None }
    }

    fn tree(nodes: Vec<TreeNode>) -> AggregationTree {
        AggregationTree { root: SERVER, nodes }
    }

    fn rack(switch: Option<NodeId>, ranks: &[u32]) -> Rack {
        Rack { switch, ranks: ranks.to_vec() }
    }

    #[test]
    fn racks_are_derived_from_the_tree() {
        let two = vec![
            node(SERVER, vec![Child::Switch(A)]),
            node(A, vec![Child::Switch(B), Child::Rank(2), Child::Rank(3)]),
            node(B, vec![Child::Rank(0), Child::Rank(1)]),
        ];
        let racks = Racks::of(&tree(two.clone())).unwrap();
        assert_eq!(racks.middle, Some(A));
        assert_eq!(racks.racks, [rack(Some(B), &[0, 1]), rack(None, &[2]), rack(None, &[3])]);
        let place = |level, worker, rack_fan_in, rack| WorkerPosition {
            level,
            worker,
            rack_fan_in,
            rack,
            server_fan_in: 3,
        };
        assert_eq!(racks.place(1), Some(place(Level::Rack, 1, 2, 0)));
        assert_eq!(racks.place(3), Some(place(Level::Server, 0, 1, 2)));
        assert_eq!(racks.place(4), None);
        assert!(racks.check(4).is_ok() && racks.check(5).is_err());
        let direct = vec![
            node(SERVER, vec![Child::Switch(B), Child::Rank(2)]),
            node(B, vec![Child::Rank(0), Child::Rank(1)]),
        ];
        let racks = Racks::of(&tree(direct)).unwrap();
        assert_eq!(racks.middle, None);
        assert_eq!(racks.racks, [rack(Some(B), &[0, 1]), rack(None, &[2])]);
        let mut deep = tree([two, vec![node(C, vec![])]].concat());
        deep.nodes[2].children[0] = Child::Switch(C);
        assert!(Racks::of(&deep).is_err());
        assert_eq!((all(0), all(3), all(32)), (0, 7, u32::MAX));
    }
}
