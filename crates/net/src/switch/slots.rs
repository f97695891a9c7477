//! Protocols with rows of memory behind the same loop: `atp` at a switch or a server, and static pools.

use std::net::SocketAddr;

use netsum_proto::atp::{self, Node};
use netsum_proto::registry::{PoolCounters, PoolSwitch};
use netsum_proto::values::{RowId, RowTransmit, Rows};
use netsum_proto::{Aggregator, DropCounters, Keys, Lease, LeaseKey, PortId, Time};
use netsum_wire::tag::JobKey;
use netsum_wire::{Epoch, JobId, PacketHeader, Protocol};

use super::kernel_offload::KernelOffload;
use super::{PoolSnapshot, Role, ServerSnapshot, SlotSnapshot};
use crate::NetError;

/// Rows for packets on their way through: what one receiving call can bring.
const TRANSIT_ROWS: usize = 4096;

/// The machines.
pub(super) struct Slots {
    atp: Node<Rows>,
    /// In front of a switch of `atp`.
    front: KernelOffload,
    pools: PoolSwitch<Rows>,
    keys: Keys,
    limit: u32,
    row_bytes: u16,
}

/// Where the payload of a packet that waits to be sent is.
#[derive(Clone, Copy)]
pub(super) enum Row {
    Slot(RowId),
    Pool(RowId),
}

impl Slots {
    /// `own`: where the switch listens; `interfaces`: those whose drivers are to have the in-kernel switch.
    pub(super) fn new(role: Role, own: SocketAddr, interfaces: &[String]) -> Slots {
        let front = match role {
            Role::Switch(config) => KernelOffload::start(own, config, interfaces),
            Role::Server { .. } => KernelOffload::default(),
        };
        let (atp, row_bytes, limit) = match role {
            Role::Switch(config) => {
                let rows = Rows::new(config.slots as usize + TRANSIT_ROWS, config.row_bytes.into());
                let switch = atp::Switch::new(config, rows);
                (Node::Switch(switch), config.row_bytes, config.slots)
            }
            Role::Server { row_bytes, rows } => {
                let values = Rows::new(rows + TRANSIT_ROWS, row_bytes.into());
                let server = atp::Server::new(row_bytes, values).with_rows(rows as u64);
                (Node::Server(server), row_bytes, 0)
            }
        };
        let rounds = 2 * limit;
        let values = Rows::new(rounds as usize + TRANSIT_ROWS, row_bytes.into());
        Slots {
            atp,
            front,
            pools: PoolSwitch::new(rounds, row_bytes, values),
            keys: Keys::default(),
            limit,
            row_bytes,
        }
    }

    /// Admits a job whose workers start at number `first`; `port` gives neighbours their numbers.
    pub(super) fn install(
        &mut self,
        now: Time,
        lease: &Lease<SocketAddr>,
        key: Option<JobKey>,
        first: u64,
        port: impl FnMut(SocketAddr) -> PortId,
    ) -> Result<(), NetError> {
        let job = match (lease, &mut self.atp) {
            (Lease::Slots(lease), Node::Switch(switch)) => {
                switch.install_starting_at(now, lease.map(port), first)?;
                self.front.offer(switch, lease, key);
                lease.job
            }
            (Lease::Server(lease), Node::Server(server)) => {
                server.install_starting_at(now, lease.map(port), first)?;
                lease.job
            }
            (Lease::Pool(lease), Node::Switch(_)) => {
                self.pools.install_starting_at(now, lease.map(port), first)?;
                lease.job
            }
            (_, Node::Switch(_)) => return Err(NetError::WrongRole("switch")),
            (_, Node::Server(_)) => return Err(NetError::WrongRole("server")),
        };
        self.keys.set(job, key);
        Ok(())
    }

    pub(super) fn revoke(&mut self, job: JobId, up_to: Epoch) {
        self.atp.revoke(job, up_to);
        self.pools.revoke(job, up_to);
        self.forget_revoked();
    }

    /// Takes back leases whose neighbours have been silent for `idle_ns`.
    pub(super) fn expire(&mut self, now: Time, idle_ns: u64) -> Vec<LeaseKey> {
        let before: Vec<LeaseKey> = self.keys_at_work().collect();
        self.atp.expire(now, idle_ns);
        self.pools.expire(now, idle_ns);
        self.forget_revoked();
        let left: Vec<LeaseKey> = self.keys_at_work().collect();
        before.into_iter().filter(|key| !left.contains(key)).collect()
    }

    /// Whether it has no lease of `atp`.
    pub(super) fn is_idle(&self) -> bool {
        self.atp.lease_keys().next().is_none()
    }

    /// Takes a packet of one of these protocols. What is dropped is counted by the machine.
    #[inline]
    pub(super) fn take(
        &mut self,
        protocol: Protocol,
        now: Time,
        from: PortId,
        ce: bool,
        packet: &[u8],
    ) {
        if protocol.has_pools() {
            take(&mut self.pools, &self.keys, now, from, ce, packet);
            return;
        }
        let Some(header) = take(&mut self.atp, &self.keys, now, from, ce, packet) else { return };
        if header.kind == netsum_wire::atp::Kind::Fin
            && let Node::Switch(switch) = &self.atp
            && switch.is_finished(header.job, header.tree)
        {
            self.front.finished(header.job, header.tree);
        }
    }

    /// The next packet to send; its header goes to the end of `heads`.
    #[inline]
    pub(super) fn poll_transmit(&mut self, heads: &mut Vec<u8>) -> Option<(PortId, Option<Row>)> {
        if let Some(RowTransmit { to, header, payload }) = self.atp.poll_transmit() {
            encode(&self.keys, &header, payload.map(|row| self.atp.values().get(row)), heads);
            return Some((to, payload.map(Row::Slot)));
        }
        let RowTransmit { to, header, payload } = self.pools.poll_transmit()?;
        encode(&self.keys, &header, payload.map(|row| self.pools.values().get(row)), heads);
        Some((to, payload.map(Row::Pool)))
    }

    /// A row of a packet that waits to be sent.
    #[inline]
    pub(super) fn payload(&self, row: Row) -> &[u8] {
        match row {
            Row::Slot(row) => self.atp.values().get(row),
            Row::Pool(row) => self.pools.values().get(row),
        }
    }

    /// Everything of `poll_transmit` is on the wire.
    pub(super) fn flushed(&mut self) {
        self.atp.flushed();
        self.pools.flushed();
    }

    pub(super) fn poll_timeout(&self) -> Option<Time> {
        [self.atp.poll_timeout(), self.front.due()].into_iter().flatten().min()
    }

    /// `port` gives leased neighbours their numbers.
    pub(super) fn handle_timeout(
        &mut self,
        now: Time,
        port: impl FnMut(SocketAddr) -> Option<PortId>,
    ) {
        if let Node::Switch(switch) = &mut self.atp {
            switch.handle_timeout(now);
            self.front.tick(now, switch, port);
        }
    }

    /// Ports that leases name.
    pub(super) fn ports(&self) -> Vec<PortId> {
        [self.atp.ports(), self.pools.ports()].concat()
    }

    pub(super) fn drops(&self) -> DropCounters {
        let mut drops = self.front.drops();
        drops.add(self.atp.drops());
        drops.add(self.pools.drops());
        drops
    }

    pub(super) fn slots(&self) -> Vec<SlotSnapshot> {
        let Node::Switch(switch) = &self.atp else { return Vec::new() };
        let of = |(lease, held, counters): (&atp::Lease, u32, &atp::Counters)| SlotSnapshot {
            lease: LeaseKey { job: lease.job, epoch: lease.epoch, tree: lease.tree },
            in_kernel: false,
            held,
            counters: *counters,
        };
        let mut slots: Vec<_> = switch.leases().map(of).collect();
        slots.sort_by_key(|s| (s.lease.job, s.lease.tree));
        self.front.add_slots(&mut slots);
        slots
    }

    pub(super) fn servers(&self) -> Vec<ServerSnapshot> {
        let Node::Server(server) = &self.atp else { return Vec::new() };
        let of = |(lease, counters): (&atp::ServerLease, &atp::ServerCounters)| ServerSnapshot {
            lease: LeaseKey { job: lease.job, epoch: lease.epoch, tree: lease.tree },
            memory_reserved: lease.memory_bytes(self.row_bytes),
            counters: *counters,
        };
        let mut servers: Vec<_> = server.leases().map(of).collect();
        servers.sort_by_key(|s| (s.lease.job, s.lease.tree));
        servers
    }

    pub(super) fn pools(&self) -> Vec<PoolSnapshot> {
        let of = |(key, slots, counters): (LeaseKey, u16, &PoolCounters)| PoolSnapshot {
            lease: key,
            slots,
            counters: *counters,
        };
        let mut pools: Vec<_> = self.pools.pools().map(of).collect();
        pools.sort_by_key(|p| p.lease.job);
        pools
    }

    /// Whether the in-kernel switch is at work.
    pub(super) fn in_kernel(&self) -> bool {
        self.front.is_there()
    }

    fn keys_at_work(&self) -> impl Iterator<Item = LeaseKey> {
        self.atp.lease_keys().chain(self.pools.lease_keys())
    }

    /// Forgets what belongs to leases that are gone.
    fn forget_revoked(&mut self) {
        if let Node::Switch(switch) = &self.atp {
            self.front.retain(switch);
        }
        let jobs: Vec<JobId> = self.keys_at_work().map(|key| key.job).collect();
        self.keys.retain(|job| jobs.contains(&job));
    }

    /// Slots in use, and all.
    pub(super) fn held(&self) -> (u32, u32) {
        match &self.atp {
            Node::Switch(switch) => (switch.held() + self.front.held(), self.limit),
            Node::Server(_) => (0, 0),
        }
    }

    /// Memory that leases of a server have reserved, bytes.
    pub(super) fn memory_reserved(&self) -> u64 {
        self.servers().iter().map(|server| server.memory_reserved).sum()
    }

    /// Rows in use.
    pub(super) fn rows_used(&self) -> u64 {
        (self.atp.values().used() + self.pools.values().used()) as u64
    }
}

/// Takes a packet; its header if the machine did.
#[inline]
fn take<A: Aggregator<Payload = [u8]>>(
    machine: &mut A,
    keys: &Keys,
    now: Time,
    from: PortId,
    ce: bool,
    packet: &[u8],
) -> Option<A::Header> {
    let (header, payload) = match A::Header::decode(packet) {
        Ok(decoded) => decoded,
        Err(error) => {
            machine.count_decode_error(error);
            return None;
        }
    };
    if let Err(reason) = keys.check(header.job(), packet) {
        machine.count_drop(reason);
        return None;
    }
    machine.handle(now, from, ce, &header, payload).is_ok().then_some(header)
}

/// Writes a header, with its tag, to the end of `heads`.
#[inline]
fn encode<H: PacketHeader>(keys: &Keys, header: &H, payload: Option<&[u8]>, heads: &mut Vec<u8>) {
    let start = heads.len();
    heads.resize(start + H::LEN, 0);
    header.write(&mut heads[start..]);
    keys.seal(header.job(), &mut heads[start..], payload.unwrap_or_default());
}
