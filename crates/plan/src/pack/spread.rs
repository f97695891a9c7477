//! Trees of equal weight that share few links: grown one by one on the least loaded links, and again after the others
//! are known. Near the best rate in little time, on fabrics of any size.
//!
//! A tree grows to the nearest GPU (Takahashi and Matsuyama's heuristic for Steiner trees) under lengths that rise with
//! a power of the load, as in multiplicative weights.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use netsum_topo::Ratio;

use super::budget::Budget;
use super::net::Net;
use super::tree::{Hop, Tree};

/// Trees of equal weight.
#[derive(Debug, Clone)]
pub(super) struct Spread {
    /// Trees in the order of their roots.
    pub(super) trees: Vec<Tree>,
    /// Weight of each tree at which the fullest row is full.
    pub(super) weight: Ratio,
}

impl Spread {
    /// Rate of all trees together.
    pub(super) fn rate(&self) -> Ratio {
        self.weight * Ratio::from(self.trees.len() as i64)
    }
}

/// One tree from each of `roots` (a root may repeat), in several rounds with different lengths until the rate is
/// `enough` or the budget ends. The best comes last; with little effort there are others, which are worse but different.
///
/// `row`: by arc, the arc whose capacity it shares.
pub(super) fn spread(
    net: &Net,
    row: &[usize],
    roots: &[usize],
    enough: Option<Ratio>,
    effort: Effort,
    budget: &Budget<'_>,
) -> Vec<Spread> {
    let mut found: Vec<Spread> = Vec::new();
    let rounds = match effort {
        Effort::Little => 1,
        Effort::Much => 3,
    };
    for manner in MANNERS {
        let mut growth = Growth::new(net, row, *manner, roots.len());
        let mut trees: Vec<Tree> = Vec::new();
        for round in 0..=rounds {
            for (slot, &root) in roots.iter().enumerate() {
                budget.spend(growth.work());
                if !found.is_empty() && budget.is_over() {
                    return found;
                }
                if round > 0 {
                    growth.count(&trees[slot], -1);
                }
                let tree = growth.tree(root);
                growth.count(&tree, 1);
                if round > 0 {
                    trees[slot] = tree;
                } else {
                    trees.push(tree);
                }
            }
            let weight = Ratio::ONE / growth.fullest();
            let better = found.last().is_none_or(|best| best.weight < weight);
            if better {
                if matches!(effort, Effort::Much) {
                    // Nobody needs the others, which take much memory.
                    found.clear();
                }
                found.push(Spread { trees: trees.clone(), weight });
            } else if round > 1 {
                break;
            }
            if let (Some(enough), Some(best)) = (enough, found.last()) {
                budget.note(best.rate().to_f64() / enough.to_f64());
            }
            if enough.is_some_and(|enough| found.last().is_some_and(|best| best.rate() >= enough)) {
                return found;
            }
        }
    }
    found
}

/// Effort of the search.
#[derive(Debug, Clone, Copy)]
pub(super) enum Effort {
    /// A starting point is sufficient.
    Little,
    /// The result is final.
    Much,
}

struct Growth<'a> {
    net: &'a Net,
    row: &'a [usize],
    manner: Manner,
    out: Vec<Vec<usize>>,
    is_gpu: Vec<bool>,
    /// By row: number of uses by trees.
    load: Vec<i64>,
    careful: bool,
}

impl<'a> Growth<'a> {
    fn new(net: &'a Net, row: &'a [usize], manner: Manner, slots: usize) -> Growth<'a> {
        let mut is_gpu = vec![false; net.n];
        net.gpus.iter().for_each(|&gpu| is_gpu[gpu] = true);
        let work = slots * net.gpus.len() * net.arcs.len();
        let relays = net.relay.contains(&true);
        let careful = manner.careful && relays && work <= CAREFUL_WORK_MAX;
        let load = vec![0; net.arcs.len()];
        Growth { net, row, manner, out: net.outgoing(), is_gpu, load, careful }
    }

    /// Work of one tree.
    fn work(&self) -> usize {
        let again = if self.careful { self.net.gpus.len() } else { 1 };
        self.load.len() * ARC_WORK * again
    }

    fn count(&mut self, tree: &Tree, by: i64) {
        for arc in tree.arcs(self.net) {
            self.load[self.row[arc]] += by;
        }
    }

    /// Load over capacity of the fullest row.
    fn fullest(&self) -> Ratio {
        let used = (0..self.load.len()).filter(|&row| self.load[row] > 0);
        let full = |row: usize| (self.load[row], self.net.arcs[row].cap);
        let most = used.map(full).max_by(|a, b| (a.0 * b.1).cmp(&(b.0 * a.1)));
        most.map_or(Ratio::ZERO, |(load, cap)| Ratio::new(load.into(), cap.into()))
    }

    /// A tree from `root` along the least loaded arcs.
    fn tree(&self, root: usize) -> Tree {
        let net = self.net;
        let cap = |arc: usize| net.arcs[self.row[arc]].cap as f64;
        let full = |arc: usize, more: i64| (self.load[self.row[arc]] + 1 + more) as f64 / cap(arc);
        let most = (0..self.load.len()).map(|arc| full(arc, 0)).fold(f64::MIN_POSITIVE, f64::max);
        let price =
            |arc: usize, more: i64| (full(arc, more) / most).powi(self.manner.power) / cap(arc);
        let mut prices: Vec<f64> = (0..self.load.len()).map(|arc| price(arc, 0)).collect();
        let mean = prices.iter().sum::<f64>() / prices.len() as f64;
        let whole = |price: f64| (price / mean * UNIT).min(LENGTH_MAX) as u64 + 1;
        let mut lengths: Vec<u64> = prices.drain(..).map(whole).collect();
        let mut used = vec![0i64; if self.careful { lengths.len() } else { 0 }];

        let mut front = Frontier::new(net.n, root, self.manner.lean);
        let mut left = net.gpus.len() - usize::from(self.is_gpu[root]);
        let mut hops = Vec::with_capacity(left);
        while left > 0 {
            let reached = front.next(net, &self.out, &lengths, &self.is_gpu);
            let reached = reached.expect("the GPUs reach each other");
            let way = front.way(net, reached);
            let mut at = front.start(net, reached);
            let mut via = Vec::new();
            for &arc in &way {
                let to = net.arcs[arc].to;
                if self.careful {
                    used[self.row[arc]] += 1;
                }
                if net.relay[to] {
                    via.push(to);
                    continue;
                }
                hops.push(Hop { from: at, to, via: std::mem::take(&mut via) });
                front.join(to, at);
                at = to;
            }
            left -= 1;
            if self.careful {
                for &arc in way
                    .iter()
                    .filter(|&&arc| net.relay[net.arcs[arc].from] || net.relay[net.arcs[arc].to])
                {
                    for (other, length) in lengths.iter_mut().enumerate() {
                        if self.row[other] == self.row[arc] {
                            *length = whole(price(other, used[self.row[arc]]));
                        }
                    }
                }
                front.restart();
            }
        }
        Tree { root, hops }
    }
}

/// A tree under construction, and the distances of the other vertices from it.
struct Frontier {
    far: Vec<u64>,
    /// The arc by which a vertex outside is reached.
    by: Vec<usize>,
    depth: Vec<Option<u64>>,
    members: Vec<usize>,
    queue: BinaryHeap<Reverse<(u64, usize)>>,
    lean: u64,
}

impl Frontier {
    fn new(n: usize, root: usize, lean: u64) -> Frontier {
        let mut front = Frontier {
            far: vec![u64::MAX; n],
            by: vec![usize::MAX; n],
            depth: vec![None; n],
            members: Vec::new(),
            queue: BinaryHeap::new(),
            lean,
        };
        front.depth[root] = Some(0);
        front.far[root] = 0;
        front.members.push(root);
        front.queue.push(Reverse((0, root)));
        front
    }

    /// The nearest GPU outside of the tree.
    fn next(
        &mut self,
        net: &Net,
        out: &[Vec<usize>],
        lengths: &[u64],
        is_gpu: &[bool],
    ) -> Option<usize> {
        while let Some(Reverse((far, here))) = self.queue.pop() {
            if far > self.far[here] {
                continue;
            }
            if is_gpu[here] && self.depth[here].is_none() {
                return Some(here);
            }
            for &arc in &out[here] {
                let to = net.arcs[arc].to;
                let total = far + lengths[arc];
                if self.depth[to].is_none() && total < self.far[to] {
                    self.far[to] = total;
                    self.by[to] = arc;
                    self.queue.push(Reverse((total, to)));
                }
            }
        }
        None
    }

    /// Arcs from the tree to a vertex outside.
    fn way(&self, net: &Net, mut to: usize) -> Vec<usize> {
        let mut way = Vec::new();
        while self.depth[to].is_none() {
            way.push(self.by[to]);
            to = net.arcs[self.by[to]].from;
        }
        way.reverse();
        way
    }

    fn start(&self, net: &Net, mut to: usize) -> usize {
        while self.depth[to].is_none() {
            to = net.arcs[self.by[to]].from;
        }
        to
    }

    /// Adds vertex `new` to the tree, below `above`.
    fn join(&mut self, new: usize, above: usize) {
        let depth = self.depth[above].expect("above is in the tree") + 1;
        self.depth[new] = Some(depth);
        self.far[new] = depth * self.lean;
        self.members.push(new);
        self.queue.push(Reverse((self.far[new], new)));
    }

    /// Computes the distances from the whole tree again.
    fn restart(&mut self) {
        self.queue.clear();
        self.far.fill(u64::MAX);
        for &member in &self.members {
            self.far[member] = self.depth[member].expect("a member") * self.lean;
            self.queue.push(Reverse((self.far[member], member)));
        }
    }
}

/// How lengths follow loads.
#[derive(Debug, Clone, Copy)]
struct Manner {
    power: i32,
    /// Whether lengths include the tree's own load: matters if relays copy, and takes long.
    careful: bool,
    /// Cost of a further hop between the root and a vertex, relative to the mean length.
    lean: u64,
}

/// The first one makes stars if there is room for them.
const MANNERS: &[Manner] = &[
    Manner { power: 4, careful: false, lean: 1 << 20 },
    Manner { power: 4, careful: true, lean: 1 << 14 },
    Manner { power: 16, careful: true, lean: 1 << 14 },
];
/// Mean length of an arc.
const UNIT: f64 = (1u64 << 20) as f64;
const LENGTH_MAX: f64 = (1u64 << 50) as f64;
/// Work per arc of a tree.
const ARC_WORK: usize = 32;
/// Beyond this, a round takes seconds.
const CAREFUL_WORK_MAX: usize = 100_000_000;
