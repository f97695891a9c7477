//! What callers hold: the [`Mesh`], and the [`Receive`]s that they have posted.

use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::core::{Core, Peer, Sending};
use super::error::MeshError;
use super::events::Events;
use super::frame::{Channel, Frame, Key};
use super::mailbox::Match;
use super::outbox::{Message, OnSent, Payload};
use super::receive::{OnReceived, Received, Slot, Target, Wanted};
use super::roster::Network;
use super::thread;
use super::transport::Transport;
use crate::Buffer;

/// A message to send.
pub struct Outgoing {
    /// What the receive must equal.
    pub key: Key,
    /// Handed to [`Events::admit`] at the receiver.
    pub fingerprint: u32,
    /// The bytes.
    pub payload: Payload,
    /// When to give up waiting for the receiver.
    pub deadline: Option<Instant>,
}

/// All connections of one rank. Dropping it closes without a goodbye; see [`Mesh::leave`].
pub struct Mesh {
    pub(super) core: Arc<Core>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Mesh {
    pub(super) fn start(
        rank: u32,
        connections: Vec<Option<TcpStream>>,
        carriers: (Network, Vec<Arc<dyn Transport>>),
        silence: Duration,
        events: Arc<dyn Events>,
    ) -> std::io::Result<Mesh> {
        let (core, woken) = Core::new(rank, connections, carriers, silence, events)?;
        let core = Arc::new(core);
        let thread = std::thread::Builder::new().name("netsum-mesh".into()).spawn({
            let core = core.clone();
            move || thread::run(&core, &woken)
        })?;
        Ok(Mesh { core, thread: Mutex::new(Some(thread)) })
    }

    /// This process's index.
    pub fn rank(&self) -> u32 {
        self.core.rank
    }

    /// Ranks in the group.
    pub fn size(&self) -> u32 {
        self.core.size()
    }

    /// What carries the messages between hosts.
    pub fn network(&self) -> Network {
        self.core.network
    }

    /// Sends a message; `done` is told when its bytes are in the kernel's hands or will never be.
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

    /// Sends a short message, if it can be away when this returns; if not, nothing has happened, and [`Mesh::send`] is
    /// to be called.
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

    /// Takes a message that is just as long as `into`, if it is the next of its sender and here, or comes while we look
    /// so often; its sender. If not, nothing has happened, and a receive is to be posted.
    #[inline]
    pub fn receive_now(&self, wanted: &Wanted, into: &mut Buffer, looks: u32) -> Option<u32> {
        let mut receive =
            |transport: &Arc<dyn Transport>| transport.receive_now(&self.core, wanted, into, looks);
        match wanted.from {
            Some(rank) => receive(&self.core.peer(rank)?.transport),
            None => self.core.transports.iter().find_map(receive),
        }
    }

    /// Posts a receive of a message from one rank, or from any; of those that came before it, only a message
    /// of that fingerprint is taken.
    pub fn receive(&self, wanted: Wanted, target: Target, deadline: Option<Instant>) -> Receive {
        let slot = Slot::new(target, deadline, None);
        self.post(wanted, slot.clone());
        let help = self.needs_help(wanted.from).then(|| (self.core.clone(), wanted.from));
        Receive { slot, help }
    }

    /// Like [`Mesh::receive`]; the outcome goes to `done`.
    pub fn receive_then(
        &self,
        wanted: Wanted,
        target: Target,
        deadline: Option<Instant>,
        done: OnReceived,
    ) {
        self.post(wanted, Slot::new(target, deadline, Some(done)));
    }

    /// Whether a caller that waits for a message of that rank, or of any, is to call [`Mesh::help`].
    pub fn needs_help(&self, from: Option<u32>) -> bool {
        self.core.needs_help(from)
    }

    /// For a caller that waits for messages of a rank, or of any: moves them on for a short while, at most `until`
    /// then, or until `done`, where the transport leaves that to its callers.
    pub fn help(&self, from: Option<u32>, until: Option<Instant>, done: impl Fn() -> bool) {
        self.core.help(from, until, done);
    }

    /// Senders and fingerprints of the messages that wait for a receive with that tag.
    pub fn stored(&self, channel: Channel, tag: u64) -> Vec<(u32, u32)> {
        self.core.mailbox.lock().stored(channel, tag)
    }

    /// Ends everything with that tag: receives and sends that are under way are cancelled and their memory is
    /// free when this returns; messages that wait are dropped.
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
            // A transport that reads by itself lets go of its memory soon, or the peer is given up.
            while in_flight() {
                self.core.help(Some(rank), None, || !in_flight());
                std::thread::yield_now();
            }
        }
    }

    /// Fails everything that waits, and everything from now on.
    pub fn abort(&self, reason: &str) {
        self.core.fail(MeshError::Aborted(reason.to_owned()));
    }

    /// Why nothing works any more, if so.
    pub fn failure(&self) -> Option<MeshError> {
        self.core.failure()
    }

    /// Whether a rank has said goodbye.
    pub fn has_left(&self, rank: u32) -> bool {
        self.core.peer(rank).is_some_and(Peer::has_left)
    }

    /// Ranks whose connection is broken, or from which nothing, not even a keep-alive, has come for `silence`; once the
    /// mesh has failed, as it was at that moment. Ranks that said goodbye are not among them. Keep-alives are sent four
    /// times in the silence after which a peer is lost: a shorter `silence` here than half of that names healthy ranks.
    pub fn unreachable(&self, silence: Duration) -> Vec<u32> {
        self.core.unreachable(silence)
    }

    /// Bytes (sent, received) with frame headers.
    pub fn traffic(&self) -> (u64, u64) {
        let sent = self.core.live().map(|(_, peer)| peer.sending.lock().outbox.bytes).sum();
        let received = self.core.transports.iter().map(|transport| transport.bytes_received());
        (sent, self.core.bytes_rx.load(Ordering::Relaxed) + received.sum::<u64>())
    }

    /// Messages that came from no rank of this group.
    pub fn unknown_senders(&self) -> u64 {
        self.core.transports.iter().map(|transport| transport.unknown_senders()).sum()
    }

    /// Says goodbye behind what is queued, and waits at most `patience` until the peers have taken it.
    /// Everything after it fails.
    pub fn leave(&self, patience: Duration) {
        let until = Instant::now() + patience;
        // First: peers answer a goodbye by ending their stream, which must not look like a loss.
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
            // A panic of the thread was reported by the panic hook; there is nothing left to clean up.
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

/// Handle to a receive that is under way. Dropping it cancels: when `drop` returns, nothing writes to the
/// target any more.
pub struct Receive {
    pub(super) slot: Arc<Slot>,
    /// If waiting has to move messages on: those of which rank.
    help: Option<(Arc<Core>, Option<u32>)>,
}

impl std::fmt::Debug for Receive {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.slot.fmt(f)
    }
}

impl Receive {
    /// Blocks until the message is there or cannot come any more; the receive's deadline bounds it.
    pub fn wait(self) -> Result<Received, MeshError> {
        if let Some((core, from)) = &self.help {
            core.help(*from, None, || self.slot.is_finished());
        }
        self.slot.wait()
    }

    /// Whether the message is there.
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
