//! gRPC handlers: convert streams and calls to messages for the owner of the state, and back.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use netsum_wire::tag::{JobKey, Mac};
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Response, Status, Streaming};

use super::actor::{Message, PeerSender, PeerStream, Rejection, Reply};
use super::authorisation::{self, Peer, Request as Wanted};
use super::connections::Line;
use super::election_state::ElectionView;
use super::owner::Owner;
use super::questions::Questions;
use super::refusal::failed;
use crate::convert::Bounded;
use crate::decide::{Answer, Event, SessionId};
use crate::pb;
use crate::pb::controller_server;
use crate::pb::switch_report::Report as SwitchContent;
use crate::pb::worker_report::Report as WorkerContent;

/// The service; cheap, holds no state but the questions that wait for answers.
#[derive(Debug)]
pub(super) struct Service {
    election: ElectionView,
    /// Where clients reach this controller.
    address: String,
    sessions: AtomicU64,
    questions: Questions,
}

impl Service {
    pub fn new(election: ElectionView, address: String) -> Service {
        let questions = Questions::default();
        Service { election, address, sessions: AtomicU64::new(1), questions }
    }

    fn session(&self) -> SessionId {
        SessionId(self.sessions.fetch_add(1, Ordering::Relaxed))
    }

    async fn request(&self, peer: Peer, event: Event) -> Result<Answer, Status> {
        let leader_state = self.election.leader_state()?;
        status(leader_state.owner.ask(|reply| Message::Request(peer, event, reply)).await?)
    }
}

#[tonic::async_trait]
impl controller_server::Controller for Service {
    type WorkerSessionStream = ReceiverStream<Result<pb::WorkerEvent, Status>>;
    type SwitchSessionStream = ReceiverStream<Result<pb::SwitchCommand, Status>>;

    async fn fabric(
        &self,
        request: Request<pb::FabricRequest>,
    ) -> Result<Response<pb::FabricReply>, Status> {
        may_look(&request)?;
        Ok(Response::new(self.election.leader_state()?.fabric.clone()))
    }

    async fn leader(
        &self,
        request: Request<pb::LeaderRequest>,
    ) -> Result<Response<pb::LeaderReply>, Status> {
        may_look(&request)?;
        Ok(Response::new(self.election.leader(&self.address)))
    }

    async fn create_job(
        &self,
        request: Request<pb::CreateJobRequest>,
    ) -> Result<Response<pb::CreateJobReply>, Status> {
        let (peer, key) = (peer(&request)?, random_key()?);
        let (from, leader_state) = (Some(peer.address.ip()), self.election.leader_state()?);
        let event = Event::CreateJob { request: checked(request)?, key, from };
        match self.request(peer, event).await? {
            Answer::Created(job) => {
                let incarnation = leader_state.fabric.incarnation;
                Ok(Response::new(pb::CreateJobReply { job, incarnation }))
            }
            Answer::Done => Err(Status::internal("a job was created without a number")),
        }
    }

    async fn stop_job(
        &self,
        request: Request<pb::StopJobRequest>,
    ) -> Result<Response<pb::StopJobReply>, Status> {
        let peer = peer(&request)?;
        let pb::StopJobRequest { job, reason } = checked(request)?;
        self.request(peer, Event::StopJob { job, reason }).await?;
        Ok(Response::new(pb::StopJobReply {}))
    }

    async fn rekey_job(
        &self,
        request: Request<pb::RekeyJobRequest>,
    ) -> Result<Response<pb::RekeyJobReply>, Status> {
        let (peer, pb::RekeyJobRequest { job }) = (peer(&request)?, *request.get_ref());
        self.request(peer, Event::RekeyJob { job, key: random_key()? }).await?;
        Ok(Response::new(pb::RekeyJobReply {}))
    }

    async fn status(
        &self,
        request: Request<pb::StatusRequest>,
    ) -> Result<Response<pb::StatusReply>, Status> {
        may_look(&request)?;
        // The reply is encoded already: it becomes the body of the response.
        let mut response = Response::new(pb::StatusReply::default());
        response.extensions_mut().insert(self.election.leader_state()?.status_cache.reply().await?);
        Ok(response)
    }

    async fn ask_ranks(
        &self,
        request: Request<pb::AskRanksRequest>,
    ) -> Result<Response<pb::AskRanksReply>, Status> {
        let (peer, leader_state) = (peer(&request)?, self.election.leader_state()?);
        let asked = self.questions.ask(&leader_state.owner, peer, request.into_inner()).await?;
        Ok(Response::new(asked))
    }

    async fn list_jobs(
        &self,
        request: Request<pb::ListJobsRequest>,
    ) -> Result<Response<pb::ListJobsReply>, Status> {
        may_look(&request)?;
        let ended = request.into_inner().ended;
        let owner = &self.election.leader_state()?.owner;
        let jobs = owner.ask(|reply| Message::Jobs(ended, reply)).await?.map_err(failed)?;
        Ok(Response::new(pb::ListJobsReply { jobs }))
    }

    async fn operations(
        &self,
        request: Request<pb::OperationsRequest>,
    ) -> Result<Response<pb::OperationsReply>, Status> {
        may_look(&request)?;
        let job = request.into_inner().job;
        let owner = &self.election.leader_state()?.owner;
        let found = owner.ask(|reply| Message::Operations(job, reply)).await?.map_err(failed)?;
        let ranks = found.ok_or_else(|| Status::not_found(format!("there is no job {job}")))?;
        Ok(Response::new(pb::OperationsReply { ranks }))
    }

    async fn worker_session(
        &self,
        request: Request<Streaming<pb::WorkerReport>>,
    ) -> Result<Response<Self::WorkerSessionStream>, Status> {
        let (peer, owner) = (peer(&request)?, self.election.leader_state()?.owner.clone());
        let line = request.extensions().get::<Line>().cloned();
        let mut reports = request.into_inner();
        let Some(WorkerContent::Join(join)) =
            first(&mut reports).await?.and_then(|report| report.report)
        else {
            return Err(Status::invalid_argument("a worker's first report is Join"));
        };
        check(&join)?;
        let session = self.session();
        let (job, rank, questions) = (join.job, join.rank, self.questions.clone());
        let (sender, events) = mpsc::channel(EVENTS_QUEUED);
        let refusals = sender.downgrade();
        let (alive, gone) = oneshot::channel();
        let stream = PeerStream { sender: PeerSender::Worker(sender), alive };
        let event = Event::WorkerJoined { session, join, key: random_key()? };
        status(owner.ask(|reply| Message::Open(peer, session, stream, event, reply)).await?)?;
        tokio::spawn(async move {
            let event_of = |report: pb::WorkerReport| {
                Ok(match report.report {
                    Some(WorkerContent::Heartbeat(statistics)) => {
                        check(&statistics)?;
                        Some(Event::WorkerHeartbeat { session, statistics })
                    }
                    Some(WorkerContent::Leave(_)) => Some(Event::WorkerLeft { session }),
                    Some(WorkerContent::Answer(answer)) => {
                        check(&answer)?;
                        questions.take(job, rank, answer);
                        None
                    }
                    Some(WorkerContent::Join(_)) | None => None,
                })
            };
            let end = forward_reports(reports, &owner, gone, event_of).await;
            let broke = matches!(end, Ok(End::Broken));
            refuse(&refusals, end);
            let hung_up = broke && line.is_some_and(|line| line.has_hung_up());
            let _ = owner.report(Event::WorkerClosed { session, hung_up }).await;
        });
        Ok(Response::new(ReceiverStream::new(events)))
    }

    async fn switch_session(
        &self,
        request: Request<Streaming<pb::SwitchReport>>,
    ) -> Result<Response<Self::SwitchSessionStream>, Status> {
        let (peer, owner) = (peer(&request)?, self.election.leader_state()?.owner.clone());
        let mut reports = request.into_inner();
        let Some(SwitchContent::Hello(hello)) =
            first(&mut reports).await?.and_then(|report| report.report)
        else {
            return Err(Status::invalid_argument("a switch's first report is SwitchHello"));
        };
        check(&hello)?;
        let session = self.session();
        let (sender, commands) = mpsc::channel(EVENTS_QUEUED);
        let refusals = sender.downgrade();
        let (alive, gone) = oneshot::channel();
        let stream = PeerStream { sender: PeerSender::Switch(sender), alive };
        let event = Event::SwitchHello { session, hello };
        status(owner.ask(|reply| Message::Open(peer, session, stream, event, reply)).await?)?;
        tokio::spawn(async move {
            let event_of = |report: pb::SwitchReport| {
                Ok(match report.report {
                    Some(SwitchContent::Heartbeat(counters)) => {
                        check(&counters)?;
                        Some(Event::SwitchHeartbeat { session, counters })
                    }
                    Some(SwitchContent::LeaseAck(ack)) => {
                        check(&ack)?;
                        Some(Event::LeaseAck { session, ack })
                    }
                    Some(SwitchContent::Hello(_)) | None => None,
                })
            };
            let end = forward_reports(reports, &owner, gone, event_of).await;
            refuse(&refusals, end);
            let _ = owner.report(Event::SwitchClosed { session }).await;
        });
        Ok(Response::new(ReceiverStream::new(commands)))
    }
}

/// The other end of a request's connection.
fn peer<T>(request: &Request<T>) -> Result<Peer, Status> {
    let peer = request.extensions().get::<Peer>().cloned();
    peer.ok_or_else(|| Status::unauthenticated("the connection has no peer"))
}

fn may_look<T>(request: &Request<T>) -> Result<(), Status> {
    authorisation::check(&peer(request)?, &Wanted::Look)
        .map_err(|denied| Status::permission_denied(denied.to_string()))
}

/// The first report of a stream, within a time-out.
async fn first<R>(reports: &mut Streaming<R>) -> Result<Option<R>, Status> {
    let late = |_| Status::deadline_exceeded("the first report did not come");
    tokio::time::timeout(FIRST_REPORT, reports.message()).await.map_err(late)?
}

/// How a stream of reports ended.
enum End {
    /// One of the two sides ended it.
    Closed,
    /// Its connection broke.
    Broken,
}

/// Forwards reports until the peer ends the stream, or the owner of the state does (`gone`). A stream has at most one
/// report at the owner. Errors: a report was refused.
async fn forward_reports<R>(
    mut reports: Streaming<R>,
    owner: &Owner,
    mut gone: oneshot::Receiver<()>,
    event_of: impl Fn(R) -> Result<Option<Event>, Status>,
) -> Result<End, Status> {
    loop {
        tokio::select! {
            report = reports.message() => {
                let report = match report {
                    Ok(Some(report)) => report,
                    // A client that gives a stream up resets it (RFC 9113, section 5.4.2).
                    Err(status) if status.code() != Code::Cancelled => return Ok(End::Broken),
                    Ok(None) | Err(_) => return Ok(End::Closed),
                };
                // An unknown report comes from a newer peer.
                let Some(event) = event_of(report)? else { continue };
                status(owner.report(event).await?)?;
            }
            _ = &mut gone => return Ok(End::Closed),
        }
    }
}

/// Tells the peer why its report was refused; its stream ends.
fn refuse<E>(peer: &mpsc::WeakSender<Result<E, Status>>, end: Result<End, Status>) {
    if let (Err(refused), Some(peer)) = (end, peer.upgrade()) {
        tracing::warn!(reason = refused.message(), "refused a report; its stream is closed");
        let _ = peer.try_send(Err(refused));
    }
}

/// A key for a new job. Its MAC is chosen later.
fn random_key() -> Result<JobKey, Status> {
    let mut key = [0; 16];
    getrandom::fill(&mut key)
        .map_err(|error| Status::internal(format!("no key for the job: {error}")))?;
    Ok(JobKey::new(Mac::default(), key))
}

/// The request, if its texts and lists are within their limits.
fn checked<M: Bounded>(request: Request<M>) -> Result<M, Status> {
    check(request.get_ref()).map(|()| request.into_inner())
}

fn check(message: &impl Bounded) -> Result<(), Status> {
    message.check_sizes().map_err(Status::invalid_argument)
}

fn status(reply: Reply) -> Result<Answer, Status> {
    reply.map_err(|rejection| match rejection {
        Rejection::Denied(denied) => Status::permission_denied(denied.to_string()),
        Rejection::Failed(failure) => failed(failure),
    })
}

/// Several plans during a burst of re-plans; a peer this far behind does not read.
const EVENTS_QUEUED: usize = 1024;
const FIRST_REPORT: Duration = Duration::from_secs(5);
