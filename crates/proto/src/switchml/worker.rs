//! The worker: one fragment per slot at a time, the next one when its result has arrived.

use std::collections::VecDeque;
use std::ops::Range;

use super::{Header, Kind};
use netsum_wire::fixed::{Exponent, Scale};
use netsum_wire::{Arithmetic, Format, TreeId, Words};

use super::work::{Accepted, Content, Outgoing, WorkerConfig};
use crate::flow::TreeStats;
use crate::handover::{Finished, Progress, TreeProgress};
use crate::operations::{ActiveOperation, Operations, Submission, elements_per_fragment};
use crate::worker::{Event, Settings, WorkerMachine};
use crate::{DropReason, Time, epoch, sequence};

/// An operation's packets: for reals, `leads` packets that carry the first exponents come first.
#[derive(Clone, Debug)]
pub(super) struct Stage {
    leads: u64,
    /// Exponents by fragment, from the result of the packet before; empty for words.
    exponents: Vec<Option<Exponent>>,
    /// How elements travel that need no exponent.
    words: Option<Words>,
    pub(super) what: Submission,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    /// Next round to send, or the one in flight; packets carry its low 32 bits.
    round: u64,
    in_flight: bool,
}

/// The worker as a state machine, for one epoch. It holds no payload.
pub struct Worker {
    config: WorkerConfig,
    slots: Vec<Slot>,
    pub(super) operations: Operations<Stage>,
    /// Slots that have become free, and slots whose packet was lost.
    ready: VecDeque<(u16, bool)>,
    /// Deadlines in order of time: all packets have the same time-out.
    deadlines: VecDeque<(Time, u16, u64)>,
    notices: VecDeque<Outgoing>,
    events: VecDeque<Event>,
    timeout_ns: u64,
    timeouts: u32,
    next_doubling: u32,
    last_seen: Time,
    stats: TreeStats,
}

/// Number of time-outs until the time-out doubles, and the increment of that number for each further doubling.
const DOUBLING: u32 = 100;
/// Maximum time-out: a switch that answers again must be noticed soon.
const MAX_TIMEOUT_NS: u64 = 250_000_000;
/// Time without a result after which the switch is reported as silent.
const SILENT_NS: u64 = 1_500_000_000;
/// Replaces an exponent if the packet carries none.
const NO_EXPONENT: i16 = i16::MIN;

impl WorkerMachine for Worker {
    type Config = WorkerConfig;
    type Header = Header;
    type Accepted = Accepted;
    type Outgoing = Outgoing;

    fn supports(format: Format, ranks: u32) -> bool {
        super::supports(format, ranks)
    }

    fn settings(config: &WorkerConfig) -> Settings {
        // A worker that contributes to a slot's next round has the result of this one.
        let retained = config.slots.into();
        Settings { trees: 1, retained, fragment_bytes: config.fragment_bytes }
    }

    fn starting_at(now: Time, config: WorkerConfig, first: u64) -> Self {
        Worker {
            slots: vec![Slot { round: first, in_flight: false }; config.slots.into()],
            operations: Operations::new(first * u64::from(config.slots)),
            ready: (0..config.slots).map(|slot| (slot, false)).collect(),
            deadlines: VecDeque::new(),
            notices: VecDeque::new(),
            events: VecDeque::new(),
            timeout_ns: config.timeout_ns,
            timeouts: 0,
            next_doubling: DOUBLING,
            last_seen: now,
            stats: TreeStats::default(),
            config,
        }
    }

    fn config(&self) -> &WorkerConfig {
        &self.config
    }

    fn submit(&mut self, what: Submission) {
        let (format, ranks) = (what.format, self.config.workers.into());
        assert!(super::supports(format, ranks), "{:?} goes over the hosts", what.format);
        let id = what.id;
        let per_fragment = elements_per_fragment(self.config.fragment_bytes, format.dtype);
        let fragments = what.count_of(per_fragment);
        let words = Words::of(format, ranks);
        let reals = words.is_none();
        let leads = if reals { fragments.min(self.config.slots.into()) } else { 0 };
        let exponents = vec![None; if reals { fragments as usize } else { 0 }];
        let stage = Stage { leads, exponents, words, what: what.clone() };
        if !self.operations.submit_with_leads(what, per_fragment, leads, stage) {
            self.events.push_back(Event::Done { id, missing: 0 });
        }
    }

    fn handle(
        &mut self,
        now: Time,
        _: bool,
        header: &Header,
    ) -> Result<Option<Accepted>, DropReason> {
        if header.job != self.config.job || header.slot >= self.config.slots {
            return Err(DropReason::NoLease);
        }
        epoch::check(header.epoch, self.config.epoch)?;
        match header.kind {
            Kind::Result => self.take_result(now, header).map(Some),
            Kind::Mismatch => {
                let g = self.g_in_flight(header).ok_or(DropReason::Unexpected)?;
                let operation = self.operations.find(g);
                let id = operation.ok_or(DropReason::Unexpected)?.submission.id;
                let named = (header.worker < self.config.workers).then_some(header.worker.into());
                let event = Event::Mismatch { id, named };
                if !self.events.contains(&event) {
                    self.events.push_back(event);
                }
                Ok(None)
            }
            Kind::Contribution | Kind::Fin => Err(DropReason::WrongDirection),
        }
    }

    fn read(&mut self, accepted: &Accepted, payload: &[u8], out: &mut [u8]) {
        self.read_payload(accepted, payload, out);
    }

    fn poll_transmit(&mut self, now: Time) -> Option<Outgoing> {
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
                // Not submitted, or its exponent has not arrived.
                self.ready.push_back((slot, false));
                continue;
            };
            if self.slots.iter().all(|s| !s.in_flight) {
                self.last_seen = now;
            }
            self.slots[usize::from(slot)].in_flight = true;
            self.deadlines.push_back((now.after(self.timeout_ns), slot, state.round));
            self.stats.sent += u64::from(!resent);
            self.stats.resent += u64::from(resent);
            return Some(outgoing);
        }
        None
    }

    fn write<'a>(
        &self,
        outgoing: &mut Outgoing,
        elements: impl Fn(Range<u64>) -> &'a [u8],
        out: &mut [u8],
    ) {
        self.write_payload(outgoing, elements, out);
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.deadlines.front().map(|(at, ..)| *at)
    }

    fn handle_timeout(&mut self, now: Time) {
        while let Some(&(at, slot, round)) = self.deadlines.front() {
            let state = self.slots[usize::from(slot)];
            let lost = state.in_flight && state.round == round;
            if lost && at > now {
                break;
            }
            self.deadlines.pop_front();
            if lost {
                self.ready.push_back((slot, true));
                self.stats.timeouts += 1;
                self.timeouts += 1;
                if self.timeouts >= self.next_doubling {
                    self.next_doubling += DOUBLING;
                    self.timeouts = 0;
                    self.timeout_ns = (self.timeout_ns * 2).min(MAX_TIMEOUT_NS);
                }
            }
        }
        let silent = now.since(self.last_seen);
        if silent >= SILENT_NS && self.slots.iter().any(|s| s.in_flight) {
            self.last_seen = now;
            self.events.push_back(Event::Silent { tree: TreeId(0), for_ns: silent });
        }
    }

    fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    fn finish(&mut self) {
        let header = Header { kind: Kind::Fin, ..self.blank(0, self.slots[0].round) };
        self.notices.push_back(Outgoing { header, payload: None, next: None });
    }

    fn outstanding(&self) -> impl Iterator<Item = &Submission> {
        self.operations.outstanding().map(|o| &o.submission)
    }

    fn tree_stats(&self) -> impl Iterator<Item = TreeStats> {
        std::iter::once(self.stats())
    }

    fn progress(&self) -> Progress {
        let slots = self.slots.len() as u64;
        let has = |g: u64| self.slots[(g % slots) as usize].round > g / slots;
        let rounds = self.slots.iter().map(|slot| slot.round);
        let (low, high) = rounds.fold((u64::MAX, 0), |(l, h), r| (l.min(r), h.max(r)));
        let base = (low * slots..).find(|&g| !has(g)).unwrap_or(0);
        let above = (base..high * slots).map(has).collect();
        Progress { trees: vec![TreeProgress { base, above, untaken: Vec::new() }] }
    }

    fn submitted(&self) -> u64 {
        self.operations.submitted()
    }

    fn place_of(&self, g: u64) -> Option<(u64, Range<u64>)> {
        let slots = self.slots.len() as u64;
        if self.slots[(g % slots) as usize].round > g / slots {
            return None;
        }
        let operation = self.operations.find(g)?;
        let index = (g - operation.numbers().start).checked_sub(operation.state.leads)?;
        Some((operation.submission.id, operation.fragment_at(index).1))
    }

    fn remaining(self, finished: &Finished) -> Vec<Submission> {
        self.operations.remaining(finished).map(|(what, _)| what).collect()
    }
}

impl Worker {
    /// Statistics; the window is the pool.
    pub fn stats(&self) -> TreeStats {
        TreeStats {
            window: self.config.slots.into(),
            window_cap: self.config.slots,
            in_flight: self.slots.iter().filter(|slot| slot.in_flight).count() as u32,
            ..self.stats
        }
    }

    fn take_result(&mut self, now: Time, header: &Header) -> Result<Accepted, DropReason> {
        let state = self.slots[usize::from(header.slot)];
        if !state.in_flight || state.round as u32 != header.round {
            self.stats.spurious += 1;
            return Err(DropReason::Duplicate);
        }
        let g = self.g_of(header.slot, state.round);
        let expected =
            self.outgoing(g, header.slot, state.round, false).ok_or(DropReason::Unexpected)?;
        let same = (expected.header.chunk, expected.header.n_elems, expected.header.arithmetic);
        if same != (header.chunk, header.n_elems, header.arithmetic) {
            return Err(DropReason::Mismatch);
        }
        let (id, content) = expected.payload.expect("a contribution has a content");
        let operation = self.operations.find_mut(g).ok_or(DropReason::Unexpected)?;
        let dtype = operation.state.what.format.dtype;
        let next = operation.fragment_after(g);
        if let Some(next) = next.filter(|_| header.next_exponent != NO_EXPONENT) {
            let exponent = Exponent::from_wire(header.next_exponent.into());
            operation.state.exponents[next as usize] = Some(exponent);
        }
        if operation.finish_one() {
            self.events.push_back(Event::Done { id, missing: 0 });
        }
        self.operations.forget_done(0);
        self.last_seen = now;
        self.stats.results += 1;
        let slot = &mut self.slots[usize::from(header.slot)];
        *slot = Slot { round: slot.round + 1, in_flight: false };
        self.ready.push_back((header.slot, false));
        Ok(Accepted { g, id, dtype, content })
    }

    /// The packet with number `g`, if it can be sent.
    fn outgoing(&self, g: u64, slot: u16, round: u64, resent: bool) -> Option<Outgoing> {
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
        let count = elements.end - elements.start;
        let n_elems = stage.words.map_or(count, |words| words.count(count)) as u16;
        let (arithmetic, content) = match stage.words {
            Some(words) => (words.arithmetic(), Content::Words(elements, words)),
            None => {
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

    fn blank(&self, slot: u16, round: u64) -> Header {
        Header {
            kind: Kind::Contribution,
            resent: false,
            arithmetic: Arithmetic::Wrapping,
            worker: self.config.worker,
            job: self.config.job,
            round: round as u32,
            chunk: 0,
            epoch: self.config.epoch,
            slot,
            n_elems: 0,
            next_exponent: NO_EXPONENT,
        }
    }

    /// Number in the epoch of the packet that a header refers to; `None` if it is before the first.
    pub(super) fn g_in_flight(&self, header: &Header) -> Option<u64> {
        let near = self.slots[usize::from(header.slot)].round;
        let round = sequence::expand(header.round, near)?;
        Some(self.g_of(header.slot, round))
    }

    fn g_of(&self, slot: u16, round: u64) -> u64 {
        round * u64::from(self.config.slots) + u64::from(slot)
    }
}

impl ActiveOperation<Stage> {
    /// The fragment whose exponent travels with packet `g`: the leads carry the first exponents, each fragment that of
    /// the fragment `leads` later.
    fn fragment_after(&self, g: u64) -> Option<u64> {
        let next = g - self.numbers().start;
        (next < self.state.exponents.len() as u64 && self.state.leads > 0).then_some(next)
    }

    /// Index in the buffer and elements of the operation's `index`th fragment.
    fn fragment_at(&self, index: u64) -> (u32, Range<u64>) {
        self.fragment(self.numbers().start + self.state.leads + index)
    }
}
