//! Building the mesh: every rank connects to the lower ranks and accepts the higher ones.
//!
//! The connecting rank sends a hello: magic, group, its rank, the wanted rank, and the listener's secret, which only
//! readers of the rendezvous know; the answer carries the secret of the connecting rank. All other connections are
//! closed.
//!
//! This is the only place that names the transports: to add one, see ARCHITECTURE.md.

use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Sender, unbounded};
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};

use super::error::MeshError;
use super::events::Events;
use super::handle::Mesh;
use super::limits::{ACCEPT_TICK, BACKLOG, HANDSHAKE, HANDSHAKES_MAX, RETRY, TCP_KEEPALIVE};
use super::poll::{Interest, poll};
use super::roster::{Network, Roster, SECRET_LEN};
use super::shared_memory::{Rings, SharedMemory};
use super::tcp::TcpEndpoint;
use super::transport::{Endpoint, Transport};
use super::ucx;
use crate::NetError;
use crate::deadline::{left, read_exact};

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
        Ok(Listener { listener, address, network, endpoint })
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
        let started = Instant::now();
        let mut streams: Vec<Option<TcpStream>> = roster.seats.iter().map(|_| None).collect();
        let over = AtomicBool::new(false);
        let (found, finds) = unbounded();
        std::thread::scope(|scope| {
            let accepting = scope.spawn(|| accept(&self.listener, roster, &over, &found));
            let result = collect(&self, roster, deadline, started, &mut streams, &finds);
            over.store(true, Ordering::Relaxed);
            let accepted = accepting.join();
            result?;
            accepted.map_err(|_| NetError::Stopped)
        })?;
        for stream in streams.iter().flatten() {
            prepare(stream)
                .map_err(|source| NetError::Io { what: "set-up of a connection", source })?;
        }
        let remote = self.endpoint.connect(roster)?;
        let local = meet().map(|(rings, ranks)| -> Arc<dyn Transport> {
            Arc::new(SharedMemory::new(rings, &ranks, streams.len()))
        });
        let carriers = (self.network, local.into_iter().chain([remote]).collect());
        let start = Mesh::start(roster.rank, streams, carriers, silence, events);
        start.map_err(|source| NetError::Thread { name: "netsum-mesh", source })
    }
}

/// Connects to the lower ranks, then waits for the higher ones.
fn collect(
    listener: &Listener,
    roster: &Roster,
    deadline: Instant,
    started: Instant,
    streams: &mut [Option<TcpStream>],
    finds: &crossbeam_channel::Receiver<(u32, TcpStream)>,
) -> Result<(), MeshError> {
    for rank in 0..roster.rank {
        streams[rank as usize] = Some(reach(listener.address.ip(), roster, rank, deadline)?);
    }
    let missing = |streams: &[Option<TcpStream>]| -> Vec<u32> {
        let higher = roster.rank + 1..roster.seats.len() as u32;
        higher.filter(|&rank| streams[rank as usize].is_none()).collect()
    };
    while !missing(streams).is_empty() {
        let Ok((rank, stream)) = finds.recv_deadline(deadline) else {
            let ranks = missing(streams);
            return Err(MeshError::NotConnected { ranks, waited: started.elapsed() });
        };
        streams[rank as usize].get_or_insert(stream);
    }
    Ok(())
}

/// Connects to one rank, with retries until `deadline`.
fn reach(
    from: IpAddr,
    roster: &Roster,
    rank: u32,
    deadline: Instant,
) -> Result<TcpStream, MeshError> {
    let seat = &roster.seats[rank as usize];
    loop {
        let error = match call(from, roster, rank, deadline.min(Instant::now() + HANDSHAKE)) {
            Ok(stream) => return Ok(stream),
            Err(error) => error,
        };
        if Instant::now() + RETRY >= deadline {
            let (address, reason) = (seat.address, error.to_string());
            return Err(MeshError::Unreachable { rank, address, reason });
        }
        std::thread::sleep(RETRY);
    }
}

/// Connects to one rank and completes the handshake by `until`.
fn call(from: IpAddr, roster: &Roster, rank: u32, until: Instant) -> io::Result<TcpStream> {
    let seat = &roster.seats[rank as usize];
    let socket = Socket::new(Domain::for_address(seat.address), Type::STREAM, Some(Protocol::TCP))?;
    socket.bind(&SocketAddr::new(from, 0).into())?;
    socket.connect_timeout(&seat.address.into(), left(until)?)?;
    let mut stream: TcpStream = socket.into();
    stream.set_write_timeout(Some(left(until)?))?;
    stream.write_all(&hello(roster, roster.rank, rank, &seat.secret))?;
    let mut answer = [0; SECRET_LEN];
    let never = (&(|| false) as &dyn Fn() -> bool, HANDSHAKE);
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

/// Accepts connections of ranks until `over`.
fn accept(
    listener: &TcpListener,
    roster: &Roster,
    over: &AtomicBool,
    found: &Sender<(u32, TcpStream)>,
) {
    let busy = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        while !over.load(Ordering::Relaxed) {
            // An error shows at the next accept.
            let _ = poll(&mut [Interest::new(listener, true, false)], ACCEPT_TICK);
            let Ok((stream, _)) = listener.accept() else {
                continue;
            };
            if busy.fetch_add(1, Ordering::Relaxed) >= HANDSHAKES_MAX {
                busy.fetch_sub(1, Ordering::Relaxed);
                continue;
            }
            let busy = &busy;
            let started = std::thread::Builder::new().spawn_scoped(scope, move || {
                if let Ok(rank) = answer(&stream, roster, over) {
                    // The receiver is gone once all ranks are connected.
                    let _ = found.send((rank, stream));
                }
                busy.fetch_sub(1, Ordering::Relaxed);
            });
            if started.is_err() {
                busy.fetch_sub(1, Ordering::Relaxed);
            }
        }
    });
}

/// Reads a hello; returns its sender. Ends when the handshake times out, or all ranks are connected.
pub(super) fn answer(
    mut stream: &TcpStream,
    roster: &Roster,
    over: &AtomicBool,
) -> io::Result<u32> {
    let until = Instant::now() + HANDSHAKE;
    stream.set_nonblocking(false)?;
    let mut got = [0; HELLO_LEN];
    let over = || over.load(Ordering::Relaxed);
    read_exact(stream, &mut got, until, (&over, ACCEPT_TICK))?;
    stream.set_write_timeout(Some(left(until)?))?;
    let rank = u32::from_be_bytes([got[24], got[25], got[26], got[27]]);
    let own = &roster.seats[roster.rank as usize].secret;
    let known = rank > roster.rank && (rank as usize) < roster.seats.len();
    if !known || got != hello(roster, rank, roster.rank, own) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    stream.write_all(&roster.seats[rank as usize].secret)?;
    Ok(rank)
}

fn hello(roster: &Roster, from: u32, to: u32, secret: &[u8; SECRET_LEN]) -> [u8; HELLO_LEN] {
    let mut h = [0; HELLO_LEN];
    h[..16].copy_from_slice(MAGIC);
    h[16..24].copy_from_slice(&roster.group.to_be_bytes());
    h[24..28].copy_from_slice(&from.to_be_bytes());
    h[28..32].copy_from_slice(&to.to_be_bytes());
    h[32..].copy_from_slice(secret);
    h
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

const MAGIC: &[u8; 16] = b"netsum mesh   1\n";
const HELLO_LEN: usize = 32 + SECRET_LEN;
