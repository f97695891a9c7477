//! A switch's session.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError, mpsc as std_mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use netsum_proto::policer::{Owner, RateLimit};
use netsum_proto::{Lease, Secrets};
use netsum_wire::{Epoch, JobId};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Status, Streaming};

use super::endpoint::ControllerEndpoint;
use super::session::{self, After, Command, Loss, Role, Sink};
use crate::convert::{idle_expiry, lease_from_message, revocation, shorten};
use crate::error::ControlError;
use crate::fence::Fence;
use crate::pb;
use crate::pb::controller_client::ControllerClient;
use crate::pb::switch_command::Command as SwitchCommand;
use crate::pb::switch_report::Report;
use crate::version;

/// A switch's session with the controller. When it is dropped or closed, the controller considers the switch down and
/// plans around it.
#[derive(Debug)]
pub struct SwitchClient {
    commands: mpsc::UnboundedSender<Command<pb::SwitchReport>>,
    counters: Arc<Mutex<pb::SwitchHeartbeat>>,
    thread: Option<JoinHandle<()>>,
}

/// A notice to a switch.
#[derive(Debug, Clone, PartialEq)]
pub enum SwitchNotice {
    /// The controller has accepted the switch and its leases.
    Connected,
    /// The controller cannot be reached; leases stay, the session keeps trying.
    Away {
        /// Reason.
        reason: String,
    },
    /// The controller refuses this switch, because it is not in its fabric. The session keeps trying: the controller
    /// may be restarted with another file.
    Refused {
        /// The controller's reason.
        reason: String,
    },
    /// The incarnation of the controller, before any other command: leases of other incarnations are void.
    Incarnation(u64),
    /// Install this lease and answer with [`SwitchClient::ack`].
    Install(Box<LeaseOffer>),
    /// Drop all leases of a job up to an epoch.
    Revoke {
        /// Number of the job.
        job: JobId,
        /// The last epoch whose leases are revoked.
        up_to: Epoch,
    },
}

/// A lease from the controller.
#[derive(Debug, Clone, PartialEq)]
pub struct LeaseOffer {
    /// Job, tree and epoch as the controller has written them, for the answer and for logs.
    pub job: u32,
    /// Tree.
    pub tree: u32,
    /// Version of the plan.
    pub epoch: u32,
    /// The lease to install; `Err` describes what is invalid, and is the answer.
    pub terms: Result<LeaseTerms, String>,
}

/// The content of a lease.
#[derive(Debug, Clone, PartialEq)]
pub struct LeaseTerms {
    /// The lease.
    pub lease: Lease<SocketAddr>,
    /// Keys of the packets' tags, if they carry any.
    pub secrets: Option<Secrets>,
    /// How long the neighbours may be silent while the controller is unavailable; `None`: without limit.
    pub idle_expiry: Option<Duration>,
    /// Whom the job's packets count for.
    pub owner: Owner,
}

/// Whom the packets of a lease count for.
fn owner(message: &pb::Lease) -> Owner {
    let limit = |rate: u64| (rate > 0).then_some(rate);
    let tenant = (!message.tenant.is_empty()).then(|| message.tenant.as_str().into());
    let (bytes_per_s, packets_per_s) = (limit(message.bytes_per_s), limit(message.packets_per_s));
    Owner { tenant, limit: RateLimit { bytes_per_s, packets_per_s } }
}

impl From<&pb::Lease> for LeaseOffer {
    fn from(message: &pb::Lease) -> LeaseOffer {
        let terms = message.secrets().and_then(|secrets| {
            let lease = lease_from_message(message)?;
            let (idle_expiry, owner) = (idle_expiry(message), owner(message));
            Ok(LeaseTerms { lease, secrets, idle_expiry, owner })
        });
        LeaseOffer { job: message.job, tree: message.tree, epoch: message.epoch, terms }
    }
}

impl SwitchClient {
    /// Connects from a plain thread; the session runs on a separate thread. `hello` is called for each stream and must
    /// list the leases that are installed then.
    pub fn start(
        controller: &ControllerEndpoint,
        hello: impl Fn() -> pb::SwitchHello + Send + 'static,
    ) -> Result<(SwitchClient, std_mpsc::Receiver<SwitchNotice>), ControlError> {
        let (sender, receiver) = std_mpsc::channel();
        let (mut client, role, commands) = SwitchClient::parts(hello, Sink::Std(sender));
        client.thread = Some(session::on_thread(controller.clone(), role, commands)?);
        Ok((client, receiver))
    }

    /// Connects from within a tokio runtime; the session runs as one of its tasks.
    pub fn spawn(
        controller: &ControllerEndpoint,
        hello: impl Fn() -> pb::SwitchHello + Send + 'static,
    ) -> (SwitchClient, mpsc::UnboundedReceiver<SwitchNotice>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        let (client, role, commands) = SwitchClient::parts(hello, Sink::Tokio(sender));
        tokio::spawn(session::run(controller.clone(), role, commands));
        (client, receiver)
    }

    /// Sets the counters of further heartbeats; returns immediately.
    pub fn heartbeat(&self, counters: pb::SwitchHeartbeat) {
        *self.counters.lock().unwrap_or_else(PoisonError::into_inner) = counters;
    }

    /// Answers a [`SwitchNotice::Install`]: `Err` contains why the lease was not installed.
    pub fn ack(&self, lease: &LeaseOffer, outcome: Result<(), String>) {
        let (ok, mut reason) = (outcome.is_ok(), outcome.err().unwrap_or_default());
        shorten(&mut reason);
        let ack = pb::LeaseAck { job: lease.job, tree: lease.tree, epoch: lease.epoch, ok, reason };
        let report = pb::SwitchReport { report: Some(Report::LeaseAck(ack)) };
        let _ = self.commands.send(Command::Send(report));
    }

    /// Ends the session; after [`SwitchClient::start`] it returns within a second or so.
    pub fn close(mut self) {
        let _ = self.commands.send(Command::Close(None));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }

    fn parts(
        hello: impl Fn() -> pb::SwitchHello + Send + 'static,
        notices: Sink<SwitchNotice>,
    ) -> (SwitchClient, Switch, mpsc::UnboundedReceiver<Command<pb::SwitchReport>>) {
        let (commands, receiver) = mpsc::unbounded_channel();
        let counters = Arc::<Mutex<pb::SwitchHeartbeat>>::default();
        let role = Switch {
            hello: Box::new(hello),
            counters: counters.clone(),
            notices,
            last_loss: None,
            fence: Fence::default(),
        };
        (SwitchClient { commands, counters, thread: None }, role, receiver)
    }
}

struct Switch {
    hello: Box<dyn Fn() -> pb::SwitchHello + Send>,
    counters: Arc<Mutex<pb::SwitchHeartbeat>>,
    notices: Sink<SwitchNotice>,
    /// Reported once, not at each attempt.
    last_loss: Option<Loss>,
    fence: Fence,
}

impl Role for Switch {
    type Report = pb::SwitchReport;
    type Event = pb::SwitchCommand;

    fn hello(&mut self) -> pb::SwitchReport {
        let (term, packets) = (self.fence.term(), Some(version::packets()));
        let hello = pb::SwitchHello { term, packets, ..(self.hello)() };
        pb::SwitchReport { report: Some(Report::Hello(hello)) }
    }

    fn heartbeat(&mut self) -> pb::SwitchReport {
        let counters = self.counters.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let counters = pb::SwitchHeartbeat { stale_messages: self.fence.refused(), ..counters };
        pb::SwitchReport { report: Some(Report::Heartbeat(counters)) }
    }

    async fn open(
        mut client: ControllerClient<Channel>,
        reports: ReceiverStream<pb::SwitchReport>,
    ) -> Result<Streaming<pb::SwitchCommand>, Status> {
        client.switch_session(reports).await.map(tonic::Response::into_inner)
    }

    fn connected(&mut self) {
        self.last_loss = None;
        self.notices.send(SwitchNotice::Connected);
    }

    fn event(&mut self, command: pb::SwitchCommand) -> After {
        if let Some(SwitchCommand::Hello(hello)) = &command.command {
            self.fence.meet(hello.incarnation);
        }
        if let Err(stale) = self.fence.admit(command.term) {
            tracing::error!(reason = %stale, "refused a controller");
            return After::Leave(stale);
        }
        After::next_if(match command.command {
            Some(SwitchCommand::Install(lease)) => {
                self.notices.send(SwitchNotice::Install(Box::new(LeaseOffer::from(&lease))))
            }
            Some(SwitchCommand::Revoke(revoke)) => match revocation(&revoke) {
                Ok((job, up_to)) => self.notices.send(SwitchNotice::Revoke { job, up_to }),
                Err(reason) => {
                    tracing::error!(reason, "ignored a revocation that is malformed");
                    true
                }
            },
            Some(SwitchCommand::Hello(hello)) => {
                self.notices.send(SwitchNotice::Incarnation(hello.incarnation))
            }
            // From a newer controller; unknown to this version.
            None => true,
        })
    }

    fn lost(&mut self, loss: Loss) -> bool {
        if self.last_loss.as_ref() == Some(&loss) {
            return true;
        }
        self.last_loss = Some(loss.clone());
        self.notices.send(match loss {
            Loss::Refused(reason) => SwitchNotice::Refused { reason },
            Loss::Away(reason) | Loss::Follows { reason, .. } => SwitchNotice::Away { reason },
        })
    }
}
