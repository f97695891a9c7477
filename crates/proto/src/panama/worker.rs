//! The worker: fragments to trees in turn, within each tree's window, until every result is in.

use std::collections::VecDeque;
use std::ops::Range;

use netsum_wire::panama::{Header, Kind, NO_CAP};
use netsum_wire::{Dtype, Epoch, Format, JobId, Rank, TreeId, Vid};

use crate::congestion::{CongestionRule, Window};
use crate::flight::{Flight, Receipt};
use crate::operations::{Operations, Submission, elements_per_fragment};
use crate::rtt::RttEstimator;
use crate::transition::{Finished, Progress};
use crate::{Drop, Time};

/// What a worker must know of its job's plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerConfig {
    /// Job.
    pub job: JobId,
    /// Version of the plan.
    pub epoch: Epoch,
    /// Own index.
    pub rank: Rank,
    /// Workers of the job.
    pub ranks: u32,
    /// Trees, at least 1.
    pub trees: u8,
    /// The most fragments in flight per tree.
    pub window_max: u16,
    /// Largest payload, counted in the type in which elements are added.
    pub fragment_bytes: u16,
    /// Reaction to congestion.
    pub congestion: CongestionRule,
    /// Whether sums may be released without all workers.
    pub partial: bool,
}

/// Where a result belongs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// Number of the fragment in this epoch, over all operations.
    pub g: u64,
    /// Operation.
    pub id: u64,
    /// Elements of its buffer.
    pub elements: Range<u64>,
}

/// A packet to be sent up a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// Tree.
    pub tree: TreeId,
    /// Header.
    pub header: Header,
    /// Operation and elements of its buffer that follow the header.
    pub payload: Option<(u64, Range<u64>)>,
}

/// What the caller must hear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Every fragment of the operation is summed.
    Done {
        /// Operation.
        id: u64,
        /// Ranks (mod 64) that some fragment lacks (partial synchronisation).
        missing: u64,
    },
    /// The workers do not agree on what they reduce; the operation will not end.
    Mismatch {
        /// Operation.
        id: u64,
    },
    /// Something is in flight and the tree's switch has not answered for this long. Repeated.
    Silent {
        /// Tree.
        tree: TreeId,
        /// How long.
        for_ns: u64,
    },
}

/// One tree, as the worker sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TreeStats {
    /// Fragments that may be in flight.
    pub window: u32,
    /// The most that aggregators allow.
    pub window_cap: u16,
    /// Fragments in flight.
    pub in_flight: u32,
    /// Smoothed round trip.
    pub rtt_ns: u64,
    /// Fragments sent, first time.
    pub sent: u64,
    /// Fragments sent again.
    pub resent: u64,
    /// Results accepted.
    pub results: u64,
    /// Results with a mark of congestion.
    pub marked: u64,
    /// Time-outs.
    pub timeouts: u64,
    /// Packets that were not taken.
    pub dropped: u64,
    /// Ranks (mod 64) for which the tree was last known to wait.
    pub waiting_for: u64,
}

/// Protocol `panama`'s worker as a state machine, for one epoch. It holds no payload: the driver copies
/// elements between packets and buffers as `Outgoing` and `Accepted` say.
pub struct Worker {
    config: WorkerConfig,
    trees: Vec<Tree>,
    operations: Operations<Missing>,
    notices: VecDeque<Outgoing>,
    events: VecDeque<Event>,
    /// Tree to be asked first for the next packet.
    turn: usize,
}

struct Tree {
    flight: Flight,
    window: Window,
    rtt: RttEstimator,
    deadline: Option<Time>,
    backoffs: u32,
    /// When a fragment was sent again because of silence.
    probed: Option<Time>,
    /// When the tree last answered, or had nothing to answer.
    heard: Time,
    reported_silent: Time,
    /// Own progress that the tree's switch knows of (partial synchronisation).
    told: u32,
    stats: TreeStats,
}

/// A tree that has not answered for this long is reported; a round trip takes milliseconds even on a
/// loaded machine, and a dead switch must cost a pause of seconds.
const SILENT_NS: u64 = 1_500_000_000;
/// Ranks (mod 64) that some result of an operation lacks.
type Missing = u64;

impl Worker {
    /// A worker at the start of an epoch. Panics if the plan has no tree.
    pub fn new(now: Time, config: WorkerConfig) -> Self {
        assert!(config.trees > 0, "a plan without trees has nothing for this machine");
        let tree = Tree {
            flight: Flight::new(config.window_max),
            window: Window::new(config.congestion, config.window_max),
            rtt: RttEstimator::default(),
            deadline: None,
            backoffs: 0,
            probed: None,
            heard: now,
            reported_silent: now,
            told: 0,
            stats: TreeStats::default(),
        };
        Worker {
            trees: (0..config.trees).map(|_| tree.clone()).collect(),
            operations: Operations::new(),
            notices: VecDeque::new(),
            events: VecDeque::new(),
            turn: 0,
            config,
        }
    }

    /// Adds an operation. Every worker must submit the same ones in the same order.
    pub fn submit(&mut self, submission: Submission) {
        let id = submission.id;
        let elements = elements_per_fragment(self.config.fragment_bytes, submission.format.dtype);
        if !self.operations.submit(submission, elements, 0) {
            self.events.push_back(Event::Done { id, missing: 0 });
        }
    }

    /// Takes a packet that came down a tree; says where its payload belongs. Errors are reasons to drop it.
    pub fn handle(
        &mut self,
        now: Time,
        ce: bool,
        header: &Header,
    ) -> Result<Option<Accepted>, Drop> {
        self.check_addressee(header)?;
        let outcome = match header.kind {
            Kind::Result => self.take_result(now, ce, header).map(Some),
            Kind::Waiting => self.take_waiting(now, header).map(|()| None),
            Kind::Mismatch => self.take_mismatch(header).map(|()| None),
            _ => Err(Drop::WrongDirection),
        };
        if outcome.is_err() {
            self.trees[usize::from(header.tree.0)].stats.dropped += 1;
        }
        outcome
    }

    /// The next packet to send, the trees in turn: fragment *k* goes to tree *k mod T*.
    pub fn poll_transmit(&mut self, now: Time) -> Option<Outgoing> {
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

    /// When `handle_timeout` must be called.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.trees.iter().filter_map(|t| t.deadline).min()
    }

    /// Deadlines up to `now` have passed.
    pub fn handle_timeout(&mut self, now: Time) {
        for (i, tree) in self.trees.iter_mut().enumerate() {
            if tree.deadline.is_none_or(|d| d > now) {
                continue;
            }
            tree.time_out(now);
            let silent = now.since(tree.heard);
            if silent >= SILENT_NS && now.since(tree.reported_silent) >= SILENT_NS {
                tree.reported_silent = now;
                self.events.push_back(Event::Silent { tree: TreeId(i as u8), for_ns: silent });
            }
        }
    }

    /// What the caller must hear.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Says to every tree that nothing more will come; to be sent once all operations are done.
    pub fn finish(&mut self) {
        for tree in 0..self.trees.len() {
            let vid = self.trees[tree].flight.next();
            self.notice(tree, Kind::Fin, vid);
        }
    }

    /// Operations that are not done.
    pub fn outstanding(&self) -> impl Iterator<Item = &Submission> {
        self.operations.outstanding().map(|o| &o.submission)
    }

    /// Each tree's figures.
    pub fn tree_stats(&self) -> impl Iterator<Item = TreeStats> + '_ {
        self.trees.iter().map(|t| TreeStats {
            window: t.window.fragments(),
            window_cap: t.window.cap(),
            in_flight: t.flight.in_flight(),
            rtt_ns: t.rtt.smoothed_ns(),
            ..t.stats
        })
    }

    /// Plan at work.
    pub fn config(&self) -> &WorkerConfig {
        &self.config
    }

    /// Which results have come: what a worker tells the others when an epoch ends early.
    pub fn progress(&self) -> Progress {
        Progress { trees: self.trees.iter().map(|t| t.flight.progress()).collect() }
    }

    /// Where the result of fragment `g` belongs, if it has not come: for results that a peer serves.
    pub fn place_of(&self, g: u64) -> Option<Accepted> {
        let trees = self.trees.len() as u64;
        let (tree, vid) = ((g % trees) as usize, (g / trees) as u32);
        if self.trees[tree].flight.is_received(vid) {
            return None;
        }
        let operation = self.operations.find(g)?;
        let (_, elements) = operation.fragment(g);
        Some(Accepted { g, id: operation.submission.id, elements })
    }

    /// Ends the epoch: what is left of each operation once `finished` holds, in order.
    /// Operations of which nothing is left are not among them.
    pub fn remaining(self, finished: &Finished) -> Vec<Submission> {
        self.operations.remaining(finished).map(|(rest, _)| rest).collect()
    }

    fn check_addressee(&self, header: &Header) -> Result<(), Drop> {
        if header.job != self.config.job {
            return Err(Drop::NoLease);
        }
        match header.epoch.0.wrapping_sub(self.config.epoch.0) as i16 {
            0 => {}
            ..0 => return Err(Drop::StaleEpoch),
            _ => return Err(Drop::FutureEpoch),
        }
        if usize::from(header.tree.0) >= self.trees.len() {
            return Err(Drop::NoLease);
        }
        Ok(())
    }

    fn take_result(&mut self, now: Time, ce: bool, header: &Header) -> Result<Accepted, Drop> {
        let (index, vid) = (usize::from(header.tree.0), header.vid.0);
        let tree = &self.trees[index];
        if tree.flight.is_received(vid) {
            return Err(Drop::Duplicate);
        }
        // A sum that lacks us may come before we have sent, or even submitted, our part.
        let early = vid.wrapping_sub(tree.flight.next()) as i32 >= 0;
        if !tree.flight.covers(vid) || early && !self.config.partial {
            return Err(Drop::Unexpected);
        }
        let g = self.g_of(index, vid);
        let operation = self.operations.find_mut(g).ok_or(Drop::Unexpected)?;
        let (fragment, elements) = operation.fragment(g);
        let submission = &operation.submission;
        if header.chunk != submission.chunk(fragment)
            || header.format != submission.format
            || u64::from(header.n_elems) != elements.end - elements.start
        {
            return Err(Drop::Mismatch);
        }
        let accepted = Accepted { g, id: submission.id, elements };
        operation.state |= header.missing;
        if operation.finish_one() {
            let (id, missing) = (accepted.id, operation.state);
            self.events.push_back(Event::Done { id, missing });
            self.operations.forget_done();
        }
        self.trees[index].acknowledged(now, ce, header);
        if self.config.partial {
            self.tell_progress(index);
        }
        Ok(accepted)
    }

    fn take_waiting(&mut self, now: Time, header: &Header) -> Result<(), Drop> {
        let tree = &mut self.trees[usize::from(header.tree.0)];
        if !tree.flight.covers(header.vid.0) || tree.flight.is_received(header.vid.0) {
            return Err(Drop::Unexpected);
        }
        // Our part is counted: no loss, no reason to slow down.
        tree.heard = now;
        tree.probed = None;
        tree.stats.waiting_for = header.missing;
        Ok(())
    }

    fn take_mismatch(&mut self, header: &Header) -> Result<(), Drop> {
        let g = self.g_of(usize::from(header.tree.0), header.vid.0);
        let id = self.operations.find(g).ok_or(Drop::Unexpected)?.submission.id;
        let event = Event::Mismatch { id };
        if !self.events.contains(&event) {
            self.events.push_back(event);
        }
        Ok(())
    }

    fn next_of(&mut self, now: Time, index: usize) -> Option<Outgoing> {
        let limit = self.operations.end_of_tree(index, self.trees.len());
        let tree = &mut self.trees[index];
        if let Some(vid) = tree.flight.send_again(now) {
            tree.stats.resent += 1;
            return Some(self.outgoing(index, vid, true));
        }
        let window = tree.window.fragments().min(u32::from(self.config.window_max));
        if tree.flight.in_flight() >= window {
            return None;
        }
        let idle = tree.flight.in_flight() == 0;
        let vid = tree.flight.send_next(now, limit)?;
        tree.stats.sent += 1;
        if idle {
            tree.heard = now;
        }
        if tree.deadline.is_none() {
            tree.deadline = Some(now.after(tree.rtt.rto_ns(0)));
        }
        if self.config.partial {
            tree.told = tree.told.max(vid);
        }
        Some(self.outgoing(index, vid, false))
    }

    fn outgoing(&self, index: usize, vid: u32, resent: bool) -> Outgoing {
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

    /// In partial synchronisation a worker that is behind contributes to little and receives much: the
    /// switch must know what it has, or would hold everybody back for it.
    fn tell_progress(&mut self, index: usize) {
        let tree = &mut self.trees[index];
        let base = tree.flight.base();
        if base.wrapping_sub(tree.told) as i32 > i32::from(self.config.window_max / 4) {
            tree.told = base;
            self.notice(index, Kind::Acknowledgement, base);
        }
    }

    fn notice(&mut self, index: usize, kind: Kind, vid: u32) {
        let header = Header { kind, ..self.blank(index, vid) };
        self.notices.push_back(Outgoing { tree: TreeId(index as u8), header, payload: None });
    }

    fn blank(&self, index: usize, vid: u32) -> Header {
        Header {
            kind: Kind::Contribution,
            resent: false,
            congested_down: false,
            tree: TreeId(index as u8),
            format: Format { dtype: Dtype::F32, op: netsum_wire::ReduceOp::Sum },
            job: self.config.job,
            vid: Vid(vid),
            chunk: 0,
            epoch: self.config.epoch,
            window_cap: NO_CAP,
            n_elems: 0,
            marks: 0,
            missing: 0,
        }
    }

    fn g_of(&self, tree: usize, vid: u32) -> u64 {
        u64::from(vid) * self.trees.len() as u64 + tree as u64
    }
}

impl Tree {
    /// A result came: it is the acknowledgement.
    fn acknowledged(&mut self, now: Time, ce: bool, header: &Header) {
        let vid = header.vid.0;
        let was_ahead = vid.wrapping_sub(self.flight.highest()) as i32 >= 0;
        let Receipt::New { rtt_ns, was_resent } = self.flight.receive(now, vid) else {
            return;
        };
        self.stats.results += 1;
        self.stats.waiting_for = 0;
        self.heard = now;
        self.backoffs = 0;
        if let Some(rtt_ns) = rtt_ns {
            self.rtt.sample(rtt_ns);
        }
        if was_ahead {
            self.window.set_cap(header.window_cap);
        }
        let down = ce || header.congested_down;
        self.stats.marked += u64::from(header.marks != 0 || down);
        self.window.on_result(vid, self.flight.next(), header.marks, down);
        let mut lost = self.flight.find_holes();
        if let Some(probed) = self.probed.take_if(|_| was_resent) {
            // The probe was answered with the sum, so its first sending or its first result was lost,
            // and with it most likely whatever else has no answer from before the probe.
            lost += self.flight.resend_older(probed);
        }
        if lost > 0 {
            self.window.on_loss(vid, self.flight.next());
        }
        let rto_ns = self.rtt.rto_ns(0);
        self.deadline = (self.flight.in_flight() > 0).then(|| now.after(rto_ns));
    }

    fn time_out(&mut self, now: Time) {
        self.deadline = None;
        if self.flight.probe().is_some() {
            self.stats.timeouts += 1;
            self.backoffs += 1;
            self.probed.get_or_insert(now);
            self.deadline = Some(now.after(self.rtt.rto_ns(self.backoffs)));
        }
    }
}

impl Clone for Tree {
    fn clone(&self) -> Self {
        Tree {
            flight: self.flight.clone(),
            window: self.window.clone(),
            rtt: self.rtt.clone(),
            ..*self
        }
    }
}
