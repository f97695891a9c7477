//! Plans: when a new plan is due, and its installation at switches and workers.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use netsum_lease::{Granted, Terms, lease_secrets, leases};
use netsum_topo::{AggregationTree, Child, NodeId, Plan, Protocol};
use netsum_wire::TreeId;

use super::event::Action;
use super::idle::{Room, widens};
use super::job::{LeaseRefusal, Pending, Phase};
use super::propose::Proposal;
use super::state::{State, SwitchCondition};
use crate::convert::{lease_message, plan_message};
use crate::pb::switch_command::Command;
use crate::pb::worker_event::Event as WorkerMessage;
use crate::{epoch, pb};

impl State {
    /// Performs all due planning steps of all jobs.
    pub(super) fn tick_planning(&mut self, now_ms: u64) {
        for id in self.jobs.keys().copied().collect::<Vec<_>>() {
            match self.jobs[&id].phase {
                Phase::Joining if self.jobs[&id].join_by_ms <= now_ms => {
                    self.join_failed(now_ms, id)
                }
                Phase::Running => self.tick_job(now_ms, id),
                _ => {}
            }
        }
    }

    /// Revokes all leases of a job.
    pub(super) fn revoke(&mut self, id: u32) {
        let Some(job) = self.job_mut(id) else { return };
        let epoch = job.epoch;
        let granted = std::mem::take(&mut job.granted);
        self.revoke_at(granted, id, epoch);
    }

    fn tick_job(&mut self, now_ms: u64, id: u32) {
        self.check_pending(now_ms, id);
        let job = &self.jobs[&id];
        let is_due = |at: Option<u64>| at.is_some_and(|at| at <= now_ms);
        let (replan, improve) = (is_due(job.replan_at_ms), is_due(job.improve_at_ms));
        if !(replan || improve) || self.awaits_switches() {
            return;
        }
        if replan {
            self.replan(now_ms, id);
        } else if job.pending.is_none() {
            self.improve(now_ms, id);
        }
    }

    /// Sends a plan with all leases confirmed to the workers, and replaces one whose leases are late.
    fn check_pending(&mut self, now_ms: u64, id: u32) {
        let until_ms = now_ms + self.settings.refusal_ms;
        let timeout_s = self.settings.lease_timeout_ms as f64 / 1000.0;
        let Some(pending) = &self.jobs[&id].pending else { return };
        if pending.awaiting.is_empty() {
            self.adopt(now_ms, id);
        } else if pending.deadline_ms <= now_ms {
            let late: BTreeSet<NodeId> =
                pending.awaiting.iter().map(|&(switch, _)| switch).collect();
            let why = |switch| {
                format!("{} did not confirm a lease within {timeout_s} s", self.name(switch))
            };
            let refusal = |switch| LeaseRefusal { until_ms, why: why(switch), is_late: true };
            let refusals: Vec<_> =
                late.into_iter().map(|switch| (switch, refusal(switch))).collect();
            let job = self.job_mut(id).expect("the caller has it");
            job.refusals.extend(refusals);
            job.improve_at_ms = Some(until_ms);
            job.replan_at_ms = Some(now_ms);
        }
    }

    pub(super) fn replan(&mut self, now_ms: u64, id: u32) {
        let job = self.job_mut(id).expect("the caller has it");
        job.replan_at_ms = None;
        job.refusals.retain(|_, refusal| refusal.until_ms > now_ms);
        if !job.can_change_plans() {
            // A resumed job, whose ranks each request a plan when they join; or the workers have been notified of a
            // lost rank, and no plan helps.
            return;
        }
        let Room { proposal, yielding } = self.room(now_ms, id);
        let job = self.job_mut(id).expect("the caller has it");
        if let Some(current) = job.current.as_mut()
            && current.epoch == job.epoch
            && current.trees.is_empty()
            && proposal.trees.is_empty()
        {
            current.reason = proposal.reason;
            self.await_room(now_ms, id, &proposal.short);
            return;
        }
        job.epoch = epoch::next(job.epoch);
        let short = proposal.short.clone();
        yielding.into_iter().for_each(|other| self.yield_leases(now_ms, other, id));
        self.install(now_ms, id, proposal);
        self.await_room(now_ms, id, &short);
    }

    /// Makes a new plan if more trees are possible now.
    fn improve(&mut self, now_ms: u64, id: u32) {
        let job = self.job_mut(id).expect("the caller has it");
        job.refusals.retain(|_, refusal| refusal.until_ms > now_ms);
        job.improve_at_ms = job.refusals.values().map(|refusal| refusal.until_ms).min();
        let job = &self.jobs[&id];
        let aggregators =
            |trees: &[AggregationTree]| trees.iter().map(|tree| tree.nodes.len()).sum::<usize>();
        let have = job.current.as_ref().map_or((0, 0), |p| (p.trees.len(), aggregators(&p.trees)));
        let proposal = self.room(now_ms, id).proposal;
        let have_now = (proposal.trees.len(), aggregators(&proposal.trees));
        let better = match proposal.protocol {
            _ if widens(job.current.as_ref(), &proposal) => true,
            // The plan is no longer degraded even if the number of trees is the same: a pool returns to the nearest
            // switch, a job of protocol `atp` to the nearest server.
            _ if job.is_degraded() && proposal.reason.is_empty() => true,
            // A rack's returned switch adds no tree, but aggregates again.
            Protocol::Atp => have_now > have,
            _ => have_now.0 > have.0,
        };
        if better {
            return self.replan(now_ms, id);
        }
        self.await_room(now_ms, id, &proposal.short);
        if let Some(current) = self.job_mut(id).and_then(|job| job.current.as_mut())
            && !current.reason.is_empty()
        {
            // A part that was missing may be back, and something else missing now.
            current.reason = match current.trees.len() == proposal.trees.len() {
                true => proposal.reason,
                false => format!("no better plan: {}", proposal.reason),
            };
        }
    }

    /// Sends the leases of a new plan to the switches; the plan follows once they are confirmed.
    fn install(&mut self, now_ms: u64, id: u32, proposal: Proposal) {
        let deadline_ms = now_ms + self.settings.lease_timeout_ms;
        let job = self.job_mut(id).expect("the caller has it");
        job.order = Some(proposal.order.clone());
        job.fragment_bytes = Some(proposal.fragment_bytes);
        let plan = Plan {
            job: id,
            epoch: job.epoch,
            order: proposal.order,
            protocol: proposal.protocol,
            choice: proposal.choice,
            trees: proposal.trees,
            copies: proposal.copies,
            fragment_bytes: proposal.fragment_bytes,
            window_max: proposal.window_max,
            slot_space: proposal.slot_space,
            scale: job.spec.scale,
            release_fraction: job.spec.release_fraction,
            congestion: job.spec.congestion,
            min_bytes: job.spec.min_bytes,
            reason: proposal.reason,
        };
        // The epoch is stored before a switch receives it, so no epoch is used twice.
        self.actions.push(Action::SaveJob(id));
        let mut awaiting = BTreeSet::new();
        for (switch, lease) in self.leases(&plan) {
            let session = self.switch_session(switch).expect("plans have live switches only");
            awaiting.insert((switch, lease.tree as u8));
            self.actions.push(Action::SendToSwitch(session, Command::Install(lease)));
        }
        let job = self.job_mut(id).expect("the caller has it");
        job.granted.extend(awaiting.iter().map(|&(switch, _)| switch));
        job.pending = Some(Pending { plan, awaiting, deadline_ms });
        self.check_pending(now_ms, id);
    }

    /// Makes the pending plan the current one and sends it to the workers.
    fn adopt(&mut self, now_ms: u64, id: u32) {
        let (fabric, topology) = (self.fabric.clone(), self.topology.clone());
        let incarnation = self.incarnation;
        let job = self.job_mut(id).expect("the caller has it");
        let Some(pending) = job.pending.take() else { return };
        let plan = pb::Plan { incarnation, ..plan_message(&pending.plan, &fabric, &topology) };
        let before = epoch::previous(pending.plan.epoch);
        let nodes =
            pending.plan.trees.iter().flat_map(|tree| tree.nodes.iter().map(|node| node.switch));
        let granted = std::mem::replace(&mut job.granted, nodes.collect());
        (job.current, job.plan_key) = (Some(pending.plan), job.key_id());
        job.adopted_ms = now_ms;
        (job.silent_since_ms, job.worked_ms) = (None, None);
        let plan = job.with_key_id(plan);
        let sessions: Vec<_> = job.sessions().collect();
        self.actions.push(Action::SaveJob(id));
        let send = |session| Action::SendToWorker(session, WorkerMessage::Plan(plan.clone()));
        self.actions.extend(sessions.into_iter().map(send));
        self.revoke_at(granted, id, before);
    }

    /// Revokes all leases of a job up to an epoch.
    fn revoke_at(&mut self, switches: BTreeSet<NodeId>, job: u32, epoch: u16) {
        let revoke = pb::Revoke { job, epoch: epoch.into(), incarnation: self.incarnation };
        let sessions = switches.into_iter().filter_map(|switch| self.switch_session(switch));
        let send = |session| Action::SendToSwitch(session, Command::Revoke(revoke));
        let revocations: Vec<Action> = sessions.map(send).collect();
        self.actions.extend(revocations);
    }

    fn join_failed(&mut self, now_ms: u64, id: u32) {
        let members = (0..).zip(&self.jobs[&id].members);
        let awaited = members.filter(|(_, member)| member.session().is_none());
        let ranks: Vec<String> =
            awaited.take(RANKS_SHOWN).map(|(rank, _): (u32, _)| rank.to_string()).collect();
        let seconds = self.settings.join_timeout_ms / 1000;
        self.fail(
            now_ms,
            id,
            &format!("rank {} did not join within {seconds} s", ranks.join(", ")),
        );
    }

    /// After a start, planning waits for switches that may still connect.
    fn awaits_switches(&self) -> bool {
        self.switches
            .values()
            .any(|state| matches!(state.condition, SwitchCondition::Expected { .. }))
    }

    /// The leases of a plan as messages, with the switches or servers that receive them.
    fn leases(&self, plan: &Plan) -> Vec<(NodeId, pb::Lease)> {
        let job = &self.jobs[&plan.job];
        let terms = Terms::of(plan, &self.tenant_of(job));
        let granted = leases(&terms, |_, _, neighbour| match neighbour {
            Child::Rank(rank) => job.members[rank as usize].udp_address,
            Child::Switch(node) => self.fabric.aggregator_address(self.topology.name(node)),
        });
        let granted = granted.expect("the controller makes trees of the two levels of atp");
        let owner = self.owner_of(job);
        let name = |node| self.topology.name(node).to_owned();
        let message = |granted: &Granted<Option<SocketAddr>>| {
            let (id, tree) = (TreeId(granted.tree as u8), &plan.trees[granted.tree]);
            let secrets = lease_secrets(&terms, id, tree, granted.node, job.key.as_ref(), name);
            let lease = lease_message(
                granted,
                tree,
                &self.topology,
                plan.slot_space,
                self.settings.idle_expiry_s,
            );
            pb::Lease {
                incarnation: self.incarnation,
                tenant: owner.tenant.as_deref().unwrap_or_default().to_owned(),
                bytes_per_s: owner.limit.bytes_per_s.unwrap_or(0),
                packets_per_s: owner.limit.packets_per_s.unwrap_or(0),
                ..lease.with_secrets(secrets.as_ref())
            }
        };
        granted.iter().map(|granted| (granted.node, message(granted))).collect()
    }
}

const RANKS_SHOWN: usize = 8;
