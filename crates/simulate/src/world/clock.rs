//! Simulated time: the true time of the run, and each process's clock, which drifts and jumps.

/// Nanoseconds of true time.
pub type Nanos = u64;

/// Nanoseconds per millisecond.
pub const MS: Nanos = 1_000_000;
/// Nanoseconds per second.
pub const SECOND: Nanos = 1_000_000_000;

/// A process's monotonic clock: it may run fast or slow and may jump forward, but never goes back.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    ahead: Nanos,
    permille: u64,
}

impl Clock {
    /// A clock that runs at `permille` thousandths of the rate of true time and starts `ahead` of it.
    pub fn new(ahead: Nanos, permille: u64) -> Clock {
        Clock { ahead, permille }
    }

    /// Local time at true time `at`.
    pub fn local(&self, at: Nanos) -> Nanos {
        self.ahead + (u128::from(at) * u128::from(self.permille) / 1000) as u64
    }

    /// The first true time at which the clock shows at least `local`.
    pub fn global(&self, local: Nanos) -> Nanos {
        let since = u128::from(local.saturating_sub(self.ahead));
        (since * 1000).div_ceil(u128::from(self.permille)) as u64
    }

    /// True time during which the clock advances by `local`.
    pub fn duration(&self, local: Nanos) -> Nanos {
        (u128::from(local) * 1000 / u128::from(self.permille)) as u64
    }

    /// Advances the clock at once.
    pub fn jump(&mut self, by: Nanos) {
        self.ahead += by;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_is_reached_when_it_is_due() {
        for permille in [900, 1000, 1037, 1100] {
            let mut clock = Clock::new(12_345, permille);
            for local in [12_345, 12_346, 99_999, 5 * SECOND] {
                let at = clock.global(local);
                assert!(clock.local(at) >= local);
                assert!(at == 0 || clock.local(at - 1) < local);
            }
            clock.jump(SECOND);
            assert_eq!(clock.global(SECOND), 0);
        }
    }
}
