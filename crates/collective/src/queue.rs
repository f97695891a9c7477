//! A thread that runs collectives one after the other, lowest number first.
//!
//! Every rank runs operations in the order of calls, so the lowest operation that is not complete everywhere is at the
//! head of the queue on every rank that has called it: queues cannot deadlock. A caller that only waits may run the
//! operation itself when it is next ([`OpQueue::turn`]): waking a thread costs more than a small operation.

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Instant;

use netsum_net::mesh::MeshError;
use netsum_topo::SumOrder;
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::Error;
use crate::call::Call;
use crate::comm::Comm;
use crate::core::Core;
use crate::hosts::Hosts;
use crate::ledger::Ledger;
use crate::recorder::{KEPT, Recorder, UnrecordedOperations};
use crate::shared::Shared;
use crate::terms::Here;
use crate::work::{OperationSummary, Work};

/// Body of an operation, which uses its messages.
pub(crate) type Body = Box<dyn FnOnce(&mut Comm<'_>) -> Result<(), MeshError> + Send>;

/// One collective on the host path.
pub(crate) struct Job<B = Body> {
    pub(crate) sequence: u64,
    pub(crate) fingerprint: u32,
    pub(crate) deadline: Instant,
    pub(crate) work: Work,
    /// The caller's settings, if the operation runs on its caller's thread.
    pub(crate) here: Option<Here>,
    pub(crate) body: B,
}

pub(crate) struct OpQueue {
    inner: Arc<Inner>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Inner {
    core: Arc<Core>,
    state: Arc<Mutex<QueueState>>,
    wake: Condvar,
    /// The ranks that share memory, if this queue may use it.
    hosts: Option<Arc<Hosts>>,
    /// Whether all ranks share memory.
    shares: bool,
}

/// Waiting jobs, and the resources for running them.
#[derive(Default)]
pub(crate) struct QueueState {
    jobs: BTreeMap<u64, Job>,
    /// Whether an operation is running.
    busy: bool,
    closed: bool,
    /// Whether the queue has ended, so that memory need not be returned.
    ended: bool,
    /// Memory that the ranks of this host share. A running operation takes it.
    shared: Option<Box<Shared>>,
    /// Number of the next operation, in the queue that numbers operations.
    next: u64,
    /// State of quick operations, which complete while their caller holds the lock; unset if not allowed.
    quick: Option<Quick>,
    /// Number of operations that completed while their caller held the lock.
    pub(crate) ended_at_once: u64,
}

/// State of quick operations, in a group in which no collective sends messages.
pub(crate) struct Quick {
    /// The group's order of additions, which is constant.
    pub(crate) order: Arc<SumOrder>,
    has_failed: Arc<AtomicBool>,
    queue: Weak<OpQueue>,
    /// The last quick operations that are not recorded yet: call and time. The newest has the number before the next
    /// one.
    log: VecDeque<(Call, Instant)>,
}

impl Quick {
    pub(crate) fn new(queue: &Arc<OpQueue>) -> Quick {
        let core = queue.core();
        let log = VecDeque::with_capacity(KEPT + 1);
        let queue = Arc::downgrade(queue);
        Quick { order: core.order.load_full(), has_failed: core.has_failed(), queue, log }
    }

    /// The queue; the caller holds the lock of an open queue.
    fn queue(&self) -> Arc<OpQueue> {
        self.queue.upgrade().expect("who closes a group holds its queue until that has ended")
    }

    /// Logs an operation, the newest.
    #[inline]
    pub(crate) fn log(&mut self, call: &Call, called: Instant) {
        self.log.push_back((call.clone(), called));
        if self.log.len() > KEPT {
            self.log.pop_front();
        }
    }
}

/// See [`QueueState::idle`].
pub(crate) struct Idle<'a> {
    /// The number of the next operation.
    pub(crate) next: &'a mut u64,
    pub(crate) shared: &'a mut Shared,
    pub(crate) quick: &'a mut Quick,
}

impl QueueState {
    /// Takes the number of a new operation.
    pub(crate) fn number(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// The resources of an operation that runs while its caller holds the lock; `None` if an operation runs, waits or
    /// has failed.
    #[inline]
    pub(crate) fn idle(&mut self) -> Option<Idle<'_>> {
        let idle = !self.busy && self.jobs.is_empty() && !self.closed;
        let quick =
            self.quick.as_mut().filter(|quick| !quick.has_failed.load(Ordering::Relaxed))?;
        let shared = self.shared.as_deref_mut().filter(|_| idle)?;
        Some(Idle { next: &mut self.next, shared, quick })
    }

    /// Allows operations to complete while their caller holds the lock.
    pub(crate) fn allow(&mut self, quick: Quick) {
        self.quick = Some(quick);
    }

    /// Removes the newest operation from the log, because it does not complete at once; returns its number, and the
    /// queue that runs it. Records the operations before it.
    pub(crate) fn move_to_queue(&mut self) -> (u64, Arc<OpQueue>) {
        let quick = self.quick.as_mut().expect("it was begun as a quick operation");
        let queue = quick.queue();
        quick.log.pop_back();
        self.next -= 1;
        let core = queue.core();
        self.flush_log(&core.ledger, &core.recorder);
        (self.number(), queue)
    }

    /// Records the logged operations. The ledger does not need them: an operation completes at once only if all ranks
    /// called the same.
    pub(crate) fn flush_log(&mut self, ledger: &Ledger, recorder: &Recorder) {
        let Some(quick) = self.quick.as_mut().filter(|quick| !quick.log.is_empty()) else { return };
        ledger.agreed(self.next);
        let work = |(sequence, (call, called))| {
            Work::ended_at_once(OperationSummary::Collective(call, sequence), called)
        };
        let first = self.next - quick.log.len() as u64;
        recorder.add_all((first..).zip(quick.log.drain(..)).map(work));
    }
}

impl UnrecordedOperations for Mutex<QueueState> {
    fn flush_log(&self, ledger: &Ledger, recorder: &Recorder) {
        self.lock().flush_log(ledger, recorder);
    }
}

impl OpQueue {
    /// `memory`: the ranks that share memory, and the memory of this rank's host; `None`: the queue uses none.
    pub(crate) fn start(
        core: Arc<Core>,
        state: Arc<Mutex<QueueState>>,
        name: &str,
        memory: Option<(Arc<Hosts>, Option<Shared>)>,
    ) -> Result<OpQueue, Error> {
        let (hosts, shared) = memory.unzip();
        let shares = hosts.as_ref().is_some_and(|hosts| hosts.is_one());
        state.lock().shared = shared.flatten().map(Box::new);
        let wake = Condvar::new();
        let inner = Arc::new(Inner { core, state, wake, hosts, shares });
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn({
            let inner = inner.clone();
            move || inner.run_all()
        });
        let thread = thread.map_err(|e| Error::Internal(format!("cannot start a thread: {e}")))?;
        Ok(OpQueue { inner, thread: Mutex::new(Some(thread)) })
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.inner.core
    }

    /// Locks the queue. Operations are numbered and queued under one lock, and therefore in one order.
    #[inline]
    pub(crate) fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.inner.state.lock()
    }

    pub(crate) fn push(&self, job: Job) {
        self.push_at(self.lock(), job);
    }

    /// Like [`OpQueue::push`] for a caller that holds the lock.
    pub(crate) fn push_at(&self, mut state: MutexGuard<'_, QueueState>, job: Job) {
        state.jobs.insert(job.sequence, job);
        drop(state);
        self.inner.wake.notify_one();
    }

    /// The right to run the next operation on this thread; `None` if others come first, or if ranks do not share
    /// memory: an operation over TCP waits for other threads anyway.
    pub(crate) fn turn(&self, state: &mut QueueState) -> Option<Turn<'_>> {
        let free = self.inner.shares && !state.busy && state.jobs.is_empty() && !state.closed;
        free.then(|| self.inner.begin(state))
    }

    /// Runs what is queued, then ends the thread.
    pub(crate) fn close(&self) {
        self.inner.state.lock().closed = true;
        self.inner.wake.notify_one();
        if let Some(thread) = self.thread.lock().take() {
            // The panic hook has reported a panic and failed its operation.
            let _ = thread.join();
        }
        let mut state = self.inner.state.lock();
        state.ended = true;
        let unused = (state.shared.take(), state.quick.take());
        drop(state);
        drop(unused);
    }
}

/// See [`OpQueue::turn`].
pub(crate) struct Turn<'a> {
    inner: &'a Inner,
    shared: Option<Box<Shared>>,
}

impl Turn<'_> {
    pub(crate) fn run<B>(mut self, job: Job<B>)
    where
        B: FnOnce(&mut Comm<'_>) -> Result<(), MeshError>,
    {
        self.inner.run(job, self.shared.as_deref_mut());
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.inner.state.lock();
        state.busy = false;
        if !state.ended {
            state.shared = self.shared.take();
        }
        if !state.jobs.is_empty() || state.closed {
            self.inner.wake.notify_one();
        }
    }
}

impl Inner {
    fn run_all(&self) {
        while let Some((job, turn)) = self.next() {
            turn.run(job);
        }
    }

    fn begin(&self, state: &mut QueueState) -> Turn<'_> {
        state.busy = true;
        Turn { inner: self, shared: state.shared.take() }
    }

    fn run<B>(&self, job: Job<B>, shared: Option<&mut Shared>)
    where
        B: FnOnce(&mut Comm<'_>) -> Result<(), MeshError>,
    {
        let (sequence, work) = (job.sequence, job.work.clone());
        let outcome = catch_unwind(AssertUnwindSafe(|| self.outcome(job, shared)));
        let outcome = outcome.unwrap_or_else(|_| {
            let error = Error::Internal(format!("{} panicked", work.operation()));
            self.core.fail(error.clone());
            Err(error)
        });
        if outcome.is_ok() {
            self.core.count_operation(false);
        }
        self.core.ledger.retire(sequence);
        let failed = outcome.clone().err();
        work.complete(outcome);
        if let Some(error) = failed {
            self.core.note(&error);
        }
    }

    fn next(&self) -> Option<(Job, Turn<'_>)> {
        let mut state = self.state.lock();
        loop {
            if !state.busy {
                if let Some((_, job)) = state.jobs.pop_first() {
                    return Some((job, self.begin(&mut state)));
                }
                if state.closed {
                    return None;
                }
            }
            self.wake.wait(&mut state);
        }
    }

    fn outcome<B>(&self, job: Job<B>, shared: Option<&mut Shared>) -> Result<(), Error>
    where
        B: FnOnce(&mut Comm<'_>) -> Result<(), MeshError>,
    {
        let Job { sequence, fingerprint, deadline, work, here, body } = job;
        let core = &self.core;
        let comm = Comm::new(core, sequence, fingerprint, deadline);
        let mut comm = comm.with_memory(self.hosts.as_ref(), shared, here);
        let outcome = body(&mut comm).and_then(|()| comm.finish());
        outcome.map_err(|error| {
            let missing = comm.missing();
            comm.give_up(&error, || work.operation());
            comm.end();
            if matches!(error, MeshError::Left { .. }) {
                core.settle();
            }
            core.explain(error, &work.operation(), work.elapsed(), &missing)
        })
    }
}
