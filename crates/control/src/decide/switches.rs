//! Switches come, report, confirm leases, die.

use std::collections::HashSet;

use netsum_topo::NodeId;

use super::event::{Action, Refusal, SessionId};
use super::job::{Job, Phase};
use super::state::{State, SwitchCondition};
use crate::pb;
use crate::pb::switch_command::Command;

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
        let state = self.switches.get_mut(&switch).expect("every switch has a state");
        state.condition = SwitchCondition::Up(session);
        (state.since_ms, state.heard_ms) = (now_ms, now_ms);
        state.hello = hello;
        self.switch_sessions.insert(session, switch);
        self.reconcile(now_ms, switch, session, &installed);
        self.improve_all_after_return(now_ms, switch);
        self.tick_planning(now_ms);
        Ok(())
    }

    pub(super) fn switch_beat(
        &mut self,
        now_ms: u64,
        session: SessionId,
        counters: pb::SwitchHeartbeat,
    ) {
        let switch = self.switch_sessions.get(&session);
        if let Some(state) = switch.and_then(|switch| self.switches.get_mut(switch)) {
            state.heard_ms = now_ms;
            state.counters = counters;
        }
    }

    pub(super) fn lease_ack(&mut self, now_ms: u64, session: SessionId, ack: &pb::LeaseAck) {
        let Some(&switch) = self.switch_sessions.get(&session) else { return };
        if let Some(state) = self.switches.get_mut(&switch) {
            state.heard_ms = now_ms;
        }
        let until_ms = now_ms + self.settings.refusal_ms;
        let Some(job) = self.jobs.get_mut(&ack.job) else { return };
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
            let why = format!("{} refused a lease: {}", self.topology.name(switch), ack.reason);
            job.barred.insert(switch, (until_ms, why));
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
                SwitchCondition::Up(session) if state.heard_ms + silence_ms <= now_ms => {
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
        let state = self.switches.get_mut(&switch).expect("every switch has a state");
        if let SwitchCondition::Up(session) = state.condition {
            self.switch_sessions.remove(&session);
            state.deaths_ms.retain(|at| at + DEATHS_COUNT_MS > now_ms);
            state.deaths_ms.push(now_ms);
        }
        state.condition = SwitchCondition::Down;
        state.since_ms = now_ms;
        for job in self.jobs.values_mut().filter(|job| job.phase == Phase::Running) {
            if job.uses(switch) {
                job.replan_at_ms = Some(now_ms);
            }
            job.granted.remove(&switch);
        }
    }

    /// Compares what a switch has with what it should have: what is too much is revoked, what is
    /// missing from a plan at work makes the plan void.
    fn reconcile(
        &mut self,
        now_ms: u64,
        switch: NodeId,
        session: SessionId,
        installed: &[pb::InstalledLease],
    ) {
        let has: HashSet<(u32, u32, u32)> =
            installed.iter().map(|lease| (lease.job, lease.tree, lease.epoch)).collect();
        let mut wanted = HashSet::new();
        for job in self.jobs.values_mut().filter(|job| job.phase != Phase::Ended) {
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
            let revoke = Command::Revoke(pb::Revoke { job, epoch });
            let newer = wanted.iter().any(|&(other, _, at)| other == job && at <= epoch);
            // A revocation takes all trees up to its epoch: where a lease that is wanted would go
            // with it, the next plan of the job revokes both.
            if newer {
                self.jobs.entry(job).and_modify(|job| job.replan_at_ms = Some(now_ms));
            } else {
                self.actions.push(Action::TellSwitch(session, revoke));
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

    /// Has every degraded job look at that time whether there are more trees.
    pub(super) fn improve_all(&mut self, at_ms: u64) {
        for job in
            self.jobs.values_mut().filter(|job| job.phase == Phase::Running && job.is_degraded())
        {
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

/// Deaths within this time count as one series.
const DEATHS_COUNT_MS: u64 = 60_000;
/// With the default hold, half a minute at most.
const HOLD_DOUBLINGS: usize = 6;
