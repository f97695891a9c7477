//! Trees in three phases over several servers: sums inside each server over its own links, between one GPU of each over
//! the network in one hop, and back.
//!
//! Source: Blink (MLSys 2020), cross-machine collectives: local reduce to a root per server, one-hop exchange between the
//! roots, local broadcast, the buffer cut so that every server uses all of its trees. Here a cut is one tree
//! over all GPUs whose only ways between servers join the roots, so plans are ordinary tree plans. Differs: which GPU
//! of a server is root of how much is part of the programme, and not the share of the local tree.

use netsum_topo::Ratio;

use super::baseline::rings;
use super::budget::Budget;
use super::choice::First;
use super::net::Net;
use super::packed::EXACT_GPUS_MAX;
use super::search::Search;
use super::servers::{Local, Servers, lengths};
use super::spread::Spread;
use super::tree::{Closure, Tree, Ways, hop_arcs};

/// Finds short three-phase trees.
pub(super) struct Phases<'a> {
    net: &'a Net,
    locals: Vec<(&'a Local, Search<'a>)>,
    out: Vec<Vec<usize>>,
    is_gpu: Vec<bool>,
}

impl<'a> Phases<'a> {
    pub(super) fn new(net: &'a Net, servers: &'a Servers, budget: &'a Budget<'a>) -> Phases<'a> {
        let search = |local: &'a Local| (local, Search::new(&local.net, budget));
        let mut is_gpu = vec![false; net.n];
        net.gpus.iter().for_each(|&gpu| is_gpu[gpu] = true);
        let locals = servers.locals.iter().map(search).collect();
        Phases { net, locals, out: net.outgoing(), is_gpu }
    }

    /// Initial trees: several for each of `centres`, on the least loaded links. Trees of the last round are the answer
    /// if the programme would take too long. `row`: by arc, the arc whose capacity it shares.
    pub(super) fn first(&self, centres: &[usize], row: &[usize]) -> First {
        let mut load = vec![0i64; self.net.arcs.len()];
        let count = |load: &mut Vec<i64>, tree: &Tree, by: i64| {
            tree.arcs(self.net).for_each(|arc| load[row[arc]] += by);
        };
        let mut last: Vec<Tree> = Vec::new();
        let mut all = Vec::new();
        for round in 0..ROUNDS {
            for (slot, &centre) in centres.iter().enumerate() {
                if round > 0 {
                    count(&mut load, &last[slot], -1);
                }
                let (tree, _) = self.shortest_at(centre, &lengths(self.net, &load, row));
                count(&mut load, &tree, 1);
                all.push(tree.clone());
                if round > 0 {
                    last[slot] = tree;
                } else {
                    last.push(tree);
                }
            }
        }
        if self.net.gpus.len() > EXACT_GPUS_MAX {
            let used = self.net.arcs.iter().zip(&load).filter(|(_, load)| **load > 0);
            let weight = used.map(|(arc, &load)| Ratio::new(arc.cap.into(), load.into())).min();
            let weight = weight.expect("trees have arcs");
            let done = Some(Spread { trees: last, weight });
            return First { trees: Vec::new(), done, best: None };
        }
        all.sort();
        all.dedup();
        First { trees: all, done: None, best: None }
    }

    /// The shortest tree under lengths that are equal in both directions; with its length.
    pub(super) fn shortest(&self, lengths: &[i64]) -> (Tree, i64) {
        let exchanges = self.net.gpus.iter().map(|&gpu| self.exchange(gpu, lengths));
        let best = exchanges.min_by_key(|exchange| exchange.length);
        self.assembled(&best.expect("there are GPUs"), lengths)
    }

    /// The shortest tree whose exchange meets at GPU `centre`.
    fn shortest_at(&self, centre: usize, lengths: &[i64]) -> (Tree, i64) {
        self.assembled(&self.exchange(centre, lengths), lengths)
    }

    /// The GPU nearest to the centre in every server but the centre's.
    fn exchange(&self, centre: usize, lengths: &[i64]) -> Exchange {
        let ways = Ways::new(self.net, centre, &self.is_gpu, &self.out, lengths);
        let far = |gpu: usize| ways.length(gpu).unwrap_or(FAR);
        let root = |(local, _): &(&Local, Search<'_>)| {
            let near = local.gpus().min_by_key(|&gpu| if gpu == centre { -1 } else { far(gpu) });
            near.expect("a server has GPUs")
        };
        let roots: Vec<usize> = self.locals.iter().map(root).collect();
        let length = roots.iter().filter(|&&root| root != centre).map(|&root| far(root)).sum();
        Exchange { centre, roots, length, ways }
    }

    fn assembled(&self, exchange: &Exchange, lengths: &[i64]) -> (Tree, i64) {
        let Exchange { centre, ref roots, ref ways, .. } = *exchange;
        let mut hops = Vec::new();
        for (&root, (local, search)) in roots.iter().zip(&self.locals) {
            if root != centre {
                hops.push(ways.hop(self.net, root));
            }
            if local.net.gpus.len() > 1 {
                let own: Vec<i64> = local.arcs.iter().map(|&arc| lengths[arc]).collect();
                let tree = search.undirected(&own).0.renamed(&local.vertices);
                hops.extend(tree.rerooted(root).hops);
            }
        }
        let tree = Tree { root: centre, hops };
        let total = tree.arcs(self.net).map(|arc| lengths[arc]).sum();
        (tree, total)
    }
}

/// One hop between the centre and a root in every other server.
struct Exchange {
    centre: usize,
    /// Root of each server; the centre in its own.
    roots: Vec<usize>,
    length: i64,
    ways: Ways,
}

/// Rate of rings in three phases: reduce-scatter on the rings of each server, an allreduce of every shard on a ring
/// over the servers, all-gather back, all in one pipeline. `None` for a single server, servers of one GPU or of
/// different numbers of GPUs, and if a server has no ring.
pub(super) fn hierarchical_rings(net: &Net) -> Option<Ratio> {
    let locals: Vec<Local> = net.servers.iter().map(|group| Local::new(net, group)).collect();
    let size = locals[0].net.gpus.len();
    if locals.len() < 2 || size < 2 || locals.iter().any(|local| local.net.gpus.len() != size) {
        return None;
    }
    let mut load = vec![Ratio::ZERO; net.arcs.len()];
    // Data goes round a ring of n twice with 1/n of it each, half of it in each orientation.
    let each = |count: usize| Ratio::new(count as i128 - 1, count as i128);
    for local in &locals {
        let rings = rings(&local.net);
        if rings.is_empty() {
            return None;
        }
        let closure = Closure::of_gpus(&local.net);
        let all: Ratio = rings.iter().map(|ring| ring.rate).sum();
        for ring in &rings {
            let arcs = around(&local.net, &closure, &ring.ranks)?;
            let each = each(size) * (ring.rate / all);
            arcs.iter().map(|&arc| local.arcs[arc]).for_each(|arc| load[arc] = load[arc] + each);
        }
    }
    let closure = Closure::of_gpus(net);
    let rank = |gpu: usize| net.gpus.iter().position(|&known| known == gpu).expect("a GPU");
    for place in 0..size {
        let at = |local: &Local| rank(local.vertices[local.net.gpus[place]]);
        let ring: Vec<usize> = locals.iter().map(at).collect();
        let each = each(locals.len()) / Ratio::from(size as i64);
        around(net, &closure, &ring)?.iter().for_each(|&arc| load[arc] = load[arc] + each);
    }
    let used = net.arcs.iter().zip(load).filter(|(_, load)| load.is_positive());
    used.map(|(arc, load)| Ratio::from(arc.cap) / load).min()
}

/// Arcs of a ring of ranks, in both orientations.
fn around(net: &Net, closure: &Closure, ring: &[usize]) -> Option<Vec<usize>> {
    let mut arcs = Vec::new();
    for at in 0..ring.len() {
        let ends = [ring[at], ring[(at + 1) % ring.len()]];
        for [from, to] in [ends, [ends[1], ends[0]]] {
            closure.between(from, to)?;
            arcs.extend(hop_arcs(net, &closure.hop(net, from, to)));
        }
    }
    Some(arcs)
}

const ROUNDS: usize = 4;
/// Length if there is no path.
const FAR: i64 = i64::MAX >> 16;
