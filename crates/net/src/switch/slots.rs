//! Protocols with rows of memory behind the same loop: `atp` at a switch or a server, pools of `switchml`.

use std::net::SocketAddr;

use netsum_proto::values::{RowId, Rows, Values};
use netsum_proto::{DropCounters, PortId, Time, atp, switchml};
use netsum_wire::{Epoch, JobId, TreeId, atp as atp_wire, switchml as switchml_wire};

use super::{Grant, LeaseKey, PoolSnapshot, Role, ServerSnapshot, SlotSnapshot};
use crate::NetError;

/// Rows for packets on their way through: what one receiving call can bring.
const TRANSIT_ROWS: usize = 4096;

/// The machines.
pub(super) struct Slots {
    atp: Atp,
    pools: switchml::Switch<Rows>,
    limit: u32,
}

enum Atp {
    Switch(atp::Switch<Rows>),
    Server(atp::Server<Rows>),
}

/// Where the payload of a packet that waits to be sent is.
#[derive(Clone, Copy)]
pub(super) enum Row {
    Slot(RowId),
    Pool(RowId),
}

impl Slots {
    pub(super) fn new(role: Role) -> Slots {
        let (atp, row_bytes, limit) = match role {
            Role::Switch(config) => {
                let rows = Rows::new(config.slots as usize + TRANSIT_ROWS, config.row_bytes.into());
                let switch = atp::Switch::new(config, rows);
                (Atp::Switch(switch), config.row_bytes, config.slots)
            }
            Role::Server { row_bytes, rows } => {
                let rows = Rows::new(rows + TRANSIT_ROWS, row_bytes.into());
                (Atp::Server(atp::Server::new(row_bytes, rows)), row_bytes, 0)
            }
        };
        let rounds = 2 * limit;
        let values = Rows::new(rounds as usize + TRANSIT_ROWS, row_bytes.into());
        Slots { atp, pools: switchml::Switch::new(rounds, row_bytes, values), limit }
    }

    /// Admits a job; `port` gives neighbours their numbers.
    pub(super) fn install(
        &mut self,
        now: Time,
        grant: &Grant,
        port: impl FnMut(SocketAddr) -> PortId,
    ) -> Result<(), NetError> {
        match (grant, &mut self.atp) {
            (Grant::Slots(lease), Atp::Switch(switch)) => Ok(switch.install(now, lease.map(port))?),
            (Grant::Server(lease), Atp::Server(server)) => {
                Ok(server.install(now, lease.map(port))?)
            }
            (Grant::Pool(lease), Atp::Switch(_)) => Ok(self.pools.install(now, lease.map(port))?),
            (_, Atp::Switch(_)) => Err(NetError::WrongRole("switch")),
            (_, Atp::Server(_)) => Err(NetError::WrongRole("server")),
        }
    }

    pub(super) fn revoke(&mut self, job: JobId, up_to: Epoch) {
        match &mut self.atp {
            Atp::Switch(switch) => switch.revoke(job, up_to),
            Atp::Server(server) => server.revoke(job, up_to),
        }
        self.pools.revoke(job, up_to);
    }

    /// Takes back leases whose neighbours have been silent for `idle_ns`.
    pub(super) fn expire(&mut self, now: Time, idle_ns: u64) -> Vec<LeaseKey> {
        let mut gone: Vec<LeaseKey> = match &mut self.atp {
            Atp::Switch(switch) => switch.expire(now, idle_ns).iter().map(key).collect(),
            Atp::Server(server) => server.expire(now, idle_ns).iter().map(server_key).collect(),
        };
        gone.extend(self.pools.expire(now, idle_ns).iter().map(pool_key));
        gone
    }

    /// Whether it has no lease of `atp`.
    pub(super) fn is_idle(&self) -> bool {
        match &self.atp {
            Atp::Switch(switch) => switch.leases().next().is_none(),
            Atp::Server(server) => server.leases().next().is_none(),
        }
    }

    /// Takes a packet of `atp`. What is dropped is counted by the machine.
    #[inline]
    pub(super) fn take_atp(&mut self, now: Time, from: PortId, ce: bool, packet: &[u8]) {
        match (&mut self.atp, atp_wire::Header::decode(packet)) {
            (Atp::Switch(switch), Ok((header, payload))) => {
                let _ = switch.handle(now, from, ce, &header, payload);
            }
            (Atp::Server(server), Ok((header, payload))) => {
                let _ = server.handle(now, from, ce, &header, payload);
            }
            (Atp::Switch(switch), Err(error)) => switch.count_decode_error(error),
            (Atp::Server(server), Err(error)) => server.count_decode_error(error),
        }
    }

    /// Takes a packet of `switchml`. What is dropped is counted by the machine.
    #[inline]
    pub(super) fn take_switchml(&mut self, now: Time, from: PortId, packet: &[u8]) {
        match switchml_wire::Header::decode(packet) {
            Ok((header, payload)) => {
                let _ = self.pools.handle(now, from, &header, payload);
            }
            Err(error) => self.pools.count_decode_error(error),
        }
    }

    /// The next packet to send; its header goes to the end of `heads`.
    #[inline]
    pub(super) fn poll_transmit(&mut self, heads: &mut Vec<u8>) -> Option<(PortId, Option<Row>)> {
        let next = match &mut self.atp {
            Atp::Switch(switch) => switch.poll_transmit(),
            Atp::Server(server) => server.poll_transmit(),
        };
        if let Some(atp::Transmit { to, header, payload }) = next {
            let mut bytes = [0; atp_wire::HEADER_LEN];
            header.encode(&mut bytes);
            heads.extend(bytes);
            return Some((to, payload.map(Row::Slot)));
        }
        let switchml::Transmit { to, header, payload } = self.pools.poll_transmit()?;
        let mut bytes = [0; switchml_wire::HEADER_LEN];
        header.encode(&mut bytes);
        heads.extend(bytes);
        Some((to, payload.map(Row::Pool)))
    }

    /// A row of a packet that waits to be sent.
    #[inline]
    pub(super) fn payload(&self, row: Row) -> &[u8] {
        match row {
            Row::Slot(row) => self.rows().get(row),
            Row::Pool(row) => self.pools.values().get(row),
        }
    }

    /// Everything of `poll_transmit` is on the wire.
    pub(super) fn flushed(&mut self) {
        match &mut self.atp {
            Atp::Switch(switch) => switch.values_mut().flushed(),
            Atp::Server(server) => server.values_mut().flushed(),
        }
        self.pools.values_mut().flushed();
    }

    pub(super) fn poll_timeout(&self) -> Option<Time> {
        match &self.atp {
            Atp::Switch(switch) => switch.poll_timeout(),
            Atp::Server(_) => None,
        }
    }

    pub(super) fn handle_timeout(&mut self, now: Time) {
        if let Atp::Switch(switch) = &mut self.atp {
            switch.handle_timeout(now);
        }
    }

    /// Ports that leases name.
    pub(super) fn ports(&self) -> Vec<PortId> {
        let mut ports: Vec<PortId> = match &self.atp {
            Atp::Switch(switch) => {
                let of = |l: &atp::Lease| l.members.neighbours().chain([l.parent]).collect();
                switch.leases().flat_map(|(lease, ..)| -> Vec<PortId> { of(lease) }).collect()
            }
            Atp::Server(server) => {
                server.leases().flat_map(|(l, _)| l.neighbours.iter().map(|n| n.port)).collect()
            }
        };
        ports.extend(self.pools.leases().flat_map(|(lease, _)| lease.workers.iter().copied()));
        ports
    }

    pub(super) fn drops(&self) -> [&DropCounters; 2] {
        let drops = match &self.atp {
            Atp::Switch(switch) => switch.drops(),
            Atp::Server(server) => server.drops(),
        };
        [drops, self.pools.drops()]
    }

    pub(super) fn slots(&self) -> Vec<SlotSnapshot> {
        let Atp::Switch(switch) = &self.atp else { return Vec::new() };
        let of = |(lease, held, counters): (&atp::Lease, u32, &atp::Counters)| SlotSnapshot {
            lease: key(lease),
            held,
            counters: *counters,
        };
        let mut slots: Vec<_> = switch.leases().map(of).collect();
        slots.sort_by_key(|s| (s.lease.job, s.lease.tree));
        slots
    }

    pub(super) fn servers(&self) -> Vec<ServerSnapshot> {
        let Atp::Server(server) = &self.atp else { return Vec::new() };
        let of = |(lease, counters): (&atp::ServerLease, &atp::ServerCounters)| ServerSnapshot {
            lease: server_key(lease),
            counters: *counters,
        };
        let mut servers: Vec<_> = server.leases().map(of).collect();
        servers.sort_by_key(|s| (s.lease.job, s.lease.tree));
        servers
    }

    pub(super) fn pools(&self) -> Vec<PoolSnapshot> {
        let of = |(lease, counters): (&switchml::Lease, &switchml::Counters)| PoolSnapshot {
            lease: pool_key(lease),
            slots: lease.slots,
            counters: *counters,
        };
        let mut pools: Vec<_> = self.pools.leases().map(of).collect();
        pools.sort_by_key(|p| p.lease.job);
        pools
    }

    /// Slots in use, and all.
    pub(super) fn held(&self) -> (u32, u32) {
        match &self.atp {
            Atp::Switch(switch) => (switch.held(), self.limit),
            Atp::Server(_) => (0, 0),
        }
    }

    /// Rows in use.
    pub(super) fn rows_used(&self) -> u64 {
        (self.rows().used() + self.pools.values().used()) as u64
    }

    fn rows(&self) -> &Rows {
        match &self.atp {
            Atp::Switch(switch) => switch.values(),
            Atp::Server(server) => server.values(),
        }
    }
}

fn key(lease: &atp::Lease) -> LeaseKey {
    LeaseKey { job: lease.job, epoch: lease.epoch, tree: lease.tree }
}

fn server_key(lease: &atp::ServerLease) -> LeaseKey {
    LeaseKey { job: lease.job, epoch: lease.epoch, tree: lease.tree }
}

fn pool_key(lease: &switchml::Lease) -> LeaseKey {
    LeaseKey { job: lease.job, epoch: lease.epoch, tree: TreeId(0) }
}
