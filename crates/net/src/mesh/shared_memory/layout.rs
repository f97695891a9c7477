//! Layout of the rings in the memory that the ranks of a host share: presence and identity of all ranks, then a ring
//! with its cells for every ordered pair. Untouched pages take no memory.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use super::super::frame::HEADER_LEN;
use super::super::limits::{CELLS, RING_MAX, RING_MIN, RINGS};
use super::cells::{CELL, Cells, INLINE, Presence};
use super::process_memory::Identity;
use crate::memfd::{self, Map};
use crate::ring::{Bytes, Positions, SharedBytes};

/// The mapped memory of a host's ranks.
pub(super) struct Layout {
    map: Arc<Map>,
    ranks: usize,
    capacity: u32,
}

impl Layout {
    pub(super) fn create(ranks: usize) -> io::Result<(Layout, OwnedFd)> {
        let fd = memfd::create(c"netsum-messages", len(ranks))?;
        Ok((Layout::map(&fd, ranks)?, fd))
    }

    /// Errors: the file differs from what `create` makes for this number of ranks.
    pub(super) fn open(fd: &OwnedFd, ranks: usize) -> io::Result<Layout> {
        memfd::check(fd, len(ranks))?;
        Layout::map(fd, ranks)
    }

    fn map(fd: &OwnedFd, ranks: usize) -> io::Result<Layout> {
        let map = Arc::new(Map::new(fd, len(ranks))?);
        Ok(Layout { map, ranks, capacity: capacity_of(ranks) })
    }

    /// Presence by position on the host.
    #[inline]
    pub(super) fn presence(&self, place: usize) -> &Presence<AtomicU32> {
        assert!(place < self.ranks, "rank {place} of {} on a host", self.ranks);
        // SAFETY: within the mapping and aligned, as mappings are by pages; atomics, for which any bits are valid.
        unsafe { &*self.map.start().cast::<Presence<AtomicU32>>().add(place) }
    }

    /// Identity by position on the host.
    pub(super) fn identity(&self, place: usize) -> &Identity {
        assert!(place < self.ranks, "rank {place} of {} on a host", self.ranks);
        // SAFETY: behind the presences, within the mapping and aligned, as `head` has room for both and a presence is
        // as large as it is aligned; atomics, for which any bits are valid.
        unsafe {
            let presences = self.map.start().cast::<Presence<AtomicU32>>();
            &*presences.add(self.ranks).cast::<Identity>().add(place)
        }
    }

    /// The ring from one position to another. Each end must be taken once in all processes.
    pub(super) fn ring(&self, from: usize, to: usize) -> Ring {
        assert!(from.max(to) < self.ranks && from != to, "{from} to {to} of {}", self.ranks);
        let at = offset(self.ranks, from, to);
        let cells = at + POSITIONS;
        let bytes = cells + CELLS as usize * CELL;
        let bytes = SharedBytes::new(&self.map, at, bytes, self.capacity);
        // SAFETY: `len` has room for the cells of all pairs.
        let cells = unsafe { self.map.start().add(cells) };
        Ring { bytes, cells }
    }
}

/// A ring with its cells in shared memory.
pub(super) struct Ring {
    /// Keeps the mapping alive.
    bytes: SharedBytes,
    cells: *mut u8,
}

// SAFETY: cells' numbers are atomics. Everything else is accessed by `Writer` and `Reader`, of which each side has one,
// used by one thread at a time; the numbers keep them on different cells. A process that violates this can only corrupt
// its own messages, because everything read is checked.
unsafe impl Send for Ring {}

impl Ring {
    #[inline(always)]
    fn cell(&self, cell: u32) -> *mut u8 {
        // SAFETY: one of `CELLS` cells.
        unsafe { self.cells.add((cell % CELLS) as usize * CELL) }
    }
}

impl Bytes for Ring {
    type Word = AtomicU32;

    #[inline(always)]
    fn positions(&self) -> &Positions<AtomicU32> {
        self.bytes.positions()
    }

    #[inline(always)]
    fn capacity(&self) -> u32 {
        self.bytes.capacity()
    }

    fn write(&self, at: u32, bytes: &[u8]) {
        self.bytes.write(at, bytes);
    }

    fn read(&self, at: u32, len: usize, take: impl FnMut(&[u8])) {
        self.bytes.read(at, len, take);
    }
}

impl Cells for Ring {
    #[inline(always)]
    fn cells(&self) -> u32 {
        CELLS
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
        // SAFETY: number, `here`, header and at most `INLINE` bytes are the cell. It is ours: the reader has taken it,
        // and reads it again when its number is written, which follows.
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
        // SAFETY: within the cell, which is full and not written before we say that it is taken; copied once, so that
        // what is checked is what is used.
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
}

fn head(ranks: usize) -> usize {
    (ranks * (size_of::<Presence<AtomicU32>>() + size_of::<Identity>())).next_multiple_of(PAGE)
}

/// Where the ring from one position to another begins: its positions, then its cells, then its bytes.
pub(super) fn offset(ranks: usize, from: usize, to: usize) -> usize {
    head(ranks) + (from * ranks + to) * stride(capacity_of(ranks))
}

fn stride(capacity: u32) -> usize {
    (POSITIONS + CELLS as usize * CELL + capacity as usize).next_multiple_of(PAGE)
}

fn len(ranks: usize) -> usize {
    head(ranks) + ranks * ranks * stride(capacity_of(ranks))
}

pub(super) fn capacity_of(ranks: usize) -> u32 {
    (RINGS / ranks.next_power_of_two() as u32).clamp(RING_MIN, RING_MAX)
}

const PAGE: usize = 4096;
pub(super) const POSITIONS: usize = size_of::<Positions<AtomicU32>>();
const _: () = assert!(size_of::<Presence<AtomicU32>>() == 128 && size_of::<Identity>() == 128);
const _: () = assert!(POSITIONS.is_multiple_of(CELL));
