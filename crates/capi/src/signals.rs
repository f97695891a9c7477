//! One-sided messages: what a rank writes into another's window, and the signals that say so.
//!
//! A signal is a message of 32 bytes (window, offset, bytes, signal, context), and the bytes follow in another. The
//! sender does not wait for the receiver. The receiver's library writes the bytes when its caller waits for a signal of
//! that rank, in the order in which they were sent.

use std::collections::HashMap;
use std::ffi::c_int;

use netsum_collective::Work;
use parking_lot::Mutex;

/// Signals of one communicator.
#[derive(Default)]
pub(crate) struct Signals {
    /// Sends that have not ended when they were looked at last.
    pub(crate) sending: Mutex<Vec<Work>>,
    /// Signals that were taken from the network and nobody has waited for, by rank, context and signal.
    pub(crate) arrived: Mutex<HashMap<(u32, c_int, c_int), u64>>,
}

/// Where a signal comes from, or goes to.
#[derive(Clone, Copy)]
pub(crate) struct Signal {
    pub(crate) peer: u32,
    pub(crate) context: c_int,
    pub(crate) number: c_int,
}

/// Bytes for a window.
pub(crate) struct Put {
    pub(crate) window: u64,
    pub(crate) offset: u64,
    pub(crate) bytes: Vec<u8>,
}

/// What signals are counted by.
pub(crate) fn key(signal: Signal) -> (u32, c_int, c_int) {
    (signal.peer, signal.context, signal.number)
}

/// A signal as bytes.
pub(crate) struct Head {
    pub(crate) window: u64,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    pub(crate) number: c_int,
    pub(crate) context: c_int,
}

impl Head {
    pub(crate) fn to_bytes(&self) -> [u8; HEAD] {
        let mut all = [0; HEAD];
        all[..8].copy_from_slice(&self.window.to_le_bytes());
        all[8..16].copy_from_slice(&self.offset.to_le_bytes());
        all[16..24].copy_from_slice(&self.bytes.to_le_bytes());
        all[24..28].copy_from_slice(&self.number.to_le_bytes());
        all[28..32].copy_from_slice(&self.context.to_le_bytes());
        all
    }

    pub(crate) fn from_bytes(all: &[u8; HEAD]) -> Head {
        let word =
            |at: usize| all[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let half =
            |at: usize| all[at..].first_chunk().map_or(0, |bytes| i32::from_le_bytes(*bytes));
        Head {
            window: word(0),
            offset: word(8),
            bytes: word(16),
            number: half(24),
            context: half(28),
        }
    }
}

/// Bytes of a signal.
pub(crate) const HEAD: usize = 32;
/// Signals and what is between `ncclSend` and `ncclRecv` are apart.
pub(crate) const TAG: u64 = 1;
