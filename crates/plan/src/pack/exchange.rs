//! Trees that are used in both directions, changed link by link until no link has more than it carries.
//!
//! Source: matroid partition (Edmonds 1965), by shortest augmenting paths. A tree that gives up a link of too many
//! trees takes another one across the two parts that are left; if that link is full as well, another tree gives it up,
//! and so on until a link has room. Differs: equal trees are one tree with a count, and all trees always span the GPUs,
//! so that a search that ends early still has a plan.

use netsum_topo::Ratio;

use super::budget::Budget;
use super::net::Net;
use super::tree::{Hop, Tree};

/// Trees with weights that add up to `rate`, from trees that are nearly as good; less if budget or memory end. `None` if
/// counts of copies exceed 40 bits.
///
/// The net has GPUs only and equal capacities in both directions; `links`: the arc of each link in one direction.
pub(super) fn exchanged(
    net: &Net,
    links: &[usize],
    trees: &[Tree],
    rate: Ratio,
    budget: &Budget<'_>,
) -> Option<Vec<(Tree, Ratio)>> {
    let mut exchange = Exchange::new(net, links, trees, rate)?;
    exchange.run(budget);
    Some(exchange.weighted(net))
}

/// The same from trees in so many copies each. `scale`: the copies per unit of capacity.
pub(super) fn exchanged_copies(
    net: &Net,
    links: &[usize],
    trees: &[(Tree, i64)],
    scale: i64,
    budget: &Budget<'_>,
) -> Option<Vec<(Tree, Ratio)>> {
    let copies = trees.iter().map(|(tree, copies)| (tree, *copies));
    let mut exchange = Exchange::of(net, links, copies, scale)?;
    exchange.run(budget);
    Some(exchange.weighted(net))
}

struct Exchange {
    n: usize,
    /// Ends of each link.
    ends: Vec<[u32; 2]>,
    /// Copies of trees that each link can be in, and is in.
    room: Vec<i64>,
    load: Vec<i64>,
    kinds: Vec<Kind>,
    /// Weight of one copy.
    unit: Ratio,
}

/// Equal trees.
struct Kind {
    copies: i64,
    root: usize,
    /// The links of the tree.
    links: Vec<u32>,
    /// By link of the tree the vertex at its lower end, else [`NONE`].
    below: Vec<u32>,
    /// By vertex the interval of its descendants in an order of depth-first search.
    begin: Vec<u32>,
    end: Vec<u32>,
}

/// A link that a kind of trees gives up, and the one that it takes.
struct Swap {
    kind: usize,
    less: usize,
    more: usize,
}

impl Exchange {
    fn new(net: &Net, links: &[usize], trees: &[Tree], rate: Ratio) -> Option<Exchange> {
        let count = i64::try_from(trees.len()).ok()?;
        // Enough copies for every tree to have one.
        let times =
            i64::try_from(i128::from(count).checked_add(rate.num() - 1)? / rate.num()).ok()?;
        let copies = i64::try_from(rate.num().checked_mul(times.into())?).ok()?;
        let scale = i64::try_from(rate.den().checked_mul(times.into())?).ok()?;
        let each = |number: i64| copies / count + i64::from(number < copies % count);
        let trees = (0..).zip(trees).map(|(number, tree)| (tree, each(number)));
        Exchange::of(net, links, trees, scale)
    }

    /// `scale`: copies per unit of capacity.
    fn of<'t>(
        net: &Net,
        links: &[usize],
        trees: impl Iterator<Item = (&'t Tree, i64)>,
        scale: i64,
    ) -> Option<Exchange> {
        let room =
            |&link: &usize| net.arcs[link].cap.checked_mul(scale).filter(|&room| room < MOST);
        let room = links.iter().map(room).collect::<Option<Vec<i64>>>()?;
        let ends = links.iter().map(|&link| [net.arcs[link].from, net.arcs[link].to]);
        let ends: Vec<[u32; 2]> = ends.map(|ends| ends.map(|end| end as u32)).collect();
        let mut link_at = vec![NONE; net.arcs.len()];
        for (number, &link) in links.iter().enumerate() {
            link_at[link] = number as u32;
            let back = net.arc(net.arcs[link].to, net.arcs[link].from)?;
            link_at[back] = number as u32;
        }
        let mut exchange = Exchange {
            n: net.n,
            load: vec![0; room.len()],
            ends,
            room,
            kinds: Vec::new(),
            unit: Ratio::new(1, scale.into()),
        };
        for (tree, copies) in trees {
            let links: Vec<u32> = tree.arcs(net).map(|arc| link_at[arc]).collect();
            links.iter().for_each(|&link| exchange.load[link as usize] += copies);
            exchange.kinds.push(exchange.kind(copies, tree.root, links));
        }
        Some(exchange)
    }

    /// Swaps links until none is in too many trees, or until the budget or memory ends.
    fn run(&mut self, budget: &Budget<'_>) {
        let most = budget.spent().saturating_add(WORK_MAX);
        while self.kinds.len() < self.kinds_max() && budget.spent() < most {
            let paths = self.paths(budget);
            if paths.is_empty() {
                break;
            }
            // What a path found out about a kind of trees holds until its last copy has changed.
            let mut changed = vec![false; self.kinds.len()];
            for path in paths {
                if path.iter().all(|swap| !changed[swap.kind]) {
                    self.apply(&path, &mut changed);
                }
            }
        }
    }

    /// The tree of some links.
    fn kind(&self, copies: i64, root: usize, links: Vec<u32>) -> Kind {
        let mut at: Vec<Vec<u32>> = vec![Vec::new(); self.n];
        for &link in &links {
            self.ends[link as usize].iter().for_each(|&end| at[end as usize].push(link));
        }
        let mut below = vec![NONE; self.ends.len()];
        let (mut begin, mut end) = (vec![NONE; self.n], vec![NONE; self.n]);
        let mut clock = 0;
        let mut stack = vec![root as u32];
        while let Some(&here) = stack.last() {
            let v = here as usize;
            if begin[v] == NONE {
                begin[v] = clock;
                clock += 1;
                for &link in &at[v] {
                    let [a, b] = self.ends[link as usize];
                    let other = if a == here { b } else { a };
                    if begin[other as usize] == NONE {
                        below[link as usize] = other;
                        stack.push(other);
                    }
                }
            } else {
                end[v] = clock;
                stack.pop();
            }
        }
        debug_assert_eq!(clock as usize, self.n, "the links span all GPUs");
        Kind { copies, root, links, below, begin, end }
    }

    /// How many kinds of trees fit into memory.
    fn kinds_max(&self) -> usize {
        NUMBERS_MAX / (3 * self.n + self.ends.len())
    }

    /// Shortest chains of swaps from links that are in too many trees to links with room, all of one length; none if
    /// there is no such link, no chain, or the budget has ended.
    fn paths(&self, budget: &Budget<'_>) -> Vec<Vec<Swap>> {
        let over = |&link: &usize| self.load[link] > self.room[link];
        let (mut queue, mut unseen): (Vec<usize>, Vec<usize>) =
            (0..self.room.len()).partition(over);
        let mut by: Vec<Option<(usize, usize)>> = vec![None; self.room.len()];
        let mut ends: Vec<usize> = Vec::new();
        let (mut head, mut level) = (0, queue.len());
        while head < queue.len() && !budget.is_over() {
            if head == level {
                if !ends.is_empty() {
                    break;
                }
                level = queue.len();
            }
            let less = queue[head];
            head += 1;
            budget.spend(self.kinds.len());
            for (number, kind) in self.kinds.iter().enumerate() {
                let top = kind.below[less];
                if top == NONE {
                    continue;
                }
                budget.spend(unseen.len() + 1);
                let (begin, end) = (kind.begin[top as usize], kind.end[top as usize]);
                let size = end - begin;
                // Whether a link has one end among the descendants, and one elsewhere.
                let joins = |[a, b]: [u32; 2]| {
                    let below = |v: u32| kind.begin[v as usize].wrapping_sub(begin) < size;
                    below(a) != below(b)
                };
                // Links with room for more copies than these trees have are left for other trees.
                let mut copies = kind.copies;
                let mut place = 0;
                while place < unseen.len() {
                    let more = unseen[place];
                    let room = self.room[more] - self.load[more];
                    if !joins(self.ends[more]) || (room > 0 && copies <= 0) {
                        place += 1;
                        continue;
                    }
                    by[more] = Some((less, number));
                    unseen.swap_remove(place);
                    if room > 0 {
                        copies -= room;
                        ends.push(more);
                    } else {
                        queue.push(more);
                    }
                }
            }
        }
        ends.into_iter().map(|end| chain(&by, end)).collect()
    }

    /// Swaps along a chain in as many copies as possible.
    fn apply(&mut self, path: &[Swap], changed: &mut [bool]) {
        let (last, first) = (path[0].more, path[path.len() - 1].less);
        let ends = (self.load[first] - self.room[first]).min(self.room[last] - self.load[last]);
        let copies = path.iter().map(|swap| self.kinds[swap.kind].copies).min();
        let copies = ends.min(copies.expect("a chain has swaps"));
        if copies <= 0 {
            return;
        }
        self.load[first] -= copies;
        self.load[last] += copies;
        let mut numbers: Vec<usize> = path.iter().map(|swap| swap.kind).collect();
        numbers.sort_unstable();
        numbers.dedup();
        for number in numbers {
            let kind = &self.kinds[number];
            let mut links = kind.links.clone();
            for swap in path.iter().filter(|swap| swap.kind == number) {
                let at = links.iter().position(|&link| link == swap.less as u32);
                links[at.expect("the tree has the link")] = swap.more as u32;
            }
            let new = self.kind(copies, kind.root, links);
            if kind.copies == copies {
                self.kinds[number] = new;
                changed[number] = true;
            } else {
                self.kinds[number].copies -= copies;
                self.kinds.push(new);
            }
        }
    }

    /// The trees with weights at which the fullest link is full.
    fn weighted(&self, net: &Net) -> Vec<(Tree, Ratio)> {
        let full = |link: usize| Ratio::new(self.room[link].into(), self.load[link].max(1).into());
        let fit = (0..self.room.len()).map(full).min().expect("there are links").min(Ratio::ONE);
        let weight =
            |kind: &Kind| (self.tree(net, kind), fit * (self.unit * Ratio::from(kind.copies)));
        self.kinds.iter().map(weight).collect()
    }

    fn tree(&self, net: &Net, kind: &Kind) -> Tree {
        let hop = |&link: &u32| {
            let to = kind.below[link as usize] as usize;
            let [a, b] = self.ends[link as usize].map(|end| end as usize);
            Hop { from: if a == to { b } else { a }, to, via: Vec::new() }
        };
        let mut hops: Vec<Hop> = kind.links.iter().map(hop).collect();
        hops.sort_by_key(|hop| kind.begin[hop.to]);
        debug_assert_eq!(hops.len(), net.gpus.len() - 1);
        Tree { root: kind.root, hops }
    }
}

/// The swaps that lead to a link, from the last to the first.
fn chain(by: &[Option<(usize, usize)>], mut more: usize) -> Vec<Swap> {
    let mut swaps = Vec::new();
    while let Some((less, kind)) = by[more] {
        swaps.push(Swap { kind, less, more });
        more = less;
    }
    swaps
}

const NONE: u32 = u32::MAX;
/// Beyond some thousand GPUs the last links take long, for little.
const WORK_MAX: u64 = 30_000_000_000;
/// Half a gigabyte.
const NUMBERS_MAX: usize = 1 << 27;
/// Counts of copies stay below this: their fractions are multiplied and added.
const MOST: i64 = 1 << 40;

#[cfg(test)]
mod tests {
    use netsum_topo::Rate;
    use netsum_topo::links::{LinkGraph, LinkKind, Role, Vertex, WeightedLink};
    use proptest::prelude::*;

    use super::*;
    use crate::pack::bound;

    fn net(gpus: usize, links: &[(usize, usize, u64)]) -> Net {
        let vertices = (0..gpus).map(|v| Vertex { name: format!("gpu{v}"), role: Role::Gpu });
        let link = |&(a, b, rate): &(usize, usize, u64)| WeightedLink {
            ends: [a, b],
            rate: Rate(rate),
            latency_ns: 0,
            kind: LinkKind::Nvlink,
            one_way: false,
        };
        let links = links.iter().map(link).collect();
        let graph = LinkGraph::new("any", vertices.collect(), links).unwrap();
        Net::new(&graph, true, true).unwrap()
    }

    /// A chain of all GPUs, and further links.
    fn nets() -> impl Strategy<Value = Net> {
        (2usize..9).prop_flat_map(|gpus| {
            let chain = prop::collection::vec(1u64..40, gpus - 1);
            let more = prop::collection::vec((0..gpus, 0..gpus, 1u64..40), 0..16);
            (chain, more).prop_map(move |(chain, more)| {
                let mut links: Vec<_> =
                    (0..).zip(chain).map(|(v, rate)| (v, v + 1, rate)).collect();
                links.extend(more.into_iter().filter(|(a, b, _)| a != b));
                net(gpus, &links)
            })
        })
    }

    fn chain_tree(net: &Net, root: usize) -> Tree {
        let up = (root + 1..net.n).map(|to| Hop { from: to - 1, to, via: Vec::new() });
        let down = (0..root).rev().map(|to| Hop { from: to + 1, to, via: Vec::new() });
        Tree { root, hops: up.chain(down).collect() }
    }

    fn one_way(net: &Net) -> Vec<usize> {
        (0..net.arcs.len()).filter(|&arc| net.arcs[arc].from < net.arcs[arc].to).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]

        /// However bad the first trees are, the last ones reach the graph's strength, which is computed from cuts.
        #[test]
        fn any_trees_become_the_best(net in nets(), number in 1usize..9) {
            let rate = bound::allreduce(&net).rate;
            let trees: Vec<Tree> = (0..number).map(|root| chain_tree(&net, root % net.n)).collect();
            let budget = Budget::of_work(u64::MAX);
            let found = exchanged(&net, &one_way(&net), &trees, rate, &budget).unwrap();
            let sum: Ratio = found.iter().map(|(_, weight)| *weight).sum();
            prop_assert_eq!(sum, rate);
            let mut load = vec![Ratio::ZERO; net.arcs.len()];
            for (tree, weight) in &found {
                prop_assert!(weight.is_positive());
                let mut reached = vec![tree.root];
                for hop in &tree.hops {
                    prop_assert!(reached.contains(&hop.from) && !reached.contains(&hop.to));
                    reached.push(hop.to);
                }
                prop_assert_eq!(reached.len(), net.n);
                for hop in &tree.hops {
                    let ends = [hop.from.min(hop.to), hop.from.max(hop.to)];
                    let arc = net.arc(ends[0], ends[1]).unwrap();
                    load[arc] = load[arc] + *weight;
                }
            }
            for (arc, load) in net.arcs.iter().zip(load) {
                prop_assert!(load <= Ratio::from(arc.cap), "{:?}: {}", arc, load);
            }
        }

        /// A search that ends early has trees as well, on no link more than it carries.
        #[test]
        fn no_budget_leaves_the_first_trees(net in nets()) {
            let rate = bound::allreduce(&net).rate;
            let trees = [chain_tree(&net, 0)];
            let budget = Budget::of_work(1);
            budget.spend(1);
            let found = exchanged(&net, &one_way(&net), &trees, rate, &budget).unwrap();
            let narrow = trees[0].arcs(&net).map(|arc| net.arcs[arc].cap).min().unwrap();
            let sum: Ratio = found.iter().map(|(_, weight)| *weight).sum();
            prop_assert_eq!(sum, rate.min(Ratio::from(narrow)));
        }
    }
}
