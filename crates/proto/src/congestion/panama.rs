//! The paper's rule: the marks of all branches combined, and DCTCP on the combination.
//!
//! With several branches that are congested independently the job backs off for the *union* of the marks, and starves.

use super::dctcp::{Dctcp, OncePerWindow};
use super::{Arrival, LOSS_WINDOW_LEAST, Rule};
use crate::visit::Visitor;

/// One DCTCP window, marked if any branch is.
#[derive(Clone, Debug)]
pub(super) struct Panama {
    dctcp: Dctcp,
    observation: OncePerWindow,
    loss: OncePerWindow,
}

impl Panama {
    /// `initial`: initial number of fragments in flight.
    pub(super) fn new(initial: f64) -> Panama {
        let (observation, loss) = Default::default();
        Panama { dctcp: Dctcp::new(initial), observation, loss }
    }

    /// `step`: increase per window of results above the threshold.
    pub(super) fn take(&mut self, result: &Arrival, cap: f64, step: f64) {
        self.dctcp.on_result(result.is_marked(), step);
        if self.observation.happens(result.vid, result.vid_next) {
            self.dctcp.end_observation();
        }
        self.dctcp.clip(cap);
    }
}

impl Rule for Panama {
    fn window(&self) -> f64 {
        self.dctcp.window
    }

    fn on_result(&mut self, result: &Arrival, cap: f64) {
        self.take(result, cap, 1.0);
    }

    fn visit(&mut self, v: &mut impl Visitor, base: u64) {
        let Panama { dctcp, observation, loss } = self;
        dctcp.visit(v);
        observation.visit(v, base);
        loss.visit(v, base);
    }

    fn on_loss(&mut self, vid: u64, vid_next: u64) {
        if self.loss.happens(vid, vid_next) {
            self.dctcp.halve(LOSS_WINDOW_LEAST);
        }
    }
}
