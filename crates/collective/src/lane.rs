//! A thread that runs collectives one after the other, lowest number first.
//!
//! Every rank runs an operation at its place in the order of calls, so the lowest operation that is not
//! finished everywhere is at the head of the lane on every rank that has called it: lanes cannot wait for each
//! other in a circle. A caller that would only wait may do the work itself when it is its turn ([`Lane::turn`]):
//! a thread that is woken for it costs more than a small operation.

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
use crate::group::Connected;
use crate::hosts::Hosts;
use crate::ledger::Ledger;
use crate::recorder::{KEPT, Recorder};
use crate::shared::Shared;
use crate::terms::Here;
use crate::work::{Operation, Work};

/// What an operation does, given its messages.
pub(crate) type Body = Box<dyn FnOnce(&mut Comm<'_>) -> Result<(), MeshError> + Send>;

/// One collective on the host path.
pub(crate) struct Job<B = Body> {
    pub(crate) sequence: u64,
    pub(crate) fingerprint: u32,
    pub(crate) deadline: Instant,
    pub(crate) work: Work,
    /// It runs on its caller's thread.
    pub(crate) here: Option<Here>,
    pub(crate) body: B,
}

pub(crate) struct Lane {
    inner: Arc<Inner>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Inner {
    core: Arc<Core>,
    desk: Arc<Mutex<Desk>>,
    wake: Condvar,
    /// Which ranks share memory, if this lane may use it.
    hosts: Option<Arc<Hosts>>,
    /// Whether all do.
    shares: bool,
}

/// What is to be run, and what runs need.
#[derive(Default)]
pub(crate) struct Desk {
    jobs: BTreeMap<u64, Job>,
    /// An operation runs.
    busy: bool,
    closed: bool,
    /// The lane has ended: nobody needs the memory any more.
    ended: bool,
    /// Memory that the ranks of our host share. An operation takes it with it.
    shared: Option<Box<Shared>>,
    /// The number of the next operation, of a lane on which numbers are given.
    next: u64,
    /// What operations need that end while their caller stands here; unset where none may.
    quick: Option<Quick>,
    /// Operations that ended while their caller stood here.
    pub(crate) ended_here: u64,
}

/// Of a group in which no collective sends messages: what its quick operations need.
pub(crate) struct Quick {
    /// The group's, which does not change.
    pub(crate) order: Arc<SumOrder>,
    has_failed: Arc<AtomicBool>,
    group: Weak<Connected>,
    /// The last operations that ended here and are not written down: what was called, and when. The newest has the number
    /// before the next one.
    log: VecDeque<(Call, Instant)>,
}

impl Quick {
    pub(crate) fn new(connected: &Arc<Connected>) -> Quick {
        let (core, group) = (&connected.core, Arc::downgrade(connected));
        let log = VecDeque::with_capacity(KEPT + 1);
        Quick { order: core.order.load_full(), has_failed: core.has_failed(), group, log }
    }

    /// The group; for those who stand at the desk of a lane that is open.
    pub(crate) fn connected(&self) -> Arc<Connected> {
        self.group.upgrade().expect("who closes a group holds it until its lane has ended")
    }

    /// Remembers an operation, the newest.
    #[inline]
    pub(crate) fn log(&mut self, call: &Call, called: Instant) {
        self.log.push_back((call.clone(), called));
        if self.log.len() > KEPT {
            self.log.pop_front();
        }
    }
}

/// See [`Desk::idle`].
pub(crate) struct Idle<'a> {
    /// The number of the next operation.
    pub(crate) next: &'a mut u64,
    pub(crate) shared: &'a mut Shared,
    pub(crate) quick: &'a mut Quick,
}

impl Desk {
    /// The number of an operation that is called now.
    pub(crate) fn number(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// What an operation needs that runs while its caller stands here; unless something runs, waits to run or has failed.
    #[inline]
    pub(crate) fn idle(&mut self) -> Option<Idle<'_>> {
        let idle = !self.busy && self.jobs.is_empty() && !self.closed;
        let quick =
            self.quick.as_mut().filter(|quick| !quick.has_failed.load(Ordering::Relaxed))?;
        let shared = self.shared.as_deref_mut().filter(|_| idle)?;
        Some(Idle { next: &mut self.next, shared, quick })
    }

    /// Lets operations end while their caller stands here.
    pub(crate) fn allow(&mut self, quick: Quick) {
        self.quick = Some(quick);
    }

    /// Takes the newest operation out of the log, as it does not end here; its number, and the group. What was before it is
    /// written down.
    pub(crate) fn take_up(&mut self) -> (u64, Arc<Connected>) {
        let quick = self.quick.as_mut().expect("it was begun as a quick operation");
        let connected = quick.connected();
        quick.log.pop_back();
        self.next -= 1;
        self.write_down(&connected.core.ledger, &connected.core.recorder);
        (self.number(), connected)
    }

    /// Records what is logged. The ledger need not know it: an operation ends here if all ranks called the same.
    pub(crate) fn write_down(&mut self, ledger: &Ledger, recorder: &Recorder) {
        let Some(quick) = self.quick.as_mut().filter(|quick| !quick.log.is_empty()) else { return };
        ledger.agreed(self.next);
        let work = |(sequence, (call, called))| {
            Work::ended_at_once(Operation::Collective(call, sequence), called)
        };
        let first = self.next - quick.log.len() as u64;
        recorder.add_all((first..).zip(quick.log.drain(..)).map(work));
    }
}

impl Lane {
    /// `memory`: of the lane of all host operations, whose desk is the core's.
    pub(crate) fn start(
        core: Arc<Core>,
        name: &str,
        memory: Option<(Arc<Hosts>, Option<Shared>)>,
    ) -> Result<Lane, Error> {
        let (hosts, shared) = memory.unzip();
        let shares = hosts.as_ref().is_some_and(|hosts| hosts.is_one());
        let desk = if hosts.is_some() { core.desk.clone() } else { Arc::default() };
        desk.lock().shared = shared.flatten().map(Box::new);
        let wake = Condvar::new();
        let inner = Arc::new(Inner { core, desk, wake, hosts, shares });
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn({
            let inner = inner.clone();
            move || inner.run_all()
        });
        let thread = thread.map_err(|e| Error::Internal(format!("cannot start a thread: {e}")))?;
        Ok(Lane { inner, thread: Mutex::new(Some(thread)) })
    }

    /// Where operations are numbered and queued, both under one lock, and so in one order.
    #[inline]
    pub(crate) fn desk(&self) -> MutexGuard<'_, Desk> {
        self.inner.desk.lock()
    }

    pub(crate) fn push(&self, job: Job) {
        self.push_at(self.desk(), job);
    }

    /// As [`Lane::push`] for who stands at the desk.
    pub(crate) fn push_at(&self, mut desk: MutexGuard<'_, Desk>, job: Job) {
        desk.jobs.insert(job.sequence, job);
        drop(desk);
        self.inner.wake.notify_one();
    }

    /// The right to run the next operation on this thread; `None` while there are others before it, and where ranks do
    /// not share memory: an operation over TCP waits for other threads anyway.
    pub(crate) fn turn(&self, desk: &mut Desk) -> Option<Turn<'_>> {
        let free = self.inner.shares && !desk.busy && desk.jobs.is_empty() && !desk.closed;
        free.then(|| self.inner.begin(desk))
    }

    /// Runs what is queued, then ends the thread.
    pub(crate) fn close(&self) {
        self.inner.desk.lock().closed = true;
        self.inner.wake.notify_one();
        if let Some(thread) = self.thread.lock().take() {
            // A panic was reported by the panic hook and failed its operation.
            let _ = thread.join();
        }
        let mut desk = self.inner.desk.lock();
        desk.ended = true;
        let unused = (desk.shared.take(), desk.quick.take());
        drop(desk);
        drop(unused);
    }
}

/// See [`Lane::turn`].
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
        let mut desk = self.inner.desk.lock();
        desk.busy = false;
        if !desk.ended {
            desk.shared = self.shared.take();
        }
        if !desk.jobs.is_empty() || desk.closed {
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

    fn begin(&self, desk: &mut Desk) -> Turn<'_> {
        desk.busy = true;
        Turn { inner: self, shared: desk.shared.take() }
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
        let mut desk = self.desk.lock();
        loop {
            if !desk.busy {
                if let Some((_, job)) = desk.jobs.pop_first() {
                    return Some((job, self.begin(&mut desk)));
                }
                if desk.closed {
                    return None;
                }
            }
            self.wake.wait(&mut desk);
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
