//! The verifier of plans: their programs, and the load of links.

use std::collections::{BTreeMap, HashSet};

use netsum_topo::links::{Collective, LinkGraph, PlannedFlow, Role, TREE_PLAN_FORMAT, TreePlan};
use netsum_topo::{Ratio, lcm};

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
    let mut links = Links::new(graph);
    let common = plan.flows.iter().try_fold(1, |all, flow| lcm(all, flow.share.den()));
    let common = common.ok_or_else(too_fine)?;
    for (index, flow) in plan.flows.iter().enumerate() {
        if flow.root >= names.len() {
            return wrong(format!("flow {index} has a root that is no vertex"));
        }
        let pieces = flow.share.num().checked_mul(common / flow.share.den());
        let pieces = pieces.ok_or_else(too_fine)?;
        let behind = match plan.collective {
            Collective::Alltoall => Some(behind(graph, flow)),
            _ => None,
        };
        for (index_of_way, way) in flow.up.iter().chain(&flow.down).enumerate() {
            if way.len() < 2 {
                return wrong(format!("flow {index}: way {way:?} has fewer than two vertices"));
            }
            let blocks = match &behind {
                None => 1,
                Some(Ok(behind)) => behind[index_of_way],
                Some(Err(problem)) => return wrong(format!("flow {index}: {problem}")),
            };
            let pieces = pieces.checked_mul(blocks).ok_or_else(too_fine)?;
            for pair in way.windows(2) {
                let Some(load) = links.load(pair[0], pair[1]) else {
                    return wrong(format!("flow {index}: no link {}→{}", pair[0], pair[1]));
                };
                *load = load.checked_add(pieces).ok_or_else(too_fine)?;
            }
            let inner = &way[1..way.len() - 1];
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
    for ((from, to), capacity, pieces) in links.all() {
        let share = Ratio::new(pieces, common);
        let used = share.checked_mul(plan.rate_bps).ok_or_else(too_fine)?;
        if used > Ratio::new(capacity, 1) {
            let (from, to) = (names[from], names[to]);
            return wrong(format!("{from}→{to} would carry {used} of {capacity} bit/s"));
        }
    }
    lower_each(plan)?.try_for_each(|(program, part)| check_part(&program, part))
}

/// By way of a flow of an all-to-all, the ranks whose blocks take it: the receiver, and all that it passes blocks on to.
fn behind(graph: &LinkGraph, flow: &PlannedFlow) -> Result<Vec<i128>, String> {
    let vertices = graph.vertices();
    let mut blocks = vec![1i128; vertices.len()];
    let mut found = vec![0; flow.up.len() + flow.down.len()];
    for (way, found) in flow.down.iter().zip(&mut found).rev() {
        let ends = [way.first(), way.last()].map(|end| end.filter(|&&v| v < vertices.len()));
        let [Some(&from), Some(&to)] = ends else { return Err(format!("{way:?} is no way")) };
        if let Some(&v) = [from, to].iter().find(|&&v| vertices[v].role != Role::Gpu) {
            return Err(format!("{} is no GPU, and has no blocks", vertices[v].name));
        }
        *found = blocks[to];
        blocks[from] = blocks[from].checked_add(blocks[to]).ok_or("it has a circle")?;
    }
    Ok(found)
}

/// Links by their ends, with capacity and load.
struct Links {
    /// By sender: receivers in ascending order, capacity, and pieces that cross.
    from: Vec<Vec<(usize, i128, i128)>>,
}

impl Links {
    fn new(graph: &LinkGraph) -> Links {
        let mut capacity: BTreeMap<(usize, usize), i128> = BTreeMap::new();
        for (from, to, link) in graph.arcs() {
            *capacity.entry((from, to)).or_insert(0) += i128::from(link.rate.0);
        }
        let mut links = vec![Vec::new(); graph.vertices().len()];
        for ((from, to), capacity) in capacity {
            links[from].push((to, capacity, 0));
        }
        Links { from: links }
    }

    /// The load of a link; `None` without a link.
    fn load(&mut self, from: usize, to: usize) -> Option<&mut i128> {
        let links = self.from.get_mut(from)?;
        let at = links.binary_search_by_key(&to, |&(to, ..)| to).ok()?;
        Some(&mut links[at].2)
    }

    /// Ends, capacity and load of all links.
    fn all(&self) -> impl Iterator<Item = ((usize, usize), i128, i128)> {
        let of = |(from, links): (usize, &Vec<(usize, i128, i128)>)| {
            let link = move |&(to, capacity, load)| ((from, to), capacity, load);
            links.iter().map(link).collect::<Vec<_>>()
        };
        self.from.iter().enumerate().flat_map(of)
    }
}

/// A share or a rate that cannot be added exactly.
fn too_fine() -> Fault {
    Fault::Plan("its shares and rate are too fine to be added up; round them".to_owned())
}

/// Switches at the ends of paths: joining needs one that adds, branching one that multicasts.
fn wrong_branching(graph: &LinkGraph, up: &[Vec<usize>], down: &[Vec<usize>]) -> Option<String> {
    let role = |v: usize| graph.vertices()[v].role;
    let ends = up.iter().chain(down).flat_map(|way| [way[0], way[way.len() - 1]]);
    let ends: HashSet<usize> = ends.filter(|&v| role(v) != Role::Gpu).collect();
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
