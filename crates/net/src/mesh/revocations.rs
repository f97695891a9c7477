//! Certificates of peers that are revoked while their connections are open.

use std::sync::Arc;
use std::time::Instant;

use netsum_identity::Credentials;

use super::core::{Core, Peer};
use super::limits::REVOCATIONS_LOOK;

/// News of revocation lists among this rank's credentials.
pub(super) struct Revocations {
    credentials: Arc<Credentials>,
    generation: u64,
    looked: Instant,
}

impl Revocations {
    /// `generation`: that of the credentials before any peer was verified.
    pub(super) fn new(credentials: Arc<Credentials>, generation: u64) -> Revocations {
        Revocations { credentials, generation, looked: Instant::now() }
    }

    /// Peers whose certificates are revoked by files that are new. Looks at the files from time to time only.
    pub(super) fn news(&mut self, core: &Core, now: Instant) -> Vec<u32> {
        if now - self.looked < REVOCATIONS_LOOK {
            return Vec::new();
        }
        self.looked = now;
        let generation = self.credentials.generation();
        if std::mem::replace(&mut self.generation, generation) == generation {
            return Vec::new();
        }
        let revoked = |peer: &Peer| {
            peer.connection.certificates().is_some_and(|chain| self.credentials.is_revoked(&chain))
        };
        core.live().filter(|(_, peer)| revoked(peer)).map(|(rank, _)| rank).collect()
    }
}
