//! Where rings lie in the memory that the ranks of a host share: the bells and cards of all ranks, then a ring for every ordered
//! pair. Pages that nobody touches take no memory.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use super::super::frame::HEADER_LEN;
use super::borrow::Card;
use super::ring::{Bell, CELL, INLINE, Room, Words};
use crate::memfd::{self, Map};

/// The mapped memory of a host's ranks.
pub(super) struct Layout {
    map: Map,
    ranks: usize,
    capacity: u32,
}

impl Layout {
    pub(super) fn create(ranks: usize) -> io::Result<(Layout, OwnedFd)> {
        let fd = memfd::create(c"netsum-messages", len(ranks))?;
        Ok((Layout::map(&fd, ranks)?, fd))
    }

    /// Errors: the file is not what `create` makes for as many ranks.
    pub(super) fn open(fd: &OwnedFd, ranks: usize) -> io::Result<Layout> {
        memfd::check(fd, len(ranks))?;
        Layout::map(fd, ranks)
    }

    fn map(fd: &OwnedFd, ranks: usize) -> io::Result<Layout> {
        Ok(Layout { map: Map::new(fd, len(ranks))?, ranks, capacity: capacity_of(ranks) })
    }

    /// By place on the host.
    #[inline]
    pub(super) fn bell(&self, place: usize) -> &Bell<AtomicU32> {
        assert!(place < self.ranks, "rank {place} of {} on a host", self.ranks);
        // SAFETY: within the mapping and aligned, as mappings are by pages; a bell is an atomic, for which any bits are valid.
        unsafe { &*self.map.start().cast::<Bell<AtomicU32>>().add(place) }
    }

    /// By place on the host.
    pub(super) fn card(&self, place: usize) -> &Card {
        assert!(place < self.ranks, "rank {place} of {} on a host", self.ranks);
        // SAFETY: behind the bells, within the mapping and aligned, as `bells` has room for both and a bell is as large as it
        // is aligned; atomics, for which any bits are valid.
        unsafe {
            let cards = self.map.start().cast::<Bell<AtomicU32>>().add(self.ranks).cast::<Card>();
            &*cards.add(place)
        }
    }

    /// The ring in which one place writes and another reads. Each end is to be taken once in all processes.
    pub(super) fn ring(self: &Arc<Layout>, from: usize, to: usize) -> Ring {
        assert!(from.max(to) < self.ranks && from != to, "{from} to {to} of {}", self.ranks);
        let at = bells(self.ranks) + (from * self.ranks + to) * stride(self.capacity);
        // SAFETY: the ring's words, cells and bytes lie within the mapping, `len` has room for all pairs.
        let words = unsafe { self.map.start().add(at) };
        Ring { _layout: self.clone(), start: words, capacity: self.capacity }
    }
}

/// A ring in shared memory.
pub(super) struct Ring {
    _layout: Arc<Layout>,
    start: *mut u8,
    capacity: u32,
}

// SAFETY: words and cells' numbers are atomics. All else is reached by `Writer` and `Reader`, of which each side has one,
// used by one thread at a time; the numbers and positions keep them on different bytes. A process that breaks this can
// only garble what it sends, as all that is read is checked.
unsafe impl Send for Ring {}

impl Ring {
    #[inline(always)]
    fn cell(&self, cell: u32) -> *mut u8 {
        // SAFETY: below `CELLS` cells behind the words.
        unsafe { self.start.add(WORDS + (cell % CELLS) as usize * CELL) }
    }

    /// One or two parts of the bytes: where, and how many.
    #[inline]
    fn parts(&self, at: u32, len: usize) -> [(*mut u8, usize); 2] {
        assert!(len <= self.capacity as usize, "{len} bytes of {}", self.capacity);
        let offset = (at & (self.capacity - 1)) as usize;
        let first = len.min(self.capacity as usize - offset);
        // SAFETY: `capacity` bytes lie behind the cells, and `offset` is below that.
        let bytes = unsafe { self.start.add(WORDS + CELLS as usize * CELL) };
        [(unsafe { bytes.add(offset) }, first), (bytes, len - first)]
    }
}

impl Room for Ring {
    type Word = AtomicU32;

    #[inline(always)]
    fn words(&self) -> &Words<AtomicU32> {
        // SAFETY: within the mapping and aligned to a page; atomics, for which any bits are valid.
        unsafe { &*self.start.cast() }
    }

    #[inline(always)]
    fn cells(&self) -> u32 {
        CELLS
    }

    #[inline(always)]
    fn capacity(&self) -> u32 {
        self.capacity
    }

    #[inline(always)]
    fn number(&self, cell: u32) -> &AtomicU32 {
        // SAFETY: the first bytes of a cell, which is aligned to its size.
        unsafe { &*self.cell(cell).cast() }
    }

    #[inline]
    fn fill_cell(&self, cell: u32, header: &[u8; HEADER_LEN], here: u32, payload: &[u8]) {
        assert!(payload.len() <= INLINE, "{} bytes for a cell", payload.len());
        let start = self.cell(cell);
        // SAFETY: number, `here`, header and at most `INLINE` bytes are the cell. It is ours: the reader has taken it, and
        // reads it again when its number is written, which follows.
        unsafe {
            start.add(4).cast::<u32>().write(here);
            start.add(8).cast::<[u8; HEADER_LEN]>().write(*header);
            let to = start.add(8 + HEADER_LEN);
            if let Ok(word) = <[u8; 8]>::try_from(payload) {
                to.cast::<[u8; 8]>().write(word);
            } else {
                to.copy_from_nonoverlapping(payload.as_ptr(), payload.len());
            }
        }
    }

    #[inline]
    fn header(&self, cell: u32) -> ([u8; HEADER_LEN], u32) {
        let start = self.cell(cell);
        // SAFETY: within the cell, which is full and not written before we say that it is taken; copied once, so that what is
        // checked is what is used.
        unsafe {
            (start.add(8).cast::<[u8; HEADER_LEN]>().read(), start.add(4).cast::<u32>().read())
        }
    }

    #[inline]
    fn payload(&self, cell: u32, len: usize, take: impl FnOnce(&[u8])) {
        assert!(len <= INLINE, "{len} bytes of a cell");
        // SAFETY: as in `header`.
        take(unsafe { std::slice::from_raw_parts(self.cell(cell).add(8 + HEADER_LEN), len) });
    }

    fn write(&self, at: u32, bytes: &[u8]) {
        let [(first, count), (second, _)] = self.parts(at, bytes.len());
        let (start, rest) = bytes.split_at(count);
        // SAFETY: the parts lie within the ring; the reader has read what was there.
        unsafe {
            first.copy_from_nonoverlapping(start.as_ptr(), start.len());
            second.copy_from_nonoverlapping(rest.as_ptr(), rest.len());
        }
    }

    fn read(&self, at: u32, len: usize, mut take: impl FnMut(&[u8])) {
        for (start, count) in self.parts(at, len).into_iter().filter(|(_, count)| *count > 0) {
            // SAFETY: within the ring; the writer leaves the bytes alone until they are read.
            take(unsafe { std::slice::from_raw_parts(start, count) });
        }
    }
}

fn bells(ranks: usize) -> usize {
    (ranks * (size_of::<Bell<AtomicU32>>() + size_of::<Card>())).next_multiple_of(PAGE)
}

fn stride(capacity: u32) -> usize {
    (WORDS + CELLS as usize * CELL + capacity as usize).next_multiple_of(PAGE)
}

fn len(ranks: usize) -> usize {
    bells(ranks) + ranks * ranks * stride(capacity_of(ranks))
}

/// Both ends of a few rings stay in a second-level cache; those of many ranks take little memory.
pub(super) fn capacity_of(ranks: usize) -> u32 {
    (CAPACITY_ALL / ranks.next_power_of_two() as u32).clamp(CAPACITY_MIN, CAPACITY_MAX)
}

/// Short messages that may be under way. A power of two.
const CELLS: u32 = 128;
const CAPACITY_MAX: u32 = 256 << 10;
const CAPACITY_MIN: u32 = 32 << 10;
const CAPACITY_ALL: u32 = 4 << 20;
const PAGE: usize = 4096;
const WORDS: usize = size_of::<Words<AtomicU32>>();
const _: () = assert!(size_of::<Bell<AtomicU32>>() == 128 && size_of::<Card>() == 128);
const _: () = assert!(CELLS.is_power_of_two() && WORDS.is_multiple_of(CELL));
