//! Verifies trees by walking them, independently of the search.

use std::collections::{HashMap, HashSet};

use netsum_topo::{AggregationTree, Child, EdgeId, NodeId, Topology, TreeNode};

use crate::error::Violation;

/// Checks one tree: every rank of `placement` once, at a switch linked to its host; every path between switches along
/// links of the fabric; children in ascending order of lowest rank; at most `depth_max` aggregating switches above each
/// other besides the root.
pub fn verify(
    topology: &Topology,
    placement: &[NodeId],
    tree: &AggregationTree,
    depth_max: usize,
) -> Result<(), Violation> {
    let walk = Walk { topology, placement, tree };
    walk.nodes()?;
    walk.links()?;
    let mut seen = Seen::default();
    walk.descend(tree.root, depth_max, &mut seen)?;
    if let Some(rank) = (0..placement.len() as u32).find(|rank| !seen.ranks.contains(rank)) {
        return walk.fail(format!("rank {rank} is missing"));
    }
    if seen.switches != tree.nodes.len() {
        return walk.fail("a switch is no child of its parent".to_owned());
    }
    Ok(())
}

/// Checks the set of trees of a plan: each by [`verify`], all with the same order, and no common links between
/// switches.
pub fn verify_set(
    topology: &Topology,
    placement: &[NodeId],
    trees: &[AggregationTree],
    depth_max: usize,
) -> Result<(), Violation> {
    let mut owner: HashMap<EdgeId, usize> = HashMap::new();
    for (id, tree) in trees.iter().enumerate() {
        let walk = Walk { topology, placement, tree };
        verify(topology, placement, tree, depth_max)?;
        if tree.order() != trees[0].order() {
            return walk.fail(format!(
                "adds in the order {}, tree 0 in {}",
                tree.order(),
                trees[0].order()
            ));
        }
        for link in switch_links(topology, tree) {
            if let Some(other) = owner.insert(link, id) {
                let ends = topology.edge(link).ends.map(|end| topology.name(end));
                return walk
                    .fail(format!("shares the link {}–{} with tree {other}", ends[0], ends[1]));
            }
        }
    }
    Ok(())
}

/// The links between switches that a tree uses. Panics if a link does not exist.
pub fn switch_links(topology: &Topology, tree: &AggregationTree) -> Vec<EdgeId> {
    let hops = tree.nodes.iter().flat_map(way);
    hops.map(|(a, b)| topology.edge_between(a, b).expect("the tree follows links")).collect()
}

/// Switches and ranks that a walk has visited.
#[derive(Default)]
struct Seen {
    ranks: HashSet<u32>,
    switches: usize,
}

struct Walk<'a> {
    topology: &'a Topology,
    placement: &'a [NodeId],
    tree: &'a AggregationTree,
}

impl Walk<'_> {
    fn nodes(&self) -> Result<(), Violation> {
        let mut switches = HashSet::new();
        for switch in self.tree.switches() {
            if !self.topology.is_switch(switch) {
                return self.fail(format!("{:?} is not a switch", self.topology.name(switch)));
            }
            if !switches.insert(switch) {
                return self
                    .fail(format!("switch {:?} is in it twice", self.topology.name(switch)));
            }
        }
        let mut above = HashSet::new();
        for node in &self.tree.nodes {
            let placed = match &node.parent {
                None => node.switch == self.tree.root && above.is_empty(),
                Some(parent) => above.contains(&parent.switch),
            };
            if !placed {
                return self.fail(format!(
                    "switch {:?} stands before its parent",
                    self.topology.name(node.switch)
                ));
            }
            above.insert(node.switch);
        }
        Ok(())
    }

    /// Visits everything beneath `switch`, at most `levels` deep; returns its lowest rank.
    fn descend(&self, switch: NodeId, levels: usize, seen: &mut Seen) -> Result<u32, Violation> {
        let name = self.topology.name(switch);
        let node = self.tree.node(switch).expect("its parent was checked");
        seen.switches += 1;
        let mut lowest = Vec::new();
        for child in &node.children {
            lowest.push(match *child {
                Child::Rank(rank) => self.rank(rank, switch, seen)?,
                Child::Switch(below) => {
                    let parent = self.tree.node(below).and_then(|node| node.parent.as_ref());
                    if parent.map(|parent| parent.switch) != Some(switch) {
                        return self.fail(format!(
                            "{:?} is not below {name:?}",
                            self.topology.name(below)
                        ));
                    }
                    if levels == 0 {
                        return self
                            .fail(format!("switch {:?} is too deep", self.topology.name(below)));
                    }
                    self.descend(below, levels - 1, seen)?
                }
            });
        }
        if !lowest.is_sorted() {
            return self.fail(format!("children of {name:?} are not in order of lowest rank"));
        }
        lowest
            .first()
            .copied()
            .map_or_else(|| self.fail(format!("switch {name:?} has no child")), Ok)
    }

    fn rank(&self, rank: u32, switch: NodeId, seen: &mut Seen) -> Result<u32, Violation> {
        let name = self.topology.name(switch);
        let Some(&host) = self.placement.get(rank as usize) else {
            return self.fail(format!("rank {rank} is not of this job"));
        };
        if !seen.ranks.insert(rank) {
            return self.fail(format!("rank {rank} is in it twice"));
        }
        match self.topology.edge_between(host, switch) {
            Some(_) => Ok(rank),
            None => {
                self.fail(format!("host {:?} has no link to {name:?}", self.topology.name(host)))
            }
        }
    }

    fn links(&self) -> Result<(), Violation> {
        for pair in self.tree.nodes.iter().flat_map(way) {
            if self.topology.edge_between(pair.0, pair.1).is_none() {
                let [a, b] = [pair.0, pair.1].map(|node| self.topology.name(node));
                return self.fail(format!("there is no link {a}–{b}"));
            }
        }
        Ok(())
    }

    fn fail<T>(&self, problem: String) -> Result<T, Violation> {
        Err(Violation { root: self.topology.name(self.tree.root).to_owned(), problem })
    }
}

/// The links from a node to its parent.
fn way(node: &TreeNode) -> Vec<(NodeId, NodeId)> {
    let Some(parent) = &node.parent else {
        return Vec::new();
    };
    let below = std::iter::once(node.switch).chain(parent.via.iter().copied());
    let above = parent.via.iter().copied().chain([parent.switch]);
    below.zip(above).collect()
}
