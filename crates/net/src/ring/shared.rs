//! A ring in memory that two processes share.

#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use super::{Bytes, Positions};
use crate::memfd::Map;

/// A ring within a mapping, which it keeps alive.
pub(crate) struct SharedBytes {
    map: Arc<Map>,
    positions: usize,
    bytes: usize,
    capacity: u32,
}

impl SharedBytes {
    /// `positions`, `bytes`: offsets from the start of the mapping. Fresh memory is zero, which is an empty ring. A
    /// ring must have one writer and one reader in all processes.
    pub(crate) fn new(
        map: &Arc<Map>,
        positions: usize,
        bytes: usize,
        capacity: u32,
    ) -> SharedBytes {
        let within =
            |at: usize, len: usize| at.checked_add(len).is_some_and(|end| end <= map.len());
        assert!(within(positions, size_of::<Positions<AtomicU32>>()), "positions at {positions}");
        assert!(positions.is_multiple_of(align_of::<Positions<AtomicU32>>()), "aligned");
        assert!(within(bytes, capacity as usize) && capacity.is_power_of_two(), "bytes at {bytes}");
        SharedBytes { map: map.clone(), positions, bytes, capacity }
    }

    /// Address and length of one or two parts of the bytes.
    #[inline]
    fn parts(&self, at: u32, len: usize) -> [(*mut u8, usize); 2] {
        assert!(len <= self.capacity as usize, "{len} bytes of {}", self.capacity);
        let offset = (at & (self.capacity - 1)) as usize;
        let first = len.min(self.capacity as usize - offset);
        // SAFETY: `new` has checked that `capacity` bytes lie there, and `offset` is below that.
        unsafe {
            let bytes = self.map.start().add(self.bytes);
            [(bytes.add(offset), first), (bytes, len - first)]
        }
    }
}

impl Bytes for SharedBytes {
    type Word = AtomicU32;

    #[inline(always)]
    fn positions(&self) -> &Positions<AtomicU32> {
        // SAFETY: within the mapping and aligned, as `new` has checked (mappings are aligned to pages); atomics, for
        // which any bits are valid.
        unsafe { &*self.map.start().add(self.positions).cast() }
    }

    #[inline(always)]
    fn capacity(&self) -> u32 {
        self.capacity
    }

    fn write(&self, at: u32, bytes: &[u8]) {
        let [(first, count), (second, _)] = self.parts(at, bytes.len());
        let (start, rest) = bytes.split_at(count);
        // SAFETY: the parts are within the ring, and the reader has read them. A reader that reports this wrongly reads
        // corrupt bytes.
        unsafe {
            first.copy_from_nonoverlapping(start.as_ptr(), start.len());
            second.copy_from_nonoverlapping(rest.as_ptr(), rest.len());
        }
    }

    fn read(&self, at: u32, len: usize, mut take: impl FnMut(&[u8])) {
        for (start, count) in self.parts(at, len).into_iter().filter(|(_, count)| *count > 0) {
            // SAFETY: within the ring; the writer does not change the bytes until they are read. A writer that does can
            // only corrupt its own data.
            take(unsafe { std::slice::from_raw_parts(start, count) });
        }
    }
}
