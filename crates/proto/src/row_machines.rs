//! The machines that store values in rows, behind one socket: `atp` at a switch or a server, and static pools.
//!
//! Drivers pass packets as bytes: decoding and sealing, which these protocols share, are handled here.

use netsum_wire::{Epoch, JobId, PacketHeader, Protocol, TreeId};

use crate::aggregator::Aggregator;
use crate::atp::{self, Node, NodeLease, NodeLeaseError};
use crate::hops::{AT_ONCE, Checked, CheckedAhead, Unsealed};
use crate::lateness::Lateness;
use crate::registry::{POOLS, PoolLeaseError, PoolSwitch};
use crate::values::{RowId, RowTransmit, Rows};
use crate::{DropCounters, Hops, Lease, LeaseKey, PortId, Secrets, Time};

/// Rows for packets in transit: the most that one receiving call can return.
const TRANSIT_ROWS: usize = 4096;

/// A switch or a server; servers hold leases of `atp` only.
#[derive(Clone, Copy, Debug)]
pub enum Role {
    /// Adds fragments that get a slot. Static pools have as many rounds as there are slots, twice.
    Switch(atp::SwitchConfig),
    /// Adds the others.
    Server {
        /// Largest payload.
        row_bytes: u16,
        /// Rows for fragments of all jobs: two windows each, and the floats of each rank.
        rows: usize,
    },
}

/// Why a lease is not installed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Refused by the machine of `atp`.
    #[error(transparent)]
    Slots(#[from] atp::LeaseError),
    /// Refused by the switch of pools.
    #[error(transparent)]
    Pool(#[from] PoolLeaseError),
    /// The lease is for the other role; the field is this role.
    #[error("the lease is not one for a {0}")]
    WrongRole(&'static str),
}

impl From<NodeLeaseError> for Refusal {
    fn from(error: NodeLeaseError) -> Refusal {
        match error {
            NodeLeaseError::Lease(error) => Refusal::Slots(error),
            NodeLeaseError::WrongRole(role) => Refusal::WrongRole(role),
        }
    }
}

/// Location of the payload of a packet to be sent.
#[derive(Clone, Copy, Debug)]
pub enum Row {
    /// In the memory of `atp`.
    Node(RowId),
    /// In the memory of pools.
    Pool(RowId),
}

/// Where a lease begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Of `atp`: its first slot (0 if slots are shared), and one past the highest number whose result has passed.
    Slots {
        /// First slot.
        first: u32,
        /// One past the highest number.
        passed: u32,
    },
    /// Of a static pool: the first round of every slot.
    Pool {
        /// That round.
        round: u32,
    },
}

/// The machines, and the keys of their hops.
pub struct RowMachines {
    node: Node<Rows>,
    pools: PoolSwitch<Rows>,
    hops: Hops,
    unsealed: Unsealed<Row>,
    row_bytes: u16,
}

impl RowMachines {
    /// Machines without leases.
    pub fn new(role: Role) -> RowMachines {
        let (node, row_bytes, slots) = match role {
            Role::Switch(config) => {
                let rows = rows(config.slots as usize, config.row_bytes);
                let switch = atp::Switch::new(config, rows);
                (Node::Switch(switch), config.row_bytes, config.slots)
            }
            Role::Server { row_bytes, rows: count } => {
                let server = atp::Server::new(row_bytes, rows(count, row_bytes));
                (Node::Server(server.with_rows(count as u64)), row_bytes, 0)
            }
        };
        let rounds = 2 * slots;
        let pools = PoolSwitch::new(rounds, row_bytes, rows(rounds as usize, row_bytes));
        RowMachines { node, pools, hops: Hops::default(), unsealed: Unsealed::default(), row_bytes }
    }

    /// The machine of `atp`.
    pub fn node(&self) -> &Node<Rows> {
        &self.node
    }

    /// As `node`, for a data plane in front of it.
    pub fn node_mut(&mut self) -> &mut Node<Rows> {
        &mut self.node
    }

    /// The machine of static pools.
    pub fn pools(&self) -> &PoolSwitch<Rows> {
        &self.pools
    }

    /// Where a lease of a switch begins, for a data plane in front of it.
    pub fn standing(&self, job: JobId, tree: TreeId) -> Option<Standing> {
        let slots = self.node.switch().and_then(|switch| switch.standing(job, tree));
        let slots = slots.map(|(first, passed)| Standing::Slots { first, passed });
        slots.or_else(|| Some(Standing::Pool { round: self.pools.first_round(job, tree)? }))
    }

    /// Records that a data plane in front of the machines has received a packet of a lease's neighbours.
    pub fn note_seen(&mut self, job: JobId, tree: TreeId, at: Time) {
        if let Node::Switch(switch) = &mut self.node {
            switch.note_seen(job, tree, at);
        }
        self.pools.note_seen(job, tree, at);
    }

    /// Largest payload.
    pub fn row_bytes(&self) -> u16 {
        self.row_bytes
    }

    /// Admits a job whose workers start at number `first`, and whose packets are sealed under `secrets`, if any.
    pub fn install(
        &mut self,
        now: Time,
        lease: Lease,
        secrets: Option<&Secrets>,
        first: u64,
    ) -> Result<(), Refusal> {
        let hops = lease.clone();
        match lease {
            Lease::Slots(lease) => {
                self.node.install_starting_at(now, NodeLease::Switch(lease), first)?;
            }
            Lease::Server(lease) => {
                self.node.install_starting_at(now, NodeLease::Server(lease), first)?;
            }
            Lease::Pool(_) if self.node.server().is_some() => {
                return Err(Refusal::WrongRole("server"));
            }
            Lease::Pool(lease) => self.pools.install_starting_at(now, lease, first)?,
            Lease::Tree(_) => return Err(Refusal::WrongRole("machine with rows")),
        }
        self.hops.install(&hops, secrets);
        Ok(())
    }

    /// The keys and packet numbers of hops.
    pub fn hops_mut(&mut self) -> &mut Hops {
        &mut self.hops
    }

    /// As [`Aggregator::revoke`].
    pub fn revoke(&mut self, job: JobId, up_to: Epoch) {
        self.node.revoke(job, up_to);
        self.pools.revoke(job, up_to);
        self.forget_keys();
    }

    /// As [`Aggregator::expire`]; returns the removed leases.
    pub fn expire(&mut self, now: Time, idle_ns: u64) -> Vec<LeaseKey> {
        let before: Vec<LeaseKey> = self.lease_keys().collect();
        self.node.expire(now, idle_ns);
        self.pools.expire(now, idle_ns);
        self.forget_keys();
        let left: Vec<LeaseKey> = self.lease_keys().collect();
        before.into_iter().filter(|key| !left.contains(key)).collect()
    }

    /// Handles a packet of one of these protocols, which is decrypted in its place; returns whether a machine accepted
    /// it. Dropped packets are counted.
    #[inline]
    pub fn take(
        &mut self,
        protocol: Protocol,
        now: Time,
        from: PortId,
        ce: bool,
        packet: &mut [u8],
        checked: Option<Checked>,
    ) -> bool {
        let arrival = Arrival { now, from, ce, checked };
        match protocol {
            Protocol::Panama => false,
            Protocol::Atp => take(&mut self.node, &mut self.hops, arrival, packet),
            POOLS => take(&mut self.pools, &mut self.hops, arrival, packet),
        }
    }

    /// As [`Hops::check_ahead`].
    #[inline]
    pub fn check_ahead(&self, from: PortId, packets: [&mut [u8]; AT_ONCE]) -> Option<CheckedAhead> {
        self.hops.check_ahead(from, packets)
    }

    /// The next packet to send; its header goes to the end of `heads`, and so does an encrypted payload.
    #[inline]
    pub fn poll_transmit(&mut self, heads: &mut Vec<u8>) -> Option<(PortId, Option<Row>)> {
        let (hops, unsealed) = (&mut self.hops, &mut self.unsealed);
        if let Some(transmit) = self.node.poll_transmit() {
            return Some(encode(hops, unsealed, &transmit, self.node.values(), Row::Node, heads));
        }
        let transmit = self.pools.poll_transmit()?;
        Some(encode(hops, unsealed, &transmit, self.pools.values(), Row::Pool, heads))
    }

    /// Gives all packets of `poll_transmit` their tags. To be called before they are sent.
    #[inline]
    pub fn seal_waiting(&mut self, heads: &mut [u8]) {
        let (node, pools) = (&self.node, &self.pools);
        self.hops.seal_waiting(heads, &mut self.unsealed, |row| payload(node, pools, row));
    }

    /// A row of a packet that waits to be sent.
    #[inline]
    pub fn payload(&self, row: Row) -> &[u8] {
        payload(&self.node, &self.pools, row)
    }

    /// Everything of `poll_transmit` is on the wire.
    pub fn flushed(&mut self) {
        self.node.flushed();
        self.pools.flushed();
    }

    /// When `handle_timeout` must be called.
    pub fn poll_timeout(&self) -> Option<Time> {
        [self.node.poll_timeout(), self.pools.poll_timeout()].into_iter().flatten().min()
    }

    /// Handles deadlines up to `now`.
    pub fn handle_timeout(&mut self, now: Time) {
        self.node.handle_timeout(now);
        self.pools.handle_timeout(now);
    }

    /// Installed leases.
    pub fn lease_keys(&self) -> impl Iterator<Item = LeaseKey> {
        self.node.lease_keys().chain(self.pools.lease_keys())
    }

    /// Number of contributions that each installed lease has accepted.
    pub fn contributions(&self) -> impl Iterator<Item = (LeaseKey, Protocol, u64)> {
        let node = self.node.contributions().map(|(key, taken)| (key, Protocol::Atp, taken));
        node.chain(self.pools.contributions().map(|(key, taken)| (key, POOLS, taken)))
    }

    /// How late each child of each lease is, but for those of servers.
    pub fn lateness(&self, now: Time) -> Vec<(LeaseKey, PortId, Lateness)> {
        let slots = self.node.switch().into_iter().flat_map(|switch| switch.lateness(now));
        slots.chain(self.pools.lateness(now)).collect()
    }

    /// Neighbours in all leases.
    pub fn ports(&self) -> Vec<PortId> {
        [self.node.ports(), self.pools.ports()].concat()
    }

    /// Dropped packets by reason.
    pub fn drops(&self) -> DropCounters {
        let mut drops = self.node.drops().clone();
        drops.add(self.pools.drops());
        drops
    }

    /// Rows in use.
    pub fn rows_used(&self) -> u64 {
        (self.node.values().used() + self.pools.values().used()) as u64
    }

    fn forget_keys(&mut self) {
        let leases = self.node.lease_keys().chain(self.pools.lease_keys());
        self.hops.retain_leases(leases);
    }
}

/// How a packet came.
struct Arrival {
    now: Time,
    from: PortId,
    ce: bool,
    /// If its tag was looked at before.
    checked: Option<Checked>,
}

#[inline]
fn payload<'a>(node: &'a Node<Rows>, pools: &'a PoolSwitch<Rows>, row: Row) -> &'a [u8] {
    match row {
        Row::Node(row) => node.values().get(row),
        Row::Pool(row) => pools.values().get(row),
    }
}

/// Rows of a machine with `count` fragments.
fn rows(count: usize, row_bytes: u16) -> Rows {
    Rows::new(count + TRANSIT_ROWS, row_bytes.into())
}

#[inline]
fn take<A: Aggregator<Payload = [u8]>>(
    machine: &mut A,
    hops: &mut Hops,
    Arrival { now, from, ce, checked }: Arrival,
    packet: &mut [u8],
) -> bool {
    let header = match A::Header::decode(packet) {
        Ok((header, _)) => header,
        Err(error) => {
            machine.count_decode_error(error);
            return false;
        }
    };
    let (job, tree) = (header.job(), header.tree());
    if let Err(reason) = hops.open_checked(job, tree, from, checked, packet) {
        machine.count_drop(reason);
        return false;
    }
    machine.handle(now, from, ce, &header, header.payload(packet)).is_ok()
}

/// Writes the bytes before the payload, or all if they are encrypted, to the end of `heads`; returns the destination,
/// and the row that follows.
#[inline]
fn encode<H: PacketHeader>(
    hops: &mut Hops,
    unsealed: &mut Unsealed<Row>,
    transmit: &RowTransmit<H, RowId>,
    values: &Rows,
    row: fn(RowId) -> Row,
    heads: &mut Vec<u8>,
) -> (PortId, Option<Row>) {
    let RowTransmit { to, header, payload } = transmit;
    let (start, key) = (heads.len(), (header.job(), header.tree(), *to));
    let hop = hops.hop(key.0, key.1, key.2);
    heads.resize(start + H::head_len(hop.is_some()), 0);
    header.write(&mut heads[start..start + H::LEN]);
    let place = payload.map(row);
    let bytes = payload.map_or(&[][..], |row| values.get(row));
    let inside =
        hop.is_some_and(|hop| hop.seal_or_wait(key, heads, start, (bytes, place), unsealed));
    (*to, place.filter(|_| !inside))
}
