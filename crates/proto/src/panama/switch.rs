//! The aggregating switch: any number of jobs, by lease, in bounded memory.

use std::collections::VecDeque;
use std::hash::{Hash, Hasher};

use netsum_wire::panama::{Header, Kind};
use netsum_wire::{Epoch, JobId, TreeId};

use super::lease::{Lease, LeaseError, buffers_per_fragment, first_window};
use super::memory::{Divisible, Memory};
use super::tree::{Tree, TreeCounters};
use crate::aggregator::Aggregator;
use crate::lateness::Lateness;
use crate::lease::{Granted, LeaseKey, LeaseTable};
use crate::visit::Visitor;
use crate::{DropCounters, DropReason, PortId, Time, epoch};

/// A packet to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transmit<B> {
    /// A stored packet.
    Data {
        /// Neighbour.
        to: PortId,
        /// Header and payload.
        buffer: B,
    },
    /// A header alone.
    Control {
        /// Neighbour.
        to: PortId,
        /// The header.
        header: Header,
    },
}

/// Packets to be sent. Control headers are rare and larger than handles.
#[derive(Clone)]
pub(crate) struct TransmitQueue<B> {
    data: VecDeque<(PortId, B)>,
    control: VecDeque<(PortId, Header)>,
}

impl<B> TransmitQueue<B> {
    #[inline]
    pub(crate) fn data(&mut self, to: PortId, buffer: B) {
        self.data.push_back((to, buffer));
    }

    pub(crate) fn control(&mut self, to: PortId, header: Header) {
        self.control.push_back((to, header));
    }

    #[inline]
    fn next(&mut self) -> Option<Transmit<B>> {
        match self.data.pop_front() {
            Some((to, buffer)) => Some(Transmit::Data { to, buffer }),
            None => self.control.pop_front().map(|(to, header)| Transmit::Control { to, header }),
        }
    }
}

/// Protocol `panama`'s switch as a state machine; `M` stores payloads.
///
/// Usage: `handle` a packet, drain `poll_transmit`, send, call `flushed`. The machine counts every dropped packet by
/// reason.
#[derive(Clone)]
pub struct Switch<M: Memory> {
    trees: LeaseTable<Tree<M::Buffer>>,
    memory: M,
    /// Whether leases have their whole window if all of them fit.
    firm: bool,
    outbox: TransmitQueue<M::Buffer>,
    drops: DropCounters,
}

impl<M: Memory> Aggregator for Switch<M> {
    type Header = Header;
    type Payload = M::Payload;
    type Transmit = Transmit<M::Buffer>;
    type Lease = Lease;
    type Refusal = LeaseError;

    fn install_starting_at(
        &mut self,
        now: Time,
        lease: Lease,
        first: u64,
    ) -> Result<(), LeaseError> {
        lease.validate()?;
        if !self.trees.admits(&lease)? {
            return Ok(());
        }
        let (job, id) = (lease.job, lease.tree);
        let others = self.trees.others(job, id).map(|tree| full_bytes(&self.memory, &tree.lease));
        let wanted: u64 = others.sum();
        let fits = wanted + full_bytes(&self.memory, &lease) <= self.memory.limit();
        if !(self.firm && fits) {
            self.share_memory(1);
        }
        let replaced = self.trees.get(job, id).map_or(0, |t| reserved(&self.memory, t));
        let needed = least_bytes(&self.memory, &lease);
        let free = self.free() + replaced;
        if needed > free {
            self.share_memory(0);
            return Err(LeaseError::NoMemory { needed, free });
        }
        let mut tree = Tree::new(lease, now, first as u32);
        tree.raise_cap(1);
        if let Some(mut old) = self.trees.insert(tree) {
            old.clear(&mut self.memory);
        }
        self.share_memory(0);
        Ok(())
    }

    fn revoke(&mut self, job: JobId, up_to: Epoch) {
        for mut tree in self.trees.revoke(job, up_to) {
            tree.clear(&mut self.memory);
        }
        self.share_memory(0);
    }

    fn expire(&mut self, now: Time, idle_ns: u64) -> Vec<Lease> {
        let mut expired = self.trees.expire(now, idle_ns);
        expired.iter_mut().for_each(|tree| tree.clear(&mut self.memory));
        if !expired.is_empty() {
            self.share_memory(0);
        }
        expired.into_iter().map(|tree| tree.lease).collect()
    }

    #[inline]
    fn handle(
        &mut self,
        now: Time,
        from: PortId,
        ce: bool,
        header: &Header,
        payload: &M::Payload,
    ) -> Result<(), DropReason> {
        let outcome = self.dispatch(now, from, ce, header, payload);
        if let Err(reason) = outcome {
            self.drops.count(reason);
        }
        outcome
    }

    #[inline]
    fn poll_transmit(&mut self) -> Option<Transmit<M::Buffer>> {
        self.outbox.next()
    }

    #[inline]
    fn flushed(&mut self) {
        self.memory.flushed();
    }

    fn count_drop(&mut self, reason: DropReason) {
        self.drops.count(reason);
    }

    fn drops(&self) -> &DropCounters {
        &self.drops
    }

    fn lease_keys(&self) -> impl Iterator<Item = LeaseKey> {
        self.trees.values().map(|at_work| at_work.lease.key())
    }

    fn contributions(&self) -> impl Iterator<Item = (LeaseKey, u64)> {
        self.trees.values().map(|at_work| (at_work.lease.key(), at_work.counters.contributions))
    }

    fn ports(&self) -> Vec<PortId> {
        let of = |tree: &Tree<M::Buffer>| {
            let children = tree.lease.children.iter().map(|child| child.port);
            children.chain(tree.lease.parent).collect::<Vec<_>>()
        };
        self.trees.values().flat_map(of).collect()
    }
}

impl<M: Memory> Switch<M> {
    /// A switch without leases.
    pub fn new(memory: M) -> Self {
        Switch {
            trees: LeaseTable::new(),
            memory,
            firm: false,
            outbox: TransmitQueue { data: VecDeque::new(), control: VecDeque::new() },
            drops: DropCounters::default(),
        }
    }

    /// The same for leases of a controller, which never grants more than the memory: each lease has its whole window as
    /// long as all fit, and none shrinks to leave room for the next.
    pub fn with_firm_leases(self) -> Self {
        Switch { firm: true, ..self }
    }

    /// Storage of the buffers of `poll_transmit`.
    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// As `memory`, for a driver that stores received packets there.
    pub fn memory_mut(&mut self) -> &mut M {
        &mut self.memory
    }

    /// Installed leases.
    pub fn leases(&self) -> impl Iterator<Item = &Lease> {
        self.trees.values().map(|t| &t.lease)
    }

    /// Counters of each (job, tree).
    pub fn tree_counters(&self) -> impl Iterator<Item = (JobId, TreeId, &TreeCounters)> {
        self.trees.values().map(|t| (t.lease.job, t.lease.tree, &t.counters))
    }

    /// How late each child of each lease is.
    pub fn lateness(&self, now: Time) -> impl Iterator<Item = (LeaseKey, PortId, Lateness)> {
        self.trees.values().flat_map(move |tree| {
            let children = tree.lease.children.iter().zip(tree.meter.read(now));
            children.map(|(child, lateness)| (tree.lease.key(), child.port, lateness))
        })
    }

    /// Maximum number of fragments in flight of each (job, tree) here.
    pub fn window_caps(&self) -> impl Iterator<Item = (JobId, TreeId, u16)> + '_ {
        self.trees.values().map(|t| (t.lease.job, t.lease.tree, t.accepted_cap()))
    }

    /// Memory that each (job, tree) has reserved here, in bytes.
    pub fn reserved(&self) -> impl Iterator<Item = (JobId, TreeId, u64)> + '_ {
        let of = |t: &Tree<M::Buffer>| (t.lease.job, t.lease.tree, reserved(&self.memory, t));
        self.trees.values().map(of)
    }

    /// Hashes the state that determines all future behaviour once all packets are sent: states with the same digest
    /// behave alike.
    pub fn digest(&self, state: &mut impl Hasher)
    where
        M: Hash,
        M::Buffer: Hash,
    {
        self.memory.hash(state);
        for (key, tree) in self.trees.sorted() {
            key.hash(state);
            tree.digest(state);
        }
    }

    /// Visits the state; `stored` visits a stored packet. States with partial synchronisation are like no others.
    pub fn visit<V: Visitor>(&mut self, v: &mut V, stored: impl Fn(&mut V, &mut M, M::Buffer)) {
        let Switch { trees, memory, firm: _, outbox, drops } = self;
        if !(outbox.data.is_empty() && outbox.control.is_empty()) {
            v.unlike();
        }
        v.same(trees.len() as u64);
        for tree in trees.sorted_mut() {
            tree.visit(v, |v, buffer| stored(v, memory, buffer));
        }
        drops.visit(v);
    }

    fn dispatch(
        &mut self,
        now: Time,
        from: PortId,
        ce: bool,
        header: &Header,
        payload: &M::Payload,
    ) -> Result<(), DropReason> {
        let tree = self.trees.get_mut(header.job, header.tree).ok_or(DropReason::NoLease)?;
        epoch::check(header.epoch, tree.epoch())?;
        let (memory, out) = (&mut self.memory, &mut self.outbox);
        if tree.lease.parent == Some(from) {
            tree.last_seen = now;
            return match header.kind {
                Kind::Result if ce => {
                    let header = Header { congested_down: true, ..*header };
                    tree.pass_result(&header, payload, memory, out)
                }
                Kind::Result => tree.pass_result(header, payload, memory, out),
                Kind::Waiting => tree.pass_waiting(header, out),
                Kind::Mismatch => tree.pass_mismatch(header, from, out),
                _ => Err(DropReason::WrongDirection),
            };
        }
        let child = tree.child(from).ok_or(DropReason::NotANeighbour)?;
        tree.last_seen = now;
        match header.kind {
            Kind::Contribution | Kind::Partial => {
                tree.contribute(child, ce, header, payload, memory, out)?;
            }
            Kind::Empties => tree.take_empties(child, ce, header, memory, out)?,
            Kind::Acknowledgement => tree.acknowledge(child, header.vid, memory, out)?,
            Kind::Mismatch => tree.pass_mismatch(header, from, out)?,
            Kind::Fin => {
                if tree.finish(child) {
                    tree.clear(memory);
                    if let Some(to) = tree.lease.parent {
                        out.control(to, *header);
                    }
                }
            }
            _ => return Err(DropReason::WrongDirection),
        }
        if tree.settle_cap() {
            self.share_memory(0);
        }
        Ok(())
    }

    /// Memory of all leases with their whole windows but for that of (job, tree), and their number.
    pub fn wanted_beside(&self, beside: Option<(JobId, TreeId)>) -> (u64, u64) {
        let others = |tree: &&Tree<M::Buffer>| beside != Some((tree.lease.job, tree.lease.tree));
        let leases = self.trees.values().filter(others).map(|tree| &tree.lease);
        leases.fold((0, 0), |(bytes, leases), lease| {
            (bytes + full_bytes(&self.memory, lease), leases + 1)
        })
    }

    /// Gives each firm lease its whole window, if the memory suffices. Otherwise divides the memory by (job, tree)
    /// pairs, not by jobs: all trees of a job may share this switch. There is one share more than pairs, and `coming`
    /// more: the next job must find room before the others have shrunk.
    fn share_memory(&mut self, coming: u64) {
        self.share(self.memory.limit(), coming);
    }

    /// The same for a memory of `limit` bytes.
    fn share(&mut self, limit: u64, coming: u64) {
        let wanted: u64 = self.trees.values().map(|t| full_bytes(&self.memory, &t.lease)).sum();
        let share = match self.firm && coming == 0 && wanted <= limit {
            true => limit,
            false => limit / (self.trees.len() as u64 + 1 + coming),
        };
        for tree in self.trees.values_mut() {
            let fair = fair_cap(&self.memory, tree, share);
            if fair < tree.accepted_cap() {
                tree.lower_cap(fair);
                tree.settle_cap();
            }
        }
        let mut free = self.free();
        for tree in self.trees.values_mut() {
            let (fair, now) = (fair_cap(&self.memory, tree, share), tree.accepted_cap());
            if fair > now {
                let slot = slot_bytes(&self.memory, &tree.lease);
                let more = (free / slot).min(u64::from(fair - now));
                free -= more * slot;
                tree.raise_cap(now + more as u16);
            }
        }
    }

    fn free(&self) -> u64 {
        self.memory.limit().saturating_sub(self.reserved_by_all())
    }

    fn reserved_by_all(&self) -> u64 {
        self.trees.values().map(|t| reserved(&self.memory, t)).sum()
    }
}

impl<M: Divisible> Switch<M> {
    /// Changes the memory's limit, down to what leases have reserved at least; returns the new one. With less memory
    /// windows shrink as for a coming lease; what a busy tree still needs comes free later, and another call takes it.
    /// Nothing may be queued for sending.
    pub fn set_memory_limit(&mut self, bytes: u64) -> u64 {
        if bytes < self.memory.limit() {
            self.share(bytes, 0);
        }
        let limit = self.memory.set_limit(bytes.max(self.reserved_by_all()));
        self.share_memory(0);
        limit
    }
}

fn fair_cap<M: Memory>(memory: &M, tree: &Tree<M::Buffer>, share: u64) -> u16 {
    let lease = &tree.lease;
    let first = u64::from(first_window(lease.slots)) * memory.cost(lease.fragment_bytes);
    let beside_first = share.saturating_sub(first) / sum_bytes(memory, lease);
    let slots = (share / slot_bytes(memory, lease)).min(beside_first);
    slots.clamp(1, u64::from(lease.slots)) as u16
}

fn reserved<M: Memory>(memory: &M, tree: &Tree<M::Buffer>) -> u64 {
    tree.reserved_buffers() * memory.cost(tree.lease.fragment_bytes)
}

/// Memory of a tree whose whole window is in flight.
fn full_bytes<M: Memory>(memory: &M, lease: &Lease) -> u64 {
    lease.buffers() * memory.cost(lease.fragment_bytes)
}

/// Minimum memory of a tree: one fragment in flight, and the sums of a worker's first window.
fn least_bytes<M: Memory>(memory: &M, lease: &Lease) -> u64 {
    let first = u64::from(first_window(lease.slots)) * memory.cost(lease.fragment_bytes);
    sum_bytes(memory, lease) + first
}

/// Memory of one fragment in flight.
fn slot_bytes<M: Memory>(memory: &M, lease: &Lease) -> u64 {
    buffers_per_fragment(lease.children.len()) * memory.cost(lease.fragment_bytes)
}

/// A port buffer per child, and the sum under way.
fn sum_bytes<M: Memory>(memory: &M, lease: &Lease) -> u64 {
    (lease.children.len() as u64 + 1) * memory.cost(lease.fragment_bytes)
}
