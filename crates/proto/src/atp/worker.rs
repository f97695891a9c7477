//! The worker: sends fragments to the servers in turn, within each one's window, until every result has arrived.

use std::collections::VecDeque;
use std::hash::{Hash, Hasher};
use std::ops::Range;

use netsum_wire::atp::{Flags, Header, Kind};
use netsum_wire::fixed::{Exponent, Scale};
use netsum_wire::{Arithmetic, Dtype, Format, ReduceOp, Sequence, SlotIndex, TreeId};
use rustc_hash::FxHashSet;

use super::table::SlotTable;
use super::work::{Accepted, Content, Outgoing, Scaling, WorkerConfig, supports};
use crate::flow::{Signals, TreeFlow, TreeStats};
use crate::handover::{Finished, Progress};
use crate::operations::{self, Fragments, Operations, Submission};
use crate::worker::{Event, Settings, WorkerMachine};
use crate::{DropReason, Time, epoch};

/// Kind of the fragments of an entry in the queue of operations.
#[derive(Clone, Debug)]
pub(super) enum Stage {
    /// Exponents of the fragments of the next entry.
    Exponents,
    /// Elements unchanged.
    Integers,
    /// Elements with one scale.
    Fixed(Scale),
    /// Elements with a scale for each fragment, once its exponent is known.
    Shared { scales: Vec<Option<Exponent>>, known: usize },
}

/// Protocol `atp`'s worker as a state machine, for one epoch. It holds no payload: the driver writes and reads elements
/// as `Outgoing` and `Accepted` specify.
#[derive(Clone)]
pub struct Worker {
    config: WorkerConfig,
    flows: Vec<TreeFlow>,
    tables: Vec<SlotTable>,
    pub(super) operations: Operations<Stage>,
    /// Fragments that the server requested in float.
    floats: FxHashSet<u64>,
    notices: VecDeque<Outgoing>,
    events: VecDeque<Event>,
    /// The server whose turn it is for the next packet.
    turn: usize,
}

impl WorkerMachine for Worker {
    type Config = WorkerConfig;
    type Header = Header;
    type Accepted = Accepted;
    type Outgoing = Outgoing;

    fn supports(format: Format) -> bool {
        supports(format)
    }

    fn settings(config: &WorkerConfig) -> Settings {
        let trees = config.places.len();
        let retained = usize::from(config.window_max) * trees;
        Settings { trees, retained, fragment_bytes: config.fragment_bytes }
    }

    fn starting_at(now: Time, config: WorkerConfig, first: u64) -> Self {
        assert!(!config.places.is_empty(), "a plan without servers has nothing for this machine");
        let flow =
            TreeFlow::new(now, config.congestion, config.window_max, config.window_max, first);
        let trees = config.places.len();
        let table =
            |tree| SlotTable::new(config.job, TreeId(tree as u8), config.window_max, config.slots);
        Worker {
            flows: vec![flow; trees],
            tables: (0..trees).map(table).collect(),
            operations: Operations::new(first * trees as u64),
            floats: FxHashSet::default(),
            notices: VecDeque::new(),
            events: VecDeque::new(),
            turn: 0,
            config,
        }
    }

    fn config(&self) -> &WorkerConfig {
        &self.config
    }

    fn submit(&mut self, submission: Submission) {
        let scaling = self.config.scaling;
        self.submit_scaled(submission, scaling);
    }

    fn handle(
        &mut self,
        now: Time,
        ce: bool,
        header: &Header,
    ) -> Result<Option<Accepted>, DropReason> {
        self.check_addressee(header)?;
        let outcome = match header.kind {
            Kind::Result => self.take_result(now, ce, header).map(Some),
            Kind::Waiting => self.take_waiting(now, header).map(|()| None),
            Kind::FloatRequest => self.take_float_request(now, header).map(|()| None),
            Kind::Mismatch => self.take_mismatch(header).map(|()| None),
            Kind::Contribution | Kind::Fin => Err(DropReason::WrongDirection),
        };
        if let Err(reason) = outcome {
            let twice = header.kind == Kind::Result && reason == DropReason::Duplicate;
            let stats = &mut self.flow(header).stats;
            stats.dropped += 1;
            stats.spurious += u64::from(twice);
        }
        outcome
    }

    fn read(&mut self, accepted: &Accepted, payload: &[u8], out: &mut [u8]) {
        self.read_payload(accepted, payload, out);
    }

    fn poll_transmit(&mut self, now: Time) -> Option<Outgoing> {
        if let Some(notice) = self.notices.pop_front() {
            return Some(notice);
        }
        let (trees, ready) = (self.flows.len(), self.ready());
        for _ in 0..trees {
            let tree = self.turn;
            self.turn = (self.turn + 1) % trees;
            let limit = operations::tree_end(ready, tree, trees);
            if let Some((number, resent)) = self.flows[tree].next(now, limit) {
                return Some(self.outgoing(tree, number, resent));
            }
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
        self.flows.iter().filter_map(TreeFlow::deadline).min()
    }

    fn handle_timeout(&mut self, now: Time) {
        for (i, flow) in self.flows.iter_mut().enumerate() {
            if let Some(for_ns) = flow.handle_timeout(now) {
                self.events.push_back(Event::Silent { tree: TreeId(i as u8), for_ns });
            }
        }
    }

    fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    fn finish(&mut self) {
        for tree in 0..self.flows.len() {
            let number = self.flows[tree].flight.next();
            let header = Header { kind: Kind::Fin, n_elems: 0, ..self.blank(tree, number) };
            self.notices.push_back(Outgoing { header, payload: None });
        }
    }

    fn outstanding(&self) -> impl Iterator<Item = &Submission> {
        let real = self.operations.outstanding().filter(|o| !matches!(o.state, Stage::Exponents));
        real.map(|o| &o.submission)
    }

    fn tree_stats(&self) -> impl Iterator<Item = TreeStats> {
        self.flows.iter().map(TreeFlow::stats)
    }

    fn progress(&self) -> Progress {
        Progress { trees: self.flows.iter().map(|l| l.flight.progress()).collect() }
    }

    fn submitted(&self) -> u64 {
        self.operations.submitted()
    }

    fn place_of(&self, g: u64) -> Option<(u64, Range<u64>)> {
        let trees = self.flows.len() as u64;
        if self.flows[(g % trees) as usize].flight.is_received(g / trees) {
            return None;
        }
        let operation = self.operations.find(g)?;
        let elements = operation.fragment(g).1;
        (!matches!(operation.state, Stage::Exponents))
            .then_some((operation.submission.id, elements))
    }

    fn remaining(self, finished: &Finished) -> Vec<Submission> {
        let rest = self.operations.remaining(finished);
        rest.filter(|(_, stage)| !matches!(stage, Stage::Exponents)).map(|(what, _)| what).collect()
    }
}

impl Worker {
    /// Like `submit`, with another conversion of reals to integers than the plan's.
    pub fn submit_scaled(&mut self, what: Submission, scaling: Scaling) {
        assert!(supports(what.format), "{:?} goes over the hosts", what.format);
        let id = what.id;
        let per_fragment = self.elements_per_fragment();
        let stage = match (what.format.dtype, scaling) {
            (Dtype::I32, _) => Stage::Integers,
            (_, Scaling::Fixed(scale)) => Stage::Fixed(scale),
            (_, Scaling::Shared) => {
                let count = what.count_of(per_fragment);
                let format = Format { dtype: Dtype::I32, op: ReduceOp::Max };
                let fragments = Fragments::All;
                let exponents = Submission { format, numel: count, fragments, ..what.clone() };
                self.operations.submit(exponents, per_fragment, Stage::Exponents);
                Stage::Shared { scales: vec![None; count as usize], known: 0 }
            }
        };
        if !self.operations.submit(what, per_fragment, stage) {
            self.events.push_back(Event::Done { id, missing: 0 });
        }
    }

    /// Hashes the state that determines all future behaviour except for windows: states with the same digest behave
    /// alike.
    pub fn digest(&self, state: &mut impl Hasher) {
        self.flows.iter().for_each(|flow| flow.digest(state));
        let mut floats: Vec<_> = self.floats.iter().collect();
        floats.sort();
        (&self.tables, floats, self.ready()).hash(state);
    }

    fn check_addressee(&self, header: &Header) -> Result<(), DropReason> {
        if header.job != self.config.job || usize::from(header.tree.0) >= self.flows.len() {
            return Err(DropReason::NoLease);
        }
        epoch::check(header.epoch, self.config.epoch)
    }

    fn take_result(
        &mut self,
        now: Time,
        ce: bool,
        header: &Header,
    ) -> Result<Accepted, DropReason> {
        let (g, content) = self.check(header, true)?;
        let operation = self.operations.find_mut(g).ok_or(DropReason::Unexpected)?;
        let (id, dtype) = (operation.submission.id, operation.submission.format.dtype);
        if operation.finish_one() && !matches!(operation.state, Stage::Exponents) {
            self.events.push_back(Event::Done { id, missing: 0 });
        }
        self.floats.remove(&g);
        self.tables[usize::from(header.tree.0)].set_next(header.sequence, header.next_slot);
        let signals = Signals { marks: header.flags.ecn.into(), down: ce, cap: u16::MAX };
        let number = self.number_of(header).ok_or(DropReason::Unexpected)?;
        self.flow(header).acknowledge(now, number, signals, true);
        self.operations.forget_done(0);
        Ok(Accepted { g, id, dtype, content })
    }

    fn take_waiting(&mut self, now: Time, header: &Header) -> Result<(), DropReason> {
        let number = self.number_of(header).ok_or(DropReason::Unexpected)?;
        self.flow(header).wait(now, number, 0)
    }

    /// Handles the server's request to send a fragment again as floats.
    fn take_float_request(&mut self, now: Time, header: &Header) -> Result<(), DropReason> {
        let about = Header { arithmetic: Arithmetic::Saturating, ..*header };
        let (g, content) = self.check(&about, false)?;
        if !matches!(content, Content::Scaled(..)) {
            return Err(DropReason::Duplicate);
        }
        self.floats.insert(g);
        let number = self.number_of(header).ok_or(DropReason::Unexpected)?;
        let flow = self.flow(header);
        flow.flight.queue(number);
        flow.wait(now, number, 0)
    }

    fn take_mismatch(&mut self, header: &Header) -> Result<(), DropReason> {
        let number = self.number_of(header).ok_or(DropReason::Unexpected)?;
        let g = self.g_of(usize::from(header.tree.0), number);
        let id = self.operations.find(g).ok_or(DropReason::Unexpected)?.submission.id;
        let named = header.next_slot.0.checked_sub(1).filter(|&rank| rank < self.config.ranks);
        let event = Event::Mismatch { id, named };
        if !self.events.contains(&event) {
            self.events.push_back(event);
        }
        Ok(())
    }

    /// The fragment in flight that a packet refers to. `whole`: whether the packet has its elements.
    fn check(&self, header: &Header, whole: bool) -> Result<(u64, Content), DropReason> {
        let tree = usize::from(header.tree.0);
        let number = self.number_of(header).ok_or(DropReason::Duplicate)?;
        let flight = &self.flows[tree].flight;
        if flight.is_received(number) {
            return Err(DropReason::Duplicate);
        }
        if number >= flight.next() {
            return Err(DropReason::Unexpected);
        }
        let g = self.g_of(tree, number);
        let operation = self.operations.find(g).ok_or(DropReason::Unexpected)?;
        let (fragment, elements) = operation.fragment(g);
        let (arithmetic, content) = self.content(g).ok_or(DropReason::Unexpected)?;
        // A result in float may arrive before the request for it.
        let content = match (content, header.arithmetic) {
            (Content::Scaled(elements, _), Arithmetic::Float) => Content::Floats(elements),
            (content, other) if other == arithmetic => content,
            _ => return Err(DropReason::Mismatch),
        };
        let same = header.chunk == operation.submission.chunk(fragment)
            && (!whole || u64::from(header.n_elems) == elements.end - elements.start);
        if same { Ok((g, content)) } else { Err(DropReason::Mismatch) }
    }

    /// Content of a fragment's payload, once it can be sent.
    fn content(&self, g: u64) -> Option<(Arithmetic, Content)> {
        let operation = self.operations.find(g)?;
        let (_, elements) = operation.fragment(g);
        let scaled = |elements, scale| match self.floats.contains(&g) {
            true => (Arithmetic::Float, Content::Floats(elements)),
            false => (Arithmetic::Saturating, Content::Scaled(elements, scale)),
        };
        Some(match &operation.state {
            Stage::Exponents => {
                let first = operation.numbers().end;
                let numbers = first + elements.start..first + elements.end;
                (Arithmetic::Max, Content::Exponents(numbers))
            }
            Stage::Integers => {
                let arithmetic = match operation.submission.format.op {
                    ReduceOp::Min => Arithmetic::Min,
                    ReduceOp::Max => Arithmetic::Max,
                    _ => Arithmetic::Wrapping,
                };
                (arithmetic, Content::Integers(elements))
            }
            Stage::Fixed(scale) => scaled(elements, *scale),
            Stage::Shared { scales, .. } => {
                let exponent = scales[(g - operation.numbers().start) as usize]?;
                match Scale::shared(exponent, self.config.ranks) {
                    Some(scale) => scaled(elements, scale),
                    None => (Arithmetic::Float, Content::Floats(elements)),
                }
            }
        })
    }

    /// End of the fragments that can be sent: those that do not wait for exponents.
    fn ready(&self) -> u64 {
        let blocked = |o: &operations::ActiveOperation<Stage>| match &o.state {
            Stage::Shared { scales, known } if *known < scales.len() => {
                Some(o.numbers().start + *known as u64)
            }
            _ => None,
        };
        self.operations.outstanding().find_map(blocked).unwrap_or(self.operations.submitted())
    }

    fn outgoing(&self, tree: usize, number: u64, resent: bool) -> Outgoing {
        let g = self.g_of(tree, number);
        let operation = self.operations.find(g).expect("a number in flight has an operation");
        let (fragment, elements) = operation.fragment(g);
        let (arithmetic, content) = self.content(g).expect("only ready fragments are sent");
        let header = Header {
            flags: Flags { resend: resent, ..Flags::default() },
            arithmetic,
            chunk: operation.submission.chunk(fragment),
            n_elems: (elements.end - elements.start) as u16,
            ..self.blank(tree, number)
        };
        Outgoing { header, payload: Some((operation.submission.id, content)) }
    }

    fn blank(&self, tree: usize, number: u64) -> Header {
        let place = &self.config.places[tree];
        Header {
            kind: Kind::Contribution,
            level: place.level,
            flags: Flags::default(),
            arithmetic: Arithmetic::Wrapping,
            tree: TreeId(tree as u8),
            job: self.config.job,
            sequence: Sequence(number as u32),
            chunk: 0,
            epoch: self.config.epoch,
            n_elems: 0,
            rack_fan_in: place.rack_fan_in,
            server_fan_in: place.server_fan_in,
            slot: self.tables[tree].slot(Sequence(number as u32)),
            workers: 1 << place.worker,
            racks: 1 << place.rack,
            next_slot: SlotIndex(0),
        }
    }

    fn flow(&mut self, header: &Header) -> &mut TreeFlow {
        &mut self.flows[usize::from(header.tree.0)]
    }

    /// The sequence number that a packet refers to; `None` if it is before the first.
    fn number_of(&self, header: &Header) -> Option<u64> {
        self.flows[usize::from(header.tree.0)].flight.expand(header.sequence.0)
    }

    /// Number in the epoch of the fragment in flight that a packet contains.
    pub(super) fn g_in_flight(&self, header: &Header) -> Option<u64> {
        let number = self.number_of(header)?;
        Some(self.g_of(header.tree.0.into(), number))
    }

    fn g_of(&self, tree: usize, number: u64) -> u64 {
        number * self.flows.len() as u64 + tree as u64
    }

    fn elements_per_fragment(&self) -> u64 {
        u64::from(self.config.fragment_bytes) / Arithmetic::ELEMENT_BYTES as u64
    }
}
