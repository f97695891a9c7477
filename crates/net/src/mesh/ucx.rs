//! The mesh's frames as active messages of UCX.
//!
//! TCP connections stay beside: they tell who is who (the hello), who is alive (pings, the end of a stream) and why a
//! group ends. Everything else goes by UCX: small messages with their frame, announced ones in one piece to where they
//! belong once they are asked for. UCX may hand messages over out of order, so those whose order matters are numbered.
//!
//! Who waits for a message moves UCX on itself, for a short while; the mesh's thread does it for the others, asleep on
//! UCX's descriptor where there is nothing to do.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use super::connect::SECRET_LEN;
use super::frame::{self, Frame};
use super::in_order::InOrder;
use super::inbound::{begin, finish, peer};
use super::outbox::{Limits, Outbox, Post, Reports};
use super::receive::Slot;
use super::{MeshError, Shared};
use crate::ucx::{Event, HEADER_LEN, Header, How, Outcome, Token, Waiting, Worker};

pub(super) const LIMITS: Limits = Limits { eager: EAGER_MAX, segment: usize::MAX };

/// UCX under a mesh.
pub(super) struct Ucx {
    worker: Worker,
    rank: u32,
    /// By rank: what that rank wants to hear; our own is what we do.
    secrets: Vec<[u8; SECRET_LEN]>,
    /// By rank: the next number of a message whose order matters.
    numbers: Vec<AtomicU64>,
    receiving: Mutex<Receiving>,
    /// Threads that move messages on while they wait.
    helpers: AtomicUsize,
    helped: AtomicBool,
    /// Messages that came from no rank of this group.
    pub(super) strangers: AtomicU64,
}

#[derive(Default)]
struct Receiving {
    events: Vec<Event>,
    /// By rank: messages whose order matters.
    peers: Vec<InOrder<Frame>>,
    fetches: FxHashMap<u64, Fetch>,
    next_fetch: u64,
}

/// UCX writes a message to where it belongs.
struct Fetch {
    from: u32,
    slot: Arc<Slot>,
}

/// What stands before a frame: who sends it, its number if its order matters, the receiver's secret.
struct Envelope {
    from: u32,
    number: u64,
    frame: Frame,
}

impl Ucx {
    pub(super) fn new(worker: Worker, rank: u32, secrets: Vec<[u8; SECRET_LEN]>) -> Ucx {
        let size = secrets.len();
        let peers = (0..size).map(|_| InOrder::default()).collect();
        Ucx {
            worker,
            rank,
            secrets,
            numbers: (0..size).map(|_| AtomicU64::new(0)).collect(),
            receiving: Mutex::new(Receiving { peers, ..Receiving::default() }),
            helpers: AtomicUsize::new(0),
            helped: AtomicBool::new(false),
            strangers: AtomicU64::new(0),
        }
    }

    /// Sends what is queued for a rank; returns why that is impossible, if it is.
    pub(super) fn flush(
        &self,
        shared: &Shared,
        to: u32,
        outbox: &mut Outbox,
        reports: &mut Reports,
    ) -> Option<String> {
        let mut under_way = false;
        let post = |post: Post<'_>| {
            let len = post.payload.as_ref().map_or(0, |(_, range)| range.len());
            // Short ones that were announced for want of room have a place by now, and a copy costs less.
            let how = if len > EAGER_MAX { How::Rendezvous } else { How::Eager };
            let header = self.envelope(to, &post);
            let free = self.worker.send((to, post.number), &header, post.payload, how)?;
            under_way |= !free;
            Ok(free)
        };
        let outcome = outbox.post_all(post, reports);
        if under_way && self.helpers.load(Ordering::Relaxed) == 0 {
            // UCX goes on with it when somebody asks.
            shared.wake();
        }
        outcome.err()
    }

    /// Moves messages on while the caller waits for `done`; gives up after a short time in which nothing comes.
    pub(super) fn help(&self, shared: &Shared, done: impl Fn() -> bool) {
        if done() {
            return;
        }
        self.helpers.fetch_add(1, Ordering::Relaxed);
        self.helped.store(true, Ordering::Relaxed);
        let mut until = Instant::now() + SPIN;
        let came = loop {
            let moved = self.progress(shared);
            if done() {
                break true;
            }
            let now = Instant::now();
            if moved {
                until = now + SPIN;
            } else if now >= until {
                break false;
            } else {
                // Where ranks share cores the one that is waited for can run.
                std::thread::yield_now();
            }
        };
        self.helpers.fetch_sub(1, Ordering::Relaxed);
        if !came {
            shared.wake();
        }
    }

    /// For the mesh's thread: does what there is, then says for how long it may sleep and on which descriptor.
    pub(super) fn rest(&self, shared: &Shared) -> (Duration, i32) {
        for _ in 0..TURNS {
            let moved = self.progress(shared);
            let helped = self.helped.swap(false, Ordering::Relaxed);
            if helped || self.helpers.load(Ordering::Relaxed) > 0 {
                return (NAP, -1);
            }
            if !moved && let Some(fd) = self.worker.arm() {
                return (super::io::TICK, fd);
            }
        }
        std::thread::yield_now();
        (Duration::ZERO, -1)
    }

    /// Takes all that has come.
    pub(super) fn drain(&self, shared: &Shared) {
        for _ in 0..TURNS {
            if !self.progress(shared) {
                return;
            }
        }
    }

    /// Ends receives that UCX serves when their deadlines pass; a peer that stops in the middle of a message is lost.
    pub(super) fn expire(&self, shared: &Shared, now: Instant) {
        let Some(then) = now.checked_sub(GRACE) else { return };
        let mut stuck = shared
            .live()
            .find(|(_, peer)| peer.outbox.lock().is_stuck_since(then))
            .map(|(rank, _)| rank);
        for fetch in self.receiving.lock().fetches.values() {
            if fetch.slot.is_late(now) {
                fetch.slot.finish(Err(MeshError::Timeout));
            }
            if fetch.slot.is_stuck_since(then) {
                stuck.get_or_insert(fetch.from);
            }
        }
        if let Some(rank) = stuck {
            // Whether it has left or not. Only the end of UCX frees that memory, for which its owner may wait already.
            let reason = "it stopped in the middle of a message".to_owned();
            shared.fail(MeshError::PeerLost { rank, reason });
            self.close(shared);
        }
    }

    /// Ends UCX; whoever still waits for it is told.
    pub(super) fn close(&self, shared: &Shared) {
        let mut receiving = self.receiving.lock();
        let mut events = std::mem::take(&mut receiving.events);
        self.worker.close(&mut events);
        // What had come by then still counts.
        for event in events {
            self.handle(shared, &mut receiving, event);
        }
    }

    /// Whether a message is being fetched.
    #[cfg(test)]
    pub(super) fn is_fetching(&self) -> bool {
        !self.receiving.lock().fetches.is_empty()
    }

    /// Nothing moves on until what is returned is dropped, as in a process that is stopped.
    #[cfg(test)]
    pub(super) fn stop(&self) -> impl Drop {
        self.receiving.lock()
    }

    /// One turn; false if nothing happened, or somebody else has the turn.
    fn progress(&self, shared: &Shared) -> bool {
        let Some(mut receiving) = self.receiving.try_lock() else { return false };
        let mut events = std::mem::take(&mut receiving.events);
        let moved = self.worker.progress(&mut events);
        for event in events.drain(..) {
            self.handle(shared, &mut receiving, event);
        }
        receiving.events = events;
        moved
    }

    fn handle(&self, shared: &Shared, receiving: &mut Receiving, event: Event) {
        match event {
            Event::Whole { header, bytes } => {
                let Some(envelope) = self.open(shared, &header) else { return };
                let from = envelope.from;
                let len = (HEADER_LEN + bytes.len()) as u64;
                shared.bytes_rx.fetch_add(len, Ordering::Relaxed);
                if let Err(reason) = take(shared, receiving, envelope, bytes) {
                    shared.lost(from, reason);
                }
            }
            Event::Waiting { header, bytes } => match self.open(shared, &header) {
                Some(envelope) => {
                    let from = envelope.from;
                    if let Err(reason) = self.fetch(shared, receiving, &envelope, &bytes) {
                        shared.lost(from, &reason);
                    }
                }
                None => self.worker.discard(&bytes),
            },
            Event::Done { token: Token::Fetch { number }, outcome } => {
                if let Some(Fetch { from, slot }) = receiving.fetches.remove(&number) {
                    slot.give_back(from, ended(from, &outcome));
                    broken(shared, from, outcome);
                }
            }
            Event::Done { token: Token::Send { to, number }, outcome } => {
                // Who does not want a message has given up its receive: that is no error of ours.
                let told = match &outcome {
                    Outcome::Cancelled => Ok(()),
                    outcome => ended(to, outcome),
                };
                shared.with_outbox(to, peer(shared, to), |outbox, reports| {
                    outbox.landed(number, told, reports);
                });
                broken(shared, to, outcome);
            }
            Event::Broken { rank, reason } => shared.lost(rank, &format!("UCX: {reason}")),
        }
    }

    /// Has UCX write a message to where it belongs.
    fn fetch(
        &self,
        shared: &Shared,
        receiving: &mut Receiving,
        envelope: &Envelope,
        bytes: &Waiting,
    ) -> Result<(), String> {
        let from = envelope.from;
        let slot = match envelope.frame {
            Frame::Data { id, len } if len == bytes.len => shared
                .mailbox
                .lock()
                .data(from, id, len)
                .map(|(slot, last)| last.then_some(slot))?,
            _ => None,
        };
        let Some(slot) = slot else {
            self.worker.discard(bytes);
            return Err("a message that is not what was announced".to_owned());
        };
        shared.bytes_rx.fetch_add((HEADER_LEN + bytes.len) as u64, Ordering::Relaxed);
        let Some((memory, range)) = slot.lend(bytes.len) else {
            self.worker.discard(bytes);
            return Ok(());
        };
        let number = receiving.next_fetch;
        receiving.next_fetch += 1;
        match self.worker.fetch(number, bytes, &memory, range) {
            Ok(false) => {
                receiving.fetches.insert(number, Fetch { from, slot });
            }
            Ok(true) => slot.give_back(from, Ok(())),
            Err(reason) => {
                slot.give_back(from, ended(from, &Outcome::Failed(reason.clone())));
                return Err(reason);
            }
        }
        Ok(())
    }

    fn envelope(&self, to: u32, post: &Post<'_>) -> Header {
        let number = match post.in_order {
            // The outbox's lock is held, so numbers follow the order of sending.
            true => self.numbers[to as usize].fetch_add(1, Ordering::Relaxed),
            false => 0,
        };
        let mut header = [0; HEADER_LEN];
        header[..frame::HEADER_LEN].copy_from_slice(post.header);
        header[FROM..NUMBER].copy_from_slice(&self.rank.to_be_bytes());
        header[NUMBER..SECRET].copy_from_slice(&number.to_be_bytes());
        header[SECRET..].copy_from_slice(&self.secrets[to as usize]);
        header
    }

    /// What a header says, if it comes from a rank that has not left.
    fn open(&self, shared: &Shared, header: &Header) -> Option<Envelope> {
        let (bytes, rest) = header.split_at(frame::HEADER_LEN);
        let (from, rest) = rest.split_at(NUMBER - FROM);
        let (number, secret) = rest.split_at(SECRET - NUMBER);
        let from = u32::from_be_bytes(from.try_into().ok()?);
        let number = u64::from_be_bytes(number.try_into().ok()?);
        let known = shared.peer(from).filter(|_| *secret == self.secrets[self.rank as usize]);
        let Some(peer) = known else {
            self.strangers.fetch_add(1, Ordering::Relaxed);
            return None;
        };
        if peer.left.load(Ordering::Relaxed) {
            return None;
        }
        match Frame::decode(bytes.try_into().ok()?, usize::MAX) {
            Ok(frame) => Some(Envelope { from, number, frame }),
            Err(reason) => {
                shared.lost(from, reason);
                None
            }
        }
    }
}

/// A message is here with its bytes.
fn take(
    shared: &Shared,
    receiving: &mut Receiving,
    envelope: Envelope,
    bytes: Vec<u8>,
) -> Result<(), &'static str> {
    let Envelope { from, number, frame } = envelope;
    match frame {
        Frame::Ready { .. } | Frame::Credit { .. } => return deliver(shared, from, frame, &bytes),
        Frame::Data { id, len } if len == bytes.len() => {
            let (slot, last) = shared.mailbox.lock().data(from, id, len)?;
            slot.fill(&bytes);
            if last {
                slot.complete(from);
            }
            return Ok(());
        }
        Frame::Eager { .. } | Frame::Announce { .. } | Frame::Goodbye => {}
        Frame::Data { .. }
        | Frame::Ping
        | Frame::Lost { .. }
        | Frame::Borrow { .. }
        | Frame::Lent { .. }
        | Frame::Landed { .. } => {
            return Err("a frame that does not come this way");
        }
    }
    let order = &mut receiving.peers[from as usize];
    let mut turn = order.arrived(number, frame, bytes)?;
    while let Some((frame, bytes)) = turn {
        deliver(shared, from, frame, &bytes)?;
        turn = receiving.peers[from as usize].next();
    }
    Ok(())
}

/// A frame's turn has come.
fn deliver(shared: &Shared, from: u32, frame: Frame, bytes: &[u8]) -> Result<(), &'static str> {
    let expected = if let Frame::Eager { len, .. } = frame { len } else { 0 };
    if expected != bytes.len() {
        return Err("a frame whose payload has another length");
    }
    let mut body = begin(shared, from, frame)?;
    body.fill(bytes);
    finish(shared, from, body);
    Ok(())
}

fn ended(rank: u32, outcome: &Outcome) -> Result<(), MeshError> {
    let reason = match outcome {
        Outcome::Complete => return Ok(()),
        Outcome::Cancelled => "it was cut off".to_owned(),
        Outcome::Failed(reason) => format!("UCX: {reason}"),
    };
    Err(MeshError::PeerLost { rank, reason })
}

fn broken(shared: &Shared, rank: u32, outcome: Outcome) {
    if let Outcome::Failed(reason) = outcome {
        shared.lost(rank, &format!("UCX: {reason}"));
    }
}

/// Longer messages are announced and fetched: two more round trips, but no copy at either end.
const EAGER_MAX: usize = 16 << 10;

/// Who waits for a message moves UCX on for so long before it goes to sleep.
const SPIN: Duration = Duration::from_micros(200);

/// The thread leaves UCX to those who wait for messages for so long.
const NAP: Duration = Duration::from_millis(1);

/// Then sockets and deadlines get their turn.
const TURNS: usize = 64;

/// For UCX to let go of memory that its owner wants back.
pub(super) const GRACE: Duration = Duration::from_secs(1);

/// Where the parts of a header begin.
const FROM: usize = frame::HEADER_LEN;
const NUMBER: usize = FROM + 4;
const SECRET: usize = NUMBER + 8;
const _: () = assert!(SECRET + SECRET_LEN == HEADER_LEN);
