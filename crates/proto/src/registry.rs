//! The registry of protocols: the only place that lists them for drivers.
//!
//! Drivers are generic over [`WorkerMachine`] and choose here: one `match` per call, and no virtual call per packet.

use std::ops::Range;

use netsum_wire::{Format, Protocol};

use crate::flow::TreeStats;
use crate::handover::{Finished, Progress};
use crate::lease::{LeaseKey, Reservation};
use crate::operations::Submission;
use crate::worker::{AcceptedResult, Event, Settings, WorkerMachine};
use crate::{PortId, Time, atp, panama, switchml};

/// The protocol of static pools.
pub const POOLS: Protocol = Protocol::Switchml;

/// Any protocol's worker.
#[allow(clippy::large_enum_variant)] // One per process.
pub enum Worker {
    /// Trees.
    Panama(panama::Worker),
    /// Slots and servers.
    Atp(atp::Worker),
    /// A pool of slots.
    Switchml(switchml::Worker),
}

/// The configuration of a worker of any protocol.
#[derive(Clone, Debug)]
pub enum WorkerConfig {
    /// Trees.
    Panama(panama::WorkerConfig),
    /// Slots and servers.
    Atp(atp::WorkerConfig),
    /// A pool of slots.
    Switchml(switchml::WorkerConfig),
}

/// Grant to one job at one switch or server. `P` names a neighbour: a port number for machines, an address for drivers and
/// the controller, nothing where only sizes matter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lease<P = PortId> {
    /// A node of a tree of `panama`.
    Tree(panama::Lease<P>),
    /// Slots of `atp` at a switch.
    Slots(atp::Lease<P>),
    /// A job's fragments at a server of `atp`.
    Server(atp::ServerLease<P>),
    /// A static pool.
    Pool(switchml::Lease<P>),
}

pub use crate::switchml::{
    Counters as PoolCounters, LeaseError as PoolLeaseError, Switch as PoolSwitch,
};

/// Evaluates an expression with the machine of a [`Worker`] of any protocol.
#[macro_export]
macro_rules! with_worker {
    ($worker:expr, $machine:ident => $body:expr) => {
        match $worker {
            $crate::Worker::Panama($machine) => $body,
            $crate::Worker::Atp($machine) => $body,
            $crate::Worker::Switchml($machine) => $body,
        }
    };
}

/// Whether switches and servers of a protocol support a format with so many ranks; otherwise the hosts aggregate.
pub fn supports(protocol: Protocol, format: Format, ranks: u32) -> bool {
    match protocol {
        Protocol::Panama => panama::Worker::supports(format, ranks),
        Protocol::Atp => atp::Worker::supports(format, ranks),
        Protocol::Switchml => switchml::Worker::supports(format, ranks),
    }
}

impl WorkerConfig {
    /// Protocol of the worker.
    pub fn protocol(&self) -> Protocol {
        match self {
            WorkerConfig::Panama(_) => Protocol::Panama,
            WorkerConfig::Atp(_) => Protocol::Atp,
            WorkerConfig::Switchml(_) => Protocol::Switchml,
        }
    }

    /// The settings that drivers need.
    pub fn settings(&self) -> Settings {
        match self {
            WorkerConfig::Panama(config) => panama::Worker::settings(config),
            WorkerConfig::Atp(config) => atp::Worker::settings(config),
            WorkerConfig::Switchml(config) => switchml::Worker::settings(config),
        }
    }
}

impl Worker {
    /// A worker at the start of an epoch. Panics if the plan has no tree.
    pub fn new(now: Time, config: WorkerConfig) -> Worker {
        Worker::starting_at(now, config, 0)
    }

    /// As [`WorkerMachine::starting_at`].
    pub fn starting_at(now: Time, config: WorkerConfig, first: u64) -> Worker {
        match config {
            WorkerConfig::Panama(c) => Worker::Panama(WorkerMachine::starting_at(now, c, first)),
            WorkerConfig::Atp(c) => Worker::Atp(WorkerMachine::starting_at(now, c, first)),
            WorkerConfig::Switchml(c) => {
                Worker::Switchml(WorkerMachine::starting_at(now, c, first))
            }
        }
    }

    /// As [`WorkerMachine::submit`].
    pub fn submit(&mut self, submission: Submission) {
        with_worker!(self, machine => WorkerMachine::submit(machine, submission));
    }

    /// As [`WorkerMachine::poll_timeout`].
    pub fn poll_timeout(&self) -> Option<Time> {
        with_worker!(self, machine => machine.poll_timeout())
    }

    /// As [`WorkerMachine::handle_timeout`].
    pub fn handle_timeout(&mut self, now: Time) {
        with_worker!(self, machine => machine.handle_timeout(now));
    }

    /// As [`WorkerMachine::poll_event`].
    pub fn poll_event(&mut self) -> Option<Event> {
        with_worker!(self, machine => machine.poll_event())
    }

    /// Whether every operation is done.
    pub fn is_idle(&self) -> bool {
        with_worker!(self, machine => machine.outstanding().next().is_none())
    }

    /// As [`WorkerMachine::finish`].
    pub fn finish(&mut self) {
        with_worker!(self, machine => machine.finish());
    }

    /// As [`WorkerMachine::progress`].
    pub fn progress(&self) -> Progress {
        with_worker!(self, machine => machine.progress())
    }

    /// As [`WorkerMachine::submitted`].
    pub fn submitted(&self) -> u64 {
        with_worker!(self, machine => machine.submitted())
    }

    /// As [`WorkerMachine::place_of`].
    pub fn place_of(&self, g: u64) -> Option<(u64, Range<u64>)> {
        with_worker!(self, machine => machine.place_of(g))
    }

    /// As [`WorkerMachine::to_repeat`]: by fragment, the number, the operation and the elements.
    pub fn to_repeat(&self, finished: &Finished) -> Vec<(u64, u64, Range<u64>)> {
        with_worker!(self, machine => {
            let fragments = machine.to_repeat(finished);
            fragments.iter().map(|f| (f.g(), f.id(), f.elements().unwrap_or_default())).collect()
        })
    }

    /// As [`WorkerMachine::remaining`].
    pub fn remaining(self, finished: &Finished) -> Vec<Submission> {
        with_worker!(self, machine => machine.remaining(finished))
    }

    /// As [`WorkerMachine::tree_stats`].
    pub fn tree_stats(&self) -> Vec<TreeStats> {
        with_worker!(self, machine => machine.tree_stats().collect())
    }
}

impl From<panama::WorkerConfig> for WorkerConfig {
    fn from(config: panama::WorkerConfig) -> WorkerConfig {
        WorkerConfig::Panama(config)
    }
}

impl From<atp::WorkerConfig> for WorkerConfig {
    fn from(config: atp::WorkerConfig) -> WorkerConfig {
        WorkerConfig::Atp(config)
    }
}

impl From<switchml::WorkerConfig> for WorkerConfig {
    fn from(config: switchml::WorkerConfig) -> WorkerConfig {
        WorkerConfig::Switchml(config)
    }
}

impl<P> Lease<P> {
    /// Job, epoch and tree.
    pub fn key(&self) -> LeaseKey {
        let (job, epoch, tree) = match self {
            Lease::Tree(lease) => (lease.job, lease.epoch, lease.tree),
            Lease::Slots(lease) => (lease.job, lease.epoch, lease.tree),
            Lease::Server(lease) => (lease.job, lease.epoch, lease.tree),
            Lease::Pool(lease) => (lease.job, lease.epoch, lease.tree),
        };
        LeaseKey { job, epoch, tree }
    }
}

impl<P> Lease<P> {
    /// Memory that the lease reserves. `row_bytes`: largest payload of the rows of a server.
    pub fn reservation(&self, row_bytes: u16) -> Reservation {
        let nothing = Reservation::default();
        match self {
            Lease::Tree(lease) => Reservation { memory_bytes: lease.memory_bytes(), ..nothing },
            Lease::Slots(_) => nothing,
            Lease::Server(lease) => {
                Reservation { memory_bytes: lease.memory_bytes(row_bytes), ..nothing }
            }
            Lease::Pool(lease) => Reservation { pool_slots: lease.slots.into(), ..nothing },
        }
    }

    /// Payload bytes of a full fragment.
    pub fn fragment_bytes(&self) -> u16 {
        match self {
            Lease::Tree(lease) => lease.fragment_bytes,
            Lease::Slots(lease) => lease.fragment_bytes,
            Lease::Server(lease) => lease.fragment_bytes,
            Lease::Pool(lease) => lease.fragment_bytes,
        }
    }

    /// The same lease for another number of fragments in flight.
    pub fn with_window(mut self, window: u16) -> Lease<P> {
        match &mut self {
            Lease::Tree(lease) => lease.slots = window,
            Lease::Slots(lease) => lease.window = window,
            Lease::Server(lease) => lease.window = window,
            Lease::Pool(lease) => lease.slots = window,
        }
        self
    }
}

impl<P: Copy> Lease<P> {
    /// The same grant with neighbours converted by `name`.
    pub fn map<Q>(&self, name: impl FnMut(P) -> Q) -> Lease<Q> {
        match self {
            Lease::Tree(lease) => Lease::Tree(lease.map(name)),
            Lease::Slots(lease) => Lease::Slots(lease.map(name)),
            Lease::Server(lease) => Lease::Server(lease.map(name)),
            Lease::Pool(lease) => Lease::Pool(lease.map(name)),
        }
    }

    /// The maximum number of packets that arrive from below for one fragment.
    pub fn senders(&self) -> usize {
        match self {
            Lease::Tree(lease) => lease.children.len(),
            Lease::Slots(lease) => lease.members.neighbours().count(),
            // In the worst case no switch has added any.
            Lease::Server(lease) => lease.ranks(),
            Lease::Pool(lease) => lease.workers.len(),
        }
    }

    /// Number of children; in [`Lease::neighbours`] they come before the parent, if there is one.
    pub fn children(&self) -> usize {
        match self {
            Lease::Tree(lease) => lease.children.len(),
            Lease::Slots(lease) => lease.members.neighbours().count(),
            Lease::Server(lease) => lease.neighbours.len(),
            Lease::Pool(lease) => lease.workers.len(),
        }
    }

    /// Every neighbour in the lease.
    pub fn neighbours(&self) -> Vec<P> {
        match self {
            Lease::Tree(lease) => {
                lease.children.iter().map(|child| child.port).chain(lease.parent).collect()
            }
            Lease::Slots(lease) => lease.members.neighbours().chain([lease.parent]).collect(),
            Lease::Server(lease) => lease.neighbours.iter().map(|n| n.port).collect(),
            Lease::Pool(lease) => lease.workers.clone(),
        }
    }
}

impl<P> From<panama::Lease<P>> for Lease<P> {
    fn from(lease: panama::Lease<P>) -> Lease<P> {
        Lease::Tree(lease)
    }
}

impl<P> From<atp::Lease<P>> for Lease<P> {
    fn from(lease: atp::Lease<P>) -> Lease<P> {
        Lease::Slots(lease)
    }
}

impl<P> From<atp::ServerLease<P>> for Lease<P> {
    fn from(lease: atp::ServerLease<P>) -> Lease<P> {
        Lease::Server(lease)
    }
}

impl<P> From<switchml::Lease<P>> for Lease<P> {
    fn from(lease: switchml::Lease<P>) -> Lease<P> {
        Lease::Pool(lease)
    }
}
