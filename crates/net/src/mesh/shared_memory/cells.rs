//! One direction between two ranks: frames through cells, one behind the other.
//!
//! A cell's number is written last and says that the cell is full, so a short message costs one line of memory that
//! goes from one core to the other. Payloads that have no room in a cell go through the ring of bytes ([`crate::ring`])
//! beside the cells; their cell says how much of them is there already. The reader publishes the cells that it has
//! taken in the ring's `extra` word.
//!
//! Generic over where it lies, so that a model checker can run the very same steps (`tests.rs`).

use std::sync::atomic::Ordering;

use super::super::frame::HEADER_LEN;
use crate::ring::{self, Bytes, Corrupt, PARTS, Waiting};
use crate::word::Word;

/// Where cells lie, and the ring of bytes beside them.
pub(super) trait Cells: Bytes {
    /// A power of two.
    fn cells(&self) -> u32;
    /// The number in a cell; `cell` may be any number, and is taken modulo the cells.
    fn number(&self, cell: u32) -> &Self::Word;
    /// Fills a cell, but for its number; at most [`INLINE`] bytes.
    fn fill_cell(&self, cell: u32, header: &[u8; HEADER_LEN], here: u32, payload: &[u8]);
    /// The header in a cell, and what was said of its payload.
    fn header(&self, cell: u32) -> ([u8; HEADER_LEN], u32);
    /// The first bytes in a cell; `len` is at most [`INLINE`].
    fn payload(&self, cell: u32, len: usize, take: impl FnOnce(&[u8]));
}

/// The side that writes.
pub(super) struct Writer<R> {
    bytes: ring::Writer<R>,
    /// The number of the next cell.
    cell: u32,
    /// As the reader published last.
    taken: u32,
    /// What it waits for where it could not go on.
    wants_cell: bool,
}

impl<R: Cells> Writer<R> {
    pub(super) fn new(room: R) -> Writer<R> {
        Writer { bytes: ring::Writer::new(room), cell: 0, taken: 0, wants_cell: false }
    }

    /// Writes a frame with its whole payload, or nothing: whether there was room.
    #[inline]
    pub(super) fn write_whole(&mut self, header: &[u8; HEADER_LEN], payload: &[u8]) -> bool {
        let len = payload.len();
        let fits = len <= INLINE || self.bytes.free(len).is_ok_and(|free| free >= len);
        fits && self.begin(header, payload, usize::MAX).is_some()
    }

    /// Writes a frame with the first bytes of its payload, at most `most` of those that do not go in its cell; how
    /// many, or
    /// `None`, and nothing has happened, where no cell is free.
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
            self.room().fill_cell(self.cell, header, payload.len() as u32, payload);
            payload.len()
        } else {
            let count = self.go_on(payload, most);
            self.room().fill_cell(self.cell, header, count as u32, &[]);
            count
        };
        let number = self.cell.wrapping_add(1);
        self.room().number(self.cell).store(number, Ordering::Release);
        self.cell = number;
        Some(count)
    }

    /// Writes the next bytes of a payload; how many, at most `most`. Where the reader's position cannot be, there is no
    /// room: the peer is lost when its connection ends.
    pub(super) fn go_on(&mut self, payload: &[u8], most: usize) -> usize {
        let count = self.bytes.write(payload, most).unwrap_or(0);
        if count == 0 {
            self.wants_cell = false;
        }
        count
    }

    /// Asks to be woken when there is room. False where there is room by now.
    pub(super) fn wait_for_room(&mut self) -> bool {
        self.room().positions().writer.waiting.raise();
        !self.can_go_on()
    }

    /// Whether there is what was missing when it could not go on.
    pub(super) fn can_go_on(&mut self) -> bool {
        if self.wants_cell {
            self.has_cell()
        } else {
            self.bytes.free(1).is_ok_and(|free| free > 0)
        }
    }

    #[inline]
    fn has_cell(&mut self) -> bool {
        let cells = self.room().cells();
        if self.cell.wrapping_sub(self.taken) >= cells {
            self.taken = self.room().positions().reader.extra.load(Ordering::Acquire);
        }
        self.cell.wrapping_sub(self.taken) < cells
    }

    #[inline]
    fn room(&self) -> &R {
        &self.bytes.room
    }
}

/// The side that reads.
pub(super) struct Reader<R> {
    bytes: ring::Reader<R>,
    /// The number of the next cell.
    cell: u32,
    /// As the writer was told.
    published: u32,
}

impl<R: Cells> Reader<R> {
    pub(super) fn new(room: R) -> Reader<R> {
        Reader { bytes: ring::Reader::new(room), cell: 0, published: 0 }
    }

    /// Whether the next cell is full.
    #[inline(always)]
    pub(super) fn has_cell(&self) -> bool {
        self.room().number(self.cell).load(Ordering::Acquire) == self.cell.wrapping_add(1)
    }

    /// The header in the next cell, which is full, and how many bytes of its payload are here.
    #[inline]
    pub(super) fn header(&self) -> ([u8; HEADER_LEN], usize) {
        let (header, here) = self.room().header(self.cell);
        (header, here as usize)
    }

    /// The next cell has been read, where its payload is not in it; `here` as it said.
    pub(super) fn take_cell(&mut self, here: usize) -> Result<(), Corrupt> {
        self.bytes.expect(here)?;
        self.cell = self.cell.wrapping_add(1);
        Ok(())
    }

    /// Hands over the payload in the next cell, of `len` bytes, at most [`INLINE`]; the cell has been read then.
    #[inline]
    pub(super) fn take_payload(&mut self, len: usize, take: impl FnOnce(&[u8])) {
        self.room().payload(self.cell, len, take);
        self.cell = self.cell.wrapping_add(1);
    }

    /// Whether there are bytes of a payload that goes on.
    pub(super) fn has_bytes(&self) -> bool {
        self.bytes.has_bytes()
    }

    /// Hands over the next bytes of a payload; how many, at most `most`.
    pub(super) fn take(&mut self, most: usize, take: impl FnMut(&[u8])) -> Result<usize, Corrupt> {
        self.bytes.read(most, take)
    }

    /// Lets the writer have the room, if it is enough to be worth it; whether the writer waits for it and has to be
    /// woken.
    #[inline]
    pub(super) fn publish(&mut self) -> bool {
        let cells = self.cell.wrapping_sub(self.published) >= self.room().cells() / PARTS;
        (cells || self.bytes.is_worth_publishing()) && self.publish_all()
    }

    fn publish_all(&mut self) -> bool {
        self.room().positions().reader.extra.store(self.cell, Ordering::Release);
        self.published = self.cell;
        // A writer that is woken looks again, and asks again if it is not enough.
        self.bytes.publish()
    }

    #[inline(always)]
    fn room(&self) -> &R {
        &self.bytes.room
    }
}

/// What a rank lets the others of its host see: whether its thread sleeps until it is woken, and the like.
#[repr(C, align(128))]
pub(super) struct Presence<W> {
    asleep: Waiting<W>,
    /// The processor on which the owner waited last, and one.
    cpu: W,
    /// The owner has failed: what it lent is no message any more.
    revoked: W,
}

impl<W: Word> Presence<W> {
    #[cfg(test)]
    pub(super) fn new(asleep: W, cpu: W, revoked: W) -> Presence<W> {
        Presence { asleep: Waiting::new(asleep), cpu, revoked }
    }

    /// The owner changes what it has lent only after this.
    pub(super) fn revoke(&self) {
        self.revoked.store(1, Ordering::Relaxed);
        W::fence();
    }

    /// For a reader of what was lent: whether that counts for nothing.
    pub(super) fn is_revoked(&self) -> bool {
        // What was read before this is from before the change, or this sees that there was one.
        W::fence();
        self.revoked.load(Ordering::Relaxed) != 0
    }

    /// The owner waits on that processor.
    #[inline]
    pub(super) fn set_cpu(&self, cpu: u32) {
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
    pub(super) fn before_sleep(&self) {
        self.asleep.raise();
    }

    /// The owner is awake.
    pub(super) fn after_sleep(&self) {
        self.asleep.lower();
    }

    /// For a rank that has written something: whether the owner has to be woken, which is then the caller's to do.
    #[inline]
    pub(super) fn has_to_be_woken(&self) -> bool {
        self.asleep.take()
    }
}

/// Bytes of a cell: two lines of memory, which processors fetch together.
pub(super) const CELL: usize = 128;
/// Bytes of a payload that go in its frame's cell.
pub(super) const INLINE: usize = CELL - 8 - HEADER_LEN;
