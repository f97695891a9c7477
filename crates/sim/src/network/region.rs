//! One thread's part of the network: links, queues, and time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;

use netsum_proto::Time;
use netsum_topo::{EdgeId, Topology};
use rustc_hash::FxHashMap;

use super::{Balance, Crossing, LinkCounters, Switching};
use crate::calendar::{Calendar, Entries, Entry};
use crate::fifo::Pool;
use crate::link::{CROSSING, ENTERED, FROM_HOST, Link, TO_HOST};
use crate::packet::{NO_LINK, Packet};
use crate::random::Random;
use crate::routes::Routes;

/// The links on which its nodes send, with a clock of its own. On cache lines (and pairs of them) that no other region's thread
/// writes.
#[repr(align(128))]
pub struct Region {
    pub(super) index: u8,
    pub(super) now_ps: u64,
    /// All links of the network. Of one that begins here the queue; of one that ends here and begins elsewhere, what
    /// was handed over and has not arrived.
    pub(super) links: Vec<Link>,
    pub(super) counters: Vec<LinkCounters>,
    pub(super) pool: Pool,
    /// Links that end here.
    pub(super) calendar: Calendar,
    pub(super) agenda: BinaryHeap<Reverse<(u64, u64)>>,
    pub(super) paths: Vec<Arc<[u32]>>,
    pub(super) common: Common,
    /// Packets that came by a link and have not reached the node after this, by link; only with PAUSE.
    pub(super) held: Vec<u32>,
    pub(super) paused_since_ps: Vec<u64>,
    pub(super) balance: Balance,
    pub(super) hops: u64,
    /// Links that lose packets: which share, and what decides.
    pub(super) loss: FxHashMap<u32, (f64, Random)>,
    /// Protocol and `seq` of `Tree` packets that were dropped: whoever keeps what they carry may forget it.
    pub(crate) lost: Vec<(u16, u32)>,
    /// Links that begin here and end elsewhere.
    pub(super) exports: Calendar,
    /// What was handed over and held a place at its ingress: when it arrives, its link, its ingress; in this order.
    pub(super) gone: VecDeque<(u64, u32, u32)>,
    /// For each region.
    pub(super) outbox: Vec<Crossing>,
    /// Packets and bytes that were handed over, and taken.
    pub(super) exported: (u64, u64),
    pub(super) imported: (u64, u64),
}

/// What all regions know.
#[derive(Clone)]
pub(super) struct Common {
    pub hosts: u32,
    pub lookahead_ps: u64,
    pub switching: Switching,
    pub routes: Arc<Routes>,
    /// By node.
    pub region_of: Arc<[u8]>,
    /// By host.
    pub uplinks: Arc<[u32]>,
    /// Links out of the same switch, by link; empty unless switches share memory.
    pub siblings: Arc<[Box<[u32]>]>,
}

/// Keys of the network's own timers; callers' keys lie below.
pub(super) const OWN_TIMER: u64 = 1 << 63;

pub(super) struct LinkEntries<'a>(pub &'a mut [Link]);

impl Entries for LinkEntries<'_> {
    #[inline]
    fn entry(&mut self, link: u32) -> &mut Entry {
        &mut self.0[link as usize].entry
    }
}

impl Region {
    pub(super) fn new(index: u8, count: u8, links: &[Link], common: Common) -> Region {
        let slowest = |l: &Link| l.serialisation_ps(u64::from(u16::MAX)) + l.propagation_ps();
        let horizon_ps = links.iter().map(slowest).max().unwrap_or(1);
        let mut links = links.to_vec();
        for link in 0..links.len() {
            let [to, from] = [link, link ^ 1].map(|l| common.region_of[links[l].to as usize]);
            if from == index && to != index {
                links[link].state |= CROSSING;
            }
        }
        Region {
            index,
            now_ps: 0,
            counters: vec![LinkCounters::default(); links.len()],
            held: vec![0; links.len()],
            paused_since_ps: vec![0; links.len()],
            links,
            pool: Pool::default(),
            calendar: Calendar::new(horizon_ps),
            agenda: BinaryHeap::new(),
            paths: Vec::new(),
            balance: Balance::default(),
            hops: 0,
            loss: FxHashMap::default(),
            lost: Vec::new(),
            exports: Calendar::new(horizon_ps),
            gone: VecDeque::new(),
            outbox: (0..count).map(|_| Crossing::default()).collect(),
            exported: (0, 0),
            imported: (0, 0),
            common,
        }
    }

    /// Now.
    #[inline]
    pub fn now_ps(&self) -> u64 {
        self.now_ps
    }

    /// Now, as machines are told.
    #[inline]
    pub(crate) fn now(&self) -> Time {
        Time(self.now_ps / 1000)
    }

    /// The shortest propagation of a link of the network.
    pub(crate) fn lookahead_ps(&self) -> u64 {
        self.common.lookahead_ps
    }

    /// The link by which a host sends.
    #[inline]
    pub fn uplink(&self, host: u32) -> u32 {
        self.common.uplinks[host as usize]
    }

    /// Packets that have crossed a link and arrived here.
    pub fn hops(&self) -> u64 {
        self.hops
    }

    /// What went in and came out here.
    pub fn balance(&self) -> Balance {
        self.balance
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

    /// As [`super::Network::audit`], for what is here.
    pub(crate) fn audit(&self) {
        let (mut queued, mut held) = ((0, 0), vec![0; self.links.len()]);
        for (index, link) in self.links.iter().enumerate() {
            let mut last = 0;
            for packet in link.queue().iter(&self.pool) {
                assert!(packet.at_ps >= last, "link {index}: a packet overtakes another");
                assert!(packet.at_ps >= self.now_ps, "link {index}: a packet is late");
                last = packet.at_ps;
                queued.0 += u64::from(packet.run());
                queued.1 += u64::from(packet.run()) * u64::from(packet.bytes);
                if packet.ingress != NO_LINK && self.common.switching.pause.is_some() {
                    held[packet.ingress as usize] += 1;
                }
            }
            let busy_ps = link.serialisation_ps(link.bytes);
            assert!(busy_ps <= self.now_ps, "link {index} carried more than it can");
        }
        self.gone.iter().for_each(|&(.., ingress)| held[ingress as usize] += 1);
        let Balance { sent, delivered, dropped } = self.balance;
        let (exported, imported) = self.crossed();
        let (came, went) = (sent.0 + imported.0, delivered.0 + dropped.0 + exported.0);
        assert_eq!(came, went + queued.0, "packets went missing");
        let (came, went) = (sent.1 + imported.1, delivered.1 + dropped.1 + exported.1);
        assert_eq!(came, went + queued.1, "bytes went missing");
        assert_eq!(held, self.held, "packets held at switches");
    }

    /// Packets and bytes that were handed over to other regions, and taken from them.
    pub(super) fn crossed(&self) -> ((u64, u64), (u64, u64)) {
        (self.exported, self.imported)
    }

    /// The first packet in a link's queue arrives then, and none before it is on its way.
    #[inline]
    pub(super) fn enter(&mut self, link: u32, at_ps: u64) {
        let l = &mut self.links[link as usize];
        if !l.is(CROSSING) {
            self.calendar.insert(link, at_ps, &mut LinkEntries(&mut self.links));
        } else if !l.is(ENTERED) {
            l.state |= ENTERED;
            self.exports.insert(link, at_ps, &mut LinkEntries(&mut self.links));
        }
    }
}

/// All links of a network, by number.
pub(super) fn links(topology: &Topology, switching: &Switching) -> Vec<Link> {
    let node = |link: u32| topology.edge(EdgeId(link / 2)).ends[(link & 1 ^ 1) as usize];
    (0..2 * topology.edges().count() as u32)
        .map(|link| {
            let edge = topology.edge(EdgeId(link / 2));
            let (to, from) = (node(link), node(link ^ 1));
            let latency_ns = edge.latency_ns.unwrap_or(u64::from(switching.latency_ns));
            let state = if topology.is_switch(from) { 0 } else { FROM_HOST }
                | if topology.is_switch(to) { 0 } else { TO_HOST };
            Link::new(to.0, edge.rate_bps, latency_ns as u32, state)
        })
        .collect()
}

/// By link, all links that begin where it begins.
pub(super) fn siblings(links: &[Link]) -> Vec<Box<[u32]>> {
    // A link and its way back are neighbours in number.
    let from = |link: usize| links[link ^ 1].to;
    let out_of = |node: u32| (0..links.len()).filter(move |&link| from(link) == node);
    let of = |link: usize| match links[link].is(FROM_HOST) {
        true => Box::default(),
        false => out_of(from(link)).map(|link| link as u32).collect(),
    };
    (0..links.len()).map(of).collect()
}
