//! One direction between two ranks: frames in consecutive cells.
//!
//! A cell's number is written last and shows that the cell is full, so that a short message costs one cache line
//! between cores. Payloads that do not fit in a cell go through the ring of bytes ([`crate::ring`]) beside the cells;
//! their cell contains how many of their bytes are already there. The reader publishes the number of cells it has taken
//! in the ring's `extra` word.
//!
//! Generic over the memory, so that a model checker can run the same steps (`tests.rs`).

use std::sync::atomic::Ordering;

use super::super::frame::HEADER_LEN;
use crate::ring::{self, Bytes, Corrupt, PARTS, Waiting};
use crate::word::Word;

/// Storage of cells, and of the ring of bytes beside them.
pub(super) trait Cells: Bytes {
    /// Number of cells, a power of two.
    fn cells(&self) -> u32;
    /// The number in a cell; `cell` may be any number, and is taken modulo the number of cells.
    fn number(&self, cell: u32) -> &Self::Word;
    /// Fills a cell, except for its number; at most [`INLINE`] bytes.
    fn fill_cell(&self, cell: u32, header: &[u8; HEADER_LEN], here: u32, payload: &[u8]);
    /// The header in a cell, and the number of its payload bytes in the ring.
    fn header(&self, cell: u32) -> ([u8; HEADER_LEN], u32);
    /// The first bytes in a cell; `len` is at most [`INLINE`].
    fn payload(&self, cell: u32, len: usize, take: impl FnOnce(&[u8]));
}

/// The writing side.
pub(super) struct Writer<R> {
    bytes: ring::Writer<R>,
    /// Number of the next cell.
    cell: u32,
    /// Cells taken, as last published by the reader.
    taken: u32,
    /// Whether it waits for a cell, after it could not continue.
    wants_cell: bool,
}

impl<R: Cells> Writer<R> {
    pub(super) fn new(room: R) -> Writer<R> {
        Writer { bytes: ring::Writer::new(room), cell: 0, taken: 0, wants_cell: false }
    }

    /// Writes a frame with its whole payload, or nothing; returns whether there was room.
    #[inline]
    pub(super) fn write_whole(&mut self, header: &[u8; HEADER_LEN], payload: &[u8]) -> bool {
        let len = payload.len();
        let fits = len <= INLINE || self.bytes.free(len).is_ok_and(|free| free >= len);
        fits && self.begin(header, payload, usize::MAX).is_some()
    }

    /// Writes a frame with the first bytes of its payload, at most `most` of those that do not fit in its cell; returns
    /// how many, or `None`, without any effect, if no cell is free.
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

    /// Writes the next bytes of a payload, at most `most`; returns how many. If the reader's position is invalid, there
    /// is no room: the peer is lost when its connection ends.
    pub(super) fn go_on(&mut self, payload: &[u8], most: usize) -> usize {
        let count = self.bytes.write(payload, most).unwrap_or(0);
        if count == 0 {
            self.wants_cell = false;
        }
        count
    }

    /// Requests a wake-up when there is room. False if there is room by now.
    pub(super) fn wait_for_room(&mut self) -> bool {
        self.room().positions().writer.waiting.raise();
        !self.can_go_on()
    }

    /// Whether the missing room is available.
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

/// The reading side.
pub(super) struct Reader<R> {
    bytes: ring::Reader<R>,
    /// Number of the next cell.
    cell: u32,
    /// Cells taken, as published to the writer.
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

    /// The header in the next cell, which is full, and the number of its payload bytes in the ring.
    #[inline]
    pub(super) fn header(&self) -> ([u8; HEADER_LEN], usize) {
        let (header, here) = self.room().header(self.cell);
        (header, here as usize)
    }

    /// Marks the next cell, whose payload is not in it, as read; `here` as it says.
    pub(super) fn take_cell(&mut self, here: usize) -> Result<(), Corrupt> {
        self.bytes.expect(here)?;
        self.cell = self.cell.wrapping_add(1);
        Ok(())
    }

    /// Passes the payload in the next cell, of `len` bytes, at most [`INLINE`], to `take`; marks the cell as read.
    #[inline]
    pub(super) fn take_payload(&mut self, len: usize, take: impl FnOnce(&[u8])) {
        self.room().payload(self.cell, len, take);
        self.cell = self.cell.wrapping_add(1);
    }

    /// Whether the ring has bytes of a payload that continues.
    pub(super) fn has_bytes(&self) -> bool {
        self.bytes.has_bytes()
    }

    /// Passes the next bytes of a payload, at most `most`, to `take`; returns how many.
    pub(super) fn take(&mut self, most: usize, take: impl FnMut(&[u8])) -> Result<usize, Corrupt> {
        self.bytes.read(most, take)
    }

    /// Publishes freed room to the writer, if it is worthwhile; returns whether the writer waits for it and must be
    /// woken.
    #[inline]
    pub(super) fn publish(&mut self) -> bool {
        let cells = self.cell.wrapping_sub(self.published) >= self.room().cells() / PARTS;
        (cells || self.bytes.is_worth_publishing()) && self.publish_all()
    }

    fn publish_all(&mut self) -> bool {
        self.room().positions().reader.extra.store(self.cell, Ordering::Release);
        self.published = self.cell;
        // A woken writer checks again, and requests another wake-up if the room does not suffice.
        self.bytes.publish()
    }

    #[inline(always)]
    fn room(&self) -> &R {
        &self.bytes.room
    }
}

/// State of a rank that the others of its host see, for example whether its thread sleeps.
#[repr(C, align(128))]
pub(super) struct Presence<W> {
    asleep: Waiting<W>,
    /// The processor on which the owner last waited, plus one.
    cpu: W,
    /// Whether the owner has failed, so that lent messages are invalid.
    revoked: W,
}

impl<W: Word> Presence<W> {
    #[cfg(test)]
    pub(super) fn new(asleep: W, cpu: W, revoked: W) -> Presence<W> {
        Presence { asleep: Waiting::new(asleep), cpu, revoked }
    }

    /// Marks lent messages as invalid; the owner may change them only afterwards.
    pub(super) fn revoke(&self) {
        self.revoked.store(1, Ordering::Relaxed);
        W::fence();
    }

    /// For a reader of a lent message: whether it is invalid.
    pub(super) fn is_revoked(&self) -> bool {
        // Either everything read before is from before the change, or this sees the mark.
        W::fence();
        self.revoked.load(Ordering::Relaxed) != 0
    }

    /// Records that the owner waits on that processor.
    #[inline]
    pub(super) fn set_cpu(&self, cpu: u32) {
        let cpu = cpu.wrapping_add(1);
        if self.cpu.load(Ordering::Relaxed) != cpu {
            self.cpu.store(cpu, Ordering::Relaxed);
        }
    }

    /// Whether the owner last waited on that processor.
    pub(super) fn is_on(&self, cpu: u32) -> bool {
        self.cpu.load(Ordering::Relaxed) == cpu.wrapping_add(1)
    }

    /// To be called before the owner polls once more and sleeps.
    pub(super) fn before_sleep(&self) {
        self.asleep.raise();
    }

    /// To be called when the owner is awake.
    pub(super) fn after_sleep(&self) {
        self.asleep.lower();
    }

    /// For a rank that has written something: whether it must wake the owner.
    #[inline]
    pub(super) fn has_to_be_woken(&self) -> bool {
        self.asleep.take()
    }
}

/// Bytes of a cell: two cache lines, which processors fetch together.
pub(super) const CELL: usize = 128;
/// Bytes of payload that fit in a frame's cell.
pub(super) const INLINE: usize = CELL - 8 - HEADER_LEN;
