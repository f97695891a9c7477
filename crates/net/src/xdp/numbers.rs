//! The packet numbers of hops, in memory that the in-kernel switch shares: `struct hop_numbers` of hw/xdp/state.h.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use libbpf_rs::MapHandle;
use netsum_proto::SharedNumbers;
use parking_lot::Mutex;

use super::WhyNot;

/// Largest number of hops, of all leases together.
pub(super) const MAX_HOPS: u32 = 4096;
const CELLS: usize = 256;
/// Numbers that a cell stands for.
const BLOCK: u64 = 16;
/// Block numbers have 48 bits.
const NUMBERS_MAX: u64 = 1 << 52;

/// `struct hop_numbers`.
#[repr(C)]
struct Shared {
    next: AtomicU64,
    cells: [AtomicU64; CELLS],
}

/// All hops' numbers. The memory stays mapped while a hop uses it.
pub(super) struct Table {
    hops: NonNull<Shared>,
    /// Numbers of hops that are not in use.
    free: Mutex<Vec<u32>>,
}

// SAFETY: the memory is accessed by atomic operations only.
unsafe impl Send for Table {}
// SAFETY: as above.
unsafe impl Sync for Table {}

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Table({} free)", self.free.lock().len())
    }
}

const BYTES: usize = MAX_HOPS as usize * size_of::<Shared>();

impl Table {
    pub(super) fn new(map: &MapHandle) -> Result<Arc<Table>, WhyNot> {
        let (fd, access) = (map.as_fd().as_raw_fd(), libc::PROT_READ | libc::PROT_WRITE);
        // SAFETY: a new mapping of a map with this many bytes.
        let memory =
            unsafe { libc::mmap(std::ptr::null_mut(), BYTES, access, libc::MAP_SHARED, fd, 0) };
        let hops = (memory != libc::MAP_FAILED).then(|| NonNull::new(memory.cast())).flatten();
        let Some(hops) = hops else {
            let error = io::Error::last_os_error();
            return Err(WhyNot::System("mapping the packet numbers", error));
        };
        Ok(Arc::new(Table { hops, free: Mutex::new((0..MAX_HOPS).rev().collect()) }))
    }

    /// A hop of which no number was used; `None`: all are in use.
    pub(super) fn allot(self: &Arc<Table>) -> Option<HopNumbers> {
        let index = self.free.lock().pop()?;
        let hop = HopNumbers { table: self.clone(), index };
        let Shared { next, cells } = hop.shared();
        std::iter::once(next).chain(cells).for_each(|word| word.store(0, Ordering::Relaxed));
        Some(hop)
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        // SAFETY: mapped with this length, and no hop is left.
        unsafe { libc::munmap(self.hops.as_ptr().cast(), BYTES) };
    }
}

/// The numbers of one hop, used by the kernel and by user space at the same time.
#[derive(Debug)]
pub struct HopNumbers {
    table: Arc<Table>,
    index: u32,
}

impl HopNumbers {
    /// Index in the kernel's maps.
    pub(super) fn index(&self) -> u32 {
        self.index
    }

    fn shared(&self) -> &Shared {
        // SAFETY: the index is below `MAX_HOPS`, the table keeps the mapping, and every bit pattern is a value.
        unsafe { self.table.hops.add(self.index as usize).as_ref() }
    }
}

impl Drop for HopNumbers {
    fn drop(&mut self) {
        self.table.free.lock().push(self.index);
    }
}

impl SharedNumbers for HopNumbers {
    fn next(&self) -> u64 {
        self.shared().next.fetch_add(1, Ordering::Relaxed)
    }

    /// `check_number` of hw/xdp/seal.h.
    fn accept(&self, number: u64) -> bool {
        if number >= NUMBERS_MAX {
            return false;
        }
        let (block, bit) = (number / BLOCK, 1 << (number % BLOCK));
        let cell = &self.shared().cells[block as usize % CELLS];
        let noted = cell.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |now| {
            let here = now >> BLOCK;
            let seen = here > block || (here == block && now & bit != 0);
            let bits = if here == block { now } else { block << BLOCK };
            (!seen).then_some(bits | bit)
        });
        noted.is_ok()
    }
}
