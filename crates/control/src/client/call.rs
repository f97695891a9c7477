//! Single blocking calls; usable from any thread, even within a runtime.

use std::future::Future;
use std::time::Duration;

use tonic::transport::{Channel, Endpoint};

use crate::convert::shorten;
use crate::error::ControlError;
use crate::pb;
use crate::pb::controller_client::ControllerClient;

/// Name and hosts of the fabric.
pub fn fabric(address: &str, timeout: Duration) -> Result<pb::FabricReply, ControlError> {
    blocking(address, "Fabric", timeout, async |mut client| {
        client.fabric(pb::FabricRequest {}).await
    })
}

/// Registers a job.
pub fn create_job(
    address: &str,
    request: pb::CreateJobRequest,
    timeout: Duration,
) -> Result<pb::CreateJobReply, ControlError> {
    blocking(address, "CreateJob", timeout, async move |mut client| {
        client.create_job(request).await
    })
}

/// The controller's whole status.
pub fn status(address: &str, timeout: Duration) -> Result<pb::StatusReply, ControlError> {
    blocking(address, "Status", timeout, async |mut client| {
        client.status(pb::StatusRequest {}).await
    })
}

/// The jobs only; `ended`: including those that are over.
pub fn list_jobs(
    address: &str,
    ended: bool,
    timeout: Duration,
) -> Result<pb::ListJobsReply, ControlError> {
    blocking(address, "ListJobs", timeout, async move |mut client| {
        client.list_jobs(pb::ListJobsRequest { ended }).await
    })
}

/// Ends a job; its workers receive `reason`.
pub fn stop_job(
    address: &str,
    job: u32,
    reason: &str,
    timeout: Duration,
) -> Result<(), ControlError> {
    let mut reason = reason.to_owned();
    shorten(&mut reason);
    let request = pb::StopJobRequest { job, reason };
    blocking(address, "StopJob", timeout, async move |mut client| client.stop_job(request).await)
        .map(drop)
}

/// A channel to the controller; waits are bounded, and a frozen peer is detected.
pub(super) async fn connect(address: &str) -> Result<ControllerClient<Channel>, ControlError> {
    let bad = || ControlError::BadAddress { address: address.to_owned() };
    if !address
        .rsplit_once(':')
        .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
    {
        return Err(bad());
    }
    let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(|_| bad())?;
    let channel = endpoint
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE)
        .keep_alive_while_idle(true)
        .connect()
        .await
        .map_err(|error| ControlError::Unreachable {
            address: address.to_owned(),
            reason: innermost(&error),
        })?;
    Ok(ControllerClient::new(channel)
        .max_decoding_message_size(MESSAGE_MAX)
        .max_encoding_message_size(MESSAGE_MAX))
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
    address: &str,
    call: &'static str,
    timeout: Duration,
    make: impl FnOnce(ControllerClient<Channel>) -> F + Send,
) -> Result<T, ControlError>
where
    F: Future<Output = Result<tonic::Response<T>, tonic::Status>>,
{
    let run = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime
            .map_err(|source| ControlError::System { what: "cannot start a runtime", source })?;
        let work = async {
            let client = connect(address).await?;
            make(client)
                .await
                .map(tonic::Response::into_inner)
                .map_err(|status| refused(address, call, &status))
        };
        let seconds = timeout.as_secs_f64();
        let late = |_| ControlError::Timeout { address: address.to_owned(), call, seconds };
        runtime.block_on(async { tokio::time::timeout(timeout, work).await.map_err(late)? })
    };
    // On a separate thread: a caller inside a runtime must not block on another.
    std::thread::scope(|scope| scope.spawn(run).join())
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

fn refused(address: &str, call: &'static str, status: &tonic::Status) -> ControlError {
    let address = address.to_owned();
    match status.code() {
        tonic::Code::Unavailable => {
            ControlError::Unreachable { address, reason: status.message().to_owned() }
        }
        _ => ControlError::Refused { address, call, reason: status.message().to_owned() },
    }
}

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// A frozen controller is detected within twice this.
const KEEP_ALIVE: Duration = Duration::from_secs(3);
/// A plan of a thousand ranks on 16 trees is below 1 MiB.
pub(crate) const MESSAGE_MAX: usize = 16 << 20;
