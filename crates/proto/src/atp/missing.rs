//! Requests for contributions that the server lacks.
//!
//! A contribution can wait for others in a slot of its own, while those of the others came to the server past a slot
//! that was taken at the time. Nobody sees that but the server, once a worker asks about the fragment.

use netsum_wire::atp::{Header, Kind};
use netsum_wire::{JobId, Sequence, TreeId};

use super::gather::{Entry, Phase};
use super::lease::ServerLease;
use super::served::{Tenant, down};
use super::server::Server;
use super::switch::Transmit;
use crate::sequence::distance;
use crate::values::Values;

/// Fragments that one request can name after its first.
const OTHERS: u32 = u32::BITS;

impl<V: Values> Server<V> {
    /// Asks for what is missing of the first fragment from `first` on that lacks some workers' contributions, and of
    /// those after it that lack the same.
    pub(super) fn request_missing(&mut self, key: (JobId, TreeId), first: Sequence) {
        let tenant = self.tenants.get_mut(key.0, key.1).expect("it was found");
        let numbers = |from: Sequence| (0..=OTHERS).map(move |i| Sequence(from.0.wrapping_add(i)));
        let Some(first) = numbers(first).find(|&number| tenant.lacks_some(number)) else { return };
        let entry = &tenant.ring[tenant.index(first)];
        let missing: Vec<u32> = entry.missing(&tenant.lease).collect();
        let mut header = match entry.phase {
            Phase::Floats(_) => down(&entry.header, Kind::FloatRequest),
            _ => down(&entry.header, Kind::Missing),
        };
        for (i, number) in numbers(first).enumerate() {
            let index = tenant.index(number);
            let entry = &tenant.ring[index];
            let lacks_the_same = || {
                let here = entry.missing(&tenant.lease);
                header.kind == Kind::Missing
                    && !matches!(entry.phase, Phase::Floats(_))
                    && here.zip(&missing).all(|(here, asked)| asked & !here == 0)
            };
            if i > 0 {
                if !tenant.lacks_some(number) || !lacks_the_same() {
                    continue;
                }
                header.others |= 1 << (i - 1);
            }
            tenant.ring[index].requested = true;
            tenant.counters.requested += 1;
        }
        for neighbour in &tenant.lease.neighbours {
            for (rack, missing) in missing.iter().enumerate() {
                let (racks, workers) = (neighbour.racks & 1 << rack, neighbour.workers & missing);
                if racks != 0 && workers != 0 {
                    let header = Header { racks, workers, ..header };
                    self.outbox.push_back(Transmit { to: neighbour.port, header, payload: None });
                }
            }
        }
    }
}

impl<B: Copy> Tenant<B> {
    /// Whether a fragment has arrived in part, before the last question about one, and its rest was not requested.
    fn lacks_some(&self, number: Sequence) -> bool {
        let entry = &self.ring[self.index(number)];
        distance(number.0, self.asked_to) < 0
            && entry.header.sequence == number
            && entry.is_partial()
            && !entry.requested
    }
}

impl<B: Copy> Entry<B> {
    /// By rack, the workers whose contributions have not arrived.
    fn missing(&self, lease: &ServerLease) -> impl Iterator<Item = u32> {
        let all = lease.racks.iter().map(|ranks| Header::all(ranks.len() as u8));
        all.zip(&self.covered).map(|(all, covered)| all & !covered)
    }
}
