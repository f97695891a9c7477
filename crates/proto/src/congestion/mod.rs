//! The congestion window of one tree: the rules of PANAMA and ATP, and the per-branch rule.
//!
//! A result carries the branches of the tree that were congested on the way up, a bit each, and whether it met
//! congestion on the way down. Each rule is a file with a type that implements [`Rule`]; [`Window`] chooses among them,
//! with one `match` per call.

mod aimd;
mod coupled;
mod dctcp;
mod fixed;
mod panama;
mod per_branch;

use aimd::Aimd;
use coupled::Coupled;
use fixed::Fixed;
use panama::Panama;

use crate::visit::Visitor;
use per_branch::PerBranch;

/// How a worker reacts to congestion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CongestionRule {
    /// PANAMA's: one DCTCP window, marked if any branch is.
    Panama,
    /// Minimum of one virtual DCTCP window per branch. The default.
    PerBranch,
    /// As `Panama`, but the windows of a job's trees together start and increase as one: on a link shared by all trees,
    /// such as the host's own, the job takes the share of one flow. MPTCP couples its subflows likewise (RFC 6356 §3).
    Coupled {
        /// Number of the job's trees, at least 1.
        trees: u8,
    },
    /// ATP's: additive increase, halved by a mark or a loss. The paper's constants are in bytes, for packets of 306.
    Aimd {
        /// Bytes of a fragment on the wire, with Ethernet's header.
        packet_bytes: u16,
    },
    /// No reaction: this many fragments in flight.
    Fixed(u16),
}

/// DCTCP's share of marked results after another window without marks.
pub fn without_marks(share: f64) -> f64 {
    dctcp::observed(share, 0.0)
}

/// Initial number of fragments in flight.
pub(crate) const INITIAL_WINDOW: u16 = 10;
/// Minimum window after a loss: with fewer, results that overtake a lost one could not reveal it, and each loss would
/// cost a time-out. Marks may reduce it further.
const LOSS_WINDOW_LEAST: f64 = 4.0;

/// Half a window, not below `least` unless it is there already.
fn halved(window: f64, least: f64) -> f64 {
    (window / 2.0).max(least.min(window))
}

/// The congestion rule of one tree. A value starts with the rule's initial window.
trait Rule {
    /// Fragments that may be in flight. The cap of the aggregators bounds them from above, 1 from below.
    fn window(&self) -> f64;

    /// Handles a result. `cap`: the aggregators' limit of fragments in flight.
    fn on_result(&mut self, result: &Arrival, cap: f64);

    /// Visits the state; all fragments before `base` have results.
    fn visit(&mut self, v: &mut impl Visitor, base: u64);

    /// Handles the loss of fragment `vid`; the next to be sent is `vid_next`. PANAMA's fabric is lossless; on one that
    /// is not, loss is the only signal of a switch that does not mark.
    fn on_loss(&mut self, vid: u64, vid_next: u64);
}

/// The properties of a result that rules use.
struct Arrival {
    /// Its fragment number.
    vid: u64,
    /// The number of the next fragment to be sent.
    vid_next: u64,
    /// Branches that marked on the way up.
    marks: u32,
    /// CE on the way down.
    down: bool,
}

impl Arrival {
    /// Whether any part of the path was congested.
    fn is_marked(&self) -> bool {
        self.marks != 0 || self.down
    }
}

/// Any rule.
#[derive(Clone, Debug)]
enum AnyRule {
    Panama(Panama),
    PerBranch(PerBranch),
    Coupled(Coupled),
    Aimd(Aimd),
    Fixed(Fixed),
}

/// Evaluates an expression with the rule of any variant.
macro_rules! with_rule {
    ($any:expr, $rule:ident => $body:expr) => {
        match $any {
            AnyRule::Panama($rule) => $body,
            AnyRule::PerBranch($rule) => $body,
            AnyRule::Coupled($rule) => $body,
            AnyRule::Aimd($rule) => $body,
            AnyRule::Fixed($rule) => $body,
        }
    };
}

impl AnyRule {
    fn new(rule: CongestionRule) -> AnyRule {
        match rule {
            CongestionRule::Panama => AnyRule::Panama(Panama::new(INITIAL_WINDOW.into())),
            CongestionRule::PerBranch => AnyRule::PerBranch(PerBranch::new()),
            CongestionRule::Coupled { trees } => AnyRule::Coupled(Coupled::new(trees)),
            CongestionRule::Aimd { packet_bytes } => AnyRule::Aimd(Aimd::new(packet_bytes)),
            CongestionRule::Fixed(fragments) => AnyRule::Fixed(Fixed(fragments)),
        }
    }
}

/// Fragments that one tree may have in flight.
#[derive(Clone, Debug)]
pub struct Window {
    rule: AnyRule,
    cap: u16,
}

impl Window {
    /// `cap`: the aggregators' initial limit.
    pub fn new(rule: CongestionRule, cap: u16) -> Self {
        Window { rule: AnyRule::new(rule), cap: cap.max(1) }
    }

    /// Visits the state; all fragments before `base` have results.
    pub(crate) fn visit(&mut self, v: &mut impl Visitor, base: u64) {
        let Window { rule, cap } = self;
        v.same((*cap).into());
        with_rule!(rule, rule => rule.visit(v, base));
    }

    /// Fragments that may be in flight, at least 1.
    pub fn fragments(&self) -> u32 {
        (self.exact() as u32).clamp(1, u32::from(self.cap))
    }

    /// The aggregators' limit.
    pub fn cap(&self) -> u16 {
        self.cap
    }

    /// Sets the limit from `window_cap` of the latest result; 0 would stop the job and counts as 1.
    pub fn set_cap(&mut self, cap: u16) {
        self.cap = cap.max(1);
    }

    /// Handles a result. `vid`: its number; `vid_next`: the next to be sent; `marks`: branches that marked on the way
    /// up; `down`: CE on the way down.
    pub fn on_result(&mut self, vid: u64, vid_next: u64, marks: u32, down: bool) {
        let result = Arrival { vid, vid_next, marks, down };
        with_rule!(&mut self.rule, rule => rule.on_result(&result, f64::from(self.cap)));
    }

    /// Handles the loss of a fragment.
    pub fn on_loss(&mut self, vid: u64, vid_next: u64) {
        with_rule!(&mut self.rule, rule => rule.on_loss(vid, vid_next));
    }

    /// The rule's window, before the cap.
    fn exact(&self) -> f64 {
        with_rule!(&self.rule, rule => rule.window())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drive(window: &mut Window, results: u64, marks: impl Fn(u64) -> u32) {
        for vid in 0..results {
            window.on_result(vid, vid + u64::from(window.fragments()), marks(vid), false);
        }
    }

    #[test]
    fn grows_to_the_cap_without_marks_and_never_past_it() {
        for rule in [CongestionRule::Panama, CongestionRule::PerBranch] {
            let mut window = Window::new(rule, 100);
            drive(&mut window, 1000, |_| 0);
            assert_eq!(window.fragments(), 100);
            window.set_cap(7);
            assert_eq!(window.fragments(), 7);
            window.set_cap(0);
            assert_eq!(window.fragments(), 1, "a cap of 0 would stop the job");
        }
    }

    #[test]
    fn atps_constants() {
        let mut window = Window::new(CongestionRule::Aimd { packet_bytes: 306 }, 1000);
        assert_eq!(window.fragments(), 200);
        window.on_result(0, 200, 0, false);
        assert_eq!(window.fragments(), 204, "1500 bytes more are 4.9 packets");
        window.on_result(1, 204, 1, false);
        window.on_result(2, 204, 0, true);
        window.on_loss(3, 204);
        assert_eq!(window.fragments(), 102, "halved once per window, whatever the signals");
        (204..306).for_each(|vid| window.on_result(vid, vid + 102, 0, false));
        assert_eq!(window.fragments(), 107, "above the threshold 1500 bytes per window");
        window.on_loss(306, 400);
        assert_eq!(window.fragments(), 53);
    }

    #[test]
    fn one_congested_branch_is_treated_alike_by_both_rules() {
        let marks = |vid| u32::from(vid % 10 == 0);
        let (mut paper, mut per_branch) =
            (Window::new(CongestionRule::Panama, 500), Window::new(CongestionRule::PerBranch, 500));
        drive(&mut paper, 5000, marks);
        drive(&mut per_branch, 5000, marks);
        assert!(paper.fragments().abs_diff(per_branch.fragments()) <= 2);
    }

    #[test]
    fn four_coupled_trees_increase_as_one() {
        let marks = |vid| u32::from(vid == 100);
        let mut alone = Window::new(CongestionRule::Panama, 500);
        let mut coupled = Window::new(CongestionRule::Coupled { trees: 4 }, 500);
        assert_eq!((alone.fragments(), coupled.fragments()), (10, 2));
        // Up to the first mark both grow by one per result; afterwards their increases per window differ.
        drive(&mut alone, 600, marks);
        drive(&mut coupled, 600, marks);
        let grown = |window: &mut Window| {
            let (before, results) = (window.exact(), u64::from(window.fragments()));
            (600..600 + results).for_each(|vid| window.on_result(vid, vid + results, 0, false));
            window.exact() - before
        };
        let (alone, coupled) = (grown(&mut alone), grown(&mut coupled));
        assert!((0.9..1.1).contains(&alone), "{alone}");
        assert!((0.22..0.28).contains(&coupled), "{coupled}");
    }

    #[test]
    fn loss_halves_once_per_window() {
        let mut window = Window::new(CongestionRule::PerBranch, 64);
        drive(&mut window, 500, |_| 0);
        window.on_loss(500, 564);
        window.on_loss(510, 565);
        assert_eq!(window.fragments(), 32);
        window.on_loss(564, 600);
        assert_eq!(window.fragments(), 16);
    }

    #[test]
    fn a_loss_after_more_results_than_fit_into_32_bits_halves_the_window() {
        let mut window = Window::new(CongestionRule::PerBranch, 64);
        drive(&mut window, 500, |_| 0);
        for vid in [1u64 << 31, 1 << 32, 3 << 31, 1 << 40] {
            let before = window.fragments();
            window.on_loss(vid, vid + 64);
            assert_eq!(window.fragments(), before / 2, "at {vid}");
            (vid + 64..vid + 564).for_each(|vid| window.on_result(vid, vid + 64, 0, false));
        }
    }

    #[test]
    fn a_fixed_window_does_not_react() {
        let mut window = Window::new(CongestionRule::Fixed(20), 64);
        drive(&mut window, 500, |_| u32::MAX);
        window.on_loss(1, 2);
        assert_eq!(window.fragments(), 20);
    }
}
