//! Host memory that a caller hands to a driver.

#![allow(unsafe_code)]

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// Bytes that belong to an operation until it is done; a clone is another handle to the same bytes.
///
/// **One user at a time.** Who submits a buffer leaves it alone until the operation is reported done or
/// is handed back: the bytes are read and written in place by the driver's thread. The accessors check
/// bounds and panic beyond them; they do not, and cannot, check for a second user.
#[derive(Clone)]
pub struct Buffer {
    memory: Arc<Memory>,
    /// Of the memory, what this handle is about.
    at: usize,
    len: usize,
}

struct Memory {
    start: *mut u8,
    len: usize,
    /// Owner of the bytes; dropped with the last handle.
    _keep: Box<dyn Any + Send>,
}

// SAFETY: the bytes may be used from any thread (promised to `from_raw`), and `_keep` is never touched
// but to be dropped, by whichever thread holds the last handle; it is `Send`.
unsafe impl Send for Memory {}
// SAFETY: as above; no method gives out `_keep`, and users of the bytes take turns (see `Buffer`).
unsafe impl Sync for Memory {}

impl Buffer {
    /// Takes over `len` bytes at `start`; `keep` owns them and is dropped with the last handle.
    ///
    /// # Safety
    /// The bytes are valid for reads and writes from any thread until `keep` is dropped, and nobody else
    /// uses them while an operation on this buffer runs.
    pub unsafe fn from_raw(start: *mut u8, len: usize, keep: Box<dyn Any + Send>) -> Buffer {
        Buffer { memory: Arc::new(Memory { start, len, _keep: keep }), at: 0, len }
    }

    /// Takes over a vector's bytes.
    pub fn from_vec(bytes: Vec<u8>) -> Buffer {
        let bytes = Box::into_raw(bytes.into_boxed_slice());
        let (start, len) = (bytes.cast::<u8>(), bytes.len());
        let keep = Box::new(Owned(bytes));
        // SAFETY: `keep` frees the allocation when dropped and not earlier; nobody else has it.
        unsafe { Buffer::from_raw(start, len, keep) }
    }

    /// A handle to the bytes of `range` alone; panics beyond them.
    pub fn part(&self, range: Range<usize>) -> Buffer {
        self.check(&range);
        Buffer { memory: self.memory.clone(), at: self.at + range.start, len: range.len() }
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies `out.len()` bytes from offset `at` to `out`.
    pub fn read(&self, at: usize, out: &mut [u8]) {
        out.copy_from_slice(self.slice(at..at + out.len()));
    }

    /// Copies `bytes` to offset `at`.
    pub fn write(&self, at: usize, bytes: &[u8]) {
        let to = self.pointer(&(at..at + bytes.len()));
        // SAFETY: `pointer` checked that the range lies within the memory; `bytes` may not overlap it, as the
        // one user of the memory (see `Buffer`) cannot hold a reference into it across this call.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) }
    }

    /// Lets `change` have the bytes of `range`; as [`Buffer::slice_mut`] for who has a handle that others may have, too.
    #[inline]
    pub fn update<T>(&self, range: Range<usize>, change: impl FnOnce(&mut [u8]) -> T) -> T {
        let start = self.pointer(&range);
        // SAFETY: as for `slice`; "one user at a time" makes the reference unique while `change` has it.
        change(unsafe { std::slice::from_raw_parts_mut(start, range.len()) })
    }

    /// The bytes of `range`.
    pub fn slice(&self, range: Range<usize>) -> &[u8] {
        let start = self.pointer(&range);
        // SAFETY: `pointer` checked that the range lies within the memory, which lives as long as `self`.
        unsafe { std::slice::from_raw_parts(start, range.len()) }
    }

    /// The bytes of `range`, to be changed.
    pub fn slice_mut(&mut self, range: Range<usize>) -> &mut [u8] {
        let start = self.pointer(&range);
        // SAFETY: as for `slice`; `&mut self` and "one user at a time" make the reference unique.
        unsafe { std::slice::from_raw_parts_mut(start, range.len()) }
    }

    fn check(&self, range: &Range<usize>) {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "bytes {range:?} of a buffer of {} bytes",
            self.len
        );
    }

    fn pointer(&self, range: &Range<usize>) -> *mut u8 {
        self.check(range);
        if self.memory.len == 0 {
            return std::ptr::NonNull::dangling().as_ptr();
        }
        // SAFETY: the part lies within the memory (`part` checked it) and the range within the part, so the offset stays
        // within the memory or one past its end.
        unsafe { self.memory.start.add(self.at + range.start) }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.len())
    }
}

/// A boxed slice that is freed on drop, without a reference to it meanwhile.
struct Owned(*mut [u8]);

// SAFETY: it is the only owner of plain bytes.
unsafe impl Send for Owned {}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: the pointer came from `Box::into_raw` and is freed once, here.
        drop(unsafe { Box::from_raw(self.0) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_was_written_through_another_handle() {
        let buffer = Buffer::from_vec(vec![0; 8]);
        let mut other = buffer.clone();
        other.write(2, &[1, 2, 3]);
        other.slice_mut(5..6)[0] = 3;
        buffer.update(5..6, |bytes| bytes[0] += 1);
        let mut out = [0; 5];
        buffer.read(1, &mut out);
        assert_eq!(out, [0, 1, 2, 3, 4]);
    }

    #[test]
    fn empty_buffers_have_empty_slices() {
        let buffer = Buffer::from_vec(Vec::new());
        assert!(buffer.is_empty());
        assert!(buffer.slice(0..0).is_empty());
        // SAFETY: no byte is claimed.
        let null = unsafe { Buffer::from_raw(std::ptr::null_mut(), 0, Box::new(())) };
        assert!(null.slice(0..0).is_empty());
    }

    #[test]
    #[should_panic(expected = "bytes 7..9 of a buffer of 8 bytes")]
    fn bounds_are_checked() {
        Buffer::from_vec(vec![0; 8]).slice(7..9);
    }

    #[test]
    fn owner_goes_with_the_last_handle() {
        let owner = Arc::new(());
        // SAFETY: no byte is claimed.
        let buffer = unsafe { Buffer::from_raw(std::ptr::null_mut(), 0, Box::new(owner.clone())) };
        let other = buffer.clone();
        drop(buffer);
        assert_eq!(Arc::strong_count(&owner), 2);
        drop(other);
        assert_eq!(Arc::strong_count(&owner), 1);
    }
}
