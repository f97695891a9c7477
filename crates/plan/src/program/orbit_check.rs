//! The verifier of plans that are given by the trees of one rank and automorphisms: without writing out the others.

use netsum_topo::Ratio;
use netsum_topo::links::{Collective, LinkGraph, Role, TREE_PLAN_FORMAT, TreePlan, WeightedLink};

use super::Fault;
use super::plan_check::verify_plan;
use crate::orbit_plan::{Automorphism, ORBIT_PLAN_FORMAT, OrbitPlan};

/// Checks that the automorphisms keep the fabric and move the first rank to every rank exactly once, that the first
/// rank's flows are right, and that no link is overloaded by all images together. Returns the bound on the rate of any
/// plan, in bits per second, that follows from the plan's sets; none if it has no sets.
///
/// The automorphisms commute, return after their orders, and reach as many ranks as their combinations are: so these
/// are a group that takes every rank to every rank in one way. An arc of an orbit of s arcs is then crossed by n/s
/// times the crossings of the whole orbit by the first rank's flows.
pub fn verify_orbits(graph: &LinkGraph, plan: &OrbitPlan) -> Result<Option<Ratio>, Fault> {
    if plan.format != ORBIT_PLAN_FORMAT {
        return wrong(format!("format {:?} is not {ORBIT_PLAN_FORMAT:?}", plan.format));
    }
    let gpus = graph.gpus();
    if plan.vertices != OrbitPlan::names(graph) || plan.gpus != gpus || gpus.is_empty() {
        return wrong("its GPUs and switches are not those of the fabric".to_owned());
    }
    let arcs = Arcs::new(graph);
    let moved = check_automorphisms(graph, plan, &arcs)?;
    check_first(graph, plan)?;
    check_loads(plan, &arcs, &moved)?;
    let bound = bound(graph, plan, &arcs)?;
    if bound.is_some_and(|bound| plan.rate_bps > bound) {
        return wrong("its rate exceeds the bound of its own sets".to_owned());
    }
    Ok(bound)
}

fn wrong<T>(problem: String) -> Result<T, Fault> {
    Err(Fault::Plan(problem))
}

/// Directions of links, sorted by their ends; parallel links are one.
struct Arcs {
    ends: Vec<(usize, usize)>,
    rates: Vec<i128>,
    /// By vertex the first arc from it.
    first: Vec<usize>,
}

impl Arcs {
    fn new(graph: &LinkGraph) -> Arcs {
        let arc =
            |(from, to, link): (usize, usize, &WeightedLink)| ((from, to), i128::from(link.rate.0));
        let mut all: Vec<((usize, usize), i128)> = graph.arcs().map(arc).collect();
        all.sort_unstable();
        let mut arcs = Arcs { ends: Vec::new(), rates: Vec::new(), first: Vec::new() };
        for (ends, rate) in all {
            if arcs.ends.last() == Some(&ends) {
                *arcs.rates.last_mut().expect("one per pair of ends") += rate;
                continue;
            }
            while arcs.first.len() <= ends.0 {
                arcs.first.push(arcs.ends.len());
            }
            arcs.ends.push(ends);
            arcs.rates.push(rate);
        }
        while arcs.first.len() <= graph.vertices().len() {
            arcs.first.push(arcs.ends.len());
        }
        arcs
    }

    fn find(&self, from: usize, to: usize) -> Option<usize> {
        let begin = *self.first.get(from)?;
        let own = self.ends.get(begin..*self.first.get(from + 1)?)?;
        Some(begin + own.binary_search(&(from, to)).ok()?)
    }
}

/// By automorphism and arc the arc to which it is moved.
fn check_automorphisms(
    graph: &LinkGraph,
    plan: &OrbitPlan,
    arcs: &Arcs,
) -> Result<Vec<Vec<usize>>, Fault> {
    let n = plan.vertices.len();
    let mut all_moved = Vec::new();
    for (number, Automorphism { order, to }) in plan.automorphisms.iter().enumerate() {
        let mut seen = vec![false; n];
        let once = |&v: &usize| v < n && !std::mem::replace(&mut seen[v], true);
        if to.len() != n || !to.iter().all(once) {
            return wrong(format!("automorphism {number} is no permutation of the vertices"));
        }
        let role = |v: usize| graph.vertices()[v].role;
        if (0..n).any(|v| role(v) != role(to[v])) {
            return wrong(format!("automorphism {number} moves a vertex to one of another kind"));
        }
        let image = |(&(a, b), &rate): (&(usize, usize), &i128)| {
            arcs.find(to[a], to[b]).filter(|&image| arcs.rates[image] == rate)
        };
        let moved = arcs.ends.iter().zip(&arcs.rates).map(image).collect::<Option<Vec<usize>>>();
        let Some(moved) = moved else {
            return wrong(format!(
                "automorphism {number} moves a link to where there is no such link"
            ));
        };
        all_moved.push(moved);
        if *order > n || !returns(to, *order) {
            return wrong(format!("automorphism {number} is not over after {order} times"));
        }
        for (other, later) in plan.automorphisms.iter().enumerate().skip(number + 1) {
            if later.to.len() != n || later.to.iter().any(|&v| v >= n) {
                return wrong(format!("automorphism {other} is no permutation of the vertices"));
            }
            if (0..n).any(|v| to[later.to[v]] != later.to[to[v]]) {
                return wrong(format!("automorphisms {number} and {other} do not commute"));
            }
        }
    }
    let orders = plan
        .automorphisms
        .iter()
        .try_fold(1usize, |all, automorphism| all.checked_mul(automorphism.order));
    if orders != Some(plan.gpus.len()) {
        return wrong(
            "the automorphisms have not as many combinations as there are ranks".to_owned(),
        );
    }
    let mut reached = vec![false; n];
    let mut queue = vec![plan.gpus[0]];
    let mut count = 0;
    while let Some(v) = queue.pop() {
        if !std::mem::replace(&mut reached[v], true) {
            count += 1;
            queue.extend(plan.automorphisms.iter().map(|automorphism| automorphism.to[v]));
        }
    }
    if count != plan.gpus.len() || plan.gpus.iter().any(|&gpu| !reached[gpu]) {
        return wrong("the automorphisms do not move the first rank to every rank".to_owned());
    }
    Ok(all_moved)
}

/// Whether every vertex is back after so many times: its cycle's length divides them.
fn returns(to: &[usize], order: usize) -> bool {
    let mut seen = vec![false; to.len()];
    (0..to.len()).all(|start| {
        let (mut length, mut at) = (0, start);
        while !std::mem::replace(&mut seen[at], true) {
            length += 1;
            at = to[at];
        }
        length == 0 || (order > 0 && order.is_multiple_of(length))
    })
}

/// The flows of the first rank alone, as a plan of their own: its broadcast, its reduce, or a part of the allreduce.
fn check_first(graph: &LinkGraph, plan: &OrbitPlan) -> Result<(), Fault> {
    let ranks = Ratio::from(plan.gpus.len() as i64);
    let collective = match plan.collective {
        Collective::Allgather => Collective::Broadcast { root: 0 },
        Collective::ReduceScatter => Collective::Reduce { root: 0 },
        Collective::Allreduce => Collective::Allreduce,
        _ => return wrong("one rank of it is not like the others".to_owned()),
    };
    let mut flows = plan.flows.clone();
    for flow in &mut flows {
        flow.share = flow.share.checked_mul(ranks).ok_or_else(too_fine)?;
    }
    let rate_bps = plan.rate_bps.checked_div(ranks).ok_or_else(too_fine)?;
    verify_plan(
        graph,
        &TreePlan {
            format: TREE_PLAN_FORMAT.to_owned(),
            collective,
            fabric: plan.fabric.clone(),
            vertices: plan.vertices.clone(),
            gpus: plan.gpus.clone(),
            rate_bps,
            flows,
        },
    )
}

fn check_loads(plan: &OrbitPlan, arcs: &Arcs, moved: &[Vec<usize>]) -> Result<(), Fault> {
    let mut orbit = vec![usize::MAX; arcs.ends.len()];
    let mut size: Vec<i64> = Vec::new();
    let mut queue = Vec::new();
    for start in 0..arcs.ends.len() {
        if orbit[start] == usize::MAX {
            size.push(0);
            queue.push(start);
        }
        while let Some(at) = queue.pop() {
            if orbit[at] == usize::MAX {
                orbit[at] = size.len() - 1;
                *size.last_mut().expect("one was added") += 1;
                queue.extend(moved.iter().map(|moved| moved[at]));
            }
        }
    }
    let mut crossed = vec![Ratio::ZERO; size.len()];
    for flow in &plan.flows {
        let mut times = vec![0i64; size.len()];
        for pair in flow.up.iter().chain(&flow.down).flat_map(|way| way.windows(2)) {
            let Some(at) = arcs.find(pair[0], pair[1]) else {
                return wrong(format!("no link {}→{}", pair[0], pair[1]));
            };
            times[orbit[at]] += 1;
        }
        for (crossed, times) in crossed.iter_mut().zip(times) {
            let load = flow.share.checked_mul(Ratio::from(times)).ok_or_else(too_fine)?;
            *crossed = crossed.checked_add(load).ok_or_else(too_fine)?;
        }
    }
    let ranks = plan.gpus.len() as i128;
    let used = |(crossed, size): (&Ratio, &i64)| {
        let images = Ratio::new(ranks, (*size).into());
        crossed.checked_mul(images)?.checked_mul(plan.rate_bps)
    };
    let used: Vec<Ratio> =
        crossed.iter().zip(&size).map(used).collect::<Option<_>>().ok_or_else(too_fine)?;
    for ((ends, &rate), &orbit) in arcs.ends.iter().zip(&arcs.rates).zip(&orbit) {
        if used[orbit] > Ratio::new(rate, 1) {
            let (from, to) = (&plan.vertices[ends.0], &plan.vertices[ends.1]);
            let used = used[orbit];
            return wrong(format!("{from}→{to} would carry {used} of {rate} bit/s"));
        }
    }
    Ok(())
}

/// The bound of the plan's sets, which need not be those that limit the rate most.
fn bound(graph: &LinkGraph, plan: &OrbitPlan, arcs: &Arcs) -> Result<Option<Ratio>, Fault> {
    if plan.sets.is_empty() {
        return Ok(None);
    }
    let n = plan.vertices.len();
    let mut set = vec![usize::MAX; n];
    for (number, members) in plan.sets.iter().enumerate() {
        for &v in members {
            if v >= n || set[v] != usize::MAX {
                return wrong(format!("vertex {v} is in no single set"));
            }
            set[v] = number;
        }
    }
    let mut ranks = vec![0i128; plan.sets.len()];
    for &gpu in &plan.gpus {
        if let Some(count) = ranks.get_mut(set[gpu]) {
            *count += 1;
        }
    }
    let all = plan.gpus.len() as i128;
    // What leaves, or enters, the sets; every arc between two sets leaves one and enters one.
    let across = |out: bool| -> i128 {
        let arcs = arcs.ends.iter().zip(&arcs.rates);
        let crosses = arcs
            .filter(|&(&(a, b), _)| set[a] != set[b] && set[if out { a } else { b }] != usize::MAX);
        crosses.map(|(_, rate)| rate).sum()
    };
    match plan.collective {
        Collective::Allreduce => {
            // Whatever adds or copies messages between the sets would save some.
            let apart = |v: usize| set[v] == usize::MAX;
            let works = |v: usize| match graph.vertices()[v].role {
                Role::Gpu => true,
                Role::Switch { aggregates, multicasts } => aggregates || multicasts,
            };
            if (0..n).any(|v| apart(v) && works(v)) || ranks.contains(&0) || ranks.len() < 2 {
                return wrong(
                    "its sets do not divide the ranks and all that adds or copies".to_owned(),
                );
            }
            Ok(Some(Ratio::new(across(true), 2 * (ranks.len() as i128 - 1))))
        }
        _ if plan.sets.len() != 1 || ranks[0] == 0 || ranks[0] == all => {
            wrong("its set has not some of the ranks".to_owned())
        }
        Collective::Allgather => Ok(Some(Ratio::new(across(true) * all, ranks[0]))),
        _ => Ok(Some(Ratio::new(across(false) * all, ranks[0]))),
    }
}

/// Shares or rates that cannot be added exactly.
fn too_fine() -> Fault {
    Fault::Plan("its shares and rate are too fine to be added up; round them".to_owned())
}
