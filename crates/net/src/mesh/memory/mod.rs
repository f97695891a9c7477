//! The mesh's frames through memory that the ranks of a host share.
//!
//! For every ordered pair there is a ring ([`ring`]). The TCP connections stay beside: they tell who is who, who is alive
//! and why a group ends, and a ping on one wakes a rank that sleeps. Everything else between ranks of a host goes through
//! the rings, in the same frames, with the same matching, allowances and errors.
//!
//! Long messages are read in their sender's memory, where the kernel allows it ([`borrow`]).
//!
//! Who waits for a message reads the rings itself, and sleeps when nothing has come for a while; the mesh's thread does
//! it for all others. Where somebody waits often, that thread keeps away for a millisecond at a time, so that it does
//! not take the core that the ranks need.
//!
//! Processes that share the memory trust each other as those of an arena do: one that writes where it may not garbles
//! messages. What is read is checked all the same: a length or a position that cannot be is the end of that peer.

mod borrow;
mod layout;
mod ring;

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

use super::frame::{Frame, HEADER_LEN, SEGMENT_MAX};
use super::inbound::{Body, Fetch, begin, finish, peer};
use super::outbox::{ALLOWANCE, Drained, Limits, Outbox, Reports, cost};
use super::ucx::GRACE;
use super::{MeshError, Shared, Wanted};
use crate::Buffer;
use crate::arena::{Strangers, own_cpu};
use borrow::{Nonce, Sight};
use layout::{Layout, Ring};
use ring::{INLINE, Reader, Writer};

/// Longer messages are announced: they go straight from the ring to where they belong, never into memory of their own.
pub(super) const LIMITS: Limits = Limits { eager: 64 << 10, segment: SEGMENT_MAX };

/// Memory for the messages between the ranks of a host, before there is a mesh. Made by
/// [`crate::arena::ArenaPort::rings`].
pub struct Rings {
    layout: Arc<Layout>,
    place: usize,
    crowded: bool,
    /// Long messages may be read in their sender's memory.
    borrowing: bool,
}

impl Rings {
    /// For `ranks` ranks of a host; what the others are given.
    pub(crate) fn create(ranks: usize) -> io::Result<(Rings, OwnedFd)> {
        let (layout, fd) = Layout::create(ranks)?;
        Ok((Rings { layout: Arc::new(layout), place: 0, crowded: false, borrowing: true }, fd))
    }

    /// Those that another rank has made. Errors: they are not.
    pub(crate) fn open(fd: &OwnedFd, ranks: usize) -> io::Result<Rings> {
        let layout = Arc::new(Layout::open(fd, ranks)?);
        Ok(Rings { layout, place: 0, crowded: false, borrowing: true })
    }

    /// As where the kernel lets nobody read another's memory.
    #[cfg(test)]
    pub(super) fn without_borrowing(self) -> Rings {
        Rings { borrowing: false, ..self }
    }

    /// For a rank at that place. `crowded`: there are fewer cores than ranks.
    pub(crate) fn at(self, place: usize, crowded: bool) -> Rings {
        Rings { place, crowded, ..self }
    }
}

/// The rings under a mesh.
pub(super) struct Memory {
    layout: Arc<Layout>,
    place: usize,
    crowded: bool,
    /// By rank of the group; `None`: of another host, or our own.
    links: Vec<Option<Link>>,
    /// Ranks that have a link.
    linked: Vec<u32>,
    /// Threads that read while they wait.
    helpers: AtomicUsize,
    helped: AtomicBool,
    borrowing: bool,
    /// By which others see that they read our memory.
    _nonce: Nonce,
}

/// Between us and another rank.
struct Link {
    place: usize,
    sight: Sight,
    receiving: Mutex<Receiving>,
    /// Bytes received, with headers; written with the lock held.
    bytes: AtomicU64,
}

struct Receiving {
    reader: Reader<Ring>,
    /// Of the frame that is being read.
    body: Body,
    /// Nothing is read any more.
    ended: bool,
    /// Of the peer's allowance, used by messages that were taken at once, and not given back yet.
    unreturned: u64,
}

/// The ring in which we write to a rank; its outbox has it.
pub(super) struct Sending(Writer<Ring>);

impl Memory {
    /// `ranks`: of our host, by place; ours is among them. `size`: of the group.
    pub(super) fn new(rings: Rings, ranks: &[u32], size: usize) -> Memory {
        let Rings { layout, place: own, crowded, borrowing } = rings;
        let mut links: Vec<Option<Link>> = (0..size).map(|_| None).collect();
        let others = || ranks.iter().enumerate().filter(|(place, _)| *place != own);
        for (place, &rank) in others() {
            let reader = Reader::new(layout.ring(place, own));
            let (body, ended, unreturned) = (Body::None, false, 0);
            let receiving = Mutex::new(Receiving { reader, body, ended, unreturned });
            let (sight, bytes) = (Sight::default(), AtomicU64::new(0));
            links[rank as usize] = Some(Link { place, sight, receiving, bytes });
        }
        let linked = others().map(|(_, &rank)| rank).collect();
        let (helpers, helped) = (AtomicUsize::new(0), AtomicBool::new(false));
        let nonce = Nonce::new();
        layout.card(own).tell(&nonce);
        let place = own;
        Memory { layout, place, crowded, links, linked, helpers, helped, borrowing, _nonce: nonce }
    }

    /// Whether an announced message is to be read where it is.
    pub(super) fn borrows(&self, from: u32, len: u64) -> bool {
        let link = self.link(from).filter(|_| self.borrowing && len > LIMITS.eager as u64);
        link.is_some_and(|link| link.sight.is_clear(self.layout.card(link.place)))
    }

    /// What we have lent counts for nothing any more.
    pub(super) fn revoke(&self) {
        self.layout.bell(self.place).revoke();
    }

    /// Ends receives of messages that stop in the middle; a peer that reads on in one that was given up long ago is lost.
    pub(super) fn expire(&self, shared: &Shared, now: Instant) {
        let failed = shared.failed.lock().clone();
        // Who has the lock is reading.
        let receiving = self.links().filter_map(|(_, link)| link.receiving.try_lock());
        receiving.for_each(|receiving| receiving.body.expire(failed.as_ref(), now));
        let Some(then) = now.checked_sub(GRACE) else { return };
        let is_stuck = |&rank: &u32| peer(shared, rank).outbox.lock().is_stuck_since(then);
        if let Some(rank) = self.linked.iter().copied().find(is_stuck) {
            let reason = "it stopped in the middle of a message".to_owned();
            shared.fail(MeshError::PeerLost { rank, reason });
        }
    }

    /// Where we write to a rank of our host. To be called once for each.
    pub(super) fn sending(&self, rank: u32) -> Option<Sending> {
        let ring = self.layout.ring(self.place, self.link(rank)?.place);
        Some(Sending(Writer::new(ring)))
    }

    /// Bytes received, with headers.
    pub(super) fn received(&self) -> u64 {
        self.links().map(|(_, link)| link.bytes.load(Ordering::Relaxed)).sum()
    }

    /// Whether messages between us and that rank go through memory.
    #[inline]
    pub(super) fn reaches(&self, rank: u32) -> bool {
        self.link(rank).is_some()
    }

    /// Whether the receive may be served through memory.
    pub(super) fn may_serve(&self, from: Option<u32>) -> bool {
        from.map_or(!self.linked.is_empty(), |rank| self.reaches(rank))
    }

    #[inline]
    fn link(&self, rank: u32) -> Option<&Link> {
        self.links.get(rank as usize)?.as_ref()
    }

    fn links(&self) -> impl Iterator<Item = (u32, &Link)> {
        self.linked.iter().filter_map(|&rank| Some((rank, self.link(rank)?)))
    }

    /// Writes what is queued for a rank as far as there is room.
    pub(super) fn flush(
        &self,
        shared: &Shared,
        to: u32,
        outbox: &mut Outbox,
        reports: &mut Reports,
    ) -> Option<String> {
        let link = self.link(to)?;
        let mut sending = outbox.ring.take()?;
        let writer = &mut sending.0;
        let write = |parts: &[io::IoSlice<'_>]| loop {
            let count = match parts {
                [header, payload] => match <&[u8; HEADER_LEN]>::try_from(&header[..]) {
                    Ok(header) => writer.begin(header, payload, PIECE).map(|n| HEADER_LEN + n),
                    Err(_) => return Err(io::ErrorKind::InvalidInput.into()),
                },
                [payload] => Some(writer.go_on(payload, PIECE)).filter(|n| *n > 0),
                _ => return Err(io::ErrorKind::InvalidInput.into()),
            };
            if let Some(count) = count {
                self.nudge(shared, to, link);
                return Ok(count);
            }
            if writer.starve() {
                return Err(io::ErrorKind::WouldBlock.into());
            }
        };
        let drained = outbox.drain(write, reports);
        outbox.ring = Some(sending);
        let blocked = matches!(drained, Ok(Drained::Blocked));
        peer(shared, to).blocked.store(blocked, Ordering::Relaxed);
        drained.err().map(|error| error.to_string())
    }

    /// For who has sent something by [`Sending::whole`].
    #[inline]
    pub(super) fn sent(&self, shared: &Shared, to: u32) {
        if let Some(link) = self.link(to) {
            self.nudge(shared, to, link);
        }
    }

    /// Wakes a rank that sleeps.
    #[inline]
    fn nudge(&self, shared: &Shared, rank: u32, link: &Link) {
        if self.layout.bell(link.place).is_needed() {
            ring(shared, rank);
        }
    }

    /// Takes a message that is next in its ring, or comes there while we look for a moment, to where it belongs; its sender.
    /// `None`, and nothing has happened, where another comes first or none.
    #[inline]
    pub(super) fn receive_now(
        &self,
        shared: &Shared,
        wanted: &Wanted,
        into: &Buffer,
        looks: u32,
    ) -> Option<u32> {
        if !shared.knows_nothing_of(wanted.key) {
            return None;
        }
        self.layout.bell(self.place).here(own_cpu());
        if looks > 1 {
            self.helped.store(true, Ordering::Relaxed);
        }
        // With fewer cores than ranks the one that is waited for is most likely not running.
        let looks = if self.crowded { looks.min(FIRST_LOOKS) } else { looks };
        if let Some(rank) = wanted.from {
            let link = self.link(rank)?;
            let mut receiving = link.receiving.try_lock()?;
            let here = (0..looks).any(|look| {
                let here = receiving.reader.has_cell();
                if !here && look >= FIRST_LOOKS {
                    std::hint::spin_loop();
                }
                here
            });
            return here
                .then(|| self.take_now(shared, wanted, into, (rank, link), &mut receiving))?;
        }
        for look in 0..looks {
            for (rank, link) in self.links() {
                let Some(mut receiving) = link.receiving.try_lock() else { continue };
                if receiving.reader.has_cell() {
                    return self.take_now(shared, wanted, into, (rank, link), &mut receiving);
                }
            }
            if look >= FIRST_LOOKS {
                std::hint::spin_loop();
            }
        }
        None
    }

    /// The next frame of `rank`, if it is a whole message that is wanted, and nobody wanted it before.
    #[inline]
    fn take_now(
        &self,
        shared: &Shared,
        wanted: &Wanted,
        into: &Buffer,
        (rank, link): (u32, &Link),
        receiving: &mut Receiving,
    ) -> Option<u32> {
        let Receiving { reader, body, ended, unreturned } = receiving;
        let (header, here) = reader.header();
        let Ok(Frame::Eager { key, fingerprint, len }) = Frame::decode(&header, LIMITS.eager)
        else {
            return None;
        };
        let fits = key == wanted.key && fingerprint == wanted.fingerprint && len == into.len();
        let free = matches!(body, Body::None) && !*ended && here == len;
        // Who posts a receive from here on posts it behind ours.
        if !fits || !free || !shared.knows_nothing_of(key) {
            return None;
        }
        let mut at = 0;
        let mut fill = |bytes: &[u8]| {
            into.write(at, bytes);
            at += bytes.len();
        };
        if len <= INLINE {
            reader.take_payload(len, fill);
        } else if reader.take_cell(here).and_then(|()| reader.take(len, &mut fill)) != Ok(len) {
            // The header said that all of it is here: what has come of it is not a message.
            *ended = true;
            shared.lost(rank, CORRUPT);
            return None;
        }
        self.told(shared, (rank, link), reader.tell());
        link.count(HEADER_LEN + len);
        *unreturned += cost(len);
        if *unreturned >= CREDIT {
            shared.push_bare(rank, Frame::Credit { bytes: std::mem::take(unreturned) });
        }
        Some(rank)
    }

    /// A writer was told of room: `wanted` says whether it waits for that.
    #[inline]
    fn told(&self, shared: &Shared, (rank, link): (u32, &Link), wanted: bool) {
        if wanted {
            self.nudge(shared, rank, link);
        }
    }

    /// Moves messages on while the caller waits for `done`; gives up after a while in which nothing comes.
    pub(super) fn help(
        &self,
        shared: &Shared,
        from: Option<u32>,
        until: Option<Instant>,
        done: &dyn Fn() -> bool,
    ) {
        if done() {
            return;
        }
        self.layout.bell(self.place).here(own_cpu());
        let from = from.and_then(|rank| Some(self.link(rank)?.place));
        self.helpers.fetch_add(1, Ordering::Relaxed);
        self.helped.store(true, Ordering::Relaxed);
        let came = STRANGERS.with(|strangers| self.move_on(shared, strangers, (from, until), done));
        self.helpers.fetch_sub(1, Ordering::Relaxed);
        if !came {
            // From here on it is the thread's.
            shared.wake();
        }
    }

    fn move_on(
        &self,
        shared: &Shared,
        strangers: &Strangers,
        (from, until): (Option<usize>, Option<Instant>),
        done: &dyn Fn() -> bool,
    ) -> bool {
        let mut began = Instant::now();
        let mut last = began;
        loop {
            let mut moved = false;
            let looks = if self.crowded { 1 } else { LOOKS };
            for look in 0..looks {
                moved |= self.turn(shared);
                if done() {
                    return true;
                }
                if look >= FIRST_LOOKS {
                    std::hint::spin_loop();
                }
            }
            let bell = |place| self.layout.bell(place);
            if self.crowded || from.is_some_and(|place| bell(place).is_on(own_cpu())) {
                std::thread::yield_now();
            }
            let now = Instant::now();
            strangers.between_looks(last, now);
            last = now;
            if moved {
                began = now;
            } else if now - began > strangers.awake(now, self.crowded) {
                return false;
            }
            if until.is_some_and(|until| now >= until) {
                return false;
            }
        }
    }

    /// For the mesh's thread: does what there is, then says for how long it may sleep. [`Memory::wake_up`] must follow.
    pub(super) fn rest(&self, shared: &Shared) -> Duration {
        for _ in 0..TURNS {
            let moved = self.turn(shared);
            let helped = self.helped.swap(false, Ordering::Relaxed);
            if helped || self.helpers.load(Ordering::Relaxed) > 0 {
                return NAP;
            }
            if moved {
                continue;
            }
            let bell = self.layout.bell(self.place);
            bell.arm();
            if !self.has_work(shared) {
                return super::io::TICK;
            }
            bell.disarm();
        }
        Duration::ZERO
    }

    /// The mesh's thread is awake again.
    pub(super) fn wake_up(&self) {
        self.layout.bell(self.place).disarm();
    }

    /// Reads all that one rank has written, which writes no more.
    pub(super) fn drain(&self, shared: &Shared, rank: u32) {
        let Some(link) = self.link(rank) else { return };
        let mut receiving = link.receiving.lock();
        while self.read(shared, (rank, link), &mut receiving) {}
        receiving.end(shared, rank);
    }

    /// The mesh ends: nothing is read any more.
    pub(super) fn close(&self, shared: &Shared) {
        self.links().for_each(|(rank, link)| link.receiving.lock().end(shared, rank));
    }

    /// Does what can be done for all ranks; whether there was anything.
    fn turn(&self, shared: &Shared) -> bool {
        let mut moved = false;
        for (rank, link) in self.links() {
            // Who has the lock reads.
            if let Some(mut receiving) = link.receiving.try_lock() {
                moved |= self.read(shared, (rank, link), &mut receiving);
            }
            moved |= write(shared, rank);
        }
        moved
    }

    /// Whether there is something that [`Memory::turn`] would do.
    fn has_work(&self, shared: &Shared) -> bool {
        self.links().any(|(rank, link)| {
            link.receiving.try_lock().is_none_or(|receiving: MutexGuard<'_, Receiving>| {
                let Receiving { reader, body, ended, .. } = &*receiving;
                !ended
                    && match body {
                        Body::None => reader.has_cell(),
                        Body::Fetch(_) => true,
                        _ => reader.has_bytes(),
                    }
            }) || can_write(shared, rank)
        })
    }

    /// Reads what one rank has written, within a bound; whether there was anything.
    fn read(&self, shared: &Shared, (rank, link): (u32, &Link), receiving: &mut Receiving) -> bool {
        let mut read = 0;
        while !receiving.ended && read < READ_MAX {
            match self.read_some(shared, (rank, link), receiving) {
                Ok(0) => break,
                Ok(count) => read += count,
                Err(reason) => {
                    receiving.end(shared, rank);
                    shared.lost(rank, reason);
                }
            }
            self.told(shared, (rank, link), receiving.reader.tell());
        }
        read > 0
    }

    /// Reads a frame's header with what there is of its payload, or more of a payload; how many bytes. Errors: the peer cannot
    /// be listened to.
    fn read_some(
        &self,
        shared: &Shared,
        (rank, link): (u32, &Link),
        receiving: &mut Receiving,
    ) -> Result<usize, &'static str> {
        let Receiving { reader, body, .. } = receiving;
        if let Body::Fetch(fetch) = body {
            let count = self.fetch(shared, (rank, link), fetch);
            if fetch.range.is_empty() {
                *body = Body::None;
            }
            return Ok(count);
        }
        if let Some(left) = body.left() {
            let most = *left;
            let count = reader.take(most.min(PIECE), |bytes| body.fill(bytes))?;
            link.count(count);
            complete(shared, rank, body, count);
            return Ok(count);
        }
        if !reader.has_cell() {
            return Ok(0);
        }
        let (header, here) = reader.header();
        let frame = Frame::decode(&header, SEGMENT_MAX)?;
        let payload = match frame {
            Frame::Eager { len, .. } | Frame::Data { len, .. } => len,
            _ => 0,
        };
        if here > payload || payload <= INLINE && here != payload {
            return Err(CORRUPT);
        }
        let count = HEADER_LEN + if payload <= INLINE { payload } else { 0 };
        link.count(count);
        *body = begin(shared, rank, frame)?;
        if payload <= INLINE {
            reader.take_payload(payload, |bytes| body.fill(bytes));
            complete(shared, rank, body, payload);
        } else {
            reader.take_cell(here)?;
        }
        Ok(count)
    }

    /// Reads the next bytes of a message in its sender's memory; how many. Nothing is left when it has ended, well or not.
    fn fetch(&self, shared: &Shared, (rank, link): (u32, &Link), fetch: &mut Fetch) -> usize {
        let count = fetch.range.len().min(FETCH);
        let next = fetch.range.start + count;
        let card = self.layout.card(link.place);
        let read =
            fetch.memory.update(fetch.range.start..next, |to| borrow::read(card, fetch.at, to));
        link.count(count);
        fetch.at += count as u64;
        fetch.range.start = next;
        let lost = |reason: String| MeshError::PeerLost { rank, reason };
        let outcome = match read {
            Err(error) => Err(lost(format!("its memory cannot be read: {error}"))),
            Ok(()) if fetch.slot.is_given_up() => Ok(()),
            Ok(()) if !fetch.range.is_empty() => return count,
            Ok(()) if self.layout.bell(link.place).is_revoked() => {
                Err(lost("it has given the message up".to_owned()))
            }
            Ok(()) => Ok(()),
        };
        fetch.range.start = fetch.range.end;
        // Its sender may have the memory again, before we tell who waits for the message.
        shared.push_bare(rank, Frame::Landed { id: fetch.id });
        let failed = outcome.clone().err();
        fetch.slot.give_back(rank, outcome);
        if let Some(MeshError::PeerLost { reason, .. }) = failed {
            shared.lost(rank, &reason);
        }
        count
    }
}

impl Link {
    /// With the lock of `receiving` held.
    #[inline]
    fn count(&self, bytes: usize) {
        self.bytes.store(self.bytes.load(Ordering::Relaxed) + bytes as u64, Ordering::Relaxed);
    }
}

impl Receiving {
    /// Nothing is read any more; who waits for a message that is being read has its memory again.
    fn end(&mut self, shared: &Shared, rank: u32) {
        self.ended = true;
        self.body.cut(shared, rank);
    }
}

impl Sending {
    /// Sends a frame with its whole payload, or nothing: whether there was room. [`Memory::sent`] must follow.
    #[inline]
    pub(super) fn whole(&mut self, frame: Frame, bytes: &[u8]) -> bool {
        self.0.whole(&frame.encode(), bytes)
    }

    /// The beginning of a frame, as when its sender stops there.
    #[cfg(test)]
    pub(super) fn half(&mut self, frame: Frame, bytes: &[u8]) {
        assert!(self.0.begin(&frame.encode(), bytes, PIECE).is_some_and(|n| n < bytes.len()));
    }
}

/// Goes on with what had no room; whether there was any.
fn write(shared: &Shared, rank: u32) -> bool {
    let goes_on = can_write(shared, rank);
    if goes_on {
        shared.with_outbox(rank, peer(shared, rank), |_, _| ());
    }
    goes_on
}

/// Whether there is room for what had none.
fn can_write(shared: &Shared, rank: u32) -> bool {
    let peer = peer(shared, rank);
    let blocked = peer.blocked.load(Ordering::Relaxed);
    blocked && peer.outbox.lock().ring.as_mut().is_some_and(|sending| sending.0.can_go_on())
}

/// More bytes of a payload have come.
fn complete(shared: &Shared, rank: u32, body: &mut Body, count: usize) {
    if let Some(left) = body.left() {
        *left -= count;
        if *left == 0 {
            finish(shared, rank, std::mem::replace(body, Body::None));
        }
    }
}

/// Wakes the mesh's thread of another rank. Nothing else but pings is written there, so it has room; if not, that thread
/// is awake already.
#[cold]
fn ring(shared: &Shared, rank: u32) {
    let _ = (&peer(shared, rank).stream).write(&Frame::Ping.encode());
}

thread_local! {
    /// Whether others want this thread's core.
    static STRANGERS: Strangers = Strangers::default();
}

const CORRUPT: &str = "a frame in shared memory whose payload has another length";
/// The peer is told of what it may send again in so many parts of all.
const CREDIT: u64 = ALLOWANCE / 8;
/// Both sides copy at once: the reader begins when so much has been written.
const PIECE: usize = 16 << 10;
/// Of a message in its sender's memory, at once: between two the receive may be given up.
const FETCH: usize = 1 << 20;
/// Then the other ranks get their turn.
const READ_MAX: usize = 1 << 20;
/// An answer that comes at once is here within them, without a pause between them.
const FIRST_LOOKS: u32 = 20;
/// Between two looks at the clock, some microseconds.
const LOOKS: u32 = 100;
/// Then sockets and deadlines get their turn.
const TURNS: usize = 64;
/// The thread leaves the rings to those who wait for messages for so long.
const NAP: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests;
