//! The mesh's state and its changes, independent of the transports: outboxes, the mailbox, failure, goodbye.

use std::io::{IoSlice, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::connection::Connection;
use super::error::MeshError;
use super::events::Events;
use super::frame::{Frame, Key, last_word};
use super::mailbox::Mailbox;
use super::outbox::{Outbox, Reports};
use super::roster::Network;
use super::transport::{MeshLink, Transport};

pub(super) struct Core {
    pub(super) rank: u32,
    pub(super) network: Network,
    /// Transports, the nearest first.
    pub(super) transports: Vec<Arc<dyn Transport>>,
    /// Peers by rank; `None` for the own rank.
    pub(super) peers: Vec<Option<Peer>>,
    pub(super) mailbox: Mutex<Mailbox>,
    /// Set by the mailbox when it is empty.
    mailbox_empty: Arc<AtomicBool>,
    pub(super) events: Arc<dyn Events>,
    waker: UnixStream,
    /// Whether a wake-up is pending.
    pub(super) woken: AtomicBool,
    pub(super) silence: Duration,
    failed: Mutex<Option<(MeshError, Instant)>>,
    /// Deadline for the end of the thread, once it must end.
    pub(super) stopping: Mutex<Option<Instant>>,
    /// Bytes received over connections.
    pub(super) bytes_rx: AtomicU64,
    started: Instant,
}

pub(super) struct Peer {
    /// Shows whether the peer is alive; carries frames if the transport uses it.
    pub(super) connection: Connection,
    pub(super) transport: Arc<dyn Transport>,
    pub(super) sending: Mutex<Sending>,
    /// Whether the peer has said goodbye.
    pub(super) left: AtomicBool,
    /// When something last arrived over the connection: milliseconds since the start of the mesh.
    last_seen: AtomicU64,
}

/// The sending side of a peer: queued messages, and the transport's link.
pub(super) struct Sending {
    pub(super) outbox: Outbox,
    pub(super) link: Box<dyn MeshLink>,
}

impl Peer {
    fn new(rank: u32, connection: Connection, transports: &[Arc<dyn Transport>]) -> Peer {
        let reaches = transports.iter().find(|transport| transport.reaches(rank));
        let transport = reaches.expect("a group's network reaches all ranks").clone();
        let outbox = Outbox::new(transport.limits());
        let link = transport.clone().link(rank);
        let sending = Mutex::new(Sending { outbox, link });
        let (left, last_seen) = (AtomicBool::new(false), AtomicU64::new(0));
        Peer { connection, transport, sending, left, last_seen }
    }

    pub(super) fn has_left(&self) -> bool {
        self.left.load(Ordering::Acquire)
    }
}

impl Core {
    /// `connections`: by rank; `None` for the own. `transports`: the nearest first; every rank uses the first that
    /// reaches it. Also returns the descriptor that is readable when the mesh's thread must wake up.
    pub(super) fn new(
        rank: u32,
        connections: Vec<Option<Connection>>,
        (network, transports): (Network, Vec<Arc<dyn Transport>>),
        silence: Duration,
        events: Arc<dyn Events>,
    ) -> std::io::Result<(Core, UnixStream)> {
        let (waker, woken) = UnixStream::pair()?;
        waker.set_nonblocking(true)?;
        woken.set_nonblocking(true)?;
        let mailbox = Mailbox::new(connections.len() as u32);
        let peer = |(rank, connection): (usize, Option<Connection>)| {
            connection.map(|connection| Peer::new(rank as u32, connection, &transports))
        };
        let peers = connections.into_iter().enumerate().map(peer).collect();
        let core = Core {
            rank,
            network,
            transports,
            peers,
            mailbox_empty: mailbox.empty(),
            mailbox: Mutex::new(mailbox),
            events,
            waker,
            woken: AtomicBool::new(false),
            silence,
            failed: Mutex::new(None),
            stopping: Mutex::new(None),
            bytes_rx: AtomicU64::new(0),
            started: Instant::now(),
        };
        Ok((core, woken))
    }

    pub(super) fn size(&self) -> u32 {
        self.peers.len() as u32
    }

    pub(super) fn peer(&self, rank: u32) -> Option<&Peer> {
        self.peers.get(rank as usize)?.as_ref()
    }

    /// The peer from which a frame came, or to which one goes.
    pub(super) fn known_peer(&self, rank: u32) -> &Peer {
        self.peer(rank).expect("frames come from peers and go to them")
    }

    pub(super) fn live(&self) -> impl Iterator<Item = (u32, &Peer)> {
        let peers = self.peers.iter().enumerate();
        peers.filter_map(|(rank, peer)| peer.as_ref().map(|peer| (rank as u32, peer)))
    }

    /// Makes the mesh's thread check everything once more.
    pub(super) fn wake(&self) {
        // A thread that was woken and has not checked yet sees this, too.
        if !self.woken.swap(true, Ordering::AcqRel) {
            let _ = (&self.waker).write(&[1]);
        }
    }

    /// Wakes the mesh's thread of a rank whose frames do not use its connection. Only keep-alives are written there, so
    /// it has room; if not, that thread is awake already.
    #[cold]
    pub(super) fn ping(&self, rank: u32) {
        let _ = self.known_peer(rank).connection.write(&[IoSlice::new(&Frame::Ping.encode())]);
    }

    /// Changes an outbox, then sends as much as the transport accepts.
    pub(super) fn with_outbox(
        &self,
        rank: u32,
        peer: &Peer,
        change: impl FnOnce(&mut Outbox, &mut Reports),
    ) {
        let mut reports = Reports::new();
        let mut sending = peer.sending.lock();
        let Sending { outbox, link } = &mut *sending;
        change(outbox, &mut reports);
        let flushed = link.flush(self, outbox, &mut reports);
        drop(sending);
        report(reports);
        if let Err(reason) = flushed {
            self.lost(rank, &reason);
        }
    }

    /// Whether the mailbox has neither a message nor a receive with that key.
    #[inline]
    pub(super) fn has_no_entry(&self, key: Key) -> bool {
        self.mailbox_empty.load(Ordering::Acquire) || self.mailbox.lock().has_no_entry(key)
    }

    /// The transports that may deliver a message `from` that rank (`None`: any), and that a waiting caller must poll.
    fn polled(&self, from: Option<u32>) -> impl Iterator<Item = &Arc<dyn Transport>> + Clone {
        let one = from.and_then(|rank| self.peer(rank)).map(|peer| &peer.transport);
        let all = if from.is_none() { &self.transports[..] } else { &[] };
        one.into_iter().chain(all).filter(|transport| transport.is_polled())
    }

    /// Whether a caller that waits for a message of that rank, or of any, should call [`Core::help`].
    pub(super) fn needs_help(&self, from: Option<u32>) -> bool {
        self.polled(from).next().is_some()
    }

    /// Polls for messages of a rank, or of any, for a short while, at most until `until`, or until `done`.
    pub(super) fn help(&self, from: Option<u32>, until: Option<Instant>, done: impl Fn() -> bool) {
        let mut polled = self.polled(from);
        let Some(nearest) = polled.next() else { return };
        let progress_and_done = || {
            polled.clone().for_each(|transport| transport.progress(self));
            done()
        };
        nearest.help(self, from, until, &progress_and_done);
    }

    /// Queues a frame without payload, ahead of bulk.
    pub(super) fn push_bare(&self, rank: u32, frame: Frame) {
        if let Some(peer) = self.peer(rank) {
            self.with_outbox(rank, peer, |outbox, _| outbox.push_bare(frame));
        }
    }

    /// Requests an announced message.
    pub(super) fn ask(&self, from: u32, id: u64, len: u64) {
        let borrows = self.peer(from).is_some_and(|peer| peer.transport.borrows(from, len));
        self.push_bare(from, if borrows { Frame::Borrow { id } } else { Frame::Ready { id } });
    }

    pub(super) fn return_credit(&self, rank: u32) {
        let credit = self.mailbox.lock().take_credit(rank);
        if let Some(bytes) = credit {
            self.push_bare(rank, Frame::Credit { bytes });
        }
    }

    /// Records that something has arrived over the connection to that rank.
    pub(super) fn note_seen(&self, rank: u32, now: Instant) {
        let at = now.saturating_duration_since(self.started).as_millis() as u64;
        self.known_peer(rank).last_seen.store(at, Ordering::Relaxed);
    }

    /// Records that the own thread was stopped for `pause`: the peer was not silent meanwhile.
    pub(super) fn was_stopped(&self, rank: u32, pause: Duration) {
        let pause = pause.as_millis() as u64;
        self.known_peer(rank).last_seen.fetch_add(pause, Ordering::Relaxed);
    }

    /// Time since something last arrived over the connection to that rank.
    pub(super) fn silence_of(&self, rank: u32, now: Instant) -> Duration {
        let last_seen = self.known_peer(rank).last_seen.load(Ordering::Relaxed);
        now.saturating_duration_since(self.started + Duration::from_millis(last_seen))
    }

    /// Ranks whose connection is broken, or that have been silent for `silence`. After a failure: the state at the
    /// failure.
    pub(super) fn unreachable(&self, silence: Duration) -> Vec<u32> {
        let failed = self.failed.lock().clone();
        let now = failed.as_ref().map_or_else(Instant::now, |(_, when)| *when);
        let lost = match failed {
            Some((MeshError::PeerLost { rank, .. }, _)) => Some(rank),
            _ => None,
        };
        let unreachable = |&(rank, peer): &(u32, &Peer)| {
            !peer.has_left() && (lost == Some(rank) || self.silence_of(rank, now) >= silence)
        };
        self.live().filter(unreachable).map(|(rank, _)| rank).collect()
    }

    /// Handles a broken connection: after a goodbye the peer is not lost.
    pub(super) fn lost(&self, rank: u32, reason: &str) {
        if self.peer(rank).is_some_and(Peer::has_left) {
            self.gone(rank);
        } else {
            self.fail(MeshError::PeerLost { rank, reason: reason.to_owned() });
        }
    }

    /// Handles a peer's goodbye.
    pub(super) fn gone(&self, rank: u32) {
        let Some(peer) = self.peer(rank) else { return };
        peer.left.store(true, Ordering::Release);
        let reason = MeshError::Left { rank };
        let slots = self.mailbox.lock().peer_gone(rank, &reason);
        slots.iter().for_each(|slot| slot.finish(Err(reason.clone())));
        let mut reports = Reports::new();
        self.close_outbox(peer, &reason, &mut reports);
        // The own end of the stream shows the peer that its goodbye was read; the peer may be gone already.
        peer.connection.shutdown(Shutdown::Write);
        report(reports);
    }

    /// Closes a peer's outbox. Returns, the first time, whether its connection is between two frames.
    fn close_outbox(&self, peer: &Peer, reason: &MeshError, reports: &mut Reports) -> bool {
        let mut sending = peer.sending.lock();
        let outbox = &mut sending.outbox;
        let opened = !outbox.is_closed();
        // If the connection carries keep-alives only, interrupted frames are elsewhere.
        let between = outbox.close(reason, reports) || !peer.transport.uses_connection();
        if !peer.transport.keeps_memory() {
            outbox.revoke(reason, reports);
        }
        opened && between
    }

    /// Why the mesh has failed, if it has.
    pub(super) fn failure(&self) -> Option<MeshError> {
        self.failed.lock().as_ref().map(|(reason, _)| reason.clone())
    }

    /// Fails all waiting operations, and all later ones. The first reason is kept.
    pub(super) fn fail(&self, reason: MeshError) {
        {
            let mut failed = self.failed.lock();
            if failed.is_some() {
                return;
            }
            *failed = Some((reason.clone(), Instant::now()));
        }
        let (rank, text) = match &reason {
            MeshError::PeerLost { rank, reason } => (*rank, reason.clone()),
            MeshError::Aborted(reason) => (self.rank, reason.clone()),
            other => (self.rank, other.to_string()),
        };
        let text = last_word(&text).as_bytes();
        let header = Frame::Lost { rank, len: text.len() }.encode();
        let mut reports = Reports::new();
        // The lost rank comes last: what it says about this one must not reach the others first.
        let mut peers: Vec<_> = self.live().collect();
        peers.sort_by_key(|(peer, _)| *peer == rank);
        for (_, peer) in peers {
            // A peer that only sees the connection end would take this rank for the cause.
            if self.close_outbox(peer, &reason, &mut reports) {
                let _ = peer.connection.write(&[IoSlice::new(&header), IoSlice::new(text)]);
            }
        }
        // After the cause is on its way: a peer that can no longer read a lent message waits for it.
        self.transports.iter().for_each(|transport| transport.revoke());
        let slots = self.mailbox.lock().fail(&reason);
        slots.iter().for_each(|slot| slot.finish(Err(reason.clone())));
        report(reports);
        self.events.failed(&reason);
        self.wake();
    }
}

/// Reports outcomes to senders; no lock is held.
fn report(reports: Reports) {
    for (done, outcome) in reports {
        done(outcome);
    }
}
