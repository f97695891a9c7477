//! A bounded ring of bytes between one writer and one reader, which may be two processes that share memory.
//!
//! Positions count bytes and wrap at 2³². Each side trusts its own position and checks the other's: a process that
//! violates the rules can corrupt bytes, but never makes the other side leave the ring. The reader publishes its
//! position in parts ([`PARTS`]), so that the cache line does not move with every read.
//!
//! A side that is idle sleeps in three steps: it sets its [`Waiting`] flag, checks once more, and sleeps. The other
//! side moves its position, then clears the flag, and wakes the sleeper if it was set.
//!
//! Generic over the memory, so that a model checker runs the same steps (`tests.rs`). Used by streams between two
//! processes (`crate::stream`) and below the cells of the mesh (`crate::mesh`).

mod shared;
#[cfg(test)]
pub(crate) mod tests;

use std::io;
use std::sync::atomic::Ordering;

pub(crate) use shared::SharedBytes;

use crate::word::Word;

/// State shared by both sides besides the bytes. Each half has one writer, except for `waiting`.
#[repr(C)]
pub(crate) struct Positions<W> {
    pub(crate) writer: Side<W>,
    pub(crate) reader: Side<W>,
}

/// One side, on its own cache lines.
#[repr(C, align(128))]
pub(crate) struct Side<W> {
    /// Bytes written, or read.
    pub(crate) position: W,
    /// Whether this side waits for the other.
    pub(crate) waiting: Waiting<W>,
    /// For the layer above the ring.
    pub(crate) extra: W,
}

/// Storage of a ring.
pub(crate) trait Bytes {
    type Word: Word;
    fn positions(&self) -> &Positions<Self::Word>;
    /// Capacity in bytes, a power of two.
    fn capacity(&self) -> u32;
    /// Copies bytes to the ring; `at` is a position, and `bytes` are at most the ring's capacity.
    fn write(&self, at: u32, bytes: &[u8]);
    /// Passes one or two parts of the ring to `take`, `len` bytes in all, at most the ring's capacity.
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

    /// To be called before the owner checks once more and sleeps.
    #[inline]
    pub(crate) fn raise(&self) {
        self.0.store(1, Ordering::Relaxed);
        // Pairs with the fence in `take`: either the owner sees the other side's progress, or the other side sees the
        // flag.
        W::fence();
    }

    /// To be called when the owner is awake.
    #[inline]
    pub(crate) fn lower(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// For the side that has made progress: whether it must wake the owner.
    #[inline]
    pub(crate) fn take(&self) -> bool {
        W::fence();
        self.0.load(Ordering::Relaxed) != 0 && self.0.swap(0, Ordering::Relaxed) != 0
    }

    /// The word that the owner sleeps on while it is 1.
    pub(crate) fn word(&self) -> &W {
        &self.0
    }
}

/// The other side's position is more than a ring away from the own.
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

/// The writing side.
pub(crate) struct Writer<R> {
    pub(crate) room: R,
    /// Bytes written.
    written: u32,
    /// Bytes read, as last published by the reader.
    read: u32,
}

impl<R: Bytes> Writer<R> {
    pub(crate) fn new(room: R) -> Writer<R> {
        Writer { room, written: 0, read: 0 }
    }

    /// Writes the first of `bytes`, at most `most`; returns how many.
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

    /// Number of free bytes: as many as are wanted, or all.
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

/// The reading side.
pub(crate) struct Reader<R> {
    pub(crate) room: R,
    /// Bytes read.
    read: u32,
    /// Bytes written, as last seen.
    written: u32,
    /// Bytes read, as published.
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

    /// Uses another, later write of the writer as evidence that this many bytes have arrived.
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

    /// Passes the next bytes, at most `most`, to `take`; returns how many.
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

    /// Whether there is enough unpublished free room.
    #[inline]
    pub(crate) fn is_worth_publishing(&self) -> bool {
        self.read.wrapping_sub(self.published) >= self.room.capacity() / PARTS
    }

    /// Publishes freed room to the writer; returns whether the writer waits for it and must be woken.
    pub(crate) fn publish(&mut self) -> bool {
        let Positions { writer, reader } = self.room.positions();
        reader.position.store(self.read, Ordering::Release);
        self.published = self.read;
        writer.waiting.take()
    }
}

/// The reader publishes room in multiples of the ring's capacity divided by this. Less is not published, so a waiting
/// writer is notified before the reader has nothing left.
pub(crate) const PARTS: u32 = 8;
