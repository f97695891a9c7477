//! Further connections between the ranks of a mesh with credentials: TLS, with the same proof of a rank's seat.
//!
//! The user of a connection says in a hello what it is for, and both ends sign that hello for this connection, under a
//! label of its own: no proof of a mesh's connection is one of a stream, or the reverse.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Instant;

use netsum_identity::{SEAT_PROOF_LEN, peer_identity, server_name};
use rustls::{ClientConnection, ConnectionCommon, ServerConnection, Stream};

use super::limits::HANDSHAKE;
use super::roster::{Roster, Seat};
use super::seats::{self, Channel, EXPORT_LEN, Side};
use super::secure::{Security, reason};
use crate::NetError;
use crate::deadline::Timed;
use crate::stream::Tls;

/// Makes connections to ranks of a mesh whose ranks have credentials.
pub struct Streams {
    security: Arc<Security>,
    /// Seats by rank.
    seats: Vec<Seat>,
}

/// A connection that is being accepted. Nothing blocks before [`Answering::admit`].
pub struct Answering {
    security: Arc<Security>,
    stream: TcpStream,
    session: ServerConnection,
    /// The hello and the proof of the calling rank, of which `received` bytes have arrived.
    offer: Vec<u8>,
    received: usize,
}

impl Streams {
    pub(super) fn new(security: Arc<Security>, roster: &Roster) -> Streams {
        Streams { security, seats: roster.seats.clone() }
    }

    /// Handshake of the connecting rank: proves its seat for `hello`, and checks that `rank` answers, whose answer must
    /// be `expected`. Errors say why there is no connection.
    pub fn call(
        &self,
        stream: TcpStream,
        rank: usize,
        hello: &[u8],
        expected: &[u8],
        until: Instant,
    ) -> io::Result<Tls> {
        let session =
            ClientConnection::new(self.security.credentials().rank_client(), server_name());
        let mut session = session.map_err(io::Error::other)?;
        let called = self.call_over(&mut session, &stream, rank, hello, expected, until);
        called.map_err(|error| reason(error, &session))?;
        stream.set_write_timeout(None)?;
        Ok(Tls::new(stream, session.into()))
    }

    fn call_over(
        &self,
        session: &mut ClientConnection,
        stream: &TcpStream,
        rank: usize,
        hello: &[u8],
        expected: &[u8],
        until: Instant,
    ) -> io::Result<()> {
        let mut socket = Timed { stream, until, stopped: (&|| false, HANDSHAKE) };
        while session.is_handshaking() {
            session.complete_io(&mut socket)?;
        }
        let occupant = seats::expected(self.seat(rank)?, &ForStream(session))?;
        let statement = seats::statement(&ForStream(session), Side::Caller, hello)?;
        let offer = [hello, &self.security.key().prove(&statement)].concat();
        let mut answer = vec![0; expected.len() + SEAT_PROOF_LEN];
        let statement = seats::statement(&ForStream(session), Side::Answerer, hello)?;
        let mut channel = Stream::new(session, &mut socket);
        channel.write_all(&offer)?;
        channel.read_exact(&mut answer)?;
        let (answer, proof) = answer.split_at(expected.len());
        seats::proved(occupant, &statement, proof)?;
        match answer == expected {
            true => Ok(()),
            false => Err(io::Error::other("another process answers at that address")),
        }
    }

    /// Begins to accept a connection whose hello has `hello_len` bytes. `stream` must not block.
    pub fn answering(&self, stream: TcpStream, hello_len: usize) -> Result<Answering, NetError> {
        let session = ServerConnection::new(self.security.credentials().rank_server());
        let source = |error| NetError::Io { what: "TLS", source: io::Error::other(error) };
        let session = session.map_err(source)?;
        let offer = vec![0; hello_len + SEAT_PROOF_LEN];
        Ok(Answering { security: self.security.clone(), stream, session, offer, received: 0 })
    }

    fn seat(&self, rank: usize) -> io::Result<&Seat> {
        self.seats.get(rank).ok_or_else(|| io::Error::other(format!("there is no rank {rank}")))
    }
}

impl std::fmt::Debug for Streams {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Streams").finish_non_exhaustive()
    }
}

impl Answering {
    /// Processes what has arrived; the hello once it is complete. Errors say why the connection is refused.
    pub fn advance(&mut self) -> io::Result<Option<&[u8]>> {
        let done = self.received == self.offer.len()
            || self.receive().map_err(|error| reason(error, &self.session))?;
        Ok(done.then(|| &self.offer[..self.offer.len() - SEAT_PROOF_LEN]))
    }

    #[cfg(test)]
    pub(super) fn replace_hello(&mut self, hello: &[u8]) {
        self.offer[..hello.len()].copy_from_slice(hello);
    }

    fn receive(&mut self) -> io::Result<bool> {
        while self.received < self.offer.len() {
            match Stream::new(&mut self.session, &mut self.stream)
                .read(&mut self.offer[self.received..])
            {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.received += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Ends the handshake with the rank that the hello names, if it proves that it is that rank: sends `answer`, and
    /// makes the stream block.
    pub fn admit(
        mut self,
        streams: &Streams,
        rank: usize,
        answer: &[u8],
        until: Instant,
    ) -> io::Result<(TcpStream, Tls)> {
        let (hello, proof) = self.offer.split_at(self.offer.len() - SEAT_PROOF_LEN);
        let channel = ForStream(&self.session);
        let occupant = seats::expected(streams.seat(rank)?, &channel)?;
        seats::proved(occupant, &seats::statement(&channel, Side::Caller, hello)?, proof)?;
        let ours = seats::statement(&channel, Side::Answerer, hello)?;
        let answer = [answer, &self.security.key().prove(&ours)].concat();
        self.stream.set_nonblocking(false)?;
        let mut socket = Timed { stream: &self.stream, until, stopped: (&|| false, HANDSHAKE) };
        Stream::new(&mut self.session, &mut socket).write_all(&answer)?;
        self.stream.set_write_timeout(None)?;
        Ok((self.stream.try_clone()?, Tls::new(self.stream, self.session.into())))
    }
}

/// The connection of a stream, whose values are not those of a mesh's connection.
struct ForStream<'a, Data>(&'a ConnectionCommon<Data>);

impl<Data> Channel for ForStream<'_, Data> {
    fn export(&self, context: &[u8]) -> io::Result<[u8; EXPORT_LEN]> {
        let exported = self.0.export_keying_material([0; EXPORT_LEN], LABEL, Some(context));
        exported.map_err(io::Error::other)
    }

    fn peer(&self) -> Option<netsum_identity::Identity> {
        peer_identity(self.0)
    }
}

const LABEL: &[u8] = b"EXPORTER-netsum-stream-seat";
