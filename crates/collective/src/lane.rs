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
use parking_lot::{Condvar, Mutex};

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
    queue: Mutex<Queue>,
    wake: Condvar,
    /// Memory that the ranks of our host share. Locked by who runs an operation.
    shared: Mutex<Option<Shared>>,
    /// Which ranks share memory, if this lane may use it.
    hosts: Option<Arc<Hosts>>,
    /// Whether all do.
    shares: bool,
}

#[derive(Default)]
struct Queue {
    jobs: BTreeMap<u64, Job>,
    /// An operation runs.
    busy: bool,
    closed: bool,
}

impl Lane {
    pub(crate) fn start(
        core: Arc<Core>,
        name: &str,
        memory: Option<(Arc<Hosts>, Option<Shared>)>,
    ) -> Result<Lane, Error> {
        let (queue, wake) = (Mutex::default(), Condvar::new());
        let (hosts, shared) = memory.unzip();
        let shares = hosts.as_ref().is_some_and(|hosts| hosts.is_one());
        let shared = Mutex::new(shared.flatten());
        let inner = Arc::new(Inner { core, queue, wake, shared, hosts, shares });
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn({
            let inner = inner.clone();
            move || inner.run_all()
        });
        let thread = thread.map_err(|e| Error::Internal(format!("cannot start a thread: {e}")))?;
        Ok(Lane { inner, thread: Mutex::new(Some(thread)) })
    }

    pub(crate) fn push(&self, job: Job) {
        self.inner.queue.lock().jobs.insert(job.sequence, job);
        self.inner.wake.notify_one();
    }

    /// The right to run the next operation on this thread; `None` while there are others before it, and where ranks do
    /// not share memory: an operation over TCP waits for other threads anyway.
    pub(crate) fn turn(&self) -> Option<Turn<'_>> {
        let mut queue = self.inner.queue.lock();
        let free = self.inner.shares && !queue.busy && queue.jobs.is_empty() && !queue.closed;
        queue.busy |= free;
        free.then(|| Turn(&self.inner))
    }

    /// Runs what is queued, then ends the thread.
    pub(crate) fn close(&self) {
        self.inner.queue.lock().closed = true;
        self.inner.wake.notify_one();
        if let Some(thread) = self.thread.lock().take() {
            // A panic was reported by the panic hook and failed its operation.
            let _ = thread.join();
        }
    }
}

/// See [`Lane::turn`].
pub(crate) struct Turn<'a>(&'a Inner);

impl Turn<'_> {
    pub(crate) fn run<B>(self, job: Job<B>)
    where
        B: FnOnce(&mut Comm<'_>) -> Result<(), MeshError>,
    {
        self.0.run(job);
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut queue = self.0.queue.lock();
        queue.busy = false;
        if !queue.jobs.is_empty() || queue.closed {
            self.0.wake.notify_one();
        }
    }
}

impl Inner {
    fn run_all(&self) {
        while let Some((job, _turn)) = self.next() {
            self.run(job);
        }
    }

    fn run<B>(&self, job: Job<B>)
    where
        B: FnOnce(&mut Comm<'_>) -> Result<(), MeshError>,
    {
        let (sequence, work) = (job.sequence, job.work.clone());
        let outcome = catch_unwind(AssertUnwindSafe(|| self.outcome(job)));
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
        let mut queue = self.queue.lock();
        loop {
            if !queue.busy {
                if let Some((_, job)) = queue.jobs.pop_first() {
                    queue.busy = true;
                    return Some((job, Turn(self)));
                }
                if queue.closed {
                    return None;
                }
            }
            self.wake.wait(&mut queue);
        }
    }

    fn outcome<B>(&self, job: Job<B>) -> Result<(), Error>
    where
        B: FnOnce(&mut Comm<'_>) -> Result<(), MeshError>,
    {
        let Job { sequence, fingerprint, deadline, work, here, body } = job;
        let core = &self.core;
        let mut shared = self.shared.lock();
        let comm = Comm::new(core, sequence, fingerprint, deadline);
        let mut comm = comm.with_memory(self.hosts.as_ref(), shared.as_mut(), here);
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
