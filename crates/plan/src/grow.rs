//! Grows one tree from a root: shortest paths, with few switches by a greedy cover.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};

use netsum_topo::{AggregationTree, Child, EdgeId, NodeId, Parent, TreeNode};

use crate::distances::Distances;
use crate::request::Request;

/// Ranks whose hosts have links to the same live switches.
pub(crate) struct Rack {
    /// Ascending.
    pub switches: Vec<NodeId>,
    /// Ascending.
    pub ranks: Vec<u32>,
    /// Number of different hosts.
    pub hosts: usize,
}

/// The racks of a request.
pub(crate) fn racks_of(request: &Request) -> Vec<Rack> {
    let Request { topology, placement, live, .. } = request;
    let mut racks: BTreeMap<Vec<NodeId>, (Vec<u32>, HashSet<NodeId>)> = BTreeMap::new();
    for (rank, &host) in (0..).zip(*placement) {
        let switches = topology.neighbours(host).iter().map(|&(switch, _)| switch);
        let mut switches: Vec<NodeId> = switches.filter(|switch| live.contains(switch)).collect();
        switches.sort_unstable();
        let (ranks, hosts) = racks.entry(switches).or_default();
        ranks.push(rank);
        hosts.insert(host);
    }
    let rack = |(switches, (ranks, hosts)): (_, (_, HashSet<_>))| Rack {
        switches,
        ranks,
        hosts: hosts.len(),
    };
    racks.into_iter().map(rack).collect()
}

/// Grows a tree from `start` to all ranks over live switches, without the links in `used` and without switches that
/// would only forward; `None` where a rank is more than `depth` links away.
pub(crate) fn grow(
    request: &Request,
    racks: &[Rack],
    start: NodeId,
    depth: usize,
    used: &HashSet<EdgeId>,
    load: &HashMap<NodeId, u64>,
) -> Option<AggregationTree> {
    let distance = Distances::from(request, &[start], used, depth);
    let field = Field { request, racks, load, used, distance };
    let racks = field.attach()?;
    let parents = field.parents(racks.keys().copied().collect(), depth);
    Some(Sketch { start, racks, parents }.contract().into_tree())
}

struct Field<'a> {
    request: &'a Request<'a>,
    racks: &'a [Rack],
    load: &'a HashMap<NodeId, u64>,
    used: &'a HashSet<EdgeId>,
    distance: Distances,
}

impl Field<'_> {
    /// The switch for each rank: each host uses one of its nearest switches, and few switches are used in all.
    fn attach(&self) -> Option<BTreeMap<NodeId, Vec<u32>>> {
        let mut options = Vec::with_capacity(self.racks.len());
        for rack in self.racks {
            let near = || {
                let switches = rack.switches.iter();
                switches.filter_map(|&switch| Some((self.distance.to(switch)?, switch)))
            };
            let least = near().min()?.0;
            let nearest = near().filter(|&(d, _)| d == least).map(|(_, switch)| switch);
            options.push(Options { choices: nearest.collect(), weight: rack.hosts });
        }
        let mut chosen: BTreeMap<NodeId, Vec<u32>> = BTreeMap::new();
        for (rack, choice) in self.racks.iter().zip(cover(&options, self.load)) {
            chosen.entry(choice).or_default().extend(&rack.ranks);
        }
        chosen.values_mut().for_each(|ranks| ranks.sort_unstable());
        Some(chosen)
    }

    /// For each switch that is needed a parent one link nearer to the start, from the furthest inward.
    fn parents(&self, needed: BTreeSet<NodeId>, depth: usize) -> BTreeMap<NodeId, NodeId> {
        let mut needed = needed;
        let mut parents = BTreeMap::new();
        for distance in (1..=depth).rev() {
            let level = needed.iter().copied();
            let level: Vec<NodeId> =
                level.filter(|&switch| self.distance.to(switch) == Some(distance)).collect();
            let options =
                level.iter().map(|&switch| Options { choices: self.nearer(switch), weight: 1 });
            let chosen = cover(&options.collect::<Vec<_>>(), self.load);
            needed.extend(&chosen);
            parents.extend(level.into_iter().zip(chosen));
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

/// The choices of an item, and its weight.
struct Options {
    choices: Vec<NodeId>,
    weight: usize,
}

/// Chooses for each item so that few choices are used: repeatedly takes the one that serves the largest weight of the
/// remaining items; ties go to the least loaded one, then to the lowest id.
fn cover(items: &[Options], load: &HashMap<NodeId, u64>) -> Vec<NodeId> {
    let mut serves: BTreeMap<NodeId, (usize, Vec<usize>)> = BTreeMap::new();
    for (number, item) in items.iter().enumerate() {
        for &choice in &item.choices {
            let (weight, of) = serves.entry(choice).or_default();
            *weight += item.weight;
            of.push(number);
        }
    }
    let rank = |choice: NodeId, weight: usize| {
        (weight, Reverse(load.get(&choice).copied().unwrap_or(0)), Reverse(choice))
    };
    let mut best_last: BTreeSet<_> =
        serves.iter().map(|(&choice, &(weight, _))| rank(choice, weight)).collect();
    let mut chosen = vec![None; items.len()];
    while let Some((.., Reverse(best))) = best_last.pop_last() {
        for number in std::mem::take(&mut serves.get_mut(&best).expect("it serves").1) {
            if chosen[number].is_some() {
                continue;
            }
            chosen[number] = Some(best);
            for &other in items[number].choices.iter().filter(|&&other| other != best) {
                let weight = &mut serves.get_mut(&other).expect("it serves").0;
                if best_last.remove(&rank(other, *weight)) {
                    *weight -= items[number].weight;
                    best_last.insert(rank(other, *weight));
                }
            }
        }
    }
    chosen.into_iter().map(|choice| choice.expect("every item has a choice")).collect()
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The rule, word by word.
    fn greedy(items: &[Options], load: &HashMap<NodeId, u64>) -> Vec<NodeId> {
        let mut chosen = vec![None; items.len()];
        while chosen.contains(&None) {
            let weight = |choice: &NodeId| -> usize {
                let left = items.iter().zip(&chosen).filter(|(_, chosen)| chosen.is_none());
                let served = left.filter(|(item, _)| item.choices.contains(choice));
                served.map(|(item, _)| item.weight).sum()
            };
            let choices = items.iter().flat_map(|item| &item.choices);
            let rank =
                |choice: &&NodeId| (weight(choice), Reverse(load[*choice]), Reverse(**choice));
            let best = *choices.max_by_key(rank).expect("there are choices");
            for (item, chosen) in items.iter().zip(&mut chosen) {
                if item.choices.contains(&best) {
                    chosen.get_or_insert(best);
                }
            }
        }
        chosen.into_iter().flatten().collect()
    }

    proptest! {
        #[test]
        fn a_cover_is_greedy(
            items in prop::collection::vec((prop::collection::btree_set(0..8u32, 1..5), 1..4usize), 0..20),
            loads in prop::collection::vec(0..3u64, 8),
        ) {
            let load: HashMap<NodeId, u64> = (0..).map(NodeId).zip(loads).collect();
            let items: Vec<Options> = items
                .into_iter()
                .map(|(choices, weight)| Options { choices: choices.into_iter().map(NodeId).collect(), weight })
                .collect();
            prop_assert_eq!(cover(&items, &load), greedy(&items, &load));
        }
    }
}
