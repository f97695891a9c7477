//! How two ranks connect: the receiver listens, the sender calls and shows the token of the receiver's handle.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use netsum_collective::rendezvous::{TOKEN_LEN, Token};
use netsum_identity::Credentials;
use netsum_nccl_core::{Failure, MeetingPlace, REMOTE_ERROR, SYSTEM_ERROR, Settings};
use parking_lot::Mutex;

use super::endpoint::Endpoint;
use super::line::{Line, accepted, called, calling, is_connected};

/// What both ends take from the environment.
struct Terms {
    credentials: Option<Arc<Credentials>>,
    patience: Duration,
}

impl Terms {
    fn from_environment() -> Result<Terms, Failure> {
        let Settings { timeout, options, .. } = Settings::from_environment()?;
        let credentials = options.credentials.as_deref().map(Credentials::open).transpose();
        let credentials = credentials.map_err(|error| Failure::argument(error.to_string()))?;
        Ok(Terms { credentials: credentials.map(Arc::new), patience: timeout })
    }
}

/// A receiver that waits for its sender.
pub(crate) struct PointListener {
    listener: TcpListener,
    token: Token,
    terms: Terms,
    greeting: Mutex<Vec<Greeting>>,
}

/// A connection whose token has not been read.
struct Greeting {
    line: Box<dyn Line>,
    peer: SocketAddr,
    hello: [u8; HELLO_LEN],
    read: usize,
    until: Instant,
}

impl PointListener {
    /// Listens at `address`; returns the place for the sender.
    pub(crate) fn open(address: IpAddr) -> Result<(PointListener, MeetingPlace), Failure> {
        let system = |error: io::Error| {
            let words = format!("cannot listen at {address}: {error}");
            Failure { code: SYSTEM_ERROR, words }
        };
        let listener = TcpListener::bind((address, 0)).map_err(system)?;
        listener.set_nonblocking(true).map_err(system)?;
        let place = MeetingPlace::new(listener.local_addr().map_err(system)?)?;
        let (token, terms) = (*place.token(), Terms::from_environment()?);
        Ok((PointListener { listener, token, terms, greeting: Mutex::default() }, place))
    }

    /// The connection of the sender, if it is there.
    pub(crate) fn accept(&self) -> Result<Option<Endpoint>, Failure> {
        let mut greeting = self.greeting.lock();
        // Beyond the bound, connections wait in the kernel until those that say nothing are given up.
        while greeting.len() < GREETING_MAX {
            match self.listener.accept() {
                Ok((stream, peer)) => self.take(stream, peer, &mut greeting),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                // A connection that ended before it was accepted; others may wait.
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    let words = format!("cannot accept connections: {error}");
                    return Err(Failure { code: SYSTEM_ERROR, words });
                }
            }
        }
        let mut known = None;
        let now = Instant::now();
        let taken = std::mem::take(&mut *greeting);
        for mut stranger in taken {
            match stranger.greet() {
                Ok(true) if known.is_none() && stranger.knows(&self.token) => {
                    known = Some(stranger)
                }
                Ok(false) if now < stranger.until => greeting.push(stranger),
                // Strangers, and those who say nothing.
                Ok(_) | Err(_) => {}
            }
        }
        Ok(known.map(|Greeting { line, peer, .. }| Endpoint::receiver(line, peer)))
    }

    fn take(&self, stream: TcpStream, peer: SocketAddr, greeting: &mut Vec<Greeting>) {
        let Terms { credentials, patience } = &self.terms;
        // One that fails here is gone.
        if let Ok(line) = accepted(stream, credentials.as_ref(), *patience) {
            let until = Instant::now() + HELLO;
            greeting.push(Greeting { line, peer, hello: [0; HELLO_LEN], read: 0, until });
        }
    }
}

impl Greeting {
    /// Reads the hello; whether it is complete.
    fn greet(&mut self) -> io::Result<bool> {
        while self.read < HELLO_LEN {
            match self.line.read(&mut self.hello[self.read..]) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(read) => self.read += read,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    fn knows(&self, token: &Token) -> bool {
        self.hello == hello(token)
    }
}

/// A sender that is not connected yet.
pub(crate) struct Connecting {
    to: SocketAddr,
    hello: [u8; HELLO_LEN],
    terms: Terms,
    stage: Mutex<Stage>,
}

enum Stage {
    Calling(TcpStream),
    Greeting(Box<dyn Line>, usize),
    Ended,
}

impl Connecting {
    pub(crate) fn start(place: &MeetingPlace) -> Result<Connecting, Failure> {
        let (terms, to) = (Terms::from_environment()?, place.address());
        let stream = calling(to, terms.patience).map_err(|error| unreachable(to, &error))?;
        let (hello, stage) = (hello(place.token()), Mutex::new(Stage::Calling(stream)));
        Ok(Connecting { to, hello, terms, stage })
    }

    /// The connection, once it is made.
    pub(crate) fn advance(&self) -> Result<Option<Endpoint>, Failure> {
        let mut stage = self.stage.lock();
        let next = self.next(std::mem::replace(&mut *stage, Stage::Ended));
        match next.map_err(|error| unreachable(self.to, &error))? {
            Ok(line) => Ok(Some(Endpoint::sender(line, self.to))),
            Err(waiting) => {
                *stage = waiting;
                Ok(None)
            }
        }
    }

    fn next(&self, stage: Stage) -> io::Result<Result<Box<dyn Line>, Stage>> {
        let (mut line, mut wrote) = match stage {
            Stage::Calling(stream) if !is_connected(&stream)? => {
                return Ok(Err(Stage::Calling(stream)));
            }
            Stage::Calling(stream) => (called(stream, self.terms.credentials.as_ref())?, 0),
            Stage::Greeting(line, wrote) => (line, wrote),
            Stage::Ended => return Err(ErrorKind::NotConnected.into()),
        };
        while wrote < HELLO_LEN {
            match line.write(&self.hello[wrote..]) {
                Ok(more) => wrote += more,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    return Ok(Err(Stage::Greeting(line, wrote)));
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(if line.drain()? { Ok(line) } else { Err(Stage::Greeting(line, wrote)) })
    }
}

fn unreachable(to: SocketAddr, error: &io::Error) -> Failure {
    Failure { code: REMOTE_ERROR, words: format!("cannot connect to {to}: {error}") }
}

fn hello(token: &Token) -> [u8; HELLO_LEN] {
    let mut hello = [0; HELLO_LEN];
    hello[..MAGIC.len()].copy_from_slice(MAGIC);
    hello[MAGIC.len()..].copy_from_slice(token);
    hello
}

const MAGIC: &[u8; 8] = b"netsum-p";
const HELLO_LEN: usize = MAGIC.len() + TOKEN_LEN;
/// Time for a hello.
const HELLO: Duration = Duration::from_secs(10);
/// Bounds the memory that strangers take.
const GREETING_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    /// More silent strangers than may be greeted at once do not cost the sender its connection.
    #[test]
    fn a_sender_behind_many_strangers_gets_in() {
        let (receiver, place) = PointListener::open(IpAddr::from([127, 0, 0, 1])).unwrap();
        let strangers: Vec<TcpStream> =
            (0..GREETING_MAX + 5).map(|_| TcpStream::connect(place.address()).unwrap()).collect();
        assert!(receiver.accept().unwrap().is_none());
        let sender = Connecting::start(&place).unwrap();
        while sender.advance().unwrap().is_none() {
            assert!(receiver.accept().unwrap().is_none(), "strangers still have all places");
        }
        assert!(receiver.accept().unwrap().is_none(), "strangers still have all places");
        drop(strangers);
        let until = Instant::now() + Duration::from_secs(60);
        while receiver.accept().unwrap().is_none() {
            assert!(Instant::now() < until, "the sender does not get in");
            std::thread::yield_now();
        }
    }
}
