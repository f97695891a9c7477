//! The per-branch rule: the minimum of one virtual DCTCP window per branch. Each branch gets the reaction of a DCTCP
//! flow through it alone.

use super::dctcp::{Dctcp, OncePerWindow};
use super::{Arrival, INITIAL_WINDOW, LOSS_WINDOW_LEAST, Rule};
use crate::visit::Visitor;

/// Limits a virtual window relative to the least one, by this factor and offset: it must not run away while another
/// branch holds it back, and must be free to grow past it.
const CLIP_FACTOR: f64 = 2.0;
const CLIP_OFFSET: f64 = 4.0;
/// Bit of the way down, after the 32 branches of the way up.
const DOWN: u8 = 32;

/// The windows of a tree's branches.
#[derive(Clone, Debug)]
pub(super) struct PerBranch {
    /// The loop shared by all branches that never marked.
    clear: Dctcp,
    /// Branches that have marked.
    marked: Vec<(u8, Dctcp)>,
    observation: OncePerWindow,
    loss: OncePerWindow,
}

impl PerBranch {
    pub(super) fn new() -> PerBranch {
        let (observation, loss) = Default::default();
        let clear = Dctcp::new(INITIAL_WINDOW.into());
        PerBranch { clear, marked: Vec::new(), observation, loss }
    }

    fn each(&mut self, change: impl Fn(&mut Dctcp)) {
        change(&mut self.clear);
        self.marked.iter_mut().for_each(|(_, dctcp)| change(dctcp));
    }

    fn on_branches(&mut self, bits: u64) {
        let mut new = bits;
        for (branch, dctcp) in &mut self.marked {
            dctcp.on_result(bits >> *branch & 1 == 1, 1.0);
            new &= !(1 << *branch);
        }
        while new != 0 {
            // So far this branch behaved like all that never marked: it starts with their state.
            let mut dctcp = self.clear.clone();
            dctcp.on_result(true, 1.0);
            self.marked.push((new.trailing_zeros() as u8, dctcp));
            new &= new - 1;
        }
        self.clear.on_result(false, 1.0);
    }
}

impl Rule for PerBranch {
    fn window(&self) -> f64 {
        self.marked.iter().map(|(_, dctcp)| dctcp.window).fold(self.clear.window, f64::min)
    }

    fn on_result(&mut self, result: &Arrival, cap: f64) {
        self.on_branches(u64::from(result.marks) | u64::from(result.down) << DOWN);
        if self.observation.happens(result.vid, result.vid_next) {
            self.each(Dctcp::end_observation);
        }
        let most = (CLIP_FACTOR * self.window() + CLIP_OFFSET).min(cap);
        self.each(|dctcp| dctcp.clip(most));
    }

    fn visit(&mut self, v: &mut impl Visitor, base: u64) {
        let PerBranch { clear, marked, observation, loss } = self;
        clear.visit(v);
        v.same(marked.len() as u64);
        for (branch, dctcp) in marked {
            v.same((*branch).into());
            dctcp.visit(v);
        }
        observation.visit(v, base);
        loss.visit(v, base);
    }

    fn on_loss(&mut self, vid: u64, vid_next: u64) {
        if self.loss.happens(vid, vid_next) {
            self.each(|dctcp| dctcp.halve(LOSS_WINDOW_LEAST));
        }
    }
}
