//! Training steps, found in a rank's collectives: a program that trains repeats its calls.
//!
//! The period is the shortest by which the last calls repeat. A step begins with the call before which the rank has
//! spent the longest time without a collective: at computing, as a rule.

use serde::Serialize;

/// One step, or the median of several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Step {
    /// Time of its first call.
    pub began_s: f64,
    /// Duration, until the first call of the next step.
    pub seconds: f64,
    /// Of it, with a collective in progress.
    pub communicating_s: f64,
    /// Of this, after the last call of collectives that overlap: the rank computes nothing that could hide it, unless
    /// its program waits later than it could.
    pub exposed_s: f64,
    /// Collectives.
    pub operations: u32,
    /// Bytes of their buffers.
    pub bytes: u64,
}

impl Step {
    /// The median of every figure over the last steps.
    pub(crate) fn median(steps: &[Step]) -> Option<Step> {
        let last = &steps[steps.len().saturating_sub(LAST)..];
        let latest = *last.last()?;
        let median = |figure: fn(&Step) -> f64| {
            let mut values: Vec<f64> = last.iter().map(figure).collect();
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        Some(Step {
            seconds: median(|step| step.seconds),
            communicating_s: median(|step| step.communicating_s),
            exposed_s: median(|step| step.exposed_s),
            ..latest
        })
    }
}

/// The complete steps of a rank. `names`: the operation and its bytes; `times`: of the call, and of the end of those
/// that have ended. Both oldest first, of the same length. None are found if the calls do not repeat.
pub fn training_steps(names: &[(&str, u64)], times: &[(f64, Option<f64>)]) -> Vec<Step> {
    let Some((from, period)) = repetition(names) else { return Vec::new() };
    let (names, times) = (&names[from..], &times[from..]);
    let first = phase(period, times);
    let whole = (first..).step_by(period).take_while(|begin| begin + period < times.len());
    whole
        .filter_map(|begin| {
            let end = begin + period;
            step(&names[begin..end], &times[begin..end], times[end].0)
        })
        .collect()
}

/// Where the calls begin to repeat, and the period. The longest repetition counts, and of that the shortest period.
fn repetition(names: &[(&str, u64)]) -> Option<(usize, usize)> {
    // From the newest call backwards, `border[i]` is the length of the longest proper prefix of the first i + 1 calls
    // that is also their suffix (Knuth, Morris, Pratt), so i + 1 - border[i] is their shortest period.
    let backwards = |at: usize| names[names.len() - 1 - at];
    let mut border = vec![0; names.len()];
    for at in 1..names.len() {
        let mut length = border[at - 1];
        while length > 0 && backwards(at) != backwards(length) {
            length = border[length - 1];
        }
        border[at] = length + usize::from(backwards(at) == backwards(length));
    }
    let lengths = (1..=names.len()).rev();
    let found = lengths.map(|length| (length, length - border[length - 1]));
    let (length, period) =
        found.into_iter().find(|(length, period)| *length >= REPEATED * period)?;
    Some((names.len() - length, period))
}

/// The place of a step's first call within the period: where the time without a collective before it is longest.
fn phase(period: usize, times: &[(f64, Option<f64>)]) -> usize {
    let mut quiet = vec![0.0; period];
    let mut busy_until = f64::NEG_INFINITY;
    for (at, (called, ended)) in times.iter().enumerate() {
        if at > 0 {
            quiet[at % period] += (called - busy_until).max(0.0);
        }
        busy_until = busy_until.max(ended.unwrap_or(*called));
    }
    // Without any pause between calls, the first one begins.
    (1..period).fold(0, |best, at| if quiet[at] > quiet[best] { at } else { best })
}

/// A step from its calls; `None` if one of them has not ended.
fn step(names: &[(&str, u64)], times: &[(f64, Option<f64>)], next: f64) -> Option<Step> {
    let began_s = times.first()?.0;
    let (mut communicating_s, mut exposed_s) = (0.0, 0.0);
    // Collectives that overlap: from the first call, the last call, and the last end so far.
    let mut overlapping: Option<(f64, f64, f64)> = None;
    let mut close = |(first, last, end): (f64, f64, f64)| {
        let end = end.min(next);
        communicating_s += (end - first).max(0.0);
        exposed_s += (end - last).max(0.0);
    };
    for &(called, ended) in times {
        let ended = ended?;
        overlapping = match overlapping {
            Some((first, _, end)) if called < end => Some((first, called, end.max(ended))),
            other => {
                other.into_iter().for_each(&mut close);
                Some((called, called, ended))
            }
        };
    }
    overlapping.into_iter().for_each(&mut close);
    Some(Step {
        began_s,
        seconds: next - began_s,
        communicating_s,
        exposed_s,
        operations: names.len() as u32,
        bytes: names.iter().map(|(_, bytes)| bytes).sum(),
    })
}

/// So often the calls must repeat to be taken for steps.
const REPEATED: usize = 3;
/// Number of steps of which the median is taken.
const LAST: usize = 16;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Begin and end of a call.
    type Span = (f64, Option<f64>);

    /// Calls (name, bytes, seconds after the step's begin, duration) of `count` steps of `seconds` each.
    fn calls<'a>(
        step: &[(&'a str, u64, f64, f64)],
        seconds: f64,
        count: usize,
    ) -> (Vec<(&'a str, u64)>, Vec<Span>) {
        let begins = (0..count).map(|number| 100.0 + number as f64 * seconds);
        let all = begins.flat_map(|begin| step.iter().map(move |call| (begin, *call)));
        all.map(|(begin, (name, bytes, after, lasts))| {
            ((name, bytes), (begin + after, Some(begin + after + lasts)))
        })
        .unzip()
    }

    fn near(one: f64, other: f64) -> bool {
        (one - other).abs() < 1e-9
    }

    #[test]
    fn overlap_is_what_ends_before_the_last_call() {
        // Two buckets overlap, the second is called 30 ms after the first; later a blocking call.
        let bucket = [
            ("allreduce", 8, 0.0, 0.05),
            ("allreduce", 16, 0.03, 0.04),
            ("barrier", 0, 0.08, 0.01),
        ];
        let (names, times) = calls(&bucket, 0.2, 10);
        let steps = training_steps(&names, &times);
        assert_eq!(steps.len(), 9);
        for step in &steps {
            assert!(near(step.seconds, 0.2) && near(step.communicating_s, 0.08), "{step:?}");
            assert!(near(step.exposed_s, 0.05), "{step:?}");
            assert_eq!((step.operations, step.bytes), (3, 24));
        }
        assert_eq!(Step::median(&steps).unwrap().bytes, 24);
    }

    #[test]
    fn calls_of_the_start_and_equal_layers_do_not_confuse_it() {
        // Parameters are broadcast first; a step has five equal layers and a different last call.
        let layer = |at: f64| ("allgather", 64, at, 0.002);
        let step: Vec<_> = (0..5)
            .map(|at| layer(f64::from(at) * 0.004))
            .chain([("allreduce", 8, 0.03, 0.001)])
            .collect();
        let (mut names, mut times) = calls(&step, 0.1, 6);
        for number in 0..7_u32 {
            names.insert(0, ("broadcast", u64::from(number)));
            times.insert(0, (f64::from(number), Some(f64::from(number) + 0.5)));
        }
        let steps = training_steps(&names, &times);
        assert!(
            steps.iter().all(|step| step.operations == 6 && near(step.seconds, 0.1)),
            "{steps:?}"
        );
        assert_eq!(steps.len(), 5);
        // The time without a collective is longest before the first layer.
        assert!(near(steps[0].began_s, 100.0), "{steps:?}");
    }

    #[test]
    fn calls_that_do_not_repeat_are_no_steps() {
        let names: Vec<_> = (0..100).map(|bytes| ("allreduce", bytes * bytes)).collect();
        let times = vec![(0.0, Some(1.0)); names.len()];
        assert_eq!(training_steps(&names, &times), []);
        assert_eq!(training_steps(&[], &[]), []);
    }

    proptest! {
        #[test]
        fn the_period_is_the_shortest_of_the_longest_repetition(
            sizes in prop::collection::vec(0_u64..3, 1..40),
        ) {
            let names: Vec<_> = sizes.iter().map(|&bytes| ("x", bytes)).collect();
            // Every end of the calls and every period, by comparison.
            let repeats = |from: usize, period: usize| {
                let tail = &names[from..];
                tail.len() >= REPEATED * period && (period..tail.len()).all(|at| tail[at] == tail[at - period])
            };
            let expected = (0..names.len())
                .find_map(|from| (1..=names.len()).find(|&period| repeats(from, period)).map(|p| (from, p)));
            prop_assert_eq!(repetition(&names), expected);
        }

        #[test]
        fn any_times_give_steps_within_their_bounds(
            raw in prop::collection::vec((0_u64..2, 0.0_f64..1.0, 0.0_f64..2.0, any::<bool>()), 0..60),
        ) {
            let mut now = 0.0;
            let (mut names, mut times) = (Vec::new(), Vec::new());
            for (bytes, pause, lasts, ends) in raw {
                now += pause;
                names.push(("x", bytes));
                times.push((now, ends.then_some(now + lasts)));
            }
            for step in training_steps(&names, &times) {
                prop_assert!(step.seconds >= 0.0 && step.exposed_s >= 0.0);
                prop_assert!(step.communicating_s <= step.seconds + 1e-9);
                prop_assert!(step.exposed_s <= step.communicating_s + 1e-9);
            }
        }
    }
}
