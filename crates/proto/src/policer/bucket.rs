//! A token bucket in whole numbers.

use crate::Time;

/// Tokens that refill at a rate. A new bucket is full.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bucket {
    /// Missing tokens, in billionths: a rate per second times nanoseconds.
    missing: u128,
    at: Time,
}

/// Rate and size of a bucket. The rate may change at any time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size {
    /// Tokens per second.
    pub rate: u64,
    /// Tokens when full.
    pub depth: u64,
}

/// What a packet meets in a bucket. Of several buckets, the largest counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// More than half of the tokens are left.
    High,
    /// At most half of the tokens are left.
    Low,
    /// There are too few tokens for the packet.
    Empty,
}

const BILLION: u128 = 1_000_000_000;

impl Bucket {
    pub(super) fn full(now: Time) -> Bucket {
        Bucket { missing: 0, at: now }
    }

    /// The level after `tokens` have been taken. Takes nothing.
    #[inline]
    pub(super) fn level(&mut self, now: Time, size: Size, tokens: u64) -> Level {
        let refilled = u128::from(size.rate) * u128::from(now.since(self.at));
        self.missing = self.missing.saturating_sub(refilled);
        // Clocks that several threads read one after the other may differ a little.
        self.at = self.at.max(now);
        let (after, depth) = (self.missing + scaled(tokens), scaled(size.depth));
        match () {
            () if after > depth => Level::Empty,
            () if after * 2 > depth => Level::Low,
            () => Level::High,
        }
    }

    /// Takes tokens that `level` has found.
    #[inline]
    pub(super) fn take(&mut self, tokens: u64) {
        self.missing += scaled(tokens);
    }
}

fn scaled(tokens: u64) -> u128 {
    u128::from(tokens) * BILLION
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Tokens, and nanoseconds since the previous packet.
    fn packets() -> impl Strategy<Value = Vec<(u64, u64)>> {
        prop::collection::vec((1..2_000u64, 0..2_000_000u64), 1..60)
    }

    fn sizes() -> impl Strategy<Value = Size> {
        (1..100_000_000_000u64, 2_000..200_000u64).prop_map(|(rate, depth)| Size { rate, depth })
    }

    proptest! {
        #[test]
        fn what_passes_is_at_most_the_depth_and_the_rate_of_any_interval(
            packets in packets(),
            size in sizes(),
        ) {
            let mut bucket = Bucket::full(Time(0));
            let mut now = Time(0);
            let mut passed: Vec<(Time, u64)> = Vec::new();
            for (tokens, gap_ns) in packets {
                now = now.after(gap_ns);
                if bucket.level(now, size, tokens) != Level::Empty {
                    bucket.take(tokens);
                    passed.push((now, tokens));
                }
            }
            for (first, &(start, _)) in passed.iter().enumerate() {
                let mut sum = 0;
                for &(end, tokens) in &passed[first..] {
                    sum += u128::from(tokens) * BILLION;
                    let refilled = u128::from(size.rate) * u128::from(end.since(start));
                    prop_assert!(sum <= u128::from(size.depth) * BILLION + refilled);
                }
            }
        }

        #[test]
        fn traffic_below_the_rate_never_meets_an_empty_bucket(
            tokens in prop::collection::vec(1..2_000u64, 1..200),
            size in sizes(),
        ) {
            let mut bucket = Bucket::full(Time(0));
            let mut now = Time(0);
            for tokens in tokens {
                prop_assert_ne!(bucket.level(now, size, tokens), Level::Empty);
                bucket.take(tokens);
                now = now.after((u128::from(tokens) * BILLION).div_ceil(size.rate.into()) as u64);
            }
        }
    }

    #[test]
    fn the_lower_half_is_low() {
        let size = Size { rate: 1_000, depth: 10 };
        let mut bucket = Bucket::full(Time(0));
        assert_eq!(bucket.level(Time(0), size, 5), Level::High);
        bucket.take(5);
        assert_eq!(bucket.level(Time(0), size, 5), Level::Low);
        bucket.take(5);
        assert_eq!(bucket.level(Time(0), size, 1), Level::Empty);
        assert_eq!(bucket.level(Time(1_000_000), size, 1), Level::Low, "a token per millisecond");
    }

    #[test]
    fn a_long_time_at_a_high_rate_does_not_overflow() {
        let size = Size { rate: u64::MAX, depth: u64::MAX };
        let mut bucket = Bucket::full(Time(0));
        assert_eq!(bucket.level(Time(u64::MAX), size, u64::MAX / 2), Level::High);
    }

    #[test]
    fn a_clock_that_is_a_little_behind_refills_nothing_twice() {
        let size = Size { rate: 1_000_000_000, depth: 1_000 };
        let mut bucket = Bucket::full(Time(0));
        bucket.take(1_000);
        assert_eq!(bucket.level(Time(1_000), size, 1_000), Level::Low);
        bucket.take(1_000);
        assert_eq!(bucket.level(Time(0), size, 1), Level::Empty);
        assert_eq!(bucket.level(Time(1_000), size, 1), Level::Empty, "that time has been paid");
    }
}
