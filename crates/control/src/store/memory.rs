//! A store in memory, with failures for tests and simulations.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::contract::{
    Change, ENDED_LOADED, JobRow, MemberRow, Saved, Store, draw_incarnation, first_job,
};
use crate::error::ControlError;

/// Lives as long as its last clone: a clone is the same store, like a file for a restarted controller.
#[derive(Debug, Clone)]
pub struct MemoryStore {
    content: Arc<Mutex<Content>>,
    /// The term in which this clone saves.
    term: u64,
}

#[derive(Debug)]
struct Content {
    incarnation: u64,
    term: u64,
    next_job: u32,
    jobs: BTreeMap<u32, JobRow>,
    members: BTreeMap<(u32, u32), MemberRow>,
    failure: Option<String>,
}

impl MemoryStore {
    /// An empty store with the given incarnation.
    pub fn new(incarnation: u64) -> MemoryStore {
        let next_job = first_job(incarnation);
        let (jobs, members) = (BTreeMap::new(), BTreeMap::new());
        let content = Content { incarnation, term: 0, next_job, jobs, members, failure: None };
        MemoryStore { content: Arc::new(Mutex::new(content)), term: 0 }
    }

    /// An empty store with a random incarnation.
    pub fn drawn() -> Result<MemoryStore, ControlError> {
        draw_incarnation().map(MemoryStore::new)
    }

    /// Makes every further save fail with this error; `None`: saves succeed.
    pub fn fail(&self, problem: Option<&str>) {
        self.content().failure = problem.map(str::to_owned);
    }

    /// Sets the number of the next job, if it is free.
    pub fn set_next_job(&self, next_job: u32) {
        self.content().next_job = next_job;
    }

    /// The newest term.
    pub fn term(&self) -> u64 {
        self.content().term
    }

    /// Sets the newest term.
    pub fn set_term(&self, term: u64) {
        self.content().term = term;
    }

    fn check_term(&self, content: &Content) -> Result<(), ControlError> {
        match content.term == self.term {
            true => Ok(()),
            false => Err(ControlError::Deposed { place: self.place(), term: content.term }),
        }
    }

    fn content(&self) -> MutexGuard<'_, Content> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store for MemoryStore {
    fn begin_term(&mut self) -> Result<u64, ControlError> {
        let mut content = self.content();
        content.term += 1;
        let term = content.term;
        drop(content);
        self.term = term;
        Ok(term)
    }

    fn confirm(&mut self) -> Result<(), ControlError> {
        self.check_term(&self.content())
    }

    fn load(&mut self) -> Result<Saved, ControlError> {
        let content = self.content();
        Ok(Saved {
            incarnation: content.incarnation,
            next_job: content.next_job,
            jobs: content.jobs.values().cloned().collect(),
            members: content.members.values().cloned().collect(),
        })
    }

    fn save(&mut self, changes: &[Change]) -> Result<(), ControlError> {
        let mut content = self.content();
        self.check_term(&content)?;
        if let Some(problem) = &content.failure {
            return Err(ControlError::Store { file: "memory".into(), problem: problem.clone() });
        }
        for change in changes.iter().cloned() {
            match change {
                Change::Incarnation(incarnation) => content.incarnation = incarnation,
                Change::NextJob(next_job) => content.next_job = next_job,
                Change::NewJob(job) => {
                    content.members.retain(|(of, _), _| *of != job.job);
                    content.jobs.insert(job.job, job);
                }
                Change::Job(job) => drop(content.jobs.insert(job.job, job)),
                Change::Member(row) => drop(content.members.insert((row.job, row.rank), row)),
            }
        }
        let over = |job: &&JobRow| ["ended", "abandoned"].contains(&job.phase.as_str());
        let mut ended: Vec<&JobRow> = content.jobs.values().filter(over).collect();
        ended.sort_by(|a, b| a.created_unix_s.total_cmp(&b.created_unix_s));
        let ended: Vec<u32> = ended.into_iter().map(|job| job.job).collect();
        for job in &ended[..ended.len().saturating_sub(ENDED_LOADED as usize)] {
            content.jobs.remove(job);
            content.members.retain(|(of, _), _| of != job);
        }
        Ok(())
    }

    fn place(&self) -> String {
        "memory".to_owned()
    }
}
