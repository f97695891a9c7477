//! Flight recorder: the last operations of a group.
//!
//! The recorder keeps the callers' own handles, so recording costs an operation only an entry in a ring; text and times
//! are produced on request. A quick operation, which completes within a microsecond or two, has no recorded end, and
//! its `seconds` are 0; it stays in the log of the operation queue until a request, or until another operation is
//! recorded. A group with a folder writes a dump there when it fails.

use std::collections::VecDeque;
use std::fs::{DirBuilder, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

use netsum_control::pb;
use netsum_net::unguessable_name;
use parking_lot::{Mutex, MutexGuard};
use serde::Serialize;
use smallvec::SmallVec;

use crate::Error;
use crate::call::Call;
use crate::ledger::Ledger;
use crate::steps::{Step, training_steps};
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
    /// Host and process of the rank.
    pub place: String,
    /// The reason for recording.
    pub why: String,
    /// Why the group has failed, if it has.
    pub failure: Option<String>,
    /// Time of writing by this rank's clock.
    pub written_unix_s: f64,
    /// Operations, oldest first.
    pub operations: Vec<RecordedOperation>,
}

/// One operation.
#[derive(Clone, Debug, Serialize)]
pub struct RecordedOperation {
    /// Its number among the group's collectives; `None` for messages.
    pub number: Option<u64>,
    /// Description of the call.
    pub call: String,
    /// Time of the call by this rank's clock.
    pub called_unix_s: f64,
    /// Duration; `None`: the operation is in progress.
    pub seconds: Option<f64>,
    /// Why it failed.
    pub error: Option<String>,
    /// Data of a collective; `None` for messages.
    #[serde(flatten)]
    pub data: Option<RecordedData>,
}

/// Data of a collective.
#[derive(Clone, Debug, Serialize)]
pub struct RecordedData {
    /// Type of its elements, if it combines them.
    pub dtype: Option<&'static str>,
    /// Bytes per rank.
    pub bytes: u64,
}

/// A ring of operations, oldest first.
#[derive(Default)]
pub(crate) struct Recorder {
    /// Folder for the dump when the group fails.
    folder: Option<PathBuf>,
    ring: Mutex<VecDeque<Work>>,
    /// Reason of the first dump.
    why: Mutex<Option<String>>,
}

impl Recorder {
    pub(crate) fn new(folder: Option<PathBuf>) -> Recorder {
        Recorder { folder, ..Recorder::default() }
    }

    /// Records an operation that was called.
    pub(crate) fn add(&self, work: &Work) {
        let mut ring = self.ring.lock();
        ring.push_back(work.clone());
        Recorder::keep_the_last(ring);
    }

    /// Records operations, of which some may have been called before others that are recorded.
    pub(crate) fn add_all(&self, works: impl Iterator<Item = Work>) {
        let mut ring = self.ring.lock();
        ring.extend(works);
        ring.make_contiguous().sort_by_key(Work::called);
        Recorder::keep_the_last(ring);
    }

    /// The last operations with times of this rank's clock: `now` is `unix_s` seconds after 1970.
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

    /// The recorded collectives for a report to the controller: the last ones, and the step that they repeat.
    pub(crate) fn report(&self, now: Instant, unix_s: f64) -> RecorderReport {
        let ring: Vec<Work> = self.ring.lock().iter().cloned().collect();
        let mut names = Vec::with_capacity(ring.len());
        let mut times = Vec::with_capacity(ring.len());
        let mut recent = VecDeque::with_capacity(REPORTED);
        for work in &ring {
            let OperationSummary::Collective(call, number) = work.about() else { continue };
            let called = unix_s - now.saturating_duration_since(work.called()).as_secs_f64();
            let seconds = work.ended().map(|ended| (ended - work.called()).as_secs_f64());
            names.push((call.name(), call.bytes()));
            times.push((called, seconds.map(|seconds| called + seconds)));
            if recent.len() == REPORTED {
                recent.pop_front();
            }
            recent.push_back((call, *number, called, seconds));
        }
        let operation = |(call, number, called_unix_s, seconds): (&Call, u64, f64, Option<f64>)| {
            let dtype = call.dtype().map(|dtype| format!(" {}", dtype.name())).unwrap_or_default();
            let (call, bytes) = (format!("{}{dtype}", call.name()), call.bytes());
            pb::RecentOperation { number, call, bytes, called_unix_s, seconds }
        };
        RecorderReport {
            step: Step::median(&training_steps(&names, &times)),
            recent: recent.into_iter().map(operation).collect(),
        }
    }

    /// Handles a failure of an operation or of the group: writes a dump to the folder of the options. Keeps the first
    /// reason.
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
        // Freed outside of the lock.
        drop(oldest);
    }
}

/// What the recorder knows of a job, for the controller.
pub(crate) struct RecorderReport {
    /// The median of the last training steps.
    pub(crate) step: Option<Step>,
    /// The last collectives, oldest first.
    pub(crate) recent: Vec<pb::RecentOperation>,
}

/// Completed operations that the recorder does not have yet.
pub(crate) trait UnrecordedOperations: Send + Sync {
    /// Records them.
    fn flush_log(&self, ledger: &Ledger, recorder: &Recorder);
}

impl Recorded {
    /// Operations of a group that is not netsum's, but is recorded as one.
    pub fn of_others(
        group: String,
        (rank, size): (u32, u32),
        why: &str,
        written_unix_s: f64,
        operations: Vec<RecordedOperation>,
    ) -> Recorded {
        Recorded {
            format: FORMAT,
            group,
            rank,
            size,
            place: format!("pid {}", std::process::id()),
            why: why.to_owned(),
            failure: None,
            written_unix_s,
            operations,
        }
    }

    /// Writes a dump into `folder`, readable by this user alone; returns the path of the file.
    pub fn write(&self, folder: &Path) -> std::io::Result<PathBuf> {
        let plain = |c: char| if c.is_ascii_alphanumeric() || c == '_' { c } else { '-' };
        let group: String = self.group.chars().map(plain).collect();
        let path = folder.join(format!("netsum-{group}-rank{}.json", self.rank));
        let name = unguessable_name(&format!("part{}", std::process::id()))?;
        let partial = path.with_extension(name);
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let text = serde_json::to_string_pretty(self).map_err(std::io::Error::from)?;
        // A new file, which follows no link that somebody has placed in a shared folder.
        let mut file =
            OpenOptions::new().write(true).create_new(true).mode(0o600).open(&partial)?;
        file.write_all((text + "\n").as_bytes())?;
        std::fs::rename(&partial, &path)?;
        Ok(path)
    }
}

/// Number of operations that a dump has: several training steps, and some hundred kilobytes as JSON.
pub const KEPT: usize = 512;
/// Number of operations in a report to the controller, which takes no more.
const REPORTED: usize = 64;
/// Version of the file format; a reader refuses others.
pub(crate) const FORMAT: u32 = 1;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, symlink};

    use super::*;

    #[test]
    fn a_dump_is_its_users_alone_and_follows_no_link() {
        let recorded = Recorded {
            format: FORMAT,
            group: "world".to_owned(),
            rank: 3,
            size: 4,
            place: String::new(),
            why: String::new(),
            failure: None,
            written_unix_s: 0.0,
            operations: Vec::new(),
        };
        let name = unguessable_name("netsum-recorder").unwrap();
        let base = std::env::temp_dir().join(name);
        let (folder, victim) = (base.join("dumps"), base.join("victim"));
        let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o777;
        recorded.write(&folder).unwrap();
        assert_eq!(mode(&folder), 0o700);
        // Somebody else has placed links in a shared folder.
        std::fs::write(&victim, "kept").unwrap();
        let path = folder.join("netsum-world-rank3.json");
        std::fs::remove_file(&path).unwrap();
        symlink(&victim, &path).unwrap();
        let part = path.with_extension(format!("part{}", std::process::id()));
        symlink(&victim, &part).unwrap();
        assert_eq!(recorded.write(&folder).unwrap(), path);
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "kept");
        assert!(!path.is_symlink());
        assert_eq!(mode(&path), 0o600);
        std::fs::remove_dir_all(base).unwrap();
    }
}
