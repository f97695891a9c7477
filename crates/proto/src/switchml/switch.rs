//! The switch: two rounds of each slot of each pool.

use std::collections::VecDeque;

use netsum_wire::{Epoch, JobId, Parties, TreeId};

use super::lease::{Lease, LeaseError};
use super::{Header, Kind, NOBODY};
use crate::aggregator::Aggregator;
use crate::lateness::{Began, Lateness, Meter};
use crate::lease::{Granted, LeaseKey, LeaseTable, Tenancy};
use crate::sequence::distance;
use crate::values::{RowTransmit, Values};
use crate::{DropCounters, DropReason, PortId, Time, epoch};

/// A packet to be sent.
pub type Transmit<B> = RowTransmit<Header, B>;

/// Counters of one pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Fragments that were added, or copied.
    pub added: u64,
    /// Results, of all workers.
    pub completed: u64,
    /// Packets that had already arrived.
    pub duplicates: u64,
    /// Duplicates that were answered with the sum.
    pub answered: u64,
    /// Fragments on which workers disagreed.
    pub mismatches: u64,
}

impl std::ops::AddAssign for Counters {
    fn add_assign(&mut self, other: Counters) {
        self.added += other.added;
        self.completed += other.completed;
        self.duplicates += other.duplicates;
        self.answered += other.answered;
        self.mismatches += other.mismatches;
    }
}

/// One round of a slot.
#[derive(Clone, Copy, Debug)]
struct Round<B> {
    /// Header of its first packet; the exponent is the greatest so far.
    header: Header,
    /// Workers that have sent theirs, by number (the paper's `seen`).
    arrived: u32,
    began: Began,
    values: Option<B>,
}

/// One job's pool: `rounds[2 · slot + round mod 2]`.
struct Pool<B> {
    lease: Lease,
    /// The first round of every slot.
    first: u32,
    rounds: Vec<Option<Round<B>>>,
    finished: u32,
    last_seen: Time,
    meter: Meter,
    counters: Counters,
}

/// The switch as a state machine; `V` stores values. Driven like the others.
pub struct Switch<V: Values> {
    row_bytes: u16,
    rows: u32,
    pools: LeaseTable<Pool<V::Buffer>>,
    values: V,
    outbox: VecDeque<Transmit<V::Buffer>>,
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
        lease.validate(self.row_bytes)?;
        if !self.pools.admits(&lease)? {
            return Ok(());
        }
        let others = self.pools.others(lease.job, lease.tree);
        let free = self.rows - others.map(|p| p.lease.rows()).sum::<u32>();
        let needed = lease.rows();
        if needed > free {
            return Err(LeaseError::NoMemory { needed, free });
        }
        let rounds = (0..needed).map(|_| None).collect();
        let counters = Counters::default();
        let first = first as u32;
        let meter = Meter::new(lease.workers.len());
        let pool = Pool { rounds, first, finished: 0, last_seen: now, meter, counters, lease };
        if let Some(mut old) = self.pools.insert(pool) {
            old.clear(&mut self.values);
        }
        Ok(())
    }

    fn revoke(&mut self, job: JobId, up_to: Epoch) {
        for mut pool in self.pools.revoke(job, up_to) {
            pool.clear(&mut self.values);
        }
    }

    fn expire(&mut self, now: Time, idle_ns: u64) -> Vec<Lease> {
        let mut gone = self.pools.expire(now, idle_ns);
        gone.iter_mut().for_each(|pool| pool.clear(&mut self.values));
        gone.into_iter().map(|pool| pool.lease).collect()
    }

    #[inline]
    fn handle(
        &mut self,
        now: Time,
        from: PortId,
        _: bool,
        header: &Header,
        payload: &V::Payload,
    ) -> Result<(), DropReason> {
        let outcome = self.dispatch(now, from, header, payload);
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
        self.pools.values().map(|at_work| at_work.lease.key())
    }

    fn contributions(&self) -> impl Iterator<Item = (LeaseKey, u64)> {
        self.pools.values().map(|at_work| (at_work.lease.key(), at_work.counters.added))
    }

    fn ports(&self) -> Vec<PortId> {
        self.pools.values().flat_map(|pool| pool.lease.workers.iter().copied()).collect()
    }
}

impl<V: Values> Switch<V> {
    /// A switch without leases. `rows`: number of rows of all pools together, of `row_bytes` each; `values` has room
    /// for them and for as many rounds as begin between two calls of `flushed`.
    pub fn new(rows: u32, row_bytes: u16, values: V) -> Self {
        Switch {
            row_bytes,
            rows,
            pools: LeaseTable::new(),
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

    /// Rows that leases have reserved.
    pub fn reserved(&self) -> u32 {
        self.pools.values().map(|pool| pool.lease.rows()).sum()
    }

    /// Installed pools: lease, slots, counters.
    pub fn pools(&self) -> impl Iterator<Item = (LeaseKey, u16, &Counters)> {
        self.pools.values().map(|pool| (pool.lease.key(), pool.lease.slots, &pool.counters))
    }

    /// How late each worker of each lease is.
    pub fn lateness(&self, now: Time) -> impl Iterator<Item = (LeaseKey, PortId, Lateness)> {
        self.pools.values().flat_map(move |pool| {
            let workers = pool.lease.workers.iter().zip(pool.meter.read(now));
            workers.map(|(&port, lateness)| (pool.lease.key(), port, lateness))
        })
    }

    /// Installed leases and their counters.
    pub fn leases(&self) -> impl Iterator<Item = (&Lease, &Counters)> {
        self.pools.values().map(|p| (&p.lease, &p.counters))
    }

    /// The first round of every slot of a lease, for a data plane in front of this switch.
    pub fn first_round(&self, job: JobId, tree: TreeId) -> Option<u32> {
        self.pools.get(job, tree).map(|pool| pool.first)
    }

    /// Records that a data plane in front of this switch has received a packet of a lease's workers.
    pub fn note_seen(&mut self, job: JobId, tree: TreeId, at: Time) {
        if let Some(pool) = self.pools.get_mut(job, tree) {
            pool.last_seen = pool.last_seen.max(at);
        }
    }

    fn dispatch(
        &mut self,
        now: Time,
        from: PortId,
        header: &Header,
        payload: &V::Payload,
    ) -> Result<(), DropReason> {
        let pool = self.pools.get_mut(header.job, header.tree).ok_or(DropReason::NoLease)?;
        epoch::check(header.epoch, pool.lease.epoch)?;
        let worker = pool.lease.workers.iter().position(|&p| p == from);
        let worker = worker.ok_or(DropReason::NotANeighbour)?;
        if usize::from(header.worker) != worker || header.slot >= pool.lease.slots {
            return Err(DropReason::Members);
        }
        if header.payload_len() > usize::from(pool.lease.fragment_bytes) {
            return Err(DropReason::TooLarge);
        }
        pool.last_seen = now;
        match header.kind {
            Kind::Contribution | Kind::Ready => self.contribute(now, worker, header, payload),
            Kind::Fin => {
                pool.finished |= 1 << worker;
                if pool.finished.count_ones() as usize == pool.lease.workers.len() {
                    pool.clear(&mut self.values);
                }
                Ok(())
            }
            Kind::Result | Kind::Mismatch | Kind::Done => Err(DropReason::WrongDirection),
        }
    }

    fn contribute(
        &mut self,
        now: Time,
        worker: usize,
        header: &Header,
        payload: &V::Payload,
    ) -> Result<(), DropReason> {
        let pool = self.pools.get_mut(header.job, header.tree).expect("it was found");
        let contributes = header.parties.contributes(1 << worker);
        if contributes != (header.kind == Kind::Contribution) {
            return Err(DropReason::Members);
        }
        let index = pool.place(header)?;
        let round = &mut pool.rounds[index];
        let begun = round.as_ref().is_some_and(|r| r.header.round == header.round);
        if !begun {
            // Every worker has the result of the round before last, which used this memory.
            if let Some(values) = round.take().and_then(|old| old.values) {
                self.values.free(values);
            }
            let values = None;
            *round = Some(Round { header: *header, arrived: 0, began: Began::UNMEASURED, values });
        }
        let round = round.as_mut().expect("it has begun");
        if round.arrived >> worker & 1 == 1 {
            return Err(self.answer(index, worker, header));
        }
        if !round.agrees(header) {
            pool.counters.mismatches += 1;
            // The worker is the one whose packet differs from the first.
            let notice =
                Header { kind: Kind::Mismatch, n_elems: 0, parties: Parties::All, ..*header };
            self.notify(notice);
            return Err(DropReason::Mismatch);
        }
        if contributes && header.n_elems > 0 {
            match round.values {
                Some(values) => {
                    self.values.combine(values, header.arithmetic, payload);
                }
                None => {
                    let values = self.values.store(payload).ok_or(DropReason::NoMemory)?;
                    round.values = Some(values);
                }
            }
        }
        round.arrived |= 1 << worker;
        round.header.next_exponent = round.header.next_exponent.max(header.next_exponent);
        pool.counters.added += u64::from(contributes);
        let complete = round.arrived.count_ones() as usize == pool.lease.workers.len();
        match begun {
            true => pool.meter.arrive(now, worker, round.began, complete),
            false => round.began = pool.meter.begin(now, worker),
        }
        if complete {
            pool.counters.completed += 1;
            for (worker, &to) in pool.lease.workers.iter().enumerate() {
                let (header, payload) = round.answer(worker);
                self.outbox.push_back(Transmit { to, header, payload });
            }
        }
        Ok(())
    }

    /// Answers a contribution that was already counted: its worker may lack the result.
    fn answer(&mut self, index: usize, worker: usize, header: &Header) -> DropReason {
        let pool = self.pools.get_mut(header.job, header.tree).expect("it was found");
        pool.counters.duplicates += 1;
        let round = pool.rounds[index].as_ref().expect("it has begun");
        let complete = round.arrived.count_ones() as usize == pool.lease.workers.len();
        if complete && header.resent {
            pool.counters.answered += 1;
            let (header, payload) = round.answer(worker);
            let to = pool.lease.workers[worker];
            self.outbox.push_back(Transmit { to, header, payload });
        }
        DropReason::Duplicate
    }

    /// Sends a notice to all workers.
    fn notify(&mut self, notice: Header) {
        let pool = self.pools.get(notice.job, notice.tree).expect("it was found");
        for &to in &pool.lease.workers {
            self.outbox.push_back(Transmit { to, header: notice, payload: None });
        }
    }
}

impl<B> Tenancy for Pool<B> {
    type Lease = Lease;

    fn lease(&self) -> &Lease {
        &self.lease
    }

    fn last_seen(&self) -> Time {
        self.last_seen
    }
}

impl<B: Copy> Pool<B> {
    /// Frees all memory of the pool.
    fn clear<V: Values<Buffer = B>>(&mut self, values: &mut V) {
        let rounds = self.rounds.iter_mut().filter_map(Option::take);
        rounds.filter_map(|round| round.values).for_each(|row| values.free(row));
        self.meter.clear();
    }

    /// The round of a contribution: the current one, the previous one, or the one that may begin.
    fn place(&self, header: &Header) -> Result<usize, DropReason> {
        let first = 2 * usize::from(header.slot);
        let index = first + (header.round & 1) as usize;
        let of = |index: usize| self.rounds[index].as_ref();
        let here = of(index).map(|r| r.header.round);
        if here == Some(header.round) {
            return Ok(index);
        }
        if here.is_some_and(|here| distance(here, header.round) > 0) {
            return Err(DropReason::TooOld);
        }
        if header.round == self.first && here.is_none() && of(index ^ 1).is_none() {
            return Ok(index);
        }
        let before = header.round.wrapping_sub(1);
        let complete = |r: &Round<B>| r.arrived.count_ones() as usize == self.lease.workers.len();
        let follows = of(index ^ 1).is_some_and(|r| r.header.round == before && complete(r));
        if follows { Ok(index) } else { Err(DropReason::BeyondWindow) }
    }
}

impl<B: Copy> Round<B> {
    fn agrees(&self, header: &Header) -> bool {
        self.header.chunk == header.chunk
            && self.header.n_elems == header.n_elems
            && self.header.arithmetic == header.arithmetic
            && self.header.parties == header.parties
    }

    /// What a worker gets when all have sent theirs: the result, or, if others take it, that it is done.
    fn answer(&self, worker: usize) -> (Header, Option<B>) {
        let takes = self.header.parties.takes(1 << worker);
        let header = Header {
            kind: if takes { Kind::Result } else { Kind::Done },
            resent: false,
            worker: NOBODY,
            parties: Parties::All,
            ..self.header
        };
        (header, self.values.filter(|_| takes))
    }
}
