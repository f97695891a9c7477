//! Which rank is at the other end of a connection: what both ends say inside TLS, and what they accept.
//!
//! All ranks of a tenant may have the same certificate, and all know each other's secrets. So each end proves the key that
//! its rank has announced ([`SeatKey`]), for a value that only this connection has (RFC 9266), for the ranks that the
//! hello names, and for its side.

use std::io;

use netsum_identity::{Identity, SEAT_PROOF_LEN, SeatKey, is_proof};

use super::hello::{HELLO_LEN, NAMES, hello, sender};
use super::roster::{Occupant, Roster, SECRET_LEN, Seat};

/// A connection whose handshake has ended, as far as proofs depend on it.
pub(super) trait Channel {
    /// A value that only the two ends of this connection have, and that `context` changes.
    fn export(&self, context: &[u8]) -> io::Result<[u8; EXPORT_LEN]>;

    /// Whom the certificate of the other end names.
    fn peer(&self) -> Option<Identity>;
}

/// Bytes of a connection's value.
pub(super) const EXPORT_LEN: usize = 32;
/// Bytes that the calling rank sends.
pub(super) const OFFER_LEN: usize = HELLO_LEN + SEAT_PROOF_LEN;
/// Bytes of the answer.
pub(super) const ANSWER_LEN: usize = SECRET_LEN + SEAT_PROOF_LEN;

/// What a rank says to the rank that it has called.
pub(super) fn offer(
    key: &SeatKey,
    channel: &impl Channel,
    roster: &Roster,
    rank: u32,
) -> io::Result<[u8; OFFER_LEN]> {
    let hello = hello(roster, roster.rank, rank);
    let proof = key.prove(&statement(channel, Side::Caller, &hello[NAMES])?);
    let mut offer = [0; OFFER_LEN];
    offer[..HELLO_LEN].copy_from_slice(&hello);
    offer[HELLO_LEN..].copy_from_slice(&proof);
    Ok(offer)
}

/// Checks what a calling rank says; returns the rank and the answer. Errors say why it is refused.
pub(super) fn admit(
    key: &SeatKey,
    channel: &impl Channel,
    roster: &Roster,
    offer: &[u8; OFFER_LEN],
) -> io::Result<(u32, [u8; ANSWER_LEN])> {
    let (hello, proof) = offer.split_first_chunk::<HELLO_LEN>().expect("an offer has a hello");
    let stranger = || io::Error::other("it is not a rank of this group");
    let rank = sender(roster, hello).ok_or_else(stranger)?;
    let seat = &roster.seats[rank as usize];
    proved(expected(seat, channel)?, &statement(channel, Side::Caller, &hello[NAMES])?, proof)?;
    let ours = key.prove(&statement(channel, Side::Answerer, &hello[NAMES])?);
    let mut answer = [0; ANSWER_LEN];
    answer[..SECRET_LEN].copy_from_slice(&seat.secret);
    answer[SECRET_LEN..].copy_from_slice(&ours);
    Ok((rank, answer))
}

/// Checks that the certificate at the other end is that of the rank that was called, before anything is said to it.
pub(super) fn check_called(channel: &impl Channel, roster: &Roster, rank: u32) -> io::Result<()> {
    expected(&roster.seats[rank as usize], channel).map(drop)
}

/// Checks the answer of the rank that was called.
pub(super) fn confirm(
    channel: &impl Channel,
    roster: &Roster,
    rank: u32,
    answer: &[u8; ANSWER_LEN],
) -> io::Result<()> {
    let (secret, proof) = answer.split_at(SECRET_LEN);
    if secret != roster.seats[roster.rank as usize].secret {
        return Err(io::Error::other("another process answers at that address"));
    }
    let hello = hello(roster, roster.rank, rank);
    let statement = statement(channel, Side::Answerer, &hello[NAMES])?;
    proved(expected(&roster.seats[rank as usize], channel)?, &statement, proof)
}

/// The occupant of a seat. Error: the certificate of the connection is somebody else's.
pub(super) fn expected<'a>(seat: &'a Seat, channel: &impl Channel) -> io::Result<&'a Occupant> {
    let none = || io::Error::other("it has no credentials");
    let (occupant, found) = seat.occupant.as_ref().zip(channel.peer()).ok_or_else(none)?;
    if occupant.identity == found {
        return Ok(occupant);
    }
    let wanted = &occupant.identity;
    Err(io::Error::other(format!("it is {found}; that rank has announced itself as {wanted}")))
}

pub(super) fn proved(occupant: &Occupant, statement: &[u8], proof: &[u8]) -> io::Result<()> {
    let proof: &[u8; SEAT_PROOF_LEN] = proof.try_into().map_err(io::Error::other)?;
    match is_proof(&occupant.key, statement, proof) {
        true => Ok(()),
        false => Err(io::Error::other("it has not the key that this rank has announced")),
    }
}

/// Which end of a connection signs.
#[derive(Clone, Copy)]
pub(super) enum Side {
    Caller = 1,
    Answerer = 2,
}

/// What one side of a connection signs: a value of this connection and of what the hello says.
pub(super) fn statement(
    channel: &impl Channel,
    side: Side,
    context: &[u8],
) -> io::Result<[u8; 1 + EXPORT_LEN]> {
    let mut statement = [side as u8; 1 + EXPORT_LEN];
    statement[1..].copy_from_slice(&channel.export(context)?);
    Ok(statement)
}

#[cfg(test)]
#[path = "seat_model.rs"]
mod model;
