//! Keys and values of the store in etcd. Keys here are without the store's prefix.

use std::collections::BTreeMap;

use prost::Message;

use super::Turn;
use crate::pb::store as message;
use crate::pb::store::{Part, Write};
use crate::store::contract::{Change, Saved};

/// The term and its writes.
pub(super) const TURN: &str = "turn";
/// Who leads.
pub(super) const LEADER: &str = "leader";
/// What names the store.
pub(super) const META: &str = "meta";
/// The number of the next job.
pub(super) const NEXT_JOB: &str = "next_job";
/// Number of parts of a batch that is made and not completed.
pub(super) const BATCH: &str = "batch";
/// Parts of a batch.
pub(super) const PARTS: &str = "parts/";
const JOBS: &str = "jobs/";
const MEMBERS: &str = "members/";
/// The layout of keys and values; see [`message::Meta`].
pub(super) const LAYOUT: u32 = 1;

pub(super) fn job_key(job: u32) -> String {
    format!("{JOBS}{job:08x}")
}

/// Of all ranks of a job.
pub(super) fn members_key(job: u32) -> String {
    format!("{MEMBERS}{job:08x}/")
}

pub(super) fn part_key(number: u32) -> String {
    format!("{PARTS}{number:08x}")
}

/// Deletes a key, or all keys that begin with it if it ends in a slash.
pub(super) fn removal(key: impl Into<String>) -> Write {
    Write { key: key.into(), value: None }
}

/// Deletes a job and its ranks.
pub(super) fn forget(job: u32) -> Vec<Write> {
    vec![removal(members_key(job)), removal(job_key(job))]
}

/// The writes of changes. Of several of one key the last counts: a transaction of etcd writes a key once.
pub(super) fn writes(changes: &[Change]) -> Vec<Write> {
    let mut writes = BTreeMap::new();
    for change in changes {
        let (key, value) = match change {
            Change::Incarnation(incarnation) => {
                let meta = message::Meta { layout: LAYOUT, incarnation: *incarnation };
                (META.to_owned(), meta.encode_to_vec())
            }
            Change::NextJob(next) => (NEXT_JOB.to_owned(), next.to_string().into_bytes()),
            Change::NewJob(job) | Change::Job(job) => {
                (job_key(job.job), message::Job::from(job).encode_to_vec())
            }
            Change::Member(row) => (
                format!("{}{:08x}", members_key(row.job), row.rank),
                message::Member::from(row).encode_to_vec(),
            ),
        };
        writes.insert(key, value);
    }
    writes.into_iter().map(|(key, value)| Write { key, value: Some(value) }).collect()
}

/// All that a store holds.
#[derive(Debug, Default)]
pub(super) struct Place {
    values: BTreeMap<String, Vec<u8>>,
    pub batch: Option<u32>,
    pub parts: BTreeMap<u32, Part>,
}

impl Place {
    /// Adds a key. Errors: what is wrong with it.
    pub fn add(&mut self, key: String, value: Vec<u8>) -> Result<(), String> {
        let damaged = || format!("the value of {key} is damaged");
        if let Some(number) = key.strip_prefix(PARTS) {
            let number = u32::from_str_radix(number, 16).map_err(|_| damaged())?;
            let part = Part::decode(value.as_slice()).map_err(|_| damaged())?;
            self.parts.insert(number, part);
        } else if key == BATCH {
            self.batch = Some(number(&value).ok_or_else(damaged)?);
        } else {
            self.values.insert(key, value);
        }
        Ok(())
    }

    /// The term in force.
    pub fn turn(&self) -> Option<Turn> {
        Turn::decode(self.values.get(TURN)?)
    }

    /// The rows. Errors: what is wrong with the store.
    pub fn saved(&self) -> Result<Saved, String> {
        let value = |key: &str| self.values.get(key).ok_or_else(|| format!("it has no key {key}"));
        let meta = meta(value(META)?)?;
        let next_job = number(value(NEXT_JOB)?).ok_or("the value of next_job is damaged")?;
        let mut saved = Saved { incarnation: meta.incarnation, next_job, ..Saved::default() };
        for (key, value) in &self.values {
            let damaged = |_| format!("the value of {key} is damaged");
            if key.starts_with(JOBS) {
                let job = message::Job::decode(value.as_slice()).map_err(damaged)?;
                saved.jobs.push(job.into());
            } else if key.starts_with(MEMBERS) {
                let member = message::Member::decode(value.as_slice()).map_err(damaged)?;
                saved.members.push(member.into());
            }
        }
        Ok(saved)
    }
}

/// What names the store. Errors: it is damaged, or of a newer version.
pub(super) fn meta(value: &[u8]) -> Result<message::Meta, String> {
    let meta = message::Meta::decode(value).map_err(|_| "the value of meta is damaged")?;
    match meta.layout {
        ..=LAYOUT => Ok(meta),
        newer => Err(format!(
            "its layout has version {newer}, this controller knows {LAYOUT}; use a newer controller"
        )),
    }
}

fn number(value: &[u8]) -> Option<u32> {
    std::str::from_utf8(value).ok()?.parse().ok()
}

impl Turn {
    pub fn encode(self) -> Vec<u8> {
        format!("{}.{}", self.term, self.writes).into_bytes()
    }

    pub fn decode(value: &[u8]) -> Option<Turn> {
        let (term, writes) = std::str::from_utf8(value).ok()?.split_once('.')?;
        Some(Turn { term: term.parse().ok()?, writes: writes.parse().ok()? })
    }
}
