//! Switches connect, report, confirm leases and disconnect.

use std::collections::BTreeSet;

use netsum_topo::NodeId;

use super::event::{Action, Refusal, SessionId};
use super::job::{Job, LeaseRefusal};
use super::state::{State, SwitchCondition, SwitchState};
use crate::pb::switch_command::Command;
use crate::{epoch, pb};

impl State {
    pub(super) fn switch_hello(
        &mut self,
        now_ms: u64,
        session: SessionId,
        mut hello: pb::SwitchHello,
    ) -> Result<(), Refusal> {
        let switch = self.identify(&hello)?;
        if let Some(old) = self.switch_session(switch) {
            // The switch restarted before the end of its old stream was detected.
            self.actions.push(Action::Close(old));
            self.switch_down(now_ms, switch);
        }
        let installed = std::mem::take(&mut hello.installed);
        let state = self.switch_mut(switch);
        state.condition = SwitchCondition::Up(session);
        (state.since_ms, state.reported_ms) = (now_ms, now_ms);
        if hello.instance != 0 && state.hello.instance == hello.instance {
            // The stream ended, not the process.
            (state.died_ms, state.deaths) = (None, 0);
        }
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
        // A job is active if a switch counts its packets, even if none of its workers has a stream.
        let active = self.switches[&switch].counters.trees.iter().filter(|tree| {
            let same = |old: &&pb::SwitchTree| (old.job, old.tree) == (tree.job, tree.tree);
            before.trees.iter().find(same).is_some_and(|old| packets(old) < packets(tree))
        });
        for id in active.map(|tree| tree.job).collect::<BTreeSet<_>>() {
            if let Some(job) = self.job_mut(id) {
                job.active_ms = now_ms;
                job.carried_ms = now_ms;
            }
        }
    }

    pub(super) fn lease_ack(&mut self, now_ms: u64, session: SessionId, ack: &pb::LeaseAck) {
        let Some(&switch) = self.switch_sessions.get(&session) else { return };
        self.switch_mut(switch).reported_ms = now_ms;
        let until_ms = now_ms + self.settings.refusal_ms;
        let why = format!("{} refused a lease: {}", self.name(switch), ack.reason);
        let Some(job) = self.job_mut(ack.job) else { return };
        job.forgive(now_ms, switch);
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
            job.refusals.insert(switch, LeaseRefusal { until_ms, why, is_late: false });
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
        // The failure of a switch that no job uses or waits for has no effect.
        let is_used = !self.running(|job| job.uses(switch)).is_empty();
        let counts = is_used || self.held_until_ms(switch) > now_ms;
        let session = self.switch_session(switch);
        let state = self.switch_mut(switch);
        if session.is_some() && counts {
            let again = state.since_ms + DEATH_SOON_MS > now_ms;
            state.deaths = if again { state.deaths + 1 } else { 1 };
            state.died_ms = Some(now_ms);
        }
        session.map(|session| self.switch_sessions.remove(&session));
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

    /// Compares the leases of a switch with the expected ones. Extra leases are revoked; a lease missing from a plan in
    /// use makes the plan void. The switch itself drops leases of another incarnation.
    fn reconcile(
        &mut self,
        now_ms: u64,
        switch: NodeId,
        session: SessionId,
        installed: &[pb::InstalledLease],
    ) {
        let incarnation = self.incarnation;
        let own = |lease: &&pb::InstalledLease| [0, incarnation].contains(&lease.incarnation);
        let has: BTreeSet<(u32, u32, u32)> = installed
            .iter()
            .filter(own)
            .map(|lease| (lease.job, lease.tree, lease.epoch))
            .collect();
        let mut wanted = BTreeSet::new();
        for id in self.running(|job| leases_at(job, switch).next().is_some()) {
            let Some(job) = self.job_mut(id) else { continue };
            let own: BTreeSet<_> = leases_at(job, switch).collect();
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
            // A revocation covers all trees up to its epoch: if it would cover a wanted lease, the job's next plan
            // revokes both.
            if taken {
                if let Some(job) = self.job_mut(job) {
                    job.replan_at_ms = Some(now_ms);
                }
            } else {
                self.actions.push(Action::SendToSwitch(session, revoke));
            }
        }
    }

    /// Schedules the use of a returned switch: after a hold time, which doubles if the switch fails soon after each
    /// return.
    fn improve_all_after_return(&mut self, now_ms: u64, switch: NodeId) {
        for id in self.running(|job| job.refusals.contains_key(&switch)) {
            self.job_mut(id).expect("it is running").forgive(now_ms, switch);
        }
        self.improve_all(now_ms.max(self.held_until_ms(switch)));
    }

    /// A switch that failed recently is not used before this time.
    fn held_until_ms(&self, switch: NodeId) -> u64 {
        let SwitchState { died_ms, deaths, .. } = *self.switches[&switch];
        let doublings = deaths.saturating_sub(1).min(HOLD_DOUBLINGS);
        died_ms.map_or(0, |at| at + (self.settings.return_hold_ms << doublings))
    }

    /// Schedules a check of every degraded job for more trees.
    pub(super) fn improve_all(&mut self, at_ms: u64) {
        for id in self.running(Job::is_degraded) {
            let Some(job) = self.job_mut(id) else { continue };
            job.improve_at_ms = Some(at_ms);
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

/// Packets of a job that a switch or server has accepted.
fn packets(tree: &pb::SwitchTree) -> u64 {
    tree.contributions + tree.packets
}

/// A switch that stays up this long is not considered to crash at its start.
const DEATH_SOON_MS: u64 = 2_000;
/// Limits the hold time to about half a minute with the default hold.
const HOLD_DOUBLINGS: u32 = 6;
