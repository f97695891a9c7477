//! From a composition to circuits and lanes.

use std::collections::VecDeque;

use netsum_topo::{Circuit, OcsEnd, OcsNode, OcsPorts, OcsSpec, Ratio};

use super::composition::{Composition, Piece, Woven};
use super::crossed::{Crossed, crossed};
use super::fold::{Cluster, Fold, Request, fold};
use super::mesh::{Mesh, mesh};
use super::pieces::Numbers;
use super::plan::{Lane, OcsPlan};
use super::weave::{self, Weave, weave};

/// Builds the circuits and lanes of a composition.
///
/// Worker degrees differ by at most 1 (slide 21): every tree has each worker once, and some a second time, which are
/// dealt round robin. Panics on a composition that needs more ports than exist; this module's methods never make one. A
/// mesh for which not all trees are found carries less than [`Composition::algbw`] claims; [`OcsPlan::algbw`] is the
/// rate of the plan.
pub fn synthesize(spec: &OcsSpec, composition: &Composition) -> OcsPlan {
    let mut wiring = Wiring::new(spec);
    let mut lanes = Vec::new();
    let mut turn = 0;
    let woven_tree = composition.woven.as_ref().is_some_and(|woven| woven.tree);
    let together = composition.folded + usize::from(woven_tree);
    let (alone, folded) = composition.trees.split_at(composition.trees.len() - together);
    for pieces in alone {
        lanes.push(wiring.tree(pieces, &mut turn));
    }
    if let Some(woven) = &composition.woven {
        lanes.extend(wiring.weave(woven, folded.first(), composition.crossed, turn));
    } else if !folded.is_empty() {
        lanes.extend(wiring.fold(composition, folded, turn));
    } else if composition.mesh_links > 0 {
        lanes.extend(wiring.mesh(composition));
    }
    if composition.crossed > 0 {
        lanes.extend(wiring.crossed(composition));
    }
    match spec.ports {
        OcsPorts::Simplex => lanes.extend((0..composition.rings).map(|_| wiring.ring())),
        OcsPorts::Paired => {
            lanes.extend((0..composition.rings / 2).flat_map(|_| wiring.cycle()));
        }
    }
    OcsPlan { spec: *spec, circuits: wiring.circuits, lanes }
}

/// Two nodes joined in both directions: the circuit from the first to the second, and back.
#[derive(Clone, Copy)]
struct CircuitPair {
    ends: [OcsNode; 2],
    circuits: [u32; 2],
}

struct Wiring<'a> {
    spec: &'a OcsSpec,
    numbers: Numbers,
    /// By node its first free port. Both directions of a port are used before the next port.
    next: Vec<u32>,
    circuits: Vec<Circuit>,
}

impl Wiring<'_> {
    fn new(spec: &OcsSpec) -> Wiring<'_> {
        let next = vec![0; spec.nodes() as usize];
        Wiring { spec, numbers: Numbers::of(spec), next, circuits: Vec::new() }
    }

    fn take(&mut self, node: OcsNode) -> OcsEnd {
        let port = self.next[node.0 as usize];
        assert!(port < self.spec.ports_of(node), "{} has no free port", self.spec.name(node));
        self.next[node.0 as usize] += 1;
        OcsEnd { node, port }
    }

    fn circuit(&mut self, from: OcsEnd, to: OcsEnd) -> u32 {
        self.circuits.push(Circuit { from, to });
        self.circuits.len() as u32 - 1
    }

    fn join(&mut self, a: OcsNode, b: OcsNode) -> CircuitPair {
        let (at_a, at_b) = (self.take(a), self.take(b));
        CircuitPair { ends: [a, b], circuits: [self.circuit(at_a, at_b), self.circuit(at_b, at_a)] }
    }

    /// Combines devices without a tree and links between workers with a full tree, if there is one.
    fn weave(
        &mut self,
        woven: &Woven,
        tree: Option<&Vec<Piece>>,
        crossed: u32,
        mut turn: u32,
    ) -> Vec<Lane> {
        let workers = self.spec.workers;
        let pieces = tree.map_or(&[][..], Vec::as_slice);
        let mut links = tree.map_or(Vec::new(), |pieces| self.tree_links(pieces, &mut turn).0);
        let mut devices: Vec<OcsNode> =
            pieces.iter().map(|piece| self.spec.device(piece.device)).collect();
        let spare = 0..woven.spare.len() as u32;
        devices.extend(spare.map(|device| self.spec.device(woven.first + device)));
        let index = |node: OcsNode| match devices.iter().position(|&device| device == node) {
            Some(at) => workers + at as u32,
            None => node.0,
        };
        let node = |index: u32| match index.checked_sub(workers) {
            Some(at) => devices[at as usize],
            None => OcsNode(index),
        };
        let request = weave::Request {
            workers,
            tree: links.iter().map(|link| (index(link.ends[0]), index(link.ends[1]))).collect(),
            devices: pieces.len() as u32,
            spare: woven.spare.clone(),
            free: (0..workers as usize)
                .map(|worker| self.spec.worker_ports - self.next[worker] - crossed)
                .collect(),
        };
        let Weave { links: more, copies, trees } = weave(&request);
        links.extend(more.iter().map(|&(a, b)| self.join(node(a), node(b))));
        let share = Ratio::new(1, copies.into());
        let lane = |tree: &Vec<u32>| {
            let own: Vec<CircuitPair> = tree.iter().map(|&link| links[link as usize]).collect();
            tree_lane(&own, middle(&own), share)
        };
        trees.iter().map(lane).collect()
    }

    /// A tree of algbw 1. Each device with a free port takes the next device; workers are attached to the remaining
    /// ports in chains whose lengths differ by at most one.
    fn tree(&mut self, pieces: &[Piece], turn: &mut u32) -> Lane {
        let (links, root) = self.tree_links(pieces, turn);
        tree_lane(&links, root, Ratio::ONE)
    }

    fn tree_links(&mut self, pieces: &[Piece], turn: &mut u32) -> (Vec<CircuitPair>, OcsNode) {
        let (mut links, leaves, root) = self.device_tree(pieces);
        let chains = self.chains(leaves.len().max(2), turn);
        if leaves.is_empty() {
            links.push(self.join(chains[0][0], chains[1][0]));
        }
        for (leaf, chain) in leaves.iter().zip(&chains) {
            links.push(self.join(*leaf, chain[0]));
        }
        for pair in chains.iter().flat_map(|chain| chain.windows(2)) {
            links.push(self.join(pair[0], pair[1]));
        }
        (links, root.unwrap_or(chains[0][0]))
    }

    /// Joins pieces to a tree, each at the first device with a free port. Returns the links, the device of each port
    /// that stays free, and the first device.
    fn device_tree(
        &mut self,
        pieces: &[Piece],
    ) -> (Vec<CircuitPair>, Vec<OcsNode>, Option<OcsNode>) {
        let mut links = Vec::new();
        let mut pieces = pieces.to_vec();
        pieces.sort_by_key(|piece| std::cmp::Reverse(piece.ports));
        let mut free: Vec<u32> = pieces.iter().map(|piece| piece.ports).collect();
        let nodes: Vec<OcsNode> =
            pieces.iter().map(|piece| self.spec.device(piece.device)).collect();
        let mut above = 0;
        for index in 1..pieces.len() {
            while free[above] == 0 {
                above += 1;
            }
            free[above] -= 1;
            free[index] -= 1;
            links.push(self.join(nodes[above], nodes[index]));
        }
        let open = free.iter().zip(&nodes);
        let leaves =
            open.flat_map(|(&free, &node)| std::iter::repeat_n(node, free as usize)).collect();
        (links, leaves, nodes.first().copied())
    }

    /// All workers in `count` chains. Workers that are not at an end of a chain use a second port; they are the next in
    /// turn.
    fn chains(&self, count: usize, turn: &mut u32) -> Vec<Vec<OcsNode>> {
        let workers = self.spec.workers;
        let inner = workers - count as u32;
        let mut order = (0..workers).map(|step| OcsNode((*turn + step) % workers));
        let mut chains = vec![Vec::new(); count];
        for (step, worker) in order.by_ref().take(inner as usize).enumerate() {
            chains[step % count].push(worker);
        }
        for (chain, worker) in chains.iter_mut().zip(order) {
            chain.push(worker);
        }
        *turn = (*turn + inner) % workers;
        chains
    }

    fn mesh(&mut self, composition: &Composition) -> Vec<Lane> {
        let spare = |worker: usize| {
            self.spec.worker_ports - self.next[worker] - composition.rings - composition.crossed
        };
        let spare: Vec<u32> = (0..self.spec.workers as usize).map(spare).collect();
        let Mesh { links, copies, trees } = mesh(&spare, composition.mesh_links);
        let links: Vec<CircuitPair> =
            links.iter().map(|&(a, b)| self.join(OcsNode(a), OcsNode(b))).collect();
        let share = Ratio::new(1, copies.into());
        let lane = |tree: &Vec<u32>| {
            let own: Vec<CircuitPair> = tree.iter().map(|&link| links[link as usize]).collect();
            tree_lane(&own, middle(&own), share)
        };
        trees.iter().map(lane).collect()
    }

    /// Trees whose devices form one cluster or two, and a mesh on the worker links of all of them.
    fn fold(&mut self, composition: &Composition, folded: &[Vec<Piece>], turn: u32) -> Vec<Lane> {
        let workers = self.spec.workers;
        let (mut clusters, mut joins, mut trees) = (Vec::new(), Vec::new(), Vec::new());
        let mut covering = (0..workers).cycle().skip(turn as usize);
        for pieces in folded {
            let (one, other) = pieces.split_at(pieces.len().div_ceil(2));
            let halves = [one, other].into_iter().filter(|half| !half.is_empty());
            let first = clusters.len();
            for half in halves {
                let (mut links, leaves, _) = self.device_tree(half);
                let cluster: Cluster = covering.by_ref().take(leaves.len()).collect();
                let joined = leaves.iter().zip(&cluster);
                links.extend(joined.map(|(&leaf, &worker)| self.join(leaf, OcsNode(worker))));
                joins.push(links);
                clusters.push(cluster);
            }
            trees.push((first..clusters.len()).collect());
        }
        let spare = |worker: usize| {
            self.spec.worker_ports - self.next[worker] - composition.rings - composition.crossed
        };
        let request = Request {
            workers,
            spare: (0..workers as usize).map(spare).collect(),
            extra: composition.mesh_links,
            clusters: &clusters,
            trees: &trees,
        };
        let Some(Fold { links, copies, trees }) = fold(&request) else { return Vec::new() };
        let links: Vec<CircuitPair> =
            links.iter().map(|&(a, b)| self.join(OcsNode(a), OcsNode(b))).collect();
        let share = Ratio::new(1, copies.into());
        let lane = |(used, own): &(Vec<usize>, Vec<u32>)| {
            let mut all: Vec<CircuitPair> = own.iter().map(|&link| links[link as usize]).collect();
            all.extend(used.iter().flat_map(|&cluster| &joins[cluster]));
            tree_lane(&all, middle(&all), share)
        };
        trees.iter().map(lane).collect()
    }

    /// Lanes of crossed classes of devices.
    fn crossed(&mut self, composition: &Composition) -> Vec<Lane> {
        let classes = u64::from(composition.crossed);
        let Crossed { links, trees } = crossed(&self.numbers, classes);
        let first = composition.first_crossed();
        let joined = |&(worker, device): &(u32, u32)| {
            self.join(OcsNode(worker), self.spec.device(first + device))
        };
        let links: Vec<CircuitPair> = links.iter().map(joined).collect();
        let ports = self.numbers.e as i128;
        let share = Ratio::new(i128::from(composition.crossed) * ports, ports + 1)
            / Ratio::from(trees.len() as i64);
        let lane = |tree: &Vec<u32>| {
            let own: Vec<CircuitPair> = tree.iter().map(|&link| links[link as usize]).collect();
            tree_lane(&own, middle(&own), share)
        };
        trees.iter().map(lane).collect()
    }

    fn ring_share(&self) -> Ratio {
        self.numbers.rate(self.numbers.n)
    }

    /// A ring whose workers receive from one neighbour and send to the other, with a port each.
    fn ring(&mut self) -> Lane {
        let workers = 0..self.spec.workers;
        let ends: Vec<OcsEnd> = workers.map(|worker| self.take(OcsNode(worker))).collect();
        let step = |at: usize| (ends[at], ends[(at + 1) % ends.len()]);
        let steps: Vec<(OcsEnd, OcsEnd)> = (0..ends.len()).map(step).collect();
        let circuits = steps.into_iter().map(|(from, to)| self.circuit(from, to)).collect();
        Lane::Ring { share: self.ring_share(), circuits }
    }

    /// Both directions of a cycle through all workers, two ports of each.
    fn cycle(&mut self) -> [Lane; 2] {
        let workers = self.spec.workers;
        let step = |at: u32| self.join(OcsNode(at), OcsNode((at + 1) % workers));
        let links: Vec<CircuitPair> = (0..workers).map(step).collect();
        let there = links.iter().map(|link| link.circuits[0]).collect();
        let back = links.iter().rev().map(|link| link.circuits[1]).collect();
        let share = self.ring_share();
        [Lane::Ring { share, circuits: there }, Lane::Ring { share, circuits: back }]
    }
}

/// The lane of a tree: each link upwards for the sum, downwards for the result.
fn tree_lane(links: &[CircuitPair], root: OcsNode, share: Ratio) -> Lane {
    let near = neighbours(links);
    let (mut reduce, mut broadcast) = (Vec::new(), Vec::new());
    for (link, child) in walk(&near, links, root) {
        let up = usize::from(links[link].ends[0] != child);
        reduce.push(links[link].circuits[up]);
        broadcast.push(links[link].circuits[1 - up]);
    }
    Lane::Tree { share, root, reduce, broadcast }
}

/// The node with the least distance to its farthest node.
fn middle(links: &[CircuitPair]) -> OcsNode {
    let near = neighbours(links);
    let last = |from: OcsNode| walk(&near, links, from).last().map_or(from, |&(_, node)| node);
    let one = last(links[0].ends[0]);
    let steps = walk(&near, links, one);
    let above: std::collections::HashMap<OcsNode, OcsNode> = steps
        .iter()
        .map(|&(link, node)| {
            let [a, b] = links[link].ends;
            (node, if a == node { b } else { a })
        })
        .collect();
    let mut path = vec![last(one)];
    while let Some(&next) = above.get(&path[path.len() - 1]) {
        path.push(next);
    }
    path[path.len() / 2]
}

type Neighbours = std::collections::HashMap<OcsNode, Vec<usize>>;

fn neighbours(links: &[CircuitPair]) -> Neighbours {
    let mut near = Neighbours::new();
    for (index, link) in links.iter().enumerate() {
        link.ends.iter().for_each(|&end| near.entry(end).or_default().push(index));
    }
    near
}

/// Links with the node that each leads to, nearest first.
fn walk(near: &Neighbours, links: &[CircuitPair], root: OcsNode) -> Vec<(usize, OcsNode)> {
    let mut out = Vec::with_capacity(links.len());
    let mut queue = VecDeque::from([(root, usize::MAX)]);
    while let Some((node, from)) = queue.pop_front() {
        for &link in near[&node].iter().filter(|&&link| link != from) {
            let [a, b] = links[link].ends;
            let next = if a == node { b } else { a };
            out.push((link, next));
            queue.push_back((next, link));
        }
    }
    out
}
