//! Finds links that have become slow, by what lanes do during a job.
//!
//! While a lane has something to send, its connection takes it at the link's rate. What that is usually, a lane learns
//! as it goes; topology files tell makers' rates, which are no measure. A lane is slow when it is at less than half of
//! that for some operations on end while another lane of its rank is not: where a machine is busy, all are slow.

/// The pace of a rank's lanes.
pub(super) struct Pace {
    lanes: Vec<LanePace>,
}

#[derive(Default, Clone)]
struct LanePace {
    /// So far, as [`super::lane::Lane::sent`] counts.
    sent: (u64, f64),
    /// Bytes per second; 0 as long as nothing is known.
    usual: f64,
    /// Operations on end that were slow.
    slow: u32,
    /// Share of the usual rate when that was last seen; 0 before.
    share: f64,
}

impl Pace {
    pub(super) fn new(lanes: usize) -> Pace {
        Pace { lanes: vec![LanePace::default(); lanes] }
    }

    /// Takes what lanes have sent after another operation; returns lanes that have become slow, each once, with the
    /// share of their usual rate that is left.
    pub(super) fn after(&mut self, sent: impl Iterator<Item = (u64, f64)>) -> Vec<(usize, f64)> {
        self.lanes.iter_mut().zip(sent).for_each(|(lane, sent)| lane.take(sent));
        // Fast lanes say something every few operations only: their last word counts.
        let healthy = self.lanes.iter().any(|lane| lane.share >= HEALTHY);
        let mut found = Vec::new();
        for (place, lane) in self.lanes.iter_mut().enumerate() {
            if !healthy && lane.slow > 0 {
                lane.slow -= 1;
            }
            if lane.slow == PATIENCE {
                // Counted on, so that it is told once.
                lane.slow += 1;
                found.push((place, lane.share));
            }
        }
        found
    }
}

impl LanePace {
    /// What was sent in all; too little more than the last time says nothing yet.
    fn take(&mut self, sent: (u64, f64)) {
        let (bytes, seconds) = (sent.0 - self.sent.0, sent.1 - self.sent.1);
        if bytes < BYTES_LEAST || seconds < SECONDS_LEAST {
            return;
        }
        self.sent = sent;
        let rate = bytes as f64 / seconds;
        self.share = if self.usual > 0.0 { rate / self.usual } else { 1.0 };
        if self.share < SLOW {
            self.slow = self.slow.saturating_add(1);
        } else {
            self.slow = 0;
            // A burst that buffers took is no rate: the usual follows slowly, in both directions.
            self.usual += (rate - self.usual) * if self.usual > 0.0 { FOLLOWS } else { 1.0 };
        }
    }
}

/// More than waits in the kernel.
const BYTES_LEAST: u64 = 128 << 10;
const SECONDS_LEAST: f64 = 1e-3;
const SLOW: f64 = 0.5;
const HEALTHY: f64 = 0.75;
/// Slow operations before it is said.
const PATIENCE: u32 = 4;
const FOLLOWS: f64 = 0.2;

#[cfg(test)]
mod tests {
    use super::*;

    /// Operations in which each lane sends 1 MB at these rates (MB/s); what was found after each.
    fn run(rates: &[&[f64]]) -> Vec<Vec<(usize, f64)>> {
        let lanes = rates[0].len();
        let mut pace = Pace::new(lanes);
        let mut sent = vec![(0u64, 0.0f64); lanes];
        let one = |rates: &&[f64]| {
            for (sent, rate) in sent.iter_mut().zip(*rates) {
                *sent = (sent.0 + 1_000_000, sent.1 + 1.0 / rate);
            }
            pace.after(sent.iter().copied())
        };
        rates.iter().map(one).collect()
    }

    #[test]
    fn a_lane_that_stays_slow_is_told_once() {
        let mut rates: Vec<&[f64]> = vec![&[10.0, 20.0]; 5];
        rates.extend([&[2.5, 20.0][..]; 8]);
        let found = run(&rates);
        let told: Vec<usize> = (0..found.len()).filter(|&at| !found[at].is_empty()).collect();
        assert_eq!(told, [8]);
        assert_eq!(found[8][0].0, 0);
        assert!((found[8][0].1 - 0.25).abs() < 0.01);
    }

    #[test]
    fn a_slow_machine_and_a_slow_moment_are_no_slow_link() {
        let mut rates: Vec<&[f64]> = vec![&[10.0, 20.0]; 5];
        rates.extend([&[2.0, 4.0][..]; 8]);
        rates.extend([&[10.0, 20.0][..]; 3]);
        for _ in 0..4 {
            rates.extend([&[2.0, 20.0][..]; 3]);
            rates.push(&[10.0, 20.0]);
        }
        assert!(run(&rates).iter().all(Vec::is_empty));
    }

    #[test]
    fn little_says_nothing() {
        let mut pace = Pace::new(1);
        let sent = |op: u64| [(op * 1000, op as f64)].into_iter();
        assert!((1..20).all(|op| pace.after(sent(op)).is_empty()));
        assert!(pace.lanes[0].usual == 0.0 && pace.lanes[0].slow == 0);
    }
}
