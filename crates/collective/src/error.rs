//! Errors of operations: one variant per cause that callers may handle differently.

use std::time::Duration;

use netsum_net::mesh::MeshError;

/// Errors of this crate. Every waiting caller gets a clone.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    /// A rank is lost; the group cannot be used any more.
    #[error("rank {rank} ({place}) is lost: {reason}{}", context.as_deref().unwrap_or(""))]
    PeerLost {
        /// The rank.
        rank: u32,
        /// Its host and process.
        place: String,
        /// A connection reset, silence, or the controller's reason.
        reason: String,
        /// The operation that waited, and how long it has run; begins with "; ".
        context: Option<String>,
    },
    /// The operation took longer than its timeout.
    #[error("{operation} did not finish within {:.1} s; {missing}", elapsed.as_secs_f32())]
    Timeout {
        /// Name, shape, sequence number and bytes.
        operation: String,
        /// Time since the call.
        elapsed: Duration,
        /// The ranks that were not heard from, as text.
        missing: String,
    },
    /// Two ranks called different operations under the same number.
    #[error(
        "rank {other} called {theirs}, rank {rank} called {ours} (operation #{sequence}){}",
        minority(differing)
    )]
    Mismatch {
        /// The operation's number.
        sequence: u64,
        /// The rank that reports the mismatch.
        rank: u32,
        /// Its call.
        ours: String,
        /// The rank whose call differs.
        other: u32,
        /// Its call.
        theirs: String,
        /// The ranks that called something else than more than half of all; empty if that is not known.
        differing: Vec<u32>,
    },
    /// A rank's packets are not those of its call.
    #[error(
        "the packets of {} are not those of {operation}, which all ranks say that they called; that process is faulty \
         or hostile",
        some_rank(ranks)
    )]
    Contradiction {
        /// The operation.
        operation: String,
        /// The ranks that switches name; empty if these cannot say.
        ranks: Vec<u32>,
    },
    /// A rank has contributed to the same elements twice, with different values.
    #[error(
        "{} contributed to {operation} twice, with different values; that process, or a switch before it, is faulty or \
         hostile",
        some_rank(ranks)
    )]
    Changed {
        /// The operation.
        operation: String,
        /// The ranks that switches name.
        ranks: Vec<u32>,
    },
    /// All ranks must have the same result of an operation, and have not.
    #[error("the results of operation #{sequence} differ: {}", of_whom(ranks, *size))]
    ResultsDiffer {
        /// The operation's number.
        sequence: u64,
        /// The ranks whose results are not those of the majority; empty if there is no majority.
        ranks: Vec<u32>,
        /// Number of ranks.
        size: u32,
    },
    /// Another rank reported that the group cannot continue.
    #[error("{reason} (reported by rank {rank})")]
    Told {
        /// The rank that reported it.
        rank: u32,
        /// Its reason.
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
    /// The rank has left the group.
    #[error("{operation}: rank {rank} ({place}) has left the group")]
    Left {
        /// The operation.
        operation: String,
        /// The rank.
        rank: u32,
        /// Its host and process.
        place: String,
    },
    /// An undefined combination, or an argument out of range.
    #[error("{0}")]
    Unsupported(String),
    /// The controller does not answer, or refuses.
    #[error("{0}")]
    Controller(String),
    /// The group could not be connected.
    #[error("cannot connect group {group:?}: {reason}")]
    Connect {
        /// Name of the group.
        group: String,
        /// Reason.
        reason: String,
    },
    /// The caller, or the controller on an operator's behalf, ended the group.
    #[error("group aborted: {0}")]
    Aborted(String),
    /// The group is closed, or was never connected.
    #[error("group {0:?} is closed")]
    Closed(String),
    /// A group or an operation of another process: a fork copies neither the group's threads nor its connections.
    #[error(
        "this belongs to process {process}, from which this process was forked: make a group of its own here, \
         or start processes afresh (multiprocessing: \"spawn\")"
    )]
    Forked {
        /// The process that created it.
        process: u32,
    },
    /// A bug; please report it.
    #[error("internal error: {0}")]
    Internal(String),
}

impl Error {
    /// Adds the waiting operation and how long it has run, if the error does not contain them.
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

fn minority(differing: &[u32]) -> String {
    match differing {
        [] => String::new(),
        [rank] => format!("; rank {rank} differs from most ranks"),
        ranks => format!("; ranks {ranks:?} differ from most ranks"),
    }
}

fn some_rank(ranks: &[u32]) -> String {
    match ranks {
        [] => "some rank".to_owned(),
        [rank] => format!("rank {rank}"),
        ranks => format!("some of the ranks {ranks:?}"),
    }
}

/// Who differs, and what to look at.
fn of_whom(ranks: &[u32], size: u32) -> String {
    let most = size as usize - ranks.len();
    let who = match ranks {
        [] => format!("no result is that of more than half of the {size} ranks"),
        [rank] => format!("rank {rank} has other bits than the {most} others"),
        ranks => format!("ranks {ranks:?} have other bits than the {most} others"),
    };
    format!(
        "{who}; look for a switch, a network or memory that changes values, or for a hostile process"
    )
}

/// The error for a mesh error outside of operations.
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
