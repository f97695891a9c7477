//! Led mode: rank 0 stops all ranks, collects their progress, and decides how to continue.

use netsum_wire::Rank;

use super::elements::{Ranges, are_sane, pieces, union};
use super::machine::{Conclusion, Handover, Phase};
use super::message::{Body, Done, Go, Report};
use super::{Action, Cause, HandoverError, Mode, Path, PendingOperation, Piece, Plan, Resume};
use crate::Time;

/// State that only the led mode has.
#[derive(Clone, Debug, Default)]
pub(super) struct Led {
    /// The current operation.
    current: Option<PendingOperation>,
    /// Whether it runs on the host path, where it is not stopped: a hand-over then waits for its end.
    runs_on_hosts: bool,
    /// One more than the last operation that is complete here.
    pub(super) over: u64,
    /// The last operation that rank 0 put on the host path.
    on_hosts: Option<u64>,
    /// Rank 0: the reason for the hand-over.
    reason: String,
    /// Rank 0: the reason for a further hand-over, if one is wanted.
    asked: Option<String>,
    /// Other ranks: the generation of a further hand-over that has begun.
    next: Option<u64>,
    /// Ranks that send elements to this one.
    pub(super) senders: Vec<Rank>,
}

impl<P: Plan> Handover<P> {
    /// The path in use does not work, or rank 0 has another plan: `faults` are known to be broken, in the driver's own
    /// format. Rank 0 starts a hand-over to the next plan; any other rank asks rank 0 to. Has no effect during a
    /// hand-over whose path is not being opened: faults are then reported in the answer to the freeze.
    pub fn request_plan(&mut self, now: Time, reason: &str, faults: Vec<Vec<u8>>) {
        let free = matches!(self.phase, Phase::Steady | Phase::Opening);
        if self.settings.mode != Mode::Led || !free {
            return;
        }
        if self.leader().is_none() {
            return self.lead_when_free(now, reason.to_owned());
        }
        self.pause(now, now);
        self.hold();
        self.phase = Phase::Asking;
        self.send(&[Rank(0)], Body::Suspect { reason: reason.to_owned(), faults });
    }

    /// The driver's answer to [`Action::Plan`]: the plan, or `None` if sums must use the host path; and the reason.
    pub fn handle_planned(&mut self, now: Time, plan: Option<P>, reason: String) {
        if self.phase != Phase::Planning {
            return;
        }
        let reports = std::mem::take(&mut self.reports);
        let over = reports.values().map(|report| report.over).max().unwrap_or(0);
        let progress = reports.into_values().map(|report| report.progress).collect();
        let go = Go { plan, reason, over, progress };
        let others: Vec<Rank> = self.settings.others().collect();
        self.send(&others, Body::Go(go.clone()));
        self.follow(now, go);
    }

    /// The driver has exchanged all pieces of [`Action::Exchange`].
    pub fn handle_exchanged(&mut self, now: Time) {
        if self.settings.mode == Mode::Led && self.phase == Phase::Serving {
            self.led.senders.clear();
            self.go_on(now);
        }
    }

    /// The driver has connected the path of [`Resume`] `generation`.
    pub fn handle_opened(&mut self, generation: u64) {
        if self.phase == Phase::Opening && generation == self.generation {
            self.phase = Phase::Steady;
            self.route();
        }
    }

    /// Led: an operation is complete here, with all its results.
    pub fn handle_over(&mut self, now: Time, sequence: u64) {
        if self.led.current.is_none_or(|current| current.sequence != sequence) {
            return;
        }
        self.end_operation(sequence);
        if self.phase != Phase::Steady {
            return;
        }
        if let Some(reason) = self.led.asked.take() {
            self.lead(now, reason);
        } else if let Some(generation) = self.led.next.take() {
            self.join(now, generation);
        }
    }

    /// The rank that leads this one; `None` if there is none.
    pub(super) fn leader(&self) -> Option<Rank> {
        let led = self.settings.mode == Mode::Led && self.settings.rank != Rank(0);
        led.then_some(Rank(0))
    }

    pub(super) fn begin_operation(&mut self, operation: PendingOperation) {
        self.led.current = Some(operation);
        self.hold();
        self.route();
    }

    /// State of the current operation after a freeze.
    pub(super) fn elements_done(&self, finals: Ranges) -> Done {
        let current = self.led.current;
        current
            .map_or(Done::Nothing, |current| Done::Elements { operation: current.sequence, finals })
    }

    pub(super) fn take_led(
        &mut self,
        now: Time,
        from: Rank,
        generation: u64,
        body: Body<P>,
    ) -> Result<(), Cause> {
        let ours = self.generation;
        let differs = Cause::Generation { theirs: generation, ours };
        let leads = self.leader().is_none();
        match body {
            Body::Suspect { reason, faults } if leads && generation <= ours => {
                self.note(from, faults);
                let reason = format!("rank {}: {reason}", from.0);
                match self.phase {
                    // A request for an earlier plan was answered by this one.
                    _ if generation < ours => {}
                    Phase::Steady | Phase::Opening => self.lead_when_free(now, reason),
                    Phase::Serving => self.led.asked = Some(reason),
                    _ => {}
                }
                Ok(())
            }
            Body::Report(report) if leads => {
                let expected = matches!(self.phase, Phase::Freezing | Phase::Reporting);
                if !expected || generation != ours {
                    return Err(differs);
                }
                self.collect(from, report)
            }
            Body::Freeze if from == Rank(0) && !leads => {
                if generation <= ours || matches!(self.phase, Phase::Freezing | Phase::Reporting) {
                    return Err(differs);
                }
                if self.led.runs_on_hosts || self.phase == Phase::Serving {
                    self.led.next = Some(generation);
                } else {
                    self.join(now, generation);
                }
                Ok(())
            }
            Body::Go(go) if from == Rank(0) && !leads => {
                if generation != ours || self.phase != Phase::Reporting {
                    return Err(differs);
                }
                self.follow(now, go);
                Ok(())
            }
            Body::OnHosts { operation } if from == Rank(0) && !leads => {
                if generation != ours {
                    return Err(differs);
                }
                self.led.on_hosts = Some(operation);
                self.route();
                Ok(())
            }
            Body::Suspect { .. } if leads => Err(differs),
            Body::Results(_) => Err(Cause::Unexpected("results are not sent as messages here")),
            _ => Err(Cause::Unexpected("it is for rank 0 to send or to take")),
        }
    }

    fn collect(&mut self, from: Rank, mut report: Report<P>) -> Result<(), Cause> {
        if self.reports.contains_key(&from) {
            return Err(Cause::Unexpected("it reports twice"));
        }
        self.note(from, std::mem::take(&mut report.faults));
        self.reports.insert(from, report);
        self.plan_if_all_reported();
        Ok(())
    }

    pub(super) fn plan_if_all_reported(&mut self) {
        let all = self.reports.len() == self.settings.size as usize;
        if self.leader().is_none() && self.phase == Phase::Reporting && all {
            self.phase = Phase::Planning;
            let own = self.reports.get_mut(&self.settings.rank);
            let faults = own.map(|own| std::mem::take(&mut own.faults)).unwrap_or_default();
            self.note(self.settings.rank, faults);
            self.act(Action::Plan { reason: self.led.reason.clone() });
        }
    }

    fn note(&mut self, from: Rank, faults: Vec<Vec<u8>>) {
        if !faults.is_empty() {
            self.act(Action::Faults { from, faults });
        }
    }

    fn lead_when_free(&mut self, now: Time, reason: String) {
        if self.led.runs_on_hosts {
            self.led.asked = Some(reason);
        } else {
            self.lead(now, reason);
        }
    }

    /// Rank 0 begins the next hand-over.
    fn lead(&mut self, now: Time, reason: String) {
        self.led.reason = reason;
        self.join(now, self.generation + 1);
        let others: Vec<Rank> = self.settings.others().collect();
        self.send(&others, Body::Freeze);
    }

    fn join(&mut self, now: Time, generation: u64) {
        self.pause(now, now);
        self.hold();
        self.generation = generation;
        self.reports.clear();
        self.phase = Phase::Freezing;
        self.act(Action::Freeze);
    }

    /// Makes the current operation wait for a path.
    fn hold(&mut self) {
        if let Some(current) = self.led.current {
            self.waiting.insert(current.sequence, current.deadline);
        }
    }

    /// Follows rank 0's decision, at all ranks.
    fn follow(&mut self, now: Time, go: Go<P>) {
        let Go { plan, reason, over, progress } = go;
        let path = if plan.is_some() { Path::Network } else { Path::Hosts };
        let (generation, since) = (self.generation, self.since);
        let (finished, silent) = (None, Vec::new());
        let resume = Resume { generation, since, finished, plan, path, rest: path, silent, reason };
        self.conclusion = Some(Box::new(Conclusion { resume, hosts_until: 0 }));
        self.phase = Phase::Serving;
        let exchange = match self.led.current {
            Some(current) if current.sequence < over => {
                // The operation is complete at some rank, so all its results are at all ranks.
                self.end_operation(current.sequence);
                self.act(Action::Over { sequence: current.sequence });
                None
            }
            Some(current) => match self.exchange(current, progress) {
                Ok(exchange) => exchange,
                Err(error) => return self.fail(error),
            },
            None => None,
        };
        match exchange {
            Some((pieces, finals)) => self.act(Action::Exchange { pieces, finals }),
            None => self.go_on(now),
        }
    }

    /// What this rank exchanges for its operation, and which elements it has afterwards.
    fn exchange(
        &mut self,
        current: PendingOperation,
        progress: Vec<Done>,
    ) -> Result<Option<(Vec<Piece>, Ranges)>, HandoverError> {
        // If an operation is complete at one rank, others may still be in it; then no rank has begun the next one. So
        // all ranks that are in an incomplete operation are in the same one.
        let finals_of = |done: Done| match done {
            Done::Elements { operation, finals } if operation == current.sequence => finals,
            _ => Vec::new(),
        };
        let finals: Vec<Ranges> = progress.into_iter().map(finals_of).collect();
        if !finals.iter().all(|finals| are_sane(finals, current.elements)) {
            return Err(HandoverError::Elements);
        }
        let all = finals.iter().fold(Vec::new(), |all, finals| union(&all, finals));
        if all.is_empty() {
            return Ok(None);
        }
        let own = self.settings.rank;
        let mine = |piece: &Piece| piece.from == own || piece.to == own;
        let pieces: Vec<Piece> =
            pieces(&finals, current.elements).into_iter().filter(mine).collect();
        let senders = pieces.iter().filter(|piece| piece.to == own);
        self.led.senders = senders.map(|piece| piece.from).collect();
        self.led.senders.sort_unstable();
        self.led.senders.dedup();
        Ok(Some((pieces, all)))
    }

    /// After the exchange: opens the new path, or starts the next hand-over if one is pending.
    fn go_on(&mut self, now: Time) {
        let Some(conclusion) = self.conclusion.take() else { return };
        if let Some(reason) = self.led.asked.take() {
            return self.lead(now, reason);
        }
        if let Some(generation) = self.led.next.take() {
            return self.join(now, generation);
        }
        self.path = conclusion.resume.path;
        self.phase = match self.path {
            Path::Network => Phase::Opening,
            Path::Hosts => Phase::Steady,
        };
        self.act(Action::Resume(Box::new(conclusion.resume)));
        self.route();
    }

    /// Runs the current operation on its path.
    fn route(&mut self) {
        let Some(PendingOperation { sequence, .. }) = self.led.current else { return };
        if self.phase != Phase::Steady || !self.waiting.contains_key(&sequence) {
            return;
        }
        if self.path == Path::Hosts {
            if self.leader().is_none() {
                let others: Vec<Rank> = self.settings.others().collect();
                self.send(&others, Body::OnHosts { operation: sequence });
            } else if self.led.on_hosts.is_none_or(|last| last < sequence) {
                return;
            }
            self.led.runs_on_hosts = true;
        }
        self.waiting.remove(&sequence);
        self.act(Action::Run { sequence, path: self.path });
    }

    fn end_operation(&mut self, sequence: u64) {
        self.led.current = None;
        self.led.runs_on_hosts = false;
        self.led.over = self.led.over.max(sequence + 1);
        self.waiting.remove(&sequence);
    }
}
