//! A receive: the target of a message, and the report of its outcome.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use super::error::MeshError;
use super::frame::Key;
use super::limits::RESERVE_MAX;
use crate::Buffer;

/// Target of a message's bytes.
#[derive(Debug)]
pub enum Target {
    /// All bytes of a buffer; a message of another size is an error.
    Buffer(Buffer),
    /// Newly allocated memory; a longer message is an error.
    Bytes {
        /// Maximum number of bytes.
        max: usize,
    },
}

/// A message that has arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// The sender.
    pub from: u32,
    /// The bytes, if the target was [`Target::Bytes`]; else empty.
    pub bytes: Vec<u8>,
}

/// Called once with the outcome of a receive, on the mesh's thread: it must not block.
pub type OnReceived = Box<dyn FnOnce(Result<Received, MeshError>) + Send>;

/// The message that a receive matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The sender; `None`: any.
    pub from: Option<u32>,
    /// Key of the message.
    pub key: Key,
    /// Fingerprint of the message.
    pub fingerprint: u32,
}

/// One receive. The mesh's thread fills the target, which belongs to the holder of the lock.
#[derive(Debug)]
pub(super) struct Slot {
    state: Mutex<State>,
    done: Condvar,
    pub(super) deadline: Option<Instant>,
}

struct State {
    target: Option<Memory>,
    filled: usize,
    outcome: Option<Result<Received, MeshError>>,
    callback: Option<OnReceived>,
    finished: bool,
    /// A network writes to the memory; reason and time if the receive was given up meanwhile.
    lent: Option<Lent>,
}

struct Lent {
    given_up: Option<(MeshError, Instant)>,
}

enum Memory {
    Buffer(Buffer),
    Bytes {
        bytes: Vec<u8>,
        max: usize,
    },
    /// Memory of a message for [`Target::Bytes`] that a network writes.
    Whole(Buffer),
}

impl Slot {
    pub(super) fn new(
        target: Target,
        deadline: Option<Instant>,
        callback: Option<OnReceived>,
    ) -> Arc<Slot> {
        let target = Some(match target {
            Target::Buffer(buffer) => Memory::Buffer(buffer),
            Target::Bytes { max } => Memory::Bytes { bytes: Vec::new(), max },
        });
        let state =
            State { target, filled: 0, outcome: None, callback, finished: false, lent: None };
        Arc::new(Slot { state: Mutex::new(state), done: Condvar::new(), deadline })
    }

    /// A receive that discards its message.
    pub(super) fn discarding() -> Arc<Slot> {
        let slot = Slot::new(Target::Bytes { max: 0 }, None, None);
        slot.cancel();
        slot
    }

    /// Blocks until the outcome is known.
    pub(super) fn wait(&self) -> Result<Received, MeshError> {
        let mut state = self.state.lock();
        loop {
            if let Some(outcome) = state.outcome.take() {
                return outcome;
            }
            self.done.wait(&mut state);
        }
    }

    pub(super) fn has_arrived(&self) -> bool {
        matches!(self.state.lock().outcome, Some(Ok(_)))
    }

    /// Receives a whole message.
    pub(super) fn deliver(&self, from: u32, bytes: &[u8]) {
        if self.accept(from, bytes.len() as u64) {
            self.fill(bytes);
            self.complete(from);
        }
    }

    /// Whether a message of `len` bytes fits; if not, the receive fails.
    pub(super) fn accept(&self, from: u32, len: u64) -> bool {
        let mut state = self.state.lock();
        let expected = match &mut state.target {
            None => return true,
            Some(Memory::Buffer(buffer) | Memory::Whole(buffer)) => buffer.len() as u64,
            Some(Memory::Bytes { bytes, max }) if len <= *max as u64 => {
                // Limits the allocation for bytes that have not arrived yet.
                bytes.reserve(usize::try_from(len).unwrap_or(0).min(RESERVE_MAX));
                return true;
            }
            Some(Memory::Bytes { max, .. }) => *max as u64,
        };
        if len == expected {
            return true;
        }
        drop(state);
        self.finish(Err(MeshError::Size { rank: from, sent: len, expected }));
        false
    }

    /// Appends bytes of the message; `accept` has checked the length.
    pub(super) fn fill(&self, bytes: &[u8]) {
        let mut state = self.state.lock();
        let filled = state.filled;
        match &mut state.target {
            None => {}
            Some(Memory::Buffer(buffer) | Memory::Whole(buffer)) => buffer.write(filled, bytes),
            Some(Memory::Bytes { bytes: to, .. }) => to.extend_from_slice(bytes),
        }
        state.filled += bytes.len();
    }

    /// The memory for a whole message of `len` bytes, for a network that writes there until it drops the memory and
    /// calls [`Slot::give_back`]; `None` if the receive has been given up. `accept` has checked the length.
    pub(super) fn lend(&self, len: usize) -> Option<Buffer> {
        let mut state = self.state.lock();
        let target = state.target.as_mut()?;
        if let Memory::Bytes { .. } = target {
            *target = Memory::Whole(Buffer::from_vec(vec![0; len]));
        }
        let (Memory::Buffer(buffer) | Memory::Whole(buffer)) = target else { return None };
        let memory = buffer.lend_all();
        state.lent = Some(Lent { given_up: None });
        Some(memory)
    }

    /// Ends the network's use of the memory, with or without the whole message; the network has dropped its handle.
    pub(super) fn give_back(&self, from: u32, outcome: Result<(), MeshError>) {
        if self.end_loan() {
            match outcome {
                Ok(()) => self.complete(from),
                Err(reason) => self.finish(Err(reason)),
            }
        }
    }

    /// Ends the network's use of the memory. Returns whether the receive still waits for an outcome.
    pub(super) fn end_loan(&self) -> bool {
        let lent = self.state.lock().lent.take();
        if let Some(Lent { given_up: Some((reason, _)) }) = lent {
            self.finish(Err(reason));
            return false;
        }
        lent.is_some()
    }

    /// Whether the deadline has passed.
    pub(super) fn is_late(&self, now: Instant) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= now)
    }

    /// Whether the receive was given up while the network writes.
    pub(super) fn is_given_up(&self) -> bool {
        self.state.lock().lent.as_ref().is_some_and(|lent| lent.given_up.is_some())
    }

    /// Whether the network still writes although the receive was given up before `then`.
    pub(super) fn is_stuck_since(&self, then: Instant) -> bool {
        let state = self.state.lock();
        let given_up = state.lent.as_ref().and_then(|lent| lent.given_up.as_ref());
        given_up.is_some_and(|(_, when)| *when < then)
    }

    /// Waits until the receive has ended; a cancelled one ends when no network writes to its memory any more.
    pub(super) fn settle(&self) {
        let mut state = self.state.lock();
        while !state.finished {
            self.done.wait(&mut state);
        }
    }

    /// Handles the arrival of all bytes.
    pub(super) fn complete(&self, from: u32) {
        let bytes = match &mut self.state.lock().target {
            Some(Memory::Bytes { bytes, .. }) => std::mem::take(bytes),
            Some(Memory::Whole(buffer)) => buffer.slice(0..buffer.len()).to_vec(),
            Some(Memory::Buffer(_)) | None => Vec::new(),
        };
        self.finish(Ok(Received { from, bytes }));
    }

    /// Reports the outcome; only the first call has an effect. Afterwards nothing accesses the target. While a network
    /// writes to the target, [`Slot::give_back`] reports the outcome.
    pub(super) fn finish(&self, outcome: Result<Received, MeshError>) {
        let mut state = self.state.lock();
        if state.finished {
            return;
        }
        if let Some(lent) = &mut state.lent {
            if let Err(reason) = outcome {
                lent.given_up.get_or_insert((reason, Instant::now()));
            }
            return;
        }
        state.finished = true;
        state.target = None;
        match state.callback.take() {
            Some(callback) => {
                drop(state);
                callback(outcome);
            }
            None => {
                state.outcome = Some(outcome);
                self.done.notify_all();
            }
        }
    }

    pub(super) fn cancel(&self) {
        self.finish(Err(MeshError::Cancelled));
    }

    pub(super) fn is_finished(&self) -> bool {
        self.state.lock().finished
    }
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes, finished: {}", self.filled, self.finished)
    }
}
