//! Connections between two ranks as byte streams: over TCP or TLS, or through memory that two processes of one host
//! share.
//!
//! A [`Connection`] hides the medium: one thread reads, one writes.

mod half;
pub(crate) mod pass;
mod shared;
mod tls;

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};

pub use shared::SharedMemory;
pub use tls::Tls;

/// Bytes in both directions between two ranks, in order. Reads and writes block; each may be used by one thread at a
/// time.
pub trait Connection: Send + Sync {
    /// Reads at least one byte; 0 is the end of the stream.
    fn read(&self, bytes: &mut [u8]) -> io::Result<usize>;

    /// Writes at least one byte. Errors: the peer is gone, or accepted nothing for as long as the connection allows.
    fn write(&self, bytes: &[u8]) -> io::Result<usize>;

    /// Ends the stream: the peer reads what was written, then the end.
    fn end(&self);

    /// Ends both directions; blocking calls return.
    fn close(&self);

    /// Name of the medium, for users.
    fn medium(&self) -> &'static str;
}

impl Connection for TcpStream {
    fn read(&self, bytes: &mut [u8]) -> io::Result<usize> {
        Read::read(&mut &*self, bytes)
    }

    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        Write::write(&mut &*self, bytes)
    }

    fn end(&self) {
        // An end that is already gone needs nothing more.
        let _ = self.shutdown(Shutdown::Write);
    }

    fn close(&self) {
        let _ = self.shutdown(Shutdown::Both);
    }

    fn medium(&self) -> &'static str {
        "TCP"
    }
}

/// Reads all of `bytes`. Errors: `UnexpectedEof` at the end of the stream.
pub fn read_exact(connection: &dyn Connection, mut bytes: &mut [u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match connection.read(bytes) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => bytes = &mut bytes[count..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Writes all of `bytes`.
pub fn write_all(connection: &dyn Connection, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match connection.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
