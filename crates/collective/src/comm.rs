//! The messages of one operation: an algorithm's view of the group.

use std::cell::OnceCell;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use netsum_net::Buffer;
use netsum_net::mesh::{Channel, Key, MeshError, Outgoing, Payload, Receive, Target, Wanted};
use parking_lot::{Condvar, Mutex};

use crate::core::Core;
use crate::hosts::Hosts;
use crate::link_cost::LinkCost;
use crate::shared::{Rounds, Shared};
use crate::terms::Here;

/// Sends and receives of one operation. Both sides number messages by `part`: a receive matches the message that the
/// other rank sent under the same part.
pub(crate) struct Comm<'a> {
    core: &'a Core,
    sequence: u64,
    fingerprint: u32,
    deadline: Instant,
    receives: Vec<Option<(u32, Receive)>>,
    /// Sender of a receive that failed.
    unserved: Option<u32>,
    /// Created by the first send.
    sends: OnceCell<Arc<Sends>>,
    /// Groups of ranks that share memory.
    hosts: Option<&'a Arc<Hosts>>,
    /// Rounds with the other ranks of this host.
    rounds: Option<Rounds<'a>>,
}

/// Identifies a posted receive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticket(usize);

/// Pending sends of the operation.
#[derive(Default)]
struct Sends {
    state: Mutex<SendState>,
    completed: Condvar,
}

#[derive(Default)]
struct SendState {
    open: usize,
    /// Whether a thread waits for pending sends.
    awaited: bool,
    error: Option<MeshError>,
}

impl<'a> Comm<'a> {
    pub(crate) fn new(
        core: &'a Core,
        sequence: u64,
        fingerprint: u32,
        deadline: Instant,
    ) -> Comm<'a> {
        let (receives, sends) = (Vec::new(), OnceCell::new());
        let (unserved, hosts, rounds) = (None, None, None);
        Comm { core, sequence, fingerprint, deadline, receives, unserved, sends, hosts, rounds }
    }

    /// For ranks that may share memory; `shared` is the memory of this rank's host.
    pub(crate) fn with_memory(
        self,
        hosts: Option<&'a Arc<Hosts>>,
        shared: Option<&'a mut Shared>,
        here: Option<Here>,
    ) -> Comm<'a> {
        let call = (self.sequence, self.fingerprint);
        let rounds = shared.map(|shared| Rounds::new(self.core, shared, call, self.deadline, here));
        Comm { hosts, rounds, ..self }
    }

    /// The rounds of all ranks, if they share memory. Errors: an earlier operation failed in these rounds.
    pub(crate) fn rounds(&mut self) -> Result<Option<&mut Rounds<'a>>, MeshError> {
        if self.in_memory() { self.host() } else { Ok(None) }
    }

    /// The rounds of this host's ranks, if there are several. Errors: an earlier operation failed in these rounds.
    pub(crate) fn host(&mut self) -> Result<Option<&mut Rounds<'a>>, MeshError> {
        if let Some(rounds) = &self.rounds {
            rounds.check()?;
        }
        Ok(self.rounds.as_mut())
    }

    /// The groups of ranks that share memory.
    pub(crate) fn hosts(&self) -> Arc<Hosts> {
        self.hosts.cloned().unwrap_or_else(|| Arc::new(Hosts::apart(self.size())))
    }

    /// Whether all ranks share memory.
    #[inline]
    pub(crate) fn in_memory(&self) -> bool {
        self.hosts.is_some_and(|hosts| hosts.is_one())
    }

    /// The rounds, for an algorithm that requires all ranks to share memory.
    pub(crate) fn memory(&mut self) -> Result<&mut Rounds<'a>, MeshError> {
        let none = || MeshError::Aborted("these ranks share no memory".to_owned());
        self.rounds()?.ok_or_else(none)
    }

    /// The cost of this operation's messages.
    pub(crate) fn link(&self) -> LinkCost {
        self.core.paces.link(self.core.size, self.hosts)
    }

    /// The algorithm that the group's options select for an operation.
    pub(crate) fn wanted(&self, operation: &str) -> Option<&'a str> {
        self.core.algorithms.get(operation).map(String::as_str)
    }

    pub(crate) fn rank(&self) -> u32 {
        self.core.rank
    }

    pub(crate) fn size(&self) -> u32 {
        self.core.size
    }

    /// All other ranks, starting after this one, so that the ranks do not all send to the same rank first.
    pub(crate) fn others(&self) -> impl Iterator<Item = u32> + use<> {
        let (rank, size) = (self.rank(), self.size());
        (1..size).map(move |step| (rank + step) % size)
    }

    /// Queues a message; the bytes are lent until they have been sent, at the latest until [`Comm::flush`] returns.
    pub(crate) fn send(&self, to: u32, part: u64, buffer: &Buffer, at: usize, len: usize) {
        let payload = Payload::Buffer(buffer.lend(at..at + len));
        let sends = self.sends.get_or_init(Arc::default).clone();
        sends.state.lock().open += 1;
        let outgoing = Outgoing {
            key: self.key(part),
            fingerprint: self.fingerprint,
            payload,
            deadline: Some(self.deadline),
        };
        self.core.mesh.send(to, outgoing, Some(Box::new(move |outcome| sends.complete(outcome))));
    }

    /// Posts a receive of exactly `len` bytes, which are lent until the message has arrived. Waits first for sends of
    /// this operation that read the same bytes.
    pub(crate) fn receive(
        &mut self,
        from: u32,
        part: u64,
        buffer: &mut Buffer,
        at: usize,
        len: usize,
    ) -> Ticket {
        let place = at..at + len;
        self.await_sends_of(buffer, &place);
        let target = Target::Buffer(buffer.lend_mut(place));
        let fingerprint = self.fingerprint;
        let wanted = Wanted { from: Some(from), key: self.key(part), fingerprint };
        let receive = self.core.mesh.receive(wanted, target, Some(self.deadline));
        self.receives.push(Some((from, receive)));
        Ticket(self.receives.len() - 1)
    }

    /// Blocks until the message has arrived.
    pub(crate) fn wait(&mut self, ticket: Ticket) -> Result<(), MeshError> {
        self.check()?;
        let Some((from, receive)) = self.receives[ticket.0].take() else { return Ok(()) };
        receive.wait().map(drop).inspect_err(|_| self.unserved = Some(from))
    }

    /// Blocks until all receives and sends have completed.
    pub(crate) fn finish(&mut self) -> Result<(), MeshError> {
        for ticket in 0..self.receives.len() {
            self.wait(Ticket(ticket))?;
        }
        self.flush()
    }

    /// Blocks until all sends have completed.
    pub(crate) fn flush(&self) -> Result<(), MeshError> {
        self.check()?;
        let Some(sends) = self.sends.get() else { return Ok(()) };
        self.core.mesh.help(None, None, || sends.state.lock().open == 0);
        let mut state = sends.state.lock();
        while state.open > 0 {
            sends.completed.wait(&mut state);
        }
        state.error.take().map_or(Ok(()), Err)
    }

    /// Blocks until all sends that read any of these bytes have completed. A peer that has received a message may
    /// answer before the loan of the message's bytes has ended here.
    fn await_sends_of(&self, buffer: &Buffer, place: &Range<usize>) {
        let away = || !buffer.is_lent(place.clone());
        let Some(sends) = self.sends.get().filter(|_| !away()) else { return };
        self.core.mesh.help(None, None, away);
        let mut state = sends.state.lock();
        while state.open > 0 && !away() {
            state.awaited = true;
            sends.completed.wait(&mut state);
        }
        state.awaited = false;
    }

    /// Ranks whose messages have not arrived.
    pub(crate) fn missing(&self) -> Vec<u32> {
        let open = self.receives.iter().flatten().filter(|(_, receive)| !receive.has_arrived());
        let in_rounds = self.rounds.iter().flat_map(|rounds| rounds.missing());
        let mut ranks: Vec<u32> =
            open.map(|(from, _)| *from).chain(self.unserved).chain(in_rounds.copied()).collect();
        ranks.sort_unstable();
        ranks.dedup();
        ranks
    }

    /// Marks the operation as failed. Others can follow it in shared memory only if the ranks are at the same round.
    pub(crate) fn give_up(&mut self, error: &MeshError, operation: impl FnOnce() -> String) {
        let together = self.in_memory() && matches!(error, MeshError::Size { .. });
        if let Some(rounds) = self.rounds.as_mut().filter(|_| !together) {
            rounds.give_up(operation());
        }
    }

    /// Ends the operation's messages, complete or not; afterwards nothing accesses the operation's buffers.
    pub(crate) fn end(self) {
        self.core.mesh.end(Channel::Collective, self.sequence);
    }

    /// A failure of the group cancels posted receives; this check covers those posted later.
    fn check(&self) -> Result<(), MeshError> {
        match self.core.failure() {
            None => Ok(()),
            Some(_) => Err(MeshError::Cancelled),
        }
    }

    fn key(&self, part: u64) -> Key {
        Key { channel: Channel::Collective, tag: self.sequence, part }
    }
}

impl Sends {
    fn complete(&self, outcome: Result<(), MeshError>) {
        let mut state = self.state.lock();
        state.open -= 1;
        if let Err(error) = outcome {
            state.error.get_or_insert(error);
        }
        if state.open == 0 || state.awaited {
            self.completed.notify_all();
        }
    }
}
