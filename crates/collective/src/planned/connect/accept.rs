//! The lower rank of a pair: listens, and accepts connections with a valid hello.

use std::io::{self, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use netsum_net::stream::{Connection, SharedMemory};

use super::Connecting;
use super::hello::{self, HELLO};
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
            let room = CALLERS_MAX.saturating_sub(callers.len());
            let tcp = std::iter::from_fn(|| self.ports.tcp.accept().ok().map(|(tcp, _)| tcp));
            callers.extend(tcp.take(room).filter_map(Caller::tcp));
            let accept_unix = || self.ports.unix.as_ref()?.accept().ok().map(|(unix, _)| unix);
            for unix in std::iter::from_fn(accept_unix).take(CALLERS_MAX) {
                // Local: a process that connects to this port's name sends its hello immediately.
                if let Some((hello, memory, unix)) = take_memory(unix, self.timeout) {
                    self.admit(found, &hello, unix, |_, _| Ok(Arc::new(memory)));
                }
            }
            let mut waiting = Vec::new();
            for mut caller in callers {
                match caller.read_hello() {
                    HelloProgress::Complete => {
                        let stream = caller.stream;
                        let Ok(answering) = stream.try_clone() else { continue };
                        self.admit(found, &caller.hello, answering, |this, peer_link| {
                            stream.set_nonblocking(false)?;
                            this.prepare(&stream, peer_link)?;
                            Ok(Arc::new(stream))
                        });
                    }
                    HelloProgress::Partial if caller.since.elapsed() < HELLO_TIMEOUT => {
                        waiting.push(caller)
                    }
                    HelloProgress::Partial | HelloProgress::Closed => {}
                }
            }
            callers = waiting;
            thread::sleep(ACCEPT_TICK);
        }
    }

    /// Assigns a caller with a valid hello to the peer link that waits for it.
    fn admit(
        &self,
        found: &mut [Option<Arc<dyn Connection>>],
        hello: &[u8; HELLO],
        mut answering: impl Write,
        connection: impl FnOnce(&Self, &LinkKey) -> io::Result<Arc<dyn Connection>>,
    ) {
        let own = &self.ports.address.secret;
        let expected = |peer_link: &LinkKey| {
            hello::of(self.epoch, peer_link.peer, self.rank, self.index(peer_link), own)
        };
        let wanted = |(place, peer_link): &(usize, &LinkKey)| {
            peer_link.peer > self.rank && found[*place].is_none() && *hello == expected(peer_link)
        };
        let Some((place, peer_link)) = self.peer_links.iter().enumerate().find(wanted) else {
            return;
        };
        let Some(peer) = self.peers.get(&peer_link.peer) else { return };
        if answering.write_all(&peer.secret).is_ok() {
            // If the connection breaks at once, the peer connects again.
            found[place] = connection(self, peer_link).ok();
        }
    }
}

/// A TCP connection whose hello is incomplete.
struct Caller {
    stream: TcpStream,
    hello: [u8; HELLO],
    received: usize,
    since: Instant,
}

enum HelloProgress {
    Complete,
    Partial,
    Closed,
}

impl Caller {
    fn tcp(stream: TcpStream) -> Option<Caller> {
        stream.set_nonblocking(true).ok()?;
        Some(Caller { stream, hello: [0; HELLO], received: 0, since: Instant::now() })
    }

    fn read_hello(&mut self) -> HelloProgress {
        match self.stream.read(&mut self.hello[self.received..]) {
            Ok(0) => return HelloProgress::Closed,
            Ok(count) => self.received += count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return HelloProgress::Closed,
        }
        if self.received == HELLO { HelloProgress::Complete } else { HelloProgress::Partial }
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
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// The hello is sent together with the memory, in the call after connecting.
const LOCAL_HELLO_TIMEOUT: Duration = Duration::from_millis(200);
/// Maximum number of connections with an incomplete hello.
const CALLERS_MAX: usize = 64;
