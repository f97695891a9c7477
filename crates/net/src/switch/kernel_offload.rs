//! The in-kernel switch in front of the user-space one: its leases, and its stragglers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use netsum_proto::atp::{Lease, Switch, SwitchConfig};
use netsum_proto::values::Rows;
use netsum_proto::{DropCounters, PortId, Secrets, SharedNumbers, Time};
use netsum_wire::atp::Header;
use netsum_wire::{JobId, TreeId};
use rustc_hash::FxHashMap;

use super::SlotSnapshot;
use crate::xdp::{Plane, PlaneOptions, WhyNot};

/// The in-kernel plane, as long as it works; without one everything is done in user space.
#[derive(Default)]
pub(super) struct KernelOffload {
    plane: Option<Plane>,
    /// Leases that the kernel does not serve yet, because a neighbour's Ethernet address is being resolved.
    waiting: FxHashMap<(JobId, TreeId), (Lease<SocketAddr>, Option<Secrets>)>,
    every: Duration,
    due: Time,
    scan: Time,
    straggler_ns: u64,
}

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

    /// Offers a lease that `machine` has just installed.
    pub(super) fn offer(
        &mut self,
        machine: &Switch<Rows>,
        lease: &Lease<SocketAddr>,
        secrets: Option<&Secrets>,
    ) {
        let key = (lease.job, lease.tree);
        self.waiting.remove(&key);
        let (Some(plane), Some((first, passed))) =
            (&mut self.plane, machine.standing(lease.job, lease.tree))
        else {
            return;
        };
        match plane.offer(lease, secrets.map(Vec::as_slice), first, passed) {
            Ok(()) => {}
            Err(WhyNot::Resolving(_)) => {
                self.waiting.insert(key, (lease.clone(), secrets.cloned()));
            }
            Err(reason) => tracing::warn!(
                job = lease.job.0, tree = lease.tree.0, %reason, "user space serves this lease"
            ),
        }
    }

    /// Leaves a lease to user space.
    pub(super) fn leave(&mut self, lease: &Lease<SocketAddr>) {
        self.waiting.remove(&(lease.job, lease.tree));
        let left = self.plane.as_mut().map_or(Ok(()), |plane| plane.leave(lease));
        self.check(left);
    }

    /// The packet numbers of a lease's hops, children before the parent. `None`, with a line in the log: the kernel
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
                tracing::warn!(
                    job = lease.job.0, tree = lease.tree.0, %reason, "user space serves this lease"
                );
                None
            }
        }
    }

    /// Removes leases that `machine` no longer has.
    pub(super) fn retain(&mut self, machine: &Switch<Rows>) {
        let here = |&(job, tree): &(JobId, TreeId)| machine.standing(job, tree).is_some();
        self.waiting.retain(|key, _| here(key));
        let Some(plane) = &mut self.plane else { return };
        let gone: Vec<_> = plane.keys().filter(|key| !here(key)).collect();
        let removed = gone.into_iter().try_for_each(|(job, tree)| plane.remove(job, tree));
        self.check(removed);
    }

    /// Releases a lease whose workers have all sent fin.
    pub(super) fn finished(&mut self, job: JobId, tree: TreeId) {
        let released = self.plane.as_mut().map_or(Ok(()), |plane| plane.release(job, tree));
        self.check(released);
    }

    /// When `tick` must be called next.
    pub(super) fn due(&self) -> Option<Time> {
        self.plane.as_ref().map(|_| self.due)
    }

    /// Advances the time: sums that stragglers hold up are released to `machine`'s outbox.
    pub(super) fn tick(
        &mut self,
        now: Time,
        machine: &mut Switch<Rows>,
        port: impl FnMut(SocketAddr) -> Option<PortId>,
    ) {
        if now < self.due {
            return;
        }
        self.due = now.after(self.every.as_nanos() as u64);
        let worked = self.try_tick(now, machine, port);
        self.check(worked);
        for (lease, secrets) in std::mem::take(&mut self.waiting).into_values() {
            self.offer(machine, &lease, secrets.as_ref());
        }
    }

    fn try_tick(
        &mut self,
        now: Time,
        machine: &mut Switch<Rows>,
        mut port: impl FnMut(SocketAddr) -> Option<PortId>,
    ) -> Result<(), WhyNot> {
        let Some(plane) = &mut self.plane else { return Ok(()) };
        plane.tick(now.0)?;
        if now < self.scan {
            return Ok(());
        }
        self.scan = now.after(self.straggler_ns / 2);
        for lease in plane.leases()? {
            machine.note_seen(lease.job, lease.tree, Time(lease.last_seen));
        }
        plane.sweep(|to, packet| {
            if let (Ok((header, payload)), Some(to)) = (Header::decode(packet), port(to.into())) {
                machine.relay(to, &header, payload);
            }
        })
    }

    /// Adds the kernel's counters.
    pub(super) fn add_slots(&self, slots: &mut [SlotSnapshot]) {
        for lease in self.figures(Plane::leases) {
            let key = (lease.job, lease.tree);
            let mut all = slots.iter_mut();
            if let Some(slot) = all.find(|s| (s.lease.job, s.lease.tree) == key) {
                slot.in_kernel = true;
                slot.held += lease.held;
                slot.counters += lease.counters;
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

fn attach(own: SocketAddr, switch: SwitchConfig, interfaces: &[String]) -> Result<Plane, WhyNot> {
    let SocketAddr::V4(v4) = own else { return Err(WhyNot::Address(own)) };
    if v4.ip().is_unspecified() {
        return Err(WhyNot::Address(own));
    }
    let mut plane = Plane::load(PlaneOptions { own: v4, switch })?;
    interfaces.iter().try_for_each(|name| plane.attach(name))?;
    Ok(plane)
}
