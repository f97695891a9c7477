//! Random numbers that depend only on a seed and a purpose, so that a change in one part of a run does not change the
//! draws of other parts.

/// SplitMix64: reproducible and sufficient for choosing faults.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The stream of the purpose identified by `key`.
    pub fn of(seed: u64, key: &[u64]) -> Random {
        let mut random = Random(seed ^ 0x6e65_7473_756d);
        for &part in key {
            random.0 = random.next() ^ part.wrapping_mul(0xff51_afd7_ed55_8ccd);
        }
        random
    }

    /// 64 random bits.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// A number below `n`; `n` must be at least 1.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// A number in the range.
    pub fn within(&mut self, range: std::ops::RangeInclusive<u64>) -> u64 {
        range.start() + self.below(range.end() - range.start() + 1)
    }

    /// True with a probability in millionths.
    pub fn chance(&mut self, per_million: u32) -> bool {
        per_million > 0 && self.below(1_000_000) < u64::from(per_million)
    }

    /// One of the items.
    pub fn pick<T: Clone>(&mut self, items: &[T]) -> T {
        items[self.below(items.len() as u64) as usize].clone()
    }
}
