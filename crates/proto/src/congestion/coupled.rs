//! The paper's rule for several trees that share a link: together they start and increase as one tree would.

use super::panama::Panama;
use super::{Arrival, INITIAL_WINDOW, Rule};
use crate::visit::Visitor;

/// The window of one of several coupled trees.
#[derive(Clone, Debug)]
pub(super) struct Coupled {
    window: Panama,
    trees: f64,
}

impl Coupled {
    pub(super) fn new(trees: u8) -> Coupled {
        let trees = f64::from(trees.max(1));
        Coupled { window: Panama::new((f64::from(INITIAL_WINDOW) / trees).max(1.0)), trees }
    }
}

impl Rule for Coupled {
    fn window(&self) -> f64 {
        self.window.window()
    }

    fn on_result(&mut self, result: &Arrival, cap: f64) {
        self.window.take(result, cap, 1.0 / self.trees);
    }

    fn visit(&mut self, v: &mut impl Visitor, base: u64) {
        let Coupled { window, trees: _ } = self;
        window.visit(v, base);
    }

    fn on_loss(&mut self, vid: u64, vid_next: u64) {
        self.window.on_loss(vid, vid_next);
    }
}
