//! A connection over TLS, after its handshake.
//!
//! Both threads of the connection need the session. A thread that waits for the socket must not hold it: if both ends
//! waited for room, neither would read. So bytes are encrypted into memory and written afterwards, and read into memory
//! and decrypted afterwards.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};

use netsum_identity::explain;
use parking_lot::Mutex;
use rustls::Connection as Session;

use super::Connection;

/// TLS over TCP.
pub struct Tls {
    stream: TcpStream,
    session: Mutex<Session>,
    reading: Mutex<Reading>,
    /// Encrypted bytes on their way to the socket; the lock keeps records in order.
    writing: Mutex<Vec<u8>>,
}

struct Reading {
    wire: Vec<u8>,
    /// Decrypted bytes, of which the first `taken` were read.
    plain: Vec<u8>,
    taken: usize,
    ended: bool,
}

impl Tls {
    /// `session`: its handshake has ended. `stream` blocks.
    pub(crate) fn new(stream: TcpStream, session: Session) -> Tls {
        let reading =
            Reading { wire: vec![0; READ_BYTES], plain: Vec::new(), taken: 0, ended: false };
        let (session, reading) = (Mutex::new(session), Mutex::new(reading));
        Tls { stream, session, reading, writing: Mutex::new(Vec::new()) }
    }

    fn write_records(
        &self,
        encrypt: impl FnOnce(&mut Session) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let mut records = self.writing.lock();
        records.clear();
        let accepted = {
            let mut session = self.session.lock();
            let accepted = encrypt(&mut session)?;
            while session.wants_write() {
                session.write_tls(&mut *records)?;
            }
            accepted
        };
        (&mut &self.stream).write_all(&records)?;
        Ok(accepted)
    }
}

impl Connection for Tls {
    fn read(&self, bytes: &mut [u8]) -> io::Result<usize> {
        let mut reading = self.reading.lock();
        let Reading { wire, plain, taken, ended } = &mut *reading;
        // What came with the end of the handshake is in the session already.
        let mut received = 0;
        loop {
            if *taken == plain.len() {
                plain.clear();
                *taken = 0;
                *ended |= decrypt(&mut self.session.lock(), &wire[..received], plain)?;
            }
            let count = bytes.len().min(plain.len() - *taken);
            if count > 0 || *ended || bytes.is_empty() {
                bytes[..count].copy_from_slice(&plain[*taken..*taken + count]);
                *taken += count;
                return Ok(count);
            }
            received = (&mut &self.stream).read(wire)?;
            if received == 0 {
                // The peer's system has ended the stream, not the peer: something is missing.
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        let part = &bytes[..bytes.len().min(WRITE_BYTES)];
        self.write_records(|session| session.writer().write(part))
    }

    fn end(&self) {
        // An end that is already gone needs nothing more.
        let _ = self.write_records(|session| {
            session.send_close_notify();
            Ok(0)
        });
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    fn close(&self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    fn medium(&self) -> &'static str {
        "TLS"
    }
}

/// Appends the content of all records that are complete with the bytes of `wire`; returns whether the peer has ended
/// the stream.
fn decrypt(session: &mut Session, mut wire: &[u8], plain: &mut Vec<u8>) -> io::Result<bool> {
    loop {
        let state =
            session.process_new_packets().map_err(|error| io::Error::other(explain(&error)))?;
        let (from, more) = (plain.len(), state.plaintext_bytes_to_read());
        plain.resize(from + more, 0);
        session.reader().read_exact(&mut plain[from..])?;
        if wire.is_empty() || state.peer_has_closed() {
            return Ok(state.peer_has_closed());
        }
        if session.read_tls(&mut wire)? == 0 {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
    }
}

/// Bytes read at once; four records of TLS.
const READ_BYTES: usize = 64 << 10;
/// Bytes encrypted at once, while the reading thread waits for the session.
const WRITE_BYTES: usize = 64 << 10;
