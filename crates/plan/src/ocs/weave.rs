//! Devices and links between workers as one graph in which any device may have any degree.

use super::forests::{ABSENT, pack};
use super::mesh::Random;

/// Input of a weave. Nodes: workers, then devices.
pub(super) struct Request {
    pub workers: u32,
    /// Links of a full tree, if there is one.
    pub tree: Vec<(u32, u32)>,
    /// Number of that tree's devices; the nodes after them are spare.
    pub devices: u32,
    /// Ports to workers of each spare device.
    pub spare: Vec<u32>,
    /// Free ports of each worker.
    pub free: Vec<u32>,
}

/// Links beyond those of the tree, and trees on all of them.
pub(super) struct Weave {
    /// Ends of each link; [`Weave::trees`] numbers them after those of the tree.
    pub links: Vec<(u32, u32)>,
    /// Trees per unit of algbw.
    pub copies: u32,
    /// Links of each tree. Devices are never leaves.
    pub trees: Vec<Vec<u32>>,
}

/// As many light trees as are found, some through all devices, others without the spare ones.
///
/// The full tree alone makes 1. With chords each of its links can be left out for a time, so that trees with a chord in
/// place of a link run beside those with all links: up to links/(nodes−1) together.
pub(super) fn weave(request: &Request) -> Weave {
    let nodes = (request.workers + request.devices) as usize + request.spare.len();
    let copies = (nodes - 1) * if nodes <= SMALL { FINER } else { 1 };
    let attempts = (ATTEMPT_NODES / nodes).clamp(2, 12);
    let tries = (0..attempts).map(|attempt| {
        let links = request.links(attempt);
        let all = [&request.tree[..], &links].concat();
        (request.most(&all, nodes, copies, attempt), links)
    });
    let (trees, links) = tries.max_by_key(|(trees, _)| trees.len()).expect("some attempts");
    Weave { links, copies: copies as u32, trees }
}

impl Request {
    /// Links on spare ports. Workers are ordered so that neighbours on the tree are apart; spare devices take them in
    /// turn, and the remaining workers are joined in pairs.
    fn links(&self, attempt: usize) -> Vec<(u32, u32)> {
        let rounds = 0..self.free.iter().copied().max().unwrap_or(0);
        let ends = rounds.flat_map(|round| {
            (0..self.workers).filter(move |&worker| self.free[worker as usize] > round)
        });
        let mut ends: Vec<u32> = ends.collect();
        if attempt > 0 {
            Random(attempt as u64).shuffle(&mut ends);
        }
        let first = self.workers + self.devices;
        let mut open: Vec<(u32, u32)> = (first..).zip(self.spare.iter().copied()).collect();
        let mut links = Vec::new();
        let mut ends = ends.into_iter();
        while open.iter().any(|&(_, ports)| ports > 0) {
            for (device, ports) in open.iter_mut().filter(|(_, ports)| *ports > 0) {
                let Some(worker) = ends.next() else { return links };
                links.push((worker, *device));
                *ports -= 1;
            }
        }
        let rest: Vec<u32> = ends.collect();
        let half = rest.len() / 2;
        links.extend((0..half).map(|at| (rest[at], rest[at + half])).filter(|(a, b)| a != b));
        links
    }

    /// The most trees on these links over several numbers of trees without spare devices.
    fn most(
        &self,
        links: &[(u32, u32)],
        nodes: usize,
        copies: usize,
        attempt: usize,
    ) -> Vec<Vec<u32>> {
        let all: Vec<u32> = (0..nodes as u32).collect();
        let mut without = all.clone();
        without[(self.workers + self.devices) as usize..].fill(ABSENT);
        let kinds = if self.spare.is_empty() { 0..=0 } else { 0..=SHARES };
        let mut best = Vec::new();
        for share in kinds {
            let some = copies * share / SHARES;
            let (mut least, mut most) =
                (best.len() + 1, copies * links.len() / (nodes - 1 - self.spare.len()));
            while least <= most {
                let count = least + (most - least) / 2;
                let labels =
                    |slot: usize| if slot < some { without.as_slice() } else { all.as_slice() };
                let slots: Vec<&[u32]> = (0..count).map(labels).collect();
                let forests = pack(nodes, links, copies, &slots, attempt);
                let spans = |(slot, forest): (usize, &Vec<u32>)| {
                    let left_out = if slot < some { self.spare.len() } else { 0 };
                    forest.len() + 1 + left_out == nodes
                };
                if forests.iter().enumerate().all(spans) {
                    best = forests;
                    least = count + 1;
                } else {
                    most = count - 1;
                }
            }
        }
        best.iter().map(|tree| self.without_leaves(tree, links, nodes)).collect()
    }

    /// A tree without the devices that are leaves.
    fn without_leaves(&self, tree: &[u32], links: &[(u32, u32)], nodes: usize) -> Vec<u32> {
        let mut tree = tree.to_vec();
        loop {
            let mut ends = vec![0; nodes];
            for &link in &tree {
                let (a, b) = links[link as usize];
                ends[a as usize] += 1;
                ends[b as usize] += 1;
            }
            let idle = |node: u32| node >= self.workers && ends[node as usize] == 1;
            let before = tree.len();
            tree.retain(|&link| {
                let (a, b) = links[link as usize];
                !idle(a) && !idle(b)
            });
            if tree.len() == before {
                return tree;
            }
        }
    }
}

/// Number of link sets tried, in nodes of all of them: small graphs are cheap, and fail more often.
const ATTEMPT_NODES: usize = 120;
/// Graphs whose rates often are fractions other than of their nodes, and how much finer these are divided.
const SMALL: usize = 12;
const FINER: usize = 6;
/// Number of steps in which the trees without spare devices grow from none to 1.
const SHARES: usize = 4;
