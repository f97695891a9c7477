//! Errors of the daemon.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use netsum_control::ControlError;
use netsum_net::NetError;
use netsum_sandbox::SandboxError;
use netsum_topo::TopoError;

/// Errors of the daemon.
#[derive(Debug, thiserror::Error)]
pub enum SwitchError {
    /// An error of the fabric file.
    #[error(transparent)]
    Fabric(#[from] TopoError),
    /// The fabric has no switch or server of this name.
    #[error("{}: fabric \"{fabric}\" has no {what} \"{name}\"; it has {known}", file.display())]
    UnknownName {
        /// "switch" or "server".
        what: &'static str,
        /// The file.
        file: PathBuf,
        /// The fabric's name in it.
        fabric: String,
        /// The requested name.
        name: String,
        /// The names in the file.
        known: String,
    },
    /// An error of the credentials.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The credentials are those of somebody else.
    #[error(
        "{}: the certificate is that of {found}, not of switch/{name}; issue one by `netsum ca issue switch/{name}`",
        folder.display()
    )]
    OtherIdentity {
        /// The folder of the credentials.
        folder: PathBuf,
        /// Their identity.
        found: String,
        /// The switch's name.
        name: String,
    },
    /// An option of switches was given to a server.
    #[error("{0} goes with a switch; leave it out with --role server")]
    SwitchOnly(&'static str),
    /// Several data threads behind the in-kernel switch.
    #[error(
        "the in-kernel switch has one thread behind it; leave out --threads or --dataplane xdp"
    )]
    ThreadsWithKernel,
    /// An error of the data socket or its thread.
    #[error(transparent)]
    Net(#[from] NetError),
    /// A lease from the controller is invalid.
    #[error("malformed lease: {0}")]
    Lease(String),
    /// The metrics address is in use or does not belong to this machine.
    #[error(
        "cannot serve metrics on {address}: {source}; free the address or give another with --metrics"
    )]
    Metrics {
        /// The configured address.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// The operating system refused a runtime or a signal handler.
    #[error("{what}: {source}")]
    System {
        /// The request.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The process cannot be confined as it was told.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// The session with the controller ended by itself, which is a bug.
    #[error("the session with the controller has ended; start the switch anew")]
    SessionEnded,
}
