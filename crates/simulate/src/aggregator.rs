//! The state machines of a switch or a server behind one data socket, driven as by the daemon.

use std::net::SocketAddr;

use netsum_proto::atp::{Node, Policy, SwitchConfig};
use netsum_proto::panama::{self, Memory, Slab, Transmit};
use netsum_proto::row_machines::{Role, RowMachines};
use netsum_proto::values::row_cost;
use netsum_proto::{Aggregator as _, Hops, Lease, LeaseKey, PortId, Secrets, Time};
use netsum_topo::SlotPolicy;
use netsum_wire::panama::{HEADER_LEN, Header};
use netsum_wire::{Epoch, JobId, PacketHeader, Protocol};

/// Configuration of a switch or server process.
#[derive(Clone, Debug)]
pub struct Config {
    /// Whether the process is a server of `atp`.
    pub server: bool,
    /// Aggregation memory, bytes.
    pub memory: u64,
    /// Number of slots of a switch.
    pub slots: u32,
    /// How jobs share slots.
    pub policy: SlotPolicy,
    /// Initial fragment number, as configured for workers.
    pub first_number: u64,
    /// Largest payload of slot protocols, bytes.
    pub row_bytes: u16,
}

/// The state machines of one switch or server.
pub struct Aggregator {
    config: Config,
    trees: panama::Switch<Slab>,
    hops: Hops,
    rows: RowMachines,
}

/// Identifies an installed lease: job, tree, epoch.
pub type LeaseName = (u32, u32, u32);

impl Aggregator {
    /// An aggregator without leases.
    pub fn new(config: Config) -> Aggregator {
        let limit = if config.server { 0 } else { config.memory };
        Aggregator {
            trees: panama::Switch::new(Slab::new(limit)).with_firm_leases(),
            hops: Hops::default(),
            rows: RowMachines::new(role(&config)),
            config,
        }
    }

    /// Installs a lease.
    pub fn install(
        &mut self,
        now: Time,
        lease: &Lease<SocketAddr>,
        secrets: Option<&Secrets>,
        port: impl Fn(SocketAddr) -> PortId,
    ) -> Result<(), String> {
        let first = self.config.first_number;
        match lease.map(port) {
            Lease::Tree(lease) => {
                let installed = self.trees.install_starting_at(now, lease.clone(), first);
                installed.map_err(|error| error.to_string())?;
                self.hops.install(&Lease::Tree(lease), secrets);
                Ok(())
            }
            lease => {
                let installed = self.rows.install(now, lease, secrets, first);
                installed.map_err(|refusal| refusal.to_string())
            }
        }
    }

    /// Revokes a job's leases up to an epoch.
    pub fn revoke(&mut self, job: JobId, up_to: Epoch) {
        self.trees.revoke(job, up_to);
        self.rows.revoke(job, up_to);
        self.hops.retain_leases(self.trees.lease_keys());
        self.flushed();
    }

    /// Revokes leases whose neighbours have been silent.
    pub fn expire(&mut self, now: Time, idle_ns: u64) {
        self.trees.expire(now, idle_ns);
        self.rows.expire(now, idle_ns);
        self.hops.retain_leases(self.trees.lease_keys());
        self.flushed();
    }

    /// Processes a packet.
    pub fn take(&mut self, now: Time, from: PortId, ce: bool, packet: &mut [u8]) {
        match packet.first().and_then(|&version| Protocol::of_version(version)) {
            None | Some(Protocol::Panama) => match Header::decode(packet) {
                Ok((header, _)) => {
                    match self.hops.open(header.job, header.tree, from, packet) {
                        // The machine counts dropped packets.
                        Ok(()) => {
                            let payload = header.payload(packet);
                            let _ = self.trees.handle(now, from, ce, &header, payload);
                        }
                        Err(reason) => self.trees.count_drop(reason),
                    }
                }
                Err(error) => self.trees.count_decode_error(error),
            },
            Some(protocol) => _ = self.rows.take(protocol, now, from, ce, packet, None),
        }
    }

    /// The next packet to send, and its destination.
    pub fn poll_transmit(&mut self) -> Option<(PortId, Vec<u8>)> {
        match self.trees.poll_transmit() {
            Some(Transmit::Data { to, buffer }) => {
                let packet = self.trees.memory().packet(buffer);
                let header = packet.first_chunk().expect("a buffer holds a header");
                let (job, tree) = (Header::job_of(header), Header::tree_of(header));
                return Some((to, self.hops.sealed(job, tree, to, packet)));
            }
            Some(Transmit::Control { to, header }) => {
                let mut packet = [0; HEADER_LEN];
                header.encode(&mut packet);
                return Some((to, self.hops.sealed(header.job, header.tree, to, &packet)));
            }
            None => {}
        }
        let mut packet = Vec::new();
        let (to, row) = self.rows.poll_transmit(&mut packet)?;
        self.rows.seal_waiting(&mut packet);
        packet.extend(row.map_or(&[][..], |row| self.rows.payload(row)));
        Some((to, packet))
    }

    /// Reports that all packets of `poll_transmit` have been sent.
    pub fn flushed(&mut self) {
        self.trees.flushed();
        self.rows.flushed();
    }

    /// The time at which `handle_timeout` must be called.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.rows.poll_timeout()
    }

    /// Processes deadlines up to `now`.
    pub fn handle_timeout(&mut self, now: Time) {
        self.rows.handle_timeout(now);
    }

    /// Installed leases, in order.
    pub fn leases(&self) -> Vec<LeaseName> {
        let keys = self.trees.lease_keys().chain(self.rows.lease_keys());
        let mut leases: Vec<LeaseName> = keys.map(name).collect();
        leases.sort_unstable();
        leases
    }

    /// Per lease: identifier, protocol, number of accepted packets.
    pub fn counters(&self) -> Vec<(LeaseName, Protocol, u64)> {
        let trees = self.trees.contributions().map(|(key, taken)| (key, Protocol::Panama, taken));
        let all = trees.chain(self.rows.contributions());
        all.map(|(key, protocol, taken)| (name(key), protocol, taken)).collect()
    }

    /// Describes a violation of the memory accounting, if there is one.
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
        if let Node::Switch(switch) = self.rows.node() {
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
        let pools: u32 = self.rows.pools().pools().map(|(_, slots, _)| 2 * u32::from(slots)).sum();
        if pools > 2 * self.config.slots {
            return Some(format!("pools take {pools} of {} rows", 2 * self.config.slots));
        }
        None
    }

    /// Describes the memory still in use after all leases are gone, if any.
    pub fn leftover(&self) -> Option<String> {
        let (bytes, rows) = (self.trees.memory().used(), self.rows.rows_used());
        let nothing = (bytes, rows) == (0, 0);
        (!nothing).then(|| format!("no lease is left, and {bytes} bytes and {rows} rows are held"))
    }
}

/// The role that the daemon derives from its configuration.
fn role(config: &Config) -> Role {
    let row_bytes = config.row_bytes;
    if config.server {
        return Role::Server { row_bytes, rows: (config.memory / row_cost(row_bytes)) as usize };
    }
    let policy = match config.policy {
        SlotPolicy::Partition => Policy::Partition,
        SlotPolicy::FirstCome => Policy::FirstCome,
        SlotPolicy::Preempt => Policy::Preempt { patience_ns: PATIENCE_NS },
    };
    let (slots, straggler_ns) = (config.slots, STRAGGLER_NS);
    Role::Switch(SwitchConfig { slots, row_bytes, policy, straggler_ns })
}

fn name(key: LeaseKey) -> LeaseName {
    (key.job.0, key.tree.0.into(), key.epoch.0.into())
}

/// The daemon's straggler time-out.
const STRAGGLER_NS: u64 = 200_000_000;
const PATIENCE_NS: u64 = 20_000_000;
