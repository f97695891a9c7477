//! The packing programmes of the collectives: their rows, and the pricing of trees.

use netsum_topo::Ratio;
use netsum_topo::links::Collective;

use super::bound::{ArcLength, Bound, Certificate};
use super::branchings::branchings;
use super::budget::Budget;
use super::choice::{Choice, First};
use super::exchange::exchanged;
use super::lp::{Column, Master, Packing};
use super::net::Net;
use super::offers::Offers;
use super::packed::{Flow, ROOTS_MAX, fit};
use super::spread::Spread;
use super::tree::Tree;

/// Result of a programme.
pub(super) struct Found {
    pub(super) flows: Vec<Flow>,
    /// The programme's dual as a bound, if it is proven.
    pub(super) bound: Option<Bound>,
}

/// Flows found on the reversed net, with up and down exchanged.
pub(super) fn turned(found: Found) -> Found {
    let turn = |flow: Flow| Flow { up: flow.down, down: flow.up, ..flow };
    let bound = found.bound.map(|mut bound| {
        if let Certificate::Lengths { arcs } = &mut bound.certificate {
            arcs.iter_mut().for_each(|arc| std::mem::swap(&mut arc.from, &mut arc.to));
        }
        bound
    });
    Found { flows: found.flows.into_iter().map(turn).collect(), bound }
}

/// Trees that belong to a master's columns, by column number; `None` for a column of another kind.
struct Book<'a> {
    net: &'a Net,
    master: Master,
    trees: Vec<Option<Tree>>,
}

impl<'a> Book<'a> {
    fn new(net: &'a Net, limits: Vec<i64>) -> Book<'a> {
        Book { net, master: Master::new(limits), trees: Vec::new() }
    }

    fn add(&mut self, tree: Option<Tree>, column: Column) {
        self.master.add(column);
        self.trees.push(tree);
    }

    /// Solves with `price`, which returns trees with their columns.
    fn solve(
        &mut self,
        enough: Option<Ratio>,
        budget: &Budget<'_>,
        mut price: impl FnMut(&[i64], i64) -> Vec<(Tree, Column)>,
    ) -> Packing {
        let Book { master, trees, .. } = self;
        // The master keeps only some of the offered columns: trees are found again by their column.
        let mut offered: Vec<(Tree, Column)> = Vec::new();
        let known = master.columns().len();
        let packing = master.solve(enough, budget, &mut |lengths, one| {
            let lengths: Vec<i64> = lengths.iter().map(|&length| length.max(0)).collect();
            let found = price(&lengths, one);
            let columns = found.iter().map(|(_, column)| column.clone()).collect();
            offered.extend(found);
            columns
        });
        let by_column: std::collections::HashMap<Vec<(usize, i64)>, Tree> =
            offered.into_iter().map(|(tree, column)| (column.uses, tree)).collect();
        for column in &master.columns()[known..] {
            let tree = by_column.get(&column.uses).cloned();
            trees.push(tree);
        }
        packing
    }

    /// The programme's dual as a bound, if it is proven. `per_row`: arcs that a row stands for.
    fn bound(&self, packing: &Packing, per_row: impl Fn(usize) -> Vec<usize>) -> Option<Bound> {
        if !packing.proven {
            return None;
        }
        let mut arcs = Vec::new();
        for (row, &length) in
            packing.prices.iter().enumerate().filter(|(_, price)| price.is_positive())
        {
            for arc in per_row(row) {
                let arc = self.net.arcs[arc];
                arcs.push(ArcLength { from: arc.from, to: arc.to, length });
            }
        }
        Some(Bound { rate: packing.dual, certificate: Certificate::Lengths { arcs } })
    }
}

/// Uses of arcs along a tree, in the rows that `row` gives, followed by further entries.
fn uses(
    net: &Net,
    tree: &Tree,
    row: impl Fn(usize) -> usize,
    more: &[(usize, i64)],
) -> Vec<(usize, i64)> {
    let mut rows: Vec<usize> = tree.arcs(net).map(row).collect();
    rows.sort_unstable();
    let mut uses: Vec<(usize, i64)> = Vec::new();
    for row in rows {
        match uses.last_mut() {
            Some(last) if last.0 == row => last.1 += 1,
            _ => uses.push((row, 1)),
        }
    }
    uses.extend_from_slice(more);
    uses
}

fn caps(net: &Net) -> Vec<i64> {
    net.arcs.iter().map(|arc| arc.cap).collect()
}

/// Roots of trees for an allreduce: all GPUs, or some of very many.
fn centres(net: &Net) -> Vec<usize> {
    let step = if net.gpus.len() > ROOTS_MAX { net.gpus.len().div_ceil(ROOTS_FEW) } else { 1 };
    net.gpus.iter().copied().step_by(step).collect()
}

/// A separate row for every arc.
fn own_rows(net: &Net) -> Vec<usize> {
    (0..net.arcs.len()).collect()
}

/// Flows of trees of equal weight; repeated trees are one flow.
fn equal(spread: Spread, flow: impl Fn(Tree, Ratio) -> Flow) -> Found {
    let mut flows: Vec<Flow> = Vec::new();
    for tree in spread.trees {
        let new = flow(tree, spread.weight);
        let same = |known: &&mut Flow| known.up == new.up && known.down == new.down;
        match flows.iter_mut().find(same) {
            Some(known) => known.weight = known.weight + new.weight,
            None => flows.push(new),
        }
    }
    Found { flows, bound: None }
}

fn rate(flows: &[Flow]) -> Ratio {
    flows.iter().map(|flow| flow.weight).sum()
}

/// `found`, or the initial trees if the search ended before it had better ones.
fn or_first(found: Found, first: Option<Found>) -> Found {
    match first {
        Some(first) if rate(&first.flows) > rate(&found.flows) => {
            Found { bound: found.bound, ..first }
        }
        _ => found,
    }
}

/// Trees in one direction, of equal rates from all of `roots`: `found`, or if all vertices are GPUs and the budget
/// allows, trees that reach `enough`.
fn or_grown(
    net: &Net,
    found: Found,
    roots: &[usize],
    enough: Option<Ratio>,
    budget: &Budget<'_>,
) -> Found {
    let Some(enough) =
        enough.filter(|&enough| net.gpus.len() == net.n && rate(&found.flows) < enough)
    else {
        return found;
    };
    let each = enough / Ratio::from(roots.len() as i64);
    let whole = |part: Ratio| i64::try_from(part.num().checked_mul(each.den())? / part.den()).ok();
    let grown = || {
        let all = |arc: &super::net::Arc| whole(Ratio::from(arc.cap));
        let room = net.arcs.iter().map(all).collect::<Option<Vec<i64>>>()?;
        let one = i64::try_from(each.num()).ok()?;
        let mut copies = vec![0; net.n];
        roots.iter().for_each(|&root| copies[root] = one);
        let tree = |flow: &Flow| Some((flow.down.clone()?, whole(flow.weight)?));
        let trees: Vec<(Tree, i64)> = found.flows.iter().filter_map(tree).collect();
        branchings(net, room, &copies, &trees, budget)
    };
    let Some(trees) = grown() else { return found };
    let flow = |(tree, copies): (Tree, i64)| Flow {
        weight: Ratio::new(copies.into(), each.den()),
        root: tree.root,
        up: None,
        down: Some(tree),
    };
    Found { flows: trees.into_iter().map(flow).collect(), bound: found.bound }
}

/// Trees for both directions that are better than those of `spread`, up to `enough`, if all vertices are GPUs.
fn better_trees(
    net: &Net,
    links: &[usize],
    spread: &Spread,
    enough: Option<Ratio>,
    budget: &Budget<'_>,
    flow: impl Fn(Tree, Ratio) -> Flow,
) -> Option<Found> {
    let enough = enough.filter(|&enough| net.gpus.len() == net.n && spread.rate() < enough)?;
    let trees = exchanged(net, links, &spread.trees, enough, budget)?;
    let flows = trees.into_iter().map(|(tree, weight)| flow(tree, weight));
    let flows: Vec<Flow> = flows.collect();
    (rate(&flows) > spread.rate()).then_some(Found { flows, bound: None })
}

/// `found`, or well-spread trees in one direction that are used in both, if these are better.
fn better_halves(net: &Net, offers: &Offers, found: Found, enough: Option<Ratio>) -> Found {
    if enough == Some(rate(&found.flows)) {
        return found;
    }
    let one_way = offers.first(&centres(net), &own_rows(net), enough.map(|rate| rate + rate));
    let Some(one_way) = one_way.done else { return found };
    let other = one_of_each(net, &one_way, &one_way);
    if rate(&other.flows) > rate(&found.flows) { other } else { found }
}

/// One tree up and one down per root, at the rate that the fullest arc allows.
fn one_of_each(net: &Net, up: &Spread, down: &Spread) -> Found {
    let pairs = up.trees.iter().zip(&down.trees);
    let flow = |(up, down): (&Tree, &Tree)| Flow {
        weight: Ratio::ONE,
        root: down.root,
        up: Some(up.clone()),
        down: Some(down.clone()),
    };
    let mut flows: Vec<Flow> = pairs.map(flow).collect();
    let weight = fit(net, Collective::Allreduce, &flows).expect("trees have arcs");
    flows.iter_mut().for_each(|flow| flow.weight = weight);
    Found { flows, bound: None }
}

/// Broadcast: trees from one root, one row per arc.
pub(super) fn rooted(
    net: &Net,
    root: usize,
    enough: Option<Ratio>,
    choice: &Choice,
    budget: &Budget<'_>,
) -> Found {
    let offers = Offers::new(net, choice, budget);
    let down = |tree: Tree, weight: Ratio| Flow { weight, root, up: None, down: Some(tree) };
    let first = offers.first(&[root; SLOTS], &own_rows(net), enough);
    let aim = enough.filter(|_| choice.is_free());
    if let Some(done) = first.done {
        return or_grown(net, equal(done, down), &[root], aim, budget);
    }
    let mut book = Book::new(net, caps(net));
    for tree in first.trees {
        let column = Column { gain: 1, uses: uses(net, &tree, |arc| arc, &[]) };
        book.add(Some(tree), column);
    }
    let packing = book.solve(enough, budget, |lengths, one| {
        let trees = offers.directed(lengths, &[root]).into_iter();
        let column = |tree: &Tree| Column { gain: 1, uses: uses(net, tree, |arc| arc, &[]) };
        let worth = trees.filter(|(_, total)| *total < one);
        worth.map(|(tree, _)| (tree.clone(), column(&tree))).collect()
    });
    let tree = |c: usize| book.trees[c].clone().expect("all columns are trees");
    let flows = packing.weights.iter().map(|&(c, weight)| down(tree(c), weight)).collect();
    let bound = book.bound(&packing, |row| vec![row]).filter(|_| offers.complete());
    let found = or_first(Found { flows, bound }, first.best.map(|best| equal(best, down)));
    or_grown(net, found, &[root], aim, budget)
}

/// All-gather: the trees of every root share one rate x; rows of arcs, then of roots.
pub(super) fn sharded(
    net: &Net,
    enough: Option<Ratio>,
    choice: &Choice,
    budget: &Budget<'_>,
) -> Found {
    let offers = Offers::new(net, choice, budget);
    let down =
        |tree: Tree, weight: Ratio| Flow { weight, root: tree.root, up: None, down: Some(tree) };
    let first = offers.first(&net.gpus, &own_rows(net), enough);
    let aim = enough.filter(|_| choice.is_free());
    if let Some(done) = first.done {
        return or_grown(net, equal(done, down), &net.gpus, aim, budget);
    }
    let (arcs, count) = (net.arcs.len(), net.gpus.len());
    let mut limits = caps(net);
    limits.resize(arcs + count, 0);
    let mut book = Book::new(net, limits);
    let all =
        Column { gain: count as i64, uses: (arcs..arcs + count).map(|row| (row, 1)).collect() };
    book.add(None, all);
    let rank = |root: usize| net.gpus.iter().position(|&gpu| gpu == root).expect("roots are GPUs");
    let column = |tree: &Tree| {
        let uses = uses(net, tree, |arc| arc, &[(arcs + rank(tree.root), -1)]);
        Column { gain: 0, uses }
    };
    for tree in first.trees {
        let column = column(&tree);
        book.add(Some(tree), column);
    }
    let packing = book.solve(enough, budget, |lengths, _| {
        let trees = offers.directed(&lengths[..arcs], &net.gpus);
        let worth =
            trees.into_iter().filter(|(tree, total)| *total < lengths[arcs + rank(tree.root)]);
        worth
            .map(|(tree, _)| {
                let column = column(&tree);
                (tree, column)
            })
            .collect()
    });
    let share = packing.value / Ratio::from(count as i64);
    let mut flows = Vec::new();
    for &root in &net.gpus {
        let mut left = share;
        for &(c, weight) in &packing.weights {
            let Some(tree) = book.trees[c].as_ref().filter(|tree| tree.root == root) else {
                continue;
            };
            // A root may have more than its share.
            let weight = weight.min(left);
            if weight.is_positive() {
                left = left - weight;
                flows.push(Flow { weight, root, up: None, down: Some(tree.clone()) });
            }
        }
    }
    let bound = book.bound(&packing, |row| if row < arcs { vec![row] } else { Vec::new() });
    let found = Found { flows, bound: bound.filter(|_| offers.complete()) };
    let found = or_first(found, first.best.map(|best| equal(best, down)));
    or_grown(net, found, &net.gpus, aim, budget)
}

/// Allreduce with equal rates in both directions: undirected trees, each used up and down; one row per pair of arcs.
pub(super) fn both_ways(
    net: &Net,
    enough: Option<Ratio>,
    choice: &Choice,
    budget: &Budget<'_>,
) -> Found {
    let mirror = net.mirror.as_ref().expect("the caller looked");
    let pairs: Vec<usize> = (0..net.arcs.len()).filter(|&arc| arc < mirror[arc]).collect();
    let mut row = vec![0; net.arcs.len()];
    for (place, &arc) in pairs.iter().enumerate() {
        row[arc] = place;
        row[mirror[arc]] = place;
    }
    let offers = Offers::new(net, choice, budget);
    let both = |tree: Tree, weight: Ratio| {
        let tree = tree.centred();
        Flow { weight, root: tree.root, up: Some(tree.clone()), down: Some(tree) }
    };
    let shared: Vec<usize> = (0..net.arcs.len()).map(|arc| arc.min(mirror[arc])).collect();
    // If switches add, one tree is often sufficient.
    let single =
        |first: &First| first.done.as_ref().is_some_and(|done| Some(done.rate()) == enough);
    let one = if net.aggregators().is_empty() { &[][..] } else { &net.gpus[..1] };
    let alone = (!one.is_empty()).then(|| offers.first(one, &shared, enough)).filter(single);
    let first = alone.unwrap_or_else(|| offers.first(&centres(net), &shared, enough));
    let aim = enough.filter(|_| choice.is_free());
    if let Some(done) = first.done {
        let better = better_trees(net, &pairs, &done, aim, budget, both);
        let found = better.unwrap_or_else(|| equal(done, both));
        return better_halves(net, &offers, found, enough);
    }
    let mut book = Book::new(net, pairs.iter().map(|&arc| net.arcs[arc].cap).collect());
    let column = |tree: &Tree| Column { gain: 1, uses: uses(net, tree, |arc| row[arc], &[]) };
    for tree in first.trees {
        let column = column(&tree);
        if !book.master.columns().contains(&column) {
            book.add(Some(tree), column);
        }
    }
    let packing = book.solve(enough, budget, |lengths, one| {
        let lengths: Vec<i64> = row.iter().map(|&row| lengths[row]).collect();
        let trees = offers.undirected(&lengths).into_iter();
        let worth = trees.filter(|(_, total)| *total < one);
        worth.map(|(tree, _)| (tree.clone(), column(&tree))).collect()
    });
    let tree = |c: usize| book.trees[c].clone().expect("all columns are trees");
    let flows = packing.weights.iter().map(|&(c, weight)| both(tree(c), weight)).collect();
    let bound = book.bound(&packing, |row| vec![pairs[row], mirror[pairs[row]]]);
    let found = Found { flows, bound: bound.filter(|_| offers.complete()) };
    let Some(best) = first.best else { return found };
    let aim = aim.filter(|&aim| rate(&found.flows) < aim);
    let better = better_trees(net, &pairs, &best, aim, budget, both);
    or_first(or_first(found, better), Some(equal(best, both)))
}

/// Allreduce with rates that differ by direction: per root one rate x(r), and trees up and down of that rate; rows of
/// arcs, then of roots down, then up.
pub(super) fn lopsided(
    net: &Net,
    enough: Option<Ratio>,
    choice: &Choice,
    budget: &Budget<'_>,
) -> Found {
    let back = net.reversed();
    let offers = Offers::new(net, choice, budget);
    let offers_back = Offers::new(&back, choice, budget);
    let roots = centres(net);
    let first = |offers: &Offers| offers.first(&roots, &own_rows(net), None);
    let (first, first_back) = (first(&offers), first(&offers_back));
    if let (Some(down), Some(up)) = (&first.done, &first_back.done) {
        return one_of_each(net, up, down);
    }
    let (best_down, best_up) = (first.best.clone(), first_back.best.clone());
    let (arcs, count) = (net.arcs.len(), net.gpus.len());
    let mut limits = caps(net);
    limits.resize(arcs + 2 * count, 0);
    let mut book = Book::new(net, limits);
    for rank in 0..count {
        book.add(None, Column { gain: 1, uses: vec![(arcs + rank, 1), (arcs + count + rank, 1)] });
    }
    let rank = |root: usize| net.gpus.iter().position(|&gpu| gpu == root).expect("roots are GPUs");
    let row = |root: usize, up: bool| arcs + rank(root) + if up { count } else { 0 };
    let column = |tree: &Tree, up: bool| {
        let net = if up { &back } else { net };
        Column { gain: 0, uses: uses(net, tree, |arc| arc, &[(row(tree.root, up), -1)]) }
    };
    for (up, first) in [(false, first), (true, first_back)] {
        for tree in first.trees {
            let column = column(&tree, up);
            book.add(Some(tree), column);
        }
    }
    let packing = book.solve(enough, budget, |lengths, _| {
        let mut found = Vec::new();
        for up in [false, true] {
            let offers = if up { &offers_back } else { &offers };
            for (tree, total) in offers.directed(&lengths[..arcs], &net.gpus) {
                if total < lengths[row(tree.root, up)] {
                    let column = column(&tree, up);
                    found.push((tree, column));
                }
            }
        }
        found
    });
    let mut flows = Vec::new();
    for (rank, &root) in net.gpus.iter().enumerate() {
        let own =
            packing.weights.iter().find(|&&(c, _)| c == rank).map_or(Ratio::ZERO, |&(_, w)| w);
        let trees = |up: bool| {
            let row = row(root, up);
            let column = |c: usize| &book.master.columns()[c].uses;
            let weights = packing.weights.iter().filter(move |&&(c, _)| {
                column(c).last().is_some_and(|&(last, coefficient)| last == row && coefficient < 0)
            });
            weights
                .map(|&(c, weight)| (book.trees[c].clone().expect("a tree"), weight))
                .collect::<Vec<_>>()
        };
        couple(own, root, trees(true), trees(false), &mut flows);
    }
    let bound = book.bound(&packing, |row| if row < arcs { vec![row] } else { Vec::new() });
    let bound = bound.filter(|_| offers.complete() && offers_back.complete());
    let each = best_down.zip(best_up).map(|(down, up)| one_of_each(net, &up, &down));
    or_first(Found { flows, bound }, each)
}

/// Divides two lists of weighted trees into pieces of equal weight, `own` in all.
pub(super) fn couple(
    own: Ratio,
    root: usize,
    mut up: Vec<(Tree, Ratio)>,
    mut down: Vec<(Tree, Ratio)>,
    flows: &mut Vec<Flow>,
) {
    let mut left = own;
    while left.is_positive() {
        let (Some(last_up), Some(last_down)) = (up.last_mut(), down.last_mut()) else { return };
        let weight = left.min(last_up.1).min(last_down.1);
        let trees = (Some(last_up.0.clone()), Some(last_down.0.clone()));
        flows.push(Flow { weight, root, up: trees.0, down: trees.1 });
        left = left - weight;
        last_up.1 = last_up.1 - weight;
        last_down.1 = last_down.1 - weight;
        up.retain(|(_, weight)| weight.is_positive());
        down.retain(|(_, weight)| weight.is_positive());
    }
}

/// Number of roots if not all GPUs are.
const ROOTS_FEW: usize = 256;
/// Number of equal weights in the initial trees of a broadcast.
const SLOTS: usize = 16;
