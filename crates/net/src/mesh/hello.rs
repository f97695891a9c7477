//! The first bytes of a connection: which rank connects to which.

use super::roster::{Roster, SECRET_LEN};

/// Magic, group, the connecting rank, the wanted one, and the secret of the wanted one.
pub(super) const HELLO_LEN: usize = 32 + SECRET_LEN;

/// The part that names group and ranks.
pub(super) const NAMES: std::ops::Range<usize> = 16..32;

pub(super) fn hello(roster: &Roster, from: u32, to: u32) -> [u8; HELLO_LEN] {
    let mut h = [0; HELLO_LEN];
    h[..16].copy_from_slice(MAGIC);
    h[16..24].copy_from_slice(&roster.group.to_be_bytes());
    h[24..28].copy_from_slice(&from.to_be_bytes());
    h[28..32].copy_from_slice(&to.to_be_bytes());
    h[32..].copy_from_slice(&roster.seats[to as usize].secret);
    h
}

/// The sender of a hello to this rank; only higher ranks connect to it. `None`: it is not of this group.
pub(super) fn sender(roster: &Roster, got: &[u8; HELLO_LEN]) -> Option<u32> {
    let rank = u32::from_be_bytes([got[24], got[25], got[26], got[27]]);
    let known = rank > roster.rank && (rank as usize) < roster.seats.len();
    (known && *got == hello(roster, rank, roster.rank)).then_some(rank)
}

const MAGIC: &[u8; 16] = b"netsum mesh   1\n";
