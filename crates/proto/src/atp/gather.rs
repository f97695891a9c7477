//! One fragment at the server: the contributions so far, and their sum.

use netsum_wire::atp::{Flags, Header, Kind, Level};
use netsum_wire::{
    Arithmetic, Epoch, JobId, MAX_SCOPED_RANKS, Parties, Sequence, SlotIndex, TreeId,
};

use super::lease::ServerLease;
use crate::DropReason;
use crate::values::Values;

/// State of a fragment.
#[derive(Clone, Debug, Hash)]
pub(crate) enum Phase<B> {
    /// No elements.
    Empty,
    /// The sum of some contributions.
    Integers(B),
    /// The integers did not fit: each rank's floats, until all have arrived.
    Floats(Vec<Option<B>>),
    /// All have taken part: the sum of their contributions, or what one of them contributed; nothing for a barrier.
    Done(Option<B>),
}

/// One fragment.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Entry<B> {
    pub(crate) phase: Phase<B>,
    /// Header of the first packet that says what the fragment is.
    pub(crate) header: Header,
    /// Whether there was one: otherwise the header has the number alone.
    shaped: bool,
    /// Workers whose contributions have arrived, or who have said that they have none, by rack.
    pub(super) covered: Vec<u32>,
    /// Whether the contributions that are missing were requested since the last one arrived.
    pub(super) requested: bool,
    pub(crate) overflow: bool,
    pub(crate) ecn: bool,
    /// Whether some contribution reported that the slot held another fragment.
    pub(crate) collided: bool,
    pub(crate) next_slot: SlotIndex,
    /// Number format of the result.
    pub(crate) summed_as: Arithmetic,
}

/// Effect of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Merge {
    /// The packet was counted, for this many new workers.
    New { contributions: u32 },
    /// All of its contributions had been counted.
    Known,
    /// Some of its contributions had been counted, so that none can be.
    Overlap,
}

impl<B: Copy> Entry<B> {
    pub(crate) fn new(racks: usize) -> Entry<B> {
        Entry {
            phase: Phase::Empty,
            header: NOTHING,
            shaped: false,
            covered: vec![0; racks],
            requested: false,
            overflow: false,
            ecn: false,
            collided: false,
            next_slot: SlotIndex(0),
            summed_as: Arithmetic::Wrapping,
        }
    }

    /// Starts the entry for a number, and discards the fragment two windows before.
    pub(crate) fn begin<V: Values<Buffer = B>>(&mut self, sequence: Sequence, values: &mut V) {
        if self.header.sequence != sequence {
            self.clear(values);
            self.header = Header { sequence, ..NOTHING };
        }
    }

    /// Determines the properties of the fragment, if no packet has done so before.
    pub(crate) fn shape(&mut self, lease: &ServerLease, header: &Header) {
        if self.shaped {
            return;
        }
        self.header = *header;
        self.summed_as = header.arithmetic;
        // Whose elements are to come has not yet taken part, whatever it said.
        for (covered, ranks) in self.covered.iter_mut().zip(&lease.racks) {
            for (worker, &rank) in ranks.iter().enumerate() {
                if header.parties.contributes(rank_bit(rank)) {
                    *covered &= !(1 << worker);
                }
            }
        }
    }

    /// Whether a packet belongs to this fragment, possibly as a repetition in float.
    pub(crate) fn is_of(&self, header: &Header) -> bool {
        let same = self.header.arithmetic == header.arithmetic;
        let both = [self.header.arithmetic, header.arithmetic];
        let real = |a: &Arithmetic| matches!(a, Arithmetic::Saturating | Arithmetic::Float);
        self.header.chunk == header.chunk
            && self.header.n_elems == header.n_elems
            && self.header.parties == header.parties
            && (same || both.iter().all(real))
    }

    /// Adds a partial sum of integers.
    pub(crate) fn merge<V: Values<Buffer = B>>(
        &mut self,
        lease: &ServerLease,
        header: &Header,
        payload: &V::Payload,
        values: &mut V,
    ) -> Result<Merge, DropReason> {
        if let Parties::FromOne(from) = header.parties
            && lease.only_rank(header) != Some(from.into())
        {
            return Err(DropReason::Members);
        }
        let new = self.count_new(lease, header);
        match (&self.phase, new) {
            (Phase::Floats(_), _) | (_, Coverage { fresh: 0, .. }) => return Ok(Merge::Known),
            (Phase::Empty, _) => {
                let stored = values.store(payload).ok_or(DropReason::NoMemory)?;
                self.phase = Phase::Integers(stored);
            }
            (&Phase::Integers(sum), Coverage { again: 0, .. }) => {
                self.overflow |= values.combine(sum, header.arithmetic, payload);
            }
            // The packet contains all contributions so far, so that it can replace the sum.
            (&Phase::Integers(sum), Coverage { absent: 0, .. }) => {
                let stored = values.store(payload).ok_or(DropReason::NoMemory)?;
                values.free(sum);
                self.phase = Phase::Integers(stored);
            }
            _ => return Ok(Merge::Overlap),
        }
        self.cover(lease, header);
        Ok(Merge::New { contributions: new.fresh })
    }

    /// Notes that a rank takes part without elements; `None` if it may not. `shapes`: whether the packet says what the
    /// fragment is.
    pub(crate) fn note_ready(
        &mut self,
        lease: &ServerLease,
        header: &Header,
        shapes: bool,
    ) -> Option<Merge> {
        let rank = lease.only_rank(header)?;
        let known = self.shaped || shapes;
        if known && self.header.parties.contributes(rank_bit(rank)) {
            return None;
        }
        self.shaped = known;
        let (rack, workers) = (header.racks.trailing_zeros() as usize, header.workers);
        let known = self.covered[rack] & workers != 0;
        self.covered[rack] |= workers;
        self.requested = false;
        self.ecn |= header.flags.ecn;
        Some(if known { Merge::Known } else { Merge::New { contributions: 0 } })
    }

    /// Stores one rank's floats.
    pub(crate) fn add_float<V: Values<Buffer = B>>(
        &mut self,
        lease: &ServerLease,
        header: &Header,
        payload: &V::Payload,
        values: &mut V,
    ) -> Result<Merge, DropReason> {
        if header.racks.count_ones() != 1 || header.workers.count_ones() != 1 {
            return Err(DropReason::Members);
        }
        if !matches!(self.phase, Phase::Floats(_)) {
            // Every worker could determine that the integers cannot hold this fragment.
            self.ask_for_floats(lease, values);
        }
        let (rack, worker) = (header.racks.trailing_zeros(), header.workers.trailing_zeros());
        let rank = lease.racks[rack as usize][worker as usize] as usize;
        let Phase::Floats(parts) = &mut self.phase else { unreachable!("it has become that") };
        if parts[rank].is_some() {
            return Ok(Merge::Known);
        }
        parts[rank] = Some(values.store(payload).ok_or(DropReason::NoMemory)?);
        self.cover(lease, header);
        Ok(Merge::New { contributions: 1 })
    }

    /// Whether all workers have taken part.
    pub(crate) fn is_full(&self, lease: &ServerLease) -> bool {
        let all = lease.racks.iter().map(|r| Header::all(r.len() as u8));
        self.shaped && self.covered.iter().copied().eq(all)
    }

    /// Whether it is known what the fragment is, but some workers have not taken part.
    pub(super) fn is_partial(&self) -> bool {
        self.shaped && !matches!(self.phase, Phase::Done(_))
    }

    /// Discards the integers; the entry then waits for floats.
    pub(crate) fn ask_for_floats<V: Values<Buffer = B>>(
        &mut self,
        lease: &ServerLease,
        values: &mut V,
    ) {
        if let Phase::Integers(sum) = self.phase {
            values.free(sum);
        }
        self.phase = Phase::Floats(vec![None; lease.ranks()]);
        self.covered.fill(0);
        self.summed_as = Arithmetic::Float;
    }

    /// Computes the result.
    pub(crate) fn finish<V: Values<Buffer = B>>(
        &mut self,
        values: &mut V,
    ) -> Result<(), DropReason> {
        let sum = match &self.phase {
            Phase::Integers(sum) => Some(*sum),
            Phase::Floats(parts) => {
                let parts: Vec<B> = parts.iter().flatten().copied().collect();
                let sum = values.add_floats(&parts).ok_or(DropReason::NoMemory)?;
                parts.into_iter().for_each(|part| values.free(part));
                Some(sum)
            }
            Phase::Empty => None,
            Phase::Done(_) => return Ok(()),
        };
        self.phase = Phase::Done(sum);
        Ok(())
    }

    /// Frees all memory of the entry.
    pub(crate) fn clear<V: Values<Buffer = B>>(&mut self, values: &mut V) {
        match std::mem::replace(&mut self.phase, Phase::Empty) {
            Phase::Integers(sum) | Phase::Done(Some(sum)) => values.free(sum),
            Phase::Floats(parts) => parts.into_iter().flatten().for_each(|part| values.free(part)),
            Phase::Empty | Phase::Done(None) => {}
        }
        self.shaped = false;
        self.requested = false;
        self.covered.fill(0);
        (self.overflow, self.ecn, self.collided) = (false, false, false);
    }

    fn cover(&mut self, lease: &ServerLease, header: &Header) {
        self.shaped = true;
        self.requested = false;
        for (rack, covered) in self.covered.iter_mut().enumerate() {
            if header.racks >> rack & 1 == 1 {
                *covered |= lease.workers_of(rack, header);
            }
        }
        self.overflow |= header.flags.overflow;
        self.ecn |= header.flags.ecn;
        self.collided |= header.flags.collision;
    }

    /// Compares a packet's workers with those that have contributed.
    fn count_new(&self, lease: &ServerLease, header: &Header) -> Coverage {
        let mut coverage = Coverage::default();
        for (rack, &covered) in self.covered.iter().enumerate() {
            let named = header.racks >> rack & 1 == 1;
            let workers = if named { lease.workers_of(rack, header) } else { 0 };
            coverage.fresh += (workers & !covered).count_ones();
            coverage.again += (workers & covered).count_ones();
            coverage.absent += (covered & !workers).count_ones();
        }
        coverage
    }
}

/// A packet's workers compared with those that have contributed.
#[derive(Clone, Copy, Default)]
struct Coverage {
    /// Workers in the packet only.
    fresh: u32,
    /// Workers in both.
    again: u32,
    /// Workers in the sum only.
    absent: u32,
}

/// Header of an unused entry; its number is admitted last.
const NOTHING: Header = Header {
    kind: Kind::Contribution,
    level: Level::Server,
    flags: Flags { resend: false, collision: false, overflow: false, ecn: false },
    arithmetic: Arithmetic::Wrapping,
    tree: TreeId(0),
    job: JobId(0),
    sequence: Sequence(u32::MAX),
    chunk: 0,
    epoch: Epoch(0),
    n_elems: 0,
    rack_fan_in: 0,
    server_fan_in: 0,
    slot: SlotIndex(0),
    workers: 0,
    racks: 0,
    others: 0,
    next_slot: SlotIndex(0),
    parties: Parties::All,
};

fn rank_bit(rank: u32) -> u64 {
    1 << (rank % MAX_SCOPED_RANKS)
}
