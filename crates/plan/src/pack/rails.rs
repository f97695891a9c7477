//! Trees along chains of servers: each enters a server once, leaves it once, and uses the server's own links inside.
//!
//! When data of one root goes to all GPUs, a network interface that forwards what it received carries each byte once in
//! either direction. A tree that branches on the network carries it twice over one interface. With as many chains as a
//! server has interfaces (*rails*) all interfaces are full.

use netsum_topo::Ratio;

use super::budget::Budget;
use super::net::Net;
use super::search::Search;
use super::servers::{Local, lengths};
use super::spread::Spread;
use super::tree::{Hop, Tree, Ways};

/// One tree from each of `roots` (a root may repeat), all of equal weight; `None` if GPUs are in a single server.
/// `row`: by arc, the arc whose capacity it shares.
pub(super) fn rails(
    net: &Net,
    row: &[usize],
    roots: &[usize],
    budget: &Budget<'_>,
) -> Option<Spread> {
    if net.servers.len() < 2 {
        return None;
    }
    let locals: Vec<Local> = net.servers.iter().map(|server| Local::new(net, server)).collect();
    let mut server = vec![usize::MAX; net.n];
    for (number, vertices) in net.servers.iter().enumerate() {
        vertices.iter().for_each(|&vertex| server[vertex] = number);
    }
    let mut is_gpu = vec![false; net.n];
    net.gpus.iter().for_each(|&gpu| is_gpu[gpu] = true);
    let mut laying = Laying {
        net,
        row,
        searches: locals.iter().map(|local| Search::new(&local.net, budget)).collect(),
        locals: &locals,
        server,
        out: net.outgoing(),
        is_gpu,
        load: vec![0; net.arcs.len()],
    };
    let mut trees: Vec<Tree> = Vec::new();
    let mut best: Option<Spread> = None;
    for round in 0..ROUNDS {
        for (slot, &root) in roots.iter().enumerate() {
            budget.spend(net.arcs.len() * locals.len());
            if round > 0 && budget.is_over() {
                return best;
            }
            if round > 0 {
                laying.count(&trees[slot], -1);
            }
            let tree = laying.tree(root)?;
            laying.count(&tree, 1);
            if round > 0 {
                trees[slot] = tree;
            } else {
                trees.push(tree);
            }
        }
        let weight = laying.weight();
        if best.as_ref().is_none_or(|best| best.weight < weight) {
            best = Some(Spread { trees: trees.clone(), weight });
        } else {
            break;
        }
    }
    best
}

struct Laying<'a> {
    net: &'a Net,
    row: &'a [usize],
    locals: &'a [Local],
    searches: Vec<Search<'a>>,
    /// Server of each vertex; `usize::MAX` outside of servers.
    server: Vec<usize>,
    out: Vec<Vec<usize>>,
    is_gpu: Vec<bool>,
    /// By row: number of uses by trees.
    load: Vec<i64>,
}

impl Laying<'_> {
    fn count(&mut self, tree: &Tree, by: i64) {
        for arc in tree.arcs(self.net) {
            self.load[self.row[arc]] += by;
        }
    }

    /// Weight of each tree at which the fullest row is full.
    fn weight(&self) -> Ratio {
        let used = self.net.arcs.iter().zip(&self.load).filter(|(_, load)| **load > 0);
        let weight = used.map(|(arc, &load)| Ratio::new(arc.cap.into(), load.into())).min();
        weight.expect("trees have arcs")
    }

    /// The chain of all servers from the root's on, in their order; `None` if a server reaches the next only through
    /// others.
    fn tree(&self, root: usize) -> Option<Tree> {
        let lengths = lengths(self.net, &self.load, self.row);
        let count = self.locals.len();
        let start = self.server[root];
        let mut hops = self.inside(start, root, &lengths);
        // The chain leaves the first server by any of its GPUs, and every other server by the GPU at which it entered.
        let mut exits: Vec<usize> = self.locals[start].gpus().collect();
        for step in 1..count {
            let next = (start + step) % count;
            let nearest = |&exit: &usize| {
                let ways = Ways::new(self.net, exit, &self.is_gpu, &self.out, &lengths);
                let entries = self.locals[next].gpus();
                let reached = entries.filter_map(|gpu| Some((ways.length(gpu)?, gpu)));
                let (length, entry) = reached.min()?;
                Some((length, entry, ways.hop(self.net, entry)))
            };
            let (_, entry, hop) =
                exits.iter().filter_map(nearest).min_by_key(|&(length, ..)| length)?;
            hops.push(hop);
            hops.extend(self.inside(next, entry, &lengths));
            exits = vec![entry];
        }
        Some(Tree { root, hops })
    }

    /// Hops from a GPU of a server to its others.
    fn inside(&self, server: usize, from: usize, lengths: &[i64]) -> Vec<Hop> {
        let local = &self.locals[server];
        if local.net.gpus.len() < 2 {
            return Vec::new();
        }
        let own: Vec<i64> = local.arcs.iter().map(|&arc| lengths[arc]).collect();
        let place = local.vertices.iter().position(|&vertex| vertex == from);
        let root = place.expect("a GPU of this server");
        let found = self.searches[server].directed(&own, &[root]);
        found.into_iter().flat_map(|(tree, _)| tree.renamed(&local.vertices).hops).collect()
    }
}

const ROUNDS: usize = 4;
