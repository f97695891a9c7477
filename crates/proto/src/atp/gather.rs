//! One fragment at the server: who is in, and what it sums to.

use netsum_wire::atp::{Flags, Header, Kind, Level};
use netsum_wire::{Arithmetic, Epoch, JobId, Sequence, SlotIndex, TreeId};

use super::lease::ServerLease;
use crate::DropReason;
use crate::values::Values;

/// How far a fragment is.
#[derive(Clone, Debug, Hash)]
pub(crate) enum Phase<B> {
    /// Nobody is in.
    Empty,
    /// The sum of some.
    Integers(B),
    /// The integers did not fit: each rank's floats, until all are in.
    Floats(Vec<Option<B>>),
    /// The sum of all.
    Done(B),
}

/// One fragment.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Entry<B> {
    pub(crate) phase: Phase<B>,
    /// Of its first contribution.
    pub(crate) header: Header,
    /// Workers that are in, by rack.
    covered: Vec<u32>,
    pub(crate) overflow: bool,
    pub(crate) ecn: bool,
    /// The slot was another fragment's for some contribution.
    pub(crate) collided: bool,
    pub(crate) next_slot: SlotIndex,
    /// What the result's elements are.
    pub(crate) summed_as: Arithmetic,
}

/// What a packet did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Merge {
    /// It was counted, for so many workers that were not in before.
    New { contributions: u32 },
    /// All of it had been counted.
    Known,
    /// Some had, so that none of it can be.
    Overlap,
}

impl<B: Copy> Entry<B> {
    pub(crate) fn new(racks: usize) -> Entry<B> {
        Entry {
            phase: Phase::Empty,
            header: NOTHING,
            covered: vec![0; racks],
            overflow: false,
            ecn: false,
            collided: false,
            next_slot: SlotIndex(0),
            summed_as: Arithmetic::Wrapping,
        }
    }

    /// Makes the entry that of `header`'s fragment, in place of the one two windows before. The first
    /// contribution says what the fragment is.
    pub(crate) fn begin<V: Values<Buffer = B>>(&mut self, header: &Header, values: &mut V) {
        if self.header.sequence != header.sequence {
            self.clear(values);
        }
        if matches!(self.phase, Phase::Empty) {
            self.header = *header;
            self.covered.fill(0);
            (self.overflow, self.ecn, self.collided) = (false, false, false);
            self.summed_as = header.arithmetic;
        }
    }

    /// Whether a packet belongs to this fragment; one that repeats it in float does.
    pub(crate) fn is_of(&self, header: &Header) -> bool {
        let same = self.header.arithmetic == header.arithmetic;
        let both = [self.header.arithmetic, header.arithmetic];
        let real = |a: &Arithmetic| matches!(a, Arithmetic::Saturating | Arithmetic::Float);
        self.header.chunk == header.chunk
            && self.header.n_elems == header.n_elems
            && (same || both.iter().all(real))
    }

    /// Adds a sum of integers.
    pub(crate) fn merge<V: Values<Buffer = B>>(
        &mut self,
        lease: &ServerLease,
        header: &Header,
        payload: &V::Payload,
        values: &mut V,
    ) -> Result<Merge, DropReason> {
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
            // Whoever is in is in this packet too, so it can take the sum's place.
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

    /// Keeps one rank's floats.
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
            // Every worker could see that the integers cannot hold this fragment.
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

    /// Whether every worker is in.
    pub(crate) fn is_full(&self, lease: &ServerLease) -> bool {
        let all = lease.racks.iter().map(|r| Header::all(r.len() as u8));
        self.covered.iter().copied().eq(all)
    }

    /// Forgets the integers; floats are awaited.
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

    /// Makes the result of what is in.
    pub(crate) fn finish<V: Values<Buffer = B>>(
        &mut self,
        values: &mut V,
    ) -> Result<(), DropReason> {
        let sum = match &self.phase {
            Phase::Integers(sum) => *sum,
            Phase::Floats(parts) => {
                let parts: Vec<B> = parts.iter().flatten().copied().collect();
                let sum = values.add_floats(&parts).ok_or(DropReason::NoMemory)?;
                parts.into_iter().for_each(|part| values.free(part));
                sum
            }
            Phase::Empty | Phase::Done(_) => return Ok(()),
        };
        self.phase = Phase::Done(sum);
        Ok(())
    }

    /// Gives everything back.
    pub(crate) fn clear<V: Values<Buffer = B>>(&mut self, values: &mut V) {
        match std::mem::replace(&mut self.phase, Phase::Empty) {
            Phase::Integers(sum) | Phase::Done(sum) => values.free(sum),
            Phase::Floats(parts) => parts.into_iter().flatten().for_each(|part| values.free(part)),
            Phase::Empty => {}
        }
    }

    fn cover(&mut self, lease: &ServerLease, header: &Header) {
        for (rack, covered) in self.covered.iter_mut().enumerate() {
            if header.racks >> rack & 1 == 1 {
                *covered |= lease.workers_of(rack, header);
            }
        }
        self.overflow |= header.flags.overflow;
        self.ecn |= header.flags.ecn;
        self.collided |= header.flags.collision;
    }

    /// Compares a packet's workers with those that are in.
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

/// A packet's workers beside those that are in.
#[derive(Clone, Copy, Default)]
struct Coverage {
    /// In the packet alone.
    fresh: u32,
    /// In both.
    again: u32,
    /// In the sum alone.
    absent: u32,
}

/// Of an entry that nobody has used; its number is admitted last.
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
    next_slot: SlotIndex(0),
    tag: 0,
};
