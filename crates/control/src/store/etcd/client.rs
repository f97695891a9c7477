//! Calls of an etcd cluster: each goes to one member, and to the next one if that does not answer.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use super::credentials::EtcdCredentials;
use crate::error::ControlError;
use crate::pb::etcd::kv_client::KvClient;
use crate::pb::etcd::{RangeRequest, RangeResponse, TxnRequest, TxnResponse};

/// A cluster. Clones share the connection.
#[derive(Debug, Clone)]
pub(crate) struct Etcd {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    endpoints: Vec<String>,
    credentials: Option<EtcdCredentials>,
    current: Mutex<Current>,
}

/// The member that is asked at present.
#[derive(Debug, Default)]
struct Current {
    number: usize,
    channel: Option<Channel>,
}

/// Why a call brought no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CallError {
    /// No member answered in time. Some may have done, or may still do, what was asked.
    Silent(String),
    /// The cluster has refused the call, with its reason.
    Refused(String),
}

impl Etcd {
    /// A cluster at `host:port`, some of them separated by commas. Errors name the address.
    pub fn new(
        endpoints: &str,
        credentials: Option<EtcdCredentials>,
    ) -> Result<Etcd, ControlError> {
        let endpoints: Vec<String> =
            endpoints.split(',').map(|endpoint| endpoint.trim().to_owned()).collect();
        for endpoint in &endpoints {
            let parts = endpoint.rsplit_once(':');
            if !parts.is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok()) {
                return Err(ControlError::Store {
                    file: format!("etcd://{endpoint}").into(),
                    problem: "it is not the address of a member of etcd; write \
                              etcd://host:port,host:port"
                        .to_owned(),
                });
            }
        }
        let shared = Shared { endpoints, credentials, current: Mutex::default() };
        Ok(Etcd { shared: Arc::new(shared) })
    }

    /// A name for users.
    pub fn place(&self) -> String {
        format!("etcd://{}", self.shared.endpoints.join(","))
    }

    /// Reads keys.
    pub async fn range(
        &self,
        request: RangeRequest,
        patience: Duration,
    ) -> Result<RangeResponse, CallError> {
        self.call(patience, |channel| {
            let request = request.clone();
            async move {
                let mut client = KvClient::new(channel).max_decoding_message_size(MESSAGE_MAX);
                client.range(request).await.map(tonic::Response::into_inner)
            }
        })
        .await
    }

    /// Performs a transaction, perhaps more than once: its comparisons must tell.
    pub async fn txn(
        &self,
        request: TxnRequest,
        patience: Duration,
    ) -> Result<TxnResponse, CallError> {
        self.call(patience, |channel| {
            let request = request.clone();
            async move {
                let mut client = KvClient::new(channel).max_decoding_message_size(MESSAGE_MAX);
                client.txn(request).await.map(tonic::Response::into_inner)
            }
        })
        .await
    }

    /// Asks one member after the other until one answers, for at most `patience`.
    pub(super) async fn call<T, F>(
        &self,
        patience: Duration,
        ask: impl Fn(Channel) -> F,
    ) -> Result<T, CallError>
    where
        F: Future<Output = Result<T, Status>>,
    {
        let until = Instant::now() + patience;
        let mut failures = 0;
        loop {
            let (number, channel) = self.current()?;
            let limit = ATTEMPT.min(until.saturating_duration_since(Instant::now()));
            let problem = match tokio::time::timeout(limit, ask(channel)).await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(status)) if is_passing(&status) => describe(&status),
                Ok(Err(status)) if failures == 0 => {
                    return Err(CallError::Refused(describe(&status)));
                }
                // An earlier attempt may have had an effect.
                Ok(Err(status)) => return Err(CallError::Silent(describe(&status))),
                Err(_) => format!("no answer within {limit:?}"),
            };
            self.leave(number);
            failures += 1;
            let endpoint = &self.shared.endpoints[number];
            let pause = match failures % self.shared.endpoints.len() {
                0 => PAUSE,
                _ => Duration::ZERO,
            };
            // An attempt of less time would end with "no answer" instead of its cause.
            if Instant::now() + pause + PAUSE >= until {
                return Err(CallError::Silent(format!(
                    "no member of etcd has answered for {patience:?}, the last one asked was {endpoint}: {problem}"
                )));
            }
            tokio::time::sleep(pause).await;
        }
    }

    /// The member that is asked at present.
    fn current(&self) -> Result<(usize, Channel), CallError> {
        let mut current = self.shared.current.lock().unwrap_or_else(PoisonError::into_inner);
        let number = current.number;
        if let Some(channel) = &current.channel {
            return Ok((number, channel.clone()));
        }
        let channel = self.connect(&self.shared.endpoints[number])?;
        current.channel = Some(channel.clone());
        Ok((number, channel))
    }

    /// Asks the next member from now on, unless another call has changed to it already.
    fn leave(&self, number: usize) {
        let mut current = self.shared.current.lock().unwrap_or_else(PoisonError::into_inner);
        if current.number == number {
            let number = (number + 1) % self.shared.endpoints.len();
            *current = Current { number, channel: None };
        }
    }

    fn connect(&self, endpoint: &str) -> Result<Channel, CallError> {
        let refused = |error: tonic::transport::Error| CallError::Refused(error.to_string());
        let address = Endpoint::from_shared(format!("http://{endpoint}")).map_err(refused)?;
        let address = address.connect_timeout(ATTEMPT).tcp_nodelay(true);
        Ok(match &self.shared.credentials {
            None => address.connect_lazy(),
            Some(credentials) => {
                address.connect_with_connector_lazy(credentials.connector(endpoint))
            }
        })
    }
}

/// Whether another member, or the same one a moment later, may answer: the member cannot be reached, or the cluster is
/// about to elect one of them. Any other code of the cluster is its answer. Channels that have broken report `Unknown`.
fn is_passing(status: &Status) -> bool {
    use Code::{
        AlreadyExists, FailedPrecondition, InvalidArgument, NotFound, OutOfRange, PermissionDenied,
        ResourceExhausted, Unauthenticated, Unimplemented,
    };
    let of_transport = std::error::Error::source(status).is_some();
    let is_answer = matches!(
        status.code(),
        AlreadyExists
            | FailedPrecondition
            | InvalidArgument
            | NotFound
            | OutOfRange
            | PermissionDenied
            | ResourceExhausted
            | Unauthenticated
            | Unimplemented
    );
    of_transport || !is_answer
}

fn describe(status: &Status) -> String {
    let mut error: &dyn std::error::Error = status;
    while let Some(source) = error.source() {
        error = source;
    }
    match error.downcast_ref::<Status>() {
        Some(status) => status.message().to_owned(),
        None => error.to_string(),
    }
}

/// A member that has not answered for so long is left for the next one. A healthy one answers within milliseconds, or
/// within some hundred on a slow disk.
const ATTEMPT: Duration = Duration::from_millis(700);
/// After all members have failed.
const PAUSE: Duration = Duration::from_millis(50);
/// Pages of a load: some hundred plans.
const MESSAGE_MAX: usize = 64 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_channel_is_left_and_an_answer_is_not() {
        let broken = Status::unknown("Service was not ready: transport error");
        assert!(is_passing(&broken) && is_passing(&Status::unavailable("etcdserver: no leader")));
        let full = Status::resource_exhausted("etcdserver: mvcc: database space exceeded");
        assert!(!is_passing(&full) && !is_passing(&Status::invalid_argument("too large")));
    }
}
