//! Errors between the controller and its clients.

use std::path::PathBuf;

/// Errors of the controller and of its clients.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// No controller answers.
    #[error("no controller answers at {address}: {reason}; is netsum-controller running there?")]
    Unreachable {
        /// The given address.
        address: String,
        /// The transport's error.
        reason: String,
    },
    /// The controller answers, but either side refuses the other's certificate, or has none.
    #[error("no secure connection to the controller at {address}: {reason}")]
    Insecure {
        /// The given address.
        address: String,
        /// What is wrong and what to do.
        reason: String,
    },
    /// An address that is not `host:port`.
    #[error(
        "{address:?} is not the address of a controller; write host:port, like 127.77.0.1:7700"
    )]
    BadAddress {
        /// The given address.
        address: String,
    },
    /// The controller did not answer within the caller's time-out.
    #[error("the controller at {address} did not answer {call} within {seconds} s")]
    Timeout {
        /// The given address.
        address: String,
        /// Name of the call.
        call: &'static str,
        /// The caller's time-out.
        seconds: f64,
    },
    /// The controller refused the call.
    #[error("the controller at {address} refused {call}: {reason}")]
    Refused {
        /// The given address.
        address: String,
        /// Name of the call.
        call: &'static str,
        /// The controller's reason.
        reason: String,
    },
    /// An invalid message.
    #[error("{what} is malformed: {problem}")]
    Malformed {
        /// The message.
        what: &'static str,
        /// What is wrong.
        problem: String,
    },
    /// The process cannot be confined as it was told.
    #[error("cannot confine the process: {problem}")]
    Sandbox {
        /// What is wrong and what to do.
        problem: String,
    },
    /// The listening address is in use or does not belong to this machine.
    #[error("cannot listen at {address}: {reason}")]
    Listen {
        /// The given address.
        address: String,
        /// What is wrong and what to do.
        reason: String,
    },
    /// An error of the store file.
    #[error("store {}: {problem}", file.display())]
    Store {
        /// The file.
        file: PathBuf,
        /// What is wrong and what to do.
        problem: String,
    },
    /// Another controller of the same store has begun a later term.
    #[error(
        "store {place}: another controller leads since term {term} began; this one has stopped leading"
    )]
    Deposed {
        /// The store.
        place: String,
        /// The term that is in force; 0: unknown.
        term: u64,
    },
    /// The store did not answer in time: whether it made a change is unknown.
    #[error("store {place}: {problem}; whether the change was made is unknown")]
    Uncertain {
        /// The store.
        place: String,
        /// What is wrong and what to do.
        problem: String,
    },
    /// An error of the credentials.
    #[error(transparent)]
    Credentials(#[from] netsum_identity::IdentityError),
    /// A machine cannot join.
    #[error("cannot join by {address}: {reason}")]
    Enrolment {
        /// The authority's address in the token.
        address: String,
        /// What is wrong and what to do.
        reason: String,
    },
    /// The credentials are not those of this fabric's controller.
    #[error(
        "{}: the certificate is that of {found}, not of spiffe://{fabric}/controller; issue one by `netsum ca issue \
         controller`",
        folder.display()
    )]
    NotController {
        /// The folder of the credentials.
        folder: PathBuf,
        /// Their identity.
        found: String,
        /// Name of the fabric.
        fabric: String,
    },
    /// An error of the fabric file.
    #[error(transparent)]
    Fabric(#[from] netsum_topo::TopoError),
    /// The operating system refused a thread, a runtime or a signal handler.
    #[error("{what}: {source}")]
    System {
        /// The request.
        what: &'static str,
        /// The system's error.
        source: std::io::Error,
    },
}
