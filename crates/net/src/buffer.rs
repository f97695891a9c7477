//! Host memory that a caller passes to a driver.
//!
//! A [`Buffer`] is the only handle to its bytes, so that the compiler checks readers and writers. A user that needs
//! some of the bytes for longer than a call, such as a thread that sends them, borrows them: [`Buffer::lend`] for
//! reading, [`Buffer::lend_mut`] for writing. The buffer tracks its loans, and panics on an access that a loan
//! excludes. A loan ends when it is dropped, in any thread; the memory lives until the last loan has ended.
//!
//! So safe code cannot obtain two references to a byte of which one is mutable. Two writers:
//!
//! ```compile_fail,E0499
//! let mut buffer = netsum_net::Buffer::from_vec(vec![0; 8]);
//! let first = buffer.slice_mut(0..4);
//! buffer.write(0, &[1]);
//! first[0] = 2;
//! ```
//!
//! A reader and a writer:
//!
//! ```compile_fail,E0502
//! let mut buffer = netsum_net::Buffer::from_vec(vec![0; 8]);
//! let bytes = buffer.slice(0..4);
//! buffer.write(0, &[1]);
//! assert_eq!(bytes[0], 0);
//! ```
//!
//! A second handle:
//!
//! ```compile_fail,E0599
//! let buffer = netsum_net::Buffer::from_vec(vec![0; 8]);
//! let other = buffer.clone();
//! ```
//!
//! A loan while a reference exists:
//!
//! ```compile_fail,E0502
//! let mut buffer = netsum_net::Buffer::from_vec(vec![0; 8]);
//! let bytes = buffer.slice(0..4);
//! let mut lent = buffer.lend_mut(0..4);
//! lent.write(0, &[1]);
//! assert_eq!(bytes[0], 0);
//! ```
//!
//! Two threads:
//!
//! ```compile_fail,E0499
//! let mut buffer = netsum_net::Buffer::from_vec(vec![0; 8]);
//! std::thread::scope(|scope| {
//!     scope.spawn(|| buffer.write(0, &[1]));
//!     scope.spawn(|| buffer.write(0, &[2]));
//! });
//! ```

#![allow(unsafe_code)]

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use crate::loans::{ThreadLoans, Use};

/// The bytes of an operation until it has completed, and the only handle to them.
///
/// Methods panic for bytes out of range and for bytes that are lent: bytes lent for writing can be neither read nor
/// written through the buffer, bytes lent for reading cannot be written.
pub struct Buffer {
    bytes: Bytes,
    origin: Origin,
}

/// Where a buffer's bytes come from, and who tracks its loans.
enum Origin {
    Memory(Arc<Memory>),
    /// A loan for writing: bytes of another memory, from offset `at`. Most such buffers lend nothing themselves, so that
    /// a memory of their own is made with the first loan; from then on it ends the loan.
    Loan {
        by: Arc<Memory>,
        at: usize,
        own: OnceLock<Arc<Memory>>,
    },
}

/// Bytes of a [`Buffer`] that are lent for reading, until this value and all its clones are dropped.
pub struct Loan {
    memory: Arc<Memory>,
    range: Range<usize>,
}

/// The bytes of a buffer and its loans; lives until both the buffer and its loans are dropped.
struct Memory {
    bytes: Bytes,
    source: Source,
    loans: ThreadLoans,
}

/// Owner of a memory's bytes.
enum Source {
    /// The owner of the bytes, dropped with the memory.
    Own { _keep: Box<dyn Any + Send> },
    /// As [`Origin::Loan`].
    Lent { by: Arc<Memory>, at: usize },
}

/// A place in memory.
#[derive(Clone, Copy)]
struct Bytes {
    start: *mut u8,
    len: usize,
}

// SAFETY: the bytes may be used from any thread (promised to `from_raw`). Only `Buffer` and `Loan` return references to
// them: mutable ones by `&mut Buffer` where nothing is lent, shared ones where nothing is lent for writing, which cannot
// change while the reference lives, as lending for writing takes `&mut Buffer`. The end of a loan is released and
// acquired, so an observer of the end sees the writes of the borrower.
unsafe impl Send for Bytes {}
// SAFETY: as above.
unsafe impl Sync for Bytes {}

// SAFETY: no method returns `_keep`, which is `Send` and only ever dropped, by whichever thread holds the last handle.
unsafe impl Sync for Memory {}

impl Buffer {
    /// Takes ownership of `len` bytes at `start`; `keep` owns them and is dropped with the buffer and its last loan.
    ///
    /// # Safety
    /// Until `keep` is dropped, the bytes are valid for reads and writes from any thread. From the first use of the
    /// buffer or a loan to the last, no other code writes the bytes, and no other code reads bytes that are written
    /// through the buffer. For example, the memory of a tensor must not be used until the operations on it have ended,
    /// but may be read while it is only sent. Another buffer with some of the bytes counts as other code.
    pub unsafe fn from_raw(start: *mut u8, len: usize, keep: Box<dyn Any + Send>) -> Buffer {
        Buffer::new(start, len, Source::Own { _keep: keep })
    }

    /// Takes ownership of a vector's bytes.
    pub fn from_vec(bytes: Vec<u8>) -> Buffer {
        let bytes = Box::into_raw(bytes.into_boxed_slice());
        let (start, len) = (bytes.cast::<u8>(), bytes.len());
        let keep = Box::new(Owned(bytes));
        // SAFETY: `keep` frees the allocation when dropped and not earlier, and is the only owner.
        unsafe { Buffer::from_raw(start, len, keep) }
    }

    fn new(start: *mut u8, len: usize, source: Source) -> Buffer {
        let bytes = Bytes { start, len };
        Buffer { bytes, origin: Origin::Memory(Memory::new(bytes, source)) }
    }

    /// The memory that tracks the loans of this buffer.
    fn memory(&self) -> &Arc<Memory> {
        match &self.origin {
            Origin::Memory(memory) => memory,
            Origin::Loan { by, at, own } => own
                .get_or_init(|| Memory::new(self.bytes, Source::Lent { by: by.clone(), at: *at })),
        }
    }

    /// A loan that excludes such a use of the bytes of `range`.
    #[inline]
    fn conflict(&self, range: &Range<usize>, wanted: Use) -> Option<Range<usize>> {
        let memory = match &self.origin {
            Origin::Memory(memory) => memory,
            Origin::Loan { own, .. } => own.get()?,
        };
        memory.loans.conflict(range, wanted)
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.bytes.len
    }

    /// Whether the buffer has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies `out.len()` bytes from offset `at` to `out`.
    pub fn read(&self, at: usize, out: &mut [u8]) {
        out.copy_from_slice(self.slice(at..at + out.len()));
    }

    /// Copies `bytes` to offset `at`.
    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        self.slice_mut(at..at + bytes.len()).copy_from_slice(bytes);
    }

    /// The bytes of `range`.
    #[inline]
    pub fn slice(&self, range: Range<usize>) -> &[u8] {
        let start = self.bytes.pointer(&range);
        if let Some(lent) = self.conflict(&range, Use::Read) {
            refuse(&range, Use::Read, &lent);
        }
        // SAFETY: `pointer` checked that the range lies within the memory, which lives as long as `self`. Nothing of it
        // is lent for writing, nor can it be while `self` is borrowed.
        unsafe { std::slice::from_raw_parts(start, range.len()) }
    }

    /// The bytes of `range`, mutable.
    #[inline]
    pub fn slice_mut(&mut self, range: Range<usize>) -> &mut [u8] {
        let start = self.bytes.pointer(&range);
        if let Some(lent) = self.conflict(&range, Use::Write) {
            refuse(&range, Use::Write, &lent);
        }
        // SAFETY: as for `slice`; nothing of it is lent, nor can it be while `self` is mutably borrowed.
        unsafe { std::slice::from_raw_parts_mut(start, range.len()) }
    }

    /// Lends the bytes of `range` for reading. Other loans for reading may overlap it.
    pub fn lend(&self, range: Range<usize>) -> Loan {
        self.bytes.check(&range);
        let memory = self.memory();
        if let Err(lent) = memory.loans.begin(&range, Use::Read) {
            refuse(&range, Use::Read, &lent);
        }
        Loan { memory: memory.clone(), range }
    }

    /// Lends the bytes of `range` for writing.
    pub fn lend_mut(&mut self, range: Range<usize>) -> Buffer {
        let bytes = Bytes { start: self.bytes.pointer(&range), len: range.len() };
        let memory = self.memory();
        if let Err(lent) = memory.loans.begin(&range, Use::Write) {
            refuse(&range, Use::Write, &lent);
        }
        Buffer {
            bytes,
            origin: Origin::Loan { by: memory.clone(), at: range.start, own: OnceLock::new() },
        }
    }

    /// As [`Buffer::lend_mut`] for all bytes.
    pub fn lend_all(&mut self) -> Buffer {
        self.lend_mut(0..self.len())
    }

    /// Whether any bytes of `range` are lent.
    pub fn is_lent(&self, range: Range<usize>) -> bool {
        self.conflict(&range, Use::Write).is_some()
    }
}

impl Loan {
    /// The bytes.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        let start = self.memory.bytes.pointer(&self.range);
        // SAFETY: `pointer` checked that the range lies within the memory, which lives as long as `self`. While the
        // loan lives no mutable reference to the bytes exists.
        unsafe { std::slice::from_raw_parts(start, self.range.len()) }
    }
}

impl Clone for Loan {
    fn clone(&self) -> Loan {
        let begun = self.memory.loans.begin(&self.range, Use::Read);
        begun.expect("bytes lent for reading are not lent for writing");
        Loan { memory: self.memory.clone(), range: self.range.clone() }
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        self.memory.loans.end(&self.range, Use::Read);
    }
}

impl Memory {
    fn new(bytes: Bytes, source: Source) -> Arc<Memory> {
        let loans = ThreadLoans::new(AtomicU64::new(0), Mutex::default());
        Arc::new(Memory { bytes, source, loans })
    }
}

impl Bytes {
    #[inline]
    fn check(&self, range: &Range<usize>) {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "bytes {range:?} of a buffer of {} bytes",
            self.len
        );
    }

    #[inline]
    fn pointer(&self, range: &Range<usize>) -> *mut u8 {
        self.check(range);
        if self.len == 0 {
            return std::ptr::NonNull::dangling().as_ptr();
        }
        // SAFETY: the range lies within the memory, so the offset stays within it or one past its end.
        unsafe { self.start.add(range.start) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Origin::Loan { by, at, own } = &self.origin
            && own.get().is_none()
        {
            by.loans.end(&(*at..*at + self.bytes.len), Use::Write);
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Source::Lent { by, at } = &self.source {
            by.loans.end(&(*at..*at + self.bytes.len), Use::Write);
        }
    }
}

/// Panics: the bytes are lent.
#[cold]
fn refuse(range: &Range<usize>, wanted: Use, lent: &Range<usize>) -> ! {
    let (how, to) = match wanted {
        Use::Read => ("read", " to be changed"),
        Use::Write => ("changed", ""),
    };
    panic!("bytes {range:?} of a buffer cannot be {how} while its bytes {lent:?} are lent{to}")
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.len())
    }
}

impl fmt::Debug for Loan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Loan({} bytes)", self.range.len())
    }
}

/// A boxed slice that is freed on drop, without a reference to it in between.
struct Owned(*mut [u8]);

// SAFETY: the only owner of plain bytes.
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

    fn eight() -> Buffer {
        Buffer::from_vec((0..8).collect())
    }

    #[test]
    fn reads_bytes_written_through_a_loan() {
        let mut buffer = eight();
        let mut lent = buffer.lend_mut(2..6);
        lent.write(1, &[30, 40]);
        lent.lend_mut(3..4).slice_mut(0..1)[0] = 50;
        drop(lent);
        let mut out = [0; 5];
        buffer.read(1, &mut out);
        assert_eq!(out, [1, 2, 30, 40, 50]);
    }

    #[test]
    fn bytes_outside_loans_can_be_used() {
        let mut buffer = eight();
        let read = buffer.lend(0..3);
        let (mut left, mut right) = (buffer.lend_mut(3..5), buffer.lend_mut(5..6));
        let twice = buffer.lend(1..3);
        std::thread::scope(|scope| {
            scope.spawn(|| left.write(0, &[7; 2]));
            scope.spawn(|| right.write(0, &[8]));
            scope
                .spawn(|| assert_eq!((read.bytes(), twice.bytes()), (&[0, 1, 2][..], &[1, 2][..])));
            buffer.write(6, &[9; 2]);
            assert_eq!((buffer.slice(0..3), buffer.slice(6..8)), (read.bytes(), &[9; 2][..]));
        });
        drop((left, right));
        assert_eq!(buffer.slice(3..8), [7, 7, 8, 9, 9]);
    }

    #[test]
    fn empty_loans_exclude_nothing() {
        let mut buffer = eight();
        let (mut nothing, all) = (buffer.lend_mut(4..4), buffer.lend(0..8));
        assert!(nothing.slice_mut(0..0).is_empty() && buffer.lend_mut(8..8).is_empty());
        drop(all);
        assert_eq!(buffer.slice_mut(0..8).len(), 8);
    }

    #[test]
    fn a_loan_ends_when_its_last_clone_and_part_is_dropped() {
        let mut buffer = eight();
        let loan = buffer.lend(2..4);
        let clone = loan.clone();
        drop(loan);
        assert!(buffer.is_lent(3..5) && !buffer.is_lent(4..8));
        assert_eq!(clone.bytes(), [2, 3]);
        drop(clone);
        let lent = buffer.lend_mut(2..6);
        let part = lent.lend(1..2);
        drop(lent);
        assert!(buffer.is_lent(2..3));
        drop(part);
        assert!(!buffer.is_lent(0..8));
    }

    #[test]
    fn loans_outlive_the_buffer() {
        let mut buffer = eight();
        let (read, mut written) = (buffer.lend(0..2), buffer.lend_mut(2..4));
        drop(buffer);
        let part = written.lend_mut(0..1);
        drop(written);
        assert_eq!((read.bytes(), part.slice(0..1)), (&[0, 1][..], &[2][..]));
    }

    #[test]
    #[should_panic(
        expected = "bytes 0..3 of a buffer cannot be changed while its bytes 2..4 are lent"
    )]
    fn lent_bytes_cannot_be_written() {
        let mut buffer = eight();
        let _loan = buffer.lend(2..4);
        buffer.write(0, &[1; 3]);
    }

    #[test]
    #[should_panic(
        expected = "bytes 3..8 of a buffer cannot be read while its bytes 2..4 are lent to be changed"
    )]
    fn mutably_lent_bytes_cannot_be_read() {
        let mut buffer = eight();
        let _loan = buffer.lend_mut(2..4);
        buffer.slice(3..8);
    }

    #[test]
    #[should_panic(
        expected = "bytes 0..8 of a buffer cannot be read while its bytes 2..4 are lent to be changed"
    )]
    fn mutably_lent_bytes_cannot_be_lent() {
        let mut buffer = eight();
        let _loan = buffer.lend_mut(2..4);
        buffer.lend(0..8);
    }

    #[test]
    #[should_panic(
        expected = "bytes 3..4 of a buffer cannot be changed while its bytes 2..4 are lent"
    )]
    fn bytes_cannot_be_lent_to_two_writers() {
        let mut buffer = eight();
        let _loan = buffer.lend_mut(2..4);
        buffer.lend_mut(3..4);
    }

    #[test]
    fn a_forgotten_loan_never_ends() {
        let buffer = eight();
        std::mem::forget(buffer.lend(0..1));
        assert!(buffer.is_lent(0..8));
    }

    #[test]
    fn empty_buffers_have_empty_slices() {
        let buffer = Buffer::from_vec(Vec::new());
        assert!(buffer.is_empty());
        assert!(buffer.slice(0..0).is_empty());
        // SAFETY: an empty range of bytes.
        let null = unsafe { Buffer::from_raw(std::ptr::null_mut(), 0, Box::new(())) };
        assert!(null.slice(0..0).is_empty() && null.lend(0..0).bytes().is_empty());
    }

    #[test]
    #[should_panic(expected = "bytes 7..9 of a buffer of 8 bytes")]
    fn bounds_are_checked() {
        eight().slice(7..9);
    }

    #[test]
    #[should_panic(expected = "bytes 7..9 of a buffer of 8 bytes")]
    fn bounds_of_loans_are_checked() {
        eight().lend(7..9);
    }

    #[test]
    fn the_owner_is_dropped_with_the_last_loan() {
        let owner = Arc::new(());
        // SAFETY: an empty range of bytes.
        let mut buffer =
            unsafe { Buffer::from_raw(std::ptr::null_mut(), 0, Box::new(owner.clone())) };
        let (loan, part) = (buffer.lend(0..0), buffer.lend_mut(0..0));
        drop(buffer);
        drop(loan);
        assert_eq!(Arc::strong_count(&owner), 2);
        drop(part);
        assert_eq!(Arc::strong_count(&owner), 1);
    }
}
