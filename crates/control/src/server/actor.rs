//! The owner of the controller's engine: handles events one at a time and performs the resulting actions.

use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::sync::{mpsc, oneshot};

use super::authorisation::{self, Denied, Peer, Request};
use crate::decide::{Action, Answer, Event, SessionId};
use crate::engine::{Engine, Failure, Outcome, Snapshot};
use crate::pb;
use crate::store::Store;

/// Messages from the gRPC handlers to the owner.
pub(super) enum Message {
    /// A report of an open stream, or its end.
    Event(Event, oneshot::Sender<Reply>),
    /// A peer's request.
    Request(Peer, Event, oneshot::Sender<Reply>),
    /// A new stream of a peer; the event is its first report.
    Open(Peer, SessionId, PeerStream, Event, oneshot::Sender<Reply>),
    /// A request for the state, from which the caller makes a status.
    Snapshot(oneshot::Sender<Result<Snapshot, Failure>>),
    /// Asks the ranks of a job the question of that number; the answer is the ranks that were asked, `None` if there is no
    /// such job.
    Ask(Peer, u32, u64, oneshot::Sender<Result<Option<Vec<u32>>, Denied>>),
    /// A request for the jobs, including those that are over or not.
    Jobs(bool, oneshot::Sender<Result<Vec<pb::JobSummary>, Failure>>),
    /// A request for the last operations of a job's ranks; `None`: there is no such job.
    Operations(u32, oneshot::Sender<Result<Option<Vec<pb::RankOperations>>, Failure>>),
}

/// The answer to an event.
pub(super) type Reply = Result<Answer, Rejection>;

/// Why an event has no effect.
#[derive(Debug, thiserror::Error)]
pub(super) enum Rejection {
    /// The peer may not ask for it.
    #[error(transparent)]
    Denied(#[from] Denied),
    /// It is refused, or could not be saved.
    #[error(transparent)]
    Failed(#[from] Failure),
}

/// The stream to a peer. Dropping it ends the stream, and with `alive` the reading of reports.
pub(super) struct PeerStream {
    pub sender: PeerSender,
    pub alive: oneshot::Sender<()>,
}

/// The sender by kind of peer.
pub(super) enum PeerSender {
    Worker(mpsc::Sender<Result<pb::WorkerEvent, tonic::Status>>),
    Switch(mpsc::Sender<Result<pb::SwitchCommand, tonic::Status>>),
}

/// Serves until it is told to quit, all senders are gone, or the term is over.
pub(super) async fn run(
    engine: Engine<Box<dyn Store>>,
    mut inbox: mpsc::Receiver<Message>,
    mut quit: oneshot::Receiver<()>,
) {
    let (streams, start) = (HashMap::new(), Instant::now());
    let mut actor = Actor { engine, streams, start, logged: (0, 0), failing: false };
    let mut tick = tokio::time::interval(TICK);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            // A runtime that is shut down ends the tasks before the clock, which must not be read then.
            biased;
            _ = &mut quit => return,
            _ = tick.tick() => drop(actor.event(Event::Tick)),
            message = inbox.recv() => match message {
                Some(message) => actor.handle(message),
                None => return,
            },
        }
        if let Some(problem) = actor.engine.over() {
            tracing::error!(
                problem,
                term = actor.engine.term(),
                "the term is over; all streams are closed"
            );
            return;
        }
    }
}

struct Actor {
    engine: Engine<Box<dyn Store>>,
    streams: HashMap<SessionId, PeerStream>,
    start: Instant,
    /// Job and epoch of the plan that was logged last.
    logged: (u32, u32),
    /// Whether the failure of the store was logged.
    failing: bool,
}

impl Actor {
    fn handle(&mut self, message: Message) {
        match message {
            Message::Event(event, reply) => {
                let closed = closed_session(&event);
                let answer = self.event(event);
                if let Some(session) = closed {
                    self.streams.remove(&session);
                }
                let _ = reply.send(answer.map_err(Rejection::from));
            }
            Message::Request(peer, event, reply) => drop(reply.send(self.request(&peer, event))),
            Message::Open(peer, session, stream, event, reply) => {
                self.streams.insert(session, stream);
                let answer = self.request(&peer, event);
                if answer.is_err() {
                    self.streams.remove(&session);
                }
                let _ = reply.send(answer);
            }
            Message::Snapshot(reply) => {
                let confirmed = self.engine.confirm();
                let _ = reply.send(confirmed.map(|()| self.engine.snapshot(self.now_ms())));
            }
            Message::Ask(peer, job, number, reply) => {
                let tenant = self.engine.state().tenant_of_job(job);
                let allowed = authorisation::check(&peer, &Request::Examine { job, tenant });
                let _ = reply.send(allowed.map(|()| self.ask(job, number)));
            }
            Message::Jobs(ended, reply) => {
                let confirmed = self.engine.confirm();
                let _ = reply.send(confirmed.map(|()| self.engine.state().job_list(ended)));
            }
            Message::Operations(job, reply) => {
                let confirmed = self.engine.confirm();
                let _ = reply.send(confirmed.map(|()| self.engine.state().operations(job)));
            }
        }
    }

    /// Performs a request if its peer may make it, and writes the audit log.
    fn request(&mut self, peer: &Peer, event: Event) -> Reply {
        let Some(request) = Request::of(&event, self.engine.state()) else {
            return Ok(self.event(event)?);
        };
        let reply = match authorisation::check(peer, &request) {
            Ok(()) => self.event(event).map_err(Rejection::from),
            Err(denied) => Err(denied.into()),
        };
        audit(peer, &request, &reply);
        reply
    }

    /// Sends a question to the ranks of a job.
    fn ask(&mut self, job: u32, number: u64) -> Option<Vec<u32>> {
        let ranks = self.engine.state().connected_ranks(job)?;
        for &(_, session) in &ranks {
            let question = pb::worker_event::Event::Question(pb::Question { number });
            self.act(Action::SendToWorker(session, question));
        }
        Some(ranks.into_iter().map(|(rank, _)| rank).collect())
    }

    fn event(&mut self, event: Event) -> Result<Answer, Failure> {
        if !event.is_report() && event != Event::Tick {
            tracing::debug!(?event, "event");
        }
        let unix_s =
            SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
        let Outcome { actions, answer } = self.engine.handle(self.now_ms(), event, unix_s);
        actions.into_iter().for_each(|action| self.act(action));
        self.log_store();
        answer
    }

    fn act(&mut self, action: Action) {
        let term = self.engine.term();
        match action {
            Action::SendToWorker(session, event) => {
                self.log_event(session, &event);
                self.send(session, |sender| match sender {
                    PeerSender::Worker(sender) => {
                        sender.try_send(Ok(pb::WorkerEvent { event: Some(event), term })).is_ok()
                    }
                    PeerSender::Switch(_) => true,
                });
            }
            Action::SendToSwitch(session, command) => {
                tracing::debug!(session = session.0, ?command, "to switch");
                self.send(session, |sender| match sender {
                    PeerSender::Switch(sender) => {
                        let command = pb::SwitchCommand { command: Some(command), term };
                        sender.try_send(Ok(command)).is_ok()
                    }
                    PeerSender::Worker(_) => true,
                });
            }
            Action::Close(session) => drop(self.streams.remove(&session)),
            // Already saved by the engine.
            Action::SaveJob(_) | Action::SaveMember(..) => {}
        }
    }

    /// Sends to a peer. A peer that does not read its messages loses its stream, and may reconnect.
    fn send(&mut self, session: SessionId, send: impl FnOnce(&PeerSender) -> bool) {
        let read = self
            .streams
            .get(&session)
            .is_none_or(|stream| send(&stream.sender) && !stream.alive.is_closed());
        if !read {
            tracing::warn!(session = session.0, "the peer does not read; its stream is closed");
            self.streams.remove(&session);
        }
    }

    /// Logs a plan once, because it is the same for all ranks.
    fn log_event(&mut self, session: SessionId, event: &pb::worker_event::Event) {
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
            Event::RankKey(_) | Event::Question(_) => {}
            Event::PeerLost(lost) => {
                tracing::warn!(session = session.0, rank = lost.rank, "peer lost")
            }
            Event::JobFailed(failed) => {
                tracing::warn!(session = session.0, reason = failed.reason, "job failed")
            }
        }
    }

    /// Logs when the store begins to fail, and when it works again.
    fn log_store(&mut self) {
        match (self.failing, self.engine.problem()) {
            (false, Some(problem)) => {
                tracing::error!(
                    problem,
                    "the store cannot be written; nothing changes until it can"
                );
                self.failing = true;
            }
            (true, None) => {
                tracing::info!("the store works again");
                self.failing = false;
            }
            _ => {}
        }
    }

    fn now_ms(&self) -> u64 {
        self.start.elapsed().as_millis() as u64
    }
}

/// Writes who asked for what, and the outcome, to the audit log.
fn audit(peer: &Peer, request: &Request, reply: &Reply) {
    let outcome = match reply {
        Ok(Answer::Created(job)) => format!("created job {job}"),
        Ok(Answer::Done) => "done".to_owned(),
        Err(Rejection::Denied(denied)) => format!("denied: {denied}"),
        Err(Rejection::Failed(failure)) => format!("failed: {failure}"),
    };
    let (identity, action, object) = (peer.to_string(), request.action(), request.object());
    tracing::info!(target: AUDIT, identity, action, object, outcome);
}

fn closed_session(event: &Event) -> Option<SessionId> {
    match event {
        Event::WorkerClosed { session, .. } | Event::SwitchClosed { session } => Some(*session),
        _ => None,
    }
}

/// The audit log: one line for each request that changes something, for each session, and for connections that were
/// refused before they had an identity.
pub(super) const AUDIT: &str = "netsum::audit";
/// Precision of all waiting times.
const TICK: Duration = Duration::from_millis(100);
