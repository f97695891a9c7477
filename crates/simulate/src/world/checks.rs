//! The invariant checks, and the faults that excuse a job which ends in an error.

use std::collections::BTreeMap;

use netsum_control::decide::Phase;
use netsum_control::pb;
use netsum_control::pb::switch_command::Command;
use netsum_control::pb::worker_event::Event as Message;
use netsum_proto::handover::Path;

use super::clock::{MS, Nanos, SECOND};
use super::ranks::Failure;
use super::streams::StreamId;
use super::{Event, Place, World};
use crate::fault::{Fault, Kind, Process};
use crate::report::Class;

/// Numbers and leases that must be unique.
#[derive(Default)]
pub(super) struct Checks {
    /// Job index in the scenario, by store incarnation and job number.
    numbers: BTreeMap<(u64, u32), usize>,
    /// Plans, by incarnation, job and epoch.
    plans: BTreeMap<(u64, u32, u32), pb::Plan>,
    /// Leases, by switch, incarnation, job, tree and epoch.
    leases: BTreeMap<(Place, u64, u32, u32, u32), pb::Lease>,
    ended: bool,
}

impl World {
    /// Checks a newly allocated job number.
    pub(super) fn check_job_number(&mut self, job: usize, incarnation: u64, id: u32) {
        if let Some(other) = self.checks.numbers.insert((incarnation, id), job) {
            let what = format!("job #{job} gets number {id}, which job #{other} has had");
            self.violation(Class::Correctness, "no number of a job is given twice", what);
        }
    }

    /// Checks a message of the controller to a worker.
    pub(super) fn check_message(&mut self, message: &Message) {
        let Message::Plan(plan) = message else { return };
        let before = self
            .checks
            .plans
            .entry((plan.incarnation, plan.job, plan.epoch))
            .or_insert_with(|| plan.clone());
        // The controller updates the reason of a plan without trees in place.
        let common = |plan: &pb::Plan| pb::Plan { reason: String::new(), ..plan.clone() };
        if common(before) != common(plan) {
            let what = format!("job {}, epoch {}: two plans", plan.job, plan.epoch);
            self.violation(Class::Correctness, "no epoch is given twice", what);
        }
    }

    /// Checks a command of the controller to a switch.
    pub(super) fn check_command(&mut self, stream: StreamId, command: &Command) {
        let Command::Install(lease) = command else { return };
        let Some(peer) = self.streams.get(stream).map(|stream| stream.peer) else { return };
        let name = (peer, lease.incarnation, lease.job, lease.tree, lease.epoch);
        let before = self.checks.leases.entry(name).or_insert_with(|| lease.clone());
        if before != lease {
            let (job, tree, epoch) = (lease.job, lease.tree, lease.epoch);
            let what = format!(
                "{}: job {job}, tree {tree}, epoch {epoch}: two leases",
                self.processes[peer].name
            );
            self.violation(Class::Correctness, "no lease is granted twice", what);
        }
    }

    /// Runs after every event of a switch or server.
    pub(super) fn check_aggregator(&mut self, place: Place) {
        let machine = self.aggregators[place - 1].machine.as_ref();
        if let Some(problem) = machine.and_then(|machine| machine.check_memory()) {
            let what = format!("{}: {problem}", self.processes[place].name);
            self.violation(Class::Correctness, "a switch holds no more than its memory", what);
        }
    }

    /// Records the jobs that `fault` excuses from now on.
    pub(super) fn excuse(&mut self, fault: &Fault) {
        let long = |ms: u64| fault.for_ms.is_none_or(|for_ms| for_ms >= ms);
        let mut excused: Vec<usize> = Vec::new();
        match &fault.kind {
            Kind::Kill { process: Process::Rank(job, _), .. } | Kind::StopJob { job } => {
                excused.push(*job as usize);
            }
            Kind::Partition { group, mesh: true, .. } => {
                // Partitions may overlap: one may start before another ends.
                let other = self
                    .scenario
                    .faults
                    .iter()
                    .filter(|other| matches!(other.kind, Kind::Partition { mesh: true, .. }));
                let together: Option<u64> = other.map(|other| other.for_ms).sum();
                if together.is_none_or(|ms| ms + 1000 >= self.scenario.mesh_silence_ms) {
                    let jobs = (0..self.jobs.len()).filter(|&job| self.is_split(job, group));
                    excused.extend(jobs);
                }
            }
            _ => {}
        }
        if !long(u64::MAX) {
            // A fault of limited duration may end a job in an error; a permanent one must.
        }
        if fault.for_ms.is_none() {
            excused.extend(0..self.jobs.len());
        }
        for job in excused {
            if let Some(job) = self.jobs.get_mut(job) {
                job.excuse.get_or_insert_with(|| fault.to_string());
            }
        }
    }

    fn is_split(&self, job: usize, group: &[Process]) -> bool {
        let inside =
            |process: &Process| matches!(process, Process::Rank(of, _) if *of as usize == job);
        let members = group.iter().filter(|process| inside(process)).count();
        members > 0 && members < self.jobs[job].size as usize
    }

    /// Records a rank killed by a fault.
    pub(super) fn rank_dies(&mut self, place: Place) {
        let rank = &mut self.ranks[place - self.first_rank];
        if rank.outcome.is_none() {
            let reason = "it was killed".to_owned();
            rank.outcome = Some(Err(Failure { by_controller: false, reason }));
            self.rank_ended();
        }
    }

    /// Checks a rank that ended in an error.
    pub(super) fn check_failure(&mut self, place: Place, failure: &Failure) {
        let number = self.ranks[place - self.first_rank].job;
        if self.jobs[number].excuse.is_some() {
            return;
        }
        let what = format!("{}: {}", self.processes[place].name, failure.reason);
        if failure.by_controller && !self.ranks[place - self.first_rank].ready {
            // A job without a plan has no data plane.
            self.jobs[number].excuse = Some(failure.reason.clone());
            return;
        }
        // Report one violation per job; later failures are consequences.
        self.jobs[number].excuse = Some(failure.reason.clone());
        if failure.by_controller {
            let rule = "the control plane ends no job whose data plane works";
            self.violation(Class::Control, rule, what);
        } else {
            self.violation(Class::Liveness, "no job ends in an error without a cause", what);
        }
    }

    /// Checks that jobs are back on their trees after the faults have ended.
    pub(super) fn check_recovery(&mut self) {
        for number in 0..self.jobs.len() {
            if let Some(problem) = self.not_recovered(number) {
                let what = format!("job #{number}: {problem}");
                let rule = "a job is back on all trees 2 s after the last fault";
                self.violation(Class::Recovery, rule, what);
            }
        }
    }

    fn not_recovered(&self, number: usize) -> Option<String> {
        let job = &self.jobs[number];
        let ranks = job.first..job.first + job.size as usize;
        let id = job.id?;
        let started = (self.scenario.jobs[number].starts_ms + 1000) * MS;
        if job.excuse.is_some() || started > self.queue.now() {
            return None;
        }
        let state = self.state()?;
        if job.incarnation != state.incarnation() {
            // The controller of another store refuses the job, which continues on the host path.
            return None;
        }
        let Some(planned) = state.job(id).and_then(|job| job.current.as_ref()) else {
            return Some("the controller has no plan".to_owned());
        };
        let short = ["full", "slots", "members", "cannot encrypt"];
        if !planned.reason.is_empty() && !short.iter().any(|why| planned.reason.contains(why)) {
            return Some(format!("its plan is short of trees: {}", planned.reason));
        }
        for place in ranks {
            let rank = &self.ranks[place - self.first_rank];
            if rank.outcome.is_some() {
                return None;
            }
            let name = &self.processes[place].name;
            let Some(plan) = rank.handover.plan() else {
                return Some(format!("{name} has no plan"));
            };
            let (epoch, newest) = (plan.0.plan.epoch, planned.epoch);
            if epoch != newest {
                return Some(format!("{name} is in epoch {epoch}, the controller in {newest}"));
            }
            if !planned.trees.is_empty() && rank.handover.path() != Path::Network {
                return Some(format!("{name} is on the host path in epoch {epoch}"));
            }
        }
        None
    }

    /// Ends the start of new operations: each job completes those that some rank has started.
    pub(super) fn drain(&mut self) {
        for number in 0..self.jobs.len() {
            let first = self.jobs[number].first;
            let ranks = first..first + self.jobs[number].size as usize;
            let begun = ranks.clone().map(|place| self.ranks[place - self.first_rank].next).max();
            self.jobs[number].last = Some(begun.unwrap_or(0).max(1));
            self.trace.log(
                self.queue.now(),
                &"drain",
                format_args!("job #{number} ends after operation {begun:?}"),
            );
            for place in ranks {
                self.leave_if_done(place);
            }
        }
    }

    /// Checks that all jobs have ended by the bound.
    pub(super) fn check_bound(&mut self) {
        for place in self.first_rank..self.first_standby {
            let rank = &self.ranks[place - self.first_rank];
            let job = &self.jobs[rank.job];
            if rank.outcome.is_some() || job.excuse.is_some() || job.id.is_none() {
                continue;
            }
            let what = format!(
                "{}: operations {:?} under way, {} begun, path {:?}, hand-over {}",
                self.processes[place].name,
                rank.under_way(),
                rank.next,
                rank.handover.path(),
                if rank.handover.is_under_way() { "under way" } else { "not under way" },
            );
            return self.violation(Class::Liveness, "a job ends within a bound", what);
        }
    }

    /// Checks that every rank has ended, with or without an error.
    pub(super) fn check_end(&mut self) {
        if self.checks.ended {
            self.check_left_over();
            self.over = true;
            return;
        }
        for place in self.first_rank..self.first_standby {
            let rank = &self.ranks[place - self.first_rank];
            let waits = rank.outcome.is_none() && self.is_up(place);
            // Before the first plan an application may wait without limit.
            if waits && rank.ready {
                let name = &self.processes[place].name;
                let what = format!("{name}: operations {:?} under way", rank.under_way());
                return self.violation(Class::Liveness, "a fault ends in an error in time", what);
            }
        }
        self.over = true;
    }

    /// Handles the end of a rank; after the last one, leftovers are checked with a delay.
    pub(super) fn rank_ended(&mut self) {
        let over = |job: &super::Job| {
            let ranks =
                job.first - self.first_rank..job.first - self.first_rank + job.size as usize;
            self.ranks[ranks].iter().all(|rank| rank.outcome.is_some())
        };
        let faults = self.scenario.faults_end_ms() * MS;
        if self.jobs.iter().all(over) && !self.checks.ended {
            self.checks.ended = true;
            let after = faults.saturating_sub(self.queue.now()) + LEFT_OVER;
            self.queue.after(after, Event::CheckEnd);
        }
    }

    fn check_left_over(&mut self) {
        if self.scenario.faults.iter().any(|fault| fault.for_ms.is_none())
            || self.leader_place().is_none()
        {
            return;
        }
        if let Some(state) = self.state() {
            // After a power failure a job may be in the state before its ranks had joined.
            let live =
                self.checks.numbers.iter().find(|((_, id), _)| {
                    state.job(*id).is_some_and(|job| job.phase == Phase::Running)
                });
            if let Some(((_, id), number)) = live {
                let what = format!("job {id} (#{number}) has no ranks and is not over");
                return self.violation(Class::Liveness, "jobs without ranks end", what);
            }
        }
        for place in 1..self.first_rank {
            let Some(machine) = &self.aggregators[place - 1].machine else { continue };
            let leases = machine.leases();
            let problem = match leases.is_empty() {
                false => Some(format!("leases {leases:?} are left")),
                true => machine.leftover(),
            };
            if let Some(problem) = problem {
                let what = format!("{}: {problem}", self.processes[place].name);
                return self.violation(Class::Liveness, "memory of dead jobs comes back", what);
            }
        }
    }
}

/// Delay of the leftover check after the last rank has ended: time for the controller to abandon the job, with clock
/// drift.
const LEFT_OVER: Nanos = 40 * SECOND;
