//! Errors of a hand-over.

use std::fmt::{self, Display, Formatter};

use netsum_wire::{Epoch, Rank};

use super::DecodeError;

/// A message that a machine refuses; the machine is unchanged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the hand-over message of rank {} cannot be taken: {cause}", from.0)]
pub struct MessageError {
    /// Sender.
    pub from: Rank,
    /// Reason.
    pub cause: Cause,
}

/// Why a message is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Cause {
    /// It cannot be decoded.
    #[error(transparent)]
    Malformed(#[from] DecodeError),
    /// Sender and receiver are in different hand-overs.
    #[error("it is of hand-over {theirs}, this rank is in {ours}")]
    Generation {
        /// Generation of the message.
        theirs: u64,
        /// Generation of the receiver.
        ours: u64,
    },
    /// Its sender may not send it, or not now.
    #[error("{0}")]
    Unexpected(&'static str),
}

/// Why the ranks cannot continue.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandoverError {
    /// A time-out.
    #[error("waited too long for {awaited} of {}", ranks(missing))]
    Timeout {
        /// What was awaited.
        awaited: Awaited,
        /// Ranks that it was awaited from; empty: this rank's own driver.
        missing: Vec<Rank>,
        /// The operation that reached its deadline; `None`: the hand-over itself took too long.
        operation: Option<u64>,
    },
    /// The reports are of different epochs.
    #[error("ranks in epochs {} met in a hand-over", epochs(.0))]
    EpochsDiffer(Vec<Option<Epoch>>),
    /// The reports of one epoch are inconsistent.
    #[error("the ranks' reports of one epoch do not fit together")]
    ReportsDiffer,
    /// A result that another rank lacks is not retained any more.
    #[error("result {0} that another rank lacks is not retained")]
    NotRetained(u64),
    /// With partial sums, other ranks can have the result of an operation that this rank has not called yet.
    #[error(
        "a switch died after it had released partial sums of an operation that this rank has not called yet; they \
         cannot be made whole"
    )]
    PartialSums,
    /// Rank 0 named finished elements beyond the operation's end.
    #[error("rank 0 named finished elements beyond the operation's end")]
    Elements,
}

/// Events that a hand-over waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaited {
    /// The driver stops the path.
    Freeze,
    /// Reports of other ranks.
    Reports,
    /// The driver finds a plan.
    Plan,
    /// Rank 0's next message.
    Leader,
    /// Results that other ranks have.
    Results,
    /// The driver connects the new path.
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
