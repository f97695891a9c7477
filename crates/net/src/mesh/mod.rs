//! Messages between the ranks of a group: a full mesh of TCP connections, or of ways that UCX finds ([`Network`]).
//!
//! A [`Listener`] is opened first and its address told to the others; [`Listener::connect`] then builds the
//! [`Mesh`]. A message goes to the receive that was posted for its sender and [`Key`]; messages between the
//! same two ranks with the same key arrive in the order of sending. One thread reads all connections; a
//! sender writes what the socket takes at once, and the thread the rest. A connection that ends without a
//! goodbye, or is silent for too long, fails everything that waits and everything that comes after.
//! Source: the shape of Gloo's unbound buffers (tagged messages, full mesh). Differs: bounded memory at the
//! receiver, errors that name the rank, no connection on first use.

mod connect;
mod error;
mod frame;
mod in_order;
mod inbound;
mod io;
mod mailbox;
mod outbox;
mod poll;
mod receive;
mod ucx;

use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

pub use connect::{Listener, Network, Roster, SECRET_LEN, Seat};
pub use error::MeshError;
pub use frame::{Channel, Key};
pub use outbox::{OnSent, Payload};
pub use receive::{OnReceived, Receive, Received, Target};

use frame::Frame;
use mailbox::{Mailbox, Match};
use outbox::{Limits, Message, Outbox, Reports};
use receive::Slot;
use ucx::Ucx;

/// What the owner of a mesh is told, by the mesh's thread: every call must be short and must not block.
pub trait Events: Send + Sync {
    /// A message on [`Channel::Control`].
    fn control(&self, from: u32, key: Key, bytes: Vec<u8>);

    /// Whether a message on [`Channel::Collective`] is to be kept. Called with a lock held: it may not call
    /// the mesh.
    fn admit(&self, from: u32, key: Key, fingerprint: u32) -> bool;

    /// The mesh has failed: every call returns this error from now on.
    fn failed(&self, reason: &MeshError);
}

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

/// Which message a receive takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The sender; `None`: any.
    pub from: Option<u32>,
    /// As sent.
    pub key: Key,
    /// As sent.
    pub fingerprint: u32,
}

/// All connections of one rank. Dropping it closes without a goodbye; see [`Mesh::leave`].
pub struct Mesh {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Mesh {
    fn start(
        rank: u32,
        streams: Vec<Option<TcpStream>>,
        ucx: Option<Ucx>,
        silence: Duration,
        events: Arc<dyn Events>,
    ) -> std::io::Result<Mesh> {
        let (waker, woken) = UnixStream::pair()?;
        waker.set_nonblocking(true)?;
        woken.set_nonblocking(true)?;
        let size = streams.len() as u32;
        let limits = if ucx.is_some() { ucx::LIMITS } else { Limits::TCP };
        let peer = |stream: TcpStream| Peer::new(stream, limits);
        let peers = streams.into_iter().map(|stream| stream.map(peer)).collect();
        let shared = Arc::new(Shared {
            ucx,
            rank,
            peers,
            mailbox: Mutex::new(Mailbox::new(size)),
            events,
            waker,
            woken: AtomicBool::new(false),
            silence,
            failed: Mutex::new(None),
            stopping: Mutex::new(None),
            bytes_rx: AtomicU64::new(0),
        });
        let thread = std::thread::Builder::new().name("netsum-mesh".into()).spawn({
            let shared = shared.clone();
            move || io::run(&shared, &woken)
        })?;
        Ok(Mesh { shared, thread: Mutex::new(Some(thread)) })
    }

    /// This process's index.
    pub fn rank(&self) -> u32 {
        self.shared.rank
    }

    /// Ranks in the group.
    pub fn size(&self) -> u32 {
        self.shared.peers.len() as u32
    }

    /// What carries the messages.
    pub fn network(&self) -> Network {
        if self.shared.ucx.is_some() { Network::Ucx } else { Network::Tcp }
    }

    /// Sends a message; `done` is told when its bytes are in the kernel's hands or will never be.
    pub fn send(&self, to: u32, outgoing: Outgoing, done: Option<OnSent>) {
        let Some(peer) = self.shared.peer(to) else {
            if let Some(done) = done {
                done(Err(self.no_such_rank(to)));
            }
            return;
        };
        let Outgoing { key, fingerprint, payload, deadline } = outgoing;
        let message = Message { key, fingerprint, payload, deadline, done };
        self.shared.with_outbox(to, peer, |outbox, reports| outbox.push(message, reports));
    }

    /// Posts a receive of a message from one rank, or from any; of those that came before it, only a message
    /// of that fingerprint is taken.
    pub fn receive(&self, wanted: Wanted, target: Target, deadline: Option<Instant>) -> Receive {
        let slot = Slot::new(target, deadline, None);
        self.post(wanted, slot.clone());
        Receive { slot, mesh: self.shared.ucx.is_some().then(|| self.shared.clone()) }
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

    /// For who waits for messages: moves them on for a short while, or until `done`, where the network leaves that to us.
    pub fn help(&self, done: impl Fn() -> bool) {
        self.shared.help(done);
    }

    /// Senders and fingerprints of the messages that wait for a receive with that tag.
    pub fn stored(&self, channel: Channel, tag: u64) -> Vec<(u32, u32)> {
        self.shared.mailbox.lock().stored(channel, tag)
    }

    /// Ends everything with that tag: receives and sends that are under way are cancelled and their memory is
    /// free when this returns; messages that wait are dropped.
    pub fn end(&self, channel: Channel, tag: u64) {
        let slots = self.shared.mailbox.lock().discard(channel, tag);
        slots.iter().for_each(|slot| slot.cancel());
        let which = |m: &Message| m.key.channel == channel && m.key.tag == tag;
        for (rank, peer) in self.shared.live() {
            self.shared.with_outbox(rank, peer, |outbox, reports| {
                outbox.release(which, &MeshError::Cancelled, reports);
            });
        }
        for (_, peer) in self.shared.live() {
            // What UCX reads by itself it lets go of soon, or the peer is given up.
            while peer.outbox.lock().is_flying(which) {
                self.shared.help(|| !peer.outbox.lock().is_flying(which));
                std::thread::yield_now();
            }
        }
    }

    /// Fails everything that waits, and everything from now on.
    pub fn abort(&self, reason: &str) {
        self.shared.fail(MeshError::Aborted(reason.to_owned()));
    }

    /// Why nothing works any more, if so.
    pub fn failure(&self) -> Option<MeshError> {
        self.shared.failed.lock().clone()
    }

    /// Whether a rank has said goodbye.
    pub fn has_left(&self, rank: u32) -> bool {
        self.shared.peer(rank).is_some_and(|peer| peer.left.load(Ordering::Acquire))
    }

    /// Bytes (sent, received) with frame headers.
    pub fn traffic(&self) -> (u64, u64) {
        let sent = self.shared.live().map(|(_, peer)| peer.outbox.lock().bytes).sum();
        (sent, self.shared.bytes_rx.load(Ordering::Relaxed))
    }

    /// Messages over UCX that came from no rank of this group.
    pub fn strangers(&self) -> u64 {
        self.shared.ucx.as_ref().map_or(0, |ucx| ucx.strangers.load(Ordering::Relaxed))
    }

    /// Says goodbye behind what is queued, and waits at most `patience` until the peers have taken it.
    /// Everything after it fails.
    pub fn leave(&self, patience: Duration) {
        let until = Instant::now() + patience;
        // First: peers answer a goodbye by ending their stream, which must not look like a loss.
        *self.shared.stopping.lock() = Some(until);
        for (rank, peer) in self.shared.live() {
            self.shared.with_outbox(rank, peer, |outbox, _| outbox.push_last(Frame::Goodbye));
        }
        self.stop(until);
        self.shared.fail(MeshError::Aborted(CLOSED.into()));
    }

    fn post(&self, wanted: Wanted, slot: Arc<Slot>) {
        let Wanted { from, key, fingerprint } = wanted;
        if let Some(rank) = from
            && self.shared.peer(rank).is_none()
        {
            return slot.finish(Err(self.no_such_rank(rank)));
        }
        let matched = self.shared.mailbox.lock().post(from, key, fingerprint, slot.clone());
        match matched {
            Match::Waiting => {}
            Match::Never(reason) => slot.finish(Err(reason)),
            Match::Deliver { from, bytes } => {
                deliver(&slot, from, &bytes);
                self.shared.return_credit(from);
            }
            Match::Ask { from, id } => self.shared.push_bare(from, Frame::Ready { id }),
        }
    }

    fn no_such_rank(&self, rank: u32) -> MeshError {
        MeshError::NoSuchRank { rank, size: self.size() }
    }

    fn stop(&self, until: Instant) {
        *self.shared.stopping.lock() = Some(until);
        self.shared.wake();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            // A panic of the thread was reported by the panic hook; there is nothing left to clean up.
            let _ = thread.join();
        }
    }
}

impl Drop for Mesh {
    fn drop(&mut self) {
        self.shared.fail(MeshError::Aborted(CLOSED.into()));
        self.stop(Instant::now());
    }
}

struct Shared {
    /// Carries all but signs of life, if it is there.
    ucx: Option<Ucx>,
    rank: u32,
    /// By rank; `None` for our own.
    peers: Vec<Option<Peer>>,
    mailbox: Mutex<Mailbox>,
    events: Arc<dyn Events>,
    waker: UnixStream,
    /// A wake-up is under way.
    woken: AtomicBool,
    silence: Duration,
    failed: Mutex<Option<MeshError>>,
    /// When the thread has to end, at the latest.
    stopping: Mutex<Option<Instant>>,
    bytes_rx: AtomicU64,
}

struct Peer {
    stream: TcpStream,
    outbox: Mutex<Outbox>,
    /// The socket took no more; the thread waits until it does.
    blocked: AtomicBool,
    /// Said goodbye.
    left: AtomicBool,
}

impl Peer {
    fn new(stream: TcpStream, limits: Limits) -> Peer {
        Peer {
            stream,
            outbox: Mutex::new(Outbox::new(limits)),
            blocked: AtomicBool::new(false),
            left: AtomicBool::new(false),
        }
    }
}

impl Shared {
    fn peer(&self, rank: u32) -> Option<&Peer> {
        self.peers.get(rank as usize)?.as_ref()
    }

    fn live(&self) -> impl Iterator<Item = (u32, &Peer)> {
        let peers = self.peers.iter().enumerate();
        peers.filter_map(|(rank, peer)| peer.as_ref().map(|peer| (rank as u32, peer)))
    }

    /// Has the mesh's thread look at everything, once more.
    fn wake(&self) {
        // One that was told and has not looked yet sees this, too.
        if !self.woken.swap(true, Ordering::AcqRel) {
            let _ = std::io::Write::write(&mut &self.waker, &[1]);
        }
    }

    /// Changes an outbox, then writes what the socket takes.
    fn with_outbox(&self, rank: u32, peer: &Peer, change: impl FnOnce(&mut Outbox, &mut Reports)) {
        let mut reports = Reports::new();
        let mut outbox = peer.outbox.lock();
        change(&mut outbox, &mut reports);
        let broken = match (&self.ucx, peer.blocked.load(Ordering::Relaxed)) {
            (Some(ucx), _) => ucx.flush(self, rank, &mut outbox, &mut reports),
            (None, true) => None,
            (None, false) => self.flush(peer, &mut outbox, &mut reports),
        };
        drop(outbox);
        for (done, outcome) in reports {
            done(outcome);
        }
        if let Some(reason) = broken {
            self.lost(rank, &reason);
        }
    }

    /// Writes; returns why the connection is broken, if it is.
    fn flush(&self, peer: &Peer, outbox: &mut Outbox, reports: &mut Reports) -> Option<String> {
        let write = |parts: &[std::io::IoSlice<'_>]| {
            std::io::Write::write_vectored(&mut &peer.stream, parts)
        };
        match outbox.drain(write, reports) {
            Ok(outbox::Drained::Empty) => peer.blocked.store(false, Ordering::Relaxed),
            Ok(outbox::Drained::Blocked) => {
                if !peer.blocked.swap(true, Ordering::Relaxed) {
                    self.wake();
                }
            }
            Err(e) => return Some(e.to_string()),
        }
        None
    }

    fn help(&self, done: impl Fn() -> bool) {
        if let Some(ucx) = &self.ucx {
            ucx.help(self, done);
        }
    }

    fn push_bare(&self, rank: u32, frame: Frame) {
        if let Some(peer) = self.peer(rank) {
            self.with_outbox(rank, peer, |outbox, _| outbox.push_bare(frame));
        }
    }

    fn return_credit(&self, rank: u32) {
        let credit = self.mailbox.lock().take_credit(rank);
        if let Some(bytes) = credit {
            self.push_bare(rank, Frame::Credit { bytes });
        }
    }

    /// A connection is broken: after a goodbye that is no loss.
    fn lost(&self, rank: u32, reason: &str) {
        let left = self.peer(rank).is_some_and(|peer| peer.left.load(Ordering::Relaxed));
        if left {
            self.gone(rank);
        } else {
            self.fail(MeshError::PeerLost { rank, reason: reason.to_owned() });
        }
    }

    /// A peer has left in good order.
    fn gone(&self, rank: u32) {
        let Some(peer) = self.peer(rank) else { return };
        peer.left.store(true, Ordering::Release);
        let reason = MeshError::Left { rank };
        let slots = self.mailbox.lock().peer_gone(rank, &reason);
        slots.iter().for_each(|slot| slot.finish(Err(reason.clone())));
        let mut reports = Reports::new();
        peer.outbox.lock().close(&reason, &mut reports);
        // Our end of the stream tells the peer that its goodbye was read; it may be gone already.
        let _ = peer.stream.shutdown(std::net::Shutdown::Write);
        for (done, outcome) in reports {
            done(outcome);
        }
    }

    /// The first reason counts.
    fn fail(&self, reason: MeshError) {
        {
            let mut failed = self.failed.lock();
            if failed.is_some() {
                return;
            }
            *failed = Some(reason.clone());
        }
        let last_word = match reason {
            MeshError::PeerLost { rank, .. } => Frame::Lost { rank },
            _ => Frame::Lost { rank: self.rank },
        };
        let slots = self.mailbox.lock().fail(&reason);
        slots.iter().for_each(|slot| slot.finish(Err(reason.clone())));
        let mut reports = Reports::new();
        for (_, peer) in self.live() {
            // Who only sees our connection end would take us for the cause.
            if peer.outbox.lock().close(&reason, &mut reports) {
                let _ = std::io::Write::write(&mut &peer.stream, &last_word.encode());
            }
        }
        for (done, outcome) in reports {
            done(outcome);
        }
        self.events.failed(&reason);
        self.wake();
    }
}

const CLOSED: &str = "the group was closed";

fn deliver(slot: &Slot, from: u32, bytes: &[u8]) {
    if slot.accept(from, bytes.len() as u64) {
        slot.fill(bytes);
        slot.complete(from);
    }
}

#[cfg(test)]
mod tests;
