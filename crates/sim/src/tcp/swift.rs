//! Swift (Kumar et al., SIGCOMM 2020): a window that follows the delay of each segment, without marks.
//!
//! Left out: pacing below one segment, and delays within hosts, which have none here. Until the delay first exceeds its
//! target a flow doubles its window every round trip; loss is handled as with DCTCP.

use std::collections::VecDeque;

/// Parameters of all flows; the paper's names and defaults (§3, §5).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SwiftConfig {
    /// Delay of a large window: the base target with what hops add.
    pub target_ps: u64,
    /// A window of `LEAST` segments has a target that is so much longer (`fs_range`, §3.5).
    pub range_ps: u64,
    /// Segments by which the window grows in a round trip.
    pub increase: f64,
    /// How much of the excess of the delay the window is cut by.
    pub decrease: f64,
    /// The largest cut, as a share of the window.
    pub decrease_max: f64,
}

impl SwiftConfig {
    /// The delay that a window of so many segments aims at (§3.5: flows with small windows get longer queues).
    fn target_ps(&self, window: f64) -> f64 {
        let alpha = self.range_ps as f64 / (LEAST.powf(-0.5) - MOST.powf(-0.5));
        let more = alpha * (window.powf(-0.5) - MOST.powf(-0.5));
        self.target_ps as f64 + more.clamp(0.0, self.range_ps as f64)
    }
}

/// Windows between which the target depends on the window, in segments.
const LEAST: f64 = 0.1;
const MOST: f64 = 100.0;

/// A sender's state.
#[derive(Clone, Debug, Default)]
pub(super) struct Swift {
    /// When each segment from `una` on was sent; 0 for one that was sent twice.
    sent_ps: VecDeque<u64>,
    /// When the window was cut last.
    cut_ps: u64,
}

impl Swift {
    pub(super) fn send(&mut self, now_ps: u64, count: u32) {
        self.sent_ps.extend(std::iter::repeat_n(now_ps, count as usize));
    }

    /// The segment at this place is sent again: its acknowledgement says nothing about the delay.
    pub(super) fn send_again(&mut self, place: usize) {
        self.sent_ps[place] = 0;
    }

    pub(super) fn delay_ps(&self, now_ps: u64, place: usize) -> Option<u64> {
        self.sent_ps.get(place).filter(|&&sent_ps| sent_ps > 0).map(|sent_ps| now_ps - sent_ps)
    }

    pub(super) fn advance(&mut self, count: u32) {
        self.sent_ps.drain(..(count as usize).min(self.sent_ps.len()));
    }

    /// The window after an acknowledgement of `delivered` segments, one of which took `delay_ps`; whether it was cut.
    pub(super) fn follow(
        &mut self,
        config: &SwiftConfig,
        now_ps: u64,
        (delay_ps, delivered): (u64, u32),
        (window, grows_freely): (f64, bool),
    ) -> (f64, bool) {
        let (delay, target) = (delay_ps as f64, config.target_ps(window));
        if delay < target {
            let each = if grows_freely { 1.0 } else { config.increase / window };
            return (window + each * f64::from(delivered), false);
        }
        // Once in a round trip.
        if now_ps - self.cut_ps < delay_ps {
            return (window, false);
        }
        self.cut_ps = now_ps;
        let kept = 1.0 - config.decrease * (delay - target) / delay;
        ((window * kept.max(1.0 - config.decrease_max)).max(1.0), true)
    }

    /// Times of the state: when segments were sent, 0 for one that was sent twice, and of the last cut.
    pub(super) fn times_ps(&mut self) -> (&mut VecDeque<u64>, &mut u64) {
        (&mut self.sent_ps, &mut self.cut_ps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: SwiftConfig = SwiftConfig {
        target_ps: 50_000_000,
        range_ps: 100_000_000,
        increase: 1.0,
        decrease: 0.8,
        decrease_max: 0.5,
    };

    /// §3.5: the whole range at 0.1 segments, nothing from 100 on, in between by the root of the window.
    #[test]
    fn small_windows_aim_at_longer_delays() {
        for (window, more) in [(0.05, 1.0), (0.1, 1.0), (100.0, 0.0), (1000.0, 0.0)] {
            assert!((CONFIG.target_ps(window) - 50e6 - more * 100e6).abs() < 1.0, "{window}");
        }
        let at = |window: f64| (window.powf(-0.5) - 0.1) / (10f64.sqrt() - 0.1) * 100e6 + 50e6;
        for window in [0.5, 1.0, 7.0, 64.0] {
            assert!((CONFIG.target_ps(window) - at(window)).abs() < 1.0, "{window}");
        }
    }

    #[test]
    fn a_window_is_cut_by_the_excess_once_in_a_round_trip() {
        let config = SwiftConfig { range_ps: 0, ..CONFIG };
        let mut swift = Swift::default();
        let mut follow =
            |now_ps, delay_ps| swift.follow(&config, now_ps, (delay_ps, 2), (10.0, false));
        assert_eq!(follow(1_000_000_000, 49_000_000), (10.2, false));
        // A fifth of 62.5 µs is too much; 0.8 of it is cut.
        let (window, is_cut) = follow(1_000_000_000, 62_500_000);
        assert!((window - 8.4).abs() < 1e-9 && is_cut);
        assert_eq!(follow(1_062_000_000, 62_500_000), (10.0, false));
        assert_eq!(follow(1_062_500_000, 1_000_000_000_000), (10.0, false));
        assert_eq!(follow(1_200_000_000, 200_000_000), (5.0, true));
    }
}
