//! Building the mesh: every rank connects to the lower ranks and accepts the higher ones.
//!
//! The connecting rank sends a hello: magic, group, its rank, the wanted rank, and the listener's secret, which only
//! readers of the rendezvous know; the answer carries the secret of the connecting rank. All other connections are
//! closed. Ranks with credentials do so inside TLS, and prove which rank they are ([`super::secure`]).
//!
//! This is the only place that names the transports: to add one, see ARCHITECTURE.md.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Sender, unbounded};
use netsum_identity::Credentials;
use parking_lot::Mutex;
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};

use super::connection::Connection;
use super::error::MeshError;
use super::events::Events;
use super::handle::Mesh;
use super::hello::{HELLO_LEN, hello, refusal, sender};
use super::limits::{
    ACCEPT_TICK, ANSWER, BACKLOG, HANDSHAKE, HANDSHAKES_MAX, REFUSALS_SHOWN, RETRY, TCP_KEEPALIVE,
};
use super::poll::{Interest, poll};
use super::roster::{Network, Occupant, Roster, SECRET_LEN};
use super::secure::{Security, check_alike};
use super::shared_memory::{Rings, SharedMemory};
use super::streams::Streams;
use super::tcp::TcpEndpoint;
use super::tls::TlsStream;
use super::transport::{Endpoint, Transport};
use super::ucx;
use crate::NetError;
use crate::deadline::{Stopped, Timed, left, read_exact};

impl Network {
    /// Opens the network's endpoint. Errors: this machine cannot use the network.
    fn open(self) -> Result<Box<dyn Endpoint>, NetError> {
        match self {
            Network::Tcp => Ok(Box::new(TcpEndpoint)),
            Network::Ucx => ucx::open(),
        }
    }
}

/// A TCP port on which the other ranks connect, and this rank's endpoint of the network.
pub struct Listener {
    listener: TcpListener,
    address: SocketAddr,
    network: Network,
    endpoint: Box<dyn Endpoint>,
    security: Option<Arc<Security>>,
}

/// What both halves of the set-up need.
struct Setup<'a> {
    roster: &'a Roster,
    security: Option<&'a Security>,
    /// The first reasons for which connections were refused, which differ.
    refused: Mutex<Vec<String>>,
}

impl Listener {
    /// Listens on a free port of `ip`, which must belong to this machine. Errors: also that the network cannot be used.
    pub fn bind(ip: IpAddr, network: Network) -> Result<Listener, NetError> {
        let endpoint = network.open()?;
        let address = SocketAddr::new(ip, 0);
        let open = || {
            let listener = TcpListener::bind(address)?;
            SockRef::from(&listener).listen(BACKLOG)?;
            listener.set_nonblocking(true)?;
            let address = listener.local_addr()?;
            Ok((listener, address))
        };
        let opened = open();
        let (listener, address) =
            opened.map_err(|source| NetError::Bind { what: "TCP listener", address, source })?;
        Ok(Listener { listener, address, network, endpoint, security: None })
    }

    /// Makes all connections TLS with these credentials: the other ranks must be workers of the same fabric, and
    /// occupy the seats that they announced. Errors: there is no randomness for a key.
    pub fn secured(self, credentials: Arc<Credentials>) -> Result<Listener, NetError> {
        Ok(Listener { security: Some(Arc::new(Security::new(credentials)?)), ..self })
    }

    /// Who has this rank's seat, for the other ranks; `None` without credentials.
    pub fn occupant(&self) -> Option<Occupant> {
        self.security.as_ref().map(|security| security.occupant())
    }

    /// For further connections between the ranks of `roster`; `None` without credentials.
    pub fn streams(&self, roster: &Roster) -> Option<Streams> {
        let security = self.security.clone()?;
        Some(Streams::new(security, roster))
    }

    /// The network's address of this rank, for the other ranks, if the network has addresses of its own.
    pub fn network_address(&self) -> Option<&[u8]> {
        self.endpoint.address()
    }

    /// The listening address, for the other ranks.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Connects to all ranks of `roster` until `deadline`.
    ///
    /// `silence`: a peer that sends nothing for this long is lost. Errors name the ranks.
    pub fn connect(
        self,
        roster: &Roster,
        deadline: Instant,
        silence: Duration,
        events: Arc<dyn Events>,
    ) -> Result<Mesh, NetError> {
        self.connect_on_hosts(roster, deadline, silence, events, || None)
    }

    /// Like [`Listener::connect`]; `meet` is called when all are connected, and returns the memory through which the
    /// ranks of this host exchange messages, and those ranks in the order of their positions. All of them must return
    /// the same.
    pub fn connect_on_hosts(
        self,
        roster: &Roster,
        deadline: Instant,
        silence: Duration,
        events: Arc<dyn Events>,
        meet: impl FnOnce() -> Option<(Rings, Vec<u32>)>,
    ) -> Result<Mesh, NetError> {
        check_alike(self.security.as_deref(), roster)?;
        let setup = Setup { roster, security: self.security.as_deref(), refused: Mutex::default() };
        let mut streams: Vec<Option<Connection>> = roster.seats.iter().map(|_| None).collect();
        let over = AtomicBool::new(false);
        let (found, finds) = unbounded();
        std::thread::scope(|scope| {
            let accepting = scope.spawn(|| setup.accept(&self.listener, &over, &found));
            let result = setup.collect(self.address.ip(), deadline, &mut streams, &finds);
            over.store(true, Ordering::Relaxed);
            let accepted = accepting.join();
            result?;
            accepted.map_err(|_| NetError::Stopped)
        })?;
        for stream in streams.iter().flatten() {
            prepare(stream.socket())
                .map_err(|source| NetError::Io { what: "set-up of a connection", source })?;
        }
        let remote = self.endpoint.connect(roster)?;
        let local = meet().map(|(rings, ranks)| -> Arc<dyn Transport> {
            Arc::new(SharedMemory::new(rings, &ranks, streams.len()))
        });
        let carriers = (self.network, local.into_iter().chain([remote]).collect());
        let revocations = self.security.as_deref().map(Security::revocations);
        let start = Mesh::start(roster.rank, streams, carriers, (silence, revocations), events);
        start.map_err(|source| NetError::Thread { name: "netsum-mesh", source })
    }
}

impl Setup<'_> {
    /// Connects to the lower ranks, then waits for the higher ones.
    fn collect(
        &self,
        from: IpAddr,
        deadline: Instant,
        streams: &mut [Option<Connection>],
        finds: &crossbeam_channel::Receiver<(u32, Connection)>,
    ) -> Result<(), MeshError> {
        let (started, own) = (Instant::now(), self.roster.rank);
        for rank in 0..own {
            streams[rank as usize] = Some(self.reach(from, rank, deadline)?);
        }
        let missing = |streams: &[Option<Connection>]| -> Vec<u32> {
            let higher = own + 1..self.roster.seats.len() as u32;
            higher.filter(|&rank| streams[rank as usize].is_none()).collect()
        };
        let mut deadline = deadline;
        loop {
            while !missing(streams).is_empty() {
                let Ok((rank, stream)) = finds.recv_deadline(deadline) else {
                    let (ranks, refused) = (missing(streams), self.refused.lock().concat());
                    return Err(MeshError::NotConnected {
                        ranks,
                        waited: started.elapsed(),
                        refused,
                    });
                };
                // A rank connects again only after it has given up the connection before.
                streams[rank as usize] = Some(stream);
            }
            for stream in &mut streams[own as usize + 1..] {
                stream.take_if(|stream| is_closed(stream.socket()));
            }
            if missing(streams).is_empty() {
                return Ok(());
            }
            // Such a rank connects again soon, unless it has died.
            deadline = deadline.min(Instant::now() + HANDSHAKE);
        }
    }

    /// Connects to one rank, with retries until `deadline`.
    fn reach(&self, from: IpAddr, rank: u32, deadline: Instant) -> Result<Connection, MeshError> {
        let address = self.roster.seats[rank as usize].address;
        let mut reason = String::new();
        loop {
            let until = deadline.min(Instant::now() + ANSWER);
            let error = match self.call(from, rank, until) {
                Ok(stream) => return Ok(stream),
                Err(error) => error,
            };
            // An attempt that the deadline cuts short says less than the one before.
            let cut = error.kind() == io::ErrorKind::TimedOut && until == deadline;
            if !cut || reason.is_empty() {
                reason = error.to_string();
            }
            if Instant::now() + RETRY >= deadline {
                return Err(MeshError::Unreachable { rank, address, reason });
            }
            std::thread::sleep(RETRY);
        }
    }

    /// Connects to one rank and completes the handshake by `until`.
    fn call(&self, from: IpAddr, rank: u32, until: Instant) -> io::Result<Connection> {
        let stream = connect(from, self.roster.seats[rank as usize].address, until)?;
        match self.security {
            Some(security) => {
                let tls = security.call(stream, self.roster, rank, until)?;
                Ok(Connection::Tls(Box::new(tls)))
            }
            None => call_plainly(stream, self.roster, rank, until).map(Connection::Plain),
        }
    }

    /// Accepts connections of ranks until `over`.
    fn accept(&self, listener: &TcpListener, over: &AtomicBool, found: &Sender<(u32, Connection)>) {
        let busy = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            while !over.load(Ordering::Relaxed) {
                // An error shows at the next accept.
                let _ = poll(&mut [Interest::new(listener, true, false)], ACCEPT_TICK);
                let Ok((stream, from)) = listener.accept() else {
                    continue;
                };
                if busy.fetch_add(1, Ordering::Relaxed) >= HANDSHAKES_MAX {
                    busy.fetch_sub(1, Ordering::Relaxed);
                    continue;
                }
                let busy = &busy;
                let started = std::thread::Builder::new().spawn_scoped(scope, move || {
                    match self.answer(stream, over) {
                        // The receiver is gone once all ranks are connected.
                        Ok(connected) => drop(found.send(connected)),
                        Err(reason) => self.note_refusal(from.ip(), &reason),
                    }
                    busy.fetch_sub(1, Ordering::Relaxed);
                });
                if started.is_err() {
                    busy.fetch_sub(1, Ordering::Relaxed);
                }
            }
        });
    }

    fn note_refusal(&self, from: IpAddr, reason: &io::Error) {
        let (mut refused, reason) = (self.refused.lock(), format!("; refused {from}: {reason}"));
        if refused.len() < REFUSALS_SHOWN && !refused.contains(&reason) {
            refused.push(reason);
        }
    }

    /// Completes a handshake; returns the connecting rank. Ends when the handshake times out, or all ranks are
    /// connected.
    fn answer(&self, stream: TcpStream, over: &AtomicBool) -> io::Result<(u32, Connection)> {
        let until = Instant::now() + HANDSHAKE;
        stream.set_nonblocking(false)?;
        let over = || over.load(Ordering::Relaxed);
        let stopped: Stopped<'_> = (&over, ACCEPT_TICK);
        match self.security {
            Some(security) => match security.answer(&stream, self.roster, until, stopped) {
                Ok((rank, session)) => {
                    let tls = TlsStream::new(stream, session.into());
                    Ok((rank, Connection::Tls(Box::new(tls))))
                }
                Err(reason) => {
                    part(Timed { stream: &stream, until, stopped });
                    Err(reason)
                }
            },
            None => {
                let rank = answer_plainly(&stream, self.roster, until, stopped)?;
                Ok((rank, Connection::Plain(stream)))
            }
        }
    }
}

fn connect(from: IpAddr, to: SocketAddr, until: Instant) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
    socket.bind(&SocketAddr::new(from, 0).into())?;
    socket.connect_timeout(&to.into(), left(until)?)?;
    Ok(socket.into())
}

fn call_plainly(
    mut stream: TcpStream,
    roster: &Roster,
    rank: u32,
    until: Instant,
) -> io::Result<TcpStream> {
    stream.set_write_timeout(Some(left(until)?))?;
    stream.write_all(&hello(roster, roster.rank, rank))?;
    let mut answer = [0; SECRET_LEN];
    let never: Stopped<'_> = (&|| false, HANDSHAKE);
    read_exact(&stream, &mut answer, until, never).map_err(|e| match e.kind() {
        io::ErrorKind::UnexpectedEof => io::Error::other("it refused the hello"),
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => {
            io::Error::new(io::ErrorKind::TimedOut, "it has not answered in time")
        }
        _ => e,
    })?;
    if answer != roster.seats[roster.rank as usize].secret {
        return Err(io::Error::other("another process answers at that address"));
    }
    Ok(stream)
}

/// Reads a hello; returns its sender.
pub(super) fn answer_plainly(
    mut stream: &TcpStream,
    roster: &Roster,
    until: Instant,
    stopped: Stopped<'_>,
) -> io::Result<u32> {
    let mut got = [0; HELLO_LEN];
    read_exact(stream, &mut got, until, stopped)?;
    stream.set_write_timeout(Some(left(until)?))?;
    let rank = sender(roster, &got).ok_or_else(|| refusal(&got))?;
    stream.write_all(&roster.seats[rank as usize].secret)?;
    Ok(rank)
}

/// Whether the other side has closed the connection, and all that it sent has been read. The stream no longer blocks.
fn is_closed(stream: &TcpStream) -> bool {
    let peeked = stream.set_nonblocking(true).and_then(|()| stream.peek(&mut [0]));
    match peeked {
        Ok(count) => count == 0,
        Err(error) => {
            !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
        }
    }
}

/// Ends a refused connection so that the other side can read why: a socket that is closed with unread bytes is reset.
fn part(mut refused: Timed<'_>) {
    let _ = refused.stream.shutdown(Shutdown::Write);
    while matches!(refused.read(&mut [0; 1024]), Ok(1..)) {}
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_read_timeout(None)?;
    stream.set_write_timeout(None)?;
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    leave_bbr(stream);
    let keepalive = TcpKeepalive::new().with_time(TCP_KEEPALIVE).with_interval(TCP_KEEPALIVE);
    SockRef::from(stream).set_tcp_keepalive(&keepalive)
}

/// Replaces BBR as the congestion control: connections of a collective start and stop together on the same links, and
/// if each is paced by its own estimate, some of a link stays idle.
fn leave_bbr(stream: &TcpStream) {
    let socket = SockRef::from(stream);
    let name = socket.tcp_congestion().unwrap_or_default();
    if name.starts_with(b"bbr") {
        // A system that allows neither keeps its own.
        let _ = socket.set_tcp_congestion(b"cubic").or_else(|_| socket.set_tcp_congestion(b"reno"));
    }
}
