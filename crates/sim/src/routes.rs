//! Routing tables: the shortest paths from each switch to each host.
//!
//! Hosts of one rack share a row, so the table of a 1,024-host fat tree (320 switches × 128 racks) stays
//! in the second-level cache.

use std::sync::Arc;

use netsum_topo::{NodeId, Topology};
use rustc_hash::FxHashMap;

use crate::packet::Packet;

/// How a switch chooses between shortest paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathChoice {
    /// By a hash of the flow and the switch: a flow keeps its path.
    Flow,
    /// By a hash of the packet: packets of one flow take different paths.
    Packet,
    /// By the digit of the destination's number that belongs to the switch's level (d-mod-k).
    Destination,
}

/// Tables of all switches.
pub(crate) struct Routes {
    choice: PathChoice,
    hosts: u32,
    groups: u32,
    group_of: Vec<u16>,
    down: Vec<u32>,
    table: Vec<u32>,
    /// Ranges of `links` with the alternative links: start and length.
    several: Vec<(u32, u32)>,
    links: Vec<u32>,
    /// For `Destination`: the divisor of a host's number, by switch.
    divisor: Vec<u32>,
}

const UNREACHABLE: u32 = u32::MAX;
const LOCAL: u32 = u32::MAX - 1;
const SEVERAL: u32 = 1 << 31;

impl Routes {
    /// Builds the tables. `alive`: whether an edge can be used.
    pub(crate) fn new(
        topology: &Topology,
        choice: PathChoice,
        alive: impl Fn(u32) -> bool,
    ) -> Routes {
        let hosts = topology.hosts().count() as u32;
        let mut racks: Vec<NodeId> = Vec::new();
        let (mut group_of, mut down) = (Vec::new(), Vec::new());
        for host in topology.hosts() {
            let (rack, edge) = topology.neighbours(host)[0];
            let group = racks.iter().rposition(|&r| r == rack).unwrap_or_else(|| {
                racks.push(rack);
                racks.len() - 1
            });
            group_of.push(group as u16);
            down.push(if alive(edge.0) { outgoing(topology, edge.0, rack) } else { UNREACHABLE });
        }
        let switches = topology.node_count() as u32 - hosts;
        let mut routes = Routes {
            choice,
            hosts,
            groups: racks.len() as u32,
            group_of,
            down,
            table: vec![UNREACHABLE; switches as usize * racks.len()],
            several: Vec::new(),
            links: Vec::new(),
            divisor: divisors(topology, hosts),
        };
        let mut known = FxHashMap::default();
        for (group, &rack) in racks.iter().enumerate() {
            routes.fill(topology, group, rack, &alive, &mut known);
        }
        routes
    }

    fn fill(
        &mut self,
        topology: &Topology,
        group: usize,
        rack: NodeId,
        alive: &impl Fn(u32) -> bool,
        known: &mut FxHashMap<Vec<u32>, u32>,
    ) {
        let mut distance = vec![u32::MAX; topology.node_count()];
        distance[rack.0 as usize] = 0;
        let mut reached = vec![rack];
        let mut next = 0;
        while let Some(&here) = reached.get(next) {
            next += 1;
            let near = distance[here.0 as usize];
            let mut ways = Vec::new();
            for &(other, edge) in topology.neighbours(here) {
                if !topology.is_switch(other) || !alive(edge.0) {
                    continue;
                }
                let known = &mut distance[other.0 as usize];
                if *known == u32::MAX {
                    *known = near + 1;
                    reached.push(other);
                } else if *known + 1 == near {
                    ways.push(outgoing(topology, edge.0, here));
                }
            }
            let entry = match ways.as_slice() {
                [] => LOCAL,
                &[one] => one,
                _ => SEVERAL | self.alternatives(ways, known),
            };
            let row = (here.0 - self.hosts) as usize * self.groups as usize;
            self.table[row + group] = entry;
        }
    }

    /// The number of these alternative links; `known` has those of all that were numbered.
    fn alternatives(&mut self, ways: Vec<u32>, known: &mut FxHashMap<Vec<u32>, u32>) -> u32 {
        let (several, links) = (&mut self.several, &mut self.links);
        *known.entry(ways).or_insert_with_key(|ways| {
            several.push((links.len() as u32, ways.len() as u32));
            links.extend(ways);
            several.len() as u32 - 1
        })
    }

    /// The link on which `switch` (a node number) forwards the packet; `None` if there is no path.
    #[inline(always)]
    pub(crate) fn next(&self, switch: u32, packet: &Packet) -> Option<u32> {
        self.at(self.place(switch, packet), switch, packet)
    }

    /// Where the table has what `switch` does with the packet.
    #[inline(always)]
    pub(crate) fn place(&self, switch: u32, packet: &Packet) -> u32 {
        let group = self.group_of[packet.dst() as usize];
        (switch - self.hosts) * self.groups + u32::from(group)
    }

    /// As `next`, from a place in the table.
    #[inline(always)]
    pub(crate) fn at(&self, place: u32, switch: u32, packet: &Packet) -> Option<u32> {
        let entry = self.table[place as usize];
        if entry & SEVERAL == 0 {
            return Some(entry);
        }
        let link = match entry {
            LOCAL => self.down[packet.dst() as usize],
            UNREACHABLE => UNREACHABLE,
            several => {
                let (start, len) = self.several[(several & !SEVERAL) as usize];
                self.links[(start + self.choose(switch, packet, len)) as usize]
            }
        };
        (link != UNREACHABLE).then_some(link)
    }

    /// The links among which `switch` chooses for packets to `dst`; all of them are alive.
    pub(crate) fn ways(&self, switch: u32, dst: u32) -> Vec<u32> {
        let group = u32::from(self.group_of[dst as usize]);
        match self.table[((switch - self.hosts) * self.groups + group) as usize] {
            UNREACHABLE => Vec::new(),
            LOCAL => vec![self.down[dst as usize]],
            one if one & SEVERAL == 0 => vec![one],
            several => {
                let (start, len) = self.several[(several & !SEVERAL) as usize];
                self.links[start as usize..(start + len) as usize].to_vec()
            }
        }
    }

    #[inline]
    fn choose(&self, switch: u32, packet: &Packet, ways: u32) -> u32 {
        let key = match self.choice {
            PathChoice::Destination => {
                let digit = packet.dst() / self.divisor[(switch - self.hosts) as usize];
                return digit % ways;
            }
            PathChoice::Flow => u64::from(packet.entropy),
            PathChoice::Packet => {
                u64::from(packet.entropy)
                    ^ u64::from(packet.seq) << 16
                    ^ u64::from(packet.flow) << 40
            }
        };
        let hash = crate::random::mix(key ^ u64::from(switch) << 20);
        (((hash >> 32) * u64::from(ways)) >> 32) as u32
    }
}

/// The link that follows on the path of a `Tree` packet; `None` at its end. `paths`: by number, consecutive links.
#[inline]
pub(crate) fn along(paths: &[Arc<[u32]>], link: u32, packet: &Packet) -> Option<u32> {
    let path = &paths[packet.flow as usize];
    let at = path.iter().position(|&l| l == link).expect("a packet stays on its path");
    path.get(at + 1).copied()
}

/// The directed link of an edge that starts at `from`.
pub(crate) fn outgoing(topology: &Topology, edge: u32, from: NodeId) -> u32 {
    2 * edge + u32::from(topology.edge(netsum_topo::EdgeId(edge)).ends[1] == from)
}

/// Distance to the nearest host in links, by node.
pub(crate) fn levels(topology: &Topology) -> Vec<u32> {
    let mut level = vec![u32::MAX; topology.node_count()];
    let mut queue: Vec<NodeId> = topology.hosts().collect();
    queue.iter().for_each(|host| level[host.0 as usize] = 0);
    let mut next = 0;
    while let Some(&here) = queue.get(next) {
        next += 1;
        for &(other, _) in topology.neighbours(here) {
            if level[other.0 as usize] == u32::MAX {
                level[other.0 as usize] = level[here.0 as usize] + 1;
                queue.push(other);
            }
        }
    }
    level
}

/// A switch n links away from the nearest host uses digit n − 1 of a host's number, in base of the number of
/// alternatives that a rack has.
fn divisors(topology: &Topology, hosts: u32) -> Vec<u32> {
    let level = levels(topology);
    let rack = topology.hosts().next().map(|h| topology.neighbours(h)[0].0);
    let up = rack.map_or(1, |r| {
        let ways = topology.neighbours(r).iter().filter(|(n, _)| topology.is_switch(*n));
        (ways.count() as u32).max(1)
    });
    let of = |node: u32| up.saturating_pow(level[node as usize].saturating_sub(1).min(8)).max(1);
    (hosts..topology.node_count() as u32).map(of).collect()
}
