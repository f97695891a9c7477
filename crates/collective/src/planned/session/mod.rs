//! A group's plan over time: its allreduces in the order of calls, over the plan of the present epoch.
//!
//! All ranks use the same plan for the same operation. Rank 0 leads from one epoch to the next: when a lane breaks
//! somewhere, or when the plan's file has changed, it stops everybody, hears which elements of the operation under way
//! are finished where, and sends the next plan. Finished elements are handed to those who lack them; the rest is summed
//! on the new plan: every contribution is counted once, and no rank keeps a copy of its values. That is possible because
//! an operation ends nowhere before it is complete everywhere (see `engine`). Where no plan is left, sums go over the
//! hosts.

mod agree;
mod ranges;
mod word;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Instant, SystemTime};

use crossbeam_channel::{Receiver, Sender, select, unbounded};
use netsum_net::Buffer;
use netsum_net::mesh::MeshError;
use netsum_topo::links::TreePlan;
use netsum_wire::Format;
use parking_lot::Mutex;

use super::{
    LostLink, Patience, PlanSource, PlannedError, PlannedGroup, PortAddress, Ports,
    engine::Operation,
};
use crate::Error;
use crate::algorithm::{Sum, allreduce_ranges};
use crate::call::Combine;
use crate::comm::Comm;
use crate::coordinator::Event;
use crate::core::Core;
use crate::group::{conclude, prepare};
use crate::status::Status;
use crate::work::Work;
use ranges::Ranges;
pub(crate) use word::Control;

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

/// Everything that a session is made of.
pub(crate) struct Beginning {
    pub(crate) core: Arc<Core>,
    pub(crate) source: PlanSource,
    pub(crate) plan: TreePlan,
    pub(crate) from_bytes: u64,
    pub(crate) ports: Ports,
    /// By rank.
    pub(crate) peers: BTreeMap<usize, PortAddress>,
    pub(crate) patience: Patience,
    pub(crate) controls: Receiver<Control>,
    pub(crate) coordinator: Sender<Event>,
    pub(crate) status: Arc<Mutex<Status>>,
}

/// Handle to the thread.
pub(crate) struct Session {
    tasks: Sender<Task>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Smaller buffers are not for it.
    pub(crate) from_bytes: u64,
}

enum Task {
    Run(PlanJob),
    Close,
}

impl Session {
    /// Connects the plan's lanes, and starts the thread.
    pub(crate) fn start(beginning: Beginning) -> Result<Session, Error> {
        let (tasks, receiver) = unbounded();
        let from_bytes = beginning.from_bytes;
        let mut state = State::new(beginning, receiver)?;
        let thread = std::thread::Builder::new().name("netsum-plan".into());
        let thread = thread.spawn(move || state.run());
        let thread = thread.map_err(|e| Error::Internal(format!("cannot start a thread: {e}")))?;
        Ok(Session { tasks, thread: Mutex::new(Some(thread)), from_bytes })
    }

    pub(crate) fn push(&self, job: PlanJob) {
        // The thread ends in `close` alone, after which nobody calls.
        let _ = self.tasks.send(Task::Run(job));
    }

    /// Runs what is queued, then ends the thread.
    pub(crate) fn close(&self) {
        let _ = self.tasks.send(Task::Close);
        if let Some(thread) = self.thread.lock().take() {
            // A panic was reported by the panic hook and failed its operation.
            let _ = thread.join();
        }
    }
}

/// How sums go in this epoch.
enum Path {
    Plan(Box<PlannedGroup>),
    Hosts,
    /// Between epochs.
    Frozen,
}

struct State {
    core: Arc<Core>,
    source: PlanSource,
    ports: Ports,
    peers: BTreeMap<usize, PortAddress>,
    patience: Patience,
    tasks: Receiver<Task>,
    controls: Receiver<Control>,
    coordinator: Sender<Event>,
    status: Arc<Mutex<Status>>,
    epoch: u64,
    path: Path,
    /// Rank 0: the plan of this epoch, when its file was last changed, and links that are lost.
    plan: Option<TreePlan>,
    modified: Option<SystemTime>,
    lost: Vec<LostLink>,
    /// One more than the last operation that is over.
    over: u64,
    /// The last operation that rank 0 put on the hosts.
    on_hosts: Option<u64>,
}

/// An operation under way.
struct Progress<'a> {
    job: &'a PlanJob,
    /// Elements that have everybody's values here.
    finals: Ranges,
    over: bool,
}

impl Progress<'_> {
    fn element(&self) -> usize {
        self.job.format.dtype.size()
    }

    fn numel(&self) -> usize {
        self.job.buffer.len() / self.element()
    }
}

impl State {
    fn new(beginning: Beginning, tasks: Receiver<Task>) -> Result<State, Error> {
        let Beginning {
            core,
            source,
            plan,
            from_bytes,
            ports,
            peers,
            patience,
            controls,
            coordinator,
            status,
        } = beginning;
        let modified = source.modified();
        let rank = core.rank as usize;
        let group = PlannedGroup::connect(&plan, rank, &ports, &peers, FIRST_EPOCH, patience);
        let group = group.map_err(|error| Error::Connect {
            group: core.name.clone(),
            reason: error.to_string(),
        })?;
        status.lock().plan_from_bytes = from_bytes;
        status.lock().planned(FIRST_EPOCH, Some(&plan), "");
        status.lock().links = group.measured();
        Ok(State {
            core,
            source,
            ports,
            peers,
            patience,
            tasks,
            controls,
            coordinator,
            status,
            epoch: FIRST_EPOCH,
            path: Path::Plan(Box::new(group)),
            plan: Some(plan),
            modified,
            lost: Vec::new(),
            over: 0,
            on_hosts: None,
        })
    }

    fn run(&mut self) {
        let (tasks, controls) = (self.tasks.clone(), self.controls.clone());
        loop {
            select! {
                recv(controls) -> control => match control {
                    Ok(control) => {
                        if let Err(error) = self.hear(control, None) {
                            self.fail(error);
                        }
                    }
                    Err(_) => return,
                },
                recv(tasks) -> task => match task {
                    Ok(Task::Run(job)) => self.complete(job),
                    Ok(Task::Close) | Err(_) => return,
                },
            }
        }
    }

    /// Runs a job to its end.
    fn complete(&mut self, job: PlanJob) {
        let outcome = catch_unwind(AssertUnwindSafe(|| self.perform(&job)));
        let outcome = outcome
            .unwrap_or_else(|_| Err(Error::Internal(format!("{} panicked", job.work.operation()))));
        match &outcome {
            Ok(()) => self.core.count_operation(false),
            Err(error) => self.fail(error.clone()),
        }
        self.core.ledger.retire(job.sequence);
        job.work.complete(outcome);
    }

    fn perform(&mut self, job: &PlanJob) -> Result<(), Error> {
        prepare(job.how, job.format.dtype, &job.buffer);
        let mut progress = Progress { job, finals: Vec::new(), over: false };
        if self.leads()
            && let Some(plan) = self.brought()
        {
            self.lead(Some(&mut progress), Some(plan), "the plan's file has changed")?;
        }
        while !progress.over {
            self.core.failure().map_or(Ok(()), Err)?;
            match self.path {
                Path::Plan(_) => self.on_plan(&mut progress)?,
                Path::Hosts => self.on_hosts(&mut progress)?,
                Path::Frozen => return Err(Error::Internal("no path was agreed on".into())),
            }
        }
        self.over = job.sequence + 1;
        conclude(job.how, job.format.dtype, &job.buffer, self.core.size);
        Ok(())
    }

    /// Sums what is left of an operation over the plan, until it is over or something else must be done first.
    fn on_plan(&mut self, progress: &mut Progress<'_>) -> Result<(), Error> {
        let Path::Plan(group) = &mut self.path else { return Ok(()) };
        let PlanJob { sequence, fingerprint, format, deadline, .. } = *progress.job;
        let element = progress.element();
        let todo = ranges::without(progress.numel(), &progress.finals);
        let (core, controls) = (&self.core, &self.controls);
        let interrupted =
            || !controls.is_empty() || core.failure().is_some() || Instant::now() >= deadline;
        let operation = Operation { number: sequence, fingerprint, format };
        let mut buffer = progress.job.buffer.clone();
        let whole = progress.finals.is_empty();
        let outcome = if whole {
            let len = buffer.len();
            group.perform(operation, buffer.slice_mut(0..len), None, &interrupted)
        } else {
            let mut packed = ranges::pack(&buffer, &todo, element);
            let outcome = group.perform(operation, &mut packed, None, &interrupted);
            let done = match &outcome {
                Ok(()) => todo.clone(),
                Err(stopped) => ranges::unpacked(&todo, &stopped.finals),
            };
            ranges::unpack(&buffer, &todo, &done, &packed, element);
            outcome
        };
        let stopped = match outcome {
            Ok(()) => {
                progress.over = true;
                return Ok(());
            }
            Err(stopped) => stopped,
        };
        let finals = match whole {
            true => stopped.finals.clone(),
            false => ranges::unpacked(&todo, &stopped.finals),
        };
        progress.finals = ranges::union(&progress.finals, &finals);
        self.react(&stopped.error, &stopped.owing, stopped.direct, progress)
    }

    /// What follows from an operation that the plan's group did not end.
    fn react(
        &mut self,
        error: &PlannedError,
        owing: &[usize],
        direct: bool,
        progress: &mut Progress<'_>,
    ) -> Result<(), Error> {
        let job = progress.job;
        let timeout = |this: &State| {
            if !direct {
                // Others may know better who is missing: theirs is not among our neighbours.
                this.wait_for_failure(Instant::now() + HINT_PATIENCE);
                if let Some(told) = this.core.failure() {
                    return told;
                }
            }
            let ranks: Vec<u32> = owing.iter().map(|&rank| rank as u32).collect();
            let missing = this.core.not_heard_from(&ranks);
            let operation = job.work.operation();
            Error::Timeout { operation, elapsed: job.work.elapsed(), missing }
        };
        match error {
            PlannedError::Interrupted => match self.controls.try_recv() {
                Ok(control) => self.hear(control, Some(progress)),
                Err(_) => {
                    self.core.failure().map_or(Ok(()), Err)?;
                    if Instant::now() >= job.deadline { Err(timeout(self)) } else { Ok(()) }
                }
            },
            PlannedError::Timeout { .. } => Err(timeout(self)),
            PlannedError::PeerLost { .. } => self.suspect(progress, &error.to_string()),
            PlannedError::Differs { .. } => {
                // Everybody tells what it called; the coordinator finds who differs.
                let _ = self.coordinator.send(Event::Differs(job.sequence));
                self.wait_for_failure(job.deadline.min(Instant::now() + TELL_PATIENCE));
                let told = self.core.failure();
                Err(told.unwrap_or_else(|| Error::Internal(error.to_string())))
            }
            other => Err(Error::Internal(other.to_string())),
        }
    }

    fn wait_for_failure(&self, until: Instant) {
        while self.core.failure().is_none() && Instant::now() < until {
            std::thread::sleep(TICK);
        }
    }

    /// Sums what is left of an operation over the hosts.
    fn on_hosts(&mut self, progress: &mut Progress<'_>) -> Result<(), Error> {
        let PlanJob { sequence, fingerprint, format, deadline, ref work, ref buffer, .. } =
            *progress.job;
        if self.leads() {
            self.tell_all(&word::Word::OnHosts { sequence });
        } else if self.on_hosts.is_none_or(|last| last < sequence) {
            let control = self.next_word(deadline, "rank 0 to say how sums go")?;
            return self.hear(control, Some(progress));
        }
        let order = self.core.order.load_full();
        let todo: Vec<_> = ranges::without(progress.numel(), &progress.finals)
            .into_iter()
            .map(|range| range.start as u64..range.end as u64)
            .collect();
        let mut comm = Comm::new(&self.core, sequence, fingerprint, deadline);
        let sum = Sum { order, format, buffer: buffer.clone() };
        let outcome = allreduce_ranges(&mut comm, &sum, &todo).and_then(|()| comm.finish());
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

    fn leads(&self) -> bool {
        self.core.rank == 0
    }

    /// A new plan that the operator brought, if the file has changed since it was last looked at.
    fn brought(&mut self) -> Option<TreePlan> {
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

    /// Ends the group: where one rank cannot go on, none can.
    fn fail(&self, error: Error) {
        // Those who wait for us must hear why.
        self.core.tell_all(crate::core::About::Failed, 0, error.to_string().as_bytes());
        let _ = self.coordinator.send(Event::Fail(error.clone()));
        self.core.fail(error);
        if let Path::Plan(group) = &self.path {
            group.abandon();
        }
    }
}

const FIRST_EPOCH: u64 = 1;
/// Calls are told within a round trip.
const TELL_PATIENCE: std::time::Duration = std::time::Duration::from_secs(5);
const HINT_PATIENCE: std::time::Duration = std::time::Duration::from_millis(500);
const TICK: std::time::Duration = std::time::Duration::from_millis(20);
