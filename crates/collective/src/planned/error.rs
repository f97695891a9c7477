//! Why a plan could not be run.

use serde::{Deserialize, Serialize};

/// A link over which a peer link was lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostLink {
    /// Names of its vertices: a GPU, switches that pass on, a GPU.
    pub link: Vec<String>,
    /// What the connection said.
    pub reason: String,
}

impl std::fmt::Display for LostLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.link.join("–"), self.reason)
    }
}

/// Why a plan could not be run.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PlannedError {
    /// A plan that is not for this executor.
    #[error("the plan cannot be run: {0}")]
    Plan(String),
    /// A neighbour that could not be reached, or did not come.
    #[error("rank {rank} could not be reached at {address} within {within_s} s: {reason}")]
    Unreachable {
        /// The neighbour.
        rank: usize,
        /// Names of the vertices on the way to it.
        link: Vec<String>,
        /// Where it should be.
        address: String,
        /// How long was tried.
        within_s: f64,
        /// The last reason.
        reason: String,
        /// The link is dead, as far as the operating system reports.
        dead: bool,
    },
    /// A neighbour whose connection ended.
    #[error("rank {rank} is gone over {}: {reason}", link.join("–"))]
    PeerLost {
        /// The neighbour.
        rank: usize,
        /// Names of the vertices on the way to it.
        link: Vec<String>,
        /// What the connection said.
        reason: String,
    },
    /// A neighbour that breaks the plan.
    #[error("rank {rank} sent {what}; do all ranks run the same plan on the same size?")]
    Odd {
        /// The neighbour.
        rank: usize,
        /// In words.
        what: &'static str,
    },
    /// A neighbour whose caller wants something else.
    #[error("rank {rank} called this operation with another length, type or operation")]
    Differs {
        /// The neighbour.
        rank: usize,
    },
    /// Neighbours that are silent.
    #[error("nothing came within {within_s} s; awaited: {}", ranks_in_words(ranks))]
    Timeout {
        /// The timeout.
        within_s: f64,
        /// Ranks that still owe something.
        ranks: Vec<usize>,
    },
    /// A buffer that cannot be used.
    #[error("a buffer of {bytes} bytes is no whole number of elements of {element} bytes")]
    Size {
        /// Its length.
        bytes: usize,
        /// Size of an element.
        element: usize,
    },
    /// The system gives no thread.
    #[error("cannot start the threads of a peer link: {0}")]
    Thread(String),
    /// Whoever runs the group wanted it to end.
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
