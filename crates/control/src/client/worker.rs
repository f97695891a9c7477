//! A worker's session.

use std::sync::{Arc, Mutex, PoisonError, mpsc as std_mpsc};
use std::thread::JoinHandle;

use netsum_lease::JobPlan;
use netsum_wire::tag::JobKey;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Status, Streaming};

use super::endpoint::ControllerEndpoint;
use super::session::{self, After, Command, Loss, Role, Sink};
use crate::convert::Bounded;
use crate::error::ControlError;
use crate::fence::Fence;
use crate::pb::controller_client::ControllerClient;
use crate::pb::worker_event::Event;
use crate::pb::worker_report::Report;
use crate::{epoch, pb, version};

/// A worker's session with the controller. If it is dropped without [`WorkerClient::leave`], the controller considers
/// the rank lost.
#[derive(Debug)]
pub struct WorkerClient {
    commands: mpsc::UnboundedSender<Command<pb::WorkerReport>>,
    statistics: Arc<Mutex<pb::WorkerHeartbeat>>,
    thread: Option<JoinHandle<()>>,
}

/// Answers the controller's question what this rank is doing: it must return at once, and call the function with JSON
/// later, on any thread.
pub type Answerer = Arc<dyn Fn(Box<dyn FnOnce(String) + Send>) + Send + Sync>;

/// A notice to a worker.
#[derive(Debug, Clone, PartialEq)]
pub enum WorkerNotice {
    /// The controller has registered the rank.
    Connected,
    /// The controller cannot be reached; the session keeps trying, trees keep working.
    Away {
        /// Reason.
        reason: String,
    },
    /// This rank's key for plans with that number.
    RankKey(u64, JobKey),
    /// A new plan, validated; its epoch is newer than all before.
    Plan(Box<JobPlan>),
    /// A rank is lost.
    PeerLost(pb::PeerLost),
    /// The job is over. The session has ended.
    JobFailed {
        /// Reason.
        reason: String,
    },
    /// The controller refuses this rank. The session has ended.
    Refused {
        /// The controller's reason.
        reason: String,
    },
}

impl WorkerClient {
    /// Joins from a plain thread; the session runs on a separate thread. `size`: number of ranks of the job.
    pub fn start(
        controller: &ControllerEndpoint,
        join: pb::Join,
        size: u32,
    ) -> Result<(WorkerClient, std_mpsc::Receiver<WorkerNotice>), ControlError> {
        WorkerClient::start_answering(controller, join, size, None)
    }

    /// The same; `answerer` answers questions, which remain without an answer else.
    pub fn start_answering(
        controller: &ControllerEndpoint,
        join: pb::Join,
        size: u32,
        answerer: Option<Answerer>,
    ) -> Result<(WorkerClient, std_mpsc::Receiver<WorkerNotice>), ControlError> {
        let (sender, receiver) = std_mpsc::channel();
        let (mut client, mut role, commands) = WorkerClient::parts(join, size, Sink::Std(sender));
        role.answerer = answerer;
        client.thread = Some(session::on_thread(controller.clone(), role, commands)?);
        Ok((client, receiver))
    }

    /// Joins from within a tokio runtime; the session runs as one of its tasks.
    pub fn spawn(
        controller: &ControllerEndpoint,
        join: pb::Join,
        size: u32,
    ) -> (WorkerClient, mpsc::UnboundedReceiver<WorkerNotice>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        let (client, role, commands) = WorkerClient::parts(join, size, Sink::Tokio(sender));
        tokio::spawn(session::run(controller.clone(), role, commands));
        (client, receiver)
    }

    /// Sets the statistics of further heartbeats; returns immediately. Statistics that need a reaction, silent trees
    /// and unreachable ranks, are sent without waiting for the next heartbeat. Of the pauses the last ones are sent.
    pub fn heartbeat(&self, statistics: pb::WorkerHeartbeat) {
        let statistics = statistics.within_limits();
        let mut kept = self.statistics.lock().unwrap_or_else(PoisonError::into_inner);
        let urgent = (&kept.silent_trees, &kept.unreachable_ranks, kept.plan_epoch)
            != (&statistics.silent_trees, &statistics.unreachable_ranks, statistics.plan_epoch);
        kept.clone_from(&statistics);
        drop(kept);
        if urgent {
            let report = pb::WorkerReport { report: Some(Report::Heartbeat(statistics)) };
            let _ = self.commands.send(Command::Send(report));
        }
    }

    /// Leaves the job. After [`WorkerClient::start`] it returns when the controller has received it, or after a second.
    pub fn leave(mut self) {
        let leave = pb::WorkerReport { report: Some(Report::Leave(pb::Leave {})) };
        let _ = self.commands.send(Command::Close(Some(leave)));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }

    fn parts(
        join: pb::Join,
        size: u32,
        notices: Sink<WorkerNotice>,
    ) -> (WorkerClient, Worker, mpsc::UnboundedReceiver<Command<pb::WorkerReport>>) {
        let (commands, receiver) = mpsc::unbounded_channel();
        let statistics = Arc::<Mutex<pb::WorkerHeartbeat>>::default();
        let mut fence = Fence::default();
        fence.meet(join.incarnation);
        let role = Worker {
            join,
            size,
            statistics: statistics.clone(),
            notices,
            away: false,
            fence,
            commands: commands.downgrade(),
            answerer: None,
        };
        (WorkerClient { commands, statistics, thread: None }, role, receiver)
    }
}

struct Worker {
    join: pb::Join,
    size: u32,
    statistics: Arc<Mutex<pb::WorkerHeartbeat>>,
    notices: Sink<WorkerNotice>,
    away: bool,
    fence: Fence,
    /// For answers; weak, because the session ends with its owner.
    commands: mpsc::WeakUnboundedSender<Command<pb::WorkerReport>>,
    answerer: Option<Answerer>,
}

impl Role for Worker {
    type Report = pb::WorkerReport;
    type Event = pb::WorkerEvent;

    fn hello(&mut self) -> pb::WorkerReport {
        let (term, packets) = (self.fence.term(), Some(version::packets()));
        let join = pb::Join { term, packets, ..self.join.clone() };
        pb::WorkerReport { report: Some(Report::Join(join)) }
    }

    fn heartbeat(&mut self) -> pb::WorkerReport {
        let statistics = self.statistics.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let statistics = pb::WorkerHeartbeat { stale_messages: self.fence.refused(), ..statistics };
        pb::WorkerReport { report: Some(Report::Heartbeat(statistics)) }
    }

    async fn open(
        mut client: ControllerClient<Channel>,
        reports: ReceiverStream<pb::WorkerReport>,
    ) -> Result<Streaming<pb::WorkerEvent>, Status> {
        client.worker_session(reports).await.map(tonic::Response::into_inner)
    }

    fn connected(&mut self) {
        self.away = false;
        self.notices.send(WorkerNotice::Connected);
    }

    fn event(&mut self, event: pb::WorkerEvent) -> After {
        if let Err(stale) = self.fence.admit(event.term) {
            tracing::error!(reason = %stale, "refused a controller");
            return After::Leave(stale);
        }
        After::next_if(match event.event {
            Some(Event::Plan(plan)) => self.plan(&plan),
            Some(Event::Question(question)) => {
                self.answer(question.number);
                true
            }
            Some(Event::PeerLost(lost)) => self.notices.send(WorkerNotice::PeerLost(lost)),
            Some(Event::JobFailed(failed)) => {
                self.notices.send(WorkerNotice::JobFailed { reason: failed.reason });
                false
            }
            Some(Event::RankKey(message)) => match message.key.map(|key| key.key()) {
                Some(Ok(key)) => self.notices.send(WorkerNotice::RankKey(message.key_id, key)),
                Some(Err(error)) => {
                    self.notices.send(WorkerNotice::Refused { reason: error.to_string() });
                    false
                }
                None => true,
            },
            // From a newer controller; unknown to this version.
            None => true,
        })
    }

    fn lost(&mut self, loss: Loss) -> bool {
        match loss {
            Loss::Refused(reason) => {
                self.notices.send(WorkerNotice::Refused { reason });
                false
            }
            Loss::Away(_) | Loss::Follows { .. } if self.away => true,
            Loss::Away(reason) | Loss::Follows { reason, .. } => {
                self.away = true;
                self.notices.send(WorkerNotice::Away { reason })
            }
        }
    }
}

impl Worker {
    fn answer(&self, number: u64) {
        let (Some(answerer), commands) = (&self.answerer, self.commands.clone()) else { return };
        answerer(Box::new(move |evidence| {
            let answer = pb::Answer { number, evidence };
            if let Some(commands) = commands.upgrade().filter(|_| answer.check_sizes().is_ok()) {
                let report = pb::WorkerReport { report: Some(Report::Answer(answer)) };
                let _ = commands.send(Command::Send(report));
            }
        }));
    }

    /// Forwards a valid plan that is newer than all before.
    fn plan(&mut self, message: &pb::Plan) -> bool {
        let checked = JobPlan::try_from(message).and_then(|plan| {
            let malformed = |problem: String| ControlError::Malformed { what: "plan", problem };
            plan.validate(self.size).map_err(|error| malformed(error.to_string()))?;
            match plan.plan.job == self.join.job {
                true => Ok(plan),
                false => Err(malformed(format!("it is for job {}", plan.plan.job))),
            }
        });
        let plan = match checked {
            Ok(plan) => plan,
            Err(error) => {
                self.notices.send(WorkerNotice::Refused { reason: error.to_string() });
                return false;
            }
        };
        if !epoch::is_newer(message.epoch, self.join.known_epoch) {
            return true;
        }
        self.join.known_epoch = message.epoch;
        // Without keys: a controller that rebuilds the job gives it new ones.
        self.join.plan = Some(pb::Plan { trees: Vec::new(), key_id: 0, ..message.clone() });
        self.notices.send(WorkerNotice::Plan(Box::new(plan)))
    }
}
