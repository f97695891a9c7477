//! Aggregation in the network: `proto`'s machines on simulated links, unchanged.

mod machines;
mod panama;
mod payload;
mod pools;
mod protocol;
mod slots;
mod trees;

use std::sync::Arc;

use machines::{Parcel, Residents};
use netsum_proto::Pattern;

use crate::network::{Crossing, Network, NetworkEvent, Region};
use crate::packet::{self, Packet};
use crate::timer::CLASS;

pub use machines::{Inspector, Machines, SharedCapture};
pub use panama::{OVERHEAD_BYTES, Panama, TreeConfig};
pub use payload::{Counts, FORMAT, Payload, value};
pub use pools::{PoolConfig, Pools};
pub use protocol::Protocol;
pub(crate) use slots::Places;
pub use slots::{Atp, MEMORY_BYTES, SlotConfig, SlotSharing};

/// Timer keys carry these classes (bits 56 to 62), then the protocol's number (48 to 55).
pub(crate) const WORKER: u64 = 5 << 56;
pub(crate) const NODE: u64 = 8 << 56;
/// Timer class: a job is over; the key contains its number.
const REVOKE: u64 = 9 << 56;
/// Timer class: the order of simultaneous deliveries begins anew.
const ORDER: u64 = 10 << 56;
/// Timer class: a worker's small queue has room.
const ROOM: u64 = 11 << 56;
/// Packet-hops between two audits of a checked run.
const AUDIT_HOPS: u64 = 20_000;

/// An operation to be done in the network.
#[derive(Clone, Debug)]
pub struct Operation {
    /// Number of the operation, the same at all workers of the job.
    pub id: u64,
    /// Size of the whole buffer.
    pub bytes: u64,
    /// What is done. Shards are of 4 bytes times their elements.
    pub pattern: Pattern,
}

impl Operation {
    /// An allreduce.
    pub fn allreduce(id: u64, bytes: u64) -> Operation {
        Operation { id, bytes, pattern: Pattern::Allreduce }
    }
}

/// An operation that is complete at a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// Job.
    pub job: u32,
    /// Worker.
    pub rank: u32,
    /// Operation.
    pub id: u64,
}

/// A violation of the protocol's guarantees, found by the simulator's checks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Simulated time.
    pub at_ps: u64,
    /// Job.
    pub job: u32,
    /// What is wrong.
    pub what: String,
}

/// The protocol by which a job reduces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Protocol `panama`.
    Trees,
    /// Protocol `atp`.
    Slots,
    /// Protocol of static pools.
    Pools,
}

/// The machines of all protocols; `P` is the payload of their packets.
pub struct Aggregation<P: Payload> {
    /// Protocol `panama`.
    pub trees: Machines<Panama<P>>,
    /// Protocol `atp`.
    pub slots: Machines<Atp<P>>,
    /// Protocol of static pools.
    pub pools: Machines<Pools<P>>,
    /// Memory of a switch per protocol.
    pub(crate) memory_bytes: u64,
    /// How switches share the slots of `atp`.
    pub sharing: SlotSharing,
}

impl<P: Payload> Aggregation<P> {
    /// No machines yet, in a network whose nodes are in these regions; each switch that gets a lease has `memory_bytes`
    /// for sums.
    pub(crate) fn new(region_of: &Arc<[u8]>, memory_bytes: u64) -> Self {
        Aggregation {
            trees: Machines::new(region_of),
            slots: Machines::new(region_of),
            pools: Machines::new(region_of),
            memory_bytes,
            sharing: SlotSharing::default(),
        }
    }

    /// Whether the state of all machines that a job has used is visited, and nobody is shown every packet or result.
    pub(crate) fn is_visited(&self) -> bool {
        !self.trees.is_watched() && self.slots.is_unused() && self.pools.is_unused()
    }

    /// Records every packet that arrives at a worker, a switch or a server.
    pub fn capture(&mut self, capture: &SharedCapture) {
        self.trees.capture(capture);
        self.slots.capture(capture);
        self.pools.capture(capture);
    }

    /// A switch fails: its leases and sums are lost.
    pub(crate) fn kill_switch(&mut self, node: u32) {
        self.trees.kill(node);
        self.slots.kill(node);
        self.pools.kill(node);
    }

    /// Violations of all protocols.
    pub fn violations(&self) -> Vec<Violation> {
        [self.trees.violations(), self.slots.violations(), self.pools.violations()].concat()
    }

    /// Checks that no switch uses more than its memory. Panics otherwise.
    pub fn audit(&self) {
        self.trees.audit();
        self.slots.audit();
        self.pools.audit();
    }

    /// The regions of a network, each with its machines; `checked` regions audit themselves regularly.
    pub(crate) fn locals<'a>(
        &'a mut self,
        net: &'a mut Network,
        checked: bool,
    ) -> impl Iterator<Item = Local<'a, P>> {
        let machines = self.trees.residents.iter_mut().zip(&mut self.slots.residents);
        let machines = machines.zip(&mut self.pools.residents);
        let local = move |(net, ((trees, slots), pools))| Local {
            net,
            trees,
            slots,
            pools,
            checked,
            check_at_hop: 0,
        };
        net.regions.iter_mut().zip(machines).map(local)
    }
}

/// Lets the order of simultaneous deliveries on a host's island begin anew in all regions, as soon as they can be
/// notified: a job of this host repeats itself from here.
pub(crate) fn begin_order(net: &mut Region, host: u32) {
    let island = net.island_of(net.uplink(host));
    net.set_timers(net.now_ps() + net.lookahead_ps(), ORDER | u64::from(island));
}

/// A region of the network and its machines: the state of one thread.
pub(crate) struct Local<'a, P: Payload> {
    pub net: &'a mut Region,
    trees: &'a mut Residents<Panama<P>>,
    slots: &'a mut Residents<Atp<P>>,
    pools: &'a mut Residents<Pools<P>>,
    checked: bool,
    check_at_hop: u64,
}

/// What a region hands over to another one.
pub(crate) struct Mail<P: Payload> {
    crossing: Crossing,
    /// Contents of the `Tree` packets, in the order of the packets.
    trees: Vec<Parcel<Panama<P>>>,
    slots: Vec<Parcel<Atp<P>>>,
    pools: Vec<Parcel<Pools<P>>>,
}

impl<P: Payload> Default for Mail<P> {
    fn default() -> Self {
        let (trees, slots, pools) = (Vec::new(), Vec::new(), Vec::new());
        Mail { crossing: Crossing::default(), trees, slots, pools }
    }
}

/// Calls a method on the machines of the protocol with the given number.
macro_rules! of {
    ($self:ident, $number:expr, $machines:ident => $call:expr) => {
        match $number {
            <Panama<P> as Protocol>::NUMBER => {
                let $machines = &mut *$self.trees;
                $call
            }
            <Atp<P> as Protocol>::NUMBER => {
                let $machines = &mut *$self.slots;
                $call
            }
            <Pools<P> as Protocol>::NUMBER => {
                let $machines = &mut *$self.pools;
                $call
            }
            number => unreachable!("no protocol has number {number}"),
        }
    };
}

impl<P: Payload> Local<'_, P> {
    /// Submits an allreduce of `bytes` at a worker.
    pub(crate) fn submit(&mut self, kind: Kind, worker: u32, what: Operation) {
        match kind {
            Kind::Trees => self.trees.submit(self.net, worker, what),
            Kind::Slots => self.slots.submit(self.net, worker, what),
            Kind::Pools => self.pools.submit(self.net, worker, what),
        }
    }

    /// Handles a `Tree` packet that has reached the end of its path.
    #[inline]
    pub(crate) fn on_packet(&mut self, packet: &Packet) {
        of!(self, packet.dst() as u16, machines => machines.on_packet(self.net, packet))
    }

    /// Handles a timer of a worker, of a node, or of a completed job.
    pub(crate) fn on_timer(&mut self, key: u64) {
        let (number, what) = ((key >> 48) as u16 & 0xff, key as u32);
        match key & CLASS {
            WORKER => of!(self, number, machines => machines.on_worker_timer(self.net, what)),
            NODE => of!(self, number, machines => machines.on_node_timer(self.net, what)),
            ROOM => of!(self, number, machines => machines.pump_worker(self.net, what)),
            REVOKE => self.revoke(what),
            ORDER => self.net.begin_order(what),
            _ => unreachable!("a timer of nobody"),
        }
    }

    /// Ends a job: removes its workers, and revokes its leases after one lookahead, when regions can be notified.
    pub(crate) fn end_job(&mut self, job: u32) {
        self.remove_workers(job);
        let at_ps = self.net.now_ps() + self.net.lookahead_ps();
        self.net.set_timers(at_ps, REVOKE | u64::from(job));
    }

    /// Removes a job's workers.
    pub(crate) fn remove_workers(&mut self, job: u32) {
        self.trees.remove_workers(job);
        self.slots.remove_workers(job);
        self.pools.remove_workers(job);
    }

    /// Revokes a job's leases.
    pub(crate) fn revoke(&mut self, job: u32) {
        let now_ps = self.net.now_ps();
        self.trees.revoke(now_ps, job);
        self.slots.revoke(now_ps, job);
        self.pools.revoke(now_ps, job);
    }

    /// Whether the first worker of a job has come to another round since the last call.
    #[inline]
    pub(crate) fn take_round(&mut self) -> bool {
        self.trees.take_round()
    }

    /// The next completed operation.
    #[inline]
    pub(crate) fn pop_done(&mut self) -> Option<Done> {
        self.trees.done.pop().or_else(|| self.slots.done.pop()).or_else(|| self.pools.done.pop())
    }

    /// Frees the contents of lost packets.
    #[inline]
    pub(crate) fn forget_lost(&mut self) {
        while let Some((number, handle)) = self.net.lost.pop() {
            of!(self, number, machines => machines.forget(handle));
        }
    }

    /// Audits a checked run every [`AUDIT_HOPS`] packet-hops.
    #[inline]
    pub(crate) fn check(&mut self) {
        if self.checked && self.net.hops() >= self.check_at_hop {
            self.check_at_hop = self.net.hops() + AUDIT_HOPS;
            self.audit();
        }
    }

    /// Runs a region without hosts up to and including `until_ps`.
    pub(crate) fn run(&mut self, until_ps: u64) {
        while let Some(event) = self.net.next(until_ps) {
            match event {
                NetworkEvent::Packet(_, packet) => self.on_packet(&packet),
                NetworkEvent::Timer(key) => self.on_timer(key),
            }
            self.forget_lost();
            self.check();
        }
    }

    /// Checks the invariants. Panics if one is violated.
    pub(crate) fn audit(&self) {
        self.net.audit();
        self.trees.audit();
        self.slots.audit();
        self.pools.audit();
    }

    /// Removes what goes to another region and puts it into `mail`.
    pub(crate) fn send(&mut self, region: usize, mail: &mut Mail<P>) {
        self.net.take_outbox(region, &mut mail.crossing);
        for packet in
            mail.crossing.packets.iter().filter(|packet| packet.kind() == packet::Kind::Tree)
        {
            match packet.dst() as u16 {
                <Panama<P> as Protocol>::NUMBER => mail.trees.push(self.trees.give(packet.seq)),
                <Atp<P> as Protocol>::NUMBER => mail.slots.push(self.slots.give(packet.seq)),
                <Pools<P> as Protocol>::NUMBER => mail.pools.push(self.pools.give(packet.seq)),
                number => unreachable!("no protocol has number {number}"),
            }
        }
    }

    /// Accepts what another region has sent.
    pub(crate) fn receive(&mut self, mail: &mut Mail<P>) {
        let Mail { crossing, trees, slots, pools } = mail;
        let (mut trees, mut slots, mut pools) = (trees.drain(..), slots.drain(..), pools.drain(..));
        for mut packet in crossing.packets.drain(..) {
            if packet.kind() == packet::Kind::Tree {
                let kept = match packet.dst() as u16 {
                    <Panama<P> as Protocol>::NUMBER => trees.next().map(|p| self.trees.keep(p)),
                    <Atp<P> as Protocol>::NUMBER => slots.next().map(|p| self.slots.keep(p)),
                    <Pools<P> as Protocol>::NUMBER => pools.next().map(|p| self.pools.keep(p)),
                    number => unreachable!("no protocol has number {number}"),
                };
                packet.seq = kept.expect("a handed-over packet has content");
            }
            self.net.import(packet);
        }
        self.net.import_timers(crossing);
    }
}
