//! One direction between two ranks: one process writes, the other reads.
//!
//! Frames go through cells, one behind the other. A cell's number is written last and says that the cell is full, so a
//! short message costs one line of memory that goes from one core to the other. Payloads that have no room in a cell
//! go through a ring of bytes beside the cells; their cell says how much of them is there already, and the position
//! [`Words::written`] how much has come since. Each side believes its own positions and checks the other's.
//!
//! Generic over where it lies, so that a model checker can run the very same steps (`tests.rs`).

use std::sync::atomic::Ordering;

use super::super::frame::HEADER_LEN;
use crate::word::Word;

/// What both sides share besides cells and bytes. Each half has one writer, but for `starved`.
#[repr(C)]
pub(super) struct Words<W> {
    pub(super) writer: Side<W>,
    pub(super) reader: Side<W>,
}

/// Of the writer: bytes written, and whether it waits for room. Of the reader: bytes read, and cells taken.
#[repr(C, align(128))]
pub(super) struct Side<W> {
    pub(super) bytes: W,
    pub(super) other: W,
}

/// Where a ring lies.
pub(super) trait Room {
    type Word: Word;
    fn words(&self) -> &Words<Self::Word>;
    /// A power of two.
    fn cells(&self) -> u32;
    /// Of the ring of bytes; a power of two.
    fn capacity(&self) -> u32;
    /// The number in a cell; `cell` may be any number, and is taken modulo the cells.
    fn number(&self, cell: u32) -> &Self::Word;
    /// Fills a cell, but for its number; at most [`INLINE`] bytes.
    fn fill_cell(&self, cell: u32, header: &[u8; HEADER_LEN], here: u32, payload: &[u8]);
    /// The header in a cell, and what was said of its payload.
    fn header(&self, cell: u32) -> ([u8; HEADER_LEN], u32);
    /// The first bytes in a cell; `len` is at most [`INLINE`].
    fn payload(&self, cell: u32, len: usize, take: impl FnOnce(&[u8]));
    /// Copies to the ring of bytes; `at` is a position, and `bytes` at most as many as the ring holds.
    fn write(&self, at: u32, bytes: &[u8]);
    /// Hands over one or two parts of the ring of bytes, at most as many as the ring holds.
    fn read(&self, at: u32, len: usize, take: impl FnMut(&[u8]));
}

/// The side that writes.
pub(super) struct Writer<R> {
    room: R,
    /// Of the next cell.
    cell: u32,
    /// Bytes written.
    written: u32,
    /// As the reader told last.
    taken: u32,
    read: u32,
    /// What it waits for where it could not go on.
    wants_cell: bool,
}

impl<R: Room> Writer<R> {
    pub(super) fn new(room: R) -> Writer<R> {
        Writer { room, cell: 0, written: 0, taken: 0, read: 0, wants_cell: false }
    }

    /// Hands over a frame with its whole payload, or nothing: whether there was room.
    #[inline]
    pub(super) fn whole(&mut self, header: &[u8; HEADER_LEN], payload: &[u8]) -> bool {
        let fits = payload.len() <= INLINE || self.free(payload.len()) >= payload.len();
        fits && self.begin(header, payload, usize::MAX).is_some()
    }

    /// Hands over a frame with the first bytes of its payload, at most `most` of those that do not go in its cell; how many,
    /// or `None`, and nothing has happened, where no cell is free.
    #[inline]
    pub(super) fn begin(
        &mut self,
        header: &[u8; HEADER_LEN],
        payload: &[u8],
        most: usize,
    ) -> Option<usize> {
        if !self.has_cell() {
            self.wants_cell = true;
            return None;
        }
        let count = if payload.len() <= INLINE {
            self.room.fill_cell(self.cell, header, payload.len() as u32, payload);
            payload.len()
        } else {
            let count = self.go_on(payload, most);
            self.room.fill_cell(self.cell, header, count as u32, &[]);
            count
        };
        let number = self.cell.wrapping_add(1);
        self.room.number(self.cell).store(number, Ordering::Release);
        self.cell = number;
        Some(count)
    }

    /// Hands over the next bytes of a payload; how many, at most `most`.
    pub(super) fn go_on(&mut self, payload: &[u8], most: usize) -> usize {
        let wanted = payload.len().min(most);
        let count = wanted.min(self.free(wanted));
        if count == 0 {
            self.wants_cell = false;
            return 0;
        }
        self.room.write(self.written, &payload[..count]);
        self.written = self.written.wrapping_add(count as u32);
        self.room.words().writer.bytes.store(self.written, Ordering::Release);
        count
    }

    /// Asks to be told of room. Whether there is none: true where the reader will see it with the next room that it tells of.
    pub(super) fn starve(&mut self) -> bool {
        self.room.words().writer.other.store(1, Ordering::Relaxed);
        // With the one in `Reader::tell`: either the reader sees that we wait, or we see the room.
        R::Word::fence();
        !self.can_go_on()
    }

    /// Whether there is what was missing when it could not go on.
    pub(super) fn can_go_on(&mut self) -> bool {
        if self.wants_cell { self.has_cell() } else { self.free(1) > 0 }
    }

    #[inline]
    fn has_cell(&mut self) -> bool {
        let cells = self.room.cells();
        if self.cell.wrapping_sub(self.taken) >= cells {
            self.taken = self.room.words().reader.other.load(Ordering::Acquire);
        }
        self.cell.wrapping_sub(self.taken) < cells
    }

    /// Free bytes: as many as are wanted, or all there are.
    fn free(&mut self, wanted: usize) -> usize {
        let capacity = self.room.capacity();
        let free = |read: u32| capacity.saturating_sub(self.written.wrapping_sub(read)) as usize;
        if free(self.read) < wanted {
            let read = self.room.words().reader.bytes.load(Ordering::Acquire);
            let found = free(read);
            self.read = read;
            return found;
        }
        free(self.read)
    }
}

/// The side that reads.
pub(super) struct Reader<R> {
    room: R,
    /// Of the next cell.
    cell: u32,
    /// Bytes read.
    read: u32,
    /// As seen last.
    written: u32,
    /// What the writer was told of.
    told_cell: u32,
    told_read: u32,
}

impl<R: Room> Reader<R> {
    pub(super) fn new(room: R) -> Reader<R> {
        Reader { room, cell: 0, read: 0, written: 0, told_cell: 0, told_read: 0 }
    }

    /// Whether the next cell is full.
    #[inline(always)]
    pub(super) fn has_cell(&self) -> bool {
        self.room.number(self.cell).load(Ordering::Acquire) == self.cell.wrapping_add(1)
    }

    /// The header in the next cell, which is full, and how many bytes of its payload are here.
    #[inline]
    pub(super) fn header(&self) -> ([u8; HEADER_LEN], usize) {
        let (header, here) = self.room.header(self.cell);
        (header, here as usize)
    }

    /// The next cell has been read, where its payload is not in it; `here` as it said. Errors: that cannot be.
    pub(super) fn take_cell(&mut self, here: usize) -> Result<(), &'static str> {
        if here > self.room.capacity() as usize {
            return Err(CORRUPT);
        }
        if here > self.written.wrapping_sub(self.read) as usize {
            self.written = self.read.wrapping_add(here as u32);
        }
        self.cell = self.cell.wrapping_add(1);
        Ok(())
    }

    /// Hands over the payload in the next cell, of `len` bytes, at most [`INLINE`]; the cell has been read then.
    #[inline]
    pub(super) fn take_payload(&mut self, len: usize, take: impl FnOnce(&[u8])) {
        self.room.payload(self.cell, len, take);
        self.cell = self.cell.wrapping_add(1);
    }

    /// Whether there are bytes of a payload that goes on.
    pub(super) fn has_bytes(&self) -> bool {
        self.room.words().writer.bytes.load(Ordering::Acquire) != self.read
    }

    /// Hands over the next bytes of a payload; how many, at most `most`. Errors: the writer's position cannot be.
    pub(super) fn take(
        &mut self,
        most: usize,
        take: impl FnMut(&[u8]),
    ) -> Result<usize, &'static str> {
        if (self.written.wrapping_sub(self.read) as usize) < most {
            self.written = self.room.words().writer.bytes.load(Ordering::Acquire);
        }
        let here = self.written.wrapping_sub(self.read);
        if here > self.room.capacity() {
            return Err(CORRUPT);
        }
        let count = most.min(here as usize);
        if count > 0 {
            self.room.read(self.read, count, take);
            self.read = self.read.wrapping_add(count as u32);
        }
        Ok(count)
    }

    /// Tells the writer of room, if there is enough that it is worth it; whether the writer waits for it.
    #[inline]
    pub(super) fn tell(&mut self) -> bool {
        let cells = self.cell.wrapping_sub(self.told_cell) >= self.room.cells() / PARTS;
        let bytes = self.read.wrapping_sub(self.told_read) >= self.room.capacity() / PARTS;
        (cells || bytes) && self.tell_all()
    }

    fn tell_all(&mut self) -> bool {
        let Words { writer, reader } = self.room.words();
        reader.other.store(self.cell, Ordering::Release);
        reader.bytes.store(self.read, Ordering::Release);
        (self.told_cell, self.told_read) = (self.cell, self.read);
        // With the one in `Writer::starve`.
        R::Word::fence();
        // Who is told looks again, and asks again if it is not enough.
        writer.other.load(Ordering::Relaxed) != 0 && writer.other.swap(0, Ordering::Relaxed) != 0
    }
}

/// Whether a side sleeps until the other rings: [`Bell::arm`], look, sleep; write, [`Bell::is_needed`], ring.
#[repr(C, align(128))]
pub(super) struct Bell<W> {
    asleep: W,
    /// The processor on which the owner waited last, and one.
    cpu: W,
    /// The owner has failed: what it lent is no message any more.
    revoked: W,
}

impl<W: Word> Bell<W> {
    #[cfg(test)]
    pub(super) fn new(asleep: W, cpu: W, revoked: W) -> Bell<W> {
        Bell { asleep, cpu, revoked }
    }

    /// What the owner has lent it changes only after this.
    pub(super) fn revoke(&self) {
        self.revoked.store(1, Ordering::Relaxed);
        W::fence();
    }

    /// For who has read what was lent: whether that counts for nothing.
    pub(super) fn is_revoked(&self) -> bool {
        // What was read before this is from before the change, or this sees that there was one.
        W::fence();
        self.revoked.load(Ordering::Relaxed) != 0
    }

    /// The owner waits on that processor.
    #[inline]
    pub(super) fn here(&self, cpu: u32) {
        let cpu = cpu.wrapping_add(1);
        if self.cpu.load(Ordering::Relaxed) != cpu {
            self.cpu.store(cpu, Ordering::Relaxed);
        }
    }

    /// Whether the owner waited there last.
    pub(super) fn is_on(&self, cpu: u32) -> bool {
        self.cpu.load(Ordering::Relaxed) == cpu.wrapping_add(1)
    }

    /// The owner looks once more after this, and sleeps if there is nothing.
    pub(super) fn arm(&self) {
        self.asleep.store(1, Ordering::Relaxed);
        // With the one in `is_needed`: either the owner sees what was written, or the writer that the owner sleeps.
        W::fence();
    }

    /// The owner is awake.
    pub(super) fn disarm(&self) {
        self.asleep.store(0, Ordering::Relaxed);
    }

    /// For who has written something: whether the owner has to be woken, which is then the caller's to do.
    #[inline]
    pub(super) fn is_needed(&self) -> bool {
        W::fence();
        self.asleep.load(Ordering::Relaxed) != 0 && self.asleep.swap(0, Ordering::Relaxed) != 0
    }
}

/// Bytes of a cell: two lines of memory, which processors fetch together.
pub(super) const CELL: usize = 128;
/// Bytes of a payload that go in its frame's cell.
pub(super) const INLINE: usize = CELL - 8 - HEADER_LEN;
/// The writer is told of room in so many parts of it: more often would cost a line of memory each time. What is not told of is
/// less than one part, so a writer that waits is told before the reader has nothing left.
const PARTS: u32 = 8;
const CORRUPT: &str = "the shared ring is corrupt";
