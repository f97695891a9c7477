//! The store in an etcd cluster, for several controllers of which one leads.
//!
//! Every write is a transaction that compares the key `turn`: the term of the leader and the number of its writes. So
//! a leader that another one has replaced writes nothing, a write that is repeated after a lost answer takes effect
//! once, and the leader sees which of the two has happened.

mod batch;
mod client;
mod cluster;
mod credentials;
mod election;
mod rows;

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

use self::batch::{Batch, split};
pub(crate) use self::client::CallError;
pub(crate) use self::cluster::{Cluster, Observed};
pub use self::credentials::EtcdCredentials;
pub(crate) use self::election::OwnRecord;
use self::rows::Place;
use super::contract::{Change, ENDED_LOADED, Saved, Store};
use crate::error::ControlError;
use crate::pb::store::Write;

/// A store in an etcd cluster.
#[derive(Debug)]
pub struct EtcdStore {
    cluster: Cluster,
    threads: Threads,
    turn: Turn,
    /// Whether the term was won by an election and not yet begun.
    elected: bool,
    /// Jobs in the store, with the time of creation of those that are over.
    jobs: BTreeMap<u32, Option<f64>>,
    /// Why the outcome of an earlier write is unknown.
    uncertain: Option<String>,
}

/// What the key `turn` holds: `TERM.WRITES`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Turn {
    pub term: u64,
    /// Number of writes in this term.
    pub writes: u64,
}

/// The threads on which calls of etcd progress: those of gRPC may be busy, and the owner of the state blocks while it
/// saves.
#[derive(Debug)]
pub(crate) struct Threads(Option<Runtime>);

impl EtcdStore {
    /// The store of a fabric at `host:port`, some of them separated by commas. Nothing is read yet.
    pub fn open(
        endpoints: &str,
        credentials: Option<EtcdCredentials>,
        fabric: &str,
    ) -> Result<EtcdStore, ControlError> {
        let cluster = Cluster::new(endpoints, credentials, fabric)?;
        EtcdStore::with(cluster, Turn::default(), false)
    }

    /// The store in a term that an election has brought.
    pub(crate) fn of_term(cluster: Cluster, term: u64) -> Result<EtcdStore, ControlError> {
        EtcdStore::with(cluster, Turn { term, writes: 0 }, true)
    }

    fn with(cluster: Cluster, turn: Turn, elected: bool) -> Result<EtcdStore, ControlError> {
        let (threads, jobs) = (Threads::start()?, BTreeMap::new());
        Ok(EtcdStore { cluster, threads, turn, elected, jobs, uncertain: None })
    }

    /// Writes in one transaction, or as a batch that a later term completes.
    fn commit(&mut self, writes: Vec<Write>) -> Result<(), ControlError> {
        let parts = split(writes);
        if let [part] = &parts[..] {
            return self.transact(part.clone());
        }
        let mut batch = Batch::new(parts);
        while let Some(writes) = batch.next() {
            let is_made = batch.is_made();
            match self.transact(writes) {
                // What is made will be completed, by this term or by a later one.
                Err(ControlError::Store { problem, .. }) if is_made => {
                    return Err(self.lose_certainty(problem));
                }
                outcome => outcome?,
            }
        }
        Ok(())
    }

    /// One write of this term.
    fn transact(&mut self, writes: Vec<Write>) -> Result<(), ControlError> {
        if let Some(problem) = &self.uncertain {
            return Err(self.uncertainty(problem.clone()));
        }
        let (cluster, turn) = (self.cluster.clone(), self.turn);
        let next = Turn { writes: turn.writes + 1, ..turn };
        let found =
            self.threads.wait(async move { cluster.write(turn, next, writes, PATIENCE).await })?;
        match found {
            Ok(found) if found == next => {
                self.turn = next;
                Ok(())
            }
            Ok(found) => Err(self.deposed(found.term)),
            Err(CallError::Refused(problem)) => Err(self.failed(problem)),
            Err(CallError::Silent(problem)) => Err(self.lose_certainty(problem)),
        }
    }

    fn read(&mut self) -> Result<Saved, ControlError> {
        let cluster = self.cluster.clone();
        let read = self.threads.wait(async move { cluster.read(READ_PATIENCE).await })?;
        let (turn, place) = read.map_err(|error| self.failed(error.to_string()))?;
        if self.turn == Turn::default() && place.batch.is_none() {
            // A reader without a term, beside the leader.
            return place.saved().map_err(|problem| self.failed(problem));
        }
        if turn.term != self.turn.term {
            return Err(self.deposed(turn.term));
        }
        self.finish(&place)?;
        let place = match place.batch {
            None => place,
            Some(_) => {
                let cluster = self.cluster.clone();
                let read = self.threads.wait(async move { cluster.read(READ_PATIENCE).await })?;
                read.map_err(|error| self.failed(error.to_string()))?.1
            }
        };
        let mut saved = place.saved().map_err(|problem| self.failed(problem))?;
        let over = |phase: &str| phase == "ended" || phase == "abandoned";
        let created = |job: &super::JobRow| over(&job.phase).then_some(job.created_unix_s);
        self.jobs = saved.jobs.iter().map(|job| (job.job, created(job))).collect();
        // They go with the next save.
        let surplus = self.surplus(&[]);
        saved.jobs.retain(|job| !surplus.contains(&job.job));
        saved.members.retain(|member| !surplus.contains(&member.job));
        Ok(saved)
    }

    /// Completes a batch that an earlier term has made, or removes the parts of one that it has not.
    fn finish(&mut self, place: &Place) -> Result<(), ControlError> {
        let Some(count) = place.batch else {
            return match place.parts.is_empty() {
                true => Ok(()),
                false => self.transact(vec![rows::removal(rows::PARTS)]),
            };
        };
        let left = place.parts.iter().filter(|(number, _)| **number < count);
        for writes in Batch::rest(left.map(|(&number, part)| (number, part.clone())).collect()) {
            self.transact(writes)?;
        }
        Ok(())
    }

    /// The oldest jobs that are over, beyond those that are loaded, except those that `changes` are about.
    fn surplus(&self, changes: &[Change]) -> Vec<u32> {
        let mut over: Vec<(u32, f64)> =
            self.jobs.iter().filter_map(|(&job, created)| Some((job, (*created)?))).collect();
        over.sort_by(|a, b| a.1.total_cmp(&b.1).then(a.0.cmp(&b.0)));
        let about: BTreeSet<u32> = changes.iter().filter_map(Change::job).collect();
        let count = over.len().saturating_sub(ENDED_LOADED as usize);
        let oldest = over.into_iter().map(|(job, _)| job).take(count);
        oldest.filter(|job| !about.contains(job)).collect()
    }

    fn note(&mut self, changes: &[Change]) {
        for change in changes {
            if let Change::NewJob(job) | Change::Job(job) = change {
                let over = job.phase == "ended" || job.phase == "abandoned";
                self.jobs.insert(job.job, over.then_some(job.created_unix_s));
            }
        }
    }

    fn deposed(&self, term: u64) -> ControlError {
        ControlError::Deposed { place: self.place(), term }
    }

    fn failed(&self, problem: String) -> ControlError {
        ControlError::Store { file: self.place().into(), problem }
    }

    fn uncertainty(&self, problem: String) -> ControlError {
        ControlError::Uncertain { place: self.place(), problem }
    }

    fn lose_certainty(&mut self, problem: String) -> ControlError {
        self.uncertain = Some(problem.clone());
        self.uncertainty(problem)
    }
}

impl Store for EtcdStore {
    fn begin_term(&mut self) -> Result<u64, ControlError> {
        if !std::mem::take(&mut self.elected) {
            let cluster = self.cluster.clone();
            let seized = self.threads.wait(async move { cluster.seize(READ_PATIENCE).await })?;
            let term = seized.map_err(|error| self.failed(error.to_string()))?;
            self.turn = Turn { term, writes: 0 };
            self.uncertain = None;
        }
        Ok(self.turn.term)
    }

    fn load(&mut self) -> Result<Saved, ControlError> {
        self.read()
    }

    fn save(&mut self, changes: &[Change]) -> Result<(), ControlError> {
        for change in changes {
            // A number that is used again: its old job is over, so that its rows may go before.
            if let Change::NewJob(job) = change
                && self.jobs.contains_key(&job.job)
            {
                self.commit(rows::forget(job.job))?;
                self.jobs.remove(&job.job);
            }
        }
        let surplus = self.surplus(changes);
        let mut writes = rows::writes(changes);
        writes.extend(surplus.iter().flat_map(|&job| rows::forget(job)));
        self.commit(writes)?;
        surplus.iter().for_each(|job| _ = self.jobs.remove(job));
        self.note(changes);
        Ok(())
    }

    fn confirm(&mut self) -> Result<(), ControlError> {
        let cluster = self.cluster.clone();
        let found = self.threads.wait(async move { cluster.turn(PATIENCE).await })?;
        match found {
            Ok(found) if found.term == self.turn.term => Ok(()),
            Ok(found) => Err(self.deposed(found.term)),
            // A read changes nothing, whether it is answered or not.
            Err(CallError::Refused(problem) | CallError::Silent(problem)) => {
                Err(self.failed(problem))
            }
        }
    }

    fn place(&self) -> String {
        self.cluster.place()
    }
}

impl Threads {
    pub fn start() -> Result<Threads, ControlError> {
        let mut threads = Builder::new_multi_thread();
        let started = threads.worker_threads(1).thread_name("netsum-etcd").enable_all().build();
        let what = "cannot start the threads for etcd";
        let runtime = started.map_err(|source| ControlError::System { what, source })?;
        Ok(Threads(Some(runtime)))
    }

    /// Runs a task to its end; blocks the caller.
    pub fn wait<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, ControlError> {
        let (sender, receiver) = std::sync::mpsc::sync_channel(1);
        let ended = || ControlError::System {
            what: "the threads for etcd have ended",
            source: std::io::ErrorKind::BrokenPipe.into(),
        };
        let runtime = self.0.as_ref().ok_or_else(ended)?;
        runtime.spawn(async move { sender.send(task.await) });
        receiver.recv().map_err(|_| ended())
    }
}

impl Threads {
    /// Runs a task to its end.
    pub async fn run(&self, task: impl Future<Output = ()> + Send + 'static) {
        if let Some(runtime) = &self.0 {
            let _ = runtime.spawn(task).await;
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        // Also where a runtime may not be waited for.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// For a write: the time in which etcd elects another leader of its own, and some.
const PATIENCE: Duration = Duration::from_secs(3);
/// For reading everything.
const READ_PATIENCE: Duration = Duration::from_secs(5);
