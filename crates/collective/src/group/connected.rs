//! A group whose ranks are connected.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use netsum_net::mesh::{Channel, MeshError};
use netsum_net::worker::WorkerDriver;
use netsum_wire::Format;
use parking_lot::Mutex;
use serde_json::json;

use crate::call::Call;
use crate::comm::Comm;
use crate::coordinator::{Coordinator, Event};
use crate::core::{Core, deadline};
use crate::lane::{Body, Job, Lane};
use crate::planned::session::Session;
use crate::status::Status;
use crate::work::Work;

pub(super) struct Connected {
    pub(super) core: Arc<Core>,
    pub(super) lane: Lane,
    pub(super) session: Option<Session>,
    pub(super) coordinator: Coordinator,
    pub(super) driver: Option<Arc<WorkerDriver>>,
    pub(super) status: Arc<Mutex<Status>>,
    /// Numbers are given and queues are filled in the same order.
    pub(super) order_of_calls: Mutex<()>,
}

/// A collective that has its number.
pub(super) struct Issued {
    pub(super) sequence: u64,
    pub(super) fingerprint: u32,
    pub(super) deadline: Instant,
    pub(super) work: Work,
}

impl Connected {
    pub(super) fn issue(
        &self,
        call: Call,
        timeout: Duration,
        go: impl FnOnce(&Connected, Issued),
    ) -> Work {
        let turn = self.order_of_calls.lock();
        let (fingerprint, described) = (call.fingerprint(), call.clone());
        let (sequence, told) = self.core.ledger.issue(call);
        let work = Work::new(described.describe(sequence));
        let deadline = deadline(timeout);
        go(self, Issued { sequence, fingerprint, deadline, work: work.clone() });
        drop(turn);
        let stored = self.core.mesh.stored(Channel::Collective, sequence);
        if told || stored.iter().any(|&(_, other)| other != fingerprint) {
            self.coordinator.tell(Event::Differs(sequence));
        }
        work
    }

    pub(super) fn on_host(
        &self,
        issued: Issued,
        body: impl FnOnce(&mut Comm<'_>) -> Result<(), MeshError> + Send + 'static,
    ) {
        let Issued { sequence, fingerprint, deadline, work } = issued;
        let body: Body = Box::new(body);
        self.lane.push(Job { sequence, fingerprint, deadline, work, body });
    }

    /// Whether an allreduce goes to the trees' lane; all ranks decide alike, whatever the plan of the moment.
    pub(super) fn on_trees(&self, format: Format, bytes: usize) -> bool {
        let least = self.core.min_bytes.get();
        let large = least.is_some_and(|&least| bytes as u64 >= least);
        large && format.in_network() && bytes > 0 && self.core.size > 1
    }

    /// The way of an allreduce of `bytes`, if it goes over the group's plan.
    pub(super) fn on_plan(&self, bytes: usize) -> Option<&Session> {
        self.session.as_ref().filter(|session| bytes as u64 >= session.from_bytes)
    }

    pub(super) fn stats(&self) -> String {
        let (sent, received) = self.core.mesh.traffic();
        let counters = &self.core.counters;
        let group = json!({
            "host_bytes_tx": sent,
            "host_bytes_rx": received,
            "operations": counters.operations.load(Ordering::Relaxed),
            "network_operations": counters.network_operations.load(Ordering::Relaxed),
            "served": counters.served.load(Ordering::Relaxed),
            "redone": counters.redone.load(Ordering::Relaxed),
        });
        let stats = self.driver.as_ref().map(|driver| driver.stats()).unwrap_or_default();
        let status = self.status.lock().clone();
        status.to_json(&stats, group).to_string()
    }
}
