//! Ports on which neighbours connect, and the connections: shared memory on one host, TCP elsewhere.
//!
//! The higher rank of two connects and says who it is and what it knows; the lower one answers with the other's secret.
//! What says anything else, or nothing, is turned away.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixListener, UnixStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use netsum_net::mesh::SECRET_LEN;
use netsum_net::stream::{Connection, SharedMemory};
use serde::{Deserialize, Serialize};
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};

use super::PlannedError;
use super::lane::is_dead;
use super::measure::{Measured, measure};
use super::routes::LaneKey;

/// Where a rank's neighbours connect to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PortAddress {
    /// For ways that `ways` does not name.
    tcp: SocketAddr,
    /// By name of the vertex from which a way comes in, the address of this rank's end of it.
    ways: BTreeMap<String, IpAddr>,
    /// Where shared memory can be passed: the same for processes that may share memory, and a name there.
    machine: String,
    unix: String,
    secret: [u8; SECRET_LEN],
}

/// A rank's open ports.
#[derive(Debug)]
pub struct Ports {
    tcp: TcpListener,
    unix: Option<UnixListener>,
    address: PortAddress,
}

impl Ports {
    /// Listens at `tcp` (port 0: any), on all addresses if `ways` names some, and for processes of this machine.
    ///
    /// `ways`: by name of the neighbouring vertex (a GPU, or a switch between) our address on the link to it; such links
    /// go over TCP there. `secret`: what neighbours must know.
    pub fn open(
        tcp: SocketAddr,
        ways: BTreeMap<String, IpAddr>,
        secret: [u8; SECRET_LEN],
    ) -> io::Result<Ports> {
        let everywhere = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        let at = if ways.is_empty() { tcp } else { SocketAddr::new(everywhere, tcp.port()) };
        let listener = TcpListener::bind(at)?;
        listener.set_nonblocking(true)?;
        let port = listener.local_addr()?.port();
        // The name lives in the network namespace, as `machine` says.
        let name = format!("netsum-{}-{port}-{:p}", std::process::id(), &raw const listener);
        let unix = UnixAddress::from_abstract_name(&name)
            .and_then(|address| UnixListener::bind_addr(&address))
            .and_then(|unix| unix.set_nonblocking(true).map(|()| unix))
            .ok();
        let machine = unix.as_ref().and_then(|_| machine()).unwrap_or_default();
        let tcp = SocketAddr::new(tcp.ip(), port);
        let address = PortAddress { tcp, ways, machine, unix: name, secret };
        Ok(Ports { tcp: listener, unix, address })
    }

    /// What neighbours must be given.
    pub fn address(&self) -> &PortAddress {
        &self.address
    }
}

impl PortAddress {
    /// One that has only a TCP address.
    pub fn tcp(tcp: SocketAddr, secret: [u8; SECRET_LEN]) -> PortAddress {
        let (ways, machine, unix) = (BTreeMap::new(), String::new(), String::new());
        PortAddress { tcp, ways, machine, unix, secret }
    }
}

/// Tells machines and network namespaces apart.
fn machine() -> Option<String> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let namespace = std::fs::metadata("/proc/self/ns/net").ok()?;
    Some(format!("{}/{}", boot.trim(), namespace.ino()))
}

/// What connecting needs to know.
pub(super) struct Connecting<'a> {
    pub(super) rank: usize,
    pub(super) lanes: &'a [LaneKey],
    /// Of the plan's vertices.
    pub(super) names: &'a [String],
    /// By rank.
    pub(super) gpus: &'a [usize],
    pub(super) ports: &'a Ports,
    /// By rank.
    pub(super) peers: &'a BTreeMap<usize, PortAddress>,
    /// Neighbours of another epoch are turned away.
    pub(super) epoch: u64,
    pub(super) timeout: Duration,
    /// For so long a link may take nothing before it counts as lost.
    pub(super) silence: Duration,
    /// What may wait in the kernel, where nothing overtakes.
    pub(super) unsent_bytes: u32,
}

impl Connecting<'_> {
    /// Connections for all lanes, in their order. Errors name the first lane that has none.
    pub(super) fn run(&self) -> Result<Vec<Arc<dyn Connection>>, PlannedError> {
        let deadline = Instant::now() + self.timeout;
        let mut found: Vec<Option<Arc<dyn Connection>>> = self.lanes.iter().map(|_| None).collect();
        // All at once: one that cannot be reached must not keep others waiting until they give us up.
        thread::scope(|scope| {
            let lower = self.lanes.iter().enumerate().filter(|(_, lane)| lane.peer < self.rank);
            let reaching: Vec<_> = lower
                .map(|(place, lane)| (place, scope.spawn(move || self.reach(lane, deadline))))
                .collect();
            let accepted = self.accept(&mut found, deadline);
            let mut outcome = Ok(());
            for (place, reached) in reaching {
                match reached.join() {
                    Ok(Ok(connection)) => found[place] = Some(connection),
                    Ok(Err(error)) => outcome = Err(error),
                    Err(_) => outcome = Err(PlannedError::Thread("one panicked".to_owned())),
                }
            }
            outcome.and(accepted)
        })?;
        Ok(found.into_iter().map(|connection| connection.expect("all were awaited")).collect())
    }

    /// What all lanes give; the higher rank of two speaks first.
    pub(super) fn measure(
        &self,
        connections: &[Arc<dyn Connection>],
    ) -> Result<Vec<Measured>, PlannedError> {
        let lanes = self.lanes.iter().zip(connections);
        let lanes: Vec<_> =
            lanes.map(|(lane, connection)| (connection.clone(), lane.peer < self.rank)).collect();
        let found = measure(&lanes).into_iter().zip(self.lanes);
        let lost = |(found, lane): (io::Result<Measured>, &LaneKey)| {
            found.map_err(|error| PlannedError::PeerLost {
                rank: lane.peer,
                link: self.link(lane),
                reason: error.to_string(),
            })
        };
        found.map(lost).collect()
    }

    /// The vertex next to `rank` on the way to its neighbour.
    fn beside(&self, lane: &LaneKey, rank: usize) -> &str {
        let other = if rank == self.rank { lane.peer } else { self.rank };
        let (first, last) = (lane.via.first(), lane.via.last());
        let via = if rank < other { first } else { last };
        &self.names[*via.unwrap_or(&self.gpus[other])]
    }

    fn own_ip(&self, lane: &LaneKey) -> Option<IpAddr> {
        self.ports.address.ways.get(self.beside(lane, self.rank)).copied()
    }

    fn reach(
        &self,
        lane: &LaneKey,
        deadline: Instant,
    ) -> Result<Arc<dyn Connection>, PlannedError> {
        let peer = self.peers.get(&lane.peer).ok_or_else(|| {
            self.failed(lane, "no known address", "none was given".to_owned(), false)
        })?;
        let theirs = peer.ways.get(self.beside(lane, lane.peer)).copied();
        let own = self.own_ip(lane);
        let shared = theirs.is_none()
            && own.is_none()
            && !peer.machine.is_empty()
            && peer.machine == self.ports.address.machine;
        let address = SocketAddr::new(theirs.unwrap_or(peer.tcp.ip()), peer.tcp.port());
        loop {
            let outcome = match shared {
                true => self.share(lane, peer, deadline),
                false => self.dial(lane, peer, address, own, deadline),
            };
            let error = match outcome {
                Ok(connection) => return Ok(connection),
                Err(error) => error,
            };
            if Instant::now() + RETRY >= deadline {
                let what = if shared { peer.unix.clone() } else { address.to_string() };
                return Err(self.failed(lane, &what, error.to_string(), is_dead(error.kind())));
            }
            // It may not listen yet.
            thread::sleep(RETRY);
        }
    }

    fn dial(
        &self,
        lane: &LaneKey,
        peer: &PortAddress,
        address: SocketAddr,
        own: Option<IpAddr>,
        deadline: Instant,
    ) -> io::Result<Arc<dyn Connection>> {
        let left = left(deadline)?;
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        if let Some(own) = own {
            socket.bind(&SocketAddr::new(own, 0).into())?;
        }
        socket.connect_timeout(&address.into(), left.min(CONNECT_MAX))?;
        let mut stream: TcpStream = socket.into();
        stream.set_read_timeout(Some(left))?;
        stream.write_all(&self.hello(lane, &peer.secret))?;
        self.expect_answer(&mut stream)?;
        self.prepare(&stream)?;
        Ok(Arc::new(stream))
    }

    fn share(
        &self,
        lane: &LaneKey,
        peer: &PortAddress,
        deadline: Instant,
    ) -> io::Result<Arc<dyn Connection>> {
        let mut socket = UnixStream::connect_addr(&UnixAddress::from_abstract_name(&peer.unix)?)?;
        socket.set_read_timeout(Some(left(deadline)?))?;
        let hello = self.hello(lane, &peer.secret);
        let memory = SharedMemory::offer(socket.try_clone()?, &hello, self.timeout)?;
        self.expect_answer(&mut socket)?;
        Ok(Arc::new(memory))
    }

    /// Who is connected to proves that it is who was meant.
    fn expect_answer(&self, stream: &mut impl Read) -> io::Result<()> {
        let mut answer = [0; SECRET_LEN];
        stream.read_exact(&mut answer).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => io::Error::other("it refused the hello"),
            // Whoever is there is busy: no sign of a dead link.
            _ => io::Error::other(format!("no answer to the hello: {error}")),
        })?;
        match answer == self.ports.address.secret {
            true => Ok(()),
            false => Err(io::Error::other("somebody else answers there")),
        }
    }

    fn accept(
        &self,
        found: &mut [Option<Arc<dyn Connection>>],
        deadline: Instant,
    ) -> Result<(), PlannedError> {
        let mut callers: Vec<Caller> = Vec::new();
        loop {
            let mut higher =
                self.lanes.iter().zip(&*found).filter(|(lane, _)| lane.peer > self.rank);
            let Some((missing, _)) = higher.find(|(_, found)| found.is_none()) else {
                return Ok(());
            };
            if Instant::now() >= deadline {
                let what = self.own_ip(missing).unwrap_or(self.ports.address.tcp.ip()).to_string();
                let reason = "it did not connect".to_owned();
                return Err(self.failed(missing, &what, reason, false));
            }
            let room = CALLERS_MAX.saturating_sub(callers.len());
            let tcp = std::iter::from_fn(|| self.ports.tcp.accept().ok().map(|(tcp, _)| tcp));
            callers.extend(tcp.take(room).filter_map(Caller::tcp));
            let accept_unix = || self.ports.unix.as_ref()?.accept().ok().map(|(unix, _)| unix);
            for unix in std::iter::from_fn(accept_unix).take(CALLERS_MAX) {
                // Local: who speaks to the name of this port sends its hello at once.
                if let Some((hello, memory, unix)) = take_memory(unix, self.timeout) {
                    self.admit(found, &hello, unix, |_| Ok(Arc::new(memory)));
                }
            }
            let mut waiting = Vec::new();
            for mut caller in callers {
                match caller.listen() {
                    Heard::All => {
                        let stream = caller.stream;
                        let Ok(answering) = stream.try_clone() else { continue };
                        self.admit(found, &caller.hello, answering, |this| {
                            stream.set_nonblocking(false)?;
                            this.prepare(&stream)?;
                            Ok(Arc::new(stream))
                        });
                    }
                    Heard::Part if caller.since.elapsed() < HELLO_TIMEOUT => waiting.push(caller),
                    Heard::Part | Heard::End => {}
                }
            }
            callers = waiting;
            thread::sleep(ACCEPT_TICK);
        }
    }

    /// Takes a caller whose hello is right for a lane that waits for one.
    fn admit(
        &self,
        found: &mut [Option<Arc<dyn Connection>>],
        hello: &[u8; HELLO],
        mut answering: impl Write,
        connection: impl FnOnce(&Self) -> io::Result<Arc<dyn Connection>>,
    ) {
        let own = &self.ports.address.secret;
        let expected =
            |lane: &LaneKey| hello_of(self.epoch, lane.peer, self.rank, self.index(lane), own);
        let wanted = |(place, lane): &(usize, &LaneKey)| {
            lane.peer > self.rank && found[*place].is_none() && *hello == expected(lane)
        };
        let Some((place, lane)) = self.lanes.iter().enumerate().find(wanted) else { return };
        let Some(peer) = self.peers.get(&lane.peer) else { return };
        if answering.write_all(&peer.secret).is_ok() {
            // One that breaks at once calls again.
            found[place] = connection(self).ok();
        }
    }

    /// Which of the ways to its neighbour a lane is; the same at both ends.
    fn index(&self, lane: &LaneKey) -> usize {
        self.lanes.iter().filter(|other| other.peer == lane.peer && *other < lane).count()
    }

    fn hello(&self, lane: &LaneKey, secret: &[u8; SECRET_LEN]) -> [u8; HELLO] {
        hello_of(self.epoch, self.rank, lane.peer, self.index(lane), secret)
    }

    fn prepare(&self, stream: &TcpStream) -> io::Result<()> {
        stream.set_read_timeout(None)?;
        stream.set_nodelay(true)?;
        // A link that takes nothing: while there is something to send, and while there is not.
        let socket = SockRef::from(stream);
        socket.set_tcp_user_timeout(Some(self.silence))?;
        // What waits, waits in the lane, where urgent chunks overtake.
        socket.set_tcp_notsent_lowat(self.unsent_bytes)?;
        let interval = (self.silence / 3).max(Duration::from_secs(1));
        let keepalive = TcpKeepalive::new().with_time(interval).with_interval(interval);
        socket.set_tcp_keepalive(&keepalive.with_retries(2))
    }

    fn failed(&self, lane: &LaneKey, address: &str, reason: String, dead: bool) -> PlannedError {
        PlannedError::Unreachable {
            rank: lane.peer,
            link: self.link(lane),
            address: address.to_owned(),
            within_s: self.timeout.as_secs_f64(),
            reason,
            dead,
        }
    }

    /// Names of the vertices of a lane, from our own GPU to the neighbour's.
    pub(super) fn link(&self, lane: &LaneKey) -> Vec<String> {
        link_names(self.names, self.gpus, self.rank, lane)
    }
}

/// Names of the vertices of a lane, from our own GPU to the neighbour's.
pub(super) fn link_names(
    names: &[String],
    gpus: &[usize],
    rank: usize,
    lane: &LaneKey,
) -> Vec<String> {
    let mut via = lane.via.clone();
    if rank > lane.peer {
        via.reverse();
    }
    let ends = [vec![gpus[rank]], via, vec![gpus[lane.peer]]].concat();
    ends.into_iter().map(|vertex| names[vertex].clone()).collect()
}

/// A TCP connection that has not said all of its hello.
struct Caller {
    stream: TcpStream,
    hello: [u8; HELLO],
    heard: usize,
    since: Instant,
}

enum Heard {
    All,
    Part,
    End,
}

impl Caller {
    fn tcp(stream: TcpStream) -> Option<Caller> {
        stream.set_nonblocking(true).ok()?;
        Some(Caller { stream, hello: [0; HELLO], heard: 0, since: Instant::now() })
    }

    fn listen(&mut self) -> Heard {
        match self.stream.read(&mut self.hello[self.heard..]) {
            Ok(0) => return Heard::End,
            Ok(count) => self.heard += count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return Heard::End,
        }
        if self.heard == HELLO { Heard::All } else { Heard::Part }
    }
}

fn take_memory(
    socket: UnixStream,
    patience: Duration,
) -> Option<([u8; HELLO], SharedMemory, UnixStream)> {
    let mut hello = [0; HELLO];
    socket.set_nonblocking(false).ok()?;
    socket.set_read_timeout(Some(LOCAL_HELLO_TIMEOUT)).ok()?;
    let answering = socket.try_clone().ok()?;
    let memory = SharedMemory::take(socket, &mut hello, patience).ok()?;
    Some((hello, memory, answering))
}

fn hello_of(
    epoch: u64,
    from: usize,
    to: usize,
    index: usize,
    secret: &[u8; SECRET_LEN],
) -> [u8; HELLO] {
    let mut hello = [0; HELLO];
    hello[..16].copy_from_slice(MAGIC);
    hello[16..24].copy_from_slice(&epoch.to_be_bytes());
    for (place, value) in [from, to, index].into_iter().enumerate() {
        hello[24 + 4 * place..28 + 4 * place].copy_from_slice(&(value as u32).to_be_bytes());
    }
    hello[36..].copy_from_slice(secret);
    hello
}

fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

const MAGIC: &[u8; 16] = b"netsum lane   1\n";
const HELLO: usize = 36 + SECRET_LEN;
const RETRY: Duration = Duration::from_millis(20);
const ACCEPT_TICK: Duration = Duration::from_millis(1);
/// A host that does not answer at all is tried again: the link may come up.
const CONNECT_MAX: Duration = Duration::from_secs(2);
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// The hello is sent with the memory, in the call after connecting.
const LOCAL_HELLO_TIMEOUT: Duration = Duration::from_millis(200);
/// Strangers that are listened to at a time.
const CALLERS_MAX: usize = 64;
