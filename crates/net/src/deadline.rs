//! A handshake with one deadline. A socket's own timeout restarts with every byte, so that a peer that sends one from
//! time to time would keep it open indefinitely.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// The time left until a deadline. Errors: the deadline has passed.
pub(crate) fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// Whether to stop waiting, and how often to ask.
pub(crate) type Stopped<'a> = (&'a dyn Fn() -> bool, Duration);

/// A stream whose reads and writes end by `until`, or when `stopped` says so. Changes the stream's timeouts.
pub(crate) struct Timed<'a> {
    pub(crate) stream: &'a TcpStream,
    pub(crate) until: Instant,
    pub(crate) stopped: Stopped<'a>,
}

impl Read for Timed<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let (stopped, tick) = self.stopped;
        loop {
            self.stream.set_read_timeout(Some(left(self.until)?.min(tick)))?;
            match (&mut &*self.stream).read(bytes) {
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut if !stopped() => {}
                    io::ErrorKind::Interrupted => {}
                    _ => return Err(error),
                },
                read => return read,
            }
        }
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(left(self.until)?))?;
        (&mut &*self.stream).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Reads all of `bytes` by `until`, or until `stopped`. Changes the stream's read timeout.
pub(crate) fn read_exact(
    stream: &TcpStream,
    bytes: &mut [u8],
    until: Instant,
    stopped: Stopped<'_>,
) -> io::Result<()> {
    Timed { stream, until, stopped }.read_exact(bytes)
}
