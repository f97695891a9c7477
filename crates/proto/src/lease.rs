//! One type for what a controller grants a job at one switch or server, whatever the protocol.
//!
//! Each protocol keeps its own lease beside its machine; [`Lease`] is the sum of them. `P` names a neighbour: a port
//! number for machines, an address for drivers and the controller, nothing where only sizes matter.

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
