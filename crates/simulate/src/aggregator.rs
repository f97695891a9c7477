//! The machines of a switch or a server behind one data socket, as the daemon drives them.

use std::net::SocketAddr;

use netsum_proto::atp::{Policy, SwitchConfig};
use netsum_proto::panama::{Memory, Slab, Transmit};
use netsum_proto::values::{Rows, Values};
use netsum_proto::{Aggregator as _, Keys, Lease, PortId, Time, atp, panama, switchml};
use netsum_topo::{Protocol, SlotPolicy};
use netsum_wire::tag::JobKey;
use netsum_wire::{
    Epoch, JobId, atp as atp_wire, panama as panama_wire, switchml as switchml_wire,
};

/// What a daemon is started with.
#[derive(Clone, Debug)]
pub struct Config {
    /// A server of `atp`.
    pub server: bool,
    /// Aggregation memory, bytes.
    pub memory: u64,
    /// Slots of a switch.
    pub slots: u32,
    /// How jobs share them.
    pub policy: SlotPolicy,
    /// As workers start at.
    pub first_number: u64,
    /// Largest payload of protocols with slots.
    pub row_bytes: u16,
}

enum Atp {
    Switch(atp::Switch<Rows>),
    Server(atp::Server<Rows>),
}

/// The machines.
pub struct Aggregator {
    config: Config,
    trees: panama::Switch<Slab>,
    atp: Atp,
    pools: switchml::Switch<Rows>,
    keys: Keys,
}

/// A lease at work: job, tree, epoch.
pub type LeaseName = (u32, u32, u32);

impl Aggregator {
    /// Machines without leases.
    pub fn new(config: Config) -> Aggregator {
        let row = config.row_bytes;
        let (slots, limit) = if config.server { (0, 0) } else { (config.slots, config.memory) };
        let atp = if config.server {
            let rows = config.memory / (u64::from(row) + ROW_OVERHEAD);
            let rows = Rows::new(rows as usize + TRANSIT_ROWS, row.into());
            Atp::Server(atp::Server::new(row, rows))
        } else {
            let policy = match config.policy {
                SlotPolicy::Partition => Policy::Partition,
                SlotPolicy::FirstCome => Policy::FirstCome,
                SlotPolicy::Preempt => Policy::Preempt { patience_ns: PATIENCE_NS },
            };
            let rows = Rows::new(slots as usize + TRANSIT_ROWS, row.into());
            let straggler_ns = STRAGGLER_NS;
            let config = SwitchConfig { slots, row_bytes: row, policy, straggler_ns };
            Atp::Switch(atp::Switch::new(config, rows))
        };
        let rounds = 2 * slots;
        let values = Rows::new(rounds as usize + TRANSIT_ROWS, row.into());
        Aggregator {
            trees: panama::Switch::new(Slab::new(limit)),
            atp,
            pools: switchml::Switch::new(rounds, row, values),
            keys: Keys::default(),
            config,
        }
    }

    /// Admits a lease.
    pub fn install(
        &mut self,
        now: Time,
        lease: &Lease<SocketAddr>,
        key: Option<JobKey>,
        port: impl Fn(SocketAddr) -> PortId,
    ) -> Result<(), String> {
        let first = self.config.first_number;
        match (lease, &mut self.atp) {
            (Lease::Tree(lease), _) => {
                let installed = self.trees.install_starting_at(now, lease.map(port), first);
                return installed.map_err(|e| e.to_string());
            }
            (Lease::Slots(lease), Atp::Switch(switch)) => {
                switch
                    .install_starting_at(now, lease.map(port), first)
                    .map_err(|e| e.to_string())?;
            }
            (Lease::Server(lease), Atp::Server(server)) => {
                server
                    .install_starting_at(now, lease.map(port), first)
                    .map_err(|e| e.to_string())?;
            }
            (Lease::Pool(lease), Atp::Switch(_)) => {
                self.pools
                    .install_starting_at(now, lease.map(port), first)
                    .map_err(|e| e.to_string())?;
            }
            _ => return Err("the lease is for another role".to_owned()),
        }
        self.keys.set(lease.key().job, key);
        Ok(())
    }

    /// Drops a job's leases up to an epoch.
    pub fn revoke(&mut self, job: JobId, up_to: Epoch) {
        self.trees.revoke(job, up_to);
        match &mut self.atp {
            Atp::Switch(switch) => switch.revoke(job, up_to),
            Atp::Server(server) => server.revoke(job, up_to),
        }
        self.pools.revoke(job, up_to);
        self.flushed();
        self.forget_keys();
    }

    /// Takes back leases whose neighbours have been silent.
    pub fn expire(&mut self, now: Time, idle_ns: u64) {
        self.trees.expire(now, idle_ns);
        match &mut self.atp {
            Atp::Switch(switch) => _ = switch.expire(now, idle_ns),
            Atp::Server(server) => _ = server.expire(now, idle_ns),
        }
        self.pools.expire(now, idle_ns);
        self.flushed();
        self.forget_keys();
    }

    /// Takes a packet.
    pub fn take(&mut self, now: Time, from: PortId, ce: bool, packet: &[u8]) {
        match packet.first() {
            Some(&atp_wire::VERSION) => self.take_atp(now, from, ce, packet),
            Some(&switchml_wire::VERSION) => match switchml_wire::Header::decode(packet) {
                Ok((header, payload)) => match self.keys.check(header.job, packet) {
                    Ok(()) => _ = self.pools.handle(now, from, ce, &header, payload),
                    Err(reason) => self.pools.count_drop(reason),
                },
                Err(error) => self.pools.count_decode_error(error),
            },
            _ => match panama_wire::Header::decode(packet) {
                Ok((header, payload)) => {
                    let _ = self.trees.handle(now, from, ce, &header, payload);
                }
                Err(error) => self.trees.count_decode_error(error),
            },
        }
    }

    fn take_atp(&mut self, now: Time, from: PortId, ce: bool, packet: &[u8]) {
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
                let _ = switch.handle(now, from, ce, &header, payload);
            }
            (Atp::Server(server), Ok((header, payload))) => {
                let _ = server.handle(now, from, ce, &header, payload);
            }
            (Atp::Switch(switch), Err(error)) => switch.count_decode_error(error),
            (Atp::Server(server), Err(error)) => server.count_decode_error(error),
        }
    }

    /// The next packet to send, and where.
    pub fn poll_transmit(&mut self) -> Option<(PortId, Vec<u8>)> {
        match self.trees.poll_transmit() {
            Some(Transmit::Data { to, buffer }) => {
                return Some((to, self.trees.memory().packet(buffer).to_vec()));
            }
            Some(Transmit::Control { to, header }) => {
                let mut packet = [0; panama_wire::HEADER_LEN];
                header.encode(&mut packet);
                return Some((to, packet.to_vec()));
            }
            None => {}
        }
        let next = match &mut self.atp {
            Atp::Switch(switch) => switch.poll_transmit(),
            Atp::Server(server) => server.poll_transmit(),
        };
        if let Some(atp::Transmit { to, header, payload }) = next {
            let values = match &self.atp {
                Atp::Switch(switch) => switch.values(),
                Atp::Server(server) => server.values(),
            };
            let row = payload.map_or(&[][..], |row| values.get(row));
            let mut head = [0; atp_wire::HEADER_LEN];
            header.encode(&mut head);
            self.keys.seal(header.job, &mut head, row);
            return Some((to, [&head[..], row].concat()));
        }
        let switchml::Transmit { to, header, payload } = self.pools.poll_transmit()?;
        let row = payload.map_or(&[][..], |row| self.pools.values().get(row));
        let mut head = [0; switchml_wire::HEADER_LEN];
        header.encode(&mut head);
        self.keys.seal(header.job, &mut head, row);
        Some((to, [&head[..], row].concat()))
    }

    /// Everything of `poll_transmit` is on the wire.
    pub fn flushed(&mut self) {
        self.trees.flushed();
        match &mut self.atp {
            Atp::Switch(switch) => switch.values_mut().flushed(),
            Atp::Server(server) => server.values_mut().flushed(),
        }
        self.pools.values_mut().flushed();
    }

    /// When `handle_timeout` must be called.
    pub fn poll_timeout(&self) -> Option<Time> {
        match &self.atp {
            Atp::Switch(switch) => switch.poll_timeout(),
            Atp::Server(_) => None,
        }
    }

    /// Deadlines up to `now` have passed.
    pub fn handle_timeout(&mut self, now: Time) {
        if let Atp::Switch(switch) = &mut self.atp {
            switch.handle_timeout(now);
        }
    }

    /// Leases at work, in order.
    pub fn leases(&self) -> Vec<LeaseName> {
        let name =
            |job: JobId, tree: u8, epoch: Epoch| (job.0, u32::from(tree), u32::from(epoch.0));
        let trees = self.trees.leases().map(|l| name(l.job, l.tree.0, l.epoch));
        let pools = self.pools.leases().map(|(l, _)| name(l.job, 0, l.epoch));
        let mut leases: Vec<LeaseName> = trees.chain(pools).collect();
        match &self.atp {
            Atp::Switch(switch) => {
                leases.extend(switch.leases().map(|(l, ..)| name(l.job, l.tree.0, l.epoch)));
            }
            Atp::Server(server) => {
                leases.extend(server.leases().map(|(l, _)| name(l.job, l.tree.0, l.epoch)));
            }
        }
        leases.sort_unstable();
        leases
    }

    /// What each lease has counted: its name, its protocol, packets that were taken.
    pub fn counters(&self) -> Vec<(LeaseName, Protocol, u64)> {
        let name =
            |job: JobId, tree: u8, epoch: Epoch| (job.0, u32::from(tree), u32::from(epoch.0));
        let trees = self.trees.leases().zip(self.trees.tree_counters());
        let trees = trees.map(|(l, (.., counters))| {
            (name(l.job, l.tree.0, l.epoch), Protocol::Panama, counters.contributions)
        });
        let pools = self
            .pools
            .leases()
            .map(|(l, counters)| (name(l.job, 0, l.epoch), Protocol::Switchml, counters.added));
        let mut all: Vec<(LeaseName, Protocol, u64)> = trees.chain(pools).collect();
        match &self.atp {
            Atp::Switch(switch) => all.extend(switch.leases().map(|(l, _, counters)| {
                (name(l.job, l.tree.0, l.epoch), Protocol::Atp, counters.added)
            })),
            Atp::Server(server) => all.extend(server.leases().map(|(l, counters)| {
                (name(l.job, l.tree.0, l.epoch), Protocol::Atp, counters.contributions)
            })),
        }
        all
    }

    /// What is wrong with the memory it holds, if anything.
    pub fn check_memory(&self) -> Option<String> {
        let slab = self.trees.memory();
        if slab.used() > slab.limit() {
            return Some(format!("trees hold {} of {} bytes", slab.used(), slab.limit()));
        }
        let reserved: u64 = self
            .trees
            .leases()
            .zip(self.trees.window_caps())
            .map(|(lease, (_, _, cap))| {
                u64::from(cap) * (lease.children.len() as u64 + 1) * slab.cost(lease.fragment_bytes)
            })
            .sum();
        if reserved > slab.limit() {
            return Some(format!("trees may take {reserved} of {} bytes", slab.limit()));
        }
        if let Atp::Switch(switch) = &self.atp {
            let mut all = 0;
            for (lease, held, _) in switch.leases() {
                all += held;
                if held > lease.claim.limit {
                    let (job, limit) = (lease.job, lease.claim.limit);
                    return Some(format!("job {job} holds {held} slots, its limit is {limit}"));
                }
            }
            if all > self.config.slots || switch.held() > self.config.slots {
                return Some(format!("{all} of {} slots are held", self.config.slots));
            }
        }
        let pools: u32 = self.pools.leases().map(|(lease, _)| 2 * u32::from(lease.slots)).sum();
        if pools > 2 * self.config.slots {
            return Some(format!("pools take {pools} of {} rows", 2 * self.config.slots));
        }
        None
    }

    /// What it holds while no lease is left, if anything.
    pub fn leftover(&self) -> Option<String> {
        let rows = match &self.atp {
            Atp::Switch(switch) => switch.values().used(),
            Atp::Server(server) => server.values().used(),
        };
        let (bytes, pools) = (self.trees.memory().used(), self.pools.values().used());
        let nothing = (bytes, rows, pools) == (0, 0, 0);
        (!nothing).then(|| {
            format!("no lease is left, and {bytes} bytes, {rows} slots and {pools} rows are held")
        })
    }

    fn forget_keys(&mut self) {
        let jobs: Vec<u32> = self.leases().iter().map(|lease| lease.0).collect();
        self.keys.retain(|job| jobs.contains(&job.0));
    }
}

/// Rows for packets on their way through.
const TRANSIT_ROWS: usize = 4096;
/// Bookkeeping beside a fragment in a server's memory.
const ROW_OVERHEAD: u64 = 64;
/// As the daemon has them.
const STRAGGLER_NS: u64 = 200_000_000;
const PATIENCE_NS: u64 = 20_000_000;
