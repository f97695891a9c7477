//! Errors between a driver and the operating system.

use std::io;
use std::net::SocketAddr;

use netsum_proto::row_machines::Refusal;

/// Errors of this crate.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    /// The address is in use, does not belong to this machine, or may not be used.
    #[error("cannot open {what} on {address}: {source}{}", advice(source))]
    Bind {
        /// "UDP socket", "TCP listener".
        what: &'static str,
        /// The requested address.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// The system refused a required socket option.
    #[error("cannot set {option} on a socket: {source}")]
    Option {
        /// Its name in the system's headers.
        option: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// A working socket has failed.
    #[error("{what} failed: {source}")]
    Io {
        /// The failed operation.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// No thread could be started.
    #[error("cannot start thread {name}: {source}")]
    Thread {
        /// Its name.
        name: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// An error between ranks.
    #[error(transparent)]
    Mesh(#[from] crate::mesh::MeshError),
    /// UCX is not available, or does not reach all ranks.
    #[error(transparent)]
    Ucx(#[from] crate::UcxError),
    /// A lease names an address twice: every child, and the parent, must be different neighbours.
    #[error(
        "{address} occurs twice in the lease; every child and the parent need an address of their own"
    )]
    DuplicateNeighbour {
        /// The address.
        address: SocketAddr,
    },
    /// The lease cannot be installed.
    #[error(transparent)]
    Lease(#[from] netsum_proto::panama::LeaseError),
    /// The lease cannot be installed at a switch or server of protocol `atp`.
    #[error(transparent)]
    SlotLease(netsum_proto::atp::LeaseError),
    /// The pool cannot be installed.
    #[error(transparent)]
    PoolLease(netsum_proto::registry::PoolLeaseError),
    /// The accelerator is not available, or refuses the lease.
    #[error(transparent)]
    Accelerator(#[from] crate::accelerator::AcceleratorError),
    /// The lease of a switch at a server, or the reverse.
    #[error("this is a {0}; the lease is for the other role, so the plan names the wrong process")]
    WrongRole(&'static str),
    /// The credentials cannot be used.
    #[error(transparent)]
    Identity(#[from] netsum_identity::IdentityError),
    /// Too many data threads, or none.
    #[error(
        "{wanted} data threads are not possible: {what} has {}",
        if *most == 1 { "one".to_owned() } else { format!("1 to {most}") }
    )]
    Threads {
        /// What cannot have so many.
        what: &'static str,
        /// How many it can have.
        most: usize,
        /// How many were wanted.
        wanted: usize,
    },
    /// The driver's thread has ended; the driver must be restarted.
    #[error("the driver's thread has stopped")]
    Stopped,
}

impl From<Refusal> for NetError {
    fn from(refusal: Refusal) -> NetError {
        match refusal {
            Refusal::Slots(error) => NetError::SlotLease(error),
            Refusal::Pool(error) => NetError::PoolLease(error),
            Refusal::WrongRole(role) => NetError::WrongRole(role),
        }
    }
}

fn advice(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::AddrInUse => " (stop the process that uses it, or choose another port)",
        io::ErrorKind::AddrNotAvailable => " (the address is not one of this machine's)",
        io::ErrorKind::PermissionDenied => " (ports below 1024 need privileges)",
        _ => "",
    }
}
