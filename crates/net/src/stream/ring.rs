//! A bounded ring of bytes in shared memory: one process writes, the other reads.
//!
//! Positions count bytes and wrap at 2³²; each side believes its own position and checks the other's.

#![allow(unsafe_code)]

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::futex;

/// What both sides share besides the bytes. On cache lines of their own: each has one writer.
#[repr(C, align(64))]
pub(super) struct Control {
    written: Word,
    read: Word,
    /// The writer will write no more.
    ended: Word,
    /// The reader will read no more.
    refused: Word,
}

/// A number, and whether the other side sleeps until it changes.
#[repr(C, align(64))]
struct Word {
    value: AtomicU32,
    sleeper: AtomicU32,
}

impl Word {
    /// Changes the value and wakes a sleeper.
    fn set(&self, value: u32) {
        // Sequentially consistent with `sleep`: either we see the sleeper, or it sees the value.
        self.value.store(value, Ordering::SeqCst);
        self.nudge();
    }

    fn nudge(&self) {
        if self.sleeper.load(Ordering::SeqCst) != 0 {
            self.sleeper.store(0, Ordering::SeqCst);
            futex::wake(&self.value);
        }
    }

    /// Sleeps until the value is not `seen` any more, or a while.
    fn sleep(&self, seen: u32, other: impl Fn() -> bool) {
        for _ in 0..SPINS {
            if self.value.load(Ordering::Acquire) != seen {
                return;
            }
            std::hint::spin_loop();
        }
        self.sleeper.store(1, Ordering::SeqCst);
        if self.value.load(Ordering::SeqCst) == seen && !other() {
            futex::wait(&self.value, seen, LOOK_AGAIN);
        }
        self.sleeper.store(0, Ordering::SeqCst);
    }
}

/// One direction. `data` points to `capacity` bytes, a power of two, in the same memory as `control`.
pub(super) struct Ring {
    pub(super) control: *const Control,
    pub(super) data: *mut u8,
    pub(super) capacity: u32,
}

// SAFETY: the control words are atomics; the bytes are reached through `write` and `read` alone, of which the owner
// calls each from one thread at a time, and the positions keep them on different bytes.
unsafe impl Send for Ring {}
// SAFETY: as above.
unsafe impl Sync for Ring {}

impl Ring {
    fn control(&self) -> &Control {
        // SAFETY: whoever made the ring keeps the memory mapped for as long as it exists; all fields are atomics, for
        // which any bits are valid.
        unsafe { &*self.control }
    }

    /// Writes what there is room for, waiting for room at most `patience`. `at`: bytes written so far.
    pub(super) fn write(
        &self,
        at: &mut u32,
        bytes: &[u8],
        patience: Duration,
        gone: impl Fn() -> bool,
    ) -> io::Result<usize> {
        let control = self.control();
        let mut since = None;
        loop {
            if control.refused.value.load(Ordering::Acquire) != 0 {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            let read = control.read.value.load(Ordering::Acquire);
            let room = self.room(at.wrapping_sub(read))?;
            let count = bytes.len().min(room as usize);
            if count > 0 {
                self.copy(*at, count, |data, done, len| {
                    // SAFETY: `copy` gives ranges within the ring; the reader does not touch bytes that it has read.
                    unsafe { std::ptr::copy_nonoverlapping(bytes[done..].as_ptr(), data, len) };
                });
                *at = at.wrapping_add(count as u32);
                control.written.set(*at);
                return Ok(count);
            }
            if since.get_or_insert_with(Instant::now).elapsed() >= patience {
                return Err(io::ErrorKind::TimedOut.into());
            }
            control.read.sleep(read, || control.refused.value.load(Ordering::SeqCst) != 0);
            if gone() {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
        }
    }

    /// Reads what is there, waiting for at least a byte; 0 at the end. `at`: bytes read so far.
    pub(super) fn read(
        &self,
        at: &mut u32,
        bytes: &mut [u8],
        gone: impl Fn() -> bool,
    ) -> io::Result<usize> {
        if bytes.is_empty() {
            return Ok(0);
        }
        let control = self.control();
        let mut last_look = false;
        loop {
            if control.refused.value.load(Ordering::Acquire) != 0 {
                return Ok(0);
            }
            let ended = control.ended.value.load(Ordering::Acquire) != 0;
            let written = control.written.value.load(Ordering::Acquire);
            let there = self.capacity - self.room(written.wrapping_sub(*at))?;
            let count = bytes.len().min(there as usize);
            if count > 0 {
                self.copy(*at, count, |data, done, len| {
                    // SAFETY: `copy` gives ranges within the ring; the writer does not touch bytes before they are
                    // read. A writer that broke this could only garble what it sends.
                    unsafe { std::ptr::copy_nonoverlapping(data, bytes[done..].as_mut_ptr(), len) };
                });
                *at = at.wrapping_add(count as u32);
                control.read.set(*at);
                return Ok(count);
            }
            if ended {
                return Ok(0);
            }
            if last_look {
                return Err(io::ErrorKind::ConnectionReset.into());
            }
            let over = || {
                control.ended.value.load(Ordering::SeqCst) != 0
                    || control.refused.value.load(Ordering::SeqCst) != 0
            };
            control.written.sleep(written, over);
            // What a process wrote before it died is still there.
            last_look = gone();
        }
    }

    /// Nothing more will be written.
    pub(super) fn end(&self) {
        let control = self.control();
        control.ended.value.store(1, Ordering::SeqCst);
        control.written.nudge();
    }

    /// Nothing more will be read.
    pub(super) fn refuse(&self) {
        let control = self.control();
        control.refused.value.store(1, Ordering::SeqCst);
        control.read.nudge();
        control.written.nudge();
    }

    /// Free bytes with `held` bytes in the ring. Errors: the other side's position cannot be.
    fn room(&self, held: u32) -> io::Result<u32> {
        let wrong = || io::Error::new(io::ErrorKind::InvalidData, "the shared ring is corrupt");
        self.capacity.checked_sub(held).ok_or_else(wrong)
    }

    /// Calls `part(bytes of the ring, offset, length)` for the one or two pieces of `count` bytes at position `at`.
    fn copy(&self, at: u32, count: usize, mut part: impl FnMut(*mut u8, usize, usize)) {
        let start = (at & (self.capacity - 1)) as usize;
        let first = count.min(self.capacity as usize - start);
        // SAFETY: `start` is below `capacity`.
        part(unsafe { self.data.add(start) }, 0, first);
        if count > first {
            part(self.data, first, count - first);
        }
    }
}

/// How often the other side's word is looked at before sleeping: a few hundred nanoseconds, less than a system call.
const SPINS: u32 = 200;
/// A process that dies wakes nobody: its end is looked for so often.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
