//! One job at a parameter server: admission of packets, fragments in flight, answers.

use netsum_wire::atp::{Flags, Header, Kind, Level};
use netsum_wire::{Parties, Sequence, SlotIndex};

use super::gather::{Entry, Phase};
use super::lease::{Neighbour, ServerLease};
use super::table::SlotTable;
use crate::lease::Tenancy;
use crate::sequence::distance;
use crate::values::Values;
use crate::{DropReason, Time};

/// Counters of one lease at a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerCounters {
    /// Packets whose contributions were counted.
    pub packets: u64,
    /// Number of workers' fragments in these packets.
    pub contributions: u64,
    /// Results.
    pub results: u64,
    /// Packets whose contributions had all been counted.
    pub duplicates: u64,
    /// Duplicates that were answered with the result.
    pub answered: u64,
    /// Duplicates that were answered with "waiting for others".
    pub waiting: u64,
    /// Fragments of which contributions that are missing were requested.
    pub requested: u64,
    /// Packets of which some contributions had been counted, so that none could be.
    pub overlaps: u64,
    /// Fragments that were requested in float.
    pub float_requests: u64,
    /// Slots that were exchanged after a collision.
    pub rehashes: u64,
    /// Results with a mark of congestion.
    pub marked: u64,
    /// Fragments on which workers disagreed.
    pub mismatches: u64,
}

/// An installed lease.
#[derive(Clone)]
pub(super) struct Tenant<B> {
    pub(super) lease: ServerLease,
    pub(super) table: SlotTable,
    /// Entries for two windows of fragments, by sequence number.
    pub(super) ring: Vec<Entry<B>>,
    /// Lowest number without a result.
    pub(super) base: u32,
    /// One past the highest number of which something has arrived.
    pub(super) highest: u32,
    /// What was `highest` when a worker last asked about a fragment that lacks others' contributions.
    pub(super) asked_to: u32,
    pub(super) finished: Vec<u32>,
    pub(super) last_seen: Time,
    pub(super) counters: ServerCounters,
}

impl<B: Copy> Tenant<B> {
    /// Checks that a number may be in flight or sent again.
    pub(super) fn admit(&self, header: &Header) -> Result<(), DropReason> {
        if header.payload_len() > usize::from(self.lease.fragment_bytes) {
            return Err(DropReason::TooLarge);
        }
        let ahead = distance(header.sequence.0, self.base);
        let window = i32::from(self.lease.window);
        match ahead {
            _ if ahead >= window => Err(DropReason::BeyondWindow),
            _ if ahead < -window => Err(DropReason::TooOld),
            _ => Ok(()),
        }
    }

    /// The place of a number in the ring.
    pub(super) fn index(&self, sequence: Sequence) -> usize {
        sequence.0 as usize & (self.ring.len() - 1)
    }

    /// Frees all memory of the lease.
    pub(super) fn clear<V: Values<Buffer = B>>(&mut self, values: &mut V) {
        self.ring.iter_mut().for_each(|entry| entry.clear(values));
    }

    pub(super) fn advance(&mut self) {
        loop {
            let entry = &self.ring[self.index(Sequence(self.base))];
            let done = matches!(entry.phase, Phase::Done(_));
            if !done || entry.header.sequence.0 != self.base {
                return;
            }
            self.base = self.base.wrapping_add(1);
        }
    }

    /// What tells workers that a fragment is done: the result, or for those who do not take it its completion.
    pub(super) fn completion(&self, index: usize, kind: Kind) -> (Header, Option<B>) {
        let entry = &self.ring[index];
        let Phase::Done(values) = entry.phase else { unreachable!("it is done") };
        let flags = Flags { ecn: entry.ecn, ..Flags::default() };
        let header = Header {
            flags,
            arithmetic: entry.summed_as,
            next_slot: entry.next_slot,
            ..down(&entry.header, kind)
        };
        (header, values.filter(|_| kind.has_payload()))
    }
}

impl<B> Tenancy for Tenant<B> {
    type Lease = ServerLease;

    fn lease(&self) -> &ServerLease {
        &self.lease
    }

    fn last_seen(&self) -> Time {
        self.last_seen
    }
}

impl ServerLease {
    /// Checks that a neighbour may send a packet with these bitmaps.
    pub(super) fn check_members(
        &self,
        neighbour: &Neighbour,
        header: &Header,
    ) -> Result<(), DropReason> {
        let racks = self.racks.len();
        let possible = usize::from(header.server_fan_in) == racks
            && header.racks & !neighbour.racks == 0
            && header.workers & !neighbour.workers == 0
            && match header.racks.count_ones() {
                1 => {
                    let rack = header.racks.trailing_zeros() as usize;
                    self.racks.get(rack).map(Vec::len) == Some(header.rack_fan_in.into())
                }
                _ => (0..racks).all(|rack| {
                    header.racks >> rack & 1 == 0
                        || Header::all(self.racks[rack].len() as u8) & !neighbour.workers == 0
                }),
            };
        if possible { Ok(()) } else { Err(DropReason::Members) }
    }

    /// The rank whose contribution a packet is, if it is that of one rank.
    pub(super) fn only_rank(&self, header: &Header) -> Option<u32> {
        let one = |bits: u32| (bits.count_ones() == 1).then(|| bits.trailing_zeros() as usize);
        self.racks.get(one(header.racks)?)?.get(one(header.workers)?).copied()
    }

    /// Whether a rank is among the members of a packet.
    pub(super) fn includes(&self, header: &Header, rank: u32) -> bool {
        self.place_of(rank).is_some_and(|(racks, workers)| {
            let rack = racks.trailing_zeros() as usize;
            header.racks & racks != 0 && self.workers_of(rack, header) & workers != 0
        })
    }

    /// Rack and worker, by bit, of a rank.
    pub(super) fn place_of(&self, rank: u32) -> Option<(u32, u32)> {
        let place = |(rack, workers): (usize, &Vec<u32>)| {
            let worker = workers.iter().position(|&other| other == rank)?;
            Some((1 << rack, 1 << worker))
        };
        self.racks.iter().enumerate().find_map(place)
    }

    /// Workers of a rack whose contributions are in a packet that names the rack.
    pub(super) fn workers_of(&self, rack: usize, header: &Header) -> u32 {
        match header.racks.count_ones() {
            1 => header.workers,
            _ => Header::all(self.racks[rack].len() as u8),
        }
    }
}

/// A header from the server to all workers.
pub(super) fn down(about: &Header, kind: Kind) -> Header {
    Header {
        kind,
        level: Level::Server,
        flags: Flags::default(),
        n_elems: if kind.has_payload() { about.n_elems } else { 0 },
        others: 0,
        workers: 0,
        racks: 0,
        next_slot: SlotIndex(0),
        parties: Parties::All,
        ..*about
    }
}
