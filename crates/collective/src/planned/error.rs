//! Errors of running a plan.

use serde::{Deserialize, Serialize};

/// A link on which a peer link was lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostLink {
    /// Names of its vertices: a GPU, switches that only forward, a GPU.
    pub link: Vec<String>,
    /// Error of the connection.
    pub reason: String,
}

impl std::fmt::Display for LostLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.link.join("–"), self.reason)
    }
}

/// Errors of running a plan.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PlannedError {
    /// The plan is not supported by this executor.
    #[error("the plan cannot be run: {0}")]
    Plan(String),
    /// A neighbour could not be reached, or did not connect.
    #[error("rank {rank} could not be reached at {address} within {within_s} s: {reason}")]
    Unreachable {
        /// The neighbour.
        rank: usize,
        /// Names of the vertices on the path to it.
        link: Vec<String>,
        /// Its address.
        address: String,
        /// Duration of the attempts.
        within_s: f64,
        /// Reason of the last failure.
        reason: String,
        /// Whether the link is dead, as the operating system reports it.
        dead: bool,
    },
    /// The connection to a neighbour ended.
    #[error("rank {rank} is gone over {}: {reason}", link.join("–"))]
    PeerLost {
        /// The neighbour.
        rank: usize,
        /// Names of the vertices on the path to it.
        link: Vec<String>,
        /// Error of the connection.
        reason: String,
    },
    /// A neighbour broke the plan.
    #[error("rank {rank} sent {what}; do all ranks run the same plan on the same size?")]
    Odd {
        /// The neighbour.
        rank: usize,
        /// Description.
        what: &'static str,
    },
    /// A neighbour's caller called another operation.
    #[error("rank {rank} called this operation with another length, type or operation")]
    Differs {
        /// The neighbour.
        rank: usize,
    },
    /// Neighbours did not send in time.
    #[error("nothing came within {within_s} s; awaited: {}", ranks_in_words(ranks))]
    Timeout {
        /// The timeout.
        within_s: f64,
        /// Ranks whose messages are missing.
        ranks: Vec<usize>,
    },
    /// A buffer whose length is invalid.
    #[error("a buffer of {bytes} bytes is no whole number of elements of {element} bytes")]
    Size {
        /// Length of the buffer.
        bytes: usize,
        /// Size of an element.
        element: usize,
    },
    /// The system did not create a thread.
    #[error("cannot start the threads of a peer link: {0}")]
    Thread(String),
    /// The operation was interrupted by its caller.
    #[error("the operation was interrupted")]
    Interrupted,
}

fn ranks_in_words(ranks: &[usize]) -> String {
    match ranks {
        [] => "none, but the send queues are full".to_owned(),
        [rank] => format!("rank {rank}"),
        ranks => {
            let names: Vec<String> = ranks.iter().map(usize::to_string).collect();
            format!("ranks {}", names.join(", "))
        }
    }
}
