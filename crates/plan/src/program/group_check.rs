//! The verifier of plans for several groups: each group's plan, the links that they share, and the bound.

use std::collections::HashMap;

use netsum_topo::Ratio;
use netsum_topo::links::{Collective, LinkGraph, Role};

use super::Fault;
use super::plan_check::verify_plan;
use crate::group_plan::{GROUP_PLAN_FORMAT, GroupPlan, PlannedGroup};

/// Checks each group's plan on its own GPUs, that all groups do `rounds_per_s`, and that no link carries more than it
/// can for all groups together. Returns the rounds that no plan exceeds, which follow from the lengths; none without
/// lengths, or if a group has more switches that add or copy than can be tried.
///
/// Whatever its trees are, a group takes at least its buffer times the length of its shortest tree, so all groups
/// together take so much per round; links offer their rate times their length.
pub fn verify_groups(graph: &LinkGraph, plan: &GroupPlan) -> Result<Option<Ratio>, Fault> {
    if plan.format != GROUP_PLAN_FORMAT {
        return wrong(format!("format {:?} is not {GROUP_PLAN_FORMAT:?}", plan.format));
    }
    let mut place: HashMap<&str, usize> = HashMap::new();
    graph.vertices().iter().enumerate().for_each(|(at, vertex)| {
        place.insert(&vertex.name, at);
    });
    let mut load: HashMap<(usize, usize), Ratio> = HashMap::new();
    let mut cost = Some(Ratio::ZERO);
    let lengths = whole_lengths(graph, plan)?;
    for group in &plan.groups {
        let PlannedGroup { name, bytes, plan: own } = group;
        let gpu = |&v: &usize| own.vertices.get(v).cloned();
        let names = own.gpus.iter().map(gpu).collect::<Option<Vec<String>>>();
        let part = names.and_then(|names| graph.select(&names).ok());
        let Some(part) = part else {
            return wrong(format!("{name}: has other GPUs than the fabric"));
        };
        verify_plan(&part, own).map_err(|fault| Fault::Plan(format!("{name}: {fault}")))?;
        let needed = Ratio::new(8 * i128::from(*bytes), 1).checked_mul(plan.rounds_per_s);
        if needed != Some(own.rate_bps) {
            return wrong(format!("{name}: its rate is not that of its bytes in every round"));
        }
        for flow in &own.flows {
            let rate = flow.share.checked_mul(own.rate_bps).ok_or_else(too_fine)?;
            for pair in flow.up.iter().chain(&flow.down).flat_map(|way| way.windows(2)) {
                let end = |v: usize| place[own.vertices[v].as_str()];
                let load = load.entry((end(pair[0]), end(pair[1]))).or_insert(Ratio::ZERO);
                *load = load.checked_add(rate).ok_or_else(too_fine)?;
            }
        }
        if !lengths.is_empty() {
            let place = |v: usize| place[part.vertices()[v].name.as_str()];
            let least = least(&part, own.collective, |a, b| {
                lengths.get(&(place(a), place(b))).copied().unwrap_or(0)
            });
            let least =
                least.and_then(|least| least.checked_mul(Ratio::new(8 * i128::from(*bytes), 1)));
            cost = cost.zip(least).and_then(|(cost, least)| cost.checked_add(least));
        }
    }
    let mut room = Some(0i128);
    let mut capacity: HashMap<(usize, usize), i128> = HashMap::new();
    for (from, to, link) in graph.arcs() {
        *capacity.entry((from, to)).or_insert(0) += i128::from(link.rate.0);
        let length = lengths.get(&(from, to)).copied().unwrap_or(0);
        room = room.zip(length.checked_mul(link.rate.0.into())).and_then(|(a, b)| a.checked_add(b));
    }
    for ((from, to), load) in load {
        let most = capacity.get(&(from, to)).copied().unwrap_or(0);
        if load > Ratio::new(most, 1) {
            let [from, to] = [from, to].map(|v| &graph.vertices()[v].name);
            return wrong(format!("{from}→{to} would carry {load} of {most} bit/s"));
        }
    }
    let bound = cost.filter(|cost| cost.is_positive()).zip(room);
    let bound = bound.and_then(|(cost, room)| Ratio::new(room, 1).checked_div(cost));
    if bound.is_some_and(|bound| plan.rounds_per_s > bound) {
        return wrong("it does more rounds than its own lengths allow".to_owned());
    }
    Ok(bound)
}

fn wrong<T>(problem: String) -> Result<T, Fault> {
    Err(Fault::Plan(problem))
}

fn too_fine() -> Fault {
    Fault::Plan("its shares and rates are too fine to be added up; round them".to_owned())
}

fn whole_lengths(
    graph: &LinkGraph,
    plan: &GroupPlan,
) -> Result<HashMap<(usize, usize), i128>, Fault> {
    let arcs: HashMap<(usize, usize), ()> =
        graph.arcs().map(|(from, to, _)| ((from, to), ())).collect();
    let mut lengths = HashMap::new();
    for arc in &plan.lengths {
        let length = arc.length;
        let sound = length.den() == 1 && (0..LENGTH_MAX).contains(&length.num());
        let ends = (arc.from, arc.to);
        if !sound || !arcs.contains_key(&ends) || lengths.insert(ends, length.num()).is_some() {
            return wrong(format!("{length} is no length of a link, or its second one"));
        }
    }
    Ok(lengths)
}

/// The length of the shortest trees of a collective, per bit of its buffer. `None` if it cannot be told.
fn least(
    graph: &LinkGraph,
    collective: Collective,
    length: impl Fn(usize, usize) -> i128,
) -> Option<Ratio> {
    let n = graph.vertices().len();
    let mut arcs: Vec<(usize, usize, i128)> =
        graph.arcs().map(|(from, to, _)| (from, to, length(from, to))).collect();
    let down = Trees::new(graph, n, &arcs, |_, copies| copies)?;
    arcs.iter_mut().for_each(|(from, to, _)| std::mem::swap(from, to));
    let up = Trees::new(graph, n, &arcs, |adds, _| adds)?;
    let gpus = graph.gpus();
    let sum = |trees: &Trees| -> Option<Ratio> {
        let all = gpus.iter().map(|&root| trees.least(root)).sum::<Option<i128>>()?;
        Some(Ratio::new(all, gpus.len() as i128))
    };
    match collective {
        Collective::Broadcast { root } => Some(Ratio::new(down.least(*gpus.get(root)?)?, 1)),
        Collective::Reduce { root } => Some(Ratio::new(up.least(*gpus.get(root)?)?, 1)),
        Collective::Allgather => sum(&down),
        Collective::ReduceScatter => sum(&up),
        Collective::Allreduce => {
            let both = |&root: &usize| Some(down.least(root)? + up.least(root)?);
            let all = gpus.iter().map(both).collect::<Option<Vec<i128>>>()?;
            all.into_iter().min().map(|least| Ratio::new(least, 1))
        }
        Collective::Alltoall => None,
    }
}

/// Shortest distances, and the sets of switches at which trees may branch.
struct Trees {
    far: Vec<Vec<Option<i128>>>,
    gpus: Vec<usize>,
    sets: Vec<Vec<usize>>,
}

impl Trees {
    fn new(
        graph: &LinkGraph,
        n: usize,
        arcs: &[(usize, usize, i128)],
        branches: impl Fn(bool, bool) -> bool,
    ) -> Option<Trees> {
        let can = |v: &usize| match graph.vertices()[*v].role {
            Role::Gpu => false,
            Role::Switch { aggregates, multicasts } => branches(aggregates, multicasts),
        };
        let switches: Vec<usize> = (0..n).filter(can).collect();
        if switches.len() > SWITCHES_MAX {
            return None;
        }
        let set = |bits: usize| {
            let chosen = switches.iter().enumerate().filter(|(at, _)| bits >> at & 1 == 1);
            chosen.map(|(_, &v)| v).collect()
        };
        let sets = (0..1usize << switches.len()).map(set).collect();
        let mut far: Vec<Vec<Option<i128>>> = vec![vec![None; n]; n];
        (0..n).for_each(|v| far[v][v] = Some(0));
        for &(from, to, length) in arcs {
            far[from][to] = Some(far[from][to].map_or(length, |known| known.min(length)));
        }
        // Floyd and Warshall.
        for via in 0..n {
            for from in 0..n {
                let Some(there) = far[from][via] else { continue };
                let onward = far[via].clone();
                for (known, on) in far[from].iter_mut().zip(onward) {
                    let Some(length) = on.map(|on| there + on) else { continue };
                    if known.is_none_or(|known| length < known) {
                        *known = Some(length);
                    }
                }
            }
        }
        Some(Trees { far, gpus: graph.gpus(), sets })
    }

    /// The least length of a tree from a GPU to all others.
    fn least(&self, root: usize) -> Option<i128> {
        let of = |set: &Vec<usize>| {
            let members: Vec<usize> = self.gpus.iter().chain(set).copied().collect();
            let root = members.iter().position(|&v| v == root)?;
            let cost: Vec<Vec<Option<i128>>> = (members.iter())
                .map(|&from| members.iter().map(|&to| self.far[from][to]).collect())
                .collect();
            shortest(cost, root)
        };
        self.sets.iter().filter_map(of).min()
    }
}

/// The length of a shortest arborescence (Chu, Liu, Edmonds): every vertex takes its shortest arc, and a circle of such
/// arcs becomes one vertex.
fn shortest(cost: Vec<Vec<Option<i128>>>, root: usize) -> Option<i128> {
    let n = cost.len();
    let mut by = vec![root; n];
    let mut total = 0;
    for v in (0..n).filter(|&v| v != root) {
        let into = (0..n).filter(|&from| from != v).filter_map(|from| Some((cost[from][v]?, from)));
        let (length, from) = into.min()?;
        (by[v], total) = (from, total + length);
    }
    let mut seen = vec![usize::MAX; n];
    let mut circle = None;
    for start in 0..n {
        let mut at = start;
        while at != root && seen[at] == usize::MAX {
            seen[at] = start;
            at = by[at];
        }
        if at != root && seen[at] == start {
            circle = Some(at);
            break;
        }
    }
    let Some(first) = circle else { return Some(total) };
    let mut in_circle = vec![false; n];
    let (mut at, mut around) = (first, 0);
    while !std::mem::replace(&mut in_circle[at], true) {
        around += cost[by[at]][at]?;
        at = by[at];
    }
    // The circle is the last of the new vertices.
    let rest: Vec<usize> = (0..n).filter(|&v| !in_circle[v]).collect();
    let m = rest.len();
    let mut smaller = vec![vec![None; m + 1]; m + 1];
    let less = |known: Option<i128>, new: i128| Some(known.map_or(new, |known| known.min(new)));
    for (a, &from) in rest.iter().enumerate() {
        for (b, &to) in rest.iter().enumerate() {
            smaller[a][b] = cost[from][to];
        }
        for v in (0..n).filter(|&v| in_circle[v]) {
            if let Some(length) = cost[from][v] {
                smaller[a][m] = less(smaller[a][m], length - cost[by[v]][v]?);
            }
            if let Some(length) = cost[v][from] {
                smaller[m][a] = less(smaller[m][a], length);
            }
        }
    }
    let root = rest.iter().position(|&v| v == root)?;
    Some(around + shortest(smaller, root)?)
}

/// 2⁸ sets of switches are tried.
const SWITCHES_MAX: usize = 8;
const LENGTH_MAX: i128 = 1 << 50;
