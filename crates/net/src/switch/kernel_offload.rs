//! The in-kernel switch in front of the user-space one: its leases, and its stragglers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use netsum_proto::atp::{Node, SwitchConfig};
use netsum_proto::row_machines::RowMachines;
use netsum_proto::{DropCounters, Lease, LeaseKey, PortId, Secrets, SharedNumbers, Time};
use netsum_wire::atp::Header;
use netsum_wire::switchml::Header as PoolHeader;
use netsum_wire::{JobId, TreeId};
use rustc_hash::FxHashMap;

use super::{PoolSnapshot, SlotSnapshot};
use crate::xdp::{Plane, PlaneOptions, ServedCounters, WhyNot};

/// The in-kernel plane, as long as it works; without one everything is done in user space.
#[derive(Default)]
pub(super) struct KernelOffload {
    plane: Option<Plane>,
    /// Leases that the kernel does not serve yet, because a neighbour's Ethernet address is being resolved.
    waiting: FxHashMap<(JobId, TreeId), Waiting>,
    every: Duration,
    due: Time,
    scan: Time,
    straggler_ns: u64,
}

/// A lease until its neighbours are known.
struct Waiting {
    lease: Lease<SocketAddr>,
    secrets: Option<Secrets>,
    since: Time,
}

/// The pool of sums; others have copies.
const SUMS: TreeId = TreeId(0);

/// How long packets of a pool wait for the kernel. Its switch has the only copy of a round, so the kernel has it from the
/// first packet or not at all. The system repeats a lost request for an Ethernet address after a second; after one and a
/// half, workers take their switch for silent.
const POOL_WAIT_NS: u64 = 1_300_000_000;

/// Ticks per straggler time-out: often enough that a slot's age is known to a quarter of it.
const TICKS_PER_STRAGGLER: u32 = 4;
const TICK_LEAST: Duration = Duration::from_millis(1);
const TICK_MOST: Duration = Duration::from_millis(100);

impl KernelOffload {
    /// Attaches the in-kernel switch to the drivers of these interfaces; logs the reason if that fails.
    pub(super) fn start(
        own: SocketAddr,
        switch: SwitchConfig,
        interfaces: &[String],
    ) -> KernelOffload {
        if interfaces.is_empty() {
            return KernelOffload::default();
        }
        let straggler = Duration::from_nanos(switch.straggler_ns);
        let every = (straggler / TICKS_PER_STRAGGLER).clamp(TICK_LEAST, TICK_MOST);
        let straggler_ns = switch.straggler_ns;
        match attach(own, switch, interfaces) {
            Ok(plane) => {
                tracing::info!(?interfaces, "the in-kernel switch is at work");
                KernelOffload {
                    plane: Some(plane),
                    every,
                    straggler_ns,
                    ..KernelOffload::default()
                }
            }
            Err(reason) => {
                tracing::warn!(%reason, "no in-kernel switch; fragments are added in user space, which is slower");
                KernelOffload::default()
            }
        }
    }

    /// Whether the in-kernel switch is in use.
    pub(super) fn is_there(&self) -> bool {
        self.plane.is_some()
    }

    /// Offers a lease that the machines have installed, just now or before. A pool that user space has served stays
    /// there, since the kernel does not have its rounds.
    pub(super) fn offer(
        &mut self,
        now: Time,
        machines: &RowMachines,
        lease: &Lease<SocketAddr>,
        secrets: Option<&Secrets>,
    ) {
        let LeaseKey { job, tree, .. } = lease.key();
        let before = self.waiting.remove(&(job, tree)).filter(|waiting| waiting.lease == *lease);
        let is_left = self.plane.as_ref().is_some_and(|plane| plane.is_left(lease));
        if before.is_none() && is_pool(lease) && is_left {
            return;
        }
        let waiting = before.unwrap_or_else(|| Waiting {
            lease: lease.clone(),
            secrets: secrets.cloned(),
            since: now,
        });
        self.offer_again(now, machines, waiting);
    }

    fn offer_again(&mut self, now: Time, machines: &RowMachines, waiting: Waiting) {
        let Waiting { lease, secrets, since } = &waiting;
        let LeaseKey { job, tree, .. } = lease.key();
        let (Some(plane), Some(standing)) = (&mut self.plane, machines.standing(job, tree)) else {
            return;
        };
        // The frame that completes a copy is mostly one that says "ready", and drivers such as veth leave it no room to
        // grow.
        let offered = match is_pool(lease) && tree != SUMS {
            true => plane.leave(lease).and(Err(WhyNot::Copies)),
            false => plane.offer(lease, secrets.as_deref(), standing),
        };
        match offered {
            Ok(()) => {}
            Err(reason @ WhyNot::Copies) => {
                tracing::debug!(job = job.0, tree = tree.0, %reason, "user space serves this lease");
            }
            Err(WhyNot::Resolving(_)) if !is_pool(lease) || now.since(*since) < POOL_WAIT_NS => {
                self.waiting.insert((job, tree), waiting);
            }
            Err(reason) => {
                tracing::warn!(job = job.0, tree = tree.0, %reason, "user space serves this lease");
            }
        }
    }

    /// Whether a packet of a pool is not user space's, since the kernel serves the pool or is about to. One that came
    /// before the kernel could serve it may still wait in the socket by then. It is dropped, and its worker sends it
    /// again.
    #[inline]
    pub(super) fn has_pool_of(&self, packet: &[u8]) -> bool {
        let Some(plane) = &self.plane else { return false };
        PoolHeader::decode(packet).is_ok_and(|(PoolHeader { job, tree, .. }, _)| {
            let waiting = self.waiting.get(&(job, tree));
            plane.serves(job, tree) || waiting.is_some_and(|waiting| is_pool(&waiting.lease))
        })
    }

    /// Leaves a lease to user space.
    pub(super) fn leave(&mut self, lease: &Lease<SocketAddr>) {
        self.waiting.remove(&(lease.key().job, lease.key().tree));
        let left = self.plane.as_mut().map_or(Ok(()), |plane| plane.leave(lease));
        self.check(left);
    }

    /// The packet numbers of a lease's hops, in the order of its neighbours. `None`, with a line in the log: the kernel
    /// cannot serve it.
    pub(super) fn numbers(
        &mut self,
        lease: &Lease<SocketAddr>,
        secrets: &Secrets,
    ) -> Option<Vec<Arc<dyn SharedNumbers>>> {
        match self.plane.as_mut()?.numbers(lease, secrets) {
            Ok(numbers) => {
                Some(numbers.into_iter().map(|hop| hop as Arc<dyn SharedNumbers>).collect())
            }
            Err(reason) => {
                let LeaseKey { job, tree, .. } = lease.key();
                tracing::warn!(job = job.0, tree = tree.0, %reason, "user space serves this lease");
                None
            }
        }
    }

    /// Removes leases that the machines no longer have.
    pub(super) fn retain(&mut self, machines: &RowMachines) {
        let here = |&(job, tree): &(JobId, TreeId)| machines.standing(job, tree).is_some();
        self.waiting.retain(|key, _| here(key));
        let Some(plane) = &mut self.plane else { return };
        let gone: Vec<_> = plane.keys().filter(|key| !here(key)).collect();
        let removed = gone.into_iter().try_for_each(|(job, tree)| plane.remove(job, tree));
        self.check(removed);
    }

    /// Releases a lease of `atp` whose workers have all sent fin.
    pub(super) fn finished(&mut self, job: JobId, tree: TreeId) {
        let released = self.plane.as_mut().map_or(Ok(()), |plane| plane.release(job, tree));
        self.check(released);
    }

    /// When `tick` must be called next.
    pub(super) fn due(&self) -> Option<Time> {
        self.plane.as_ref().map(|_| self.due)
    }

    /// Advances the time: sums that stragglers hold up are released to the outbox of `atp`'s machine.
    pub(super) fn tick(
        &mut self,
        now: Time,
        machines: &mut RowMachines,
        port: impl FnMut(SocketAddr) -> Option<PortId>,
    ) {
        if now < self.due {
            return;
        }
        self.due = now.after(self.every.as_nanos() as u64);
        let worked = self.try_tick(now, machines, port);
        self.check(worked);
        for waiting in std::mem::take(&mut self.waiting).into_values() {
            self.offer_again(now, machines, waiting);
        }
    }

    fn try_tick(
        &mut self,
        now: Time,
        machines: &mut RowMachines,
        mut port: impl FnMut(SocketAddr) -> Option<PortId>,
    ) -> Result<(), WhyNot> {
        let Some(plane) = &mut self.plane else { return Ok(()) };
        plane.tick(now.0)?;
        if now < self.scan {
            return Ok(());
        }
        self.scan = now.after(self.straggler_ns / 2);
        for lease in plane.leases()? {
            machines.note_seen(lease.job, lease.tree, Time(lease.last_seen));
        }
        let Node::Switch(switch) = machines.node_mut() else { return Ok(()) };
        plane.sweep(|to, packet| {
            if let (Ok((header, payload)), Some(to)) = (Header::decode(packet), port(to.into())) {
                switch.relay(to, &header, payload);
            }
        })
    }

    /// Adds the kernel's counters.
    pub(super) fn add_counters(&self, slots: &mut [SlotSnapshot], pools: &mut [PoolSnapshot]) {
        for lease in self.figures(Plane::leases) {
            let is_it = |key: LeaseKey| (key.job, key.tree) == (lease.job, lease.tree);
            match lease.counters {
                ServedCounters::Slots(counters) => {
                    if let Some(slot) = slots.iter_mut().find(|slot| is_it(slot.lease)) {
                        slot.in_kernel = true;
                        slot.held += lease.held;
                        slot.counters += counters;
                    }
                }
                ServedCounters::Pool(counters) => {
                    if let Some(pool) = pools.iter_mut().find(|pool| is_it(pool.lease)) {
                        pool.in_kernel = true;
                        pool.counters += counters;
                    }
                }
            }
        }
    }

    /// Number of slots in use in the kernel.
    pub(super) fn held(&self) -> u32 {
        self.figures(Plane::leases).iter().map(|lease| lease.held).sum()
    }

    /// Packets that the kernel dropped, by reason.
    pub(super) fn drops(&self) -> DropCounters {
        let mut drops = DropCounters::default();
        let all = self.figures(Plane::drops);
        all.into_iter().for_each(|(reason, count)| drops.count_many(reason, count));
        drops
    }

    fn figures<T: Default>(&self, of: impl Fn(&Plane) -> Result<T, WhyNot>) -> T {
        self.plane.as_ref().map_or_else(T::default, |plane| {
            of(plane).unwrap_or_else(|reason| {
                tracing::error!(%reason, "the in-kernel switch does not tell its figures");
                T::default()
            })
        })
    }

    /// Removes a plane that fails: drivers then pass all packets to the socket.
    fn check(&mut self, worked: Result<(), WhyNot>) {
        if let Err(reason) = worked {
            tracing::error!(%reason, "the in-kernel switch fails; fragments are added in user space from now on");
            self.plane = None;
            self.waiting.clear();
        }
    }
}

fn is_pool(lease: &Lease<SocketAddr>) -> bool {
    matches!(lease, Lease::Pool(_))
}

fn attach(own: SocketAddr, switch: SwitchConfig, interfaces: &[String]) -> Result<Plane, WhyNot> {
    let SocketAddr::V4(v4) = own else { return Err(WhyNot::Address(own)) };
    if v4.ip().is_unspecified() {
        return Err(WhyNot::Address(own));
    }
    let mut plane = Plane::load(PlaneOptions { own: v4, switch })?;
    interfaces.iter().try_for_each(|name| plane.attach(name))?;
    Ok(plane)
}
