//! The first message on a peer link: caller, callee, peer link, epoch, and the callee's secret.

use netsum_net::mesh::SECRET_LEN;

use super::Connecting;
use crate::planned::routes::LinkKey;

impl Connecting<'_> {
    /// Index of a peer link among those to the same neighbour; the same at both ends.
    pub(super) fn index(&self, peer_link: &LinkKey) -> usize {
        self.peer_links
            .iter()
            .filter(|other| other.peer == peer_link.peer && *other < peer_link)
            .count()
    }

    /// This rank's hello to the lower rank of a peer link.
    pub(super) fn hello(&self, peer_link: &LinkKey, secret: &[u8; SECRET_LEN]) -> [u8; HELLO] {
        of(self.epoch, self.rank, peer_link.peer, self.index(peer_link), secret)
    }
}

/// The hello of rank `from` to rank `to` for the peer link of that `index` among theirs.
pub(super) fn of(
    epoch: u64,
    from: usize,
    to: usize,
    index: usize,
    secret: &[u8; SECRET_LEN],
) -> [u8; HELLO] {
    let mut hello = [0; HELLO];
    hello[..16].copy_from_slice(MAGIC);
    hello[16..24].copy_from_slice(&epoch.to_be_bytes());
    for (place, value) in [from, to, index].into_iter().enumerate() {
        hello[24 + 4 * place..28 + 4 * place].copy_from_slice(&(value as u32).to_be_bytes());
    }
    hello[36..].copy_from_slice(secret);
    hello
}

const MAGIC: &[u8; 16] = b"netsum lane   1\n";
pub(super) const HELLO: usize = 36 + SECRET_LEN;
