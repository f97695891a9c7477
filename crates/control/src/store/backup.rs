//! Copies of stores in files: of any kind of store, into any kind.

use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use prost::Message;

use super::contract::{Change, Saved, Store};
use crate::error::ControlError;
use crate::pb::store as message;

/// What a backup has copied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackupSummary {
    /// Number of jobs, ended ones among them.
    pub jobs: usize,
    /// Number of their ranks.
    pub ranks: usize,
}

/// Writes a copy of a store to a new file, which its owner alone can read: it has the jobs' keys. Nothing changes in the
/// store, and its controllers go on. Errors name the file, which must not exist.
pub fn backup(
    store: &mut dyn Store,
    fabric: &str,
    file: &Path,
) -> Result<BackupSummary, ControlError> {
    let saved = store.load()?;
    let summary = BackupSummary { jobs: saved.jobs.len(), ranks: saved.members.len() };
    let taken = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let copy = message::Backup {
        layout: LAYOUT,
        fabric: fabric.to_owned(),
        incarnation: saved.incarnation,
        next_job: saved.next_job,
        taken_unix_s: taken.as_secs_f64(),
        jobs: saved.jobs.iter().map(message::Job::from).collect(),
        members: saved.members.iter().map(message::Member::from).collect(),
    };
    let body = copy.encode_to_vec();
    let fail =
        |error: std::io::Error| failed(file, format!("the backup cannot be written: {error}"));
    let mut options = OpenOptions::new();
    let mut out = options.write(true).create_new(true).mode(0o600).open(file).map_err(fail)?;
    let head = [MAGIC, &checksum(&body).to_be_bytes()].concat();
    out.write_all(&head).and_then(|()| out.write_all(&body)).map_err(fail)?;
    out.sync_all().map_err(fail)?;
    Ok(summary)
}

/// Fills a new store from a backup. Running jobs of the backup go on when its controllers start. Errors: the file is
/// damaged, is of another fabric or of a newer version, or the store has jobs already.
pub fn restore(
    store: &mut dyn Store,
    fabric: &str,
    file: &Path,
) -> Result<BackupSummary, ControlError> {
    let copy = read(file)?;
    if copy.fabric != fabric {
        let problem = format!("it is a backup of fabric {:?}, not of {fabric:?}", copy.fabric);
        return Err(failed(file, problem));
    }
    store.begin_term()?;
    let jobs = store.load()?.jobs.len();
    if jobs > 0 {
        let problem = format!(
            "the store {} has {jobs} jobs, which the backup would replace; restore into an empty one",
            store.place()
        );
        return Err(failed(file, problem));
    }
    let saved = Saved {
        incarnation: copy.incarnation,
        // Jobs that were created after the backup may still run.
        next_job: copy.next_job.wrapping_add(NUMBERS_SKIPPED),
        jobs: copy.jobs.into_iter().map(Into::into).collect(),
        members: copy.members.into_iter().map(Into::into).collect(),
    };
    let summary = BackupSummary { jobs: saved.jobs.len(), ranks: saved.members.len() };
    store.save(&changes(saved))?;
    Ok(summary)
}

fn changes(saved: Saved) -> Vec<Change> {
    let names = [Change::Incarnation(saved.incarnation), Change::NextJob(saved.next_job)];
    let jobs = saved.jobs.into_iter().map(Change::NewJob);
    let members = saved.members.into_iter().map(Change::Member);
    names.into_iter().chain(jobs).chain(members).collect()
}

fn read(file: &Path) -> Result<message::Backup, ControlError> {
    let mut bytes = Vec::new();
    let opened = OpenOptions::new().read(true).open(file);
    let read = opened.and_then(|mut file| file.read_to_end(&mut bytes));
    read.map_err(|error| failed(file, format!("the backup cannot be read: {error}")))?;
    let rest = bytes.strip_prefix(MAGIC);
    let Some((sum, body)) = rest.and_then(|rest| rest.split_first_chunk()) else {
        return Err(failed(file, "it is no backup of a controller's store".to_owned()));
    };
    let damaged = || failed(file, "the backup is damaged; use another one".to_owned());
    if u64::from_be_bytes(*sum) != checksum(body) {
        return Err(damaged());
    }
    let copy = message::Backup::decode(body).map_err(|_| damaged())?;
    match copy.layout {
        ..=LAYOUT => Ok(copy),
        newer => Err(failed(
            file,
            format!(
                "its layout has version {newer}, this version knows {LAYOUT}; use a newer netsum-controller"
            ),
        )),
    }
}

/// FNV-1a of 64 bits: finds damage, not forgery.
fn checksum(bytes: &[u8]) -> u64 {
    let step = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

fn failed(file: &Path, problem: String) -> ControlError {
    ControlError::Store { file: file.to_owned(), problem }
}

const MAGIC: &[u8] = b"netsum backup\n";
const LAYOUT: u32 = 1;
/// More numbers than a fabric gives out between two backups.
const NUMBERS_SKIPPED: u32 = 10_000;
