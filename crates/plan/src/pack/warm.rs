//! A plan from an earlier one: the trees that links still carry are kept, others are mended.
//!
//! The earlier plan is a hint only. Rates, bounds and trees are computed for the new fabric, so whatever the plan says,
//! the result is valid, and optimal exactly if its rate equals its bound.

use std::collections::{HashMap, HashSet};

use netsum_topo::links::{Collective, LinkGraph, TreePlan};
use netsum_topo::{Ratio, lcm};

use super::bound::Bound;
use super::branchings::regrown;
use super::budget::Budget;
use super::choice::Choice;
use super::direct::rejoined;
use super::exchange::exchanged_copies;
use super::mend::{Mending, Torn};
use super::net::Net;
use super::packed::{Flow, Packed, bound_for, net_for};
use super::programme;
use super::tree::{Hop, Tree};
use crate::error::PackError;

/// The trees of `old` on `graph`, mended, with weights that reach the bound or come near it. `None` if its trees are of
/// no use here: those of an all-to-all, those of an allreduce that differ by direction, or shares without common parts.
/// Errors: GPUs that cannot reach each other.
pub(super) fn mended(
    graph: &LinkGraph,
    collective: Collective,
    old: &TreePlan,
) -> Result<Option<Packed>, PackError> {
    let net = net_for(collective, graph)?;
    let budget = Budget::standard(net.gpus.len());
    let Some(bound) = bound_for(collective, &net) else { return Ok(None) };
    let hints = hints(graph, &net, collective, old);
    let flows = hints.and_then(|hints| match collective {
        Collective::Allreduce => both_ways(&net, hints, &bound, &budget),
        Collective::Reduce { .. } | Collective::ReduceScatter => {
            let mut flows = one_way(&net.reversed(), collective, hints, bound.rate, &budget)?;
            flows.iter_mut().for_each(|flow| flow.up = flow.down.take());
            Some(flows)
        }
        _ => one_way(&net, collective, hints, bound.rate, &budget),
    });
    let Some(flows) = flows else { return Ok(None) };
    let rate: Ratio = flows.iter().map(|flow| flow.weight).sum();
    let limited = rate < bound.rate;
    let packed = Packed { collective, net, flows, rate, bound: Some(bound), limited };
    Ok(Some(packed).filter(|packed| packed.rate.is_positive()))
}

/// The part of a packing whose trees are those of `old`, whatever their shares, from 0 to 1.
pub(super) fn kept(graph: &LinkGraph, packed: &Packed, old: &TreePlan) -> f64 {
    let names = names(graph, old);
    let known = |ways: &[Vec<usize>]| {
        let mut print = Print::default();
        for way in ways {
            let way = way.iter().map(|&v| names.get(v).copied().flatten());
            print.add(way.collect::<Option<Vec<usize>>>()?.into_iter());
        }
        Some(print)
    };
    let before: HashSet<(Print, Print)> =
        old.flows.iter().filter_map(|flow| Some((known(&flow.up)?, known(&flow.down)?))).collect();
    let print = |tree: &Option<Tree>, up: bool| {
        let mut print = Print::default();
        for hop in tree.iter().flat_map(|tree| &tree.hops) {
            let way = [hop.from].into_iter().chain(hop.via.iter().copied()).chain([hop.to]);
            if up {
                let mut back: Vec<usize> = way.collect();
                back.reverse();
                print.add(back.into_iter());
            } else {
                print.add(way);
            }
        }
        print
    };
    let same = |flow: &&Flow| before.contains(&(print(&flow.up, true), print(&flow.down, false)));
    let kept = packed.flows.iter().filter(same).fold(0.0, |sum, flow| sum + flow.weight.to_f64());
    kept / packed.rate.to_f64()
}

/// Paths in any order: their number, and two sums of their hashes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
struct Print(usize, u64, u64);

impl Print {
    fn add(&mut self, way: impl Iterator<Item = usize>) {
        let mixed = way.fold(0x9e37_79b9_7f4a_7c15_u64, |hash, v| {
            (hash ^ v as u64).wrapping_mul(0xff51_afd7_ed55_8ccd).rotate_left(29)
        });
        self.0 += 1;
        self.1 = self.1.wrapping_add(mixed);
        self.2 = self.2.wrapping_add(mixed.wrapping_mul(mixed | 1));
    }
}

/// By vertex of the plan the vertex of the same name.
fn names(graph: &LinkGraph, old: &TreePlan) -> Vec<Option<usize>> {
    let places = graph.vertices().iter().enumerate();
    let place: HashMap<&str, usize> =
        places.map(|(at, vertex)| (vertex.name.as_str(), at)).collect();
    old.vertices.iter().map(|name| place.get(name.as_str()).copied()).collect()
}

/// A tree of the earlier plan: where it starts, its share, and its hops from there on.
struct Hint {
    root: usize,
    share: Ratio,
    hops: Vec<Hop>,
}

/// The trees of a plan, from their roots to the leaves, in the numbers of the present fabric.
fn hints(
    graph: &LinkGraph,
    net: &Net,
    collective: Collective,
    old: &TreePlan,
) -> Option<Vec<Hint>> {
    let names = names(graph, old);
    let of = |v: usize| names.get(v).copied().flatten();
    let hop = |way: &Vec<usize>| {
        let all = way.iter().map(|&v| of(v)).collect::<Option<Vec<usize>>>()?;
        let [from, via @ .., to] = all.as_slice() else { return None };
        Some(Hop { from: *from, to: *to, via: via.to_vec() })
    };
    let back = |way: &Vec<usize>| hop(&way.iter().rev().copied().collect());
    let one_root = match collective {
        Collective::Broadcast { root } | Collective::Reduce { root } => Some(net.gpus[root]),
        _ => None,
    };
    let mut hints = Vec::new();
    for flow in old.flows.iter().filter(|flow| flow.share.is_positive()) {
        let up: Vec<Hop> = flow.up.iter().rev().filter_map(back).collect();
        let down: Vec<Hop> = flow.down.iter().filter_map(hop).collect();
        let hops = match collective {
            Collective::Reduce { .. } | Collective::ReduceScatter => up,
            Collective::Allreduce if !same(&up, &down) => return None,
            _ => down,
        };
        // A tree that is used both ways can start anywhere.
        let root = one_root.or_else(|| of(flow.root)).or_else(|| {
            (collective == Collective::Allreduce).then(|| hops.first().map(|hop| hop.from))?
        });
        if let Some(root) = root.filter(|&root| !net.relay[root]) {
            hints.push(Hint { root, share: flow.share, hops });
        }
    }
    Some(hints)
}

/// Whether two trees have the same hops, in any order.
fn same(one: &[Hop], other: &[Hop]) -> bool {
    let sorted = |hops: &[Hop]| {
        let mut hops = hops.to_vec();
        hops.sort();
        hops
    };
    sorted(one) == sorted(other)
}

/// Trees down from one root, or in equal parts from every GPU.
fn one_way(
    net: &Net,
    collective: Collective,
    hints: Vec<Hint>,
    rate: Ratio,
    budget: &Budget<'_>,
) -> Option<Vec<Flow>> {
    let roots = match collective {
        Collective::Broadcast { root } | Collective::Reduce { root } => vec![net.gpus[root]],
        _ => net.gpus.clone(),
    };
    let mut groups: Vec<Vec<Hint>> = roots.iter().map(|_| Vec::new()).collect();
    for hint in hints {
        if let Some(group) = roots.iter().position(|&root| root == hint.root) {
            groups[group].push(hint);
        }
    }
    for (group, &root) in groups.iter_mut().zip(&roots) {
        if group.is_empty() {
            group.push(Hint { root, share: Ratio::ONE, hops: Vec::new() });
        }
    }
    let each = rate / Ratio::from(roots.len() as i64);
    let Copies { torn, scale } = copies(net, groups, each)?;
    let row: Vec<usize> = (0..net.arcs.len()).collect();
    let room = room(net, scale)?;
    let (whole, left) = Mending::new(net, &row, room.clone(), budget).mend(torn);
    let (mut whole, left) = (trees(&whole), trees(&left));
    if !left.is_empty() && net.gpus.len() == net.n {
        whole = regrown(net, room, &whole, &left, budget).unwrap_or(whole);
    }
    level(&mut whole, &roots);
    let flow = |(tree, copies): (Tree, i64)| Flow {
        weight: Ratio::new(copies.into(), scale.into()),
        root: tree.root,
        up: None,
        down: Some(tree),
    };
    Some(joined(whole).into_iter().map(flow).collect())
}

/// Trees that are used in both directions, which have equal rates.
fn both_ways(net: &Net, hints: Vec<Hint>, bound: &Bound, budget: &Budget<'_>) -> Option<Vec<Flow>> {
    let rate = bound.rate;
    let mirror = net.mirror.as_ref()?;
    let row: Vec<usize> = (0..net.arcs.len()).map(|arc| arc.min(mirror[arc])).collect();
    let Copies { torn, scale } = copies(net, vec![hints], rate)?;
    let room = room(net, scale)?;
    let mut mending = Mending::new(net, &row, room.clone(), budget);
    let (mut whole, left) = mending.mend(torn.clone());
    let weighted = |trees: Vec<(Tree, i64)>| {
        let weight = |(tree, n): (Tree, i64)| (tree, Ratio::new(n.into(), scale.into()));
        joined(trees).into_iter().map(weight).collect()
    };
    let found = if left.is_empty() {
        weighted(trees(&whole))
    } else if net.gpus.len() == net.n {
        whole.extend(left.into_iter().map(|torn| mending.force(torn)));
        let links: Vec<usize> = (0..row.len()).filter(|&arc| row[arc] == arc).collect();
        exchanged_copies(net, &links, &joined(trees(&whole)), scale, budget)?
    } else if let Some(found) = rejoined(net, &row, &room, torn, bound, budget) {
        weighted(found)
    } else {
        // Other weights for these trees, and for those that find no room beside them.
        let alone = |torn: Torn| Mending::new(net, &row, room.clone(), budget).mend(vec![torn]).0;
        whole.extend(left.into_iter().flat_map(alone));
        let trees = whole.iter().map(Torn::tree).collect();
        return Some(programme::both_ways(net, Some(rate), &Choice::Only(trees), budget).flows);
    };
    let flow = |(tree, weight): (Tree, Ratio)| {
        let tree = tree.centred();
        Flow { weight, root: tree.root, up: Some(tree.clone()), down: Some(tree) }
    };
    Some(found.into_iter().map(flow).collect())
}

fn trees(torn: &[Torn]) -> Vec<(Tree, i64)> {
    torn.iter().map(|torn| (torn.tree(), torn.copies)).collect()
}

/// Trees in whole copies.
struct Copies {
    torn: Vec<Torn>,
    /// Copies per unit of rate.
    scale: i64,
}

/// Copies of each tree, such that every group has `each` in all; `None` if they would be too many.
fn copies(net: &Net, groups: Vec<Vec<Hint>>, each: Ratio) -> Option<Copies> {
    let most = net.arcs.iter().map(|arc| arc.cap).max()?.max(1);
    let parts: Vec<Vec<Ratio>> = groups.iter().map(|group| parts(group)).collect::<Option<_>>()?;
    let exact = parts.iter().flatten().try_fold(each.den(), |all, part| {
        let weight = part.checked_mul(each)?;
        lcm(all, weight.den()).filter(|&all| all.saturating_mul(most.into()) < COPIES_MAX)
    });
    let scale = match exact {
        Some(scale) => i64::try_from(scale).ok()?,
        None => {
            let den = i64::try_from(each.den()).ok()?;
            let times = (FINE / den.checked_mul(most)?).max(1);
            den.checked_mul(times)?
        }
    };
    if i128::from(scale).checked_mul(most.into())? >= COPIES_MAX {
        return None;
    }
    let total = i64::try_from(each.num().checked_mul(i128::from(scale) / each.den())?).ok()?;
    if total == 0 || i128::from(total) >= COPIES_MAX {
        return None;
    }
    let mut torn = Vec::new();
    for (group, parts) in groups.into_iter().zip(parts) {
        let whole = |part: &Ratio| match part.checked_mul(Ratio::from(total)) {
            Some(copies) => (copies.num() / copies.den()) as i64,
            None => (part.to_f64() * total as f64) as i64,
        };
        let mut copies: Vec<i64> = parts.iter().map(whole).collect();
        let rest = total - copies.iter().sum::<i64>();
        *copies.iter_mut().max()? += rest;
        for (hint, copies) in group.into_iter().zip(copies) {
            torn.push(Torn::new(net, hint.root, copies.max(0), hint.hops));
        }
    }
    Some(Copies { torn, scale })
}

/// The shares of a group, of which there is one at least, as parts of their sum.
fn parts(group: &[Hint]) -> Option<Vec<Ratio>> {
    let all = group.iter().try_fold(Ratio::ZERO, |all, hint| all.checked_add(hint.share))?;
    group.iter().map(|hint| hint.share.checked_div(all)).collect()
}

/// Copies for which each arc has room.
fn room(net: &Net, scale: i64) -> Option<Vec<i64>> {
    net.arcs.iter().map(|arc| arc.cap.checked_mul(scale)).collect()
}

/// Takes away copies until all roots have as many as the one with the fewest.
fn level(trees: &mut Vec<(Tree, i64)>, roots: &[usize]) {
    let mut of: HashMap<usize, i64> = roots.iter().map(|&root| (root, 0)).collect();
    trees.iter().for_each(|(tree, copies)| *of.entry(tree.root).or_insert(0) += copies);
    let least = of.values().copied().min().unwrap_or(0);
    for (tree, copies) in trees.iter_mut() {
        let over = of.get_mut(&tree.root).expect("it was counted");
        let less = (*over - least).min(*copies);
        *copies -= less;
        *over -= less;
    }
    trees.retain(|(_, copies)| *copies > 0);
}

/// Equal trees are one.
fn joined(trees: Vec<(Tree, i64)>) -> Vec<(Tree, i64)> {
    let mut place: HashMap<Tree, usize> = HashMap::new();
    let mut found: Vec<(Tree, i64)> = Vec::new();
    for (tree, copies) in trees {
        match place.get(&tree) {
            Some(&at) => {
                let known: &mut (Tree, i64) = &mut found[at];
                known.1 += copies;
            }
            None => {
                place.insert(tree.clone(), found.len());
                found.push((tree, copies));
            }
        }
    }
    found
}

/// Copies of trees in all, and on any link, stay below this: their products with fractions are multiplied and added.
const COPIES_MAX: i128 = 1 << 40;
/// Copies on the fullest link if shares have no common parts.
const FINE: i64 = 1 << 32;
