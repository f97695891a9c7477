//! The higher rank of a pair: connects, and retries until it is accepted or times out.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use netsum_net::mesh::SECRET_LEN;
use netsum_net::stream::{Connection, SharedMemory};
use socket2::{Domain, Protocol, Socket, Type};

use super::{ANSWER, Connecting, PortAddress};
use crate::planned::PlannedError;
use crate::planned::peer_link::is_dead;
use crate::planned::routes::LinkKey;

impl Connecting<'_> {
    /// Connects a peer link to a lower rank.
    pub(super) fn reach(
        &self,
        peer_link: &LinkKey,
        deadline: Instant,
    ) -> Result<Arc<dyn Connection>, PlannedError> {
        let peer = self.peers.get(&peer_link.peer).ok_or_else(|| {
            self.failed(peer_link, "no known address", "none was given".to_owned(), false)
        })?;
        let theirs = peer.ways.get(self.beside(peer_link, peer_link.peer)).copied();
        let own = self.own_ip(peer_link);
        let shared = theirs.is_none()
            && own.is_none()
            && !peer.machine.is_empty()
            && peer.machine == self.ports.address.machine;
        let address = SocketAddr::new(theirs.unwrap_or(peer.tcp.ip()), peer.tcp.port());
        loop {
            let outcome = match shared {
                true => self.share(peer_link, peer, deadline),
                false => self.dial(peer_link, peer, address, own, deadline),
            };
            let error = match outcome {
                Ok(connection) => return Ok(connection),
                Err(error) => error,
            };
            if Instant::now() + RETRY >= deadline {
                let what = if shared { peer.unix.clone() } else { address.to_string() };
                return Err(self.failed(
                    peer_link,
                    &what,
                    error.to_string(),
                    is_dead(error.kind()),
                ));
            }
            // The neighbour may not listen yet.
            thread::sleep(RETRY);
        }
    }

    fn dial(
        &self,
        peer_link: &LinkKey,
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
        if let Some(streams) = &self.ports.streams {
            let (hello, answer) = (self.hello(peer_link, &peer.secret), &self.ports.address.secret);
            let until = deadline.min(Instant::now() + ANSWER);
            let settings = stream.try_clone()?;
            let tls = streams.call(stream, peer_link.peer, &hello, answer, until)?;
            self.prepare(&settings, peer_link)?;
            return Ok(Arc::new(tls));
        }
        stream.set_read_timeout(Some(left))?;
        stream.write_all(&self.hello(peer_link, &peer.secret))?;
        self.expect_answer(&mut stream)?;
        self.prepare(&stream, peer_link)?;
        Ok(Arc::new(stream))
    }

    fn share(
        &self,
        peer_link: &LinkKey,
        peer: &PortAddress,
        deadline: Instant,
    ) -> io::Result<Arc<dyn Connection>> {
        let mut socket = UnixStream::connect_addr(&UnixAddress::from_abstract_name(&peer.unix)?)?;
        socket.set_read_timeout(Some(left(deadline)?))?;
        let hello = self.hello(peer_link, &peer.secret);
        let memory = SharedMemory::offer(socket.try_clone()?, &hello, self.timeout)?;
        self.expect_answer(&mut socket)?;
        Ok(Arc::new(memory))
    }

    /// Checks that the callee proves its identity.
    fn expect_answer(&self, stream: &mut impl Read) -> io::Result<()> {
        let mut answer = [0; SECRET_LEN];
        stream.read_exact(&mut answer).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => io::Error::other("it refused the hello"),
            // The callee is busy: this does not indicate a dead link.
            _ => io::Error::other(format!("no answer to the hello: {error}")),
        })?;
        match answer == self.ports.address.secret {
            true => Ok(()),
            false => Err(io::Error::other("somebody else answers there")),
        }
    }
}

fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

const RETRY: Duration = Duration::from_millis(20);
/// Time-out of one attempt if a host does not answer: the link may come up.
const CONNECT_MAX: Duration = Duration::from_secs(2);
