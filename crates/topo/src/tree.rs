//! Aggregation trees.

use crate::graph::NodeId;
use crate::order::SumOrder;

/// A child of a tree node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Child {
    /// A worker.
    Rank(u32),
    /// Another aggregating switch.
    Switch(NodeId),
}

/// The path from a tree node to its parent.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Parent {
    /// The aggregating switch above.
    pub switch: NodeId,
    /// Switches between the two that only forward, from the child upward; usually none.
    pub via: Vec<NodeId>,
}

/// One aggregator of a tree: a switch, or the server at the root of a best-effort tree.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TreeNode {
    /// The switch.
    pub switch: NodeId,
    /// Children in the order of additions: ascending lowest rank beneath.
    pub children: Vec<Child>,
    /// `None` at the root.
    pub parent: Option<Parent>,
}

/// A rooted tree that reaches every rank of a job once. Parents precede their children.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AggregationTree {
    /// The switch that completes sums and sends results down.
    pub root: NodeId,
    /// The root first; every other node after its parent.
    pub nodes: Vec<TreeNode>,
}

impl AggregationTree {
    /// The node of that switch.
    pub fn node(&self, switch: NodeId) -> Option<&TreeNode> {
        self.nodes.iter().find(|node| node.switch == switch)
    }

    /// The order in which this tree adds.
    pub fn order(&self) -> SumOrder {
        self.order_at(self.root)
    }

    /// Ranks beneath that switch, ascending.
    pub fn ranks_below(&self, switch: NodeId) -> Vec<u32> {
        let mut ranks = self.order_at(switch).ranks();
        ranks.sort_unstable();
        ranks
    }

    /// The switch that a rank sends to, and the rank's index among its children.
    pub fn attachment(&self, rank: u32) -> Option<(NodeId, usize)> {
        self.nodes.iter().find_map(|node| {
            let place = node.children.iter().position(|&child| child == Child::Rank(rank))?;
            Some((node.switch, place))
        })
    }

    /// All switches, aggregating or only forwarding.
    pub fn switches(&self) -> impl Iterator<Item = NodeId> {
        self.nodes.iter().flat_map(|node| {
            let via = node.parent.as_ref().map_or(&[][..], |parent| &parent.via);
            std::iter::once(node.switch).chain(via.iter().copied())
        })
    }

    fn order_at(&self, switch: NodeId) -> SumOrder {
        let children = self.node(switch).map_or(&[][..], |node| &node.children);
        let of = |child: &Child| match *child {
            Child::Rank(rank) => SumOrder::Rank(rank),
            Child::Switch(below) => self.order_at(below),
        };
        SumOrder::sum(children.iter().map(of).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two_racks() -> AggregationTree {
        let (root, left, right) = (NodeId(9), NodeId(7), NodeId(8));
        let parent = |via: Vec<NodeId>| Some(Parent { switch: root, via });
        AggregationTree {
            root,
            nodes: vec![
                TreeNode {
                    switch: root,
                    children: vec![Child::Switch(left), Child::Switch(right)],
                    parent: None,
                },
                TreeNode {
                    switch: left,
                    children: vec![Child::Rank(0), Child::Rank(2)],
                    parent: parent(vec![]),
                },
                TreeNode {
                    switch: right,
                    children: vec![Child::Rank(1)],
                    parent: parent(vec![NodeId(5)]),
                },
            ],
        }
    }

    #[test]
    fn order_omits_sums_of_one() {
        assert_eq!(two_racks().order().to_string(), "[[0,2],1]");
    }

    #[test]
    fn where_ranks_attach() {
        let tree = two_racks();
        assert_eq!(tree.attachment(2), Some((NodeId(7), 1)));
        assert_eq!(tree.attachment(3), None);
        assert_eq!(tree.ranks_below(NodeId(9)), [0, 1, 2]);
        assert_eq!(tree.switches().collect::<Vec<_>>(), [9, 7, 8, 5].map(NodeId));
    }
}
