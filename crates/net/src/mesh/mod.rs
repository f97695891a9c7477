//! Messages between the ranks of a group: a full mesh of TCP connections, or of ways that UCX finds ([`Network`]), and between
//! ranks of one host memory that they share ([`Rings`]).
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
mod memory;
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
pub use memory::Rings;
pub use outbox::{OnSent, Payload};
pub use receive::{OnReceived, Receive, Received, Target};

use frame::Frame;
use mailbox::{Mailbox, Match};
use memory::Memory;
use outbox::{Limits, Message, Outbox, Reports};
use receive::Slot;
use ucx::Ucx;

use crate::Buffer;

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
        (ucx, memory): (Option<Ucx>, Option<Memory>),
        silence: Duration,
        events: Arc<dyn Events>,
    ) -> std::io::Result<Mesh> {
        let (waker, woken) = UnixStream::pair()?;
        waker.set_nonblocking(true)?;
        woken.set_nonblocking(true)?;
        let size = streams.len() as u32;
        let limits = |rank: usize| match &memory {
            Some(memory) if memory.reaches(rank as u32) => memory::LIMITS,
            _ if ucx.is_some() => ucx::LIMITS,
            _ => Limits::TCP,
        };
        let ring = |rank: usize| memory.as_ref().and_then(|memory| memory.sending(rank as u32));
        let peer = |(rank, stream): (usize, Option<TcpStream>)| {
            stream.map(|stream| Peer::new(stream, Outbox::new(limits(rank), ring(rank))))
        };
        let peers = streams.into_iter().enumerate().map(peer).collect();
        let mailbox = Mailbox::new(size);
        let shared = Arc::new(Shared {
            ucx,
            memory,
            nothing: mailbox.empty(),
            rank,
            peers,
            mailbox: Mutex::new(mailbox),
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

    /// What carries the messages between hosts.
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

    /// Sends a short message, if it can be away when this returns; if not, nothing has happened, and [`Mesh::send`] is to be
    /// called.
    #[inline]
    pub fn send_now(&self, to: u32, key: Key, fingerprint: u32, bytes: &[u8]) -> bool {
        let Some(memory) = &self.shared.memory else { return false };
        let Some(peer) = self.shared.peer(to) else { return false };
        let len = bytes.len();
        let mut outbox = peer.outbox.lock();
        if !outbox.has_room_now(len) {
            return false;
        }
        let frame = Frame::Eager { key, fingerprint, len };
        let sent = outbox.ring.as_mut().is_some_and(|ring| ring.whole(frame, bytes));
        if sent {
            outbox.sent_now(len);
            drop(outbox);
            memory.sent(&self.shared, to);
        }
        sent
    }

    /// Takes a message that is just as long as `into`, if it is the next of its sender and here, or comes while we look so
    /// often; its sender. If not, nothing has happened, and a receive is to be posted.
    #[inline]
    pub fn receive_now(&self, wanted: &Wanted, into: &Buffer, looks: u32) -> Option<u32> {
        let memory = self.shared.memory.as_ref()?;
        memory.receive_now(&self.shared, wanted, into, looks)
    }

    /// Posts a receive of a message from one rank, or from any; of those that came before it, only a message
    /// of that fingerprint is taken.
    pub fn receive(&self, wanted: Wanted, target: Target, deadline: Option<Instant>) -> Receive {
        let slot = Slot::new(target, deadline, None);
        self.post(wanted, slot.clone());
        let mesh = self.helps(wanted.from).then(|| (self.shared.clone(), wanted.from));
        Receive { slot, mesh }
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

    /// Whether who waits for a message of that rank, or of any, is to call [`Mesh::help`].
    pub fn helps(&self, from: Option<u32>) -> bool {
        let by_memory = |memory: &Memory| memory.may_serve(from);
        self.shared.ucx.is_some() || self.shared.memory.as_ref().is_some_and(by_memory)
    }

    /// For who waits for messages of a rank, or of any: moves them on for a short while, at most `until` then, or until `done`,
    /// where the network leaves that to us.
    pub fn help(&self, from: Option<u32>, until: Option<Instant>, done: impl Fn() -> bool) {
        self.shared.help(from, until, done);
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
        for (rank, peer) in self.shared.live() {
            // What UCX reads by itself it lets go of soon, or the peer is given up.
            while peer.outbox.lock().is_flying(which) {
                self.shared.help(Some(rank), None, || !peer.outbox.lock().is_flying(which));
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
        let by_memory = self.shared.memory.as_ref().map_or(0, Memory::received);
        (sent, self.shared.bytes_rx.load(Ordering::Relaxed) + by_memory)
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
            Match::Ask { from, id, len } => self.shared.ask(from, id, len),
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
    /// The same between us and ranks of our host.
    memory: Option<Memory>,
    rank: u32,
    /// By rank; `None` for our own.
    peers: Vec<Option<Peer>>,
    mailbox: Mutex<Mailbox>,
    /// The mailbox's word that it has nothing.
    nothing: Arc<AtomicBool>,
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
    fn new(stream: TcpStream, outbox: Outbox) -> Peer {
        Peer {
            stream,
            outbox: Mutex::new(outbox),
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
        let broken = match (self.memory_to(rank), &self.ucx) {
            (Some(memory), _) => memory.flush(self, rank, &mut outbox, &mut reports),
            (None, Some(ucx)) => ucx.flush(self, rank, &mut outbox, &mut reports),
            (None, None) if peer.blocked.load(Ordering::Relaxed) => None,
            (None, None) => self.flush(peer, &mut outbox, &mut reports),
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

    /// Whether no message is kept for that key, and no receive waits for one.
    #[inline]
    fn knows_nothing_of(&self, key: Key) -> bool {
        self.nothing.load(Ordering::Acquire) || self.mailbox.lock().knows_nothing_of(key)
    }

    /// What carries messages between us and a rank of our host.
    fn memory_to(&self, rank: u32) -> Option<&Memory> {
        self.memory.as_ref().filter(|memory| memory.reaches(rank))
    }

    /// Whether TCP carries all between us and that rank, not signs of life alone.
    fn is_over_tcp(&self, rank: u32) -> bool {
        self.ucx.is_none() && self.memory_to(rank).is_none()
    }

    fn help(&self, from: Option<u32>, until: Option<Instant>, done: impl Fn() -> bool) {
        let memory = self.memory.as_ref().filter(|memory| memory.may_serve(from));
        let by_ucx = from.is_none_or(|rank| self.memory_to(rank).is_none());
        match (memory, self.ucx.as_ref().filter(|_| by_ucx)) {
            (None, None) => {}
            (None, Some(ucx)) => ucx.help(self, done),
            (Some(memory), None) => memory.help(self, from, until, &done),
            (Some(memory), Some(ucx)) => {
                let both = || {
                    ucx.drain(self);
                    done()
                };
                memory.help(self, from, until, &both);
            }
        }
    }

    fn push_bare(&self, rank: u32, frame: Frame) {
        if let Some(peer) = self.peer(rank) {
            self.with_outbox(rank, peer, |outbox, _| outbox.push_bare(frame));
        }
    }

    /// Asks for an announced message.
    fn ask(&self, from: u32, id: u64, len: u64) {
        let borrows = self.memory.as_ref().is_some_and(|memory| memory.borrows(from, len));
        self.push_bare(from, if borrows { Frame::Borrow { id } } else { Frame::Ready { id } });
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
        let mut outbox = peer.outbox.lock();
        outbox.close(&reason, &mut reports);
        if self.memory_to(rank).is_some() {
            // It reads nothing any more.
            outbox.revoked(&reason, &mut reports);
        }
        drop(outbox);
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
        if let Some(memory) = &self.memory {
            memory.revoke();
        }
        for (rank, peer) in self.live() {
            let mut outbox = peer.outbox.lock();
            let opened = !outbox.is_closed();
            // What is cut off in the middle stands elsewhere than in the stream, if that is for signs of life.
            let between = outbox.close(&reason, &mut reports) || !self.is_over_tcp(rank);
            if self.memory_to(rank).is_some() {
                outbox.revoked(&reason, &mut reports);
            }
            drop(outbox);
            // Who only sees our connection end would take us for the cause.
            if opened && between {
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
