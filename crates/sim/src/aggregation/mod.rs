//! Aggregation in the network: `proto`'s machines on simulated links, unchanged.

mod machines;
mod panama;
mod payload;
mod pools;
mod protocol;
mod slots;
mod trees;

use crate::network::Network;
use crate::packet::Packet;

pub use machines::{Inspector, Machines};
pub use panama::{OVERHEAD_BYTES, Panama, TreeConfig};
pub use payload::{Counts, FORMAT, Payload, value};
pub use pools::{PoolConfig, SwitchMl};
pub use protocol::{Protocol, WorkerEvent};
pub(crate) use slots::Hosts;
pub use slots::{Atp, SlotConfig, SlotSharing};

/// Timer keys carry these classes (bits 56 to 62), then the protocol's number (48 to 55).
pub(crate) const WORKER: u64 = 5 << 56;
pub(crate) const NODE: u64 = 8 << 56;

/// An operation is complete at a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// Job.
    pub job: u32,
    /// Worker.
    pub rank: u32,
    /// Operation.
    pub id: u64,
}

/// What the protocol did that it must not. The simulator's checks find these; a sound protocol has none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// When.
    pub at_ps: u64,
    /// Job.
    pub job: u32,
    /// What is wrong.
    pub what: String,
}

/// By which machines a job reduces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Protocol `panama`.
    Trees,
    /// Protocol `atp`.
    Slots,
    /// Protocol `switchml`.
    Pools,
}

/// The machines of all protocols; `P` says what their packets carry.
pub struct Aggregation<P: Payload> {
    /// Protocol `panama`.
    pub trees: Machines<Panama<P>>,
    /// Protocol `atp`.
    pub slots: Machines<Atp<P>>,
    /// Protocol `switchml`.
    pub pools: Machines<SwitchMl<P>>,
    /// Memory of a switch, for each protocol.
    pub(crate) memory_bytes: u64,
    /// How switches share the slots of `atp`.
    pub sharing: SlotSharing,
}

/// Calls a method on the machines whose number is given.
macro_rules! of {
    ($self:ident, $number:expr, $machines:ident => $call:expr) => {
        match $number {
            <Panama<P> as Protocol>::NUMBER => {
                let $machines = &mut $self.trees;
                $call
            }
            <Atp<P> as Protocol>::NUMBER => {
                let $machines = &mut $self.slots;
                $call
            }
            _ => {
                let $machines = &mut $self.pools;
                $call
            }
        }
    };
}

impl<P: Payload> Aggregation<P> {
    /// Nothing yet; each switch that gets a lease has so much memory for sums.
    pub fn new(nodes: usize, memory_bytes: u64) -> Self {
        Aggregation {
            trees: Machines::new(nodes),
            slots: Machines::new(nodes),
            pools: Machines::new(nodes),
            memory_bytes,
            sharing: SlotSharing::default(),
        }
    }

    /// A worker hands over an allreduce of so many bytes.
    pub(crate) fn submit(
        &mut self,
        net: &mut Network,
        kind: Kind,
        worker: u32,
        id: u64,
        bytes: u64,
    ) {
        match kind {
            Kind::Trees => self.trees.submit(net, worker, id, bytes),
            Kind::Slots => self.slots.submit(net, worker, id, bytes),
            Kind::Pools => self.pools.submit(net, worker, id, bytes),
        }
    }

    /// A `Tree` packet has come to the end of its path.
    #[inline]
    pub(crate) fn on_packet(&mut self, net: &mut Network, packet: &Packet) {
        of!(self, packet.dst, machines => machines.on_packet(net, packet))
    }

    /// The network lost a packet of a protocol.
    pub(crate) fn forget(&mut self, number: u16, handle: u32) {
        of!(self, number, machines => machines.forget(handle));
    }

    /// A worker's timer.
    pub(crate) fn on_worker_timer(&mut self, net: &mut Network, key: u64) {
        of!(self, (key >> 48) as u16 & 0xff, machines => machines.on_worker_timer(net, key as u32));
    }

    /// A node's timer.
    pub(crate) fn on_node_timer(&mut self, net: &mut Network, key: u64) {
        of!(self, (key >> 48) as u16 & 0xff, machines => machines.on_node_timer(net, key as u32));
    }

    /// A switch dies: its leases and sums are gone, until it is leased again.
    pub(crate) fn kill_switch(&mut self, node: u32) {
        self.trees.kill(node);
        self.slots.kill(node);
        self.pools.kill(node);
    }

    /// The job is over: leases are taken back, workers are gone.
    pub(crate) fn remove_job(&mut self, now_ps: u64, job: u32) {
        self.trees.remove_job(now_ps, job);
        self.slots.remove_job(now_ps, job);
        self.pools.remove_job(now_ps, job);
    }

    /// An operation that is complete.
    #[inline]
    pub(crate) fn pop_done(&mut self) -> Option<Done> {
        self.trees.done.pop().or_else(|| self.slots.done.pop()).or_else(|| self.pools.done.pop())
    }

    /// What must not be.
    pub fn violations(&self) -> Vec<Violation> {
        [&self.trees.violations, &self.slots.violations, &self.pools.violations]
            .into_iter()
            .flatten()
            .cloned()
            .collect()
    }

    /// Checks that no switch holds more than its memory. Panics if one does.
    pub fn audit(&self) {
        self.trees.audit();
        self.slots.audit();
        self.pools.audit();
    }
}
