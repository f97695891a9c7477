//! What goes wrong in the operator.

use std::io;
use std::net::SocketAddr;

use netsum_control::ControlError;

/// Why something could not be done. All but those of the start are tried again.
#[derive(Debug, thiserror::Error)]
pub enum OperatorError {
    /// The API server refused, or is away.
    #[error("{what}: {}", source_of(.source))]
    Api {
        /// What was asked.
        what: String,
        /// The client's error.
        source: Box<kube::Error>,
    },
    /// No cluster is configured.
    #[error("no Kubernetes API server is known: {0}")]
    Configuration(String),
    /// The controller refused, or is away.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// A certificate for the admission could not be made or read.
    #[error("the certificate of the admission: {0}")]
    Certificate(String),
    /// The port of the admission is taken.
    #[error("cannot listen at {address}: {source}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// The system refused.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// What the operator waited for has ended.
    #[error("{0} has ended")]
    Ended(&'static str),
}

impl OperatorError {
    /// For errors of the API client in asking for `what`.
    pub fn api(what: impl Into<String>) -> impl FnOnce(kube::Error) -> OperatorError {
        let what = what.into();
        move |source| OperatorError::Api { what, source: Box::new(source) }
    }

    /// Whether the API server has something newer than the request was made from.
    pub fn is_conflict(&self) -> bool {
        self.code() == Some(409)
    }

    /// Whether the API server does not have it.
    pub fn is_absent(&self) -> bool {
        self.code() == Some(404)
    }

    fn code(&self) -> Option<u16> {
        match self {
            OperatorError::Api { source, .. } => match &**source {
                kube::Error::Api(status) => Some(status.code),
                _ => None,
            },
            _ => None,
        }
    }
}

/// The API server's words without their repetition in other forms.
fn source_of(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        other => other.to_string(),
    }
}
