//! Report of a packing for users, as text and numbers.

use netsum_topo::links::{Collective, LinkGraph, Role, TreePlan};
use serde::Serialize;

use super::alltoall;
use super::baseline::Baselines;
use super::bound::{Certificate, gbytes};
use super::cost::{self, Estimate, Exchange, LARGEST_LOG2, Trees};
use super::packed::{Packed, arc_loads};
use super::packing::pack;
use super::phases::hierarchical_rings;
use crate::error::PackError;

/// A plan, its bound, and the rates of other methods. Rates are algbw in GB/s (10⁹ bytes).
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The plan.
    pub plan: TreePlan,
    /// Its rate.
    pub rate: f64,
    /// The rate as an exact fraction, in units of `unit`.
    pub rate_units: String,
    /// GB/s of one unit: the largest rate of which all links are multiples.
    pub unit: f64,
    /// Upper bound for all algorithms.
    pub bound: f64,
    /// The bound as an exact fraction, in units.
    pub bound_units: String,
    /// Whether `rate` equals `bound` exactly.
    pub optimal: bool,
    /// How far `rate` is below `bound`, as a part of `bound`.
    pub gap: f64,
    /// Whether the search ended at its budget: there may be better trees, up to `bound`.
    pub limited: bool,
    /// Why no algorithm can be faster, as text.
    pub proof: String,
    /// The proof in machine-readable form.
    pub certificate: Option<Certificate>,
    /// Number of trees.
    pub trees: usize,
    /// Number of hops of the tallest tree.
    pub height: usize,
    /// Other methods on the same links: name and rate, `None` if the method cannot run.
    pub others: Vec<(String, Option<f64>)>,
    /// Load of each link at this rate: sender, receiver, share of its capacity.
    pub loads: Vec<(usize, usize, f64)>,
}

/// The report of a packing.
pub fn report(graph: &LinkGraph, packed: &Packed) -> Report {
    let packed = &packed.simple();
    let net = &packed.net;
    let unit = net.unit_bps as f64 / 8e9;
    let names: Vec<String> = graph.vertices().iter().map(|vertex| vertex.name.clone()).collect();
    let bound = packed.bound.as_ref();
    let bound_rate = bound.map_or(packed.rate, |bound| bound.rate);
    Report {
        plan: packed.plan(graph),
        rate: packed.rate.to_f64() * unit,
        rate_units: packed.rate.to_string(),
        unit,
        bound: bound_rate.to_f64() * unit,
        bound_units: bound_rate.to_string(),
        optimal: packed.rate == bound_rate && bound.is_some(),
        gap: packed.gap(),
        limited: packed.limited,
        proof: bound
            .map_or_else(|| "none was found".to_owned(), |bound| bound.explain(net, &names)),
        certificate: bound.map(|bound| bound.certificate.clone()),
        trees: packed.flows.len(),
        height: packed.height(),
        others: others(packed, unit),
        loads: loads(packed),
    }
}

fn others(packed: &Packed, unit: f64) -> Vec<(String, Option<f64>)> {
    let net = &packed.net;
    if packed.collective == Collective::Alltoall {
        return vec![("fewest hops".to_owned(), Some(alltoall::fewest_hops(net).to_f64() * unit))];
    }
    let baselines = Baselines::new(net);
    let rate = |rate: Option<netsum_topo::Ratio>| rate.map(|rate| rate.to_f64() * unit);
    match packed.collective {
        Collective::Broadcast { .. } | Collective::Reduce { .. } => {
            vec![("rings".to_owned(), rate(baselines.ring_broadcast))]
        }
        Collective::Allreduce => {
            let mut others = vec![
                ("rings".to_owned(), rate(baselines.ring_allreduce)),
                ("double tree".to_owned(), rate(baselines.double_tree)),
                ("equal shards".to_owned(), rate(Some(baselines.equal_shards))),
            ];
            if let Some(found) = hierarchical_rings(net) {
                others.push(("rings in servers and between them".to_owned(), rate(Some(found))));
            }
            others
        }
        Collective::Allgather | Collective::ReduceScatter => {
            // An allreduce on rings is both, one after the other, equally fast.
            let both = baselines.ring_allreduce.map(|rate| rate + rate);
            vec![("rings".to_owned(), rate(both))]
        }
        Collective::Alltoall => Vec::new(),
    }
}

fn loads(packed: &Packed) -> Vec<(usize, usize, f64)> {
    let arcs = packed.net.arcs.iter().zip(arc_loads(&packed.net, packed.collective, &packed.flows));
    arcs.map(|(arc, load)| (arc.from, arc.to, load.to_f64() / arc.cap as f64)).collect()
}

/// Times of an allreduce at one size, and the fastest method.
#[derive(Debug, Clone, Serialize)]
pub struct Choice {
    /// Bytes of the buffer.
    pub bytes: f64,
    /// Name of the fastest method.
    pub best: String,
    /// Times by method.
    pub times: Vec<(String, Estimate)>,
}

/// When aggregation in the network is faster for an allreduce on this fabric, by the cost model.
#[derive(Debug, Clone, Serialize)]
pub struct Explanation {
    /// By size.
    pub choices: Vec<Choice>,
    /// The fastest method by size: the size in bytes from which it is fastest; the first from 1.
    pub turns: Vec<(f64, String)>,
    /// Conclusions, a sentence each.
    pub words: Vec<String>,
}

/// Compares trees, trees through adding switches, rings, a double tree and one hop at some sizes.
pub fn explain(graph: &LinkGraph, sizes: &[f64]) -> Result<Explanation, PackError> {
    let hosts = pack(&relays_only(graph), Collective::Allreduce)?;
    let adds = graph
        .vertices()
        .iter()
        .any(|vertex| matches!(vertex.role, Role::Switch { aggregates: true, multicasts: true }));
    let network = if adds { Some(pack(graph, Collective::Allreduce)?) } else { None };
    let baselines = Baselines::new(&hosts.net);
    let (trees, in_network) = (Trees::of(&hosts), network.as_ref().map(Trees::of));
    let exchange = Exchange::new(&hosts.net);
    let choice = |bytes: f64| {
        let mut times = vec![(TREES.to_owned(), trees.time(bytes))];
        if let Some(network) = &in_network {
            times.push((NETWORK.to_owned(), network.time(bytes)));
        }
        if let Some(rate) = baselines.ring_allreduce {
            times.push(("rings".to_owned(), cost::ring(&hosts.net, rate, bytes)));
        }
        if let Some(rate) = baselines.double_tree {
            times.push(("double tree".to_owned(), cost::double_tree(&hosts.net, rate, bytes)));
        }
        if let Some(time) = cost::one_hop(&hosts.net, &baselines, bytes) {
            times.push(("one hop".to_owned(), time));
        }
        times.push(("everybody to everybody".to_owned(), exchange.one_step(bytes)));
        let best = times.iter().min_by(|a, b| a.1.seconds.total_cmp(&b.1.seconds));
        let best = best.expect("there are trees").0.clone();
        Choice { bytes, best, times }
    };
    let choices: Vec<Choice> = sizes.iter().map(|&bytes| choice(bytes)).collect();
    let turns = turns(|bytes| choice(bytes).best);
    let mut words = words(&hosts, network.as_ref(), &choices);
    let ways = turns.iter().map(|(bytes, way)| format!("{way} from {}", size(*bytes)));
    words.push(format!("fastest by size: {}", ways.collect::<Vec<_>>().join(", ")));
    Ok(Explanation { choices, turns, words })
}

/// Finds the sizes at which the best method changes.
fn turns(best: impl Fn(f64) -> String) -> Vec<(f64, String)> {
    let mut turns = vec![(1.0, best(1.0))];
    for log2 in 1..=LARGEST_LOG2 {
        let (from, to) = ((1u64 << (log2 - 1)) as f64, (1u64 << log2) as f64);
        // Finds several changes within a factor of two one by one.
        let mut at = from;
        while let Some((_, known)) = turns.last()
            && best(to) != *known
            && at < to
        {
            at = cost::boundary(at, to, |bytes| best(bytes) == *known);
            turns.push((at, best(at)));
        }
    }
    turns
}

/// A size with its unit.
fn size(bytes: f64) -> String {
    let unit = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    let unit = unit.into_iter().find(|(log2, _)| bytes >= (1u64 << log2) as f64);
    match unit {
        Some((log2, unit)) => format!("{:.1} {unit}", bytes / (1u64 << log2) as f64),
        None => format!("{bytes:.0} B"),
    }
}

fn words(hosts: &Packed, network: Option<&Packed>, choices: &[Choice]) -> Vec<String> {
    let rate = |packed: &Packed| gbytes(packed.rate, packed.net.unit_bps);
    let Some(network) = network else {
        return vec![format!(
            "no switch of this fabric adds: trees over the GPUs reach {} GB/s, and aggregation cannot help",
            rate(hosts)
        )];
    };
    let gain = network.rate_bps() / hosts.rate_bps();
    let mut words = vec![format!(
        "at large sizes: {} GB/s through switches that add, {} GB/s without, {gain:.2} times",
        rate(network),
        rate(hosts)
    )];
    if gain < 1.02 {
        words.push(
            "the links that limit it carry the same bytes with and without aggregation: it does not \
             help bandwidth here"
                .to_owned(),
        );
    }
    let wins: Vec<f64> =
        choices.iter().filter(|choice| choice.best == NETWORK).map(|choice| choice.bytes).collect();
    words.push(match (wins.first(), wins.last()) {
        (Some(first), Some(last)) => {
            format!("of the sizes asked for it is fastest from {} to {}", size(*first), size(*last))
        }
        _ => "at none of the sizes asked for it is the fastest".to_owned(),
    });
    words
}

/// The fabric with switches that only forward.
pub(super) fn relays_only(graph: &LinkGraph) -> LinkGraph {
    let mut vertices = graph.vertices().to_vec();
    for vertex in &mut vertices {
        if let Role::Switch { .. } = vertex.role {
            vertex.role = Role::Switch { aggregates: false, multicasts: false };
        }
    }
    LinkGraph::new(graph.name(), vertices, graph.links().to_vec()).expect("it was checked")
}

const TREES: &str = "trees";
const NETWORK: &str = "trees, switches add";
