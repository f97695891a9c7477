//! A thread that runs collectives one after the other, lowest number first.
//!
//! Every rank runs an operation at its place in the order of calls, so the lowest operation that is not
//! finished everywhere is at the head of the lane on every rank that has called it: lanes cannot wait for each
//! other in a circle. A caller that would only wait may do the work itself when it is its turn ([`Lane::turn`]):
//! a thread that is woken for it costs more than a small operation.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use netsum_net::mesh::MeshError;
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::Error;
use crate::comm::Comm;
use crate::core::Core;
use crate::hosts::Hosts;
use crate::shared::Shared;
use crate::terms::Here;
use crate::work::Work;

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
    /// Memory that the ranks of our host share. An operation takes it with it.
    shared: Option<Box<Shared>>,
    /// The number of the next operation, of a lane on which numbers are given.
    next: u64,
    /// Operations that ended while their caller stood here.
    pub(crate) ended_here: u64,
}

impl Desk {
    /// The number of an operation that is called now.
    pub(crate) fn number(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// The next operation's number and the memory, if nothing runs or waits to run.
    #[inline]
    pub(crate) fn idle(&mut self) -> Option<(u64, &mut Shared)> {
        let idle = !self.busy && self.jobs.is_empty() && !self.closed;
        self.shared.as_deref_mut().filter(|_| idle).map(|shared| (self.next, shared))
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
        desk.shared = self.shared.take();
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
