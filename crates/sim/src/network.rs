//! Links, switches and time: what happens to a packet between two hosts.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use netsum_topo::Topology;

use crate::calendar::{Calendar, Entries, Entry};
use crate::error::SimError;
use crate::fifo::Pool;
use crate::link::{DEAD, FROM_HOST, LOSSY, Link, PAUSED, TO_HOST};
use crate::packet::{Kind, NO_LINK, Packet};
use crate::random::Random;
use crate::routes::{PathChoice, Routes, outgoing};

/// What every switch does with packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switching {
    /// A packet is marked if, when it comes, at least so many wait in the output queue: without itself and
    /// without the one in the transmitter. Hosts do not mark.
    pub mark_packets: u32,
    /// A packet is dropped if so many wait.
    pub queue_packets: u32,
    /// PAUSE instead of dropping.
    pub pause: Option<Pause>,
    /// Between equal paths.
    pub paths: PathChoice,
    /// Where the topology does not say, in nanoseconds.
    pub latency_ns: u32,
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
    /// Share of packets that a lossy link loses, by link.
    loss: Vec<f64>,
    random: Random,
    /// `seq` of `Tree` packets that were dropped: whoever keeps what they carry may forget it.
    pub(crate) lost: Vec<u32>,
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

    /// What went in and came out.
    pub fn balance(&self) -> Balance {
        self.balance
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

    /// A link loses this share of its packets from now on, drawn from `seed` when it is first set.
    pub fn set_loss(&mut self, link: u32, share: f64, seed: u64) {
        if self.loss.iter().all(|&share| share == 0.0) {
            self.random = Random::derived(seed, "loss");
        }
        self.loss[link as usize] = share;
        let state = &mut self.links[link as usize].state;
        *state = if share > 0.0 { *state | LOSSY } else { *state & !LOSSY };
    }

    /// Both directions of an edge die, with what is on them, or come back. Switches go on using them until `reroute`.
    pub fn set_alive(&mut self, edge: u32, alive: bool) {
        for link in [2 * edge, 2 * edge + 1] {
            let state = &mut self.links[link as usize].state;
            *state = if alive { *state & !DEAD } else { *state | DEAD };
        }
    }

    /// Shortest paths over what is alive.
    pub fn reroute(&mut self) {
        let alive = |edge: u32| !self.links[2 * edge as usize].is(DEAD);
        self.routes = Routes::new(&self.topology, self.switching.paths, alive);
    }

    /// Whether an edge is alive.
    pub fn is_alive(&self, edge: u32) -> bool {
        !self.links[2 * edge as usize].is(DEAD)
    }

    /// Hands a new packet (or, at a host, a run of them) to a link.
    #[inline]
    pub fn send(&mut self, link: u32, packet: Packet) {
        let run = u64::from(packet.run());
        self.balance.sent.0 += run;
        self.balance.sent.1 += run * u64::from(packet.bytes);
        self.enqueue(link, packet);
    }

    /// Goes on to what the caller must deal with, up to and including `until_ps`; `None` if nothing is left
    /// until then.
    pub fn next(&mut self, until_ps: u64) -> Option<Happening> {
        loop {
            let delivery = self.calendar.peek(&mut LinkEntries(&mut self.links));
            let at = delivery.map_or(u64::MAX, |(at, _)| at);
            if let Some(&Reverse((timer, key))) = self.agenda.peek()
                && timer <= at
            {
                if timer > until_ps {
                    break;
                }
                self.agenda.pop();
                self.now_ps = timer;
                if key < OWN_TIMER {
                    return Some(Happening::Timer(key));
                }
                self.obey(key);
                continue;
            }
            let Some((at, link)) = delivery.filter(|&(at, _)| at <= until_ps) else { break };
            debug_assert!(at >= self.now_ps, "time never decreases");
            self.now_ps = at;
            self.calendar.pop();
            if let Some(packet) = self.arrive(link) {
                return Some(Happening::Packet(link, packet));
            }
        }
        self.now_ps = self.now_ps.max(until_ps.min(u64::MAX - 1));
        None
    }

    /// The first packet of a link has come to its far end; `Some` if it goes no further.
    #[inline]
    fn arrive(&mut self, link: u32) -> Option<Packet> {
        let l = &mut self.links[link as usize];
        let (mut packet, next) = l.pop(&mut self.pool);
        debug_assert_eq!(packet.at_ps, self.now_ps, "a packet arrives when it was said to");
        let (to, state) = (l.to, l.state);
        if let Some(at) = next {
            self.calendar.insert(link, at, &mut LinkEntries(&mut self.links));
        }
        if self.switching.pause.is_some() {
            self.release(packet.ingress);
        }
        if state & (DEAD | LOSSY) != 0 && self.loses(link, state) {
            self.drop_packet(Some(link), &packet);
            return None;
        }
        self.links[link as usize].bytes += u64::from(packet.bytes);
        self.hops += 1;
        let onward = match packet.kind() {
            Kind::Tree => self.onward(link, &packet),
            _ if state & TO_HOST != 0 => None,
            _ => match self.routes.next(to, &packet) {
                Some(onward) => Some(onward),
                None => {
                    self.drop_packet(None, &packet);
                    return None;
                }
            },
        };
        match onward {
            Some(onward) => {
                packet.ingress = link;
                self.enqueue(onward, packet);
                None
            }
            None => {
                self.balance.delivered.0 += 1;
                self.balance.delivered.1 += u64::from(packet.bytes);
                Some(packet)
            }
        }
    }

    fn loses(&mut self, link: u32, state: u8) -> bool {
        state & DEAD != 0 || self.random.unit() < self.loss[link as usize]
    }

    #[inline]
    fn onward(&self, link: u32, packet: &Packet) -> Option<u32> {
        let path = &self.paths[packet.flow as usize];
        let at = path.iter().position(|&l| l == link).expect("a packet stays on its path");
        path.get(at + 1).copied()
    }

    #[inline]
    fn enqueue(&mut self, link: u32, mut packet: Packet) {
        let l = &mut self.links[link as usize];
        if !l.is(FROM_HOST) {
            let Switching { mark_packets, queue_packets, pause, .. } = self.switching;
            // What is on the wire is counted in `len`, so this is seldom more than one comparison.
            if l.queue().len() >= mark_packets.min(queue_packets) {
                let waiting = l.waiting(self.now_ps, &self.pool);
                let counters = &mut self.counters[link as usize];
                counters.waiting_max = counters.waiting_max.max(waiting);
                if waiting >= queue_packets && pause.is_none() {
                    self.drop_packet(Some(link), &packet);
                    return;
                }
                if waiting >= mark_packets {
                    counters.marks += 1;
                    packet.mark();
                }
            }
            if l.is(DEAD) {
                self.drop_packet(Some(link), &packet);
                return;
            }
            if pause.is_some() {
                self.hold(packet.ingress);
            }
        }
        let l = &mut self.links[link as usize];
        if let Some(at) = l.push(self.now_ps, packet, &mut self.pool) {
            self.calendar.insert(link, at, &mut LinkEntries(&mut self.links));
        }
    }

    fn drop_packet(&mut self, link: Option<u32>, packet: &Packet) {
        if let Some(link) = link {
            self.counters[link as usize].drops += 1;
        }
        self.balance.dropped.0 += 1;
        self.balance.dropped.1 += u64::from(packet.bytes);
        if packet.kind() == Kind::Tree {
            self.lost.push(packet.seq);
        }
    }

    #[inline]
    fn hold(&mut self, ingress: u32) {
        let Some(Pause { high_packets, .. }) = self.switching.pause else { return };
        if ingress == NO_LINK {
            return;
        }
        let held = &mut self.held[ingress as usize];
        *held += 1;
        if *held == high_packets + 1 {
            self.ask(ingress, 0);
        }
    }

    #[inline]
    fn release(&mut self, ingress: u32) {
        let Some(Pause { low_packets, .. }) = self.switching.pause else { return };
        if ingress == NO_LINK {
            return;
        }
        let held = &mut self.held[ingress as usize];
        *held -= 1;
        if *held == low_packets {
            self.ask(ingress, RESUME);
        }
    }

    /// A PAUSE frame goes back over the link's wire; it waits for nothing.
    fn ask(&mut self, ingress: u32, what: u64) {
        let at = self.now_ps + self.links[ingress as usize].propagation_ps();
        self.agenda.push(Reverse((at, OWN_TIMER | what | u64::from(ingress))));
    }

    fn obey(&mut self, key: u64) {
        let link = key as u32;
        let (l, since) = (&mut self.links[link as usize], &mut self.paused_since_ps[link as usize]);
        let counters = &mut self.counters[link as usize];
        match (key & RESUME != 0, l.is(PAUSED)) {
            (false, false) => {
                l.pause(self.now_ps, &mut self.pool);
                counters.pauses += 1;
                *since = self.now_ps;
            }
            (true, true) => {
                counters.paused_ps += self.now_ps - *since;
                if let Some(at) = l.resume(self.now_ps, &mut self.pool) {
                    self.calendar.insert(link, at, &mut LinkEntries(&mut self.links));
                }
            }
            _ => {}
        }
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
