//! The UCX transport: the mesh's frames as active messages.
//!
//! TCP connections remain in use: they identify ranks (the hello), detect failures (pings, the end of a stream) and
//! carry the reason for a group's end. Everything else uses UCX: small messages with their frame, announced ones in one
//! piece into the target once they are requested. UCX may deliver messages out of order, so frames whose order matters
//! are numbered.
//!
//! A caller that waits for a message makes progress itself for a short time; the mesh's thread does so for the others,
//! and sleeps on UCX's descriptor when there is nothing to do.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use super::core::Core;
use super::error::MeshError;
use super::frame::{self, Frame};
use super::in_order::InOrder;
use super::inbound::{begin, finish};
use super::limits::{self, GRACE, Limits, NAP, TICK, TURNS, UCX_SPIN};
use super::outbox::{Outbox, Post, Reports};
use super::receive::Slot;
use super::roster::{Roster, SECRET_LEN};
use super::transport::{Endpoint, MeshLink, Sleep, Transport};
use crate::NetError;
use crate::ucx::{Event, HEADER_LEN, Header, How, Outcome, Token, Waiting, Worker};

/// UCX before the ranks are connected. Errors: UCX is not available.
pub(super) fn open() -> Result<Box<dyn Endpoint>, NetError> {
    Ok(Box::new(UcxEndpoint(Worker::open()?)))
}

struct UcxEndpoint(Worker);

impl Endpoint for UcxEndpoint {
    fn address(&self) -> Option<&[u8]> {
        Some(self.0.address())
    }

    fn connect(self: Box<Self>, roster: &Roster) -> Result<Arc<dyn Transport>, NetError> {
        let addresses = roster.seats.iter().map(|seat| seat.network_address.clone());
        let mut addresses: Vec<_> = addresses.collect();
        let own = roster.rank as usize;
        addresses[own] = None;
        if let Some(rank) = (0..addresses.len()).find(|&r| r != own && addresses[r].is_none()) {
            let (rank, address) = (rank as u32, roster.seats[rank].address);
            let reason = "it has given no address of UCX".to_owned();
            return Err(MeshError::Unreachable { rank, address, reason }.into());
        }
        self.0.connect(&addresses)?;
        let secrets = roster.seats.iter().map(|seat| seat.secret).collect();
        Ok(Arc::new(Ucx::new(self.0, roster.rank, secrets)))
    }
}

/// The UCX transport of a mesh.
pub(super) struct Ucx {
    worker: Worker,
    rank: u32,
    /// By rank: the secret that a message to that rank must carry; the own secret at the own rank.
    secrets: Vec<[u8; SECRET_LEN]>,
    /// By rank: the next number of an ordered message.
    numbers: Vec<AtomicU64>,
    receiving: Mutex<Receiving>,
    /// Number of threads that make progress while they wait.
    helpers: AtomicUsize,
    helped: AtomicBool,
    bytes_received: AtomicU64,
    /// Messages whose sender is not a rank of this group.
    unknown_senders: AtomicU64,
}

#[derive(Default)]
struct Receiving {
    events: Vec<Event>,
    /// By rank: ordered messages.
    peers: Vec<InOrder<Frame>>,
    fetches: FxHashMap<u64, Fetch>,
    next_fetch: u64,
}

/// A message that UCX writes to its target.
struct Fetch {
    from: u32,
    slot: Arc<Slot>,
}

/// Prefix of a frame: the sender, the frame's number if ordered, and the receiver's secret.
struct Envelope {
    from: u32,
    number: u64,
    frame: Frame,
}

impl Ucx {
    fn new(worker: Worker, rank: u32, secrets: Vec<[u8; SECRET_LEN]>) -> Ucx {
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
            bytes_received: AtomicU64::new(0),
            unknown_senders: AtomicU64::new(0),
        }
    }

    /// Whether a message is being fetched.
    #[cfg(test)]
    pub(super) fn is_fetching(&self) -> bool {
        !self.receiving.lock().fetches.is_empty()
    }

    /// Stops all progress until the returned guard is dropped, as in a stopped process.
    #[cfg(test)]
    pub(super) fn stop(&self) -> impl Drop {
        self.receiving.lock()
    }

    /// Makes progress once; false if nothing happened, or another thread holds the lock.
    fn turn(&self, core: &Core) -> bool {
        let Some(mut receiving) = self.receiving.try_lock() else { return false };
        let mut events = std::mem::take(&mut receiving.events);
        let moved = self.worker.progress(&mut events);
        for event in events.drain(..) {
            self.handle(core, &mut receiving, event);
        }
        receiving.events = events;
        moved
    }

    fn handle(&self, core: &Core, receiving: &mut Receiving, event: Event) {
        match event {
            Event::Whole { header, bytes } => {
                let Some(envelope) = self.open(core, &header) else { return };
                let from = envelope.from;
                let len = (HEADER_LEN + bytes.len()) as u64;
                self.bytes_received.fetch_add(len, Ordering::Relaxed);
                if let Err(reason) = take(core, receiving, envelope, bytes) {
                    core.lost(from, reason);
                }
            }
            Event::Waiting { header, bytes } => match self.open(core, &header) {
                Some(envelope) => {
                    let from = envelope.from;
                    if let Err(reason) = self.fetch(core, receiving, &envelope, &bytes) {
                        core.lost(from, &reason);
                    }
                }
                None => self.worker.discard(&bytes),
            },
            Event::Done { token: Token::Fetch { number }, outcome } => {
                if let Some(Fetch { from, slot }) = receiving.fetches.remove(&number) {
                    slot.give_back(from, ended(from, &outcome));
                    broken(core, from, outcome);
                }
            }
            Event::Done { token: Token::Send { to, number }, outcome } => {
                // A receiver that does not want a message has given up its receive, which is no error here.
                let result = match &outcome {
                    Outcome::Cancelled => Ok(()),
                    outcome => ended(to, outcome),
                };
                core.with_outbox(to, core.known_peer(to), |outbox, reports| {
                    outbox.completed(number, result, reports);
                });
                broken(core, to, outcome);
            }
            Event::Broken { rank, reason } => core.lost(rank, &format!("UCX: {reason}")),
        }
    }

    /// Starts a fetch of a message into its target.
    fn fetch(
        &self,
        core: &Core,
        receiving: &mut Receiving,
        envelope: &Envelope,
        bytes: &Waiting,
    ) -> Result<(), String> {
        let from = envelope.from;
        let slot = match envelope.frame {
            Frame::Data { id, len } if len == bytes.len => {
                core.mailbox.lock().data(from, id, len).map(|(slot, last)| last.then_some(slot))?
            }
            _ => None,
        };
        let Some(slot) = slot else {
            self.worker.discard(bytes);
            return Err("a message that is not what was announced".to_owned());
        };
        self.bytes_received.fetch_add((HEADER_LEN + bytes.len) as u64, Ordering::Relaxed);
        let Some(memory) = slot.lend(bytes.len) else {
            self.worker.discard(bytes);
            return Ok(());
        };
        let number = receiving.next_fetch;
        receiving.next_fetch += 1;
        match self.worker.fetch(number, bytes, memory) {
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

    /// Parses a header, if it comes from a rank that has not left.
    fn open(&self, core: &Core, header: &Header) -> Option<Envelope> {
        let (bytes, rest) = header.split_at(frame::HEADER_LEN);
        let (from, rest) = rest.split_at(NUMBER - FROM);
        let (number, secret) = rest.split_at(SECRET - NUMBER);
        let from = u32::from_be_bytes(from.try_into().ok()?);
        let number = u64::from_be_bytes(number.try_into().ok()?);
        let known = core.peer(from).filter(|_| *secret == self.secrets[self.rank as usize]);
        let Some(peer) = known else {
            self.unknown_senders.fetch_add(1, Ordering::Relaxed);
            return None;
        };
        if peer.has_left() {
            return None;
        }
        match Frame::decode(bytes.try_into().ok()?, usize::MAX) {
            Ok(frame) => Some(Envelope { from, number, frame }),
            Err(reason) => {
                core.lost(from, reason);
                None
            }
        }
    }
}

impl Transport for Ucx {
    fn limits(&self) -> Limits {
        limits::UCX
    }

    fn reaches(&self, _: u32) -> bool {
        true
    }

    fn link(self: Arc<Self>, rank: u32) -> Box<dyn MeshLink> {
        Box::new(UcxLink { ucx: self, rank })
    }

    fn is_polled(&self) -> bool {
        true
    }

    fn progress(&self, core: &Core) {
        for _ in 0..TURNS {
            if !self.turn(core) {
                return;
            }
        }
    }

    fn help(
        &self,
        core: &Core,
        _from: Option<u32>,
        _until: Option<Instant>,
        done: &dyn Fn() -> bool,
    ) {
        if done() {
            return;
        }
        self.helpers.fetch_add(1, Ordering::Relaxed);
        self.helped.store(true, Ordering::Relaxed);
        let mut until = Instant::now() + UCX_SPIN;
        let came = loop {
            let moved = self.turn(core);
            if done() {
                break true;
            }
            let now = Instant::now();
            if moved {
                until = now + UCX_SPIN;
            } else if now >= until {
                break false;
            } else {
                // Yields, so that the awaited rank can run if ranks share cores.
                std::thread::yield_now();
            }
        };
        self.helpers.fetch_sub(1, Ordering::Relaxed);
        if !came {
            core.wake();
        }
    }

    fn keeps_memory(&self) -> bool {
        true
    }

    fn before_sleep(&self, core: &Core) -> Sleep {
        for _ in 0..TURNS {
            let moved = self.turn(core);
            let helped = self.helped.swap(false, Ordering::Relaxed);
            if helped || self.helpers.load(Ordering::Relaxed) > 0 {
                return Sleep { at_most: NAP, readable: None };
            }
            if !moved && let Some(fd) = self.worker.arm() {
                return Sleep { at_most: TICK, readable: Some(fd) };
            }
        }
        std::thread::yield_now();
        Sleep { at_most: Duration::ZERO, readable: None }
    }

    fn peer_ended(&self, core: &Core, _rank: u32) {
        self.progress(core);
    }

    fn expire(&self, core: &Core, now: Instant) {
        let Some(then) = now.checked_sub(GRACE) else { return };
        let mut stuck = core
            .live()
            .find(|(_, peer)| peer.sending.lock().outbox.is_stuck_since(then))
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
            // Also for a rank that has left: only closing UCX frees that memory, whose owner may already wait for
            // it.
            let reason = "it stopped in the middle of a message".to_owned();
            core.fail(MeshError::PeerLost { rank, reason });
            self.close(core);
        }
    }

    /// Ends all operations that wait for UCX.
    fn close(&self, core: &Core) {
        let mut receiving = self.receiving.lock();
        let mut events = std::mem::take(&mut receiving.events);
        self.worker.close(&mut events);
        // Process what had arrived by then.
        for event in events {
            self.handle(core, &mut receiving, event);
        }
    }

    fn bytes_received(&self) -> u64 {
        self.bytes_received.load(Ordering::Relaxed)
    }

    fn unknown_senders(&self) -> u64 {
        self.unknown_senders.load(Ordering::Relaxed)
    }
}

/// Sends to one rank.
struct UcxLink {
    ucx: Arc<Ucx>,
    rank: u32,
}

impl MeshLink for UcxLink {
    fn flush(
        &mut self,
        core: &Core,
        outbox: &mut Outbox,
        reports: &mut Reports,
    ) -> Result<(), String> {
        let UcxLink { ucx, rank } = self;
        let mut under_way = false;
        let post = |post: Post<'_>| {
            let len = post.payload.as_ref().map_or(0, |(_, range)| range.len());
            // Short messages that were announced for lack of room have room by now, and a copy costs less.
            let how = if len > limits::UCX.eager { How::Rendezvous } else { How::Eager };
            let header = ucx.envelope(*rank, &post);
            let free = ucx.worker.send((*rank, post.number), &header, post.payload, how)?;
            under_way |= !free;
            Ok(free)
        };
        let outcome = outbox.post_all(post, reports);
        if under_way && ucx.helpers.load(Ordering::Relaxed) == 0 {
            // UCX continues the transfer when it is polled.
            core.wake();
        }
        outcome
    }
}

/// Handles a message with its bytes.
fn take(
    core: &Core,
    receiving: &mut Receiving,
    envelope: Envelope,
    bytes: Vec<u8>,
) -> Result<(), &'static str> {
    let Envelope { from, number, frame } = envelope;
    match frame {
        Frame::Ready { .. } | Frame::Credit { .. } => return deliver(core, from, frame, &bytes),
        Frame::Data { id, len } if len == bytes.len() => {
            let (slot, last) = core.mailbox.lock().data(from, id, len)?;
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
        | Frame::Returned { .. } => {
            return Err("a frame that does not belong on this transport");
        }
    }
    let order = &mut receiving.peers[from as usize];
    let mut turn = order.arrived(number, frame, bytes)?;
    while let Some((frame, bytes)) = turn {
        deliver(core, from, frame, &bytes)?;
        turn = receiving.peers[from as usize].next();
    }
    Ok(())
}

/// Processes a frame in order.
fn deliver(core: &Core, from: u32, frame: Frame, bytes: &[u8]) -> Result<(), &'static str> {
    let expected = if let Frame::Eager { len, .. } = frame { len } else { 0 };
    if expected != bytes.len() {
        return Err("a frame whose payload has another length");
    }
    let mut body = begin(core, from, frame)?;
    body.fill(bytes);
    finish(core, from, body);
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

fn broken(core: &Core, rank: u32, outcome: Outcome) {
    if let Outcome::Failed(reason) = outcome {
        core.lost(rank, &format!("UCX: {reason}"));
    }
}

/// Offsets of the fields of a header.
const FROM: usize = frame::HEADER_LEN;
const NUMBER: usize = FROM + 4;
const SECRET: usize = NUMBER + 8;
const _: () = assert!(SECRET + SECRET_LEN == HEADER_LEN);
