//! A stream to the controller that is reopened when it ends; switch and worker differ in [`Role`].

use std::future::Future;
use std::io;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Status, Streaming};

use super::backoff::Backoff;
use super::call;
use super::endpoint::ControllerEndpoint;
use super::route::Route;
use crate::error::ControlError;
use crate::fence::Stale;
use crate::pb::controller_client::ControllerClient;

/// The messages of a session, and their handling.
pub(super) trait Role: Send + 'static {
    /// Message to the controller.
    type Report: Send + 'static;
    /// Message from the controller.
    type Event: Send + 'static;

    /// The first report of a stream.
    fn hello(&mut self) -> Self::Report;
    /// Sent every second.
    fn heartbeat(&mut self) -> Self::Report;
    /// Opens the stream.
    fn open(
        client: ControllerClient<Channel>,
        reports: ReceiverStream<Self::Report>,
    ) -> impl Future<Output = Result<Streaming<Self::Event>, Status>> + Send;
    /// Called when the controller has accepted the first report.
    fn connected(&mut self);
    /// Handles a message of the controller.
    fn event(&mut self, event: Self::Event) -> After;
    /// Called when the stream has ended, or could not be opened. `false` ends the session.
    fn lost(&mut self, loss: Loss) -> bool;
}

/// Why there is no stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Loss {
    /// The controller cannot be reached, or the stream broke: retry.
    Away(String),
    /// The controller refused, with its reason.
    Refused(String),
    /// The controller does not lead: another one does.
    Follows {
        /// Where the leader is; empty if it is unknown.
        leader: String,
        /// The controller's words.
        reason: String,
    },
}

/// What follows a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum After {
    /// The next message.
    Next,
    /// The end of the session.
    End,
    /// Another controller: the term of this one is over.
    Leave(Stale),
}

impl After {
    /// The next message, if the owner of the session is still there.
    pub fn next_if(is_there: bool) -> After {
        if is_there { After::Next } else { After::End }
    }
}

/// Commands of a session's owner.
pub(super) enum Command<R> {
    /// Send a report; dropped while there is no stream, because the next hello contains the current state.
    Send(R),
    /// Send a last report, then end.
    Close(Option<R>),
}

/// Destination of notices: the channel of a runtime, or of a plain thread.
pub(super) enum Sink<N> {
    Tokio(mpsc::UnboundedSender<N>),
    Std(std::sync::mpsc::Sender<N>),
}

impl<N> Sink<N> {
    /// Sends a notice; `false`: the receiver is gone.
    pub fn send(&self, notice: N) -> bool {
        match self {
            Sink::Tokio(sender) => sender.send(notice).is_ok(),
            Sink::Std(sender) => sender.send(notice).is_ok(),
        }
    }
}

/// Runs a session on a separate thread.
pub(super) fn on_thread<R: Role>(
    controller: ControllerEndpoint,
    role: R,
    commands: mpsc::UnboundedReceiver<Command<R::Report>>,
) -> Result<JoinHandle<()>, ControlError> {
    let failed = |source: io::Error| ControlError::System {
        what: "cannot start the control thread",
        source,
    };
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let body = move || runtime.block_on(run(controller, role, commands));
    std::thread::Builder::new().name("netsum-control".to_owned()).spawn(body).map_err(failed)
}

/// Maintains a session until its owner closes or drops it, or the role ends it.
pub(super) async fn run<R: Role>(
    controller: ControllerEndpoint,
    mut role: R,
    mut commands: mpsc::UnboundedReceiver<Command<R::Report>>,
) {
    let each = controller.each();
    let (mut backoff, mut route) = (Backoff::new(), Route::new(each.len()));
    loop {
        let one = &each[route.at()];
        let established = tokio::select! {
            established = establish(one, &mut role) => established,
            () = closed(&mut commands) => return,
        };
        let (loss, had_stream) = match established {
            Err(loss) => (loss, false),
            Ok(stream) => {
                backoff.reset();
                route.succeeded();
                role.connected();
                match serve(one, stream, &mut role, &mut commands).await {
                    None => return,
                    Some(loss) => (loss, true),
                }
            }
        };
        let is_refused = matches!(loss, Loss::Refused(_));
        let leader = match &loss {
            Loss::Follows { leader, .. } => each.iter().position(|o| o.address() == leader),
            // A stream that broke: the controller may still lead.
            _ if had_stream => Some(route.at()),
            _ => None,
        };
        let is_round_complete = match had_stream && leader == Some(route.at()) {
            true => each.len() == 1,
            false => route.go_on(leader),
        };
        // One that does not lead is no loss, unless nobody leads.
        let is_loss = had_stream || is_refused || is_round_complete;
        if is_loss && !role.lost(loss) {
            return;
        }
        if is_loss {
            tokio::select! {
                () = tokio::time::sleep(backoff.next()) => {}
                () = closed(&mut commands) => return,
            }
        }
    }
}

struct Stream<R: Role> {
    reports: mpsc::Sender<R::Report>,
    events: Streaming<R::Event>,
}

async fn establish<R: Role>(
    controller: &ControllerEndpoint,
    role: &mut R,
) -> Result<Stream<R>, Loss> {
    let connected = call::connect_leader(controller, "session").await;
    let client = connected.map_err(|(error, leader)| match leader {
        Some(leader) => Loss::Follows { leader, reason: error.to_string() },
        None => Loss::Away(error.to_string()),
    })?;
    let (reports, outgoing) = mpsc::channel(REPORTS_QUEUED);
    let first = reports.try_send(role.hello());
    assert!(first.is_ok(), "a new channel has room");
    let opening = R::open(client, ReceiverStream::new(outgoing));
    let patience = if controller.has_others() { OPEN_TIMEOUT_AMONG_OTHERS } else { OPEN_TIMEOUT };
    match tokio::time::timeout(patience, opening).await {
        Err(_) => Err(Loss::Away(format!(
            "the controller at {} did not answer within {patience:?}",
            controller.address()
        ))),
        Ok(Err(status)) => Err(loss(controller, &status)),
        Ok(Ok(events)) => Ok(Stream { reports, events }),
    }
}

/// Serves one stream. `None`: the session is over.
async fn serve<R: Role>(
    controller: &ControllerEndpoint,
    mut stream: Stream<R>,
    role: &mut R,
    commands: &mut mpsc::UnboundedReceiver<Command<R::Report>>,
) -> Option<Loss> {
    let mut beat = tokio::time::interval(HEARTBEAT);
    beat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            event = stream.events.message() => match event {
                Ok(Some(event)) => match role.event(event) {
                    After::Next => {}
                    After::End => return None,
                    After::Leave(stale) => {
                        let (leader, reason) = (String::new(), stale.to_string());
                        return Some(Loss::Follows { leader, reason });
                    }
                },
                Ok(None) => return Some(Loss::Away("the controller closed the stream".to_owned())),
                Err(status) => return Some(loss(controller, &status)),
            },
            command = commands.recv() => match command {
                Some(Command::Send(report)) => {
                    if stream.reports.send(report).await.is_err() {
                        return Some(Loss::Away("the stream broke".to_owned()));
                    }
                }
                Some(Command::Close(last)) => {
                    finish(stream, last).await;
                    return None;
                }
                None => return None,
            },
            // A full queue means that the controller reads too slowly; the next heartbeat has newer content.
            _ = beat.tick() => drop(stream.reports.try_send(role.heartbeat())),
        }
    }
}

/// Sends the last report and waits briefly for the controller to read it.
async fn finish<R: Role>(stream: Stream<R>, last: Option<R::Report>) {
    let Stream { reports, mut events } = stream;
    let work = async {
        if let Some(last) = last {
            let _ = reports.send(last).await;
        }
        drop(reports);
        while let Ok(Some(_)) = events.message().await {}
    };
    let _ = tokio::time::timeout(FINISH_TIMEOUT, work).await;
}

/// Returns when the owner closes or drops the session.
async fn closed<R>(commands: &mut mpsc::UnboundedReceiver<Command<R>>) {
    while let Some(Command::Send(_)) = commands.recv().await {}
}

fn loss(controller: &ControllerEndpoint, status: &Status) -> Loss {
    use tonic::Code::{
        AlreadyExists, FailedPrecondition, InvalidArgument, NotFound, OutOfRange, PermissionDenied,
        Unimplemented,
    };
    let words = call::reason(controller, status);
    if let Some(leader) = call::named_leader(status) {
        return Loss::Follows { leader, reason: words };
    }
    match status.code() {
        AlreadyExists | FailedPrecondition | InvalidArgument | NotFound | OutOfRange
        | PermissionDenied | Unimplemented => Loss::Refused(words),
        _ => Loss::Away(words),
    }
}

const HEARTBEAT: Duration = Duration::from_secs(1);
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);
const OPEN_TIMEOUT_AMONG_OTHERS: Duration = Duration::from_secs(2);
const FINISH_TIMEOUT: Duration = Duration::from_secs(1);
/// A switch may confirm a lease for each of a few hundred trees at once.
const REPORTS_QUEUED: usize = 256;
