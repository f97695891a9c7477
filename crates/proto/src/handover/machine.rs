//! The part that both modes share: phases, operations, deadlines.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use netsum_wire::Rank;

use super::led::Led;
use super::message::{Body, Done, Message, Report};
use super::{
    Action, Awaited, Cause, Frozen, HandoverError, MessageError, Mode, Path, PendingOperation,
    Plan, Resume, Serve, Settings, Transmit,
};
use crate::Time;

/// One rank's part in the hand-overs of its group. See the [module](super).
#[derive(Clone, Debug)]
pub struct Handover<P> {
    pub(super) settings: Settings,
    pub(super) phase: Phase,
    /// Number of the current hand-over, or else of the last one.
    pub(super) generation: u64,
    /// When this rank left [`Phase::Steady`], and when sums stopped.
    pub(super) begun: Time,
    pub(super) since: Time,
    /// The path of operations.
    pub(super) path: Path,
    /// Reports of the current hand-over, by rank.
    pub(super) reports: BTreeMap<Rank, Report<P>>,
    /// Operations that wait for a path, with their deadlines.
    pub(super) waiting: BTreeMap<u64, Time>,
    /// One more than the highest operation that was begun or queued.
    pub(super) issued: u64,
    // Leaderless mode.
    /// The plan in use, and the newest from the controller.
    pub(super) plan: Option<P>,
    pub(super) newest: Option<P>,
    /// Operations below this use the host path with any plan: other ranks may have begun them there.
    pub(super) hosts_until: u64,
    /// Reports for the next hand-over, from ranks that have finished this one.
    pub(super) early: BTreeMap<Rank, Report<P>>,
    /// Trees that do not answer.
    pub(super) suspicions: BTreeMap<u8, Suspicion>,
    /// Trees of the plan in use that were abandoned.
    pub(super) given_up: BTreeSet<u8>,
    /// Results that arrived before this rank had all reports.
    pub(super) held: Vec<(Rank, Results)>,
    /// Results that are awaited, with the ranks that send them.
    pub(super) awaited: BTreeMap<u64, Rank>,
    /// Batches of results that others lack; the first one is being fetched.
    pub(super) batches: VecDeque<Vec<Serve>>,
    /// The conclusion, which takes effect when all results are served.
    pub(super) conclusion: Option<Box<Conclusion<P>>>,
    pub(super) led: Led,
    transmits: VecDeque<Transmit>,
    actions: VecDeque<Action<P>>,
}

/// Results by fragment.
pub(super) type Results = Vec<(u64, Vec<u8>)>;

/// Phase of a hand-over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// No hand-over.
    Steady,
    /// Led: this rank has asked for a hand-over.
    Asking,
    /// The driver stops the path.
    Freezing,
    /// Waits for other ranks' reports, or for rank 0's conclusion.
    Reporting,
    /// Led, rank 0: the driver searches for a plan.
    Planning,
    /// Ranks exchange results.
    Serving,
    /// Led: the driver connects the new path.
    Opening,
    /// The group cannot continue.
    Failed,
}

/// The conclusion of all ranks.
#[derive(Clone, Debug)]
pub(super) struct Conclusion<P> {
    pub(super) resume: Resume<P>,
    /// Leaderless: operations below this use the host path.
    pub(super) hosts_until: u64,
}

/// A tree that does not answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Suspicion {
    /// When it last answered.
    pub(super) since: Time,
    pub(super) noticed: Time,
    /// Number of its results by then.
    pub(super) results: u64,
}

impl<P: Plan> Handover<P> {
    /// A machine of a new group. Leaderless: there is no plan yet, and sums use the host path. Led: the ranks have
    /// connected the plan of generation 1. Panics if the rank is not in the group.
    pub fn new(settings: Settings) -> Handover<P> {
        assert!(settings.rank.0 < settings.size, "rank {} of {}", settings.rank.0, settings.size);
        let (generation, path) = match settings.mode {
            Mode::Leaderless => (0, Path::Hosts),
            Mode::Led => (1, Path::Network),
        };
        Handover {
            settings,
            phase: Phase::Steady,
            generation,
            begun: Time(0),
            since: Time(0),
            path,
            reports: BTreeMap::new(),
            waiting: BTreeMap::new(),
            issued: 0,
            plan: None,
            newest: None,
            hosts_until: 0,
            early: BTreeMap::new(),
            suspicions: BTreeMap::new(),
            given_up: BTreeSet::new(),
            held: Vec::new(),
            awaited: BTreeMap::new(),
            batches: VecDeque::new(),
            conclusion: None,
            led: Led::default(),
            transmits: VecDeque::new(),
            actions: VecDeque::new(),
        }
    }

    /// Handles another rank's message. An error leaves the machine unchanged; the ranks can usually not continue then.
    pub fn handle_message(
        &mut self,
        now: Time,
        from: Rank,
        bytes: &[u8],
    ) -> Result<(), MessageError> {
        if self.phase == Phase::Failed {
            return Ok(());
        }
        self.take(now, from, bytes).map_err(|cause| MessageError { from, cause })
    }

    fn take(&mut self, now: Time, from: Rank, bytes: &[u8]) -> Result<(), Cause> {
        if from == self.settings.rank || from.0 >= self.settings.size {
            return Err(Cause::Unexpected("its sender is no other rank of the group"));
        }
        let Message { generation, body } = Message::decode(bytes, self.settings.size)?;
        match (self.settings.mode, body) {
            (Mode::Leaderless, Body::Report(report)) => {
                self.take_report(now, from, generation, report)
            }
            (Mode::Leaderless, Body::Results(results)) => {
                self.take_results(now, from, generation, results)
            }
            (Mode::Led, body) => self.take_led(now, from, generation, body),
            (Mode::Leaderless, _) => Err(Cause::Unexpected("nobody leads this group")),
        }
    }

    /// Begins an operation of the caller. [`Action::Run`] names its path, immediately or after a hand-over.
    pub fn handle_operation(&mut self, operation: PendingOperation) {
        if self.phase == Phase::Failed {
            return;
        }
        self.issued = self.issued.max(operation.sequence + 1);
        match self.settings.mode {
            Mode::Leaderless if self.phase == Phase::Steady => {
                let path = self.path_of(operation.sequence);
                self.act(Action::Run { sequence: operation.sequence, path });
            }
            Mode::Leaderless => {
                self.waiting.insert(operation.sequence, operation.deadline);
            }
            Mode::Led => self.begin_operation(operation),
        }
    }

    /// The driver has stopped the path.
    pub fn handle_frozen(&mut self, now: Time, frozen: Frozen) {
        if self.phase != Phase::Freezing {
            return;
        }
        let (progress, faults) = match frozen {
            Frozen::Fragments { progress, submitted } => {
                (Done::Fragments { progress, submitted }, Vec::new())
            }
            Frozen::Elements { finals, faults } => (self.elements_done(finals), faults),
        };
        self.report(now, progress, faults);
    }

    /// Sends this rank's report to the ranks that need it.
    pub(super) fn report(&mut self, now: Time, progress: Done, faults: Vec<Vec<u8>>) {
        let report = Report {
            epoch: self.plan.as_ref().map(Plan::epoch),
            issued: self.issued,
            over: self.led.over,
            silent: self.suspicions.keys().copied().collect(),
            faults,
            progress,
            newest: self.newest.clone(),
        };
        let to: Vec<Rank> = match self.settings.mode {
            Mode::Leaderless => self.settings.others().collect(),
            Mode::Led => self.leader().into_iter().collect(),
        };
        if !to.is_empty() {
            self.send(&to, Body::Report(report.clone()));
        }
        self.reports.insert(self.settings.rank, report);
        self.phase = Phase::Reporting;
        match self.settings.mode {
            Mode::Leaderless => self.conclude_if_all_reported(now),
            Mode::Led => self.plan_if_all_reported(),
        }
    }

    /// Ends what has exceeded its deadline.
    pub fn handle_timeout(&mut self, now: Time) {
        if self.phase == Phase::Failed {
            return;
        }
        if self.phase == Phase::Steady && self.patience_ends().is_some_and(|at| at <= now) {
            self.begin(now);
        }
        let late = self.waiting.iter().find(|(_, deadline)| **deadline <= now);
        let late = late.map(|(&sequence, _)| sequence);
        if late.is_some() || self.ends().is_some_and(|at| at <= now) {
            self.fail(HandoverError::Timeout {
                awaited: self.awaits(),
                missing: self.missing(),
                operation: late,
            });
        }
    }

    /// When [`Handover::handle_timeout`] must be called next.
    pub fn poll_timeout(&self) -> Option<Time> {
        let patience = self.patience_ends().filter(|_| self.phase == Phase::Steady);
        let waiting = self.waiting.values().copied().min();
        [patience, self.ends(), waiting].into_iter().flatten().min()
    }

    /// The next message to send.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        self.transmits.pop_front()
    }

    /// The next action for the driver.
    pub fn poll_action(&mut self) -> Option<Action<P>> {
        self.actions.pop_front()
    }

    /// Whether a hand-over is in progress, so that operations wait.
    pub fn is_under_way(&self) -> bool {
        self.phase != Phase::Steady
    }

    /// Number of the current hand-over, or else of the last one.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The path of operations that begin now, unless a hand-over is in progress.
    pub fn path(&self) -> Path {
        self.path
    }

    /// Leaderless: the plan in use, even if its trees are not used.
    pub fn plan(&self) -> Option<&P> {
        self.plan.as_ref()
    }

    /// Ranks that this one waits for.
    pub fn missing(&self) -> Vec<Rank> {
        let size = self.settings.all();
        if self.phase == Phase::Failed {
            return Vec::new();
        }
        match self.awaits() {
            Awaited::Leader => vec![Rank(0)],
            Awaited::Reports => {
                size.map(Rank).filter(|rank| !self.reports.contains_key(rank)).collect()
            }
            Awaited::Results => {
                let of: BTreeSet<Rank> = self.awaited.values().copied().collect();
                of.into_iter().chain(self.led.senders.iter().copied()).collect()
            }
            Awaited::Freeze | Awaited::Plan | Awaited::Opening => Vec::new(),
        }
    }

    fn awaits(&self) -> Awaited {
        match self.phase {
            Phase::Freezing => Awaited::Freeze,
            Phase::Reporting if self.leader().is_none() => Awaited::Reports,
            Phase::Planning => Awaited::Plan,
            Phase::Serving => Awaited::Results,
            Phase::Opening => Awaited::Opening,
            Phase::Steady | Phase::Asking | Phase::Reporting | Phase::Failed => Awaited::Leader,
        }
    }

    /// Deadline of the current hand-over.
    fn ends(&self) -> Option<Time> {
        let steady = matches!(self.phase, Phase::Steady | Phase::Failed);
        (!steady && self.waiting.is_empty()).then(|| self.begun.after(self.settings.timeout_ns))
    }

    /// Leaves the steady phase.
    pub(super) fn pause(&mut self, now: Time, since: Time) {
        if self.phase == Phase::Steady {
            (self.begun, self.since) = (now, since);
        }
    }

    pub(super) fn fail(&mut self, error: HandoverError) {
        self.phase = Phase::Failed;
        self.waiting.clear();
        self.held.clear();
        self.early.clear();
        self.transmits.clear();
        self.actions.clear();
        self.act(Action::Fail(error));
    }

    pub(super) fn act(&mut self, action: Action<P>) {
        self.actions.push_back(action);
    }

    pub(super) fn send(&mut self, to: &[Rank], body: Body<P>) {
        let bytes = Message { generation: self.generation, body }.encode();
        let Some((&last, others)) = to.split_last() else { return };
        for &to in others {
            self.transmits.push_back(Transmit { to, bytes: bytes.clone() });
        }
        self.transmits.push_back(Transmit { to: last, bytes });
    }
}
