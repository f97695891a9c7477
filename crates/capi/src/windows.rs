//! Windows and registered buffers: memory of this rank that a communicator knows.

use std::collections::HashMap;
use std::ffi::c_void;

use netsum_collective::Buffer;
use netsum_nccl_core::Failure;
use parking_lot::Mutex;

use crate::handle::{self, Handle};

/// The windows and registrations of one communicator.
#[derive(Default)]
pub(crate) struct Windows {
    windows: Mutex<HashMap<Handle, Window>>,
    /// Windows so far: all ranks register in the same order.
    registered: Mutex<u64>,
    buffers: Mutex<HashMap<Handle, ()>>,
}

/// Memory of this rank to which the others write.
#[derive(Clone)]
pub(crate) struct Window {
    /// The same at all ranks.
    pub(crate) number: u64,
    /// First byte.
    pub(crate) start: usize,
    /// Bytes at each rank.
    pub(crate) bytes: Vec<u64>,
}

impl Windows {
    /// Adds a window that all ranks have registered, with its bytes at each of them.
    pub(crate) fn add(&self, start: *mut c_void, bytes: Vec<u64>) -> Handle {
        let mut registered = self.registered.lock();
        *registered += 1;
        let window = Window { number: *registered, start: start as usize, bytes };
        let handle = handle::number();
        self.windows.lock().insert(handle, window);
        handle
    }

    /// The window of a handle.
    pub(crate) fn window(&self, handle: Handle) -> Result<Window, Failure> {
        let found = self.windows.lock().get(&handle).cloned();
        found.ok_or_else(|| Failure::argument("the window is NULL, or not of this communicator"))
    }

    /// Forgets a window.
    pub(crate) fn remove_window(&self, handle: Handle) -> Result<(), Failure> {
        let gone = self.windows.lock().remove(&handle);
        gone.map(|_| ())
            .ok_or_else(|| Failure::argument("the window is NULL, or not of this communicator"))
    }

    /// The memory of window `number` at `offset`, which a peer writes. Failures: a peer that writes elsewhere.
    pub(crate) fn target(
        &self,
        number: u64,
        offset: u64,
        bytes: u64,
        rank: u32,
    ) -> Result<Buffer, Failure> {
        let windows = self.windows.lock();
        let window = windows.values().find(|window| window.number == number);
        let window =
            window.ok_or_else(|| Failure::usage(format!("window {number} is not registered")))?;
        window.check(offset, bytes, rank)?;
        if bytes == 0 {
            return Ok(Buffer::from_vec(Vec::new()));
        }
        let start = (window.start + offset as usize) as *mut u8;
        // SAFETY: the caller registered this memory, and keeps it until the window is deregistered; that these bytes
        // are in it was checked above. By NCCL's contract it leaves them alone until it has waited for the signal.
        Ok(unsafe { Buffer::from_raw(start, bytes as usize, Box::new(())) })
    }

    /// Registers a buffer, which has no effect on operations: all memory of the host can be sent.
    pub(crate) fn register(&self) -> Handle {
        let handle = handle::number();
        self.buffers.lock().insert(handle, ());
        handle
    }

    /// Forgets a registered buffer.
    pub(crate) fn deregister(&self, handle: Handle) -> Result<(), Failure> {
        let gone = self.buffers.lock().remove(&handle);
        gone.ok_or_else(|| Failure::argument("the handle is not of a buffer of this communicator"))
    }
}

impl Window {
    /// Checks that bytes are within the window of a rank.
    pub(crate) fn check(&self, offset: u64, bytes: u64, rank: u32) -> Result<(), Failure> {
        let size = self.bytes.get(rank as usize).copied().unwrap_or(0);
        match offset.checked_add(bytes) {
            Some(end) if end <= size => Ok(()),
            _ => Err(Failure::argument(format!(
                "{bytes} bytes at offset {offset} are not within the {size} bytes of rank {rank}'s window"
            ))),
        }
    }
}
