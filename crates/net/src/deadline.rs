//! A handshake that ends by one moment. A socket's own timeout counts anew with every byte, so a peer that sends one
//! now and then would keep it open for as long as it likes.

use std::io::{self, Read};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// What is left until then. Errors: nothing.
pub(crate) fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// Reads all of `bytes` by `until`, or until `stopped`, which is looked at every `tick`. Leaves the stream with some
/// read timeout.
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
