//! Connections of the controller: how many there may be, and how long one may do nothing.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, Sleep, sleep};
use tokio_stream::Stream;

use crate::limits::{CONNECTIONS_MAX, DESCRIPTORS_RESERVED};

/// Limits of connections.
#[derive(Debug, Clone, Copy)]
pub(super) struct ConnectionLimits {
    /// Of all peers.
    pub all: usize,
    /// Of one IP address.
    pub per_address: usize,
    /// A connection without a call for this long is closed.
    pub idle: Duration,
}

impl ConnectionLimits {
    /// As many as the system's limit of open files allows, which is raised as far as the process may. One address gets
    /// half, so that no address can shut out the others.
    pub fn of_system() -> ConnectionLimits {
        let all = open_files().saturating_sub(DESCRIPTORS_RESERVED).clamp(2, CONNECTIONS_MAX);
        ConnectionLimits { all, per_address: all / 2, idle: IDLE }
    }
}

/// The open connections.
#[derive(Debug, Clone)]
pub(super) struct Connections(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    limits: ConnectionLimits,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    by_peer: HashMap<SocketAddr, Arc<Mutex<Activity>>>,
    by_address: HashMap<IpAddr, usize>,
    /// When the refusal of a connection was last logged.
    logged: Option<Instant>,
}

/// What a connection does.
#[derive(Debug)]
struct Activity {
    /// Calls in progress, streams among them.
    calls: usize,
    /// When the connection was opened, or its last call ended.
    since: Instant,
    /// Whether the peer's system has closed or reset it.
    hung_up: bool,
}

/// A call in progress; its connection is not idle.
#[derive(Debug)]
pub(super) struct Call(Option<Arc<Mutex<Activity>>>);

/// The connection of a call, for whoever must know how it ended.
#[derive(Debug, Clone)]
pub(super) struct Line(Arc<Mutex<Activity>>);

impl Connections {
    pub fn new(limits: ConnectionLimits) -> Connections {
        Connections(Arc::new(Shared { limits, open: Mutex::default() }))
    }

    /// Accepts connections within the limits.
    pub fn accept(&self, listener: TcpListener) -> Incoming {
        Incoming { listener, connections: self.clone(), pause: None, logged: None }
    }

    /// Marks the connection of a peer as busy until the result is dropped.
    pub fn begin_call(&self, peer: Option<SocketAddr>) -> Call {
        let activity = peer.and_then(|peer| lock(&self.0.open).by_peer.get(&peer).cloned());
        if let Some(activity) = &activity {
            lock(activity).calls += 1;
        }
        Call(activity)
    }

    /// The connection, unless there are too many; a refused one is closed.
    fn admit(&self, stream: TcpStream, peer: SocketAddr) -> Option<Connection> {
        let limits = self.0.limits;
        let mut open = lock(&self.0.open);
        let of_address = open.by_address.get(&peer.ip()).copied().unwrap_or_default();
        let all = open.by_peer.len();
        if all >= limits.all || of_address >= limits.per_address {
            if is_due(&mut open.logged) {
                let address = peer.ip();
                tracing::warn!(%address, of_address, all, ?limits, "refused a connection: too many are open");
            }
            return None;
        }
        let activity =
            Arc::new(Mutex::new(Activity { calls: 0, since: Instant::now(), hung_up: false }));
        open.by_peer.insert(peer, activity.clone());
        *open.by_address.entry(peer.ip()).or_default() += 1;
        drop(open);
        // A connection without it works, though more slowly.
        let _ = stream.set_nodelay(true);
        let timer = Box::pin(sleep(limits.idle));
        Some(Connection { stream, peer, activity, timer, shared: self.0.clone() })
    }
}

impl Call {
    /// The call's connection, if it is known.
    pub fn line(&self) -> Option<Line> {
        self.0.clone().map(Line)
    }
}

impl Line {
    /// Whether the peer's system has closed or reset the connection. It does so when the peer's process dies; it does
    /// not when the network fails.
    pub fn has_hung_up(&self) -> bool {
        lock(&self.0).hung_up
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if let Some(activity) = &self.0 {
            let mut activity = lock(activity);
            activity.calls -= 1;
            activity.since = Instant::now();
        }
    }
}

/// The stream of accepted connections.
#[derive(Debug)]
pub(super) struct Incoming {
    listener: TcpListener,
    connections: Connections,
    /// After an error that lasts, such as a lack of descriptors, accepting pauses: the attempts would take a core.
    pause: Option<Pin<Box<Sleep>>>,
    logged: Option<Instant>,
}

impl Stream for Incoming {
    type Item = io::Result<Connection>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(pause) = &mut self.pause {
                ready!(pause.as_mut().poll(cx));
                self.pause = None;
            }
            match ready!(self.listener.poll_accept(cx)) {
                Ok((stream, peer)) => {
                    if let Some(connection) = self.connections.admit(stream, peer) {
                        return Poll::Ready(Some(Ok(connection)));
                    }
                }
                Err(error) => self.failed(&error),
            }
        }
    }
}

impl Incoming {
    fn failed(&mut self, error: &io::Error) {
        if !is_of_connection(error) {
            self.pause = Some(Box::pin(sleep(PAUSE)));
            if is_due(&mut self.logged) {
                tracing::error!(%error, "cannot accept connections; is the limit of open files too low (ulimit -n)?");
            }
        }
    }
}

/// A connection that counts while it is open.
#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
    peer: SocketAddr,
    activity: Arc<Mutex<Activity>>,
    timer: Pin<Box<Sleep>>,
    shared: Arc<Shared>,
}

impl Connection {
    /// Address of the peer.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    fn note(&self, hung_up: bool) {
        if hung_up {
            lock(&self.activity).hung_up = true;
        }
    }

    /// An error when the connection has been idle for too long.
    fn poll_idle(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        let idle = self.shared.limits.idle;
        loop {
            ready!(self.timer.as_mut().poll(cx));
            let activity = lock(&self.activity);
            let since = if activity.calls > 0 { Instant::now() } else { activity.since };
            drop(activity);
            if since.elapsed() >= idle {
                return Poll::Ready(io::ErrorKind::TimedOut.into());
            }
            self.timer.as_mut().reset(since + idle);
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let mut open = lock(&self.shared.open);
        // The peer may have reused its port already.
        if open.by_peer.get(&self.peer).is_some_and(|known| Arc::ptr_eq(known, &self.activity)) {
            open.by_peer.remove(&self.peer);
        }
        let address = self.peer.ip();
        if let Some(count) = open.by_address.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                open.by_address.remove(&address);
            }
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.remaining();
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        let hung_up = match &read {
            Poll::Pending => return self.poll_idle(cx).map(Err),
            Poll::Ready(Ok(())) => before > 0 && buffer.remaining() == before,
            Poll::Ready(Err(error)) => is_hang_up(error),
        };
        self.note(hung_up);
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.note(has_failed(&written));
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.note(has_failed(&written));
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Whether the peer's system has closed the connection, so that writing fails.
fn has_failed(written: &Poll<io::Result<usize>>) -> bool {
    matches!(written, Poll::Ready(Err(error)) if is_hang_up(error))
}

fn is_hang_up(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe)
}

/// Whether an error of accepting is about one connection, and the next attempt can succeed at once.
fn is_of_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}

/// How many files the process may open, after raising the limit as far as allowed.
fn open_files() -> usize {
    let wanted = (CONNECTIONS_MAX + DESCRIPTORS_RESERVED) as u64;
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = maximum.map_or(wanted, |maximum| maximum.min(wanted));
    let unlimited = current.is_none_or(|current| current >= wanted);
    let limit = Rlimit { current: Some(raised), maximum };
    if unlimited || setrlimit(Resource::Nofile, limit).is_ok() {
        return raised as usize;
    }
    current.map_or(usize::MAX, |current| current as usize)
}

/// Whether to log again, at most once in [`LOG_INTERVAL`].
fn is_due(logged: &mut Option<Instant>) -> bool {
    let due = logged.is_none_or(|at| at.elapsed() >= LOG_INTERVAL);
    if due {
        *logged = Some(Instant::now());
    }
    due
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Clients begin a call as soon as they are connected.
const IDLE: Duration = Duration::from_secs(10);
/// How long accepting pauses when the system lacks descriptors or memory.
const PAUSE: Duration = Duration::from_millis(100);
const LOG_INTERVAL: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;
    use tokio::net::TcpSocket;
    use tokio_stream::StreamExt;

    use super::*;

    async fn connect(from: &str, to: SocketAddr) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(format!("{from}:0").parse().unwrap()).unwrap();
        socket.connect(to).await.unwrap()
    }

    async fn listener() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address)
    }

    #[tokio::test]
    async fn one_address_does_not_shut_out_the_others() {
        let (listener, address) = listener().await;
        let idle = Duration::from_secs(600);
        let connections = Connections::new(ConnectionLimits { all: 3, per_address: 2, idle });
        let mut incoming = connections.accept(listener);
        let _peers = [connect("127.0.0.1", address).await, connect("127.0.0.1", address).await];
        let first = incoming.next().await.unwrap().unwrap();
        let _second = incoming.next().await.unwrap().unwrap();
        let mut third = connect("127.0.0.1", address).await;
        let _other = connect("127.0.0.2", address).await;
        let other = incoming.next().await.unwrap().unwrap();
        assert_eq!(other.peer.ip(), "127.0.0.2".parse::<IpAddr>().unwrap());
        assert_eq!(third.read(&mut [0]).await.unwrap_or(0), 0);
        // A place is free when its connection ends.
        drop(first);
        let _again = connect("127.0.0.1", address).await;
        let again = incoming.next().await.unwrap().unwrap();
        assert_eq!(again.peer.ip(), "127.0.0.1".parse::<IpAddr>().unwrap());
        drop((other, again));
        assert_eq!(lock(&connections.0.open).by_address.len(), 1);
    }

    #[tokio::test]
    async fn a_connection_without_calls_is_closed() {
        let (listener, address) = listener().await;
        let idle = Duration::from_millis(20);
        let connections = Connections::new(ConnectionLimits { all: 2, per_address: 2, idle });
        let mut incoming = connections.accept(listener);
        let _silent = connect("127.0.0.1", address).await;
        let mut accepted = incoming.next().await.unwrap().unwrap();
        let call = connections.begin_call(Some(accepted.peer));
        let read = accepted.read_u8();
        tokio::pin!(read);
        // It outlives the limit while a call is in progress.
        assert!(tokio::time::timeout(4 * idle, &mut read).await.is_err());
        drop(call);
        assert_eq!(read.await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        drop(accepted);
        assert!(lock(&connections.0.open).by_peer.is_empty());
    }

    #[test]
    fn accepting_pauses_without_descriptors() {
        let error = |code| io::Error::from_raw_os_error(code);
        let (emfile, enfile, aborted) = (24, 23, 103);
        assert!(!is_of_connection(&error(emfile)) && !is_of_connection(&error(enfile)));
        assert!(is_of_connection(&error(aborted)));
    }
}
