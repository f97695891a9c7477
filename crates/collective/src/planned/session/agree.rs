//! From one plan to the next: who stops, what is finished where, what comes then.

use std::time::Instant;

use netsum_topo::links::TreePlan;

use super::ranges::{self, Ranges};
use super::word::{Control, Frozen, Go, Word};
use super::{Path, Progress, State, TICK};
use crate::Error;
use crate::comm::Comm;
use crate::core::{About, deadline};
use crate::planned::{LostLink, PlannedError, PlannedGroup, source};
use crate::status::Pause;

impl State {
    /// Takes a word that came; `progress`: the operation that is under way.
    pub(super) fn hear(
        &mut self,
        control: Control,
        progress: Option<&mut Progress<'_>>,
    ) -> Result<(), Error> {
        let Control { from, epoch, .. } = control;
        let Some(word) = control.word() else { return Ok(()) };
        match word {
            Word::Suspect { lost, reason } if self.leads() && epoch == self.epoch => {
                self.remember(lost);
                self.lead(progress, None, &format!("rank {from}: {reason}"))
            }
            Word::Freeze if from == 0 && epoch > self.epoch => self.follow(epoch, progress),
            Word::OnHosts { sequence } if from == 0 && epoch == self.epoch => {
                self.on_hosts = Some(sequence);
                Ok(())
            }
            // Of an epoch that is over.
            _ => Ok(()),
        }
    }

    /// A lane of ours does not work.
    pub(super) fn suspect(
        &mut self,
        progress: &mut Progress<'_>,
        reason: &str,
    ) -> Result<(), Error> {
        let lost = self.certainly_lost();
        if self.leads() {
            self.remember(lost);
            return self.lead(Some(progress), None, reason);
        }
        self.tell(0, self.epoch, &Word::Suspect { lost, reason: reason.to_owned() });
        let control = self.next_word(progress.job.deadline, "rank 0 to bring another plan")?;
        self.hear(control, Some(progress))
    }

    /// Leads all ranks to the next epoch. `brought`: the operator's plan.
    pub(super) fn lead(
        &mut self,
        mut progress: Option<&mut Progress<'_>>,
        brought: Option<TreePlan>,
        reason: &str,
    ) -> Result<(), Error> {
        let begun = Instant::now();
        let until = self.until(progress.as_deref());
        let (mut epoch, mut reason) = (self.epoch, reason.to_owned());
        let by_operator = brought.is_some();
        if by_operator {
            self.lost.clear();
        }
        let mut next = brought;
        loop {
            epoch += 1;
            self.tell_all_of(epoch, &Word::Freeze);
            let known = self.lost.len();
            let mut reports = vec![self.freeze(progress.as_deref())];
            reports.extend(self.collect(epoch, until)?);
            for report in &mut reports {
                self.remember(std::mem::take(&mut report.lost));
            }
            let others = match next.take() {
                Some(plan) => Ok(plan),
                None if self.lost.len() > known || self.plan.is_none() || !self.lost.is_empty() => {
                    self.replan()
                }
                // Nothing is known to be lost: the same links again.
                None => self.plan.clone().ok_or_else(|| "there is no plan".to_owned()),
            };
            let (plan, words) = match others {
                Ok(plan) => {
                    let words = self.words(&reason, &plan);
                    (Some(plan), words)
                }
                Err(problem) => (None, format!("{reason}; sums go over the hosts: {problem}")),
            };
            let go = conclude(&reports, plan.clone(), words);
            self.tell_all_of(epoch, &Word::Go(go.clone()));
            self.plan = plan;
            match self.arrive(epoch, &go, progress.as_deref_mut(), begun)? {
                None => return Ok(()),
                Some(lost) => {
                    reason = lost.iter().map(LostLink::to_string).collect::<Vec<_>>().join(", ");
                    self.remember(lost);
                }
            }
            if Instant::now() >= until {
                return Err(Error::Connect { group: self.core.name.clone(), reason });
            }
        }
    }

    /// Goes along to the next epoch.
    fn follow(
        &mut self,
        mut epoch: u64,
        mut progress: Option<&mut Progress<'_>>,
    ) -> Result<(), Error> {
        let begun = Instant::now();
        let until = self.until(progress.as_deref());
        let frozen = self.freeze(progress.as_deref());
        self.tell(0, epoch, &Word::Frozen(frozen));
        loop {
            let control = self.next_word(until, "rank 0 to bring another plan")?;
            if control.from != 0 || control.epoch < epoch {
                continue;
            }
            match control.word() {
                Some(Word::Freeze) if control.epoch > epoch => {
                    epoch = control.epoch;
                    let frozen = self.freeze(progress.as_deref());
                    self.tell(0, epoch, &Word::Frozen(frozen));
                }
                Some(Word::Go(go)) if control.epoch == epoch => {
                    match self.arrive(epoch, &go, progress.as_deref_mut(), begun)? {
                        None => return Ok(()),
                        Some(lost) => {
                            let reason = "lanes of the new plan do not connect".to_owned();
                            self.tell(0, epoch, &Word::Suspect { lost, reason });
                        }
                    }
                }
                _ => {}
            }
        }
    }

    /// Leaves the old epoch; how far we are.
    fn freeze(&mut self, progress: Option<&Progress<'_>>) -> Frozen {
        let lost = self.certainly_lost();
        if let Path::Plan(group) = std::mem::replace(&mut self.path, Path::Frozen) {
            group.abandon();
        }
        Frozen {
            sequence: progress.map(|progress| progress.job.sequence),
            finals: progress.map(|progress| progress.finals.clone()).unwrap_or_default(),
            over: self.over,
            lost,
        }
    }

    /// Everybody else's report for `epoch`, by rank from 1.
    fn collect(&mut self, epoch: u64, until: Instant) -> Result<Vec<Frozen>, Error> {
        let mut reports: Vec<Option<Frozen>> = (1..self.core.size).map(|_| None).collect();
        while reports.iter().any(Option::is_none) {
            let missing = (1..self.core.size).filter(|&rank| reports[rank as usize - 1].is_none());
            let missing = self.core.not_heard_from(&missing.collect::<Vec<_>>());
            let control = self.next_word(until, &format!("all ranks to stop: {missing}"))?;
            match control.word() {
                Some(Word::Frozen(frozen)) if control.epoch == epoch && control.from > 0 => {
                    reports[control.from as usize - 1] = Some(frozen);
                }
                Some(Word::Suspect { lost, .. }) => self.remember(lost),
                _ => {}
            }
        }
        Ok(reports.into_iter().flatten().collect())
    }

    /// Enters an epoch: hands out finished elements, connects the plan's lanes. Returns links that do not connect.
    fn arrive(
        &mut self,
        epoch: u64,
        go: &Go,
        progress: Option<&mut Progress<'_>>,
        begun: Instant,
    ) -> Result<Option<Vec<LostLink>>, Error> {
        self.epoch = epoch;
        if let Some(progress) = progress {
            if progress.job.sequence < go.over {
                progress.over = true;
            } else if go.sequence == Some(progress.job.sequence) {
                self.hand_over(epoch, go, progress)?;
            }
        }
        self.path = match &go.plan {
            None => Path::Hosts,
            Some(plan) => match self.connect(plan, epoch) {
                Ok(group) => Path::Plan(Box::new(group)),
                Err(PlannedError::Unreachable { link, address, reason, dead, .. }) => {
                    tracing::warn!(
                        link = link.join("–"),
                        address,
                        reason,
                        "a lane does not connect"
                    );
                    let lost = dead.then_some(LostLink { link, reason });
                    return Ok(Some(lost.into_iter().collect()));
                }
                Err(error) => return Err(Error::Internal(error.to_string())),
            },
        };
        tracing::warn!(epoch, reason = go.reason, "another plan");
        let mut status = self.status.lock();
        status.planned(epoch, go.plan.as_ref(), &go.reason);
        status.pauses.push(Pause::since(begun, go.reason.clone()));
        Ok(None)
    }

    fn connect(&self, plan: &TreePlan, epoch: u64) -> Result<PlannedGroup, PlannedError> {
        source::check(plan, self.core.size).map_err(PlannedError::Plan)?;
        let mut patience = self.patience;
        patience.connect = patience.connect.min(2 * patience.silence);
        patience.measure = false;
        let rank = self.core.rank as usize;
        PlannedGroup::connect(plan, rank, &self.ports, &self.peers, epoch, patience)
    }

    /// Everybody gets what is finished anywhere: from the lowest rank that has it.
    fn hand_over(&mut self, epoch: u64, go: &Go, progress: &mut Progress<'_>) -> Result<(), Error> {
        let len = progress.numel();
        let sane = go.finals.len() == self.core.size as usize
            && go.finals.iter().all(|finals| ranges::are_sane(finals, len));
        if !sane {
            return Err(Error::Internal("rank 0 told of elements that are not".to_owned()));
        }
        let (job, element) = (progress.job, progress.element());
        let mut comm = Comm::new(&self.core, job.sequence, job.fingerprint, job.deadline);
        let mut outcome = Ok(());
        let mut done: Ranges = Vec::new();
        let mut part = epoch << 32;
        for (holder, finals) in go.finals.iter().enumerate() {
            // What lower ranks have is theirs to send.
            let theirs = ranges::common(finals, &ranges::without(len, &done));
            for (rank, has) in go.finals.iter().enumerate() {
                for piece in ranges::common(&theirs, &ranges::without(len, has)) {
                    let (at, bytes) = (piece.start * element, piece.len() * element);
                    if holder == self.core.rank as usize {
                        comm.send(rank as u32, part, &job.buffer, at, bytes);
                    } else if rank == self.core.rank as usize {
                        comm.receive(holder as u32, part, &job.buffer, at, bytes);
                    }
                    part += 1;
                }
            }
            done = ranges::union(&done, finals);
        }
        outcome = outcome.and_then(|()| comm.finish());
        outcome.map_err(|error| {
            let missing = comm.missing();
            comm.end();
            self.core.explain(error, &job.work.operation(), job.work.elapsed(), &missing)
        })?;
        progress.finals = done;
        Ok(())
    }

    fn replan(&self) -> Result<TreePlan, String> {
        let plan = self.source.replanned(&self.lost, self.core.size)?;
        source::check(&plan, self.core.size)?;
        Ok(plan)
    }

    /// What was lost, and what the new plan reaches.
    fn words(&self, reason: &str, plan: &TreePlan) -> String {
        let rate = |plan: &TreePlan| plan.rate_bps.to_f64() / 8e9;
        let lost: Vec<String> = self.lost.iter().map(LostLink::to_string).collect();
        let lost =
            if lost.is_empty() { String::new() } else { format!("; lost: {}", lost.join(", ")) };
        match &self.plan {
            Some(old) => {
                let (new, old) = (rate(plan), rate(old));
                format!("{reason}{lost}; {new:.3} GB/s in place of {old:.3} GB/s")
            }
            None => format!("{reason}{lost}; {:.3} GB/s", rate(plan)),
        }
    }

    fn remember(&mut self, lost: Vec<LostLink>) {
        for link in lost {
            let mut turned = link.link.clone();
            turned.reverse();
            let known = |other: &LostLink| other.link == link.link || other.link == turned;
            if !self.lost.iter().any(known) {
                self.lost.push(link);
            }
        }
    }

    fn certainly_lost(&self) -> Vec<LostLink> {
        match &self.path {
            Path::Plan(group) => group.lost(),
            Path::Hosts | Path::Frozen => Vec::new(),
        }
    }

    fn until(&self, progress: Option<&Progress<'_>>) -> Instant {
        progress.map_or_else(|| deadline(self.patience.timeout), |progress| progress.job.deadline)
    }

    /// The next word of anybody. Errors: the group's failure, or that nobody spoke by then.
    pub(super) fn next_word(&self, until: Instant, awaited: &str) -> Result<Control, Error> {
        loop {
            if let Ok(control) = self.controls.recv_timeout(TICK) {
                return Ok(control);
            }
            self.core.failure().map_or(Ok(()), Err)?;
            if Instant::now() >= until {
                let reason = format!("waited too long for {awaited}");
                return Err(Error::Connect { group: self.core.name.clone(), reason });
            }
        }
    }

    pub(super) fn tell_all(&self, word: &Word) {
        self.tell_all_of(self.epoch, word);
    }

    fn tell_all_of(&self, epoch: u64, word: &Word) {
        self.core.tell_all(About::Plan, epoch, &encode(word));
    }

    fn tell(&self, to: u32, epoch: u64, word: &Word) {
        self.core.tell(to, About::Plan, epoch, encode(word));
    }
}

/// What follows from everybody's reports, by rank.
fn conclude(reports: &[Frozen], plan: Option<TreePlan>, reason: String) -> Go {
    let over = reports.iter().map(|report| report.over).max().unwrap_or(0);
    // Where an operation is over at one rank, others may still be in it; the next one has begun nowhere then.
    let sequence = reports.iter().filter_map(|report| report.sequence).max();
    let finals = |report: &Frozen| match report.sequence == sequence {
        true => report.finals.clone(),
        false => Vec::new(),
    };
    let finals = reports.iter().map(finals).collect();
    Go { plan, reason, over, sequence, finals }
}

fn encode(word: &Word) -> Vec<u8> {
    serde_json::to_vec(word).expect("plain values")
}

impl Control {
    /// What it says; `None`, with a warning, if it cannot be read.
    fn word(&self) -> Option<Word> {
        let word = serde_json::from_slice(&self.bytes);
        word.inspect_err(|error| tracing::warn!(from = self.from, %error, "a word about plans"))
            .ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(sequence: Option<u64>, finals: Ranges, over: u64) -> Frozen {
        Frozen { sequence, finals, over, lost: Vec::new() }
    }

    #[test]
    fn an_operation_that_is_over_somewhere_is_over() {
        // Rank 1 has been told that operation 4 is complete and has begun 7; rank 0 has not been told.
        let reports = [report(Some(4), vec![0..6, 7..10], 4), report(Some(7), vec![], 5)];
        let go = conclude(&reports, None, String::new());
        assert_eq!((go.over, go.sequence), (5, Some(7)));
        assert_eq!(go.finals, [vec![], vec![]]);
    }

    #[test]
    fn what_is_finished_is_known_by_rank() {
        let reports = [report(Some(4), vec![0..6, 7..10], 4), report(Some(4), vec![0..5, 7..9], 4)];
        let go = conclude(&reports, None, String::new());
        assert_eq!((go.over, go.sequence), (4, Some(4)));
        assert_eq!(go.finals, [vec![0..6, 7..10], vec![0..5, 7..9]]);
    }
}
