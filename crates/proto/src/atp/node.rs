//! A switch or a server, as one type.

use netsum_wire::atp::Header;
use netsum_wire::{Epoch, JobId};

use super::lease::{Lease, LeaseError, ServerLease};
use super::server::Server;
use super::switch::{Switch, Transmit};
use crate::aggregator::Aggregator;
use crate::lease::LeaseKey;
use crate::values::Values;
use crate::{DropCounters, DropReason, PortId, Time};

/// An aggregator of the protocol.
pub enum Node<V: Values> {
    /// Adds in slots, best effort.
    Switch(Switch<V>),
    /// Adds the rest, and answers all workers.
    Server(Server<V>),
}

/// A lease of a switch or a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeLease {
    /// A switch's lease.
    Switch(Lease),
    /// A server's lease.
    Server(ServerLease),
}

/// Why a node refuses a lease.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NodeLeaseError {
    /// The machine refuses the lease.
    #[error(transparent)]
    Lease(#[from] LeaseError),
    /// The lease of a switch at a server, or the reverse; the kind of this node.
    #[error("the lease is not one for a {0}")]
    WrongRole(&'static str),
}

macro_rules! either {
    ($node:expr, $machine:ident => $body:expr) => {
        match $node {
            Node::Switch($machine) => $body,
            Node::Server($machine) => $body,
        }
    };
}

impl<V: Values> Node<V> {
    /// Storage of the payloads of `poll_transmit`.
    pub fn values(&self) -> &V {
        either!(self, machine => machine.values())
    }

    /// The switch, if it is one.
    pub fn switch(&self) -> Option<&Switch<V>> {
        match self {
            Node::Switch(switch) => Some(switch),
            Node::Server(_) => None,
        }
    }

    /// The server, if it is one.
    pub fn server(&self) -> Option<&Server<V>> {
        match self {
            Node::Switch(_) => None,
            Node::Server(server) => Some(server),
        }
    }
}

impl<V: Values> Aggregator for Node<V> {
    type Header = Header;
    type Payload = V::Payload;
    type Transmit = Transmit<V::Buffer>;
    type Lease = NodeLease;
    type Refusal = NodeLeaseError;

    fn install_starting_at(
        &mut self,
        now: Time,
        lease: NodeLease,
        first: u64,
    ) -> Result<(), NodeLeaseError> {
        match (self, lease) {
            (Node::Switch(switch), NodeLease::Switch(lease)) => {
                Ok(switch.install_starting_at(now, lease, first)?)
            }
            (Node::Server(server), NodeLease::Server(lease)) => {
                Ok(server.install_starting_at(now, lease, first)?)
            }
            (Node::Switch(_), _) => Err(NodeLeaseError::WrongRole("switch")),
            (Node::Server(_), _) => Err(NodeLeaseError::WrongRole("server")),
        }
    }

    fn revoke(&mut self, job: JobId, up_to: Epoch) {
        either!(self, machine => machine.revoke(job, up_to));
    }

    fn expire(&mut self, now: Time, idle_ns: u64) -> Vec<NodeLease> {
        match self {
            Node::Switch(switch) => {
                switch.expire(now, idle_ns).into_iter().map(NodeLease::Switch).collect()
            }
            Node::Server(server) => {
                server.expire(now, idle_ns).into_iter().map(NodeLease::Server).collect()
            }
        }
    }

    #[inline]
    fn handle(
        &mut self,
        now: Time,
        from: PortId,
        ce: bool,
        header: &Header,
        payload: &V::Payload,
    ) -> Result<(), DropReason> {
        either!(self, machine => machine.handle(now, from, ce, header, payload))
    }

    #[inline]
    fn poll_transmit(&mut self) -> Option<Transmit<V::Buffer>> {
        either!(self, machine => machine.poll_transmit())
    }

    fn flushed(&mut self) {
        either!(self, machine => machine.flushed());
    }

    fn poll_timeout(&self) -> Option<Time> {
        either!(self, machine => machine.poll_timeout())
    }

    fn handle_timeout(&mut self, now: Time) {
        either!(self, machine => machine.handle_timeout(now));
    }

    fn lease_keys(&self) -> impl Iterator<Item = LeaseKey> {
        let switch = self.switch().into_iter().flat_map(|switch| switch.lease_keys());
        switch.chain(self.server().into_iter().flat_map(|server| server.lease_keys()))
    }

    fn contributions(&self) -> impl Iterator<Item = (LeaseKey, u64)> {
        let switch = self.switch().into_iter().flat_map(|switch| switch.contributions());
        switch.chain(self.server().into_iter().flat_map(|server| server.contributions()))
    }

    fn ports(&self) -> Vec<PortId> {
        either!(self, machine => machine.ports())
    }

    fn count_drop(&mut self, reason: DropReason) {
        either!(self, machine => machine.count_drop(reason));
    }

    fn drops(&self) -> &DropCounters {
        either!(self, machine => machine.drops())
    }
}
