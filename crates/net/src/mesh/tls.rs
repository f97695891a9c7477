//! TLS over the TCP connection of a pair of ranks, after the handshake ([`super::secure`]).
//!
//! Senders encrypt on their own threads, and the mesh's thread decrypts; both hold the lock of the session for a few
//! records only. What was encrypted must be sent, in that order, so bytes that the socket does not accept stay in the
//! session, at most [`ENCRYPTED_MAX`] of them.

use std::io::{self, IoSlice, Read, Write};
use std::net::TcpStream;

use netsum_identity::explain;
use parking_lot::Mutex;
use rustls::Connection;
use rustls::pki_types::CertificateDer;

use super::limits::ENCRYPTED_MAX;

pub(super) struct TlsStream {
    stream: TcpStream,
    session: Mutex<Connection>,
}

impl TlsStream {
    /// `session`: its handshake has ended.
    pub(super) fn new(stream: TcpStream, mut session: Connection) -> TlsStream {
        session.set_buffer_limit(Some(ENCRYPTED_MAX));
        TlsStream { stream, session: Mutex::new(session) }
    }

    pub(super) fn socket(&self) -> &TcpStream {
        &self.stream
    }

    /// The certificates that the peer has presented, its own first.
    pub(super) fn certificates(&self) -> Vec<CertificateDer<'static>> {
        let session = self.session.lock();
        let chain = session.peer_certificates().unwrap_or_default();
        chain.iter().map(|certificate| certificate.clone().into_owned()).collect()
    }

    /// Decrypts received bytes; returns the content of all records that are complete.
    pub(super) fn decrypt<'a>(
        &self,
        mut wire: &[u8],
        plain: &'a mut Vec<u8>,
    ) -> io::Result<&'a [u8]> {
        let mut len = take(&mut self.session.lock(), plain, 0)?;
        while !wire.is_empty() {
            let mut session = self.session.lock();
            if session.read_tls(&mut wire)? == 0 {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            len = take(&mut session, plain, len)?;
        }
        Ok(&plain[..len])
    }

    /// Encrypts some of the bytes, and writes what the socket accepts. Error *would block*: it accepts nothing.
    pub(super) fn write(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut session = self.session.lock();
        if !self.push(&mut session)? {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let accepted = session.writer().write_vectored(parts)?;
        self.push(&mut session)?;
        Ok(accepted)
    }

    /// Writes encrypted bytes; returns whether none are left.
    pub(super) fn flush(&self) -> io::Result<bool> {
        self.push(&mut self.session.lock())
    }

    fn push(&self, session: &mut Connection) -> io::Result<bool> {
        while session.wants_write() {
            match session.write_tls(&mut &self.stream) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(true)
    }
}

/// Decrypts complete records, and appends their bytes to the first `len` of `plain`; returns the new length. The rest
/// of `plain` is room of earlier calls.
fn take(session: &mut Connection, plain: &mut Vec<u8>, len: usize) -> io::Result<usize> {
    let ready = session.process_new_packets().map_err(|error| io::Error::other(explain(&error)))?;
    let until = len + ready.plaintext_bytes_to_read();
    if plain.len() < until {
        plain.resize(until, 0);
    }
    session.reader().read_exact(&mut plain[len..until])?;
    Ok(until)
}
