//! A fabric as the algorithms use it: numbered vertices, arcs with integer capacities.

use std::collections::BTreeMap;

use netsum_topo::gcd;
use netsum_topo::links::{LinkGraph, LinkKind, Role};

use crate::error::PackError;

/// A directed connection; parallel links are one arc.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arc {
    /// Vertex that sends.
    pub from: usize,
    /// Vertex that receives.
    pub to: usize,
    /// In units of [`Net::unit_bps`].
    pub cap: i64,
    /// Latency of a message besides its bytes.
    pub latency_ns: u64,
}

/// Vertices are those of the [`LinkGraph`]; capacities are whole numbers without a common factor.
#[derive(Debug, Clone)]
pub struct Net {
    /// Number of vertices.
    pub n: usize,
    /// Vertices that are GPUs, by rank.
    pub gpus: Vec<usize>,
    /// By vertex: neither a GPU nor a switch with the functions that the collective needs; it only forwards.
    pub relay: Vec<bool>,
    /// Arcs, sorted by `(from, to)`.
    pub arcs: Vec<Arc>,
    /// Bits per second of capacity 1.
    pub unit_bps: u64,
    /// The opposite arc of every arc, if both have the same capacity everywhere; else `None`.
    pub mirror: Option<Vec<usize>>,
    /// Vertices of each server with GPUs: those that are connected without links of the network.
    pub servers: Vec<Vec<usize>>,
    arc_at: BTreeMap<(usize, usize), usize>,
}

impl Net {
    /// Combines parallel links. `adds`, `multicasts`: the functions that a switch needs to be more than a relay.
    /// Errors: fewer than two GPUs, or GPUs that cannot reach each other.
    pub fn new(graph: &LinkGraph, adds: bool, multicasts: bool) -> Result<Net, PackError> {
        let gpus = graph.gpus();
        if gpus.len() < 2 {
            return Err(PackError::FewGpus { found: gpus.len() });
        }
        let names: Vec<String> = gpus.iter().map(|&v| graph.vertices()[v].name.clone()).collect();
        graph.select(&names)?;
        let mut sums: BTreeMap<(usize, usize), (u64, u64)> = BTreeMap::new();
        for (from, to, link) in graph.arcs() {
            let sum = sums.entry((from, to)).or_insert((0, link.latency_ns));
            sum.0 += link.rate.0;
            sum.1 = sum.1.max(link.latency_ns);
        }
        let unit = sums.values().fold(0u128, |unit, &(rate, _)| gcd(unit, rate.into()).max(1));
        let unit_bps = unit as u64;
        let arcs: Vec<Arc> = (sums.into_iter())
            .map(|((from, to), (rate, latency_ns))| Arc {
                from,
                to,
                cap: (rate / unit_bps) as i64,
                latency_ns,
            })
            .collect();
        let arc_at: BTreeMap<_, _> =
            arcs.iter().enumerate().map(|(i, arc)| ((arc.from, arc.to), i)).collect();
        let mirror = mirror(&arcs, &arc_at);
        let relay = graph.vertices().iter().map(|vertex| match vertex.role {
            Role::Gpu => false,
            Role::Switch { aggregates: can_add, multicasts: can_multicast } => {
                (adds && !can_add) || (multicasts && !can_multicast)
            }
        });
        let relay = relay.collect();
        let (n, servers) = (graph.vertices().len(), servers(graph));
        Ok(Net { n, gpus, relay, arcs, unit_bps, mirror, servers, arc_at })
    }

    /// A net of GPUs alone, with links that have the same capacity in both directions. `links`: by ends, the lower
    /// number first.
    pub(super) fn direct(n: usize, links: &BTreeMap<[usize; 2], i64>, unit_bps: u64) -> Net {
        let both = |(&[a, b], &cap): (&[usize; 2], &i64)| [(a, b, cap), (b, a, cap)];
        let arc = |(from, to, cap)| Arc { from, to, cap, latency_ns: 0 };
        let mut arcs: Vec<Arc> = links.iter().flat_map(both).map(arc).collect();
        arcs.sort_unstable_by_key(|arc| (arc.from, arc.to));
        let arc_at: BTreeMap<_, _> =
            arcs.iter().enumerate().map(|(i, arc)| ((arc.from, arc.to), i)).collect();
        let (gpus, relay) = ((0..n).collect(), vec![false; n]);
        let mirror = mirror(&arcs, &arc_at);
        Net { n, gpus, relay, arcs, unit_bps, mirror, servers: Vec::new(), arc_at }
    }

    /// Whether the first vertex reaches all others.
    pub(super) fn is_connected(&self) -> bool {
        let (out, mut seen) = (self.outgoing(), vec![false; self.n]);
        let mut queue = vec![0];
        while let Some(v) = queue.pop() {
            if !std::mem::replace(&mut seen[v], true) {
                queue.extend(out[v].iter().map(|&arc| self.arcs[arc].to));
            }
        }
        seen.into_iter().all(|seen| seen)
    }

    /// The net of some vertices of one server, renumbered from 0; with the numbers of its arcs in this net.
    pub fn part(&self, vertices: &[usize]) -> (Net, Vec<usize>) {
        let mut place = vec![None; self.n];
        vertices.iter().enumerate().for_each(|(new, &old)| place[old] = Some(new));
        let (mut arcs, mut numbers) = (Vec::new(), Vec::new());
        for (number, arc) in self.arcs.iter().enumerate() {
            if let (Some(from), Some(to)) = (place[arc.from], place[arc.to]) {
                arcs.push(Arc { from, to, ..*arc });
                numbers.push(number);
            }
        }
        let arc_at: BTreeMap<_, _> =
            arcs.iter().enumerate().map(|(i, arc)| ((arc.from, arc.to), i)).collect();
        let net = Net {
            n: vertices.len(),
            gpus: self.gpus.iter().filter_map(|&gpu| place[gpu]).collect(),
            relay: vertices.iter().map(|&v| self.relay[v]).collect(),
            mirror: mirror(&arcs, &arc_at),
            servers: vec![(0..vertices.len()).collect()],
            arcs,
            unit_bps: self.unit_bps,
            arc_at,
        };
        (net, numbers)
    }

    /// The net in which every switch that is not a relay is merged with all GPUs and such switches next to it; with the
    /// GPUs of each merged vertex. `None` if a switch has no GPUs, or if all are merged into one.
    pub fn clusters(&self) -> Option<(Net, Vec<Vec<usize>>)> {
        let mut group: Vec<usize> = (0..self.n).collect();
        let adds = |v: usize| !self.relay[v] && !self.gpus.contains(&v);
        for arc in self.arcs.iter().filter(|arc| adds(arc.from) && !self.relay[arc.to]) {
            let (from, to) = (group[arc.from], group[arc.to]);
            group.iter_mut().filter(|known| **known == from).for_each(|known| *known = to);
        }
        let gpus_of = |v: usize| -> Vec<usize> {
            self.gpus.iter().copied().filter(|&gpu| group[gpu] == v).collect()
        };
        let names: Vec<usize> = (0..self.n).filter(|&v| group[v] == v).collect();
        let with_gpus = |&v: &usize| !self.relay[v];
        let clusters: Vec<Vec<usize>> =
            names.iter().copied().filter(|v| with_gpus(v)).map(gpus_of).collect();
        if clusters.len() < 2 || clusters.iter().any(Vec::is_empty) {
            return None;
        }
        let place = |v: usize| names.iter().position(|&name| name == group[v]).expect("a name");
        let mut arc_at = BTreeMap::new();
        let mut arcs: Vec<Arc> = Vec::new();
        for arc in &self.arcs {
            let (from, to) = (place(arc.from), place(arc.to));
            if from != to {
                let at = *arc_at.entry((from, to)).or_insert(arcs.len());
                match arcs.get_mut(at) {
                    Some(known) => known.cap += arc.cap,
                    None => arcs.push(Arc { from, to, ..*arc }),
                }
            }
        }
        let net = Net {
            n: names.len(),
            gpus: (0..names.len()).filter(|&at| with_gpus(&names[at])).collect(),
            relay: names.iter().map(|&name| self.relay[name]).collect(),
            unit_bps: self.unit_bps,
            mirror: mirror(&arcs, &arc_at),
            servers: Vec::new(),
            arcs,
            arc_at,
        };
        Some((net, clusters))
    }

    /// Number of the arc between two vertices.
    pub fn arc(&self, from: usize, to: usize) -> Option<usize> {
        self.arc_at.get(&(from, to)).copied()
    }

    /// The same vertices with every arc reversed; arc numbers stay.
    pub fn reversed(&self) -> Net {
        let turn = |arc: &Arc| Arc { from: arc.to, to: arc.from, ..*arc };
        let arc_at = self.arc_at.iter().map(|(&(a, b), &i)| ((b, a), i)).collect();
        Net { arcs: self.arcs.iter().map(turn).collect(), arc_at, ..self.clone() }
    }

    /// Numbers of the arcs that leave each vertex.
    pub fn outgoing(&self) -> Vec<Vec<usize>> {
        let mut out = vec![Vec::new(); self.n];
        self.arcs.iter().enumerate().for_each(|(i, arc)| out[arc.from].push(i));
        out
    }

    /// Switches that are not relays.
    pub fn aggregators(&self) -> Vec<usize> {
        (0..self.n).filter(|&v| !self.relay[v] && !self.gpus.contains(&v)).collect()
    }
}

/// The servers of a fabric: GPUs and other vertices that are connected without links of the network.
pub fn servers(graph: &LinkGraph) -> Vec<Vec<usize>> {
    let mut group: Vec<usize> = (0..graph.vertices().len()).collect();
    fn find(group: &mut [usize], mut v: usize) -> usize {
        while group[v] != v {
            group[v] = group[group[v]];
            v = group[v];
        }
        v
    }
    for link in graph.links().iter().filter(|link| link.kind != LinkKind::Nic) {
        let [a, b] = link.ends.map(|end| find(&mut group, end));
        group[a.max(b)] = a.min(b);
    }
    let gpus = graph.gpus();
    let mut found: Vec<(usize, Vec<usize>)> = Vec::new();
    for v in 0..group.len() {
        let root = find(&mut group, v);
        match found.iter_mut().find(|(known, _)| *known == root) {
            Some((_, members)) => members.push(v),
            None => found.push((root, vec![v])),
        }
    }
    let groups = found.into_iter().map(|(_, members)| members);
    groups.filter(|members| members.iter().any(|v| gpus.contains(v))).collect()
}

fn mirror(arcs: &[Arc], arc_at: &BTreeMap<(usize, usize), usize>) -> Option<Vec<usize>> {
    let back = |arc: &Arc| {
        let back = *arc_at.get(&(arc.to, arc.from))?;
        (arcs[back].cap == arc.cap).then_some(back)
    };
    arcs.iter().map(back).collect()
}
