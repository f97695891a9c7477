//! Shortest paths of all-to-all: trees of arcs from one GPU to all others, through GPUs and switches alike.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::super::budget::Budget;
use super::super::net::Net;
use super::super::tree::{Hop, Tree};

/// A net as the search reads it: the arcs of each vertex side by side.
pub(super) struct Wires<'a> {
    pub(super) net: &'a Net,
    pub(super) is_gpu: Vec<bool>,
    /// Where the arcs of each vertex begin in `out`.
    first: Vec<usize>,
    /// Receiver and number of each arc, by sender.
    out: Vec<(usize, usize)>,
    /// Sender and number of each arc, by receiver.
    into: Vec<Vec<(usize, usize)>>,
    /// The least capacity.
    pub(super) least: i64,
    budget: &'a Budget<'a>,
}

/// Paths from one vertex to all others, and the room in which the search works.
#[derive(Debug, Default)]
pub(super) struct Paths {
    pub(super) root: usize,
    /// By vertex the arc by which it is reached; [`NONE`] for the root and what is out of reach.
    pub(super) by: Vec<usize>,
    /// Length of the path to each vertex.
    pub(super) far: Vec<u64>,
    /// Vertices in the order in which they were reached.
    pub(super) order: Vec<usize>,
    pub(super) heap: BinaryHeap<Reverse<(u64, u32, u32)>>,
    pub(super) done: Vec<bool>,
    pub(super) below: Vec<i64>,
}

/// No arc.
pub(super) const NONE: usize = usize::MAX;

impl<'a> Wires<'a> {
    pub(super) fn new(net: &'a Net, budget: &'a Budget<'a>) -> Wires<'a> {
        let mut is_gpu = vec![false; net.n];
        net.gpus.iter().for_each(|&gpu| is_gpu[gpu] = true);
        let mut first = Vec::with_capacity(net.n + 1);
        let mut out = Vec::with_capacity(net.arcs.len());
        for arcs in net.outgoing() {
            first.push(out.len());
            out.extend(arcs.into_iter().map(|arc| (net.arcs[arc].to, arc)));
        }
        first.push(out.len());
        let mut into = vec![Vec::new(); net.n];
        net.arcs.iter().enumerate().for_each(|(number, arc)| into[arc.to].push((arc.from, number)));
        let least = net.arcs.iter().map(|arc| arc.cap).min().unwrap_or(1);
        Wires { net, is_gpu, first, out, into, least, budget }
    }

    /// Receivers and numbers of the arcs that leave a vertex.
    pub(super) fn out(&self, vertex: usize) -> &[(usize, usize)] {
        &self.out[self.first[vertex]..self.first[vertex + 1]]
    }

    /// Senders and numbers of the arcs that reach a vertex.
    pub(super) fn into(&self, vertex: usize) -> &[(usize, usize)] {
        &self.into[vertex]
    }

    /// Shortest paths from `root` to all vertices that can be reached, of those with the fewest arcs.
    pub(super) fn shortest(&self, root: usize, lengths: &[u64], paths: &mut Paths) {
        let n = self.net.n;
        self.budget.spend(self.out.len() * ARC_WORK + n * VERTEX_WORK);
        paths.root = root;
        paths.by.clear();
        paths.by.resize(n, NONE);
        paths.far.clear();
        paths.far.resize(n, u64::MAX);
        paths.done.clear();
        paths.done.resize(n, false);
        paths.order.clear();
        paths.heap.clear();
        let mut hops = vec![0u32; n];
        paths.far[root] = 0;
        paths.heap.push(Reverse((0, 0, root as u32)));
        while let Some(Reverse((far, count, here))) = paths.heap.pop() {
            let here = here as usize;
            if std::mem::replace(&mut paths.done[here], true) {
                continue;
            }
            paths.order.push(here);
            for &(to, arc) in self.out(here) {
                let (there, more) = (far + lengths[arc], count + 1);
                if !paths.done[to] && (there, more) < (paths.far[to], hops[to]) {
                    (paths.far[to], hops[to], paths.by[to]) = (there, more, arc);
                    paths.heap.push(Reverse((there, more, to as u32)));
                }
            }
        }
    }

    /// Calls `each` with every arc of the paths' tree, and the number of GPUs that are reached over it.
    pub(super) fn loads(&self, paths: &mut Paths, mut each: impl FnMut(usize, i64)) {
        let Paths { by, order, below, .. } = paths;
        below.clear();
        below.extend(self.is_gpu.iter().map(|&gpu| i64::from(gpu)));
        for &vertex in order.iter().rev() {
            let arc = by[vertex];
            if arc != NONE && below[vertex] > 0 {
                each(arc, below[vertex]);
                below[self.net.arcs[arc].from] += below[vertex];
            }
        }
    }

    /// The tree of the paths: a hop to every GPU, from the last GPU on its path.
    pub(super) fn tree(&self, paths: &Paths) -> Tree {
        let hop = |&gpu: &usize| {
            let (mut here, mut via) = (gpu, Vec::new());
            loop {
                here = self.net.arcs[paths.by[here]].from;
                if self.is_gpu[here] {
                    break;
                }
                via.push(here);
            }
            via.reverse();
            Hop { from: here, to: gpu, via }
        };
        let reached = paths.order.iter().filter(|&&v| self.is_gpu[v] && v != paths.root);
        Tree { root: paths.root, hops: reached.map(hop).collect() }
    }

    /// Σ of the lengths of shortest paths over all ordered pairs of GPUs.
    pub(super) fn distances(&self, lengths: &[u64]) -> i128 {
        let mut paths = Paths::default();
        let from = |&gpu: &usize| {
            self.shortest(gpu, lengths, &mut paths);
            self.net.gpus.iter().map(|&to| i128::from(paths.far[to])).sum::<i128>()
        };
        self.net.gpus.iter().map(from).sum()
    }

    pub(super) fn budget(&self) -> &'a Budget<'a> {
        self.budget
    }
}

/// Work of a search per arc and per vertex.
const ARC_WORK: usize = 8;
const VERTEX_WORK: usize = 64;
