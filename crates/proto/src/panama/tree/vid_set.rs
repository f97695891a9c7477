//! A set of vids near each other, of which those just before a vid are found at once.

use crate::visit::Visitor;

/// Vids in a word, and before a vid.
const BITS: u32 = u64::BITS;

/// A set of vids, a bit each in a ring.
#[derive(Clone, Debug, Hash)]
pub(super) struct VidSet {
    words: Vec<u64>,
}

impl VidSet {
    /// `spread`: vids in the set, and those asked for, are less than this apart.
    pub(super) fn new(spread: usize) -> VidSet {
        // The vids before one that is asked for may be outside: they must not be taken for others.
        let words = spread.div_ceil(BITS as usize) + 1;
        VidSet { words: vec![0; words.next_power_of_two()] }
    }

    pub(super) fn insert(&mut self, vid: u32) {
        let (word, bit) = self.place(vid);
        self.words[word] |= bit;
    }

    #[inline]
    pub(super) fn remove(&mut self, vid: u32) {
        let (word, bit) = self.place(vid);
        self.words[word] &= !bit;
    }

    pub(super) fn clear(&mut self) {
        self.words.fill(0);
    }

    /// Visits the members, all of which are less than `spread` after the first of two vids; they move to the second.
    pub(super) fn visit(&mut self, v: &mut impl Visitor, [from, to]: [u32; 2], spread: u32) {
        let is_member = |&ahead: &u32| {
            let (word, bit) = self.place(from.wrapping_add(ahead));
            self.words[word] & bit != 0
        };
        let members: Vec<u32> = (0..spread).filter(is_member).collect();
        v.same(members.len() as u64);
        members.iter().for_each(|&ahead| v.same(ahead.into()));
        if from != to {
            self.clear();
            members.iter().for_each(|&ahead| self.insert(to.wrapping_add(ahead)));
        }
    }

    /// The members among the 64 vids before this one: bit i is `vid` − 1 − i.
    #[inline]
    pub(super) fn before(&self, vid: u32) -> u64 {
        let first = vid.wrapping_sub(BITS);
        let word = |vid| self.words[self.place(vid).0];
        // Nothing, if all 64 are in one word.
        let later = word(vid).checked_shl(BITS - vid % BITS).unwrap_or(0);
        (word(first) >> (first % BITS) | later).reverse_bits()
    }

    fn place(&self, vid: u32) -> (usize, u64) {
        ((vid / BITS) as usize & (self.words.len() - 1), 1 << (vid % BITS))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Vids move on as those of a tree do: new ones within the spread of the lowest, which go at some time.
        #[test]
        fn members_before_a_vid_are_those_of_a_set(
            spread in 2usize..300,
            first in prop_oneof![Just(0u32), Just(u32::MAX - 100), any::<u32>()],
            moves in proptest::collection::vec((0u32..300, 0u32..40, 0u32..300), 1..60),
        ) {
            let (mut set, mut model) = (VidSet::new(spread), BTreeSet::new());
            let spread = spread as u32;
            let mut lowest = 0;
            for (new, gone, asked) in moves {
                let new = lowest + new % spread;
                set.insert(first.wrapping_add(new));
                model.insert(new);
                let asked = lowest + asked % spread;
                let expected = (0..64).filter(|i| asked > *i && model.contains(&(asked - 1 - i)));
                let expected = expected.fold(0, |bits, i| bits | 1u64 << i);
                prop_assert_eq!(set.before(first.wrapping_add(asked)), expected);
                for gone in lowest..lowest + gone {
                    set.remove(first.wrapping_add(gone));
                    model.remove(&gone);
                }
                lowest += gone;
            }
            set.clear();
            prop_assert_eq!(set.before(first.wrapping_add(lowest)), 0);
        }
    }
}
