//! Whether a history of concurrent calls is linearizable: whether each call can have taken effect at one instant between
//! its start and its end, such that every answer fits (Herlihy and Wing, 1990). The search is that of Wing and Gong
//! (1993), which tries the orders one by one, with Lowe's memory of what was tried (2017).

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Instant;

/// A call and its answer. Jobs are known by their names, which no two calls share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Call {
    /// A job was created, with its number; `None`: the outcome is unknown.
    Create(String, Option<u32>),
    /// A job was stopped.
    Stop(String, Stopped),
    /// These jobs were alive, with their numbers.
    List(BTreeMap<String, u32>),
}

/// The answer to a stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stopped {
    /// The job was alive and is over.
    Done,
    /// The job was over before.
    WasOver,
    /// No answer came: it may have been stopped, or will be later.
    Unknown,
}

/// A call with its start and its end.
#[derive(Debug, Clone)]
pub struct Operation {
    pub call: Call,
    pub start: Instant,
    /// `None`: no answer came.
    pub end: Option<Instant>,
}

impl Operation {
    fn may_be_missing(&self) -> bool {
        self.end.is_none()
    }
}

/// Checks a history that begins without jobs. Errors describe what does not fit.
pub fn check(history: &[Operation]) -> Result<(), String> {
    check_numbers(history)?;
    let mut search = Search { history, tried: HashSet::new(), deepest: 0 };
    let none = vec![false; history.len()];
    match search.fits(none, State::default()) {
        true => Ok(()),
        false => Err(format!(
            "no order of the {} calls fits; of the {} that have answers at most {} do:\n{history:#?}",
            history.len(),
            history.iter().filter(|operation| !operation.may_be_missing()).count(),
            search.deepest
        )),
    }
}

/// No number is given to two jobs, and none changes.
fn check_numbers(history: &[Operation]) -> Result<(), String> {
    let mut names = BTreeMap::new();
    let mut numbers = BTreeMap::new();
    let seen = history.iter().flat_map(|operation| match &operation.call {
        Call::Create(name, Some(number)) => vec![(name, *number)],
        Call::List(jobs) => jobs.iter().map(|(name, number)| (name, *number)).collect(),
        _ => Vec::new(),
    });
    for (name, number) in seen {
        if *names.entry(number).or_insert(name) != name {
            return Err(format!("number {number} was given to {name} and to {}", names[&number]));
        }
        if *numbers.entry(name).or_insert(number) != number {
            return Err(format!("{name} had number {number} and number {}", numbers[name]));
        }
    }
    Ok(())
}

/// What the controllers know: names of jobs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct State {
    alive: BTreeSet<String>,
    over: BTreeSet<String>,
}

impl State {
    /// The state after a call; `None`: its answer does not fit.
    fn after(&self, call: &Call) -> Option<State> {
        let mut next = self.clone();
        match call {
            Call::Create(name, _) => {
                next.alive.insert(name.clone());
            }
            Call::Stop(name, Stopped::Done) => {
                if !next.alive.remove(name) {
                    return None;
                }
                next.over.insert(name.clone());
            }
            Call::Stop(name, Stopped::WasOver) => return next.over.contains(name).then_some(next),
            Call::Stop(name, Stopped::Unknown) => {
                if next.alive.remove(name) {
                    next.over.insert(name.clone());
                }
            }
            Call::List(jobs) => {
                let same = jobs.len() == next.alive.len()
                    && jobs.keys().all(|name| next.alive.contains(name));
                return same.then_some(next);
            }
        }
        Some(next)
    }
}

struct Search<'a> {
    history: &'a [Operation],
    /// Which calls had taken effect, and the state.
    tried: HashSet<(Vec<bool>, State)>,
    deepest: usize,
}

impl Search<'_> {
    /// Whether the other calls can take effect in some order.
    fn fits(&mut self, done: Vec<bool>, state: State) -> bool {
        let open = |at: &usize| !done[*at];
        let must = || (0..done.len()).filter(open).filter(|&at| !self.history[at].may_be_missing());
        let count = done.iter().filter(|done| **done).count();
        self.deepest = self.deepest.max(count);
        // What began after this has ended comes later.
        let Some(first_end) = must().filter_map(|at| self.history[at].end).min() else {
            return true;
        };
        let mut next: Vec<usize> = (0..done.len())
            .filter(open)
            .filter(|&at| self.history[at].start <= first_end)
            .collect();
        // Those without an answer need not take effect at all.
        next.sort_by_key(|&at| (self.history[at].may_be_missing(), self.history[at].start));
        for at in next {
            let Some(after) = state.after(&self.history[at].call) else { continue };
            let mut done = done.clone();
            done[at] = true;
            if self.tried.insert((done.clone(), after.clone())) && self.fits(done, after) {
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(begin: Instant, start: u64, end: Option<u64>, call: Call) -> Operation {
        let time = |ms| begin + Duration::from_millis(ms);
        Operation { call, start: time(start), end: end.map(time) }
    }

    fn create(name: &str, number: u32) -> Call {
        Call::Create(name.to_owned(), Some(number))
    }

    fn stop(name: &str, stopped: Stopped) -> Call {
        Call::Stop(name.to_owned(), stopped)
    }

    fn list(jobs: &[(&str, u32)]) -> Call {
        Call::List(jobs.iter().map(|(name, number)| ((*name).to_owned(), *number)).collect())
    }

    /// A call with its start and its end; 0: none.
    type Timed = (u64, u64, Call);

    /// Checks calls.
    fn fits(calls: &[Timed]) -> Result<(), String> {
        let begin = Instant::now();
        let operation = |(start, end, call): &Timed| {
            at(begin, *start, (*end > 0).then_some(*end), call.clone())
        };
        check(&calls.iter().map(operation).collect::<Vec<_>>())
    }

    #[test]
    fn what_one_store_can_answer_fits() {
        let unknown = || Call::Create("b".to_owned(), None);
        let (a, b) = (("a", 1), ("b", 2));
        let good: [&[Timed]; 6] = [
            &[
                (0, 1, create("a", 1)),
                (2, 3, list(&[a])),
                (4, 5, stop("a", Stopped::Done)),
                (6, 7, list(&[])),
            ],
            // Concurrent calls, in either order.
            &[(0, 9, create("a", 1)), (1, 2, list(&[])), (3, 4, list(&[a]))],
            &[
                (0, 1, create("a", 1)),
                (2, 9, stop("a", Stopped::Done)),
                (3, 8, stop("a", Stopped::WasOver)),
            ],
            // Without an answer: at any time, or never.
            &[(0, 0, unknown()), (1, 2, list(&[])), (3, 4, list(&[b])), (5, 6, list(&[b]))],
            &[(0, 0, unknown()), (1, 2, list(&[])), (3, 4, list(&[]))],
            &[
                (0, 1, create("a", 1)),
                (2, 0, stop("a", Stopped::Unknown)),
                (3, 4, list(&[a])),
                (5, 6, list(&[])),
            ],
        ];
        for history in good {
            fits(history).unwrap();
        }
    }

    #[test]
    fn what_no_store_can_answer_is_found() {
        let (a, b) = (("a", 1), ("b", 2));
        let unknown = || Call::Create("b".to_owned(), None);
        let bad: [(&str, &[Timed]); 7] = [
            ("a stale read", &[(0, 1, create("a", 1)), (2, 3, list(&[]))]),
            ("a lost write", &[(0, 1, create("a", 1)), (2, 3, list(&[a])), (4, 5, list(&[]))]),
            ("a number for two jobs", &[(0, 1, create("a", 1)), (2, 3, create("b", 1))]),
            (
                "a job that comes back",
                &[(0, 1, create("a", 1)), (2, 3, stop("a", Stopped::Done)), (4, 5, list(&[a]))],
            ),
            (
                "two stops",
                &[
                    (0, 1, create("a", 1)),
                    (2, 3, stop("a", Stopped::Done)),
                    (4, 5, stop("a", Stopped::Done)),
                ],
            ),
            (
                "an unknown create that is undone",
                &[(0, 0, unknown()), (1, 2, list(&[b])), (3, 4, list(&[]))],
            ),
            (
                "reads in two orders",
                &[
                    (0, 20, create("a", 1)),
                    (0, 20, create("b", 2)),
                    (1, 2, list(&[a])),
                    (3, 4, list(&[b])),
                ],
            ),
        ];
        for (what, history) in bad {
            assert!(fits(history).is_err(), "{what}");
        }
    }
}
