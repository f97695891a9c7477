//! What can go wrong between the controller and its clients.

use std::path::PathBuf;

/// Errors of the controller and of its clients.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// No controller answers.
    #[error("no controller answers at {address}: {reason}; is netsum-controller running there?")]
    Unreachable {
        /// As given.
        address: String,
        /// The transport's words.
        reason: String,
    },
    /// Not `host:port`.
    #[error(
        "{address:?} is not the address of a controller; write host:port, like 127.77.0.1:7700"
    )]
    BadAddress {
        /// As given.
        address: String,
    },
    /// The controller took longer than the caller allowed.
    #[error("the controller at {address} did not answer {call} within {seconds} s")]
    Timeout {
        /// As given.
        address: String,
        /// Name of the call.
        call: &'static str,
        /// What the caller allowed.
        seconds: f64,
    },
    /// The controller answered and said no.
    #[error("the controller at {address} refused {call}: {reason}")]
    Refused {
        /// As given.
        address: String,
        /// Name of the call.
        call: &'static str,
        /// The controller's words.
        reason: String,
    },
    /// A message that does not make sense.
    #[error("{what} is malformed: {problem}")]
    Malformed {
        /// The message.
        what: &'static str,
        /// What is wrong.
        problem: String,
    },
    /// The address to serve at is taken or not ours.
    #[error("cannot listen at {address}: {reason}")]
    Listen {
        /// As given.
        address: String,
        /// What is wrong and what to do.
        reason: String,
    },
    /// The store file.
    #[error("store {}: {problem}", file.display())]
    Store {
        /// The file.
        file: PathBuf,
        /// What is wrong and what to do.
        problem: String,
    },
    /// The fabric file.
    #[error(transparent)]
    Fabric(#[from] netsum_topo::TopoError),
    /// The operating system refused a thread, a runtime or a signal handler.
    #[error("{what}: {source}")]
    System {
        /// What was asked for.
        what: &'static str,
        /// Its words.
        source: std::io::Error,
    },
}
