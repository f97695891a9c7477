//! The lower rank of a pair: listens, and accepts connections with a valid hello.

use std::io::{self, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use netsum_net::mesh::Answering;
use netsum_net::stream::{Connection, SharedMemory};

use super::hello::{self, HELLO};
use super::{Connecting, HANDSHAKE, PortAddress};
use crate::planned::PlannedError;
use crate::planned::routes::LinkKey;

impl Connecting<'_> {
    /// Accepts the connections of all peer links to higher ranks.
    pub(super) fn accept(
        &self,
        found: &mut [Option<Arc<dyn Connection>>],
        deadline: Instant,
    ) -> Result<(), PlannedError> {
        let mut callers: Vec<Caller> = Vec::new();
        loop {
            let mut higher = self
                .peer_links
                .iter()
                .zip(&*found)
                .filter(|(peer_link, _)| peer_link.peer > self.rank);
            let Some((missing, _)) = higher.find(|(_, found)| found.is_none()) else {
                return Ok(());
            };
            if Instant::now() >= deadline {
                let what = self.own_ip(missing).unwrap_or(self.ports.address.tcp.ip()).to_string();
                let reason = "it did not connect".to_owned();
                return Err(self.failed(missing, &what, reason, false));
            }
            let tcp = std::iter::from_fn(|| self.ports.tcp.accept().ok().map(|(tcp, _)| tcp));
            callers.extend(tcp.take(CALLERS_MAX).filter_map(|tcp| self.caller(tcp)));
            // The oldest yield: an honest caller needs a few round trips, and tries again.
            callers.drain(..callers.len().saturating_sub(CALLERS_MAX));
            let accept_unix = || self.ports.unix.as_ref()?.accept().ok().map(|(unix, _)| unix);
            for unix in std::iter::from_fn(accept_unix).take(CALLERS_MAX) {
                // Local: a process that connects to this port's name sends its hello immediately.
                let Some((hello, memory, mut unix)) = take_memory(unix, self.timeout) else {
                    continue;
                };
                self.admit(found, &hello, |_, peer| {
                    unix.write_all(&peer.secret)?;
                    Ok(Arc::new(memory))
                });
            }
            let mut waiting = Vec::new();
            for mut caller in callers {
                match caller.read_hello() {
                    HelloProgress::Complete(hello) => self.admit_caller(found, &hello, caller),
                    HelloProgress::Partial if caller.since.elapsed() < HANDSHAKE => {
                        waiting.push(caller)
                    }
                    HelloProgress::Partial | HelloProgress::Closed => {}
                }
            }
            callers = waiting;
            thread::sleep(ACCEPT_TICK);
        }
    }

    fn caller(&self, stream: TcpStream) -> Option<Caller> {
        stream.set_nonblocking(true).ok()?;
        let since = Instant::now();
        let greeting = match &self.ports.streams {
            Some(streams) => Greeting::Tls(Box::new(streams.answering(stream, HELLO).ok()?)),
            None => Greeting::Plain { stream, hello: [0; HELLO], received: 0 },
        };
        Some(Caller { greeting, since })
    }

    fn admit_caller(
        &self,
        found: &mut [Option<Arc<dyn Connection>>],
        hello: &[u8; HELLO],
        caller: Caller,
    ) {
        self.admit(found, hello, |peer_link, peer| match caller.greeting {
            Greeting::Plain { mut stream, .. } => {
                stream.set_nonblocking(false)?;
                stream.write_all(&peer.secret)?;
                self.prepare(&stream, peer_link)?;
                Ok(Arc::new(stream))
            }
            Greeting::Tls(answering) => {
                let streams = self.ports.streams.as_ref().expect("it is answered over TLS");
                let until = caller.since + HANDSHAKE;
                let (socket, tls) =
                    answering.admit(streams, peer_link.peer, &peer.secret, until)?;
                self.prepare(&socket, peer_link)?;
                Ok(Arc::new(tls))
            }
        });
    }

    /// Assigns a caller with a valid hello to its peer link, in place of an earlier connection: a rank connects again only
    /// after it has given that up.
    fn admit(
        &self,
        found: &mut [Option<Arc<dyn Connection>>],
        hello: &[u8; HELLO],
        connection: impl FnOnce(&LinkKey, &PortAddress) -> io::Result<Arc<dyn Connection>>,
    ) {
        let own = &self.ports.address.secret;
        let expected = |peer_link: &LinkKey| {
            hello::of(self.epoch, peer_link.peer, self.rank, self.index(peer_link), own)
        };
        let wanted = |(_, peer_link): &(usize, &LinkKey)| {
            peer_link.peer > self.rank && *hello == expected(peer_link)
        };
        let Some((place, peer_link)) = self.peer_links.iter().enumerate().find(wanted) else {
            return;
        };
        let Some(peer) = self.peers.get(&peer_link.peer) else { return };
        match connection(peer_link, peer) {
            Ok(connection) => found[place] = Some(connection),
            // If the connection has broken, the peer connects again.
            Err(reason) => {
                tracing::debug!(rank = peer_link.peer, %reason, "refused a stream of the plan");
            }
        }
    }
}

/// A TCP connection whose hello is incomplete.
struct Caller {
    greeting: Greeting,
    since: Instant,
}

enum Greeting {
    Plain { stream: TcpStream, hello: [u8; HELLO], received: usize },
    Tls(Box<Answering>),
}

enum HelloProgress {
    Complete([u8; HELLO]),
    Partial,
    Closed,
}

impl Caller {
    fn read_hello(&mut self) -> HelloProgress {
        match &mut self.greeting {
            Greeting::Plain { stream, hello, received } => {
                match stream.read(&mut hello[*received..]) {
                    Ok(0) => return HelloProgress::Closed,
                    Ok(count) => *received += count,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(_) => return HelloProgress::Closed,
                }
                match *received == HELLO {
                    true => HelloProgress::Complete(*hello),
                    false => HelloProgress::Partial,
                }
            }
            Greeting::Tls(answering) => match answering.advance() {
                Ok(Some(hello)) => {
                    HelloProgress::Complete(hello.try_into().expect("a hello's length was asked"))
                }
                Ok(None) => HelloProgress::Partial,
                Err(reason) => {
                    tracing::debug!(%reason, "refused a stream of the plan");
                    HelloProgress::Closed
                }
            },
        }
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

const ACCEPT_TICK: Duration = Duration::from_millis(1);
/// The hello is sent together with the memory, in the call after connecting.
const LOCAL_HELLO_TIMEOUT: Duration = Duration::from_millis(200);
/// Maximum number of connections with an incomplete hello.
const CALLERS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io::Read;
    use std::net::SocketAddr;

    use netsum_net::mesh::SECRET_LEN;

    use super::super::Ports;
    use super::*;

    #[test]
    fn a_rank_that_connects_again_replaces_its_first_connection() {
        let secret = |rank: usize| [rank as u8; SECRET_LEN];
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let ports = Ports::open(any, BTreeMap::new(), secret(0)).unwrap();
        let peer = |rank| (rank, PortAddress::tcp(any, secret(rank)));
        let peers = BTreeMap::from([1, 2].map(peer));
        let peer_links = [1, 2].map(|peer| LinkKey { peer, via: Vec::new() });
        let connecting = Connecting {
            rank: 0,
            peer_links: &peer_links,
            bytes_per_s: &[f64::INFINITY; 2],
            names: &["gpu0", "gpu1", "gpu2"].map(str::to_owned),
            gpus: &[0, 1, 2],
            ports: &ports,
            peers: &peers,
            epoch: 7,
            timeout: Duration::from_secs(60),
            silence: Duration::from_secs(60),
            unsent_bytes: 1 << 16,
        };
        let call = |rank| {
            let mut stream = TcpStream::connect(ports.address().tcp).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            stream.write_all(&hello::of(7, rank, 0, 0, &secret(0))).unwrap();
            let mut answer = [0; SECRET_LEN];
            stream.read_exact(&mut answer).expect("an answer to the hello");
            assert_eq!(answer, secret(rank));
            stream
        };
        thread::scope(|scope| {
            let accepting = scope.spawn(|| connecting.run());
            drop(call(1));
            let (again, _other) = (call(1), call(2));
            let connections = accepting.join().unwrap().unwrap();
            again.write(b"here").unwrap();
            let mut read = [0; 4];
            assert_eq!(connections[0].read(&mut read).unwrap(), 4);
            assert_eq!(&read, b"here");
        });
    }
}
