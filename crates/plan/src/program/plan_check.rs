//! The verifier of plans: their programs, and the load of links.

use std::collections::{HashMap, HashSet};

use netsum_topo::Ratio;
use netsum_topo::links::{LinkGraph, Role, TREE_PLAN_FORMAT, TreePlan};

use super::Fault;
use super::check::check_part;
use super::lower::lower_each;

/// Checks a plan against its fabric: its program computes the collective in every order; paths follow links and pass
/// through switches only; switches that branch or join have that function; at the claimed rate no link is overloaded.
pub fn verify_plan(graph: &LinkGraph, plan: &TreePlan) -> Result<(), Fault> {
    let wrong = |problem: String| Err(Fault::Plan(problem));
    if plan.format != TREE_PLAN_FORMAT {
        return wrong(format!("format {:?} is not {TREE_PLAN_FORMAT:?}", plan.format));
    }
    let names: Vec<&str> = graph.vertices().iter().map(|vertex| vertex.name.as_str()).collect();
    if plan.vertices != names || plan.gpus != graph.gpus() {
        return wrong("its GPUs and switches are not those of the fabric".to_owned());
    }
    if !plan.rate_bps.is_positive() {
        return wrong(format!("rate {} is not positive", plan.rate_bps));
    }
    let mut capacity: HashMap<(usize, usize), i128> = HashMap::new();
    for (from, to, link) in graph.arcs() {
        *capacity.entry((from, to)).or_insert(0) += i128::from(link.rate.0);
    }
    let mut load: HashMap<(usize, usize), Ratio> = HashMap::new();
    for (index, flow) in plan.flows.iter().enumerate() {
        if flow.root >= names.len() {
            return wrong(format!("flow {index} has a root that is no vertex"));
        }
        for way in flow.up.iter().chain(&flow.down) {
            if way.len() < 2 {
                return wrong(format!("flow {index}: way {way:?} has fewer than two vertices"));
            }
            for pair in way.windows(2) {
                let arc = (pair[0], pair[1]);
                if !capacity.contains_key(&arc) {
                    return wrong(format!("flow {index}: no link {}→{}", arc.0, arc.1));
                }
                let sum = load.entry(arc).or_insert(Ratio::ZERO);
                *sum = sum.checked_add(flow.share).ok_or_else(too_fine)?;
            }
            let inner = way.get(1..way.len().saturating_sub(1)).unwrap_or(&[]);
            if let Some(gpu) = inner.iter().find(|&&v| graph.vertices()[v].role == Role::Gpu) {
                return wrong(format!(
                    "flow {index}: {} passes data on as if it were a switch",
                    names[*gpu]
                ));
            }
        }
        if let Some(problem) = wrong_branching(graph, &flow.up, &flow.down) {
            return wrong(format!("flow {index}: {problem}"));
        }
    }
    for (arc, share) in load {
        let used = share.checked_mul(plan.rate_bps).ok_or_else(too_fine)?;
        if used > Ratio::new(capacity[&arc], 1) {
            let (from, to) = (names[arc.0], names[arc.1]);
            return wrong(format!("{from}→{to} would carry {used} of {} bit/s", capacity[&arc]));
        }
    }
    lower_each(plan)?.try_for_each(|(program, part)| check_part(&program, part))
}

/// A share or a rate that cannot be added exactly.
fn too_fine() -> Fault {
    Fault::Plan("its shares and rate are too fine to be added up; round them".to_owned())
}

/// Switches at the ends of paths: joining needs one that adds, branching one that multicasts.
fn wrong_branching(graph: &LinkGraph, up: &[Vec<usize>], down: &[Vec<usize>]) -> Option<String> {
    let role = |v: usize| graph.vertices()[v].role;
    let ends: HashSet<usize> =
        up.iter().chain(down).flat_map(|way| [way[0], way[way.len() - 1]]).collect();
    ends.into_iter().find_map(|v| {
        let Role::Switch { aggregates, multicasts } = role(v) else { return None };
        let joins = up.iter().any(|way| way.last() == Some(&v));
        let branches = down.iter().any(|way| way[0] == v);
        let name = &graph.vertices()[v].name;
        if joins && !aggregates {
            Some(format!("switch {name} cannot add"))
        } else if branches && !multicasts {
            Some(format!("switch {name} cannot multicast"))
        } else {
            None
        }
    })
}
