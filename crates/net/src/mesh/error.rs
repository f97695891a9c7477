//! What can go wrong between ranks.

use std::net::SocketAddr;
use std::time::Duration;

/// Why a message was not sent or received. Cloned to all who wait.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MeshError {
    /// A rank could not be reached while the mesh was built.
    #[error("cannot reach rank {rank} at {address}: {reason}")]
    Unreachable {
        /// The rank.
        rank: u32,
        /// Its address.
        address: SocketAddr,
        /// The system's words.
        reason: String,
    },
    /// Ranks that did not connect in time while the mesh was built.
    #[error("ranks {ranks:?} have not connected within {} s", waited.as_secs_f32())]
    NotConnected {
        /// The missing ranks.
        ranks: Vec<u32>,
        /// How long they had.
        waited: Duration,
    },
    /// A connection ended, or a rank was silent for too long.
    #[error("rank {rank} is lost: {reason}")]
    PeerLost {
        /// The rank.
        rank: u32,
        /// Reset, end of stream, silence.
        reason: String,
    },
    /// The rank said goodbye; it sends and receives nothing any more.
    #[error("rank {rank} has left")]
    Left {
        /// The rank.
        rank: u32,
    },
    /// A message and the buffer that was to hold it differ in size.
    #[error("rank {rank} sent {sent} bytes where {expected} were expected")]
    Size {
        /// The sender.
        rank: u32,
        /// Bytes of the message.
        sent: u64,
        /// Bytes of the buffer.
        expected: u64,
    },
    /// The deadline passed.
    #[error("timed out")]
    Timeout,
    /// The operation that the message belongs to has ended.
    #[error("cancelled")]
    Cancelled,
    /// The group was aborted.
    #[error("aborted: {0}")]
    Aborted(String),
    /// No such rank in this group, or the caller's own.
    #[error("rank {rank} cannot be addressed in a group of {size}")]
    NoSuchRank {
        /// As asked for.
        rank: u32,
        /// Ranks in the group.
        size: u32,
    },
}
