//! Grows one tree from a root: shortest paths, with few switches by a greedy cover.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};

use netsum_topo::{AggregationTree, Child, EdgeId, NodeId, Parent, TreeNode};

use crate::distances::Distances;
use crate::request::Request;

/// A tree and how it was grown.
pub(crate) struct TreeCandidate {
    /// The switch from which it was grown; the tree's root unless that had only one child.
    pub start: NodeId,
    /// The tree, without switches that would only forward.
    pub tree: AggregationTree,
}

/// Grows a tree from `start` to all ranks over live switches, without the links in `used`; `None` where a rank is more
/// than `depth` links away.
pub(crate) fn grow(
    request: &Request,
    start: NodeId,
    depth: usize,
    used: &HashSet<EdgeId>,
    load: &HashMap<NodeId, u64>,
) -> Option<TreeCandidate> {
    let distance = Distances::from(request, &[start], used, depth);
    let field = Field { request, load, used, distance };
    let racks = field.attach()?;
    let parents = field.parents(racks.keys().copied().collect(), depth);
    let tree = Sketch { start, racks, parents }.contract().into_tree();
    Some(TreeCandidate { start, tree })
}

struct Field<'a> {
    request: &'a Request<'a>,
    load: &'a HashMap<NodeId, u64>,
    used: &'a HashSet<EdgeId>,
    distance: Distances,
}

impl Field<'_> {
    /// The switch for each rank: each host uses one of its nearest switches, and few switches are used in all.
    fn attach(&self) -> Option<BTreeMap<NodeId, Vec<u32>>> {
        let mut options: BTreeMap<NodeId, Vec<NodeId>> = BTreeMap::new();
        for &host in self.request.placement {
            let near = || {
                let neighbours = self.request.topology.neighbours(host).iter();
                neighbours.filter_map(|(switch, _)| Some((self.distance.to(*switch)?, *switch)))
            };
            let least = near().min()?.0;
            options.insert(
                host,
                near().filter(|&(d, _)| d == least).map(|(_, switch)| switch).collect(),
            );
        }
        let chosen = cover(&options, self.load);
        let mut racks: BTreeMap<NodeId, Vec<u32>> = BTreeMap::new();
        for (rank, host) in self.request.placement.iter().enumerate() {
            racks.entry(chosen[host]).or_default().push(rank as u32);
        }
        Some(racks)
    }

    /// For each switch that is needed a parent one link nearer to the start, from the furthest inward.
    fn parents(&self, needed: BTreeSet<NodeId>, depth: usize) -> BTreeMap<NodeId, NodeId> {
        let mut needed = needed;
        let mut parents = BTreeMap::new();
        for distance in (1..=depth).rev() {
            let level = needed.iter().filter(|&&switch| self.distance.to(switch) == Some(distance));
            let options = level.map(|&switch| (switch, self.nearer(switch))).collect();
            let chosen = cover(&options, self.load);
            needed.extend(chosen.values());
            parents.extend(chosen);
        }
        parents
    }

    fn nearer(&self, switch: NodeId) -> Vec<NodeId> {
        let wanted = self.distance.to(switch).map(|distance| distance - 1);
        let neighbours = self.request.topology.neighbours(switch).iter();
        let free = neighbours.filter(|(_, link)| !self.used.contains(link));
        free.map(|&(other, _)| other).filter(|&other| self.distance.to(other) == wanted).collect()
    }
}

/// Assigns one option to each item so that few options are used: repeatedly takes the option that serves most of the
/// remaining items; ties go to the least loaded option, then to the lowest id.
fn cover(
    options: &BTreeMap<NodeId, Vec<NodeId>>,
    load: &HashMap<NodeId, u64>,
) -> BTreeMap<NodeId, NodeId> {
    let mut serves: BTreeMap<NodeId, BTreeSet<NodeId>> = BTreeMap::new();
    for (&item, choices) in options {
        for &choice in choices {
            serves.entry(choice).or_default().insert(item);
        }
    }
    let mut chosen = BTreeMap::new();
    while chosen.len() < options.len() {
        let rank = |(choice, items): &(&NodeId, &BTreeSet<NodeId>)| {
            let idle = std::cmp::Reverse(load.get(choice).copied().unwrap_or(0));
            (items.len(), idle, std::cmp::Reverse(**choice))
        };
        let (&best, _) = serves.iter().max_by_key(rank).expect("every item has an option");
        let items = serves.remove(&best).expect("it was just found");
        serves.values_mut().for_each(|others| others.retain(|item| !items.contains(item)));
        chosen.extend(items.into_iter().map(|item| (item, best)));
    }
    chosen
}

/// A tree under construction: the parent of each switch and rank.
struct Sketch {
    start: NodeId,
    racks: BTreeMap<NodeId, Vec<u32>>,
    parents: BTreeMap<NodeId, NodeId>,
}

/// A sketch without switches that only forward.
struct Contracted {
    root: NodeId,
    racks: BTreeMap<NodeId, Vec<u32>>,
    parents: BTreeMap<NodeId, Parent>,
}

impl Sketch {
    /// Removes each switch that has one child and no rank: it would only forward packets.
    fn contract(self) -> Contracted {
        let mut children: BTreeMap<NodeId, usize> = BTreeMap::new();
        self.parents.values().for_each(|&parent| *children.entry(parent).or_default() += 1);
        let forwards =
            |switch: &NodeId| !self.racks.contains_key(switch) && children.get(switch) == Some(&1);
        let mut parents = BTreeMap::new();
        let mut root = self.start;
        for (&switch, &above) in self.parents.iter().filter(|(switch, _)| !forwards(switch)) {
            let mut via = Vec::new();
            let mut parent = above;
            while forwards(&parent) && parent != self.start {
                via.push(parent);
                parent = self.parents[&parent];
            }
            if forwards(&parent) {
                root = switch;
            } else {
                parents.insert(switch, Parent { switch: parent, via });
            }
        }
        Contracted { root, racks: self.racks, parents }
    }
}

impl Contracted {
    fn into_tree(self) -> AggregationTree {
        let mut below: BTreeMap<NodeId, Vec<NodeId>> = BTreeMap::new();
        for (&switch, parent) in &self.parents {
            below.entry(parent.switch).or_default().push(switch);
        }
        let mut nodes = Vec::new();
        let mut queue = VecDeque::from([self.root]);
        while let Some(switch) = queue.pop_front() {
            let children = self.children(switch, &below);
            queue.extend(children.iter().filter_map(|child| match child {
                Child::Switch(below) => Some(*below),
                Child::Rank(_) => None,
            }));
            nodes.push(TreeNode { switch, children, parent: self.parents.get(&switch).cloned() });
        }
        AggregationTree { root: self.root, nodes }
    }

    fn children(&self, switch: NodeId, below: &BTreeMap<NodeId, Vec<NodeId>>) -> Vec<Child> {
        let ranks =
            self.racks.get(&switch).into_iter().flatten().map(|&rank| (rank, Child::Rank(rank)));
        let switches = below.get(&switch).into_iter().flatten();
        let switches =
            switches.map(|&child| (self.lowest_rank(child, below), Child::Switch(child)));
        let mut children: Vec<(u32, Child)> = ranks.chain(switches).collect();
        children.sort_unstable_by_key(|&(lowest, _)| lowest);
        children.into_iter().map(|(_, child)| child).collect()
    }

    fn lowest_rank(&self, switch: NodeId, below: &BTreeMap<NodeId, Vec<NodeId>>) -> u32 {
        let own = self.racks.get(&switch).and_then(|ranks| ranks.first()).copied();
        let beneath =
            below.get(&switch).into_iter().flatten().map(|&child| self.lowest_rank(child, below));
        own.into_iter().chain(beneath).min().expect("every switch of a tree has a rank beneath")
    }
}
