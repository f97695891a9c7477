//! DCTCP (RFC 8257), used by several rules: one control loop, and events at most once per window.

use super::halved;
use crate::visit::{Counted, Visitor};

/// DCTCP's gain g (RFC 8257 §3.3).
const GAIN: f64 = 1.0 / 16.0;

/// The share of marked results after another window, a `fraction` of which was marked.
pub(super) fn observed(alpha: f64, fraction: f64) -> f64 {
    (1.0 - GAIN) * alpha + GAIN * fraction
}

/// One DCTCP control loop.
#[derive(Clone, Debug)]
pub(super) struct Dctcp {
    pub(super) window: f64,
    ssthresh: f64,
    alpha: f64,
    results: u32,
    marked: u32,
}

impl Dctcp {
    pub(super) fn new(window: f64) -> Self {
        Dctcp { window, ssthresh: f64::INFINITY, alpha: 1.0, results: 0, marked: 0 }
    }

    /// Visits the state.
    pub(super) fn visit(&mut self, v: &mut impl Visitor) {
        let Dctcp { window, ssthresh, alpha, results, marked } = self;
        v.same(window.to_bits());
        v.same(ssthresh.to_bits());
        v.same(u64::from(*results) << 32 | u64::from(*marked));
        match *marked {
            0 => v.share(alpha),
            _ => v.same(alpha.to_bits()),
        }
    }

    /// `step`: increase per window of results above the threshold.
    pub(super) fn on_result(&mut self, marked: bool, step: f64) {
        self.results += 1;
        self.marked += u32::from(marked);
        if self.window >= self.ssthresh {
            self.window += step / self.window;
        } else if !marked {
            self.window += 1.0;
        }
    }

    pub(super) fn end_observation(&mut self) {
        let fraction = f64::from(self.marked) / f64::from(self.results.max(1));
        self.alpha = observed(self.alpha, fraction);
        if self.marked > 0 {
            self.window = (self.window * (1.0 - self.alpha / 2.0)).max(1.0);
            self.ssthresh = self.window;
        }
        (self.results, self.marked) = (0, 0);
    }

    /// Not below `least`, unless the window is there already.
    pub(super) fn halve(&mut self, least: f64) {
        self.window = halved(self.window, least);
        self.ssthresh = self.window;
    }

    pub(super) fn clip(&mut self, most: f64) {
        self.window = self.window.min(most);
    }
}

/// An event that occurs at most once per window of fragments.
#[derive(Clone, Debug, Default)]
pub(super) struct OncePerWindow {
    /// The first fragment that had not been sent at the last occurrence.
    ends: u64,
}

impl OncePerWindow {
    /// Visits the state; fragments that have results, all those before `base`, do not come again.
    pub(super) fn visit(&mut self, v: &mut impl Visitor, base: u64) {
        let OncePerWindow { ends } = self;
        v.same((*ends > base).into());
        if *ends > base {
            v.number(ends, Counted::Vids);
        }
    }

    /// Whether the event occurs at fragment `vid`; then not again before `vid_next`, the next to be sent.
    pub(super) fn happens(&mut self, vid: u64, vid_next: u64) -> bool {
        let happens = vid >= self.ends;
        if happens {
            self.ends = vid_next;
        }
        happens
    }
}
