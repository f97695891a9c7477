//! Protocol `atp` as the simulator drives it: slots at the workers' racks and the servers' racks, servers on hosts.

mod wiring;

pub(crate) use wiring::Places;

use std::marker::PhantomData;

use netsum_proto::atp::{
    Claim, Content, Counters, Event, Fragments, Policy, Scaling, Server, ServerCounters,
    Submission, Switch, SwitchConfig, TreeStats, Worker,
};
use netsum_proto::{CongestionRule, PortId, Time, operations};
use netsum_wire::atp::{HEADER_LEN, Header};
use netsum_wire::fixed::Scale;
use netsum_wire::{Epoch, JobId};

use super::machines::Machines;
use super::panama::UDP_BYTES;
use super::payload::{INTEGERS, Payload};
use super::protocol::{Protocol, WorkerEvent};

/// How a job uses slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotConfig {
    /// The most fragments in flight per server.
    pub window_max: u16,
    /// Payload of a full fragment.
    pub fragment_bytes: u16,
    /// Answer to marks.
    pub congestion: CongestionRule,
    /// Claim on the slots of each switch.
    pub claim: Claim,
}

/// How switches share their slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotSharing {
    /// Slots of a switch.
    pub slots: u32,
    /// Who gets which.
    pub policy: Policy,
    /// A slot in which nothing was added for so long is let go.
    pub straggler_ns: u64,
}

impl Default for SlotSharing {
    /// As many slots of 1,408 bytes as PANAMA's memory has, for whoever comes first.
    fn default() -> Self {
        let slots = (crate::simulation::MEMORY_BYTES / 1408) as u32;
        SlotSharing { slots, policy: Policy::FirstCome, straggler_ns: 20_000_000 }
    }
}

/// The largest payload of a fragment.
pub(super) const ROW_BYTES: u16 = 8960;

/// Protocol `atp`.
pub struct Atp<P>(PhantomData<P>);

/// A switch of either level, or a server.
pub enum Node<P: Payload> {
    /// Adds in slots.
    Switch(Switch<P::Rows>),
    /// Adds the rest, and answers.
    Server(Server<P::Rows>),
}

impl<P: Payload> Protocol for Atp<P> {
    type Payload = P;
    type Header = Header;
    type Node = Node<P>;
    type Worker = Worker;

    const NUMBER: u16 = 1;

    fn wire_bytes(header: &Header) -> u16 {
        UDP_BYTES + HEADER_LEN as u16 + header.payload_len() as u16
    }

    fn handle(
        node: &mut Node<P>,
        now: Time,
        from: PortId,
        ce: bool,
        header: &Header,
        payload: &P::Owned,
    ) {
        // A drop has a reason, which the machine counts.
        let _ = match node {
            Node::Switch(switch) => switch.handle(now, from, ce, header, P::view(payload)),
            Node::Server(server) => server.handle(now, from, ce, header, P::view(payload)),
        };
    }

    fn poll_node(node: &mut Node<P>) -> Option<(PortId, Header, P::Owned)> {
        let (transmit, rows) = match node {
            Node::Switch(switch) => (switch.poll_transmit()?, switch.values()),
            Node::Server(server) => (server.poll_transmit()?, server.values()),
        };
        let payload = transmit.payload.map_or_else(P::nothing, |row| P::copy_row(rows, row));
        Some((transmit.to, transmit.header, payload))
    }

    fn flushed(node: &mut Node<P>) {
        use netsum_proto::values::Values;
        match node {
            Node::Switch(switch) => switch.values_mut().flushed(),
            Node::Server(server) => server.values_mut().flushed(),
        }
    }

    fn node_timeout(node: &Node<P>) -> Option<Time> {
        match node {
            Node::Switch(switch) => switch.poll_timeout(),
            Node::Server(_) => None,
        }
    }

    fn on_node_timeout(node: &mut Node<P>, now: Time) {
        if let Node::Switch(switch) = node {
            switch.handle_timeout(now);
        }
    }

    fn memory(node: &Node<P>) -> (u64, u64) {
        match node {
            Node::Switch(switch) => (switch.held().into(), switch.slots().count() as u64),
            Node::Server(_) => (0, 0),
        }
    }

    fn leases(node: &Node<P>) -> usize {
        match node {
            Node::Switch(switch) => switch.leases().count(),
            Node::Server(server) => server.leases().count(),
        }
    }

    fn revoke(node: &mut Node<P>, job: JobId, epoch: Epoch) {
        match node {
            Node::Switch(switch) => switch.revoke(job, epoch),
            Node::Server(server) => server.revoke(job, epoch),
        }
    }

    fn submit(worker: &mut Worker, id: u64, numel: u64) {
        let (format, fragments) = (INTEGERS, Fragments::All);
        let what = operations::Submission { id, format, numel, fingerprint: id as u32, fragments };
        // Of no consequence: integers have no scale.
        worker.submit(Submission { what, scaling: Scaling::Fixed(Scale::PAPER) });
    }

    fn accept(worker: &mut Worker, now: Time, ce: bool, header: &Header) -> Option<(u64, u64)> {
        let accepted = worker.handle(now, ce, header).ok()??;
        Some((accepted.id, accepted.content.elements()?.start))
    }

    fn poll_worker(worker: &mut Worker, now: Time, rank: u32) -> Option<(u8, Header, P::Owned)> {
        let outgoing = worker.poll_transmit(now)?;
        let payload = match &outgoing.payload {
            Some((id, Content::Integers(elements))) => {
                P::contribution(rank, *id, elements.start, elements.end - elements.start)
            }
            _ => P::nothing(),
        };
        Some((outgoing.header.tree.0, outgoing.header, payload))
    }

    fn event(worker: &mut Worker) -> Option<WorkerEvent> {
        Some(match worker.poll_event()? {
            Event::Done { id } => WorkerEvent::Done(id),
            Event::Mismatch { id } => WorkerEvent::Mismatch(id),
            Event::Silent { .. } => WorkerEvent::Silent,
        })
    }

    fn timeout(worker: &Worker) -> Option<Time> {
        worker.poll_timeout()
    }

    fn on_timeout(worker: &mut Worker, now: Time) {
        worker.handle_timeout(now);
    }
}

impl<P: Payload> Machines<Atp<P>> {
    /// What happened to each job at each switch, by node.
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

    /// What happened to each job at each server, by node.
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

    /// A worker's servers.
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
