//! The mesh's thread: reads all connections, writes what senders could not, watches deadlines and silence.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::frame::{Frame, HEADER_LEN, SEGMENT_MAX};
use super::inbound::{Body, begin, finish, peer};
use super::outbox::{Message, Reports};
use super::poll::{Interest, poll};
use super::{MeshError, Shared};

/// Runs until the mesh stops.
pub(super) fn run(shared: &Shared, woken: &UnixStream) {
    let mut io = Io {
        shared,
        streams: shared.live().map(|(rank, _)| Stream::new(rank)).collect(),
        scratch: vec![0; SCRATCH],
        checked: Instant::now(),
    };
    while !io.is_over() {
        let (mut patience, fd) = shared.ucx.as_ref().map_or((TICK, -1), |ucx| ucx.rest(shared));
        if let Some(memory) = &shared.memory {
            patience = patience.min(memory.rest(shared));
        }
        let mut interests =
            vec![Interest::new(woken, true, false), Interest::new(&fd, true, false)];
        interests.extend(io.streams.iter().map(|stream| stream.interest(shared)));
        if let Err(e) = poll(&mut interests, patience)
            && e.kind() != io::ErrorKind::Interrupted
        {
            shared.fail(MeshError::Aborted(format!("waiting for sockets failed: {e}")));
            break;
        }
        if let Some(memory) = &shared.memory {
            memory.wake_up();
        }
        if interests[0].readable() {
            let _ = (&mut &*woken).read(&mut io.scratch);
            // From here on what is done is seen only by who looks anew.
            shared.woken.swap(false, Ordering::AcqRel);
        }
        for (at, interest) in interests[2..].iter().enumerate() {
            io.serve(at, interest);
        }
        io.tick();
    }
    io.streams.iter_mut().for_each(|stream| stream.body.cut(shared, stream.rank));
    if let Some(ucx) = &shared.ucx {
        ucx.close(shared);
    }
    if let Some(memory) = &shared.memory {
        memory.close(shared);
    }
    for (_, peer) in shared.live() {
        let _ = peer.stream.shutdown(std::net::Shutdown::Both);
    }
}

struct Io<'a> {
    shared: &'a Shared,
    streams: Vec<Stream>,
    scratch: Vec<u8>,
    checked: Instant,
}

/// One connection's reading side.
struct Stream {
    rank: u32,
    header: [u8; HEADER_LEN],
    /// Bytes of the header that are here.
    have: usize,
    body: Body,
    ended: bool,
    heard: Instant,
    pinged: Instant,
}

impl Stream {
    fn new(rank: u32) -> Stream {
        let now = Instant::now();
        let header = [0; HEADER_LEN];
        Stream { rank, header, have: 0, body: Body::None, ended: false, heard: now, pinged: now }
    }

    fn interest(&self, shared: &Shared) -> Interest {
        let peer = peer(shared, self.rank);
        if self.ended {
            return Interest::new(&-1, false, false);
        }
        let blocked = shared.is_over_tcp(self.rank) && peer.blocked.load(Ordering::Relaxed);
        Interest::new(&peer.stream, true, blocked)
    }
}

impl Io<'_> {
    fn is_over(&self) -> bool {
        let Some(until) = *self.shared.stopping.lock() else {
            return false;
        };
        let failed = self.shared.failed.lock().is_some();
        // Bytes that nobody has read when a socket closes make the kernel reset the connection, and the
        // peer may lose what it has not read of ours: so wait until the peers have closed, too.
        failed || self.streams.iter().all(|stream| stream.ended) || Instant::now() >= until
    }

    fn serve(&mut self, at: usize, interest: &Interest) {
        let rank = self.streams[at].rank;
        if interest.writable() {
            let peer = peer(self.shared, rank);
            peer.blocked.store(false, Ordering::Relaxed);
            self.shared.with_outbox(rank, peer, |_, _| ());
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

    /// Reads what is there, within a bound; false at the end of the stream.
    fn read(&mut self, at: usize) -> Result<bool, String> {
        let stream = &mut self.streams[at];
        for _ in 0..READS_PER_TURN {
            let n = match (&peer(self.shared, stream.rank).stream).read(&mut self.scratch) {
                Ok(0) => return Ok(false),
                Ok(n) => n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(true),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(e.to_string()),
            };
            stream.heard = Instant::now();
            self.shared.bytes_rx.fetch_add(n as u64, Ordering::Relaxed);
            consume(self.shared, stream, &self.scratch[..n]).map_err(str::to_owned)?;
            if n < self.scratch.len() {
                return Ok(true);
            }
        }
        Ok(true)
    }

    fn end(&mut self, at: usize, reason: &str) {
        let stream = &mut self.streams[at];
        stream.ended = true;
        if let Some(ucx) = &self.shared.ucx {
            // A goodbye may have come by the other way.
            ucx.drain(self.shared);
        }
        if let Some(memory) = &self.shared.memory {
            memory.drain(self.shared, stream.rank);
        }
        let leaving = self.shared.stopping.lock().is_some();
        if leaving {
            self.shared.gone(stream.rank);
        } else {
            self.shared.lost(stream.rank, reason);
        }
        stream.body.cut(self.shared, stream.rank);
    }

    /// Deadlines and silence, a few times a second.
    fn tick(&mut self) {
        let now = Instant::now();
        if now - self.checked < TICK {
            return;
        }
        // A thread that was stopped itself has not listened: nobody was silent meanwhile.
        let stopped = (now - self.checked).saturating_sub(TICK * 4);
        self.checked = now;
        let expired = self.shared.mailbox.lock().expire(now);
        expired.iter().for_each(|slot| slot.finish(Err(MeshError::Timeout)));
        if let Some(ucx) = &self.shared.ucx {
            ucx.expire(self.shared, now);
        }
        if let Some(memory) = &self.shared.memory {
            memory.expire(self.shared, now);
        }
        let failed = self.shared.failed.lock().clone();
        for stream in self.streams.iter_mut().filter(|stream| !stream.ended) {
            stream.heard += stopped;
            stream.body.expire(failed.as_ref(), now);
            watch(self.shared, stream, now);
        }
    }
}

fn watch(shared: &Shared, stream: &mut Stream, now: Instant) {
    let peer = peer(shared, stream.rank);
    let ping = now - stream.pinged >= shared.silence / 4;
    if ping {
        stream.pinged = now;
    }
    if ping && !shared.is_over_tcp(stream.rank) {
        // Nothing else is written there, so it has room; if not, the peer is silent itself.
        let _ = (&peer.stream).write(&Frame::Ping.encode());
    }
    shared.with_outbox(stream.rank, peer, |outbox, reports: &mut Reports| {
        let late = |m: &Message| m.deadline.is_some_and(|deadline| deadline <= now);
        if !outbox.is_idle() {
            outbox.release(late, &MeshError::Timeout, reports);
        }
        if ping && shared.is_over_tcp(stream.rank) && outbox.is_flushed() {
            outbox.push_bare(Frame::Ping);
        }
    });
    let silent = now.saturating_duration_since(stream.heard);
    if silent >= shared.silence && !peer.left.load(Ordering::Relaxed) {
        shared.lost(stream.rank, &format!("not a byte for {:.1} s", silent.as_secs_f32()));
    }
}

/// Takes bytes of the stream apart. `Err` says why the stream cannot be read on.
fn consume(shared: &Shared, stream: &mut Stream, mut bytes: &[u8]) -> Result<(), &'static str> {
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
            finish(shared, stream.rank, std::mem::replace(&mut stream.body, Body::None));
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
        if matches!(frame, Frame::Borrow { .. } | Frame::Lent { .. } | Frame::Landed { .. }) {
            return Err("a frame that does not come this way");
        }
        stream.body = begin(shared, stream.rank, frame)?;
    }
}

/// Deadlines are kept to this.
pub(super) const TICK: Duration = Duration::from_millis(50);

/// One read; it stays in the second-level cache between the kernel's copy and ours.
const SCRATCH: usize = 256 << 10;

/// Then the other connections get their turn.
const READS_PER_TURN: usize = 4;
