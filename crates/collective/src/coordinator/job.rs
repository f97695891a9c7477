//! Allreduces that switches support, on any path.

use std::time::Instant;

use netsum_net::Buffer;
use netsum_net::worker::TreeOperation;
use netsum_proto::handover::{self, Path};
use netsum_proto::operations::{Fragments, Submission};
use netsum_proto::{Pattern, supports};
use netsum_wire::{Format, Rank};

use super::State;
use super::rest::ranges;
use crate::Error;
use crate::algorithm::{Allreduce, allreduce, allreduce_ranges};
use crate::combine::{Combine, conclude, prepare};
use crate::comm::Comm;
use crate::queue::{Body, Job};
use crate::work::Work;

/// One allreduce.
pub(crate) struct TreeJob {
    pub(crate) sequence: u64,
    pub(crate) fingerprint: u32,
    pub(crate) format: Format,
    pub(crate) how: Combine,
    pub(crate) numel: u64,
    pub(crate) buffer: Buffer,
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
    /// Reports how it ended. Lets go of the buffer first: whoever waits for the operation may use the buffer.
    pub(super) fn end(self, outcome: Result<(), Error>) {
        let TreeJob { work, buffer, .. } = self;
        drop(buffer);
        work.complete(outcome);
    }

    /// The driver's operation for the whole buffer.
    fn operation(&mut self) -> TreeOperation {
        let submission = Submission {
            id: self.sequence,
            format: self.format,
            numel: self.numel,
            fingerprint: self.fingerprint,
            fragments: Fragments::All,
            pattern: Pattern::default(),
        };
        TreeOperation { submission, buffer: self.buffer.lend_all() }
    }
}

impl State {
    pub(super) fn submit(&mut self, mut job: TreeJob) {
        if let Some(error) = self.core.failure() {
            self.core.ledger.retire(job.sequence);
            return job.end(Err(error));
        }
        prepare(job.how, job.format.dtype, &mut job.buffer);
        job.state = JobState::Waiting;
        let elements = job.numel;
        let (sequence, deadline) = (job.sequence, self.time_of(job.deadline));
        self.jobs.insert(sequence, job);
        self.machine.handle_operation(handover::PendingOperation { sequence, elements, deadline });
        self.drive();
    }

    /// Gives a waiting job to its path, which is the same at all ranks.
    pub(super) fn route(&mut self, sequence: u64, path: Path) {
        let Some(format) = self.jobs.get(&sequence).map(|job| job.format) else { return };
        if path == Path::Network && self.carries(format) {
            let operation = self.jobs.get_mut(&sequence).map(TreeJob::operation);
            operation.into_iter().for_each(|operation| self.give_to_trees(operation));
        } else {
            self.give_to_host(sequence, None);
        }
    }

    /// Whether the plan's protocol supports a format; all ranks have the same plan when they ask.
    pub(super) fn carries(&self, format: Format) -> bool {
        let protocol = self.plan.as_ref().map(|plan| plan.0.plan.protocol);
        protocol.is_some_and(|protocol| supports(protocol, format))
    }

    /// Gives a whole job, or the rest of it, to the driver.
    pub(super) fn give_to_trees(&mut self, operation: TreeOperation) {
        let Some(driver) = &self.driver else { return };
        if let Some(job) = self.jobs.get_mut(&operation.submission.id) {
            job.state = JobState::Trees;
        }
        driver.submit(operation);
    }

    /// Gives a job to the host queue: the rest of it, or all.
    pub(super) fn give_to_host(&mut self, sequence: u64, rest: Option<(&Submission, u16)>) {
        let Some(job) = self.jobs.remove(&sequence) else { return };
        let TreeJob { format, how, buffer, fingerprint, deadline, work, .. } = job;
        let order = self.core.order.load_full();
        let (core, size) = (self.core.clone(), self.core.size);
        let rest = rest.map(|(submission, fragment_bytes)| ranges(submission, fragment_bytes));
        let body = move |comm: &mut Comm<'_>| {
            let mut sum = Allreduce { order, format, buffer };
            match rest {
                None => allreduce(comm, &mut sum)?,
                Some(rest) => allreduce_ranges(comm, &mut sum, &rest)?,
            }
            comm.finish()?;
            conclude(how, format.dtype, &mut sum.buffer, size);
            core.compare_result(sequence, &sum.buffer);
            Ok(())
        };
        let body: Body = Box::new(body);
        self.queue.push(Job { sequence, fingerprint, deadline, work, here: None, body });
    }

    /// Completes a job of which the driver has all sums.
    pub(super) fn done(&mut self, id: u64, missing: u64) {
        let Some(mut job) = self.jobs.remove(&id) else { return };
        let ranks = (self.core.size - missing.count_ones()).max(1);
        conclude(job.how, job.format.dtype, &mut job.buffer, ranks);
        self.core.compare_result(id, &job.buffer);
        self.core.count_operation(true);
        self.core.ledger.retire(id);
        job.end(Ok(()));
        if !std::mem::replace(&mut self.plan_works, true) {
            // The controller waits for the first results of a plan that avoids a fault.
            self.heartbeat();
        }
    }

    /// Checks deadlines of jobs on trees and of waiting jobs; the host queue checks its own.
    pub(super) fn watch_deadlines(&mut self, now: Instant) {
        let late = self.jobs.values().find(|job| job.deadline <= now);
        if let Some(sequence) = late.map(|job| job.sequence) {
            let missing = self.missing_ranks_message();
            self.time_out(sequence, missing);
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
