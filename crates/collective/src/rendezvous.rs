//! Rendezvous of ranks that nothing else brings together: one rank hosts it, all send their addresses, and each
//! receives all of them.
//!
//! A client sends a hello and gets one answer; the host stops listening before it answers, so that the same port serves
//! the next rendezvous. A hello: magic, token, rank, size, bytes of the address, address. An answer: 0 and the
//! addresses by rank, each after its length, or 1 and a reason. Numbers are 32 bits, big-endian.
//!
//! If the ranks have credentials, they say this inside TLS, with certificates on both sides: addresses have the secrets
//! of the mesh, and the public keys by which ranks know each other.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, unbounded};
use netsum_identity::{Credentials, explain, server_name};
use rustls::{ClientConnection, ServerConnection, StreamOwned};

use crate::Error;
use crate::deadline::deadline;

/// A secret that all ranks of one rendezvous share.
pub type Token = [u8; TOKEN_LEN];

/// Bytes of a token.
pub const TOKEN_LEN: usize = 16;

/// Who may come.
#[derive(Clone)]
pub struct Invitation {
    /// Whoever has it.
    pub token: Token,
    /// And whoever has a worker's certificate of the fabric of these credentials. Either all ranks have some, or none.
    pub credentials: Option<Arc<Credentials>>,
}

impl Invitation {
    /// `credentials`: a folder. Errors say what is wrong with its files.
    pub fn new(token: Token, credentials: Option<&Path>) -> Result<Invitation, Error> {
        let credentials = credentials.map(Credentials::open).transpose();
        let credentials = credentials.map_err(|error| failed(error.to_string()))?;
        Ok(Invitation { token, credentials: credentials.map(Arc::new) })
    }
}

impl From<Token> for Invitation {
    fn from(token: Token) -> Invitation {
        Invitation { token, credentials: None }
    }
}

/// A connection between a rank and the host, plain or TLS.
trait Line: Read + Write + Send {
    fn socket(&self) -> &TcpStream;
}

impl Line for TcpStream {
    fn socket(&self) -> &TcpStream {
        self
    }
}

impl Line for StreamOwned<ServerConnection, TcpStream> {
    fn socket(&self) -> &TcpStream {
        self.get_ref()
    }
}

impl Line for StreamOwned<ClientConnection, TcpStream> {
    fn socket(&self) -> &TcpStream {
        self.get_ref()
    }
}

impl Invitation {
    /// The host's end of a connection.
    fn accept(&self, stream: TcpStream) -> io::Result<Box<dyn Line>> {
        let Some(credentials) = &self.credentials else { return Ok(Box::new(stream)) };
        let session = ServerConnection::new(credentials.rank_server()).map_err(io::Error::other)?;
        Ok(Box::new(StreamOwned::new(session, stream)))
    }

    /// A rank's end. The handshake is part of the first write.
    fn call(&self, stream: TcpStream) -> io::Result<Box<dyn Line>> {
        let Some(credentials) = &self.credentials else { return Ok(Box::new(stream)) };
        let session = ClientConnection::new(credentials.rank_client(), server_name());
        Ok(Box::new(StreamOwned::new(session.map_err(io::Error::other)?, stream)))
    }
}

/// An open rendezvous, served by a thread until all ranks have come, it times out, or this is dropped.
pub struct Meeting {
    address: SocketAddr,
    closed: Arc<AtomicBool>,
}

impl Meeting {
    /// Listens at `at` (port 0: any), or at every address of this machine if `at` is not one of its own. Errors name
    /// the address.
    pub fn host(
        at: SocketAddr,
        invitation: impl Into<Invitation>,
        patience: Duration,
    ) -> Result<Meeting, Error> {
        let invitation = invitation.into();
        let listener =
            bind(at).map_err(|e| failed(format!("cannot wait for ranks at {at}: {e}")))?;
        let address = listener.local_addr();
        let address =
            address.map_err(|e| failed(format!("the listener at {at} has no address: {e}")))?;
        let closed = Arc::new(AtomicBool::new(false));
        let until = deadline(patience);
        let shared = closed.clone();
        std::thread::Builder::new()
            .name("netsum-meeting".to_owned())
            .spawn(move || serve(listener, invitation, until, &shared))
            .map_err(|e| Error::Internal(format!("cannot start a thread: {e}")))?;
        Ok(Meeting { address, closed })
    }

    /// Listening address; unspecified if it listens on all.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Meeting {
    fn drop(&mut self) {
        self.closed.store(true, Ordering::Relaxed);
    }
}

/// Joins the rendezvous at `at` ("host:port") with rank `rank`'s address; returns all addresses by rank.
///
/// Waits for a host that does not listen yet. Errors name the address, and the ranks that did not come.
pub fn meet(
    at: &str,
    invitation: impl Into<Invitation>,
    (rank, size): (u32, u32),
    own: &[u8],
    timeout: Duration,
) -> Result<Vec<Vec<u8>>, Error> {
    let invitation = invitation.into();
    if rank >= size {
        return Err(Error::Unsupported(format!("rank {rank} in a group of {size}")));
    }
    let until = deadline(timeout);
    let address = own.to_vec();
    let hello = Hello { token: invitation.token, rank, size, address }.to_bytes();
    loop {
        let problem = match visit(at, &invitation, &hello, size, until) {
            Ok(Answer::Addresses(all)) => return Ok(all),
            Ok(Answer::Refused(reason)) => return Err(failed(reason)),
            Err(problem) => explain(&problem),
        };
        if Instant::now() + RETRY >= until {
            let seconds = timeout.as_secs_f64();
            return Err(failed(format!(
                "rank {rank} did not get everybody's address from {at} in {seconds:.0} s ({problem}); does rank 0 run, \
                 and do all ranks know the same place?"
            )));
        }
        std::thread::sleep(RETRY);
    }
}

struct Hello {
    token: Token,
    rank: u32,
    size: u32,
    address: Vec<u8>,
}

impl Hello {
    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(self.token);
        bytes.extend(self.rank.to_be_bytes());
        bytes.extend(self.size.to_be_bytes());
        append(&mut bytes, &self.address);
        bytes
    }

    /// Reads a hello; `None` for one with another token, whose address is not read: a stranger's takes no memory.
    fn read(stream: &mut impl Read, expected: &Token) -> io::Result<Option<Hello>> {
        let mut magic = [0; MAGIC.len()];
        stream.read_exact(&mut magic)?;
        if magic != *MAGIC {
            return Err(io::Error::other("not a rank of netsum"));
        }
        let mut token = [0; TOKEN_LEN];
        stream.read_exact(&mut token)?;
        if token != *expected {
            return Ok(None);
        }
        let (rank, size) = (number(stream)?, number(stream)?);
        if size > SIZE_MAX {
            return Err(io::Error::other("more ranks than a group can have"));
        }
        Ok(Some(Hello { token, rank, size, address: block(stream)? }))
    }
}

/// Reads a hello from any bytes; for fuzz targets. Whether it is one with this token.
pub(crate) fn is_hello(mut bytes: &[u8], token: &Token) -> bool {
    matches!(Hello::read(&mut bytes, token), Ok(Some(_)))
}

enum Answer {
    Addresses(Vec<Vec<u8>>),
    Refused(String),
}

fn visit(
    at: &str,
    invitation: &Invitation,
    hello: &[u8],
    size: u32,
    until: Instant,
) -> io::Result<Answer> {
    let left = || until.saturating_duration_since(Instant::now()).max(RETRY);
    let mut last = io::Error::other("the name has no address");
    for address in at.to_socket_addrs()? {
        let stream = match TcpStream::connect_timeout(&address, left()) {
            Ok(stream) => stream,
            Err(error) => {
                last = error;
                continue;
            }
        };
        // The host names the missing ranks when it times out: slightly later than this rank, if both began at the same
        // time.
        stream.set_read_timeout(Some(left() + GRACE))?;
        stream.set_write_timeout(Some(left()))?;
        let mut stream = invitation.call(stream)?;
        stream.write_all(hello)?;
        return match number(&mut stream)? {
            0 => {
                let all = (0..size).map(|_| block(&mut stream));
                Ok(Answer::Addresses(all.collect::<io::Result<_>>()?))
            }
            _ => Ok(Answer::Refused(String::from_utf8_lossy(&block(&mut stream)?).into_owned())),
        };
    }
    Err(last)
}

/// The ranks that have come so far.
struct Gathering {
    size: Option<u32>,
    seats: BTreeMap<u32, (Box<dyn Line>, Vec<u8>)>,
}

fn serve(listener: TcpListener, invitation: Invitation, until: Instant, closed: &AtomicBool) {
    let mut gathering = Gathering { size: None, seats: BTreeMap::new() };
    let (sender, hellos) = unbounded();
    let reading = Arc::new(AtomicUsize::new(0));
    while !closed.load(Ordering::Relaxed) && Instant::now() < until {
        accept_all(&listener, &invitation, &sender, &reading);
        take_all(&mut gathering, &hellos);
        if gathering.complete() {
            drop(listener);
            return gathering.answer();
        }
        std::thread::sleep(TURN);
    }
    drop(listener);
    let missing = gathering.missing();
    gathering.refuse_all(&format!(
        "ranks {missing} did not come to the meeting; look at what they wrote last"
    ));
}

fn accept_all(
    listener: &TcpListener,
    invitation: &Invitation,
    sender: &Sender<(Box<dyn Line>, Hello)>,
    reading: &Arc<AtomicUsize>,
) {
    while let Ok((stream, _)) = listener.accept() {
        // Limits the number of unauthenticated connections that send nothing.
        if reading.load(Ordering::Relaxed) >= READING_MAX {
            continue;
        }
        reading.fetch_add(1, Ordering::Relaxed);
        let (invitation, sender, reading) = (invitation.clone(), sender.clone(), reading.clone());
        std::thread::spawn(move || {
            match read_hello(stream, &invitation) {
                Ok((stream, Some(hello))) => drop(sender.send((stream, hello))),
                Ok((stream, None)) => refuse(stream, OTHER_TOKEN),
                // A peer without valid credentials has been told so by TLS.
                Err(_) => {}
            }
            reading.fetch_sub(1, Ordering::Relaxed);
        });
    }
}

fn read_hello(
    stream: TcpStream,
    invitation: &Invitation,
) -> io::Result<(Box<dyn Line>, Option<Hello>)> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(HELLO))?;
    let mut line = invitation.accept(stream)?;
    let hello = Hello::read(&mut line, &invitation.token)?;
    Ok((line, hello))
}

fn take_all(gathering: &mut Gathering, hellos: &Receiver<(Box<dyn Line>, Hello)>) {
    for (stream, hello) in hellos.try_iter() {
        gathering.seat(stream, hello);
    }
}

impl Gathering {
    fn seat(&mut self, stream: Box<dyn Line>, hello: Hello) {
        let Hello { rank, size, address, .. } = hello;
        let expected = *self.size.get_or_insert(size);
        if size != expected || rank >= expected {
            let reason = format!(
                "rank {rank} says that there are {size} ranks; the first to come said {expected}"
            );
            return refuse(stream, &reason);
        }
        // A rank that disconnected and connects again replaces its entry.
        if self.seats.get(&rank).is_some_and(|(stream, _)| !gone(stream.socket())) {
            let reason = format!("two processes say that they are rank {rank}; give each its own");
            return refuse(stream, &reason);
        }
        self.seats.insert(rank, (stream, address));
    }

    /// Whether all ranks are present. A rank that has disconnected is not: it connects again, or is missing.
    fn complete(&mut self) -> bool {
        if self.size.is_some_and(|size| self.seats.len() == size as usize) {
            self.seats.retain(|_, (stream, _)| !gone(stream.socket()));
        }
        self.size.is_some_and(|size| self.seats.len() == size as usize)
    }

    fn missing(&self) -> String {
        match self.size {
            Some(size) => {
                let missing: Vec<u32> = (0..size).filter(|r| !self.seats.contains_key(r)).collect();
                format!("{missing:?} of {size}")
            }
            None => "of an unknown number".to_owned(),
        }
    }

    fn answer(self) {
        let mut bytes = 0u32.to_be_bytes().to_vec();
        for (_, address) in self.seats.values() {
            append(&mut bytes, address);
        }
        for (mut stream, _) in self.seats.into_values() {
            // A rank that does not receive its answer times out by itself.
            let timed = stream.socket().set_write_timeout(Some(HELLO));
            let _ = timed.and_then(|()| stream.write_all(&bytes));
        }
    }

    fn refuse_all(self, reason: &str) {
        self.seats.into_values().for_each(|(stream, _)| refuse(stream, reason));
    }
}

fn refuse(mut stream: Box<dyn Line>, reason: &str) {
    let mut bytes = 1u32.to_be_bytes().to_vec();
    append(&mut bytes, reason.as_bytes());
    let timed = stream.socket().set_write_timeout(Some(HELLO));
    let _ = timed.and_then(|()| stream.write_all(&bytes));
}

/// Whether the other side has closed.
fn gone(stream: &TcpStream) -> bool {
    if stream.set_nonblocking(true).is_err() {
        return true;
    }
    let seen = stream.peek(&mut [0]);
    let open = matches!(&seen, Ok(n) if *n > 0)
        || seen.is_err_and(|e| e.kind() == io::ErrorKind::WouldBlock);
    stream.set_nonblocking(false).is_err() || !open
}

fn bind(at: SocketAddr) -> io::Result<TcpListener> {
    let everywhere = SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), at.port());
    let any_v4 = SocketAddr::new(IpAddr::from([0, 0, 0, 0]), at.port());
    let listener = TcpListener::bind(at).or_else(|error| match error.kind() {
        io::ErrorKind::AddrNotAvailable => TcpListener::bind([everywhere, any_v4].as_slice()),
        _ => Err(error),
    })?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

fn append(bytes: &mut Vec<u8>, block: &[u8]) {
    bytes.extend((block.len() as u32).to_be_bytes());
    bytes.extend(block);
}

fn number(stream: &mut impl Read) -> io::Result<u32> {
    let mut bytes = [0; 4];
    stream.read_exact(&mut bytes)?;
    Ok(u32::from_be_bytes(bytes))
}

/// Allocates as bytes arrive: a length alone takes no memory.
fn block(stream: &mut impl Read) -> io::Result<Vec<u8>> {
    let len = number(stream)?;
    if len > BLOCK_MAX {
        return Err(io::Error::other("a block is too long"));
    }
    let mut bytes = Vec::new();
    stream.by_ref().take(u64::from(len)).read_to_end(&mut bytes)?;
    if bytes.len() < len as usize {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(bytes)
}

fn failed(reason: String) -> Error {
    Error::Connect { group: "meeting".to_owned(), reason }
}

const MAGIC: &[u8; 8] = b"netsum-1";
/// Polling interval of the listener: a job starts once, and this is short beside the start of a process.
const TURN: Duration = Duration::from_millis(3);
/// Interval between attempts of a client.
const RETRY: Duration = Duration::from_millis(30);
/// Time-out of a hello, once connected, and of receiving an answer.
const HELLO: Duration = Duration::from_secs(10);
/// Additional time for the host's answer after the client's own time-out.
const GRACE: Duration = Duration::from_secs(2);
/// An address holds at most a tree plan, which is some MiB for thousands of ranks.
const BLOCK_MAX: u32 = 64 << 20;
const READING_MAX: usize = 4096;
/// Maximum number of ranks; each of them holds a connection to every other.
const SIZE_MAX: u32 = 1 << 16;
const OTHER_TOKEN: &str =
    "this meeting has another token; do all ranks have the same id, or the same NETSUM_TOKEN?";

#[cfg(test)]
#[path = "rendezvous_tests.rs"]
mod tests;
