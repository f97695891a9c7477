//! The controller process: the decisions of `netsum-control`, a store, sessions. Actions are executed as by the owner
//! of the state in `netsum-control`.

use netsum_control::decide::{Action, Answer, Event as Happens, SessionId, Settings, State};
use netsum_control::election::Candidate;
use netsum_control::{Engine, Failure, Outcome, pb};
use netsum_wire::tag::{JobKey, Mac};

use super::clock::{MS, Nanos};
use super::streams::{Down, StreamId, Up};
use super::{CONTROLLER, Event, Place, Timer, World};
use crate::fault::{Process, StoreAfter};
use crate::random::Random;
use crate::report::Class;
use crate::scenario::Scenario;
use crate::store::SimulatedStore;

pub(super) struct ControllerProcess {
    pub(super) engine: Option<Engine<SimulatedStore>>,
    pub(super) store: SimulatedStore,
    /// Its part in the election, if there are several controllers.
    pub(super) candidate: Option<Candidate>,
    /// Version of the leader's record at the last look.
    pub(super) seen: i64,
    /// Number of active faults by which the store does not answer it.
    pub(super) silences: u32,
    /// Random numbers for the incarnations of new stores.
    random: Random,
    next_session: u64,
    /// Local time of the start of its term.
    pub(super) started: Nanos,
}

impl ControllerProcess {
    /// All controllers, which share a store.
    pub(super) fn all(scenario: &Scenario) -> Vec<ControllerProcess> {
        let mut random = Random::of(scenario.seed, &[13]);
        let store = SimulatedStore::new(random.next() | 1, scenario.first_job);
        let new = |_| ControllerProcess {
            engine: None,
            store: store.shared(),
            candidate: None,
            seen: 0,
            silences: 0,
            random: random.clone(),
            next_session: 1,
            started: 0,
        };
        (0..=scenario.standbys).map(new).collect()
    }

    /// The committed state.
    fn state(&self) -> Option<&State> {
        self.engine.as_ref().map(Engine::state)
    }
}

impl World {
    /// The controller that leads, or the one with the highest term of those that believe it.
    pub(super) fn leader_place(&self) -> Option<Place> {
        let leads = |&index: &usize| {
            self.controllers[index].engine.is_some() && self.is_up(self.controller_place(index))
        };
        let term = |&index: &usize| self.controllers[index].engine.as_ref().map(Engine::term);
        let leader = (0..self.controllers.len()).filter(leads).max_by_key(term);
        leader.map(|index| self.controller_place(index))
    }

    /// The state of the leader. Of a controller alone also while it is stopped.
    pub(super) fn state(&self) -> Option<&State> {
        let place = match self.has_standbys() {
            true => self.leader_place()?,
            false => CONTROLLER,
        };
        self.controllers[self.controller_index(place)?].state()
    }

    /// Handles the death of the process.
    pub(super) fn controller_stops(&mut self, place: Place) {
        let Some(index) = self.controller_index(place) else { return };
        let controller = &mut self.controllers[index];
        (controller.engine, controller.candidate) = (None, None);
    }

    pub(super) fn set_disk_full(&self, full: bool) {
        self.controllers[0].store.set_full(full);
    }

    /// Begins or ends a fault by which the store does not answer one of several controllers.
    pub(super) fn silence_store(&mut self, process: Process, begins: bool) {
        let index = self.place(process).and_then(|place| self.controller_index(place));
        let Some(index) = index.filter(|_| self.has_standbys()) else { return };
        let controller = &mut self.controllers[index];
        match begins {
            true => controller.silences += 1,
            false => controller.silences = controller.silences.saturating_sub(1),
        }
        controller.store.set_silent(controller.silences > 0);
    }

    pub(super) fn start_controller(&mut self, index: usize, store: StoreAfter) {
        let place = self.controller_place(index);
        if self.has_standbys() {
            let process = &mut self.processes[place];
            process.alive = true;
            process.incarnation += 1;
            self.controllers[index].next_session = 1;
            self.log(place, format_args!("starts"));
            self.after(place, TICK, Timer::Tick);
            return self.start_candidate(index);
        }
        let controller = &mut self.controllers[0];
        match store {
            StoreAfter::Kept => {}
            StoreAfter::Truncated(commits) => {
                controller.store = controller.store.without_last(commits as usize);
            }
            StoreAfter::Lost => {
                let incarnation = controller.random.next() | 1;
                controller.store = SimulatedStore::new(incarnation, self.scenario.first_job);
            }
        }
        controller.store.set_full(self.active.disk_is_full());
        let process = &mut self.processes[CONTROLLER];
        process.alive = true;
        process.incarnation += 1;
        let settings =
            Settings { idle_expiry_s: self.scenario.idle_expiry_s, ..Settings::default() };
        let store = self.controllers[0].store.clone();
        let engine = Engine::new(self.fabric.clone(), settings, store);
        self.controllers[0].engine = Some(engine.expect("a store in memory is read"));
        self.controllers[0].started = self.local(CONTROLLER).0;
        self.controllers[0].next_session = 1;
        self.log(CONTROLLER, format_args!("starts"));
        self.after(CONTROLLER, TICK, Timer::Tick);
    }

    pub(super) fn controller_tick(&mut self, place: Place) {
        self.after(place, TICK, Timer::Tick);
        let _ = self.decide(place, Happens::Tick);
    }

    /// Handles a message of an open stream.
    pub(super) fn controller_receives(&mut self, id: StreamId, message: Up) {
        let Some(stream) = self.streams.get(id) else { return };
        let (peer, session, controller) = (stream.peer, stream.session, stream.controller);
        if session.is_none() && self.follows(controller) {
            if !matches!(message, Up::Closed) {
                let index = self.controller_index(controller).unwrap_or_default();
                let leader = self.leader_of(index);
                self.send_down(id, Down::Follows { leader });
            }
            if let Some(stream) = self.streams.get_mut(id) {
                stream.controller_open = false;
            }
            return;
        }
        match (message, session) {
            (Up::Closed, None) => {}
            (Up::Closed, Some(_)) => {
                if let Some(stream) = self.streams.get_mut(id) {
                    stream.controller_open = false;
                }
                self.log(
                    controller,
                    format_args!("stream of {} ends", self.processes[peer].name.clone()),
                );
                self.session_ended(id, true);
            }
            (Up::Worker(pb::worker_report::Report::Join(join)), None) => {
                let (job, rank, known) = (join.job, join.rank, join.known_epoch);
                // Another key than that of the job's creation.
                let key = JobKey::new(Mac::SipHash, [job as u8 ^ 0x80; 16]);
                let open = |session| Happens::WorkerJoined { session, join, key };
                let outcome = self.open_session(id, open);
                self.log(
                    controller,
                    format_args!(
                        "rank {rank} of job {job} joins, it knows epoch {known}: {outcome}"
                    ),
                );
            }
            (Up::Switch(pb::switch_report::Report::Hello(hello)), None) => {
                let (name, leases) = (hello.name.clone(), hello.installed.len());
                let outcome =
                    self.open_session(id, |session| Happens::SwitchHello { session, hello });
                self.log(
                    controller,
                    format_args!("{name} connects with {leases} leases: {outcome}"),
                );
            }
            (Up::Worker(report), Some(session)) => {
                let event = match report {
                    pb::worker_report::Report::Heartbeat(statistics) => {
                        Happens::WorkerHeartbeat { session, statistics }
                    }
                    pb::worker_report::Report::Leave(_) => {
                        self.log(
                            controller,
                            format_args!("{} leaves", self.processes[peer].name.clone()),
                        );
                        Happens::WorkerLeft { session }
                    }
                    pb::worker_report::Report::Join(_) | pb::worker_report::Report::Answer(_) => {
                        return;
                    }
                };
                let _ = self.decide(controller, event);
            }
            (Up::Switch(report), Some(session)) => {
                let event = match report {
                    pb::switch_report::Report::Heartbeat(counters) => {
                        Happens::SwitchHeartbeat { session, counters }
                    }
                    pb::switch_report::Report::LeaseAck(ack) => Happens::LeaseAck { session, ack },
                    pb::switch_report::Report::Hello(_) => return,
                };
                let _ = self.decide(controller, event);
            }
            _ => {}
        }
    }

    /// Handles the first report of a stream.
    fn open_session(&mut self, id: StreamId, event: impl FnOnce(SessionId) -> Happens) -> String {
        let place = self.streams.get(id).map_or(CONTROLLER, |stream| stream.controller);
        let index = self.controller_index(place).unwrap_or_default();
        let controller = &mut self.controllers[index];
        let session = SessionId(controller.next_session);
        controller.next_session += 1;
        if let Some(stream) = self.streams.get_mut(id) {
            stream.session = Some(session);
        }
        // The response headers precede all messages that the decision sends.
        self.send_down(id, Down::Accepted);
        let (finally, reason) = match self.decide(place, event(session)) {
            Ok(_) => return "accepted".to_owned(),
            Err(Failure::Refused(refusal)) => (true, refusal.to_string()),
            Err(Failure::Store(reason) | Failure::Over(reason)) => (false, reason),
        };
        self.send_down(id, Down::Refused { finally, reason: reason.clone() });
        if let Some(stream) = self.streams.get_mut(id) {
            stream.controller_open = false;
        }
        // The handler never read the stream, so no end of session is reported.
        reason
    }

    /// Handles the end of the task that reads a stream. `by_peer`: the peer's side was closed, by the death of its
    /// process or by itself. A live peer then ends its streams as a dead one does, which is worse than what clients do.
    pub(super) fn session_ended(&mut self, id: StreamId, by_peer: bool) {
        let Some(stream) = self.streams.get(id) else { return };
        let place = stream.controller;
        let controller = &self.processes[place];
        let same = controller.alive && controller.incarnation == stream.controller_incarnation;
        let (Some(session), true) = (stream.session, same) else { return };
        let event = match stream.peer < self.first_rank {
            true => Happens::SwitchClosed { session },
            false => Happens::WorkerClosed { session, hung_up: by_peer },
        };
        let _ = self.decide(place, event);
    }

    /// Handles a request for a job.
    pub(super) fn create_job(&mut self, number: usize) {
        self.jobs[number].attempts += 1;
        if self.jobs[number].attempts > ATTEMPTS {
            return;
        }
        let first = self.jobs[number].first;
        let reached = |&place: &Place| {
            self.is_up(place)
                && !self.active.separated(first, place, |cut| cut.control)
                && !self.follows(place)
        };
        let places = (0..self.controllers.len()).map(|index| self.controller_place(index));
        let Some(place) = places.filter(|place| reached(place)).max_by_key(|&place| {
            let index = self.controller_index(place).unwrap_or_default();
            self.controllers[index].engine.as_ref().map(Engine::term)
        }) else {
            return self.queue.after(500 * MS, Event::CreateJob(number));
        };
        let request = self.description(number);
        let key = JobKey::new(Mac::SipHash, [number as u8 + 1; 16]);
        match self.decide(place, Happens::CreateJob { request, key, from: None }) {
            Ok(Answer::Created(id)) => {
                self.log(place, format_args!("creates job {id} for job #{number}"));
                let index = self.controller_index(place).unwrap_or_default();
                let incarnation = self.controllers[index].state().map_or(0, State::incarnation);
                self.check_job_number(number, incarnation, id);
                self.jobs[number].id = Some(id);
                self.jobs[number].incarnation = incarnation;
                self.start_ranks(number);
            }
            Ok(Answer::Done) => {
                self.violation(Class::Correctness, "a job has a number", "it has none".to_owned());
            }
            Err(Failure::Refused(refusal)) => {
                self.log(place, format_args!("refuses job #{number}: {refusal}"));
                self.queue.after(500 * MS, Event::CreateJob(number));
            }
            Err(Failure::Store(reason) | Failure::Over(reason)) => {
                self.log(place, format_args!("cannot create job #{number}: {reason}"));
                self.queue.after(500 * MS, Event::CreateJob(number));
            }
        }
    }

    /// Ends a job by an operator's command.
    pub(super) fn stop_job(&mut self, number: usize) {
        if let Some((place, job)) = self.number_at_leader(number) {
            let reason = "stopped by an operator".to_owned();
            let _ = self.decide(place, Happens::StopJob { job, reason });
        }
    }

    /// Gives a job new keys by an operator's command.
    pub(super) fn rekey_job(&mut self, number: usize) {
        if let Some((place, job)) = self.number_at_leader(number) {
            // Different at every time.
            let secret = u128::from(self.queue.now()).to_be_bytes();
            let key = JobKey::new(Mac::SipHash, secret);
            let _ = self.decide(place, Happens::RekeyJob { job, key });
        }
    }

    /// The leader, and a job's number as it shows it to operators. A controller that has lost its store knows nothing of
    /// earlier jobs, and may have given the number to another.
    fn number_at_leader(&self, number: usize) -> Option<(Place, u32)> {
        let place = self.leader_place()?;
        let state = self.controllers[self.controller_index(place)?].state()?;
        let job = &self.jobs[number];
        let known = job.incarnation == state.incarnation();
        job.id.filter(|_| known).map(|id| (place, id))
    }

    /// The request that creates a job.
    pub(super) fn description(&self, number: usize) -> pb::CreateJobRequest {
        let shape = &self.scenario.jobs[number];
        pb::CreateJobRequest {
            name: format!("#{number}"),
            size: shape.hosts.len() as u32,
            max_trees: shape.max_trees,
            congestion: shape.congestion.clone(),
            protocol: shape.protocol.clone(),
            min_bytes: Some(0),
            scale: if shape.protocol == "panama" { 0.0 } else { shape.scale as f32 },
            encrypt: shape.encrypt && !self.scenario.fabric.trusted,
            all_collectives: shape.all_collectives,
            ..Default::default()
        }
    }

    /// Whether a controller runs and does not lead.
    fn follows(&self, place: Place) -> bool {
        let index = self.controller_index(place).unwrap_or_default();
        self.has_standbys() && self.controllers[index].engine.is_none()
    }

    fn decide(&mut self, place: Place, event: Happens) -> Result<Answer, Failure> {
        let index = self.controller_index(place).unwrap_or_default();
        let now_ms = (self.local(place).0 - self.controllers[index].started) / MS;
        let unix_s = 1e9 + self.queue.now() as f64 / 1e9;
        let Some(engine) = &mut self.controllers[index].engine else {
            return Err(Failure::Store("the controller is stopping".to_owned()));
        };
        let Outcome { actions, answer } = engine.handle(now_ms, event, unix_s);
        let (term, is_over) = (engine.term(), engine.over().is_some());
        for action in actions {
            self.act(place, term, action);
        }
        if is_over {
            self.reign_ends(index);
        }
        answer
    }

    fn act(&mut self, place: Place, term: u64, action: Action) {
        let incarnation = self.processes[place].incarnation;
        let stream = |session| self.streams.of_session(place, incarnation, session);
        match action {
            // The engine has saved the change.
            Action::SaveJob(_) | Action::SaveMember(..) => {}
            Action::SendToWorker(session, event) => {
                let stream = stream(session);
                self.check_message(&event);
                if let Some(id) = stream {
                    self.send_down(id, Down::Worker(event, term));
                }
            }
            Action::SendToSwitch(session, command) => {
                if let Some(id) = stream(session) {
                    self.check_command(id, &command);
                    self.send_down(id, Down::Switch(command, term));
                }
            }
            Action::Close(session) => {
                if let Some(id) = stream(session) {
                    self.close_from_controller(id);
                }
            }
        }
    }
}

/// Tick interval of the controller.
const TICK: Nanos = 100 * MS;
/// Maximum number of attempts to create a job.
const ATTEMPTS: u32 = 200;
