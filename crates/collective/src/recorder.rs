//! The last operations of a group, kept for when something goes wrong.
//!
//! What is kept are the callers' own handles, so recording costs an operation a place in a ring and nothing else; words
//! and times are made when somebody asks. An operation that ended at once, within a microsecond or two, has no time of its
//! end, and its `seconds` are 0; it is in the log of the operation queue until somebody asks or another operation is recorded. A
//! group with a folder writes itself there when it fails.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::time::Instant;

use parking_lot::{Mutex, MutexGuard};
use serde::Serialize;
use smallvec::SmallVec;

use crate::Error;
use crate::ledger::Ledger;
use crate::work::{OperationSummary, Work};

/// A group and its last operations.
#[derive(Clone, Debug, Serialize)]
pub struct Recorded {
    /// Version of the file format; a reader refuses others.
    pub format: u32,
    /// The group's name.
    pub group: String,
    /// This rank.
    pub rank: u32,
    /// Ranks of the group.
    pub size: u32,
    /// Host and process.
    pub place: String,
    /// What gave rise to it.
    pub why: String,
    /// Why the group cannot be used any more.
    pub failure: Option<String>,
    /// By this rank's clock.
    pub written_unix_s: f64,
    /// Oldest first.
    pub operations: Vec<RecordedOperation>,
}

/// One call.
#[derive(Clone, Debug, Serialize)]
pub struct RecordedOperation {
    /// Its place among the group's collectives; `None` for messages.
    pub number: Option<u64>,
    /// In words.
    pub call: String,
    /// By this rank's clock.
    pub called_unix_s: f64,
    /// Until it ended; `None`: it has not.
    pub seconds: Option<f64>,
    /// Why it failed.
    pub error: Option<String>,
    /// The data of a collective; `None` for messages.
    #[serde(flatten)]
    pub data: Option<RecordedData>,
}

/// What a collective works on.
#[derive(Clone, Debug, Serialize)]
pub struct RecordedData {
    /// The type of its elements, where it combines them.
    pub dtype: Option<&'static str>,
    /// Per rank.
    pub bytes: u64,
}

/// A ring of operations, oldest first.
#[derive(Default)]
pub(crate) struct Recorder {
    /// Where the group writes itself when it fails.
    folder: Option<PathBuf>,
    ring: Mutex<VecDeque<Work>>,
    /// Why it was first written.
    why: Mutex<Option<String>>,
}

impl Recorder {
    pub(crate) fn new(folder: Option<PathBuf>) -> Recorder {
        Recorder { folder, ..Recorder::default() }
    }

    /// Remembers an operation that was called.
    pub(crate) fn add(&self, work: &Work) {
        let mut ring = self.ring.lock();
        ring.push_back(work.clone());
        Recorder::keep_the_last(ring);
    }

    /// Remembers operations, of which some may have been called before others that are here.
    pub(crate) fn add_all(&self, works: impl Iterator<Item = Work>) {
        let mut ring = self.ring.lock();
        ring.extend(works);
        ring.make_contiguous().sort_by_key(Work::called);
        Recorder::keep_the_last(ring);
    }

    /// The last operations, with the times of this rank's clock: `now` is `unix_s` seconds after 1970.
    pub(crate) fn operations(&self, now: Instant, unix_s: f64) -> Vec<RecordedOperation> {
        let ring: Vec<Work> = self.ring.lock().iter().cloned().collect();
        let line = |work: &Work| {
            let called = unix_s - now.saturating_duration_since(work.called()).as_secs_f64();
            let seconds = work.ended().map(|ended| (ended - work.called()).as_secs_f64());
            let (number, call, data) = match work.about() {
                OperationSummary::Collective(call, number) => {
                    let dtype = call.dtype().map(|dtype| dtype.name());
                    let data = RecordedData { dtype, bytes: call.bytes() };
                    (Some(*number), call.to_string(), Some(data))
                }
                other => (None, other.to_string(), None),
            };
            let error = work.error().map(|error| error.to_string());
            RecordedOperation { number, call, called_unix_s: called, seconds, error, data }
        };
        ring.iter().map(line).collect()
    }

    /// An operation or the group has failed: the group writes its operations where its options say. The first reason
    /// is kept.
    pub(crate) fn note(&self, error: &Error, recorded: impl FnOnce(&str) -> Recorded) {
        let Some(folder) = &self.folder else { return };
        if matches!(error, Error::Closed(_)) {
            return;
        }
        let mut why = self.why.lock();
        let why = why.get_or_insert_with(|| error.to_string());
        if let Err(problem) = recorded(why).write(folder) {
            tracing::warn!(%problem, folder = %folder.display(), "the last operations cannot be written");
        }
    }

    fn keep_the_last(mut ring: MutexGuard<'_, VecDeque<Work>>) {
        let many = ring.len().saturating_sub(KEPT);
        let oldest: SmallVec<[Work; 1]> = ring.drain(..many).collect();
        drop(ring);
        // Freed without the lock.
        drop(oldest);
    }
}

/// Operations that have ended and are not in the recorder yet.
pub(crate) trait UnrecordedOperations: Send + Sync {
    /// Records them.
    fn flush_log(&self, ledger: &Ledger, recorder: &Recorder);
}

impl Recorded {
    /// Writes the operations into `folder`; the file's path.
    pub(crate) fn write(&self, folder: &Path) -> std::io::Result<PathBuf> {
        let plain = |c: char| if c.is_ascii_alphanumeric() || c == '_' { c } else { '-' };
        let group: String = self.group.chars().map(plain).collect();
        let path = folder.join(format!("netsum-{group}-rank{}.json", self.rank));
        let partial = path.with_extension(format!("part{}", std::process::id()));
        std::fs::create_dir_all(folder)?;
        let text = serde_json::to_string_pretty(self).map_err(std::io::Error::from)?;
        std::fs::write(&partial, text + "\n")?;
        std::fs::rename(&partial, &path)?;
        Ok(path)
    }
}

/// Operations: several steps of a training, and some hundred kilobytes as JSON.
pub(crate) const KEPT: usize = 512;
/// Version of the file format; a reader refuses others.
pub(crate) const FORMAT: u32 = 1;
