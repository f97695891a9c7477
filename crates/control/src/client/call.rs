//! Single blocking calls; usable from any thread, even within a runtime.

use std::future::Future;
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
use crate::connection::{Secured, TLS_FAILED};
use crate::convert::shorten;
use crate::error::ControlError;
use crate::pb;
use crate::pb::controller_client::ControllerClient;
use crate::security::Security;

/// Name and hosts of the fabric.
pub fn fabric(
    controller: &ControllerEndpoint,
    timeout: Duration,
) -> Result<pb::FabricReply, ControlError> {
    blocking(controller, "Fabric", timeout, async |mut client| {
        client.fabric(pb::FabricRequest {}).await
    })
}

/// Registers a job.
pub fn create_job(
    controller: &ControllerEndpoint,
    request: pb::CreateJobRequest,
    timeout: Duration,
) -> Result<pb::CreateJobReply, ControlError> {
    blocking(controller, "CreateJob", timeout, async move |mut client| {
        client.create_job(request).await
    })
}

/// The controller's whole status.
pub fn status(
    controller: &ControllerEndpoint,
    timeout: Duration,
) -> Result<pb::StatusReply, ControlError> {
    blocking(controller, "Status", timeout, async |mut client| {
        client.status(pb::StatusRequest {}).await
    })
}

/// The jobs only; `ended`: including those that are over.
pub fn list_jobs(
    controller: &ControllerEndpoint,
    ended: bool,
    timeout: Duration,
) -> Result<pb::ListJobsReply, ControlError> {
    blocking(controller, "ListJobs", timeout, async move |mut client| {
        client.list_jobs(pb::ListJobsRequest { ended }).await
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
    blocking(controller, "StopJob", timeout, async move |mut client| client.stop_job(request).await)
        .map(drop)
}

/// Gives a job a new key and a new plan; packets under the old key are refused once the plan is in use.
pub fn rekey_job(
    controller: &ControllerEndpoint,
    job: u32,
    timeout: Duration,
) -> Result<(), ControlError> {
    let request = pb::RekeyJobRequest { job };
    blocking(controller, "RekeyJob", timeout, async move |mut client| {
        client.rekey_job(request).await
    })
    .map(drop)
}

/// A channel to the controller; waits are bounded, and a frozen peer is detected.
pub(super) async fn connect(
    controller: &ControllerEndpoint,
) -> Result<ControllerClient<Channel>, ControlError> {
    let address = controller.address();
    let channel = channel(address)?;
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

fn channel(address: &str) -> Result<Endpoint, ControlError> {
    let bad = || ControlError::BadAddress { address: address.to_owned() };
    if !address
        .rsplit_once(':')
        .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
    {
        return Err(bad());
    }
    let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(|_| bad())?;
    Ok(endpoint
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE)
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
fn innermost(error: &dyn std::error::Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

fn blocking<T: Send, F>(
    controller: &ControllerEndpoint,
    call: &'static str,
    timeout: Duration,
    make: impl FnOnce(ControllerClient<Channel>) -> F + Send,
) -> Result<T, ControlError>
where
    F: Future<Output = Result<tonic::Response<T>, tonic::Status>>,
{
    let address = controller.address();
    let run = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime
            .map_err(|source| ControlError::System { what: "cannot start a runtime", source })?;
        let work = async {
            let client = connect(controller).await?;
            make(client)
                .await
                .map(tonic::Response::into_inner)
                .map_err(|status| refused(controller, call, &status))
        };
        let seconds = timeout.as_secs_f64();
        let late = |_| ControlError::Timeout { address: address.to_owned(), call, seconds };
        runtime.block_on(async { tokio::time::timeout(timeout, work).await.map_err(late)? })
    };
    // On a separate thread: a caller inside a runtime must not block on another.
    std::thread::scope(|scope| scope.spawn(run).join())
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
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
/// A plan of a thousand ranks on 16 trees is below 1 MiB.
pub(crate) const MESSAGE_MAX: usize = 16 << 20;
