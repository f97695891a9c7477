//! Time of an allreduce as a function of its size, by latency and bandwidth, for each method.
//!
//! A pipeline of h hops with K chunks of s/K bytes takes (h + K − 1)·(α + s/(K·w)); the best K makes it
//! (h − 1)·α + s/w + 2·√((h − 1)·α·s/w), or one chunk where that is less. α is the mean latency of the hops.

use std::collections::HashMap;

use netsum_topo::Ratio;
use netsum_topo::links::{LinkGraph, TreePlan};
use serde::Serialize;

use super::baseline::Baselines;
use super::net::Net;
use super::packed::{Flow, Packed};
use super::tree::{Hop, Tree, Ways, hop_arcs};

/// Estimated time of a collective at some size.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Estimate {
    /// In seconds.
    pub seconds: f64,
    /// Assumed number of chunks per flow; 1 for methods without a pipeline.
    pub chunks: u64,
}

/// The properties of trees that determine their time.
#[derive(Debug, Clone)]
pub struct Trees {
    /// For each flow the hops to its root and from it, and their latency in seconds.
    flows: Vec<(usize, f64)>,
    /// Whether data goes both up and down.
    both: bool,
    bytes_per_s: f64,
}

impl Trees {
    /// The properties of packed trees.
    pub fn of(packed: &Packed) -> Trees {
        let flow = |flow: &Flow| {
            let trees = flow.up.iter().chain(&flow.down);
            trees.map(|tree| longest(&packed.net, tree)).fold((0, 0.0), both)
        };
        let two_ways =
            packed.flows.first().is_some_and(|flow| flow.up.is_some() && flow.down.is_some());
        Trees {
            flows: packed.flows.iter().map(flow).collect(),
            both: two_ways,
            bytes_per_s: packed.rate_bps() / 8.0,
        }
    }

    /// The properties of a plan's trees; `None` if the fabric lacks links that it uses.
    pub fn of_plan(graph: &LinkGraph, plan: &TreePlan) -> Option<Trees> {
        let place =
            |&v: &usize| graph.vertices().iter().position(|own| own.name == plan.vertices[v]);
        let mut latency = HashMap::new();
        for (from, to, link) in graph.arcs() {
            let known = latency.entry((from, to)).or_insert(0);
            *known = link.latency_ns.max(*known);
        }
        let way = |way: &Vec<usize>| -> Option<(usize, usize, f64)> {
            let at: Vec<usize> = way.iter().map(place).collect::<Option<_>>()?;
            let arcs = at.windows(2).map(|pair| latency.get(&(pair[0], pair[1])).copied());
            let total = arcs.sum::<Option<u64>>()? as f64 * 1e-9;
            Some((*at.first()?, *at.last()?, total))
        };
        let mut flows = Vec::new();
        for flow in &plan.flows {
            let up = flow.up.iter().rev().map(way);
            let up = up.map(|way| way.map(|(from, to, seconds)| (to, from, seconds)));
            let up: Vec<_> = up.collect::<Option<_>>()?;
            let down: Vec<_> = flow.down.iter().map(way).collect::<Option<_>>()?;
            let root = place(&flow.root)?;
            flows.push(both(farthest(root, up), farthest(root, down)));
        }
        let two_ways =
            plan.flows.first().is_some_and(|flow| !flow.up.is_empty() && !flow.down.is_empty());
        Some(Trees { flows, both: two_ways, bytes_per_s: plan.rate_bps.to_f64() / 8.0 })
    }

    /// Time for a buffer of `bytes`.
    pub fn time(&self, bytes: f64) -> Estimate {
        // All flows send their bytes at the same time: the rate is that of all together.
        let wire = bytes / self.bytes_per_s;
        let flow =
            |&(hops, latency): &(usize, f64)| pipeline(hops, latency / hops.max(1) as f64, wire);
        let slowest = self.flows.iter().map(flow).max_by(|a, b| a.seconds.total_cmp(&b.seconds));
        slowest.unwrap_or(Estimate { seconds: 0.0, chunks: 1 })
    }

    /// Time as processes run a plan (`netsum_collective::planned`): besides the trees, a message to every neighbour
    /// before the data, and a round of messages over the first tree after it.
    pub fn executed(&self, bytes: f64) -> Estimate {
        let trees = self.time(bytes);
        let Some(&(hops, latency)) = self.flows.first() else { return trees };
        // The messages after a broadcast travel its tree in both directions.
        let ways = if self.both { 1.0 } else { 2.0 };
        let before = latency / hops.max(1) as f64;
        Estimate { seconds: trees.seconds + before + ways * latency, ..trees }
    }
}

/// Every GPU sends to every other one, on shortest paths; GPUs forward.
#[derive(Debug, Clone, Copy)]
pub struct Exchange {
    gpus: f64,
    /// Latency of the longest path.
    latency: f64,
    /// Seconds per byte from each GPU to each, on the fullest arc.
    per_byte: f64,
}

impl Exchange {
    /// For a fabric whose GPUs reach each other.
    pub fn new(net: &Net) -> Exchange {
        let (out, nobody) = (net.outgoing(), vec![false; net.n]);
        let lengths = vec![0; net.arcs.len()];
        let mut load = vec![0u64; net.arcs.len()];
        let mut longest = 0;
        for &from in &net.gpus {
            let ways = Ways::new(net, from, &nobody, &out, &lengths);
            for &to in net.gpus.iter().filter(|&&to| to != from) {
                let arcs: Vec<usize> = hop_arcs(net, &ways.hop(net, to)).collect();
                arcs.iter().for_each(|&arc| load[arc] += 1);
                longest = longest.max(arcs.iter().map(|&arc| net.arcs[arc].latency_ns).sum());
            }
        }
        let full = net.arcs.iter().zip(load).map(|(arc, load)| load as f64 / arc.cap as f64);
        Exchange {
            gpus: net.gpus.len() as f64,
            latency: longest as f64 * 1e-9,
            per_byte: full.fold(0.0, f64::max) * 8.0 / net.unit_bps as f64,
        }
    }

    /// An allreduce in one step: every GPU receives everything and adds.
    pub fn one_step(&self, bytes: f64) -> Estimate {
        Estimate { seconds: self.latency + bytes * self.per_byte, chunks: 1 }
    }

    /// An allreduce in two steps: every GPU adds 1/N, and sends its sum to all.
    pub fn two_steps(&self, bytes: f64) -> Estimate {
        let seconds = 2.0 * (self.latency + bytes / self.gpus * self.per_byte);
        Estimate { seconds, chunks: 1 }
    }

    /// As hosts do it without a plan (`netsum_collective::algorithm`): one step for small buffers, two for larger ones.
    pub fn by_hosts(&self, bytes: f64) -> Estimate {
        let little = bytes * (self.gpus - 1.0) <= ONE_STEP_MOST;
        if little { self.one_step(bytes) } else { self.two_steps(bytes) }
    }
}

/// The size in bytes from which trees are no slower than the hosts without them; `None` if there is no such size.
pub fn turn(trees: &Trees, exchange: &Exchange) -> Option<u64> {
    let faster = |bytes: f64| {
        trees.executed(bytes).seconds <= exchange.by_hosts(bytes).seconds * (1.0 + AS_GOOD)
    };
    let doubling = (0..=LARGEST_LOG2).map(|log2| (1u64 << log2) as f64);
    let slow = doubling.filter(|&bytes| !faster(bytes)).fold(0.0, f64::max);
    if slow >= (1u64 << LARGEST_LOG2) as f64 {
        return None;
    }
    Some(boundary(slow, (2.0 * slow).max(1.0), |bytes| !faster(bytes)).ceil() as u64)
}

/// The size at which `below` changes, between one where it holds and one where it does not.
pub fn boundary(mut low: f64, mut high: f64, below: impl Fn(f64) -> bool) -> f64 {
    while high - low > 1.0 && high / low.max(1.0) > 1.001 {
        let middle = (low + high) / 2.0;
        *(if below(middle) { &mut low } else { &mut high }) = middle;
    }
    high
}

/// The best number of chunks for `hops` hops of `alpha` seconds each, and `wire` seconds of bytes.
pub fn pipeline(hops: usize, alpha: f64, wire: f64) -> Estimate {
    let more = hops.saturating_sub(1) as f64;
    let best = if alpha > 0.0 { (more * wire / alpha).sqrt() } else { CHUNKS_MAX };
    let chunks = best.clamp(1.0, CHUNKS_MAX).round();
    let seconds = (more + chunks) * (alpha + wire / chunks);
    Estimate { seconds, chunks: chunks as u64 }
}

/// Time of an allreduce on rings: 2(N − 1) steps of 1/N of the data each.
pub fn ring(net: &Net, rate: Ratio, bytes: f64) -> Estimate {
    let count = net.gpus.len() as f64;
    let alpha = alpha(net);
    let seconds = 2.0 * (count - 1.0) * alpha + bytes * 8.0 / (rate.to_f64() * net.unit_bps as f64);
    Estimate { seconds, chunks: 1 }
}

/// Time of an allreduce by a double binary tree.
pub fn double_tree(net: &Net, rate: Ratio, bytes: f64) -> Estimate {
    let height = (net.gpus.len() as f64).log2().ceil() as usize;
    pipeline(2 * height, alpha(net), bytes * 8.0 / (rate.to_f64() * net.unit_bps as f64))
}

/// Time if every GPU adds 1/N for all in one hop each way, where each pair has a path of its own or through one switch:
/// two latencies, and the rate of equal shards.
pub fn one_hop(net: &Net, baselines: &Baselines, bytes: f64) -> Option<Estimate> {
    let out = net.outgoing();
    let neighbour = |a: usize, b: usize| {
        net.arc(a, b).is_some()
            || out[a].iter().any(|&arc| {
                let via = net.arcs[arc].to;
                !net.gpus.contains(&via) && net.arc(via, b).is_some()
            })
    };
    let pairs = net.gpus.iter().flat_map(|&a| net.gpus.iter().map(move |&b| (a, b)));
    if !pairs.filter(|(a, b)| a != b).all(|(a, b)| neighbour(a, b)) {
        return None;
    }
    let wire = bytes * 8.0 / (baselines.equal_shards.to_f64() * net.unit_bps as f64);
    // On unequal direct links the rate needs more than one hop.
    let even = net.gpus.len() < net.n || net.arcs.iter().all(|arc| arc.cap == net.arcs[0].cap);
    even.then(|| Estimate { seconds: 2.0 * alpha(net) + wire, chunks: 1 })
}

/// Latency between neighbouring ranks: the mean over the arcs, doubled for paths through switches.
fn alpha(net: &Net) -> f64 {
    let mean =
        net.arcs.iter().map(|arc| arc.latency_ns as f64).sum::<f64>() / net.arcs.len() as f64;
    let arcs = if net.gpus.len() < net.n { 2.0 } else { 1.0 };
    mean * arcs * 1e-9
}

/// Hops and seconds of latency to the farthest vertex.
fn longest(net: &Net, tree: &Tree) -> (usize, f64) {
    let seconds = |hop: &Hop| -> f64 {
        hop_arcs(net, hop).map(|arc| net.arcs[arc].latency_ns as f64 * 1e-9).sum()
    };
    farthest(tree.root, tree.hops.iter().map(|hop| (hop.from, hop.to, seconds(hop))))
}

/// The same for hops (from, to, seconds), parents before children.
fn farthest(root: usize, hops: impl IntoIterator<Item = (usize, usize, f64)>) -> (usize, f64) {
    let mut reached = HashMap::from([(root, (0usize, 0.0f64))]);
    for (from, to, more) in hops {
        let (hops, seconds) = reached.get(&from).copied().unwrap_or_default();
        reached.insert(to, (hops + 1, seconds + more));
    }
    let farthest = reached.into_values().max_by(|a, b| a.1.total_cmp(&b.1));
    farthest.expect("a tree has a root")
}

fn both(one: (usize, f64), other: (usize, f64)) -> (usize, f64) {
    (one.0 + other.0, one.1 + other.1)
}

/// Most bytes that a rank sends in one step, as in `netsum_collective::algorithm`.
const ONE_STEP_MOST: f64 = 65536.0;
/// Trees that are slower by at most this are preferred: they load fewer links.
const AS_GOOD: f64 = 0.02;
/// 16 GiB.
pub const LARGEST_LOG2: u32 = 34;
/// Beyond this, the overhead of chunks, which the model omits, matters.
const CHUNKS_MAX: f64 = 4096.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_chunks_is_best() {
        for (hops, alpha, wire) in [(4, 1e-6, 1e-3), (2, 5e-6, 1e-5), (9, 1e-6, 1e-7)] {
            let best = pipeline(hops, alpha, wire);
            for chunks in 1..4096 {
                let chunks = f64::from(chunks);
                let other = (hops as f64 - 1.0 + chunks) * (alpha + wire / chunks);
                assert!(best.seconds <= other * 1.02, "{hops} {chunks}: {} {other}", best.seconds);
            }
        }
    }
}
