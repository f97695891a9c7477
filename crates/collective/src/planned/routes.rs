//! One rank's part in a plan, by flow and peer link.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use netsum_topo::links::{Collective, PlannedFlow, TREE_PLAN_FORMAT, TreePlan};
use netsum_topo::{Ratio, lcm};

use super::PlannedError;

/// One rank's neighbours in one flow's trees, as indices of peer links in [`Routes`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Route {
    /// Rank of the root.
    pub(super) root: usize,
    /// Whether this rank is the root.
    pub(super) is_root: bool,
    /// Receiver of sums; `None` at the root and if nothing goes up.
    pub(super) up_to: Option<usize>,
    /// Senders of sums, in the order of additions.
    pub(super) up_from: Vec<usize>,
    /// Sender of data; `None` at the root and if nothing goes down.
    pub(super) down_from: Option<usize>,
    /// Receivers of data.
    pub(super) down_to: Vec<usize>,
}

/// A path to a neighbour: direct, or through switches that only forward. Two paths to one rank are two peer links.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LinkKey {
    /// The rank at its other end.
    pub(super) peer: usize,
    /// Vertices between, from the lower rank to the higher.
    pub(super) via: Vec<usize>,
}

/// A rank's part in a plan.
#[derive(Debug, Clone)]
pub(super) struct Routes {
    pub(super) flows: Vec<Route>,
    pub(super) peer_links: Vec<LinkKey>,
    /// By peer link, the traffic of the busier direction by the plan, in bytes per second.
    pub(super) bytes_per_s: Vec<f64>,
    /// Parent in a tree over all ranks on which they report completion, as a peer link.
    pub(super) parent: Option<usize>,
    pub(super) children: Vec<usize>,
}

impl Routes {
    /// The routes of a rank. Errors: a plan that cannot be run, the same at every rank; or an invalid rank.
    pub(super) fn of_rank(plan: &TreePlan, rank: usize) -> Result<Routes, PlannedError> {
        let rank_of = check(plan).map_err(PlannedError::Plan)?;
        if rank >= plan.gpus.len() {
            let problem = format!("it has {} ranks, and no rank {rank}", plan.gpus.len());
            return Err(PlannedError::Plan(problem));
        }
        let mut keys: BTreeMap<LinkKey, usize> = BTreeMap::new();
        let ours = |way: &[usize]| way.iter().any(|vertex| rank_of.get(vertex) == Some(&rank));
        let key = |way: &[usize]| {
            let (first, last) = (rank_of[&way[0]], rank_of[&way[way.len() - 1]]);
            let mut via = way[1..way.len() - 1].to_vec();
            if first > last {
                via.reverse();
            }
            LinkKey { peer: if first == rank { last } else { first }, via }
        };
        let ways = || plan.flows.iter().flat_map(|flow| flow.up.iter().chain(&flow.down));
        for way in ways().filter(|way| ours(way)) {
            keys.insert(key(way), 0);
        }
        keys.values_mut().enumerate().for_each(|(place, peer_link)| *peer_link = place);
        let peer_link = |way: &[usize]| keys[&key(way)];
        let from = |way: &[usize]| rank_of[&way[0]];
        let to = |way: &[usize]| rank_of[&way[way.len() - 1]];
        let flows: Vec<Route> = plan
            .flows
            .iter()
            .map(|flow| {
                let root = rank_of[&flow.root];
                let up = || flow.up.iter().filter(|way| ours(way));
                let down = || flow.down.iter().filter(|way| ours(way));
                Route {
                    root,
                    is_root: root == rank,
                    up_to: up().find(|way| from(way) == rank).map(|way| peer_link(way)),
                    up_from: up().filter(|way| to(way) == rank).map(|way| peer_link(way)).collect(),
                    down_from: down().find(|way| to(way) == rank).map(|way| peer_link(way)),
                    down_to: down()
                        .filter(|way| from(way) == rank)
                        .map(|way| peer_link(way))
                        .collect(),
                }
            })
            .collect();
        // By peer link, incoming and outgoing traffic.
        let mut shares = vec![[0.0f64; 2]; keys.len()];
        for flow in &plan.flows {
            for way in flow.up.iter().chain(&flow.down).filter(|way| ours(way)) {
                shares[peer_link(way)][usize::from(from(way) == rank)] += flow.share.to_f64();
            }
        }
        let rate = plan.rate_bps.to_f64() / 8.0;
        let bytes_per_s = shares.iter().map(|[comes, goes]| comes.max(*goes) * rate).collect();
        let (parent, children) = match flows.first() {
            Some(route) if plan.flows[0].down.is_empty() => (route.up_to, route.up_from.clone()),
            Some(route) => (route.down_from, route.down_to.clone()),
            None => (None, Vec::new()),
        };
        Ok(Routes { flows, peer_links: keys.into_keys().collect(), bytes_per_s, parent, children })
    }
}

/// The rank of each GPU, if hosts can run the plan: each flow's trees reach every rank once, from or to the root of the
/// collective, and shares add up.
fn check(plan: &TreePlan) -> Result<HashMap<usize, usize>, String> {
    if plan.format != TREE_PLAN_FORMAT {
        return Err(format!("format {:?} is not {TREE_PLAN_FORMAT:?}", plan.format));
    }
    let mut rank_of = HashMap::new();
    for (rank, &vertex) in plan.gpus.iter().enumerate() {
        if vertex >= plan.vertices.len() {
            return Err(format!(
                "rank {rank} is vertex {vertex}, and it has {}",
                plan.vertices.len()
            ));
        }
        if rank_of.insert(vertex, rank).is_some() {
            return Err(format!("{} is two ranks", plan.vertices[vertex]));
        }
    }
    let ranks = plan.gpus.len();
    let mut shares: Vec<Vec<Ratio>> = vec![Vec::new(); ranks];
    for (index, flow) in plan.flows.iter().enumerate() {
        let problem = check_flow(plan, flow, &rank_of).err();
        if let Some(problem) = problem {
            return Err(format!("flow {index}: {problem}"));
        }
        shares[rank_of[&flow.root]].push(flow.share);
    }
    let shares: Option<Vec<Ratio>> = shares.iter().map(|shares| total(shares)).collect();
    let shares = shares.ok_or("its shares have no common denominator that is small enough")?;
    let sum = total(&shares).ok_or("its shares have no common denominator that is small enough")?;
    let one = Ratio::ONE;
    let fair = Ratio::new(1, ranks.max(1) as i128);
    match plan.collective {
        _ if ranks < 2 => {}
        _ if sum != one => return Err(format!("the shares add up to {sum}, and not to 1")),
        Collective::Broadcast { root } | Collective::Reduce { root } => {
            if root >= ranks || shares[root] != one {
                return Err(format!("not all of it is rooted at rank {root}"));
            }
        }
        Collective::Allgather | Collective::ReduceScatter | Collective::Alltoall => {
            let roots: Vec<usize> = plan.flows.iter().map(|flow| rank_of[&flow.root]).collect();
            if shares.iter().any(|share| *share != fair) || !roots.is_sorted() {
                return Err(
                    "the roots' shares are not equal, or not in the order of ranks".to_owned()
                );
            }
        }
        Collective::Allreduce => {}
    }
    Ok(rank_of)
}

/// The sum of shares, if it can be represented.
fn total(shares: &[Ratio]) -> Option<Ratio> {
    let common = shares.iter().try_fold(1, |common, share| lcm(common, share.den()))?;
    let sum = shares.iter().try_fold(0i128, |sum, share| {
        sum.checked_add(share.num().checked_mul(common / share.den())?)
    })?;
    Some(Ratio::new(sum, common))
}

fn check_flow(
    plan: &TreePlan,
    flow: &PlannedFlow,
    rank_of: &HashMap<usize, usize>,
) -> Result<(), String> {
    let switch = || "it branches at a switch; plan with switches that only pass".to_owned();
    let name = |vertex: usize| plan.vertices[vertex].clone();
    if !flow.share.is_positive() {
        return Err(format!("its share is {}", flow.share));
    }
    if !rank_of.contains_key(&flow.root) {
        return Err(switch());
    }
    let (up, down) = match plan.collective {
        Collective::Broadcast { .. } | Collective::Allgather | Collective::Alltoall => {
            (false, true)
        }
        Collective::Reduce { .. } | Collective::ReduceScatter => (true, false),
        Collective::Allreduce => (true, true),
    };
    // Up, seen from the root, is down with reversed paths, the last path first.
    let turned = flow.up.iter().rev().map(|way| way.iter().rev().copied().collect());
    let trees: [(bool, Vec<Vec<usize>>); 2] = [(up, turned.collect()), (down, flow.down.clone())];
    for (wanted, ways) in trees {
        if !wanted && !ways.is_empty() {
            return Err("it has ways that its collective does not use".to_owned());
        }
        let mut reached = vec![flow.root];
        for way in &ways {
            if way.len() < 2 || way.iter().any(|&vertex| vertex >= plan.vertices.len()) {
                return Err(format!("{way:?} is no way"));
            }
            let (from, to) = (way[0], way[way.len() - 1]);
            let inner = &way[1..way.len() - 1];
            if !rank_of.contains_key(&from) || !rank_of.contains_key(&to) {
                return Err(switch());
            }
            if inner.iter().any(|vertex| rank_of.contains_key(vertex)) {
                return Err(format!("the way from {} to {} passes a GPU", name(from), name(to)));
            }
            if !reached.contains(&from) {
                return Err(format!("{} passes on what has not come to it", name(from)));
            }
            if reached.contains(&to) {
                return Err(format!("{} is reached twice", name(to)));
            }
            reached.push(to);
        }
        if wanted && reached.len() != rank_of.len() {
            return Err(format!("a tree has {} of {} ranks", reached.len(), rank_of.len()));
        }
    }
    Ok(())
}

/// Elements of each flow in a buffer of `elements`.
pub(super) fn spans(
    collective: Collective,
    ranks: usize,
    shares: &[(i128, i128)],
    routes: &[Route],
    elements: usize,
) -> Vec<Range<usize>> {
    let sharded = matches!(collective, Collective::Allgather | Collective::ReduceScatter);
    let mut spans = Vec::new();
    let (mut owner, mut before) = (usize::MAX, 0.0f64);
    for (&(num, den), route) in shares.iter().zip(routes) {
        // Flows of a sharded collective divide their root's shard, of others the whole buffer.
        let (start, len, parts) = if sharded {
            let start = elements * route.root / ranks;
            (start, elements * (route.root + 1) / ranks - start, ranks as f64)
        } else {
            (0, elements, 1.0)
        };
        if sharded && route.root != owner {
            (owner, before) = (route.root, 0.0);
        }
        let after = before + num as f64 / den as f64 * parts;
        let at = |part: f64| start + ((part * len as f64).round() as usize).min(len);
        spans.push(at(before)..at(after));
        before = after;
    }
    spans
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(root: usize) -> Route {
        let (up_from, down_to) = (Vec::new(), Vec::new());
        Route { root, is_root: false, up_to: None, up_from, down_from: None, down_to }
    }

    #[test]
    fn spans_cover_the_buffer_once() {
        for elements in [0, 1, 2, 7, 1000, 1_000_003] {
            let thirds = [(1, 3), (1, 7), (11, 21)];
            let spans =
                spans(Collective::Allreduce, 3, &thirds, &[route(0), route(1), route(2)], elements);
            assert_eq!((spans[0].start, spans[2].end), (0, elements));
            assert!(spans.windows(2).all(|pair| pair[0].end == pair[1].start));
        }
    }

    #[test]
    fn spans_of_shards_stay_in_their_shard() {
        let shares = [(1, 6), (1, 3), (1, 4), (1, 4)];
        let routes = [route(0), route(0), route(1), route(1)];
        let spans = spans(Collective::Allgather, 2, &shares, &routes, 11);
        assert_eq!((spans[0].start, spans[1].end), (0, 5));
        assert_eq!((spans[2].start, spans[3].end), (5, 11));
    }

    fn plan(gpus: usize, flows: Vec<PlannedFlow>) -> TreePlan {
        TreePlan {
            format: TREE_PLAN_FORMAT.to_owned(),
            collective: Collective::Allreduce,
            fabric: "test".to_owned(),
            vertices: ["a", "b", "c", "s", "t"].map(str::to_owned).to_vec(),
            gpus: (0..gpus).collect(),
            rate_bps: Ratio::from(1),
            flows,
        }
    }

    fn flow(num: i128, den: i128, ways: &[&[usize]]) -> PlannedFlow {
        let down: Vec<Vec<usize>> = ways.iter().map(|way| way.to_vec()).collect();
        let turn = |way: &Vec<usize>| way.iter().rev().copied().collect();
        let up = down.iter().rev().map(turn).collect();
        PlannedFlow { share: Ratio::new(num, den), root: 0, up, down }
    }

    #[test]
    fn two_paths_to_one_rank_are_two_peer_links() {
        let direct = flow(2, 3, &[&[0, 1], &[1, 2]]);
        let around = flow(1, 3, &[&[0, 3, 1], &[1, 2]]);
        let plan = plan(3, vec![direct, around]);
        let one = Routes::of_rank(&plan, 1).unwrap();
        let keys: Vec<(usize, &[usize])> =
            one.peer_links.iter().map(|key| (key.peer, key.via.as_slice())).collect();
        assert_eq!(keys, [(0, &[][..]), (0, &[3][..]), (2, &[][..])]);
        assert_eq!((one.flows[0].up_to, one.flows[1].up_to), (Some(0), Some(1)));
        // Bits per second: 1, of which two thirds use the direct path.
        let rates: Vec<f64> = one.bytes_per_s.iter().map(|rate| (rate * 24.0).round()).collect();
        assert_eq!(rates, [2.0, 1.0, 3.0]);
        assert_eq!((one.parent, one.children.as_slice()), (Some(0), &[2][..]));
    }

    #[test]
    fn plans_that_hosts_cannot_run_are_refused() {
        let good: &[&[usize]] = &[&[0, 1], &[1, 2]];
        assert!(Routes::of_rank(&plan(3, vec![flow(1, 1, good)]), 2).is_ok());
        for (ways, problem) in [
            (&[&[0, 1][..]][..], "a tree has 2 of 3 ranks"),
            (&[&[0, 1], &[0, 2], &[1, 2]], "c is reached twice"),
            (&[&[1, 2], &[0, 1]], "b passes on what has not come to it"),
            (&[&[0, 3], &[3, 1], &[3, 2]], "it branches at a switch"),
            (&[&[0, 1, 2], &[0, 1]], "the way from a to c passes a GPU"),
            (&[&[0, 9], &[0, 2]], "is no way"),
        ] {
            let error = Routes::of_rank(&plan(3, vec![flow(1, 1, ways)]), 0).unwrap_err();
            assert!(error.to_string().contains(problem), "{error} / {problem}");
        }
        let error = Routes::of_rank(&plan(3, vec![flow(1, 2, good)]), 0).unwrap_err();
        assert!(error.to_string().contains("the shares add up to 1/2"), "{error}");
        let error = Routes::of_rank(&plan(3, vec![flow(-1, 2, good)]), 0).unwrap_err();
        assert!(error.to_string().contains("its share is -1/2"), "{error}");
        let error = Routes::of_rank(&plan(6, vec![]), 0).unwrap_err();
        assert!(error.to_string().contains("rank 5 is vertex 5"), "{error}");
    }
}
