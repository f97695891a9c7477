//! The window of one tree: PANAMA's reaction to ECN, and ours.
//!
//! A result says which branches of the tree were congested on the way up, a bit each, and whether it met
//! congestion on the way down. The paper ORs everything into one mark and runs DCTCP on it (RFC 8257);
//! with several independently congested branches the job then backs off for the *union* of the marks and
//! starves. The per-branch rule keeps one virtual DCTCP window per branch and uses the least: each
//! branch gets the reaction that a DCTCP flow through it alone would show.

/// How a worker reacts to congestion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CongestionRule {
    /// The paper's: one DCTCP window, marked if any branch is.
    Panama,
    /// Least of one virtual DCTCP window per branch. The default.
    PerBranch,
    /// As `Panama`, and the windows of a job's trees together begin and increase as one would: on a link that all of them
    /// share, a host's own, the job takes the share of one flow. As MPTCP couples its subflows (RFC 6356 §3).
    Coupled {
        /// Of the job, at least 1.
        trees: u8,
    },
    /// ATP's: additive increase, halved by a mark or a loss. `packet_bytes`: a fragment on the wire; the
    /// paper's constants are bytes, its packets have 306.
    Aimd {
        /// With Ethernet's header.
        packet_bytes: u16,
    },
    /// No reaction: this many fragments in flight.
    Fixed(u16),
}

/// DCTCP's gain g (RFC 8257 §3.3).
const GAIN: f64 = 1.0 / 16.0;
/// Fragments in flight before anything is known.
pub(crate) const INITIAL_WINDOW: u16 = 10;
/// ATP's first window, 200 packets: the bandwidth-delay product of 100 Gbit/s.
const AIMD_INITIAL_BYTES: f64 = 200.0 * 306.0;
/// What ATP adds per result below the threshold, and per window above it.
const AIMD_STEP_BYTES: f64 = 1500.0;
/// Losses leave so many in flight: with fewer, results that overtake a lost one could not show it, and each loss would
/// cost a time-out. Marks may leave less.
const LOSS_WINDOW_LEAST: f64 = 4.0;
/// A virtual window may exceed the least one by this factor and offset: it must not run away while
/// another branch holds it back, and must be free to grow past it.
const CLIP_FACTOR: f64 = 2.0;
const CLIP_OFFSET: f64 = 4.0;
/// Bit of the way down, after the 32 branches of the way up.
const DOWN: u8 = 32;

/// One DCTCP control loop.
#[derive(Clone, Debug)]
struct Dctcp {
    window: f64,
    ssthresh: f64,
    alpha: f64,
    results: u32,
    marked: u32,
}

impl Dctcp {
    fn new(window: f64) -> Self {
        Dctcp { window, ssthresh: f64::INFINITY, alpha: 1.0, results: 0, marked: 0 }
    }

    /// `step`: what a window of results above the threshold adds.
    fn on_result(&mut self, marked: bool, step: f64) {
        self.results += 1;
        self.marked += u32::from(marked);
        if self.window >= self.ssthresh {
            self.window += step / self.window;
        } else if !marked {
            self.window += 1.0;
        }
    }

    fn end_observation(&mut self) {
        let fraction = f64::from(self.marked) / f64::from(self.results.max(1));
        self.alpha = (1.0 - GAIN) * self.alpha + GAIN * fraction;
        if self.marked > 0 {
            self.window = (self.window * (1.0 - self.alpha / 2.0)).max(1.0);
            self.ssthresh = self.window;
        }
        (self.results, self.marked) = (0, 0);
    }

    /// Not below `least`, unless the window is there already.
    fn halve(&mut self, least: f64) {
        self.window = (self.window / 2.0).max(least.min(self.window));
        self.ssthresh = self.window;
    }
}

/// Fragments that one tree may have in flight.
#[derive(Clone, Debug)]
pub struct Window {
    rule: CongestionRule,
    /// The loop of all branches that never marked (of all, where they are taken together).
    clear: Dctcp,
    /// Branches that have marked.
    marked: Vec<(u8, Dctcp)>,
    observation_ends: u64,
    loss_ends: u64,
    cap: u16,
}

impl Window {
    /// `cap`: the most that the aggregators allow until a result says otherwise.
    pub fn new(rule: CongestionRule, cap: u16) -> Self {
        let initial = match rule {
            CongestionRule::Fixed(fragments) => f64::from(fragments),
            CongestionRule::Aimd { packet_bytes } => {
                (AIMD_INITIAL_BYTES / f64::from(packet_bytes.max(1))).max(1.0)
            }
            CongestionRule::Coupled { trees } => {
                (f64::from(INITIAL_WINDOW) / f64::from(trees.max(1))).max(1.0)
            }
            CongestionRule::Panama | CongestionRule::PerBranch => f64::from(INITIAL_WINDOW),
        };
        let clear = Dctcp::new(initial);
        Window {
            rule,
            clear,
            marked: Vec::new(),
            observation_ends: 0,
            loss_ends: 0,
            cap: cap.max(1),
        }
    }

    /// Fragments that may be in flight, at least 1.
    pub fn fragments(&self) -> u32 {
        let least = self.marked.iter().map(|(_, d)| d.window).fold(self.clear.window, f64::min);
        (least as u32).clamp(1, u32::from(self.cap))
    }

    /// The most that the aggregators allow.
    pub fn cap(&self) -> u16 {
        self.cap
    }

    /// Takes `window_cap` of the latest result; 0 would stop the job and counts as 1.
    pub fn set_cap(&mut self, cap: u16) {
        self.cap = cap.max(1);
    }

    /// A result came. `vid`: its number; `vid_next`: the next to be sent; `marks`: branches that marked
    /// on the way up; `down`: CE on the way down.
    pub fn on_result(&mut self, vid: u64, vid_next: u64, marks: u32, down: bool) {
        match self.rule {
            CongestionRule::Fixed(_) => return,
            CongestionRule::Aimd { packet_bytes } => {
                let step = AIMD_STEP_BYTES / f64::from(packet_bytes.max(1));
                return self.on_aimd_result(vid, vid_next, step, marks != 0 || down);
            }
            CongestionRule::Panama => self.clear.on_result(marks != 0 || down, 1.0),
            CongestionRule::Coupled { trees } => {
                self.clear.on_result(marks != 0 || down, 1.0 / f64::from(trees.max(1)));
            }
            CongestionRule::PerBranch => {
                self.on_branches(u64::from(marks) | u64::from(down) << DOWN)
            }
        }
        if vid >= self.observation_ends {
            self.clear.end_observation();
            self.marked.iter_mut().for_each(|(_, d)| d.end_observation());
            self.observation_ends = vid_next;
        }
        self.clip();
    }

    /// A fragment was lost: halves once per window. PANAMA's fabric is lossless; on one that is not,
    /// loss is the only signal of a switch that does not mark.
    pub fn on_loss(&mut self, vid: u64, vid_next: u64) {
        self.halve(vid, vid_next, LOSS_WINDOW_LEAST);
    }

    /// Halves all loops, once per window.
    fn halve(&mut self, vid: u64, vid_next: u64, least: f64) {
        if matches!(self.rule, CongestionRule::Fixed(_)) || vid < self.loss_ends {
            return;
        }
        self.loss_ends = vid_next;
        self.clear.halve(least);
        self.marked.iter_mut().for_each(|(_, d)| d.halve(least));
    }

    /// A result's mark halves the window like a loss, once per window: the results of one congested
    /// window are all marked.
    fn on_aimd_result(&mut self, vid: u64, vid_next: u64, step: f64, marked: bool) {
        if marked {
            return self.halve(vid, vid_next, 1.0);
        }
        let Dctcp { window, ssthresh, .. } = self.clear;
        let grown = window + if window < ssthresh { step } else { step / window };
        self.clear.window = grown.min(f64::from(self.cap));
    }

    fn on_branches(&mut self, bits: u64) {
        let mut new = bits;
        for (branch, dctcp) in &mut self.marked {
            dctcp.on_result(bits >> *branch & 1 == 1, 1.0);
            new &= !(1 << *branch);
        }
        while new != 0 {
            // Until now this branch behaved like all that never marked: it starts with their state.
            let mut dctcp = self.clear.clone();
            dctcp.on_result(true, 1.0);
            self.marked.push((new.trailing_zeros() as u8, dctcp));
            new &= new - 1;
        }
        self.clear.on_result(false, 1.0);
    }

    fn clip(&mut self) {
        let least = self.marked.iter().map(|(_, d)| d.window).fold(self.clear.window, f64::min);
        let most = (CLIP_FACTOR * least + CLIP_OFFSET).min(f64::from(self.cap).max(1.0));
        self.clear.window = self.clear.window.min(most);
        self.marked.iter_mut().for_each(|(_, d)| d.window = d.window.min(most));
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
        // Up to the mark both grow by one per result; what they add per window afterwards is told apart.
        drive(&mut alone, 600, marks);
        drive(&mut coupled, 600, marks);
        let grown = |window: &mut Window| {
            let (before, results) = (window.clear.window, u64::from(window.fragments()));
            (600..600 + results).for_each(|vid| window.on_result(vid, vid + results, 0, false));
            window.clear.window - before
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
