//! Waiting for another process to change a word of shared memory.

#![allow(unsafe_code)]

use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// Sleeps while `word` is `seen`, at most `patience`; may return early for no reason.
pub(crate) fn wait(word: &AtomicU32, seen: u32, patience: Duration) {
    let patience = libc::timespec {
        tv_sec: patience.as_secs() as libc::time_t,
        tv_nsec: patience.subsec_nanos().into(),
    };
    // SAFETY: the word is a live, aligned u32 and the timespec outlives the call; FUTEX_WAIT reads both only.
    // Not PRIVATE: the word lies in memory shared between processes. Any outcome is a reason to look again.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, seen, &raw const patience);
    }
}

/// Wakes who waits for `word`.
pub(crate) fn wake(word: &AtomicU32) {
    // SAFETY: FUTEX_WAKE uses the address of a live word as a key and touches nothing.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX);
    }
}
