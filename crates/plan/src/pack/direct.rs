//! Fabrics with switches that only pass on, as fabrics of direct links: the capacity of switches is divided among
//! paths from GPU to GPU, as the trees of an earlier plan use it, and what they leave is paired off.
//!
//! On direct links the exchange of links reaches the best rate for these paths, which is that of the fabric if the
//! paths were well chosen: a result at the bound is optimal, however it was found. Switches that add and are in every
//! tree count as GPUs.

use std::collections::{BTreeMap, HashMap};

use super::bound::{Bound, Certificate};
use super::budget::Budget;
use super::exchange::exchanged_copies;
use super::mend::{Mending, Torn};
use super::net::Net;
use super::tree::{Hop, Tree, hop_arcs};

/// Trees for both directions from trees of which some lack parts, the same number of copies: each on links with `room`
/// for so many copies. `row`: by arc the arc whose room it takes. `None` if that fails.
pub(super) fn rejoined(
    net: &Net,
    row: &[usize],
    room: &[i64],
    torn: Vec<Torn>,
    bound: &Bound,
    budget: &Budget<'_>,
) -> Option<Vec<(Tree, i64)>> {
    let mut mending = Mending::new(net, row, room.to_vec(), budget);
    let torn = mending.placed(torn);
    let mut direct = Direct::new(net, row, mending.room, &torn, bound)?;
    let links: BTreeMap<[usize; 2], i64> = (direct.ways.iter())
        .map(|(&ends, ways)| (ends, ways.iter().map(|way| way.room).sum::<i64>()))
        .filter(|&(_, room)| room > 0)
        .collect();
    let small = Net::direct(direct.vertices.len(), &links, net.unit_bps);
    let mirror = small.mirror.as_ref()?;
    let row: Vec<usize> = (0..mirror.len()).map(|arc| arc.min(mirror[arc])).collect();
    let caps = small.arcs.iter().map(|arc| arc.cap).collect();
    let renamed = |torn: &Torn| {
        let hop = |hop: &Hop| {
            Some(Hop { from: direct.place[hop.from]?, to: direct.place[hop.to]?, via: Vec::new() })
        };
        let hops = torn.hops().map(hop).collect::<Option<Vec<Hop>>>()?;
        Some(Torn::new(&small, direct.place[torn.root]?, torn.copies, hops))
    };
    let small_torn = torn.iter().map(renamed).collect::<Option<Vec<Torn>>>()?;
    let mut mending = Mending::new(&small, &row, caps, budget);
    let (mut whole, left) = mending.mend(small_torn);
    if !left.is_empty() && !small.is_connected() {
        return None;
    }
    whole.extend(left.into_iter().map(|torn| mending.force(torn)));
    let links: Vec<usize> = (0..row.len()).filter(|&arc| row[arc] == arc).collect();
    let copies = whole.iter().map(|torn| torn.copies).sum::<i64>();
    let trees: Vec<(Tree, i64)> = whole.iter().map(|torn| (torn.tree(), torn.copies)).collect();
    let found = exchanged_copies(&small, &links, &trees, 1, budget)?;
    let whole = |(tree, weight): (Tree, netsum_topo::Ratio)| {
        let copies = i64::try_from(weight.num()).ok()?;
        (weight.den() == 1).then_some((tree, copies))
    };
    let found = found.into_iter().map(whole).collect::<Option<Vec<_>>>()?;
    (found.iter().map(|(_, copies)| copies).sum::<i64>() == copies)
        .then(|| direct.expanded(net, found))?
}

/// A path from one vertex to another through switches that pass on.
struct Way {
    /// From the end with the lower number.
    via: Vec<usize>,
    /// Copies of trees.
    room: i64,
}

/// A fabric as its direct links.
struct Direct {
    /// Vertices that trees reach, and the place of each.
    vertices: Vec<usize>,
    place: Vec<Option<usize>>,
    /// By places of both ends, in order.
    ways: BTreeMap<[usize; 2], Vec<Way>>,
}

impl Direct {
    fn new(
        net: &Net,
        row: &[usize],
        left: Vec<i64>,
        torn: &[Torn],
        bound: &Bound,
    ) -> Option<Direct> {
        let inside = |&v: &usize| torn.iter().all(|torn| torn.reaches(v));
        let mut vertices = net.gpus.clone();
        vertices.extend(net.aggregators().iter().copied().filter(inside));
        let mut place = vec![None; net.n];
        vertices.iter().enumerate().for_each(|(at, &v)| place[v] = Some(at));
        let mut direct = Direct { vertices, place, ways: BTreeMap::new() };
        for torn in torn {
            for hop in torn.hops() {
                direct.add(hop, torn.copies)?;
            }
        }
        if left.iter().any(|&left| left < 0) {
            return None;
        }
        for (number, arc) in
            net.arcs.iter().enumerate().filter(|&(number, _)| row[number] == number)
        {
            if direct.place[arc.from].is_some() && direct.place[arc.to].is_some() {
                direct.add(&Hop { from: arc.from, to: arc.to, via: Vec::new() }, left[number])?;
            }
        }
        let part = parts(net, bound);
        let leads_across = leads_across(net, &direct.place, &part);
        let out = net.outgoing();
        let mut spare = Spare { net, row, left, out, place: &direct.place, leads_across };
        let mut hops = spare.across(&direct.vertices, &part);
        hops.extend(spare.within(&direct.vertices, &part)?);
        for (hop, copies) in hops {
            direct.add(&hop, copies)?;
        }
        Some(direct)
    }

    fn add(&mut self, hop: &Hop, copies: i64) -> Option<()> {
        let (from, to) = (self.place[hop.from]?, self.place[hop.to]?);
        let mut via = hop.via.clone();
        if from > to {
            via.reverse();
        }
        let ways = self.ways.entry([from.min(to), from.max(to)]).or_default();
        match ways.iter_mut().find(|way| way.via == via) {
            Some(way) => way.room += copies,
            None => ways.push(Way { via, room: copies }),
        }
        Some(())
    }

    /// Trees over the fabric's own links. Between the same vertices may be several paths; then trees divide.
    fn expanded(&mut self, net: &Net, mut trees: Vec<(Tree, i64)>) -> Option<Vec<(Tree, i64)>> {
        let mut found = Vec::new();
        while let Some((tree, copies)) = trees.pop() {
            let mut least = copies;
            for hop in &tree.hops {
                let ways = self.ways.get_mut(&[hop.from.min(hop.to), hop.from.max(hop.to)])?;
                ways.retain(|way| way.room > 0);
                least = least.min(ways.last()?.room);
            }
            let mut hops = Vec::with_capacity(tree.hops.len());
            for hop in &tree.hops {
                let ways = self.ways.get_mut(&[hop.from.min(hop.to), hop.from.max(hop.to)])?;
                let way = ways.last_mut()?;
                way.room -= least;
                let mut via = way.via.clone();
                if hop.from > hop.to {
                    via.reverse();
                }
                hops.push(Hop { from: self.vertices[hop.from], to: self.vertices[hop.to], via });
            }
            found.push((Torn::new(net, self.vertices[tree.root], least, hops).tree(), least));
            if least < copies {
                trees.push((tree, copies - least));
            }
        }
        Some(found)
    }
}

/// By vertex its part in the partition that limits the rate, to which switches that add belong with their neighbours.
fn parts(net: &Net, bound: &Bound) -> Vec<usize> {
    let mut part = vec![0; net.n];
    match &bound.certificate {
        Certificate::Partition { parts, .. } => {
            for (number, members) in parts.iter().enumerate() {
                members.iter().for_each(|&v| part[v] = number);
            }
            let adds = |v: usize| !net.relay[v] && !net.gpus.contains(&v);
            for arc in net.arcs.iter().filter(|arc| adds(arc.to) && net.gpus.contains(&arc.from)) {
                part[arc.to] = part[arc.from];
            }
        }
        Certificate::Cut { inside, .. } => inside.iter().for_each(|&v| part[v] = 1),
        _ => {}
    }
    part
}

/// By switch that passes on whether it leads to several parts.
fn leads_across(net: &Net, place: &[Option<usize>], part: &[usize]) -> Vec<bool> {
    let mut group: Vec<usize> = (0..net.n).collect();
    let passes = |v: usize| place[v].is_none();
    for arc in net.arcs.iter().filter(|arc| passes(arc.from) && passes(arc.to)) {
        let (from, to) = (group[arc.from], group[arc.to]);
        if from != to {
            group.iter_mut().filter(|known| **known == from).for_each(|known| *known = to);
        }
    }
    let mut first: Vec<Option<usize>> = vec![None; net.n];
    let mut several = vec![false; net.n];
    for arc in net.arcs.iter().filter(|arc| !passes(arc.from) && passes(arc.to)) {
        let (group, part) = (group[arc.to], part[arc.from]);
        several[group] |= *first[group].get_or_insert(part) != part;
    }
    (0..net.n).map(|v| passes(v) && several[group[v]]).collect()
}

/// What trees leave of a fabric.
struct Spare<'a> {
    net: &'a Net,
    row: &'a [usize],
    left: Vec<i64>,
    out: Vec<Vec<usize>>,
    place: &'a [Option<usize>],
    leads_across: Vec<bool>,
}

impl Spare<'_> {
    /// The copies for which there is room from a vertex to switches that lead to other parts.
    fn at(&self, v: usize) -> i64 {
        let across = |arc: &&usize| self.leads_across[self.net.arcs[**arc].to];
        self.out[v].iter().filter(across).map(|&arc| self.left[self.row[arc]]).sum()
    }

    /// Widest paths from a vertex through switches: by vertex the width and the last arc.
    fn widest(&self, from: usize) -> (Vec<i64>, Vec<usize>) {
        let (mut width, mut by) = (vec![0; self.net.n], vec![usize::MAX; self.net.n]);
        let mut queue = std::collections::BinaryHeap::from([(i64::MAX, from)]);
        width[from] = i64::MAX;
        while let Some((wide, here)) = queue.pop() {
            if wide < width[here] || (here != from && self.place[here].is_some()) {
                continue;
            }
            for &arc in &self.out[here] {
                let to = self.net.arcs[arc].to;
                let wide = wide.min(self.left[self.row[arc]]);
                let direct = here == from && self.place[to].is_some();
                if wide > width[to] && !direct {
                    (width[to], by[to]) = (wide, arc);
                    queue.push((wide, to));
                }
            }
        }
        (width, by)
    }

    fn hop(&self, from: usize, to: usize, by: &[usize]) -> Hop {
        let (mut via, mut here) = (Vec::new(), self.net.arcs[by[to]].from);
        while here != from {
            via.push(here);
            here = self.net.arcs[by[here]].from;
        }
        via.reverse();
        Hop { from, to, via }
    }

    /// Paths between the parts, whose links must all be full for the bound: the part with the most room is paired with
    /// the next, so that none keeps room that has no counterpart.
    fn across(&mut self, vertices: &[usize], part: &[usize]) -> Vec<(Hop, i64)> {
        let mut total: HashMap<usize, i64> = HashMap::new();
        let mut room: Vec<i64> = vertices.iter().map(|&v| self.at(v)).collect();
        for (&v, room) in vertices.iter().zip(&room) {
            *total.entry(part[v]).or_default() += room;
        }
        let mut found = Vec::new();
        loop {
            let ends = (0..vertices.len()).filter(|&at| room[at] > 0);
            let Some(from) = ends.max_by_key(|&at| (total[&part[vertices[at]]], room[at])) else {
                return found;
            };
            let v = vertices[from];
            let (width, by) = self.widest(v);
            let others = (0..vertices.len()).filter(|&at| {
                let to = vertices[at];
                part[to] != part[v] && width[to] > 0
            });
            let best = others.max_by_key(|&at| {
                let to = vertices[at];
                (total[&part[to]], width[to])
            });
            let Some(to) = best else {
                // Nothing is within reach: what it has is for its own part.
                room[from] = 0;
                continue;
            };
            // What remains of any third part must not exceed what the others have left together.
            let ends = [part[v], part[vertices[to]]];
            let third = total.iter().filter(|(part, _)| !ends.contains(part));
            let third = third.map(|(_, &room)| room).max().unwrap_or(0);
            let sum: i64 = total.values().sum();
            let copies = width[vertices[to]].min(((sum - 2 * third) / 2).max(1));
            let hop = self.hop(v, vertices[to], &by);
            hop_arcs(self.net, &hop).for_each(|arc| self.left[self.row[arc]] -= copies);
            for at in [from, to] {
                let new = self.at(vertices[at]).min(room[at]);
                *total.entry(part[vertices[at]]).or_default() -= room[at] - new;
                room[at] = new;
            }
            found.push((hop, copies));
        }
    }

    /// Paths within parts, alike for all pairs; `None` if there are too many.
    fn within(&self, vertices: &[usize], part: &[usize]) -> Option<Vec<(Hop, i64)>> {
        let mut members: HashMap<usize, Vec<usize>> = HashMap::new();
        vertices.iter().for_each(|&v| members.entry(part[v]).or_default().push(v));
        let pairs = members.values().map(|members| members.len().pow(2) / 2).sum::<usize>();
        if pairs > PAIRS_MAX {
            return None;
        }
        let mut hops = Vec::new();
        let mut times = vec![0i64; self.left.len()];
        for &v in vertices {
            let (width, by) = self.widest(v);
            let after = |to: &&usize| **to > v && width[**to] > 0;
            for &to in members[&part[v]].iter().filter(after) {
                let hop = self.hop(v, to, &by);
                hop_arcs(self.net, &hop).for_each(|arc| times[self.row[arc]] += 1);
                hops.push(hop);
            }
        }
        let shared = |hop: Hop| {
            let rows = hop_arcs(self.net, &hop).map(|arc| self.row[arc]);
            let room = rows.map(|row| self.left[row] / times[row]).min().unwrap_or(0);
            (hop, room)
        };
        Some(hops.into_iter().map(shared).filter(|(_, room)| *room > 0).collect())
    }
}

/// Some hundredths of a second for an exchange with so many links.
const PAIRS_MAX: usize = 20_000;
