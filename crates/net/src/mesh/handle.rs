//! The handles of callers: the [`Mesh`], and posted [`Receive`]s.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::connection::Connection;
use super::core::{Core, Peer, Sending};
use super::error::MeshError;
use super::events::Events;
use super::frame::{Channel, Frame, Key};
use super::mailbox::Match;
use super::outbox::{Message, OnSent, Payload};
use super::receive::{OnReceived, Received, Slot, Target, Wanted};
use super::revocations::Revocations;
use super::roster::Network;
use super::thread;
use super::transport::Transport;
use crate::Buffer;

/// A message to send.
pub struct Outgoing {
    /// The key that a matching receive must have.
    pub key: Key,
    /// Passed to [`Events::admit`] at the receiver.
    pub fingerprint: u32,
    /// Payload.
    pub payload: Payload,
    /// When to stop waiting for the receiver.
    pub deadline: Option<Instant>,
}

/// All connections of one rank. Dropping it closes them without a goodbye; see [`Mesh::leave`].
pub struct Mesh {
    pub(super) core: Arc<Core>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Mesh {
    pub(super) fn start(
        rank: u32,
        connections: Vec<Option<Connection>>,
        carriers: (Network, Vec<Arc<dyn Transport>>),
        (silence, revocations): (Duration, Option<Revocations>),
        events: Arc<dyn Events>,
    ) -> std::io::Result<Mesh> {
        let (core, woken) = Core::new(rank, connections, carriers, silence, events)?;
        let core = Arc::new(core);
        let thread = std::thread::Builder::new().name("netsum-mesh".into()).spawn({
            let core = core.clone();
            move || thread::run(&core, &woken, revocations)
        })?;
        Ok(Mesh { core, thread: Mutex::new(Some(thread)) })
    }

    /// This process's rank.
    pub fn rank(&self) -> u32 {
        self.core.rank
    }

    /// Number of ranks in the group.
    pub fn size(&self) -> u32 {
        self.core.size()
    }

    /// The network that carries messages between hosts.
    pub fn network(&self) -> Network {
        self.core.network
    }

    /// Sends a message; `done` is called when its bytes have been handed to the kernel or cannot be sent any more.
    pub fn send(&self, to: u32, outgoing: Outgoing, done: Option<OnSent>) {
        let Some(peer) = self.core.peer(to) else {
            drop(outgoing);
            if let Some(done) = done {
                done(Err(self.no_such_rank(to)));
            }
            return;
        };
        let Outgoing { key, fingerprint, payload, deadline } = outgoing;
        let message = Message { key, fingerprint, payload, deadline, done };
        self.core.with_outbox(to, peer, |outbox, reports| outbox.push(message, reports));
    }

    /// Sends a short message if this is possible before the call returns; otherwise there is no effect, and the caller
    /// must use [`Mesh::send`].
    #[inline]
    pub fn send_now(&self, to: u32, key: Key, fingerprint: u32, bytes: &[u8]) -> bool {
        let Some(peer) = self.core.peer(to) else { return false };
        let mut sending = peer.sending.lock();
        let Sending { outbox, link } = &mut *sending;
        let len = bytes.len();
        let sent = outbox.can_send_now(len)
            && link.send_now(&self.core, Frame::Eager { key, fingerprint, len }, bytes);
        if sent {
            outbox.sent_now(len);
        }
        sent
    }

    /// Receives a message of exactly the length of `into`, if it is the next of its sender and present, or arrives
    /// within the given number of polls; returns the sender. Otherwise there is no effect, and the caller must post a
    /// receive.
    #[inline]
    pub fn receive_now(&self, wanted: &Wanted, into: &mut Buffer, looks: u32) -> Option<u32> {
        let mut receive =
            |transport: &Arc<dyn Transport>| transport.receive_now(&self.core, wanted, into, looks);
        match wanted.from {
            Some(rank) => receive(&self.core.peer(rank)?.transport),
            None => self.core.transports.iter().find_map(receive),
        }
    }

    /// Posts a receive of a message from one rank, or from any; among messages that arrived earlier, only one with the
    /// same fingerprint matches.
    pub fn receive(&self, wanted: Wanted, target: Target, deadline: Option<Instant>) -> Receive {
        let slot = Slot::new(target, deadline, None);
        self.post(wanted, slot.clone());
        let help = self.needs_help(wanted.from).then(|| (self.core.clone(), wanted.from));
        Receive { slot, help }
    }

    /// As [`Mesh::receive`]; `done` is called with the outcome.
    pub fn receive_then(
        &self,
        wanted: Wanted,
        target: Target,
        deadline: Option<Instant>,
        done: OnReceived,
    ) {
        self.post(wanted, Slot::new(target, deadline, Some(done)));
    }

    /// Whether a caller that waits for a message of that rank, or of any, must call [`Mesh::help`].
    pub fn needs_help(&self, from: Option<u32>) -> bool {
        self.core.needs_help(from)
    }

    /// Makes progress for a caller that waits for messages of a rank, or of any, where the transport requires it: for a
    /// short time, at most until `until` or until `done`.
    pub fn help(&self, from: Option<u32>, until: Option<Instant>, done: impl Fn() -> bool) {
        self.core.help(from, until, done);
    }

    /// Senders and fingerprints of stored messages with that tag, for which no receive is posted.
    pub fn stored(&self, channel: Channel, tag: u64) -> Vec<(u32, u32)> {
        self.core.mailbox.lock().stored(channel, tag)
    }

    /// Ends everything with that tag: receives and sends in progress are cancelled and their memory is free when this
    /// returns; stored messages are dropped.
    pub fn end(&self, channel: Channel, tag: u64) {
        let slots = self.core.mailbox.lock().discard(channel, tag);
        slots.iter().for_each(|slot| slot.cancel());
        let which = |m: &Message| m.key.channel == channel && m.key.tag == tag;
        for (rank, peer) in self.core.live() {
            self.core.with_outbox(rank, peer, |outbox, reports| {
                outbox.release(which, &MeshError::Cancelled, reports);
            });
        }
        for (rank, peer) in self.core.live() {
            let in_flight = || peer.sending.lock().outbox.is_in_flight(which);
            // A transport that reads by itself releases its memory soon, or the peer is given up.
            while in_flight() {
                self.core.help(Some(rank), None, || !in_flight());
                std::thread::yield_now();
            }
        }
    }

    /// Fails all pending and future operations.
    pub fn abort(&self, reason: &str) {
        self.core.fail(MeshError::Aborted(reason.to_owned()));
    }

    /// Why the mesh has failed, if so.
    pub fn failure(&self) -> Option<MeshError> {
        self.core.failure()
    }

    /// Whether a rank has said goodbye.
    pub fn has_left(&self, rank: u32) -> bool {
        self.core.peer(rank).is_some_and(Peer::has_left)
    }

    /// Ranks whose connection is broken, or from which nothing, not even a keep-alive, has arrived for `silence`; after
    /// a failure of the mesh, as at that moment. Ranks that said goodbye are excluded. Four keep-alives are sent within
    /// the silence after which a peer is lost: a `silence` shorter than half of that reports healthy ranks.
    pub fn unreachable(&self, silence: Duration) -> Vec<u32> {
        self.core.unreachable(silence)
    }

    /// Bytes (sent, received), frame headers included.
    pub fn traffic(&self) -> (u64, u64) {
        let sent = self.core.live().map(|(_, peer)| peer.sending.lock().outbox.bytes).sum();
        let received = self.core.transports.iter().map(|transport| transport.bytes_received());
        (sent, self.core.bytes_rx.load(Ordering::Relaxed) + received.sum::<u64>())
    }

    /// Messages whose sender is not a rank of this group.
    pub fn unknown_senders(&self) -> u64 {
        self.core.transports.iter().map(|transport| transport.unknown_senders()).sum()
    }

    /// Sends a goodbye after the queued messages, and waits at most `patience` until the peers have received it. All
    /// later operations fail.
    pub fn leave(&self, patience: Duration) {
        let until = Instant::now() + patience;
        // Must come first: peers answer a goodbye by ending their stream, which must not be taken for a loss.
        *self.core.stopping.lock() = Some(until);
        for (rank, peer) in self.core.live() {
            self.core.with_outbox(rank, peer, |outbox, _| outbox.push_last(Frame::Goodbye));
        }
        self.stop(until);
        self.core.fail(MeshError::Aborted(CLOSED.into()));
    }

    fn post(&self, wanted: Wanted, slot: Arc<Slot>) {
        let Wanted { from, key, fingerprint } = wanted;
        if let Some(rank) = from
            && self.core.peer(rank).is_none()
        {
            return slot.finish(Err(self.no_such_rank(rank)));
        }
        let matched = self.core.mailbox.lock().post(from, key, fingerprint, slot.clone());
        match matched {
            Match::Waiting => {}
            Match::Never(reason) => slot.finish(Err(reason)),
            Match::Deliver { from, bytes } => {
                slot.deliver(from, &bytes);
                self.core.return_credit(from);
            }
            Match::Ask { from, id, len } => self.core.ask(from, id, len),
        }
    }

    fn no_such_rank(&self, rank: u32) -> MeshError {
        MeshError::NoSuchRank { rank, size: self.size() }
    }

    fn stop(&self, until: Instant) {
        *self.core.stopping.lock() = Some(until);
        self.core.wake();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            // The panic hook has reported a panic of the thread; no clean-up is needed.
            let _ = thread.join();
        }
    }
}

impl Drop for Mesh {
    fn drop(&mut self) {
        self.core.fail(MeshError::Aborted(CLOSED.into()));
        self.stop(Instant::now());
    }
}

/// Handle to a receive in progress. Dropping it cancels: when `drop` returns, nothing writes to the target any more.
pub struct Receive {
    pub(super) slot: Arc<Slot>,
    /// Set if the waiting thread has to make progress: the rank to wait for.
    help: Option<(Arc<Core>, Option<u32>)>,
}

impl std::fmt::Debug for Receive {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.slot.fmt(f)
    }
}

impl Receive {
    /// Blocks until the message has arrived or cannot arrive any more; the receive's deadline bounds the wait.
    pub fn wait(self) -> Result<Received, MeshError> {
        if let Some((core, from)) = &self.help {
            core.help(*from, None, || self.slot.is_finished());
        }
        self.slot.wait()
    }

    /// Whether the message has arrived.
    pub fn has_arrived(&self) -> bool {
        self.slot.has_arrived()
    }
}

impl Drop for Receive {
    fn drop(&mut self) {
        self.slot.cancel();
        self.slot.settle();
    }
}

const CLOSED: &str = "the group was closed";
