//! A group whose ranks are connected.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use netsum_net::mesh::{Channel, MeshError, Network};
use netsum_net::worker::WorkerDriver;
use parking_lot::{Mutex, MutexGuard};

use crate::call::Call;
use crate::comm::Comm;
use crate::coordinator::Coordinator;
use crate::core::Core;
use crate::deadline::after;
use crate::hosts::Hosts;
use crate::link_cost::LinkCost;
use crate::planned::session::Session;
use crate::queue::{Body, Job, OpQueue, QueueState};
use crate::status::{GroupStats, HostStats, Status};
use crate::switch_cost::SwitchCost;
use crate::task::Task;
use crate::terms::{Here, Terms};
use crate::work::{OperationSummary, Work};

pub(crate) struct Connected {
    pub(crate) core: Arc<Core>,
    pub(super) queue: Arc<OpQueue>,
    /// The ranks that share memory.
    pub(super) hosts: Arc<Hosts>,
    pub(super) session: Option<Session>,
    pub(super) coordinator: Coordinator,
    pub(super) driver: Option<Arc<WorkerDriver>>,
    pub(crate) status: Arc<Mutex<Status>>,
    /// Whether switches may do other collectives than allreduce.
    pub(super) all_collectives: bool,
    /// Costs of the switches, which decide what they do; `None`: a threshold does.
    pub(super) switch_cost: Option<SwitchCost>,
    /// Whether no collective sends messages: all ranks share memory, and no other path exists.
    pub(super) silent: bool,
}

/// A collective that has a number.
pub(super) struct Issued<'a> {
    pub(super) sequence: u64,
    pub(super) fingerprint: u32,
    pub(super) deadline: Instant,
    pub(super) work: Work,
    pub(super) here: Option<Here>,
    /// Held until the operation is queued: operations are numbered and queued in the same order.
    pub(super) turn: MutexGuard<'a, QueueState>,
}

impl Connected {
    pub(super) fn issue(
        &self,
        call: Call,
        terms: Terms,
        go: impl FnOnce(&Connected, Issued<'_>),
    ) -> Work {
        let called = Instant::now();
        let fingerprint = call.fingerprint();
        let mut turn = self.queue.lock();
        turn.flush_log(&self.core.ledger, &self.core.recorder);
        let sequence = turn.number();
        let known = self.core.ledger.enter(sequence, call.clone(), fingerprint);
        let differs = |(_, other): &(u32, u32)| *other != fingerprint;
        let stored = || self.core.mesh.stored(Channel::Collective, sequence);
        if known || !self.silent && stored().iter().any(differs) {
            self.core.events.differs(sequence);
        }
        let work = Work::new(OperationSummary::Collective(call, sequence), called);
        self.core.recorder.add(&work);
        let (deadline, here) = (after(called, terms.timeout), terms.waits.then_some(terms.here));
        go(self, Issued { sequence, fingerprint, deadline, work: work.clone(), here, turn });
        work
    }

    pub(super) fn on_host(
        &self,
        issued: Issued<'_>,
        body: impl FnOnce(&mut Comm<'_>) -> Result<(), MeshError> + Send + 'static,
    ) {
        let Issued { sequence, fingerprint, deadline, work, here, mut turn } = issued;
        if here.is_some()
            && let Some(run) = self.queue.turn(&mut turn)
        {
            drop(turn);
            return run.run(Job { sequence, fingerprint, deadline, work, here, body });
        }
        let body: Body = Box::new(body);
        self.queue.push_at(turn, Job { sequence, fingerprint, deadline, work, here: None, body });
    }

    /// Does a collective by switches if they can, and else between the hosts.
    pub(super) fn on_network(&self, issued: Issued<'_>, mut task: Task) {
        if self.is_for_switches(&task) {
            return self.give_to_switches(issued, task);
        }
        let order = self.core.order.load_full();
        self.on_host(issued, move |comm| {
            task.prepare(comm.rank());
            task.run(comm, order)
        });
    }

    /// The session for an allreduce of `bytes`, if the group's tree plan carries it.
    pub(super) fn on_plan(&self, bytes: usize) -> Option<&Session> {
        self.session.as_ref().filter(|session| bytes as u64 >= session.from_bytes)
    }

    pub(super) fn link(&self) -> LinkCost {
        self.core.paces.link(self.core.size, Some(&self.hosts))
    }

    pub(crate) fn stats(&self) -> GroupStats {
        let (sent, received) = self.core.mesh.traffic();
        let (counters, link) = (&self.core.counters, self.link());
        let hosts_by = match (link.shared_memory, &link.across, self.core.mesh.network()) {
            (true, _, _) => "shared memory",
            (false, Some(_), Network::Tcp) => "shared memory within hosts, TCP between them",
            (false, Some(_), Network::Ucx) => "shared memory within hosts, UCX between them",
            (false, None, Network::Tcp) => "TCP",
            (false, None, Network::Ucx) => "UCX",
        };
        let at_once = self.queue.lock().ended_at_once;
        let hosts = HostStats {
            hosts_by,
            link,
            switches: self.switch_cost.clone(),
            host_bytes_tx: sent,
            host_bytes_rx: received,
            host_strangers: self.core.mesh.unknown_senders(),
            operations: counters.operations.load(Ordering::Relaxed) + at_once,
            network_operations: counters.network_operations.load(Ordering::Relaxed),
            served: counters.served.load(Ordering::Relaxed),
            redone: counters.redone.load(Ordering::Relaxed),
        };
        let stats = self.driver.as_ref().map(|driver| driver.stats()).unwrap_or_default();
        let status = self.status.lock().clone();
        status.into_stats(&stats, hosts)
    }
}
