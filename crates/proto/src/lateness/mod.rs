//! How late each child of an aggregator is: the meter that every machine feeds with its packets.
//!
//! A fragment begins with its first arrival; what the other children send for it is late by the time since then.
//! `awaited_ns` is the time during which others had to wait for the child, `opening_ns` the part of it before the
//! child's first packet of a burst: a burst begins when nothing is outstanding. A rank that computes for too long is as
//! late in the middle of a burst as at its beginning, or less; what comes over a slow link is later and later. The
//! histogram says how the lateness of single fragments is distributed.
//!
//! The meter uses the time that the driver hands in, in constant time per packet and memory per child. While many
//! fragments are open it measures one in `EVERY`: neighbours in a dense burst are late by the same, and the others cost a
//! switch next to nothing.

mod stragglers;

pub use stragglers::{NodeReading, Slow, Straggler, stragglers};

use crate::Time;
use crate::children::ChildSet;
use crate::visit::Visitor;

/// Number of buckets of the histogram.
pub const BUCKETS: usize = 12;

/// Upper bound of the first bucket, as a power of two of nanoseconds; each other bucket ends four times later, and the
/// last has no end.
const FIRST_BITS: u32 = 10;

/// So many measured fragments may be open before only one in `EVERY` is measured.
const DENSE: u32 = 16;
/// See `DENSE`.
const EVERY: u32 = 4;

/// How late one child was, since its lease was installed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lateness {
    /// Measured fragments by their lateness: below 1,024 ns, 4,096 ns, and so on; the last bucket holds those of more than a second.
    pub histogram: [u64; BUCKETS],
    /// Sum of their lateness, in nanoseconds.
    pub late_ns: u64,
    /// Fragments of which the child was the last.
    pub last: u64,
    /// Time during which at least one fragment lacked the child and had another, in nanoseconds.
    pub awaited_ns: u64,
    /// Bursts in which the child has sent.
    pub bursts: u64,
    /// Time from the beginnings of these bursts to the child's first packets, in nanoseconds.
    pub opening_ns: u64,
}

impl Lateness {
    /// Exclusive upper bound of a bucket in nanoseconds; `None` for the last.
    pub fn bound_ns(bucket: usize) -> Option<u64> {
        (bucket + 1 < BUCKETS).then(|| 1 << (FIRST_BITS as usize + 2 * bucket))
    }

    /// Fragments in the histogram.
    pub fn fragments(&self) -> u64 {
        self.histogram.iter().sum()
    }

    /// Whether the child is late because it begins late: its fragments are late by about as much as its beginnings. Those
    /// of a slow link are later the longer a burst lasts, and a burst may last longer than the time of the figures.
    pub(crate) fn begins_late(&self) -> bool {
        let [fragments, bursts] =
            [self.fragments(), self.bursts].map(|count| u128::from(count.max(1)));
        let opening_ns = u128::from(self.opening_ns);
        opening_ns > 0 && 2 * opening_ns * fragments >= u128::from(self.late_ns) * bursts
    }

    /// The growth since an earlier reading; figures that fell began anew.
    pub fn since(&self, earlier: &Lateness) -> Lateness {
        if self.bursts < earlier.bursts || self.fragments() < earlier.fragments() {
            return *self;
        }
        let mut histogram = self.histogram;
        let before = earlier.histogram.iter();
        histogram
            .iter_mut()
            .zip(before)
            .for_each(|(now, before)| *now = now.saturating_sub(*before));
        Lateness {
            histogram,
            late_ns: self.late_ns.saturating_sub(earlier.late_ns),
            last: self.last.saturating_sub(earlier.last),
            awaited_ns: self.awaited_ns.saturating_sub(earlier.awaited_ns),
            bursts: self.bursts - earlier.bursts,
            opening_ns: self.opening_ns.saturating_sub(earlier.opening_ns),
        }
    }

    #[inline]
    fn count(&mut self, late_ns: u64) {
        // Zero has no bit; the first bucket takes FIRST_BITS bits.
        let bits = (u64::BITS - late_ns.leading_zeros()).saturating_sub(FIRST_BITS);
        self.histogram[((bits + 1) as usize / 2).min(BUCKETS - 1)] += 1;
        self.late_ns += late_ns;
    }
}

/// When a fragment began; its machine keeps this for the meter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Began(Time);

impl Began {
    /// Visits the state.
    pub(crate) fn visit(&mut self, v: &mut impl Visitor) {
        v.same((*self != Began::UNMEASURED).into());
        if *self != Began::UNMEASURED {
            v.moment(&mut self.0);
        }
    }

    /// Of a fragment that the meter leaves out.
    pub(crate) const UNMEASURED: Began = Began(Time(u64::MAX));
}

/// The meter of one lease.
#[derive(Clone, Debug, Default)]
pub(crate) struct Meter {
    children: Vec<Child>,
    /// Fragments that were left out since the last one that was measured.
    left_out: u32,
    /// Measured fragments that have begun.
    begun: u64,
    /// Those that are not complete.
    open: u32,
    /// Beginning of the burst.
    opened: Time,
    /// Children that have not sent in the burst, by bit.
    unheard: ChildSet,
    /// Children that no open fragment lacks, by bit.
    supplied: ChildSet,
}

#[derive(Clone, Debug, Default)]
struct Child {
    lateness: Lateness,
    /// Fragments that have begun and do not lack the child.
    supplied: u64,
    /// Since when others do.
    since: Time,
}

impl Meter {
    /// A meter of so many children; one child is late for nobody.
    pub(crate) fn new(children: usize) -> Meter {
        let children = if children > 1 { children } else { 0 };
        let supplied = (0..children).fold(0, |all, child| all | 1 << child);
        Meter { children: vec![Child::default(); children], supplied, ..Meter::default() }
    }

    /// Visits the state.
    pub(crate) fn visit(&mut self, v: &mut impl Visitor) {
        let Meter { children, left_out, begun, open, opened, unheard, supplied } = self;
        let all = children.iter().fold(0, |all: ChildSet, _| all << 1 | 1);
        v.same(u64::from(*left_out) << 32 | u64::from(*open));
        v.set(*unheard & all);
        v.set(*supplied);
        // Nobody reads it for children that have sent in the burst.
        if *open > 0 && *unheard & all != 0 {
            v.moment(opened);
        }
        for Child { lateness, supplied, since } in children {
            v.same(*begun - *supplied);
            if supplied != begun {
                v.moment(since);
            }
            v.count(supplied);
            let Lateness { histogram, late_ns, last, awaited_ns, bursts, opening_ns } = lateness;
            histogram.iter_mut().for_each(|count| v.count(count));
            [late_ns, last, awaited_ns, bursts, opening_ns].into_iter().for_each(|n| v.count(n));
        }
        v.count(begun);
    }

    /// The first packet of a fragment. The other calls for the fragment take what this one returns.
    #[inline]
    pub(crate) fn begin(&mut self, now: Time, child: usize) -> Began {
        if self.open >= DENSE && self.left_out + 1 < EVERY {
            self.left_out += 1;
            return Began::UNMEASURED;
        }
        self.left_out = 0;
        if self.children.is_empty() {
            return Began::UNMEASURED;
        }
        if self.open == 0 {
            self.opened = now;
            self.unheard = ChildSet::MAX;
        }
        self.open += 1;
        self.begun += 1;
        // A child that lags already lacks one fragment more, as its count stays behind `begun`.
        let mut awaited = self.supplied & !(1 << child);
        self.supplied &= 1 << child;
        while awaited != 0 {
            self.children[awaited.trailing_zeros() as usize].since = now;
            awaited &= awaited - 1;
        }
        let own = &mut self.children[child];
        own.supplied += 1;
        own.lateness.count(0);
        own.hear(now, self.opened, &mut self.unheard, 1 << child);
        Began(now)
    }

    /// Another packet of a fragment; `last`: whether it is complete now.
    #[inline]
    pub(crate) fn arrive(&mut self, now: Time, child: usize, began: Began, last: bool) {
        if began == Began::UNMEASURED {
            return;
        }
        let own = &mut self.children[child];
        own.lateness.count(now.since(began.0));
        own.hear(now, self.opened, &mut self.unheard, 1 << child);
        if own.supply(now, self.begun) {
            self.supplied |= 1 << child;
        }
        if last {
            own.lateness.last += 1;
            self.open = self.open.saturating_sub(1);
        }
    }

    /// A fragment ends that lacks the children of that bitmap, which will not be awaited any more.
    pub(crate) fn give_up(&mut self, now: Time, began: Began, lacking: ChildSet) {
        if began == Began::UNMEASURED {
            return;
        }
        for child in (0..self.children.len()).filter(|child| lacking >> child & 1 == 1) {
            if self.children[child].supply(now, self.begun) {
                self.supplied |= 1 << child;
            }
        }
        self.open = self.open.saturating_sub(1);
    }

    /// All fragments end.
    pub(crate) fn clear(&mut self) {
        self.open = 0;
        for (i, child) in self.children.iter_mut().enumerate() {
            child.supplied = self.begun;
            self.supplied |= 1 << i;
        }
    }

    /// By child; empty for a lease with one child. What is being awaited at `now` counts.
    pub(crate) fn read(&self, now: Time) -> impl Iterator<Item = Lateness> {
        let unheard = if self.open > 0 { self.unheard } else { 0 };
        self.children.iter().enumerate().map(move |(i, child)| {
            let mut lateness = child.lateness;
            if child.supplied != self.begun {
                lateness.awaited_ns += now.since(child.since);
                lateness.opening_ns +=
                    if unheard >> i & 1 == 1 { now.since(self.opened) } else { 0 };
            }
            lateness
        })
    }
}

impl Child {
    /// A fragment no longer lacks the child; true if now none of the `begun` ones does.
    #[inline]
    fn supply(&mut self, now: Time, begun: u64) -> bool {
        if self.supplied == begun {
            return false;
        }
        self.supplied += 1;
        if self.supplied != begun {
            return false;
        }
        self.lateness.awaited_ns += now.since(self.since);
        true
    }

    /// A packet of the child, perhaps its first of the burst that began at `opened`.
    #[inline]
    fn hear(&mut self, now: Time, opened: Time, unheard: &mut ChildSet, bit: ChildSet) {
        if *unheard & bit != 0 {
            *unheard &= !bit;
            self.lateness.bursts += 1;
            self.lateness.opening_ns += now.since(opened);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Children send fragments `0..fragments` at the times that `at` gives, in the order of time.
    fn run(children: usize, fragments: usize, at: impl Fn(usize, usize) -> u64) -> Vec<Lateness> {
        let mut packets: Vec<_> = (0..children)
            .flat_map(|child| (0..fragments).map(move |fragment| (child, fragment)))
            .map(|(child, fragment)| (at(child, fragment), child, fragment))
            .collect();
        packets.sort_unstable();
        let mut meter = Meter::new(children);
        let mut begun = vec![None; fragments];
        let mut arrived = vec![0; fragments];
        let end = Time(packets.last().unwrap().0);
        for (now, child, fragment) in packets {
            arrived[fragment] += 1;
            match begun[fragment] {
                None => begun[fragment] = Some(meter.begin(Time(now), child)),
                Some(began) => {
                    meter.arrive(Time(now), child, began, arrived[fragment] == children);
                }
            }
        }
        assert_eq!(meter.open, 0);
        meter.read(end).collect()
    }

    #[test]
    fn a_late_child_is_awaited_before_its_first_packet_and_a_slow_link_after_it() {
        let late = run(4, 16, |child, fragment| {
            10 * fragment as u64 + if child == 2 { 5_000_000 } else { 0 }
        });
        assert_eq!(late[2].last, 16);
        assert_eq!(late[2].awaited_ns, 5_000_000 + 15 * 10);
        assert_eq!(late[2].opening_ns, 5_000_000);
        // The first fragment is complete once the second has begun, so all of them are one burst.
        let slow = run(4, 16, |child, fragment| match child {
            2 => 10 + 80_000 * fragment as u64,
            _ => 10 * fragment as u64,
        });
        assert_eq!(slow[2].awaited_ns, 10 + 15 * 80_000);
        assert_eq!((slow[2].bursts, slow[2].opening_ns), (1, 10), "its first packet came in time");
        for child in [0, 1, 3] {
            assert_eq!(late[child].awaited_ns + slow[child].awaited_ns, 0);
        }
    }

    #[test]
    fn one_in_four_fragments_of_a_dense_burst_is_measured_and_the_waits_stay_the_same() {
        let late = run(4, 1_000, |child, fragment| {
            10 * fragment as u64 + if child == 2 { 5_000_000 } else { 0 }
        });
        let measured = u64::from(DENSE) + (1_000 - u64::from(DENSE)) / u64::from(EVERY);
        assert_eq!((late[2].last, late[2].fragments()), (measured, measured));
        assert_eq!(late[2].late_ns, measured * 5_000_000);
        // The last fragment that is measured is the last but three at most.
        assert!((5_000_000 + 996 * 10..=5_000_000 + 999 * 10).contains(&late[2].awaited_ns));
        assert_eq!((late[2].bursts, late[2].opening_ns), (1, 5_000_000));
        assert!(late[2].begins_late());
        // Fragments that end before the next one begins are measured all.
        let single = run(4, 1_000, |child, fragment| 1_000 * fragment as u64 + child as u64);
        assert_eq!(single[3].fragments(), 1_000);
        assert_eq!((single[3].bursts, single[3].last, single[3].awaited_ns), (1_000, 1_000, 3_000));
    }

    #[test]
    fn lateness_is_counted_by_powers_of_four() {
        let mut lateness = Lateness::default();
        let edges: Vec<u64> = (0..BUCKETS).filter_map(Lateness::bound_ns).collect();
        assert_eq!((edges[0], edges[5], edges.len()), (1024, 1 << 20, BUCKETS - 1));
        for (bucket, &edge) in edges.iter().enumerate() {
            lateness.count(edge - 1);
            assert_eq!(lateness.histogram[bucket], bucket.min(1) as u64 + 1, "below {edge}");
            lateness.count(edge);
            assert_eq!(lateness.histogram[bucket + 1], 1, "at {edge}");
        }
        lateness.count(u64::MAX >> 1);
        assert_eq!(lateness.fragments(), 2 * edges.len() as u64 + 1);
    }

    #[test]
    fn what_is_awaited_now_counts_until_it_is_given_up() {
        let mut meter = Meter::new(3);
        let [first, second] = [100, 200].map(|at| meter.begin(Time(at), 0));
        meter.arrive(Time(300), 1, first, false);
        let awaited = |meter: &Meter| -> Vec<_> {
            meter.read(Time(1_100)).map(|l| (l.awaited_ns, l.opening_ns)).collect()
        };
        assert_eq!(awaited(&meter), [(0, 0), (1_000, 200), (1_000, 1_000)]);
        meter.give_up(Time(500), first, 0b100);
        meter.give_up(Time(600), second, 0b110);
        assert_eq!(awaited(&meter), [(0, 0), (500, 200), (500, 0)]);
        meter.begin(Time(700), 2);
        meter.clear();
        assert_eq!(awaited(&meter), [(0, 0), (500, 200), (500, 0)]);
    }

    #[test]
    fn a_single_child_is_late_for_nobody() {
        let mut meter = Meter::new(1);
        let began = meter.begin(Time(1), 0);
        meter.arrive(Time(9), 0, began, true);
        meter.give_up(Time(9), began, 1);
        assert_eq!(meter.read(Time(9)).count(), 0);
    }
}
