//! Slot protocols in the switch's loop, and the in-kernel switch in front of them.

use std::net::SocketAddr;

use netsum_proto::atp::{self, Node};
use netsum_proto::hops::{AT_ONCE, Checked, CheckedAhead};
use netsum_proto::registry::{POOLS, PoolCounters};
use netsum_proto::row_machines::{Role, Row, RowMachines};
use netsum_proto::{
    Aggregator, DropCounters, DropReason, Lateness, Lease, LeaseKey, PortId, Secrets, Time,
};
use netsum_wire::atp::{Header, Kind};
use netsum_wire::{Epoch, JobId, Protocol};
use rustc_hash::FxHashSet;

use super::kernel_offload::KernelOffload;
use super::{PoolSnapshot, ServerSnapshot, SlotSnapshot};
use crate::NetError;
use crate::lanes;

/// The state machines, and the in-kernel switch in front of them.
pub(super) struct Slots {
    machines: RowMachines,
    /// In front of a switch.
    front: KernelOffload,
    limit: u32,
    /// Jobs whose rate is limited: the kernel enforces no rates.
    limited: FxHashSet<JobId>,
    /// Packets that came before the kernel could serve their pool.
    early: DropCounters,
}

impl Slots {
    /// `own`: address of the switch; `interfaces`: those whose drivers run the in-kernel switch.
    pub(super) fn new(role: Role, own: SocketAddr, interfaces: &[String]) -> Slots {
        let (front, limit) = match role {
            Role::Switch(config) => (KernelOffload::start(own, config, interfaces), config.slots),
            Role::Server { .. } => (KernelOffload::default(), 0),
        };
        let mut machines = RowMachines::new(role);
        machines.hops_mut().use_lanes(lanes::detect());
        Slots {
            machines,
            front,
            limit,
            limited: FxHashSet::default(),
            early: DropCounters::default(),
        }
    }

    /// Sets whether the rate of a job is limited, before its leases are installed.
    pub(super) fn own(&mut self, job: JobId, limited: bool) {
        match limited {
            true => _ = self.limited.insert(job),
            false => _ = self.limited.remove(&job),
        }
    }

    /// Installs a lease of a job whose workers start at number `first`; `port` maps neighbours to port numbers.
    pub(super) fn install(
        &mut self,
        now: Time,
        lease: &Lease<SocketAddr>,
        secrets: Option<&Secrets>,
        first: u64,
        port: impl FnMut(SocketAddr) -> PortId,
    ) -> Result<(), NetError> {
        let local = lease.map(port);
        self.machines.install(now, local.clone(), secrets, first)?;
        if self.front.is_there() {
            let possible = self.share_numbers(&local, lease, secrets);
            match possible && !self.limited.contains(&lease.key().job) {
                true => self.front.offer(now, &self.machines, lease, secrets),
                false => self.front.leave(lease),
            }
        }
        Ok(())
    }

    /// Shares the packet numbers of a lease's hops with the kernel; false if that is not possible.
    fn share_numbers(
        &mut self,
        local: &Lease,
        lease: &Lease<SocketAddr>,
        secrets: Option<&Secrets>,
    ) -> bool {
        let Some(secrets) = secrets else { return true };
        let Some(numbers) = self.front.numbers(lease, secrets) else { return false };
        let hops = self.machines.hops_mut();
        let both = local.neighbours().into_iter().zip(numbers);
        both.fold(true, |all, (to, numbers)| hops.share(local.key(), to, numbers) && all)
    }

    pub(super) fn revoke(&mut self, job: JobId, up_to: Epoch) {
        self.machines.revoke(job, up_to);
        self.forget_revoked();
    }

    /// Revokes leases whose neighbours have been silent for `idle_ns`.
    pub(super) fn expire(&mut self, now: Time, idle_ns: u64) -> Vec<LeaseKey> {
        let expired = self.machines.expire(now, idle_ns);
        self.forget_revoked();
        expired
    }

    /// Whether there is no lease of `atp`.
    pub(super) fn is_idle(&self) -> bool {
        self.machines.node().lease_keys().next().is_none()
    }

    /// Processes a packet of one of these protocols, which is decrypted in its place. The machine counts dropped packets.
    #[inline]
    pub(super) fn take(
        &mut self,
        protocol: Protocol,
        now: Time,
        from: PortId,
        ce: bool,
        packet: &mut [u8],
        checked: Option<Checked>,
    ) {
        if protocol == POOLS && self.front.has_pool_of(packet) {
            self.early.count(DropReason::NoLease);
            return;
        }
        let taken = self.machines.take(protocol, now, from, ce, packet, checked);
        if taken && protocol == Protocol::Atp && self.front.is_there() {
            self.notify_kernel_offload(packet);
        }
    }

    /// Opens packets of a train together, if that is faster.
    #[inline]
    pub(super) fn check_ahead(
        &self,
        from: PortId,
        packets: [&mut [u8]; AT_ONCE],
    ) -> Option<CheckedAhead> {
        self.machines.check_ahead(from, packets)
    }

    /// Gives the packets of `poll_transmit` their tags, before they are sent.
    #[inline]
    pub(super) fn seal_waiting(&mut self, heads: &mut [u8]) {
        self.machines.seal_waiting(heads);
    }

    /// The next packet to send; its header is appended to `heads`.
    #[inline]
    pub(super) fn poll_transmit(&mut self, heads: &mut Vec<u8>) -> Option<(PortId, Option<Row>)> {
        self.machines.poll_transmit(heads)
    }

    /// A row of a packet that waits to be sent.
    #[inline]
    pub(super) fn payload(&self, row: Row) -> &[u8] {
        self.machines.payload(row)
    }

    /// Reports that all packets of `poll_transmit` have been sent.
    pub(super) fn flushed(&mut self) {
        self.machines.flushed();
    }

    pub(super) fn poll_timeout(&self) -> Option<Time> {
        [self.machines.poll_timeout(), self.front.due()].into_iter().flatten().min()
    }

    /// `port` maps leased neighbours to port numbers.
    pub(super) fn handle_timeout(
        &mut self,
        now: Time,
        port: impl FnMut(SocketAddr) -> Option<PortId>,
    ) {
        self.machines.handle_timeout(now);
        self.front.tick(now, &mut self.machines, port);
    }

    /// Installed leases.
    pub(super) fn lease_keys(&self) -> impl Iterator<Item = LeaseKey> {
        self.machines.lease_keys()
    }

    /// Ports in all leases.
    pub(super) fn ports(&self) -> Vec<PortId> {
        self.machines.ports()
    }

    pub(super) fn drops(&self) -> DropCounters {
        let mut drops = self.front.drops();
        drops.add(&self.machines.drops());
        drops.add(&self.early);
        drops
    }

    pub(super) fn slots(&self) -> Vec<SlotSnapshot> {
        let Node::Switch(switch) = self.machines.node() else { return Vec::new() };
        let of = |(lease, held, counters): (&atp::Lease, u32, &atp::Counters)| SlotSnapshot {
            lease: LeaseKey { job: lease.job, epoch: lease.epoch, tree: lease.tree },
            in_kernel: false,
            held,
            counters: *counters,
        };
        let mut slots: Vec<_> = switch.leases().map(of).collect();
        slots.sort_by_key(|s| (s.lease.job, s.lease.tree));
        self.front.add_counters(&mut slots, &mut []);
        slots
    }

    pub(super) fn servers(&self) -> Vec<ServerSnapshot> {
        let Node::Server(server) = self.machines.node() else { return Vec::new() };
        let of = |(lease, counters): (&atp::ServerLease, &atp::ServerCounters)| ServerSnapshot {
            lease: LeaseKey { job: lease.job, epoch: lease.epoch, tree: lease.tree },
            memory_reserved: lease.memory_bytes(self.machines.row_bytes()),
            counters: *counters,
        };
        let mut servers: Vec<_> = server.leases().map(of).collect();
        servers.sort_by_key(|s| (s.lease.job, s.lease.tree));
        servers
    }

    pub(super) fn pools(&self) -> Vec<PoolSnapshot> {
        let of = |(key, slots, counters): (LeaseKey, u16, &PoolCounters)| PoolSnapshot {
            lease: key,
            in_kernel: false,
            slots,
            counters: *counters,
        };
        let mut pools: Vec<_> = self.machines.pools().pools().map(of).collect();
        pools.sort_by_key(|p| (p.lease.job, p.lease.tree));
        self.front.add_counters(&mut [], &mut pools);
        pools
    }

    /// How late children are.
    pub(super) fn lateness(&self, now: Time) -> Vec<(LeaseKey, PortId, Lateness)> {
        self.machines.lateness(now)
    }

    /// Whether the in-kernel switch is active.
    pub(super) fn in_kernel(&self) -> bool {
        self.front.is_there()
    }

    /// Notifies the in-kernel switch of a lease whose children have nothing more to send.
    fn notify_kernel_offload(&mut self, packet: &[u8]) {
        if let (Ok((header, _)), Node::Switch(switch)) =
            (Header::decode(packet), self.machines.node())
            && header.kind == Kind::Fin
            && switch.is_finished(header.job, header.tree)
        {
            self.front.finished(header.job, header.tree);
        }
    }

    /// Drops the state of revoked leases.
    fn forget_revoked(&mut self) {
        let jobs: FxHashSet<JobId> = self.lease_keys().map(|key| key.job).collect();
        self.limited.retain(|job| jobs.contains(job));
        self.front.retain(&self.machines);
    }

    /// Slots in use, and their total.
    pub(super) fn held(&self) -> (u32, u32) {
        match self.machines.node() {
            Node::Switch(switch) => (switch.held() + self.front.held(), self.limit),
            Node::Server(_) => (0, 0),
        }
    }

    /// Memory reserved by leases of a server, bytes.
    pub(super) fn memory_reserved(&self) -> u64 {
        self.servers().iter().map(|server| server.memory_reserved).sum()
    }

    /// Rows in use.
    pub(super) fn rows_used(&self) -> u64 {
        self.machines.rows_used()
    }
}
