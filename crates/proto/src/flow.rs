//! One tree from the point of view of a worker: fragments in flight, window, detection of silence.

use std::hash::{Hash, Hasher};

use crate::congestion::{CongestionRule, Window};
use crate::flight::{Flight, Receipt};
use crate::rtt::RttEstimator;
use crate::visit::Visitor;
use crate::{DropReason, Time};

/// A tree without results for this long is reported; a round trip takes milliseconds even on a loaded machine, and a
/// dead switch must cost a pause of seconds.
const SILENT_NS: u64 = 1_500_000_000;
/// Least allowance for reordering of results; a longer round trip raises it.
const MIN_REORDERING_NS: u64 = 250_000;
/// Workers whose contribution to a hole was counted wait this many times longer, and leave the recovery to the others:
/// all together could fill a queue every time, at the cost of the worker that is missing.
const COUNTED_PATIENCE: u64 = 4;

/// Statistics of one tree at a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TreeStats {
    /// Window in fragments.
    pub window: u32,
    /// Maximum window that aggregators allow.
    pub window_cap: u16,
    /// Fragments in flight.
    pub in_flight: u32,
    /// Smoothed round trip.
    pub rtt_ns: u64,
    /// Fragments sent for the first time.
    pub sent: u64,
    /// Fragments sent again.
    pub resent: u64,
    /// Of these, those that were not needed (RFC 5682: spurious): the tree had the fragment and waited for others, or the
    /// result was on its way.
    pub spurious: u64,
    /// Results accepted.
    pub results: u64,
    /// Results with a mark of congestion.
    pub marked: u64,
    /// Time-outs.
    pub timeouts: u64,
    /// Packets that were dropped.
    pub dropped: u64,
    /// Ranks (mod 64) that the tree last reported as missing.
    pub waiting_for: u64,
}

impl TreeStats {
    fn visit(&mut self, v: &mut impl Visitor) {
        let TreeStats {
            // Those are filled in where statistics are read.
            window: _,
            window_cap: _,
            in_flight: _,
            rtt_ns: _,
            sent,
            resent,
            spurious,
            results,
            marked,
            timeouts,
            dropped,
            waiting_for,
        } = self;
        [sent, resent, spurious, results, dropped].into_iter().for_each(|n| v.count(n));
        v.same(*marked);
        v.same(*timeouts);
        v.same(*waiting_for);
    }
}

/// How a fragment is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sending {
    /// For the first time.
    First,
    /// For the first time, and the tree has asked for it: others' contributions wait.
    Requested,
    /// Again.
    Again,
}

/// Congestion signals of a result.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Signals {
    /// Branches that were congested on the way up.
    pub(crate) marks: u32,
    /// Whether the way down was congested.
    pub(crate) down: bool,
    /// Maximum window that aggregators allow.
    pub(crate) cap: u16,
}

/// Window, round trips and recovery of one tree.
#[derive(Clone)]
pub(crate) struct TreeFlow {
    pub(crate) flight: Flight,
    pub(crate) stats: TreeStats,
    window: Window,
    /// Upper limit of the window, by the plan.
    window_max: u16,
    rtt: RttEstimator,
    /// Deadline of the retransmission time-out, and the number of time-outs since the last result.
    deadline: Option<Time>,
    backoffs: u32,
    /// Deadline for holes, and the number of times it has passed.
    holes_at: Option<Time>,
    hole_backoffs: u32,
    /// When a fragment was last sent again because of silence.
    probed: Option<Time>,
    /// When the tree last answered, or had nothing to answer.
    last_seen: Time,
    reported_silent: Time,
}

impl TreeFlow {
    /// `cap`: maximum window until the first result; `first`: the first number.
    pub(crate) fn new(
        now: Time,
        rule: CongestionRule,
        window_max: u16,
        cap: u16,
        first: u64,
    ) -> TreeFlow {
        TreeFlow {
            flight: Flight::new(window_max, first),
            stats: TreeStats::default(),
            window: Window::new(rule, cap),
            window_max,
            rtt: RttEstimator::default(),
            deadline: None,
            backoffs: 0,
            holes_at: None,
            hole_backoffs: 0,
            probed: None,
            last_seen: now,
            reported_silent: now,
        }
    }

    /// Visits the state.
    pub(crate) fn visit(&mut self, v: &mut impl Visitor) {
        let TreeFlow {
            flight,
            stats,
            window,
            window_max: _,
            rtt,
            deadline,
            backoffs,
            holes_at,
            hole_backoffs,
            probed,
            last_seen,
            // Only a time-out reads it, and between equal states there is none.
            reported_silent: _,
        } = self;
        let is_idle = flight.in_flight() == 0 && deadline.is_none();
        window.visit(v, flight.base());
        flight.visit(v);
        stats.visit(v);
        rtt.visit(v);
        [deadline, holes_at, probed].into_iter().for_each(|at| v.moment_if(at));
        v.same(u64::from(*backoffs) << 32 | u64::from(*hole_backoffs));
        // The first packet after a pause sets it.
        match is_idle {
            true => v.unread(last_seen),
            false => v.moment(last_seen),
        }
    }

    /// The next number to send: lost numbers first, then new ones that the window allows below `limit`.
    pub(crate) fn next(&mut self, now: Time, limit: u64) -> Option<(u64, Sending)> {
        if let Some(number) = self.flight.send_again(now) {
            self.stats.resent += 1;
            return Some((number, Sending::Again));
        }
        let window = self.window();
        if self.flight.in_flight() >= window {
            return None;
        }
        let idle = self.flight.in_flight() == 0;
        // Numbers whose results arrived without the own contribution are skipped, but not beyond the window.
        let limit = limit.min(self.flight.base() + u64::from(window));
        let (number, requested) = self.flight.send_next(now, limit)?;
        self.stats.sent += 1;
        if idle {
            self.last_seen = now;
        }
        if self.deadline.is_none() {
            self.deadline = Some(now.after(self.rtt.rto_ns(0)));
        }
        Some((number, if requested { Sending::Requested } else { Sending::First }))
    }

    /// Maximum window that aggregators and the plan allow.
    pub(crate) fn cap(&self) -> u16 {
        self.window.cap().min(self.window_max)
    }

    /// The window in use.
    pub(crate) fn window(&self) -> u32 {
        self.window.fragments().min(u32::from(self.window_max))
    }

    /// Handles a result, which is the acknowledgement. `at_once`: whether it came as soon as it was there, so that it
    /// shows the round trip.
    pub(crate) fn acknowledge(&mut self, now: Time, number: u64, signals: Signals, at_once: bool) {
        let was_ahead = number >= self.flight.highest();
        let Receipt::New { rtt_ns, was_resent } = self.flight.receive(now, number) else {
            return;
        };
        let rtt_ns = rtt_ns.filter(|_| at_once);
        self.stats.results += 1;
        self.stats.waiting_for = 0;
        self.last_seen = now;
        self.backoffs = 0;
        if let Some(rtt_ns) = rtt_ns {
            self.rtt.sample(rtt_ns);
        }
        if was_ahead {
            self.window.set_cap(signals.cap);
        }
        self.stats.marked += u64::from(signals.marks != 0 || signals.down);
        self.window.on_result(number, self.flight.next(), signals.marks, signals.down);
        let mut lost = self.flight.find_holes();
        if let Some(rtt_ns) = rtt_ns {
            lost += self.flight.find_lost_again(Time(now.0.saturating_sub(rtt_ns)));
        }
        if let Some(probed) = self.probed.take_if(|_| was_resent) {
            // The probe was answered with the sum, so its first transmission or its first result was lost, and most
            // likely everything else from before the probe that has no result.
            lost += self.flight.resend_older(probed);
        }
        if lost > 0 {
            self.window.on_loss(number, self.flight.next());
        }
        let rto_ns = self.rtt.rto_ns(0);
        self.deadline = (self.flight.in_flight() > 0).then(|| now.after(rto_ns));
        self.hole_backoffs = 0;
        self.holes_at = self.flight.has_hole().then(|| now.after(self.reordering_ns()));
    }

    /// Maximum reordering of results: if results arrive for fragments behind a hole, the tree works.
    fn reordering_ns(&self) -> u64 {
        self.rtt.smoothed_ns().max(MIN_REORDERING_NS)
    }

    /// Handles a report that the own contribution to `number` is counted and others' are not: this is no loss.
    pub(crate) fn wait(&mut self, now: Time, number: u64, ranks: u64) -> Result<(), DropReason> {
        self.stats.spurious += 1;
        if !self.flight.covers(number) || self.flight.is_received(number) {
            return Err(DropReason::Unexpected);
        }
        self.last_seen = now;
        self.probed = None;
        self.flight.set_counted(now, number);
        self.stats.waiting_for = ranks;
        Ok(())
    }

    /// Handles a request for the own contribution to `number`, which has not arrived where others' wait for it: sends it
    /// again, or, if it was sent within a round trip, soon asks about the lowest number. Returns whether the request is
    /// about a number without a result.
    pub(crate) fn request(&mut self, now: Time, number: u64) -> bool {
        if !self.flight.covers(number) || self.flight.is_received(number) {
            return false;
        }
        self.last_seen = now;
        let rtt_ns = self.rtt.measured_ns().unwrap_or(MIN_REORDERING_NS).max(1);
        if self.flight.request(now, number, rtt_ns) {
            // On its way, or in a slot that others passed by.
            let soon = now.after(self.reordering_ns());
            self.deadline = self.deadline.map(|at| at.min(soon));
        }
        true
    }

    /// When `handle_timeout` must be called.
    pub(crate) fn deadline(&self) -> Option<Time> {
        [self.deadline, self.holes_at].into_iter().flatten().min()
    }

    /// Queues what a passed deadline makes lost; returns how long the tree has been silent if that is to be reported.
    pub(crate) fn handle_timeout(&mut self, now: Time) -> Option<u64> {
        if self.holes_at.is_some_and(|at| at <= now) {
            let patience_ns = self.reordering_ns();
            let ago = |ns: u64| Time(now.0.saturating_sub(ns));
            self.flight.resend_old_holes(ago(patience_ns), ago(COUNTED_PATIENCE * patience_ns));
            self.hole_backoffs += 1;
            let patience_ns = patience_ns << self.hole_backoffs.min(16);
            // Beyond that it is silence.
            let goes_on = self.flight.has_hole() && patience_ns < self.rtt.rto_ns(0);
            self.holes_at = goes_on.then(|| now.after(patience_ns));
        }
        if self.deadline.is_none_or(|d| d > now) {
            return None;
        }
        self.deadline = None;
        if self.flight.probe().is_some() {
            self.stats.timeouts += 1;
            self.backoffs += 1;
            self.probed.get_or_insert(now);
            self.deadline = Some(now.after(self.rtt.rto_ns(self.backoffs)));
        }
        let silent = now.since(self.last_seen);
        let report = silent >= SILENT_NS && now.since(self.reported_silent) >= SILENT_NS;
        if report {
            self.reported_silent = now;
        }
        report.then_some(silent)
    }

    /// Hashes the state that determines all future behaviour except for the window.
    pub(crate) fn digest(&self, state: &mut impl Hasher) {
        (&self.flight, self.deadline, self.backoffs, self.probed, self.last_seen).hash(state);
        (self.holes_at, self.hole_backoffs).hash(state);
    }

    /// Statistics.
    pub(crate) fn stats(&self) -> TreeStats {
        TreeStats {
            window: self.window.fragments(),
            window_cap: self.window.cap(),
            in_flight: self.flight.in_flight(),
            rtt_ns: self.rtt.smoothed_ns(),
            ..self.stats
        }
    }
}
