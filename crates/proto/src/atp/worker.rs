//! The worker: sends fragments to the servers in turn, within each one's window, until every result has arrived.

use std::collections::VecDeque;
use std::hash::{Hash, Hasher};
use std::ops::Range;

use netsum_wire::atp::{Flags, Header, Kind};
use netsum_wire::fixed::{Exponent, Scale};
use netsum_wire::{
    Arithmetic, Dtype, Format, MAX_SCOPED_RANKS, Parties, ReduceOp, Sequence, SlotIndex, TreeId,
    Words,
};
use rustc_hash::FxHashSet;

use super::table::SlotTable;
use super::work::{Accepted, Content, Outgoing, Scaling, WorkerConfig, is_scaled, supports};
use crate::answers::Answers;
use crate::flow::{Sending, Signals, TreeFlow, TreeStats};
use crate::handover::{Finished, Progress, TreeProgress};
use crate::lanes::Lanes;
use crate::operations::{self, ActiveOperation, Fragments, Submission, elements_per_fragment};
use crate::worker::{Event, Settings, WorkerMachine};
use crate::{DropReason, Pattern, Time, epoch};

/// Kind of the fragments of an entry in the queue of operations.
#[derive(Clone, Debug)]
pub(super) enum Stage {
    /// Exponents of the fragments of the next entry.
    Exponents,
    /// Elements in words.
    Words(Words),
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
    pub(super) operations: Lanes<Stage>,
    /// By tree, what is to be said of fragments to which this rank contributes no elements.
    answers: Vec<Answers>,
    /// Fragments that the server requested in float, by number among those with sums.
    floats: FxHashSet<u64>,
    /// Fragments that are complete and whose result another rank takes.
    settled: VecDeque<Accepted>,
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

    fn supports(format: Format, ranks: u32) -> bool {
        supports(format, ranks)
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
            operations: Lanes::new(trees, config.copies, first),
            answers: vec![Answers::new(first, u32::BITS.into()); trees],
            floats: FxHashSet::default(),
            settled: VecDeque::new(),
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
            Kind::Done => self.take_done(now, ce, header).map(|()| None),
            Kind::Waiting => self.take_waiting(now, header).map(|()| None),
            Kind::Missing => self.take_missing(now, header).map(|()| None),
            Kind::FloatRequest => self.take_float_request(now, header).map(|()| None),
            Kind::Mismatch => self.take_mismatch(header).map(|()| None),
            Kind::Contribution | Kind::Fin | Kind::Ready => Err(DropReason::WrongDirection),
        };
        if let Err(reason) = outcome {
            let completes = matches!(header.kind, Kind::Result | Kind::Done);
            let twice = completes && reason == DropReason::Duplicate;
            let stats = &mut self.flow(header).stats;
            stats.dropped += 1;
            stats.spurious += u64::from(twice);
        }
        outcome
    }

    fn read(&mut self, accepted: &Accepted, payload: &[u8], out: &mut [u8]) {
        self.read_payload(accepted, payload, out);
    }

    fn poll_settled(&mut self) -> Option<Accepted> {
        self.settled.pop_front()
    }

    fn poll_transmit(&mut self, now: Time) -> Option<Outgoing> {
        while let Some(notice) = self.notices.pop_front() {
            // A forged result may have ended the operation of a contribution that waits here.
            if notice.payload.is_none() || self.in_flight(&notice.header).is_some() {
                return Some(notice);
            }
        }
        let ready = self.ready();
        for _ in 0..self.flows.len() {
            let tree = self.turn;
            self.turn = (self.turn + 1) % self.flows.len();
            if let Some(outgoing) = self.next_of(now, tree, ready) {
                return Some(outgoing);
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
        let of = |(tree, flow): (usize, &TreeFlow)| {
            let progress = flow.flight.progress();
            let untaken = self.untaken(tree, &progress);
            TreeProgress { untaken, ..progress }
        };
        Progress { trees: self.flows.iter().enumerate().map(of).collect() }
    }

    fn submitted(&self) -> u64 {
        self.operations.submitted()
    }

    fn place_of(&self, g: u64) -> Option<(u64, Range<u64>)> {
        let (tree, number) = self.operations.place(g);
        if self.flows[tree].flight.is_received(number) {
            return None;
        }
        let (operation, parties, elements) = self.operations.fragment(tree, number)?;
        let taken = self.takes(parties) && !matches!(operation.state, Stage::Exponents);
        taken.then_some((operation.submission.id, elements))
    }

    fn to_repeat(&self, finished: &Finished) -> Vec<Accepted> {
        let accepted = |(g, operation, elements): (u64, &ActiveOperation<Stage>, _)| Accepted {
            g,
            id: operation.submission.id,
            dtype: operation.submission.format.dtype,
            content: Content::Words(elements, Words::copied(operation.submission.format)),
        };
        self.operations.to_repeat(finished).map(accepted).collect()
    }

    fn remaining(self, finished: &Finished) -> Vec<Submission> {
        let rest = self.operations.remaining(finished);
        rest.filter(|(_, stage)| !matches!(stage, Stage::Exponents)).map(|(what, _)| what).collect()
    }
}

impl Worker {
    /// Like `submit`, with another conversion of reals to integers than the plan's.
    pub fn submit_scaled(&mut self, what: Submission, scaling: Scaling) {
        assert!(supports(what.format, self.config.ranks), "{:?} goes over the hosts", what.format);
        let (id, scoped) = (what.id, what.pattern != Pattern::Allreduce);
        assert!(!scoped || self.config.copies, "the plan is for allreduce alone");
        assert!(!scoped || self.config.ranks <= MAX_SCOPED_RANKS, "ranks have no bit of their own");
        let copies = what.pattern.copies() || what.pattern == Pattern::Barrier;
        assert!(!copies || what.format.dtype.size() == 4, "what is copied is counted in words");
        let per_fragment = elements_per_fragment(self.config.fragment_bytes, what.format.dtype);
        let stage = match scaling {
            _ if copies => Stage::Words(Words::copied(what.format)),
            _ if !is_scaled(what.format) => {
                let words = Words::of(what.format, self.config.ranks);
                Stage::Words(words.expect("a supported format"))
            }
            Scaling::Fixed(scale) => Stage::Fixed(scale),
            Scaling::Shared => {
                let count = what.count_of(per_fragment);
                let format = Format { dtype: Dtype::I32, op: ReduceOp::Max };
                let fragments = Fragments::All;
                let pattern = Pattern::Allreduce;
                let exponents =
                    Submission { format, numel: count, fragments, pattern, ..what.clone() };
                self.operations.first_mut().submit(exponents, per_fragment, Stage::Exponents);
                Stage::Shared { scales: vec![None; count as usize], known: 0 }
            }
        };
        let operations = self.operations.of_operation(&what);
        if !operations.submit(what, per_fragment, stage) {
            self.events.push_back(Event::Done { id, missing: 0 });
        }
    }

    /// Hashes the state that determines all future behaviour except for windows: states with the same digest behave
    /// alike.
    pub fn digest(&self, state: &mut impl Hasher) {
        self.flows.iter().for_each(|flow| flow.digest(state));
        let mut floats: Vec<_> = self.floats.iter().collect();
        floats.sort();
        (&self.tables, floats, self.ready(), &self.answers).hash(state);
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
        let (number, parties, content) = self.check(header, true)?;
        if !self.takes(parties) {
            return Err(DropReason::Members);
        }
        self.settle(now, ce, header, number, content)
    }

    /// Handles the notice that a fragment is complete, for ranks that do not take its result.
    fn take_done(&mut self, now: Time, ce: bool, header: &Header) -> Result<(), DropReason> {
        let (number, parties, content) = self.check(header, false)?;
        // The result is on its way to the rank that takes it; if it is lost, the fragment is sent again.
        if self.takes(parties) {
            return Ok(());
        }
        let accepted = self.settle(now, ce, header, number, content)?;
        self.settled.push_back(accepted);
        Ok(())
    }

    /// Records that a fragment is complete.
    fn settle(
        &mut self,
        now: Time,
        ce: bool,
        header: &Header,
        number: u64,
        content: Content,
    ) -> Result<Accepted, DropReason> {
        let (tree, per_lane) = (usize::from(header.tree.0), self.operations.per_lane());
        let (n, g) = (self.operations.n(tree, number), self.operations.g(tree, number));
        let operations = self.operations.of_tree_mut(tree);
        let operation = operations.find_mut(n).ok_or(DropReason::Unexpected)?;
        let (id, dtype) = (operation.submission.id, operation.submission.format.dtype);
        if operation.finish_one() && !matches!(operation.state, Stage::Exponents) {
            self.events.push_back(Event::Done { id, missing: 0 });
        }
        self.floats.remove(&n);
        self.answers[tree].forget(number);
        self.tables[tree].set_next(header.sequence, header.next_slot);
        let signals = Signals { marks: header.flags.ecn.into(), down: ce, cap: u16::MAX };
        self.flows[tree].acknowledge(now, number, signals, true);
        let flows = self.flows.chunks(per_lane).nth(tree / per_lane).unwrap_or_default();
        let base = flows.iter().map(|flow| flow.flight.base()).min().unwrap_or(0);
        let everywhere = base.saturating_sub(self.config.window_max.into());
        operations.forget_done(everywhere * per_lane as u64);
        Ok(Accepted { g, id, dtype, content })
    }

    fn take_waiting(&mut self, now: Time, header: &Header) -> Result<(), DropReason> {
        let number = self.number_of(header).ok_or(DropReason::Unexpected)?;
        self.flow(header).wait(now, number, 0)
    }

    /// Handles the server's request for contributions that have not arrived.
    fn take_missing(&mut self, now: Time, header: &Header) -> Result<(), DropReason> {
        let number = self.number_of(header).ok_or(DropReason::Unexpected)?;
        let named = (0..u32::BITS).filter(|i| header.others >> i & 1 == 1);
        let numbers = named.map(|i| number + 1 + u64::from(i));
        let flow = self.flow(header);
        let requests =
            [number].into_iter().chain(numbers).filter(|&n| flow.request(now, n)).count();
        if requests > 0 { Ok(()) } else { Err(DropReason::Duplicate) }
    }

    /// Handles the server's request to send a fragment again as floats.
    fn take_float_request(&mut self, now: Time, header: &Header) -> Result<(), DropReason> {
        let about = Header { arithmetic: Arithmetic::Saturating, ..*header };
        let (number, _, content) = self.check(&about, false)?;
        if !matches!(content, Content::Scaled(..)) {
            return Err(DropReason::Duplicate);
        }
        self.floats.insert(self.operations.n(usize::from(header.tree.0), number));
        let flow = self.flow(header);
        flow.flight.queue(number);
        flow.wait(now, number, 0)
    }

    fn take_mismatch(&mut self, header: &Header) -> Result<(), DropReason> {
        let number = self.number_of(header).ok_or(DropReason::Unexpected)?;
        let found = self.operations.fragment(usize::from(header.tree.0), number);
        let id = found.ok_or(DropReason::Unexpected)?.0.submission.id;
        let named = header.next_slot.0.checked_sub(1).filter(|&rank| rank < self.config.ranks);
        let event = Event::Mismatch { id, named };
        if !self.events.contains(&event) {
            self.events.push_back(event);
        }
        Ok(())
    }

    /// The fragment in flight that a packet refers to. `whole`: whether the packet has its elements.
    fn check(&self, header: &Header, whole: bool) -> Result<(u64, Parties, Content), DropReason> {
        let tree = usize::from(header.tree.0);
        let number = self.number_of(header).ok_or(DropReason::Duplicate)?;
        let flight = &self.flows[tree].flight;
        if flight.is_received(number) {
            return Err(DropReason::Duplicate);
        }
        if number >= flight.next() {
            return Err(DropReason::Unexpected);
        }
        let (operation, parties, _) =
            self.operations.fragment(tree, number).ok_or(DropReason::Unexpected)?;
        let fragment = operation.fragment(self.operations.n(tree, number)).0;
        let (arithmetic, content) = self.content(tree, number).ok_or(DropReason::Unexpected)?;
        // A result in float may arrive before the request for it.
        let content = match (content, header.arithmetic) {
            (Content::Scaled(elements, _), Arithmetic::Float) => Content::Floats(elements),
            (content, other) if other == arithmetic => content,
            _ => return Err(DropReason::Mismatch),
        };
        let same = header.chunk == operation.submission.chunk(fragment)
            && (!whole || u64::from(header.n_elems) == content.len());
        if same { Ok((number, parties, content)) } else { Err(DropReason::Mismatch) }
    }

    /// Content of a fragment's payload, once it can be sent.
    fn content(&self, tree: usize, number: u64) -> Option<(Arithmetic, Content)> {
        let (operation, _, elements) = self.operations.fragment(tree, number)?;
        let n = self.operations.n(tree, number);
        let scaled = |elements, scale| match self.floats.contains(&n) {
            true => (Arithmetic::Float, Content::Floats(elements)),
            false => (Arithmetic::Saturating, Content::Scaled(elements, scale)),
        };
        Some(match &operation.state {
            Stage::Exponents => {
                let first = operation.numbers().end;
                let numbers = first + elements.start..first + elements.end;
                (Arithmetic::Max, Content::Exponents(numbers))
            }
            Stage::Words(words) => (words.arithmetic(), Content::Words(elements, *words)),
            Stage::Fixed(scale) => scaled(elements, *scale),
            Stage::Shared { scales, .. } => {
                let exponent = scales[(n - operation.numbers().start) as usize]?;
                match Scale::shared(exponent, self.config.ranks) {
                    Some(scale) => scaled(elements, scale),
                    None => (Arithmetic::Float, Content::Floats(elements)),
                }
            }
        })
    }

    /// End of the fragments of sums that can be sent: those that do not wait for exponents.
    fn ready(&self) -> u64 {
        let blocked = |o: &operations::ActiveOperation<Stage>| match &o.state {
            Stage::Shared { scales, known } if *known < scales.len() => {
                Some(o.numbers().start + *known as u64)
            }
            _ => None,
        };
        let sums = self.operations.first();
        sums.outstanding().find_map(blocked).unwrap_or(sums.submitted())
    }

    /// The next packet of a tree. `ready`: the end of the fragments of sums that can be sent.
    fn next_of(&mut self, now: Time, tree: usize, ready: u64) -> Option<Outgoing> {
        let (lane, per_lane) = (self.operations.of_tree(tree), self.operations.per_lane());
        let end = if tree < per_lane { ready } else { lane.submitted() };
        let limit = operations::tree_end(end, tree % per_lane, per_lane);
        while let Some((number, sending)) = self.flows[tree].next(now, limit) {
            let (operation, parties, _) = self
                .operations
                .fragment(tree, number)
                .expect("a number in flight has an operation");
            let id = operation.submission.id;
            if sending == Sending::Again {
                return Some(self.outgoing(tree, number, true));
            }
            if parties.contributes(self.me()) {
                let outgoing = self.outgoing(tree, number, sending == Sending::Requested);
                // In the order of numbers: a result that overtakes others is taken for their loss.
                let Some((last, others)) = self.answers[tree].flush(0, true) else {
                    return Some(outgoing);
                };
                self.notices.push_back(outgoing);
                return Some(self.ready_for(tree, last, others));
            }
            if let Some((last, others)) = self.answers[tree].add(id, number) {
                return Some(self.ready_for(tree, last, others));
            }
        }
        let (in_flight, next) =
            (self.flows[tree].flight.in_flight(), self.flows[tree].flight.next());
        let (last, others) = self.answers[tree].flush(in_flight, next == limit)?;
        Some(self.ready_for(tree, last, others))
    }

    /// A notice that this rank takes part in a number, and in others before it, without elements.
    fn ready_for(&self, tree: usize, number: u64, others: u64) -> Outgoing {
        let mut outgoing = self.outgoing(tree, number, false);
        outgoing.header.others = others as u32;
        outgoing
    }

    /// The numbers of a tree, from a window below the results on, whose sums other ranks take.
    fn untaken(&self, tree: usize, progress: &TreeProgress) -> Vec<u64> {
        let from = progress.base.saturating_sub(self.config.window_max.into());
        let others = |&number: &u64| {
            let found = self.operations.fragment(tree, number);
            found.is_some_and(|(_, parties, _)| !self.takes(parties))
        };
        (from..self.flows[tree].flight.next()).filter(others).collect()
    }

    /// Whether this rank takes the result of fragments with these parties. Who sends a fragment to all others gets it
    /// back, as its acknowledgement.
    fn takes(&self, parties: Parties) -> bool {
        matches!(parties, Parties::FromOne(_)) || parties.takes(self.me())
    }

    /// This rank, as a bitmap of ranks.
    fn me(&self) -> u64 {
        1 << (self.config.rank.0 % MAX_SCOPED_RANKS)
    }

    /// `past_slots`: whether to send the fragment straight to the server, and to release what slots have of it.
    fn outgoing(&self, tree: usize, number: u64, past_slots: bool) -> Outgoing {
        let (operation, parties, _) =
            self.operations.fragment(tree, number).expect("a number in flight has an operation");
        let fragment = operation.fragment(self.operations.n(tree, number)).0;
        let (arithmetic, content) =
            self.content(tree, number).expect("only ready fragments are sent");
        let blank = self.blank(tree, number);
        let contributes = parties.contributes(self.me());
        let (kind, slot) = match contributes {
            true => (Kind::Contribution, blank.slot),
            false => (Kind::Ready, SlotIndex(0)),
        };
        let header = Header {
            kind,
            flags: Flags { resend: past_slots, ..Flags::default() },
            arithmetic,
            chunk: operation.submission.chunk(fragment),
            n_elems: content.len() as u16,
            slot,
            parties,
            ..blank
        };
        Outgoing { header, payload: contributes.then_some((operation.submission.id, content)) }
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
            others: 0,
            workers: 1 << place.worker,
            racks: 1 << place.rack,
            next_slot: SlotIndex(0),
            parties: Parties::All,
        }
    }

    fn flow(&mut self, header: &Header) -> &mut TreeFlow {
        &mut self.flows[usize::from(header.tree.0)]
    }

    /// The sequence number that a packet refers to; `None` if it is before the first.
    fn number_of(&self, header: &Header) -> Option<u64> {
        self.flows[usize::from(header.tree.0)].flight.expand(header.sequence.0)
    }

    /// The operation of the fragment in flight that a packet contains.
    pub(super) fn in_flight(&self, header: &Header) -> Option<&ActiveOperation<Stage>> {
        let number = self.number_of(header)?;
        Some(self.operations.fragment(header.tree.0.into(), number)?.0)
    }
}
