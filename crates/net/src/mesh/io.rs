//! The mesh's thread: reads all connections, writes what senders could not, watches deadlines and silence.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::frame::{Channel, Frame, HEADER_LEN, Key};
use super::outbox::{Message, Reports};
use super::poll::{Interest, poll};
use super::receive::{Slot, Target};
use super::{MeshError, Peer, Shared, deliver};

/// Runs until the mesh stops.
pub(super) fn run(shared: &Shared, woken: &UnixStream) {
    let mut io = Io {
        shared,
        streams: shared.live().map(|(rank, _)| Stream::new(rank)).collect(),
        scratch: vec![0; SCRATCH],
        checked: Instant::now(),
    };
    while !io.is_over() {
        let mut interests = vec![Interest::new(woken, true, false)];
        interests.extend(io.streams.iter().map(|stream| stream.interest(shared)));
        if let Err(e) = poll(&mut interests, TICK)
            && e.kind() != io::ErrorKind::Interrupted
        {
            shared.fail(MeshError::Aborted(format!("waiting for sockets failed: {e}")));
            return;
        }
        if interests[0].readable() {
            let _ = (&mut &*woken).read(&mut io.scratch);
        }
        for (at, interest) in interests[1..].iter().enumerate() {
            io.serve(at, interest);
        }
        io.tick();
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

/// The payload that is being read.
enum Body {
    None,
    Slot { slot: Arc<Slot>, left: usize, last: bool },
    Kept { key: Key, fingerprint: u32, bytes: Vec<u8>, left: usize },
    Refused { len: usize, left: usize },
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
        Interest::new(&peer.stream, true, peer.blocked.load(Ordering::Relaxed))
    }

    /// Payload bytes still to come for the current frame.
    fn left(&mut self) -> Option<&mut usize> {
        match &mut self.body {
            Body::None => None,
            Body::Slot { left, .. } | Body::Kept { left, .. } | Body::Refused { left, .. } => {
                Some(left)
            }
        }
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
        stream.body = Body::None;
        let leaving = self.shared.stopping.lock().is_some();
        if leaving {
            self.shared.gone(stream.rank);
        } else {
            self.shared.lost(stream.rank, reason);
        }
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
        for stream in self.streams.iter_mut().filter(|stream| !stream.ended) {
            stream.heard += stopped;
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
    shared.with_outbox(stream.rank, peer, |outbox, reports: &mut Reports| {
        let late = |m: &Message| m.deadline.is_some_and(|deadline| deadline <= now);
        if !outbox.is_idle() {
            outbox.release(late, &MeshError::Timeout, reports);
        }
        if ping && outbox.is_flushed() {
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
        if let Some(left) = stream.left() {
            let n = bytes.len().min(*left);
            let (now, rest) = bytes.split_at(n);
            *left -= n;
            let done = *left == 0;
            bytes = rest;
            match &mut stream.body {
                Body::Slot { slot, .. } => slot.fill(now),
                Body::Kept { bytes, .. } => bytes.extend_from_slice(now),
                Body::None | Body::Refused { .. } => {}
            }
            if !done {
                return Ok(());
            }
            finish(shared, stream);
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
        begin(shared, stream, Frame::decode(&stream.header)?)?;
    }
}

fn begin(shared: &Shared, stream: &mut Stream, frame: Frame) -> Result<(), &'static str> {
    let from = stream.rank;
    match frame {
        Frame::Eager { key, fingerprint, len } => {
            stream.body = begin_eager(shared, from, key, fingerprint, len)?;
        }
        Frame::Announce { key, fingerprint, id, len } => {
            announced(shared, from, key, fingerprint, id, len)?;
        }
        Frame::Ready { id } => {
            let peer = peer(shared, from);
            shared.with_outbox(from, peer, |outbox, _| outbox.ready(id));
        }
        Frame::Data { id, len } => {
            let (slot, last) = shared.mailbox.lock().data(from, id, len)?;
            stream.body = Body::Slot { slot, left: len, last };
        }
        Frame::Credit { bytes } => peer(shared, from).outbox.lock().credit(bytes),
        Frame::Ping => {}
        Frame::Goodbye => shared.gone(from),
        Frame::Lost { rank } => shared.fail(told_of_loss(shared.rank, from, rank)),
    }
    Ok(())
}

fn begin_eager(
    shared: &Shared,
    from: u32,
    key: Key,
    fingerprint: u32,
    len: usize,
) -> Result<Body, &'static str> {
    let mut mailbox = shared.mailbox.lock();
    mailbox.hold(from, len)?;
    if !admitted(shared, from, key, fingerprint) {
        return Ok(Body::Refused { len, left: len });
    }
    if let Some(slot) = mailbox.take_eager(from, key, len) {
        drop(mailbox);
        let fits = slot.accept(from, len as u64);
        let slot = if fits { slot } else { Slot::swallow() };
        return Ok(Body::Slot { slot, left: len, last: true });
    }
    Ok(Body::Kept { key, fingerprint, bytes: Vec::with_capacity(len), left: len })
}

fn announced(
    shared: &Shared,
    from: u32,
    key: Key,
    fingerprint: u32,
    id: u64,
    len: u64,
) -> Result<(), &'static str> {
    let ask = {
        let mut mailbox = shared.mailbox.lock();
        if key.channel == Channel::Control {
            mailbox.expect(from, id, len, control_slot(shared, from, key, len)?);
            true
        } else if admitted(shared, from, key, fingerprint) {
            mailbox.announce(from, key, fingerprint, id, len)?
        } else {
            false
        }
    };
    if ask {
        shared.push_bare(from, Frame::Ready { id });
    }
    Ok(())
}

/// The current payload is complete.
fn finish(shared: &Shared, stream: &mut Stream) {
    let from = stream.rank;
    match std::mem::replace(&mut stream.body, Body::None) {
        Body::None => {}
        Body::Slot { slot, last, .. } => {
            if last {
                slot.complete(from);
            }
        }
        Body::Refused { len, .. } => shared.mailbox.lock().free(from, len),
        Body::Kept { key, bytes, .. } if key.channel == Channel::Control => {
            shared.mailbox.lock().free(from, bytes.len());
            shared.events.control(from, key, bytes);
        }
        Body::Kept { key, fingerprint, bytes, .. } => {
            let mut mailbox = shared.mailbox.lock();
            if admitted(shared, from, key, fingerprint) {
                let delivery = mailbox.store(from, key, fingerprint, bytes);
                drop(mailbox);
                if let Some((slot, bytes)) = delivery {
                    deliver(&slot, from, &bytes);
                }
            } else {
                mailbox.free(from, bytes.len());
            }
        }
    }
    shared.return_credit(from);
}

/// What a peer's last word means.
fn told_of_loss(own: u32, from: u32, lost: u32) -> MeshError {
    let (rank, reason) = match lost {
        lost if lost == from => (from, "it was aborted".to_owned()),
        lost if lost == own => (from, "it has given this rank up".to_owned()),
        lost => (lost, format!("rank {from} has lost it")),
    };
    MeshError::PeerLost { rank, reason }
}

fn admitted(shared: &Shared, from: u32, key: Key, fingerprint: u32) -> bool {
    key.channel != Channel::Collective || shared.events.admit(from, key, fingerprint)
}

/// A long control message goes straight to the owner's ear.
fn control_slot(shared: &Shared, from: u32, key: Key, len: u64) -> Result<Arc<Slot>, &'static str> {
    if len > CONTROL_MAX as u64 {
        return Err("a control message longer than allowed");
    }
    let events = shared.events.clone();
    let done = Box::new(move |outcome: Result<super::Received, MeshError>| {
        if let Ok(received) = outcome {
            events.control(from, key, received.bytes);
        }
    });
    Ok(Slot::new(Target::Bytes { max: CONTROL_MAX }, None, Some(done)))
}

fn peer(shared: &Shared, rank: u32) -> &Peer {
    shared.peer(rank).expect("streams are made from the peers")
}

/// Deadlines are kept to this.
const TICK: Duration = Duration::from_millis(50);

/// One read; it stays in the second-level cache between the kernel's copy and ours.
const SCRATCH: usize = 256 << 10;

/// Then the other connections get their turn.
const READS_PER_TURN: usize = 4;

/// A rank's retained results are at most 256 trees × window; a served batch is cut well below this.
const CONTROL_MAX: usize = 256 << 20;
