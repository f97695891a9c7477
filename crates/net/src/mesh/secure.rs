//! Ranks with credentials: TLS handshakes, and the proof of a rank's seat inside the connection.
//!
//! Both sides present certificates, which say who runs a rank. Workers of one tenant may have the same certificate, so
//! it does not say which rank connects. Hello and answer prove that ([`super::seats`]).

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Instant;

use netsum_identity::{Credentials, Identity, SeatKey, explain, peer_identity, server_name};
use rustls::{ClientConnection, CommonState, ConnectionCommon, ServerConnection, Stream};

use super::error::MeshError;
use super::limits::HANDSHAKE;
use super::revocations::Revocations;
use super::roster::{Occupant, Roster, Seat};
use super::seats::{self, ANSWER_LEN, Channel, EXPORT_LEN, OFFER_LEN};
use super::tls::TlsStream;
use crate::NetError;
use crate::deadline::{Stopped, Timed};

/// The credentials of a rank.
pub(super) struct Security {
    credentials: Arc<Credentials>,
    key: SeatKey,
    /// Generation of the credentials before any peer was verified.
    generation: u64,
}

impl Security {
    pub(super) fn new(credentials: Arc<Credentials>) -> Result<Security, NetError> {
        let generation = credentials.generation();
        Ok(Security { credentials, key: SeatKey::draw()?, generation })
    }

    pub(super) fn credentials(&self) -> &Credentials {
        &self.credentials
    }

    pub(super) fn key(&self) -> &SeatKey {
        &self.key
    }

    /// News of revocations for the connections that this makes.
    pub(super) fn revocations(&self) -> Revocations {
        Revocations::new(self.credentials.clone(), self.generation)
    }

    /// What the other ranks must know.
    pub(super) fn occupant(&self) -> Occupant {
        Occupant { identity: self.credentials.identity().clone(), key: self.key.public() }
    }

    /// Handshake of the connecting rank. Errors say why there is no connection.
    pub(super) fn call(
        &self,
        stream: TcpStream,
        roster: &Roster,
        rank: u32,
        until: Instant,
    ) -> io::Result<TlsStream> {
        let session = ClientConnection::new(self.credentials.rank_client(), server_name());
        let mut session = session.map_err(io::Error::other)?;
        let called = self.call_over(&mut session, &stream, roster, rank, until);
        called.map_err(|error| reason(error, &session))?;
        Ok(TlsStream::new(stream, session.into()))
    }

    fn call_over(
        &self,
        session: &mut ClientConnection,
        stream: &TcpStream,
        roster: &Roster,
        rank: u32,
        until: Instant,
    ) -> io::Result<()> {
        let mut socket = Timed { stream, until, stopped: (&|| false, HANDSHAKE) };
        while session.is_handshaking() {
            session.complete_io(&mut socket)?;
        }
        seats::check_called(&**session, roster, rank)?;
        let offer = seats::offer(&self.key, &**session, roster, rank)?;
        let mut answer = [0; ANSWER_LEN];
        let mut channel = Stream::new(session, &mut socket);
        channel.write_all(&offer)?;
        channel.read_exact(&mut answer)?;
        seats::confirm(&**session, roster, rank, &answer)
    }

    /// Handshake of the accepting rank; returns the connecting one. Errors say why the connection is refused.
    pub(super) fn answer(
        &self,
        stream: &TcpStream,
        roster: &Roster,
        until: Instant,
        stopped: Stopped<'_>,
    ) -> io::Result<(u32, ServerConnection)> {
        let session = ServerConnection::new(self.credentials.rank_server());
        let mut session = session.map_err(io::Error::other)?;
        let mut socket = Timed { stream, until, stopped };
        let answered = self.answer_over(&mut session, &mut socket, roster);
        let rank = answered.map_err(|error| reason(error, &session))?;
        Ok((rank, session))
    }

    fn answer_over(
        &self,
        session: &mut ServerConnection,
        socket: &mut Timed<'_>,
        roster: &Roster,
    ) -> io::Result<u32> {
        let mut offer = [0; OFFER_LEN];
        Stream::new(session, socket).read_exact(&mut offer)?;
        let (rank, answer) = seats::admit(&self.key, &**session, roster, &offer)?;
        Stream::new(session, socket).write_all(&answer)?;
        Ok(rank)
    }
}

/// Checks that all ranks have credentials, or none. Errors name the first rank that differs from this one.
pub(super) fn check_alike(own: Option<&Security>, roster: &Roster) -> Result<(), MeshError> {
    let differs = |seat: &Seat| seat.occupant.is_some() != own.is_some();
    let Some(rank) = roster.seats.iter().position(differs) else { return Ok(()) };
    let reason = match own {
        Some(_) => "it has no credentials, and this rank has",
        None => "it has credentials, and this rank has none",
    };
    Err(MeshError::Unreachable {
        rank: rank as u32,
        address: roster.seats[rank].address,
        reason: format!("{reason}; set NETSUM_CREDENTIALS for all ranks, or for none"),
    })
}

impl<Data> Channel for ConnectionCommon<Data> {
    fn export(&self, context: &[u8]) -> io::Result<[u8; EXPORT_LEN]> {
        let exported = self.export_keying_material([0; EXPORT_LEN], LABEL, Some(context));
        exported.map_err(io::Error::other)
    }

    fn peer(&self) -> Option<Identity> {
        peer_identity(self)
    }
}

/// Why a handshake has failed, as a sentence.
pub(super) fn reason(error: io::Error, session: &CommonState) -> io::Error {
    match error.kind() {
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => {
            io::Error::new(io::ErrorKind::TimedOut, "it has not answered in time")
        }
        io::ErrorKind::UnexpectedEof if !session.is_handshaking() => {
            io::Error::other("it refused the hello; its error has the reason")
        }
        // A socket that is closed with unread bytes is reset.
        io::ErrorKind::ConnectionReset if session.is_handshaking() => {
            io::Error::other(explain(&io::Error::from(io::ErrorKind::UnexpectedEof)))
        }
        _ => io::Error::other(explain(&error)),
    }
}

const LABEL: &[u8] = b"EXPORTER-netsum-mesh-seat";
