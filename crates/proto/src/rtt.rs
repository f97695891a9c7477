//! Retransmission time-out from measured round trips (RFC 6298).

use crate::visit::Visitor;

/// Time-out before the first measurement.
const INITIAL_RTO_NS: u64 = 100_000_000;
/// PANAMA requires a conservative time-out; a premature one costs a fragment and an answer.
const MIN_RTO_NS: u64 = 10_000_000;
/// A tree that answers again must be noticed soon, well within the time after which it counts as silent.
const MAX_RTO_NS: u64 = 250_000_000;

/// Smoothed round-trip time and the time-out derived from it. A round trip ends with the result, so it includes the
/// wait for the slowest worker.
#[derive(Clone, Debug, Default)]
pub(crate) struct RttEstimator {
    smoothed_ns: Option<u64>,
    variation_ns: u64,
}

impl RttEstimator {
    /// Visits the state.
    pub(crate) fn visit(&mut self, v: &mut impl Visitor) {
        let RttEstimator { smoothed_ns, variation_ns } = self;
        v.same(smoothed_ns.map_or(u64::MAX, |ns| ns));
        v.same(*variation_ns);
    }

    pub(crate) fn sample(&mut self, rtt_ns: u64) {
        match self.smoothed_ns {
            None => {
                self.smoothed_ns = Some(rtt_ns);
                self.variation_ns = rtt_ns / 2;
            }
            Some(smoothed) => {
                self.variation_ns = (3 * self.variation_ns + smoothed.abs_diff(rtt_ns)) / 4;
                self.smoothed_ns = Some((7 * smoothed + rtt_ns) / 8);
            }
        }
    }

    /// The smoothed round trip, once there is one.
    pub(crate) fn measured_ns(&self) -> Option<u64> {
        self.smoothed_ns
    }

    /// The same, 0 before the first sample.
    pub(crate) fn smoothed_ns(&self) -> u64 {
        self.smoothed_ns.unwrap_or(0)
    }

    /// Time-out after `backoffs` unanswered transmissions.
    pub(crate) fn rto_ns(&self, backoffs: u32) -> u64 {
        let base = match self.smoothed_ns {
            None => INITIAL_RTO_NS,
            Some(smoothed) => (smoothed + 4 * self.variation_ns).clamp(MIN_RTO_NS, MAX_RTO_NS),
        };
        (base << backoffs.min(8)).min(MAX_RTO_NS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_out_follows_the_round_trip_and_backs_off_within_bounds() {
        let mut rtt = RttEstimator::default();
        assert_eq!(rtt.rto_ns(0), INITIAL_RTO_NS);
        for _ in 0..100 {
            rtt.sample(20_000_000);
        }
        assert_eq!(rtt.smoothed_ns(), 20_000_000);
        assert!(rtt.rto_ns(0) < 21_000_000);
        assert_eq!(rtt.rto_ns(60), MAX_RTO_NS);
        for _ in 0..100 {
            rtt.sample(1_000);
        }
        assert_eq!(rtt.rto_ns(0), MIN_RTO_NS);
    }
}
