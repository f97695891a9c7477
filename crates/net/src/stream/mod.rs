//! Connections between two ranks as streams of bytes: TCP, or memory that two processes of one host share.
//!
//! A [`Connection`] is all that a user needs to know of the medium: one thread reads, one writes.

mod half;
pub(crate) mod pass;
mod shared;

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};

pub use shared::SharedMemory;

/// Bytes both ways between two ranks, in order. Reads and writes block; each may be used by one thread at a time.
pub trait Connection: Send + Sync {
    /// Reads at least one byte; 0 is the end of the stream.
    fn read(&self, bytes: &mut [u8]) -> io::Result<usize>;

    /// Writes at least one byte. Errors: the peer is gone, or took nothing for as long as the connection allows.
    fn write(&self, bytes: &[u8]) -> io::Result<usize>;

    /// The peer reads what was written, then the end.
    fn end(&self);

    /// Ends both ways; calls that block return.
    fn close(&self);

    /// What it is made of, for people.
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
        // An end that is gone already needs no more.
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
