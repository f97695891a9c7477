//! The slot that a fragment requests: every worker and the server compute it alike, and the server changes it.
//!
//! A tree's fragments use the entries of a table in turn; an entry holds a slot. The slot of an entry changes only with
//! a result, and a fragment is sent only after the result of the previous fragment of its entry. All workers therefore
//! have the same table whenever it matters.

use netsum_wire::{JobId, Sequence, SlotIndex, TreeId};

/// Slots by entry.
#[derive(Clone, Debug, Hash)]
pub struct SlotTable {
    slots: Vec<SlotIndex>,
    seed: u64,
    /// Number of slots of a switch, by the plan.
    count: u32,
}

impl SlotTable {
    /// `window`: maximum number of fragments in flight; `count`: number of slots of a switch. No two entries share a
    /// slot; if there are more entries than slots, no two of `count` consecutive entries do. Fragments in flight are
    /// consecutive, so a job whose window has shrunk to the number of slots does not collide with itself.
    pub fn new(job: JobId, tree: TreeId, window: u16, count: u32) -> SlotTable {
        let seed = u64::from(job.0) << 8 | u64::from(tree.0);
        let places = usize::from(window.max(1)).next_power_of_two();
        let mut table = SlotTable { slots: Vec::with_capacity(places), seed, count: count.max(1) };
        let mut taken = vec![false; table.count as usize];
        for place in 0..places as u32 {
            if place >= table.count {
                // Slots repeat in the order of the first round.
                let slot = table.slots[(place - table.count) as usize];
                table.slots.push(slot);
                continue;
            }
            let mut salts = (0..).map(|salt| table.hash(place, salt));
            let slot = salts.find(|slot| !taken[slot.0 as usize]).expect("salts do not end");
            taken[slot.0 as usize] = true;
            table.slots.push(slot);
        }
        table
    }

    /// The slot of a fragment.
    pub fn slot(&self, sequence: Sequence) -> SlotIndex {
        self.slots[self.place(sequence)]
    }

    /// Sets the slot of the next fragment that uses this one's entry.
    pub fn set_next(&mut self, sequence: Sequence, slot: SlotIndex) {
        let place = self.place(sequence);
        self.slots[place] = slot;
    }

    /// Chooses another slot for the entry of a fragment that collided (dynamic rehash), at the server, by the
    /// fragment's number; avoids the job's own nearby slots if one of eight attempts does.
    pub fn rehash(&mut self, sequence: Sequence) -> SlotIndex {
        let place = self.place(sequence);
        // The high bit distinguishes these salts from those of the initial table.
        let choice = |attempt| self.hash(place as u32, 1 << 31 | sequence.0 << 3 | attempt);
        let mut choices = (0..8).map(choice);
        let slot = choices.find(|slot| !self.is_near(place, *slot)).unwrap_or(choice(0));
        self.slots[place] = slot;
        slot
    }

    /// Whether an entry that can be in flight together with this one has the slot: any entry, or if there are more
    /// entries than slots, those within half as many as there are slots.
    fn is_near(&self, place: usize, slot: SlotIndex) -> bool {
        let places = self.slots.len();
        let reach = if places > self.count as usize { self.count as usize / 4 } else { places / 2 };
        let near = (place + places - reach..=place + places + reach).map(|at| at % places);
        near.filter(|&at| at != place).any(|at| self.slots[at] == slot)
    }

    fn place(&self, sequence: Sequence) -> usize {
        sequence.0 as usize & (self.slots.len() - 1)
    }

    /// SplitMix64's finaliser, which mixes every bit into every other.
    fn hash(&self, place: u32, salt: u32) -> SlotIndex {
        let mut z = self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)
            ^ (u64::from(place) << 32 | u64::from(salt));
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        SlotIndex(((z ^ z >> 31) % u64::from(self.count)) as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn a_job_does_not_collide_with_itself() {
        for (window, count) in [(200, 256), (128, 128), (1, 1), (512, 20_000)] {
            let table = SlotTable::new(JobId(7), TreeId(1), window, count);
            let slots: HashSet<u32> = table.slots.iter().map(|s| s.0).collect();
            assert_eq!(slots.len(), table.slots.len());
            assert!(slots.iter().all(|&s| s < count));
        }
        let few = SlotTable::new(JobId(7), TreeId(1), 200, 20);
        assert!(few.slots.iter().all(|s| s.0 < 20), "ten times too few");
        for row in few.slots.windows(20) {
            let slots: HashSet<u32> = row.iter().map(|s| s.0).collect();
            assert_eq!(slots.len(), 20, "as many in a row as there are slots are all different");
        }
    }

    #[test]
    fn jobs_and_places_spread_over_all_slots() {
        let mut used = vec![0; 1000];
        for job in 0..100 {
            let table = SlotTable::new(JobId(job), TreeId(0), 64, 1000);
            table.slots.iter().for_each(|s| used[s.0 as usize] += 1);
        }
        let most = *used.iter().max().unwrap();
        assert!((7..=22).contains(&most), "6.4 expected, {most} in the fullest");
    }

    #[test]
    fn a_rehash_moves_one_place() {
        let mut server = SlotTable::new(JobId(1), TreeId(0), 8, 1000);
        let mut worker = server.clone();
        let before = worker.slot(Sequence(3));
        let next = server.rehash(Sequence(3));
        worker.set_next(Sequence(3), next);
        assert_ne!(before, next);
        assert_eq!(worker.slot(Sequence(11)), next, "the place's next fragment");
        assert_eq!(worker.slots, server.slots);
        assert_ne!(server.rehash(Sequence(11)), next, "and another one if that collides too");
        let mut few = SlotTable::new(JobId(1), TreeId(0), 256, 64);
        let (moved, place) = (few.rehash(Sequence(100)), few.place(Sequence(100)));
        assert!((1..=16).all(|i| few.slots[place - i] != moved && few.slots[place + i] != moved));
    }
}
