//! Links, switches and time: what happens to a packet between two hosts.

mod faults;
mod moving;
mod pause;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use netsum_topo::Topology;

use crate::calendar::{Calendar, Entries, Entry};
use crate::error::SimError;
use crate::fifo::Pool;
use crate::link::{DEAD, FROM_HOST, LOSSY, Link, PAUSED, TO_HOST};
use crate::packet::{Kind, NO_LINK, Packet};
use crate::random::Random;
use crate::routes::{PathChoice, Routes, outgoing};

/// What every switch does with packets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Switching {
    /// A packet is marked if, when it comes, at least so many wait in the output queue: without itself and
    /// without the one in the transmitter. Hosts do not mark.
    pub mark_packets: u32,
    /// A packet is dropped if so many wait.
    pub queue_packets: u32,
    /// One memory for all output queues of a switch; a packet is dropped by either limit.
    pub shared: Option<SharedBuffer>,
    /// PAUSE instead of dropping.
    pub pause: Option<Pause>,
    /// Between equal paths.
    pub paths: PathChoice,
    /// Where the topology does not say, in nanoseconds.
    pub latency_ns: u32,
}

/// The memory of a switch, shared by its output queues with dynamic thresholds (Choudhury and Hahne, IEEE/ACM ToN 1998): a
/// packet is dropped where its queue holds at least `alpha` times what is free, or it does not fit. What a transmitter has not
/// sent yet is in memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SharedBuffer {
    /// Of one switch.
    pub bytes: u64,
    /// Above 0. With n queues that stay full each holds alpha / (1 + n · alpha) of the memory.
    pub alpha: f64,
}

impl SharedBuffer {
    /// Whether a packet of `bytes` is taken into a queue of `queued` where all queues together hold `used`.
    fn takes(&self, queued: u64, used: u64, bytes: u64) -> bool {
        let free = self.bytes.saturating_sub(used);
        bytes <= free && (queued as f64) < self.alpha * free as f64
    }
}

/// PAUSE of the whole link by 802.3x: a switch counts what came by each link and has not reached the next node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pause {
    /// Asks for silence above this.
    pub high_packets: u32,
    /// And for more at or below this.
    pub low_packets: u32,
}

/// What a link went through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkCounters {
    /// Packets that the queue refused.
    pub drops: u64,
    /// Packets that were marked.
    pub marks: u64,
    /// Most packets that waited when a packet came (0 below the marking threshold, where nobody counts).
    pub waiting_max: u32,
    /// Times the link was paused.
    pub pauses: u32,
    /// For how long in all.
    pub paused_ps: u64,
}

/// Packets and bytes: in = delivered + dropped + on the way, at every moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Balance {
    /// Handed to a link by a host or an aggregator.
    pub sent: (u64, u64),
    /// Given to a host or an aggregator.
    pub delivered: (u64, u64),
    /// Dropped by a queue, a fault or for want of a path.
    pub dropped: (u64, u64),
}

/// What the caller must deal with.
#[derive(Clone, Copy, Debug)]
pub enum Happening {
    /// A packet has come to a host, or a `Tree` packet to the end of its path; by this link.
    Packet(u32, Packet),
    /// A time that was asked for, and its key.
    Timer(u64),
}

/// The network and the clock.
pub struct Network {
    now_ps: u64,
    hosts: u32,
    links: Vec<Link>,
    counters: Vec<LinkCounters>,
    pool: Pool,
    calendar: Calendar,
    agenda: BinaryHeap<Reverse<(u64, u64)>>,
    routes: Routes,
    paths: Vec<Box<[u32]>>,
    switching: Switching,
    /// Packets that came by a link and have not left the switch, by link.
    held: Vec<u32>,
    paused_since_ps: Vec<u64>,
    balance: Balance,
    hops: u64,
    topology: Topology,
    uplinks: Vec<u32>,
    /// Links out of the same switch, by link; empty unless switches share memory.
    siblings: Vec<Box<[u32]>>,
    /// Share of packets that a lossy link loses, by link.
    loss: Vec<f64>,
    random: Random,
    /// Protocol and `seq` of `Tree` packets that were dropped: whoever keeps what they carry may forget it.
    pub(crate) lost: Vec<(u16, u32)>,
}

/// Keys of the network's own timers; callers' keys lie below.
const OWN_TIMER: u64 = 1 << 63;
const RESUME: u64 = 1 << 62;

struct LinkEntries<'a>(&'a mut [Link]);

impl Entries for LinkEntries<'_> {
    #[inline]
    fn entry(&mut self, link: u32) -> &mut Entry {
        &mut self.0[link as usize].entry
    }
}

impl Network {
    /// A network at time 0. Errors name what in the topology cannot be simulated.
    pub fn new(topology: &Topology, switching: Switching) -> Result<Network, SimError> {
        let hosts = check(topology)?;
        let node =
            |link: u32| topology.edge(netsum_topo::EdgeId(link / 2)).ends[(link & 1 ^ 1) as usize];
        let links: Vec<Link> = (0..2 * topology.edges().count() as u32)
            .map(|link| {
                let edge = topology.edge(netsum_topo::EdgeId(link / 2));
                let (to, from) = (node(link), node(link ^ 1));
                let latency_ns = edge.latency_ns.unwrap_or(u64::from(switching.latency_ns));
                let state = if topology.is_switch(from) { 0 } else { FROM_HOST }
                    | if topology.is_switch(to) { 0 } else { TO_HOST };
                Link::new(to.0, edge.rate_bps, latency_ns as u32, state)
            })
            .collect();
        let slowest = |l: &Link| l.serialisation_ps(u64::from(u16::MAX)) + l.propagation_ps();
        let horizon = links.iter().map(slowest).max().unwrap_or(1);
        let siblings = match switching.shared {
            Some(_) => siblings(&links),
            None => Vec::new(),
        };
        let uplinks =
            topology.hosts().map(|h| outgoing(topology, topology.neighbours(h)[0].1.0, h));
        Ok(Network {
            now_ps: 0,
            hosts,
            counters: vec![LinkCounters::default(); links.len()],
            held: vec![0; links.len()],
            paused_since_ps: vec![0; links.len()],
            pool: Pool::default(),
            calendar: Calendar::new(horizon),
            agenda: BinaryHeap::new(),
            routes: Routes::new(topology, switching.paths, |_| true),
            paths: Vec::new(),
            switching,
            balance: Balance::default(),
            hops: 0,
            loss: vec![0.0; links.len()],
            random: Random::derived(0, "loss"),
            lost: Vec::new(),
            uplinks: uplinks.collect(),
            siblings,
            topology: topology.clone(),
            links,
        })
    }

    /// Now.
    #[inline]
    pub fn now_ps(&self) -> u64 {
        self.now_ps
    }

    /// Hosts: the nodes from 0 on.
    pub fn hosts(&self) -> u32 {
        self.hosts
    }

    /// The graph.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// The link by which a host sends.
    #[inline]
    pub fn uplink(&self, host: u32) -> u32 {
        self.uplinks[host as usize]
    }

    /// Node at the far end of a link.
    #[inline]
    pub fn far_end(&self, link: u32) -> u32 {
        self.links[link as usize].to
    }

    /// Directed links: edge e of the topology is 2e from its first end to its second, and 2e + 1 back.
    pub fn link_count(&self) -> u32 {
        self.links.len() as u32
    }

    /// Packets that have crossed a link, each counted once per link.
    pub fn hops(&self) -> u64 {
        self.hops
    }

    /// Bytes that have crossed a link.
    pub fn carried_bytes(&self, link: u32) -> u64 {
        self.links[link as usize].bytes
    }

    /// What a link went through.
    pub fn counters(&self, link: u32) -> LinkCounters {
        let mut counters = self.counters[link as usize];
        if self.links[link as usize].is(PAUSED) {
            counters.paused_ps += self.now_ps - self.paused_since_ps[link as usize];
        }
        counters
    }

    /// Packets that wait in a link's queue now.
    pub fn waiting(&self, link: u32) -> u32 {
        self.links[link as usize].waiting(self.now_ps, &self.pool)
    }

    /// How long a link would take for what is queued now.
    pub fn backlog_ps(&self, link: u32) -> u64 {
        self.links[link as usize].backlog_ps(self.now_ps)
    }

    /// How long a link takes for so many bytes, without propagation.
    pub fn serialisation_ps(&self, link: u32, bytes: u64) -> u64 {
        self.links[link as usize].serialisation_ps(bytes)
    }

    /// How long a link takes for a bit that has left its transmitter.
    pub(crate) fn propagation_ps(&self, link: u32) -> u64 {
        self.links[link as usize].propagation_ps()
    }

    /// What went in and came out.
    pub fn balance(&self) -> Balance {
        self.balance
    }

    /// The links by which a flow with this `entropy` goes from host to host; `None` if there is no way.
    pub(crate) fn way(&self, from: u32, to: u32, entropy: u16) -> Option<Vec<u32>> {
        let packet = Packet { dst: to as u16, entropy, ..Packet::new(Kind::Data, 0, 0, 0) };
        let mut way = vec![self.uplink(from)];
        loop {
            let link = *way.last().expect("it starts with one");
            let node = self.far_end(link);
            if node == to {
                return Some(way);
            }
            way.push(self.routes.next(node, &packet)?);
        }
    }

    /// The links by which a flow goes from host to host, and which part of its packets takes each: all of them the links of
    /// its way, unless packets choose for themselves. Every link is alive.
    pub(crate) fn parts(&self, from: u32, to: u32, entropy: u16) -> Box<[(u32, f64)]> {
        if self.switching.paths != PathChoice::Packet {
            let way =
                self.way(from, to, entropy).expect("hosts of a whole fabric reach each other");
            return way.into_iter().map(|link| (link, 1.0)).collect();
        }
        let mut parts = vec![(self.uplink(from), 1.0)];
        // All ways are shortest ones: a switch has all that comes to it before any of that goes on.
        let mut here = BTreeMap::from([(self.far_end(parts[0].0), 1.0)]);
        while !here.contains_key(&to) {
            let mut there = BTreeMap::new();
            for (switch, part) in here {
                let ways = self.routes.ways(switch, to);
                let each = part / ways.len() as f64;
                for link in ways {
                    parts.push((link, each));
                    *there.entry(self.far_end(link)).or_default() += each;
                }
            }
            here = there;
        }
        parts.into()
    }

    /// Whether every link of a path is alive.
    pub(crate) fn path_stands(&self, path: u32) -> bool {
        self.paths[path as usize].iter().all(|link| self.is_alive(link / 2))
    }

    /// A path for `Tree` packets: links that follow on each other. Its number is the packet's `flow`.
    pub fn add_path(&mut self, links: &[u32]) -> u32 {
        assert!(!links.is_empty(), "a path has at least one link");
        self.paths.push(links.into());
        self.paths.len() as u32 - 1
    }

    /// First link of a path.
    #[inline]
    pub fn path_start(&self, path: u32) -> u32 {
        self.paths[path as usize][0]
    }

    /// Asks for a `Timer` at a time, not in the past; equal times come by key. `key` is below 2⁶³.
    pub fn set_timer(&mut self, at_ps: u64, key: u64) {
        debug_assert!(at_ps >= self.now_ps && key < OWN_TIMER);
        self.agenda.push(Reverse((at_ps, key)));
    }

    /// Hands a new packet (or, at a host, a run of them) to a link.
    #[inline]
    pub fn send(&mut self, link: u32, packet: Packet) {
        let run = u64::from(packet.run());
        self.balance.sent.0 += run;
        self.balance.sent.1 += run * u64::from(packet.bytes);
        self.enqueue(link, packet);
    }

    /// Checks what must hold at every moment: what went in is delivered, dropped or on the way; queues are
    /// in order; nobody is counted at a switch who is not there. Panics if not.
    pub fn audit(&self) {
        let (mut queued, mut held) = ((0, 0), vec![0; self.links.len()]);
        for (index, link) in self.links.iter().enumerate() {
            let mut last = 0;
            for packet in link.queue().iter(&self.pool) {
                assert!(packet.at_ps >= last, "link {index}: a packet overtakes another");
                assert!(packet.at_ps >= self.now_ps, "link {index}: a packet is late");
                last = packet.at_ps;
                queued.0 += u64::from(packet.run());
                queued.1 += u64::from(packet.run()) * u64::from(packet.bytes);
                if packet.ingress != NO_LINK && self.switching.pause.is_some() {
                    held[packet.ingress as usize] += 1;
                }
            }
            let busy_ps = link.serialisation_ps(link.bytes);
            assert!(busy_ps <= self.now_ps, "link {index} carried more than it can");
        }
        let Balance { sent, delivered, dropped } = self.balance;
        assert_eq!(sent.0, delivered.0 + dropped.0 + queued.0, "packets went missing");
        assert_eq!(sent.1, delivered.1 + dropped.1 + queued.1, "bytes went missing");
        assert_eq!(held, self.held, "packets held at switches");
    }
}

/// By link, all links that begin where it begins.
fn siblings(links: &[Link]) -> Vec<Box<[u32]>> {
    // A link and its way back are neighbours in number.
    let from = |link: usize| links[link ^ 1].to;
    let out_of = |node: u32| (0..links.len()).filter(move |&link| from(link) == node);
    let of = |link: usize| match links[link].is(FROM_HOST) {
        true => Box::default(),
        false => out_of(from(link)).map(|link| link as u32).collect(),
    };
    (0..links.len()).map(of).collect()
}

pub(crate) fn check(topology: &Topology) -> Result<u32, SimError> {
    let hosts = topology.hosts().count();
    if hosts == 0 || hosts > usize::from(u16::MAX) {
        return Err(SimError::Hosts(hosts));
    }
    for (position, host) in topology.hosts().enumerate() {
        let name = topology.name(host).to_owned();
        match topology.neighbours(host) {
            _ if host.0 as usize != position => return Err(SimError::HostOrder { host: name }),
            [_] => {}
            links => return Err(SimError::HostLinks { host: name, links: links.len() }),
        }
    }
    Ok(hosts as u32)
}
