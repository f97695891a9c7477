//! The parameter server: completes the sums that switches did not, counts each worker once, and answers all workers.

use std::collections::VecDeque;
use std::hash::{Hash, Hasher};

use netsum_wire::atp::{Flags, Header, Kind};
use netsum_wire::{Arithmetic, Epoch, JobId, Parties, Sequence, SlotIndex, TreeId};

use super::gather::{Entry, Merge, Phase};
use super::lease::{LeaseError, Neighbour, ServerLease};
use super::served::{ServerCounters, Tenant, down};
use super::switch::Transmit;
use super::table::SlotTable;
use crate::aggregator::Aggregator;
use crate::lease::{Granted, LeaseKey, LeaseTable};
use crate::sequence::{distance, raise_to};
use crate::values::Values;
use crate::{DropCounters, DropReason, PortId, Time, epoch};

/// Protocol `atp`'s parameter server as a state machine; `V` stores values.
///
/// The server retains the last window of results: a worker that contributes to fragment s has every result below s −
/// window, so no worker can request an older one. It is driven like the switch; time-outs are the workers' task.
#[derive(Clone)]
pub struct Server<V: Values> {
    row_bytes: u16,
    /// Rows that leases can reserve.
    rows: u64,
    pub(super) tenants: LeaseTable<Tenant<V::Buffer>>,
    values: V,
    pub(super) outbox: VecDeque<Transmit<V::Buffer>>,
    drops: DropCounters,
}

impl<V: Values> Aggregator for Server<V> {
    type Header = Header;
    type Payload = V::Payload;
    type Transmit = Transmit<V::Buffer>;
    type Lease = ServerLease;
    type Refusal = LeaseError;

    fn install_starting_at(
        &mut self,
        now: Time,
        lease: ServerLease,
        first: u64,
    ) -> Result<(), LeaseError> {
        lease.validate(self.row_bytes)?;
        if !self.tenants.admits(&lease)? {
            return Ok(());
        }
        let replaced = self.tenants.get(lease.job, lease.tree);
        let replaced = replaced.map_or(0, |tenant| tenant.lease.rows());
        let (needed, free) = (lease.rows(), self.rows - (self.reserved() - replaced));
        if needed > free {
            return Err(LeaseError::NoMemory { needed, free });
        }
        let places = lease.places();
        let entry = Entry::new(lease.racks.len());
        let tenant = Tenant {
            table: SlotTable::new(lease.job, lease.tree, lease.window, lease.slots),
            ring: std::iter::repeat_n(entry, places).collect(),
            base: first as u32,
            highest: first as u32,
            asked_to: first as u32,
            finished: vec![0; lease.racks.len()],
            last_seen: now,
            counters: ServerCounters::default(),
            lease,
        };
        if let Some(mut old) = self.tenants.insert(tenant) {
            old.clear(&mut self.values);
        }
        Ok(())
    }

    fn revoke(&mut self, job: JobId, up_to: Epoch) {
        for mut tenant in self.tenants.revoke(job, up_to) {
            tenant.clear(&mut self.values);
        }
    }

    fn expire(&mut self, now: Time, idle_ns: u64) -> Vec<ServerLease> {
        let mut gone = self.tenants.expire(now, idle_ns);
        gone.iter_mut().for_each(|tenant| tenant.clear(&mut self.values));
        gone.into_iter().map(|tenant| tenant.lease).collect()
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
        self.tenants.values().map(|at_work| (at_work.lease.key(), at_work.counters.contributions))
    }

    fn ports(&self) -> Vec<PortId> {
        let leases = self.tenants.values().map(|tenant| &tenant.lease);
        leases.flat_map(|lease| lease.neighbours.iter().map(|n| n.port)).collect()
    }
}

impl<V: Values> Server<V> {
    /// A server without leases. `row_bytes`: largest payload; `values`: room for two windows of each lease and for
    /// packets being sent.
    pub fn new(row_bytes: u16, values: V) -> Self {
        Server {
            row_bytes,
            rows: u64::MAX,
            tenants: LeaseTable::new(),
            values,
            outbox: VecDeque::new(),
            drops: DropCounters::default(),
        }
    }

    /// The same with a limit of `rows` on the reservations of all leases.
    pub fn with_rows(self, rows: u64) -> Self {
        Server { rows, ..self }
    }

    /// Rows that leases have reserved.
    pub fn reserved(&self) -> u64 {
        self.tenants.values().map(|tenant| tenant.lease.rows()).sum()
    }

    /// Storage of the payloads of `poll_transmit`.
    pub fn values(&self) -> &V {
        &self.values
    }

    /// The storage, to call `flushed`.
    pub fn values_mut(&mut self) -> &mut V {
        &mut self.values
    }

    /// Installed leases and their counters.
    pub fn leases(&self) -> impl Iterator<Item = (&ServerLease, &ServerCounters)> {
        self.tenants.values().map(|t| (&t.lease, &t.counters))
    }

    /// Hashes the state that determines all future behaviour: states with the same digest behave alike.
    pub fn digest(&self, state: &mut impl Hasher)
    where
        V: Hash,
        V::Buffer: Hash,
    {
        self.values.hash(state);
        for (key, tenant) in self.tenants.sorted() {
            (key, &tenant.ring, tenant.base, &tenant.finished, &tenant.table).hash(state);
            (tenant.highest, tenant.asked_to).hash(state);
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
        let neighbour = tenant.lease.neighbours.iter().find(|n| n.port == from);
        let neighbour = neighbour.ok_or(DropReason::NotANeighbour)?;
        if header.kind.is_down() {
            return Err(DropReason::WrongDirection);
        }
        tenant.lease.check_members(neighbour, header)?;
        tenant.last_seen = now;
        if header.kind == Kind::Fin {
            self.finish(key, header);
            return Ok(());
        }
        tenant.admit(header)?;
        let flags = Flags { ecn: header.flags.ecn || ce, ..header.flags };
        let header = &Header { flags, ..*header };
        match header.kind {
            Kind::Ready => self.take_ready(from, header),
            _ => self.contribute(from, header, payload),
        }
    }

    /// Handles a worker's notice that it takes part in fragments without elements.
    fn take_ready(&mut self, from: PortId, header: &Header) -> Result<(), DropReason> {
        let key = (header.job, header.tree);
        let is_named = |behind: &u32| header.others >> (behind - 1) & 1 == 1;
        // In the order of numbers, in which workers expect results.
        for behind in (1..=u32::BITS).rev().filter(is_named) {
            let tenant = self.tenants.get_mut(key.0, key.1).expect("it was found");
            let sequence = Sequence(header.sequence.0.wrapping_sub(behind));
            let other = Header { sequence, ..*header };
            if tenant.admit(&other).is_err() {
                continue;
            }
            let index = tenant.index(sequence);
            let entry = &mut tenant.ring[index];
            entry.begin(sequence, &mut self.values);
            if let Some(Merge::New { .. }) = entry.note_ready(&tenant.lease, &other, false) {
                self.release(key, index)?;
            }
        }
        let index = self.begin(key, header)?;
        let tenant = self.tenants.get_mut(key.0, key.1).expect("it was found");
        let entry = &mut tenant.ring[index];
        let noted = entry.note_ready(&tenant.lease, header, true).ok_or(DropReason::Members)?;
        self.conclude(from, header, index, noted)
    }

    fn contribute(
        &mut self,
        from: PortId,
        header: &Header,
        payload: &V::Payload,
    ) -> Result<(), DropReason> {
        let key = (header.job, header.tree);
        let index = self.begin(key, header)?;
        let tenant = self.tenants.get_mut(key.0, key.1).expect("it was found");
        let entry = &mut tenant.ring[index];
        let merged = if matches!(entry.phase, Phase::Done(_)) {
            Merge::Known
        } else if header.arithmetic == Arithmetic::Float {
            entry.add_float(&tenant.lease, header, payload, &mut self.values)?
        } else {
            entry.merge(&tenant.lease, header, payload, &mut self.values)?
        };
        self.conclude(from, header, index, merged)
    }

    /// The entry of a packet's fragment; tells all workers if the packet disagrees with those before it.
    fn begin(&mut self, key: (JobId, TreeId), header: &Header) -> Result<usize, DropReason> {
        let tenant = self.tenants.get_mut(key.0, key.1).expect("it was found");
        let index = tenant.index(header.sequence);
        let entry = &mut tenant.ring[index];
        entry.begin(header.sequence, &mut self.values);
        entry.shape(&tenant.lease, header);
        raise_to(&mut tenant.highest, header.sequence.0.wrapping_add(1));
        if entry.is_of(header) {
            return Ok(index);
        }
        tenant.counters.mismatches += 1;
        let rank = tenant.lease.only_rank(header);
        let next_slot = SlotIndex(rank.map_or(0, |rank| rank + 1));
        self.notify(key, Header { next_slot, ..down(header, Kind::Mismatch) });
        Err(DropReason::Mismatch)
    }

    /// Goes on after a packet was merged: releases the fragment if it is complete, answers a packet that came before.
    fn conclude(
        &mut self,
        from: PortId,
        header: &Header,
        index: usize,
        merged: Merge,
    ) -> Result<(), DropReason> {
        let key = (header.job, header.tree);
        let tenant = self.tenants.get_mut(key.0, key.1).expect("it was found");
        match merged {
            Merge::New { contributions } => {
                tenant.counters.packets += 1;
                tenant.counters.contributions += u64::from(contributions);
                // All workers wait for the lowest fragment, and this one has waited for long.
                let all_wait = header.flags.resend && header.sequence.0 == tenant.base;
                self.release(key, index)?;
                if all_wait {
                    self.ask(key, header.sequence);
                }
                Ok(())
            }
            Merge::Overlap => {
                tenant.counters.overlaps += 1;
                Err(DropReason::Overlap)
            }
            Merge::Known => {
                tenant.counters.duplicates += 1;
                if header.flags.resend {
                    // All contributions may have arrived while there was no memory for the sum.
                    self.release(key, index)?;
                    self.answer(key, index, from, header);
                }
                Err(DropReason::Duplicate)
            }
        }
    }

    /// If all workers have taken part, tells all of them, or requests floats.
    fn release(&mut self, key: (JobId, TreeId), index: usize) -> Result<(), DropReason> {
        let tenant = self.tenants.get_mut(key.0, key.1).expect("it was found");
        let entry = &mut tenant.ring[index];
        if matches!(entry.phase, Phase::Done(_)) || !entry.is_full(&tenant.lease) {
            return Ok(());
        }
        if matches!(entry.phase, Phase::Integers(_)) && entry.overflow {
            entry.ask_for_floats(&tenant.lease, &mut self.values);
            tenant.counters.float_requests += 1;
            let header = down(&tenant.ring[index].header, Kind::FloatRequest);
            self.notify(key, header);
            return Ok(());
        }
        entry.finish(&mut self.values)?;
        entry.next_slot = tenant.table.slot(entry.header.sequence);
        if entry.collided {
            entry.next_slot = tenant.table.rehash(entry.header.sequence);
            tenant.counters.rehashes += 1;
        }
        tenant.counters.results += 1;
        tenant.counters.marked += u64::from(entry.ecn);
        tenant.advance();
        let parties = tenant.ring[index].header.parties;
        let taker = match parties {
            Parties::ToOne(taker) => tenant.lease.place_of(taker.into()),
            _ => None,
        };
        let (header, payload) = tenant.completion(index, kind_for_all(parties));
        for &Neighbour { port: to, racks, workers } in &tenant.lease.neighbours {
            let Some((rack, worker)) = taker.filter(|&(r, w)| racks & r != 0 && workers & w != 0)
            else {
                self.outbox.push_back(Transmit { to, header, payload });
                continue;
            };
            let (result, sum) = tenant.completion(index, Kind::Result);
            let result = Header { racks: rack, workers: worker, ..result };
            self.outbox.push_back(Transmit { to, header: result, payload: sum });
            let size = tenant.lease.racks[rack.trailing_zeros() as usize].len();
            let (away, here) = (racks & !rack, workers & Header::all(size as u8) & !worker);
            let others = [(away, away, 0), (here, rack, here)];
            for (_, racks, workers) in others.into_iter().filter(|(anybody, ..)| *anybody != 0) {
                let header = Header { racks, workers, ..header };
                self.outbox.push_back(Transmit { to, header, payload });
            }
        }
        if distance(header.sequence.0, tenant.asked_to) < 0 {
            self.request_missing(key, Sequence(header.sequence.0.wrapping_add(1)));
        }
        Ok(())
    }

    /// Sends a result to one rank.
    fn send_to(&mut self, key: (JobId, TreeId), index: usize, rank: u32) {
        let tenant = self.tenants.get(key.0, key.1).expect("it was found");
        let Some((racks, workers)) = tenant.lease.place_of(rank) else { return };
        let (header, payload) = tenant.completion(index, Kind::Result);
        let header = Header { racks, workers, ..header };
        let leads_there = |n: &&Neighbour| n.racks & racks != 0 && n.workers & workers != 0;
        for neighbour in tenant.lease.neighbours.iter().filter(leads_there) {
            self.outbox.push_back(Transmit { to: neighbour.port, header, payload });
        }
    }

    /// Answers a retransmission of a counted contribution with the fragment's state.
    fn answer(&mut self, key: (JobId, TreeId), index: usize, to: PortId, asked: &Header) {
        let tenant = self.tenants.get_mut(key.0, key.1).expect("it was found");
        let parties = tenant.ring[index].header.parties;
        let (header, payload) = match &tenant.ring[index].phase {
            Phase::Done(_) => {
                tenant.counters.answered += 1;
                let completion = tenant.completion(index, kind_for_all(parties));
                if let Parties::ToOne(taker) = parties
                    && tenant.lease.includes(asked, taker.into())
                {
                    self.send_to(key, index, taker.into());
                }
                completion
            }
            Phase::Floats(_) if asked.arithmetic != Arithmetic::Float => {
                (down(asked, Kind::FloatRequest), None)
            }
            _ => {
                tenant.counters.waiting += 1;
                (down(asked, Kind::Waiting), None)
            }
        };
        let header = Header { workers: asked.workers, racks: asked.racks, ..header };
        self.outbox.push_back(Transmit { to, header, payload });
        if header.kind == Kind::Waiting {
            self.ask(key, asked.sequence);
        }
    }

    /// Requests what is missing of a fragment for which a worker waits, and of others that were begun.
    fn ask(&mut self, key: (JobId, TreeId), about: Sequence) {
        let tenant = self.tenants.get_mut(key.0, key.1).expect("it was found");
        raise_to(&mut tenant.asked_to, tenant.highest);
        self.request_missing(key, about);
    }

    /// Sends a notice to all workers.
    fn notify(&mut self, key: (JobId, TreeId), header: Header) {
        let tenant = self.tenants.get(key.0, key.1).expect("it was found");
        for neighbour in &tenant.lease.neighbours {
            self.outbox.push_back(Transmit { to: neighbour.port, header, payload: None });
        }
    }

    /// Handles workers' fin; after the last one all memory of the lease is freed.
    fn finish(&mut self, key: (JobId, TreeId), header: &Header) {
        let tenant = self.tenants.get_mut(key.0, key.1).expect("it was found");
        for rack in 0..tenant.finished.len() {
            if header.racks >> rack & 1 == 1 {
                let workers = tenant.lease.workers_of(rack, header);
                tenant.finished[rack] |= workers;
            }
        }
        let all = tenant.lease.racks.iter().map(|r| Header::all(r.len() as u8));
        if tenant.finished.iter().copied().eq(all) {
            tenant.clear(&mut self.values);
        }
    }
}

/// What all workers are sent when a fragment is done; a single taker gets the result besides.
fn kind_for_all(parties: Parties) -> Kind {
    match parties {
        Parties::All | Parties::FromOne(_) => Kind::Result,
        Parties::ToOne(_) | Parties::Nobody => Kind::Done,
    }
}
