//! Where things lie in an arena: per rank [`SLOTS`] slots, each a line of flags and its payload.

#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, AtomicU64};

use super::mark::Flag;
use crate::memfd::{self, Map};

/// What stands in front of a payload, on a cache line of its own. Written by the slot's owner before it publishes.
#[repr(C, align(64))]
pub(super) struct Mark {
    pub(super) flag: Flag<AtomicU32>,
    /// Of the operation that the round belongs to.
    pub(super) call: AtomicU64,
    /// What the owner wants to tell besides.
    pub(super) word: AtomicU64,
    /// The processor that ran the owner.
    pub(super) cpu: AtomicU32,
    /// Not 0: the other rank may write to the slot ([`super::Stamp::answered`]).
    pub(super) answered: AtomicU32,
    /// A payload that is small enough to travel with the flag; the rules are those of the payload behind.
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

    /// Errors: the file is not what `create` makes for as many ranks.
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

    /// Every mark there is.
    pub(super) fn marks(&self) -> impl Iterator<Item = &Mark> {
        (0..self.ranks).flat_map(move |rank| (0..SLOTS).map(move |slot| self.mark(rank, slot)))
    }

    /// The payload of a rank's slot for a round; the rules of [`super::Arena`] say who may touch it when.
    #[inline(always)]
    pub(super) fn payload(&self, rank: usize, round: u32) -> *mut u8 {
        // SAFETY: `slot_bytes` follow the mark within the mapping.
        unsafe { self.map.start().add(self.offset(rank, round) + size_of::<Mark>()) }
    }

    /// The bytes on the line of a mark, for payloads that are so small; the same rules as for [`Memory::payload`].
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

/// Slots of a rank. A power of two, so that rounds may wrap; enough that a rank may publish a round while others still
/// read the one before the last.
pub(super) const SLOTS: u32 = 4;
/// What a line of 64 bytes has left beside the flag and what goes with it.
pub const HEAD_BYTES: usize = 32;
/// Slots begin at the middle of a page, as callers' buffers most often begin near the beginning of one: a processor
/// tells a load that follows a store from one of the same bytes by its place in a page, and a copy whose ends are at
/// the same place waits for itself. Between cores that are far from each other sums of 1 MiB took 1.8 times as long.
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
