//! Drives the machine that hands the ranks over from one plan to the next ([`netsum_proto::handover`]).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use netsum_control::ControllerPlan;
use netsum_lease::{JobPlan, worker_config, worker_secrets};
use netsum_net::worker::{Remaining, WorkerPlan};
use netsum_proto::Time;
use netsum_proto::handover::{Action, Frozen, HandoverError, Path, Resume};
use netsum_topo::Plan;
use netsum_wire::Rank;

use super::State;
use crate::Error;
use crate::messages::MessageKind;
use crate::status::Pause;

impl State {
    pub(super) fn now(&self) -> Time {
        self.time_of(Instant::now())
    }

    /// Converts an instant to the machine's time.
    pub(super) fn time_of(&self, instant: Instant) -> Time {
        let ns = instant.saturating_duration_since(self.origin).as_nanos();
        Time(u64::try_from(ns).unwrap_or(u64::MAX))
    }

    fn instant_of(&self, time: Time) -> Instant {
        self.origin + Duration::from_nanos(time.0)
    }

    /// Handles another rank's hand-over message.
    pub(super) fn take_handover(&mut self, from: u32, bytes: &[u8]) {
        if self.core.failure().is_some() {
            return;
        }
        match self.machine.handle_message(self.now(), Rank(from), bytes) {
            Ok(()) => self.drive(),
            Err(error) => self.give_up(error.to_string()),
        }
    }

    /// Performs the machine's actions until there are none.
    pub(super) fn drive(&mut self) {
        loop {
            while let Some(transmit) = self.machine.poll_transmit() {
                self.core.send(transmit.to.0, MessageKind::Handover, 0, transmit.bytes);
            }
            let Some(action) = self.machine.poll_action() else { return };
            if self.core.failure().is_some() {
                return;
            }
            self.act(action);
        }
    }

    fn act(&mut self, action: Action<ControllerPlan>) {
        match action {
            Action::Freeze => self.freeze(),
            Action::Fetch(fragments) => {
                let results = self.driver.as_ref().map(|driver| driver.fetch(&fragments));
                let results = results.unwrap_or_default();
                self.machine.handle_fetched(self.now(), results);
            }
            Action::Deliver(results) => {
                self.core.counters.served.fetch_add(results.len() as u64, Ordering::Relaxed);
                if let Some(driver) = &self.driver {
                    driver.deliver(results);
                }
            }
            Action::Resume(resume) => self.resume(*resume),
            Action::Run { sequence, path } => self.route(sequence, path),
            Action::SilentTrees(trees) => {
                tracing::info!(?trees, "trees that do not answer");
                self.heartbeat();
            }
            Action::Fail(error) => self.cannot_go_on(error),
            // Actions of groups that a rank leads.
            Action::Plan { .. }
            | Action::Faults { .. }
            | Action::Exchange { .. }
            | Action::Over { .. } => {}
        }
    }

    fn freeze(&mut self) {
        let Some(driver) = self.driver.clone() else { return };
        let stats = driver.stats();
        self.status.lock().keep(&stats.trees);
        let (submitted, progress) = (stats.submitted, driver.freeze());
        self.machine.handle_frozen(self.now(), Frozen::Fragments { progress, submitted });
    }

    /// Takes the agreed plan into use, starting with the rest of operations that were in progress, in the order of
    /// calls.
    fn resume(&mut self, resume: Resume<ControllerPlan>) {
        let driver = self.driver.clone();
        let finished = resume.finished.clone();
        let remaining = finished.zip(driver).map(|(finished, driver)| driver.resolve(finished));
        let old_fragment_bytes =
            self.plan.as_ref().map_or(0, |plan| plan.0.plan.fragment_bytes) as u16;
        if let Err(error) = self.adopt(&resume) {
            // Their buffers are those of the operations that fail.
            drop(remaining);
            return self.fail(error);
        }
        remaining.unwrap_or_default().into_iter().for_each(|operation| {
            self.go_on(operation, resume.rest, old_fragment_bytes);
        });
        self.record(&resume);
        self.plan_works = false;
        // Reports the plan in use to the controller.
        self.heartbeat();
        self.settle(Ok(()));
    }

    /// Takes the agreed plan into use.
    fn adopt(&mut self, resume: &Resume<ControllerPlan>) -> Result<(), Error> {
        self.trees = false;
        let Some(plan) = &resume.plan else { return Ok(()) };
        let JobPlan { plan: Plan { order, min_bytes, epoch, .. }, .. } = &*plan.0;
        if self.plan.is_none() {
            self.core.order.store(Arc::new(order.clone()));
            // Set once, by the first plan.
            let _ = self.core.min_bytes.set(*min_bytes);
        } else if **self.core.order.load() != *order {
            return Err(Error::Internal(format!("plan {epoch} adds in another order")));
        }
        if resume.path == Path::Network
            && let Some(driver) = &self.driver
        {
            let worker = worker_config(&plan.0, self.core.rank, self.core.size);
            let (config, switches) = worker.map_err(|error| Error::Internal(error.to_string()))?;
            let secrets = worker_secrets(&plan.0, &self.rank_keys);
            driver.begin_with(WorkerPlan { config, switches }, secrets);
            self.trees = true;
        }
        self.plan = Some(plan.clone());
        Ok(())
    }

    /// Gives the trees the key of the plan in use, if the plan came first: another rank may hand it on sooner than the
    /// controller's stream brings the key.
    pub(super) fn secure(&self) {
        if let (true, Some(plan), Some(driver)) = (self.trees, &self.plan, &self.driver)
            && let Some(secrets) = worker_secrets(&plan.0, &self.rank_keys)
        {
            driver.secure(secrets);
        }
    }

    /// Gives the rest of an operation to a path.
    fn go_on(&mut self, operation: Remaining, rest: Path, old_fragment_bytes: u16) {
        let submission = &operation.submission;
        let left = submission.count(old_fragment_bytes);
        self.core.counters.redone.fetch_add(left, Ordering::Relaxed);
        if rest == Path::Network && self.carries(submission.format, &submission.pattern) {
            self.give_to_trees(operation);
        } else {
            self.give_to_host(submission.id, Some((operation, old_fragment_bytes)));
        }
    }

    fn record(&self, resume: &Resume<ControllerPlan>) {
        let Some(job_plan) = self.plan.as_ref().map(|plan| &plan.0) else { return };
        let plan = &job_plan.plan;
        let reason = match &resume.plan {
            Some(_) => plan.reason.clone(),
            None => format!("the trees of plan {} do not answer", plan.epoch),
        };
        let path = match self.trees {
            true => format!("trees of {}", plan.protocol),
            false => "the host path".to_owned(),
        };
        let cause = match resume.silent.as_slice() {
            [] => "a new plan came",
            _ => "the trees did not answer",
        };
        let attached = self.trees.then(|| job_plan.attachments(self.core.rank).ok()).flatten();
        let mut status = self.status.lock();
        if !plan.choice.is_empty() && status.choice != plan.choice && self.core.rank == 0 {
            tracing::info!(protocol = %plan.protocol, why = plan.choice, "protocol chosen");
        }
        if resume.generation > 1 {
            let why = if reason.is_empty() { "as many as can be" } else { &reason };
            let what = format!("{cause}: on {path} with plan {} ({why})", plan.epoch);
            let since = self.instant_of(resume.since);
            tracing::info!(what, seconds = since.elapsed().as_secs_f64(), "plan changed");
            status.pauses.push(Pause::since(since, what));
        }
        status.epoch = plan.epoch;
        (status.protocol, status.choice) = (plan.protocol.to_string(), plan.choice.clone());
        status.trees = self.trees;
        status.reason = reason;
        status.switches =
            attached.unwrap_or_default().into_iter().map(|attachment| attachment.switch).collect();
    }

    fn cannot_go_on(&mut self, error: HandoverError) {
        match error {
            HandoverError::Timeout { operation: Some(sequence), missing, .. } => {
                let missing = self.awaited_by_handover(&missing);
                self.time_out(sequence, missing);
            }
            error => self.give_up(error.to_string()),
        }
    }

    /// Fails the group at all ranks.
    fn give_up(&mut self, reason: String) {
        self.core.send_all(MessageKind::Failed, 0, reason.as_bytes());
        self.fail(Error::Internal(reason));
    }
}
