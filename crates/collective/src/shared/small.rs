//! Sums that fit in one round: every rank publishes its values and adds all ranks' values.
//!
//! In steps, so that a caller can do something else while the values travel.

use std::sync::Arc;

use netsum_net::Buffer;
use netsum_net::arena::{HEAD_BYTES, Stamp};
use netsum_net::mesh::MeshError;
use netsum_topo::SumOrder;
use netsum_wire::{Format, accumulate};

use super::{Rounds, Shared, Values, stamp};

/// Up to this size a sum begins before it is recorded, and every rank adds all values: one wait in place of two.
pub(crate) const SMALL_MAX: usize = 8 << 10;

impl Shared {
    /// Whether [`Shared::begin`] can be called: no rank has to be waited for, and no operation has failed.
    #[inline]
    pub(crate) fn can_begin(&self) -> bool {
        self.broken.is_none() && self.arena.is_open()
    }

    /// Publishes own values of the operation `call` (number and fingerprint).
    #[inline]
    pub(crate) fn begin(&mut self, call: (u64, u32), values: &[u8]) {
        self.put(values);
        self.hand_over(call, false);
    }

    /// Hands over what was written into the open slot; `answered`: the other one of two ranks answers there.
    #[inline]
    pub(super) fn hand_over(&mut self, call: (u64, u32), answered: bool) {
        self.arena.hand_over(Stamp { answered, ..stamp(call, 0) });
    }

    /// Whether every rank has begun the same operation within a short time.
    #[inline]
    pub(crate) fn all_appear(&mut self) -> bool {
        self.arena.all_appear()
    }

    /// Ranks of the host.
    #[inline]
    pub(crate) fn ranks(&self) -> usize {
        self.arena.ranks()
    }

    /// Adds all published values into `buffer`, which still has own values.
    #[inline]
    pub(crate) fn add(&mut self, order: &Arc<SumOrder>, format: Format, buffer: &mut Buffer) {
        let all = 0..buffer.len();
        let (rank, slots) = (self.arena.rank(), self.arena.slots());
        let values = |from: usize| match all.len() <= HEAD_BYTES {
            true => &slots.head(from)[..all.len()],
            false => &slots.of(from, 0)[..all.len()],
        };
        if self.arena.ranks() == 2 {
            return accumulate(format, buffer.slice_mut(all.clone()), values(1 - rank));
        }
        // Own values, too, are read from the slot: the sum overwrites those in the buffer.
        let values: Values<'_> = (0..self.arena.ranks()).map(values).collect();
        let mut kept = Shared::adder(&mut self.adder, order, format);
        kept.adder.add(&values, buffer.slice_mut(all.clone()));
        self.adder = Some(kept);
    }

    /// Whether there are fewer cores than ranks.
    #[inline]
    pub(crate) fn is_oversubscribed(&self) -> bool {
        self.arena.is_oversubscribed()
    }

    /// Writes own values where the other ranks read them.
    #[inline]
    fn put(&mut self, values: &[u8]) {
        let len = values.len();
        match len <= HEAD_BYTES {
            true => self.arena.head()[..len].copy_from_slice(values),
            false => self.arena.parts().0[..len].copy_from_slice(values),
        }
    }
}

/// The sum of all ranks' `buffer`, of at most a slot, in place.
pub(super) fn allreduce(
    rounds: &mut Rounds<'_>,
    order: &Arc<SumOrder>,
    format: Format,
    buffer: &mut Buffer,
) -> Result<(), MeshError> {
    rounds.open()?;
    rounds.shared.put(buffer.slice(0..buffer.len()));
    rounds.hand_over(0);
    finish(rounds, order, format, buffer)
}

/// The rest of a barrier that [`Shared::begin`] has begun.
pub(crate) fn wait(rounds: &mut Rounds<'_>) -> Result<(), MeshError> {
    rounds.await_all()
}

/// The rest of a sum that [`Shared::begin`] has begun.
pub(super) fn finish(
    rounds: &mut Rounds<'_>,
    order: &Arc<SumOrder>,
    format: Format,
    buffer: &mut Buffer,
) -> Result<(), MeshError> {
    rounds.await_all()?;
    rounds.shared.add(order, format, buffer);
    Ok(())
}
