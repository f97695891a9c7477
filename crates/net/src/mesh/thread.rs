//! The mesh's thread: reads all connections, sends what senders could not, checks deadlines and silence.

use std::io::{self, Read};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::connection::{Arrived, Buffers};
use super::core::Core;
use super::error::MeshError;
use super::frame::{Frame, HEADER_LEN};
use super::inbound::{Body, begin, finish};
use super::limits::{KEEPALIVES, READ_BYTES, READS_PER_TURN, SEGMENT_MAX, STOPPED_TICKS, TICK};
use super::outbox::{Message, Reports};
use super::poll::{Interest, poll};
use super::revocations::Revocations;

/// Runs until the mesh stops.
pub(super) fn run(core: &Core, woken: &UnixStream, revocations: Option<Revocations>) {
    let mut io = Io {
        core,
        revocations,
        streams: core.live().map(|(rank, _)| Stream::new(rank)).collect(),
        buffers: Buffers::new(),
        checked: Instant::now(),
    };
    io.take_early();
    let connections = 1 + core.transports.len();
    while !io.is_over() {
        let mut at_most = TICK;
        let mut interests = vec![Interest::new(woken, true, false)];
        for transport in &core.transports {
            let sleep = transport.before_sleep(core);
            at_most = at_most.min(sleep.at_most);
            interests.push(Interest::new(&sleep.readable.unwrap_or(-1), true, false));
        }
        interests.extend(io.streams.iter().map(|stream| stream.interest(core)));
        if let Err(e) = poll(&mut interests, at_most)
            && e.kind() != io::ErrorKind::Interrupted
        {
            core.fail(MeshError::Aborted(format!("waiting for sockets failed: {e}")));
            break;
        }
        core.transports.iter().for_each(|transport| transport.after_sleep());
        if interests[0].readable() {
            let _ = (&mut &*woken).read(&mut io.buffers.wire);
            // A wake-up after this requires another check.
            core.woken.swap(false, Ordering::AcqRel);
        }
        for (at, interest) in interests[connections..].iter().enumerate() {
            io.serve(at, interest);
        }
        io.tick();
    }
    io.streams.iter_mut().for_each(|stream| stream.body.cut(core, stream.rank));
    core.transports.iter().for_each(|transport| transport.close(core));
    for (_, peer) in core.live() {
        peer.connection.shutdown(Shutdown::Both);
    }
}

struct Io<'a> {
    core: &'a Core,
    revocations: Option<Revocations>,
    streams: Vec<Stream>,
    buffers: Buffers,
    checked: Instant,
}

/// The reading side of one connection.
pub(super) struct Stream {
    rank: u32,
    header: [u8; HEADER_LEN],
    /// Number of header bytes received.
    have: usize,
    pub(super) body: Body,
    ended: bool,
    pinged: Instant,
}

impl Stream {
    pub(super) fn new(rank: u32) -> Stream {
        let now = Instant::now();
        let header = [0; HEADER_LEN];
        Stream { rank, header, have: 0, body: Body::None, ended: false, pinged: now }
    }

    fn interest(&self, core: &Core) -> Interest {
        if self.ended {
            return Interest::new(&-1, false, false);
        }
        let peer = core.known_peer(self.rank);
        Interest::new(&peer.connection, true, peer.transport.is_blocked(self.rank))
    }
}

impl Io<'_> {
    fn is_over(&self) -> bool {
        let Some(until) = *self.core.stopping.lock() else {
            return false;
        };
        let failed = self.core.failure().is_some();
        // If a socket is closed with unread bytes, the kernel resets the connection, and the peer may lose what it has
        // not read: so wait until the peers have closed, too.
        failed || self.streams.iter().all(|stream| stream.ended) || Instant::now() >= until
    }

    /// Handles what has arrived with the handshakes: no socket becomes readable for it.
    fn take_early(&mut self) {
        for at in 0..self.streams.len() {
            let stream = &mut self.streams[at];
            let connection = &self.core.known_peer(stream.rank).connection;
            let early = connection.early(&mut self.buffers).map_err(|error| error.to_string());
            let taken =
                early.and_then(|bytes| consume(self.core, stream, bytes).map_err(str::to_owned));
            if let Err(reason) = taken {
                self.end(at, &reason);
            }
        }
    }

    fn serve(&mut self, at: usize, interest: &Interest) {
        let rank = self.streams[at].rank;
        if interest.writable() {
            let peer = self.core.known_peer(rank);
            peer.transport.unblock(rank);
            self.core.with_outbox(rank, peer, |_, _| ());
        }
        if !interest.readable() || self.streams[at].ended {
            return;
        }
        match self.read(at) {
            Ok(true) => {}
            Ok(false) => self.end(at, "the connection was closed"),
            Err(reason) => self.end(at, &reason),
        }
    }

    /// Reads available bytes, up to a bound; false at the end of the stream.
    fn read(&mut self, at: usize) -> Result<bool, String> {
        let stream = &mut self.streams[at];
        for _ in 0..READS_PER_TURN {
            let connection = &self.core.known_peer(stream.rank).connection;
            let Arrived { received, bytes } = match connection.read(&mut self.buffers) {
                Ok(arrived) => arrived,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(true),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(e.to_string()),
            };
            if received == 0 {
                return Ok(false);
            }
            self.core.note_seen(stream.rank, Instant::now());
            self.core.bytes_rx.fetch_add(received as u64, Ordering::Relaxed);
            consume(self.core, stream, bytes).map_err(str::to_owned)?;
            if received < READ_BYTES {
                return Ok(true);
            }
        }
        Ok(true)
    }

    fn end(&mut self, at: usize, reason: &str) {
        let stream = &mut self.streams[at];
        stream.ended = true;
        if let Body::LastWord { .. } = stream.body {
            stream.body.cut(self.core, stream.rank);
        }
        // A goodbye may have come over the transport.
        let peer = self.core.known_peer(stream.rank);
        peer.transport.peer_ended(self.core, stream.rank);
        let leaving = self.core.stopping.lock().is_some();
        if leaving {
            self.core.gone(stream.rank);
        } else {
            self.core.lost(stream.rank, reason);
        }
        stream.body.cut(self.core, stream.rank);
    }

    /// Checks deadlines, silence and revocations, several times a second.
    fn tick(&mut self) {
        let now = Instant::now();
        if now - self.checked < TICK {
            return;
        }
        // If this thread was stopped, the peers were not silent meanwhile.
        let stopped = (now - self.checked).saturating_sub(TICK * STOPPED_TICKS);
        self.checked = now;
        let expired = self.core.mailbox.lock().expire(now);
        expired.iter().for_each(|slot| slot.finish(Err(MeshError::Timeout)));
        self.core.transports.iter().for_each(|transport| transport.expire(self.core, now));
        let failed = self.core.failure();
        for stream in self.streams.iter_mut().filter(|stream| !stream.ended) {
            self.core.was_stopped(stream.rank, stopped);
            stream.body.expire(failed.as_ref(), now);
            watch(self.core, stream, now);
        }
        self.drop_revoked(now);
    }

    /// Ends connections whose certificate has been revoked since they were made.
    fn drop_revoked(&mut self, now: Instant) {
        let news = self.revocations.as_mut().map(|revocations| revocations.news(self.core, now));
        for rank in news.unwrap_or_default() {
            self.core.lost(rank, "its certificate is revoked");
            self.core.known_peer(rank).connection.shutdown(Shutdown::Both);
        }
    }
}

fn watch(core: &Core, stream: &mut Stream, now: Instant) {
    let peer = core.known_peer(stream.rank);
    let ping = now - stream.pinged >= core.silence / KEEPALIVES;
    if ping {
        stream.pinged = now;
    }
    if ping && !peer.transport.uses_connection() {
        core.ping(stream.rank);
    }
    core.with_outbox(stream.rank, peer, |outbox, reports: &mut Reports| {
        let late = |m: &Message| m.deadline.is_some_and(|deadline| deadline <= now);
        if !outbox.is_idle() {
            outbox.release(late, &MeshError::Timeout, reports);
        }
        if ping && peer.transport.uses_connection() && outbox.is_flushed() {
            outbox.push_bare(Frame::Ping);
        }
    });
    let silent = core.silence_of(stream.rank, now);
    if silent >= core.silence && !peer.has_left() {
        core.lost(stream.rank, &format!("not a byte for {:.1} s", silent.as_secs_f32()));
    }
}

/// Parses bytes of the stream. `Err`: why the stream cannot be read any further.
pub(super) fn consume(
    core: &Core,
    stream: &mut Stream,
    mut bytes: &[u8],
) -> Result<(), &'static str> {
    loop {
        if let Some(left) = stream.body.left() {
            let n = bytes.len().min(*left);
            let (now, rest) = bytes.split_at(n);
            *left -= n;
            let done = *left == 0;
            bytes = rest;
            stream.body.fill(now);
            if !done {
                return Ok(());
            }
            finish(core, stream.rank, std::mem::replace(&mut stream.body, Body::None));
        }
        if bytes.is_empty() {
            return Ok(());
        }
        let n = bytes.len().min(HEADER_LEN - stream.have);
        stream.header[stream.have..stream.have + n].copy_from_slice(&bytes[..n]);
        stream.have += n;
        bytes = &bytes[n..];
        if stream.have < HEADER_LEN {
            return Ok(());
        }
        stream.have = 0;
        let frame = Frame::decode(&stream.header, SEGMENT_MAX)?;
        if matches!(frame, Frame::Borrow { .. } | Frame::Lent { .. } | Frame::Returned { .. }) {
            return Err("a frame that does not belong on this transport");
        }
        stream.body = begin(core, stream.rank, frame)?;
    }
}
