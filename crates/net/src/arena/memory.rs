//! Layout of an arena: per rank [`SLOTS`] slots, each a line of flags and its payload.

#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, AtomicU64};

use super::mark::Flag;
use crate::memfd::{self, Map};

/// The header of a slot, on its own cache line. Written by the slot's owner before it publishes.
#[repr(C, align(64))]
pub(super) struct Mark {
    pub(super) flag: Flag<AtomicU32>,
    /// The operation of the round.
    pub(super) call: AtomicU64,
    /// A free word of the owner.
    pub(super) word: AtomicU64,
    /// The processor on which the owner ran.
    pub(super) cpu: AtomicU32,
    /// Not 0: the other rank may write to the slot ([`super::Stamp::answered`]).
    pub(super) answered: AtomicU32,
    /// A payload small enough for the flag's cache line; the same rules as for the payload behind apply.
    head: UnsafeCell<[u8; HEAD_BYTES]>,
}

/// The mapped memory of an arena.
pub(super) struct Memory {
    map: Map,
    ranks: usize,
    slot_bytes: usize,
}

impl Memory {
    pub(super) fn create(ranks: usize, slot_bytes: usize) -> io::Result<(Memory, OwnedFd)> {
        let fd = memfd::create(c"netsum-arena", len(ranks, slot_bytes))?;
        Ok((Memory::map(&fd, ranks, slot_bytes)?, fd))
    }

    /// Errors: the file differs from what `create` makes for this number of ranks.
    pub(super) fn open(fd: &OwnedFd, ranks: usize, slot_bytes: usize) -> io::Result<Memory> {
        memfd::check(fd, len(ranks, slot_bytes))?;
        Memory::map(fd, ranks, slot_bytes)
    }

    fn map(fd: &OwnedFd, ranks: usize, slot_bytes: usize) -> io::Result<Memory> {
        Ok(Memory { map: Map::new(fd, len(ranks, slot_bytes))?, ranks, slot_bytes })
    }

    pub(super) fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    /// The mark of a rank's slot for a round.
    #[inline(always)]
    pub(super) fn mark(&self, rank: usize, round: u32) -> &Mark {
        // SAFETY: `offset` is within the mapping and aligned; a mark is atomics, for which any bits are valid.
        unsafe { &*self.map.start().add(self.offset(rank, round)).cast::<Mark>() }
    }

    /// All marks.
    pub(super) fn marks(&self) -> impl Iterator<Item = &Mark> {
        (0..self.ranks).flat_map(move |rank| (0..SLOTS).map(move |slot| self.mark(rank, slot)))
    }

    /// The payload of a rank's slot for a round; the rules of [`super::Arena`] determine who may access it when.
    #[inline(always)]
    pub(super) fn payload(&self, rank: usize, round: u32) -> *mut u8 {
        // SAFETY: `slot_bytes` follow the mark within the mapping.
        unsafe { self.map.start().add(self.offset(rank, round) + size_of::<Mark>()) }
    }

    /// The payload bytes on the line of a mark; the same rules as for [`Memory::payload`] apply.
    #[inline(always)]
    pub(super) fn head(&self, rank: usize, round: u32) -> *mut [u8; HEAD_BYTES] {
        self.mark(rank, round).head.get()
    }

    #[inline(always)]
    fn offset(&self, rank: usize, round: u32) -> usize {
        assert!(rank < self.ranks, "rank {rank} of {}", self.ranks);
        LEAD + (rank * SLOTS as usize + (round % SLOTS) as usize) * stride(self.slot_bytes)
    }
}

fn stride(slot_bytes: usize) -> usize {
    (size_of::<Mark>() + slot_bytes).next_multiple_of(PAGE)
}

fn len(ranks: usize, slot_bytes: usize) -> usize {
    LEAD + ranks * SLOTS as usize * stride(slot_bytes)
}

/// Number of slots of a rank. A power of two, so that rounds may wrap; enough that a rank may publish a round while
/// others still read the one before the last.
pub(super) const SLOTS: u32 = 4;
/// Bytes of a line of 64 bytes that are left beside the flag and its metadata.
pub const HEAD_BYTES: usize = 32;
/// Slots begin at the middle of a page, because callers' buffers usually begin near the start of one: a processor
/// detects a load that depends on an earlier store by the offset in the page, so a copy between equal offsets stalls.
/// Between distant cores, sums of 1 MiB took 1.8 times as long.
const LEAD: usize = PAGE / 2;
const PAGE: usize = 4096;
const _: () = assert!(SLOTS.is_power_of_two() && size_of::<Mark>() == 64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_slot_ends_within_the_memory() {
        // Without room between the end of a slot and that of its page, and with much.
        for slot_bytes in [PAGE - size_of::<Mark>(), PAGE, 3 * PAGE + 64] {
            let (memory, _fd) = Memory::create(3, slot_bytes).unwrap();
            let payload = memory.payload(2, SLOTS - 1) as usize;
            assert!(payload + slot_bytes <= memory.map.start() as usize + len(3, slot_bytes));
            assert_eq!(memory.mark(0, 0) as *const Mark as usize % PAGE, LEAD);
        }
    }
}
