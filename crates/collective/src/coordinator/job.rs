//! Collectives that switches can do, on any path.

use std::time::{Duration, Instant};

use netsum_net::worker::{Remaining, TreeOperation};
use netsum_proto::handover::{self, Path};
use netsum_proto::operations::{Fragments, Submission};
use netsum_proto::{Pattern, supports};
use netsum_wire::{Format, Rank};

use super::{Caller, State};
use crate::Error;
use crate::comm::Comm;
use crate::queue::{Body, Job};
use crate::rest;
use crate::task::Task;
use crate::work::{OperationSummary, Work};

/// One collective.
pub(crate) struct TreeJob {
    pub(crate) sequence: u64,
    pub(crate) fingerprint: u32,
    pub(crate) task: Task,
    pub(crate) deadline: Instant,
    pub(crate) work: Work,
    pub(crate) state: JobState,
}

/// Path of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JobState {
    /// It waits for a transition to end.
    Waiting,
    /// The data-plane driver has it.
    Trees,
}

impl TreeJob {
    /// Reports how it ended. Lets go of the memory first: whoever waits for the operation may use it.
    pub(super) fn end(self, outcome: Result<(), Error>) {
        let TreeJob { work, task, .. } = self;
        drop(task);
        work.complete(outcome);
    }

    /// The driver's operation for all elements.
    fn operation(&mut self, rank: u32) -> TreeOperation {
        let submission = Submission {
            id: self.sequence,
            format: self.task.format(),
            numel: self.task.numel(),
            fingerprint: self.fingerprint,
            fragments: Fragments::All,
            pattern: self.task.pattern(),
        };
        TreeOperation { submission, buffer: self.task.lend(rank) }
    }
}

impl State {
    pub(super) fn submit(&mut self, mut job: TreeJob) {
        if let Some(error) = self.core.failure() {
            self.core.ledger.retire(job.sequence);
            return job.end(Err(error));
        }
        job.task.prepare(self.core.rank);
        job.state = JobState::Waiting;
        let elements = job.task.numel();
        let (sequence, deadline) = (job.sequence, self.time_of(job.deadline));
        self.jobs.insert(sequence, job);
        self.machine.handle_operation(handover::PendingOperation { sequence, elements, deadline });
        self.drive();
    }

    /// Gives a waiting job to its path, which is the same at all ranks.
    pub(super) fn route(&mut self, sequence: u64, path: Path) {
        let Some(task) = self.jobs.get(&sequence).map(|job| &job.task) else { return };
        if path == Path::Network && self.carries(task.format(), &task.pattern()) {
            let rank = self.core.rank;
            let operation = self.jobs.get_mut(&sequence).map(|job| job.operation(rank));
            operation.into_iter().for_each(|operation| self.give_to_trees(operation));
        } else {
            self.give_to_host(sequence, None);
        }
    }

    /// Whether the switches of the plan do such an operation; all ranks have the same plan when they ask.
    pub(super) fn carries(&self, format: Format, pattern: &Pattern) -> bool {
        let Some(plan) = self.plan.as_ref().map(|plan| &plan.0.plan) else { return false };
        let does = *pattern == Pattern::Allreduce || plan.copies;
        does && supports(plan.protocol, format, self.core.size)
    }

    /// Gives a whole job, or the rest of it, to the driver.
    pub(super) fn give_to_trees(&mut self, operation: TreeOperation) {
        let Some(driver) = &self.driver else { return };
        if let Some(job) = self.jobs.get_mut(&operation.submission.id) {
            job.state = JobState::Trees;
        }
        match self.caller {
            Caller::GoesOn => driver.submit(operation),
            Caller::Helps | Caller::HasGiven => {
                driver.submit_for_help(operation);
                self.caller = Caller::HasGiven;
            }
        }
    }

    /// Gives a job to the host queue: the rest of it from trees with such fragments, or all.
    pub(super) fn give_to_host(&mut self, sequence: u64, rest: Option<(Remaining, u16)>) {
        let Some(job) = self.jobs.remove(&sequence) else {
            return rest.into_iter().for_each(|(rest, size)| self.repeat_on_host(rest, size));
        };
        let TreeJob { mut task, fingerprint, deadline, work, .. } = job;
        let order = self.core.order.load_full();
        let core = self.core.clone();
        let body = move |comm: &mut Comm<'_>| {
            match rest {
                Some((rest, size)) if !rest.submission.is_whole(size) => {
                    rest::run(comm, &order, rest, size)?;
                    task.conclude(comm.rank(), comm.size());
                }
                // Some ranks may have it all: they run the same.
                rest => {
                    drop(rest);
                    task.run(comm, order)?;
                }
            }
            if let Some(result) = task.common_result() {
                core.compare_result(sequence, result);
            }
            Ok(())
        };
        let body: Body = Box::new(body);
        self.queue.push(Job { sequence, fingerprint, deadline, work, here: None, body });
    }

    /// Contributes between the hosts to the rest of an operation that is done here: another rank lacks a result that
    /// this rank does not take.
    fn repeat_on_host(&mut self, rest: Remaining, fragment_bytes: u16) {
        let (sequence, fingerprint) = (rest.submission.id, rest.submission.fingerprint);
        if !self.core.ledger.repeat(sequence) {
            let problem = format!("operation #{sequence} is too old to be repeated");
            return self.fail(Error::Internal(problem));
        }
        let now = Instant::now();
        let summary = OperationSummary::Other(format!("rest of operation #{sequence}"));
        let (work, deadline) = (Work::new(summary, now), now + REPEAT_PATIENCE);
        let order = self.core.order.load_full();
        let body = move |comm: &mut Comm<'_>| match rest.submission.is_whole(fragment_bytes) {
            true => Task::of(rest).run(comm, order),
            false => rest::run(comm, &order, rest, fragment_bytes),
        };
        let body: Body = Box::new(body);
        self.queue.push(Job { sequence, fingerprint, deadline, work, here: None, body });
    }

    /// Completes a job of which the driver has all results.
    pub(super) fn done(&mut self, id: u64, missing: u64) {
        let Some(job) = self.take_done(id, missing) else { return };
        job.end(Ok(()));
        if !std::mem::replace(&mut self.plan_works, true) {
            // The controller waits for the first results of a plan that avoids a fault.
            self.heartbeat();
        }
    }

    /// Takes a job of which the driver has all results; its caller has not been told.
    pub(super) fn take_done(&mut self, id: u64, missing: u64) -> Option<TreeJob> {
        let mut job = self.jobs.remove(&id)?;
        let ranks = (self.core.size - missing.count_ones()).max(1);
        job.task.conclude(self.core.rank, ranks);
        if let Some(result) = job.task.common_result() {
            self.core.compare_result(id, result);
        }
        self.core.count_operation(true);
        match job.task.pattern().gives_away() {
            true => self.core.ledger.complete(id),
            false => self.core.ledger.retire(id),
        }
        Some(job)
    }

    /// Checks deadlines of jobs on trees and of waiting jobs; the host queue checks its own.
    pub(super) fn watch_deadlines(&mut self, now: Instant) {
        let late = self.jobs.values().find(|job| job.deadline <= now);
        if let Some(sequence) = late.map(|job| job.sequence) {
            let missing = self.missing_ranks_message();
            self.time_out(sequence, missing);
        }
    }

    /// Compares the ranks' calls of an operation that takes long. Those of a job with copies of trees may travel on
    /// different trees, where no switch finds that they differ.
    pub(super) fn watch_calls(&mut self) {
        let copies = self.plan.as_ref().is_some_and(|plan| plan.0.plan.copies);
        let Some((&sequence, job)) = self.jobs.first_key_value().filter(|_| copies) else { return };
        if job.state == JobState::Trees && job.work.elapsed() >= CALLS_AGREE_WITHIN {
            self.compare(sequence);
        }
    }

    /// Fails the group because of a job's time-out: the switches need this rank's contributions to what is in flight,
    /// so the group cannot continue.
    pub(super) fn time_out(&mut self, sequence: u64, missing: String) {
        let Some(late) = self.jobs.get(&sequence) else { return };
        let error = Error::Timeout {
            operation: late.work.operation(),
            elapsed: late.work.elapsed(),
            missing,
        };
        self.fail(error);
    }

    /// Handles a tree that does not answer. If it remains silent and no new plan arrives, the ranks continue without
    /// it.
    pub(super) fn silent(&mut self, tree: u8, for_ns: u64) {
        let results = self.results().get(usize::from(tree)).copied().unwrap_or(0);
        self.machine.handle_silence(self.now(), tree, for_ns, results);
        self.drive();
    }

    /// Tells the machine which silent trees answer again.
    pub(super) fn watch_silence(&mut self) {
        let silent = self.machine.silent_trees();
        if silent.is_empty() || !self.trees {
            return;
        }
        let results = self.results();
        for tree in silent {
            let results = results.get(usize::from(tree)).copied().unwrap_or(0);
            self.machine.handle_results(tree, results);
        }
    }

    /// Number of results of each tree.
    fn results(&self) -> Vec<u64> {
        let stats = self.driver.as_ref().map(|driver| driver.stats()).unwrap_or_default();
        stats.trees.iter().map(|tree| tree.results).collect()
    }

    pub(super) fn awaited_by_handover(&self, missing: &[Rank]) -> String {
        let missing: Vec<u32> = missing.iter().map(|rank| rank.0).collect();
        format!("the plan was changing; {}", self.core.not_heard_from(&missing))
    }

    fn missing_ranks_message(&self) -> String {
        if self.machine.is_under_way() {
            return self.awaited_by_handover(&self.machine.missing());
        }
        let trees = self.driver.as_ref().map(|driver| driver.stats().trees).unwrap_or_default();
        let waiting = trees.iter().fold(0, |all, tree| all | tree.waiting_for);
        let ranks: Vec<u32> =
            (0..self.core.size).filter(|r| waiting >> (r % 64) & 1 == 1).collect();
        match ranks.as_slice() {
            [] => "the switches did not say for whom they wait".to_owned(),
            ranks => format!("the switches wait: {}", self.core.not_heard_from(ranks)),
        }
    }
}

/// Every rank sends its call of an operation that takes longer: one small message to each other rank.
const CALLS_AGREE_WITHIN: Duration = Duration::from_secs(2);
/// How long other ranks may take for the rest of an operation that is done here; their own deadlines end it earlier.
const REPEAT_PATIENCE: Duration = Duration::from_secs(600);
