//! Trials of operations through switches and between the hosts, when a group connects.
//!
//! Every rank does the same trials. The slowest rank's time of each counts, and all ranks know it, so that they go on
//! alike and end with the same costs.

use std::collections::BTreeMap;

use crate::Error;
use crate::pace::{LATENCY_LEAST_S, SLOW_S, WORD, lower_median};
use crate::switch_cost::{Curve, Operation, OperationCost, SwitchCost};

/// An operation to time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Trial {
    pub(crate) operation: Operation,
    /// Of all elements, about.
    pub(crate) bytes: usize,
    pub(crate) way: Way,
}

/// Who does an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Switches,
    Hosts,
}

/// How long a trial took, and of how many bytes it was.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Outcome {
    pub(crate) bytes: usize,
    pub(crate) seconds: f64,
}

/// Measures `operations` both ways; all ranks call it, and get the same result: `None` if some rank has no trees, or if
/// switches did not do all that they were given. `slowest` replaces each value by the largest of all ranks'. `run` does
/// one operation, which begins at all ranks at about the same time. `in_network`: whether switches did everything so
/// far. Errors are those of `slowest` and of `run`.
pub(crate) fn compare(
    mut slowest: impl FnMut(&mut [f64]) -> Result<(), Error>,
    trees: bool,
    operations: &[Operation],
    mut run: impl FnMut(Trial) -> Result<Outcome, Error>,
    in_network: impl Fn() -> bool,
) -> Result<Option<SwitchCost>, Error> {
    if !all(&mut slowest, trees)? {
        return Ok(None);
    }
    let mut curves: BTreeMap<Operation, [Curve; 2]> = BTreeMap::new();
    let mut open = operations.to_vec();
    for (bytes, count) in SIZES {
        if open.is_empty() {
            break;
        }
        if bytes == WORD {
            // The first ones find no cache filled, and wait for threads that have just started.
            rounds(&mut slowest, &open, bytes, 1, &mut run)?;
        }
        if bytes == LARGE {
            // Windows of sums and of copies begin small, and grow while operations fill them.
            let grow = [Operation::Allreduce, Operation::Allgather];
            for operation in grow.into_iter().filter(|operation| open.contains(operation)) {
                for _ in 0..GROW {
                    run(Trial { operation, bytes: 4 * LARGE, way: Way::Switches })?;
                }
            }
        }
        let few = rounds(&mut slowest, &open, bytes, count.min(FEW), &mut run)?;
        let slow = few.iter().all(|trials| trials.typical_s() > SLOW_S);
        let more = if slow { 0 } else { count - count.min(FEW) };
        let many = rounds(&mut slowest, &open, bytes, more, &mut run)?;
        for (mut trials, more) in few.into_iter().zip(many) {
            trials.seconds.extend(more.seconds);
            let point = (trials.bytes, trials.typical_s());
            curves.entry(trials.operation).or_default()[trials.way as usize].0.push(point);
        }
        let is_long = |operation: &Operation| {
            let last = curves[operation].iter().filter_map(|curve| curve.0.last());
            let seconds: Vec<f64> = last.map(|point| point.1).collect();
            let least = seconds.iter().copied().fold(f64::INFINITY, f64::min);
            let most = seconds.iter().copied().fold(0.0, f64::max);
            least >= if most < CLOSE * least { LONG_IF_CLOSE_S } else { LONG_ENOUGH_S }
        };
        open.retain(|operation| *operation != Operation::Barrier && !is_long(operation));
    }
    if !all(&mut slowest, in_network())? {
        return Ok(None);
    }
    let costs = curves
        .into_iter()
        .map(|(operation, [switches, hosts])| (operation, OperationCost { switches, hosts }));
    Ok(Some(SwitchCost(costs.collect())))
}

/// Whether `yes` is true at all ranks.
fn all(
    slowest: &mut impl FnMut(&mut [f64]) -> Result<(), Error>,
    yes: bool,
) -> Result<bool, Error> {
    let mut value = [if yes { 0.0 } else { 1.0 }];
    slowest(&mut value)?;
    Ok(value == [0.0])
}

/// Times of one operation, size and way.
struct Trials {
    operation: Operation,
    way: Way,
    bytes: usize,
    /// Each at its slowest rank.
    seconds: Vec<f64>,
}

impl Trials {
    /// The lower median; of very few the least, as other load only ever adds time.
    fn typical_s(&self) -> f64 {
        let least = self.seconds.iter().copied().reduce(f64::min);
        let few = self.seconds.len() < FEW;
        let typical = if few { least } else { lower_median(self.seconds.clone()) };
        typical.unwrap_or(0.0).max(LATENCY_LEAST_S)
    }
}

/// Both ways of every operation `count` times, in turns, so that other load disturbs all alike.
fn rounds(
    slowest: &mut impl FnMut(&mut [f64]) -> Result<(), Error>,
    operations: &[Operation],
    bytes: usize,
    count: usize,
    run: &mut impl FnMut(Trial) -> Result<Outcome, Error>,
) -> Result<Vec<Trials>, Error> {
    let both = |&operation: &Operation| [(operation, Way::Switches), (operation, Way::Hosts)];
    let mut all: Vec<Trials> = operations
        .iter()
        .flat_map(both)
        .map(|(operation, way)| Trials { operation, way, bytes: 0, seconds: Vec::new() })
        .collect();
    let mut times = Vec::new();
    for _ in 0..count {
        for trials in &mut all {
            let outcome = run(Trial { operation: trials.operation, bytes, way: trials.way })?;
            trials.bytes = outcome.bytes;
            times.push(outcome.seconds);
        }
    }
    slowest(&mut times)?;
    let each = all.len().max(1);
    for (place, seconds) in times.into_iter().enumerate() {
        all[place % each].seconds.push(seconds);
    }
    Ok(all)
}

/// Bytes, and how often each is timed. Costs are not in proportion to bytes below some tens of KiB: a shaper or a queue
/// takes them at once, congestion windows hold them, and larger messages of hosts are announced first.
const SIZES: [(usize, usize); 7] =
    [(WORD, 16), (512, 12), (4 << 10, 8), (32 << 10, 4), (LARGE, 3), (1 << 20, 3), (4 << 20, 3)];
const FEW: usize = 4;
/// The least bytes of operations that are limited by windows and links.
const LARGE: usize = 256 << 10;
/// Operations of four times as many bytes after which a window has grown: at 100 Mbit/s sums of 256 KiB took 43 ms when
/// they were timed at once, and 25 ms later.
const GROW: usize = 2;
/// An operation of which both ways take this long is long compared with threads and system calls.
const LONG_ENOUGH_S: f64 = 15e-3;
/// Two ways that differ by less may change places with more bytes, and are tried until they take longer.
const CLOSE: f64 = 1.25;
const LONG_IF_CLOSE_S: f64 = 30e-3;

#[cfg(test)]
mod tests {
    use super::*;

    /// A system whose operations take `seconds`; the trials that were run, and the costs.
    fn tried(operations: &[Operation], seconds: impl Fn(Trial) -> f64) -> (Vec<Trial>, SwitchCost) {
        let mut trials = Vec::new();
        let run = |trial: Trial| {
            trials.push(trial);
            Ok(Outcome { bytes: trial.bytes, seconds: seconds(trial) })
        };
        let cost = compare(|_| Ok(()), true, operations, run, || true).unwrap();
        (trials, cost.unwrap())
    }

    /// Copies take longer than sums through switches, and a broadcast between hosts ends sooner.
    fn seconds(trial: Trial) -> f64 {
        let Trial { operation, bytes, way } = trial;
        let (latency, rate) = match (way, operation) {
            (Way::Switches, Operation::Allreduce | Operation::Barrier) => (1e-4, 1e8),
            (Way::Switches, _) => (3e-4, 1e8),
            (Way::Hosts, Operation::Broadcast) => (5e-5, 5e7),
            (Way::Hosts, _) => (2e-4, 6e7),
        };
        latency + if operation == Operation::Barrier { 0.0 } else { bytes as f64 / rate }
    }

    #[test]
    fn every_operation_has_a_latency_and_a_rate_of_its_own() {
        let (trials, cost) = tried(&Operation::ALL, seconds);
        for operation in Operation::ALL {
            let found = &cost.0[&operation];
            for bytes in [8, 100, 5000, 1 << 20, 64 << 20] {
                for (way, curve) in [(Way::Switches, &found.switches), (Way::Hosts, &found.hosts)] {
                    let bytes = if operation == Operation::Barrier { 0 } else { bytes };
                    let wanted = seconds(Trial { operation, bytes, way });
                    let got = curve.seconds(bytes);
                    assert!((got / wanted - 1.0).abs() < 0.01, "{operation:?} {way:?} {bytes}");
                }
            }
        }
        // Both ways alternate, so that whatever disturbs them disturbs both; but four trials that grow windows.
        let grown = trials.iter().position(|trial| trial.bytes == LARGE).unwrap();
        let (small, large) = (&trials[..grown - 4], &trials[grown..]);
        assert!(trials[grown - 4..grown].iter().all(|trial| trial.way == Way::Switches));
        for pair in small.chunks(2).chain(large.chunks(2)) {
            assert_eq!((pair[0].way, pair[1].way), (Way::Switches, Way::Hosts));
            assert_eq!(pair[0].operation, pair[1].operation);
        }
    }

    #[test]
    fn slow_links_are_not_tried_with_more_bytes_than_it_takes() {
        let (trials, _) = tried(&[Operation::Allgather], |trial| {
            let least = 3e-3 + trial.bytes as f64 / 1e6;
            if trial.way == Way::Hosts { 2.0 * least } else { least }
        });
        let most = trials.iter().map(|trial| trial.bytes).max();
        assert_eq!(most, Some(32 << 10), "4 KiB take 7 ms, 32 KiB 36");
        let words = trials.iter().filter(|trial| trial.bytes == WORD).count();
        assert_eq!(words, 2 * (1 + FEW), "few of what takes over 2 ms");
    }

    #[test]
    fn ways_that_are_close_are_tried_with_more_bytes() {
        // The rate of one is better than its time of 256 KiB.
        let seconds = |trial: Trial| match trial.way {
            Way::Switches => 8e-3 + trial.bytes as f64 / 25e6,
            Way::Hosts => 1e-3 + trial.bytes as f64 / 14e6,
        };
        let (trials, cost) = tried(&[Operation::Allreduce], seconds);
        assert_eq!(trials.iter().map(|trial| trial.bytes).max(), Some(1 << 20));
        let found = &cost.0[&Operation::Allreduce];
        assert!(found.switches.seconds(2 << 20) < found.hosts.seconds(2 << 20));
        let (trials, _) = tried(&[Operation::Allreduce], |trial| {
            seconds(trial) * if trial.way == Way::Hosts { 2.0 } else { 1.0 }
        });
        let most = trials.iter().filter(|trial| trial.way == Way::Hosts).map(|trial| trial.bytes);
        assert_eq!(most.max(), Some(256 << 10));
    }

    #[test]
    fn large_operations_are_timed_with_windows_that_have_grown() {
        let grown = std::cell::Cell::new(0);
        let (_, cost) = tried(&[Operation::Allreduce], |trial| {
            let large = trial.way == Way::Switches && trial.bytes >= LARGE;
            grown.set(grown.get() + usize::from(large));
            seconds(trial) * if large && grown.get() <= GROW { 2.0 } else { 1.0 }
        });
        let trial = Trial { operation: Operation::Allreduce, bytes: LARGE, way: Way::Switches };
        let found = cost.0[&Operation::Allreduce].switches.seconds(LARGE);
        assert!((found / seconds(trial) - 1.0).abs() < 1e-9, "{found}");
    }

    #[test]
    fn a_disturbed_trial_does_not_count() {
        let count = std::cell::Cell::new(0);
        let (_, cost) = tried(&[Operation::Broadcast], |trial| {
            count.set(count.get() + 1);
            if count.get() % 4 == 0 { 1.0 } else { seconds(trial) }
        });
        let found = cost.0[&Operation::Broadcast].hosts.seconds(8);
        assert!((found - 5e-5).abs() < 1e-5, "{found}");
    }

    #[test]
    fn without_trees_or_if_hosts_did_some_there_are_no_costs() {
        let mut runs = 0;
        let run = |_: Trial| {
            runs += 1;
            Ok(Outcome { bytes: 8, seconds: 1.0 })
        };
        let none = compare(|_| Ok(()), false, &[Operation::Allreduce], run, || true).unwrap();
        assert!(none.is_none() && runs == 0);
        let run = |_: Trial| Ok(Outcome { bytes: 8, seconds: 1.0 });
        let none = compare(|_| Ok(()), true, &[Operation::Allreduce], run, || false).unwrap();
        assert!(none.is_none());
    }
}
