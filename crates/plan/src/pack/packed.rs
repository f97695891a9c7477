//! A packing: trees with weights on a net, with an upper bound.

use netsum_topo::Ratio;
use netsum_topo::links::{Collective, LinkGraph};

use super::blocks;
use super::bound::{self, Bound};
use super::net::Net;
use super::tree::Tree;
use crate::error::PackError;

/// A part of the buffer that takes one tree up, one down, or both.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flow {
    /// Rate, in units of [`Net::unit_bps`].
    pub weight: Ratio,
    /// Where the sum is completed, or the source of the data: a GPU, or a switch that adds and multicasts.
    pub root: usize,
    /// Sums go against its hops, from the leaves to the root.
    pub up: Option<Tree>,
    /// Data goes along its hops, from the root to the leaves.
    pub down: Option<Tree>,
}

/// Trees with rates, and the bound on their total.
#[derive(Debug, Clone)]
pub struct Packed {
    /// The collective.
    pub collective: Collective,
    /// The fabric it is for.
    pub net: Net,
    /// Flows, whose weights add up to `rate`.
    pub flows: Vec<Flow>,
    /// algbw, in units of [`Net::unit_bps`].
    pub rate: Ratio,
    /// Upper bound for all algorithms. `None` if neither a cut nor the programme gave a proof.
    pub bound: Option<Bound>,
    /// Whether the search ended at its budget, before it knew whether there are better trees.
    pub limited: bool,
}

impl Packed {
    /// algbw in bits per second.
    pub fn rate_bps(&self) -> f64 {
        self.rate.to_f64() * self.net.unit_bps as f64
    }

    /// How far the rate is below its bound, as a part of the bound; 0 if the trees are optimal.
    pub fn gap(&self) -> f64 {
        let bound = self.bound.as_ref().map_or(self.rate, |bound| bound.rate);
        1.0 - self.rate.to_f64() / bound.to_f64()
    }

    /// Number of hops of the tallest tree.
    pub fn height(&self) -> usize {
        let trees = self.flows.iter().flat_map(|flow| flow.up.iter().chain(&flow.down));
        trees.map(Tree::height).max().unwrap_or(0)
    }
}

/// The net, in which only switches that this collective can use are more than relays.
pub(super) fn net_for(collective: Collective, graph: &LinkGraph) -> Result<Net, PackError> {
    let (adds, multicasts) = match collective {
        Collective::Broadcast { .. } | Collective::Allgather => (false, true),
        Collective::Reduce { .. } | Collective::ReduceScatter => (true, false),
        Collective::Allreduce | Collective::Alltoall => (true, true),
    };
    let mut net = Net::new(graph, adds, multicasts)?;
    if collective == Collective::Alltoall {
        // No block is added to another, or copied.
        (0..net.n).for_each(|v| net.relay[v] = !net.gpus.contains(&v));
    }
    if let Collective::Broadcast { root } | Collective::Reduce { root } = collective
        && root >= net.gpus.len()
    {
        return Err(PackError::Root { root, gpus: net.gpus.len() });
    }
    Ok(net)
}

/// The bound by cuts and partitions, if they give one.
pub(super) fn bound_for(collective: Collective, net: &Net) -> Option<Bound> {
    Some(match collective {
        Collective::Alltoall => return None,
        Collective::Broadcast { root } => bound::broadcast(net, net.gpus[root]),
        Collective::Reduce { root } => bound::broadcast(&net.reversed(), net.gpus[root]),
        Collective::Allgather => bound::allgather(net),
        Collective::ReduceScatter => bound::allgather(&net.reversed()),
        Collective::Allreduce if net.aggregators().is_empty() && net.mirror.is_some() => {
            bound::allreduce(net)
        }
        Collective::Allreduce => {
            // All data leaves every GPU once, wherever it is added.
            let cut = bound::broadcast(net, net.gpus[0]);
            let clusters = net.mirror.as_ref().and_then(|_| bound::allreduce_of_clusters(net));
            clusters.filter(|clusters| clusters.rate < cut.rate).unwrap_or(cut)
        }
    })
}

/// The factor by which all weights can be multiplied until a link is full; `None` without flows.
pub(super) fn fit(net: &Net, collective: Collective, flows: &[Flow]) -> Option<Ratio> {
    let load = arc_loads(net, collective, flows);
    let used = net.arcs.iter().zip(load).filter(|(_, load)| load.is_positive());
    used.map(|(arc, load)| Ratio::from(arc.cap) / load).min()
}

/// The load of each arc, in units.
pub(super) fn arc_loads(net: &Net, collective: Collective, flows: &[Flow]) -> Vec<Ratio> {
    if collective == Collective::Alltoall {
        let trees = flows.iter().flat_map(|flow| Some((flow.down.as_ref()?, flow.weight)));
        return blocks::loads(net, trees);
    }
    let back = net.reversed();
    let mut load = vec![Ratio::ZERO; net.arcs.len()];
    for flow in flows {
        let down = flow.down.iter().flat_map(|tree| tree.arcs(net));
        let up = flow.up.iter().flat_map(|tree| tree.arcs(&back));
        for arc in down.chain(up) {
            load[arc] = load[arc] + flow.weight;
        }
    }
    load
}

/// The exact programme's columns and prices are dense in memory: beyond this it takes hours.
pub(super) const EXACT_GPUS_MAX: usize = 128;
/// Bounds take minutes beyond.
pub(super) const GPUS_MAX: usize = 1 << 14;
/// Plans with a tree from every GPU, each with a hop per GPU, take gigabytes beyond.
pub(super) const ROOTS_MAX: usize = 2048;
/// The same with several trees from every GPU.
pub(super) const ALLTOALL_MAX: usize = 1024;
