//! Protocols with rows of memory behind the same loop: `atp` at a switch or a server, pools of `switchml`.

use std::net::SocketAddr;

use netsum_proto::values::{RowId, Rows, Values};
use netsum_proto::{DropCounters, Keys, Lease, LeaseKey, PortId, Time, atp, switchml};
use netsum_wire::tag::JobKey;
use netsum_wire::{Epoch, JobId, TreeId, atp as atp_wire, switchml as switchml_wire};

use super::front::Front;
use super::{PoolSnapshot, Role, ServerSnapshot, SlotSnapshot};
use crate::NetError;

/// Rows for packets on their way through: what one receiving call can bring.
const TRANSIT_ROWS: usize = 4096;

/// The machines.
pub(super) struct Slots {
    atp: Atp,
    /// In front of a switch of `atp`.
    front: Front,
    pools: switchml::Switch<Rows>,
    keys: Keys,
    limit: u32,
    row_bytes: u16,
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
    /// `own`: where the switch listens; `interfaces`: those whose drivers are to have the in-kernel switch.
    pub(super) fn new(role: Role, own: SocketAddr, interfaces: &[String]) -> Slots {
        let front = match role {
            Role::Switch(config) => Front::start(own, config, interfaces),
            Role::Server { .. } => Front::default(),
        };
        let (atp, row_bytes, limit) = match role {
            Role::Switch(config) => {
                let rows = Rows::new(config.slots as usize + TRANSIT_ROWS, config.row_bytes.into());
                let switch = atp::Switch::new(config, rows);
                (Atp::Switch(switch), config.row_bytes, config.slots)
            }
            Role::Server { row_bytes, rows } => {
                let values = Rows::new(rows + TRANSIT_ROWS, row_bytes.into());
                (
                    Atp::Server(atp::Server::new(row_bytes, values).with_rows(rows as u64)),
                    row_bytes,
                    0,
                )
            }
        };
        let rounds = 2 * limit;
        let values = Rows::new(rounds as usize + TRANSIT_ROWS, row_bytes.into());
        Slots {
            atp,
            front,
            pools: switchml::Switch::new(rounds, row_bytes, values),
            keys: Keys::default(),
            limit,
            row_bytes,
        }
    }

    /// Admits a job; `port` gives neighbours their numbers.
    pub(super) fn install(
        &mut self,
        now: Time,
        lease: &Lease<SocketAddr>,
        key: Option<JobKey>,
        port: impl FnMut(SocketAddr) -> PortId,
    ) -> Result<(), NetError> {
        let job = match (lease, &mut self.atp) {
            (Lease::Slots(lease), Atp::Switch(switch)) => {
                switch.install(now, lease.map(port))?;
                self.front.offer(switch, lease, key);
                lease.job
            }
            (Lease::Server(lease), Atp::Server(server)) => {
                server.install(now, lease.map(port))?;
                lease.job
            }
            (Lease::Pool(lease), Atp::Switch(_)) => {
                self.pools.install(now, lease.map(port))?;
                lease.job
            }
            (_, Atp::Switch(_)) => return Err(NetError::WrongRole("switch")),
            (_, Atp::Server(_)) => return Err(NetError::WrongRole("server")),
        };
        self.keys.set(job, key);
        Ok(())
    }

    pub(super) fn revoke(&mut self, job: JobId, up_to: Epoch) {
        match &mut self.atp {
            Atp::Switch(switch) => {
                switch.revoke(job, up_to);
                self.front.retain(switch);
            }
            Atp::Server(server) => server.revoke(job, up_to),
        }
        self.pools.revoke(job, up_to);
        self.forget_keys();
    }

    /// Takes back leases whose neighbours have been silent for `idle_ns`.
    pub(super) fn expire(&mut self, now: Time, idle_ns: u64) -> Vec<LeaseKey> {
        let mut gone: Vec<LeaseKey> = match &mut self.atp {
            Atp::Switch(switch) => {
                let gone = switch.expire(now, idle_ns);
                self.front.retain(switch);
                gone.iter().map(key).collect()
            }
            Atp::Server(server) => server.expire(now, idle_ns).iter().map(server_key).collect(),
        };
        gone.extend(self.pools.expire(now, idle_ns).iter().map(pool_key));
        self.forget_keys();
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
        let decoded = atp_wire::Header::decode(packet);
        if let Ok((header, _)) = &decoded
            && let Err(reason) = self.keys.check(header.job, packet)
        {
            return match &mut self.atp {
                Atp::Switch(switch) => switch.count_drop(reason),
                Atp::Server(server) => server.count_drop(reason),
            };
        }
        match (&mut self.atp, decoded) {
            (Atp::Switch(switch), Ok((header, payload))) => {
                let taken = switch.handle(now, from, ce, &header, payload).is_ok();
                let ended = taken && header.kind == atp_wire::Kind::Fin;
                if ended && switch.is_finished(header.job, header.tree) {
                    self.front.finished(header.job, header.tree);
                }
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
            Ok((header, payload)) => match self.keys.check(header.job, packet) {
                Ok(()) => _ = self.pools.handle(now, from, &header, payload),
                Err(reason) => self.pools.count_drop(reason),
            },
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
            let row = payload.map_or(&[][..], |row| self.rows().get(row));
            self.keys.seal(header.job, &mut bytes, row);
            heads.extend(bytes);
            return Some((to, payload.map(Row::Slot)));
        }
        let switchml::Transmit { to, header, payload } = self.pools.poll_transmit()?;
        let mut bytes = [0; switchml_wire::HEADER_LEN];
        header.encode(&mut bytes);
        let row = payload.map_or(&[][..], |row| self.pools.values().get(row));
        self.keys.seal(header.job, &mut bytes, row);
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
            Atp::Switch(switch) => {
                [switch.poll_timeout(), self.front.due()].into_iter().flatten().min()
            }
            Atp::Server(_) => None,
        }
    }

    /// `port` gives leased neighbours their numbers.
    pub(super) fn handle_timeout(
        &mut self,
        now: Time,
        port: impl FnMut(SocketAddr) -> Option<PortId>,
    ) {
        if let Atp::Switch(switch) = &mut self.atp {
            switch.handle_timeout(now);
            self.front.tick(now, switch, port);
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

    pub(super) fn drops(&self) -> DropCounters {
        let mut drops = self.front.drops();
        drops.add(match &self.atp {
            Atp::Switch(switch) => switch.drops(),
            Atp::Server(server) => server.drops(),
        });
        drops.add(self.pools.drops());
        drops
    }

    pub(super) fn slots(&self) -> Vec<SlotSnapshot> {
        let Atp::Switch(switch) = &self.atp else { return Vec::new() };
        let of = |(lease, held, counters): (&atp::Lease, u32, &atp::Counters)| SlotSnapshot {
            lease: key(lease),
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
        let Atp::Server(server) = &self.atp else { return Vec::new() };
        let of = |(lease, counters): (&atp::ServerLease, &atp::ServerCounters)| ServerSnapshot {
            lease: server_key(lease),
            memory_reserved: lease.memory_bytes(self.row_bytes),
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

    /// Whether the in-kernel switch is at work.
    pub(super) fn in_kernel(&self) -> bool {
        self.front.is_there()
    }

    /// Of jobs that have no lease any more.
    fn forget_keys(&mut self) {
        let mut jobs: Vec<JobId> = match &self.atp {
            Atp::Switch(switch) => switch.leases().map(|(lease, ..)| lease.job).collect(),
            Atp::Server(server) => server.leases().map(|(lease, _)| lease.job).collect(),
        };
        jobs.extend(self.pools.leases().map(|(lease, _)| lease.job));
        self.keys.retain(|job| jobs.contains(&job));
    }

    /// Slots in use, and all.
    pub(super) fn held(&self) -> (u32, u32) {
        match &self.atp {
            Atp::Switch(switch) => (switch.held() + self.front.held(), self.limit),
            Atp::Server(_) => (0, 0),
        }
    }

    /// Memory that leases of a server have reserved, bytes.
    pub(super) fn memory_reserved(&self) -> u64 {
        self.servers().iter().map(|server| server.memory_reserved).sum()
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
