//! One type for what a controller grants a job at one switch or server, whatever the protocol.
//!
//! Each protocol keeps its own lease beside its machine; [`Lease`] is the sum of them. `P` names a neighbour: a port
//! number for machines, an address for drivers and the controller, nothing where only sizes matter.

use std::ops::AddAssign;

use netsum_wire::{Epoch, JobId, TreeId};

use crate::{PortId, atp, panama, switchml};

/// Grant to one job at one switch or server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lease<P = PortId> {
    /// A node of a tree of `panama`.
    Tree(panama::Lease<P>),
    /// Slots of `atp` at a switch.
    Slots(atp::Lease<P>),
    /// A job's fragments at a server of `atp`.
    Server(atp::ServerLease<P>),
    /// A pool of `switchml`.
    Pool(switchml::Lease<P>),
}

/// Which lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseKey {
    /// Job.
    pub job: JobId,
    /// Version of the plan.
    pub epoch: Epoch,
    /// Tree; 0 for a pool.
    pub tree: TreeId,
}

impl<P> Lease<P> {
    /// Job, epoch and tree.
    pub fn key(&self) -> LeaseKey {
        let (job, epoch, tree) = match self {
            Lease::Tree(lease) => (lease.job, lease.epoch, lease.tree),
            Lease::Slots(lease) => (lease.job, lease.epoch, lease.tree),
            Lease::Server(lease) => (lease.job, lease.epoch, lease.tree),
            Lease::Pool(lease) => (lease.job, lease.epoch, TreeId(0)),
        };
        LeaseKey { job, epoch, tree }
    }
}

/// What leases take of a switch or server for as long as they are installed, whatever their traffic: the controller
/// books it, machines reserve it and refuse what does not fit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reservation {
    /// Aggregation memory: of a switch for trees of `panama`, of a server for fragments of `atp`. Slots of `atp` at a
    /// switch are for whoever comes first.
    pub memory_bytes: u64,
    /// Slots of the pools of `switchml`.
    pub pool_slots: u64,
}

impl AddAssign for Reservation {
    fn add_assign(&mut self, other: Reservation) {
        self.memory_bytes += other.memory_bytes;
        self.pool_slots += other.pool_slots;
    }
}

impl<P> Lease<P> {
    /// What the lease takes. `row_bytes`: largest payload of the rows of a server.
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
    /// Every neighbour that it names.
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
