//! Links, switches and time: what happens to a packet between two hosts.
//!
//! A [`Network`] is cut into regions, one per thread that moves packets. A [`Region`] has the links that its nodes send
//! on, and a clock and a calendar of its own; what crosses its border is handed over ahead of time, because a link takes
//! its propagation to deliver.

mod crossing;
mod faults;
mod moving;
mod pause;
mod region;

use std::collections::BTreeMap;
use std::sync::Arc;

use netsum_proto::Time;
use netsum_topo::Topology;

pub(crate) use crossing::Crossing;
pub use region::Region;

use crate::error::SimError;
use crate::link::PAUSED;
use crate::packet::{Kind, Packet};
use crate::partition::{self, Threads};
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
pub enum NetworkEvent {
    /// A packet has come to a host, or a `Tree` packet to the end of its path; by this link.
    Packet(u32, Packet),
    /// A time that was asked for, and its key.
    Timer(u64),
}

/// The network: all regions, and what they have in common.
pub struct Network {
    pub(crate) regions: Vec<Region>,
    /// Region of a node, which is that of the links that begin there.
    region_of: Arc<[u8]>,
    topology: Topology,
    switching: Switching,
}

impl Network {
    /// A network of one region at time 0. Errors name what in the topology cannot be simulated.
    pub fn new(topology: &Topology, switching: Switching) -> Result<Network, SimError> {
        Network::in_regions(topology, switching, Threads::ONE)
    }

    /// The same in a region for each thread, of which the first has all hosts; in one, if packets may cross a link in no time.
    pub fn in_regions(
        topology: &Topology,
        switching: Switching,
        threads: Threads,
    ) -> Result<Network, SimError> {
        let hosts = check(topology)?;
        let links = region::links(topology, &switching);
        let lookahead_ps = links.iter().map(|link| link.propagation_ps()).min().unwrap_or(0);
        let threads = if lookahead_ps == 0 { Threads::ONE } else { threads };
        let region_of: Arc<[u8]> = partition::regions(topology, threads).into();
        let siblings: Arc<[Box<[u32]>]> = match switching.shared {
            Some(_) => region::siblings(&links).into(),
            None => Arc::default(),
        };
        let uplinks =
            topology.hosts().map(|h| outgoing(topology, topology.neighbours(h)[0].1.0, h));
        let common = region::Common {
            hosts,
            lookahead_ps,
            switching,
            routes: Arc::new(Routes::new(topology, switching.paths, |_| true)),
            region_of: Arc::clone(&region_of),
            uplinks: uplinks.collect(),
            siblings,
        };
        let count = region_of.iter().max().map_or(1, |&last| last + 1);
        let regions = (0..count).map(|index| Region::new(index, count, &links, common.clone()));
        Ok(Network { regions: regions.collect(), region_of, topology: topology.clone(), switching })
    }

    /// Now.
    #[inline]
    pub fn now_ps(&self) -> u64 {
        self.hosts_region().now_ps()
    }

    /// Now, as machines are told.
    pub(crate) fn now(&self) -> Time {
        self.hosts_region().now()
    }

    /// Hosts: the nodes from 0 on.
    pub fn hosts(&self) -> u32 {
        self.hosts_region().common.hosts
    }

    /// The graph.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// What happens in one part of the network reaches no other part sooner than this: the shortest propagation of a
    /// link.
    pub fn lookahead_ps(&self) -> u64 {
        self.hosts_region().common.lookahead_ps
    }

    /// Region of each node.
    pub(crate) fn region_of(&self) -> &Arc<[u8]> {
        &self.region_of
    }

    /// The link by which a host sends.
    #[inline]
    pub fn uplink(&self, host: u32) -> u32 {
        self.hosts_region().uplink(host)
    }

    /// Node at the far end of a link.
    #[inline]
    pub fn far_end(&self, link: u32) -> u32 {
        self.hosts_region().links[link as usize].to
    }

    /// Directed links: edge e of the topology is 2e from its first end to its second, and 2e + 1 back.
    pub fn link_count(&self) -> u32 {
        self.hosts_region().links.len() as u32
    }

    /// Packets that have crossed a link, each counted once per link.
    pub fn hops(&self) -> u64 {
        self.regions.iter().map(Region::hops).sum()
    }

    /// Bytes that have crossed a link.
    pub fn carried_bytes(&self, link: u32) -> u64 {
        // Counted where they arrive.
        self.regions.iter().map(|region| region.links[link as usize].bytes).sum()
    }

    /// What a link went through.
    pub fn counters(&self, link: u32) -> LinkCounters {
        // Each is counted where it happens: at the queue, or at the far end.
        let mut sum = LinkCounters::default();
        for region in &self.regions {
            let counters = region.counters[link as usize];
            sum.drops += counters.drops;
            sum.marks += counters.marks;
            sum.waiting_max = sum.waiting_max.max(counters.waiting_max);
            sum.pauses += counters.pauses;
            sum.paused_ps += counters.paused_ps;
            if region.links[link as usize].is(PAUSED) {
                sum.paused_ps += region.now_ps() - region.paused_since_ps[link as usize];
            }
        }
        sum
    }

    /// Packets that wait in a link's queue now.
    pub fn waiting(&self, link: u32) -> u32 {
        let region = self.sender(link);
        region.links[link as usize].waiting(region.now_ps(), &region.pool)
    }

    /// How long a link would take for what is queued now.
    pub fn backlog_ps(&self, link: u32) -> u64 {
        let region = self.sender(link);
        region.links[link as usize].backlog_ps(region.now_ps())
    }

    /// How long a link takes for so many bytes, without propagation.
    pub fn serialisation_ps(&self, link: u32, bytes: u64) -> u64 {
        self.hosts_region().links[link as usize].serialisation_ps(bytes)
    }

    /// How long a link takes for a bit that has left its transmitter.
    pub(crate) fn propagation_ps(&self, link: u32) -> u64 {
        self.hosts_region().links[link as usize].propagation_ps()
    }

    /// What went in and came out.
    pub fn balance(&self) -> Balance {
        let mut sum = Balance::default();
        for Balance { sent, delivered, dropped } in self.regions.iter().map(Region::balance) {
            let add = |a: (u64, u64), b: (u64, u64)| (a.0 + b.0, a.1 + b.1);
            sum.sent = add(sum.sent, sent);
            sum.delivered = add(sum.delivered, delivered);
            sum.dropped = add(sum.dropped, dropped);
        }
        sum
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
            way.push(self.routes().next(node, &packet)?);
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
                let ways = self.routes().ways(switch, to);
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
        self.hosts_region().paths[path as usize].iter().all(|link| self.is_alive(link / 2))
    }

    /// A path for `Tree` packets: links that follow on each other. Its number is the packet's `flow`.
    pub fn add_path(&mut self, links: &[u32]) -> u32 {
        assert!(!links.is_empty(), "a path has at least one link");
        let path: Arc<[u32]> = links.into();
        self.regions.iter_mut().for_each(|region| region.paths.push(Arc::clone(&path)));
        self.hosts_region().paths.len() as u32 - 1
    }

    /// Asks for a `Timer` at a time, not in the past; equal times come by key. `key` is below 2⁶³.
    pub fn set_timer(&mut self, at_ps: u64, key: u64) {
        self.regions[0].set_timer(at_ps, key);
    }

    /// Hands a new packet (or, at a host, a run of them) to a link of the first region.
    pub fn send(&mut self, link: u32, packet: Packet) {
        self.regions[0].send(link, packet);
    }

    /// Of a network of one region: goes on to what the caller must deal with, up to and including `until_ps`; `None` if
    /// nothing is left until then.
    pub fn next(&mut self, until_ps: u64) -> Option<NetworkEvent> {
        assert!(self.regions.len() == 1, "regions go on side by side");
        self.regions[0].next(until_ps)
    }

    /// Time goes on in all regions, in which nothing was to be done until then.
    pub(crate) fn wait_until(&mut self, at_ps: u64) {
        self.regions.iter_mut().for_each(|region| region.wait_until(at_ps));
    }

    /// Checks what must hold at every moment: what went in is delivered, dropped or on the way; queues are
    /// in order; nobody is counted at a switch who is not there. Panics if not.
    pub fn audit(&self) {
        self.regions.iter().for_each(Region::audit);
        let mut on_the_way = (0i128, 0i128);
        for (exported, imported) in self.regions.iter().map(Region::crossed) {
            on_the_way.0 += i128::from(exported.0) - i128::from(imported.0);
            on_the_way.1 += i128::from(exported.1) - i128::from(imported.1);
        }
        assert_eq!(on_the_way, (0, 0), "packets went missing between regions");
    }

    fn hosts_region(&self) -> &Region {
        &self.regions[0]
    }

    fn routes(&self) -> &Routes {
        &self.hosts_region().common.routes
    }

    /// The region in which a link's queue is.
    fn sender(&self, link: u32) -> &Region {
        // A link and its way back are neighbours in number.
        let from = self.far_end(link ^ 1);
        &self.regions[usize::from(self.region_of[from as usize])]
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
