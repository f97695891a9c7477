//! Several controllers: who leads, by the machine of `netsum-control`, with a store that is always there.

use netsum_control::Engine;
use netsum_control::decide::Settings;
use netsum_control::election::{Answer, Candidate, Record, Step};

use super::clock::{MS, Nanos};
use super::{Place, Timer, World};

/// The leader's record in the store.
#[derive(Default)]
pub(super) struct Register {
    /// Index and term of the leader.
    leader: Option<(usize, u64)>,
    /// Changes whenever the leader writes the record.
    version: i64,
}

impl World {
    /// Whether there are several controllers.
    pub(super) fn has_standbys(&self) -> bool {
        self.controllers.len() > 1
    }

    /// A controller follows from its start on.
    pub(super) fn start_candidate(&mut self, index: usize) {
        let place = self.controller_place(index);
        let now_ms = self.local(place).0 / MS;
        let name = self.processes[place].name.clone();
        self.controllers[index].candidate = Some(Candidate::new(name, now_ms));
        self.after(place, ROUND_TRIP, Timer::Election);
    }

    /// The next step of a candidate.
    pub(super) fn election(&mut self, place: Place) {
        let Some(index) = self.controller_index(place) else { return };
        let now_ms = self.local(place).0 / MS;
        let Some(mut candidate) = self.controllers[index].candidate.take() else { return };
        if let Some(step) = candidate.poll(now_ms) {
            let answer = self.take_step(index, &step);
            candidate.answer(now_ms, answer);
        }
        let term = candidate.term();
        let due_ms = candidate.due_ms().unwrap_or(now_ms);
        self.controllers[index].candidate = Some(candidate);
        let own = self.controllers[index].engine.as_ref().map(Engine::term);
        if own.is_some() && own != term {
            self.reign_ends(index);
        }
        let wait = due_ms.saturating_sub(now_ms) * MS + ROUND_TRIP;
        self.after(place, wait, Timer::Election);
    }

    fn take_step(&mut self, index: usize, step: &Step) -> Answer {
        if self.controllers[index].silences > 0 && !matches!(step, Step::Probe { .. }) {
            return Answer::Silent;
        }
        match step {
            Step::Look => {
                self.controllers[index].seen = self.register.version;
                let revision = self.register.version;
                let record = |(leader, term)| {
                    let address = self.processes[self.controller_place(leader)].name.clone();
                    Record { address, term, revision }
                };
                Answer::Looked(self.register.leader.map(record))
            }
            Step::Probe { address, term } => self.probe(index, address, *term),
            Step::Campaign if self.controllers[index].seen != self.register.version => Answer::Lost,
            Step::Campaign => Answer::Won(self.reign(index)),
            Step::Renew => match self.register.leader {
                Some((leader, _)) if leader == index => {
                    self.register.version += 1;
                    Answer::Renewed
                }
                _ => Answer::Expired,
            },
        }
    }

    fn probe(&self, index: usize, address: &str, term: u64) -> Answer {
        let named = |other: &usize| self.processes[self.controller_place(*other)].name == address;
        let Some(other) = (0..self.controllers.len()).find(named) else { return Answer::Gone };
        let (own, place) = (self.controller_place(index), self.controller_place(other));
        if self.active.separated(own, place, |cut| cut.control) {
            return Answer::Silent;
        }
        match self.processes[place].alive {
            false => Answer::Gone,
            true if self.processes[place].stopped > 0 => Answer::Silent,
            true => match &self.controllers[other].engine {
                Some(engine) if engine.term() >= term => Answer::Leads,
                _ => Answer::Gone,
            },
        }
    }

    /// Begins a term of a controller; returns its number.
    fn reign(&mut self, index: usize) -> u64 {
        let place = self.controller_place(index);
        let settings = Settings {
            idle_expiry_s: self.scenario.idle_expiry_s,
            switch_expected_ms: SWITCH_WAIT_MS,
            ..Settings::default()
        };
        let store = self.controllers[index].store.clone();
        let engine = Engine::new(self.fabric.clone(), settings, store);
        let engine = engine.expect("a store that answers is read");
        let term = engine.term();
        let version = self.register.version + 1;
        self.register = Register { leader: Some((index, term)), version };
        let started = self.local(place).0;
        let controller = &mut self.controllers[index];
        (controller.engine, controller.started) = (Some(engine), started);
        self.log(place, format_args!("leads in term {term}"));
        term
    }

    /// Ends the term of a controller, and its streams.
    pub(super) fn reign_ends(&mut self, index: usize) {
        let place = self.controller_place(index);
        self.controllers[index].engine = None;
        self.log(place, format_args!("leads no longer"));
        self.close_all_of(place);
        let now_ms = self.local(place).0 / MS;
        if let Some(candidate) = &mut self.controllers[index].candidate {
            candidate.step_down(now_ms);
        }
    }

    /// The controller to which one that follows sends its callers.
    pub(super) fn leader_of(&self, index: usize) -> Option<usize> {
        let leader = self.controllers[index].candidate.as_ref()?.leader()?;
        (0..self.controllers.len())
            .find(|&other| self.processes[self.controller_place(other)].name == leader)
    }
}

/// As in `netsum-control`.
const SWITCH_WAIT_MS: u64 = 4_000;
/// Of a call of the store.
const ROUND_TRIP: Nanos = 2 * MS;
