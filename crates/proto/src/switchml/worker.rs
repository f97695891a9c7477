//! The worker: one fragment per slot at a time, the next one when its result has arrived.

use std::collections::VecDeque;
use std::ops::Range;

use super::{Header, Kind};
use netsum_wire::fixed::{Exponent, Scale};
use netsum_wire::{Arithmetic, Format, Parties, TreeId, Words};

use super::pool::{Pool, Sending};
use super::work::{Accepted, Content, Outgoing, WorkerConfig};
use crate::flow::TreeStats;
use crate::handover::{Finished, Progress, TreeProgress};
use crate::lanes::Lanes;
use crate::operations::{ActiveOperation, Submission, elements_per_fragment};
use crate::worker::{Event, Settings, WorkerMachine};
use crate::{DropReason, Pattern, Time, epoch};

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

/// The worker as a state machine, for one epoch. It holds no payload.
pub struct Worker {
    config: WorkerConfig,
    /// The pool for sums, and the one for copies if there is one.
    pools: Vec<Pool>,
    pub(super) operations: Lanes<Stage>,
    /// Fragments that are complete and whose result other ranks take.
    settled: VecDeque<Accepted>,
    notices: VecDeque<Outgoing>,
    events: VecDeque<Event>,
    /// The pool whose turn it is for the next packet.
    turn: usize,
}

/// What a number of a pool is.
struct Numbered<'a> {
    operation: &'a ActiveOperation<Stage>,
    /// Position among the numbers of the operation.
    offset: u64,
    parties: Parties,
    /// Index in the buffer and elements; `None` for a lead.
    place: Option<(u32, Range<u64>)>,
}

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
        let trees = pools(config);
        // A worker that contributes to a slot's next round has the result of this one.
        let retained = usize::from(config.slots) * trees;
        Settings { trees, retained, fragment_bytes: config.fragment_bytes }
    }

    fn starting_at(now: Time, config: WorkerConfig, first: u64) -> Self {
        let WorkerConfig { slots, timeout_ns, copies, .. } = config;
        let trees = pools(&config);
        let pool = || Pool::new(now, slots, first, timeout_ns);
        Worker {
            pools: std::iter::repeat_with(pool).take(trees).collect(),
            operations: Lanes::new(trees, copies, first * u64::from(slots)),
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

    fn submit(&mut self, what: Submission) {
        let (format, ranks) = (what.format, self.config.workers.into());
        assert!(super::supports(format, ranks), "{:?} goes over the hosts", what.format);
        let scoped = what.pattern != Pattern::Allreduce;
        assert!(!scoped || self.config.copies, "the plan is for allreduce alone");
        let copies = what.pattern.copies() || what.pattern == Pattern::Barrier;
        assert!(!copies || format.dtype.size() == 4, "what is copied is counted in words");
        let id = what.id;
        let per_fragment = elements_per_fragment(self.config.fragment_bytes, format.dtype);
        let fragments = what.count_of(per_fragment);
        let words = if copies { Some(Words::copied(format)) } else { Words::of(format, ranks) };
        let reals = words.is_none();
        let leads = if reals { fragments.min(self.config.slots.into()) } else { 0 };
        let exponents = vec![None; if reals { fragments as usize } else { 0 }];
        let stage = Stage { leads, exponents, words, what: what.clone() };
        let operations = self.operations.of_operation(&what);
        if !operations.submit_with_leads(what, per_fragment, leads, stage) {
            self.events.push_back(Event::Done { id, missing: 0 });
        }
    }

    fn handle(
        &mut self,
        now: Time,
        _: bool,
        header: &Header,
    ) -> Result<Option<Accepted>, DropReason> {
        let known = usize::from(header.tree.0) < self.pools.len();
        if header.job != self.config.job || !known || header.slot >= self.config.slots {
            return Err(DropReason::NoLease);
        }
        epoch::check(header.epoch, self.config.epoch)?;
        match header.kind {
            Kind::Result => self.take(now, header).map(Some),
            Kind::Done => {
                let accepted = self.take(now, header)?;
                self.settled.push_back(accepted);
                Ok(None)
            }
            Kind::Mismatch => {
                let number = self.pool(header).near(header).ok_or(DropReason::Unexpected)?;
                let found = self.find(header.tree.0.into(), number);
                let id = found.ok_or(DropReason::Unexpected)?.operation.submission.id;
                let named = (header.worker < self.config.workers).then_some(header.worker.into());
                let event = Event::Mismatch { id, named };
                if !self.events.contains(&event) {
                    self.events.push_back(event);
                }
                Ok(None)
            }
            Kind::Contribution | Kind::Fin | Kind::Ready => Err(DropReason::WrongDirection),
        }
    }

    fn read(&mut self, accepted: &Accepted, payload: &[u8], out: &mut [u8]) {
        self.read_payload(accepted, payload, out);
    }

    fn poll_settled(&mut self) -> Option<Accepted> {
        self.settled.pop_front()
    }

    fn poll_transmit(&mut self, now: Time) -> Option<Outgoing> {
        if let Some(notice) = self.notices.pop_front() {
            return Some(notice);
        }
        for _ in 0..self.pools.len() {
            let tree = self.turn;
            self.turn = (self.turn + 1) % self.pools.len();
            let operations = &self.operations;
            let ready =
                |number| find(operations, tree, number).is_some_and(|found| found.is_ready());
            if let Some(Sending { number, resent }) = self.pools[tree].next(now, ready) {
                return self.outgoing(tree, number, resent);
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
        self.pools.iter().filter_map(Pool::deadline).min()
    }

    fn handle_timeout(&mut self, now: Time) {
        for (tree, pool) in (0..).zip(&mut self.pools) {
            if let Some(for_ns) = pool.handle_timeout(now) {
                self.events.push_back(Event::Silent { tree: TreeId(tree), for_ns });
            }
        }
    }

    fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    fn finish(&mut self) {
        for tree in 0..self.pools.len() {
            let round = self.pools[tree].first_round();
            let header = Header { kind: Kind::Fin, ..self.blank(tree, 0, round) };
            self.notices.push_back(Outgoing { header, payload: None, next: None });
        }
    }

    fn outstanding(&self) -> impl Iterator<Item = &Submission> {
        self.operations.outstanding().map(|o| &o.submission)
    }

    fn tree_stats(&self) -> impl Iterator<Item = TreeStats> {
        self.pools.iter().map(Pool::stats)
    }

    fn progress(&self) -> Progress {
        let of = |(tree, pool): (usize, &Pool)| {
            let untaken = |&number: &u64| {
                self.find(tree, number).is_some_and(|found| !self.has_after(found.parties))
            };
            let untaken = pool.recent().into_iter().filter(untaken).collect();
            TreeProgress { untaken, ..pool.progress() }
        };
        Progress { trees: self.pools.iter().enumerate().map(of).collect() }
    }

    fn submitted(&self) -> u64 {
        self.operations.submitted()
    }

    fn place_of(&self, g: u64) -> Option<(u64, Range<u64>)> {
        let (tree, number) = self.operations.place(g);
        if self.pools[tree].has(number) {
            return None;
        }
        let Numbered { operation, parties, place, .. } = self.find(tree, number)?;
        let (_, elements) = place.filter(|_| self.has_after(parties))?;
        Some((operation.submission.id, elements))
    }

    fn to_repeat(&self, finished: &Finished) -> Vec<Accepted> {
        let accepted = |(g, operation, elements): (u64, &ActiveOperation<Stage>, _)| {
            let format = operation.submission.format;
            let content = Content::Words(elements, Words::copied(format));
            Accepted { g, id: operation.submission.id, dtype: format.dtype, content }
        };
        self.operations.to_repeat(finished).map(accepted).collect()
    }

    fn remaining(self, finished: &Finished) -> Vec<Submission> {
        self.operations.remaining(finished).map(|(what, _)| what).collect()
    }
}

impl Worker {
    /// Statistics of the pool for sums; the window is the pool.
    pub fn stats(&self) -> TreeStats {
        self.pools[0].stats()
    }

    /// Handles the answer to the packet in flight in a slot.
    fn take(&mut self, now: Time, header: &Header) -> Result<Accepted, DropReason> {
        let tree = usize::from(header.tree.0);
        let Some(number) = self.pools[tree].in_flight(header) else {
            self.pools[tree].stats.spurious += 1;
            return Err(DropReason::Duplicate);
        };
        let found = self.find(tree, number).ok_or(DropReason::Unexpected)?;
        let takes = found.parties.takes(self.me());
        let (arithmetic, n_elems, content) = found.content(self.config.workers);
        let same = (found.chunk(), n_elems, arithmetic);
        if same != (header.chunk, header.n_elems, header.arithmetic) {
            return Err(DropReason::Mismatch);
        }
        if takes != (header.kind == Kind::Result) {
            return Err(DropReason::Members);
        }
        let g = self.operations.g(tree, number);
        let operation = self.operations.of_tree_mut(tree).find_mut(number);
        let operation = operation.ok_or(DropReason::Unexpected)?;
        let (id, dtype) = (operation.submission.id, operation.submission.format.dtype);
        let next = operation.fragment_after(number);
        if let Some(next) = next.filter(|_| header.next_exponent != NO_EXPONENT) {
            let exponent = Exponent::from_wire(header.next_exponent.into());
            operation.state.exponents[next as usize] = Some(exponent);
        }
        let is_done = operation.finish_one();
        self.pools[tree].complete(now, header.slot);
        if is_done {
            self.events.push_back(Event::Done { id, missing: 0 });
            // A worker sends a round when it has the result of the one before.
            let lowest = self.pools[tree].lowest_round();
            let everywhere = lowest.saturating_sub(self.config.slots.into());
            self.operations.of_tree_mut(tree).forget_done(everywhere);
        }
        Ok(Accepted { g, id, dtype, content })
    }

    fn find(&self, tree: usize, number: u64) -> Option<Numbered<'_>> {
        find(&self.operations, tree, number)
    }

    /// Whether this worker has the elements of a complete fragment with these parties: who sends a fragment to all
    /// others has them, too.
    fn has_after(&self, parties: Parties) -> bool {
        matches!(parties, Parties::FromOne(_)) || parties.takes(self.me())
    }

    /// This worker, as a bitmap of ranks.
    fn me(&self) -> u64 {
        1 << self.config.worker
    }

    /// The packet with this number, if it is submitted.
    fn outgoing(&self, tree: usize, number: u64, resent: bool) -> Option<Outgoing> {
        let found = self.find(tree, number)?;
        let operation = found.operation;
        let next = operation.fragment_after(number).map(|index| operation.elements_at(index));
        let (arithmetic, n_elems, content) = found.content(self.config.workers);
        let (slot, round) = self.pools[tree].place(number);
        let contributes = found.parties.contributes(self.me());
        let header = Header {
            kind: if contributes { Kind::Contribution } else { Kind::Ready },
            resent,
            arithmetic,
            chunk: found.chunk(),
            n_elems,
            parties: found.parties,
            ..self.blank(tree, slot, round)
        };
        let payload = contributes.then_some((operation.submission.id, content));
        Some(Outgoing { header, payload, next })
    }

    fn blank(&self, tree: usize, slot: u16, round: u64) -> Header {
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
            tree: TreeId(tree as u8),
            parties: Parties::All,
        }
    }

    fn pool(&self, header: &Header) -> &Pool {
        &self.pools[usize::from(header.tree.0)]
    }

    /// The operation of the packet that a header refers to.
    pub(super) fn operation_of(&self, header: &Header) -> Option<&ActiveOperation<Stage>> {
        let number = self.pool(header).near(header)?;
        Some(self.find(header.tree.0.into(), number)?.operation)
    }
}

impl Numbered<'_> {
    /// Whether its packet can be sent: whether its exponent has arrived.
    fn is_ready(&self) -> bool {
        let stage = &self.operation.state;
        match &self.place {
            Some(_) if stage.words.is_none() => self.exponent().is_some(),
            _ => true,
        }
    }

    fn exponent(&self) -> Option<Exponent> {
        let stage = &self.operation.state;
        stage.exponents[(self.offset - stage.leads) as usize]
    }

    /// Fingerprint of the operation and of the packet's position in it.
    fn chunk(&self) -> u32 {
        let what = &self.operation.state.what;
        match &self.place {
            Some((index, _)) => what.chunk(*index),
            None => what.fingerprint ^ self.offset as u32,
        }
    }

    /// Arithmetic, number of elements and content of its packet, which must be ready.
    fn content(&self, workers: u8) -> (Arithmetic, u16, Content) {
        let Some((_, elements)) = self.place.clone() else {
            return (Arithmetic::Max, 0, Content::Nothing);
        };
        let count = elements.end - elements.start;
        if let Some(words) = self.operation.state.words {
            let content = Content::Words(elements, words);
            return (words.arithmetic(), words.count(count) as u16, content);
        }
        let exponent = self.exponent().expect("only what is ready is sent");
        let content = match Scale::shared(exponent, workers.into()) {
            Some(scale) => Content::Scaled(elements, scale),
            None => Content::NotFinite(elements),
        };
        (Arithmetic::Saturating, count as u16, content)
    }
}

impl ActiveOperation<Stage> {
    /// The fragment whose exponent travels with packet `number`: the leads carry the first exponents, each fragment that
    /// of the fragment `leads` later.
    fn fragment_after(&self, number: u64) -> Option<u64> {
        let next = number - self.numbers().start;
        (next < self.state.exponents.len() as u64 && self.state.leads > 0).then_some(next)
    }

    /// Elements of the operation's `index`th fragment.
    fn elements_at(&self, index: u64) -> Range<u64> {
        self.fragment(self.fragments().start + index).1
    }
}

fn find(operations: &Lanes<Stage>, tree: usize, number: u64) -> Option<Numbered<'_>> {
    // A job has one pool of each kind, so that a number of a pool is one of its operations'.
    let operation = operations.of_tree(tree).find(number)?;
    let offset = number - operation.numbers().start;
    if !operation.fragments().contains(&number) {
        return Some(Numbered { operation, offset, parties: Parties::All, place: None });
    }
    let (index, parties, elements) = operation.scoped_fragment(number);
    Some(Numbered { operation, offset, parties, place: Some((index, elements)) })
}

/// Pools of a job.
fn pools(config: &WorkerConfig) -> usize {
    if config.copies { 2 } else { 1 }
}
