//! Aggregation trees and plans.

use std::fmt;
use std::str::FromStr;

use crate::graph::NodeId;
use crate::order::SumOrder;

/// A child of a tree node, in the place that its values are added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Child {
    /// A worker.
    Rank(u32),
    /// Another aggregating switch.
    Switch(NodeId),
}

/// The way from a tree node to its parent.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Parent {
    /// The aggregating switch above.
    pub switch: NodeId,
    /// Switches between the two that only forward, from the child upward; mostly none.
    pub via: Vec<NodeId>,
}

/// One aggregating switch of a tree.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TreeNode {
    /// The switch.
    pub switch: NodeId,
    /// In the order of adding: ascending lowest rank beneath.
    pub children: Vec<Child>,
    /// `None` at the root.
    pub parent: Option<Parent>,
}

/// A rooted tree that reaches every rank of a job once. Parents stand before their children.
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

    /// The switch that a rank sends to, and the rank's place among its children.
    pub fn attachment(&self, rank: u32) -> Option<(NodeId, usize)> {
        self.nodes.iter().find_map(|node| {
            let place = node.children.iter().position(|&child| child == Child::Rank(rank))?;
            Some((node.switch, place))
        })
    }

    /// All switches, aggregating or only passed.
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

/// How a worker answers congestion marks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum CongestionRule {
    /// PANAMA: one window per tree, marks of all branches taken together.
    #[default]
    Panama,
    /// One virtual window per branch, the least of them counts.
    PerBranch,
    /// The window stays at its cap.
    None,
}

impl fmt::Display for CongestionRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CongestionRule::Panama => "panama",
            CongestionRule::PerBranch => "per-branch",
            CongestionRule::None => "none",
        })
    }
}

impl FromStr for CongestionRule {
    type Err = String;

    fn from_str(text: &str) -> Result<CongestionRule, String> {
        match text {
            "panama" => Ok(CongestionRule::Panama),
            "per-branch" => Ok(CongestionRule::PerBranch),
            "none" => Ok(CongestionRule::None),
            _ => {
                Err(format!("congestion rule {text:?} is unknown; use panama, per-branch or none"))
            }
        }
    }
}

/// All that the workers and switches of a job must agree on for one epoch.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Never used for another job of the same controller.
    pub job: u32,
    /// From 1; a higher epoch replaces a lower one.
    pub epoch: u16,
    /// The same for all trees and for the host path; fixed with the job's first plan.
    pub order: SumOrder,
    /// By tree id; empty: host path only.
    pub trees: Vec<AggregationTree>,
    /// Payload bytes of a full fragment.
    pub fragment_bytes: u32,
    /// Most fragments in flight per tree; 0 without trees.
    pub window_max: u32,
    /// Share of children that must be in before a switch may release a partial, 0 < f ≤ 1.
    pub release_fraction: f32,
    /// How workers answer marks.
    pub congestion: CongestionRule,
    /// Buffers below this go by the host path.
    pub min_bytes: u64,
    /// Why there are fewer trees than the fabric could give, in words; empty when there are not.
    pub reason: String,
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
    fn order_leaves_out_sums_of_one() {
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

    #[test]
    fn rules_read_back() {
        for rule in [CongestionRule::Panama, CongestionRule::PerBranch, CongestionRule::None] {
            assert_eq!(rule.to_string().parse(), Ok(rule));
        }
        assert!(
            "dctcp"
                .parse::<CongestionRule>()
                .unwrap_err()
                .contains("use panama, per-branch or none")
        );
    }
}
