//! The worker: sends fragments to trees in turn, within each tree's window, until every result has arrived.

use std::collections::VecDeque;
use std::hash::{Hash, Hasher};
use std::ops::Range;

use netsum_wire::panama::{Header, Kind, NO_CAP};
use netsum_wire::{Dtype, Epoch, Format, JobId, Rank, TreeId, Vid};

use super::lease::first_window;
use crate::congestion::CongestionRule;
use crate::flow::{Signals, TreeFlow, TreeStats};
use crate::handover::{Finished, Progress};
use crate::operations::{ActiveOperation, Operations, Submission, elements_per_fragment};
use crate::worker::{AcceptedResult, Event, OutgoingPacket, Refusal, Settings, WorkerMachine};
use crate::{DropReason, Time, epoch};

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
    /// Number of trees, at least 1.
    pub trees: u8,
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
    operations: Operations<Missing>,
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

    const IN_PLACE: bool = true;

    fn supports(format: Format) -> bool {
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
            operations: Operations::new(first * u64::from(config.trees)),
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
        let elements = elements_per_fragment(self.config.fragment_bytes, submission.format.dtype);
        if !self.operations.submit(submission, elements, 0) {
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
            Kind::Result => self.take_result(now, ce, header).map(Some),
            Kind::Waiting => self.take_waiting(now, header).map(|()| None),
            Kind::Mismatch => self.take_mismatch(header).map(|()| None),
            _ => Err(DropReason::WrongDirection),
        };
        if outcome.is_err() {
            self.trees[usize::from(header.tree.0)].stats.dropped += 1;
        }
        outcome
    }

    fn read(&mut self, _: &Accepted, payload: &[u8], out: &mut [u8]) {
        out.copy_from_slice(payload);
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

    fn write<'a>(
        &self,
        outgoing: &mut Outgoing,
        elements: impl Fn(Range<u64>) -> &'a [u8],
        out: &mut [u8],
    ) {
        if let Some((_, range)) = &outgoing.payload {
            out.copy_from_slice(elements(range.clone()));
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
        Progress { trees: self.trees.iter().map(|t| t.flight.progress()).collect() }
    }

    fn submitted(&self) -> u64 {
        self.operations.submitted()
    }

    fn place_of(&self, g: u64) -> Option<(u64, Range<u64>)> {
        let trees = self.trees.len() as u64;
        let (tree, vid) = ((g % trees) as usize, g / trees);
        if self.trees[tree].flight.is_received(vid) {
            return None;
        }
        let operation = self.operations.find(g)?;
        Some((operation.submission.id, operation.fragment(g).1))
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
        (self.config.epoch, self.operations.submitted(), self.turn, partial).hash(state);
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
    ) -> Result<Accepted, DropReason> {
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
        let g = self.g_of(index, vid);
        let Some(operation) = self.operations.find_mut(g) else {
            self.missed_below[index] = self.missed_below[index].max(vid + 1);
            return Err(DropReason::Unexpected);
        };
        if !is_of(operation, g, header) {
            return Err(DropReason::Mismatch);
        }
        let (_, elements) = operation.fragment(g);
        let accepted = Accepted { g, id: operation.submission.id, elements };
        operation.state |= header.missing;
        if operation.finish_one() {
            let (id, missing) = (accepted.id, operation.state);
            self.events.push_back(Event::Done { id, missing });
            self.operations.forget_done();
        }
        let down = ce || header.congested_down;
        let signals = Signals { marks: header.marks, down, cap: header.window_cap };
        self.trees[index].acknowledge(now, vid, signals);
        if self.config.partial {
            self.report_progress(index);
        }
        Ok(accepted)
    }

    fn take_waiting(&mut self, now: Time, header: &Header) -> Result<(), DropReason> {
        let tree = &mut self.trees[usize::from(header.tree.0)];
        let vid = tree.flight.expand(header.vid.0).ok_or(DropReason::Unexpected)?;
        tree.wait(now, vid, header.missing)
    }

    fn take_mismatch(&mut self, header: &Header) -> Result<(), DropReason> {
        let index = usize::from(header.tree.0);
        let vid = self.trees[index].flight.expand(header.vid.0).ok_or(DropReason::Unexpected)?;
        let g = self.g_of(index, vid);
        let operation = self.operations.find(g).ok_or(DropReason::Unexpected)?;
        let (id, ranks) = (operation.submission.id, header.missing);
        let refusal = match header.n_elems {
            0 => Refusal::Changed,
            _ if is_of(operation, g, header) => Refusal::LikeOurs,
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
        let limit = self.operations.end_of_tree(index, self.trees.len());
        let (vid, resent) = self.trees[index].next(now, limit)?;
        let missed = vid < self.missed_below[index];
        Some(self.outgoing(index, vid, resent || missed))
    }

    fn outgoing(&self, index: usize, vid: u64, resent: bool) -> Outgoing {
        let g = self.g_of(index, vid);
        let operation = self.operations.find(g).expect("a vid in flight belongs to an operation");
        let (fragment, elements) = operation.fragment(g);
        let header = Header {
            kind: Kind::Contribution,
            resent,
            format: operation.submission.format,
            chunk: operation.submission.chunk(fragment),
            n_elems: (elements.end - elements.start) as u16,
            ..self.blank(index, vid)
        };
        let payload = Some((operation.submission.id, elements));
        Outgoing { tree: TreeId(index as u8), header, payload }
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
        }
    }

    fn g_of(&self, tree: usize, vid: u64) -> u64 {
        vid * self.trees.len() as u64 + tree as u64
    }
}

/// Whether a packet has the fragment's place, format and length.
fn is_of(operation: &ActiveOperation<Missing>, g: u64, header: &Header) -> bool {
    let (fragment, elements) = operation.fragment(g);
    let submission = &operation.submission;
    header.chunk == submission.chunk(fragment)
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
