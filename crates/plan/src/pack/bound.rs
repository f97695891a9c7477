//! Upper bounds on rates, each with a verifiable proof.

use netsum_topo::Ratio;
use serde::{Deserialize, Serialize};

use super::flow::FlowNet;
use super::net::Net;

/// Why no algorithm can be faster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum Certificate {
    /// All data of the root enters the set over these arcs once.
    Cut {
        /// Vertices on the root's side.
        inside: Vec<usize>,
        /// Capacity of the arcs that leave `inside`, in units.
        capacity: i64,
    },
    /// The shards of the GPUs inside must leave the set once, all of them.
    Shards {
        /// Vertices of the set.
        inside: Vec<usize>,
        /// GPUs among them.
        gpus: usize,
        /// Capacity of the arcs that leave it, in units.
        capacity: i64,
    },
    /// Per element 2(p − 1) messages cross between the p parts (the first part to know the sum has received p − 1
    /// messages, and the p − 1 others must still receive it); each link between parts carries one each way.
    Partition {
        /// The parts, as GPUs.
        parts: Vec<Vec<usize>>,
        /// For each part, with the adding switches next to it, the least capacity that separates it from the other
        /// parts' GPUs, in units.
        cuts: Vec<i64>,
    },
    /// All-to-all: every block travels at least the distance between its GPUs under these lengths, and arcs offer
    /// Σ capacity × length: the rate is at most the number of GPUs times this, over the sum of all distances. Checked
    /// by [`crate::program::distance_bound`].
    Distances {
        /// Lengths of arcs, whole numbers; other arcs have length 0.
        arcs: Vec<ArcLength>,
        /// Σ of the distances over all ordered pairs of GPUs.
        distances: i128,
    },
    /// Every way to do the collective occupies arcs for at least one unit of length per byte, and this is the total
    /// length: Σ capacity × length. The dual of the packing programme, checked against all trees by a shortest tree
    /// under these lengths.
    Lengths {
        /// Lengths of arcs; other arcs have length 0.
        arcs: Vec<ArcLength>,
    },
}

/// A length of [`Certificate::Lengths`] or [`Certificate::Distances`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArcLength {
    /// Vertex that sends.
    pub from: usize,
    /// Vertex that receives.
    pub to: usize,
    /// Share of the arc's time; for distances, in any unit.
    pub length: Ratio,
}

/// An upper bound on a rate, and its proof.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Bound {
    /// In units of [`Net::unit_bps`].
    pub rate: Ratio,
    /// The proof.
    pub certificate: Certificate,
}

impl Bound {
    /// The proof as a sentence. `names`: of all vertices.
    pub fn explain(&self, net: &Net, names: &[String]) -> String {
        let list =
            |set: &[usize]| set.iter().map(|&v| names[v].as_str()).collect::<Vec<_>>().join(" ");
        let rate = |units: Ratio| format!("{} GB/s", gbytes(units, net.unit_bps));
        match &self.certificate {
            Certificate::Cut { inside, capacity } => format!(
                "all data leaves {{{}}}, over links of {} in all",
                list(inside),
                rate(Ratio::from(*capacity))
            ),
            Certificate::Shards { inside, gpus, capacity } => format!(
                "the {gpus} shards of {{{}}} must leave it, over links of {} in all",
                list(inside),
                rate(Ratio::from(*capacity))
            ),
            Certificate::Partition { parts, cuts } => {
                let parts: Vec<String> =
                    parts.iter().map(|part| format!("{{{}}}", list(part))).collect();
                format!(
                    "2·({} − 1) messages per element cross between the {} parts {}, whose links \
                     carry {} in all",
                    parts.len(),
                    parts.len(),
                    parts.join(" "),
                    rate(Ratio::from(cuts.iter().sum::<i64>()))
                )
            }
            Certificate::Distances { arcs, distances } => format!(
                "all blocks together travel {distances} or more {}, and links offer no more than their capacity times \
                 these",
                if arcs.len() <= LISTED {
                    format!("under the lengths {}", lengths(arcs, names))
                } else {
                    format!("under the lengths of {} links in the certificate", arcs.len())
                }
            ),
            Certificate::Lengths { arcs } => {
                format!("every tree costs at least 1 under the prices {}", lengths(arcs, names))
            }
        }
    }
}

/// Most lengths in a sentence.
const LISTED: usize = 24;

fn lengths(arcs: &[ArcLength], names: &[String]) -> String {
    let length = |arc: &ArcLength| format!("{}→{} {}", names[arc.from], names[arc.to], arc.length);
    arcs.iter().map(length).collect::<Vec<_>>().join(", ")
}

/// A rate in GB/s with at most three decimals.
pub fn gbytes(units: Ratio, unit_bps: u64) -> String {
    let value = format!("{:.3}", units.to_f64() * unit_bps as f64 / 8e9);
    value.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Broadcast from `root`: the least cut between it and any GPU (Edmonds 1973 for direct graphs).
pub fn broadcast(net: &Net, root: usize) -> Bound {
    let mut flow = flow_net(net, 0);
    let mut best: Option<(i128, Vec<bool>)> = None;
    for &gpu in net.gpus.iter().filter(|&&gpu| gpu != root) {
        let most = best.as_ref().map_or(i128::MAX, |(cut, _)| *cut);
        let cut = flow.max_flow(root, gpu, most);
        if cut < most {
            best = Some((cut, flow.source_side()));
        }
    }
    let (_, side) = best.expect("two GPUs at least");
    let inside: Vec<usize> = (0..net.n).filter(|&v| side[v]).collect();
    let capacity = leaving(net, &side);
    Bound { rate: capacity.into(), certificate: Certificate::Cut { inside, capacity } }
}

/// All-gather with equal shards, and reduce-scatter on the reversed net: N · min B⁺(S) / |S ∩ GPUs|
/// over sets S that lack a GPU. Newton's method on minimum cuts.
pub fn allgather(net: &Net) -> Bound {
    let count = net.gpus.len();
    let mut side: Vec<bool> = (0..net.n).map(|v| v != net.gpus[count - 1]).collect();
    let inside = |side: &[bool]| net.gpus.iter().filter(|&&gpu| side[gpu]).count();
    let mut x = Ratio::new(leaving(net, &side).into(), inside(&side) as i128);
    let mut flow = flow_net(net, 1);
    let arcs = net.arcs.len();
    let shards: Vec<usize> = net.gpus.iter().map(|&gpu| flow.add(net.n, gpu, 0, 0)).collect();
    loop {
        for (i, arc) in net.arcs.iter().enumerate() {
            flow.set(2 * i, i128::from(arc.cap) * x.den());
        }
        shards.iter().for_each(|&shard| flow.set(shard, x.num()));
        debug_assert_eq!(shards[0], 2 * arcs);
        let need = x.num() * count as i128;
        let mut better = None;
        for &gpu in &net.gpus {
            if flow.max_flow(net.n, gpu, need) < need {
                let found: Vec<bool> = flow.source_side()[..net.n].to_vec();
                let rate = Ratio::new(leaving(net, &found).into(), inside(&found) as i128);
                if better.as_ref().is_none_or(|(least, _)| rate < *least) {
                    better = Some((rate, found));
                }
            }
        }
        match better {
            Some((rate, found)) => (x, side) = (rate, found),
            None => break,
        }
    }
    let certificate = Certificate::Shards {
        inside: (0..net.n).filter(|&v| side[v]).collect(),
        gpus: inside(&side),
        capacity: leaving(net, &side),
    };
    Bound { rate: x * Ratio::from(count as i64), certificate }
}

/// Allreduce on a fabric with equal rates both ways and no aggregating switch: the least of
/// Σ cut(part) / 2(p − 1) over all partitions of the GPUs. Without switches it is the graph's strength,
/// min c(P) / (p − 1), which trees reach.
pub fn allreduce(net: &Net) -> Bound {
    let singles: Vec<Vec<usize>> = net.gpus.iter().map(|&gpu| vec![gpu]).collect();
    let mut best = partition_bound(net, singles);
    while let Some(parts) = weaker_partition(net, best.rate) {
        let weaker = partition_bound(net, parts);
        if weaker.rate >= best.rate {
            break;
        }
        best = weaker;
    }
    best
}

/// The same where switches add: over partitions that keep each such switch together with its neighbours, which could as
/// well add everything there. `None` if there is only one such part.
pub fn allreduce_of_clusters(net: &Net) -> Option<Bound> {
    let (small, clusters) = net.clusters()?;
    small.mirror.as_ref()?;
    let mut bound = allreduce(&small);
    let Certificate::Partition { parts, .. } = &mut bound.certificate else { return None };
    let rank = |v: &usize| small.gpus.iter().position(|gpu| gpu == v).expect("parts are of GPUs");
    for part in parts {
        *part = part.iter().flat_map(|v| clusters[rank(v)].clone()).collect();
        part.sort_unstable();
    }
    Some(bound)
}

fn partition_bound(net: &Net, parts: Vec<Vec<usize>>) -> Bound {
    let cuts: Vec<i64> = parts.iter().map(|part| cut_off(net, part)).collect();
    let sum: i64 = cuts.iter().sum();
    let rate = Ratio::new(sum.into(), 2 * (parts.len() as i128 - 1));
    Bound { rate, certificate: Certificate::Partition { parts, cuts } }
}

/// The least capacity between `part` and all other GPUs; switches may be on either side.
fn cut_off(net: &Net, part: &[usize]) -> i64 {
    let direct = net.gpus.len() == net.n;
    if direct {
        let inside = |v: usize| part.contains(&v);
        let crossing = |arc: &&super::net::Arc| inside(arc.from) && !inside(arc.to);
        return net.arcs.iter().filter(crossing).map(|arc| arc.cap).sum();
    }
    let mut flow = flow_net(net, 2);
    let all = net.arcs.iter().map(|arc| i128::from(arc.cap)).sum::<i128>();
    for &gpu in &net.gpus {
        if part.contains(&gpu) {
            flow.add(net.n, gpu, all, 0);
        } else {
            flow.add(gpu, net.n + 1, all, 0);
        }
    }
    flow.max_flow(net.n, net.n + 1, i128::MAX) as i64
}

/// A partition of the GPUs with Σ cut(part) < 2 · `rate` · (p − 1), or `None`.
///
/// Minimises Σ f(part), f(S) = cut(S) − 2 · rate, over partitions by Dilworth truncation: GPU by GPU, each with one
/// minimum cut; tight sets that meet are joined (Cunningham 1985). Switches are on whichever side is cheaper, which
/// keeps f submodular.
fn weaker_partition(net: &Net, rate: Ratio) -> Option<Vec<Vec<usize>>> {
    let n = net.n;
    let twice = 2 * rate.num();
    // All values are multiplied by the denominator of `rate`; those of switches stay 0.
    let mut value = vec![0i128; n];
    let mut parts: Vec<Vec<usize>> = Vec::new();
    let mut place = vec![None; n];
    net.gpus.iter().enumerate().for_each(|(rank, &gpu)| place[gpu] = Some(rank));
    for (rank, &v) in net.gpus.iter().enumerate() {
        let mut flow = FlowNet::new(n + 2);
        let (source, sink) = (n, n + 1);
        let mut offset = 0i128;
        for arc in &net.arcs {
            if arc.from < arc.to {
                let cap = i128::from(arc.cap) * rate.den();
                flow.add(arc.from, arc.to, cap, cap);
            }
        }
        let infinite =
            net.arcs.iter().map(|arc| i128::from(arc.cap)).sum::<i128>() * rate.den() * 4
                + value.iter().map(|value| value.abs()).sum::<i128>()
                + 1;
        flow.add(source, v, infinite, 0);
        for (u, &value) in value.iter().enumerate() {
            let Some(other) = place[u] else { continue };
            if other > rank {
                flow.add(u, sink, infinite, 0);
            } else if other < rank && value > 0 {
                flow.add(source, u, value, 0);
                offset += value;
            } else if other < rank && value < 0 {
                flow.add(u, sink, -value, 0);
            }
        }
        let cut = flow.max_flow(source, sink, i128::MAX);
        value[v] = cut - offset - twice;
        let side = flow.source_side();
        let (mut joined, apart): (Vec<_>, Vec<_>) =
            parts.into_iter().partition(|part: &Vec<usize>| part.iter().any(|&u| side[u]));
        joined.push(vec![v]);
        parts = apart;
        parts.push(joined.concat());
    }
    // Σ cut(part) − 2·rate·p, against −2·rate for the whole as one part.
    if value.iter().sum::<i128>() < -twice {
        parts.iter_mut().for_each(|part| part.sort_unstable());
        parts.sort();
        Some(parts)
    } else {
        None
    }
}

/// Capacity of the arcs that leave a set.
fn leaving(net: &Net, side: &[bool]) -> i64 {
    let leaves = |arc: &&super::net::Arc| side[arc.from] && !side[arc.to];
    net.arcs.iter().filter(leaves).map(|arc| arc.cap).sum()
}

/// Arc i of the net is arc 2i of the flow; `more` vertices after the net's.
fn flow_net(net: &Net, more: usize) -> FlowNet {
    let mut flow = FlowNet::new(net.n + more);
    for arc in &net.arcs {
        flow.add(arc.from, arc.to, arc.cap.into(), 0);
    }
    flow
}
