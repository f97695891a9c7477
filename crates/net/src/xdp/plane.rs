//! The loaded program with its leases.

use std::net::{SocketAddr, SocketAddrV4};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use libbpf_rs::{MapCore, MapFlags, MapHandle};
use netsum_proto::atp::{Counters, SwitchConfig};
use netsum_proto::registry::PoolCounters;
use netsum_proto::row_machines::Standing;
use netsum_proto::{DropReason, Lease};
use netsum_wire::seal::HopKeys;
use netsum_wire::{JobId, TreeId};
use rustc_hash::{FxHashMap, FxHashSet};

use super::WhyNot;
use super::hops::{self, Hop};
use super::layout::{
    self, LeaseCounters, MAX_LEASES, PACKET_OFFSET, PARENT, PAYLOAD_OFFSET, Place, REASONS,
    ROW_BYTES,
};
use super::numbers::{HopNumbers, Table};
use super::object::{Loaded, attach, because, interfaces};
use super::rows::PoolRows;
use crate::interface::links;

/// Options of the program.
#[derive(Clone, Debug)]
pub struct PlaneOptions {
    /// Address that neighbours send to.
    pub own: SocketAddrV4,
    /// Slots, policy and straggler time-out.
    pub switch: SwitchConfig,
}

/// What the program did with a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It was added to a slot, or dropped and counted.
    Taken,
    /// It was sent to one neighbour.
    Sent(SocketAddrV4, Vec<u8>),
    /// It was sent to all its children.
    FannedOut(Vec<u8>),
    /// It was passed to user space.
    Passed(Vec<u8>),
}

/// A lease that the kernel serves.
#[derive(Clone, Copy, Debug)]
pub struct Served {
    /// Job.
    pub job: JobId,
    /// Server or pool of the job.
    pub tree: TreeId,
    /// Slots of `atp` that it holds.
    pub held: u32,
    /// When its last packet arrived, in nanoseconds of the clock of `tick`.
    pub last_seen: u64,
    /// Counters.
    pub counters: ServedCounters,
}

/// Counters of a lease that the kernel serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServedCounters {
    /// Of `atp`.
    Slots(Counters),
    /// Of a pool.
    Pool(PoolCounters),
}

/// The in-kernel switch.
pub struct Plane {
    loaded: Loaded,
    options: PlaneOptions,
    maps: Maps,
    /// Programs for outgoing packets.
    to_child: OwnedFd,
    to_worker: OwnedFd,
    /// Attachments with their interfaces; dropping them detaches the program.
    ports: Vec<(u32, OwnedFd)>,
    leases: FxHashMap<(JobId, TreeId), Entry>,
    numbers: Arc<Table>,
    /// Of leases with keys, whether the kernel serves them or not: children, then the parent.
    hops: FxHashMap<(JobId, TreeId), Vec<SealedHop>>,
    /// Free lease numbers.
    free: Vec<u32>,
    /// By number: the interfaces in its map. They stay when the lease is removed: a change makes the system wait for
    /// every processor, and the next epoch's are mostly the same.
    fan_outs: FxHashMap<u32, FanOut>,
    pool_rows: PoolRows,
    now_ns: u64,
}

/// A lease, in the kernel or left to user space.
struct Entry {
    lease: Lease<SocketAddr>,
    index: Option<u32>,
    egress: Vec<Vec<u8>>,
    /// First slot of a pool in the kernel.
    pool_row: Option<u32>,
}

/// A map of interfaces in the kernel.
#[derive(PartialEq, Eq)]
struct FanOut {
    is_pool: bool,
    ports: Vec<u32>,
}

/// A hop with keys.
struct SealedHop {
    neighbour: SocketAddr,
    keys: HopKeys,
    numbers: Arc<HopNumbers>,
}

struct Maps {
    guesses: MapHandle,
    senders: MapHandle,
    known: MapHandle,
    jobs: MapHandle,
    leases: MapHandle,
    states: MapHandle,
    counters: MapHandle,
    drops: MapHandle,
    fan_outs: MapHandle,
    hop_keys: MapHandle,
    egress: MapHandle,
    shared: MapHandle,
}

const XDP_DROP: u32 = 1;
const XDP_PASS: u32 = 2;

static PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/switch.o"));

impl Plane {
    /// Loads the program. Errors describe what the kernel lacks.
    pub fn load(options: PlaneOptions) -> Result<Plane, WhyNot> {
        Plane::load_object(PROGRAM, options, Vec::new())
    }

    /// Loads another object with the same maps. `more`: constants that follow the switch's.
    pub(super) fn load_object(
        object: &[u8],
        options: PlaneOptions,
        more: Vec<u8>,
    ) -> Result<Plane, WhyNot> {
        let constants = [("config", layout::config(options.own, &options.switch)), ("more", more)];
        let loaded = Loaded::new(object, options.switch.slots, &constants)?;
        let maps = Maps {
            guesses: loaded.map("guesses")?,
            senders: loaded.map("senders")?,
            known: loaded.map("known")?,
            jobs: loaded.map("jobs")?,
            leases: loaded.map("leases")?,
            states: loaded.map("lease_states")?,
            counters: loaded.map("lease_counters")?,
            drops: loaded.map("drops")?,
            fan_outs: loaded.map("fan_outs")?,
            hop_keys: loaded.map("hop_keys")?,
            egress: loaded.map("egress")?,
            shared: loaded.map(".bss")?,
        };
        let (to_child, to_worker) = (loaded.program("to_child")?, loaded.program("to_worker")?);
        let free = (0..MAX_LEASES).rev().collect();
        let numbers = Table::new(&loaded.map("numbers_of_hops")?)?;
        Ok(Plane {
            loaded,
            pool_rows: PoolRows::new(options.switch.slots),
            options,
            maps,
            to_child,
            to_worker,
            ports: Vec::new(),
            leases: FxHashMap::default(),
            numbers,
            hops: FxHashMap::default(),
            free,
            fan_outs: FxHashMap::default(),
            now_ns: 0,
        })
    }

    /// Attaches the program to the driver of an interface of the calling thread's network namespace, until the plane is
    /// dropped.
    pub fn attach(&mut self, interface: &str) -> Result<(), WhyNot> {
        self.attach_program("netsum_switch", interface)
    }

    /// The same for another program of the object; replaces an attached one.
    pub(super) fn attach_program(&mut self, program: &str, interface: &str) -> Result<(), WhyNot> {
        let ifindex = ifindex(interface)?;
        self.ports.retain(|&(port, _)| port != ifindex);
        let attachment = attach(&self.loaded.program(program)?, ifindex)?;
        self.ports.push((ifindex, attachment));
        Ok(())
    }

    /// Serves a lease in the kernel if possible; otherwise packets of its job go to user space. Errors give the reason;
    /// `Resolving` is temporary, so that a later call may succeed.
    ///
    /// `keys`: as for [`Plane::numbers`], if packets are sealed. `standing`: where user space is. A pool must be offered
    /// before its first packet.
    pub fn offer(
        &mut self,
        lease: &Lease<SocketAddr>,
        keys: Option<&[HopKeys]>,
        standing: Standing,
    ) -> Result<(), WhyNot> {
        if self.is_as(lease, true) {
            return Ok(());
        }
        let offered = self.resolve(lease).and_then(|hops| {
            let mut each = lease.neighbours().into_iter().zip(&hops);
            match each.find(|(_, hop)| !self.has_port(hop.ifindex)) {
                Some((SocketAddr::V4(name), _)) => Err(WhyNot::NotBehindAPort(name)),
                _ => self.install(lease, keys, standing, &hops),
            }
        });
        if offered.is_err() {
            self.leave(lease)?;
        }
        offered
    }

    /// The packet numbers of a lease's hops, in the order of [`Lease::neighbours`], for whoever handles packets that the kernel
    /// passes on. They go on as long as the keys are the same, until the lease is removed. `keys`: in the same order.
    pub fn numbers(
        &mut self,
        lease: &Lease<SocketAddr>,
        keys: &[HopKeys],
    ) -> Result<Vec<Arc<HopNumbers>>, WhyNot> {
        let (neighbours, children, key) = (lease.neighbours(), lease.children(), lease.key());
        if neighbours.len() != keys.len() {
            return Err(WhyNot::Keys(keys.len(), neighbours.len()));
        }
        let mut before = self.hops.remove(&(key.job, key.tree)).unwrap_or_default();
        let mut hops = Vec::with_capacity(neighbours.len());
        for (at, (neighbour, &keys)) in neighbours.into_iter().zip(keys).enumerate() {
            let same = |hop: &SealedHop| hop.neighbour == neighbour && hop.keys == keys;
            let known = before.iter().position(same).map(|known| before.swap_remove(known));
            hops.push(match known {
                Some(hop) => hop,
                None => self.add_hop(neighbour, keys, at < children)?,
            });
        }
        let numbers = hops.iter().map(|hop| hop.numbers.clone()).collect();
        self.hops.insert((key.job, key.tree), hops);
        Ok(numbers)
    }

    fn add_hop(
        &self,
        neighbour: SocketAddr,
        keys: HopKeys,
        is_child: bool,
    ) -> Result<SealedHop, WhyNot> {
        let numbers = Arc::new(self.numbers.allot().ok_or(WhyNot::Hops)?);
        let HopKeys { up, down } = keys;
        // Of received packets, and of those sent.
        let both = if is_child { [up, down] } else { [down, up] };
        for (direction, key) in (0u32..).zip(&both) {
            let bytes = layout::hop_key(key).ok_or(WhyNot::Mac(key.mac()))?;
            put(&self.maps.hop_keys, &(2 * numbers.index() + direction).to_ne_bytes(), &bytes)?;
        }
        Ok(SealedHop { neighbour, keys, numbers })
    }

    /// Installs a lease in the kernel. `keys`: as for [`Plane::numbers`], if packets are sealed. `hops`: the next hop to
    /// each neighbour, in the same order.
    pub fn install(
        &mut self,
        lease: &Lease<SocketAddr>,
        keys: Option<&[HopKeys]>,
        standing: Standing,
        hops: &[Hop],
    ) -> Result<(), WhyNot> {
        let fragment_bytes = match lease {
            Lease::Slots(lease) => lease.fragment_bytes,
            Lease::Pool(lease) => lease.fragment_bytes,
            Lease::Tree(_) | Lease::Server(_) => return Err(WhyNot::Protocol),
        };
        if fragment_bytes > ROW_BYTES {
            return Err(WhyNot::FragmentBytes(fragment_bytes));
        }
        let by_v4 = v4(lease)?;
        let ports: Vec<u32> = hops.iter().take(lease.children()).map(|hop| hop.ifindex).collect();
        let distinct: FxHashSet<_> = ports.iter().collect();
        let fan_out = distinct.len() == ports.len();
        if !fan_out && matches!(lease, Lease::Pool(_)) {
            return Err(WhyNot::SharedInterface);
        }
        let sealed = keys.map(|keys| self.numbers(lease, keys)).transpose()?;
        let sealed: Option<Vec<u32>> =
            sealed.map(|hops| hops.iter().map(|hop| hop.index()).collect());
        let (job, tree) = (lease.key().job, lease.key().tree);
        self.withdraw(job, tree)?;
        let pool_row = match lease {
            Lease::Pool(pool) => {
                let first = self.pool_rows.allot(pool.slots.into());
                Some(first.ok_or(WhyNot::PoolSlots(pool.slots))?)
            }
            _ => None,
        };
        let Some(index) = self.free.pop() else {
            pool_row.map(|first| self.pool_rows.free(first));
            return Err(WhyNot::Leases);
        };
        let key = index.to_ne_bytes();
        let mut entry =
            Entry { lease: lease.clone(), index: Some(index), egress: Vec::new(), pool_row };
        if fan_out {
            let wanted = FanOut { is_pool: pool_row.is_some(), ports };
            if self.fan_outs.get(&index) != Some(&wanted) {
                let program = if wanted.is_pool { &self.to_worker } else { &self.to_child };
                let map = interfaces(&wanted.ports, program, layout::MAX_CHILDREN)?;
                put(&self.maps.fan_outs, &key, &map.as_fd().as_raw_fd().to_ne_bytes())?;
            }
            for (child, &ifindex) in (0..).zip(&wanted.ports) {
                let egress = layout::egress_key(ifindex, job, tree);
                put(&self.maps.egress, &egress, &layout::sender(index, child))?;
                entry.egress.push(egress);
            }
            self.fan_outs.insert(index, wanted);
        }
        let (first, passed, round) = match standing {
            Standing::Slots { first, passed } => (first, passed, 0),
            Standing::Pool { round } => (pool_row.unwrap_or(0), 0, round),
        };
        let place =
            Place { own: self.options.own, first, hops, sealed: sealed.as_deref(), fan_out };
        let bytes = layout::lease(&by_v4, round, &place).ok_or(WhyNot::Protocol)?;
        put(&self.maps.leases, &key, &bytes)?;
        put(&self.maps.states, &key, &layout::lease_state(passed, self.now_ns))?;
        let zero = vec![vec![0; self.maps.counters.value_size() as usize]; processors()?];
        let cleared = self.maps.counters.update_percpu(&key, &zero, MapFlags::ANY);
        cleared.map_err(because("clearing counters"))?;
        put(&self.maps.jobs, &layout::job_key(job, tree), &key)?;
        self.leases.insert((job, tree), entry);
        self.learn(lease)?;
        let mut neighbours = by_v4.neighbours();
        let parents = neighbours.split_off(by_v4.children());
        let parents = parents.into_iter().map(|parent| (PARENT, parent));
        for (child, from) in (0..).zip(neighbours).chain(parents) {
            let sender = layout::sender_key(from, job, tree);
            put(&self.maps.senders, &sender, &layout::sender(index, child))?;
            let cell = layout::cell(from, job, tree);
            put(&self.maps.guesses, &cell, &layout::guess(index, child))?;
        }
        Ok(())
    }

    /// Leaves a lease to user space.
    pub fn leave(&mut self, lease: &Lease<SocketAddr>) -> Result<(), WhyNot> {
        if self.is_as(lease, false) {
            return Ok(());
        }
        let (job, tree) = (lease.key().job, lease.key().tree);
        self.withdraw(job, tree)?;
        let user = layout::IN_USER_SPACE.to_ne_bytes();
        put(&self.maps.jobs, &layout::job_key(job, tree), &user)?;
        let entry = Entry { lease: lease.clone(), index: None, egress: Vec::new(), pool_row: None };
        self.leases.insert((job, tree), entry);
        self.learn(lease)
    }

    /// Whether the kernel serves a lease of this tree.
    pub fn serves(&self, job: JobId, tree: TreeId) -> bool {
        self.leases.get(&(job, tree)).is_some_and(|entry| entry.index.is_some())
    }

    /// Whether this very lease is left to user space.
    pub fn is_left(&self, lease: &Lease<SocketAddr>) -> bool {
        self.is_as(lease, false)
    }

    /// Removes a lease with its keys, and frees its slots.
    pub fn remove(&mut self, job: JobId, tree: TreeId) -> Result<(), WhyNot> {
        self.withdraw(job, tree)?;
        self.hops.remove(&(job, tree));
        Ok(())
    }

    fn withdraw(&mut self, job: JobId, tree: TreeId) -> Result<(), WhyNot> {
        let Some(entry) = self.leases.remove(&(job, tree)) else { return Ok(()) };
        let neighbours: Vec<_> = neighbours(&entry.lease).collect();
        for &from in &neighbours {
            // May remove another lease's entry, too; the map of senders is authoritative.
            put(&self.maps.guesses, &layout::cell(from, job, tree), &layout::NO_GUESS)?;
            forget(&self.maps.senders, &layout::sender_key(from, job, tree));
        }
        forget(&self.maps.jobs, &layout::job_key(job, tree));
        for key in &entry.egress {
            forget(&self.maps.egress, key);
        }
        if let Some(index) = entry.index {
            match entry.pool_row {
                Some(first) => self.forget_rounds(first)?,
                None => self.release(job, tree)?,
            }
            self.free.push(index);
        }
        for from in neighbours {
            let elsewhere = |e: &Entry| self::neighbours(&e.lease).any(|n| n == from);
            if !self.leases.values().any(elsewhere) {
                forget(&self.maps.known, &layout::known_key(from));
            }
        }
        Ok(())
    }

    /// Empties the slots of a pool, and frees them.
    fn forget_rounds(&mut self, first: u32) -> Result<(), WhyNot> {
        let mut frame = layout::rows(first, first + self.pool_rows.free(first));
        frame.resize(PAYLOAD_OFFSET, 0);
        self.loaded.run("forget_rounds", &mut frame, 1).map(drop)
    }

    /// Empties the slots of a job of `atp`.
    pub fn release(&mut self, job: JobId, tree: TreeId) -> Result<(), WhyNot> {
        let key = Some(layout::job_key(job, tree));
        self.walk(|from, to| layout::order(from, to, 0, key), &mut |_, _| {})
    }

    /// Advances the program's clock to `now_ns`, in nanoseconds of the caller's clock. A single call advances it by at
    /// most half of the straggler time-out: a caller that was delayed must not make every slot look old.
    pub fn tick(&mut self, now_ns: u64) -> Result<(), WhyNot> {
        let most = self.now_ns.saturating_add(self.options.switch.straggler_ns / 2);
        self.set_clock(now_ns.min(most).max(self.now_ns))
    }

    /// Sets the clock without that limit.
    pub fn set_clock(&mut self, now_ns: u64) -> Result<(), WhyNot> {
        self.now_ns = now_ns;
        put(&self.maps.shared, &0u32.to_ne_bytes(), &self.padded(layout::shared(now_ns)))
    }

    /// Releases slots to which nothing was added for long; `send` gets their sums, addressed.
    pub fn sweep(&mut self, mut send: impl FnMut(SocketAddrV4, &[u8])) -> Result<(), WhyNot> {
        if self.held()? == 0 {
            return Ok(());
        }
        let older = self.options.switch.straggler_ns;
        self.walk(|from, to| layout::order(from, to, older, None), &mut send)
    }

    /// Number of slots in use.
    pub fn held(&self) -> Result<u32, WhyNot> {
        let kernel = self.leases.values().filter_map(|entry| entry.index);
        kernel.map(|index| Ok(self.state(index)?.0)).sum()
    }

    /// Leases that the kernel serves.
    pub fn leases(&self) -> Result<Vec<Served>, WhyNot> {
        let kernel = self.leases.iter().filter_map(|(key, entry)| Some((key, entry, entry.index?)));
        let figures = kernel.map(|(&(job, tree), entry, index)| {
            let (held, last_seen) = self.state(index)?;
            let mut counters = LeaseCounters::default();
            percpu(&self.maps.counters, index)?.iter().for_each(|bytes| counters.add(bytes));
            let counters = match entry.pool_row {
                Some(_) => ServedCounters::Pool(counters.of_pool()),
                None => ServedCounters::Slots(counters.of_slots()),
            };
            Ok(Served { job, tree, held, last_seen, counters })
        });
        figures.collect()
    }

    /// Leases that were offered and not removed.
    pub fn keys(&self) -> impl Iterator<Item = (JobId, TreeId)> + '_ {
        self.leases.keys().copied()
    }

    /// Dropped packets by reason.
    pub fn drops(&self) -> Result<Vec<(DropReason, u64)>, WhyNot> {
        let of = |(key, reason): (u32, &DropReason)| {
            let each = percpu(&self.maps.drops, key)?;
            let counts = each.iter().filter_map(|b| Some(u64::from_ne_bytes(*b.first_chunk()?)));
            Ok((*reason, counts.sum()))
        };
        (0..).zip(&REASONS).map(of).collect()
    }

    /// What the program would do with a packet, by a test run.
    pub fn try_packet(
        &mut self,
        from: SocketAddrV4,
        ce: bool,
        packet: &[u8],
    ) -> Result<Verdict, WhyNot> {
        let own = self.options.own;
        let mut frame = layout::frame(from, own, ce, packet);
        let (verdict, _) = self.loaded.run("netsum_switch", &mut frame, 1)?;
        // A frame that is multiplied gets its addresses and its length at the egress.
        let for_all = layout::destination(&frame) == Some(own);
        Ok(match (verdict, layout::split(&frame)) {
            (XDP_DROP, _) => Verdict::Taken,
            (XDP_PASS, Some((_, packet))) => Verdict::Passed(packet.to_vec()),
            (_, _) if for_all => Verdict::FannedOut(frame[PACKET_OFFSET..].to_vec()),
            (_, Some((to, packet))) => Verdict::Sent(to, packet.to_vec()),
            (other, None) => panic!("the program left no packet in the frame, verdict {other}"),
        })
    }

    /// Mean time of a program's run on one frame.
    pub(super) fn time(
        &self,
        program: &str,
        packet: &[u8],
        passes: u32,
    ) -> Result<Duration, WhyNot> {
        let mut frame = layout::frame(self.options.own, self.options.own, false, packet);
        Ok(self.loaded.run(program, &mut frame, passes)?.1)
    }

    /// Sends copies of one frame to the destinations of a program.
    pub(super) fn send_live(
        &self,
        program: &str,
        packet: &[u8],
        packets: u32,
    ) -> Result<(), WhyNot> {
        let frame = layout::frame(self.options.own, self.options.own, false, packet);
        self.loaded.run_live(program, &frame, packets)
    }

    /// A map of the object, for maps that the switch does not have.
    pub(super) fn map(&self, name: &str) -> Result<MapHandle, WhyNot> {
        self.loaded.map(name)
    }

    fn walk(
        &mut self,
        order: impl Fn(u32, u32) -> Vec<u8>,
        send: &mut impl FnMut(SocketAddrV4, &[u8]),
    ) -> Result<(), WhyNot> {
        let mut from = 0;
        while from < self.options.switch.slots {
            let mut frame = order(from, self.options.switch.slots);
            frame.resize(PAYLOAD_OFFSET + usize::from(ROW_BYTES), 0);
            let (verdict, _) = self.loaded.run("let_go", &mut frame, 1)?;
            match (verdict, layout::split(&frame)) {
                (XDP_PASS, _) => return Ok(()),
                (XDP_DROP, _) | (_, None) => {}
                (_, Some((to, packet))) => send(to, packet),
            }
            let shared = self.maps.shared.lookup(&0u32.to_ne_bytes(), MapFlags::ANY);
            let shared = shared.map_err(because("reading how far"))?.unwrap_or_default();
            from = layout::next_row(&shared).max(from + 1);
        }
        Ok(())
    }

    fn resolve(&self, lease: &Lease<SocketAddr>) -> Result<Vec<Hop>, WhyNot> {
        let all = v4(lease)?.neighbours().into_iter();
        // Resolves all neighbours before the first unknown one is reported.
        let hops: Vec<_> = all.map(|to| hops::resolve(self.options.own, to)).collect();
        hops.into_iter().collect()
    }

    /// Whether this very lease is here already, in the kernel or left to user space.
    fn is_as(&self, lease: &Lease<SocketAddr>, in_kernel: bool) -> bool {
        let here = self.leases.get(&(lease.key().job, lease.key().tree));
        here.is_some_and(|e| e.lease == *lease && e.index.is_some() == in_kernel)
    }

    fn has_port(&self, ifindex: u32) -> bool {
        self.ports.iter().any(|&(port, _)| port == ifindex)
    }

    fn learn(&self, lease: &Lease<SocketAddr>) -> Result<(), WhyNot> {
        let mut all = neighbours(lease);
        all.try_for_each(|from| put(&self.maps.known, &layout::known_key(from), &[0; 4]))
    }

    fn state(&self, index: u32) -> Result<(u32, u64), WhyNot> {
        let state = self.maps.states.lookup(&index.to_ne_bytes(), MapFlags::ANY);
        let state = state.map_err(because("reading a lease's state"))?;
        Ok(state.map_or((0, 0), |bytes| layout::held_and_heard(&bytes)))
    }

    fn padded(&self, mut bytes: Vec<u8>) -> Vec<u8> {
        bytes.resize(self.maps.shared.value_size() as usize, 0);
        bytes
    }
}

/// Index of an interface of the calling thread's network namespace.
pub(super) fn ifindex(interface: &str) -> Result<u32, WhyNot> {
    let link = links().into_iter().find(|link| link.name == interface);
    Ok(link.ok_or_else(|| WhyNot::NoInterface(interface.into()))?.ifindex)
}

/// The same lease with IPv4 addresses.
fn v4(lease: &Lease<SocketAddr>) -> Result<Lease<SocketAddrV4>, WhyNot> {
    match lease.neighbours().into_iter().find(SocketAddr::is_ipv6) {
        Some(address) => Err(WhyNot::NotV4(address)),
        None => Ok(lease.map(|address| match address {
            SocketAddr::V4(address) => address,
            SocketAddr::V6(_) => unreachable!("none is"),
        })),
    }
}

fn neighbours(lease: &Lease<SocketAddr>) -> impl Iterator<Item = SocketAddrV4> {
    lease.neighbours().into_iter().filter_map(|address| match address {
        SocketAddr::V4(address) => Some(address),
        SocketAddr::V6(_) => None,
    })
}

pub(super) fn put(map: &MapHandle, key: &[u8], value: &[u8]) -> Result<(), WhyNot> {
    map.update(key, value, MapFlags::ANY).map_err(because("writing a map of the in-kernel switch"))
}

/// Removes an entry, if it exists.
fn forget(map: &MapHandle, key: &[u8]) {
    let _ = map.delete(key);
}

fn percpu(map: &MapHandle, key: u32) -> Result<Vec<Vec<u8>>, WhyNot> {
    let values = map.lookup_percpu(&key.to_ne_bytes(), MapFlags::ANY);
    Ok(values.map_err(because("reading counters"))?.unwrap_or_default())
}

fn processors() -> Result<usize, WhyNot> {
    libbpf_rs::num_possible_cpus().map_err(because("counting processors"))
}
