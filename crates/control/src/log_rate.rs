//! A bound on what peers can make a process log.

use std::time::{Duration, Instant};

/// Bounds the rate at which peers can write to the log: one event a second, and a burst after a pause.
#[derive(Debug, Default)]
pub struct LogRate {
    /// The most events beyond those of the rate.
    burst: u32,
    /// Those that are left.
    spare: u32,
    last: Option<Instant>,
    unlogged: u64,
}

impl LogRate {
    /// Allows `burst` events more after a pause.
    pub fn with_burst(burst: u32) -> LogRate {
        LogRate { burst, spare: burst, ..LogRate::default() }
    }

    /// Whether to log now; if so, the number of events that were not logged before.
    pub fn due(&mut self, now: Instant) -> Option<u64> {
        let rested = self.last.map_or(1, |last| {
            let intervals = now.duration_since(last).as_nanos() / LOG_INTERVAL.as_nanos();
            u32::try_from(intervals).unwrap_or(u32::MAX)
        });
        match (rested, self.spare) {
            (0, 0) => {
                self.unlogged += 1;
                return None;
            }
            (0, _) => self.spare -= 1,
            (rested, spare) => self.spare = spare.saturating_add(rested - 1).min(self.burst),
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.unlogged))
    }
}

const LOG_INTERVAL: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_rate_is_bounded_and_nothing_is_forgotten() {
        let (mut rate, start) = (LogRate::default(), Instant::now());
        assert_eq!(rate.due(start), Some(0));
        for _ in 0..1000 {
            assert_eq!(rate.due(start + LOG_INTERVAL / 2), None);
        }
        assert_eq!(rate.due(start + LOG_INTERVAL), Some(1000));
        assert_eq!(rate.due(start + LOG_INTERVAL * 2), Some(0));
    }

    #[test]
    fn a_burst_is_logged_and_comes_back_with_time() {
        let (mut rate, start) = (LogRate::with_burst(3), Instant::now());
        let logged = |rate: &mut LogRate, at| (0..10).filter(|_| rate.due(at).is_some()).count();
        assert_eq!(logged(&mut rate, start), 4);
        assert_eq!(logged(&mut rate, start + LOG_INTERVAL), 1);
        assert_eq!(rate.due(start + LOG_INTERVAL * 3), Some(9));
        assert_eq!(logged(&mut rate, start + LOG_INTERVAL * 3), 1);
        assert_eq!(logged(&mut rate, start + LOG_INTERVAL * 1000), 4);
    }
}
