//! Waiting times between attempts to reach the controller.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Doubles from `FIRST` to `MOST`, each time with a random part, so that a thousand workers do not reconnect at the
/// same instant.
#[derive(Debug)]
pub(super) struct Backoff {
    attempts: u32,
    random: u64,
}

impl Backoff {
    /// Seeded by process and time: it is sufficient that processes differ.
    pub fn new() -> Backoff {
        let now =
            SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
        Backoff { attempts: 0, random: now ^ u64::from(std::process::id()) << 32 | 1 }
    }

    /// A random time between half of the current waiting time and all of it.
    pub fn next(&mut self) -> Duration {
        let due = FIRST.saturating_mul(1 << self.attempts.min(10)).min(MOST);
        self.attempts = self.attempts.saturating_add(1);
        // xorshift64: sufficient to spread processes.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        due / 2 + due.mul_f64((self.random % 1000) as f64 / 2000.0)
    }

    /// Resets the waiting time, after the controller answered.
    pub fn reset(&mut self) {
        self.attempts = 0;
    }
}

/// A stream that broke by chance reconnects well within the controller's grace of 3 s.
const FIRST: Duration = Duration::from_millis(50);
/// A job must be back on all trees 2 s after a fault ends. The planner needs the switches' streams for that, and an
/// attempt may itself wait a second for a retransmitted SYN.
const MOST: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_to_its_bound_and_restarts() {
        let mut backoff = Backoff::new();
        for attempt in 0..100 {
            let wait = backoff.next();
            let due = FIRST.saturating_mul(1 << attempt.min(10)).min(MOST);
            assert!(wait >= due / 2 && wait <= due, "attempt {attempt}: {wait:?}");
        }
        backoff.reset();
        assert!(backoff.next() <= FIRST);
    }
}
