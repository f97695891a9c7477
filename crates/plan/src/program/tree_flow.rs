//! Flows that are trees, recognised without their program.
//!
//! The steps of a flow, run one after another in the order of the plan, obey all threads, dependencies and messages, so
//! they never wait in a circle. What is left to see is that each agent has what it sends when it sends it, that its
//! pieces do not change between, and that every contribution arrives once. [`is_tree`] looks at these directly, which is
//! some twenty times as fast as [`super::check`]; a flow that is no tree here may still be correct, and is left to it.

use netsum_topo::links::Collective;

/// Whether a flow computes the collective along a tree up, a tree down, or both.
///
/// `up`, `down`: senders and receivers in order. `agents`: all of them, of which the first `ranks` have values. `root`:
/// the agent that has the flow's pieces first, or last, if the collective has such a rank.
pub(super) fn is_tree(
    collective: Collective,
    ranks: usize,
    agents: usize,
    root: usize,
    up: &[(usize, usize)],
    down: &[(usize, usize)],
) -> bool {
    let sums = || summed_at(up, ranks, agents);
    match collective {
        Collective::Broadcast { root } => up.is_empty() && reaches_all(down, root, ranks, agents),
        // Of an all-to-all, every rank takes its own blocks and passes on those of the ranks behind it.
        Collective::Allgather | Collective::Alltoall => {
            up.is_empty() && reaches_all(down, root, ranks, agents)
        }
        Collective::Reduce { root } => down.is_empty() && sums() == Some(root),
        Collective::ReduceScatter => down.is_empty() && sums() == Some(root),
        Collective::Allreduce => sums().is_some_and(|top| reaches_all(down, top, ranks, agents)),
    }
}

/// The agent where the sum of all ranks is complete, if every other one sends its sum once, after all that it receives.
fn summed_at(up: &[(usize, usize)], ranks: usize, agents: usize) -> Option<usize> {
    let mut sent = vec![false; agents];
    // Switches have nothing before they receive.
    let mut has: Vec<bool> = (0..agents).map(|agent| agent < ranks).collect();
    for &(from, to) in up {
        if from == to || sent[from] || sent[to] || !has[from] {
            return None;
        }
        sent[from] = true;
        has[to] = true;
    }
    let mut left = (0..agents).filter(|&agent| has[agent] && !sent[agent]);
    let top = left.next();
    top.filter(|_| left.next().is_none())
}

/// Whether data reaches every rank from `source`, and every agent at most once, from one that has it.
fn reaches_all(down: &[(usize, usize)], source: usize, ranks: usize, agents: usize) -> bool {
    let mut has = vec![false; agents];
    if source >= agents {
        return false;
    }
    has[source] = true;
    for &(from, to) in down {
        if !has[from] || std::mem::replace(&mut has[to], true) {
            return false;
        }
    }
    has[..ranks].iter().all(|&has| has)
}

#[cfg(test)]
mod tests {
    use netsum_topo::Ratio;
    use netsum_topo::links::{PlannedFlow, TREE_PLAN_FORMAT, TreePlan};
    use proptest::prelude::*;

    use super::super::{check, lower};
    use super::*;

    const RANKS: usize = 4;
    const AGENTS: usize = 6;

    fn pairs() -> impl Strategy<Value = Vec<(usize, usize)>> {
        let wild = prop::collection::vec((0..AGENTS, 0..AGENTS), 0..7);
        let tree = (0..RANKS, any::<u64>()).prop_map(|(root, seed)| tree(root, seed));
        let cut = (tree.clone(), 0..RANKS).prop_map(|(mut tree, at)| {
            tree.swap(0, at % 3);
            tree.truncate(3 - at / 3);
            tree
        });
        prop_oneof![wild, tree, cut]
    }

    /// A tree over the ranks, sometimes through a switch, as hops from the root.
    fn tree(root: usize, seed: u64) -> Vec<(usize, usize)> {
        let mut members = vec![root];
        let mut hops = Vec::new();
        for (place, rank) in (0..RANKS).filter(|&rank| rank != root).enumerate() {
            let above = members[(seed >> (8 * place)) as usize % members.len()];
            if seed >> (40 + place) & 3 == 0 && !members.contains(&RANKS) {
                hops.extend([(above, RANKS), (RANKS, rank)]);
                members.push(RANKS);
            } else {
                hops.push((above, rank));
            }
            members.push(rank);
        }
        hops
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]

        /// Whatever counts as a tree here is a correct program.
        #[test]
        fn trees_are_correct_programs(
            up in pairs(), down in pairs(), kind in 0usize..5, root in 0..RANKS, turned: bool,
        ) {
            let collective = [
                Collective::Broadcast { root },
                Collective::Reduce { root },
                Collective::Allgather,
                Collective::ReduceScatter,
                Collective::Allreduce,
            ][kind];
            let back = |way: &(usize, usize)| (way.1, way.0);
            let up = if turned { up.iter().rev().map(back).collect() } else { up };
            let up = if kind % 2 == 0 && kind < 4 { Vec::new() } else { up };
            let down = if kind % 2 == 1 { Vec::new() } else { down };
            if !is_tree(collective, RANKS, AGENTS, root, &up, &down) {
                return Ok(());
            }
            let ways = |pairs: &[(usize, usize)]| pairs.iter().map(|&(a, b)| vec![a, b]).collect();
            let star = |root: usize| -> Vec<Vec<usize>> {
                (0..RANKS).filter(|&rank| rank != root).map(|rank| vec![root, rank]).collect()
            };
            let sharded = matches!(collective, Collective::Allgather | Collective::ReduceScatter);
            let roots: Vec<usize> = if sharded { (0..RANKS).collect() } else { vec![root] };
            let share = Ratio::new(1, roots.len() as i128);
            let flows = roots.into_iter().map(|own| {
                let gathers = collective == Collective::Allgather;
                let (up, down) = if own == root {
                    (ways(&up), ways(&down))
                } else if gathers {
                    (Vec::new(), star(own))
                } else {
                    (star(own).iter().map(|way| vec![way[1], way[0]]).collect(), Vec::new())
                };
                PlannedFlow { share, root: own, up, down }
            });
            let plan = TreePlan {
                format: TREE_PLAN_FORMAT.to_owned(),
                collective,
                fabric: "any".to_owned(),
                vertices: (0..AGENTS).map(|v| v.to_string()).collect(),
                gpus: (0..RANKS).collect(),
                rate_bps: Ratio::ONE,
                flows: flows.collect(),
            };
            prop_assert_eq!(check(&lower(&plan).unwrap()), Ok(()));
        }
    }

    #[test]
    fn good_trees_are_recognised() {
        for seed in 0..500u64 {
            let seed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let root = seed as usize % RANKS;
            let down = tree(root, seed);
            let up: Vec<_> = down.iter().rev().map(|&(a, b)| (b, a)).collect();
            let all = |collective, up: &[_], down: &[_]| {
                is_tree(collective, RANKS, AGENTS, root, up, down)
            };
            assert!(all(Collective::Allreduce, &up, &down));
            assert!(all(Collective::Allgather, &[], &down));
            assert!(all(Collective::Reduce { root }, &up, &[]));
            assert!(!all(Collective::Allreduce, &up[1..], &down));
            assert!(!all(Collective::Broadcast { root }, &[], &down[1..]));
        }
    }
}
