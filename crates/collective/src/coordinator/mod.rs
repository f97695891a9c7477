//! The group's coordinator thread: sums on trees, agreement among the ranks, the controller's notices.
//!
//! All collectives that switches support pass through it, in the order of calls, even while the plan has no trees: then
//! they run on a separate host queue. So a rank that calls an operation before a change of plan, and one that calls it
//! after, put it on the same path.
//!
//! Small operations begin on the caller's thread and end on the data thread while no hand-over is in progress: waking
//! the coordinator twice would take longer than the switches. Both only *try* to lock the coordinator's state, and leave
//! the operation to its thread if they cannot: it waits for the data thread, and for the lock of the caller, in turn.

mod departures;
mod disputes;
mod handover;
mod job;
mod mesh_handler;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded, never, select, unbounded};
use netsum_control::client::{WorkerClient, WorkerNotice};
use netsum_control::{ControllerPlan, pb};
use netsum_lease::RankKeys;
use netsum_net::mesh::{Channel, Key, MeshError};
use netsum_net::worker::{self, WorkerDriver};
use netsum_proto::departure::Departure;
use netsum_proto::handover::{Handover, Mode, Settings};
use netsum_wire::Rank;
use parking_lot::Mutex;

pub(crate) use job::{JobState, TreeJob};
pub(crate) use mesh_handler::MeshHandler;

use crate::Error;
use crate::core::Core;
use crate::error::of_mesh;
use crate::events::GroupEvents;
use crate::messages::MessageKind;
use crate::queue::OpQueue;
use crate::recorder::RecorderReport;
use crate::status::Status;
use departures::Stalled;
use disputes::Disputes;

/// Events of the coordinator's thread.
pub(crate) enum Event {
    /// A collective that switches support.
    Submit(TreeJob),
    /// A control message of a rank.
    Control { from: u32, key: Key, bytes: Vec<u8> },
    /// A message of this operation arrived whose fingerprint differs from the own call's.
    Differs(u64),
    /// The mesh has failed.
    MeshFailed(MeshError),
    /// A notice of the controller.
    Notice(WorkerNotice),
    /// The caller fails the group.
    Fail(Error),
    /// A thread waits until all earlier events are handled.
    Settle(Sender<()>),
    /// A thread waits until this rank may leave the group.
    Leave(Sender<()>),
    /// The thread must end.
    Close,
}

impl GroupEvents for Sender<Event> {
    fn differs(&self, sequence: u64) {
        // A coordinator that has ended has failed the group.
        let _ = self.send(Event::Differs(sequence));
    }

    fn failed(&self, error: Error) {
        // As above.
        let _ = self.send(Event::Fail(error));
    }

    fn settle(&self, patience: Duration) {
        let (reply, settled) = bounded(1);
        if self.send(Event::Settle(reply)).is_ok() {
            let _ = settled.recv_timeout(patience);
        }
    }
}

/// Additional parameters of a group with a controller.
pub(crate) struct Fabric {
    pub(crate) driver: Arc<WorkerDriver>,
    pub(crate) events: Receiver<worker::Event>,
    pub(crate) client: WorkerClient,
    pub(crate) notices: std::sync::mpsc::Receiver<WorkerNotice>,
}

/// Handle to the thread.
pub(crate) struct Coordinator {
    events: Sender<Event>,
    state: Arc<Mutex<State>>,
    /// Operations in `events`.
    queued: Arc<AtomicUsize>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Coordinator {
    /// Starts the thread. The receiver gets one message, when the first plan is in use or the controller gives none.
    pub(crate) fn start(
        core: Arc<Core>,
        channel: (Sender<Event>, Receiver<Event>),
        fabric: Option<Fabric>,
        status: Arc<Mutex<Status>>,
    ) -> Result<(Coordinator, Receiver<Result<(), Error>>), Error> {
        let (sender, events) = channel;
        let (ready, settled) = unbounded();
        let (driver, driver_events, client) = match fabric {
            None => (None, never(), None),
            Some(fabric) => {
                forward(fabric.notices, sender.clone())?;
                (Some(fabric.driver), fabric.events, Some(fabric.client))
            }
        };
        let queue = OpQueue::start(core.clone(), Arc::default(), "netsum-redo", None)?;
        let settings = Settings {
            rank: Rank(core.rank),
            size: core.size,
            mode: Mode::Leaderless,
            timeout_ns: HANDOVER_PATIENCE.as_nanos() as u64,
        };
        let queued: Arc<AtomicUsize> = Arc::default();
        let state = State {
            core,
            caller: Caller::default(),
            queued: queued.clone(),
            driver,
            client,
            queue,
            status,
            ready: Some(ready),
            jobs: BTreeMap::new(),
            plan: None,
            rank_keys: RankKeys::default(),
            trees: false,
            machine: Handover::new(settings),
            origin: Instant::now(),
            lost: Vec::new(),
            beat: Instant::now(),
            plan_works: false,
            disputes: Disputes::default(),
            stalled: None,
            departure: Departure::new(Rank(settings.rank.0), settings.size),
            leaving: None,
        };
        let driver = state.driver.clone();
        let state = Arc::new(Mutex::new(state));
        if let Some(driver) = driver {
            let state = Arc::downgrade(&state);
            driver.hand_events_to(move |event| State::end_at_once(&state, event));
        }
        let shared = state.clone();
        let thread = spawn("netsum-group", move || State::run(&shared, &events, &driver_events))?;
        let thread = Mutex::new(Some(thread));
        Ok((Coordinator { events: sender, state, queued, thread }, settled))
    }

    /// Begins a collective. The caller holds the lock under which operations are numbered, so they begin in that order.
    /// `helps`: it will do nothing but wait. True if it must then call [`WorkerDriver::help`], without that lock.
    pub(crate) fn submit(&self, job: TreeJob, helps: bool) -> bool {
        match self.submit_at_once(job, helps) {
            Ok(given) => given,
            Err(job) => {
                self.queued.fetch_add(1, Ordering::Relaxed);
                self.send(Event::Submit(*job));
                false
            }
        }
    }

    /// Begins a small collective on this thread; returns it if that is not possible now.
    fn submit_at_once(&self, job: TreeJob, helps: bool) -> Result<bool, Box<TreeJob>> {
        if job.task.bytes() > AT_ONCE_MAX {
            return Err(Box::new(job));
        }
        let Some(mut state) = self.state.try_lock() else { return Err(Box::new(job)) };
        // Earlier operations begin first.
        if self.queued.load(Ordering::Relaxed) > 0 || !state.is_steady() {
            return Err(Box::new(job));
        }
        state.caller = if helps { Caller::Helps } else { Caller::GoesOn };
        state.submit(job);
        Ok(std::mem::take(&mut state.caller) == Caller::HasGiven)
    }

    pub(crate) fn send(&self, event: Event) {
        // A thread that has ended has failed all its operations; the caller finds the group's failure.
        let _ = self.events.send(event);
    }

    /// Waits until no other rank needs this one for a sum; at once if operations are in progress here, which closing
    /// the group ends.
    pub(crate) fn wait_to_leave(&self) {
        let (reply, may_leave) = bounded(1);
        self.send(Event::Leave(reply));
        // Without the thread there is nobody who could help the others.
        let _ = may_leave.recv_timeout(2 * LINGER);
    }

    /// Ends the thread, and leaves the job.
    pub(crate) fn close(&self) {
        self.send(Event::Close);
        if let Some(thread) = self.thread.lock().take() {
            // The panic hook has reported a panic.
            let _ = thread.join();
        }
    }
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, Error> {
    let thread = std::thread::Builder::new().name(name.to_owned()).spawn(body);
    thread.map_err(|e| Error::Internal(format!("cannot start thread {name}: {e}")))
}

/// Forwards the controller's notices, which arrive on a different kind of channel.
fn forward(
    notices: std::sync::mpsc::Receiver<WorkerNotice>,
    events: Sender<Event>,
) -> Result<(), Error> {
    let body = move || {
        while let Ok(notice) = notices.recv() {
            if events.send(Event::Notice(notice)).is_err() {
                return;
            }
        }
    };
    spawn("netsum-notices", body).map(drop)
}

/// Whether a caller that submits an operation does the data thread's work until the end of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Caller {
    #[default]
    GoesOn,
    Helps,
    /// It does, and the driver has got the operation without being rung for.
    HasGiven,
}

struct State {
    core: Arc<Core>,
    caller: Caller,
    /// Operations that the thread has not begun yet.
    queued: Arc<AtomicUsize>,
    driver: Option<Arc<WorkerDriver>>,
    client: Option<WorkerClient>,
    /// Runs operations that the trees cannot run now.
    queue: OpQueue,
    status: Arc<Mutex<Status>>,
    ready: Option<Sender<Result<(), Error>>>,
    /// Operations that wait or are on the trees, by number.
    jobs: BTreeMap<u64, TreeJob>,
    /// The plan in use, and whether its trees are used.
    plan: Option<ControllerPlan>,
    /// This rank's own keys.
    rank_keys: RankKeys,
    trees: bool,
    /// Hands the ranks over from one plan to the next.
    machine: Handover<ControllerPlan>,
    /// Origin of the machine's time.
    origin: Instant,
    /// Ranks that the mesh cannot reach any more.
    lost: Vec<u32>,
    beat: Instant,
    /// Whether the trees of the plan in use have summed an operation.
    plan_works: bool,
    disputes: Disputes,
    stalled: Option<Stalled>,
    departure: Departure,
    /// Who waits until this rank may leave.
    leaving: Option<Sender<()>>,
}

impl State {
    fn run(
        shared: &Mutex<State>,
        events: &Receiver<Event>,
        driver_events: &Receiver<worker::Event>,
    ) {
        loop {
            select! {
                recv(events) -> event => match event {
                    Ok(Event::Close) | Err(_) => break,
                    Ok(event) => shared.lock().take(event),
                },
                recv(driver_events) -> event => match event {
                    Ok(event) => shared.lock().take_driver(event),
                    Err(_) => {
                        shared.lock().fail(Error::Internal("the data thread has ended".into()));
                    }
                },
                default(TICK) => {}
            }
            shared.lock().tick();
        }
        let mut state = shared.lock();
        let closed = Error::Closed(state.core.name.clone());
        state.fail(closed);
        state.queue.close();
        if let Some(client) = state.client.take() {
            client.leave();
        }
        // The data thread may hold the state for a moment longer, and cannot end itself.
        let driver = state.driver.take();
        drop(state);
        drop(driver);
    }

    /// Ends a small operation of which the data thread, which calls this, has all results; returns the event for the
    /// coordinator's thread if that must handle it.
    fn end_at_once(state: &Weak<Mutex<State>>, event: worker::Event) -> Option<worker::Event> {
        let worker::Event::Done { id, missing } = event else { return Some(event) };
        let Some(shared) = state.upgrade() else { return Some(event) };
        let job = shared.try_lock().and_then(|mut state| {
            let small = state.jobs.get(&id).is_some_and(|job| job.task.bytes() <= AT_ONCE_MAX);
            // The first operation of a plan is reported to the controller.
            (small && state.plan_works).then(|| state.take_done(id, missing)).flatten()
        });
        match job {
            Some(job) => job.end(Ok(())),
            None => return Some(event),
        }
        None
    }

    /// Whether operations go to their paths without waiting.
    fn is_steady(&self) -> bool {
        self.core.failure().is_none() && !self.machine.is_under_way()
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Submit(job) => {
                self.submit(job);
                self.queued.fetch_sub(1, Ordering::Relaxed);
            }
            Event::Control { from, key, bytes } => self.control(from, key, bytes),
            Event::Differs(sequence) => self.compare(sequence),
            Event::MeshFailed(reason) => {
                let error = of_mesh(&reason, |rank| self.core.place(rank));
                if let MeshError::PeerLost { rank, .. } = reason {
                    // The controller declares a rank lost if its peers report it.
                    self.lost.push(rank);
                    self.heartbeat();
                }
                self.fail(error);
            }
            Event::Notice(notice) => self.notice(notice),
            Event::Fail(error) => self.fail(error),
            Event::Settle(reply) => {
                // The thread that asked may have timed out.
                let _ = reply.send(());
            }
            Event::Leave(reply) => self.leave(reply),
            Event::Close => {}
        }
    }

    fn take_driver(&mut self, event: worker::Event) {
        match event {
            worker::Event::Done { id, missing } => self.done(id, missing),
            worker::Event::Mismatch { id, named } => self.packets_differ(id, named),
            worker::Event::Refused { id, ranks, refusal } => self.refused(id, ranks, refusal),
            worker::Event::Silent { tree, for_ns } => self.silent(tree.0, for_ns),
            worker::Event::Io(netsum_net::NetError::Stopped) => {
                self.fail(Error::Internal("the data thread has stopped".into()));
            }
            worker::Event::Io(error) => tracing::warn!(%error, "data socket"),
        }
    }

    fn control(&mut self, from: u32, key: Key, bytes: Vec<u8>) {
        debug_assert_eq!(key.channel, Channel::Control);
        match MessageKind::from_tag(key.tag) {
            Some(MessageKind::Call) => {
                let call = String::from_utf8_lossy(&bytes[..bytes.len().min(CALL_MAX)]);
                if self.core.ledger.on_peer_call(key.part, from, call.into_owned()) {
                    self.compare(key.part);
                }
            }
            Some(MessageKind::Handover) => self.take_handover(from, &bytes),
            Some(MessageKind::Failed) => {
                let reason = String::from_utf8_lossy(&bytes[..bytes.len().min(CALL_MAX)]);
                let mismatch = key.part == 1;
                self.fail(Error::Told { rank: from, reason: reason.into_owned(), mismatch });
            }
            Some(MessageKind::Digest) => {
                if let Ok(digest) = bytes.try_into().map(u64::from_be_bytes) {
                    self.core.take_digest(key.part, from, digest);
                }
            }
            Some(MessageKind::Departure) => {
                if let Err(error) = self.departure.handle_message(Rank(from), &bytes) {
                    tracing::warn!(from, %error, "refused");
                }
            }
            // The mesh handler forwards these to the session and to the responder.
            Some(MessageKind::PlanHandover | MessageKind::Question | MessageKind::Answer) => {}
            None => tracing::warn!(from, tag = key.tag, "control message of unknown kind"),
        }
    }

    /// Some rank called something else under this number: every rank sends its call.
    fn compare(&mut self, sequence: u64) {
        if let Some(call) = self.core.ledger.announce(sequence) {
            self.core.send_all(MessageKind::Call, sequence, call.as_bytes());
        }
        self.judge(sequence, Instant::now());
    }

    fn notice(&mut self, notice: WorkerNotice) {
        match notice {
            WorkerNotice::Connected => self.status.lock().away = None,
            WorkerNotice::Away { reason } => {
                tracing::warn!(%reason, "the controller is away");
                self.status.lock().away = Some(reason);
            }
            WorkerNotice::RankKey(id, key) => {
                self.rank_keys.insert(id, key);
                self.secure();
            }
            WorkerNotice::Plan(plan) => {
                if self.core.failure().is_none() {
                    self.machine.handle_plan(self.now(), ControllerPlan(Arc::from(plan)));
                    self.drive();
                }
            }
            WorkerNotice::PeerLost(lost) => {
                let place = format!("host {}, pid {}", lost.host, lost.pid);
                let (rank, reason) = (lost.rank, lost.reason);
                self.end(Error::PeerLost { rank, place, reason, context: None });
            }
            WorkerNotice::JobFailed { reason } => self.end(Error::Aborted(reason)),
            WorkerNotice::Refused { reason } if self.ready.is_some() => {
                self.settle(Err(Error::Controller(format!("the controller refused: {reason}"))));
            }
            WorkerNotice::Refused { reason } => {
                tracing::warn!(%reason, "the controller refused; going on with the plan at hand");
            }
        }
    }

    fn tick(&mut self) {
        let now = Instant::now();
        self.watch_silence();
        self.watch_disputes(now);
        self.watch_calls();
        self.watch_departures(now);
        self.depart();
        self.watch_deadlines(now);
        if self.core.failure().is_none() {
            self.machine.handle_timeout(self.now());
            self.drive();
        }
        if now - self.beat >= BEAT {
            self.beat = now;
            self.heartbeat();
        }
    }

    fn heartbeat(&self) {
        let (Some(client), Some(driver)) = (&self.client, &self.driver) else { return };
        let (sent, received) = self.core.mesh.traffic();
        let RecorderReport { step, recent } = self.core.recorder_report();
        let step = step.map(|step| pb::StepReport {
            seconds: step.seconds,
            communicating_s: step.communicating_s,
            exposed_s: step.exposed_s,
            operations: step.operations,
            bytes: step.bytes,
        });
        let group = pb::WorkerHeartbeat {
            host_bytes_tx: sent,
            host_bytes_rx: received,
            operations: self.core.counters.operations.load(Ordering::Relaxed),
            network_operations: self.core.counters.network_operations.load(Ordering::Relaxed),
            plan_epoch: self.plan.as_ref().map_or(0, |plan| plan.0.plan.epoch.into()),
            silent_trees: self.machine.silent_trees().into_iter().map(u32::from).collect(),
            unreachable_ranks: self.lost.clone(),
            step,
            recent,
            ..Default::default()
        };
        client.heartbeat(self.status.lock().heartbeat(&driver.stats(), group));
    }

    /// Ends the group, including point-to-point messages.
    fn end(&mut self, error: Error) {
        let reason = error.to_string();
        self.fail(error);
        self.core.mesh.abort(&reason);
    }

    /// Fails all collectives with `error`; the first error is kept.
    fn fail(&mut self, error: Error) {
        self.settle(Err(error.clone()));
        self.core.fail(error.clone());
        self.trees = false;
        if let Some(driver) = &self.driver {
            driver.cancel_all();
        }
        let error = self.core.failure().unwrap_or(error);
        // The jobs on the queue were cancelled with the group and end by themselves.
        for (sequence, job) in std::mem::take(&mut self.jobs) {
            self.core.ledger.retire(sequence);
            job.end(Err(error.clone()));
        }
    }

    fn settle(&mut self, outcome: Result<(), Error>) {
        if let Some(ready) = self.ready.take() {
            // The thread that connects may have timed out.
            let _ = ready.send(outcome);
        }
    }
}

/// Longer operations take their time in the network: the caller's thread and the data thread have other things to do than
/// to scale their values.
const AT_ONCE_MAX: usize = 64 << 10;
/// Precision of deadlines and of the detection of silence.
const TICK: Duration = Duration::from_millis(50);
/// Interval of statistics to the controller.
const BEAT: Duration = Duration::from_secs(1);
/// A hand-over between working ranks takes milliseconds; operations that wait for one have deadlines of their own.
const HANDOVER_PATIENCE: Duration = Duration::from_secs(600);
/// Several times what it takes to notice that a switch is silent, and to go on without it.
const LINGER: Duration = Duration::from_secs(10);
/// Maximum length of a call's description: usually some hundred bytes, more only with many sizes.
const CALL_MAX: usize = 4096;
