//! Waiting for several sockets.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;

/// The events of a socket that are awaited, and those that occurred.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Interest(libc::pollfd);

impl Interest {
    pub(super) fn new(fd: &impl AsRawFd, read: bool, write: bool) -> Interest {
        let events = if read { libc::POLLIN } else { 0 } | if write { libc::POLLOUT } else { 0 };
        Interest(libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 })
    }

    /// Whether there are bytes, or the connection has ended.
    pub(super) fn readable(&self) -> bool {
        self.0.revents & (libc::POLLIN | libc::POLLHUP | libc::POLLERR) != 0
    }

    pub(super) fn writable(&self) -> bool {
        self.0.revents & libc::POLLOUT != 0
    }
}

/// Blocks until one of `interests` occurs or `timeout` has passed.
pub(super) fn poll(interests: &mut [Interest], timeout: Duration) -> io::Result<()> {
    let millis = libc::c_int::try_from(timeout.as_millis()).unwrap_or(libc::c_int::MAX);
    // SAFETY: `Interest` is a transparent `pollfd`, and the length is the slice's own.
    let n = unsafe {
        libc::poll(interests.as_mut_ptr().cast(), interests.len() as libc::nfds_t, millis)
    };
    match n {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
