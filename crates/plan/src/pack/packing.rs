//! Packing: the trees of a collective and their weights.

use netsum_topo::links::{Collective, LinkGraph};

use super::alltoall;
use super::bound::Bound;
use super::budget::Budget;
use super::choice::Choice;
use super::net::Net;
use super::orbits;
use super::packed::{
    ALLTOALL_MAX, EXACT_GPUS_MAX, GPUS_MAX, Packed, ROOTS_MAX, bound_for, net_for,
};
use super::programme::{both_ways, lopsided, rooted, sharded, turned};
use super::servers::{Local, Servers};
use crate::error::PackError;

/// Upper bound on a collective's rate, with a proof; `None` if only the packing's dual gives one.
///
/// For fabrics of any size; the unit is that of the returned net.
pub fn bound(graph: &LinkGraph, collective: Collective) -> Result<(Net, Option<Bound>), PackError> {
    let net = net_for(collective, graph)?;
    let bound = bound_for(collective, &net);
    Ok((net, bound))
}

/// The best trees for a collective, within [`Budget::standard`]. Beyond [`EXACT_GPUS_MAX`] GPUs, good trees; the bound
/// shows how good.
pub fn pack(graph: &LinkGraph, collective: Collective) -> Result<Packed, PackError> {
    pack_within(graph, collective, &Budget::standard(graph.gpus().len()))
}

/// The same within any budget. If it ends, [`Packed::limited`] is set: the trees are valid, and at most as much below
/// the best ones as their rate is below the bound.
pub fn pack_within(
    graph: &LinkGraph,
    collective: Collective,
    budget: &Budget<'_>,
) -> Result<Packed, PackError> {
    let net = net_for(collective, graph)?;
    let most = match collective {
        Collective::Alltoall => ALLTOALL_MAX,
        Collective::Allgather | Collective::ReduceScatter => ROOTS_MAX,
        _ => GPUS_MAX,
    };
    if net.gpus.len() > most {
        return Err(PackError::Size {
            what: "GPUs",
            found: net.gpus.len(),
            most,
            advice: "plan servers and the network between them apart",
        });
    }
    // What looks the same from every GPU is planned for one of them.
    if net.gpus.len() > EXACT_GPUS_MAX
        && let Some(packed) = orbits::packed(graph, collective)?
    {
        return Ok(packed);
    }
    let bound = bound_for(collective, &net);
    // On fabrics of GPUs alone, trees from one root that grow arc by arc reach the bound. The programme has so many
    // optimal trees there that it can take minutes.
    let one_root = matches!(collective, Collective::Broadcast { .. } | Collective::Reduce { .. });
    let grown = one_root && net.gpus.len() == net.n && net.gpus.len() > GROWN_GPUS_MIN;
    let large = grown || net.gpus.len() > EXACT_GPUS_MAX;
    let choice = if large { Choice::Large } else { Choice::All };
    Ok(pack_net(net, collective, bound, &choice, budget))
}

/// The best packing of some trees. `bound`: a known bound at which to stop.
pub(super) fn pack_net(
    net: Net,
    collective: Collective,
    bound: Option<Bound>,
    choice: &Choice,
    budget: &Budget<'_>,
) -> Packed {
    let enough = bound.as_ref().map(|bound| bound.rate);
    let found = match collective {
        Collective::Broadcast { root } => rooted(&net, net.gpus[root], enough, choice, budget),
        Collective::Reduce { root } => {
            turned(rooted(&net.reversed(), net.gpus[root], enough, choice, budget))
        }
        Collective::Allgather => sharded(&net, enough, choice, budget),
        Collective::ReduceScatter => turned(sharded(&net.reversed(), enough, choice, budget)),
        Collective::Allreduce if net.mirror.is_some() => both_ways(&net, enough, choice, budget),
        Collective::Allreduce => lopsided(&net, enough, choice, budget),
        Collective::Alltoall => alltoall::best(&net, budget),
    };
    let rate = found.flows.iter().map(|flow| flow.weight).sum();
    let bound = match (bound, found.bound) {
        (Some(cut), Some(dual)) if dual.rate < cut.rate => Some(dual),
        (cut, dual) => cut.or(dual),
    };
    let reached = bound.as_ref().is_some_and(|bound| bound.rate == rate);
    // An all-to-all ends when little more is gained.
    let ended = budget.is_over() || collective == Collective::Alltoall;
    let limited = ended && !reached;
    Packed { collective, net, flows: found.flows, rate, bound, limited }
}

/// Three-phase trees for an allreduce: the best ones for up to 128 GPUs.
///
/// Its bound is that of any algorithm. Errors: a single server, links of other rates by direction, too many GPUs.
pub fn pack_phases(graph: &LinkGraph, collective: Collective) -> Result<Packed, PackError> {
    let refuse = |problem: &str| {
        Err(PackError::Format { format: "method three-phase", problem: problem.to_owned() })
    };
    if collective != Collective::Allreduce {
        return refuse("it plans an allreduce; use exact for the others");
    }
    let net = net_for(collective, graph)?;
    if net.mirror.is_none() {
        return refuse("links differ by direction; use exact");
    }
    if net.gpus.len() > ROOTS_MAX {
        return Err(PackError::Size {
            what: "GPUs",
            found: net.gpus.len(),
            most: ROOTS_MAX,
            advice: "plan for fewer servers",
        });
    }
    if net.servers.len() < 2 {
        return refuse(
            "all GPUs are in one server; give links between servers as kind \"nic\", or use exact",
        );
    }
    let locals = net.servers.iter().map(|group| Local::new(&net, group)).collect();
    let bound = bound_for(collective, &net);
    let budget = Budget::standard(net.gpus.len());
    Ok(pack_net(net, collective, bound, &Choice::Phases(Servers { locals }), &budget))
}

/// Up to so many GPUs the programme's trees are few, and found in milliseconds.
const GROWN_GPUS_MIN: usize = 32;
