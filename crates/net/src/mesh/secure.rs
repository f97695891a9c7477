//! Ranks with credentials: TLS handshakes, and the proof of a rank's seat inside the connection.
//!
//! Both sides present certificates, which say who runs a rank. Workers of one tenant may have the same certificate, so
//! it does not say which rank connects. That is proved by the key that each rank has drawn ([`SeatKey`]) and published
//! with its address: hello and answer carry a signature of a value that only this connection has (RFC 9266).

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Instant;

use netsum_identity::{
    Credentials, SEAT_PROOF_LEN, SeatKey, explain, is_proof, peer_identity, server_name,
};
use rustls::{ClientConnection, CommonState, ConnectionCommon, ServerConnection, Stream};

use super::error::MeshError;
use super::hello::{HELLO_LEN, NAMES, hello, sender};
use super::limits::HANDSHAKE;
use super::revocations::Revocations;
use super::roster::{Occupant, Roster, SECRET_LEN, Seat};
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
        let seat = &roster.seats[rank as usize];
        let occupant = expected(seat, session)?;
        let hello = hello(roster, roster.rank, rank);
        let ours = self.key.prove(&statement(session, Side::Caller, &hello)?);
        let theirs = statement(session, Side::Answerer, &hello)?;
        let mut answer = [0; SECRET_LEN + SEAT_PROOF_LEN];
        let mut channel = Stream::new(session, &mut socket);
        channel.write_all(&[&hello[..], &ours].concat())?;
        channel.read_exact(&mut answer)?;
        let (secret, proof) = answer.split_at(SECRET_LEN);
        if secret != roster.seats[roster.rank as usize].secret {
            return Err(io::Error::other("another process answers at that address"));
        }
        proved(occupant, &theirs, proof)
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
        let (mut hello, mut proof) = ([0; HELLO_LEN], [0; SEAT_PROOF_LEN]);
        let mut channel = Stream::new(session, socket);
        channel.read_exact(&mut hello)?;
        channel.read_exact(&mut proof)?;
        let stranger = || io::Error::other("it is not a rank of this group");
        let rank = sender(roster, &hello).ok_or_else(stranger)?;
        let seat = &roster.seats[rank as usize];
        proved(expected(seat, session)?, &statement(session, Side::Caller, &hello)?, &proof)?;
        let ours = self.key.prove(&statement(session, Side::Answerer, &hello)?);
        Stream::new(session, socket).write_all(&[&seat.secret[..], &ours].concat())?;
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

/// The occupant of a seat. Error: the certificate of the connection is somebody else's.
fn expected<'a>(seat: &'a Seat, session: &CommonState) -> io::Result<&'a Occupant> {
    let none = || io::Error::other("it has no credentials");
    let (occupant, found) = (seat.occupant.as_ref(), peer_identity(session));
    let (occupant, found) = occupant.zip(found).ok_or_else(none)?;
    if occupant.identity == found {
        return Ok(occupant);
    }
    let wanted = &occupant.identity;
    Err(io::Error::other(format!("it is {found}; that rank has announced itself as {wanted}")))
}

fn proved(occupant: &Occupant, statement: &[u8], proof: &[u8]) -> io::Result<()> {
    let proof: &[u8; SEAT_PROOF_LEN] = proof.try_into().map_err(io::Error::other)?;
    match is_proof(&occupant.key, statement, proof) {
        true => Ok(()),
        false => Err(io::Error::other("it has not the key that this rank has announced")),
    }
}

#[derive(Clone, Copy)]
enum Side {
    Caller = 1,
    Answerer = 2,
}

/// What one side of a connection signs: a value of this connection and of the ranks that the hello names.
fn statement<Data>(
    session: &ConnectionCommon<Data>,
    side: Side,
    hello: &[u8; HELLO_LEN],
) -> io::Result<[u8; STATEMENT_LEN]> {
    let mut statement = [0; STATEMENT_LEN];
    statement[0] = side as u8;
    let exported = session.export_keying_material(&mut statement[1..], LABEL, Some(&hello[NAMES]));
    exported.map_err(io::Error::other)?;
    Ok(statement)
}

/// Why a handshake has failed, as a sentence.
fn reason(error: io::Error, session: &CommonState) -> io::Error {
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
const STATEMENT_LEN: usize = 1 + 32;
