//! The controller process: the decisions of `netsum-control`, a store, sessions. Actions are executed as by the owner
//! of the state in `netsum-control`.

use netsum_control::decide::{Action, Answer, Event as Happens, SessionId, Settings, State};
use netsum_control::{Engine, Failure, Outcome, pb};
use netsum_wire::tag::{JobKey, Mac};

use super::clock::{MS, Nanos};
use super::streams::{Down, StreamId, Up};
use super::{CONTROLLER, Event, Timer, World};
use crate::fault::StoreAfter;
use crate::random::Random;
use crate::report::Class;
use crate::scenario::Scenario;
use crate::store::SimulatedStore;

pub(super) struct ControllerProcess {
    engine: Option<Engine<SimulatedStore>>,
    store: SimulatedStore,
    /// Random numbers for the incarnations of new stores.
    random: Random,
    next_session: u64,
    /// Local time of the start.
    started: Nanos,
}

impl ControllerProcess {
    pub(super) fn new(scenario: &Scenario) -> ControllerProcess {
        let mut random = Random::of(scenario.seed, &[13]);
        let store = SimulatedStore::new(random.next() | 1, scenario.first_job);
        ControllerProcess { engine: None, store, random, next_session: 1, started: 0 }
    }

    /// The committed state.
    pub(super) fn state(&self) -> Option<&State> {
        self.engine.as_ref().map(Engine::state)
    }

    /// Handles the death of the process.
    pub(super) fn stop(&mut self) {
        self.engine = None;
    }

    pub(super) fn set_disk_full(&self, full: bool) {
        self.store.set_full(full);
    }
}

impl World {
    pub(super) fn start_controller(&mut self, store: StoreAfter) {
        let controller = &mut self.controller;
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
        let store = self.controller.store.clone();
        let engine = Engine::new(self.fabric.clone(), settings, store);
        self.controller.engine = Some(engine.expect("a store in memory is read"));
        self.controller.started = self.local(CONTROLLER).0;
        self.controller.next_session = 1;
        self.log(CONTROLLER, format_args!("starts"));
        self.after(CONTROLLER, TICK, Timer::Tick);
    }

    pub(super) fn controller_tick(&mut self) {
        self.after(CONTROLLER, TICK, Timer::Tick);
        let _ = self.decide(Happens::Tick);
    }

    /// Handles a message of an open stream.
    pub(super) fn controller_receives(&mut self, id: StreamId, message: Up) {
        let Some(stream) = self.streams.get(id) else { return };
        let (peer, session) = (stream.peer, stream.session);
        match (message, session) {
            (Up::Closed, None) => {}
            (Up::Closed, Some(_)) => {
                if let Some(stream) = self.streams.get_mut(id) {
                    stream.controller_open = false;
                }
                self.log(
                    CONTROLLER,
                    format_args!("stream of {} ends", self.processes[peer].name.clone()),
                );
                self.session_ended(id);
            }
            (Up::Worker(pb::worker_report::Report::Join(join)), None) => {
                let (job, rank, known) = (join.job, join.rank, join.known_epoch);
                // Another key than that of the job's creation.
                let key = JobKey::new(Mac::SipHash, [job as u8 ^ 0x80; 16]);
                let open = |session| Happens::WorkerJoined { session, join, key };
                let outcome = self.open_session(id, open);
                self.log(
                    CONTROLLER,
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
                    CONTROLLER,
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
                            CONTROLLER,
                            format_args!("{} leaves", self.processes[peer].name.clone()),
                        );
                        Happens::WorkerLeft { session }
                    }
                    pb::worker_report::Report::Join(_) => return,
                };
                let _ = self.decide(event);
            }
            (Up::Switch(report), Some(session)) => {
                let event = match report {
                    pb::switch_report::Report::Heartbeat(counters) => {
                        Happens::SwitchHeartbeat { session, counters }
                    }
                    pb::switch_report::Report::LeaseAck(ack) => Happens::LeaseAck { session, ack },
                    pb::switch_report::Report::Hello(_) => return,
                };
                let _ = self.decide(event);
            }
            _ => {}
        }
    }

    /// Handles the first report of a stream.
    fn open_session(&mut self, id: StreamId, event: impl FnOnce(SessionId) -> Happens) -> String {
        let session = SessionId(self.controller.next_session);
        self.controller.next_session += 1;
        if let Some(stream) = self.streams.get_mut(id) {
            stream.session = Some(session);
        }
        // The response headers precede all messages that the decision sends.
        self.send_down(id, Down::Accepted);
        let (finally, reason) = match self.decide(event(session)) {
            Ok(_) => return "accepted".to_owned(),
            Err(Failure::Refused(refusal)) => (true, refusal.to_string()),
            Err(Failure::Store(reason)) => (false, reason),
        };
        self.send_down(id, Down::Refused { finally, reason: reason.clone() });
        if let Some(stream) = self.streams.get_mut(id) {
            stream.controller_open = false;
        }
        // The handler never read the stream, so no end of session is reported.
        reason
    }

    /// Handles the end of the task that reads a stream.
    pub(super) fn session_ended(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get(id) else { return };
        let controller = &self.processes[CONTROLLER];
        let same = controller.alive && controller.incarnation == stream.controller_incarnation;
        let (Some(session), true) = (stream.session, same) else { return };
        let event = match stream.peer < self.first_rank {
            true => Happens::SwitchClosed { session },
            false => Happens::WorkerClosed { session },
        };
        let _ = self.decide(event);
    }

    /// Handles a request for a job.
    pub(super) fn create_job(&mut self, number: usize) {
        self.jobs[number].attempts += 1;
        if self.jobs[number].attempts > ATTEMPTS {
            return;
        }
        let first = self.jobs[number].first;
        let cut = self.active.separated(first, CONTROLLER, |cut| cut.control);
        if !self.is_up(CONTROLLER) || cut {
            return self.queue.after(500 * MS, Event::CreateJob(number));
        }
        let request = self.description(number);
        let key = JobKey::new(Mac::SipHash, [number as u8 + 1; 16]);
        match self.decide(Happens::CreateJob { request, key, from: None }) {
            Ok(Answer::Created(id)) => {
                self.log(CONTROLLER, format_args!("creates job {id} for job #{number}"));
                let incarnation = self.controller.state().map_or(0, State::incarnation);
                self.check_job_number(number, incarnation, id);
                self.jobs[number].id = Some(id);
                self.jobs[number].incarnation = incarnation;
                self.start_ranks(number);
            }
            Ok(Answer::Done) => {
                self.violation(Class::Correctness, "a job has a number", "it has none".to_owned());
            }
            Err(Failure::Refused(refusal)) => {
                self.log(CONTROLLER, format_args!("refuses job #{number}: {refusal}"));
                self.queue.after(500 * MS, Event::CreateJob(number));
            }
            Err(Failure::Store(reason)) => {
                self.log(CONTROLLER, format_args!("cannot create job #{number}: {reason}"));
                self.queue.after(500 * MS, Event::CreateJob(number));
            }
        }
    }

    /// Ends a job by an operator's command.
    pub(super) fn stop_job(&mut self, number: usize) {
        let Some(job) = self.jobs[number].id else { return };
        if self.is_up(CONTROLLER) {
            let _ =
                self.decide(Happens::StopJob { job, reason: "stopped by an operator".to_owned() });
        }
    }

    /// Gives a job new keys by an operator's command.
    pub(super) fn rekey_job(&mut self, number: usize) {
        let Some(job) = self.jobs[number].id else { return };
        if self.is_up(CONTROLLER) {
            // Different at every time.
            let secret = u128::from(self.queue.now()).to_be_bytes();
            let key = JobKey::new(Mac::SipHash, secret);
            let _ = self.decide(Happens::RekeyJob { job, key });
        }
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
            ..Default::default()
        }
    }

    fn decide(&mut self, event: Happens) -> Result<Answer, Failure> {
        let now_ms = (self.local(CONTROLLER).0 - self.controller.started) / MS;
        let unix_s = 1e9 + self.queue.now() as f64 / 1e9;
        let Some(engine) = &mut self.controller.engine else {
            return Err(Failure::Store("the controller is stopping".to_owned()));
        };
        let Outcome { actions, answer } = engine.handle(now_ms, event, unix_s);
        for action in actions {
            self.act(action);
        }
        answer
    }

    fn act(&mut self, action: Action) {
        let incarnation = self.processes[CONTROLLER].incarnation;
        let stream = |session| self.streams.of_session(incarnation, session);
        match action {
            // The engine has saved the change.
            Action::SaveJob(_) | Action::SaveMember(..) => {}
            Action::SendToWorker(session, event) => {
                let stream = stream(session);
                self.check_message(&event);
                if let Some(id) = stream {
                    self.send_down(id, Down::Worker(event));
                }
            }
            Action::SendToSwitch(session, command) => {
                if let Some(id) = stream(session) {
                    self.check_command(id, &command);
                    self.send_down(id, Down::Switch(command));
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
