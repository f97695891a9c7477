//! NCCL's operations as netsum's flight recorder has its own: this process answers `netsum why` with them, and `netsum
//! recorder` reads what this writes.
//!
//! A collective of NCCL has ended when its own event and those of its parts have: the calling thread stops the first
//! one as soon as the kernel is launched, the proxy's threads stop the others when the network has done its work.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use netsum_collective::responder::{self, OtherGroup};
use netsum_collective::{RECORDED_MAX, Recorded, RecordedData, RecordedOperation};
use netsum_nccl_core::{Failure, SYSTEM_ERROR};
use parking_lot::Mutex;

use crate::interface::Handle;

/// A communicator whose operations are recorded.
pub(crate) struct Profiled {
    group: String,
    rank: u32,
    size: u32,
    /// Where to write; `None`: nowhere.
    folder: Option<PathBuf>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Collectives so far.
    collectives: u64,
    operations: VecDeque<Arc<Operation>>,
}

/// An operation, or a part of one.
pub(crate) struct Operation {
    number: Option<u64>,
    call: String,
    data: Option<RecordedData>,
    called: Instant,
    state: Mutex<Parts>,
    /// NCCL's handle of it.
    handle: OnceLock<Handle>,
}

struct Parts {
    /// Events that have not stopped: this one and its parts.
    open: usize,
    ended: Option<Instant>,
}

/// An event that NCCL holds.
pub(crate) struct Open {
    operation: Arc<Operation>,
    /// Whether it is a part of the operation, and not the operation itself.
    pub(crate) is_part: bool,
}

static ALL: Mutex<Vec<Weak<Profiled>>> = Mutex::new(Vec::new());

impl Profiled {
    /// A communicator whose operations are in this process's answers from now on.
    pub(crate) fn new(
        group: String,
        (rank, size): (u32, u32),
        folder: Option<PathBuf>,
    ) -> Arc<Profiled> {
        let profiled = Arc::new(Profiled { group, rank, size, folder, state: Mutex::default() });
        let mut all = ALL.lock();
        all.retain(|other| other.strong_count() > 0);
        all.push(Arc::downgrade(&profiled));
        drop(all);
        let answers: Arc<dyn OtherGroup> = profiled.clone();
        responder::include(&answers);
        profiled
    }

    /// Begins a collective, or a message if there is no data. Also returns the handle of the oldest operation, if that
    /// is not kept any longer.
    pub(crate) fn start(&self, call: String, data: Option<RecordedData>) -> (Open, Option<Handle>) {
        let mut state = self.state.lock();
        let number = data.is_some().then(|| {
            state.collectives += 1;
            state.collectives - 1
        });
        let open = Mutex::new(Parts { open: 1, ended: None });
        let operation = Arc::new(Operation {
            number,
            call,
            data,
            called: Instant::now(),
            state: open,
            handle: OnceLock::new(),
        });
        state.operations.push_back(operation.clone());
        let many = state.operations.len() > RECORDED_MAX;
        let oldest = if many { state.operations.pop_front() } else { None };
        (Open { operation, is_part: false }, oldest.and_then(|oldest| oldest.handle.get().copied()))
    }

    /// The handles of all operations that are kept.
    pub(crate) fn handles(&self) -> Vec<Handle> {
        let state = self.state.lock();
        state.operations.iter().filter_map(|operation| operation.handle.get().copied()).collect()
    }

    /// Writes the last operations into the folder, if there is one; returns the file.
    pub(crate) fn write(&self, why: &str) -> Result<Option<PathBuf>, Failure> {
        let Some(folder) = &self.folder else { return Ok(None) };
        let written = self.recorded_for(why).write(folder);
        written.map(Some).map_err(|error| Failure {
            code: SYSTEM_ERROR,
            words: format!("cannot write to {}: {error}", folder.display()),
        })
    }

    fn recorded_for(&self, why: &str) -> Recorded {
        let (now, unix) = (Instant::now(), SystemTime::now().duration_since(UNIX_EPOCH));
        let unix_s = unix.map_or(0.0, |unix| unix.as_secs_f64());
        let operations: Vec<Arc<Operation>> =
            self.state.lock().operations.iter().cloned().collect();
        let line = |operation: &Arc<Operation>| RecordedOperation {
            number: operation.number,
            call: operation.call.clone(),
            called_unix_s: unix_s - now.saturating_duration_since(operation.called).as_secs_f64(),
            seconds: {
                let ended = operation.state.lock().ended;
                ended.map(|ended| ended.saturating_duration_since(operation.called).as_secs_f64())
            },
            error: None,
            data: operation.data.clone(),
        };
        let operations = operations.iter().map(line).collect();
        Recorded::of_others(self.group.clone(), (self.rank, self.size), why, unix_s, operations)
    }
}

impl OtherGroup for Profiled {
    fn recorded(&self) -> Recorded {
        self.recorded_for("asked")
    }
}

impl Open {
    /// Begins a part of this operation.
    pub(crate) fn part(&self) -> Open {
        let mut state = self.operation.state.lock();
        state.open += 1;
        state.ended = None;
        drop(state);
        Open { operation: self.operation.clone(), is_part: true }
    }

    /// Remembers NCCL's handle of the operation.
    pub(crate) fn keep(&self, handle: Handle) {
        if !self.is_part {
            let _ = self.operation.handle.set(handle);
        }
    }

    /// Ends this event.
    pub(crate) fn stop(&self) {
        let mut state = self.operation.state.lock();
        state.open = state.open.saturating_sub(1);
        if state.open == 0 {
            state.ended = Some(Instant::now());
        }
    }
}

/// Writes the last operations of all communicators: a call has failed, and the process may not get far.
pub(crate) fn write_all(why: &str) {
    let all: Vec<Arc<Profiled>> = ALL.lock().iter().filter_map(Weak::upgrade).collect();
    for profiled in all {
        // The failure itself is what the user must learn; the log has it already.
        let _ = profiled.write(why);
    }
}
