//! The mesh's frames through memory that the ranks of a host share.
//!
//! For every ordered pair there is a ring ([`cells`]). The TCP connections stay beside: they show which rank is which,
//! which are alive and why a group ends, and a ping on one wakes a rank that sleeps. Everything else between ranks of a
//! host goes through the rings, in the same frames, with the same matching, allowances and errors.
//!
//! Long messages are read in their sender's memory, where the kernel allows it ([`process_memory`]).
//!
//! A caller that waits for a message reads the rings itself, and sleeps when nothing has come for a while; the mesh's
//! thread does it for all others. Where callers wait often, that thread keeps away for a millisecond at a time, so that
//! it does not take the core that the ranks need.
//!
//! Processes that share the memory trust each other as those of an arena do: one that writes where it may not garbles
//! messages. What is read is checked all the same: a length or a position that cannot be is the end of that peer.

mod cells;
mod layout;
mod process_memory;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

use super::core::Core;
use super::error::MeshError;
use super::frame::{Frame, HEADER_LEN};
use super::inbound::{Body, Fetch, begin, finish};
use super::limits::{
    self, CREDIT, FETCH, FIRST_LOOKS, GRACE, LOOKS, Limits, NAP, PIECE, READ_MAX, SEGMENT_MAX,
    TICK, TURNS, cost,
};
use super::outbox::{Drained, Outbox, Reports};
use super::receive::Wanted;
use super::transport::{MeshLink, Sleep, Transport};
use crate::Buffer;
use crate::external_load::{ExternalLoad, own_cpu};
use crate::ring::Corrupt;
use cells::{INLINE, Reader, Writer};
use layout::{Layout, Ring};
use process_memory::{Access, Nonce};

/// Memory for the messages between the ranks of a host, before there is a mesh. Made by
/// [`crate::arena::ArenaPort::rings`].
pub struct Rings {
    layout: Arc<Layout>,
    place: usize,
    oversubscribed: bool,
    /// Long messages may be read in their sender's memory.
    borrowing: bool,
}

impl Rings {
    /// For `ranks` ranks of a host; what the others are given.
    pub(crate) fn create(ranks: usize) -> io::Result<(Rings, OwnedFd)> {
        let (layout, fd) = Layout::create(ranks)?;
        Ok((
            Rings { layout: Arc::new(layout), place: 0, oversubscribed: false, borrowing: true },
            fd,
        ))
    }

    /// Those that another rank has made. Errors: they are not.
    pub(crate) fn open(fd: &OwnedFd, ranks: usize) -> io::Result<Rings> {
        let layout = Arc::new(Layout::open(fd, ranks)?);
        Ok(Rings { layout, place: 0, oversubscribed: false, borrowing: true })
    }

    /// Offset in the memory of what rank 1 of two can write to rank 0, and the length of its part that is not payload;
    /// for fuzz targets.
    pub(super) fn written_by_the_other() -> (usize, usize) {
        (layout::offset(2, 1, 0), layout::POSITIONS + CELLS_LEN)
    }

    /// As where the kernel lets nobody read another's memory.
    #[cfg(test)]
    pub(super) fn without_borrowing(self) -> Rings {
        Rings { borrowing: false, ..self }
    }

    /// For a rank at that place. `oversubscribed`: there are fewer cores than ranks.
    pub(crate) fn at(self, place: usize, oversubscribed: bool) -> Rings {
        Rings { place, oversubscribed, ..self }
    }
}

/// The rings under a mesh.
pub(super) struct SharedMemory {
    layout: Arc<Layout>,
    place: usize,
    oversubscribed: bool,
    /// By rank of the group; `None`: of another host, or our own.
    pairs: Vec<Option<Pair>>,
    /// Ranks that have a pair.
    paired: Vec<u32>,
    /// Threads that read while they wait.
    helpers: AtomicUsize,
    helped: AtomicBool,
    borrowing: bool,
    /// By which others see that they read our memory.
    _nonce: Nonce,
}

/// Us and another rank.
struct Pair {
    place: usize,
    access: Access,
    /// There was no room for all that was to be sent.
    blocked: AtomicBool,
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

impl SharedMemory {
    /// `ranks`: of our host, by place; ours is among them. `size`: of the group.
    pub(super) fn new(rings: Rings, ranks: &[u32], size: usize) -> SharedMemory {
        let Rings { layout, place, oversubscribed, borrowing } = rings;
        let mut pairs: Vec<Option<Pair>> = (0..size).map(|_| None).collect();
        let others = || ranks.iter().enumerate().filter(|(other, _)| *other != place);
        for (other, &rank) in others() {
            let receiving = Receiving {
                reader: Reader::new(layout.ring(other, place)),
                body: Body::None,
                ended: false,
                unreturned: 0,
            };
            pairs[rank as usize] = Some(Pair {
                place: other,
                access: Access::default(),
                blocked: AtomicBool::new(false),
                receiving: Mutex::new(receiving),
                bytes: AtomicU64::new(0),
            });
        }
        let nonce = Nonce::new();
        layout.identity(place).publish(&nonce);
        SharedMemory {
            layout,
            place,
            oversubscribed,
            pairs,
            paired: others().map(|(_, &rank)| rank).collect(),
            helpers: AtomicUsize::new(0),
            helped: AtomicBool::new(false),
            borrowing,
            _nonce: nonce,
        }
    }

    #[inline]
    fn pair(&self, rank: u32) -> Option<&Pair> {
        self.pairs.get(rank as usize)?.as_ref()
    }

    fn pairs(&self) -> impl Iterator<Item = (u32, &Pair)> {
        self.paired.iter().filter_map(|&rank| Some((rank, self.pair(rank)?)))
    }

    /// Wakes a rank that sleeps.
    #[inline]
    fn wake(&self, core: &Core, rank: u32, pair: &Pair) {
        if self.layout.presence(pair.place).has_to_be_woken() {
            core.ping(rank);
        }
    }

    /// The next frame of `rank`, if it is a whole message that is wanted, and no receive was posted for it before.
    #[inline]
    fn take_now(
        &self,
        core: &Core,
        wanted: &Wanted,
        into: &mut Buffer,
        (rank, pair): (u32, &Pair),
        receiving: &mut Receiving,
    ) -> Option<u32> {
        let Receiving { reader, body, ended, unreturned } = receiving;
        let (header, here) = reader.header();
        let Ok(Frame::Eager { key, fingerprint, len }) =
            Frame::decode(&header, limits::SHARED_MEMORY.eager)
        else {
            return None;
        };
        let fits = key == wanted.key && fingerprint == wanted.fingerprint && len == into.len();
        let free = matches!(body, Body::None) && !*ended && here == len;
        // A receive posted from here on comes after ours.
        if !fits || !free || !core.has_no_entry(key) {
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
            core.lost(rank, WRONG_LENGTH);
            return None;
        }
        if reader.publish() {
            self.wake(core, rank, pair);
        }
        pair.count(HEADER_LEN + len);
        *unreturned += cost(len);
        if *unreturned >= CREDIT {
            core.push_bare(rank, Frame::Credit { bytes: std::mem::take(unreturned) });
        }
        Some(rank)
    }

    fn move_on(
        &self,
        core: &Core,
        load: &ExternalLoad,
        (from, until): (Option<usize>, Option<Instant>),
        done: &dyn Fn() -> bool,
    ) -> bool {
        let mut began = Instant::now();
        let mut last = began;
        loop {
            let mut moved = false;
            let looks = if self.oversubscribed { 1 } else { LOOKS };
            for look in 0..looks {
                moved |= self.turn(core);
                if done() {
                    return true;
                }
                if look >= FIRST_LOOKS {
                    std::hint::spin_loop();
                }
            }
            let presence = |place| self.layout.presence(place);
            if self.oversubscribed || from.is_some_and(|place| presence(place).is_on(own_cpu())) {
                std::thread::yield_now();
            }
            let now = Instant::now();
            load.between_looks(last, now);
            last = now;
            if moved {
                began = now;
            } else if now - began > load.awake(now, self.oversubscribed) {
                return false;
            }
            if until.is_some_and(|until| now >= until) {
                return false;
            }
        }
    }

    /// Does what can be done for all ranks; whether there was anything.
    fn turn(&self, core: &Core) -> bool {
        let mut moved = false;
        for (rank, pair) in self.pairs() {
            // Whoever has the lock reads.
            if let Some(mut receiving) = pair.receiving.try_lock() {
                moved |= self.read(core, (rank, pair), &mut receiving);
            }
            moved |= write(core, (rank, pair));
        }
        moved
    }

    /// Whether there is something that [`SharedMemory::turn`] would do.
    fn has_work(&self, core: &Core) -> bool {
        self.pairs().any(|(rank, pair)| {
            pair.receiving.try_lock().is_none_or(|receiving: MutexGuard<'_, Receiving>| {
                let Receiving { reader, body, ended, .. } = &*receiving;
                !ended
                    && match body {
                        Body::None => reader.has_cell(),
                        Body::Fetch(_) => true,
                        Body::Interrupted { .. } => false,
                        _ => reader.has_bytes(),
                    }
            }) || can_write(core, (rank, pair))
        })
    }

    /// Reads what one rank has written, within a bound; whether there was anything.
    fn read(&self, core: &Core, (rank, pair): (u32, &Pair), receiving: &mut Receiving) -> bool {
        let mut read = 0;
        while !receiving.ended && read < READ_MAX {
            match self.read_some(core, (rank, pair), receiving) {
                Ok(0) => break,
                Ok(count) => read += count,
                Err(reason) => {
                    receiving.end(core, rank);
                    core.lost(rank, reason);
                }
            }
            if receiving.reader.publish() {
                self.wake(core, rank, pair);
            }
        }
        read > 0
    }

    /// Reads a frame's header with what there is of its payload, or more of a payload; how many bytes. Errors: nothing
    /// more can be taken from the peer.
    fn read_some(
        &self,
        core: &Core,
        (rank, pair): (u32, &Pair),
        receiving: &mut Receiving,
    ) -> Result<usize, &'static str> {
        let Receiving { reader, body, .. } = receiving;
        if let Body::Fetch(fetch) = body {
            return Ok(match self.fetch(core, (rank, pair), fetch) {
                Ok(count) => {
                    if fetch.range.is_empty() {
                        *body = Body::None;
                    }
                    count
                }
                Err(reason) => {
                    let slot = fetch.slot.clone();
                    *body = Body::Interrupted { slot, reason, since: Instant::now() };
                    0
                }
            });
        }
        // What follows would take the place of the receive, which would have no outcome.
        if let Body::Interrupted { .. } = body {
            return Ok(0);
        }
        if let Some(left) = body.left() {
            let most = *left;
            let count = reader.take(most.min(PIECE), |bytes| body.fill(bytes)).map_err(corrupt)?;
            pair.count(count);
            complete(core, rank, body, count);
            return Ok(count);
        }
        if !reader.has_cell() {
            return Ok(0);
        }
        let (header, here) = reader.header();
        let frame = Frame::decode(&header, SEGMENT_MAX)?;
        let payload = match frame {
            Frame::Eager { len, .. } | Frame::Data { len, .. } => len,
            Frame::Lost { .. } => return Err("a frame that does not belong on this transport"),
            _ => 0,
        };
        if here > payload || payload <= INLINE && here != payload {
            return Err(WRONG_LENGTH);
        }
        let count = HEADER_LEN + if payload <= INLINE { payload } else { 0 };
        pair.count(count);
        *body = begin(core, rank, frame)?;
        if payload <= INLINE {
            reader.take_payload(payload, |bytes| body.fill(bytes));
            complete(core, rank, body, payload);
        } else {
            reader.take_cell(here).map_err(corrupt)?;
        }
        Ok(count)
    }

    /// Reads the next bytes of a message in its sender's memory; how many. Nothing is left when all bytes have been
    /// read, or nobody wants them. Errors: why the memory can no longer be read.
    fn fetch(
        &self,
        core: &Core,
        (rank, pair): (u32, &Pair),
        fetch: &mut Fetch,
    ) -> Result<usize, String> {
        let count = fetch.range.len().min(FETCH);
        let next = fetch.range.start + count;
        let identity = self.layout.identity(pair.place);
        let Some(memory) = &mut fetch.memory else { return Ok(0) };
        let to = memory.slice_mut(fetch.range.start..next);
        let read = process_memory::read(identity, fetch.at, to);
        pair.count(count);
        // The address is the sender's word, and may be any number.
        fetch.at = fetch.at.wrapping_add(count as u64);
        fetch.range.start = next;
        let outcome = match read {
            Err(error) => Err(format!("its memory cannot be read: {error}")),
            Ok(()) if fetch.slot.is_given_up() => Ok(()),
            Ok(()) if !fetch.range.is_empty() => return Ok(count),
            Ok(()) if self.layout.presence(pair.place).is_revoked() => {
                Err("it has given the message up".to_owned())
            }
            Ok(()) => Ok(()),
        };
        fetch.range.start = fetch.range.end;
        fetch.memory = None;
        // Its sender may have the memory again, before the receive is finished.
        core.push_bare(rank, Frame::Returned { id: fetch.id });
        if outcome.is_ok() {
            fetch.slot.give_back(rank, Ok(()));
        } else {
            fetch.slot.end_loan();
        }
        outcome.map(|()| count)
    }
}

impl Pair {
    /// With the lock of `receiving` held.
    #[inline]
    fn count(&self, bytes: usize) {
        self.bytes.store(self.bytes.load(Ordering::Relaxed) + bytes as u64, Ordering::Relaxed);
    }
}

impl Receiving {
    /// Nothing is read any more; a receive of a message that is being read has ended.
    fn end(&mut self, core: &Core, rank: u32) {
        self.ended = true;
        self.body.cut(core, rank);
    }
}

impl Transport for SharedMemory {
    fn limits(&self) -> Limits {
        limits::SHARED_MEMORY
    }

    fn reaches(&self, rank: u32) -> bool {
        self.pair(rank).is_some()
    }

    fn link(self: Arc<Self>, rank: u32) -> Box<dyn MeshLink> {
        let place = self.pair(rank).expect("it is asked for ranks that it reaches").place;
        let writer = Writer::new(self.layout.ring(self.place, place));
        Box::new(SharedMemoryLink { memory: self, rank, writer })
    }

    fn is_polled(&self) -> bool {
        true
    }

    fn progress(&self, core: &Core) {
        self.turn(core);
    }

    fn help(
        &self,
        core: &Core,
        from: Option<u32>,
        until: Option<Instant>,
        done: &dyn Fn() -> bool,
    ) {
        if done() {
            return;
        }
        self.layout.presence(self.place).set_cpu(own_cpu());
        let from = from.and_then(|rank| Some(self.pair(rank)?.place));
        self.helpers.fetch_add(1, Ordering::Relaxed);
        self.helped.store(true, Ordering::Relaxed);
        let came = EXTERNAL_LOAD.with(|load| self.move_on(core, load, (from, until), done));
        self.helpers.fetch_sub(1, Ordering::Relaxed);
        if !came {
            // From here on it is the thread's.
            core.wake();
        }
    }

    #[inline]
    fn receive_now(
        &self,
        core: &Core,
        wanted: &Wanted,
        into: &mut Buffer,
        looks: u32,
    ) -> Option<u32> {
        if !core.has_no_entry(wanted.key) {
            return None;
        }
        self.layout.presence(self.place).set_cpu(own_cpu());
        if looks > 1 {
            self.helped.store(true, Ordering::Relaxed);
        }
        // With fewer cores than ranks the one that is waited for is most likely not running.
        let looks = if self.oversubscribed { looks.min(FIRST_LOOKS) } else { looks };
        if let Some(rank) = wanted.from {
            let pair = self.pair(rank)?;
            let mut receiving = pair.receiving.try_lock()?;
            let here = (0..looks).any(|look| {
                let here = receiving.reader.has_cell();
                if !here && look >= FIRST_LOOKS {
                    std::hint::spin_loop();
                }
                here
            });
            return here
                .then(|| self.take_now(core, wanted, into, (rank, pair), &mut receiving))?;
        }
        for look in 0..looks {
            for (rank, pair) in self.pairs() {
                let Some(mut receiving) = pair.receiving.try_lock() else { continue };
                if receiving.reader.has_cell() {
                    return self.take_now(core, wanted, into, (rank, pair), &mut receiving);
                }
            }
            if look >= FIRST_LOOKS {
                std::hint::spin_loop();
            }
        }
        None
    }

    fn borrows(&self, from: u32, len: u64) -> bool {
        let long = self.borrowing && len > limits::SHARED_MEMORY.eager as u64;
        let pair = self.pair(from).filter(|_| long);
        pair.is_some_and(|pair| pair.access.is_allowed(self.layout.identity(pair.place)))
    }

    fn before_sleep(&self, core: &Core) -> Sleep {
        for _ in 0..TURNS {
            let moved = self.turn(core);
            let helped = self.helped.swap(false, Ordering::Relaxed);
            if helped || self.helpers.load(Ordering::Relaxed) > 0 {
                return Sleep { at_most: NAP, readable: None };
            }
            if moved {
                continue;
            }
            let presence = self.layout.presence(self.place);
            presence.before_sleep();
            if !self.has_work(core) {
                return Sleep { at_most: TICK, readable: None };
            }
            presence.after_sleep();
        }
        Sleep { at_most: Duration::ZERO, readable: None }
    }

    fn after_sleep(&self) {
        self.layout.presence(self.place).after_sleep();
    }

    fn peer_ended(&self, core: &Core, rank: u32) {
        let Some(pair) = self.pair(rank) else { return };
        let mut receiving = pair.receiving.lock();
        while self.read(core, (rank, pair), &mut receiving) {}
        receiving.end(core, rank);
    }

    fn expire(&self, core: &Core, now: Instant) {
        let failed = core.failure();
        let Some(then) = now.checked_sub(GRACE) else { return };
        for (rank, pair) in self.pairs() {
            // Whoever has the lock is reading.
            let Some(mut receiving) = pair.receiving.try_lock() else { continue };
            receiving.body.expire(failed.as_ref(), now);
            if let Body::Interrupted { reason, since, .. } = &receiving.body
                && *since < then
            {
                core.lost(rank, reason);
                receiving.end(core, rank);
            }
        }
        let is_stuck =
            |&rank: &u32| core.known_peer(rank).sending.lock().outbox.is_stuck_since(then);
        if let Some(rank) = self.paired.iter().copied().find(is_stuck) {
            let reason = "it stopped in the middle of a message".to_owned();
            core.fail(MeshError::PeerLost { rank, reason });
        }
    }

    fn revoke(&self) {
        self.layout.presence(self.place).revoke();
    }

    fn close(&self, core: &Core) {
        self.pairs().for_each(|(rank, pair)| pair.receiving.lock().end(core, rank));
    }

    fn bytes_received(&self) -> u64 {
        self.pairs().map(|(_, pair)| pair.bytes.load(Ordering::Relaxed)).sum()
    }
}

/// Writes to one rank.
pub(super) struct SharedMemoryLink {
    memory: Arc<SharedMemory>,
    rank: u32,
    writer: Writer<Ring>,
}

impl SharedMemoryLink {
    /// The beginning of a frame, as when its sender stops there.
    #[cfg(test)]
    pub(super) fn write_half(&mut self, core: &Core, frame: Frame, bytes: &[u8]) {
        let begun = self.writer.begin(&frame.encode(), bytes, PIECE);
        assert!(begun.is_some_and(|n| n < bytes.len()));
        self.wake(core);
    }

    #[inline]
    fn wake(&self, core: &Core) {
        if let Some(pair) = self.memory.pair(self.rank) {
            self.memory.wake(core, self.rank, pair);
        }
    }

    /// Writes a frame's header with the first bytes of its payload, or the next bytes of a payload; how many bytes.
    fn write(&mut self, core: &Core, parts: &[io::IoSlice<'_>]) -> io::Result<usize> {
        loop {
            let writer = &mut self.writer;
            let count = match parts {
                [header, payload] => match <&[u8; HEADER_LEN]>::try_from(&header[..]) {
                    Ok(header) => writer.begin(header, payload, PIECE).map(|n| HEADER_LEN + n),
                    Err(_) => return Err(io::ErrorKind::InvalidInput.into()),
                },
                [payload] => Some(writer.go_on(payload, PIECE)).filter(|n| *n > 0),
                _ => return Err(io::ErrorKind::InvalidInput.into()),
            };
            if let Some(count) = count {
                self.wake(core);
                return Ok(count);
            }
            if writer.wait_for_room() {
                return Err(io::ErrorKind::WouldBlock.into());
            }
        }
    }
}

impl MeshLink for SharedMemoryLink {
    fn flush(
        &mut self,
        core: &Core,
        outbox: &mut Outbox,
        reports: &mut Reports,
    ) -> Result<(), String> {
        let drained = outbox.drain(|parts| self.write(core, parts), reports);
        if let Some(pair) = self.memory.pair(self.rank) {
            let blocked = matches!(drained, Ok(Drained::Blocked));
            pair.blocked.store(blocked, Ordering::Relaxed);
        }
        drained.map(drop).map_err(|error| error.to_string())
    }

    #[inline]
    fn send_now(&mut self, core: &Core, frame: Frame, bytes: &[u8]) -> bool {
        let sent = self.writer.write_whole(&frame.encode(), bytes);
        if sent {
            self.wake(core);
        }
        sent
    }

    fn can_go_on(&mut self) -> bool {
        self.writer.can_go_on()
    }
}

/// Goes on with what had no room; whether there was any.
fn write(core: &Core, (rank, pair): (u32, &Pair)) -> bool {
    let goes_on = can_write(core, (rank, pair));
    if goes_on {
        core.with_outbox(rank, core.known_peer(rank), |_, _| ());
    }
    goes_on
}

/// Whether there is room for what had none.
fn can_write(core: &Core, (rank, pair): (u32, &Pair)) -> bool {
    let blocked = pair.blocked.load(Ordering::Relaxed);
    blocked && core.known_peer(rank).sending.lock().link.can_go_on()
}

fn corrupt(_: Corrupt) -> &'static str {
    Corrupt::REASON
}

/// More bytes of a payload have come.
fn complete(core: &Core, rank: u32, body: &mut Body, count: usize) {
    if let Some(left) = body.left() {
        *left -= count;
        if *left == 0 {
            finish(core, rank, std::mem::replace(body, Body::None));
        }
    }
}

thread_local! {
    /// Whether others want this thread's core.
    static EXTERNAL_LOAD: ExternalLoad = ExternalLoad::default();
}

/// Bytes of a cell.
pub(super) const CELL: usize = cells::CELL;
/// Bytes of a ring's cells.
pub(super) const CELLS_LEN: usize = limits::CELLS as usize * CELL;
const WRONG_LENGTH: &str = "a frame in shared memory whose payload has another length";

#[cfg(test)]
mod tests;
