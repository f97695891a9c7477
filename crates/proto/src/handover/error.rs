//! What can go wrong in a hand-over.

use std::fmt::{self, Display, Formatter};

use netsum_wire::{Epoch, Rank};

use super::DecodeError;

/// A message that a machine cannot take; the machine is as it was.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the hand-over message of rank {} cannot be taken: {cause}", from.0)]
pub struct MessageError {
    /// Who sent it.
    pub from: Rank,
    /// What is wrong.
    pub cause: Cause,
}

/// What is wrong with a message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Cause {
    /// It cannot be read.
    #[error(transparent)]
    Malformed(#[from] DecodeError),
    /// The two ranks are not in the same hand-over.
    #[error("it is of hand-over {theirs}, this rank is in {ours}")]
    Generation {
        /// The message's.
        theirs: u64,
        /// The receiver's.
        ours: u64,
    },
    /// Its sender may not send it, or not now.
    #[error("{0}")]
    Unexpected(&'static str),
}

/// Why the ranks cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandoverError {
    /// What was awaited did not come in time.
    #[error("waited too long for {awaited} of {}", ranks(missing))]
    Timeout {
        /// What was awaited.
        awaited: Awaited,
        /// Whose it was; empty: this rank's own driver.
        missing: Vec<Rank>,
        /// The operation that could not wait any longer; `None`: the hand-over itself took too long.
        operation: Option<u64>,
    },
    /// The reports are not of one epoch.
    #[error("ranks in epochs {} met in a hand-over", epochs(.0))]
    EpochsDiffer(Vec<Option<Epoch>>),
    /// The reports of one epoch do not fit together.
    #[error("the ranks' reports of one epoch do not fit together")]
    ReportsDiffer,
    /// A result that another rank lacks is gone.
    #[error("result {0} that another rank lacks is not retained")]
    NotRetained(u64),
    /// With partial sums others can have the result of what this rank has not called yet.
    #[error(
        "a switch died after it had released partial sums of an operation that this rank has not called yet; they \
         cannot be made whole"
    )]
    PartialSums,
    /// Rank 0 says that elements are finished which the operation does not have.
    #[error("rank 0 named finished elements beyond the operation's end")]
    Elements,
}

/// What a hand-over waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaited {
    /// The driver has not stopped the path.
    Freeze,
    /// Reports of other ranks.
    Reports,
    /// The driver has not found a plan.
    Plan,
    /// Rank 0's next message.
    Leader,
    /// Results that other ranks have.
    Results,
    /// The driver has not connected the new path.
    Opening,
}

impl Display for Awaited {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Awaited::Freeze => "the old path to stop",
            Awaited::Reports => "the reports",
            Awaited::Plan => "a plan",
            Awaited::Leader => "the next plan",
            Awaited::Results => "the results",
            Awaited::Opening => "the new path",
        })
    }
}

fn ranks(ranks: &[Rank]) -> String {
    let list: Vec<String> = ranks.iter().map(|rank| rank.0.to_string()).collect();
    match list.as_slice() {
        [] => "this rank".to_owned(),
        [one] => format!("rank {one}"),
        _ => format!("ranks {}", list.join(", ")),
    }
}

fn epochs(epochs: &[Option<Epoch>]) -> String {
    let name = |epoch: &Option<Epoch>| epoch.map_or("none".to_owned(), |epoch| epoch.0.to_string());
    epochs.iter().map(name).collect::<Vec<_>>().join(", ")
}
