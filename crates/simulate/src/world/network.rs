//! Delivery of data packets: paths, losses and delays.

use std::collections::{BTreeMap, VecDeque};

use netsum_topo::{EdgeId, Fabric, NodeId, Topology};
use rustc_hash::FxHashMap;

use super::aggregators::AggregatorProcess;
use super::clock::{MS, Nanos};
use super::ranks::RankProcess;
use super::{Event, Place, World};
use crate::fault::{Direction, LinkLoss};
use crate::random::Random;
use crate::scenario::{SLOW_MS, Scenario};

/// Paths of packets and the random numbers that decide on losses and delays.
pub(super) struct Network {
    seed: u64,
    /// Node of each process: a host or switch.
    nodes: Vec<Option<NodeId>>,
    paths: BTreeMap<(NodeId, NodeId), Vec<Hop>>,
    randoms: FxHashMap<(Place, Place), Random>,
    edges: Vec<(NodeId, NodeId)>,
}

/// A link in one direction.
type Hop = (EdgeId, bool);

impl Network {
    pub(super) fn new(
        scenario: &Scenario,
        fabric: &Fabric,
        topology: &Topology,
        aggregators: &[AggregatorProcess],
        ranks: &[RankProcess],
    ) -> Network {
        let mut nodes = vec![None];
        nodes.extend(aggregators.iter().map(|aggregator| {
            let host = fabric.server(&aggregator.name).and_then(|server| fabric.host_of(server));
            topology.find(host.map_or(aggregator.name.as_str(), |host| host.name.as_str()))
        }));
        nodes.extend(ranks.iter().map(|rank| topology.find(&rank.host)));
        let used: Vec<NodeId> = nodes.iter().flatten().copied().collect();
        let mut paths = BTreeMap::new();
        for &from in &used {
            for &to in &used {
                paths.entry((from, to)).or_insert_with(|| path(topology, from, to));
            }
        }
        let edges = topology.edges().map(|(_, edge)| (edge.ends[0], edge.ends[1])).collect();
        Network { seed: scenario.seed, nodes, paths, randoms: FxHashMap::default(), edges }
    }

    fn path(&self, from: Place, to: Place) -> &[Hop] {
        match (self.nodes[from], self.nodes[to]) {
            (Some(from), Some(to)) => self.paths.get(&(from, to)).map_or(&[], Vec::as_slice),
            _ => &[],
        }
    }

    /// The ends of a link, for the trace.
    pub(super) fn ends(&self, link: u32) -> Option<(NodeId, NodeId)> {
        self.edges.get(link as usize).copied()
    }
}

/// A shortest path, preferring the lowest nodes; hosts do not forward.
fn path(topology: &Topology, from: NodeId, to: NodeId) -> Vec<Hop> {
    let mut came: BTreeMap<NodeId, (NodeId, EdgeId)> = BTreeMap::new();
    let mut queue = VecDeque::from([from]);
    while let Some(here) = queue.pop_front() {
        if here == to {
            break;
        }
        if here != from && !topology.is_switch(here) {
            continue;
        }
        for &(next, edge) in topology.neighbours(here) {
            if next != from && !came.contains_key(&next) {
                came.insert(next, (here, edge));
                queue.push_back(next);
            }
        }
    }
    let mut hops = Vec::new();
    let mut here = to;
    while let Some(&(before, edge)) = came.get(&here).filter(|_| here != from) {
        hops.push((edge, topology.edge(edge).ends[0] == before));
        here = before;
    }
    hops.reverse();
    hops
}

impl World {
    /// Sends a packet of a process.
    pub(super) fn send(&mut self, from: Place, to: Place, bytes: Vec<u8>) {
        if to >= self.first_standby {
            return;
        }
        self.overhear(from, to, &bytes);
        let noise = &self.scenario.noise;
        let seed = self.network.seed;
        let random = self
            .network
            .randoms
            .entry((from, to))
            .or_insert_with(|| Random::of(seed, &[30, from as u64, to as u64]));
        let mut copies: [Option<(Nanos, bool)>; 2] = [None, None];
        let count = 1 + usize::from(random.chance(noise.duplication));
        for copy in copies.iter_mut().take(count) {
            // The checksum detects a bit error, so the receiver drops the packet.
            let lost = random.chance(noise.loss) || random.chance(noise.corruption);
            let jitter = random.below(u64::from(noise.jitter_us) * 1000 + 1);
            let slow = if random.chance(noise.slow) { random.below(SLOW_MS * MS) } else { 0 };
            let ce = random.chance(noise.marking);
            if !lost {
                *copy = Some((jitter + slow, ce));
            }
        }
        let faulty = random.below(1_000_000) as u32;
        if faulty < self.active.loss() || self.active.separated(from, to, |cut| cut.data) {
            return;
        }
        let hops = self.network.path(from, to);
        let large = bytes.len() > HEADERS_AT_MOST;
        let broken = hops.iter().any(|&(edge, forward)| {
            self.active.links().any(|(link, direction, loss)| {
                let direction = match direction {
                    Direction::Both => true,
                    Direction::Forward => forward,
                    Direction::Backward => !forward,
                };
                let loses = match loss {
                    LinkLoss::All => true,
                    LinkLoss::Large => large,
                    LinkLoss::Some(per_million) => faulty < per_million,
                };
                link == edge.0 && direction && loses
            })
        });
        if broken {
            return;
        }
        let way = HOP * (hops.len() as u64 + 1);
        let mut bytes = Some(bytes);
        let last = copies.iter().rposition(Option::is_some);
        for (number, copy) in copies.into_iter().enumerate() {
            let Some((late, ce)) = copy else { continue };
            let bytes = if Some(number) == last { bytes.take() } else { bytes.clone() };
            let Some(bytes) = bytes else { continue };
            self.queue.after(way + late, Event::Packet { from, to, ce, bytes });
        }
    }
}

/// Maximum size of packets without payload, bytes.
const HEADERS_AT_MOST: usize = 60;
/// Delay of one link and one queue.
const HOP: Nanos = 5_000;
