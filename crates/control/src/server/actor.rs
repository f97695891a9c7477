//! The one owner of the controller's state: takes events in turn, decides, keeps, tells.

use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::sync::{mpsc, oneshot};

use crate::decide::{Action, Answer, Event, Refusal, SessionId, State};
use crate::error::ControlError;
use crate::pb;
use crate::store::Store;

/// What the handlers ask of the owner.
pub(super) enum Message {
    /// Something happened.
    Event(Event, Option<oneshot::Sender<Reply>>),
    /// A stream was opened; the event is its first report.
    Open(SessionId, Outlet, Event, oneshot::Sender<Reply>),
    /// Somebody asks.
    Status(oneshot::Sender<pb::StatusReply>),
    /// Somebody asks for the jobs, with those that are over or without.
    Jobs(bool, oneshot::Sender<Vec<pb::JobSummary>>),
    /// Somebody asks for the fabric's name and hosts.
    Fabric(oneshot::Sender<pb::FabricReply>),
}

/// The answer to an event.
pub(super) type Reply = Result<Answer, Failure>;

/// Why there is no good answer.
pub(super) enum Failure {
    Refused(Refusal),
    Store(ControlError),
}

/// The way down to a peer. Dropping it ends the stream, and with `alive` the reading of reports.
pub(super) struct Outlet {
    pub way: Way,
    pub alive: oneshot::Sender<()>,
}

/// By kind of peer.
pub(super) enum Way {
    Worker(mpsc::Sender<Result<pb::WorkerEvent, tonic::Status>>),
    Switch(mpsc::Sender<Result<pb::SwitchCommand, tonic::Status>>),
}

/// Serves until told to quit or until nobody can send any more.
pub(super) async fn run(
    state: State,
    store: Box<dyn Store>,
    mut inbox: mpsc::Receiver<Message>,
    mut quit: oneshot::Receiver<()>,
) {
    let mut actor =
        Actor { state, store, outlets: HashMap::new(), start: Instant::now(), logged: (0, 0) };
    let mut tick = tokio::time::interval(TICK);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = &mut quit => return,
            _ = tick.tick() => drop(actor.event(Event::Tick)),
            message = inbox.recv() => match message {
                Some(message) => actor.handle(message),
                None => return,
            },
        }
    }
}

struct Actor {
    state: State,
    store: Box<dyn Store>,
    outlets: HashMap<SessionId, Outlet>,
    start: Instant,
    /// Job and epoch of the plan that was logged last.
    logged: (u32, u32),
}

impl Actor {
    fn handle(&mut self, message: Message) {
        match message {
            Message::Event(event, reply) => {
                let closed = closed_session(&event);
                let answer = self.event(event);
                if let Some(session) = closed {
                    self.outlets.remove(&session);
                }
                if let Some(reply) = reply {
                    let _ = reply.send(answer);
                }
            }
            Message::Open(session, outlet, event, reply) => {
                self.outlets.insert(session, outlet);
                let answer = self.event(event);
                if answer.is_err() {
                    self.outlets.remove(&session);
                }
                let _ = reply.send(answer);
            }
            Message::Status(reply) => drop(reply.send(self.state.status(self.now_ms()))),
            Message::Jobs(ended, reply) => drop(reply.send(self.state.job_list(ended))),
            Message::Fabric(reply) => {
                let name = self.state.fabric().name.clone();
                let _ = reply.send(pb::FabricReply {
                    name,
                    hosts: self.state.hosts(),
                    version: super::VERSION.to_owned(),
                });
            }
        }
    }

    fn event(&mut self, event: Event) -> Reply {
        let log =
            !matches!(event, Event::Tick | Event::WorkerBeat { .. } | Event::SwitchBeat { .. });
        if log {
            tracing::debug!(?event, "event");
        }
        let unix_s =
            SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
        let decision = self.state.decide(self.now_ms(), event, unix_s);
        let mut failed = None;
        for action in decision.actions {
            if let Err(error) = self.act(action) {
                tracing::error!(%error, "a change could not be kept; after a restart it is forgotten");
                failed = Some(error);
            }
        }
        match (decision.answer, failed) {
            (Err(refusal), _) => Err(Failure::Refused(refusal)),
            (Ok(_), Some(error)) => Err(Failure::Store(error)),
            (Ok(answer), None) => Ok(answer),
        }
    }

    fn act(&mut self, action: Action) -> Result<(), ControlError> {
        let state = &self.state;
        match action {
            Action::SaveJob(id) => match state.job(id) {
                Some(job) => self.store.save_job(job, state.fabric(), state.topology()),
                None => Ok(()),
            },
            Action::SaveMember(id, rank) => match state.job(id) {
                Some(job) => self.store.save_member(job, rank, state.topology()),
                None => Ok(()),
            },
            Action::TellWorker(session, event) => {
                self.log_word(session, &event);
                self.tell(session, |way| match way {
                    Way::Worker(sender) => {
                        sender.try_send(Ok(pb::WorkerEvent { event: Some(event) })).is_ok()
                    }
                    Way::Switch(_) => true,
                });
                Ok(())
            }
            Action::TellSwitch(session, command) => {
                tracing::debug!(session = session.0, ?command, "to switch");
                self.tell(session, |way| match way {
                    Way::Switch(sender) => {
                        sender.try_send(Ok(pb::SwitchCommand { command: Some(command) })).is_ok()
                    }
                    Way::Worker(_) => true,
                });
                Ok(())
            }
            Action::Close(session) => {
                self.outlets.remove(&session);
                Ok(())
            }
        }
    }

    /// A peer that does not read what it is told loses its stream, and comes back or is lost.
    fn tell(&mut self, session: SessionId, send: impl FnOnce(&Way) -> bool) {
        let read = self
            .outlets
            .get(&session)
            .is_none_or(|outlet| send(&outlet.way) && !outlet.alive.is_closed());
        if !read {
            tracing::warn!(session = session.0, "the peer does not read; its stream is closed");
            self.outlets.remove(&session);
        }
    }

    /// A plan is the same for all ranks: one line for it.
    fn log_word(&mut self, session: SessionId, event: &pb::worker_event::Event) {
        use pb::worker_event::Event;
        match event {
            Event::Plan(plan) if self.logged == (plan.job, plan.epoch) => {}
            Event::Plan(plan) => {
                self.logged = (plan.job, plan.epoch);
                let (trees, reason) = (plan.trees.len(), &plan.reason);
                tracing::info!(
                    job = plan.job,
                    epoch = plan.epoch,
                    trees,
                    window = plan.window_max,
                    reason,
                    "plan"
                );
            }
            Event::PeerLost(lost) => {
                tracing::warn!(session = session.0, rank = lost.rank, "peer lost")
            }
            Event::JobFailed(failed) => {
                tracing::warn!(session = session.0, reason = failed.reason, "job failed")
            }
        }
    }

    fn now_ms(&self) -> u64 {
        self.start.elapsed().as_millis() as u64
    }
}

fn closed_session(event: &Event) -> Option<SessionId> {
    match event {
        Event::WorkerClosed { session } | Event::SwitchClosed { session } => Some(*session),
        _ => None,
    }
}

/// Precision of all waiting times.
const TICK: Duration = Duration::from_millis(100);
