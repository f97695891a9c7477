//! A thread that runs collectives one after the other, lowest number first.
//!
//! Every rank runs an operation at its place in the order of calls, so the lowest operation that is not
//! finished everywhere is at the head of the lane on every rank that has called it: lanes cannot wait for each
//! other in a circle.

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
use crate::work::Work;

/// What an operation does, given its messages.
pub(crate) type Body = Box<dyn FnOnce(&mut Comm<'_>) -> Result<(), MeshError> + Send>;

/// One collective on the host path.
pub(crate) struct Job {
    pub(crate) sequence: u64,
    pub(crate) fingerprint: u32,
    pub(crate) deadline: Instant,
    pub(crate) work: Work,
    pub(crate) body: Body,
}

pub(crate) struct Lane {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    core: Arc<Core>,
    queue: Mutex<Queue>,
    wake: Condvar,
}

#[derive(Default)]
struct Queue {
    jobs: BTreeMap<u64, Job>,
    closed: bool,
}

impl Lane {
    pub(crate) fn start(core: Arc<Core>, name: &str) -> Result<Lane, Error> {
        let shared = Arc::new(Shared { core, queue: Mutex::default(), wake: Condvar::new() });
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn({
            let shared = shared.clone();
            move || shared.run()
        });
        let thread = thread.map_err(|e| Error::Internal(format!("cannot start a thread: {e}")))?;
        Ok(Lane { shared, thread: Mutex::new(Some(thread)) })
    }

    pub(crate) fn push(&self, job: Job) {
        self.shared.queue.lock().jobs.insert(job.sequence, job);
        self.shared.wake.notify_one();
    }

    /// Runs what is queued, then ends the thread.
    pub(crate) fn close(&self) {
        self.shared.queue.lock().closed = true;
        self.shared.wake.notify_one();
        if let Some(thread) = self.thread.lock().take() {
            // A panic was reported by the panic hook and failed its operation.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn run(&self) {
        while let Some(job) = self.next() {
            let (sequence, work) = (job.sequence, job.work.clone());
            let outcome = catch_unwind(AssertUnwindSafe(|| run(&self.core, job)));
            let outcome = outcome.unwrap_or_else(|_| {
                let error = Error::Internal(format!("{} panicked", work.operation()));
                self.core.fail(error.clone());
                Err(error)
            });
            if outcome.is_ok() {
                self.core.count_operation(false);
            }
            self.core.ledger.retire(sequence);
            work.complete(outcome);
        }
    }

    fn next(&self) -> Option<Job> {
        let mut queue = self.queue.lock();
        loop {
            if let Some((_, job)) = queue.jobs.pop_first() {
                return Some(job);
            }
            if queue.closed {
                return None;
            }
            self.wake.wait(&mut queue);
        }
    }
}

fn run(core: &Core, job: Job) -> Result<(), Error> {
    let Job { sequence, fingerprint, deadline, work, body } = job;
    let mut comm = Comm::new(core, sequence, fingerprint, deadline);
    let outcome = body(&mut comm).and_then(|()| comm.finish());
    outcome.map_err(|error| {
        let missing = comm.missing();
        comm.end();
        if matches!(error, MeshError::Left { .. }) {
            core.settle();
        }
        core.explain(error, work.operation(), work.elapsed(), &missing)
    })
}
