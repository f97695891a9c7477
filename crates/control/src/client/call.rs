//! Single blocking calls; usable from any thread, even within a runtime.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use netsum_identity::Credentials;
use tokio::net::TcpStream;
use tonic::codegen::Service;
use tonic::codegen::http::Uri;
use tonic::transport::{Channel, Endpoint};

use super::endpoint::ControllerEndpoint;
use super::route::Route;
use crate::connection::{Secured, TLS_FAILED};
use crate::convert::shorten;
use crate::error::ControlError;
use crate::pb;
use crate::pb::controller_client::ControllerClient;
use crate::security::Security;
use crate::version;

/// Name and hosts of the fabric.
pub fn fabric(
    controller: &ControllerEndpoint,
    timeout: Duration,
) -> Result<pb::FabricReply, ControlError> {
    blocking(controller, "Fabric", timeout, Repeated::Harmless, async |mut client| {
        client.fabric(pb::FabricRequest {}).await
    })
}

/// Registers a job. A call whose answer is lost with a controller is made again at the next one that leads; it creates one
/// job.
pub fn create_job(
    controller: &ControllerEndpoint,
    request: pb::CreateJobRequest,
    timeout: Duration,
) -> Result<pb::CreateJobReply, ControlError> {
    let number = getrandom::u64().map_err(|error| ControlError::System {
        what: "cannot draw a random number",
        source: io::Error::other(error.to_string()),
    })?;
    let request = pb::CreateJobRequest { request: number, ..request };
    blocking(controller, "CreateJob", timeout, Repeated::Harmless, async |mut client| {
        client.create_job(request.clone()).await
    })
}

/// The controller's whole status.
pub fn status(
    controller: &ControllerEndpoint,
    timeout: Duration,
) -> Result<pb::StatusReply, ControlError> {
    blocking(controller, "Status", timeout, Repeated::Harmless, async |mut client| {
        client.status(pb::StatusRequest {}).await
    })
}

/// The jobs only; `ended`: including those that are over.
pub fn list_jobs(
    controller: &ControllerEndpoint,
    ended: bool,
    timeout: Duration,
) -> Result<pb::ListJobsReply, ControlError> {
    blocking(controller, "ListJobs", timeout, Repeated::Harmless, async |mut client| {
        client.list_jobs(pb::ListJobsRequest { ended }).await
    })
}

/// What the ranks of a job are doing, by rank, as JSON; without those that do not answer within `patience`.
pub fn ask_ranks(
    controller: &ControllerEndpoint,
    job: u32,
    patience: Duration,
    timeout: Duration,
) -> Result<pb::AskRanksReply, ControlError> {
    let request = pb::AskRanksRequest { job, patience_ms: patience.as_millis() as u32 };
    blocking(controller, "AskRanks", timeout, Repeated::Harmless, async |mut client| {
        client.ask_ranks(request).await
    })
}

/// The last operations of a job's ranks.
pub fn operations(
    controller: &ControllerEndpoint,
    job: u32,
    timeout: Duration,
) -> Result<pb::OperationsReply, ControlError> {
    blocking(controller, "Operations", timeout, Repeated::Harmless, async |mut client| {
        client.operations(pb::OperationsRequest { job }).await
    })
}

/// Ends a job; its workers receive `reason`.
pub fn stop_job(
    controller: &ControllerEndpoint,
    job: u32,
    reason: &str,
    timeout: Duration,
) -> Result<(), ControlError> {
    let mut reason = reason.to_owned();
    shorten(&mut reason);
    let request = pb::StopJobRequest { job, reason };
    blocking(controller, "StopJob", timeout, Repeated::Harmful, async |mut client| {
        client.stop_job(request.clone()).await
    })
    .map(drop)
}

/// Gives a job a new key and a new plan; packets under the old key are refused once the plan is in use.
pub fn rekey_job(
    controller: &ControllerEndpoint,
    job: u32,
    timeout: Duration,
) -> Result<(), ControlError> {
    let request = pb::RekeyJobRequest { job };
    blocking(controller, "RekeyJob", timeout, Repeated::Harmful, async |mut client| {
        client.rekey_job(request).await
    })
    .map(drop)
}

/// Whether a controller leads, and where the leader is. Every controller answers.
pub fn leader(
    controller: &ControllerEndpoint,
    timeout: Duration,
) -> Result<pb::LeaderReply, ControlError> {
    blocking(controller, LEADER_CALL, timeout, Repeated::Harmless, async |mut client| {
        client.leader(pb::LeaderRequest {}).await
    })
}

/// A channel to the controller; waits are bounded, and a frozen peer is detected.
pub(crate) async fn connect(
    controller: &ControllerEndpoint,
) -> Result<ControllerClient<Channel>, ControlError> {
    let address = controller.address();
    let channel = channel(controller)?;
    let connected = match controller.security() {
        Security::Trusted => channel.connect().await,
        Security::Tls(credentials) => {
            channel.connect_with_connector(connector(address, credentials)).await
        }
    };
    let channel = connected.map_err(|error| unreachable(address, innermost(&error)))?;
    Ok(ControllerClient::new(channel)
        .max_decoding_message_size(MESSAGE_MAX)
        .max_encoding_message_size(MESSAGE_MAX))
}

fn channel(controller: &ControllerEndpoint) -> Result<Endpoint, ControlError> {
    let address = controller.address();
    let (connect_timeout, keep_alive) = match controller.has_others() {
        true => (CONNECT_TIMEOUT_AMONG_OTHERS, KEEP_ALIVE_AMONG_OTHERS),
        false => (CONNECT_TIMEOUT, KEEP_ALIVE),
    };
    let bad = || ControlError::BadAddress { address: address.to_owned() };
    if !address
        .rsplit_once(':')
        .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
    {
        return Err(bad());
    }
    let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(|_| bad())?;
    let endpoint = endpoint.user_agent(version::user_agent()).map_err(|_| bad())?;
    Ok(endpoint
        .connect_timeout(connect_timeout)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(keep_alive)
        .keep_alive_timeout(keep_alive)
        .keep_alive_while_idle(true))
}

/// Opens connections with the credentials of the moment.
fn connector(
    address: &str,
    credentials: &Arc<Credentials>,
) -> impl Service<Uri, Response = TokioIo<Secured<TcpStream>>, Error = io::Error, Future: Send>
+ Send
+ 'static {
    let (address, credentials) = (address.to_owned(), credentials.clone());
    tower::service_fn(move |_| {
        let (address, credentials) = (address.clone(), credentials.clone());
        async move { Secured::connect(&address, &credentials).await.map(TokioIo::new) }
    })
}

/// Why a call failed: the transport's innermost error, or else the controller's words.
pub(super) fn reason(controller: &ControllerEndpoint, status: &tonic::Status) -> String {
    let Some(error) = std::error::Error::source(status) else { return status.message().to_owned() };
    let reason = innermost(error);
    match (controller.security(), status.code()) {
        // TLS is no HTTP/2.
        (Security::Trusted, tonic::Code::Internal) => format!(
            "{TLS_FAILED}it demands a certificate; set NETSUM_CREDENTIALS, or give --credentials ({reason})"
        ),
        _ => reason,
    }
}

/// Whether a call failed on its way, not by the controller's decision.
fn is_of_transport(status: &tonic::Status) -> bool {
    status.code() == tonic::Code::Unavailable || std::error::Error::source(status).is_some()
}

/// The transport's innermost error message.
fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    match error.downcast_ref::<io::Error>() {
        // TLS has many words, and an address of its documentation, for a process that has died.
        Some(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            "the connection was closed".to_owned()
        }
        _ => error.to_string(),
    }
}

/// What becomes of a call that is made twice.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Repeated {
    /// The same as of one.
    Harmless,
    /// Something else.
    Harmful,
}

fn blocking<T: Send>(
    controller: &ControllerEndpoint,
    call: &'static str,
    timeout: Duration,
    repeated: Repeated,
    make: impl AsyncFn(ControllerClient<Channel>) -> Result<tonic::Response<T>, tonic::Status> + Send,
) -> Result<T, ControlError> {
    let address = controller.address();
    let run = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime
            .map_err(|source| ControlError::System { what: "cannot start a runtime", source })?;
        let work = ask(controller, call, repeated, make);
        let seconds = timeout.as_secs_f64();
        let late = |_| ControlError::Timeout { address: address.to_owned(), call, seconds };
        runtime.block_on(async { tokio::time::timeout(timeout, work).await.map_err(late)? })
    };
    // On a separate thread: a caller inside a runtime must not block on another.
    std::thread::scope(|scope| scope.spawn(run).join())
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Asks the controllers until the one that leads has answered. Errors: its refusal, that its answer was lost, or that none
/// of them answers.
async fn ask<T>(
    controller: &ControllerEndpoint,
    call: &'static str,
    repeated: Repeated,
    make: impl AsyncFn(ControllerClient<Channel>) -> Result<tonic::Response<T>, tonic::Status>,
) -> Result<T, ControlError> {
    let each = controller.each();
    let (mut route, mut some_answer) = (Route::new(each.len()), false);
    loop {
        let one = &each[route.at()];
        let (error, leader) = match connect_leader(one, call).await {
            Err((error @ ControlError::BadAddress { .. }, _)) => return Err(error),
            Err(failed) => failed,
            Ok(client) => match make(client).await {
                Ok(reply) => return Ok(reply.into_inner()),
                Err(status) => {
                    let (error, leader) = (refused(one, call, &status), named_leader(&status));
                    let may_go_on = leader.is_some()
                        || each.len() > 1
                            && repeated == Repeated::Harmless
                            && is_of_transport(&status);
                    if !may_go_on {
                        return Err(error);
                    }
                    (error, leader)
                }
            },
        };
        some_answer |= leader.is_some();
        let hint = leader.and_then(|at| each.iter().position(|other| other.address() == at));
        if route.go_on(hint) {
            if each.len() == 1 || !std::mem::take(&mut some_answer) {
                return Err(error);
            }
            tokio::time::sleep(ROUND_PAUSE).await;
        }
    }
}

/// A channel to a controller, for a call. Among others, only to the one that leads, and that answers: what a controller
/// has not been asked, it cannot do later. Errors: with the leader's address, if a controller that does not lead has
/// answered; it is empty if that one does not know it.
pub(super) async fn connect_leader(
    controller: &ControllerEndpoint,
    call: &'static str,
) -> Result<ControllerClient<Channel>, (ControlError, Option<String>)> {
    let mut client = connect(controller).await.map_err(|error| (error, None))?;
    // Leader is the one call that each of them answers.
    if !controller.has_others() || call == LEADER_CALL {
        return Ok(client);
    }
    let asked = tokio::time::timeout(LEADER_PATIENCE, client.leader(pb::LeaderRequest {})).await;
    let address = controller.address();
    match asked {
        Err(_) => {
            let reason = format!("it did not say within {LEADER_PATIENCE:?} whether it leads");
            Err((unreachable(address, reason), None))
        }
        Ok(Err(status)) => Err((refused(controller, LEADER_CALL, &status), None)),
        Ok(Ok(reply)) if reply.get_ref().term == 0 => {
            let reason = "it does not lead".to_owned();
            Err((unreachable(address, reason), Some(reply.into_inner().leader)))
        }
        Ok(Ok(_)) => Ok(client),
    }
}

/// The leader's address from the refusal of a controller that does not lead; empty if it does not know it.
pub(super) fn named_leader(status: &tonic::Status) -> Option<String> {
    Some(status.metadata().get(LEADER)?.to_str().unwrap_or_default().to_owned())
}

fn refused(
    controller: &ControllerEndpoint,
    call: &'static str,
    status: &tonic::Status,
) -> ControlError {
    let (address, reason) = (controller.address(), reason(controller, status));
    match is_of_transport(status) {
        true => unreachable(address, reason),
        false => ControlError::Refused { address: address.to_owned(), call, reason },
    }
}

fn unreachable(address: &str, reason: String) -> ControlError {
    let address = address.to_owned();
    match reason.strip_prefix(TLS_FAILED) {
        Some(reason) => ControlError::Insecure { address, reason: reason.to_owned() },
        None => ControlError::Unreachable { address, reason },
    }
}

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// A frozen controller is detected within twice this.
const KEEP_ALIVE: Duration = Duration::from_secs(3);
/// The same where there are other controllers, so that a new leader is found within seconds.
const CONNECT_TIMEOUT_AMONG_OTHERS: Duration = Duration::from_millis(500);
const KEEP_ALIVE_AMONG_OTHERS: Duration = Duration::from_secs(1);
/// The metadata of refusals by controllers that do not lead: the leader's address, or nothing.
pub(crate) const LEADER: &str = "netsum-leader";
const LEADER_CALL: &str = "Leader";
/// How long one of several controllers may take to say whether it leads.
const LEADER_PATIENCE: Duration = Duration::from_millis(500);
/// After all controllers have said that they do not lead.
const ROUND_PAUSE: Duration = Duration::from_millis(100);
/// A plan of a thousand ranks on 16 trees is below 1 MiB.
pub(crate) const MESSAGE_MAX: usize = 16 << 20;
