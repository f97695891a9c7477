//! Events as transactions: the changes of an event are saved first and then take effect, or not at all.

use std::collections::VecDeque;

use netsum_topo::Fabric;

use crate::decide::{Action, Answer, Decision, Event, Refusal, Settings, State};
use crate::error::ControlError;
use crate::limits::ACKS_DEFERRED_MAX;
use crate::pb;
use crate::store::{Change, Store, job_row, loaded, member_row};

/// A controller without sockets and clock: its state and its store.
///
/// A report changes the state in place. Any other event is decided on a copy, which shares unchanged parts; when the
/// store has saved the decision, the copy becomes the state and the actions are returned.
#[derive(Debug)]
pub struct Engine<S> {
    state: State,
    store: S,
    /// Events that arrived while the store failed, in order.
    deferred: VecDeque<Event>,
    trouble: Option<Trouble>,
    failures: u64,
    term: u64,
    /// Why nothing takes effect any more.
    over: Option<String>,
}

/// Why a decision has no effect.
enum Setback {
    /// The store fails.
    Trouble(String),
    /// The term is over.
    Over(String),
}

/// The store fails.
#[derive(Debug)]
struct Trouble {
    since_ms: u64,
    retry_at_ms: u64,
    problem: String,
}

/// The state at a time.
#[derive(Debug)]
pub(crate) struct Snapshot {
    state: State,
    store: pb::StoreStatus,
    term: u64,
    now_ms: u64,
}

impl Snapshot {
    /// The state as a message.
    pub fn status(&self) -> pb::StatusReply {
        let (store, term) = (Some(self.store.clone()), self.term);
        pb::StatusReply { store, term, ..self.state.status(self.now_ms) }
    }
}

/// The outcome of an event.
#[derive(Debug)]
pub struct Outcome {
    /// Messages to send and streams to close, in order. Everything is saved.
    pub actions: Vec<Action>,
    /// The answer to the caller that caused the event.
    pub answer: Result<Answer, Failure>,
}

/// Why a request has no effect.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The controller refused it.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The store could not save it.
    #[error("{0}; nothing was changed, try again once the store works")]
    Store(String),
    /// The controller's term is over. What it wanted to save last may have been saved.
    #[error("{0}")]
    Over(String),
}

impl<S: Store> Engine<S> {
    /// Begins a term and loads the store.
    pub fn new(
        fabric: Fabric,
        settings: Settings,
        mut store: S,
    ) -> Result<Engine<S>, ControlError> {
        let term = store.begin_term()?;
        let loaded = loaded(store.load()?, &fabric.topology());
        let state = State::new(fabric, settings, loaded);
        let (deferred, trouble, failures, over) = (VecDeque::new(), None, 0, None);
        Ok(Engine { state, store, deferred, trouble, failures, term, over })
    }

    /// Handles an event. `now_ms` never decreases.
    ///
    /// While the store fails, requests are refused; other events are deferred and take effect, in order, when the store
    /// works again. Once the term is over, every event is refused.
    pub fn handle(&mut self, now_ms: u64, event: Event, unix_s: f64) -> Outcome {
        if event.term_seen() > self.term {
            // The peer knows better, or lies: the store tells.
            let _ = self.confirm();
        }
        if let Some(problem) = &self.over {
            let answer = Err(Failure::Over(problem.clone()));
            return Outcome { actions: Vec::new(), answer };
        }
        if event.is_report() {
            let Decision { actions, answer } = self.state.decide(now_ms, event, unix_s);
            return Outcome { actions, answer: answer.map_err(Failure::Refused) };
        }
        let mut actions = Vec::new();
        if self.trouble.is_some() && event == Event::Tick && !self.is_due(now_ms) {
            return Outcome { actions, answer: Ok(Answer::Done) };
        }
        while let Some(deferred) = self.deferred.front().cloned() {
            match self.attempt(now_ms, &deferred, unix_s) {
                Ok(decision) => actions.extend(decision.actions),
                Err(setback) => return self.put_off(actions, event, setback),
            }
            self.deferred.pop_front();
        }
        match self.attempt(now_ms, &event, unix_s) {
            Ok(decision) => {
                actions.extend(decision.actions);
                Outcome { actions, answer: decision.answer.map_err(Failure::Refused) }
            }
            Err(setback) => self.put_off(actions, event, setback),
        }
    }

    /// Confirms that no later term has begun, so that the state is the newest. Errors: the term is over, or the store
    /// does not answer.
    pub fn confirm(&mut self) -> Result<(), Failure> {
        if self.over.is_none()
            && let Err(error) = self.store.confirm()
        {
            match error {
                ControlError::Deposed { .. } => self.over = Some(error.to_string()),
                _ => return Err(Failure::Store(error.to_string())),
            };
        }
        self.over.clone().map_or(Ok(()), |problem| Err(Failure::Over(problem)))
    }

    /// The number of the term.
    pub fn term(&self) -> u64 {
        self.term
    }

    /// Why nothing takes effect any more, once the term is over: another controller has begun a later one, or it is
    /// unknown what the store holds.
    pub fn over(&self) -> Option<&str> {
        self.over.as_deref()
    }

    /// The whole state at `now_ms`.
    pub fn status(&self, now_ms: u64) -> pb::StatusReply {
        self.snapshot(now_ms).status()
    }

    /// The state at `now_ms`; cheap, since jobs, ranks and switches are shared.
    pub(crate) fn snapshot(&self, now_ms: u64) -> Snapshot {
        let trouble = self.trouble.as_ref();
        let store = pb::StoreStatus {
            place: self.store.place(),
            problem: trouble.map(|trouble| trouble.problem.clone()).unwrap_or_default(),
            failing_for_s: trouble.map_or(0.0, |t| now_ms.saturating_sub(t.since_ms) as f64 / 1e3),
            failures: self.failures,
            deferred_events: self.deferred.len() as u32,
        };
        Snapshot { state: self.state.clone(), store, term: self.term, now_ms }
    }

    /// The state in effect.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// The store's error, while it fails.
    pub fn problem(&self) -> Option<&str> {
        self.trouble.as_ref().map(|trouble| trouble.problem.as_str())
    }

    fn is_due(&self, now_ms: u64) -> bool {
        self.trouble.as_ref().is_none_or(|trouble| trouble.retry_at_ms <= now_ms)
    }

    /// Decides on a copy, saves, and takes the copy into use. Errors: why that has failed.
    fn attempt(&mut self, now_ms: u64, event: &Event, unix_s: f64) -> Result<Decision, Setback> {
        let mut next = self.state.clone();
        let mut decision = next.decide(now_ms, event.clone(), unix_s);
        if decision.answer.is_err() {
            // The state is unchanged. A refusal says what is so: only the newest state can.
            return match self.confirm() {
                Ok(()) => Ok(Decision { actions: Vec::new(), ..decision }),
                Err(Failure::Over(problem)) => Err(Setback::Over(problem)),
                Err(failure) => Err(Setback::Trouble(failure.to_string())),
            };
        }
        let changes = changes(&self.state, &next, &decision.actions);
        if !changes.is_empty()
            && let Err(error) = self.store.save(&changes)
        {
            let problem = error.to_string();
            if matches!(error, ControlError::Deposed { .. } | ControlError::Uncertain { .. }) {
                self.over = Some(problem.clone());
                return Err(Setback::Over(problem));
            }
            let since_ms = self.trouble.as_ref().map_or(now_ms, |trouble| trouble.since_ms);
            let retry_at_ms = now_ms + RETRY_MS;
            self.trouble = Some(Trouble { since_ms, retry_at_ms, problem: problem.clone() });
            self.failures += 1;
            return Err(Setback::Trouble(problem));
        }
        if !changes.is_empty() {
            self.trouble = None;
        }
        self.state = next;
        decision.actions.retain(|action| !is_save(action));
        Ok(decision)
    }

    fn put_off(&mut self, actions: Vec<Action>, event: Event, setback: Setback) -> Outcome {
        let problem = match setback {
            Setback::Trouble(problem) => problem,
            Setback::Over(problem) => {
                // The actions of deferred events are saved: whoever leads next repeats them.
                return Outcome { actions: Vec::new(), answer: Err(Failure::Over(problem)) };
            }
        };
        if event.is_request() {
            return Outcome { actions, answer: Err(Failure::Store(problem)) };
        }
        // A confirmation that is not deferred comes too late: the controller asks the switch again.
        let is_ack = matches!(event, Event::LeaseAck { .. });
        if event != Event::Tick && !(is_ack && self.deferred.len() >= ACKS_DEFERRED_MAX) {
            self.deferred.push_back(event);
        }
        Outcome { actions, answer: Ok(Answer::Done) }
    }
}

/// The rows that a decision must save.
fn changes(before: &State, after: &State, actions: &[Action]) -> Vec<Change> {
    let (fabric, topology) = (after.fabric(), after.topology());
    let mut changes = Vec::new();
    if before.next_job() != after.next_job() {
        changes.push(Change::NextJob(after.next_job()));
    }
    // Of several saves of a job or rank only the last is needed: each would write the state after the event.
    let mut seen = std::collections::HashSet::new();
    for action in actions {
        match *action {
            Action::SaveJob(id) if seen.insert((id, None)) => {
                let row = after.job(id).map(|job| job_row(job, fabric, topology));
                let is_new = before.job(id).is_none();
                changes.extend(row.map(if is_new { Change::NewJob } else { Change::Job }));
            }
            Action::SaveMember(id, rank) if seen.insert((id, Some(rank))) => {
                let member = after.job(id).and_then(|job| job.members.get(rank as usize));
                let row = member.map(|member| member_row(id, rank, member, topology));
                changes.extend(row.map(Change::Member));
            }
            _ => {}
        }
    }
    changes
}

fn is_save(action: &Action) -> bool {
    matches!(action, Action::SaveJob(_) | Action::SaveMember(..))
}

/// Interval between attempts to save deferred events.
const RETRY_MS: u64 = 500;
