//! Events as transactions: what an event changes is saved first and takes effect then, or not at all.

use std::collections::VecDeque;

use netsum_topo::Fabric;

use crate::decide::{Action, Answer, Decision, Event, Refusal, Settings, State};
use crate::error::ControlError;
use crate::pb;
use crate::store::{Change, Store, job_row, loaded, member_row};

/// A controller without sockets and clock: its state and its store.
///
/// A report changes the state in place. Any other event is decided on a copy, which shares all that does not change;
/// when the store has what the decision saves, the copy becomes the state and the actions are returned.
#[derive(Debug)]
pub struct Engine<S> {
    state: State,
    store: S,
    /// Events that have happened while the store failed, in order.
    deferred: VecDeque<Event>,
    trouble: Option<Trouble>,
    failures: u64,
}

/// The store does not work.
#[derive(Debug)]
struct Trouble {
    since_ms: u64,
    retry_at_ms: u64,
    problem: String,
}

/// What follows from an event.
#[derive(Debug)]
pub struct Outcome {
    /// Messages to send and streams to close, in order. Nothing is left to save.
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
    /// The store could not take it.
    #[error("{0}; nothing was changed, try again once this is mended")]
    Store(String),
}

impl<S: Store> Engine<S> {
    /// Loads the store.
    pub fn new(
        fabric: Fabric,
        settings: Settings,
        mut store: S,
    ) -> Result<Engine<S>, ControlError> {
        let loaded = loaded(store.load()?, &fabric.topology());
        let state = State::new(fabric, settings, loaded);
        Ok(Engine { state, store, deferred: VecDeque::new(), trouble: None, failures: 0 })
    }

    /// Takes an event. `now_ms` never falls.
    ///
    /// While the store fails, requests are refused; other events are deferred and take effect, in order, when the
    /// store works again.
    pub fn handle(&mut self, now_ms: u64, event: Event, unix_s: f64) -> Outcome {
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
                Err(problem) => return self.put_off(actions, event, problem),
            }
            self.deferred.pop_front();
        }
        match self.attempt(now_ms, &event, unix_s) {
            Ok(decision) => {
                actions.extend(decision.actions);
                Outcome { actions, answer: decision.answer.map_err(Failure::Refused) }
            }
            Err(problem) => self.put_off(actions, event, problem),
        }
    }

    /// Everything, as of `now_ms`.
    pub fn status(&self, now_ms: u64) -> pb::StatusReply {
        let trouble = self.trouble.as_ref();
        let store = pb::StoreStatus {
            place: self.store.place(),
            problem: trouble.map(|trouble| trouble.problem.clone()).unwrap_or_default(),
            failing_for_s: trouble.map_or(0.0, |t| now_ms.saturating_sub(t.since_ms) as f64 / 1e3),
            failures: self.failures,
            deferred_events: self.deferred.len() as u32,
        };
        pb::StatusReply { store: Some(store), ..self.state.status(now_ms) }
    }

    /// What has taken effect.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// The problem of the store, while it has one.
    pub fn problem(&self) -> Option<&str> {
        self.trouble.as_ref().map(|trouble| trouble.problem.as_str())
    }

    fn is_due(&self, now_ms: u64) -> bool {
        self.trouble.as_ref().is_none_or(|trouble| trouble.retry_at_ms <= now_ms)
    }

    /// Decides on a copy, saves, and takes the copy over. Errors: why the store did not take it.
    fn attempt(&mut self, now_ms: u64, event: &Event, unix_s: f64) -> Result<Decision, String> {
        let mut next = self.state.clone();
        let mut decision = next.decide(now_ms, event.clone(), unix_s);
        if decision.answer.is_err() {
            // The state is as before.
            return Ok(Decision { actions: Vec::new(), ..decision });
        }
        let changes = changes(&self.state, &next, &decision.actions);
        if !changes.is_empty()
            && let Err(error) = self.store.save(&changes)
        {
            let problem = error.to_string();
            let since_ms = self.trouble.as_ref().map_or(now_ms, |trouble| trouble.since_ms);
            let retry_at_ms = now_ms + RETRY_MS;
            self.trouble = Some(Trouble { since_ms, retry_at_ms, problem: problem.clone() });
            self.failures += 1;
            return Err(problem);
        }
        if !changes.is_empty() {
            self.trouble = None;
        }
        self.state = next;
        decision.actions.retain(|action| !is_save(action));
        Ok(decision)
    }

    fn put_off(&mut self, actions: Vec<Action>, event: Event, problem: String) -> Outcome {
        if event.is_request() {
            return Outcome { actions, answer: Err(Failure::Store(problem)) };
        }
        if event != Event::Tick {
            self.deferred.push_back(event);
        }
        Outcome { actions, answer: Ok(Answer::Done) }
    }
}

/// The rows that a decision has to save.
fn changes(before: &State, after: &State, actions: &[Action]) -> Vec<Change> {
    let (fabric, topology) = (after.fabric(), after.topology());
    let mut changes = Vec::new();
    if before.next_job() != after.next_job() {
        changes.push(Change::NextJob(after.next_job()));
    }
    // Of several saves of a job or rank the last counts: each would write what is true after the event.
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

/// Between attempts to save what nobody waits for.
const RETRY_MS: u64 = 500;
