//! Wakes a driver's thread.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::NetError;

/// A flag that a thread can sleep on together with a socket; ringing it again costs no system call.
pub struct Wake {
    event: OwnedFd,
    rung: AtomicBool,
}

impl Wake {
    /// A new flag, not rung.
    pub fn new() -> Result<Wake, NetError> {
        // SAFETY: takes no pointer.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(NetError::Io { what: "eventfd", source: io::Error::last_os_error() });
        }
        // SAFETY: just created, without another owner.
        let event = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Wake { event, rung: AtomicBool::new(false) })
    }

    /// Wakes the sleeper, now or at its next attempt to sleep.
    pub fn ring(&self) {
        if !self.rung.swap(true, Ordering::AcqRel) {
            let one = 1u64.to_ne_bytes();
            // SAFETY: eight readable bytes. A full counter (EAGAIN) is rung already.
            unsafe { libc::write(self.event.as_raw_fd(), one.as_ptr().cast(), one.len()) };
        }
    }

    /// Whether it was rung since the last call; everything that the ringing thread wrote before is visible then. To be
    /// called after every sleep, and before the next.
    pub fn take(&self) -> bool {
        self.rung.load(Ordering::Relaxed) && self.rung.swap(false, Ordering::AcqRel)
    }

    /// Clears the descriptor; a later ring sets it again.
    pub(super) fn quiet(&self) {
        let mut count = [0u8; 8];
        // SAFETY: eight writable bytes. The descriptor does not block.
        unsafe { libc::read(self.event.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
    }

    pub(super) fn fd(&self) -> RawFd {
        self.event.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_ring_is_taken_once() {
        let wake = Wake::new().unwrap();
        assert!(!wake.take());
        wake.ring();
        wake.ring();
        assert!(wake.take());
        assert!(!wake.take());
    }
}
