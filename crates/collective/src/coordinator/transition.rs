//! The passage from one plan to the next, as [`crate::failover`] describes it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::time::Instant;

use netsum_control::JobPlan;
use netsum_net::worker::Remaining;
use netsum_proto::panama::{Finished, Serve};
use netsum_wire::Rank;

use super::State;
use super::job::Place;
use crate::Error;
use crate::core::About;
use crate::failover::{Decision, Report, count, decide, pack, unpack};
use crate::plan::worker_plan;
use crate::status::Pause;

/// A transition under way.
pub(super) struct Transition {
    /// When sums stopped.
    started: Instant,
    reports: BTreeMap<u32, Report>,
    decision: Option<Decision>,
    /// Results of the old epoch that peers have handed over.
    delivered: BTreeSet<u64>,
    /// Results that are still to come.
    awaited: BTreeSet<u64>,
}

impl Transition {
    /// Ranks that have not reported.
    pub(super) fn missing(&self, size: u32) -> Vec<u32> {
        (0..size).filter(|rank| !self.reports.contains_key(rank)).collect()
    }
}

impl State {
    /// Stops the trees and tells everybody how far we are.
    pub(super) fn begin_transition(&mut self, failed: bool) {
        let silent_since = self.silence.take().map(|silence| silence.since);
        let started = silent_since.unwrap_or_else(Instant::now);
        let progress = match &self.driver {
            Some(driver) if self.trees => {
                let stats = driver.stats();
                self.status.lock().keep(&stats.trees);
                self.submitted = stats.submitted;
                Some(driver.freeze())
            }
            _ => None,
        };
        let report = Report {
            epoch: self.plan.as_ref().map_or(0, |plan| plan.plan.epoch),
            failed,
            issued: self.issued,
            progress,
            newest: self.newest.clone(),
        };
        self.core.tell_all(About::Report, self.generation, &report.to_bytes());
        let mut reports = BTreeMap::from([(self.core.rank, report)]);
        reports.extend(std::mem::take(&mut self.early));
        let (delivered, awaited) = (BTreeSet::new(), BTreeSet::new());
        self.transition = Some(Transition { started, reports, decision: None, delivered, awaited });
        self.conclude();
    }

    /// A peer has stopped: so do we.
    pub(super) fn take_report(&mut self, from: u32, generation: u64, bytes: &[u8]) {
        if self.core.failure().is_some() {
            return;
        }
        let Some(report) = Report::from_bytes(bytes, self.core.size) else {
            return self.give_up(format!("the report of rank {from} is malformed"));
        };
        if generation == self.generation + 1 && self.transition.is_some() {
            // It has finished this transition already, and begun the next.
            self.early.push((from, report));
        } else if generation != self.generation {
            self.give_up(format!(
                "rank {from} is in transition {generation}, this rank in {}",
                self.generation
            ));
        } else if let Some(transition) = &mut self.transition {
            transition.reports.insert(from, report);
            self.conclude();
        } else {
            self.early.push((from, report));
            self.begin_transition(false);
        }
    }

    /// A peer hands over results that we lack. It has our report, so our trees have stopped.
    pub(super) fn take_served(&mut self, from: u32, generation: u64, bytes: &[u8]) {
        let Some(results) = unpack(bytes) else {
            return self.give_up(format!("the results of rank {from} are malformed"));
        };
        let (Some(driver), Some(transition)) = (&self.driver, &mut self.transition) else { return };
        if generation != self.generation {
            return;
        }
        self.core.counters.served.fetch_add(results.len() as u64, Ordering::Relaxed);
        for (g, _) in &results {
            transition.awaited.remove(g);
            transition.delivered.insert(*g);
        }
        driver.deliver(results);
        self.finish_if_complete();
    }

    /// With all reports in hand: decides, hands over what others lack.
    fn conclude(&mut self) {
        let Some(transition) = &mut self.transition else { return };
        if transition.decision.is_some() || !transition.missing(self.core.size).is_empty() {
            return;
        }
        let reports: Vec<Report> = transition.reports.values().cloned().collect();
        let decision = match decide(&reports) {
            Ok(decision) => decision,
            Err(error) => return self.fail(error),
        };
        let serve = decision.resolution.as_ref().map_or(&[][..], |resolution| &resolution.serve);
        let own = Rank(self.core.rank);
        let lacking = serve.iter().filter(|s| s.to.contains(&own)).map(|s| s.g);
        transition.awaited = lacking.filter(|g| !transition.delivered.contains(g)).collect();
        let unknown = transition.awaited.iter().any(|&g| g >= self.submitted);
        let ours: Vec<Serve> = serve.iter().filter(|s| s.from == own).cloned().collect();
        transition.decision = Some(decision);
        if unknown {
            // Only with partial sums can others have the result of what we have not called yet.
            return self.give_up(
                "a switch died after it had released partial sums of an operation that this rank has not \
                 called yet; they cannot be made whole"
                    .to_owned(),
            );
        }
        if self.serve(&ours) {
            self.finish_if_complete();
        }
    }

    /// Sends results to those who lack them; false if one is not there any more.
    fn serve(&mut self, ours: &[Serve]) -> bool {
        let Some(driver) = self.driver.clone() else { return true };
        for batch in ours.chunks(SERVE_BATCH) {
            let fragments: Vec<u64> = batch.iter().map(|serve| serve.g).collect();
            let results: Option<Vec<Vec<u8>>> = driver.fetch(&fragments).into_iter().collect();
            let Some(results) = results else {
                self.give_up("a result that another rank lacks is not retained".to_owned());
                return false;
            };
            let mut by_rank: BTreeMap<Rank, Vec<(u64, Vec<u8>)>> = BTreeMap::new();
            for (serve, result) in batch.iter().zip(results) {
                for &to in &serve.to {
                    by_rank.entry(to).or_default().push((serve.g, result.clone()));
                }
            }
            for (to, results) in by_rank {
                self.core.tell(to.0, About::Served, self.generation, pack(&results));
            }
        }
        true
    }

    fn finish_if_complete(&mut self) {
        let complete = |t: &Transition| t.decision.is_some() && t.awaited.is_empty();
        let Some(transition) = self.transition.take_if(|t| complete(t)) else { return };
        let Some(decision) = transition.decision else { return };
        self.generation += 1;
        let finished = decision.resolution.as_ref().map(|resolution| resolution.finished.clone());
        let remaining = finished.map_or_else(Vec::new, |finished| self.resolve(finished));
        let old_fragment_bytes = self.plan.as_ref().map_or(0, |plan| plan.plan.fragment_bytes);
        if let Err(error) = self.adopt(&decision) {
            return self.fail(error);
        }
        self.resume(remaining, old_fragment_bytes as u16);
        self.record(transition.started, &decision);
        self.settle(Ok(()));
        if !self.early.is_empty() {
            self.begin_transition(false);
        }
    }

    fn resolve(&mut self, finished: Finished) -> Vec<Remaining> {
        self.submitted = 0;
        self.driver.as_ref().map_or_else(Vec::new, |driver| driver.resolve(finished))
    }

    /// Goes over to the plan that was decided on.
    fn adopt(&mut self, decision: &Decision) -> Result<(), Error> {
        let had_trees = std::mem::replace(&mut self.trees, false);
        let Some(plan) = &decision.plan else { return Ok(()) };
        let order = plan.plan.order.clone();
        if self.plan.is_none() {
            self.core.order.store(std::sync::Arc::new(order));
            // Set once: this is the first plan.
            let _ = self.core.min_bytes.set(plan.plan.min_bytes);
        } else if **self.core.order.load() != order {
            return Err(Error::Internal(format!("plan {} adds in another order", plan.plan.epoch)));
        }
        if decision.trees {
            if !had_trees {
                self.host_until = self.host_until.max(decision.cut);
            }
            let worker = worker_plan(plan, self.core.rank, self.core.size);
            let worker = worker.map_err(|error| Error::Internal(error.to_string()))?;
            if let Some(driver) = &self.driver {
                driver.begin_with(worker, plan.key);
                self.trees = true;
            }
        }
        if self.newest.as_ref().is_none_or(|newest| newest.plan.epoch < plan.plan.epoch) {
            self.newest = Some(plan.clone());
        }
        self.plan = Some(plan.clone());
        Ok(())
    }

    /// Operations go on in the order of calls: first what is left of those under way.
    fn resume(&mut self, remaining: Vec<Remaining>, old_fragment_bytes: u16) {
        let same_cut = self.plan.as_ref().map(|plan| plan.plan.fragment_bytes as u16);
        let on_trees = self.trees && same_cut == Some(old_fragment_bytes);
        for operation in remaining {
            let left = count(&operation.submission, old_fragment_bytes);
            self.core.counters.redone.fetch_add(left, Ordering::Relaxed);
            if on_trees && self.carries(operation.submission.format) {
                self.give_to_trees(operation);
            } else {
                let id = operation.submission.id;
                self.give_to_host(id, Some((&operation.submission, old_fragment_bytes)));
            }
        }
        let waiting = self.jobs.values().filter(|job| job.place == Place::Waiting);
        let waiting: Vec<u64> = waiting.map(|job| job.sequence).collect();
        waiting.into_iter().for_each(|sequence| self.route(sequence));
    }

    fn record(&mut self, started: Instant, decision: &Decision) {
        let (epoch, reason) = match (&self.plan, &decision.plan) {
            (_, Some(JobPlan { plan, .. })) => (plan.epoch, plan.reason.clone()),
            (Some(JobPlan { plan, .. }), None) => {
                (plan.epoch, format!("the trees of plan {} do not answer", plan.epoch))
            }
            (None, None) => (0, "there is no plan yet".to_owned()),
        };
        let protocol = self.plan.as_ref().map(|plan| plan.plan.protocol.to_string());
        let path = match self.trees {
            true => format!("trees of {}", protocol.unwrap_or_default()),
            false => "the host path".to_owned(),
        };
        let cause = if decision.failed { "the trees did not answer" } else { "a new plan came" };
        let attached = self.plan.as_ref().filter(|_| self.trees);
        let attached = attached.and_then(|plan| plan.attachments(self.core.rank).ok());
        let mut status = self.status.lock();
        let plan = self.plan.as_ref().map(|plan| &plan.plan);
        if let Some(plan) = plan.filter(|plan| !plan.choice.is_empty())
            && status.choice != plan.choice
            && self.core.rank == 0
        {
            tracing::info!(protocol = %plan.protocol, why = plan.choice, "protocol chosen");
        }
        if self.generation > 1 {
            let why = if reason.is_empty() { "as many as can be" } else { &reason };
            let what = format!("{cause}: on {path} with plan {epoch} ({why})");
            tracing::info!(what, seconds = started.elapsed().as_secs_f64(), "plan changed");
            status.pauses.push(Pause::since(started, what));
        }
        status.epoch = epoch;
        if let Some(plan) = plan {
            (status.protocol, status.choice) = (plan.protocol.to_string(), plan.choice.clone());
        }
        status.trees = self.trees;
        status.reason = reason;
        status.switches =
            attached.unwrap_or_default().into_iter().map(|attachment| attachment.switch).collect();
    }

    /// The ranks cannot agree: all must hear of it.
    fn give_up(&mut self, reason: String) {
        self.core.tell_all(About::Failed, 0, reason.as_bytes());
        self.fail(Error::Internal(reason));
    }
}

/// Results that are fetched at a time: 4 MiB of the usual size.
const SERVE_BATCH: usize = 2048;
