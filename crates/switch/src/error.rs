//! Why a switch does not run.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use netsum_net::NetError;
use netsum_topo::TopoError;

/// Errors of the daemon.
#[derive(Debug, thiserror::Error)]
pub enum SwitchError {
    /// The fabric file.
    #[error(transparent)]
    Fabric(#[from] TopoError),
    /// The file is a fabric without this switch or server.
    #[error("{}: fabric \"{fabric}\" has no {what} \"{name}\"; it has {known}", file.display())]
    UnknownName {
        /// "switch" or "server".
        what: &'static str,
        /// The file.
        file: PathBuf,
        /// The fabric's name in it.
        fabric: String,
        /// The name asked for.
        name: String,
        /// The names in the file.
        known: String,
    },
    /// A server adds in its own process.
    #[error("{0} goes with a switch; leave it out with --role server")]
    SwitchOnly(&'static str),
    /// The data socket or its thread.
    #[error(transparent)]
    Net(#[from] NetError),
    /// A lease from the controller makes no sense.
    #[error("malformed lease: {0}")]
    Lease(String),
    /// The metrics address is taken or not ours.
    #[error(
        "cannot serve metrics on {address}: {source}; free the address or give another with --metrics"
    )]
    Metrics {
        /// As configured.
        address: SocketAddr,
        /// The system's answer.
        source: io::Error,
    },
    /// The operating system refused a runtime or a signal handler.
    #[error("{what}: {source}")]
    System {
        /// What was asked for.
        what: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// The session with the controller ended by itself, which it never should.
    #[error("the session with the controller has ended; start the switch anew")]
    SessionEnded,
}
