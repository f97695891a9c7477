//! One-sided messages: what a rank writes into another's window, and the signals that say so.
//!
//! A signal is a message of 32 bytes (window, offset, bytes, signal, context), and the bytes follow in another. The
//! sender does not wait for the receiver. The receiver's library writes the bytes when its caller waits for a signal of
//! that rank, in the order in which they were sent.

use std::collections::HashMap;
use std::ffi::c_int;

use netsum_collective::{Buffer, Work};
use netsum_nccl_core::Failure;
use parking_lot::Mutex;

use crate::comm::Comm;

/// Signals of one communicator.
#[derive(Default)]
pub(crate) struct Signals {
    /// Sends that have not ended when they were looked at last.
    sending: Mutex<Vec<Work>>,
    /// Signals that were taken from the network and nobody has waited for, by rank, context and signal.
    arrived: Mutex<HashMap<(u32, c_int, c_int), u64>>,
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

impl Comm {
    /// Sends a signal, behind bytes for a window if there are any.
    pub(crate) fn signal(&self, to: Signal, put: Option<Put>) -> Result<(), Failure> {
        let put = put.unwrap_or(Put { window: 0, offset: 0, bytes: Vec::new() });
        if to.peer == self.rank {
            if put.window != 0 {
                let (offset, bytes) = (put.offset, put.bytes.len() as u64);
                let target = self.windows.target(put.window, offset, bytes, self.rank);
                target?.write(0, &put.bytes);
            }
            *self.signals.arrived.lock().entry(key(to)).or_default() += 1;
            return Ok(());
        }
        let head = Head {
            window: put.window,
            offset: put.offset,
            bytes: put.bytes.len() as u64,
            number: to.number,
            context: to.context,
        };
        // Held while both messages start, so that nobody's come between them.
        let mut sending = self.signals.sending.lock();
        sending.retain(|work| !work.is_done());
        let send =
            |bytes: Vec<u8>| self.group.send(Buffer::from_vec(bytes), to.peer, TAG, self.timeout);
        sending.push(send(head.to_bytes().to_vec()));
        if head.bytes > 0 {
            sending.push(send(put.bytes));
        }
        Ok(())
    }

    /// Waits until `count` signals have come, and takes them.
    pub(crate) fn wait_for(&self, from: Signal, count: u64) -> Result<(), Failure> {
        let mut arrived = self.signals.arrived.lock();
        loop {
            let here = arrived.entry(key(from)).or_default();
            if *here >= count {
                *here -= count;
                return Ok(());
            }
            if from.peer == self.rank {
                let words =
                    format!("{count} signals of this rank are awaited, and {here} were sent");
                return Err(Failure::usage(words));
            }
            let mut head = Buffer::from_vec(vec![0; HEAD]);
            self.take(from.peer, &mut head)?;
            let mut bytes = [0; HEAD];
            head.read(0, &mut bytes);
            let head = Head::from_bytes(&bytes);
            if head.bytes > 0 {
                let target = self.windows.target(head.window, head.offset, head.bytes, self.rank);
                self.take(from.peer, &mut target?)?;
            }
            let signal = Signal { peer: from.peer, context: head.context, number: head.number };
            *arrived.entry(key(signal)).or_default() += 1;
        }
    }

    /// Waits until everything that was signalled has been sent.
    pub(crate) fn flush(&self) -> Result<(), Failure> {
        let sending = std::mem::take(&mut *self.signals.sending.lock());
        sending.iter().try_for_each(|work| work.wait(None).map_err(Failure::from))
    }

    fn take(&self, from: u32, target: &mut Buffer) -> Result<(), Failure> {
        let work = self.group.receive(target.lend_all(), Some(from), TAG, self.timeout);
        work.wait(None).map_err(Failure::from)
    }
}

fn key(signal: Signal) -> (u32, c_int, c_int) {
    (signal.peer, signal.context, signal.number)
}

struct Head {
    window: u64,
    offset: u64,
    bytes: u64,
    number: c_int,
    context: c_int,
}

impl Head {
    fn to_bytes(&self) -> [u8; HEAD] {
        let mut all = [0; HEAD];
        all[..8].copy_from_slice(&self.window.to_le_bytes());
        all[8..16].copy_from_slice(&self.offset.to_le_bytes());
        all[16..24].copy_from_slice(&self.bytes.to_le_bytes());
        all[24..28].copy_from_slice(&self.number.to_le_bytes());
        all[28..32].copy_from_slice(&self.context.to_le_bytes());
        all
    }

    fn from_bytes(all: &[u8; HEAD]) -> Head {
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
const HEAD: usize = 32;
/// Signals and what is between `ncclSend` and `ncclRecv` are apart.
const TAG: u64 = 1;
