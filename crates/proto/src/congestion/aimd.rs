//! ATP's rule: additive increase, halved by a mark or a loss.

use super::dctcp::OncePerWindow;
use super::{Arrival, LOSS_WINDOW_LEAST, Rule, halved};
use crate::visit::Visitor;

/// ATP's first window, 200 packets: the bandwidth-delay product of 100 Gbit/s.
const INITIAL_BYTES: f64 = 200.0 * 306.0;
/// Increase per result below the threshold, and per window above it.
const STEP_BYTES: f64 = 1500.0;

/// One window, for packets of one size.
#[derive(Clone, Debug)]
pub(super) struct Aimd {
    window: f64,
    ssthresh: f64,
    /// [`STEP_BYTES`] in packets.
    step: f64,
    cut: OncePerWindow,
}

impl Aimd {
    /// `packet_bytes`: a fragment on the wire.
    pub(super) fn new(packet_bytes: u16) -> Aimd {
        let bytes = f64::from(packet_bytes.max(1));
        let window = (INITIAL_BYTES / bytes).max(1.0);
        let (ssthresh, step) = (f64::INFINITY, STEP_BYTES / bytes);
        Aimd { window, ssthresh, step, cut: OncePerWindow::default() }
    }

    /// A result's mark halves the window like a loss, once per window: the results of one congested
    /// window are all marked. Not below `least`, unless the window is there already.
    fn halve(&mut self, vid: u64, vid_next: u64, least: f64) {
        if self.cut.happens(vid, vid_next) {
            self.window = halved(self.window, least);
            self.ssthresh = self.window;
        }
    }
}

impl Rule for Aimd {
    fn window(&self) -> f64 {
        self.window
    }

    fn on_result(&mut self, result: &Arrival, cap: f64) {
        if result.is_marked() {
            return self.halve(result.vid, result.vid_next, 1.0);
        }
        let Aimd { window, ssthresh, step, .. } = *self;
        let grown = window + if window < ssthresh { step } else { step / window };
        self.window = grown.min(cap);
    }

    fn visit(&mut self, v: &mut impl Visitor, base: u64) {
        let Aimd { window, ssthresh, step: _, cut } = self;
        v.same(window.to_bits());
        v.same(ssthresh.to_bits());
        cut.visit(v, base);
    }

    fn on_loss(&mut self, vid: u64, vid_next: u64) {
        self.halve(vid, vid_next, LOSS_WINDOW_LEAST);
    }
}
