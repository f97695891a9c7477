//! Adapter of protocol `atp` to the simulator: slots at the racks of workers and servers, servers on hosts.

mod wiring;

pub(crate) use wiring::Places;

use std::marker::PhantomData;

use netsum_proto::atp::{
    Claim, Counters, Node, Policy, ServerCounters, SwitchConfig, TreeStats, Worker,
};
use netsum_proto::{Aggregator, CongestionRule, PortId, Time, WorkerMachine};
use netsum_wire::atp::Header;
use netsum_wire::{Format, JobId};

use super::machines::Machines;
use super::payload::Payload;
use super::protocol::Protocol;

/// Aggregation memory of a switch in PANAMA's study.
pub const MEMORY_BYTES: u64 = 64_000_000;

/// Configuration of a job that uses slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotConfig {
    /// Maximum number of fragments in flight per server.
    pub window_max: u16,
    /// Payload of a full fragment.
    pub fragment_bytes: u16,
    /// Reaction to congestion marks.
    pub congestion: CongestionRule,
    /// The job's claim on the slots of each switch.
    pub claim: Claim,
    /// Whether each server has a second tree, for what is copied: as [`super::TreeConfig::copies`].
    pub copies: bool,
}

/// How switches share their slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotSharing {
    /// Slots of a switch.
    pub slots: u32,
    /// Policy by which jobs get slots.
    pub policy: Policy,
    /// Time without an addition after which a slot is flushed.
    pub straggler_ns: u64,
}

impl Default for SlotSharing {
    /// As many slots of 1,408 bytes as PANAMA's memory holds, first come first served.
    fn default() -> Self {
        let slots = (MEMORY_BYTES / 1408) as u32;
        SlotSharing { slots, policy: Policy::FirstCome, straggler_ns: 20_000_000 }
    }
}

/// The largest payload of a fragment.
pub(super) const ROW_BYTES: u16 = 8960;

/// Protocol `atp`.
pub struct Atp<P>(PhantomData<P>);

impl<P: Payload> Protocol for Atp<P> {
    type Payload = P;
    type Node = Node<P::Rows>;
    type Worker = Worker;

    const NUMBER: u16 = 1;

    const FORMAT: Format = super::payload::INTEGERS;

    fn handle(
        node: &mut Node<P::Rows>,
        now: Time,
        from: PortId,
        ce: bool,
        header: &Header,
        payload: &P::Owned,
    ) {
        // The machine counts the reason of a drop.
        let _ = node.handle(now, from, ce, header, P::view(payload));
    }

    fn poll_node(node: &mut Node<P::Rows>) -> Option<(PortId, Header, P::Owned)> {
        let transmit = node.poll_transmit()?;
        let rows = node.values();
        let payload = transmit.payload.map_or_else(P::nothing, |row| P::copy_row(rows, row));
        Some((transmit.to, transmit.header, payload))
    }

    fn copied(worker: &Worker) -> Option<u8> {
        let config = worker.config();
        config.copies.then_some(config.places.len() as u8 / 2)
    }

    fn memory(node: &Node<P::Rows>) -> (u64, u64) {
        match node {
            Node::Switch(switch) => (switch.held().into(), switch.slots().count() as u64),
            Node::Server(_) => (0, 0),
        }
    }
}

impl<P: Payload> Machines<Atp<P>> {
    /// Counters of each job at each switch, by node.
    pub fn counters(&self) -> impl Iterator<Item = (u32, JobId, &Counters)> {
        self.nodes().flat_map(|(node, machine)| {
            let switch = match machine {
                Node::Switch(switch) => Some(switch),
                Node::Server(_) => None,
            };
            let leases = switch.into_iter().flat_map(|s| s.leases());
            leases.map(move |(lease, _, counters)| (node, lease.job, counters))
        })
    }

    /// Counters of each job at each server, by node.
    pub fn server_counters(&self) -> impl Iterator<Item = (u32, JobId, &ServerCounters)> {
        self.nodes().flat_map(|(node, machine)| {
            let server = match machine {
                Node::Server(server) => Some(server),
                Node::Switch(_) => None,
            };
            let leases = server.into_iter().flat_map(|s| s.leases());
            leases.map(move |(lease, counters)| (node, lease.job, counters))
        })
    }

    /// Statistics of a worker's servers.
    pub fn stats(&self, worker: u32) -> Vec<TreeStats> {
        self.worker(worker).map_or(Vec::new(), |worker| worker.tree_stats().collect())
    }

    /// Slots in use at all switches.
    pub fn held(&self) -> u32 {
        let held = self.nodes().map(|(_, machine)| match machine {
            Node::Switch(switch) => switch.held(),
            Node::Server(_) => 0,
        });
        held.sum()
    }
}

impl SlotSharing {
    pub(super) fn switch(&self) -> SwitchConfig {
        let SlotSharing { slots, policy, straggler_ns } = *self;
        SwitchConfig { slots, row_bytes: ROW_BYTES, policy, straggler_ns }
    }
}
