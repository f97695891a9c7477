//! The first bytes of a connection: which rank connects to which.

use std::io;

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

/// Why a hello whose sender is not known is refused: in another version of the first bytes there is another number.
pub(super) fn refusal(got: &[u8; HELLO_LEN]) -> io::Error {
    let (name, number) = got[..MAGIC.len()].split_at(NAME.len());
    let version = str::from_utf8(number).ok().map(str::trim).and_then(|n| n.parse::<u32>().ok());
    io::Error::other(match version.filter(|&v| name == NAME && v != VERSION) {
        Some(version) => format!(
            "it speaks version {version} of the protocol between ranks, this rank version {VERSION}; install one \
             version of netsum for all ranks of the job"
        ),
        None => "it is not a rank of this group".to_owned(),
    })
}

const MAGIC: &[u8; 16] = b"netsum mesh   1\n";
const NAME: &[u8; 11] = b"netsum mesh";
const VERSION: u32 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_of_another_version_is_told_so() {
        let reason = |magic: &[u8; 16]| {
            let mut hello = [0; HELLO_LEN];
            hello[..16].copy_from_slice(magic);
            refusal(&hello).to_string()
        };
        let older = reason(b"netsum mesh   0\n");
        assert!(older.starts_with("it speaks version 0 of the protocol between ranks"), "{older}");
        assert!(reason(b"netsum mesh  12\n").contains("version 12"));
        for stranger in
            [b"netsum mesh   1\n", b"netsum lane   2\n", b"netsum mesh  x2\n", &[0xff; 16]]
        {
            assert_eq!(reason(stranger), "it is not a rank of this group");
        }
    }
}
