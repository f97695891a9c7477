//! What a plan asks of one rank, flow by flow.

use std::collections::HashMap;
use std::ops::Range;

use netsum_topo::links::{Collective, TREE_PLAN_FORMAT, TreePlan};

use super::PlannedError;

/// One rank's neighbours in one flow's trees, as ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Route {
    /// The rank at the root.
    pub(super) root: usize,
    /// Whether this rank is it.
    pub(super) is_root: bool,
    /// Sums go to it; `None` at the root and where nothing goes up.
    pub(super) up_to: Option<usize>,
    /// Sums come from these, in the order of adding.
    pub(super) up_from: Vec<usize>,
    /// Data comes from it; `None` at the root and where nothing goes down.
    pub(super) down_from: Option<usize>,
    /// Data goes to these.
    pub(super) down_to: Vec<usize>,
}

impl Route {
    pub(super) fn neighbours(&self) -> impl Iterator<Item = usize> + '_ {
        let one = self.up_to.iter().chain(&self.down_from);
        one.chain(&self.up_from).chain(&self.down_to).copied()
    }
}

/// The routes of a rank. Errors: another format, a way that ends at a switch, or a rank with two
/// parents.
pub(super) fn of_rank(plan: &TreePlan, rank: usize) -> Result<Vec<Route>, PlannedError> {
    let refuse = |problem: String| PlannedError::Plan(problem);
    if plan.format != TREE_PLAN_FORMAT {
        return Err(refuse(format!("format {:?} is not {TREE_PLAN_FORMAT:?}", plan.format)));
    }
    if rank >= plan.gpus.len() {
        return Err(refuse(format!("it has {} ranks, and no rank {rank}", plan.gpus.len())));
    }
    let rank_of: HashMap<usize, usize> =
        plan.gpus.iter().enumerate().map(|(rank, &vertex)| (vertex, rank)).collect();
    let rank_at = |vertex: Option<&usize>| {
        vertex.and_then(|vertex| rank_of.get(vertex)).copied().ok_or_else(|| {
            refuse("a flow branches at a switch; plan with switches that only pass".to_owned())
        })
    };
    let mut routes = Vec::new();
    for (index, flow) in plan.flows.iter().enumerate() {
        let root = rank_at(Some(&flow.root))?;
        let mut route = Route {
            root,
            is_root: root == rank,
            up_to: None,
            up_from: Vec::new(),
            down_from: None,
            down_to: Vec::new(),
        };
        let twice =
            || refuse(format!("flow {index} gives rank {rank} two parents; verify the plan"));
        for way in &flow.up {
            let (from, to) = (rank_at(way.first())?, rank_at(way.last())?);
            if from == rank && route.up_to.replace(to).is_some() {
                return Err(twice());
            }
            if to == rank {
                route.up_from.push(from);
            }
        }
        for way in &flow.down {
            let (from, to) = (rank_at(way.first())?, rank_at(way.last())?);
            if to == rank && route.down_from.replace(from).is_some() {
                return Err(twice());
            }
            if from == rank {
                route.down_to.push(to);
            }
        }
        routes.push(route);
    }
    Ok(routes)
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
        // Flows of a sharded collective divide their root's shard, of others the whole.
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
}
