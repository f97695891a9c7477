//! Leaderless mode: a controller sends plans, and every rank computes the same decision from all reports.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use netsum_wire::{Epoch, Rank};

use super::machine::{Conclusion, Handover, Phase, Results, Suspicion};
use super::message::{Body, Done, Report};
use super::{Action, Cause, HandoverError, Path, Plan, Progress, Resume, Serve, resolve};
use crate::handover::progress::span_is_plausible;
use crate::{Time, epoch};

impl<P: Plan> Handover<P> {
    /// Handles a plan from the controller. A plan older than the newest known one is ignored.
    pub fn handle_plan(&mut self, now: Time, plan: P) {
        if self.phase == Phase::Failed {
            return;
        }
        if is_newer(&plan, self.newest.as_ref().map(Plan::epoch)) {
            self.newest = Some(plan);
        }
        self.begin_if_newer(now);
    }

    /// Tree `tree` of the plan in use has not answered for `for_ns`; `results` is its number of results so far. If it
    /// remains silent and no new plan arrives, the ranks continue without the trees.
    pub fn handle_silence(&mut self, now: Time, tree: u8, for_ns: u64, results: u64) {
        let in_use = self.phase == Phase::Steady && self.path == Path::Network;
        if !in_use || self.suspicions.contains_key(&tree) {
            return;
        }
        let since = Time(now.0.saturating_sub(for_ns));
        self.suspicions.insert(tree, Suspicion { since, noticed: now, results });
        self.act(Action::SilentTrees(self.silent_trees()));
    }

    /// Number of results of a tree so far. If it is greater than when the tree fell silent, the tree works again. The
    /// driver must report every tree in [`Handover::silent_trees`] before it calls [`Handover::handle_timeout`].
    pub fn handle_results(&mut self, tree: u8, results: u64) {
        let answers = self.suspicions.get(&tree).is_some_and(|s| s.results != results);
        if answers && self.phase == Phase::Steady {
            self.suspicions.remove(&tree);
            self.act(Action::SilentTrees(self.silent_trees()));
        }
    }

    /// Trees of the plan in use that do not answer, or that were abandoned because they did not answer some rank. In
    /// the latter case the rank uses the host path until a plan of another epoch arrives.
    pub fn silent_trees(&self) -> Vec<u8> {
        let now = self.suspicions.keys().filter(|tree| !self.given_up.contains(tree));
        let mut trees: Vec<u8> = self.given_up.iter().chain(now).copied().collect();
        trees.sort_unstable();
        trees
    }

    /// The driver's answer to [`Action::Fetch`]: retained results in the order requested, `None` for one that is not
    /// retained any more.
    pub fn handle_fetched(&mut self, now: Time, results: Vec<Option<Vec<u8>>>) {
        if self.phase != Phase::Serving {
            return;
        }
        let Some(batch) = self.batches.pop_front() else { return };
        let mut by_rank: BTreeMap<Rank, Results> = BTreeMap::new();
        let mut results = results.into_iter();
        for serve in batch {
            let Some(result) = results.next().flatten() else {
                return self.fail(HandoverError::NotRetained(serve.g));
            };
            for to in serve.to {
                by_rank.entry(to).or_default().push((serve.g, result.clone()));
            }
        }
        for (to, results) in by_rank {
            self.send(&[to], Body::Results(results));
        }
        self.fetch_next();
        self.resume_if_served(now);
    }

    /// The path on which all ranks sum an operation.
    pub(super) fn path_of(&self, sequence: u64) -> Path {
        if sequence < self.hosts_until { Path::Hosts } else { self.path }
    }

    /// When the patience with a silent tree ends.
    pub(super) fn patience_ends(&self) -> Option<Time> {
        let patience_ns = self.plan.as_ref().map_or(0, Plan::patience_ns);
        self.suspicions.values().map(|s| s.noticed.after(patience_ns)).min()
    }

    fn begin_if_newer(&mut self, now: Time) {
        let current = self.plan.as_ref().map(Plan::epoch);
        let newer = self.newest.as_ref().is_some_and(|newest| is_newer(newest, current));
        if self.phase == Phase::Steady && newer {
            self.begin(now);
        }
    }

    /// Begins or joins the next hand-over.
    pub(super) fn begin(&mut self, now: Time) {
        let since = self.suspicions.values().map(|s| s.since).min();
        self.pause(now, since.unwrap_or(now));
        self.generation += 1;
        if self.path == Path::Network {
            self.phase = Phase::Freezing;
            self.act(Action::Freeze);
        } else {
            self.report(now, Done::Nothing, Vec::new());
        }
    }

    /// Handles a peer's report: the peer has stopped, so this rank stops, too.
    pub(super) fn take_report(
        &mut self,
        now: Time,
        from: Rank,
        generation: u64,
        report: Report<P>,
    ) -> Result<(), Cause> {
        let steady = self.phase == Phase::Steady;
        let current = self.generation + u64::from(steady);
        // This rank has finished this hand-over, which the sender cannot have without this rank's report.
        let reported = matches!(self.phase, Phase::Reporting | Phase::Serving);
        if generation == current + 1 && reported {
            if self.early.contains_key(&from) {
                return Err(Cause::Unexpected("it reports twice"));
            }
            self.early.insert(from, report);
            return Ok(());
        }
        if generation != current {
            return Err(Cause::Generation { theirs: generation, ours: current });
        }
        if self.reports.contains_key(&from) {
            return Err(Cause::Unexpected("it reports twice"));
        }
        self.reports.insert(from, report);
        match self.phase {
            Phase::Steady => self.begin(now),
            _ => self.conclude_if_all_reported(now),
        }
        Ok(())
    }

    /// Handles results from a peer that this rank lacks. The peer has this rank's report, so the trees have stopped
    /// here.
    pub(super) fn take_results(
        &mut self,
        now: Time,
        from: Rank,
        generation: u64,
        results: Results,
    ) -> Result<(), Cause> {
        if generation != self.generation {
            return Err(Cause::Generation { theirs: generation, ours: self.generation });
        }
        match self.phase {
            Phase::Reporting => {
                self.held.push((from, results));
                Ok(())
            }
            Phase::Serving => self.deliver(now, from, results),
            _ => Err(Cause::Unexpected("it serves results in no hand-over")),
        }
    }

    fn deliver(&mut self, now: Time, from: Rank, results: Results) -> Result<(), Cause> {
        if results.iter().any(|(g, _)| self.awaited.get(g) != Some(&from)) {
            return Err(Cause::Unexpected("it serves results that this rank does not lack"));
        }
        results.iter().for_each(|(g, _)| _ = self.awaited.remove(g));
        self.act(Action::Deliver(results));
        self.resume_if_served(now);
        Ok(())
    }

    /// With all reports: decides, and sends others the results that they lack.
    pub(super) fn conclude_if_all_reported(&mut self, now: Time) {
        if self.phase != Phase::Reporting || self.reports.len() < self.settings.size as usize {
            return;
        }
        let reports: Vec<Report<P>> = std::mem::take(&mut self.reports).into_values().collect();
        let (conclusion, serve) = match self.decide(&reports) {
            Ok(decision) => decision,
            Err(error) => return self.fail(error),
        };
        let own = self.settings.rank;
        let lacking = serve.iter().filter(|s| s.to.contains(&own));
        self.awaited = lacking.map(|s| (s.g, s.from)).collect();
        let submitted = match &reports[own.0 as usize].progress {
            Done::Fragments { submitted, .. } => *submitted,
            _ => 0,
        };
        if self.awaited.keys().any(|&g| g >= submitted) {
            return self.fail(HandoverError::PartialSums);
        }
        let ours: Vec<Serve> = serve.into_iter().filter(|s| s.from == own).collect();
        self.batches = ours.chunks(SERVE_BATCH).map(<[Serve]>::to_vec).collect();
        self.conclusion = Some(Box::new(conclusion));
        self.phase = Phase::Serving;
        self.fetch_next();
        for (from, results) in std::mem::take(&mut self.held) {
            if self.deliver(now, from, results).is_err() {
                // The sender reached another conclusion from the same reports.
                return self.fail(HandoverError::ReportsDiffer);
            }
        }
        self.resume_if_served(now);
    }

    fn fetch_next(&mut self) {
        if let Some(batch) = self.batches.front() {
            let fragments = batch.iter().map(|serve| serve.g).collect();
            self.act(Action::Fetch(fragments));
        }
    }

    /// The conclusion of all ranks from the same reports, by rank. Has no side effects.
    fn decide(&self, reports: &[Report<P>]) -> Result<(Conclusion<P>, Vec<Serve>), HandoverError> {
        let epoch = reports[0].epoch;
        if reports.iter().any(|r| r.epoch != epoch) {
            return Err(HandoverError::EpochsDiffer(reports.iter().map(|r| r.epoch).collect()));
        }
        let resolution = match progress_of(reports)? {
            None => None,
            Some(progress) if span_is_plausible(&progress) => Some(resolve(&progress)),
            Some(_) => return Err(HandoverError::ReportsDiffer),
        };
        let (finished, serve) = resolution
            .map(|r| (r.finished, r.serve))
            .map_or((None, Vec::new()), |(finished, serve)| (Some(finished), serve));
        let plan = newest_of(reports, epoch);
        // Trees are used for one epoch only: the next epoch numbers fragments anew.
        let on_trees = plan.as_ref().is_some_and(Plan::has_trees);
        let path = if on_trees { Path::Network } else { Path::Hosts };
        let plans = plan.as_ref().zip(self.plan.as_ref());
        let continues = plans.is_some_and(|(plan, before)| plan.continues(before));
        let rest = if continues { path } else { Path::Hosts };
        // Operations that some rank has begun on the host path, or continues there, stay there at all ranks.
        let cut = reports.iter().map(|r| r.issued).max().unwrap_or(0);
        let on_hosts = finished.is_none() || rest == Path::Hosts;
        let cut = if on_trees && on_hosts { cut } else { 0 };
        let mut silent: Vec<u8> = reports.iter().flat_map(|r| r.silent.iter().copied()).collect();
        silent.sort_unstable();
        silent.dedup();
        let (generation, since, reason) = (self.generation, self.since, String::new());
        let resume = Resume { generation, since, finished, plan, path, rest, silent, reason };
        Ok((Conclusion { resume, hosts_until: self.hosts_until.max(cut) }, serve))
    }

    /// Resumes when nothing is left to be fetched or awaited.
    fn resume_if_served(&mut self, now: Time) {
        let served = self.awaited.is_empty() && self.batches.is_empty();
        if self.phase != Phase::Serving || !served {
            return;
        }
        let Some(conclusion) = self.conclusion.take() else { return };
        let Conclusion { resume, hosts_until } = *conclusion;
        let silent = self.silent_trees();
        self.suspicions.clear();
        self.given_up.clear();
        match &resume.plan {
            Some(plan) => {
                if is_newer(plan, self.newest.as_ref().map(Plan::epoch)) {
                    self.newest = Some(plan.clone());
                }
                self.plan = Some(plan.clone());
            }
            None => self.given_up = resume.silent.iter().copied().collect(),
        }
        self.path = resume.path;
        self.hosts_until = hosts_until;
        self.phase = Phase::Steady;
        self.act(Action::Resume(Box::new(resume)));
        if self.silent_trees() != silent {
            self.act(Action::SilentTrees(self.silent_trees()));
        }
        for sequence in std::mem::take(&mut self.waiting).into_keys() {
            self.act(Action::Run { sequence, path: self.path_of(sequence) });
        }
        self.reports = std::mem::take(&mut self.early);
        if self.reports.is_empty() {
            self.begin_if_newer(now);
        } else {
            self.begin(now);
        }
    }
}

/// Progress by rank, if the old plan's trees were in use. Errors: ranks do not agree on that or on the number of trees.
fn progress_of<P>(reports: &[Report<P>]) -> Result<Option<Vec<Progress>>, HandoverError> {
    let progress = |report: &Report<P>| match &report.progress {
        Done::Fragments { progress, .. } => Some(progress.clone()),
        _ => None,
    };
    let progress: Vec<Option<Progress>> = reports.iter().map(progress).collect();
    let trees = |progress: &Option<Progress>| progress.as_ref().map(|p| p.trees.len());
    if progress.iter().any(|other| trees(other) != trees(&progress[0])) {
        return Err(HandoverError::ReportsDiffer);
    }
    Ok(progress.into_iter().collect())
}

/// The newest plan of any rank, if it is newer than the one in use. Searched in the order of ranks, so that all ranks
/// find the same one even if epochs are too far apart to be ordered.
fn newest_of<P: Plan>(reports: &[Report<P>], epoch: Option<Epoch>) -> Option<P> {
    let plans = reports.iter().filter_map(|report| report.newest.as_ref());
    let newest = plans.fold(None, |newest: Option<&P>, plan| match newest {
        Some(newest) if !is_newer(plan, Some(newest.epoch())) => Some(newest),
        _ => Some(plan),
    });
    newest.filter(|plan| is_newer(*plan, epoch)).cloned()
}

fn is_newer<P: Plan>(plan: &P, than: Option<Epoch>) -> bool {
    than.is_none_or(|than| epoch::compare(plan.epoch(), than) == Ordering::Greater)
}

/// Number of results fetched and sent at a time: 4 MiB of the usual size.
const SERVE_BATCH: usize = 2048;
