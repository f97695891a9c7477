//! Plans of fabrics that look the same from every GPU: trees of one GPU, and automorphisms that give those of all
//! others.
//!
//! Over all automorphisms a tree loads each arc of an orbit alike, so trees are chosen by the load of orbits, of which
//! a regular fabric has a few, however large it is. The bound comes from the sets that limit regular fabrics: one GPU,
//! one server, or all but one.

mod automorphisms;

use std::collections::VecDeque;

use netsum_topo::Ratio;
use netsum_topo::links::{Collective, LinkGraph, PlannedFlow};

use self::automorphisms::{Orbits, automorphisms};
use super::bound::{Bound, Certificate, allgather};
use super::budget::Budget;
use super::net::Net;
use super::packed::{EXACT_GPUS_MAX, Flow, Packed, net_for};
use super::rails::rails;
use super::tree::Tree;
use crate::error::PackError;
use crate::orbit_plan::{Automorphism, ORBIT_PLAN_FORMAT, OrbitPlan};

/// The trees of the first rank.
struct Found {
    net: Net,
    automorphisms: Vec<Automorphism>,
    trees: Vec<Tree>,
    /// Rate of every tree of every rank, in units.
    weight: Ratio,
    bound: Ratio,
    sets: Vec<Vec<usize>>,
}

/// The best trees that are alike for all ranks, for an all-gather, a reduce-scatter or an allreduce.
///
/// Whether they are the best of all is in the bound. Errors: another collective; links of other rates by direction, for
/// an allreduce; ranks whose numbers do not show how the fabric repeats itself.
pub fn pack_orbits(graph: &LinkGraph, collective: Collective) -> Result<OrbitPlan, PackError> {
    let refuse = |problem: &str| {
        let problem = problem.to_owned();
        Err(PackError::Format { format: "method symmetric", problem })
    };
    let found = match collective {
        Collective::Allgather | Collective::ReduceScatter | Collective::Allreduce => {
            found(graph, collective)?
        }
        _ => return refuse("it plans an all-gather, a reduce-scatter or an allreduce; use exact"),
    };
    let Some(found) = found else {
        return refuse("the fabric does not look alike from all ranks in their order; use exact");
    };
    let ranks = found.net.gpus.len() as i64;
    let share = Ratio::new(1, i128::from(ranks) * found.trees.len() as i128);
    let flow = |tree: &Tree| {
        let down = || tree.hops.iter().map(|hop| way(hop.from, &hop.via, hop.to)).collect();
        let up = || {
            let back = |hop: &super::tree::Hop| {
                let mut way = way(hop.from, &hop.via, hop.to);
                way.reverse();
                way
            };
            tree.hops.iter().rev().map(back).collect()
        };
        let (up, down) = match collective {
            Collective::Allgather => (Vec::new(), down()),
            Collective::ReduceScatter => (up(), Vec::new()),
            _ => (up(), down()),
        };
        PlannedFlow { share, root: tree.root, up, down }
    };
    let rate = found.rate() * Ratio::new(found.net.unit_bps.into(), 1);
    Ok(OrbitPlan {
        format: ORBIT_PLAN_FORMAT.to_owned(),
        collective,
        fabric: graph.name().to_owned(),
        vertices: OrbitPlan::names(graph),
        gpus: found.net.gpus.clone(),
        rate_bps: rate,
        flows: found.trees.iter().map(flow).collect(),
        automorphisms: found.automorphisms,
        sets: found.sets,
    })
}

fn way(from: usize, via: &[usize], to: usize) -> Vec<usize> {
    [from].into_iter().chain(via.iter().copied()).chain([to]).collect()
}

/// All trees of all ranks, if they reach their bound. `None` too for collectives that have one root.
pub(super) fn packed(
    graph: &LinkGraph,
    collective: Collective,
) -> Result<Option<Packed>, PackError> {
    if !matches!(
        collective,
        Collective::Allgather | Collective::ReduceScatter | Collective::Allreduce
    ) {
        return Ok(None);
    }
    let Some(found) = found(graph, collective)?.filter(|found| found.rate() == found.bound) else {
        return Ok(None);
    };
    let certificate = found.certificate(collective);
    let (rate, weight) = (found.rate(), found.weight);
    let mut moved: Vec<Vec<usize>> = vec![(0..found.net.n).collect()];
    for automorphism in &found.automorphisms {
        let before = moved.len();
        for at in 0..before * (automorphism.order - 1) {
            moved.push(moved[at].iter().map(|&v| automorphism.to[v]).collect());
        }
    }
    let mut flows = Vec::with_capacity(moved.len() * found.trees.len());
    for to in &moved {
        for tree in &found.trees {
            let tree = tree.renamed(to);
            let (up, down) = match collective {
                Collective::Allgather => (None, Some(tree)),
                Collective::ReduceScatter => (Some(tree), None),
                _ => (Some(tree.clone()), Some(tree)),
            };
            let root = up.as_ref().or(down.as_ref()).map_or(0, |tree| tree.root);
            flows.push(Flow { weight, root, up, down });
        }
    }
    let bound = Some(Bound { rate: found.bound, certificate });
    Ok(Some(Packed { collective, net: found.net, flows, rate, bound, limited: false }))
}

impl Found {
    fn rate(&self) -> Ratio {
        self.weight * Ratio::from((self.net.gpus.len() * self.trees.len()) as i64)
    }

    fn certificate(&self, collective: Collective) -> Certificate {
        let gpus = |set: &Vec<usize>| -> Vec<usize> {
            set.iter().copied().filter(|v| self.net.gpus.binary_search(v).is_ok()).collect()
        };
        let back = self.net.reversed();
        let net = if collective == Collective::ReduceScatter { &back } else { &self.net };
        if collective == Collective::Allreduce {
            let cuts = leaving(net, &self.sets);
            return Certificate::Partition { parts: self.sets.iter().map(gpus).collect(), cuts };
        }
        let inside = self.sets[0].clone();
        let capacity = leaving(net, &self.sets)[0];
        Certificate::Shards { gpus: gpus(&inside).len(), inside, capacity }
    }
}

/// The capacity that leaves each of some disjoint sets.
fn leaving(net: &Net, sets: &[Vec<usize>]) -> Vec<i64> {
    let mut set = vec![usize::MAX; net.n];
    sets.iter().enumerate().for_each(|(at, members)| members.iter().for_each(|&v| set[v] = at));
    let mut cuts = vec![0; sets.len()];
    for arc in net.arcs.iter().filter(|arc| set[arc.from] != set[arc.to]) {
        if let Some(cut) = cuts.get_mut(set[arc.from]) {
            *cut += arc.cap;
        }
    }
    cuts
}

fn found(graph: &LinkGraph, collective: Collective) -> Result<Option<Found>, PackError> {
    let net = net_for(collective, graph)?;
    // The automorphisms are found by the order of GPUs, and a set by its first GPU.
    if !net.gpus.is_sorted() || (collective == Collective::Allreduce && net.mirror.is_none()) {
        return Ok(None);
    }
    let Some(automorphisms) = automorphisms(graph, &net) else { return Ok(None) };
    let turned = collective == Collective::ReduceScatter;
    let net = if turned { net.reversed() } else { net };
    let (bound, sets) = bound(&net, collective);
    let orbits = Orbits::new(&net, &automorphisms);
    let both = (collective == Collective::Allreduce).then_some(net.mirror.as_ref()).flatten();
    let mut best: Option<(Vec<Tree>, Ratio)> = None;
    for slots in SLOTS {
        let Some(trees) = trees(&net, &orbits, both, slots) else { break };
        let weight = weight(&net, &orbits, both, &trees);
        let rate = |(trees, weight): &(Vec<Tree>, Ratio)| *weight * Ratio::from(trees.len() as i64);
        let new = (trees, weight);
        if best.as_ref().is_none_or(|best| rate(best) < rate(&new)) {
            best = Some(new);
        }
        let all = Ratio::from(net.gpus.len() as i64);
        if best.as_ref().is_some_and(|best| rate(best) * all == bound) {
            break;
        }
    }
    let Some((trees, weight)) = best else { return Ok(None) };
    let net = if turned { net.reversed() } else { net };
    Ok(Some(Found { net, automorphisms, trees, weight, bound, sets }))
}

/// The least bound of the sets that limit regular fabrics, and these sets.
fn bound(net: &Net, collective: Collective) -> (Ratio, Vec<Vec<usize>>) {
    let ranks = net.gpus.len() as i128;
    let mut candidates: Vec<Vec<Vec<usize>>> = Vec::new();
    if collective == Collective::Allreduce {
        if net.aggregators().is_empty() {
            candidates.push(net.gpus.iter().map(|&gpu| vec![gpu]).collect());
        }
        // All GPUs and all switches that add are in a server, or nothing is known.
        let mut inside = net.relay.clone();
        net.servers.iter().flatten().for_each(|&v| inside[v] = true);
        if net.servers.len() > 1 && inside.iter().all(|&inside| inside) {
            candidates.push(net.servers.clone());
        }
        if let Some(&first) = net.gpus.first() {
            let rest = (0..net.n).filter(|&v| v != first).collect();
            candidates.push(vec![vec![first], rest]);
        }
    } else {
        let mut sets: Vec<Vec<usize>> = vec![vec![net.gpus[0]]];
        sets.extend(net.servers.first().filter(|_| net.servers.len() > 1).cloned());
        for set in sets {
            let rest = (0..net.n).filter(|v| !set.contains(v)).collect();
            candidates.extend([vec![set], vec![rest]]);
        }
        // On small fabrics links inside servers can be the limit: a search over all sets takes milliseconds.
        if net.gpus.len() <= EXACT_GPUS_MAX
            && let Certificate::Shards { inside, .. } = allgather(net).certificate
        {
            candidates.push(vec![inside]);
        }
    }
    let rate = |sets: &Vec<Vec<usize>>| {
        let cut: i128 = leaving(net, sets).into_iter().map(i128::from).sum();
        if collective == Collective::Allreduce {
            return Ratio::new(cut, 2 * (sets.len() as i128 - 1));
        }
        let inside = sets[0].iter().filter(|v| net.gpus.binary_search(v).is_ok()).count();
        Ratio::new(cut * ranks, inside as i128)
    };
    let all = candidates.into_iter().map(|sets| (rate(&sets), sets));
    all.min_by(|a, b| a.0.cmp(&b.0)).expect("there are candidates")
}

/// So many trees from the first GPU, which load orbits alike. `both`: the opposite arcs, if trees are used both ways.
fn trees(net: &Net, orbits: &Orbits, both: Option<&Vec<usize>>, slots: usize) -> Option<Vec<Tree>> {
    let row = |arc: usize| match both {
        Some(mirror) => orbits.of[arc].min(orbits.of[mirror[arc]]),
        None => orbits.of[arc],
    };
    let row: Vec<usize> = (0..net.arcs.len()).map(row).collect();
    let found = if net.gpus.len() == net.n {
        even(net, &row, slots)?
    } else {
        let budget = Budget::standard(net.gpus.len());
        rails(net, &row, &vec![net.gpus[0]; slots], &budget)?.trees
    };
    // Trees that are used both ways are the lower, the nearer their root is to their middle.
    Some(match both {
        Some(_) => found.iter().map(Tree::centred).collect(),
        None => found,
    })
}

/// Trees that grow over the row with the least load, nearest vertices first.
fn even(net: &Net, row: &[usize], slots: usize) -> Option<Vec<Tree>> {
    let out = net.outgoing();
    let mut rows: Vec<usize> = row.to_vec();
    rows.sort_unstable();
    rows.dedup();
    let number: Vec<usize> =
        row.iter().map(|row| rows.binary_search(row).expect("it is a row")).collect();
    let mut room = vec![0i128; rows.len()];
    net.arcs.iter().zip(&number).for_each(|(arc, &row)| room[row] += i128::from(arc.cap));
    let mut load = vec![0i128; rows.len()];
    let mut trees = Vec::new();
    for _ in 0..slots {
        let mut ahead: Vec<VecDeque<usize>> = vec![VecDeque::new(); rows.len()];
        let mut inside = vec![false; net.n];
        let mut hops = Vec::with_capacity(net.n - 1);
        let mut fresh = net.gpus[0];
        inside[fresh] = true;
        while hops.len() + 1 < net.n {
            out[fresh].iter().for_each(|&arc| ahead[number[arc]].push_back(arc));
            for queue in &mut ahead {
                while queue.front().is_some_and(|&arc| inside[net.arcs[arc].to]) {
                    queue.pop_front();
                }
            }
            let possible = (0..rows.len()).filter(|&row| !ahead[row].is_empty());
            let least = possible.min_by(|&a, &b| {
                ((load[a] + 1) * room[b]).cmp(&((load[b] + 1) * room[a])).then(a.cmp(&b))
            })?;
            let arc = net.arcs[ahead[least].pop_front()?];
            load[least] += 1;
            inside[arc.to] = true;
            fresh = arc.to;
            hops.push(super::tree::Hop { from: arc.from, to: arc.to, via: Vec::new() });
        }
        trees.push(Tree { root: net.gpus[0], hops });
    }
    Some(trees)
}

/// The weight of every tree at which the fullest orbit is full.
fn weight(net: &Net, orbits: &Orbits, both: Option<&Vec<usize>>, trees: &[Tree]) -> Ratio {
    let mut uses = vec![0i128; net.arcs.len()];
    for arc in trees.iter().flat_map(|tree| tree.arcs(net)) {
        uses[orbits.of[arc]] += 1;
        if let Some(mirror) = both {
            uses[orbits.of[mirror[arc]]] += 1;
        }
    }
    let ranks = net.gpus.len() as i128;
    let used = (0..uses.len()).filter(|&first| uses[first] > 0);
    let full = |first: usize| {
        let room = i128::from(net.arcs[first].cap) * orbits.size[first] as i128;
        Ratio::new(room, ranks * uses[first])
    };
    used.map(full).min().unwrap_or(Ratio::ZERO)
}

/// How many trees the first GPU may have.
const SLOTS: [usize; 7] = [1, 2, 3, 4, 5, 6, 8];
