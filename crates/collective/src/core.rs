//! The state that the threads of a group share: mesh, ledger, failure, counters.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use arc_swap::ArcSwap;
use netsum_net::Buffer;
use netsum_net::arena::Alarm;
use netsum_net::mesh::{Channel, Key, Mesh, MeshError, Outgoing, Payload};
use netsum_topo::SumOrder;
use parking_lot::{Condvar, Mutex};

use crate::Error;
use crate::digest::{Difference, Digests};
use crate::error::of_mesh;
use crate::events::GroupEvents;
use crate::ledger::Ledger;
use crate::link_cost::Paces;
use crate::messages::MessageKind;
use crate::recorder::{self, Recorded, Recorder, RecorderReport, UnrecordedOperations};

/// The shared state of a group whose mesh is connected.
pub(crate) struct Core {
    pub(crate) name: String,
    pub(crate) rank: u32,
    pub(crate) size: u32,
    pub(crate) mesh: Mesh,
    pub(crate) ledger: Arc<Ledger>,
    /// Host and process by rank, as "host h0, pid 123".
    pub(crate) places: Vec<String>,
    /// The same by its parts.
    pub(crate) processes: Vec<(String, u32)>,
    /// Costs of messages, as measured or as given; the default before.
    pub(crate) paces: Paces,
    /// Algorithms by operation, as options name them.
    pub(crate) algorithms: BTreeMap<String, String>,
    /// The order of additions on every path.
    pub(crate) order: ArcSwap<SumOrder>,
    pub(crate) counters: Counters,
    pub(crate) recorder: Recorder,
    /// Completed operations that the recorder does not have yet.
    unrecorded: Arc<dyn UnrecordedOperations>,
    /// Smaller buffers use the host path. Set by the first plan, so equal at all ranks; unset without a controller.
    pub(crate) min_bytes: OnceLock<u64>,
    /// Wakes threads that wait in shared memory.
    pub(crate) alarm: Option<Alarm>,
    pub(crate) digests: Digests,
    failure: Mutex<Option<Error>>,
    /// Whether `failure` is set: most calls check it, without the lock.
    has_failed: Arc<AtomicBool>,
    failed: Condvar,
    pub(crate) events: Arc<dyn GroupEvents>,
}

/// Counters of a group.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) operations: AtomicU64,
    pub(crate) network_operations: AtomicU64,
    /// Results of an old epoch that peers served to this rank.
    pub(crate) served: AtomicU64,
    /// Fragments that were summed again after a transition.
    pub(crate) redone: AtomicU64,
}

/// The parts of a group's state.
pub(crate) struct CoreParts {
    pub(crate) name: String,
    pub(crate) mesh: Mesh,
    pub(crate) ledger: Arc<Ledger>,
    /// Host and process by rank, as "host h0, pid 123".
    pub(crate) places: Vec<String>,
    /// The same by its parts.
    pub(crate) processes: Vec<(String, u32)>,
    pub(crate) algorithms: BTreeMap<String, String>,
    /// See [`crate::Options::digest_every`].
    pub(crate) digest_every: u64,
    pub(crate) recorder: Recorder,
    pub(crate) unrecorded: Arc<dyn UnrecordedOperations>,
    pub(crate) events: Arc<dyn GroupEvents>,
}

impl Core {
    pub(crate) fn new(parts: CoreParts) -> Core {
        let CoreParts { name, mesh, ledger, places, algorithms, digest_every, .. } = parts;
        let CoreParts { processes, recorder, unrecorded, events, .. } = parts;
        let (rank, size) = (mesh.rank(), mesh.size());
        Core {
            name,
            rank,
            size,
            mesh,
            ledger,
            places,
            processes,
            paces: Paces::default(),
            algorithms,
            order: ArcSwap::from_pointee(SumOrder::flat(size)),
            counters: Counters::default(),
            recorder,
            unrecorded,
            min_bytes: OnceLock::new(),
            alarm: None,
            digests: Digests::new(digest_every, rank, size),
            failure: Mutex::new(None),
            has_failed: Arc::default(),
            failed: Condvar::new(),
            events,
        }
    }

    /// Waits until the coordinator has handled all events so far: a rank reports its failure before it leaves.
    pub(crate) fn settle(&self) {
        self.events.settle(SETTLE_PATIENCE);
    }

    /// Why the group has failed, if it has.
    #[inline]
    pub(crate) fn failure(&self) -> Option<Error> {
        if self.has_failed.load(Ordering::Acquire) { self.failure.lock().clone() } else { None }
    }

    /// A flag that is set when the group fails.
    pub(crate) fn has_failed(&self) -> Arc<AtomicBool> {
        self.has_failed.clone()
    }

    /// Waits until the group fails; false if it does not before `deadline`.
    pub(crate) fn await_failure(&self, deadline: Instant) -> bool {
        let mut failure = self.failure.lock();
        let waits = |failure: &mut Option<Error>| failure.is_none();
        !self.failed.wait_while_until(&mut failure, waits, deadline).timed_out()
    }

    /// Fails the group: all waiting collectives and every later call return `error`. Only the first error is kept.
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
        if let Some(alarm) = &self.alarm {
            alarm.ring();
        }
        for sequence in self.ledger.live() {
            self.mesh.end(Channel::Collective, sequence);
        }
        self.note(&error);
    }

    /// The group and its last operations; `why`: the reason for recording.
    pub(crate) fn recorded(&self, why: &str) -> Recorded {
        let (now, unix) = (Instant::now(), SystemTime::now().duration_since(UNIX_EPOCH));
        let unix_s = unix.unwrap_or(Duration::ZERO).as_secs_f64();
        self.unrecorded.flush_log(&self.ledger, &self.recorder);
        Recorded {
            format: recorder::FORMAT,
            group: self.name.clone(),
            rank: self.rank,
            size: self.size,
            place: self.place(self.rank),
            why: why.to_owned(),
            failure: self.failure().map(|failure| failure.to_string()),
            written_unix_s: unix_s,
            operations: self.recorder.operations(now, unix_s),
        }
    }

    /// What the controller is told of the last operations.
    pub(crate) fn recorder_report(&self) -> RecorderReport {
        let (now, unix) = (Instant::now(), SystemTime::now().duration_since(UNIX_EPOCH));
        self.unrecorded.flush_log(&self.ledger, &self.recorder);
        self.recorder.report(now, unix.unwrap_or(Duration::ZERO).as_secs_f64())
    }

    /// Records a failure of an operation or of the group: writes the group's operations to the folder of the options.
    pub(crate) fn note(&self, error: &Error) {
        self.recorder.note(error, |why| self.recorded(why));
    }

    /// The error of an operation that failed in the mesh.
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

    /// Host and process of a rank, as "host h0, pid 123".
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

    /// Sends a control message to one rank.
    pub(crate) fn send(&self, to: u32, kind: MessageKind, part: u64, bytes: Vec<u8>) {
        let key = Key { channel: Channel::Control, tag: kind as u64, part };
        let payload = Payload::Bytes(bytes);
        self.mesh.send(to, Outgoing { key, fingerprint: 0, payload, deadline: None }, None);
    }

    /// Sends a control message to all other ranks.
    pub(crate) fn send_all(&self, kind: MessageKind, part: u64, bytes: &[u8]) {
        for to in (0..self.size).filter(|&to| to != self.rank) {
            self.send(to, kind, part, bytes.to_vec());
        }
    }

    /// Sends a hash of the result to the rank that compares those of all, if this operation's turn has come.
    pub(crate) fn compare_result(&self, sequence: u64, result: &Buffer) {
        if !self.digests.is_due(sequence) {
            return;
        }
        let (digest, to) = self.digests.hash(sequence, result);
        if to == self.rank {
            self.take_digest(sequence, to, digest);
        } else {
            self.send(to, MessageKind::Digest, sequence, digest.to_be_bytes().to_vec());
        }
    }

    /// Takes a rank's hash; the group fails if the results differ.
    pub(crate) fn take_digest(&self, sequence: u64, from: u32, digest: u64) {
        let Some(Difference { ranks }) = self.digests.take(sequence, from, digest) else { return };
        let error = Error::ResultsDiffer { sequence, ranks, size: self.size };
        self.send_all(MessageKind::Failed, 0, error.to_string().as_bytes());
        self.events.failed(error);
    }

    pub(crate) fn count_operation(&self, network: bool) {
        self.counters.operations.fetch_add(1, Ordering::Relaxed);
        if network {
            self.counters.network_operations.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The coordinator handles every event quickly.
const SETTLE_PATIENCE: Duration = Duration::from_secs(1);
