//! The choice of trees: several through a Clos network, without common links between switches.

use std::collections::{BTreeMap, HashSet};

use netsum_topo::{AggregationTree, EdgeId, NodeId, SumOrder};

use crate::distances::Distances;
use crate::error::PlanError;
use crate::grow::{Rack, grow, racks_of};
use crate::request::Request;
use crate::verify::switch_links;

/// Finds up to `max_trees` trees that reach every rank and share no link between switches.
///
/// All have the least depth at which a tree exists, so ranks of one rack get the one tree at their rack switch, and
/// ranks of one pod get roots within it. All add in the same order: `order`, or else the one of most possible roots.
/// Possible trees are taken in the order of the load of their fullest link, then of the load of all their links, then
/// of the load of their switches and of ids: equal requests get equal trees.
///
/// On leaf-spine fabrics and fat trees no other choice of as many trees has a less loaded fullest link (compared with a
/// brute-force search as well).
///
/// On leaf-spine fabrics and fat trees, also with failed parts, the number of trees is the maximum (the tests compare
/// with a brute-force search); on other graphs it is the result of choosing roots one by one.
///
/// Source: PANAMA's controller ("several aggregation trees per job; only the ToR if the workers share a rack"); the
/// search is new. Errors explain why there is no tree.
pub fn aggregation_trees(request: &Request) -> Result<Vec<AggregationTree>, PlanError> {
    check(request)?;
    let none_used = HashSet::new();
    let racks = racks_of(request);
    let by_depth = roots_by_depth(request, &racks);
    if by_depth.is_empty() {
        return Err(PlanError::NoRoot { down: down(request, request.topology.switches()) });
    }
    for (&depth, roots) in by_depth.range(..=DEPTH_MAX) {
        let mut orders = Orders::default();
        let mut candidates = Vec::new();
        for &root in roots {
            if let Some(tree) = grow(request, &racks, root, depth, &none_used, request.load) {
                orders.count(&tree);
                candidates.push((burden(request, &tree), root));
            }
        }
        let order = request.order.cloned().unwrap_or_else(|| orders.commonest());
        candidates.sort_by_key(|&(burden, _)| burden);
        let roots = candidates.into_iter().map(|(_, root)| root);
        let trees = pack(request, &racks, roots, depth, &order);
        if !trees.is_empty() {
            return Ok(trees);
        }
    }
    match request.order {
        Some(order) => Err(PlanError::OtherOrder { order: order.to_string() }),
        None => Err(PlanError::NoRoot { down: down(request, request.topology.switches()) }),
    }
}

fn check(request: &Request) -> Result<(), PlanError> {
    let Request { topology, placement, live, .. } = request;
    assert!(request.max_trees >= 1, "a request for no tree");
    if placement.len() < 2 {
        return Err(PlanError::TooFewRanks { ranks: placement.len() });
    }
    for (rank, &host) in placement.iter().enumerate() {
        if topology.is_switch(host) {
            return Err(PlanError::NotAHost { rank, node: topology.name(host).to_owned() });
        }
        let switches = || topology.neighbours(host).iter().map(|&(switch, _)| switch);
        if !switches().any(|switch| live.contains(&switch)) {
            let host = topology.name(host).to_owned();
            return Err(PlanError::HostCutOff { host, down: down(request, switches()) });
        }
    }
    Ok(())
}

/// Grows trees from one root after the other; each must keep its depth and the order without the links of earlier
/// trees.
fn pack(
    request: &Request,
    racks: &[Rack],
    roots: impl Iterator<Item = NodeId>,
    depth: usize,
    order: &SumOrder,
) -> Vec<AggregationTree> {
    let mut trees: Vec<AggregationTree> = Vec::new();
    let mut used: HashSet<EdgeId> = HashSet::new();
    // A switch of an earlier tree of this plan counts as loaded, so that hosts with several switches spread their trees
    // over them.
    let mut load = request.load.clone();
    for root in roots {
        if trees.len() == request.max_trees {
            break;
        }
        let Some(grown) = grow(request, racks, root, depth, &used, &load) else {
            continue;
        };
        // A root with one child only forwards: its tree has another one.
        let known = trees.iter().any(|tree| tree.root == grown.root);
        if known || grown.order() != *order {
            continue;
        }
        used.extend(switch_links(request.topology, &grown));
        grown.switches().for_each(|switch| *load.entry(switch).or_default() += 1);
        trees.push(grown);
    }
    trees
}

/// Load of a tree's fullest link, and of all its links together.
fn burden(request: &Request, tree: &AggregationTree) -> (u64, u64) {
    let links = switch_links(request.topology, tree);
    let load = |link: &EdgeId| request.links.get(link).copied().unwrap_or(0);
    (links.iter().map(load).max().unwrap_or(0), links.iter().map(load).sum())
}

/// Live switches that reach every rank, by the number of links to the furthest rack switch; least loaded first.
fn roots_by_depth(request: &Request, racks: &[Rack]) -> BTreeMap<usize, Vec<NodeId>> {
    let Request { topology, live, .. } = request;
    let none_used = HashSet::new();
    let mut roots: Vec<(NodeId, usize)> =
        topology.switches().filter(|switch| live.contains(switch)).map(|root| (root, 0)).collect();
    for rack in racks {
        let distance = Distances::from(request, &rack.switches, &none_used, usize::MAX);
        roots.retain_mut(|(root, depth)| {
            distance.to(*root).map(|links| *depth = links.max(*depth)).is_some()
        });
    }
    roots.sort_by_key(|&(root, _)| (request.load.get(&root).copied().unwrap_or(0), root));
    let mut by_depth: BTreeMap<usize, Vec<NodeId>> = BTreeMap::new();
    roots.into_iter().for_each(|(root, depth)| by_depth.entry(depth).or_default().push(root));
    by_depth
}

/// How many trees add in each order.
#[derive(Default)]
struct Orders(Vec<(SumOrder, usize)>);

impl Orders {
    fn count(&mut self, tree: &AggregationTree) {
        let order = tree.order();
        match self.0.iter_mut().find(|(known, _)| *known == order) {
            Some((_, count)) => *count += 1,
            None => self.0.push((order, 1)),
        }
    }

    /// The order of most trees; ties go to that of the earliest.
    fn commonest(self) -> SumOrder {
        let most = self.0.iter().map(|&(_, count)| count).max().unwrap_or(0);
        let found = self.0.into_iter().find(|&(_, count)| count == most);
        found.expect("there is at least one candidate").0
    }
}

fn down(request: &Request, switches: impl Iterator<Item = NodeId>) -> String {
    let dead = switches.filter(|switch| !request.live.contains(switch));
    let names: Vec<&str> = dead.map(|switch| request.topology.name(switch)).collect();
    match names.as_slice() {
        [] => "none is".to_owned(),
        [one] => format!("{one} is"),
        [.., last] if names.len() <= NAMES_SHOWN => {
            format!("{} and {last} are", names[..names.len() - 1].join(", "))
        }
        _ => format!(
            "{} and {} more are",
            names[..NAMES_SHOWN - 1].join(", "),
            names.len() + 1 - NAMES_SHOWN
        ),
    }
}

/// Links from a root down to the furthest rack switch. A fat tree has 2; twice that leaves room for a detour around a
/// fault and limits the length of paths.
const DEPTH_MAX: usize = 4;

/// Keeps a reason on one readable line.
const NAMES_SHOWN: usize = 6;
