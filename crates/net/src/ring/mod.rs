//! A bounded ring of bytes between one writer and one reader, which may be two processes that share memory.
//!
//! Positions count bytes and wrap at 2³². Each side believes its own position and checks the other's: a process that
//! writes where it may not can garble bytes, but never makes the other side leave the ring. The reader publishes its
//! position in parts ([`PARTS`]), so that the line of memory does not go back and forth with every read.
//!
//! A side that has nothing to do sleeps in three steps: it raises its [`Waiting`] flag, looks once more, and sleeps.
//! The other side moves its position, then takes the flag down, and wakes whoever had raised it.
//!
//! Generic over where the ring lies, so that a model checker runs the very same steps (`tests.rs`). Used by streams
//! between two processes (`crate::stream`) and below the cells in which the mesh sends messages (`crate::mesh`).

mod shared;
#[cfg(test)]
pub(crate) mod tests;

use std::io;
use std::sync::atomic::Ordering;

pub(crate) use shared::SharedBytes;

use crate::word::Word;

/// What both sides share besides the bytes. Each half has one writer, but for `waiting`.
#[repr(C)]
pub(crate) struct Positions<W> {
    pub(crate) writer: Side<W>,
    pub(crate) reader: Side<W>,
}

/// One side, on lines of memory of its own.
#[repr(C, align(128))]
pub(crate) struct Side<W> {
    /// Bytes written, or read.
    pub(crate) position: W,
    /// Whether this side waits for the other.
    pub(crate) waiting: Waiting<W>,
    /// For what lies above the ring.
    pub(crate) extra: W,
}

/// Where a ring lies.
pub(crate) trait Bytes {
    type Word: Word;
    fn positions(&self) -> &Positions<Self::Word>;
    /// A power of two.
    fn capacity(&self) -> u32;
    /// Copies to the ring; `at` is a position, and `bytes` at most as many as the ring holds.
    fn write(&self, at: u32, bytes: &[u8]);
    /// Hands over one or two parts of the ring, `len` bytes in all, at most as many as the ring holds.
    fn read(&self, at: u32, len: usize, take: impl FnMut(&[u8]));
}

/// A flag of a side that sleeps, or is about to, until the other side wakes it.
#[repr(transparent)]
pub(crate) struct Waiting<W>(W);

impl<W: Word> Waiting<W> {
    #[cfg(test)]
    pub(crate) fn new(word: W) -> Waiting<W> {
        Waiting(word)
    }

    /// The owner looks once more after this, and sleeps if there is nothing.
    #[inline]
    pub(crate) fn raise(&self) {
        self.0.store(1, Ordering::Relaxed);
        // With the one in `take`: either the owner sees what the other side did, or the other side sees the flag.
        W::fence();
    }

    /// The owner is awake.
    #[inline]
    pub(crate) fn lower(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// For the side that has done something: whether the owner has to be woken, which is then the caller's to do.
    #[inline]
    pub(crate) fn take(&self) -> bool {
        W::fence();
        self.0.load(Ordering::Relaxed) != 0 && self.0.swap(0, Ordering::Relaxed) != 0
    }

    /// What the owner sleeps on while it is 1.
    pub(crate) fn word(&self) -> &W {
        &self.0
    }
}

/// The other side's position is more than a ring away from ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Corrupt;

impl Corrupt {
    pub(crate) const REASON: &str = "the shared ring is corrupt";
}

impl From<Corrupt> for io::Error {
    fn from(_: Corrupt) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, Corrupt::REASON)
    }
}

/// The side that writes.
pub(crate) struct Writer<R> {
    pub(crate) room: R,
    /// Bytes written.
    written: u32,
    /// As the reader published last.
    read: u32,
}

impl<R: Bytes> Writer<R> {
    pub(crate) fn new(room: R) -> Writer<R> {
        Writer { room, written: 0, read: 0 }
    }

    /// Writes the first of `bytes`; how many, at most `most`.
    pub(crate) fn write(&mut self, bytes: &[u8], most: usize) -> Result<usize, Corrupt> {
        let wanted = bytes.len().min(most);
        let count = wanted.min(self.free(wanted)?);
        if count > 0 {
            self.room.write(self.written, &bytes[..count]);
            self.written = self.written.wrapping_add(count as u32);
            self.room.positions().writer.position.store(self.written, Ordering::Release);
        }
        Ok(count)
    }

    /// Free bytes: as many as are wanted, or all there are.
    #[inline]
    pub(crate) fn free(&mut self, wanted: usize) -> Result<usize, Corrupt> {
        let known = self.free_after(self.read)?;
        if known >= wanted {
            return Ok(known);
        }
        let read = self.room.positions().reader.position.load(Ordering::Acquire);
        let free = self.free_after(read)?;
        self.read = read;
        Ok(free)
    }

    fn free_after(&self, read: u32) -> Result<usize, Corrupt> {
        let held = self.written.wrapping_sub(read);
        self.room.capacity().checked_sub(held).map(|free| free as usize).ok_or(Corrupt)
    }
}

/// The side that reads.
pub(crate) struct Reader<R> {
    pub(crate) room: R,
    /// Bytes read.
    read: u32,
    /// As seen last.
    written: u32,
    /// What was published.
    published: u32,
}

impl<R: Bytes> Reader<R> {
    pub(crate) fn new(room: R) -> Reader<R> {
        Reader { room, read: 0, written: 0, published: 0 }
    }

    /// Whether there are bytes.
    pub(crate) fn has_bytes(&self) -> bool {
        self.room.positions().writer.position.load(Ordering::Acquire) != self.read
    }

    /// Something else that the writer wrote later, and that was seen, says that so many bytes are here.
    #[inline]
    pub(crate) fn expect(&mut self, here: usize) -> Result<(), Corrupt> {
        if here > self.room.capacity() as usize {
            return Err(Corrupt);
        }
        if here > self.written.wrapping_sub(self.read) as usize {
            self.written = self.read.wrapping_add(here as u32);
        }
        Ok(())
    }

    /// Hands over the next bytes; how many, at most `most`.
    pub(crate) fn read(&mut self, most: usize, take: impl FnMut(&[u8])) -> Result<usize, Corrupt> {
        if (self.written.wrapping_sub(self.read) as usize) < most {
            self.written = self.room.positions().writer.position.load(Ordering::Acquire);
        }
        let here = self.written.wrapping_sub(self.read);
        if here > self.room.capacity() {
            return Err(Corrupt);
        }
        let count = most.min(here as usize);
        if count > 0 {
            self.room.read(self.read, count, take);
            self.read = self.read.wrapping_add(count as u32);
        }
        Ok(count)
    }

    /// Whether there is enough free room that the writer does not know of.
    #[inline]
    pub(crate) fn is_worth_publishing(&self) -> bool {
        self.read.wrapping_sub(self.published) >= self.room.capacity() / PARTS
    }

    /// Lets the writer have the room; whether it waits for that and has to be woken.
    pub(crate) fn publish(&mut self) -> bool {
        let Positions { writer, reader } = self.room.positions();
        reader.position.store(self.read, Ordering::Release);
        self.published = self.read;
        writer.waiting.take()
    }
}

/// The reader publishes room in so many parts of the ring. Less than one part is not published, so a writer that waits
/// is told before the reader has nothing left.
pub(crate) const PARTS: u32 = 8;
