//! Rates of other methods on the same links: rings, a double binary tree, equal shards.

use netsum_topo::Ratio;
use netsum_topo::links::{Collective, LinkGraph};

use super::bound;
use super::budget::Budget;
use super::lp::{Column, Master};
use super::net::Net;
use super::packed::{Flow, Packed, bound_for, net_for};
use super::tree::{Closure, Hop, Tree, hop_arcs};
use crate::error::PackError;

/// Rates in units of [`Net::unit_bps`]; `None` if the method cannot run on these links.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Baselines {
    /// Rings in each direction, at rate 1 each. Direct links: as many link-disjoint Hamiltonian cycles as there are
    /// (up to nine GPUs; one in the order of ranks beyond, or through switches).
    pub rings: i64,
    /// Broadcast along the rings.
    pub ring_broadcast: Option<Ratio>,
    /// Allreduce along the rings.
    pub ring_allreduce: Option<Ratio>,
    /// Allreduce with two binary trees over the ranks, half the data each.
    pub double_tree: Option<Ratio>,
    /// Allreduce as the best reduce-scatter and all-gather with equal shards.
    pub equal_shards: Ratio,
}

impl Baselines {
    /// Computes all baselines.
    pub fn new(net: &Net) -> Baselines {
        let count = net.gpus.len() as i128;
        let found = rings(net);
        let rate: Ratio = found.iter().map(|ring| ring.rate).sum();
        let both = rate.is_positive().then(|| rate * Ratio::from(2));
        let scatter = bound::allgather(&net.reversed()).rate;
        let gather = bound::allgather(net).rate;
        Baselines {
            rings: (rate.num() / rate.den()) as i64,
            ring_broadcast: both,
            ring_allreduce: both.map(|both| both * Ratio::new(count, 2 * (count - 1))),
            double_tree: double_tree(net),
            // Half of the time for each if both are equally fast.
            equal_shards: scatter * gather / (scatter + gather),
        }
    }
}

/// The allreduce on rings as a plan: every rank is root of 1/N of each ring's data, which goes round twice, first added
/// and then copied. `None` if there is no ring.
pub fn pack_rings(graph: &LinkGraph) -> Result<Option<Packed>, PackError> {
    let net = net_for(Collective::Allreduce, graph)?;
    let rings = rings(&net);
    if rings.is_empty() {
        return Ok(None);
    }
    let closure = Closure::of_gpus(&net);
    let count = net.gpus.len();
    let mut flows = Vec::new();
    for Ring { ranks: cycle, rate } in &rings {
        let weight = *rate * Ratio::new(1, (2 * (count - 1)) as i128);
        for back in [false, true] {
            for place in 0..count {
                let at = |steps: usize| {
                    let steps = if back { count - steps % count } else { steps };
                    cycle[(place + steps) % count]
                };
                let root = net.gpus[at(0)];
                // Sums travel in the direction of the ring: a tree's hops point away from its root.
                let up = (1..count).map(|i| {
                    let (from, to) = (at(count - i + 1), at(count - i));
                    let way = closure.hop(&net, to, from);
                    let via = way.via.into_iter().rev().collect();
                    Hop { from: way.to, to: way.from, via }
                });
                let up = Tree { root, hops: up.collect() };
                let down = (1..count).map(|i| closure.hop(&net, at(i - 1), at(i)));
                let down = Tree { root, hops: down.collect() };
                flows.push(Flow { weight, root, up: Some(up), down: Some(down) });
            }
        }
    }
    let rate = flows.iter().map(|flow| flow.weight).sum();
    let bound = bound_for(Collective::Allreduce, &net);
    let collective = Collective::Allreduce;
    Ok(Some(Packed { collective, net, flows, rate, bound, limited: false }))
}

/// A ring and its rate in each direction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Ring {
    /// All ranks in the order of the ring.
    pub(super) ranks: Vec<usize>,
    /// In units of [`Net::unit_bps`].
    pub(super) rate: Ratio,
}

/// The rings that can run together; none if there is no ring.
///
/// Direct links, up to [`SEARCH_MAX`] GPUs: as many whole rings as possible, or the best rates of rings if links carry
/// too many for a search.
pub(super) fn rings(net: &Net) -> Vec<Ring> {
    let count = net.gpus.len();
    let direct = count == net.n && net.mirror.is_some();
    if direct && count == 2 {
        // A ring of two uses its one link in both directions: half of the link for each orientation.
        let rate = Ratio::new(net.arcs[0].cap.into(), 2);
        return vec![Ring { ranks: vec![0, 1], rate }];
    }
    if direct && count <= SEARCH_MAX {
        let mut free = vec![vec![0i64; count]; count];
        net.arcs.iter().for_each(|arc| free[arc.from][arc.to] = arc.cap);
        let cycles = cycles(&free);
        return whole_rings(&cycles, &mut free).unwrap_or_else(|| weighted_rings(net, &cycles));
    }
    let hops: Vec<(usize, usize)> =
        (0..count).flat_map(|i| [(i, (i + 1) % count), ((i + 1) % count, i)]).collect();
    let rate = shared_rate(net, &hops);
    rate.map(|rate| Ring { ranks: (0..count).collect(), rate }).into_iter().collect()
}

/// The most rings of rate 1; `None` if the search would take too long.
fn whole_rings(cycles: &[Vec<usize>], free: &mut [Vec<i64>]) -> Option<Vec<Ring>> {
    if room(free) > RINGS_MAX {
        return None;
    }
    let mut choice = Choosing { cycles, free, have: Vec::new(), best: Vec::new(), steps: 0 };
    choice.extend(0);
    let known = choice.steps < STEPS_MAX;
    let ring = |&index: &usize| Ring { ranks: cycles[index].clone(), rate: Ratio::ONE };
    known.then(|| choice.best.iter().map(ring).collect())
}

/// The rates of cycles that are fastest together, by a linear programme.
fn weighted_rings(net: &Net, cycles: &[Vec<usize>]) -> Vec<Ring> {
    let pairs: Vec<usize> =
        (0..net.arcs.len()).filter(|&arc| net.arcs[arc].from < net.arcs[arc].to).collect();
    let mut row = vec![0; net.arcs.len()];
    pairs.iter().enumerate().for_each(|(place, &arc)| row[arc] = place);
    let mut master = Master::new(pairs.iter().map(|&arc| net.arcs[arc].cap).collect());
    for cycle in cycles {
        let edge = |i: usize| {
            let (a, b) = (cycle[i], cycle[(i + 1) % cycle.len()]);
            (row[net.arc(a.min(b), a.max(b)).expect("cycles follow arcs")], 1)
        };
        let mut uses: Vec<(usize, i64)> = (0..cycle.len()).map(edge).collect();
        uses.sort_unstable();
        master.add(Column { gain: 1, uses });
    }
    let packing = master.solve(None, &Budget::of_work(RINGS_WORK), &mut |_, _| Vec::new());
    let ring = |&(index, rate): &(usize, Ratio)| Ring { ranks: cycles[index].clone(), rate };
    packing.weights.iter().map(ring).collect()
}

/// The most rings that could still be added: each takes two links of every vertex.
fn room(free: &[Vec<i64>]) -> usize {
    free.iter().map(|row| row.iter().sum::<i64>() / 2).min().unwrap_or(0) as usize
}

/// All Hamiltonian cycles, each once, as lists of vertices from 0.
fn cycles(free: &[Vec<i64>]) -> Vec<Vec<usize>> {
    fn extend(free: &[Vec<i64>], path: &mut Vec<usize>, found: &mut Vec<Vec<usize>>) {
        let (n, here) = (free.len(), path[path.len() - 1]);
        if path.len() == n {
            // Of the two orientations the one whose second vertex is less than its last.
            if free[here][0] > 0 && path[1] < here {
                found.push(path.clone());
            }
            return;
        }
        for next in 1..n {
            if free[here][next] > 0 && !path.contains(&next) {
                path.push(next);
                extend(free, path, found);
                path.pop();
            }
        }
    }
    let mut found = Vec::new();
    extend(free, &mut vec![0], &mut found);
    found
}

/// The search for the most compatible cycles.
struct Choosing<'a> {
    cycles: &'a [Vec<usize>],
    /// Rings that each link can still carry.
    free: &'a mut [Vec<i64>],
    have: Vec<usize>,
    best: Vec<usize>,
    steps: usize,
}

impl Choosing<'_> {
    /// Adds cycles to those that it has, without those before `first`.
    fn extend(&mut self, first: usize) {
        if self.have.len() > self.best.len() {
            self.best.clone_from(&self.have);
        }
        let room = room(self.free);
        for index in first..self.cycles.len() {
            self.steps += 1;
            if self.have.len() + room <= self.best.len() || self.steps >= STEPS_MAX {
                break;
            }
            if self.edges(index).all(|(a, b)| self.free[a][b] > 0) {
                self.take(index, 1);
                self.have.push(index);
                self.extend(index);
                self.have.pop();
                self.take(index, -1);
            }
        }
    }

    fn edges(&self, index: usize) -> impl Iterator<Item = (usize, usize)> + use<'_> {
        let cycle = &self.cycles[index];
        (0..cycle.len()).map(|i| (cycle[i], cycle[(i + 1) % cycle.len()]))
    }

    fn take(&mut self, index: usize, count: i64) {
        let cycle = &self.cycles[index];
        for i in 0..cycle.len() {
            let (a, b) = (cycle[i], cycle[(i + 1) % cycle.len()]);
            self.free[a][b] -= count;
            self.free[b][a] -= count;
        }
    }
}

/// Two trees over the ranks, every rank a leaf of one of them: the in-order binary tree, and the same
/// over the ranks shifted by one. Source: Sanders, Speck, Träff 2009, as in NCCL.
fn double_tree(net: &Net) -> Option<Ratio> {
    let count = net.gpus.len();
    let mut hops = Vec::new();
    for shift in [0, 1] {
        for place in 0..count {
            if let Some(parent) = in_order_parent(place, count) {
                let rank = |place: usize| (place + shift) % count;
                hops.push((rank(parent), rank(place)));
                hops.push((rank(place), rank(parent)));
            }
        }
    }
    // Each tree carries half.
    shared_rate(net, &hops).map(|rate| rate * Ratio::from(2))
}

/// The parent is the place with the lowest bit cleared and the next one set, kept within the count.
fn in_order_parent(place: usize, count: usize) -> Option<usize> {
    if place == 0 {
        return None;
    }
    let bit = place & place.wrapping_neg();
    let up = (place ^ bit) | (bit << 1);
    let parent = if up >= count { place ^ bit } else { up };
    Some(parent)
}

/// The rate at which all hops between ranks can run together, on shortest paths.
fn shared_rate(net: &Net, hops: &[(usize, usize)]) -> Option<Ratio> {
    let closure = Closure::of_gpus(net);
    let mut load = vec![0i64; net.arcs.len()];
    for &(from, to) in hops {
        closure.between(from, to)?;
        let hop: Hop = closure.hop(net, from, to);
        hop_arcs(net, &hop).for_each(|arc| load[arc] += 1);
    }
    let used = net.arcs.iter().zip(load).filter(|(_, load)| *load > 0);
    used.map(|(arc, load)| Ratio::new(arc.cap.into(), load.into())).min()
}

/// At most 20,160 cycles of a complete graph.
const SEARCH_MAX: usize = 9;
/// Links of real machines carry a few whole rings; beyond, a search for whole numbers does not end in time.
const RINGS_MAX: usize = 32;
/// Work to find the rates of rings: a programme of a few thousand pivots.
const RINGS_WORK: u64 = 300_000_000;
/// Cycles that the search may look at; the machines here need fewer.
const STEPS_MAX: usize = 4_000_000;
