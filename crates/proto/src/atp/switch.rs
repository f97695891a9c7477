//! The aggregating switch of either level: adds fragments that get a slot, and forwards the others.

use std::collections::VecDeque;
use std::hash::{Hash, Hasher};

use netsum_wire::atp::{Flags, Header, Kind, Level};
use netsum_wire::{Epoch, JobId, TreeId};

use super::lease::{Lease, LeaseError, Members};
use super::policy::{Policy, Share};
use super::slots::{Slot, SlotState};
use super::tenant::{Counters, Tenant};
use crate::aggregator::Aggregator;
use crate::lateness::{Began, Lateness, Meter};
use crate::lease::{Granted, LeaseKey, LeaseTable};
use crate::sequence::raise_to;
use crate::values::{RowTransmit, Values};
use crate::{DropCounters, DropReason, PortId, Time, epoch};

/// Configuration of a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwitchConfig {
    /// Number of slots.
    pub slots: u32,
    /// Largest payload of a slot.
    pub row_bytes: u16,
    /// Policy by which tenants share the slots.
    pub policy: Policy,
    /// Time without an addition after which a slot is flushed, so that stragglers and dead jobs do not hold it. Must
    /// exceed a round trip; otherwise live sums are split and have to be completed by the server.
    pub straggler_ns: u64,
}

/// A packet to be sent.
pub type Transmit<B> = RowTransmit<Header, B>;

/// Protocol `atp`'s switch as a state machine; `V` stores values.
///
/// Usage: `handle` a packet, drain `poll_transmit`, send, call `values_mut().flushed()`; call `handle_timeout` at
/// `poll_timeout`. The machine counts every dropped packet by reason.
#[derive(Clone)]
pub struct Switch<V: Values> {
    pub(super) config: SwitchConfig,
    pub(super) tenants: LeaseTable<Tenant>,
    pub(super) slots: Vec<Slot<V::Buffer>>,
    /// By slot, when its fragment began, for the meters.
    pub(super) began: Vec<Began>,
    pub(super) held: u32,
    pub(super) next_scan: Option<Time>,
    pub(super) values: V,
    pub(super) outbox: VecDeque<Transmit<V::Buffer>>,
    drops: DropCounters,
}

impl<V: Values> Aggregator for Switch<V> {
    type Header = Header;
    type Payload = V::Payload;
    type Transmit = Transmit<V::Buffer>;
    type Lease = Lease;
    type Refusal = LeaseError;

    fn install_starting_at(
        &mut self,
        now: Time,
        lease: Lease,
        first: u64,
    ) -> Result<(), LeaseError> {
        lease.validate(self.config.row_bytes)?;
        if !self.tenants.admits(&lease)? {
            return Ok(());
        }
        let key = (lease.job, lease.tree);
        let first_slot = self.find_room(key, lease.claim.guaranteed)?;
        self.release_all(key);
        let share = Share { claim: lease.claim, held: 0, first: first_slot };
        let counters = Counters::default();
        let passed = first as u32;
        let meter = Meter::new(lease.members.neighbours().count());
        let tenant = Tenant { lease, share, passed, finished: 0, last_seen: now, meter, counters };
        self.tenants.insert(tenant);
        Ok(())
    }

    fn revoke(&mut self, job: JobId, up_to: Epoch) {
        let gone = self.tenants.revoke(job, up_to);
        self.release_tenants(gone);
    }

    fn expire(&mut self, now: Time, idle_ns: u64) -> Vec<Lease> {
        let gone = self.tenants.expire(now, idle_ns);
        self.release_tenants(gone)
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
        let outcome = self.dispatch(now, from, ce, header, payload);
        if let Err(reason) = outcome {
            self.drops.count(reason);
        }
        outcome
    }

    #[inline]
    fn poll_transmit(&mut self) -> Option<Transmit<V::Buffer>> {
        self.outbox.pop_front()
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.next_scan
    }

    fn handle_timeout(&mut self, now: Time) {
        if self.next_scan.is_none_or(|at| at > now) {
            return;
        }
        for row in 0..self.slots.len() {
            if let Slot::Held(sum) = &self.slots[row]
                && now.since(sum.touched) >= self.config.straggler_ns
            {
                let tenant = sum.fragment.tenant();
                self.vacate(row, false);
                self.count(tenant, |c| c.expired += 1);
            }
        }
        self.next_scan = (self.held > 0).then(|| self.scan_after(now));
    }

    fn count_drop(&mut self, reason: DropReason) {
        self.drops.count(reason);
    }

    fn drops(&self) -> &DropCounters {
        &self.drops
    }

    fn flushed(&mut self) {
        self.values.flushed();
    }

    fn lease_keys(&self) -> impl Iterator<Item = LeaseKey> {
        self.tenants.values().map(|at_work| at_work.lease.key())
    }

    fn contributions(&self) -> impl Iterator<Item = (LeaseKey, u64)> {
        self.tenants.values().map(|at_work| (at_work.lease.key(), at_work.counters.added))
    }

    fn ports(&self) -> Vec<PortId> {
        let of = |tenant: &Tenant| {
            let Lease { members, parent, .. } = &tenant.lease;
            members.neighbours().chain([*parent]).collect::<Vec<_>>()
        };
        self.tenants.values().flat_map(of).collect()
    }
}

impl<V: Values> Switch<V> {
    /// A switch without leases. `values`: room for every slot, and for packets that are forwarded.
    pub fn new(config: SwitchConfig, values: V) -> Self {
        Switch {
            config,
            tenants: LeaseTable::new(),
            slots: (0..config.slots.max(1)).map(|_| Slot::Empty).collect(),
            began: vec![Began::UNMEASURED; config.slots.max(1) as usize],
            held: 0,
            next_scan: None,
            values,
            outbox: VecDeque::new(),
            drops: DropCounters::default(),
        }
    }

    /// Storage of the payloads of `poll_transmit`.
    pub fn values(&self) -> &V {
        &self.values
    }

    /// The storage, to call `flushed`.
    pub fn values_mut(&mut self) -> &mut V {
        &mut self.values
    }

    /// State of each slot.
    pub fn slots(&self) -> impl Iterator<Item = SlotState> + '_ {
        self.slots.iter().map(Slot::state)
    }

    /// Slots in use.
    pub fn held(&self) -> u32 {
        self.held
    }

    /// Installed leases, the slots that each holds, and their counters.
    pub fn leases(&self) -> impl Iterator<Item = (&Lease, u32, &Counters)> {
        self.tenants.values().map(|t| (&t.lease, t.share.held, &t.counters))
    }

    /// How late each child of each lease is, for fragments that had a slot.
    pub fn lateness(&self, now: Time) -> impl Iterator<Item = (LeaseKey, PortId, Lateness)> {
        self.tenants.values().flat_map(move |tenant| {
            let children = tenant.lease.members.neighbours().zip(tenant.meter.read(now));
            children.map(|(port, lateness)| (tenant.lease.key(), port, lateness))
        })
    }

    /// State of a lease, for a data plane in front of this one: its first slot (0 if slots are shared), and one past
    /// the highest number whose result has passed here.
    pub fn standing(&self, job: JobId, tree: TreeId) -> Option<(u32, u32)> {
        self.tenants.get(job, tree).map(|t| (t.share.first, t.passed))
    }

    /// Whether all children of a lease have sent fin.
    pub fn is_finished(&self, job: JobId, tree: TreeId) -> bool {
        self.tenants.get(job, tree).is_some_and(|t| t.finished == t.lease.everyone())
    }

    /// Sends a packet unchanged, for a data plane in front of this one. False if the memory is full.
    pub fn relay(&mut self, to: PortId, header: &Header, payload: &V::Payload) -> bool {
        let Some(values) = self.values.store(payload) else { return false };
        self.outbox.push_back(Transmit { to, header: *header, payload: Some(values) });
        self.values.free(values);
        true
    }

    /// Records that a data plane in front of this one has received a packet from a lease's neighbours.
    pub fn note_seen(&mut self, job: JobId, tree: TreeId, at: Time) {
        if let Some(tenant) = self.tenants.get_mut(job, tree) {
            tenant.last_seen = tenant.last_seen.max(at);
        }
    }

    /// Hashes the state that determines all future behaviour: states with the same digest behave alike.
    pub fn digest(&self, state: &mut impl Hasher)
    where
        V: Hash,
        V::Buffer: Hash,
    {
        (&self.slots, &self.values, self.next_scan).hash(state);
        for (key, tenant) in self.tenants.sorted() {
            (key, tenant.passed, tenant.finished).hash(state);
        }
    }

    fn dispatch(
        &mut self,
        now: Time,
        from: PortId,
        ce: bool,
        header: &Header,
        payload: &V::Payload,
    ) -> Result<(), DropReason> {
        let key = (header.job, header.tree);
        let tenant = self.tenants.get_mut(key.0, key.1).ok_or(DropReason::NoLease)?;
        epoch::check(header.epoch, tenant.lease.epoch)?;
        if header.payload_len() > usize::from(tenant.lease.fragment_bytes) {
            return Err(DropReason::TooLarge);
        }
        if tenant.lease.parent == from {
            tenant.last_seen = now;
            return self.pass_down(ce, header, payload);
        }
        let child = tenant.lease.child(from).ok_or(DropReason::NotANeighbour)?;
        if !header.kind.is_down() && !tenant.lease.agrees(child, header) {
            return Err(DropReason::Members);
        }
        tenant.last_seen = now;
        match header.kind {
            Kind::Contribution => {
                tenant.admit(header)?;
                let flags = Flags { ecn: header.flags.ecn || ce, ..header.flags };
                self.contribute(now, child, &Header { flags, ..*header }, payload)
            }
            Kind::Ready => {
                tenant.admit(header)?;
                let flags = Flags { ecn: header.flags.ecn || ce, ..header.flags };
                let header = Header { level: Level::Server, flags, ..*header };
                tenant.counters.passed += 1;
                let to = tenant.lease.parent;
                self.outbox.push_back(Transmit { to, header, payload: None });
                Ok(())
            }
            Kind::Fin => {
                self.finish(key, child, header);
                Ok(())
            }
            _ => Err(DropReason::WrongDirection),
        }
    }

    /// Handles a packet from the server: frees the slot, and forwards the packet to the children it is for.
    fn pass_down(
        &mut self,
        ce: bool,
        header: &Header,
        payload: &V::Payload,
    ) -> Result<(), DropReason> {
        if !header.kind.is_down() {
            return Err(DropReason::WrongDirection);
        }
        let tenant = self.tenants.get_mut(header.job, header.tree).expect("it was found");
        tenant.admit(header)?;
        if matches!(header.kind, Kind::Result | Kind::Done) {
            raise_to(&mut tenant.passed, header.sequence.0.wrapping_add(1));
            tenant.counters.results += 1;
        }
        let frees = matches!(header.kind, Kind::Result | Kind::Done | Kind::FloatRequest);
        let row = self.config.policy.row(&tenant.share, header.slot, self.config.slots);
        if let Some(row) = row.filter(|_| frees)
            && self.slots[row].fragment().is_some_and(|f| f.has_number_of(header))
        {
            self.free(row);
            self.slots[row] = Slot::Empty;
        }
        let payload = match header.kind.has_payload() {
            true => Some(self.values.store(payload).ok_or(DropReason::NoMemory)?),
            false => None,
        };
        let flags = Flags { ecn: header.flags.ecn || ce, ..header.flags };
        let tenant = self.tenants.get(header.job, header.tree).expect("it was found");
        let lease = &tenant.lease;
        let addressed = lease.members.addressed(header);
        for (bit, to) in lease.members.neighbours().enumerate() {
            if addressed >> bit & 1 == 1 {
                let header = Header { flags, ..*header };
                self.outbox.push_back(Transmit { to, header, payload });
            }
        }
        if let Some(values) = payload {
            self.values.free(values);
        }
        Ok(())
    }

    /// Handles a child's fin; after the last one the lease's slots are freed.
    fn finish(&mut self, key: (JobId, TreeId), child: usize, header: &Header) {
        let tenant = self.tenants.get_mut(key.0, key.1).expect("it was found");
        tenant.finished |= 1 << child;
        if tenant.finished != tenant.lease.everyone() {
            return;
        }
        let (workers, racks) = match &tenant.lease.members {
            Members::Rack { .. } => (tenant.finished, header.racks),
            Members::Server { .. } if tenant.finished == 1 => (header.workers, 1),
            Members::Server { .. } => (0, tenant.finished),
        };
        let header = Header { level: Level::Server, workers, racks, ..*header };
        self.outbox.push_back(Transmit { to: tenant.lease.parent, header, payload: None });
        self.release_all(key);
    }

    /// First slot of a partition, or 0 if slots are shared.
    fn find_room(&self, key: (JobId, TreeId), wanted: u32) -> Result<u32, LeaseError> {
        let others = self.tenants.others(key.0, key.1).map(|t| &t.share);
        let slots = self.config.slots;
        let room = self.config.policy.room(slots, wanted, others);
        room.map_err(|free| LeaseError::Slots { wanted, free, slots })
    }

    /// Empties the slots of removed leases.
    fn release_tenants(&mut self, gone: Vec<Tenant>) -> Vec<Lease> {
        for tenant in &gone {
            self.release_all((tenant.lease.job, tenant.lease.tree));
        }
        gone.into_iter().map(|tenant| tenant.lease).collect()
    }

    fn release_all(&mut self, key: (JobId, TreeId)) {
        for row in 0..self.slots.len() {
            if self.slots[row].fragment().is_some_and(|f| f.tenant() == key) {
                self.free(row);
                self.slots[row] = Slot::Empty;
            }
        }
    }

    pub(super) fn count(&mut self, key: (JobId, TreeId), count: impl FnOnce(&mut Counters)) {
        if let Some(tenant) = self.tenants.get_mut(key.0, key.1) {
            count(&mut tenant.counters);
        }
    }

    /// An installed lease.
    pub(super) fn tenant(&self, (job, tree): (JobId, TreeId)) -> &Tenant {
        self.tenants.get(job, tree).expect("its packets were admitted")
    }

    pub(super) fn scan_after(&self, now: Time) -> Time {
        now.after(self.config.straggler_ns / 2 + 1)
    }
}
