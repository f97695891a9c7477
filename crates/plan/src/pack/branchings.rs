//! Trees from given roots that together reach the bound of cuts, grown arc by arc.
//!
//! Source: Edmonds (1973), with Lovász' proof: an arc can be added to a tree if every set of vertices keeps as much
//! capacity to leave it as there are trees that are inside it and have to leave. One maximum flow says in how many
//! copies of the tree. Bérczi and Frank (2010) and ForestColl (2024) do so with many roots. Differs: trees of a search
//! that is nearly as good are kept as far as the condition allows, and the rest is grown.

use super::budget::Budget;
use super::flow::FlowNet;
use super::net::Net;
use super::tree::{Hop, Tree};

/// Trees from roots, which add up to `copies[v]` from vertex v, on arcs with `room` for so many. `trees`: some that are
/// kept in part. `None` if the budget ends first, if there are no such trees, if there are too many GPUs, or if
/// counts exceed 40 bits.
///
/// The net has GPUs only.
pub(super) fn branchings(
    net: &Net,
    room: Vec<i64>,
    copies: &[i64],
    trees: &[(Tree, i64)],
    budget: &Budget<'_>,
) -> Option<Vec<(Tree, i64)>> {
    let roots = copies.iter().filter(|&&copies| copies > 0).count();
    let work = roots as u64 * (net.n * (net.arcs.len() + net.n) * FLOW_WORK) as u64 / 4;
    if work > WORK_MAX || room.iter().chain(copies).any(|&count| count >= MOST) {
        return None;
    }
    let mut growth = Growth {
        net,
        out: net.outgoing(),
        room,
        waiting: copies.to_vec(),
        parts: Vec::new(),
        flow: None,
        cut: Vec::new(),
        budget,
    };
    let mut found = growth.kept(trees)?;
    let roots: Vec<usize> = (0..net.n).filter(|&v| growth.waiting[v] > 0).collect();
    for root in roots {
        let mut inside = vec![false; net.n];
        inside[root] = true;
        let copies = std::mem::take(&mut growth.waiting[root]);
        growth.parts.push(Part { copies, inside, root, hops: Vec::new() });
        while let Some(part) = growth.parts.pop() {
            growth.flow = None;
            let (tree, copies) = growth.completed(part)?;
            found.push((tree, copies));
        }
    }
    Some(found)
}

/// The same from trees that were whole, in so many copies, and from trees that have lost some of their vertices: whole
/// trees are cut back only where they take room, twice or more, on the way into a set that needs it.
pub(super) fn regrown(
    net: &Net,
    room: Vec<i64>,
    whole: &[(Tree, i64)],
    torn: &[(Tree, i64)],
    budget: &Budget<'_>,
) -> Option<Vec<(Tree, i64)>> {
    if room.iter().any(|&count| count >= MOST) {
        return None;
    }
    let mut growth = Growth {
        net,
        out: net.outgoing(),
        room,
        waiting: vec![0; net.n],
        parts: Vec::new(),
        flow: None,
        cut: Vec::new(),
        budget,
    };
    let part = |(tree, copies): &(Tree, i64)| Part::of(net, tree, *copies);
    let mut whole: Vec<Part> = whole.iter().map(part).collect();
    growth.parts = torn.iter().map(part).collect();
    for part in whole.iter().chain(&growth.parts) {
        part.hops.iter().for_each(|&(from, to)| {
            growth.room[net.arc(from, to).expect("a hop is an arc")] -= part.copies;
        });
    }
    if growth.room.iter().any(|&room| room < 0) {
        return None;
    }
    growth.make_room(&mut whole)?;
    let mut found: Vec<(Tree, i64)> = whole.into_iter().map(Part::tree).collect();
    while let Some(part) = growth.parts.pop() {
        growth.flow = None;
        found.push(growth.completed(part)?);
    }
    Some(found)
}

/// Equal trees that do not reach all vertices yet.
#[derive(Clone)]
struct Part {
    copies: i64,
    inside: Vec<bool>,
    root: usize,
    hops: Vec<(usize, usize)>,
}

impl Part {
    fn of(net: &Net, tree: &Tree, copies: i64) -> Part {
        let mut inside = vec![false; net.n];
        inside[tree.root] = true;
        tree.hops.iter().for_each(|hop| inside[hop.to] = true);
        let hops = tree.hops.iter().map(|hop| (hop.from, hop.to)).collect();
        Part { copies, inside, root: tree.root, hops }
    }

    fn tree(self) -> (Tree, i64) {
        let hop = |&(from, to): &(usize, usize)| Hop { from, to, via: Vec::new() };
        (Tree { root: self.root, hops: self.hops.iter().map(hop).collect() }, self.copies)
    }

    /// The tree without the hops by which it enters a set again, and all below them; with these hops.
    fn cut_back(&self, set: &[bool]) -> (Part, Vec<(usize, usize)>) {
        let mut entered = set[self.root];
        let mut part = Part { inside: vec![false; set.len()], hops: Vec::new(), ..*self };
        part.inside[self.root] = true;
        let mut gone = Vec::new();
        for &(from, to) in &self.hops {
            let enters = set[to] && !set[from];
            if !part.inside[from] || (enters && entered) {
                gone.push((from, to));
                continue;
            }
            entered |= enters;
            part.inside[to] = true;
            part.hops.push((from, to));
        }
        (part, gone)
    }
}

struct Growth<'a> {
    net: &'a Net,
    out: Vec<Vec<usize>>,
    /// By arc: copies of trees that it still has room for.
    room: Vec<i64>,
    /// By vertex: copies of trees that are nothing but this root.
    waiting: Vec<i64>,
    /// Trees that have begun.
    parts: Vec<Part>,
    /// The network of the condition for the present `parts`; its capacities are set for each flow.
    flow: Option<FlowNet>,
    /// Trees that were just cut back.
    cut: Vec<Part>,
    budget: &'a Budget<'a>,
}

impl Growth<'_> {
    /// As much of `trees` as leaves room for the others, in all of them alike; `None` if the budget ends.
    fn kept(&mut self, trees: &[(Tree, i64)]) -> Option<Vec<(Tree, i64)>> {
        for eighths in [7, 6, 4] {
            let part = |(tree, copies): &(Tree, i64)| (tree.clone(), copies * eighths / 8);
            let kept: Vec<(Tree, i64)> =
                trees.iter().map(part).filter(|(_, copies)| *copies > 0).collect();
            if kept.is_empty() {
                break;
            }
            let before = (self.room.clone(), self.waiting.clone());
            for (tree, copies) in &kept {
                tree.arcs(self.net).for_each(|arc| self.room[arc] -= copies);
                self.waiting[tree.root] -= copies;
            }
            let possible = self.room.iter().chain(&self.waiting).all(|&left| left >= 0);
            if possible && self.condition_holds()? {
                return Some(kept);
            }
            (self.room, self.waiting) = before;
        }
        Some(Vec::new())
    }

    /// Whether all sets of vertices can be left as often as they must be; `None` if the budget ends.
    fn condition_holds(&mut self) -> Option<bool> {
        let all: i64 = self.waiting.iter().sum();
        for to in 0..self.net.n {
            if self.budget.is_over() {
                return None;
            }
            // What waits at the vertex itself is there already.
            if self.reaching(None, to, all.into()) < i128::from(all) {
                return Some(false);
            }
        }
        Some(true)
    }

    /// Cuts trees back until all sets of vertices can be left as often as they must be; `None` if the budget ends, or
    /// if no trees will do.
    fn make_room(&mut self, whole: &mut Vec<Part>) -> Option<()> {
        for to in 0..self.net.n {
            loop {
                if self.budget.is_over() {
                    return None;
                }
                let all: i64 = self.parts.iter().map(|part| part.copies).sum();
                let short = i128::from(all) - self.reaching(None, to, all.into());
                if short <= 0 {
                    break;
                }
                let flow = self.flow.take()?;
                let side = flow.source_side();
                let set: Vec<bool> = side[..self.net.n].iter().map(|inside| !inside).collect();
                if !self.cut_back(whole, &set, i64::try_from(short).ok()?) {
                    return None;
                }
            }
        }
        Some(())
    }

    /// Takes back some hops of trees that enter a set several times, so that `short` more copies can enter it; whether
    /// any did.
    fn cut_back(&mut self, whole: &mut Vec<Part>, set: &[bool], mut short: i64) -> bool {
        let mut changed = false;
        for list in [&mut self.parts, whole] {
            let mut at = 0;
            while at < list.len() && short > 0 {
                let (part, gone) = list[at].cut_back(set);
                let again = gone.iter().filter(|&&(from, to)| set[to] && !set[from]).count() as i64;
                at += 1;
                if again == 0 {
                    continue;
                }
                let copies = list[at - 1].copies.min((short + again - 1) / again);
                short -= again * copies;
                changed = true;
                for (from, to) in gone {
                    self.room[self.net.arc(from, to).expect("a hop is an arc")] += copies;
                }
                self.cut.push(Part { copies, ..part });
                if copies == list[at - 1].copies {
                    at -= 1;
                    list.swap_remove(at);
                } else {
                    list[at - 1].copies -= copies;
                }
            }
        }
        self.parts.append(&mut self.cut);
        changed
    }

    /// Grows a tree until it reaches all vertices; what is left of its copies is put back. `None` if the budget ends.
    fn completed(&mut self, mut part: Part) -> Option<(Tree, i64)> {
        let mut fresh: Vec<usize> = Vec::new();
        let mut narrow: Vec<(i64, usize)> = Vec::new();
        for v in (0..self.net.n).filter(|&v| part.inside[v]) {
            fresh.extend(&self.out[v]);
        }
        let mut head = 0;
        while part.hops.len() + 1 < self.net.n {
            // Arcs that all copies can take come first, in the order in which vertices were reached.
            let (arc, copies) = if head < fresh.len() {
                let arc = fresh[head];
                head += 1;
                let copies = self.possible(&part, arc)?;
                if copies < part.copies {
                    if copies > 0 {
                        narrow.push((copies, arc));
                    }
                    continue;
                }
                (arc, copies)
            } else {
                narrow.sort_unstable();
                let (_, arc) = narrow.pop()?;
                (arc, self.possible(&part, arc)?)
            };
            if copies == 0 {
                continue;
            }
            if copies < part.copies {
                self.parts.push(Part { copies: part.copies - copies, ..part.clone() });
                self.flow = None;
                part.copies = copies;
            }
            let (from, to) = (self.net.arcs[arc].from, self.net.arcs[arc].to);
            self.room[arc] -= copies;
            part.inside[to] = true;
            part.hops.push((from, to));
            fresh.extend(&self.out[to]);
        }
        Some(part.tree())
    }

    /// In how many copies a tree can take an arc; `None` if the budget ends.
    fn possible(&mut self, part: &Part, arc: usize) -> Option<i64> {
        let (from, to) = (self.net.arcs[arc].from, self.net.arcs[arc].to);
        let most = self.room[arc].min(part.copies);
        if !part.inside[from] || part.inside[to] || most == 0 {
            return Some(0);
        }
        if self.budget.is_over() {
            return None;
        }
        let others = self.parts.iter().map(|part| part.copies).sum::<i64>()
            + self.waiting.iter().sum::<i64>();
        let enough = i128::from(others) + i128::from(most);
        let spare = self.reaching(Some(from), to, enough) - i128::from(others);
        Some(i64::try_from(spare).unwrap_or(0).clamp(0, most))
    }

    /// The least, over sets with `from` and without `to`, of the capacity that leaves the set and the copies of the
    /// trees that are not inside it; up to `enough`.
    fn reaching(&mut self, from: Option<usize>, to: usize, enough: i128) -> i128 {
        let (n, arcs) = (self.net.n, self.net.arcs.len());
        self.budget.spend((arcs + n) * FLOW_WORK);
        let (net, parts) = (self.net, &self.parts);
        let flow = self.flow.get_or_insert_with(|| {
            // Vertex n is the source; a vertex for each tree that has begun follows.
            let mut flow = FlowNet::new(n + 1 + parts.len());
            net.arcs.iter().for_each(|arc| {
                flow.add(arc.from, arc.to, 0, 0);
            });
            (0..n).for_each(|v| {
                flow.add(n, v, 0, 0);
            });
            for (number, part) in parts.iter().enumerate() {
                flow.add(n, n + 1 + number, part.copies.into(), 0);
                for v in (0..n).filter(|&v| part.inside[v]) {
                    flow.add(n + 1 + number, v, ANY, 0);
                }
            }
            flow
        });
        self.room.iter().enumerate().for_each(|(arc, &room)| flow.set(2 * arc, room.into()));
        for (v, &copies) in self.waiting.iter().enumerate() {
            let all = if from == Some(v) { ANY } else { copies.into() };
            flow.set(2 * (arcs + v), all);
        }
        flow.max_flow(n, to, enough)
    }
}

/// Work of a flow, by arc and vertex.
const FLOW_WORK: usize = 60;
/// Beyond some hundred GPUs, each of which is a root, this takes minutes.
const WORK_MAX: u64 = 30_000_000_000;
/// Counts of copies stay below this: sums of them are taken.
const MOST: i64 = 1 << 40;
/// More than all copies.
const ANY: i128 = 1 << 80;

#[cfg(test)]
mod tests {
    use netsum_topo::links::{LinkGraph, LinkKind, Role, Vertex, WeightedLink};
    use netsum_topo::{Rate, Ratio};
    use proptest::prelude::*;

    use super::*;
    use crate::pack::bound;

    /// A ring of all GPUs in one direction, and further links in one direction.
    fn nets() -> impl Strategy<Value = Net> {
        (2usize..9).prop_flat_map(|gpus| {
            let ring = prop::collection::vec(1u64..40, gpus);
            let more = prop::collection::vec((0..gpus, 0..gpus, 1u64..40), 0..30);
            (ring, more).prop_map(move |(ring, more)| {
                let mut links: Vec<_> =
                    (0..).zip(ring).map(|(v, rate)| (v, (v + 1) % gpus, rate)).collect();
                links.extend(more.into_iter().filter(|(a, b, _)| a != b));
                let vertices =
                    (0..gpus).map(|v| Vertex { name: format!("gpu{v}"), role: Role::Gpu });
                let link = |(a, b, rate): (usize, usize, u64)| WeightedLink {
                    ends: [a, b],
                    rate: Rate(rate),
                    latency_ns: 0,
                    kind: LinkKind::Nvlink,
                    one_way: true,
                };
                let links = links.into_iter().map(link).collect();
                let graph = LinkGraph::new("any", vertices.collect(), links).unwrap();
                Net::new(&graph, false, true).unwrap()
            })
        })
    }

    /// Checks that trees are trees from their roots, so many copies of each, on no arc more than it has room for.
    fn check(
        net: &Net,
        room: &[i64],
        copies: &[i64],
        found: &[(Tree, i64)],
    ) -> Result<(), TestCaseError> {
        let (mut left, mut missing) = (room.to_vec(), copies.to_vec());
        for (tree, copies) in found {
            prop_assert!(*copies > 0);
            let mut reached = vec![tree.root];
            for hop in &tree.hops {
                prop_assert!(reached.contains(&hop.from) && !reached.contains(&hop.to));
                reached.push(hop.to);
            }
            prop_assert_eq!(reached.len(), net.n);
            tree.arcs(net).for_each(|arc| left[arc] -= copies);
            missing[tree.root] -= copies;
        }
        prop_assert!(left.iter().all(|&left| left >= 0), "{:?}", left);
        prop_assert!(missing.iter().all(|&missing| missing == 0), "{:?}", missing);
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]

        /// Trees from one root are as many as the least cut, which is a maximum flow (Edmonds).
        #[test]
        fn one_root_reaches_the_least_cut(net in nets(), root in 0usize..9) {
            let root = root % net.n;
            let cut = bound::broadcast(&net, root).rate;
            let room: Vec<i64> = net.arcs.iter().map(|arc| arc.cap).collect();
            let mut copies = vec![0; net.n];
            copies[root] = cut.num() as i64;
            let budget = Budget::of_work(u64::MAX);
            let found = branchings(&net, room.clone(), &copies, &[], &budget).unwrap();
            check(&net, &room, &copies, &found)?;
            copies[root] += 1;
            prop_assert!(branchings(&net, room, &copies, &[], &budget).is_none());
        }

        /// Trees from all roots reach the bound by shards; kept trees change nothing about that.
        #[test]
        fn all_roots_reach_the_bound_of_shards(net in nets(), kept in 0i64..3) {
            let each = bound::allgather(&net).rate / Ratio::from(net.n as i64);
            let room: Vec<i64> = net.arcs.iter().map(|arc| arc.cap * each.den() as i64).collect();
            let copies = vec![each.num() as i64; net.n];
            let ring = |root: usize| {
                let hop = |step: usize| Hop {
                    from: (root + step) % net.n,
                    to: (root + step + 1) % net.n,
                    via: Vec::new(),
                };
                (Tree { root, hops: (0..net.n - 1).map(hop).collect() }, copies[root] * kept / 2)
            };
            let trees: Vec<(Tree, i64)> = (0..net.n).map(ring).collect();
            let budget = Budget::of_work(u64::MAX);
            let found = branchings(&net, room.clone(), &copies, &trees, &budget).unwrap();
            check(&net, &room, &copies, &found)?;
        }
    }

    #[test]
    fn no_budget_gives_no_trees() {
        let net = Net::new(&netsum_topo::links::built("torus:3x3").unwrap(), false, true).unwrap();
        let mut copies = vec![0; net.n];
        copies[0] = 4;
        let budget = Budget::of_work(1);
        budget.spend(1);
        assert!(branchings(&net, vec![1; net.arcs.len()], &copies, &[], &budget).is_none());
    }
}
