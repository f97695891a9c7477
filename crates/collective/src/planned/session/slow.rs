//! Links that have become slow: who tells whom, and whether it is worth another plan.

use super::State;
use crate::core::About;
use crate::planned::LostLink;

impl State {
    /// Rank 0, between operations: whether to plan anew because links have become slow; says why.
    pub(super) fn relieved(&mut self) -> Option<String> {
        let epoch = self.epoch;
        let told = self.words.paces.try_iter().filter(|control| control.epoch == epoch);
        let told =
            told.filter_map(|control| serde_json::from_slice::<Vec<LostLink>>(&control.bytes).ok());
        let slow: Vec<LostLink> = told.flatten().chain(self.slow.drain(..)).collect();
        let least = slow.iter().map(|link| link.left).fold(1.0, f64::min);
        let now = self.plan.as_ref()?.rate_bps.to_f64() * least;
        if slow.is_empty() {
            return None;
        }
        let before = self.lost.clone();
        let words: Vec<String> = slow.iter().map(LostLink::to_string).collect();
        self.remember(slow);
        let better = self.replan().is_ok_and(|plan| plan.rate_bps.to_f64() > now * WORTH_A_PAUSE);
        if !better {
            self.lost = before;
        }
        better.then(|| format!("slow: {}", words.join(", ")))
    }

    /// Tells rank 0 of links that have become slow.
    pub(super) fn tell_slow(&mut self, slow: Vec<LostLink>) {
        if slow.is_empty() {
            return;
        }
        if self.leads() {
            self.slow.extend(slow);
            return;
        }
        let bytes = serde_json::to_vec(&slow).expect("plain values");
        self.core.tell(0, About::Pace, self.epoch, bytes);
    }
}

/// How much faster a plan must be, by the rates that are left, to be worth the connections of its lanes.
const WORTH_A_PAUSE: f64 = 1.1;
