//! Trees that use all shortest paths alike: where a vertex can be reached over several arcs, each tree takes another.

use super::super::tree::{Hop, Tree};
use super::wires::{Paths, Wires};

/// Shortest paths from all GPUs under some lengths, with their ties.
pub(super) struct Ties<'a> {
    wires: &'a Wires<'a>,
    lengths: Vec<u64>,
    /// By number of arcs from the root, how many choices there are: the least common multiple over vertices.
    choices: Vec<usize>,
}

impl<'a> Ties<'a> {
    /// `None` if it takes more than `most` trees per root to use all paths alike.
    pub(super) fn new(wires: &'a Wires<'a>, lengths: Vec<u64>, most: usize) -> Option<Ties<'a>> {
        let mut ties = Ties { wires, lengths, choices: Vec::new() };
        let mut paths = Paths::default();
        for &root in &wires.net.gpus {
            wires.shortest(root, &ties.lengths, &mut paths);
            let depth = ties.depths(&paths);
            for &vertex in &paths.order {
                let count = ties.ways(&paths, &depth, vertex).count().max(1);
                let level = depth[vertex];
                if ties.choices.len() <= level {
                    ties.choices.resize(level + 1, 1);
                }
                let known = ties.choices[level];
                ties.choices[level] =
                    known / netsum_topo::gcd(known as u128, count as u128) as usize * count;
                if ties.trees_per_root() > most {
                    return None;
                }
            }
        }
        Some(ties)
    }

    pub(super) fn trees_per_root(&self) -> usize {
        self.choices.iter().fold(1, |all, &count| all.saturating_mul(count))
    }

    /// Tree number `number`, modulo [`Ties::trees_per_root`], of a GPU. All numbers together use all shortest paths of
    /// fewest arcs alike: the choices at different numbers of arcs from the root are independent.
    pub(super) fn tree(&self, root: usize, number: usize) -> Tree {
        let (wires, net) = (self.wires, self.wires.net);
        let mut paths = Paths::default();
        wires.shortest(root, &self.lengths, &mut paths);
        let depth = self.depths(&paths);
        let mut digits = Vec::with_capacity(self.choices.len());
        let mut left = number;
        for &count in &self.choices {
            digits.push(left % count);
            left /= count;
        }
        let mut by = paths.by.clone();
        for &vertex in &paths.order {
            let ways: Vec<usize> = self.ways(&paths, &depth, vertex).collect();
            if !ways.is_empty() {
                by[vertex] = ways[digits[depth[vertex]] % ways.len()];
            }
        }
        let hop = |&gpu: &usize| {
            let (mut here, mut via) = (gpu, Vec::new());
            loop {
                here = net.arcs[by[here]].from;
                if wires.is_gpu[here] {
                    break;
                }
                via.push(here);
            }
            via.reverse();
            Hop { from: here, to: gpu, via }
        };
        let reached = paths.order.iter().filter(|&&v| wires.is_gpu[v] && v != root);
        Tree { root, hops: reached.map(hop).collect() }
    }

    /// Number of arcs from the root.
    fn depths(&self, paths: &Paths) -> Vec<usize> {
        let mut depth = vec![0; self.wires.net.n];
        for &vertex in &paths.order {
            let arc = paths.by[vertex];
            if arc != super::wires::NONE {
                depth[vertex] = depth[self.wires.net.arcs[arc].from] + 1;
            }
        }
        depth
    }

    /// The last arcs of shortest paths to a vertex with the fewest arcs.
    fn ways<'p>(
        &'p self,
        paths: &'p Paths,
        depth: &'p [usize],
        vertex: usize,
    ) -> impl Iterator<Item = usize> + 'p {
        let net = self.wires.net;
        let last = move |&(from, arc): &(usize, usize)| {
            paths.far[from] != u64::MAX
                && paths.far[from] + self.lengths[arc] == paths.far[vertex]
                && depth[from] + 1 == depth[vertex]
        };
        let into = self.wires.into(vertex).iter().filter(move |pair| last(pair));
        into.map(|&(_, arc)| arc)
            .filter(move |&arc| net.arcs[arc].to == vertex && vertex != paths.root)
    }
}
