//! Exact memoisation: what repeats itself is not simulated again.
//!
//! Time is a whole number of picoseconds, and all state is the simulator's own. If everything on which the future
//! depends is, at some moment, the same as at an earlier moment, with times relative to the moment and sequence numbers
//! relative to each other, then what has happened in between happens again, as long as nothing comes from outside: a
//! flow or a job that starts, a fault, a sample, the end. That many repetitions are skipped at once: times move,
//! counters grow by as much as they grew in between each time, and the steps of jobs that were completed in between are
//! completed again, later.
//!
//! [`crate::visit`] says what belongs to the state. States are compared in full.

use std::collections::VecDeque;
use std::hash::Hasher;

use netsum_proto::visit::Origin;
use rustc_hash::FxHasher;

use crate::aggregation::Payload;
use crate::hosts::pending;
use crate::job::StepRecord;
use crate::routes::PathChoice;
use crate::simulation::Simulation;
use crate::tcp::Estimates;
use crate::transport::{SAMPLES_MAX, Samples};
use crate::visit::{Mover, Origins, Pending, Progress, Recorder, View, Visitor, decays};

/// What a run has skipped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Skipped {
    /// Number of skips.
    pub skips: u64,
    /// Simulated time that was skipped.
    pub time_ps: u64,
    /// Packet-hops that were skipped; [`Network::hops`](crate::network::Network::hops) includes them.
    pub hops: u64,
    /// Number of states that were written down.
    pub states: u64,
}

/// The states that may come back.
pub(crate) struct Repeats {
    pub is_off: bool,
    pub until_ps: u64,
    /// At most this many words are kept, but two states of each view in any case.
    pub words_max: usize,
    pub skipped: Skipped,
    /// The states that may come back, by view.
    steps: Seen,
    rounds: Seen,
    /// Steps completed since the oldest of them.
    records: Vec<StepRecord>,
    /// Samples of round-trip times since then, by flow.
    samples: Vec<(u32, u64)>,
    /// By view, the next state is written down once this many packet-hops are simulated.
    due_at_hops: [u64; 2],
}

struct State {
    view: View,
    now_ps: u64,
    hash: u64,
    words: Vec<u64>,
    counters: Vec<u64>,
    estimates: Vec<Estimates>,
    shares: Vec<f64>,
    origins: Origins,
    progress: Vec<Progress>,
    /// Number of `records`, and of `samples`, before it.
    before: [usize; 2],
}

impl State {
    fn words(&self) -> usize {
        self.words.len() + self.counters.len() + self.shares.len() + 6 * self.estimates.len()
    }
}

/// States of one view, oldest first: an old one that is replaced ever more rarely (Brent), so that a cycle of any
/// length is found, and the latest.
#[derive(Default)]
struct Seen {
    states: VecDeque<State>,
    /// Number of states since the first was the latest, and with how many it is replaced.
    since: usize,
    replaced_at: usize,
}

impl Seen {
    fn push(&mut self, state: State) {
        self.states.push_back(state);
        self.since += 1;
        if self.states.len() > STATES_MAX {
            if self.since >= self.replaced_at.max(2 * STATES_MAX) {
                (self.since, self.replaced_at) = (STATES_MAX, 2 * self.since);
                self.states.pop_front();
            } else {
                self.states.remove(1);
            }
        }
    }
}

/// The words that one simulation keeps.
pub(crate) const WORDS_MAX: usize = 16 << 20;
const STATES_MAX: usize = 32;
/// Words that are written down and compared in the time of a packet-hop, divided by the share of time that looking for
/// repetitions of one view may take: thirty of them, and one part in sixty.
const WORDS_PER_HOP: u64 = 1;
/// The same where jobs reduce in switches: a hop to a machine takes several times as long.
const WORDS_PER_MACHINE_HOP: u64 = 4;

impl Default for Repeats {
    fn default() -> Repeats {
        Repeats {
            is_off: false,
            until_ps: 0,
            words_max: WORDS_MAX,
            skipped: Skipped::default(),
            steps: Seen::default(),
            rounds: Seen::default(),
            records: Vec::new(),
            samples: Vec::new(),
            due_at_hops: [0; 2],
        }
    }
}

impl Repeats {
    /// What was before does not repeat itself.
    pub(crate) fn forget(&mut self) {
        (self.steps, self.rounds) = Default::default();
        self.records.clear();
        self.samples.clear();
    }

    fn seen(&mut self, view: View) -> &mut Seen {
        match view {
            View::Step => &mut self.steps,
            View::Round => &mut self.rounds,
        }
    }

    /// After a skip of rounds, in which no step ended: states of earlier rounds are of no use, but a step with skips
    /// repeats itself like any other. Samples that a skip repeats are in no log.
    fn forget_rounds(&mut self, samples: &Samples) {
        match samples.is_empty() {
            true => self.rounds = Seen::default(),
            false => self.forget(),
        }
    }

    fn states(&self) -> impl Iterator<Item = &State> {
        self.steps.states.iter().chain(&self.rounds.states)
    }

    /// Keeps a state, in place of an old one if need be.
    fn keep(&mut self, state: State) {
        self.seen(state.view).push(state);
        let words = |kept: &Repeats| kept.states().map(State::words).sum::<usize>();
        while 2 * self.samples.len() + words(self) > self.words_max {
            let of = |seen: &Seen| (seen.states.len() > 2).then(|| seen.states[0].now_ps);
            let oldest = match (of(&self.steps), of(&self.rounds)) {
                (Some(step), Some(round)) if step < round => &mut self.steps,
                (_, Some(_)) => &mut self.rounds,
                (Some(_), None) => &mut self.steps,
                (None, None) => break,
            };
            oldest.states.pop_front();
            self.drop_logs();
        }
        self.drop_logs();
    }

    /// Drops what was logged before the oldest state.
    fn drop_logs(&mut self) {
        let least = |at: usize| self.states().map(|state| state.before[at]).min();
        let Some((records, samples)) = least(0).zip(least(1)) else { return };
        // Seldom, because the rest moves.
        if samples < self.samples.len() / 2 && records < 1024 {
            return;
        }
        self.records.drain(..records);
        self.samples.drain(..samples);
        for state in self.steps.states.iter_mut().chain(&mut self.rounds.states) {
            state.before[0] -= records;
            state.before[1] -= samples;
        }
    }
}

impl<P: Payload> Simulation<P> {
    /// Whether repetitions can be found: all state that may be live is visited, and no packet's path or loss depends on
    /// a number that grows for ever.
    pub(crate) fn can_skip(&self) -> bool {
        !self.repeats.is_off
            && self.hosts.jobs.active > 0
            // On an island without jobs the order of equal times counts from the start of the run.
            && !self.net.has_islands()
            && self.net.regions.len() == 1
            && self.net.switching().paths != PathChoice::Packet
            && self.aggregation.is_visited()
            && !self.net.regions[0].is_lossy()
    }

    /// Watches for repetitions, if they can be found.
    pub(crate) fn watch(&mut self) {
        self.hosts.watched = self.can_skip();
        match self.hosts.watched {
            true => _ = self.hosts.jobs.noted.get_or_insert_default(),
            false => self.hosts.jobs.noted = None,
        }
        self.hosts.transport.note_samples(self.hosts.watched);
    }

    /// A state may repeat an earlier one: skips what it can.
    pub(crate) fn on_moment(&mut self, until_ps: u64) {
        let Some(view) = self.hosts.jobs.moment.take() else { return };
        // Fragments of a group's operations are not alike.
        if view == View::Round && self.hosts.jobs.has_leases() {
            return;
        }
        let hops = self.net.hops();
        if hops < self.repeats.due_at_hops[view as usize] {
            return;
        }
        let state = self.write_down(view);
        self.repeats.skipped.states += 1;
        let words = state.words() as u64;
        let per_hop = match state.origins.is_empty() {
            true => WORDS_PER_HOP,
            false => WORDS_PER_MACHINE_HOP,
        };
        self.repeats.due_at_hops[view as usize] = hops + words / per_hop;
        let same = |earlier: &&State| earlier.hash == state.hash && earlier.words == state.words;
        let end_ps = until_ps.max(self.repeats.until_ps);
        let seen = std::mem::take(self.repeats.seen(view));
        let skip = seen.states.iter().rev().filter(same).find_map(|earlier| {
            let skip = self.skip_of(earlier, &state, end_ps);
            skip.map(|skip| (earlier, skip))
        });
        let Some((earlier, skip)) = skip else {
            *self.repeats.seen(view) = seen;
            self.repeats.keep(state);
            return;
        };
        self.skip(earlier, &state, &skip);
        match view {
            View::Step => self.repeats.forget(),
            View::Round => self.repeats.forget_rounds(&skip.samples),
        }
        // The next repetition may be found from here.
        let again = self.write_down(view);
        assert!(!self.checked || again.words == state.words, "a skip leads to the same state");
        self.repeats.keep(again);
    }

    fn write_down(&mut self, view: View) -> State {
        self.repeats.records.append(self.hosts.jobs.noted.get_or_insert_default());
        let samples = self.hosts.transport.samples.get_or_insert_default();
        if samples.len() < SAMPLES_MAX {
            self.repeats.samples.append(samples);
        } else {
            samples.clear();
            self.repeats.forget();
        }
        let progress = self.hosts.jobs.progress(view);
        let now_ps = self.net.now_ps();
        let origins = self.origins(view);
        let mut recorder = Recorder::new(now_ps, &origins);
        self.visit(&mut recorder, view, &progress);
        let Recorder { words, counters, estimates, shares, .. } = recorder;
        let mut hasher = FxHasher::default();
        words.iter().for_each(|&word| hasher.write_u64(word));
        let before = [self.repeats.records.len(), self.repeats.samples.len()];
        State {
            view,
            now_ps,
            hash: hasher.finish(),
            words,
            counters,
            estimates,
            shares,
            origins,
            progress,
            before,
        }
    }

    /// From where the numbers of jobs with machines, and of groups with leases, are counted: from the fragments and the
    /// step of the first worker.
    fn origins(&self, view: View) -> Origins {
        let of = |job| {
            let (_, first_worker) = self.hosts.jobs.in_network(job)?;
            let (trees, vids) = self.aggregation.trees.origin(first_worker)?;
            let operation = self.hosts.jobs.first_operation(job);
            Some((job, Origin { vids, trees, operation, within: view == View::Round }))
        };
        self.hosts.jobs.numbers().filter_map(of).collect()
    }

    fn visit(&mut self, v: &mut impl Visitor, view: View, progress: &[Progress]) {
        let base = self.hosts.transport.bases();
        self.net.regions[0].visit(v, |key| pending(view, key), &base);
        self.hosts.visit(v, view, (progress, &base));
        self.aggregation.trees.visit(v);
    }

    /// How often what has happened between two equal states can be skipped; `None` if it cannot.
    fn skip_of(&self, earlier: &State, state: &State, end_ps: u64) -> Option<Skip> {
        let view = state.view;
        let period_ps = state.now_ps - earlier.now_ps;
        let by = state.progress.iter().zip(&earlier.progress);
        let by = by.map(|(now, then)| Progress {
            step: now.step.wrapping_sub(then.step),
            round: now.round.wrapping_sub(then.round),
        });
        let by: Vec<Progress> = by.collect();
        let later = further(&state.origins, &earlier.origins)?;
        let goes_on = by.iter().any(|by| *by != Progress::default())
            || later.values().any(|by| by.vids != [0; 2]);
        // Machines count in whole nanoseconds.
        if !state.origins.is_empty() && !period_ps.is_multiple_of(1000) {
            return None;
        }
        let outside = self.net.regions[0].first_timer(|key| pending(view, key) == Pending::Beyond);
        // What comes from outside must not have come.
        let before_ps = outside.map_or(u64::MAX, |at_ps| at_ps.saturating_sub(1)).min(end_ps);
        let room_ps = before_ps.saturating_sub(state.now_ps);
        let times = match goes_on && period_ps > 0 && self.hosts.stop_at_ps == u64::MAX {
            true => (room_ps / period_ps)
                .min(self.hosts.jobs.repetitions(view, &by))
                .min(self.rounds_left(view, &later)),
            false => 0,
        };
        if times == 0 {
            return None;
        }
        let samples = Samples::new(&self.repeats.samples[earlier.before[1]..]);
        let transport = &self.hosts.transport;
        if !transport.may_repeat(&earlier.estimates, &state.estimates, &samples) {
            return None;
        }
        let shares = earlier.shares.iter().zip(&state.shares);
        let decays: Option<Vec<u64>> = shares.map(|(then, now)| decays(*then, *now)).collect();
        let decays = decays?.into_iter().map(|each| each * times).collect();
        let grown = |(&job, now): (&u32, &Origin)| {
            let by = &later[&job];
            let vids = [0, 1].map(|half| now.vids[half] + times * by.vids[half]);
            let operation = now.operation + times * by.operation;
            (job, Origin { vids, operation, ..*now })
        };
        let origins = state.origins.iter().map(grown).collect();
        let growth = state.counters.iter().zip(&earlier.counters);
        let growth = growth.map(|(now, then)| (now - then) * times).collect();
        Some(Skip { times, period_ps, by, growth, decays, origins, samples })
    }

    /// How often the trees of all jobs can go on by as many fragments within their operations as these say.
    fn rounds_left(&self, view: View, later: &Origins) -> u64 {
        let of = |(&job, by): (&u32, &Origin)| {
            let (spec, first_worker) = self.hosts.jobs.in_network(job)?;
            let (ranks, fragments) = (spec.placement.len(), by.vids[0]);
            let goes_on = view == View::Round && fragments > 0;
            goes_on.then(|| self.aggregation.trees.rounds_left(first_worker, ranks, fragments))
        };
        later.iter().filter_map(of).min().unwrap_or(u64::MAX)
    }

    fn skip(&mut self, earlier: &State, state: &State, skip: &Skip) {
        let Skip { times, period_ps, by, growth, decays, origins, samples } = skip;
        let (times, period_ps) = (*times, *period_ps);
        let (hops, by_ps) = (self.net.hops(), times * period_ps);
        let view = state.view;
        let mut mover = Mover::new(by_ps, (growth, decays), [&state.origins, origins]);
        self.visit(&mut mover, view, &state.progress);
        self.net.regions[0].reenter(by_ps);
        self.hosts.transport.repeat((&earlier.estimates, &state.estimates), samples, times);
        let records = &self.repeats.records[earlier.before[0]..];
        self.hosts.jobs.skip((by, records), times, period_ps);
        let skipped = &mut self.repeats.skipped;
        skipped.skips += 1;
        skipped.time_ps += by_ps;
        let skipped_hops = self.net.hops() - hops;
        skipped.hops += skipped_hops;
        self.repeats.due_at_hops.iter_mut().for_each(|due| *due += skipped_hops);
    }
}

/// How much further each job is: `None` if one of the states lacks its machines.
fn further(now: &Origins, then: &Origins) -> Option<Origins> {
    let of = |(&job, now): (&u32, &Origin)| {
        let then = then.get(&job)?;
        let [trees, copies] = [0, 1].map(|half| now.vids[half].checked_sub(then.vids[half]));
        let (vids, operation) = ([trees?, copies?], now.operation.checked_sub(then.operation)?);
        Some((job, Origin { vids, operation, ..*now }))
    };
    let later: Option<Origins> = now.iter().map(of).collect();
    later.filter(|_| now.len() == then.len())
}

struct Skip {
    times: u64,
    period_ps: u64,
    by: Vec<Progress>,
    /// Of each counter, in total.
    growth: Vec<u64>,
    /// How often each share of marks decays.
    decays: Vec<u64>,
    /// From where numbers are counted afterwards.
    origins: Origins,
    samples: Samples,
}
