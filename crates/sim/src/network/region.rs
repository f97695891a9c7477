//! One thread's part of the network: links, queues and time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;

use netsum_proto::Time;
use netsum_topo::{EdgeId, Topology};
use rustc_hash::FxHashMap;

use super::ahead::Expected;
use super::loss::Loss;
use super::{Balance, Crossing, HostQueue, LinkCounters, Switching};
use crate::calendar::{Calendar, Times};
use crate::fair::FairQueue;
use crate::fifo::Pool;
use crate::link::{CROSSING, ENTERED, FROM_HOST, LOSSY, Link, NEVER, PAUSED, TO_HOST};
use crate::packet::{Kind, NO_LINK, Packet};
use crate::routes::Routes;
use crate::visit::{Pending, Visitor};

/// The links on which its nodes send, and a clock. Aligned so that regions share no cache line, nor a pair of them.
#[repr(align(128))]
pub struct Region {
    pub(super) index: u8,
    pub(super) now_ps: u64,
    /// All links of the network. A link that begins here has its queue; a link that begins in another region has the
    /// packets that were handed over and have not arrived.
    pub(super) links: Vec<Link>,
    pub(super) counters: Vec<LinkCounters>,
    pub(super) pool: Pool,
    /// The links that end here.
    pub(super) calendar: Calendar,
    pub(super) agenda: BinaryHeap<Reverse<(u64, u64)>>,
    pub(super) paths: Vec<Arc<[u32]>>,
    pub(super) common: Common,
    /// With PAUSE, by link: packets that arrived on the link and have not reached the next node.
    pub(super) held: Vec<u32>,
    pub(super) paused_since_ps: Vec<u64>,
    /// Packets that wait in hosts for the rings of their links, by host; unused if hosts' queues are not fair.
    pub(super) fair: Vec<FairQueue>,
    pub(super) balance: Balance,
    pub(super) hops: u64,
    /// Flows whose packets reach hosts soon, since hosts last looked.
    pub(crate) expected: Vec<Expected>,
    /// Lossy links.
    pub(super) loss: FxHashMap<u32, Loss>,
    /// Protocol and `seq` of dropped `Tree` packets, whose contents can be freed.
    pub(crate) lost: Vec<(u16, u32)>,
    /// The links that begin here and end in other regions.
    pub(super) exports: Calendar,
    /// Packets handed over that still count at their ingress: time of arrival, link, ingress; in this order.
    pub(super) gone: VecDeque<(u64, u32, u32)>,
    /// Outbox per region.
    pub(super) outbox: Vec<Crossing>,
    /// Packets and bytes handed over to, and accepted from, other regions.
    pub(super) exported: (u64, u64),
    pub(super) imported: (u64, u64),
}

/// Data shared by all regions.
#[derive(Clone)]
pub(super) struct Common {
    pub hosts: u32,
    pub lookahead_ps: u64,
    pub switching: Switching,
    pub routes: Arc<Routes>,
    /// Region by node.
    pub region_of: Arc<[u8]>,
    /// Uplink by host.
    pub uplinks: Arc<[u32]>,
    /// Links of the same switch, by link; empty unless switches share memory.
    pub siblings: Arc<[Box<[u32]>]>,
}

/// Keys of the network's own timers; callers' keys are lower.
pub(crate) const OWN_TIMER: u64 = 1 << 63;

pub(super) struct LinkTimes<'a>(pub &'a mut [Link]);

impl Times for LinkTimes<'_> {
    #[inline]
    fn at_ps(&mut self, link: u32) -> &mut u64 {
        &mut self.0[link as usize].at_ps
    }
}

impl Region {
    pub(super) fn new(index: u8, count: u8, links: &[Link], common: Common) -> Region {
        let slowest = |l: &Link| l.serialisation_ps(u64::from(u16::MAX)) + l.propagation_ps();
        let horizon_ps = links.iter().map(slowest).max().unwrap_or(1);
        let (mut links, count_of_links) = (links.to_vec(), links.len());
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
            fair: fair_queues(&common),
            links,
            pool: Pool::default(),
            calendar: Calendar::new(horizon_ps, count_of_links),
            agenda: BinaryHeap::new(),
            paths: Vec::new(),
            balance: Balance::default(),
            hops: 0,
            expected: Vec::new(),
            loss: FxHashMap::default(),
            lost: Vec::new(),
            exports: Calendar::new(horizon_ps, count_of_links),
            gone: VecDeque::new(),
            outbox: (0..count).map(|_| Crossing::default()).collect(),
            exported: (0, 0),
            imported: (0, 0),
            common,
        }
    }

    /// The current time.
    #[inline]
    pub fn now_ps(&self) -> u64 {
        self.now_ps
    }

    /// The current time as `proto`'s machines take it.
    #[inline]
    pub(crate) fn now(&self) -> Time {
        Time(self.now_ps / 1000)
    }

    /// The shortest propagation time of the network's links.
    pub(crate) fn lookahead_ps(&self) -> u64 {
        self.common.lookahead_ps
    }

    /// The link on which a host sends.
    #[inline]
    pub fn uplink(&self, host: u32) -> u32 {
        self.common.uplinks[host as usize]
    }

    /// Packets that have crossed a link and arrived in this region.
    pub fn hops(&self) -> u64 {
        self.hops
    }

    /// Totals of packets and bytes sent, delivered and dropped here.
    pub fn balance(&self) -> Balance {
        self.balance
    }

    /// The node where a path begins and whether it is a host, and the same of its end.
    pub(crate) fn path_ends(&self, path: u32) -> [(u32, bool); 2] {
        let path = &self.paths[path as usize];
        let (first, last) = (path[0], path[path.len() - 1]);
        let start = self.links[(first ^ 1) as usize].to;
        let (first, last) = (&self.links[first as usize], &self.links[last as usize]);
        [(start, first.state & FROM_HOST != 0), (last.to, last.state & TO_HOST != 0)]
    }

    /// First link of a path.
    #[inline]
    pub fn path_start(&self, path: u32) -> u32 {
        self.paths[path as usize][0]
    }

    /// Sets a `Timer`, not in the past; equal times fire in the order of keys. `key` is below 2⁶³.
    pub fn set_timer(&mut self, at_ps: u64, key: u64) {
        debug_assert!(at_ps >= self.now_ps && key < OWN_TIMER);
        self.agenda.push(Reverse((at_ps, key)));
    }

    /// Sends a new packet (or, at a host, a run of them) on a link.
    #[inline]
    pub fn send(&mut self, link: u32, packet: Packet) {
        let run = u64::from(packet.run());
        self.balance.sent.0 += run;
        self.balance.sent.1 += run * u64::from(packet.bytes);
        self.enqueue(link, packet);
    }

    /// The island of a link.
    pub(crate) fn island_of(&self, link: u32) -> u32 {
        self.calendar.island_of(link)
    }

    /// From now on the order of simultaneous deliveries on an island depends on the time since now, so that what repeats
    /// itself has the same order again.
    pub(crate) fn begin_order(&mut self, island: u32) {
        self.calendar.rebase(island, self.now_ps);
        self.exports.rebase(island, self.now_ps);
        let gone = self.gone.make_contiguous();
        gone.sort_by_key(|&(at_ps, link, _)| self.calendar.order((at_ps, link)));
    }

    /// Whether some link loses packets by their numbers or at random.
    pub(crate) fn is_lossy(&self) -> bool {
        self.loss.keys().any(|&link| self.links[link as usize].is(LOSSY))
    }

    /// Times of the timers that `select` selects, the earliest.
    pub(crate) fn first_timer(&self, select: impl Fn(u64) -> bool) -> Option<u64> {
        let chosen = self.agenda.iter().filter(|Reverse((_, key))| select(*key));
        chosen.map(|Reverse((at_ps, _))| *at_ps).min()
    }

    /// Visits the state of the only region of a network. `pending`: the part that timers have in it; `base` as in
    /// [`Packet::visit`]. After times have moved, `reenter` must follow.
    pub(crate) fn visit(
        &mut self,
        v: &mut impl Visitor,
        pending: impl Fn(u64) -> Pending,
        base: &[u32],
    ) {
        let Region {
            index: _,
            now_ps,
            links,
            counters,
            pool,
            calendar,
            agenda,
            paths,
            // A change of routes is a fault, after which nothing repeats what was before.
            common: _,
            held,
            paused_since_ps,
            fair,
            balance,
            hops,
            // It decides nothing.
            expected: _,
            // Runs are not compared while links lose packets.
            loss: _,
            lost,
            // With one region nothing crosses.
            exports: _,
            gone: _,
            outbox: _,
            exported: _,
            imported: _,
        } = self;
        let now = *now_ps;
        v.time(now_ps);
        calendar.bases_ps().iter().for_each(|&base_ps| v.time(&mut base_ps.clone()));
        v.both(paths.len() as u32, lost.len() as u32);
        for (number, link) in (0..).zip(&mut *links) {
            link.visit(v, (number, now), (pool, base));
            if link.is(PAUSED) {
                v.time(&mut paused_since_ps[number as usize]);
            }
        }
        v.same(NO_LINK.into());
        for LinkCounters { drops, marks, waiting_max: _, pauses, paused_ps } in counters {
            // `waiting_max` has seen all that repeats.
            [drops, marks, paused_ps].into_iter().for_each(|counter| v.count(counter));
            v.count_u32(pauses);
        }
        for (ingress, &held) in held.iter().enumerate().filter(|(_, held)| **held > 0) {
            v.both(ingress as u32, held);
        }
        v.same(NO_LINK.into());
        for (host, queue) in fair.iter_mut().enumerate().filter(|(_, queue)| !queue.is_at_rest()) {
            v.same(host as u64);
            queue.visit(v, base);
        }
        v.same(NO_LINK.into());
        let mut timers = std::mem::take(agenda).into_vec();
        timers.sort_unstable();
        for Reverse((at_ps, key)) in timers.iter_mut().rev() {
            match pending(*key) {
                Pending::Part => {
                    v.same(*key);
                    v.time(at_ps);
                }
                Pending::Follows => v.moves(at_ps),
                Pending::Beyond => {}
            }
        }
        v.same(u64::MAX);
        *agenda = timers.into();
        let Balance { sent, delivered, dropped } = balance;
        for (packets, bytes) in [sent, delivered, dropped] {
            v.count(packets);
            v.count(bytes);
        }
        v.count(hops);
    }

    /// Enters the links into the calendar again after times have moved by `by_ps`.
    pub(crate) fn reenter(&mut self, by_ps: u64) {
        self.calendar.clear_and_move(by_ps);
        let first_ps = |(number, link): (u32, &Link)| match link.queue().is_empty() {
            true => None,
            false => Some((link.queue().iter(&self.pool).next()?.at_ps, number)),
        };
        let mut entries: Vec<_> = (0..).zip(&self.links).filter_map(first_ps).collect();
        entries.retain(|&(at_ps, _)| at_ps != NEVER);
        // An empty calendar begins with the earliest entry.
        entries.sort_unstable();
        for (at_ps, link) in entries {
            self.calendar.insert(link, at_ps, &mut LinkTimes(&mut self.links));
        }
    }

    /// Like [`super::Network::audit`], for this region.
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
        for packet in self.fair.iter().flat_map(FairQueue::iter) {
            queued.0 += u64::from(packet.run());
            queued.1 += u64::from(packet.run()) * u64::from(packet.bytes);
        }
        for next in self.calendar.batch().iter().filter(|next| next.onward != NO_LINK) {
            let link = &self.links[next.link as usize];
            let packet = link.queue().first(&self.pool);
            if packet.kind() != Kind::Tree && !link.is(TO_HOST) {
                let onward = self.common.routes.next(link.to, packet);
                assert_eq!(onward, Some(next.onward), "link {}: another way", next.link);
            }
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

    /// Packets and bytes handed over to, and accepted from, other regions.
    pub(super) fn crossed(&self) -> ((u64, u64), (u64, u64)) {
        (self.exported, self.imported)
    }

    /// Records when the first packet of a link's queue arrives; no earlier packet is in transit.
    #[inline]
    pub(super) fn enter(&mut self, link: u32, at_ps: u64) {
        let l = &mut self.links[link as usize];
        if !l.is(CROSSING) {
            self.calendar.insert(link, at_ps, &mut LinkTimes(&mut self.links));
        } else if !l.is(ENTERED) {
            l.state |= ENTERED;
            self.exports.insert(link, at_ps, &mut LinkTimes(&mut self.links));
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

/// A queue for each host, if hosts have queues per flow.
fn fair_queues(common: &Common) -> Vec<FairQueue> {
    let Switching { host_queue, host_mark_ps, .. } = common.switching;
    let HostQueue::Fair { small_bytes } = host_queue else { return Vec::new() };
    let new = || FairQueue::new(small_bytes, host_mark_ps != u64::MAX);
    std::iter::repeat_with(new).take(common.hosts as usize).collect()
}

/// By link, all links that begin at the same node.
pub(super) fn siblings(links: &[Link]) -> Vec<Box<[u32]>> {
    // The two directions of a link have consecutive numbers.
    let from = |link: usize| links[link ^ 1].to;
    let out_of = |node: u32| (0..links.len()).filter(move |&link| from(link) == node);
    let of = |link: usize| match links[link].is(FROM_HOST) {
        true => Box::default(),
        false => out_of(from(link)).map(|link| link as u32).collect(),
    };
    (0..links.len()).map(of).collect()
}
