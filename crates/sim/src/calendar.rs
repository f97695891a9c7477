//! When links deliver: a bucketed calendar in which every link has at most one entry.
//!
//! The links of a bucket are a list, so nothing is allocated and inserting is a few writes. A bucket is sorted when it
//! becomes the current one, by time and then by [`order`]: equal times have one order in every run, which depends on the
//! time since the last [`Calendar::rebase`] of the links' island.

use std::sync::Arc;

use crate::packet::NO_LINK;

/// The next delivery of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// When.
    pub at_ps: u64,
    /// The link.
    pub link: u32,
    /// The link on which the packet goes on, for whoever looks ahead; `NO_LINK`: not known yet.
    pub onward: u32,
}

/// The calendar. Inserted times lie at most `horizon_ps` after the last entry that was removed; an empty calendar
/// accepts any time.
pub struct Calendar {
    heads: Vec<u32>,
    /// By link, the next one of its bucket. Apart from the links: a walk along a list in memory that is not in the cache
    /// would wait for each of them.
    next: Vec<u32>,
    /// One bit per bucket; set if the bucket is not empty.
    occupied: Vec<u64>,
    width_bits: u32,
    /// Bucket, counted from time 0, whose entries are in `batch`.
    current: u64,
    /// Entries of the current bucket and earlier ones, in descending order.
    batch: Vec<Delivery>,
    /// `batch` has just become the current bucket, and has several entries.
    is_new: bool,
    /// Entries of a bucket from which somebody should look ahead.
    ahead: usize,
    /// Number of entries in buckets.
    waiting: usize,
    /// The moments from which [`order`] counts, by island.
    bases_ps: Vec<u64>,
    /// By link, its island; empty: all links are on one.
    island_of: Arc<[u32]>,
}

/// The order of deliveries: by time, and at equal times by link in an order that depends on the time since `base_ps`.
/// Hosts that send on the acknowledgements of one queue are in step, so that their packets arrive together; in an order
/// by link alone the last one would lose each time the queue is full.
#[inline]
fn order(base_ps: u64, (at_ps, link): (u64, u32)) -> (u64, u32) {
    // Whether two links change places depends on one bit of the time's hash: the first in which they differ.
    let since_ps = at_ps.wrapping_sub(base_ps);
    (at_ps, link ^ (since_ps.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32)
}

/// Number of buckets: 64 KiB of list heads. With 6,144 busy links of 10 Gbit/s, a bucket holds about one entry.
const BUCKETS: u64 = 1 << 14;
/// Entries of a bucket, and links of a network, from which looking ahead pays: smaller networks stay in the cache.
const AHEAD: usize = 4;
const AHEAD_LINKS: usize = 8_192;

impl Calendar {
    /// A calendar of so many links for delays up to `horizon_ps`.
    pub fn new(horizon_ps: u64, links: usize) -> Calendar {
        // Time may be one horizon past the last entry removed, and an entry one horizon past that.
        let width = (2 * horizon_ps / (BUCKETS - 2)).max(1);
        Calendar {
            heads: vec![NO_LINK; BUCKETS as usize],
            next: vec![NO_LINK; links],
            occupied: vec![0; BUCKETS as usize / 64],
            width_bits: width.next_power_of_two().trailing_zeros(),
            current: 0,
            batch: Vec::with_capacity(64),
            is_new: false,
            ahead: if links >= AHEAD_LINKS { AHEAD } else { usize::MAX },
            waiting: 0,
            bases_ps: vec![0],
            island_of: Arc::default(),
        }
    }

    /// Sets the island of each link, before there are entries.
    pub fn set_islands(&mut self, island_of: &Arc<[u32]>) {
        let islands = island_of.iter().max().map_or(1, |&last| last as usize + 1);
        (self.bases_ps, self.island_of) = (vec![0; islands], Arc::clone(island_of));
    }

    /// The island of a link.
    #[inline]
    pub fn island_of(&self, link: u32) -> u32 {
        self.island_of.get(link as usize).copied().unwrap_or(0)
    }

    /// The moments from which the order of equal times counts, by island.
    pub fn bases_ps(&self) -> &[u64] {
        &self.bases_ps
    }

    /// The place of an entry in the order.
    #[inline]
    pub fn order(&self, entry: (u64, u32)) -> (u64, u32) {
        order(self.bases_ps[self.island_of(entry.1) as usize], entry)
    }

    /// From now on the order of equal times on an island counts from this moment; entries before it have been removed.
    pub fn rebase(&mut self, island: u32, base_ps: u64) {
        self.bases_ps[island as usize] = base_ps;
        self.sort();
    }

    fn sort(&mut self) {
        let mut batch = std::mem::take(&mut self.batch);
        let of = |entry: &Delivery| self.order((entry.at_ps, entry.link));
        batch.sort_unstable_by(|a, b| b.at_ps.cmp(&a.at_ps).then_with(|| of(b).cmp(&of(a))));
        self.batch = batch;
    }

    /// Removes all entries, which the caller inserts again at later times, and moves the bases by `by_ps`.
    pub(crate) fn clear_and_move(&mut self, by_ps: u64) {
        let Calendar {
            heads,
            next: _,
            occupied,
            width_bits: _,
            current,
            batch,
            is_new,
            ahead: _,
            waiting,
            bases_ps,
            island_of: _,
        } = self;
        heads.fill(NO_LINK);
        occupied.fill(0);
        batch.clear();
        *is_new = false;
        (*current, *waiting) = (0, 0);
        bases_ps.iter_mut().for_each(|base_ps| *base_ps += by_ps);
    }

    /// Inserts a link that has no entry.
    #[inline]
    pub fn insert(&mut self, link: u32, at_ps: u64, times: &mut impl Times) {
        let bucket = at_ps >> self.width_bits;
        *times.at_ps(link) = at_ps;
        let entry = Delivery { at_ps, link, onward: NO_LINK };
        if bucket <= self.current && !(self.waiting == 0 && self.batch.is_empty()) {
            let own = self.order((at_ps, link));
            let is_later = |e: &Delivery| e.at_ps > at_ps || self.order((e.at_ps, e.link)) > own;
            let place = self.batch.partition_point(is_later);
            self.batch.insert(place, entry);
            return;
        }
        if self.waiting == 0 && self.batch.is_empty() {
            self.current = bucket;
            self.batch.push(entry);
            return;
        }
        debug_assert!(bucket - self.current < BUCKETS, "an entry beyond the horizon");
        let slot = (bucket & (BUCKETS - 1)) as usize;
        self.next[link as usize] = self.heads[slot];
        self.heads[slot] = link;
        self.occupied[slot / 64] |= 1 << (slot % 64);
        self.waiting += 1;
    }

    /// The earliest entry; it stays in the calendar.
    #[inline]
    pub fn peek(&mut self, times: &mut impl Times) -> Option<Delivery> {
        if self.batch.is_empty() {
            if self.waiting == 0 {
                return None;
            }
            self.load(times);
        }
        self.batch.last().copied()
    }

    /// Whether several entries have become the current ones, and nobody has looked ahead at them.
    #[inline]
    pub fn is_new(&self) -> bool {
        self.is_new
    }

    /// From now on every bucket is looked at ahead of time, however few entries it has.
    pub fn always_look_ahead(&mut self) {
        self.ahead = 1;
    }

    /// The current entries.
    pub fn batch(&self) -> &[Delivery] {
        &self.batch
    }

    /// The current entries, for whoever looks ahead.
    pub fn look_ahead(&mut self) -> &mut [Delivery] {
        self.is_new = false;
        &mut self.batch
    }

    /// What has been looked up may have changed.
    pub fn forget_onward(&mut self) {
        self.batch.iter_mut().for_each(|entry| entry.onward = NO_LINK);
    }

    /// Removes the entry that `peek` returned; the link on which its packet goes on, if that is known.
    #[inline]
    pub fn pop(&mut self) -> u32 {
        self.batch.pop().map_or(NO_LINK, |entry| entry.onward)
    }

    #[inline]
    fn load(&mut self, times: &mut impl Times) {
        let slot = self.next_occupied();
        let mut link = std::mem::replace(&mut self.heads[slot], NO_LINK);
        self.occupied[slot / 64] &= !(1 << (slot % 64));
        while link != NO_LINK {
            self.batch.push(Delivery { at_ps: 0, link, onward: NO_LINK });
            link = self.next[link as usize];
        }
        for entry in &mut self.batch {
            entry.at_ps = *times.at_ps(entry.link);
        }
        self.is_new = self.batch.len() >= self.ahead;
        self.waiting -= self.batch.len();
        self.current = self.batch[0].at_ps >> self.width_bits;
        if self.batch.len() > 1 {
            self.sort();
        }
    }

    /// The first bucket that is not empty, searching around the ring from the current one.
    #[inline]
    fn next_occupied(&self) -> usize {
        let start = (self.current & (BUCKETS - 1)) as usize;
        let words = self.occupied.len();
        let first = self.occupied[start / 64] & (!0 << (start % 64));
        if first != 0 {
            return start / 64 * 64 + first.trailing_zeros() as usize;
        }
        for i in 1..=words {
            let word = (start / 64 + i) % words;
            if self.occupied[word] != 0 {
                return word * 64 + self.occupied[word].trailing_zeros() as usize;
            }
        }
        unreachable!("the caller knows of an entry")
    }
}

/// Access to the times at which links deliver next.
pub trait Times {
    /// That of a link.
    fn at_ps(&mut self, link: u32) -> &mut u64;
}

impl Times for Vec<u64> {
    fn at_ps(&mut self, link: u32) -> &mut u64 {
        &mut self[link as usize]
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::random::Random;

    #[test]
    fn no_link_comes_first_whenever_times_are_equal() {
        for (a, b) in [(0, 2), (0, 1), (6, 8), (100, 3)] {
            let times = (0..10_000).map(|i| i * 1_201_600);
            let first = times.filter(|&at| order(0, (at, a)) < order(0, (at, b))).count();
            assert!((4_500..5_500).contains(&first), "{a} and {b}: {first}");
        }
    }

    /// Compares with an ordered set, with idle gaps, equal times and entries in the current bucket.
    #[test]
    fn gives_entries_in_their_order() {
        for (seed, horizon) in [(1, 1_000_000), (2, 3_000), (3, 40), (4, 50_000_000_000)] {
            let mut random = Random::new(seed);
            let links = 300;
            let mut times = vec![0; links as usize];
            let (mut calendar, mut model) =
                (Calendar::new(horizon, links as usize), BTreeSet::new());
            let mut entered = vec![false; links as usize];
            let (mut now, mut base) = (0, 0);
            for step in 0..50_000 {
                if step % 5_000 == 0 && model.first().is_none_or(|&((at, _), _)| at > now) {
                    base = now;
                    calendar.rebase(0, base);
                    let moved =
                        model.iter().map(|&((at, _), link)| (order(base, (at, link)), link));
                    model = moved.collect();
                }
                let link = random.below(links) as u32;
                if !entered[link as usize] && random.below(10) < 6 {
                    let delay = random.below(horizon + 1) * random.below(2);
                    calendar.insert(link, now + delay, &mut times);
                    model.insert((order(base, (now + delay, link)), link));
                    entered[link as usize] = true;
                } else {
                    let first = model.pop_first().map(|((at, _), link)| (at, link));
                    let next = calendar.peek(&mut times);
                    assert_eq!(next.map(|next| (next.at_ps, next.link)), first);
                    match first {
                        Some((at, link)) => {
                            assert!(at >= now);
                            now = at;
                            calendar.pop();
                            entered[link as usize] = false;
                        }
                        None => now += random.below(100) * horizon,
                    }
                }
                // Time also passes between deliveries, up to the next one.
                if let Some(&((at, _), _)) = model.first() {
                    now += random.below((at - now) / 2 + 1);
                }
            }
        }
    }
}
