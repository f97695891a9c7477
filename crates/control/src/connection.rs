//! A connection of the control plane, with or without TLS, at either end.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use netsum_identity::{Credentials, PROTOCOL, explain, server_name};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};

/// A connection `S`, or TLS on it.
#[derive(Debug)]
pub enum Secured<S> {
    /// Neither encrypted nor authenticated.
    Plain(S),
    /// TLS 1.3; both sides have presented certificates.
    Tls(Box<TlsStream<S>>),
}

impl Secured<TcpStream> {
    /// Connects to the controller and verifies that it is one.
    pub(crate) async fn connect(address: &str, credentials: &Credentials) -> io::Result<Self> {
        let socket = TcpStream::connect(address).await?;
        socket.set_nodelay(true)?;
        let connector = TlsConnector::from(credentials.client());
        let stream = connector.connect(server_name(), socket).await.map_err(explained)?;
        Ok(Secured::Tls(Box::new(stream.into())))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Secured<S> {
    /// Accepts a client and verifies that it belongs to the fabric. The error is a sentence.
    pub(crate) async fn accept(connection: S, config: Arc<ServerConfig>) -> Result<Self, String> {
        let is_grpc = config.alpn_protocols.iter().any(|protocol| protocol == PROTOCOL);
        let acceptor = TlsAcceptor::from(config);
        match acceptor.accept(connection).into_fallible().await {
            // A client that names no protocol may speak any (RFC 9113, section 3.2).
            Ok(stream) if is_grpc && stream.get_ref().1.alpn_protocol() != Some(PROTOCOL) => {
                end(stream.into_inner().0).await;
                Err(NO_HTTP2.to_owned())
            }
            Ok(stream) => Ok(Secured::Tls(Box::new(stream.into()))),
            Err((error, socket)) => {
                end(socket).await;
                Err(explain(&error))
            }
        }
    }

    /// The connection beneath.
    pub(crate) fn beneath(&self) -> &S {
        match self {
            Secured::Plain(connection) => connection,
            Secured::Tls(stream) => stream.get_ref().0,
        }
    }
}

/// Closes a refused connection such that its peer reads the reason: bytes that nobody reads would reset it before.
async fn end(mut socket: impl AsyncRead + AsyncWrite + Unpin) {
    let ended = async {
        socket.shutdown().await?;
        tokio::io::copy(&mut socket, &mut tokio::io::sink()).await
    };
    let _ = tokio::time::timeout(END_TIMEOUT, ended).await;
}

/// A peer that is still there has read the reason within a round trip.
const END_TIMEOUT: Duration = Duration::from_secs(1);

/// The error with a sentence for its text. HTTP/2 keeps the text only, so the text says that it is one of TLS.
fn explained(error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{TLS_FAILED}{}", explain(&error)))
}

const NO_HTTP2: &str = "it does not speak HTTP/2; use netsum's clients, or others of gRPC";
/// The beginning of the texts of errors of TLS.
pub(crate) const TLS_FAILED: &str = "no secure connection: ";

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Secured<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Secured::Plain(socket) => Pin::new(socket).poll_read(context, buffer),
            // With TLS 1.3 a client learns from its first read that the controller refused it.
            Secured::Tls(stream) => {
                Pin::new(stream).poll_read(context, buffer).map_err(explained_tls)
            }
        }
    }
}

/// As [`explained`], for errors of TLS only: others are those of the network.
fn explained_tls(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::InvalidData => explained(error),
        _ => error,
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Secured<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Secured::Plain(socket) => Pin::new(socket).poll_write(context, bytes),
            Secured::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Secured::Plain(socket) => Pin::new(socket).poll_flush(context),
            Secured::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Secured::Plain(socket) => Pin::new(socket).poll_shutdown(context),
            Secured::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Secured::Plain(socket) => Pin::new(socket).poll_write_vectored(context, parts),
            Secured::Tls(stream) => Pin::new(stream).poll_write_vectored(context, parts),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Secured::Plain(socket) => socket.is_write_vectored(),
            Secured::Tls(stream) => stream.is_write_vectored(),
        }
    }
}
