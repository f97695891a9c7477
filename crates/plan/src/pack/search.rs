//! Pricing of trees: shortest trees, with or without switches that add, of any height or of a limited one.

use super::budget::Budget;
use super::net::Net;
use super::tree::{Closure, Hop, Tree};

/// Finds trees on one net. Lengths are per arc, at least 0.
pub struct Search<'a> {
    net: &'a Net,
    budget: &'a Budget<'a>,
    out: Vec<Vec<usize>>,
    /// Sets of aggregating switches that trees may branch at.
    branching: Vec<Vec<usize>>,
    /// Whether `branching` has every set.
    pub complete: bool,
}

impl<'a> Search<'a> {
    /// With up to [`SETS_OF_MAX`] aggregating switches all sets of them are tried; beyond, only those with all and with
    /// none, and `complete` is false.
    pub fn new(net: &'a Net, budget: &'a Budget<'a>) -> Search<'a> {
        let switches = net.aggregators();
        let complete = switches.len() <= SETS_OF_MAX;
        let branching = if complete {
            let set = |bits: u32| {
                let chosen = (0..switches.len()).filter(|i| bits >> i & 1 == 1);
                chosen.map(|i| switches[i]).collect()
            };
            (0..1 << switches.len()).map(set).collect()
        } else {
            vec![Vec::new(), switches]
        };
        Search { net, budget, out: net.outgoing(), branching, complete }
    }

    /// A shortest tree over all GPUs under lengths that are equal in both directions, rooted at its centre. Not proven
    /// shortest if the budget ends.
    pub fn undirected(&self, lengths: &[i64]) -> (Tree, i64) {
        self.best(|closure| Some(closure.spanning_tree(self.net)), lengths)
    }

    /// A shortest tree from a GPU to all others, for each of `roots`; for some of them, or not proven shortest, if the
    /// budget ends.
    pub fn directed(&self, lengths: &[i64], roots: &[usize]) -> Vec<(Tree, i64)> {
        if self.branching.len() == 1 {
            let closure = self.closure(&[], lengths);
            let place = |root: usize| self.net.gpus.iter().position(|&gpu| gpu == root);
            let tree = |&root: &usize| {
                self.budget.spend(tree_work(closure.members.len()));
                closure.arborescence(self.net, place(root).expect("roots are GPUs"))
            };
            return self.within(roots).map(tree).collect();
        }
        let place = |closure: &Closure, root: usize| {
            closure.members.iter().position(|&v| v == root).expect("roots are GPUs")
        };
        let one = |&root: &usize| {
            let tree = |closure: &Closure| {
                let place = place(closure, root);
                self.budget.spend(tree_work(closure.members.len()));
                closure.spans(place).then(|| closure.arborescence(self.net, place))
            };
            self.best(tree, lengths)
        };
        self.within(roots).map(one).collect()
    }

    /// The first of the roots, and others while the budget lasts.
    fn within<'r>(&self, roots: &'r [usize]) -> impl Iterator<Item = &'r usize> {
        let more = |&(index, _): &(usize, _)| index == 0 || !self.budget.is_over();
        roots.iter().enumerate().take_while(more).map(|(_, root)| root)
    }

    fn best(&self, tree: impl Fn(&Closure) -> Option<(Tree, i64)>, lengths: &[i64]) -> (Tree, i64) {
        let mut best: Option<(Tree, i64)> = None;
        for set in &self.branching {
            if best.is_some() && self.budget.is_over() {
                break;
            }
            let closure = self.closure(set, lengths);
            if !closure.spans(0) {
                continue;
            }
            let Some((tree, _)) = tree(&closure) else { continue };
            let tree = self.pruned(tree);
            let total = tree.arcs(self.net).map(|arc| lengths[arc]).sum();
            if best.as_ref().is_none_or(|(_, least)| total < *least) {
                best = Some((tree, total));
            }
        }
        best.expect("the GPUs reach each other without any branching switch")
    }

    fn closure(&self, switches: &[usize], lengths: &[i64]) -> Closure {
        let members: Vec<usize> = self.net.gpus.iter().chain(switches).copied().collect();
        self.budget.spend(members.len() * (self.net.arcs.len() * ARC_WORK + members.len()));
        Closure::new(self.net, members, &self.out, lengths)
    }

    /// The tree without switches that are leaves.
    fn pruned(&self, mut tree: Tree) -> Tree {
        loop {
            let needed = |hop: &Hop| {
                self.net.gpus.contains(&hop.to)
                    || tree.hops.iter().any(|other| other.from == hop.to)
            };
            let keep: Vec<bool> = tree.hops.iter().map(needed).collect();
            if keep.iter().all(|&keep| keep) {
                return tree;
            }
            let mut keep = keep.into_iter();
            tree.hops.retain(|_| keep.next() == Some(true));
        }
    }

    /// A tree from `root` of at most `height` hops, short under `lengths` but not proven shortest:
    /// the cheapest hop that keeps the limit is added until all GPUs are in. `None` if that fails.
    pub fn limited(&self, root: usize, height: usize, lengths: &[i64]) -> Option<Tree> {
        let switches = self.branching.last().map_or(&[][..], Vec::as_slice);
        let closure = self.closure(switches, lengths);
        let n = closure.members.len();
        let start = closure.members.iter().position(|&v| v == root)?;
        let mut depth = vec![usize::MAX; n];
        depth[start] = 0;
        let mut left: Vec<usize> = (0..n).filter(|&v| v != start).collect();
        let mut pairs = Vec::new();
        while left.iter().any(|&v| v < self.net.gpus.len()) {
            self.budget.spend(n * left.len());
            let hop = (0..n).filter(|&from| depth[from] < height).flat_map(|from| {
                let closure = &closure;
                left.iter().filter_map(move |&to| Some((closure.between(from, to)?, from, to)))
            });
            let (_, from, to) =
                hop.min_by_key(|&(length, from, to)| (length, depth[from], from, to))?;
            depth[to] = depth[from] + 1;
            left.retain(|&v| v != to);
            pairs.push((from, to));
        }
        let hops = pairs.into_iter().map(|(from, to)| closure.hop(self.net, from, to)).collect();
        Some(self.pruned(Tree { root, hops }))
    }
}

/// Work of a shortest tree over so many vertices.
fn tree_work(members: usize) -> usize {
    members * members * EDGE_WORK
}

/// Work per arc of a shortest path search, and per pair of vertices of a tree search.
const ARC_WORK: usize = 8;
const EDGE_WORK: usize = 16;
/// 2⁸ closures per query.
const SETS_OF_MAX: usize = 8;
