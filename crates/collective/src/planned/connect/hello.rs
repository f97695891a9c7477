//! The first words on a lane: who calls whom, for which lane and epoch, and the secret of who is called.

use netsum_net::mesh::SECRET_LEN;

use super::Connecting;
use crate::planned::routes::LaneKey;

impl Connecting<'_> {
    /// Which of the ways to its neighbour a lane is; the same at both ends.
    pub(super) fn index(&self, lane: &LaneKey) -> usize {
        self.lanes.iter().filter(|other| other.peer == lane.peer && *other < lane).count()
    }

    /// Ours, to the lower rank of a lane.
    pub(super) fn hello(&self, lane: &LaneKey, secret: &[u8; SECRET_LEN]) -> [u8; HELLO] {
        of(self.epoch, self.rank, lane.peer, self.index(lane), secret)
    }
}

/// What rank `from` says to rank `to` for the lane of that `index` among theirs.
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
