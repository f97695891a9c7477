//! Own random number generator: the same seed gives the same run in every version of every library.

/// SplitMix64 (Steele, Lea, Flood 2014).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A stream; different seeds give independent streams.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// A stream for one purpose, independent of the streams for other purposes.
    pub fn derived(seed: u64, purpose: &str) -> Random {
        let name = purpose.bytes().fold(0xcbf2_9ce4_8422_2325, |h: u64, b| {
            (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        Random(mix(seed) ^ name)
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        let bits = self.nth(0);
        self.0 = self.0.wrapping_add(INCREMENT);
        bits
    }

    /// What `bits` returns after `n` draws.
    pub(crate) fn nth(&self, n: u64) -> u64 {
        mix(self.0.wrapping_add(INCREMENT.wrapping_mul(n.wrapping_add(1))))
    }

    /// A number below `n`, which must not be 0.
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(n)) >> 64) as u64
    }

    /// A number in [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Exponentially distributed.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.unit()).ln()
    }

    /// Fisher–Yates shuffle.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i as u64 + 1) as usize);
        }
    }
}

const INCREMENT: u64 = 0x9e37_79b9_7f4a_7c15;

/// SplitMix64's finaliser: every bit of the input affects every bit of the output.
#[inline]
pub fn mix(bits: u64) -> u64 {
    let mut z = bits;
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_have_their_means() {
        let mut random = Random::derived(1, "test");
        let n = 200_000;
        let mean = (0..n).map(|_| random.exponential(3.0)).sum::<f64>() / f64::from(n);
        assert!((mean - 3.0).abs() < 0.03, "{mean}");
        let mean = (0..n).map(|_| random.below(11) as f64).sum::<f64>() / f64::from(n);
        assert!((mean - 5.0).abs() < 0.03, "{mean}");
    }

    #[test]
    fn any_draw_can_be_made_alone() {
        let first = Random::derived(3, "test");
        let mut random = first.clone();
        (0..100).for_each(|n| assert_eq!(random.bits(), first.nth(n)));
    }

    #[test]
    fn purposes_are_apart_and_repeatable() {
        let first = |purpose| Random::derived(9, purpose).bits();
        assert_eq!(first("a"), first("a"));
        assert_ne!(first("a"), first("b"));
    }
}
