//! Switches connect, report, confirm leases and disconnect.

use std::collections::HashSet;

use netsum_topo::NodeId;

use super::event::{Action, Refusal, SessionId};
use super::job::Job;
use super::state::{State, SwitchCondition};
use crate::pb::switch_command::Command;
use crate::{epoch, pb};

impl State {
    pub(super) fn switch_hello(
        &mut self,
        now_ms: u64,
        session: SessionId,
        hello: pb::SwitchHello,
    ) -> Result<(), Refusal> {
        let switch = self.identify(&hello)?;
        if let Some(old) = self.switch_session(switch) {
            // It restarted before the end of its old stream was seen.
            self.actions.push(Action::Close(old));
            self.switch_down(now_ms, switch);
        }
        let installed = hello.installed.clone();
        let state = self.switch_mut(switch);
        state.condition = SwitchCondition::Up(session);
        (state.since_ms, state.reported_ms) = (now_ms, now_ms);
        state.hello = hello;
        self.switch_sessions.insert(session, switch);
        let hello = pb::ControllerHello { incarnation: self.incarnation };
        self.actions.push(Action::SendToSwitch(session, Command::Hello(hello)));
        self.reconcile(now_ms, switch, session, &installed);
        self.improve_all_after_return(now_ms, switch);
        self.tick_planning(now_ms);
        Ok(())
    }

    pub(super) fn switch_heartbeat(
        &mut self,
        now_ms: u64,
        session: SessionId,
        counters: pb::SwitchHeartbeat,
    ) {
        let Some(&switch) = self.switch_sessions.get(&session) else { return };
        let state = self.switch_mut(switch);
        state.reported_ms = now_ms;
        let before = std::mem::replace(&mut state.counters, counters);
        // Jobs whose packets a switch counts are at work, whether the controller has a stream of their workers or not.
        let active = self.switches[&switch].counters.trees.iter().filter(|tree| {
            let same = |old: &&pb::SwitchTree| (old.job, old.tree) == (tree.job, tree.tree);
            before.trees.iter().find(same).is_some_and(|old| packets(old) < packets(tree))
        });
        for id in active.map(|tree| tree.job).collect::<HashSet<_>>() {
            if let Some(job) = self.job_mut(id) {
                job.active_ms = now_ms;
            }
        }
    }

    pub(super) fn lease_ack(&mut self, now_ms: u64, session: SessionId, ack: &pb::LeaseAck) {
        let Some(&switch) = self.switch_sessions.get(&session) else { return };
        self.switch_mut(switch).reported_ms = now_ms;
        let until_ms = now_ms + self.settings.refusal_ms;
        let why = format!("{} refused a lease: {}", self.name(switch), ack.reason);
        let Some(job) = self.job_mut(ack.job) else { return };
        let Some(pending) = &mut job.pending else { return };
        let tree = u8::try_from(ack.tree).ok();
        let expected = u32::from(pending.plan.epoch) == ack.epoch
            && tree.is_some_and(|tree| pending.awaiting.contains(&(switch, tree)));
        if !expected {
            return;
        }
        if ack.ok {
            pending.awaiting.retain(|lease| Some(lease.1) != tree || lease.0 != switch);
        } else {
            job.refusals.insert(switch, (until_ms, why));
            job.improve_at_ms = Some(until_ms);
            job.replan_at_ms = Some(now_ms);
        }
        self.tick_planning(now_ms);
    }

    pub(super) fn switch_closed(&mut self, now_ms: u64, session: SessionId) {
        let Some(switch) = self.switch_sessions.remove(&session) else { return };
        if self.switch_session(switch) == Some(session) {
            self.switch_down(now_ms, switch);
            self.tick_planning(now_ms);
        }
    }

    pub(super) fn tick_switches(&mut self, now_ms: u64) {
        let silence_ms = self.settings.switch_silence_ms;
        let mut gone = Vec::new();
        for (&switch, state) in &self.switches {
            match state.condition {
                SwitchCondition::Expected { until_ms } if until_ms <= now_ms => gone.push(switch),
                SwitchCondition::Up(session) if state.reported_ms + silence_ms <= now_ms => {
                    self.actions.push(Action::Close(session));
                    gone.push(switch);
                }
                _ => {}
            }
        }
        gone.into_iter().for_each(|switch| self.switch_down(now_ms, switch));
    }

    fn identify(&self, hello: &pb::SwitchHello) -> Result<NodeId, Refusal> {
        let fabric = &self.fabric;
        let (role, known) = match hello.server {
            false => ("switch", fabric.switch(&hello.name).map(|switch| switch.address)),
            true => ("server", fabric.server(&hello.name).map(|server| server.address)),
        };
        let Some(known) = known else {
            let switches = fabric.switches.iter().map(|switch| switch.name.as_str());
            let servers = fabric.servers.iter().map(|server| server.name.as_str());
            let names: Vec<&str> =
                if hello.server { servers.collect() } else { switches.collect() };
            let (name, fabric) = (&hello.name, &fabric.name);
            return Err(Refusal::Invalid(format!(
                "fabric {fabric:?} has no {role} {name:?}; it has {}",
                if names.is_empty() { "none".to_owned() } else { names.join(", ") }
            )));
        };
        if hello.udp_address != known.to_string() {
            return Err(Refusal::Invalid(format!(
                "{role} {:?} listens at {}, the fabric file says {known}; correct one of them",
                hello.name, hello.udp_address
            )));
        }
        Ok(self.topology.find(&hello.name).expect("every switch and server is in the graph"))
    }

    fn switch_down(&mut self, now_ms: u64, switch: NodeId) {
        if let Some(session) = self.switch_session(switch) {
            self.switch_sessions.remove(&session);
            let state = self.switch_mut(switch);
            state.deaths_ms.retain(|at| at + DEATHS_COUNT_MS > now_ms);
            state.deaths_ms.push(now_ms);
        }
        let state = self.switch_mut(switch);
        state.condition = SwitchCondition::Down;
        state.since_ms = now_ms;
        for id in self.running(|job| job.uses(switch) || job.granted.contains(&switch)) {
            let Some(job) = self.job_mut(id) else { continue };
            if job.uses(switch) {
                job.replan_at_ms = Some(now_ms);
            }
            job.granted.remove(&switch);
        }
    }

    /// Compares the leases that a switch has with those that it should have. Those too many are revoked; one that is
    /// missing from a plan in use makes the plan void. Leases of another incarnation are dropped by the switch itself.
    fn reconcile(
        &mut self,
        now_ms: u64,
        switch: NodeId,
        session: SessionId,
        installed: &[pb::InstalledLease],
    ) {
        let incarnation = self.incarnation;
        let own = |lease: &&pb::InstalledLease| [0, incarnation].contains(&lease.incarnation);
        let has: HashSet<(u32, u32, u32)> = installed
            .iter()
            .filter(own)
            .map(|lease| (lease.job, lease.tree, lease.epoch))
            .collect();
        let mut wanted = HashSet::new();
        for id in self.running(|job| leases_at(job, switch).next().is_some()) {
            let Some(job) = self.job_mut(id) else { continue };
            let own: HashSet<_> = leases_at(job, switch).collect();
            if !own.is_subset(&has) {
                job.replan_at_ms = Some(now_ms);
            }
            if !own.is_disjoint(&has) {
                job.granted.insert(switch);
            }
            wanted.extend(own);
        }
        for &(job, _, epoch) in has.difference(&wanted) {
            let revoke = Command::Revoke(pb::Revoke { job, epoch, incarnation });
            let taken =
                wanted.iter().any(|&(other, _, at)| other == job && !epoch::is_newer(at, epoch));
            // A revocation takes all trees up to its epoch: where a lease that is wanted would go
            // with it, the next plan of the job revokes both.
            if taken {
                if let Some(job) = self.job_mut(job) {
                    job.replan_at_ms = Some(now_ms);
                }
            } else {
                self.actions.push(Action::SendToSwitch(session, revoke));
            }
        }
    }

    fn improve_all_after_return(&mut self, now_ms: u64, switch: NodeId) {
        let state = &self.switches[&switch];
        let recent = state.deaths_ms.iter().filter(|&&at| at + DEATHS_COUNT_MS > now_ms).count();
        let hold_ms = match recent {
            0 => 0,
            deaths => self.settings.return_hold_ms << (deaths - 1).min(HOLD_DOUBLINGS),
        };
        self.improve_all(now_ms + hold_ms);
    }

    /// Has every degraded job check at that time whether more trees are possible.
    pub(super) fn improve_all(&mut self, at_ms: u64) {
        for id in self.running(Job::is_degraded) {
            let Some(job) = self.job_mut(id) else { continue };
            job.improve_at_ms = Some(job.improve_at_ms.map_or(at_ms, |due| due.max(at_ms)));
        }
    }
}

/// The leases of a job's plan at a switch: job, tree, epoch.
fn leases_at(job: &Job, switch: NodeId) -> impl Iterator<Item = (u32, u32, u32)> {
    job.current.iter().flat_map(move |plan| {
        let trees = (0..).zip(&plan.trees).filter(move |(_, tree)| tree.node(switch).is_some());
        trees.map(move |(tree, _)| (plan.job, tree, u32::from(plan.epoch)))
    })
}

/// Packets of a job that a switch or server has taken.
fn packets(tree: &pb::SwitchTree) -> u64 {
    tree.contributions + tree.packets
}

/// Deaths within this time count as one series.
const DEATHS_COUNT_MS: u64 = 60_000;
/// With the default hold, half a minute at most.
const HOLD_DOUBLINGS: usize = 6;
