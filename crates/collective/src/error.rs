//! Why an operation failed: one variant per cause that a caller would treat differently.

use std::time::Duration;

use netsum_net::mesh::MeshError;

/// Errors of this crate. Cloned to everybody who waits.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    /// A rank is gone; the group cannot be used any more.
    #[error("rank {rank} ({place}) is lost: {reason}{}", context.as_deref().unwrap_or(""))]
    PeerLost {
        /// The rank.
        rank: u32,
        /// Its host and process.
        place: String,
        /// Reset, silence, the controller's words.
        reason: String,
        /// The operation that waited, and for how long; begins with "; ".
        context: Option<String>,
    },
    /// The operation took longer than its timeout.
    #[error("{operation} did not finish within {:.1} s; {missing}", elapsed.as_secs_f32())]
    Timeout {
        /// Name, shape, sequence number and bytes.
        operation: String,
        /// Since it was called.
        elapsed: Duration,
        /// The ranks that were not heard from, in words.
        missing: String,
    },
    /// Two ranks called different operations in the same place.
    #[error("rank {other} called {theirs}, rank {rank} called {ours} (operation #{sequence})")]
    Mismatch {
        /// The operation's number.
        sequence: u64,
        /// The rank that reports the mismatch.
        rank: u32,
        /// Its call.
        ours: String,
        /// Rank that differs.
        other: u32,
        /// Its call.
        theirs: String,
    },
    /// Another rank found that the group cannot go on.
    #[error("{reason} (reported by rank {rank})")]
    Told {
        /// The rank that reported it.
        rank: u32,
        /// Why.
        reason: String,
        /// Whether the ranks called different operations.
        mismatch: bool,
    },
    /// A peer sent more or less than the caller's buffer holds.
    #[error("{operation}: rank {rank} sent {sent} bytes where {expected} were expected")]
    Size {
        /// The operation.
        operation: String,
        /// The sender.
        rank: u32,
        /// Bytes of its message.
        sent: u64,
        /// Bytes of the buffer.
        expected: u64,
    },
    /// The rank has left the group in good order and takes no part any more.
    #[error("{operation}: rank {rank} ({place}) has left the group")]
    Left {
        /// The operation.
        operation: String,
        /// The rank.
        rank: u32,
        /// Its host and process.
        place: String,
    },
    /// A combination that does not exist, or an argument out of range.
    #[error("{0}")]
    Unsupported(String),
    /// The controller is needed and does not answer, or refuses.
    #[error("{0}")]
    Controller(String),
    /// The group could not be built.
    #[error("cannot connect group {group:?}: {reason}")]
    Connect {
        /// Its name.
        group: String,
        /// What is wrong.
        reason: String,
    },
    /// The caller, or the controller on somebody's behalf, ended the group.
    #[error("group aborted: {0}")]
    Aborted(String),
    /// The group is closed, or was never connected.
    #[error("group {0:?} is closed")]
    Closed(String),
    /// A group, or what it had under way, is of another process; a fork copies neither its threads nor its place among the ranks.
    #[error(
        "this belongs to process {process}, from which this process was forked: make a group of its own here, \
         or start processes afresh (multiprocessing: \"spawn\")"
    )]
    Forked {
        /// The process that made it.
        process: u32,
    },
    /// A state that should not exist; please report it.
    #[error("internal error: {0}")]
    Internal(String),
}

impl Error {
    /// Adds which operation waited, and for how long, where the error does not say it.
    pub(crate) fn during(self, operation: &str, elapsed: Duration) -> Error {
        match self {
            Error::PeerLost { rank, place, reason, context: None } => {
                let context = format!("; {operation} had run for {:.1} s", elapsed.as_secs_f32());
                Error::PeerLost { rank, place, reason, context: Some(context) }
            }
            other => other,
        }
    }
}

/// A mesh error that no operation is to blame for.
pub(crate) fn of_mesh(error: &MeshError, place: impl Fn(u32) -> String) -> Error {
    match error {
        MeshError::PeerLost { rank, reason } => {
            let (rank, reason) = (*rank, reason.clone());
            Error::PeerLost { rank, place: place(rank), reason, context: None }
        }
        MeshError::Aborted(reason) => Error::Aborted(reason.clone()),
        other => Error::Internal(other.to_string()),
    }
}
