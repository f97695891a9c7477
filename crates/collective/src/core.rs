//! What the threads of a group share.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use crossbeam_channel::{Sender, bounded};
use netsum_net::arena::Alarm;
use netsum_net::mesh::{Channel, Key, Mesh, MeshError, Outgoing, Payload};
use netsum_topo::SumOrder;
use parking_lot::{Condvar, Mutex};

use crate::coordinator::Event;
use crate::error::of_mesh;
use crate::hosts::Hosts;
use crate::lane::Desk;
use crate::ledger::Ledger;
use crate::pace::{Pace, Paces};
use crate::recorder::Recorder;
use crate::{Across, Error, Link, Options};

/// State of a connected group.
pub(crate) struct Core {
    pub(crate) name: String,
    pub(crate) rank: u32,
    pub(crate) size: u32,
    pub(crate) mesh: Mesh,
    pub(crate) ledger: Arc<Ledger>,
    /// By rank: "host h0, pid 123".
    pub(crate) places: Vec<String>,
    /// Of messages, for the cost model: as measured, or as given.
    pub(crate) paces: OnceLock<Paces>,
    /// Which ranks share memory.
    pub(crate) hosts: OnceLock<Arc<Hosts>>,
    /// Algorithms by operation, where the options name them.
    pub(crate) algorithms: BTreeMap<String, String>,
    /// In which all ranks are added, on every path.
    pub(crate) order: ArcSwap<SumOrder>,
    pub(crate) counters: Counters,
    pub(crate) recorder: Recorder,
    /// Of the lane on which numbers are given.
    pub(crate) desk: Arc<Mutex<Desk>>,
    /// Smaller buffers go by the host path; of the first plan, so the same at all ranks. Unset: no controller.
    pub(crate) min_bytes: OnceLock<u64>,
    /// Wakes who waits in shared memory.
    pub(crate) alarm: OnceLock<Alarm>,
    failure: Mutex<Option<Error>>,
    /// There is a failure: most calls ask, and hardly ever is there one.
    has_failed: Arc<AtomicBool>,
    failed: Condvar,
    coordinator: Sender<Event>,
}

/// What a group has done.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) operations: AtomicU64,
    pub(crate) network_operations: AtomicU64,
    /// Results of an old epoch that a peer handed over.
    pub(crate) served: AtomicU64,
    /// Fragments that were summed again after a transition.
    pub(crate) redone: AtomicU64,
}

impl Core {
    pub(crate) fn new(
        name: String,
        options: &Options,
        mesh: Mesh,
        ledger: Arc<Ledger>,
        desk: Arc<Mutex<Desk>>,
        places: Vec<String>,
        coordinator: Sender<Event>,
    ) -> Core {
        let (rank, size) = (mesh.rank(), mesh.size());
        Core {
            name,
            rank,
            size,
            mesh,
            ledger,
            places,
            paces: OnceLock::new(),
            hosts: OnceLock::new(),
            algorithms: options.algorithms.clone(),
            order: ArcSwap::from_pointee(SumOrder::flat(size)),
            counters: Counters::default(),
            recorder: Recorder::new(options.recorder.clone()),
            desk,
            min_bytes: OnceLock::new(),
            alarm: OnceLock::new(),
            failure: Mutex::new(None),
            has_failed: Arc::default(),
            failed: Condvar::new(),
            coordinator,
        }
    }

    /// What messages cost where `hosts` tells who shares memory; `None`: nobody.
    pub(crate) fn link(&self, hosts: Option<&Arc<Hosts>>) -> Link {
        let Paces { all, across } = self.paces.get().copied().unwrap_or_default();
        let mixed = hosts.filter(|hosts| hosts.are_mixed());
        let across = mixed.map(|hosts| Across {
            hosts: hosts.clone(),
            latency_s: across.latency_s,
            bytes_per_s: across.bytes_per_s,
        });
        let Pace { latency_s, bytes_per_s } = all;
        let shared_memory = hosts.is_some_and(|hosts| hosts.is_one());
        Link { ranks: self.size, shared_memory, latency_s, bytes_per_s, across }
    }

    /// Waits until the coordinator has heard all that came before: a rank says why it fails before it leaves.
    pub(crate) fn settle(&self) {
        let (reply, settled) = bounded(1);
        if self.coordinator.send(Event::Settle(reply)).is_ok() {
            let _ = settled.recv_timeout(SETTLE_PATIENCE);
        }
    }

    /// Why the group cannot be used any more, if so.
    #[inline]
    pub(crate) fn failure(&self) -> Option<Error> {
        if self.has_failed.load(Ordering::Acquire) { self.failure.lock().clone() } else { None }
    }

    /// Says true when there is a failure.
    pub(crate) fn has_failed(&self) -> Arc<AtomicBool> {
        self.has_failed.clone()
    }

    /// Records what stands in the desk's log: all that other ranks can know of, as who publishes before it is written there
    /// stands at the desk until it is.
    pub(crate) fn write_down(&self) {
        self.desk.lock().write_down(&self.ledger, &self.recorder);
    }

    /// Another rank called something else than we did as operation `sequence`.
    pub(crate) fn differs(&self, sequence: u64) {
        // A coordinator that has ended has failed the group.
        let _ = self.coordinator.send(Event::Differs(sequence));
    }

    /// Waits until the group fails; false if it does not until `deadline`.
    pub(crate) fn await_failure(&self, deadline: Instant) -> bool {
        let mut failure = self.failure.lock();
        let waits = |failure: &mut Option<Error>| failure.is_none();
        !self.failed.wait_while_until(&mut failure, waits, deadline).timed_out()
    }

    /// Ends the group: all collectives that wait fail with `error`, and every later call. The first counts.
    pub(crate) fn fail(&self, error: Error) {
        {
            let mut failure = self.failure.lock();
            if failure.is_some() {
                return;
            }
            *failure = Some(error.clone());
            self.has_failed.store(true, Ordering::Release);
        }
        self.failed.notify_all();
        if let Some(alarm) = self.alarm.get() {
            alarm.ring();
        }
        for sequence in self.ledger.live() {
            self.mesh.end(Channel::Collective, sequence);
        }
        self.note(&error);
    }

    /// The error of an operation that the mesh could not go on with.
    pub(crate) fn explain(
        &self,
        error: MeshError,
        operation: &str,
        elapsed: Duration,
        missing: &[u32],
    ) -> Error {
        let operation = operation.to_owned();
        match error {
            MeshError::Timeout => {
                Error::Timeout { operation, elapsed, missing: self.not_heard_from(missing) }
            }
            MeshError::Size { rank, sent, expected } => {
                Error::Size { operation, rank, sent, expected }
            }
            MeshError::Left { rank } => {
                let place = self.place(rank);
                self.failure().unwrap_or(Error::Left { operation, rank, place })
            }
            MeshError::NoSuchRank { rank, size } => Error::Unsupported(format!(
                "{operation}: rank {rank} cannot be addressed in a group of {size} ranks"
            )),
            other => self.failure().unwrap_or_else(|| of_mesh(&other, |rank| self.place(rank))),
        }
    }

    /// "host h0, pid 123".
    pub(crate) fn place(&self, rank: u32) -> String {
        self.places.get(rank as usize).cloned().unwrap_or_default()
    }

    /// "rank 1 (host h0, pid 123) was not heard from".
    pub(crate) fn not_heard_from(&self, ranks: &[u32]) -> String {
        let name = |&rank: &u32| format!("rank {rank} ({})", self.place(rank));
        match ranks {
            [] => "every rank was heard from".to_owned(),
            [rank] => format!("{} was not heard from", name(rank)),
            ranks => {
                let names: Vec<String> = ranks.iter().map(name).collect();
                format!("{} were not heard from", names.join(", "))
            }
        }
    }

    /// Sends a message about the group itself to one rank.
    pub(crate) fn tell(&self, to: u32, about: About, part: u64, bytes: Vec<u8>) {
        let key = Key { channel: Channel::Control, tag: about as u64, part };
        let payload = Payload::Bytes(bytes);
        self.mesh.send(to, Outgoing { key, fingerprint: 0, payload, deadline: None }, None);
    }

    /// The same to all others.
    pub(crate) fn tell_all(&self, about: About, part: u64, bytes: &[u8]) {
        for to in (0..self.size).filter(|&to| to != self.rank) {
            self.tell(to, about, part, bytes.to_vec());
        }
    }

    pub(crate) fn count_operation(&self, network: bool) {
        self.counters.operations.fetch_add(1, Ordering::Relaxed);
        if network {
            self.counters.network_operations.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// What a control message is about; its `part` says which one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum About {
    /// A call, as text; part: its sequence number.
    Call = 1,
    /// A message of the hand-over between a controller's plans.
    Handover = 2,
    /// Why a rank cannot go on, as text; all others must end, too.
    Failed = 4,
    /// A message of the hand-over between tree plans that rank 0 brings.
    PlanHandover = 5,
}

impl About {
    pub(crate) fn from_tag(tag: u64) -> Option<About> {
        let all = [About::Call, About::Handover, About::Failed, About::PlanHandover];
        all.into_iter().find(|&about| about as u64 == tag)
    }
}

/// The coordinator is never busy for long.
const SETTLE_PATIENCE: Duration = Duration::from_secs(1);

/// `timeout` from now; far away if it cannot be told.
pub(crate) fn deadline(timeout: Duration) -> Instant {
    after(Instant::now(), timeout)
}

/// `timeout` from `now`; far away if it cannot be told.
pub(crate) fn after(now: Instant, timeout: Duration) -> Instant {
    now.checked_add(timeout).unwrap_or_else(|| now + Duration::from_secs(365 * 86_400))
}
