//! The share of the buffer of each flow: initially the plan's, then adjusted to measured times.
//!
//! When an operation ends, all ranks report how long each flow took, along the tree on which they report completion.
//! Its root moves shares from slower flows to faster ones, and sends the new shares to all ranks with the message that
//! all are complete, so that all use the same shares in the next operation. Source: Blink's hybrid transfers
//! (MLSys'20), which split by rates that were measured once. Differs: measures the traffic itself, after every
//! operation.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use netsum_topo::links::{Collective, PlannedFlow, TreePlan};
use serde::{Deserialize, Serialize};

use super::routes::{self, Route};

/// The flows of a plan between which shares move.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sharing {
    /// None: shares are the plan's.
    Plan,
    /// Adjacent flows that add in the same order, on other links: bits do not depend on shares.
    #[default]
    SameOrder,
    /// All. Floats are added in another order when their share has moved: bits are the same at all ranks, but not in
    /// all runs.
    Any,
}

impl FromStr for Sharing {
    type Err = String;

    fn from_str(text: &str) -> Result<Sharing, String> {
        match text {
            "plan" => Ok(Sharing::Plan),
            "same-order" => Ok(Sharing::SameOrder),
            "any" => Ok(Sharing::Any),
            _ => Err(format!("{text:?} is unknown; use plan, same-order or any")),
        }
    }
}

impl fmt::Display for Sharing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Sharing::Plan => "plan",
            Sharing::SameOrder => "same-order",
            Sharing::Any => "any",
        })
    }
}

/// The shares of a plan's flows.
#[derive(Clone, Debug)]
pub(super) struct Shares {
    plan: Vec<(i128, i128)>,
    /// Runs of adjacent flows between which shares move.
    runs: Vec<Range<usize>>,
    /// By flow, weight within its run; empty until the first move.
    weights: Vec<u32>,
}

impl Shares {
    /// The shares of a checked plan.
    pub(super) fn of(plan: &TreePlan, sharing: Sharing) -> Shares {
        let sharded = matches!(plan.collective, Collective::Allgather | Collective::ReduceScatter);
        let alike = |a: &PlannedFlow, b: &PlannedFlow| match sharing {
            Sharing::Plan => false,
            Sharing::SameOrder => a.root == b.root && additions(a) == additions(b),
            Sharing::Any => a.root == b.root || !sharded,
        };
        let mut runs: Vec<Range<usize>> = Vec::new();
        for place in 0..plan.flows.len() {
            match runs.last_mut() {
                Some(run) if alike(&plan.flows[run.start], &plan.flows[place]) => run.end += 1,
                _ => runs.push(place..place + 1),
            }
        }
        runs.retain(|run| run.len() > 1);
        let plan = plan.flows.iter().map(|flow| (flow.share.num(), flow.share.den())).collect();
        Shares { plan, runs, weights: Vec::new() }
    }

    /// Elements of each flow in a buffer of `elements`.
    pub(super) fn spans(
        &self,
        collective: Collective,
        ranks: usize,
        routes: &[Route],
        elements: usize,
    ) -> Vec<Range<usize>> {
        let mut spans = routes::spans(collective, ranks, &self.plan, routes, elements);
        if self.weights.is_empty() {
            return spans;
        }
        for run in &self.runs {
            // The run's total is constant, so that its elements stay within the run.
            let (start, end) = (spans[run.start].start, spans[run.end - 1].end);
            let weights = &self.weights[run.clone()];
            let all: f64 = weights.iter().map(|&weight| f64::from(weight)).sum();
            let (mut before, mut at) = (0.0, start);
            for (flow, &weight) in run.clone().zip(weights) {
                before += f64::from(weight);
                let part = (before / all * (end - start) as f64).round() as usize;
                let to = if flow + 1 == run.end { end } else { (start + part).min(end) };
                spans[flow] = at..to;
                at = to;
            }
        }
        spans
    }

    /// Share of the whole buffer by flow.
    pub(super) fn parts(&self) -> Vec<f64> {
        let mut parts: Vec<f64> =
            self.plan.iter().map(|&(num, den)| num as f64 / den as f64).collect();
        for run in self.runs.iter().filter(|_| !self.weights.is_empty()) {
            let whole: f64 = parts[run.clone()].iter().sum();
            let all: f64 = self.weights[run.clone()].iter().map(|&w| f64::from(w)).sum();
            for flow in run.clone() {
                parts[flow] = whole * f64::from(self.weights[flow]) / all;
            }
        }
        parts
    }

    /// New weights by the flows' times in microseconds; empty: unchanged.
    pub(super) fn after(&self, micros: &[u32]) -> Vec<u32> {
        let (parts, mut moved) = (self.parts(), false);
        let mut weights = vec![1; parts.len()];
        for run in &self.runs {
            let (parts, micros) = (&parts[run.clone()], &micros[run.clone()]);
            let whole: f64 = parts.iter().sum();
            let times = || parts.iter().zip(micros).map(|(part, &us)| part * f64::from(us));
            let mean = times().sum::<f64>() / whole;
            let counts = micros.iter().all(|&us| us > 0)
                && micros.iter().max().is_some_and(|&us| us >= LONG_ENOUGH_US);
            let step = |us: u32| match counts {
                // Half of the correction, because times vary, and because flows may share links, which affects others'
                // times too.
                true => (mean / f64::from(us)).sqrt().clamp(0.5, 2.0),
                false => 1.0,
            };
            moved |= micros.iter().any(|&us| (step(us) - 1.0).abs() > WORTH_IT);
            let next: Vec<f64> =
                parts.iter().zip(micros).map(|(part, &us)| part * step(us)).collect();
            let all: f64 = next.iter().sum();
            for (weight, next) in weights[run.clone()].iter_mut().zip(next) {
                *weight = ((next / all * WEIGHTS) as u32).max(WEIGHT_LEAST);
            }
        }
        if moved { weights } else { Vec::new() }
    }

    /// Adopts the result of [`Shares::after`] at the root. Errors: invalid weights.
    pub(super) fn adopt(&mut self, weights: Vec<u32>) -> Result<(), &'static str> {
        if weights.is_empty() {
            return Ok(());
        }
        if weights.len() != self.plan.len() || weights.contains(&0) {
            return Err("shares that are none");
        }
        self.weights = weights;
        Ok(())
    }
}

/// What a sum's bits depend on: by adding rank, the ranks whose sums it adds, in order.
fn additions(flow: &PlannedFlow) -> BTreeMap<usize, Vec<usize>> {
    let mut additions: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for way in &flow.up {
        additions.entry(way[way.len() - 1]).or_default().push(way[0]);
    }
    additions
}

/// Words as bytes of a message.
pub(super) fn to_bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

pub(super) fn from_bytes(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

/// Shorter operations are dominated by latency and thread wake-ups.
const LONG_ENOUGH_US: u32 = 2_000;
/// Smaller changes are noise.
const WORTH_IT: f64 = 0.01;
/// Total weight of a run: a share has a resolution of a millionth.
const WEIGHTS: f64 = (1 << 20) as f64;
/// Minimum weight of a flow, however slow its links, to notice when they recover.
const WEIGHT_LEAST: u32 = 1 << 10;

#[cfg(test)]
mod tests {
    use netsum_topo::Ratio;
    use netsum_topo::links::TREE_PLAN_FORMAT;
    use proptest::prelude::*;

    use super::*;

    fn flow(share: Ratio, root: usize, up: &[&[usize]]) -> PlannedFlow {
        let up: Vec<Vec<usize>> = up.iter().map(|way| way.to_vec()).collect();
        let turn = |way: &Vec<usize>| way.iter().rev().copied().collect();
        let down = up.iter().rev().map(turn).collect();
        PlannedFlow { share, root, up, down }
    }

    fn plan(flows: Vec<PlannedFlow>) -> TreePlan {
        TreePlan {
            format: TREE_PLAN_FORMAT.to_owned(),
            collective: Collective::Allreduce,
            fabric: "test".to_owned(),
            vertices: ["a", "b", "c", "s", "t"].map(str::to_owned).to_vec(),
            gpus: vec![0, 1, 2],
            rate_bps: Ratio::from(1),
            flows,
        }
    }

    fn routes(plan: &TreePlan) -> Vec<Route> {
        routes::Routes::of_rank(plan, 0).unwrap().flows
    }

    /// Two flows that add alike over different links, one that adds in another order, one with another root.
    fn four() -> TreePlan {
        let quarter = Ratio::new(1, 4);
        plan(vec![
            flow(quarter, 0, &[&[2, 1], &[1, 0]]),
            flow(quarter, 0, &[&[2, 3, 1], &[1, 4, 0]]),
            flow(quarter, 0, &[&[2, 0], &[1, 0]]),
            flow(quarter, 1, &[&[2, 1], &[0, 1]]),
        ])
    }

    #[test]
    fn shares_move_between_flows_that_add_alike() {
        let plan = four();
        assert_eq!(Shares::of(&plan, Sharing::SameOrder).runs, vec![0..2]);
        assert_eq!(Shares::of(&plan, Sharing::Any).runs, vec![0..4]);
        assert!(Shares::of(&plan, Sharing::Plan).runs.is_empty());
        let mut turned = plan.clone();
        turned.flows[1] = flow(Ratio::new(1, 4), 0, &[&[1, 4, 0], &[2, 0]]);
        turned.flows[0] = flow(Ratio::new(1, 4), 0, &[&[2, 0], &[1, 0]]);
        assert!(Shares::of(&turned, Sharing::SameOrder).runs.is_empty(), "another order");
    }

    proptest! {
        /// Elements stay in the flows of their order, for any measured times; all elements are in one flow.
        #[test]
        fn bits_do_not_depend_on_times(
            times in prop::collection::vec(prop::collection::vec(0..5_000_000u32, 4), 1..20),
            elements in 0..3_000_000usize,
        ) {
            let plan = four();
            let routes = routes(&plan);
            let mut shares = Shares::of(&plan, Sharing::SameOrder);
            let spans = |shares: &Shares| shares.spans(plan.collective, 3, &routes, elements);
            let first = spans(&shares);
            for times in times {
                shares.adopt(shares.after(&times)).unwrap();
                let now = spans(&shares);
                prop_assert_eq!((now[0].start, now[1].end), (first[0].start, first[1].end));
                prop_assert_eq!(now[0].end, now[1].start);
                prop_assert_eq!(&now[2..], &first[2..]);
                prop_assert!((shares.parts().iter().sum::<f64>() - 1.0).abs() < 1e-9);
            }
        }

        /// Flows on separate links finish together after some operations, whatever the plan's rates.
        #[test]
        fn times_become_equal(
            rates in prop::collection::vec(1.0..100.0f64, 2..5),
            noise in prop::collection::vec(0.97..1.03f64, 200),
        ) {
            let ways: [&[&[usize]]; 4] = [
                &[&[2, 1], &[1, 0]],
                &[&[2, 3, 1], &[1, 0]],
                &[&[2, 1], &[1, 3, 0]],
                &[&[2, 4, 1], &[1, 4, 0]],
            ];
            let share = Ratio::new(1, rates.len() as i128);
            let flows = rates.iter().zip(ways).map(|(_, ways)| flow(share, 0, ways)).collect();
            let plan = plan(flows);
            let mut shares = Shares::of(&plan, Sharing::SameOrder);
            for turn in 0..40 {
                let noise = &noise[turn * 4..];
                let micros: Vec<u32> = shares.parts().iter().zip(&rates).zip(noise)
                    .map(|((part, rate), noise)| (part / rate * noise * 1e8) as u32).collect();
                shares.adopt(shares.after(&micros)).unwrap();
            }
            let all: f64 = rates.iter().sum();
            // The slowest flow determines the time.
            let time = shares.parts().iter().zip(&rates).map(|(p, r)| p / r).fold(0.0, f64::max);
            prop_assert!(time * all < 1.06, "{} of the best time", time * all);
        }
    }

    #[test]
    fn short_operations_and_invalid_times_move_nothing() {
        let plan = four();
        let mut shares = Shares::of(&plan, Sharing::SameOrder);
        assert!(shares.after(&[1000, 100, 7, 7]).is_empty());
        assert!(shares.after(&[0, 900_000, 7, 7]).is_empty());
        assert!(shares.after(&[500_000, 502_000, 900_000, 1]).is_empty(), "others do not count");
        assert!(shares.adopt(vec![1; 3]).is_err());
        assert!(shares.adopt(vec![0, 1, 1, 1]).is_err());
        assert!(shares.weights.is_empty());
        assert_eq!(from_bytes(&to_bytes(&[7, u32::MAX])), [7, u32::MAX]);
        for text in ["plan", "same-order", "any"] {
            assert_eq!(text.parse::<Sharing>().unwrap().to_string(), text);
        }
        assert!("fast".parse::<Sharing>().unwrap_err().contains("use plan"));
    }
}
