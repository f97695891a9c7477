//! Rates of other methods on the same links: rings, a double binary tree, equal shards.

use netsum_topo::Ratio;
use netsum_topo::links::{Collective, LinkGraph};

use super::bound;
use super::net::Net;
use super::packed::{Flow, Packed, bound_for, net_for};
use super::tree::{Closure, Hop, Tree, hop_arcs};
use crate::error::PackError;

/// Rates in units of [`Net::unit_bps`]; `None` if the method cannot run on these links.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Baselines {
    /// Rings in each direction. Direct links: as many link-disjoint Hamiltonian cycles as there are
    /// (up to nine GPUs; one per rank order beyond, or through switches).
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
        let (cycles, rate) = rings(net);
        let rings = cycles.len() as i64;
        let both = rate.map(|rate| rate * Ratio::from(2));
        let scatter = bound::allgather(&net.reversed()).rate;
        let gather = bound::allgather(net).rate;
        Baselines {
            rings,
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
    let (cycles, rate) = rings(&net);
    let Some(rate) = rate else { return Ok(None) };
    let closure = Closure::of_gpus(&net);
    let count = net.gpus.len();
    let weight = rate * Ratio::new(1, (2 * (count - 1) * cycles.len()) as i128);
    let mut flows = Vec::new();
    for cycle in &cycles {
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
    Ok(Some(Packed { collective: Collective::Allreduce, net, flows, rate, bound }))
}

/// The rings as lists of ranks, and the rate of all together in one direction.
pub(super) fn rings(net: &Net) -> (Vec<Vec<usize>>, Option<Ratio>) {
    let count = net.gpus.len();
    let direct = count == net.n && net.mirror.is_some();
    if direct && count == 2 {
        // A ring of two uses its one link in both directions: half of the link for each orientation.
        let links = net.arcs[0].cap;
        return (vec![vec![0, 1]], Some(Ratio::new(links.into(), 2)));
    }
    if direct && count <= SEARCH_MAX {
        let mut free = vec![vec![0i64; count]; count];
        net.arcs.iter().for_each(|arc| free[arc.from][arc.to] = arc.cap);
        let cycles = cycles(&free);
        let mut best = Vec::new();
        most_cycles(&cycles, &mut free, 0, &mut Vec::new(), &mut best);
        let found: Vec<Vec<usize>> = best.into_iter().map(|index| cycles[index].clone()).collect();
        let rate = (!found.is_empty()).then(|| Ratio::from(found.len() as i64));
        return (found, rate);
    }
    let hops: Vec<(usize, usize)> =
        (0..count).flat_map(|i| [(i, (i + 1) % count), ((i + 1) % count, i)]).collect();
    let rate = shared_rate(net, &hops);
    (rate.map_or_else(Vec::new, |_| vec![(0..count).collect()]), rate)
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

/// The most compatible cycles, by number, with `have` already chosen and those before `first` tried.
fn most_cycles(
    cycles: &[Vec<usize>],
    free: &mut [Vec<i64>],
    first: usize,
    have: &mut Vec<usize>,
    best: &mut Vec<usize>,
) {
    if have.len() > best.len() {
        best.clone_from(have);
    }
    let room = free.iter().map(|row| row.iter().sum::<i64>() / 2).min().unwrap_or(0) as usize;
    for (index, cycle) in cycles.iter().enumerate().skip(first) {
        if have.len() + room <= best.len() {
            break;
        }
        let edges = || (0..cycle.len()).map(|i| (cycle[i], cycle[(i + 1) % cycle.len()]));
        if edges().all(|(a, b)| free[a][b] > 0) {
            edges().for_each(|(a, b)| {
                free[a][b] -= 1;
                free[b][a] -= 1;
            });
            have.push(index);
            most_cycles(cycles, free, index, have, best);
            have.pop();
            edges().for_each(|(a, b)| {
                free[a][b] += 1;
                free[b][a] += 1;
            });
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
