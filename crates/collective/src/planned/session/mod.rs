//! A group's allreduces over the plan of the current epoch, in the order of calls.
//!
//! All ranks use the same plan for the same operation. Rank 0 leads the change to the next epoch when a link breaks, or
//! when the plan's file has changed: see [`netsum_proto::handover`]. Every contribution is counted once, and no rank
//! keeps a copy of its values, because an operation completes on no rank before all elements are final on all ranks
//! (see `engine`). Without a usable plan, sums use the host path.

mod handover;
mod ranges;

pub(crate) use handover::LedPlan;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Instant, SystemTime};

use crossbeam_channel::{Receiver, Sender, after, never, select, unbounded};
use netsum_net::Buffer;
use netsum_net::mesh::MeshError;
use netsum_proto::handover::elements::{union, without};
use netsum_proto::handover::{self as machine, Handover, MessageError, Mode, Ranges, Settings};
use netsum_topo::links::TreePlan;
use netsum_wire::{Format, Rank};
use parking_lot::Mutex;

use super::{
    LostLink, Patience, PlanSource, PlannedError, PlannedGroup, PortAddress, Ports, Stopped,
    engine::PlannedOperation,
};
use crate::Error;
use crate::algorithm::allreduce_ranges;
use crate::combine::{Combine, conclude, prepare};
use crate::comm::Comm;
use crate::core::Core;
use crate::messages::{ControlMessage, MessageKind};
use crate::status::Status;
use crate::work::Work;
use handover::send_queued;

/// One allreduce.
pub(crate) struct PlanJob {
    pub(crate) sequence: u64,
    pub(crate) fingerprint: u32,
    pub(crate) format: Format,
    pub(crate) how: Combine,
    pub(crate) buffer: Buffer,
    pub(crate) deadline: Instant,
    pub(crate) work: Work,
}

/// Configuration of a session.
pub(crate) struct SessionConfig {
    pub(crate) core: Arc<Core>,
    pub(crate) source: PlanSource,
    pub(crate) plan: TreePlan,
    pub(crate) from_bytes: u64,
    pub(crate) ports: Ports,
    /// Addresses by rank.
    pub(crate) peers: BTreeMap<usize, PortAddress>,
    pub(crate) patience: Patience,
    pub(crate) controls: Receiver<ControlMessage>,
    pub(crate) status: Arc<Mutex<Status>>,
}

/// Handle to the session's thread.
pub(crate) struct Session {
    tasks: Sender<Task>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Minimum size of buffers for the plan, in bytes.
    pub(crate) from_bytes: u64,
}

enum Task {
    Run(PlanJob),
    Close,
}

impl Session {
    /// Connects the plan's peer links and starts the thread.
    pub(crate) fn start(config: SessionConfig) -> Result<Session, Error> {
        let (tasks, receiver) = unbounded();
        let from_bytes = config.from_bytes;
        let mut state = State::new(config, receiver)?;
        let thread = std::thread::Builder::new().name("netsum-plan".into());
        let thread = thread.spawn(move || state.run());
        let thread = thread.map_err(|e| Error::Internal(format!("cannot start a thread: {e}")))?;
        Ok(Session { tasks, thread: Mutex::new(Some(thread)), from_bytes })
    }

    pub(crate) fn push(&self, job: PlanJob) {
        // The thread ends only in `close`, after which there are no calls.
        let _ = self.tasks.send(Task::Run(job));
    }

    /// Completes the queue, then ends the thread.
    pub(crate) fn close(&self) {
        let _ = self.tasks.send(Task::Close);
        if let Some(thread) = self.thread.lock().take() {
            // The panic hook has reported a panic and failed the operation.
            let _ = thread.join();
        }
    }
}

/// The path of the operation in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Running {
    /// None: the operation waits for a path, or there is none.
    No,
    Network,
    Hosts,
}

struct State {
    core: Arc<Core>,
    source: PlanSource,
    ports: Ports,
    peers: BTreeMap<usize, PortAddress>,
    patience: Patience,
    tasks: Receiver<Task>,
    controls: Receiver<ControlMessage>,
    status: Arc<Mutex<Status>>,
    /// The hand-over machine. Queried during an operation, too.
    machine: RefCell<Handover<LedPlan>>,
    /// Origin of the machine's time.
    origin: Instant,
    /// The group connected by the plan in use; `None`: on the host path, or between epochs.
    group: Option<Box<PlannedGroup>>,
    running: Running,
    progress: Option<Progress>,
    /// Number and deadline of the last operation started.
    current: (u64, Instant),
    /// Rank 0 only: the plan of this epoch, the file's last modification time, a plan provided by the operator, lost
    /// links.
    plan: Option<TreePlan>,
    modified: Option<SystemTime>,
    brought: Option<TreePlan>,
    lost: Vec<LostLink>,
}

/// State of the operation in progress.
struct Progress {
    job: PlanJob,
    /// Elements that are final on this rank.
    finals: Ranges,
    over: bool,
}

impl Progress {
    fn element(&self) -> usize {
        self.job.format.dtype.size()
    }

    fn numel(&self) -> u64 {
        (self.job.buffer.len() / self.element()) as u64
    }
}

impl State {
    fn new(config: SessionConfig, tasks: Receiver<Task>) -> Result<State, Error> {
        let SessionConfig {
            core,
            source,
            plan,
            from_bytes,
            ports,
            peers,
            patience,
            controls,
            status,
        } = config;
        let modified = source.modified();
        let settings = Settings {
            rank: Rank(core.rank),
            size: core.size,
            mode: Mode::Led,
            timeout_ns: u64::try_from(patience.timeout.as_nanos()).unwrap_or(u64::MAX),
        };
        let machine = Handover::new(settings);
        let (rank, epoch) = (core.rank as usize, machine.generation());
        let group = PlannedGroup::connect(&plan, rank, &ports, &peers, epoch, patience);
        let group = group.map_err(|error| Error::Connect {
            group: core.name.clone(),
            reason: error.to_string(),
        })?;
        status.lock().plan_from_bytes = from_bytes;
        status.lock().planned(epoch, Some(&plan), "");
        status.lock().links = group.measured();
        Ok(State {
            core,
            source,
            ports,
            peers,
            patience,
            tasks,
            controls,
            status,
            machine: RefCell::new(machine),
            origin: Instant::now(),
            group: Some(Box::new(group)),
            running: Running::No,
            progress: None,
            current: (0, Instant::now()),
            plan: Some(plan),
            modified,
            brought: None,
            lost: Vec::new(),
        })
    }

    fn run(&mut self) {
        let (tasks, controls) = (self.tasks.clone(), self.controls.clone());
        loop {
            let under_way = self.machine.get_mut().is_under_way();
            let tick = if under_way { after(TICK) } else { never() };
            let outcome = select! {
                recv(controls) -> message => match message {
                    Ok(message) => self.on_message(&message),
                    Err(_) => return,
                },
                recv(tasks) -> task => match task {
                    Ok(Task::Run(job)) => {
                        self.complete(job);
                        Ok(())
                    }
                    Ok(Task::Close) | Err(_) => return,
                },
                recv(tick) -> _ => self.time_out(),
            };
            if let Err(error) = outcome {
                self.fail(error);
            }
        }
    }

    /// Runs a job to completion.
    fn complete(&mut self, job: PlanJob) {
        let (sequence, work) = (job.sequence, job.work.clone());
        let outcome = catch_unwind(AssertUnwindSafe(|| self.perform(job)));
        let outcome = outcome
            .unwrap_or_else(|_| Err(Error::Internal(format!("{} panicked", work.operation()))));
        match &outcome {
            Ok(()) => self.core.count_operation(false),
            Err(error) => self.fail(error.clone()),
        }
        self.progress = None;
        self.running = Running::No;
        self.core.ledger.retire(sequence);
        work.complete(outcome);
    }

    fn perform(&mut self, mut job: PlanJob) -> Result<(), Error> {
        let (how, dtype) = (job.how, job.format.dtype);
        prepare(how, dtype, &mut job.buffer);
        if self.core.rank == 0
            && let Some(plan) = self.changed_plan()
        {
            self.lost.clear();
            self.brought = Some(plan);
            self.request_plan("the plan's file has changed")?;
        }
        let (sequence, deadline) = (job.sequence, self.time_of(job.deadline));
        let progress = Progress { job, finals: Vec::new(), over: false };
        let elements = progress.numel();
        self.current = (sequence, progress.job.deadline);
        self.progress = Some(progress);
        let operation = machine::PendingOperation { sequence, elements, deadline };
        self.machine.get_mut().handle_operation(operation);
        self.drive()?;
        while !self.is_over() {
            self.core.failure().map_or(Ok(()), Err)?;
            match self.running {
                Running::Network => self.on_plan()?,
                Running::Hosts => self.on_hosts()?,
                Running::No => self.wait()?,
            }
        }
        let now = self.now();
        self.machine.get_mut().handle_over(now, sequence);
        self.running = Running::No;
        let ended = self.progress.take();
        self.drive()?;
        if let Some(mut ended) = ended {
            conclude(how, dtype, &mut ended.job.buffer, self.core.size);
        }
        Ok(())
    }

    fn is_over(&self) -> bool {
        self.progress.as_ref().is_none_or(|progress| progress.over)
    }

    /// Processes the next message of any rank, or waits until a deadline.
    fn wait(&mut self) -> Result<(), Error> {
        match self.controls.recv_timeout(TICK) {
            Ok(message) => self.on_message(&message),
            Err(_) => self.time_out(),
        }
    }

    fn time_out(&mut self) -> Result<(), Error> {
        if self.core.failure().is_some() {
            return Ok(());
        }
        let now = self.now();
        self.machine.get_mut().handle_timeout(now);
        self.drive()
    }

    /// Sums the remaining elements over the plan, until they are complete or the operation is interrupted.
    fn on_plan(&mut self) -> Result<(), Error> {
        let (Some(mut group), Some(mut progress)) = (self.group.take(), self.progress.take())
        else {
            return Err(Error::Internal("no path was agreed on".into()));
        };
        let refused = Cell::new(None);
        let outcome = perform_rest(&mut group, &mut progress, &|| self.is_interrupted(&refused));
        (self.group, self.progress) = (Some(group), Some(progress));
        if let Some(error) = refused.take() {
            return Err(Error::Internal(error.to_string()));
        }
        match outcome {
            Ok(()) => Ok(()),
            Err(stopped) => self.react(&stopped),
        }
    }

    /// Whether an operation on the plan must stop. Processes messages.
    fn is_interrupted(&self, refused: &Cell<Option<MessageError>>) -> bool {
        let mut machine = self.machine.borrow_mut();
        while let Ok(ControlMessage { from, bytes }) = self.controls.try_recv() {
            if let Err(error) = machine.handle_message(self.now(), Rank(from), &bytes) {
                refused.set(Some(error));
                return true;
            }
        }
        send_queued(&self.core, &mut machine);
        let late = Instant::now() >= self.current.1;
        machine.is_under_way() || self.core.failure().is_some() || late
    }

    /// Handles an operation that the plan's group did not complete.
    fn react(&mut self, stopped: &Stopped) -> Result<(), Error> {
        match &stopped.error {
            PlannedError::Interrupted => {
                self.core.failure().map_or(Ok(()), Err)?;
                self.drive()?;
                let late = Instant::now() >= self.current.1;
                if late && self.running == Running::Network {
                    return Err(self.too_late(stopped));
                }
                Ok(())
            }
            PlannedError::Timeout { .. } => Err(self.too_late(stopped)),
            PlannedError::PeerLost { .. } => {
                self.running = Running::No;
                self.request_plan(&stopped.error.to_string())
            }
            PlannedError::Differs { .. } => {
                // Every rank sends its call; the coordinator finds the rank that differs.
                let (sequence, deadline) = self.current;
                self.core.events.differs(sequence);
                self.wait_for_failure(deadline.min(Instant::now() + CALLS_PATIENCE));
                let failure = self.core.failure();
                Err(failure.unwrap_or_else(|| Error::Internal(stopped.error.to_string())))
            }
            other => Err(Error::Internal(other.to_string())),
        }
    }

    fn too_late(&self, stopped: &Stopped) -> Error {
        if !stopped.direct {
            // The missing rank may not be a neighbour; another rank may report it.
            self.wait_for_failure(Instant::now() + HINT_PATIENCE);
            if let Some(failure) = self.core.failure() {
                return failure;
            }
        }
        let ranks: Vec<u32> = stopped.missing_peers.iter().map(|&rank| rank as u32).collect();
        let missing = self.core.not_heard_from(&ranks);
        let Some(progress) = &self.progress else { return Error::Internal(missing) };
        let work = &progress.job.work;
        Error::Timeout { operation: work.operation(), elapsed: work.elapsed(), missing }
    }

    fn wait_for_failure(&self, until: Instant) {
        while self.core.failure().is_none() && Instant::now() < until {
            std::thread::sleep(TICK);
        }
    }

    /// Sums the remaining elements on the host path.
    fn on_hosts(&mut self) -> Result<(), Error> {
        let Some(progress) = &mut self.progress else { return Ok(()) };
        let todo = without(progress.numel(), &progress.finals);
        let PlanJob { sequence, fingerprint, format, deadline, ref work, ref mut buffer, .. } =
            progress.job;
        let order = self.core.order.load_full();
        let mut comm = Comm::new(&self.core, sequence, fingerprint, deadline);
        let todo: Vec<_> = todo.into_iter().map(|range| (range, true)).collect();
        let mut memory = buffer.lend_all().into();
        let outcome = allreduce_ranges(&mut comm, &order, format, &mut memory, &todo);
        let outcome = outcome.and_then(|()| comm.finish());
        if let Err(error) = outcome {
            let missing = comm.missing();
            comm.end();
            if matches!(error, MeshError::Left { .. }) {
                self.core.settle();
            }
            return Err(self.core.explain(error, &work.operation(), work.elapsed(), &missing));
        }
        progress.over = true;
        Ok(())
    }

    /// The operator's new plan, if the file has changed since the last check.
    fn changed_plan(&mut self) -> Option<TreePlan> {
        let now = self.source.modified()?;
        if self.modified == Some(now) {
            return None;
        }
        self.modified = Some(now);
        match self.source.read(self.core.size) {
            Ok(plan) if self.plan.as_ref() == Some(&plan) => None,
            Ok(plan) => Some(plan),
            Err(problem) => {
                tracing::warn!(%problem, "the new plan is not used");
                self.status.lock().reason = format!("the new plan is not used: {problem}");
                None
            }
        }
    }

    /// Fails the group: if one rank cannot continue, none can.
    fn fail(&self, error: Error) {
        // Reports the reason to ranks that wait for this one.
        self.core.send_all(MessageKind::Failed, 0, error.to_string().as_bytes());
        self.core.events.failed(error.clone());
        self.core.fail(error);
        if let Some(group) = &self.group {
            group.abandon();
        }
    }
}

/// Sums the remaining elements over the plan, until they are complete or `interrupted`. The error is the reason for
/// stopping; `progress` has the finished elements.
fn perform_rest(
    group: &mut PlannedGroup,
    progress: &mut Progress,
    interrupted: &dyn Fn() -> bool,
) -> Result<(), Box<Stopped>> {
    let PlanJob { sequence, fingerprint, format, .. } = progress.job;
    let (element, numel) = (progress.element(), progress.numel());
    let operation = PlannedOperation { number: sequence, fingerprint, format };
    let buffer = &mut progress.job.buffer;
    if progress.finals.is_empty() {
        let len = buffer.len();
        let outcome = group.perform(operation, buffer.slice_mut(0..len), None, interrupted);
        match &outcome {
            Ok(()) => progress.over = true,
            Err(stopped) => progress.finals = ranges::of_engine(&stopped.finals),
        }
        return outcome;
    }
    let todo = without(numel, &progress.finals);
    let mut packed = ranges::pack(buffer, &todo, element);
    let outcome = group.perform(operation, &mut packed, None, interrupted);
    let done = match &outcome {
        Ok(()) => todo.clone(),
        Err(stopped) => ranges::unpacked(&todo, &ranges::of_engine(&stopped.finals)),
    };
    ranges::unpack(buffer, &todo, &done, &packed, element);
    progress.finals = union(&progress.finals, &done);
    progress.over = outcome.is_ok();
    outcome
}

/// Time to wait for the other ranks' calls, which are exchanged within a round trip.
const CALLS_PATIENCE: std::time::Duration = std::time::Duration::from_secs(5);
const HINT_PATIENCE: std::time::Duration = std::time::Duration::from_millis(500);
const TICK: std::time::Duration = std::time::Duration::from_millis(20);
