//! The connection to a peer: TCP, or TLS over it.

use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsRawFd, RawFd};

use rustls::pki_types::CertificateDer;

use super::limits::READ_BYTES;
use super::tls::TlsStream;

/// The TCP connection of a pair of ranks. Reads and writes do not block once the mesh runs.
pub(super) enum Connection {
    Plain(TcpStream),
    Tls(Box<TlsStream>),
}

/// Buffers for reading one connection after the other.
pub(super) struct Buffers {
    /// Bytes as they arrive.
    pub(super) wire: Vec<u8>,
    /// Bytes of TLS records after decryption.
    pub(super) plain: Vec<u8>,
}

/// What one read has brought.
pub(super) struct Arrived<'a> {
    /// Bytes received; 0: the peer has ended the stream.
    pub(super) received: usize,
    /// Bytes of frames; none if a record of TLS is incomplete.
    pub(super) bytes: &'a [u8],
}

impl Buffers {
    pub(super) fn new() -> Buffers {
        Buffers { wire: vec![0; READ_BYTES], plain: Vec::new() }
    }
}

impl Connection {
    pub(super) fn socket(&self) -> &TcpStream {
        match self {
            Connection::Plain(stream) => stream,
            Connection::Tls(tls) => tls.socket(),
        }
    }

    /// The certificates that the peer has presented, its own first; `None` without TLS.
    pub(super) fn certificates(&self) -> Option<Vec<CertificateDer<'static>>> {
        match self {
            Connection::Plain(_) => None,
            Connection::Tls(tls) => Some(tls.certificates()),
        }
    }

    /// Reads once.
    pub(super) fn read<'a>(&self, buffers: &'a mut Buffers) -> io::Result<Arrived<'a>> {
        let received = self.socket().read(&mut buffers.wire)?;
        let bytes = match self {
            Connection::Plain(_) => &buffers.wire[..received],
            Connection::Tls(tls) => tls.decrypt(&buffers.wire[..received], &mut buffers.plain)?,
        };
        Ok(Arrived { received, bytes })
    }

    /// Bytes of frames that arrived with the end of the handshake.
    pub(super) fn early<'a>(&self, buffers: &'a mut Buffers) -> io::Result<&'a [u8]> {
        match self {
            Connection::Plain(_) => Ok(&[]),
            Connection::Tls(tls) => tls.decrypt(&[], &mut buffers.plain),
        }
    }

    /// Accepts some of the bytes. TLS may keep encrypted bytes ([`Connection::flush`]).
    pub(super) fn write(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Connection::Plain(stream) => (&mut &*stream).write_vectored(parts),
            Connection::Tls(tls) => tls.write(parts),
        }
    }

    /// Writes what was kept, as far as the socket accepts it; returns whether nothing is left.
    pub(super) fn flush(&self) -> io::Result<bool> {
        match self {
            Connection::Plain(_) => Ok(true),
            Connection::Tls(tls) => tls.flush(),
        }
    }

    /// Ends the own direction, or both; errors mean that the peer has ended the connection already.
    pub(super) fn shutdown(&self, how: Shutdown) {
        let _ = self.flush();
        let _ = self.socket().shutdown(how);
    }
}

impl AsRawFd for Connection {
    fn as_raw_fd(&self) -> RawFd {
        self.socket().as_raw_fd()
    }
}
