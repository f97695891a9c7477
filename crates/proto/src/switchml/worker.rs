//! The worker: a fragment per slot, the next one when its result is in.

use std::collections::VecDeque;
use std::ops::Range;

use netsum_wire::fixed::{Exponent, Fit, Scale, dequantise, quantise};
use netsum_wire::switchml::{Header, Kind};
use netsum_wire::{Arithmetic, Dtype, Epoch, JobId, ReduceOp};

use crate::operations::{Operation, Operations, Submission};
use crate::{Drop, Time};

/// What a worker must know of its job's plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerConfig {
    /// Job.
    pub job: JobId,
    /// Version of the plan.
    pub epoch: Epoch,
    /// Own number.
    pub worker: u8,
    /// Workers of the job.
    pub workers: u8,
    /// Slots of the pool.
    pub slots: u16,
    /// Largest payload, in steps of 4.
    pub fragment_bytes: u16,
    /// First time-out; SwitchML's is 10 ms.
    pub timeout_ns: u64,
}

/// Where a result belongs, and what it is.
#[derive(Clone, Debug, PartialEq)]
pub struct Accepted {
    /// Number of the packet in this epoch.
    pub g: u64,
    /// Operation.
    pub id: u64,
    /// Of the operation's buffer.
    pub dtype: Dtype,
    /// What is in the payload.
    pub content: Content,
}

/// What a payload holds.
#[derive(Clone, Debug, PartialEq)]
pub enum Content {
    /// Nothing: the packet is there for the exponent in its header.
    Nothing,
    /// These elements as they are.
    Integers(Range<u64>),
    /// These elements times the scale, as int32.
    Scaled(Range<u64>, Scale),
    /// These elements, of which some worker's are not finite: zeros travel, and all of the fragment
    /// comes back as NaN.
    NotFinite(Range<u64>),
}

/// A packet to be sent; `Worker::write` makes its payload.
#[derive(Clone, Debug, PartialEq)]
pub struct Outgoing {
    /// Header.
    pub header: Header,
    /// Operation, and what follows the header.
    pub payload: Option<(u64, Content)>,
    /// Elements whose exponent the header carries.
    pub next: Option<Range<u64>>,
}

/// What the caller must hear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Every fragment of the operation is summed.
    Done {
        /// Operation.
        id: u64,
    },
    /// The workers do not agree on what they reduce; the operation will not end.
    Mismatch {
        /// Operation.
        id: u64,
    },
    /// Something is in flight and no result has come for this long. Repeated.
    Silent {
        /// How long.
        for_ns: u64,
    },
}

/// Figures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Packets sent, first time.
    pub sent: u64,
    /// Packets sent again.
    pub resent: u64,
    /// Results accepted.
    pub results: u64,
}

/// An operation's packets: for reals, `leads` packets that carry the first exponents go before.
#[derive(Clone, Debug)]
struct Stage {
    leads: u64,
    /// By fragment, from the result of the packet before; empty for integers.
    exponents: Vec<Option<Exponent>>,
    what: Submission,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    /// Next round to send, or the one in flight.
    round: u32,
    in_flight: bool,
}

/// Protocol `switchml`'s worker as a state machine, for one epoch. It holds no payload.
pub struct Worker {
    config: WorkerConfig,
    slots: Vec<Slot>,
    operations: Operations<Stage>,
    /// Slots that have become free, and packets that are lost.
    ready: VecDeque<(u16, bool)>,
    /// In the order of time: all have the same time-out.
    deadlines: VecDeque<(Time, u16, u32)>,
    notices: VecDeque<Outgoing>,
    events: VecDeque<Event>,
    timeout_ns: u64,
    timeouts: u32,
    next_doubling: u32,
    heard: Time,
    stats: Stats,
}

/// Time-outs until the time-out doubles for the first time, and what is added for each next time.
const DOUBLING: u32 = 100;
/// No time-out is longer: a dead switch must be noticed.
const MAX_TIMEOUT_NS: u64 = 500_000_000;
/// No result for this long is reported.
const SILENT_NS: u64 = 1_500_000_000;
/// In place of an exponent: the packet carries none.
const NO_EXPONENT: i16 = i16::MIN;
/// In place of an exponent: some value is not finite.
const NOT_FINITE: i16 = i16::MAX;

impl Worker {
    /// A worker at the start of an epoch.
    pub fn new(now: Time, config: WorkerConfig) -> Self {
        Worker {
            slots: vec![Slot { round: 0, in_flight: false }; config.slots.into()],
            operations: Operations::new(),
            ready: (0..config.slots).map(|slot| (slot, false)).collect(),
            deadlines: VecDeque::new(),
            notices: VecDeque::new(),
            events: VecDeque::new(),
            timeout_ns: config.timeout_ns,
            timeouts: 0,
            next_doubling: DOUBLING,
            heard: now,
            stats: Stats::default(),
            config,
        }
    }

    /// Adds an operation. Every worker must submit the same ones in the same order. Panics for a format
    /// that the protocol does not support.
    pub fn submit(&mut self, what: Submission) {
        assert!(super::supports(what.format), "{:?} goes over the hosts", what.format);
        let id = what.id;
        let per_fragment = u64::from(self.config.fragment_bytes) / Arithmetic::ELEMENT_BYTES as u64;
        let fragments = what.count(per_fragment);
        let reals = what.format.dtype != Dtype::I32;
        let leads = if reals { fragments.min(self.config.slots.into()) } else { 0 };
        let exponents = vec![None; if reals { fragments as usize } else { 0 }];
        let stage = Stage { leads, exponents, what: what.clone() };
        if !self.operations.submit_with_leads(what, per_fragment, leads, stage) {
            self.events.push_back(Event::Done { id });
        }
    }

    /// Takes a packet of the switch; says where its payload belongs. Errors are reasons to drop it.
    pub fn handle(&mut self, now: Time, header: &Header) -> Result<Option<Accepted>, Drop> {
        if header.job != self.config.job || header.slot >= self.config.slots {
            return Err(Drop::NoLease);
        }
        match header.epoch.0.wrapping_sub(self.config.epoch.0) as i16 {
            0 => {}
            ..0 => return Err(Drop::StaleEpoch),
            _ => return Err(Drop::FutureEpoch),
        }
        match header.kind {
            Kind::Result => self.take_result(now, header).map(Some),
            Kind::Mismatch => {
                let operation = self.operations.find(self.g_of(header.slot, header.round));
                let id = operation.ok_or(Drop::Unexpected)?.submission.id;
                let event = Event::Mismatch { id };
                if !self.events.contains(&event) {
                    self.events.push_back(event);
                }
                Ok(None)
            }
            Kind::Contribution | Kind::Fin => Err(Drop::WrongDirection),
        }
    }

    /// The next packet to send: into a slot that is free, or what is lost again.
    pub fn poll_transmit(&mut self, now: Time) -> Option<Outgoing> {
        if let Some(notice) = self.notices.pop_front() {
            return Some(notice);
        }
        for _ in 0..self.ready.len() {
            let (slot, resent) = self.ready.pop_front()?;
            let state = self.slots[usize::from(slot)];
            if resent != state.in_flight {
                continue;
            }
            let g = self.g_of(slot, state.round);
            let Some(outgoing) = self.outgoing(g, slot, state.round, resent) else {
                // Not submitted, or its exponent has not come.
                self.ready.push_back((slot, false));
                continue;
            };
            if self.slots.iter().all(|s| !s.in_flight) {
                self.heard = now;
            }
            self.slots[usize::from(slot)].in_flight = true;
            self.deadlines.push_back((now.after(self.timeout_ns), slot, state.round));
            self.stats.sent += u64::from(!resent);
            self.stats.resent += u64::from(resent);
            return Some(outgoing);
        }
        None
    }

    /// When `handle_timeout` must be called.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.deadlines.front().map(|(at, ..)| *at)
    }

    /// Deadlines up to `now` have passed.
    pub fn handle_timeout(&mut self, now: Time) {
        while let Some(&(at, slot, round)) = self.deadlines.front() {
            let state = self.slots[usize::from(slot)];
            let lost = state.in_flight && state.round == round;
            if lost && at > now {
                break;
            }
            self.deadlines.pop_front();
            if lost {
                self.ready.push_back((slot, true));
                self.timeouts += 1;
                if self.timeouts >= self.next_doubling {
                    self.next_doubling += DOUBLING;
                    self.timeouts = 0;
                    self.timeout_ns = (self.timeout_ns * 2).min(MAX_TIMEOUT_NS);
                }
            }
        }
        let silent = now.since(self.heard);
        if silent >= SILENT_NS && self.slots.iter().any(|s| s.in_flight) {
            self.heard = now;
            self.events.push_back(Event::Silent { for_ns: silent });
        }
    }

    /// What the caller must hear.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Says to the switch that nothing more will come; to be sent once all operations are done.
    pub fn finish(&mut self) {
        let header = Header { kind: Kind::Fin, ..self.blank(0, self.slots[0].round) };
        self.notices.push_back(Outgoing { header, payload: None, next: None });
    }

    /// Figures.
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// Plan at work.
    pub fn config(&self) -> &WorkerConfig {
        &self.config
    }

    /// Writes the payload of a packet of `poll_transmit`, and the exponent into its header; `out` has the
    /// payload's length. `elements`: bytes of the operation's buffer that hold a range of its elements.
    pub fn write<'a>(
        &self,
        outgoing: &mut Outgoing,
        elements: impl Fn(Range<u64>) -> &'a [u8],
        out: &mut [u8],
    ) {
        let Some((_, content)) = &outgoing.payload else { return };
        let g = self.g_of(outgoing.header.slot, outgoing.header.round);
        let operation = self.operations.find(g).expect("a packet in flight has an operation");
        let dtype = operation.state.what.format.dtype;
        match content {
            Content::Nothing => {}
            Content::Integers(range) => out.copy_from_slice(elements(range.clone())),
            Content::NotFinite(_) => out.fill(0),
            Content::Scaled(range, scale) => {
                let ranks = self.config.workers.into();
                let fit = quantise(dtype, elements(range.clone()), *scale, ranks, out);
                debug_assert_eq!(fit, Fit::Fits, "the exponent is the greatest of all");
            }
        }
        if let Some(next) = &outgoing.next {
            let exponent = Exponent::of(dtype, elements(next.clone()));
            let travels = i16::try_from(exponent.to_wire()).unwrap_or(NOT_FINITE);
            outgoing.header.next_exponent = travels;
        }
    }

    /// Writes the payload of a result that `handle` accepted into `out`: bytes of the operation's buffer
    /// that hold the content's elements, if it has any.
    pub fn read(&self, accepted: &Accepted, payload: &[u8], out: &mut [u8]) {
        match &accepted.content {
            Content::Nothing => {}
            Content::Integers(_) => out.copy_from_slice(payload),
            Content::Scaled(_, scale) => dequantise(accepted.dtype, payload, *scale, out),
            Content::NotFinite(_) => {
                let nans: Vec<u8> =
                    (0..payload.len() / 4).flat_map(|_| f32::NAN.to_le_bytes()).collect();
                netsum_wire::fixed::narrow(accepted.dtype, &nans, out);
            }
        }
    }

    fn take_result(&mut self, now: Time, header: &Header) -> Result<Accepted, Drop> {
        let state = self.slots[usize::from(header.slot)];
        if !state.in_flight || state.round != header.round {
            return Err(Drop::Duplicate);
        }
        let g = self.g_of(header.slot, header.round);
        let expected =
            self.outgoing(g, header.slot, header.round, false).ok_or(Drop::Unexpected)?;
        let same = (expected.header.chunk, expected.header.n_elems, expected.header.arithmetic);
        if same != (header.chunk, header.n_elems, header.arithmetic) {
            return Err(Drop::Mismatch);
        }
        let (id, content) = expected.payload.expect("a contribution has a content");
        let operation = self.operations.find_mut(g).ok_or(Drop::Unexpected)?;
        let dtype = operation.state.what.format.dtype;
        let next = operation.fragment_after(g);
        if let Some(next) = next.filter(|_| header.next_exponent != NO_EXPONENT) {
            let exponent = Exponent::from_wire(header.next_exponent.into());
            operation.state.exponents[next as usize] = Some(exponent);
        }
        if operation.finish_one() {
            self.events.push_back(Event::Done { id });
        }
        self.operations.forget_done();
        self.heard = now;
        self.stats.results += 1;
        let slot = &mut self.slots[usize::from(header.slot)];
        *slot = Slot { round: slot.round + 1, in_flight: false };
        self.ready.push_back((header.slot, false));
        Ok(Accepted { g, id, dtype, content })
    }

    /// The packet with number `g`, if it can be sent.
    fn outgoing(&self, g: u64, slot: u16, round: u32, resent: bool) -> Option<Outgoing> {
        let operation = self.operations.find(g)?;
        let next = operation.fragment_after(g).map(|index| operation.fragment_at(index).1);
        let offset = g - operation.numbers().start;
        let stage = &operation.state;
        let id = operation.submission.id;
        let Some(index) = offset.checked_sub(stage.leads) else {
            let chunk = stage.what.fingerprint ^ offset as u32;
            let arithmetic = Arithmetic::Max;
            let header = Header { resent, chunk, arithmetic, ..self.blank(slot, round) };
            return Some(Outgoing { header, payload: Some((id, Content::Nothing)), next });
        };
        let (fragment, elements) = operation.fragment_at(index);
        let n_elems = (elements.end - elements.start) as u16;
        let (arithmetic, content) = match (stage.what.format.dtype, stage.what.format.op) {
            (Dtype::I32, ReduceOp::Min) => (Arithmetic::Min, Content::Integers(elements)),
            (Dtype::I32, ReduceOp::Max) => (Arithmetic::Max, Content::Integers(elements)),
            (Dtype::I32, _) => (Arithmetic::Wrapping, Content::Integers(elements)),
            _ => {
                let exponent = stage.exponents[index as usize]?;
                let content = match Scale::shared(exponent, self.config.workers.into()) {
                    Some(scale) => Content::Scaled(elements, scale),
                    None => Content::NotFinite(elements),
                };
                (Arithmetic::Saturating, content)
            }
        };
        let chunk = stage.what.chunk(fragment);
        let header = Header { resent, chunk, arithmetic, n_elems, ..self.blank(slot, round) };
        Some(Outgoing { header, payload: Some((id, content)), next })
    }

    fn blank(&self, slot: u16, round: u32) -> Header {
        Header {
            kind: Kind::Contribution,
            resent: false,
            arithmetic: Arithmetic::Wrapping,
            worker: self.config.worker,
            job: self.config.job,
            round,
            chunk: 0,
            epoch: self.config.epoch,
            slot,
            n_elems: 0,
            next_exponent: NO_EXPONENT,
            tag: 0,
        }
    }

    fn g_of(&self, slot: u16, round: u32) -> u64 {
        u64::from(round) * u64::from(self.config.slots) + u64::from(slot)
    }
}

impl Operation<Stage> {
    /// The fragment whose exponent travels with packet `g`: the leads carry the first ones, each fragment
    /// that of the one as many leads later.
    fn fragment_after(&self, g: u64) -> Option<u64> {
        let next = g - self.numbers().start;
        (next < self.state.exponents.len() as u64 && self.state.leads > 0).then_some(next)
    }

    /// Index in the buffer and elements of the operation's `index`th fragment.
    fn fragment_at(&self, index: u64) -> (u32, Range<u64>) {
        self.fragment(self.numbers().start + self.state.leads + index)
    }
}
