//! Drives the machine that hands the ranks over from one plan to the next ([`netsum_proto::handover`]).

use std::time::{Duration, Instant};

use netsum_proto::Time;
use netsum_proto::handover::{Action, Frozen, HandoverError, Path, Piece, Plan, Ranges, Resume};
use netsum_topo::links::TreePlan;
use netsum_wire::{Epoch, Rank};

use super::ranges::bytes_of;
use super::{Running, State};
use crate::Error;
use crate::comm::Comm;
use crate::messages::{ControlMessage, MessageKind};
use crate::planned::{LostLink, PlannedError, PlannedGroup, source};
use crate::status::Pause;

/// A tree plan in the form required by the machine.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LedPlan(pub(super) TreePlan);

impl Plan for LedPlan {
    fn epoch(&self) -> Epoch {
        // Plans of rank 0 are never compared.
        Epoch(0)
    }

    fn has_trees(&self) -> bool {
        true
    }

    fn continues(&self, _: &LedPlan) -> bool {
        true
    }

    fn patience_ns(&self) -> u64 {
        0
    }

    fn encode(&self, out: &mut Vec<u8>) {
        serde_json::to_writer(out, &self.0).expect("plain values");
    }

    fn decode(bytes: &[u8], size: u32) -> Result<LedPlan, String> {
        let plan = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        source::check(&plan, size)?;
        Ok(LedPlan(plan))
    }
}

impl State {
    pub(super) fn now(&self) -> Time {
        self.time_of(Instant::now())
    }

    /// Converts an instant to the machine's time.
    pub(super) fn time_of(&self, instant: Instant) -> Time {
        let ns = instant.saturating_duration_since(self.origin).as_nanos();
        Time(u64::try_from(ns).unwrap_or(u64::MAX))
    }

    /// Handles another rank's message.
    pub(super) fn on_message(&mut self, message: &ControlMessage) -> Result<(), Error> {
        if self.core.failure().is_some() {
            return Ok(());
        }
        let (now, from) = (self.now(), Rank(message.from));
        let taken = self.machine.get_mut().handle_message(now, from, &message.bytes);
        taken.map_err(|error| Error::Internal(error.to_string()))?;
        self.drive()
    }

    /// Requests a new plan: the plan's path does not work, or rank 0 has another plan.
    pub(super) fn request_plan(&mut self, reason: &str) -> Result<(), Error> {
        let (now, faults) = (self.now(), encode(&self.certainly_lost()));
        if self.core.rank == 0 {
            self.remember(&faults);
        }
        self.machine.get_mut().request_plan(now, reason, faults);
        self.drive()
    }

    /// Performs the machine's actions until there are none.
    pub(super) fn drive(&mut self) -> Result<(), Error> {
        loop {
            send_queued(&self.core, self.machine.get_mut());
            let Some(action) = self.machine.get_mut().poll_action() else { return Ok(()) };
            self.act(action)?;
        }
    }

    fn act(&mut self, action: Action<LedPlan>) -> Result<(), Error> {
        match action {
            Action::Freeze => self.freeze(),
            Action::Faults { faults, .. } => self.remember(&faults),
            Action::Plan { reason } => self.plan_anew(&reason),
            Action::Exchange { pieces, finals } => self.exchange(&pieces, finals)?,
            Action::Resume(resume) => self.resume(*resume)?,
            Action::Run { path, .. } => {
                self.running = match path {
                    Path::Network => Running::Network,
                    Path::Hosts => Running::Hosts,
                };
            }
            Action::Over { .. } => {
                if let Some(progress) = &mut self.progress {
                    progress.over = true;
                }
            }
            Action::Fail(error) => return Err(self.cannot_go_on(&error)),
            // Actions only for groups with a controller.
            Action::Fetch(_) | Action::Deliver(_) | Action::SilentTrees(_) => {}
        }
        Ok(())
    }

    /// Stops the plan's path and reports this rank's progress.
    fn freeze(&mut self) {
        let faults = encode(&self.certainly_lost());
        if let Some(group) = self.group.take() {
            group.abandon();
        }
        self.running = Running::No;
        let finals = self.progress.as_ref().map(|progress| progress.finals.clone());
        let finals = finals.unwrap_or_default();
        let now = self.now();
        self.machine.get_mut().handle_frozen(now, Frozen::Elements { finals, faults });
    }

    /// Rank 0: computes a plan for the remaining network.
    fn plan_anew(&mut self, reason: &str) {
        let found = match (self.brought.take(), &self.plan) {
            (Some(plan), _) => Ok(plan),
            // No link is known to be lost: use the same links again.
            (None, Some(plan)) if self.lost.is_empty() => Ok(plan.clone()),
            (None, _) => self.replan(),
        };
        let (plan, reason) = match found {
            Ok(plan) => {
                let reason = self.explain(reason, &plan);
                (Some(plan), reason)
            }
            Err(problem) => (None, format!("{reason}; sums go over the hosts: {problem}")),
        };
        self.plan.clone_from(&plan);
        let now = self.now();
        self.machine.get_mut().handle_planned(now, plan.map(LedPlan), reason);
    }

    fn replan(&self) -> Result<TreePlan, String> {
        let plan = self.source.replanned(&self.lost, self.core.size)?;
        source::check(&plan, self.core.size)?;
        Ok(plan)
    }

    /// Sends elements that other ranks lack, and receives those that this rank lacks.
    fn exchange(&mut self, pieces: &[Piece], finals: Ranges) -> Result<(), Error> {
        let Some(progress) = &mut self.progress else { return Ok(()) };
        let element = progress.element();
        let job = &mut progress.job;
        let mut comm = Comm::new(&self.core, job.sequence, job.fingerprint, job.deadline);
        let epoch = self.machine.get_mut().generation() << 32;
        for piece in pieces {
            let place = bytes_of(&piece.elements, element);
            let (at, bytes) = (place.start, place.len());
            let part = epoch + u64::from(piece.number);
            if piece.from.0 == self.core.rank {
                comm.send(piece.to.0, part, &job.buffer, at, bytes);
            } else {
                comm.receive(piece.from.0, part, &mut job.buffer, at, bytes);
            }
        }
        if let Err(error) = comm.finish() {
            let missing = comm.missing();
            comm.end();
            let (operation, elapsed) = (job.work.operation(), job.work.elapsed());
            return Err(self.core.explain(error, &operation, elapsed, &missing));
        }
        drop(comm);
        progress.finals = finals;
        let now = self.now();
        self.machine.get_mut().handle_exchanged(now);
        Ok(())
    }

    /// Starts an epoch: connects the plan's links.
    fn resume(&mut self, resume: Resume<LedPlan>) -> Result<(), Error> {
        let Resume { generation: epoch, since, plan, reason, .. } = resume;
        if let Some(LedPlan(plan)) = &plan {
            match self.connect(plan, epoch) {
                Ok(group) => self.group = Some(Box::new(group)),
                Err(PlannedError::Unreachable { link, address, reason, dead, .. }) => {
                    return self.not_connected(link, &address, reason, dead);
                }
                Err(error) => return Err(Error::Internal(error.to_string())),
            }
            self.machine.get_mut().handle_opened(epoch);
        }
        tracing::warn!(epoch, reason, "another plan");
        let mut status = self.status.lock();
        status.planned(epoch, plan.as_ref().map(|plan| &plan.0), &reason);
        let since = self.origin + Duration::from_nanos(since.0);
        status.pauses.push(Pause::since(since, reason));
        Ok(())
    }

    fn connect(&self, plan: &TreePlan, epoch: u64) -> Result<PlannedGroup, PlannedError> {
        let mut patience = self.patience;
        patience.connect = patience.connect.min(2 * patience.silence);
        patience.measure = false;
        let rank = self.core.rank as usize;
        PlannedGroup::connect(plan, rank, &self.ports, &self.peers, epoch, patience)
    }

    fn not_connected(
        &mut self,
        link: Vec<String>,
        address: &str,
        reason: String,
        dead: bool,
    ) -> Result<(), Error> {
        tracing::warn!(link = link.join("–"), address, reason, "a link does not connect");
        let lost: Vec<LostLink> = dead.then_some(LostLink { link, reason }).into_iter().collect();
        let words: Vec<String> = lost.iter().map(LostLink::to_string).collect();
        let words = match words.as_slice() {
            [] => "links of the new plan do not connect".to_owned(),
            words => words.join(", "),
        };
        let (now, faults) = (self.now(), encode(&lost));
        if self.core.rank == 0 {
            self.remember(&faults);
        }
        self.machine.get_mut().request_plan(now, &words, faults);
        Ok(())
    }

    /// Describes the losses and the rate of the new plan.
    fn explain(&self, reason: &str, plan: &TreePlan) -> String {
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

    fn remember(&mut self, faults: &[Vec<u8>]) {
        for fault in faults {
            let Ok(lost) = serde_json::from_slice::<LostLink>(fault) else {
                tracing::warn!("a lost link cannot be read");
                continue;
            };
            let mut turned = lost.link.clone();
            turned.reverse();
            let known = |other: &LostLink| other.link == lost.link || other.link == turned;
            if !self.lost.iter().any(known) {
                self.lost.push(lost);
            }
        }
    }

    fn certainly_lost(&self) -> Vec<LostLink> {
        self.group.as_ref().map(|group| group.lost()).unwrap_or_default()
    }

    fn cannot_go_on(&self, error: &HandoverError) -> Error {
        let HandoverError::Timeout { missing, .. } = error else {
            return Error::Internal(error.to_string());
        };
        let ranks: Vec<u32> = missing.iter().map(|rank| rank.0).collect();
        let missing = self.core.not_heard_from(&ranks);
        match &self.progress {
            Some(progress) => {
                let work = &progress.job.work;
                let missing = format!("the plan was changing; {missing}");
                Error::Timeout { operation: work.operation(), elapsed: work.elapsed(), missing }
            }
            None => {
                let reason = format!("{error}: {missing}");
                Error::Connect { group: self.core.name.clone(), reason }
            }
        }
    }
}

fn encode(lost: &[LostLink]) -> Vec<Vec<u8>> {
    lost.iter().map(|lost| serde_json::to_vec(lost).expect("plain values")).collect()
}

/// Sends the machine's messages to other ranks.
pub(super) fn send_queued(
    core: &crate::core::Core,
    machine: &mut netsum_proto::handover::Handover<LedPlan>,
) {
    while let Some(transmit) = machine.poll_transmit() {
        core.send(transmit.to.0, MessageKind::PlanHandover, 0, transmit.bytes);
    }
}
