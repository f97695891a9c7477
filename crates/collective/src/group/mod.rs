//! A group of ranks: the interface for frameworks.

mod choice;
mod connected;
mod context;
mod joining;
mod meshed;
mod opened;
mod operations;
mod quick;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use netsum_net::Process;
use parking_lot::Mutex;

pub(crate) use self::connected::Connected;
use self::context::Context;
use self::opened::Opened;
use crate::address::{self, Address};
use crate::coordinator::Event;
use crate::deadline::deadline;
use crate::link_cost::LinkCost;
use crate::queue::{QueueState, Quick};
use crate::recorder::Recorded;
use crate::status::GroupStats;
use crate::{Choice, Error, Format, GroupConfig, explain, responder};

/// One rank's handle to its group. Operations return immediately and complete asynchronously; ranks must call
/// collectives in the same order.
pub struct Group {
    maker: Process,
    config: GroupConfig,
    address: Address,
    /// What was opened before the other ranks are known.
    opened: Mutex<Option<Opened>>,
    connected: ArcSwapOption<Connected>,
    /// The state of the connected group's queue; stored here for operations that complete while their caller holds its
    /// lock.
    state: Arc<Mutex<QueueState>>,
}

impl Group {
    /// Opens this rank's sockets; rank 0 registers the job. Errors name the address and the remedy.
    pub fn new(config: GroupConfig) -> Result<Group, Error> {
        if config.size == 0 || config.rank >= config.size {
            let GroupConfig { rank, size, .. } = config;
            return Err(Error::Unsupported(format!("rank {rank} in a group of {size}")));
        }
        if config.plan.is_some() && config.controller.is_some() {
            let problem = "a group has a tree plan or a controller, not both; unset one of them";
            return Err(Error::Unsupported(problem.to_owned()));
        }
        config.options.check_encryption()?;
        config.options.check_network()?;
        let (opened, address) = Opened::open(&config)?;
        let opened = Mutex::new(Some(opened));
        let (connected, state) = (ArcSwapOption::empty(), Arc::default());
        Ok(Group { maker: Process::this(), config, address, opened, connected, state })
    }

    /// Index of this process.
    pub fn rank(&self) -> u32 {
        self.config.rank
    }

    /// This rank's address for the other ranks; opaque.
    pub fn address(&self) -> Vec<u8> {
        self.address.to_bytes()
    }

    /// Connects to all ranks, given all addresses by rank; with a controller, waits for the first plan.
    pub fn connect(&self, addresses: &[Vec<u8>]) -> Result<(), Error> {
        self.check_process()?;
        let opened = self.opened.lock().take();
        let opened = opened.ok_or_else(|| Error::Closed(self.config.name.clone()))?;
        let all = address::read_all(&self.address, addresses)?;
        let until = deadline(self.config.timeout);
        let context = Context { config: &self.config, address: &self.address, all: &all, until };
        let connected = Arc::new(opened.mesh(&context, &self.state)?.connect(&context)?);
        if connected.silent {
            self.state.lock().allow(Quick::new(&connected.queue));
        }
        self.connected.store(Some(connected.clone()));
        responder::register(&connected);
        Ok(())
    }

    /// Statistics and state of the group; `None` if it is not connected.
    pub fn stats(&self) -> Option<GroupStats> {
        self.connected.load_full().map(|connected| connected.stats())
    }

    /// Costs of the group's messages, by the values on which all ranks agree.
    pub fn link(&self) -> Result<LinkCost, Error> {
        let connected = self.connected.load_full();
        let connected = connected.ok_or_else(|| Error::Closed(self.config.name.clone()))?;
        Ok(connected.link())
    }

    /// The way of an operation of `bytes` per rank, and the reason; see [`crate::explain`]. Switches are among the ways
    /// if their costs were measured.
    pub fn explain(&self, operation: &str, format: Format, bytes: usize) -> Result<Choice, Error> {
        let connected = self.connected.load_full();
        let connected = connected.ok_or_else(|| Error::Closed(self.config.name.clone()))?;
        let order = connected.core.order.load_full();
        let wanted = self.config.options.algorithms.get(operation).map(String::as_str);
        let hosts = explain(&connected.link(), operation, format, bytes, Some(order), wanted)?;
        match format.in_network() {
            true => Ok(connected.with_switches(operation, bytes, hosts)),
            false => Ok(hosts),
        }
    }

    /// The group and its last operations, oldest first; `None` if it is not connected. `why`: the reason for recording.
    pub fn recorded(&self, why: &str) -> Option<Recorded> {
        self.connected.load_full().map(|connected| connected.core.recorded(why))
    }

    /// Writes [`Group::recorded`] into a folder; returns the path of the file.
    pub fn dump(&self, folder: &Path, why: &str) -> Result<PathBuf, Error> {
        self.check_process()?;
        let connected = self.connected.load_full();
        let connected = connected.ok_or_else(|| Error::Closed(self.config.name.clone()))?;
        let problem = |e| Error::Unsupported(format!("cannot write to {}: {e}", folder.display()));
        connected.core.recorded(why).write(folder).map_err(problem)
    }

    /// Asks all ranks what they are doing: a JSON object of [`crate::responder::Evidence`] by rank, without the ranks that
    /// do not answer within `patience`.
    pub fn ask(&self, patience: Duration) -> Result<String, Error> {
        self.check_process()?;
        let connected = self.connected.load_full();
        let connected = connected.ok_or_else(|| Error::Closed(self.config.name.clone()))?;
        let ranks: Vec<u32> = (0..self.config.size).collect();
        Ok(responder::ask(&connected.core, &ranks, patience).to_json())
    }

    /// Why the group has failed, if it has.
    pub fn failure(&self) -> Option<Error> {
        if let Err(error) = self.check_process() {
            return Some(error);
        }
        let Some(connected) = self.connected.load_full() else {
            return Some(Error::Closed(self.config.name.clone()));
        };
        connected.core.failure()
    }

    /// Fails all operations in progress, and every later call.
    pub fn abort(&self, reason: &str) {
        if !self.maker.is_this() {
            return;
        }
        if let Some(connected) = self.connected.load_full() {
            let error = Error::Aborted(reason.to_owned());
            connected.core.fail(error.clone());
            connected.coordinator.send(Event::Fail(error));
            connected.core.mesh.abort(reason);
        }
    }

    /// Leaves the group. Operations in progress fail; messages that were sent arrive. If none is in progress, and
    /// switches add, this rank stays until all others have the sums that it has, at most ten seconds: if a switch dies
    /// now, they get them from here. Has no effect in a forked process: the group belongs to its parent.
    pub fn close(&self) {
        if !self.maker.is_this() {
            return;
        }
        self.opened.lock().take();
        let Some(connected) = self.connected.swap(None) else { return };
        connected.coordinator.wait_to_leave();
        connected.core.fail(Error::Closed(self.config.name.clone()));
        connected.coordinator.close();
        connected.queue.close();
        if let Some(session) = &connected.session {
            session.close();
        }
        connected.core.mesh.leave(LEAVE_PATIENCE);
    }

    fn check_process(&self) -> Result<(), Error> {
        if self.maker.is_this() { Ok(()) } else { Err(Error::Forked { process: self.maker.id() }) }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if !self.maker.is_this() {
            // Closing would wait for threads that this process does not have, and would close the parent's connections.
            std::mem::forget((self.connected.swap(None), self.opened.get_mut().take()));
        }
        self.close();
    }
}

/// Peers answer a goodbye at once unless they are gone, too.
const LEAVE_PATIENCE: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::{Buffer, Options};

    const SIZE: u32 = 4;

    fn group(rank: u32) -> Group {
        let group = Group::new(GroupConfig {
            rank,
            size: SIZE,
            name: "digests".to_owned(),
            controller: None,
            host: Some("127.0.0.1".to_owned()),
            timeout: Duration::from_secs(60),
            options: Options { digest_every: 8, shared_memory: false, ..Options::default() },
            plan: None,
        });
        group.unwrap()
    }

    /// Whoever compares tells all ranks.
    #[test]
    fn a_rank_with_another_result_ends_the_group_and_is_named() {
        let groups: Vec<Group> = (0..SIZE).map(group).collect();
        let addresses: Vec<Vec<u8>> = groups.iter().map(Group::address).collect();
        std::thread::scope(|scope| {
            for group in &groups {
                let addresses = &addresses;
                scope.spawn(move || {
                    group.connect(addresses).unwrap();
                    let core = group.connected.load_full().unwrap().core.clone();
                    let result = |value| Buffer::from_vec(vec![value; 100]);
                    core.compare_result(0, &result(1));
                    core.compare_result(3, &result(group.rank() as u8));
                    core.compare_result(8, &result(u8::from(group.rank() == 2)));
                    assert!(core.await_failure(Instant::now() + Duration::from_secs(60)));
                    let why = core.failure().unwrap().to_string();
                    let named = "the results of operation #8 differ: rank 2 has other bits than the 3 others";
                    assert!(why.contains(named), "{why}");
                });
            }
        });
    }
}
