//! Errors between ranks.

use std::net::SocketAddr;
use std::time::Duration;

/// Why a message was not sent or received. All waiting callers get a clone.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MeshError {
    /// A rank could not be reached during set-up.
    #[error("cannot reach rank {rank} at {address}: {reason}")]
    Unreachable {
        /// The rank.
        rank: u32,
        /// Its address.
        address: SocketAddr,
        /// The system's error.
        reason: String,
    },
    /// Ranks that did not connect in time during set-up.
    #[error("ranks {ranks:?} have not connected within {:.1} s{refused}", waited.as_secs_f32())]
    NotConnected {
        /// The missing ranks.
        ranks: Vec<u32>,
        /// Time-out.
        waited: Duration,
        /// Connections that were refused, and why, each after a semicolon.
        refused: String,
    },
    /// A connection ended, or a rank was silent for too long.
    #[error("rank {rank} is lost: {reason}")]
    PeerLost {
        /// The rank.
        rank: u32,
        /// Connection reset, end of stream, or silence.
        reason: String,
    },
    /// The rank has left; it sends and receives nothing any more.
    #[error("rank {rank} has left")]
    Left {
        /// The rank.
        rank: u32,
    },
    /// A message whose size differs from the buffer's.
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
    /// An invalid rank, or the caller's own.
    #[error("rank {rank} cannot be addressed in a group of {size}")]
    NoSuchRank {
        /// The requested rank.
        rank: u32,
        /// Number of ranks in the group.
        size: u32,
    },
}
