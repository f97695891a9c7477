//! Time as a function of size: what latency and bandwidth say about each way to do an allreduce.
//!
//! A pipeline of h hops with K chunks of s/K bytes takes (h + K − 1)·(α + s/(K·w)); the best K makes it
//! (h − 1)·α + s/w + 2·√((h − 1)·α·s/w), or one chunk where that is less. α is the mean latency of the hops.

use netsum_topo::Ratio;
use serde::Serialize;

use super::baseline::Baselines;
use super::net::Net;
use super::packing::Packed;
use super::tree::{Tree, hop_arcs};

/// A way to do the collective, and its time at some size.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Estimate {
    /// In seconds.
    pub seconds: f64,
    /// Chunks per flow that the time takes for granted; 1 for methods without a pipeline.
    pub chunks: u64,
}

/// Time of packed trees for a buffer of `bytes`.
pub fn trees(packed: &Packed, bytes: f64) -> Estimate {
    let mut slowest = Estimate { seconds: 0.0, chunks: 1 };
    for flow in &packed.flows {
        let (mut hops, mut latency) = (0, 0.0);
        for tree in flow.up.iter().chain(&flow.down) {
            let (tree_hops, seconds) = longest(&packed.net, tree);
            hops += tree_hops;
            latency += seconds;
        }
        let share = (flow.weight / packed.rate).to_f64();
        let wire = bytes * 8.0 * share / (flow.weight.to_f64() * packed.net.unit_bps as f64);
        let estimate = pipeline(hops, latency / hops.max(1) as f64, wire);
        if estimate.seconds > slowest.seconds {
            slowest = estimate;
        }
    }
    slowest
}

/// Time of packed trees as processes run them (`netsum_collective::planned`), for a buffer of `bytes`:
/// besides the trees, a word to every neighbour before the data, and a round of words over the first
/// tree after it.
pub fn executed(packed: &Packed, bytes: f64) -> Estimate {
    let trees = trees(packed, bytes);
    let Some(first) = packed.flows.first() else { return trees };
    let (hops, latency) = first
        .up
        .iter()
        .chain(&first.down)
        .map(|tree| longest(&packed.net, tree))
        .fold((0, 0.0), |(hops, latency), (more, seconds)| (hops + more, latency + seconds));
    // A broadcast's tree is gone both ways by the words after it.
    let ways = if first.up.is_some() && first.down.is_some() { 1.0 } else { 2.0 };
    let before = latency / hops.max(1) as f64;
    Estimate { seconds: trees.seconds + before + ways * latency, ..trees }
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

/// Time of everybody adding 1/N for everybody in one hop each way, where each pair has a way of its
/// own or through one switch: two latencies, and the rate of equal shards.
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

/// Latency between neighbouring ranks: the mean over the arcs, twice that through switches.
fn alpha(net: &Net) -> f64 {
    let mean =
        net.arcs.iter().map(|arc| arc.latency_ns as f64).sum::<f64>() / net.arcs.len() as f64;
    let arcs = if net.gpus.len() < net.n { 2.0 } else { 1.0 };
    mean * arcs * 1e-9
}

/// Hops and seconds of latency to the farthest vertex.
fn longest(net: &Net, tree: &Tree) -> (usize, f64) {
    let mut reached = std::collections::HashMap::from([(tree.root, (0usize, 0.0f64))]);
    for hop in &tree.hops {
        let (hops, seconds) = reached[&hop.from];
        let more: f64 = hop_arcs(net, hop).map(|arc| net.arcs[arc].latency_ns as f64 * 1e-9).sum();
        reached.insert(hop.to, (hops + 1, seconds + more));
    }
    let farthest = reached.into_values().max_by(|a, b| a.1.total_cmp(&b.1));
    farthest.expect("a tree has a root")
}

/// Beyond this the overhead of chunks that the model leaves out is felt.
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
