//! Set-up of the memory that carries messages between the ranks of a host.

use std::time::Duration;

use super::meet::{ArenaPort, ArenaSeat, oversubscribed};
use crate::mesh::{Rings, SECRET_LEN};

impl ArenaPort {
    /// Rings for messages between all `seats`, by rank, of which `rank` is the own; `None` if one of them cannot.
    /// Arguments as of [`ArenaPort::meet`], which follows later.
    pub fn rings(
        &self,
        rank: usize,
        seats: &[ArenaSeat],
        around: &[ArenaSeat],
        secret: &[u8; SECRET_LEN],
        patience: Duration,
    ) -> Option<Rings> {
        let make = || Rings::create(seats.len());
        let open = |fd: &_| Rings::open(fd, seats.len());
        let rings = self.share(rank, seats, secret, patience, make, open)?;
        Some(rings.at(rank, oversubscribed(self.seat(), around)))
    }
}
