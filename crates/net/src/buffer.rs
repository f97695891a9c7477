//! Host memory that a caller hands to a driver.
//!
//! A [`Buffer`] is the one handle to its bytes, so that the compiler sees who reads and who writes. Who needs some of the
//! bytes for longer than a call, such as a thread that sends them, gets them on loan: [`Buffer::lend`] to be read,
//! [`Buffer::lend_mut`] to be changed. The buffer remembers its loans, and panics if it is asked for bytes that one of them
//! excludes. A loan ends when it is dropped, in whatever thread; the memory lives until the last one has ended.
//!
//! So no order of calls of safe code comes to two references to a byte of which one is to be written. Two writers:
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
//! A loan while somebody has a reference:
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
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use crate::loans::{Loans, Use};

/// Bytes that belong to an operation until it is done, and the one handle to them.
///
/// Methods panic for bytes beyond the end, and for bytes that are lent: what is lent to be changed can be neither read nor
/// written through the buffer, what is lent to be read cannot be written.
pub struct Buffer {
    memory: Arc<Memory>,
}

/// Bytes of a [`Buffer`] that are lent to be read, until this and all its clones are dropped.
pub struct Loan {
    memory: Arc<Memory>,
    range: Range<usize>,
}

/// The bytes of a buffer and its loans; lives until both the buffer and its loans are dropped.
struct Memory {
    start: *mut u8,
    len: usize,
    source: Source,
    loans: Loans<AtomicU32>,
}

/// Whose bytes a memory has.
enum Source {
    /// The owner of the bytes, dropped with the memory.
    Own { _keep: Box<dyn Any + Send> },
    /// Those of another memory, from that byte on: a loan to be changed.
    Lent { by: Arc<Memory>, at: usize },
}

// SAFETY: the bytes may be used from any thread (promised to `from_raw`), and `_keep` is never touched but to be dropped, by
// whichever thread holds the last handle; it is `Send`.
unsafe impl Send for Memory {}
// SAFETY: as above; no method gives out `_keep`. References to the bytes are given out by `Buffer` and `Loan` alone: to be
// changed by `&mut Buffer` where nothing is lent, to be read where nothing is lent to be changed, which stays so while the
// reference lives, as lending to be changed takes `&mut Buffer`. Who sees that a loan has ended sees what its user did.
unsafe impl Sync for Memory {}

impl Buffer {
    /// Takes over `len` bytes at `start`; `keep` owns them and is dropped with the buffer and its last loan.
    ///
    /// # Safety
    /// Until `keep` is dropped, the bytes are valid for reads and writes from any thread. From the first use of the buffer
    /// or a loan to the last, nobody else writes the bytes, and nobody else reads those that are written through them: so
    /// the memory of a tensor is left alone until the operations on it have ended, but may be read while it is only sent.
    /// Another buffer with some of the bytes is somebody else, too.
    pub unsafe fn from_raw(start: *mut u8, len: usize, keep: Box<dyn Any + Send>) -> Buffer {
        Buffer::new(start, len, Source::Own { _keep: keep })
    }

    /// Takes over a vector's bytes.
    pub fn from_vec(bytes: Vec<u8>) -> Buffer {
        let bytes = Box::into_raw(bytes.into_boxed_slice());
        let (start, len) = (bytes.cast::<u8>(), bytes.len());
        let keep = Box::new(Owned(bytes));
        // SAFETY: `keep` frees the allocation when dropped and not earlier; nobody else has it.
        unsafe { Buffer::from_raw(start, len, keep) }
    }

    fn new(start: *mut u8, len: usize, source: Source) -> Buffer {
        let loans = Loans::new(AtomicU32::new(0));
        Buffer { memory: Arc::new(Memory { start, len, source, loans }) }
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.memory.len
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
    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        self.slice_mut(at..at + bytes.len()).copy_from_slice(bytes);
    }

    /// The bytes of `range`.
    #[inline]
    pub fn slice(&self, range: Range<usize>) -> &[u8] {
        let start = self.memory.pointer(&range);
        if let Some(lent) = self.memory.loans.conflict(&range, Use::Read) {
            refuse(&range, Use::Read, &lent);
        }
        // SAFETY: `pointer` checked that the range lies within the memory, which lives as long as `self`. Nothing of it is
        // lent to be changed, nor can it be while `self` is borrowed.
        unsafe { std::slice::from_raw_parts(start, range.len()) }
    }

    /// The bytes of `range`, to be changed.
    #[inline]
    pub fn slice_mut(&mut self, range: Range<usize>) -> &mut [u8] {
        let start = self.memory.pointer(&range);
        if let Some(lent) = self.memory.loans.conflict(&range, Use::Write) {
            refuse(&range, Use::Write, &lent);
        }
        // SAFETY: as for `slice`; nothing of it is lent, nor can it be while `self` is borrowed to be changed.
        unsafe { std::slice::from_raw_parts_mut(start, range.len()) }
    }

    /// Lends the bytes of `range` to be read. Other loans to be read may overlap it.
    pub fn lend(&self, range: Range<usize>) -> Loan {
        self.memory.check(&range);
        if let Err(lent) = self.memory.loans.begin(&range, Use::Read) {
            refuse(&range, Use::Read, &lent);
        }
        Loan { memory: self.memory.clone(), range }
    }

    /// Lends the bytes of `range` to be changed.
    pub fn lend_mut(&mut self, range: Range<usize>) -> Buffer {
        let start = self.memory.pointer(&range);
        if let Err(lent) = self.memory.loans.begin(&range, Use::Write) {
            refuse(&range, Use::Write, &lent);
        }
        let source = Source::Lent { by: self.memory.clone(), at: range.start };
        Buffer::new(start, range.len(), source)
    }

    /// As [`Buffer::lend_mut`] for all bytes.
    pub fn lend_all(&mut self) -> Buffer {
        self.lend_mut(0..self.len())
    }

    /// Whether bytes of `range` are on loan.
    pub fn is_lent(&self, range: Range<usize>) -> bool {
        self.memory.loans.conflict(&range, Use::Write).is_some()
    }
}

impl Loan {
    /// The bytes.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        let start = self.memory.pointer(&self.range);
        // SAFETY: `pointer` checked that the range lies within the memory, which lives as long as `self`. While the loan
        // lives nobody gets a reference to change the bytes.
        unsafe { std::slice::from_raw_parts(start, self.range.len()) }
    }
}

impl Clone for Loan {
    fn clone(&self) -> Loan {
        let begun = self.memory.loans.begin(&self.range, Use::Read);
        begun.expect("what is lent to be read is not lent to be changed");
        Loan { memory: self.memory.clone(), range: self.range.clone() }
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        self.memory.loans.end(&self.range, Use::Read);
    }
}

impl Memory {
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

impl Drop for Memory {
    fn drop(&mut self) {
        if let Source::Lent { by, at } = &self.source {
            by.loans.end(&(*at..*at + self.len), Use::Write);
        }
    }
}

/// The bytes are not to be had.
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

    fn eight() -> Buffer {
        Buffer::from_vec((0..8).collect())
    }

    #[test]
    fn reads_what_was_written_on_loan() {
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
    fn other_bytes_can_be_used_meanwhile() {
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
    fn loans_of_no_bytes_are_in_nobodys_way() {
        let mut buffer = eight();
        let (mut nothing, all) = (buffer.lend_mut(4..4), buffer.lend(0..8));
        assert!(nothing.slice_mut(0..0).is_empty() && buffer.lend_mut(8..8).is_empty());
        drop(all);
        assert_eq!(buffer.slice_mut(0..8).len(), 8);
    }

    #[test]
    fn a_loan_is_in_the_way_until_its_last_clone_and_part_is_dropped() {
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
    fn what_is_lent_cannot_be_written() {
        let mut buffer = eight();
        let _loan = buffer.lend(2..4);
        buffer.write(0, &[1; 3]);
    }

    #[test]
    #[should_panic(
        expected = "bytes 3..8 of a buffer cannot be read while its bytes 2..4 are lent to be changed"
    )]
    fn what_is_lent_to_be_changed_cannot_be_read() {
        let mut buffer = eight();
        let _loan = buffer.lend_mut(2..4);
        buffer.slice(3..8);
    }

    #[test]
    #[should_panic(
        expected = "bytes 0..8 of a buffer cannot be read while its bytes 2..4 are lent to be changed"
    )]
    fn what_is_lent_to_be_changed_cannot_be_lent() {
        let mut buffer = eight();
        let _loan = buffer.lend_mut(2..4);
        buffer.lend(0..8);
    }

    #[test]
    #[should_panic(
        expected = "bytes 3..4 of a buffer cannot be changed while its bytes 2..4 are lent"
    )]
    fn nothing_is_lent_to_two_writers() {
        let mut buffer = eight();
        let _loan = buffer.lend_mut(2..4);
        buffer.lend_mut(3..4);
    }

    #[test]
    fn a_loan_that_is_forgotten_never_ends() {
        let buffer = eight();
        std::mem::forget(buffer.lend(0..1));
        assert!(buffer.is_lent(0..8));
    }

    #[test]
    fn empty_buffers_have_empty_slices() {
        let buffer = Buffer::from_vec(Vec::new());
        assert!(buffer.is_empty());
        assert!(buffer.slice(0..0).is_empty());
        // SAFETY: no byte is claimed.
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
    fn owner_goes_with_the_last_loan() {
        let owner = Arc::new(());
        // SAFETY: no byte is claimed.
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
