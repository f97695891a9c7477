//! Process groups that communicate at the same time, planned together: one programme whose rows are the links of the
//! fabric and what each group needs. It maximises the rounds that all groups can do, so all of them end together.
//!
//! Its dual is a length per link, from which a bound follows that does not depend on how it was found.

use std::collections::{BTreeMap, HashMap};

use netsum_topo::links::{Collective, LinkGraph};
use netsum_topo::{Ratio, gcd, lcm};

use super::bound::ArcLength;
use super::budget::Budget;
use super::lp::{Column, Master};
use super::net::Net;
use super::packed::{Flow, Packed, net_for};
use super::programme::couple;
use super::search::Search;
use super::tree::Tree;
use crate::error::PackError;
use crate::group_plan::{GROUP_PLAN_FORMAT, GroupPlan, PlannedGroup};

/// A process group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// Any name.
    pub name: String,
    /// Its GPUs, as vertices of the fabric. Ranks are in the order of the fabric.
    pub gpus: Vec<usize>,
    /// What it does, other than an all-to-all; roots are ranks of the group.
    pub collective: Collective,
    /// Bytes of its whole buffer.
    pub bytes: u64,
}

/// The best trees of all groups together. GPUs pass on data of their own groups only.
///
/// Errors: no group; an all-to-all; a group without bytes or with too few GPUs, or whose GPUs reach each other only
/// through others; sizes without simple proportions; more rows than the programme can have.
pub fn pack_groups(
    graph: &LinkGraph,
    groups: &[Group],
    budget: &Budget<'_>,
) -> Result<GroupPlan, PackError> {
    let whole = Net::new(graph, true, true)?;
    let unit = groups.iter().fold(0u128, |unit, group| gcd(unit, group.bytes.into()));
    let mut members = Vec::new();
    let mut rows = whole.arcs.len();
    for group in groups {
        let member = Member::new(graph, &whole, group, unit, rows)?;
        rows += member.rows();
        members.push(member);
    }
    if groups.is_empty() || rows > ROWS_MAX {
        let advice = "give at least one group, and fewer or smaller ones";
        return Err(PackError::Size {
            what: "rows of the programme",
            found: rows,
            most: ROWS_MAX,
            advice,
        });
    }
    let mut limits: Vec<i64> = whole.arcs.iter().map(|arc| arc.cap).collect();
    limits.resize(rows, 0);
    let mut master = Master::new(limits);
    let mut made: Vec<Option<Made>> = Vec::new();
    let needs = members.iter().flat_map(Member::needs).collect();
    master.add(Column { gain: 1, uses: needs });
    made.push(None);
    for (at, member) in members.iter().enumerate() {
        for (rank, uses) in member.joined().into_iter().enumerate() {
            master.add(Column { gain: 0, uses });
            made.push(Some(Made { group: at, rank, tree: None }));
        }
    }
    let searches: Vec<[Search<'_>; 2]> = (members.iter())
        .map(|member| [Search::new(&member.net, budget), Search::new(&member.back, budget)])
        .collect();
    let price = |prices: &[i64], all: bool| {
        let mut found: Vec<(Column, Made)> = Vec::new();
        for (at, (member, searches)) in members.iter().zip(&searches).enumerate() {
            member.offers(searches, prices, all, |rank, up, tree, uses| {
                let made = Made { group: at, rank, tree: Some((tree, up)) };
                found.push((Column { gain: 0, uses }, made));
            });
        }
        found
    };
    // Short trees first, on links of equal use.
    let most = whole.arcs.iter().map(|arc| arc.cap).max().unwrap_or(1);
    let even = |arc: &super::net::Arc| (most as f64 / arc.cap as f64 * EVEN) as i64;
    let mut first: Vec<i64> = whole.arcs.iter().map(even).collect();
    first.resize(rows, 0);
    for (column, tree) in price(&first, true) {
        master.add(column);
        made.push(Some(tree));
    }
    let known = master.columns().len();
    let mut offered: HashMap<Vec<(usize, i64)>, Made> = HashMap::new();
    let packing = master.solve(None, budget, &mut |prices, _| {
        let prices: Vec<i64> = prices.iter().map(|&price| price.max(0)).collect();
        let mut columns = Vec::new();
        for (column, tree) in price(&prices, false) {
            offered.insert(column.uses.clone(), tree);
            columns.push(column);
        }
        columns
    });
    for column in &master.columns()[known..] {
        made.push(offered.get(&column.uses).cloned());
    }
    let mut flows: Vec<Vec<Flow>> = Vec::new();
    for (at, member) in members.iter().enumerate() {
        let own = packing.weights.iter().filter_map(|&(number, weight)| {
            let made = made[number].as_ref().filter(|made| made.group == at)?;
            Some((made, weight))
        });
        flows.push(member.flows(&own.collect::<Vec<_>>(), packing.value));
    }
    let mut rounds = packing.value;
    if !members.iter().zip(&flows).all(|(member, flows)| member.is_simple(flows, rounds)) {
        let least = members.iter().zip(&flows).map(|(member, flows)| member.floor(flows, rounds));
        let kept = least.min().unwrap_or(Ratio::ZERO);
        for (member, flows) in members.iter().zip(&mut flows) {
            member.cut(flows, rounds, kept);
        }
        rounds = rounds * Ratio::new(kept.num(), kept.den());
    }
    let bytes_unit = Ratio::new(i128::from(whole.unit_bps), 8 * unit as i128);
    let rounds_per_s = rounds * bytes_unit;
    let planned = groups.iter().zip(members).zip(flows).map(|((group, member), flows)| {
        let rate = rounds * Ratio::from(member.need);
        let (net, collective) = (member.net, group.collective);
        let packed = Packed { collective, net, flows, rate, bound: None, limited: false };
        let mut plan = packed.as_plan(&member.graph);
        plan.rate_bps = rate * Ratio::new(whole.unit_bps.into(), 1);
        PlannedGroup { name: group.name.clone(), bytes: group.bytes, plan }
    });
    Ok(GroupPlan {
        format: GROUP_PLAN_FORMAT.to_owned(),
        fabric: graph.name().to_owned(),
        rounds_per_s,
        groups: planned.collect(),
        lengths: lengths(&whole, &packing.prices),
    })
}

/// Prices of arcs as whole numbers.
fn lengths(net: &Net, prices: &[Ratio]) -> Vec<ArcLength> {
    let prices = &prices[..net.arcs.len()];
    let common = prices
        .iter()
        .try_fold(1i128, |all, price| lcm(all, price.den()).filter(|&all| all < LENGTH_MAX));
    let most = prices.iter().map(|price| price.to_f64()).fold(f64::MIN_POSITIVE, f64::max);
    let whole = |price: &Ratio| match common {
        Some(common) => price.num() * (common / price.den()),
        None => (price.to_f64() / most * LENGTH_MAX as f64) as i128,
    };
    let length = |(arc, price): (&super::net::Arc, &Ratio)| {
        Some(whole(price)).filter(|&length| length > 0).map(|length| ArcLength {
            from: arc.from,
            to: arc.to,
            length: Ratio::new(length, 1),
        })
    };
    net.arcs.iter().zip(prices).filter_map(length).collect()
}

/// A tree of a group, or the rate of one of its roots.
#[derive(Debug, Clone)]
struct Made {
    group: usize,
    rank: usize,
    /// With whether sums go up it.
    tree: Option<(Tree, bool)>,
}

/// A group in the programme.
struct Member {
    graph: LinkGraph,
    net: Net,
    back: Net,
    collective: Collective,
    /// By arc of the group's net the row.
    row: Vec<usize>,
    /// The first of its own rows.
    first: usize,
    /// What it needs per round, in units.
    need: i64,
}

impl Member {
    fn new(
        graph: &LinkGraph,
        whole: &Net,
        group: &Group,
        unit: u128,
        first: usize,
    ) -> Result<Member, PackError> {
        let refuse = |problem: String| PackError::Format { format: "group", problem };
        if group.collective == Collective::Alltoall {
            return Err(refuse(format!("{}: an all-to-all is planned alone", group.name)));
        }
        let need = u128::from(group.bytes) / unit.max(1);
        let need = i64::try_from(need).ok().filter(|need| (1..=NEED_MAX).contains(need));
        let need = need.ok_or_else(|| {
            refuse(format!("{}: sizes of groups must be in simple proportions", group.name))
        })?;
        let name = |&gpu: &usize| graph.vertices()[gpu].name.clone();
        let names: Vec<String> = group.gpus.iter().map(name).collect();
        let part = graph.select(&names)?;
        let net = net_for(group.collective, &part)?;
        let places: BTreeMap<&str, usize> =
            graph.vertices().iter().enumerate().map(|(at, v)| (v.name.as_str(), at)).collect();
        let place = |v: usize| places[part.vertices()[v].name.as_str()];
        let row = |arc: &super::net::Arc| {
            whole.arc(place(arc.from), place(arc.to)).expect("links of a group are the fabric's")
        };
        let row = net.arcs.iter().map(row).collect();
        let back = net.reversed();
        Ok(Member { graph: part, net, back, collective: group.collective, row, first, need })
    }

    fn ranks(&self) -> usize {
        self.net.gpus.len()
    }

    /// How many rows it has: its need, or what each rank needs; for an allreduce also the trees down and up per rank.
    fn rows(&self) -> usize {
        match self.collective {
            Collective::Allreduce => 1 + 2 * self.ranks(),
            Collective::Allgather | Collective::ReduceScatter => self.ranks(),
            _ => 1,
        }
    }

    /// Its entries in the column of rounds.
    fn needs(&self) -> Vec<(usize, i64)> {
        match self.collective {
            Collective::Allgather | Collective::ReduceScatter => {
                (0..self.ranks()).map(|rank| (self.first + rank, self.need)).collect()
            }
            _ => vec![(self.first, self.need)],
        }
    }

    /// Of an allreduce the columns of ranks as roots: their trees up and down have one rate.
    fn joined(&self) -> Vec<Vec<(usize, i64)>> {
        if self.collective != Collective::Allreduce {
            return Vec::new();
        }
        let one = |rank: usize| vec![(self.first, -1), (self.down(rank), 1), (self.up(rank), 1)];
        (0..self.ranks()).map(one).collect()
    }

    fn down(&self, rank: usize) -> usize {
        self.first + 1 + rank
    }

    fn up(&self, rank: usize) -> usize {
        self.first + 1 + self.ranks() + rank
    }

    /// Trees that cost less than they bring: rank of the root, whether sums go up, tree, column. `all`: whatever they
    /// cost.
    fn offers(
        &self,
        searches: &[Search<'_>; 2],
        prices: &[i64],
        all: bool,
        mut offer: impl FnMut(usize, bool, Tree, Vec<(usize, i64)>),
    ) {
        let lengths: Vec<i64> = self.row.iter().map(|&row| prices[row]).collect();
        let (roots, ups): (Vec<usize>, &[bool]) = match self.collective {
            Collective::Broadcast { root } => (vec![self.net.gpus[root]], &[false]),
            Collective::Reduce { root } => (vec![self.net.gpus[root]], &[true]),
            Collective::Allgather => (self.net.gpus.clone(), &[false]),
            Collective::ReduceScatter => (self.net.gpus.clone(), &[true]),
            _ => (self.net.gpus.clone(), &[false, true]),
        };
        for &up in ups {
            let found = searches[usize::from(up)].directed(&lengths, &roots);
            for (tree, total) in found {
                let rank = self.net.gpus.iter().position(|&gpu| gpu == tree.root);
                let rank = rank.expect("roots are GPUs");
                let (need, times) = match self.collective {
                    Collective::Allreduce if up => (self.up(rank), 1),
                    Collective::Allreduce => (self.down(rank), 1),
                    Collective::Allgather | Collective::ReduceScatter => {
                        (self.first + rank, self.ranks() as i64)
                    }
                    _ => (self.first, 1),
                };
                if all || total < prices[need] * times {
                    let net = if up { &self.back } else { &self.net };
                    let mut uses: BTreeMap<usize, i64> = BTreeMap::new();
                    tree.arcs(net).for_each(|arc| *uses.entry(self.row[arc]).or_default() += 1);
                    uses.insert(need, -times);
                    offer(rank, up, tree, uses.into_iter().collect());
                }
            }
        }
    }

    /// Flows of exactly what the group needs. `own`: its columns with their weights.
    fn flows(&self, own: &[(&Made, Ratio)], rounds: Ratio) -> Vec<Flow> {
        let trees = |rank: usize, up: bool| -> Vec<(Tree, Ratio)> {
            let of = |(made, weight): &(&Made, Ratio)| {
                let (tree, goes_up) = made.tree.as_ref().filter(|_| made.rank == rank)?;
                (*goes_up == up).then(|| (tree.clone(), *weight))
            };
            own.iter().filter_map(of).collect()
        };
        let mut flows = Vec::new();
        let mut left = rounds * Ratio::from(self.need);
        if self.collective == Collective::Allreduce {
            for (rank, &root) in self.net.gpus.iter().enumerate() {
                let of_rank = own.iter().find(|(made, _)| made.rank == rank && made.tree.is_none());
                let own = of_rank.map_or(Ratio::ZERO, |(_, weight)| (*weight).min(left));
                couple(own, root, trees(rank, true), trees(rank, false), &mut flows);
                left = left - own;
            }
            return flows;
        }
        let sharded = self.rows() > 1;
        let each = if sharded { left / Ratio::from(self.ranks() as i64) } else { left };
        for rank in 0..self.ranks() {
            let mut left = each;
            for up in [false, true] {
                for (tree, weight) in trees(rank, up) {
                    let weight = weight.min(left);
                    left = left - weight;
                    if weight.is_positive() {
                        let root = tree.root;
                        let (up, down) = if up { (Some(tree), None) } else { (None, Some(tree)) };
                        flows.push(Flow { weight, root, up, down });
                    }
                }
            }
        }
        flows
    }

    /// The flows that must have equal parts, and what each part needs.
    fn parts(&self, rounds: Ratio) -> (usize, Ratio) {
        let all = rounds * Ratio::from(self.need);
        let sharded = matches!(self.collective, Collective::Allgather | Collective::ReduceScatter);
        if sharded { (self.ranks(), all / Ratio::from(self.ranks() as i64)) } else { (1, all) }
    }

    fn is_simple(&self, flows: &[Flow], rounds: Ratio) -> bool {
        let (_, each) = self.parts(rounds);
        let mut shares = flows.iter().map(|flow| flow.weight.checked_div(each));
        let all = shares.try_fold(1, |all, share| lcm(all, share?.den()).filter(|&all| all < FINE));
        all.is_some()
    }

    /// What is left of the least part if weights are rounded down.
    fn floor(&self, flows: &[Flow], rounds: Ratio) -> Ratio {
        let (_, each) = self.parts(rounds);
        let mut left: BTreeMap<usize, Ratio> = BTreeMap::new();
        for flow in flows {
            let root = if self.rows() == self.ranks() { flow.root } else { 0 };
            let entry = left.entry(root).or_insert(Ratio::ZERO);
            *entry = *entry + floored(flow.weight, each);
        }
        left.into_values().min().unwrap_or(Ratio::ZERO)
    }

    /// Rounds weights down, so that every part is `kept` of what it was.
    fn cut(&self, flows: &mut Vec<Flow>, rounds: Ratio, kept: Ratio) {
        let (_, each) = self.parts(rounds);
        let mut left: BTreeMap<usize, Ratio> = BTreeMap::new();
        for flow in flows.iter_mut() {
            let root = if self.rows() == self.ranks() { flow.root } else { 0 };
            let entry = left.entry(root).or_insert(kept);
            let share = floored(flow.weight, each).min(*entry);
            *entry = *entry - share;
            flow.weight = share * each;
        }
        flows.retain(|flow| flow.weight.is_positive());
    }
}

/// A weight as a part of the whole, rounded down.
fn floored(weight: Ratio, each: Ratio) -> Ratio {
    let parts = (weight.to_f64() / each.to_f64() * FINE as f64 * (1.0 - 1e-12)).floor();
    Ratio::new(parts as i128, FINE)
}

/// The programme is dense in memory.
const ROWS_MAX: usize = 4000;
/// Coefficients of the programme stay below this.
const NEED_MAX: i64 = 1 << 20;
/// Weights are whole numbers of such parts, if they have no common denominator below it.
const FINE: i128 = 1 << 36;
const LENGTH_MAX: i128 = 1 << 40;
const EVEN: f64 = 1024.0;
