//! Links, switches and time: the path of a packet between two hosts.
//!
//! A [`Network`] is divided into regions, one per thread. A [`Region`] has the links on which its nodes send, and its
//! own clock and calendar. Packets that cross its border are handed over ahead of time, which the links' propagation
//! allows.

mod ahead;
mod crossing;
mod fair;
mod faults;
mod loss;
mod moving;
mod pause;
mod region;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use netsum_proto::Time;
use netsum_topo::Topology;

pub(crate) use ahead::Expected;
pub(crate) use crossing::Crossing;
pub(crate) use region::OWN_TIMER;
pub use region::Region;

use crate::error::SimError;
use crate::fair::FairQueue;
use crate::fifo::Pool;
use crate::link::{FROM_HOST, Link, PAUSED};
use crate::packet::{HOSTS_MAX, Kind, Packet};
use crate::partition::{self, Threads};
use crate::routes::{PathChoice, Routes, outgoing};

/// Behaviour of all switches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Switching {
    /// A packet is marked if, on arrival, at least this many packets wait in the output queue, not counting itself and
    /// the one in the transmitter. For hosts see `host_mark_ps`.
    pub mark_packets: u32,
    /// A packet is dropped if this many packets wait.
    pub queue_packets: u32,
    /// One memory for all output queues of a switch; a packet is dropped by either limit.
    pub shared: Option<SharedBuffer>,
    /// PAUSE instead of dropping.
    pub pause: Option<Pause>,
    /// Hosts' own output queues.
    pub host_queue: HostQueue,
    /// A packet is marked if it waits at least this long in its host's own queue, as Linux's `fq` and `fq_codel` do
    /// with `ce_threshold`; `u64::MAX`: hosts do not mark.
    pub host_mark_ps: u64,
    /// Choice between equal paths.
    pub paths: PathChoice,
    /// Propagation time of links for which the topology has none, in nanoseconds.
    pub latency_ns: u32,
}

/// A host's own output queue; none has a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostQueue {
    /// First in, first out.
    Fifo,
    /// A queue per flow, served in turns.
    Fair {
        /// Bytes of a flow that wait in the queue. The others wait in the flow's socket, where nothing marks, or with
        /// the worker, which has not sent them.
        small_bytes: u32,
    },
}

/// The memory of a switch, shared by its output queues with dynamic thresholds (Choudhury and Hahne, IEEE/ACM ToN
/// 1998): a packet is dropped if its queue holds at least `alpha` times the free memory, or if the packet does not fit.
/// Bytes that the transmitter has not sent count as memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SharedBuffer {
    /// Memory of one switch.
    pub bytes: u64,
    /// Above 0. Each of n queues that stay full holds alpha / (1 + n · alpha) of the memory.
    pub alpha: f64,
}

impl SharedBuffer {
    /// Whether a packet of `bytes` is accepted into a queue of `queued` bytes if all queues together hold `used`.
    fn takes(&self, queued: u64, used: u64, bytes: u64) -> bool {
        let free = self.bytes.saturating_sub(used);
        bytes <= free && (queued as f64) < self.alpha * free as f64
    }
}

/// PAUSE of a whole link by 802.3x: a switch counts the packets of each ingress link that have not reached the next
/// node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pause {
    /// XOFF is sent above this.
    pub high_packets: u32,
    /// XON is sent at or below this.
    pub low_packets: u32,
}

/// Counters of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkCounters {
    /// Packets that the queue refused.
    pub drops: u64,
    /// Packets that were marked.
    pub marks: u64,
    /// Most packets that waited when a packet arrived (0 below the marking threshold, where this is not counted).
    pub waiting_max: u32,
    /// Number of times the link was paused.
    pub pauses: u32,
    /// Total time paused.
    pub paused_ps: u64,
}

/// Packets and bytes: sent = delivered + dropped + in transit, at every moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Balance {
    /// Sent by a host or an aggregator.
    pub sent: (u64, u64),
    /// Delivered to a host or an aggregator.
    pub delivered: (u64, u64),
    /// Dropped by a queue, by a fault, or for lack of a path.
    pub dropped: (u64, u64),
}

/// An event that the caller must handle.
#[derive(Clone, Copy, Debug)]
pub enum NetworkEvent {
    /// A packet has reached a host, or a `Tree` packet the end of its path; with the last link.
    Packet(u32, Packet),
    /// A timer has fired; with its key.
    Timer(u64),
}

/// The network: all regions and their shared data.
pub struct Network {
    pub(crate) regions: Vec<Region>,
    /// Region of each node; a link belongs to the region of the node that sends on it.
    region_of: Arc<[u8]>,
    topology: Topology,
    switching: Switching,
}

impl Network {
    /// A network of one region at time 0. Errors name the part of the topology that cannot be simulated.
    pub fn new(topology: &Topology, switching: Switching) -> Result<Network, SimError> {
        Network::in_regions(topology, switching, Threads::ONE)
    }

    /// The same with one region per thread, the first with all hosts; with one region if some link has no propagation
    /// time.
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

    /// The current time.
    #[inline]
    pub fn now_ps(&self) -> u64 {
        self.hosts_region().now_ps()
    }

    /// The current time as `proto`'s machines take it.
    pub(crate) fn now(&self) -> Time {
        self.hosts_region().now()
    }

    /// Number of hosts; they are the nodes from 0 on.
    pub fn hosts(&self) -> u32 {
        self.hosts_region().common.hosts
    }

    /// Behaviour of the switches.
    pub(crate) fn switching(&self) -> &Switching {
        &self.switching
    }

    /// The graph.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Minimum time in which an event in one region affects another: the shortest propagation time of a link.
    pub fn lookahead_ps(&self) -> u64 {
        self.hosts_region().common.lookahead_ps
    }

    /// Region of each node.
    pub(crate) fn region_of(&self) -> &Arc<[u8]> {
        &self.region_of
    }

    /// The link on which a host sends.
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
        // Counted at the receiving end.
        self.regions.iter().map(|region| region.links[link as usize].bytes).sum()
    }

    /// Counters of a link.
    pub fn counters(&self, link: u32) -> LinkCounters {
        // Each event is counted where it happens: at the queue, or at the far end.
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
        let l = &region.links[link as usize];
        let queue = l.is(FROM_HOST).then(|| region.fair.get(region.host_of(link))).flatten();
        let in_host = queue.map_or(0, FairQueue::len);
        l.waiting(region.now_ps(), &region.pool) + in_host as u32
    }

    /// Transmission time of the bytes queued now.
    pub fn backlog_ps(&self, link: u32) -> u64 {
        let region = self.sender(link);
        region.links[link as usize].backlog_ps(region.now_ps())
    }

    /// Transmission time of `bytes`, without propagation.
    pub fn serialisation_ps(&self, link: u32, bytes: u64) -> u64 {
        self.hosts_region().links[link as usize].serialisation_ps(bytes)
    }

    /// Propagation time of a link.
    pub(crate) fn propagation_ps(&self, link: u32) -> u64 {
        self.hosts_region().links[link as usize].propagation_ps()
    }

    /// Whether there are several islands.
    pub(crate) fn has_islands(&self) -> bool {
        self.hosts_region().calendar.bases_ps().len() > 1
    }

    /// Totals of packets and bytes sent, delivered and dropped.
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

    /// The links of a flow with this `entropy` from host to host; `None` if there is no path.
    pub(crate) fn way(&self, from: u32, to: u32, entropy: u16) -> Option<Vec<u32>> {
        let packet = Packet { entropy, ..Packet::new(Kind::Data, 0, 0, 0).to(to) };
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

    /// The links of a flow from host to host, with the share of its packets on each: 1 on each link of its path, unless
    /// each packet chooses its own path. All links are alive.
    pub(crate) fn parts(&self, from: u32, to: u32, entropy: u16) -> Box<[(u32, f64)]> {
        if self.switching.paths != PathChoice::Packet {
            let way =
                self.way(from, to, entropy).expect("hosts of a whole fabric reach each other");
            return way.into_iter().map(|link| (link, 1.0)).collect();
        }
        let mut parts = vec![(self.uplink(from), 1.0)];
        // All paths are shortest paths: a switch has received everything before any of it is forwarded.
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

    /// The links of all shortest paths between these hosts, in both directions.
    pub(crate) fn links_between(&self, hosts: &[u32]) -> BTreeSet<u32> {
        let uplinks = hosts.iter().map(|&host| self.uplink(host));
        let mut links: BTreeSet<u32> = uplinks.flat_map(|link| [link, link ^ 1]).collect();
        // Between racks all hosts of a rack have the same paths.
        let rack = |&host: &u32| (self.far_end(self.uplink(host)), host);
        let racks: BTreeMap<u32, u32> = hosts.iter().map(rack).collect();
        for (&rack, &to) in &racks {
            let mut next: Vec<u32> = racks.keys().copied().collect();
            let mut passed = BTreeSet::from([rack]);
            while let Some(switch) = next.pop() {
                // Paths that have met go on together.
                if passed.insert(switch) {
                    let ways = self.routes().ways(switch, to);
                    next.extend(ways.iter().map(|&link| self.far_end(link)));
                    links.extend(ways);
                }
            }
        }
        links
    }

    /// The links of all paths of `Tree` packets.
    pub(crate) fn links_of_paths(&self) -> impl Iterator<Item = u32> {
        self.hosts_region().paths.iter().flat_map(|path| path.iter().copied())
    }

    /// Links whose queues share memory with that of a link.
    pub(crate) fn siblings(&self, link: u32) -> &[u32] {
        self.hosts_region().common.siblings.get(link as usize).map_or(&[], |siblings| siblings)
    }

    /// Sets the island of each link, of which there are several: what happens on one island does not affect another.
    pub(crate) fn set_islands(&mut self, island_of: &Arc<[u32]>) {
        for region in &mut self.regions {
            region.calendar.set_islands(island_of);
            region.exports.set_islands(island_of);
        }
    }

    /// Whether every link of a path is alive.
    pub(crate) fn is_path_alive(&self, path: u32) -> bool {
        self.hosts_region().paths[path as usize].iter().all(|link| self.is_alive(link / 2))
    }

    /// Adds a path for `Tree` packets: consecutive links. Its number is the packets' `flow`.
    pub fn add_path(&mut self, links: &[u32]) -> u32 {
        assert!(!links.is_empty(), "a path has at least one link");
        let path: Arc<[u32]> = links.into();
        self.regions.iter_mut().for_each(|region| region.paths.push(Arc::clone(&path)));
        self.hosts_region().paths.len() as u32 - 1
    }

    /// Looks ahead at all deliveries, not only of large networks, where it saves time: results are the same.
    pub fn always_look_ahead(&mut self) {
        self.regions.iter_mut().for_each(|region| region.calendar.always_look_ahead());
    }

    /// Sets a `Timer`, not in the past; equal times fire in the order of keys. `key` is below 2⁶³.
    pub fn set_timer(&mut self, at_ps: u64, key: u64) {
        self.regions[0].set_timer(at_ps, key);
    }

    /// Sends a new packet (or, at a host, a run of them) on a link of the first region.
    pub fn send(&mut self, link: u32, packet: Packet) {
        self.regions[0].send(link, packet);
    }

    /// For a network of one region: advances to the next event for the caller, up to and including `until_ps`; `None`
    /// if there is none.
    pub fn next(&mut self, until_ps: u64) -> Option<NetworkEvent> {
        assert!(self.regions.len() == 1, "regions go on side by side");
        self.regions[0].next(until_ps)
    }

    /// Advances the time of all regions, which have no events until then.
    pub(crate) fn wait_until(&mut self, at_ps: u64) {
        self.regions.iter_mut().for_each(|region| region.wait_until(at_ps));
    }

    /// Checks the invariants: packets are conserved; queues are in order; the counts of PAUSE match the packets
    /// present. Panics otherwise.
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

    fn pause(&self) -> Option<Pause> {
        self.hosts_region().common.switching.pause
    }

    /// A link where its queue is, and the packets there.
    fn queue(&self, link: u32) -> (&Link, &Pool) {
        let region = self.sender(link);
        (&region.links[link as usize], &region.pool)
    }

    /// The region in which a link's queue is.
    fn sender(&self, link: u32) -> &Region {
        // The two directions of a link have consecutive numbers.
        let from = self.far_end(link ^ 1);
        &self.regions[usize::from(self.region_of[from as usize])]
    }
}

pub(crate) fn check(topology: &Topology) -> Result<u32, SimError> {
    let hosts = topology.hosts().count();
    if hosts == 0 || hosts > HOSTS_MAX as usize {
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
