//! A handshake with one deadline. A socket's own timeout restarts with every byte, so that a peer that sends one from
//! time to time would keep it open indefinitely.

use std::io::{self, Read};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// The time left until a deadline. Errors: the deadline has passed.
pub(crate) fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// Reads all of `bytes` by `until`, or until `stopped`, which is polled every `tick`. Changes the stream's read
/// timeout.
pub(crate) fn read_exact(
    mut stream: &TcpStream,
    mut bytes: &mut [u8],
    until: Instant,
    (stopped, tick): (&dyn Fn() -> bool, Duration),
) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.set_read_timeout(Some(left(until)?.min(tick)))?;
        match stream.read(bytes) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => bytes = &mut bytes[count..],
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut if !stopped() => {}
                io::ErrorKind::Interrupted => {}
                _ => return Err(error),
            },
        }
    }
    Ok(())
}
