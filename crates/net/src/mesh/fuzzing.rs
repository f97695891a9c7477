//! A rank's side of the mesh without its thread, driven by bytes that a peer could send.

use std::fs::File;
use std::io::Write;
use std::net::{Ipv4Addr, Shutdown, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use netsum_identity::{Authority, Credentials, Identity, Validity, server_name};
use rustls::ClientConnection;

use super::connect::answer_plainly;
use super::connection::Connection;
use super::core::Core;
use super::error::MeshError;
use super::events::Events;
use super::frame::{Channel, HEADER_LEN, Key};
use super::hello::HELLO_LEN;
use super::limits::HANDSHAKE;
use super::mailbox::Match;
use super::receive::{Slot, Target};
use super::roster::{Network, Roster, SECRET_LEN, Seat};
use super::seats;
use super::secure::Security;
use super::shared_memory::{CELL, CELLS_LEN, Rings, SharedMemory};
use super::streams::Streams;
use super::tcp::TcpEndpoint;
use super::thread::{Stream, consume};
use super::transport::{Endpoint, Transport};
use crate::Buffer;
use crate::deadline::Timed;
use crate::stream::Tls;

/// Interprets bytes as what rank 1 sends to rank 0, and as the receives that rank 0 posts meanwhile: per step one byte,
/// then a frame. However the connection ends, each receive has an outcome.
pub(crate) fn stream(bytes: &[u8]) {
    let tcp = Box::new(TcpEndpoint).connect(&roster()).expect("TCP needs nothing");
    let mut rank = Receiver::new(tcp);
    let mut stream = Stream::new(1);
    let mut script = bytes;
    while let Some((&step, rest)) = script.split_first() {
        script = rest;
        if rank.step(step) {
            continue;
        }
        let mut frame = frame(step, &mut script);
        frame.resize(frame.len() + payload(&frame), step);
        // A read can end anywhere.
        let (first, second) = frame.split_at(frame.len().min(usize::from(step)));
        let taken = consume(&rank.core, &mut stream, first)
            .and_then(|()| consume(&rank.core, &mut stream, second));
        if let Err(reason) = taken {
            rank.core.lost(1, reason);
            break;
        }
    }
    stream.body.cut(&rank.core, 1);
    rank.end();
}

/// Interprets bytes as what rank 1 writes into the memory that it shares with rank 0: per step one byte; then either a
/// frame in the next cell, as its rules want, or any bytes anywhere. Each receive of rank 0 has an outcome.
pub(crate) fn rings(bytes: &[u8]) {
    let Ok((rings, fd)) = Rings::create(2) else { return };
    let memory = File::from(fd);
    let shared = Arc::new(SharedMemory::new(rings, &[0, 1], 2));
    let mut rank = Receiver::new(shared.clone());
    let (start, len) = Rings::written_by_the_other();
    let cells = start + (len - CELLS_LEN);
    let write = |bytes: &[u8], at: usize| {
        memory.write_all_at(bytes, at as u64).expect("it is written within its length");
    };
    let mut script = bytes;
    let mut number = 0u32;
    while let Some((&step, rest)) = script.split_first() {
        script = rest;
        if rank.step(step) {
            continue;
        }
        if step & 1 == 0 {
            let frame = frame(step, &mut script);
            let here = payload(&frame) as u32;
            let mut cell = (number + 1).to_ne_bytes().to_vec();
            cell.extend(here.to_ne_bytes());
            cell.extend(&frame);
            write(&cell, cells + number as usize * CELL % CELLS_LEN);
            number += 1;
        } else if let Some((&[high, low, count], rest)) = script.split_first_chunk::<3>() {
            let (what, rest) = rest.split_at(usize::from(count & 31).min(rest.len()));
            script = rest;
            let at = usize::from(u16::from_be_bytes([high, low])) % (len - 32);
            write(what, start + at);
        }
        shared.progress(&rank.core);
    }
    shared.close(&rank.core);
    rank.end();
}

/// Passes bytes as a connecting process's hello: only the right one is answered.
pub(crate) fn hello(bytes: &[u8]) {
    let (ours, theirs) = UnixStream::pair().expect("this process has descriptors left");
    (&theirs).write_all(bytes).expect("a hello fits the socket's buffer");
    theirs.shutdown(Shutdown::Write).expect("the socket is open");
    let until = Instant::now() + HANDSHAKE;
    let taken = answer_plainly(&tcp(ours), &roster(), until, (&|| false, HANDSHAKE));
    let secret = bytes.get(32..32 + SECRET_LEN);
    assert!(taken.is_err() || secret == Some(&[0; SECRET_LEN]), "let in: {taken:?}");
}

/// Passes bytes to the listeners of a rank with credentials; the first byte selects one, and who sends. Nobody is let in:
/// neither a stranger without TLS, nor a member with the certificate of all ranks, who knows every secret, has a key of
/// its own, and changes what an honest rank would say by the bytes.
pub(crate) fn handshake(bytes: &[u8]) {
    let Some((&which, bytes)) = bytes.split_first() else { return };
    let bytes = &bytes[..bytes.len().min(HANDSHAKE_BYTES)];
    let Ranks { low, thief, roster } = ranks();
    let (ours, theirs) = UnixStream::pair().expect("this process has descriptors left");
    let (ours, theirs) = (tcp(ours), tcp(theirs));
    let until = Instant::now() + HANDSHAKE;
    std::thread::scope(|scope| {
        let peer = scope.spawn(move || match which & 1 {
            0 => {
                let _ = (&theirs).write_all(bytes);
                let _ = theirs.shutdown(Shutdown::Write);
            }
            _ => forge(thief, &theirs, &roster.as_rank(1), bytes),
        });
        match which & 2 {
            0 => {
                let refused = low.answer(&ours, &roster.as_rank(0), until, (&|| false, HANDSHAKE));
                assert!(refused.is_err(), "let in to the mesh");
                // The peer reads until this end is closed.
                drop(ours);
            }
            _ => {
                let streams = Streams::new(low.clone(), &roster.as_rank(0));
                assert!(answer(&streams, ours, until).is_err(), "let in to a stream");
            }
        }
        // A scope waits for what the thread does, not for its end: until then its own data seem to have leaked.
        peer.join().expect("the peer does not panic");
    });
}

/// Accepts a stream of rank 1.
fn answer(streams: &Streams, stream: TcpStream, until: Instant) -> std::io::Result<Tls> {
    stream.set_nonblocking(true)?;
    let mut answering = streams.answering(stream, HELLO_LEN).expect("credentials are good");
    while answering.advance()?.is_none() {
        std::thread::sleep(Duration::from_micros(50));
    }
    answering.admit(streams, 1, &[0; SECRET_LEN], until).map(|(_, tls)| tls)
}

/// What a member says that claims to be rank 1, changed by `bytes`: those before the last are added to the offer, the
/// last says how much of it is sent.
fn forge(thief: &Security, stream: &TcpStream, roster: &Roster, bytes: &[u8]) {
    let session = ClientConnection::new(thief.credentials().rank_client(), server_name());
    let mut session = session.expect("credentials are good");
    let mut socket =
        Timed { stream, until: Instant::now() + HANDSHAKE, stopped: (&|| false, HANDSHAKE) };
    let said = (|| {
        while session.is_handshaking() {
            session.complete_io(&mut socket)?;
        }
        let mut offer = seats::offer(thief.key(), &*session, roster, 0)?;
        let (cut, changes) = bytes.split_last().unwrap_or((&0, &[]));
        for (byte, change) in offer.iter_mut().zip(changes) {
            *byte = byte.wrapping_add(*change);
        }
        let sent = offer.len() - usize::from(*cut) % offer.len();
        rustls::Stream::new(&mut session, &mut socket).write_all(&offer[..sent])
    })();
    // The other side may have refused already.
    let _: std::io::Result<()> = said;
    let _ = stream.shutdown(Shutdown::Write);
    let _ = std::io::copy(&mut &*stream, &mut std::io::sink());
}

/// Two ranks of a tenant, and another process of it.
struct Ranks {
    low: Arc<Security>,
    thief: Security,
    roster: Roster,
}

impl Roster {
    fn as_rank(&self, rank: u32) -> Roster {
        Roster { rank, ..self.clone() }
    }
}

fn ranks() -> &'static Ranks {
    static RANKS: OnceLock<Ranks> = OnceLock::new();
    RANKS.get_or_init(|| {
        let name = crate::unguessable_name("netsum-fuzz").expect("there is randomness");
        let folder = std::env::temp_dir().join(name);
        let authority = Authority::create(&folder, "lab").expect("the folder can be written");
        let identity = Identity::new("lab", "tenant/a".parse().expect("it is a role"));
        let identity = identity.expect("it is a name");
        let issued = authority.issue(&identity, Validity::lasting(DAY)).expect("it is issued");
        issued.save(&folder.join("own")).expect("the folder can be written");
        let credentials = Arc::new(Credentials::open(&folder.join("own")).expect("they are good"));
        std::fs::remove_dir_all(&folder).expect("the folder is this process's");
        let security = || Security::new(credentials.clone()).expect("there is randomness");
        let (low, high, thief) = (Arc::new(security()), security(), security());
        let mut roster = roster();
        roster.seats.truncate(2);
        roster.seats[0].occupant = Some(low.occupant());
        roster.seats[1].occupant = Some(high.occupant());
        Ranks { low, thief, roster }
    })
}

const DAY: Duration = Duration::from_secs(24 * 3600);
/// What fits into a socket's buffer.
const HANDSHAKE_BYTES: usize = 32 << 10;

/// Rank 0 of two, and what it waits for.
struct Receiver {
    core: Core,
    posted: Vec<Arc<Slot>>,
    /// Keeps the connection open.
    _theirs: UnixStream,
    _woken: UnixStream,
}

impl Receiver {
    fn new(transport: Arc<dyn Transport>) -> Receiver {
        let (ours, theirs) = UnixStream::pair().expect("this process has descriptors left");
        ours.set_nonblocking(true).expect("the socket is open");
        let carriers = (Network::Tcp, vec![transport]);
        let connections = vec![None, Some(Connection::Plain(tcp(ours)))];
        let core = Core::new(0, connections, carriers, Duration::from_secs(10), Arc::new(Ignored));
        let (core, woken) = core.expect("this process has descriptors left");
        Receiver { core, posted: Vec::new(), _theirs: theirs, _woken: woken }
    }

    /// Does what one byte says at rank 0; false if the byte is about a frame.
    fn step(&mut self, step: u8) -> bool {
        let key = key(step);
        match step >> 5 {
            0 => self.post(key, Target::Bytes { max: 64 }),
            1 => self.post(key, Target::Buffer(Buffer::from_vec(vec![0; 8]))),
            2 => {
                let slots = self.core.mailbox.lock().discard(key.channel, key.tag);
                slots.iter().for_each(|slot| slot.finish(Err(MeshError::Cancelled)));
            }
            _ => return false,
        }
        true
    }

    fn post(&mut self, key: Key, target: Target) {
        let slot = Slot::new(target, None, None);
        let matched = self.core.mailbox.lock().post(Some(1), key, 0, slot.clone());
        match matched {
            Match::Waiting => {}
            Match::Never(reason) => slot.finish(Err(reason)),
            Match::Deliver { from, bytes } => slot.deliver(from, &bytes),
            Match::Ask { from, id, len } => self.core.ask(from, id, len),
        }
        self.posted.push(slot);
    }

    fn end(self) {
        self.core.fail(MeshError::Aborted("the script is over".to_owned()));
        assert!(self.posted.iter().all(|slot| slot.is_finished()), "a receive has no outcome");
    }
}

/// The next frame of a script: a plausible one, or any bytes.
fn frame(step: u8, script: &mut &[u8]) -> Vec<u8> {
    let mut frame = vec![0; HEADER_LEN];
    if step >> 5 == 7 {
        let (raw, rest) = script.split_at(HEADER_LEN.min(script.len()));
        frame[..raw.len()].copy_from_slice(raw);
        *script = rest;
        return frame;
    }
    let (own, rest) = script.split_at(4.min(script.len()));
    *script = rest;
    let byte = |at: usize| own.get(at).copied().unwrap_or_default();
    let key = key(byte(1));
    frame[0] = 1;
    frame[1] = byte(0) % 12;
    frame[2] = key.channel as u8;
    frame[15] = key.tag as u8;
    frame[31] = byte(2) & 3;
    // Most lengths are short; some are as long as numbers can be.
    let len = if byte(3) < 0xf0 { u64::from(byte(3) & 0x7f) } else { u64::MAX << (byte(3) & 15) };
    frame[32..40].copy_from_slice(&len.to_be_bytes());
    frame
}

/// Bytes that follow a frame's header, at most some hundred.
fn payload(frame: &[u8]) -> usize {
    match frame[1] {
        1 | 4 | 8 => usize::from(frame[39] & 0x7f),
        _ => 0,
    }
}

fn key(byte: u8) -> Key {
    let channel = match byte & 3 {
        0 => Channel::Control,
        1 => Channel::Collective,
        _ => Channel::PointToPoint,
    };
    Key { channel, tag: u64::from(byte >> 2 & 3), part: 0 }
}

fn roster() -> Roster {
    let seat = |rank: u8| Seat {
        address: (Ipv4Addr::LOCALHOST, 1).into(),
        secret: [rank; SECRET_LEN],
        network_address: None,
        occupant: None,
    };
    Roster { group: 5, rank: 0, seats: (0..3).map(seat).collect() }
}

/// A connection as its owner sees it: the calls are the same for both kinds of sockets.
fn tcp(socket: UnixStream) -> TcpStream {
    TcpStream::from(OwnedFd::from(socket))
}

struct Ignored;

impl Events for Ignored {
    fn control(&self, _: u32, _: Key, _: Vec<u8>) {}

    fn admit(&self, _: u32, key: Key, _: u32) -> bool {
        key.tag != 3
    }

    fn failed(&self, _: &MeshError) {}
}
