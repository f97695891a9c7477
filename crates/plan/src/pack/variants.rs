//! Other plans for the purpose of a plan, for executors that do not take it as it is.

use netsum_topo::Ratio;
use netsum_topo::links::{LinkGraph, PlannedFlow, Role, TreePlan};

use super::budget::Budget;
use super::choice::Choice;
use super::front::fewer;
use super::packed::{EXACT_GPUS_MAX, Flow, Packed, bound_for, net_for};
use super::packing::pack_net;
use super::report::relays_only;
use super::shares::rounded;
use super::tree::{Hop, Tree};
use crate::error::PackError;

/// Packings in place of a plan: the plan itself, trees of equal weight, the plan with ever fewer trees. If switches add
/// or multicast in the plan, the same of the best trees over GPUs.
///
/// The plan must be valid on the graph.
pub(crate) fn variants(
    graph: &LinkGraph,
    plan: &TreePlan,
) -> Result<impl Iterator<Item = Packed>, PackError> {
    let budget = Budget::standard(plan.gpus.len());
    let ends = |way: &Vec<usize>| [way[0], way[way.len() - 1]];
    let mut ends =
        plan.flows.iter().flat_map(|flow| flow.up.iter().chain(&flow.down)).flat_map(ends);
    let given = if ends.any(|end| graph.vertices()[end].role != Role::Gpu) {
        let net = net_for(plan.collective, &relays_only(graph))?;
        let bound = bound_for(plan.collective, &net);
        let exact = net.gpus.len() <= EXACT_GPUS_MAX;
        let choice = if exact { Choice::All } else { Choice::Spread };
        pack_net(net, plan.collective, bound, &choice, &budget)
    } else {
        packed(graph, plan)?
    };
    let even = {
        let (net, bound) = (given.net.clone(), given.bound.clone());
        let collective = given.collective;
        let budget = Budget::standard(net.gpus.len());
        move || pack_net(net, collective, bound, &Choice::Spread, &budget)
    };
    let few = given.clone();
    let few = move || fewer(&few, &budget).into_iter().skip(1);
    let even = std::iter::once_with(even);
    Ok(std::iter::once(given).chain(even).chain(std::iter::once_with(few).flatten()))
}

impl Packed {
    /// The trees with shares that are multiples of 1/`pieces` of the buffer, or of each shard; `None` if that leaves no
    /// tree.
    pub(crate) fn in_pieces(&self, pieces: u64) -> Option<Packed> {
        let roots = if self.is_sharded() { self.net.gpus.len() as u64 } else { 1 };
        rounded(self, pieces * roots)
    }
}

/// The packing of a plan.
fn packed(graph: &LinkGraph, plan: &TreePlan) -> Result<Packed, PackError> {
    let net = net_for(plan.collective, graph)?;
    let rate = plan.rate_bps.checked_div(Ratio::new(net.unit_bps.into(), 1));
    let tree = |root: usize, hops: Vec<Hop>| (!hops.is_empty()).then_some(Tree { root, hops });
    let flow = |flow: &PlannedFlow| {
        Some(Flow {
            weight: flow.share.checked_mul(rate?)?,
            root: flow.root,
            up: tree(flow.root, flow.up.iter().rev().map(|way| hop(way.iter().rev())).collect()),
            down: tree(flow.root, flow.down.iter().map(|way| hop(way.iter())).collect()),
        })
    };
    let flows: Option<Vec<Flow>> = plan.flows.iter().map(flow).collect();
    let Some((rate, flows)) = rate.zip(flows) else {
        return Err(PackError::Format {
            format: "tree plan",
            problem: "its shares and rate are too fine to be multiplied; round them".to_owned(),
        });
    };
    let bound = bound_for(plan.collective, &net);
    Ok(Packed { collective: plan.collective, net, flows, rate, bound, limited: false })
}

fn hop<'a>(mut way: impl DoubleEndedIterator<Item = &'a usize>) -> Hop {
    let (from, to) = (way.next(), way.next_back());
    let end = |end: Option<&usize>| *end.expect("the verifier looked");
    Hop { from: end(from), to: end(to), via: way.copied().collect() }
}
