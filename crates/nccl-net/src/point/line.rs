//! A connection that never blocks, plain or TLS.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use netsum_identity::{Credentials, server_name};
use rustls::{ClientConnection, ConnectionCommon, ServerConnection, SideData, StreamOwned};
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};

/// Reads and writes fail with `WouldBlock` instead of waiting.
pub(super) trait Line: Read + Write + Send {
    /// Hands the socket what was written; whether nothing is left.
    fn drain(&mut self) -> io::Result<bool>;
}

impl Line for TcpStream {
    fn drain(&mut self) -> io::Result<bool> {
        Ok(true)
    }
}

impl<C, S> Line for StreamOwned<C, TcpStream>
where
    C: std::ops::DerefMut<Target = ConnectionCommon<S>> + Send,
    S: SideData,
{
    fn drain(&mut self) -> io::Result<bool> {
        while self.conn.wants_write() {
            match self.conn.write_tls(&mut self.sock) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

/// The receiver's end of an accepted connection.
pub(super) fn accepted(
    stream: TcpStream,
    credentials: Option<&Arc<Credentials>>,
    patience: Duration,
) -> io::Result<Box<dyn Line>> {
    stream.set_nonblocking(true)?;
    tune(SockRef::from(&stream), patience)?;
    let Some(credentials) = credentials else { return Ok(Box::new(stream)) };
    let session = ServerConnection::new(credentials.rank_server()).map_err(io::Error::other)?;
    Ok(Box::new(StreamOwned::new(session, stream)))
}

/// A socket that has begun to connect.
pub(super) fn calling(to: SocketAddr, patience: Duration) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    tune(SockRef::from(&socket), patience)?;
    match socket.connect(&to.into()) {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::WouldBlock => {}
        // EINPROGRESS has no kind of its own.
        Err(error) if error.raw_os_error() == Some(EINPROGRESS) => {}
        Err(error) => return Err(error),
    }
    Ok(socket.into())
}

/// Whether a socket that has begun to connect is connected.
pub(super) fn is_connected(stream: &TcpStream) -> io::Result<bool> {
    if let Some(error) = stream.take_error()? {
        return Err(error);
    }
    match stream.peer_addr() {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotConnected => Ok(false),
        Err(error) => Err(error),
    }
}

/// The sender's end of a connection. The handshake is part of the first writes.
pub(super) fn called(
    stream: TcpStream,
    credentials: Option<&Arc<Credentials>>,
) -> io::Result<Box<dyn Line>> {
    let Some(credentials) = credentials else { return Ok(Box::new(stream)) };
    let session = ClientConnection::new(credentials.rank_client(), server_name());
    Ok(Box::new(StreamOwned::new(session.map_err(io::Error::other)?, stream)))
}

/// A machine that is gone without a word is noticed after `patience`.
fn tune(socket: SockRef<'_>, patience: Duration) -> io::Result<()> {
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_user_timeout(Some(patience))?;
    let interval = (patience / PROBES).max(Duration::from_secs(1));
    let keepalive = TcpKeepalive::new().with_time(interval).with_interval(interval);
    socket.set_tcp_keepalive(&keepalive.with_retries(PROBES))
}

const PROBES: u32 = 4;
/// Of Linux.
const EINPROGRESS: i32 = 115;
