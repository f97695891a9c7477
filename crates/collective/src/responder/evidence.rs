//! What a process knows about itself and its groups.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::Serialize;

use super::process::{self, Load, ProcessState, Sample, ThreadSample};
use super::{OtherGroup, Stacks};
use crate::group::Connected;
use crate::recorder::RecordedOperation;
use crate::status::GroupStats;

/// The answer of one process.
#[derive(Clone, Debug, Serialize)]
pub struct Evidence {
    /// Version of the format.
    pub format: u32,
    /// The process.
    pub pid: u32,
    /// Time of the answer by this host's clock.
    pub unix_s: f64,
    /// How busy the host is.
    pub load: Load,
    /// The program's threads, the main thread first.
    pub threads: Vec<ThreadSample>,
    /// Of this library's threads the one that waited longest for a processor.
    pub library: Option<ThreadSample>,
    /// The process's groups, those of other libraries last.
    pub groups: Vec<GroupEvidence>,
    /// Call stacks of its interpreter; null: there is none.
    pub stacks: serde_json::Value,
}

/// One group of a process.
#[derive(Clone, Debug, Serialize)]
pub struct GroupEvidence {
    /// Its name.
    pub name: String,
    /// This process's rank.
    pub rank: u32,
    /// Ranks.
    pub size: u32,
    /// Host and process by rank, as "host h0, pid 123"; for groups of more than [`PLACES_MAX`] ranks, the own one alone.
    pub places: Vec<String>,
    /// Why the group has failed, if it has.
    pub failure: Option<String>,
    /// Why the controller cannot be reached, if it cannot.
    pub away: Option<String>,
    /// Number of the next collective.
    pub next: u64,
    /// Operations that have not ended, and the last ones that have, oldest first.
    pub operations: Vec<RecordedOperation>,
    /// Ranks of which nothing has been heard for [`SILENCE`].
    pub silent: Vec<u32>,
    /// Other processes of the group on this host, by rank.
    pub peers: Vec<(u32, ProcessState)>,
    /// Statistics; null: it is a group of another library.
    pub stats: Option<GroupStats>,
}

impl Evidence {
    /// Takes [`SAMPLE`] and at most as long again.
    pub(super) fn collect(
        groups: &[Arc<Connected>],
        others: &[Arc<dyn OtherGroup>],
        stacks: Option<&Stacks>,
    ) -> Evidence {
        let (sample, began) = (Sample::begin(), Instant::now());
        let stacks = stacks.and_then(|stacks| stacks(SAMPLE)).unwrap_or_default();
        std::thread::sleep(SAMPLE.saturating_sub(began.elapsed()));
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        let threads = sample.end();
        Evidence {
            format: 1,
            pid: std::process::id(),
            unix_s: unix.as_secs_f64(),
            load: process::load(),
            threads: threads.program,
            library: threads.library,
            groups: {
                let groups = groups.iter().take(GROUPS_MAX).map(|group| of_group(group));
                groups.chain(others.iter().take(GROUPS_MAX).map(of_other)).collect()
            },
            stacks,
        }
    }
}

fn of_group(group: &Connected) -> GroupEvidence {
    let core = &group.core;
    let recorded = core.recorded("");
    let next = next(&recorded.operations);
    let own = &core.processes[core.rank as usize];
    let peers =
        (0..).zip(&core.processes).filter(|(rank, (host, _))| *rank != core.rank && *host == own.0);
    // Not in the expression below: the lock would be held until its end, and `stats` takes it, too.
    let away = group.status.lock().away.clone();
    let places = if core.size <= PLACES_MAX { core.places.clone() } else { Vec::new() };
    GroupEvidence {
        name: core.name.clone(),
        rank: core.rank,
        size: core.size,
        places,
        failure: recorded.failure,
        away,
        next,
        operations: shortened(recorded.operations),
        silent: core.mesh.unreachable(SILENCE),
        peers: peers
            .take(PEERS_MAX)
            .map(|(rank, (_, pid))| (rank, process::process(*pid)))
            .collect(),
        stats: Some(group.stats()),
    }
}

fn of_other(group: &Arc<dyn OtherGroup>) -> GroupEvidence {
    let recorded = group.recorded();
    GroupEvidence {
        name: recorded.group,
        rank: recorded.rank,
        size: recorded.size,
        places: Vec::new(),
        failure: recorded.failure,
        away: None,
        next: next(&recorded.operations),
        operations: shortened(recorded.operations),
        silent: Vec::new(),
        peers: Vec::new(),
        stats: None,
    }
}

/// The number of the collective after these.
fn next(operations: &[RecordedOperation]) -> u64 {
    operations.iter().filter_map(|op| op.number).max().map_or(0, |n| n + 1)
}

/// Those that have not ended, the first [`OPEN_MAX`], and the last [`ENDED_MAX`] others.
fn shortened(operations: Vec<RecordedOperation>) -> Vec<RecordedOperation> {
    let is_open = |op: &RecordedOperation| op.seconds.is_none();
    let ended = operations.iter().filter(|op| !is_open(op)).count();
    let (mut later, mut open) = (ended, 0);
    let keep = |op: &RecordedOperation| match is_open(op) {
        true => {
            open += 1;
            open <= OPEN_MAX
        }
        false => {
            later -= 1;
            later < ENDED_MAX
        }
    };
    operations.into_iter().filter(keep).collect()
}

/// Time over which threads are observed.
const SAMPLE: Duration = Duration::from_millis(250);
/// A peer's mesh sends keep-alives more often, except where time-outs are long.
pub(super) const SILENCE: Duration = Duration::from_secs(10);
const GROUPS_MAX: usize = 16;
const PLACES_MAX: u32 = 1024;
const PEERS_MAX: usize = 256;
const OPEN_MAX: usize = 16;
const ENDED_MAX: usize = 8;
