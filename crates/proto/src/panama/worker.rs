//! The worker: sends fragments to trees in turn, within each tree's window, until every result has arrived.

use std::collections::VecDeque;
use std::hash::{Hash, Hasher};
use std::ops::Range;

use netsum_wire::panama::{Header, Kind, NO_CAP};
use netsum_wire::{Dtype, Encoding, Epoch, Format, JobId, Rank, TreeId, Vid, contribute};
use netsum_wire::{MAX_SCOPED_RANKS, Parties};

use super::lease::first_window;
use crate::answers::Answers;
use crate::congestion::CongestionRule;
use crate::flow::{Sending, Signals, TreeFlow, TreeStats};
use crate::handover::{Finished, Progress, TreeProgress};
use crate::lanes::Lanes;
use crate::operations::{ActiveOperation, Submission, elements_per_fragment, tree_end};
use crate::visit::Visitor;
use crate::worker::{AcceptedResult, Event, OutgoingPacket, Refusal, Settings, WorkerMachine};
use crate::{DropReason, Pattern, Time, epoch};

/// A worker's configuration, by its job's plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerConfig {
    /// Job.
    pub job: JobId,
    /// Version of the plan.
    pub epoch: Epoch,
    /// Index of this worker.
    pub rank: Rank,
    /// Number of workers of the job.
    pub ranks: u32,
    /// Number of trees, at least 1; with `copies`, those are the second half of them.
    pub trees: u8,
    /// Whether each tree has a copy, with windows and numbers of its own, for operations that copy what one rank sends
    /// to all others ([`Pattern::copies`](crate::Pattern::copies)): these overlap with sums. Without, there are neither
    /// copies nor operations other than allreduce.
    pub copies: bool,
    /// Maximum number of fragments in flight per tree.
    pub window_max: u16,
    /// Largest payload, counted in the type in which elements are added.
    pub fragment_bytes: u16,
    /// Reaction to congestion.
    pub congestion: CongestionRule,
    /// Whether sums may be released without all workers (partial synchronisation).
    pub partial: bool,
}

/// Destination of a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// Number of the fragment in this epoch, over all operations.
    pub g: u64,
    /// Id of the operation.
    pub id: u64,
    /// Elements of the operation's buffer.
    pub elements: Range<u64>,
}

/// A packet to be sent up a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// Tree.
    pub tree: TreeId,
    /// Header.
    pub header: Header,
    /// Id of the operation, and the elements of its buffer in the payload.
    pub payload: Option<(u64, Range<u64>)>,
}

/// Protocol `panama`'s worker as a state machine, for one epoch. It holds no payload: the driver copies elements
/// between packets and buffers as `Outgoing` and `Accepted` specify.
#[derive(Clone)]
pub struct Worker {
    config: WorkerConfig,
    trees: Vec<TreeFlow>,
    /// By tree, this rank's progress last reported to its switch (partial synchronisation).
    reported: Vec<u64>,
    /// By tree, the vid below which results may have arrived before their operation was submitted (likewise).
    missed_below: Vec<u64>,
    operations: Lanes<Missing>,
    /// By tree, empty contributions to be sent, and answers to be expected.
    answers: Vec<Answers>,
    /// Fragments that are complete without elements for this rank, and its elements of them.
    settled: VecDeque<Accepted>,
    notices: VecDeque<Outgoing>,
    events: VecDeque<Event>,
    /// The tree whose turn it is for the next packet.
    turn: usize,
}

/// Ranks (mod 64) that some result of an operation lacks.
type Missing = u64;

impl WorkerMachine for Worker {
    type Config = WorkerConfig;
    type Header = Header;
    type Accepted = Accepted;
    type Outgoing = Outgoing;

    fn supports(format: Format, _: u32) -> bool {
        format.in_network()
    }

    fn settings(config: &WorkerConfig) -> Settings {
        let trees = config.trees.into();
        let retained = usize::from(config.window_max) * trees;
        Settings { trees, retained, fragment_bytes: config.fragment_bytes }
    }

    fn starting_at(now: Time, config: WorkerConfig, first: u64) -> Self {
        assert!(config.trees > 0, "a plan without trees has nothing for this machine");
        let cap = first_window(config.window_max);
        let flow = TreeFlow::new(now, config.congestion, config.window_max, cap, first);
        Worker {
            trees: vec![flow; usize::from(config.trees)],
            reported: vec![first; usize::from(config.trees)],
            missed_below: vec![first; usize::from(config.trees)],
            operations: Lanes::new(config.trees.into(), config.copies, first),
            answers: vec![Answers::new(first, u64::BITS.into()); usize::from(config.trees)],
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
        let id = submission.id;
        let scoped = submission.pattern != Pattern::Allreduce;
        assert!(!scoped || self.config.copies, "the plan is for allreduce alone");
        assert!(!scoped || self.config.ranks <= MAX_SCOPED_RANKS, "ranks have no bit of their own");
        let elements = elements_per_fragment(self.config.fragment_bytes, submission.format.dtype);
        let operations = self.operations.of_operation(&submission);
        if !operations.submit(submission, elements, 0) {
            self.events.push_back(Event::Done { id, missing: 0 });
        }
    }

    fn handle(
        &mut self,
        now: Time,
        ce: bool,
        header: &Header,
    ) -> Result<Option<Accepted>, DropReason> {
        self.check_addressee(header)?;
        let outcome = match header.kind {
            Kind::Result => {
                self.take_others(now, ce, header);
                self.take_result(now, ce, header)
            }
            Kind::Waiting => self.take_waiting(now, header).map(|()| None),
            Kind::Mismatch => self.take_mismatch(header).map(|()| None),
            _ => Err(DropReason::WrongDirection),
        };
        if let Err(reason) = outcome {
            let stats = &mut self.trees[usize::from(header.tree.0)].stats;
            stats.dropped += 1;
            stats.spurious += u64::from(reason == DropReason::Duplicate);
        }
        outcome
    }

    fn read(&mut self, _: &Accepted, payload: &[u8], out: &mut [u8]) {
        out.copy_from_slice(payload);
    }

    fn poll_settled(&mut self) -> Option<Accepted> {
        self.settled.pop_front()
    }

    fn poll_transmit(&mut self, now: Time) -> Option<Outgoing> {
        if let Some(notice) = self.notices.pop_front() {
            return Some(notice);
        }
        for _ in 0..self.trees.len() {
            let tree = self.turn;
            self.turn = (self.turn + 1) % self.trees.len();
            if let Some(outgoing) = self.next_of(now, tree) {
                return Some(outgoing);
            }
        }
        None
    }

    fn is_in_place(outgoing: &Outgoing) -> bool {
        outgoing.header.encoding() != Some(Encoding::Narrow)
    }

    fn write<'a>(
        &self,
        outgoing: &mut Outgoing,
        elements: impl Fn(Range<u64>) -> &'a [u8],
        out: &mut [u8],
    ) {
        let Some((_, range)) = &outgoing.payload else { return };
        let elements = elements(range.clone());
        match outgoing.header.encoding() {
            Some(Encoding::Narrow) => contribute(outgoing.header.format.dtype, elements, out),
            _ => out.copy_from_slice(elements),
        }
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.trees.iter().filter_map(TreeFlow::deadline).min()
    }

    fn handle_timeout(&mut self, now: Time) {
        for (i, tree) in self.trees.iter_mut().enumerate() {
            if let Some(for_ns) = tree.handle_timeout(now) {
                self.events.push_back(Event::Silent { tree: TreeId(i as u8), for_ns });
            }
        }
    }

    fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    fn finish(&mut self) {
        for tree in 0..self.trees.len() {
            let vid = self.trees[tree].flight.next();
            self.notice(tree, Kind::Fin, vid);
        }
    }

    fn outstanding(&self) -> impl Iterator<Item = &Submission> {
        self.operations.outstanding().map(|o| &o.submission)
    }

    fn tree_stats(&self) -> impl Iterator<Item = TreeStats> {
        self.trees.iter().map(TreeFlow::stats)
    }

    fn progress(&self) -> Progress {
        let of = |(index, tree): (usize, &TreeFlow)| {
            let progress = tree.flight.progress();
            let untaken = self.untaken(index, &progress);
            TreeProgress { untaken, ..progress }
        };
        Progress { trees: self.trees.iter().enumerate().map(of).collect() }
    }

    fn submitted(&self) -> u64 {
        self.operations.submitted()
    }

    fn place_of(&self, g: u64) -> Option<(u64, Range<u64>)> {
        let (index, vid) = self.operations.place(g);
        if self.trees[index].flight.is_received(vid) {
            return None;
        }
        let (operation, parties, elements) = self.operations.fragment(index, vid)?;
        let taken = parties.takes(self.me());
        taken.then_some((operation.submission.id, elements))
    }

    fn to_repeat(&self, finished: &Finished) -> Vec<Accepted> {
        let repeated = self.operations.to_repeat(finished);
        let accepted = |(g, operation, elements): (u64, &ActiveOperation<Missing>, Range<u64>)| {
            Accepted { g, id: operation.submission.id, elements }
        };
        repeated.map(accepted).collect()
    }

    fn remaining(self, finished: &Finished) -> Vec<Submission> {
        self.operations.remaining(finished).map(|(rest, _)| rest).collect()
    }
}

impl Worker {
    /// Hashes the state that determines all future behaviour except for windows, once all packets are sent: states with
    /// the same digest behave alike.
    pub fn digest(&self, state: &mut impl Hasher) {
        self.trees.iter().for_each(|tree| tree.digest(state));
        let partial = (&self.reported, &self.missed_below);
        self.operations.digest(state);
        (self.config.epoch, self.turn, partial, &self.answers).hash(state);
    }

    /// Visits the state. States with partial synchronisation are like no others.
    pub fn visit(&mut self, v: &mut impl Visitor) {
        let Worker {
            config,
            trees,
            // Of partial synchronisation.
            reported: _,
            missed_below: _,
            operations,
            answers,
            settled,
            notices,
            events,
            turn,
        } = self;
        v.of_job(config.job);
        if config.partial || !(settled.is_empty() && notices.is_empty() && events.is_empty()) {
            v.unlike();
        }
        v.same(*turn as u64);
        for ((number, tree), answers) in (0..).zip(trees).zip(answers) {
            v.of_tree(TreeId(number));
            tree.visit(v);
            answers.visit(v);
        }
        operations.visit(v, |v, missing| v.same(*missing));
    }

    /// The lowest numbers without a result, on the first tree and on the first copy.
    pub fn first_open(&self) -> [u64; 2] {
        let of = |tree: usize| self.trees.get(tree).map_or(0, |tree| tree.flight.base());
        [of(0), of(self.operations.per_lane())]
    }

    /// How often each tree can go on by so many fragments, more than 0, before the end of the running operation
    /// matters.
    pub fn rounds_left(&self, fragments: u64) -> u64 {
        let Some(end) = self.operations.first().first_end() else { return 0 };
        let trees = self.operations.per_lane();
        let ends = (0..trees).map(|tree| tree_end(end, tree, trees));
        // The last fragment to be sent is known as such.
        let left = self
            .trees
            .iter()
            .zip(ends)
            .map(|(tree, end)| end.saturating_sub(tree.flight.next() + 2) / fragments);
        left.min().unwrap_or(0)
    }

    fn check_addressee(&self, header: &Header) -> Result<(), DropReason> {
        if header.job != self.config.job {
            return Err(DropReason::NoLease);
        }
        epoch::check(header.epoch, self.config.epoch)?;
        if usize::from(header.tree.0) >= self.trees.len() {
            return Err(DropReason::NoLease);
        }
        Ok(())
    }

    fn take_result(
        &mut self,
        now: Time,
        ce: bool,
        header: &Header,
    ) -> Result<Option<Accepted>, DropReason> {
        let index = usize::from(header.tree.0);
        let tree = &self.trees[index];
        let vid = tree.flight.expand(header.vid.0).ok_or(DropReason::Duplicate)?;
        if tree.flight.is_received(vid) {
            return Err(DropReason::Duplicate);
        }
        // A sum without the own contribution may arrive before that is sent, or even submitted.
        let early = vid >= tree.flight.next();
        if !tree.flight.covers(vid) || early && !self.config.partial {
            return Err(DropReason::Unexpected);
        }
        let Some((operation, parties, elements)) = self.operations.fragment(index, vid) else {
            self.missed_below[index] = self.missed_below[index].max(vid + 1);
            return Err(DropReason::Unexpected);
        };
        let id = operation.submission.id;
        if !is_of(operation, self.operations.n(index, vid), header) {
            if parties != Parties::All {
                // Empty contributions alone do not reveal it.
                self.report(Event::Mismatch { id, named: None });
            }
            return Err(DropReason::Mismatch);
        }
        if parties.takes(self.me()) == header.empty {
            return Err(DropReason::Members);
        }
        let accepted = Accepted { g: self.operations.g(index, vid), id, elements };
        self.settle(now, index, vid, header.missing, signals(ce, header), true);
        if self.config.partial {
            self.report_progress(index);
        }
        if header.empty {
            self.settled.push_back(accepted);
            return Ok(None);
        }
        Ok(Some(accepted))
    }

    /// Handles the news in a packet: other fragments that are complete and that this rank does not take.
    fn take_others(&mut self, now: Time, ce: bool, header: &Header) {
        if header.others == 0 {
            return;
        }
        let index = usize::from(header.tree.0);
        let Some(vid) = self.trees[index].flight.expand(header.vid.0) else { return };
        for behind in (1..=u64::from(u64::BITS)).rev() {
            let bit = header.others >> (behind - 1) & 1;
            let Some(vid) = vid.checked_sub(behind).filter(|_| bit == 1) else { continue };
            let flight = &self.trees[index].flight;
            if flight.is_received(vid) || vid >= flight.next() {
                continue;
            }
            let Some((operation, parties, elements)) = self.operations.fragment(index, vid) else {
                continue;
            };
            if parties.takes(self.me()) {
                continue;
            }
            let (id, g) = (operation.submission.id, self.operations.g(index, vid));
            self.settled.push_back(Accepted { g, id, elements });
            self.settle(now, index, vid, 0, signals(ce, header), false);
        }
    }

    /// Records that a fragment is complete. `at_once`: whether this rank was told as soon as it was.
    fn settle(
        &mut self,
        now: Time,
        index: usize,
        vid: u64,
        missing: u64,
        signals: Signals,
        at_once: bool,
    ) {
        self.trees[index].acknowledge(now, vid, signals, at_once);
        self.answers[index].forget(vid);
        let (trees, n) = (self.operations.per_lane(), self.operations.n(index, vid));
        let operations = self.operations.of_tree_mut(index);
        let Some(operation) = operations.find_mut(n) else { return };
        operation.state |= missing;
        if operation.finish_one() {
            let (id, missing) = (operation.submission.id, operation.state);
            self.events.push_back(Event::Done { id, missing });
            let flows = self.trees.chunks(trees).nth(index / trees).unwrap_or_default();
            let base = flows.iter().map(|tree| tree.flight.base()).min().unwrap_or(0);
            let everywhere = base.saturating_sub(self.config.window_max.into());
            operations.forget_done(everywhere * trees as u64);
        }
    }

    fn take_waiting(&mut self, now: Time, header: &Header) -> Result<(), DropReason> {
        let tree = &mut self.trees[usize::from(header.tree.0)];
        let vid = tree.flight.expand(header.vid.0).ok_or(DropReason::Unexpected)?;
        tree.wait(now, vid, header.missing)
    }

    fn take_mismatch(&mut self, header: &Header) -> Result<(), DropReason> {
        let index = usize::from(header.tree.0);
        let vid = self.trees[index].flight.expand(header.vid.0).ok_or(DropReason::Unexpected)?;
        let (operation, ..) = self.operations.fragment(index, vid).ok_or(DropReason::Unexpected)?;
        let n = self.operations.n(index, vid);
        let (id, ranks) = (operation.submission.id, header.missing);
        let refusal = match header.n_elems {
            0 => Refusal::Changed,
            _ if is_of(operation, n, header) => Refusal::LikeOurs,
            _ => Refusal::Unlike,
        };
        self.report(Event::Mismatch { id, named: None });
        if ranks != 0 {
            self.report(Event::Refused { id, ranks, refusal });
        }
        Ok(())
    }

    fn report(&mut self, event: Event) {
        if !self.events.contains(&event) {
            self.events.push_back(event);
        }
    }

    fn next_of(&mut self, now: Time, index: usize) -> Option<Outgoing> {
        let trees = self.operations.per_lane();
        let limit = self.operations.of_tree(index).end_of_tree(index % trees, trees);
        while let Some((vid, sending)) = self.trees[index].next(now, limit) {
            let resent = sending == Sending::Again;
            let missed = vid < self.missed_below[index];
            let (operation, parties, _) =
                self.operations.fragment(index, vid).expect("it is in flight");
            let id = operation.submission.id;
            if parties.contributes(self.me()) || resent {
                let mut outgoing = self.outgoing(index, vid, resent || missed);
                if resent {
                    return Some(outgoing);
                }
                let unsent = self.answers[index].take(id, vid);
                match unsent {
                    Some((last, others)) if last != vid => {
                        // The contribution may not carry them: it is of another operation, or too far ahead.
                        let flushed = self.empty(index, last, others, limit);
                        outgoing.header.asks = self.asks(index, vid, parties, limit);
                        self.notices.push_back(outgoing);
                        return Some(flushed);
                    }
                    Some((_, others)) => outgoing.header.others = others,
                    None => {}
                }
                outgoing.header.asks = self.asks(index, vid, parties, limit);
                return Some(outgoing);
            }
            if let Some((last, others)) = self.answers[index].add(id, vid) {
                return Some(self.empty(index, last, others, limit));
            }
        }
        let in_flight = self.trees[index].flight.in_flight();
        let nothing_follows = self.trees[index].flight.next() == limit;
        let (last, others) = self.answers[index].flush(in_flight, nothing_follows)?;
        Some(self.empty(index, last, others, limit))
    }

    /// Empty contributions to a fragment and to others.
    fn empty(&mut self, index: usize, vid: u64, others: u64, limit: u64) -> Outgoing {
        let mut outgoing = self.outgoing(index, vid, false);
        outgoing.header.others = others;
        outgoing.header.asks = self.asks(index, vid, outgoing.header.parties, limit);
        outgoing
    }

    /// Whether the switch must answer at this vid, so that a window does not fill before an answer.
    fn asks(&mut self, index: usize, vid: u64, parties: Parties, limit: u64) -> bool {
        let (window, takes) = (self.trees[index].window(), parties.takes(self.me()));
        self.answers[index].asks(vid, takes, window, vid + 1 == limit)
    }

    fn outgoing(&self, index: usize, vid: u64, resent: bool) -> Outgoing {
        let (operation, parties, elements) =
            self.operations.fragment(index, vid).expect("a vid in flight belongs to an operation");
        let (fragment, _) = operation.fragment(self.operations.n(index, vid));
        let contributes = parties.contributes(self.me());
        let header = Header {
            kind: Kind::Contribution,
            resent,
            format: operation.submission.format,
            chunk: operation.submission.chunk(fragment),
            n_elems: (elements.end - elements.start) as u16,
            parties,
            empty: !contributes,
            ..self.blank(index, vid)
        };
        let payload = contributes.then_some((operation.submission.id, elements));
        Outgoing { tree: TreeId(index as u8), header, payload }
    }

    /// The numbers of a tree, from a window below the results on, whose elements this rank neither lacks nor has.
    fn untaken(&self, index: usize, progress: &TreeProgress) -> Vec<u64> {
        let from = progress.base.saturating_sub(self.config.window_max.into());
        let flight = &self.trees[index].flight;
        let untaken = |&vid: &u64| {
            self.operations.fragment(index, vid).is_some_and(|(_, parties, _)| match parties {
                // What it has contributed is the result.
                Parties::FromOne(_) => !parties.takes(self.me()) && !flight.is_received(vid),
                _ => !parties.takes(self.me()),
            })
        };
        (from..flight.next()).filter(untaken).collect()
    }

    /// This rank, as a bitmap of ranks.
    fn me(&self) -> u64 {
        1 << (self.config.rank.0 % MAX_SCOPED_RANKS)
    }

    /// With partial synchronisation a worker that lags contributes little and receives much: the switch must learn its
    /// progress, or would delay all workers for it.
    fn report_progress(&mut self, index: usize) {
        let tree = &self.trees[index];
        let base = tree.flight.base();
        if base - self.reported[index] > u64::from(tree.cap() / 4) {
            self.reported[index] = base;
            self.notice(index, Kind::Acknowledgement, base);
        }
    }

    fn notice(&mut self, index: usize, kind: Kind, vid: u64) {
        let header = Header { kind, ..self.blank(index, vid) };
        self.notices.push_back(Outgoing { tree: TreeId(index as u8), header, payload: None });
    }

    fn blank(&self, index: usize, vid: u64) -> Header {
        Header {
            kind: Kind::Contribution,
            resent: false,
            congested_down: false,
            tree: TreeId(index as u8),
            format: Format { dtype: Dtype::F32, op: netsum_wire::ReduceOp::Sum },
            job: self.config.job,
            vid: Vid(vid as u32),
            chunk: 0,
            epoch: self.config.epoch,
            window_cap: NO_CAP,
            n_elems: 0,
            marks: 0,
            missing: 0,
            parties: Parties::All,
            empty: false,
            asks: false,
            others: 0,
        }
    }
}

fn signals(ce: bool, header: &Header) -> Signals {
    let down = ce || header.congested_down;
    Signals { marks: header.marks, down, cap: header.window_cap }
}

/// Whether a packet has the fragment's place, format and length.
fn is_of(operation: &ActiveOperation<Missing>, n: u64, header: &Header) -> bool {
    let (fragment, parties, elements) = operation.scoped_fragment(n);
    let submission = &operation.submission;
    header.parties == parties
        && header.chunk == submission.chunk(fragment)
        && header.format == submission.format
        && u64::from(header.n_elems) == elements.end - elements.start
}

impl AcceptedResult for Accepted {
    fn g(&self) -> u64 {
        self.g
    }

    fn id(&self) -> u64 {
        self.id
    }

    fn elements(&self) -> Option<Range<u64>> {
        Some(self.elements.clone())
    }
}

impl OutgoingPacket for Outgoing {
    type Header = Header;

    fn header(&self) -> &Header {
        &self.header
    }

    fn operation(&self) -> Option<u64> {
        self.payload.as_ref().map(|(id, _)| *id)
    }

    fn elements(&self) -> Option<Range<u64>> {
        self.payload.as_ref().map(|(_, elements)| elements.clone())
    }
}
