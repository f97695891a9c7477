//! Ends open connections whose certificate is revoked, once the list is there.

use std::future::{Future, pending};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use netsum_identity::{Credentials, peer_identity};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;

use super::actor::AUDIT;
use super::connections::Connection;
use crate::connection::Secured;
use crate::security::Security;

/// News of revocation lists.
pub(super) struct Revocations(Option<News>);

#[derive(Clone)]
struct News {
    credentials: Arc<Credentials>,
    generation: watch::Receiver<u64>,
}

impl Revocations {
    /// Looks for changed files until the result and all its guards are gone, and warns before the own certificate ends.
    pub fn watch(security: &Security) -> Revocations {
        let Security::Tls(credentials) = security else { return Revocations(None) };
        let (changed, generation) = watch::channel(credentials.generation());
        tokio::spawn(look(credentials.clone(), changed));
        Revocations(Some(News { credentials: credentials.clone(), generation }))
    }

    /// For a new connection, whose handshake has not begun.
    pub fn guard(&self) -> Guard {
        let news = self.0.clone();
        Guard(news.map(|mut news| {
            news.generation.mark_unchanged();
            news
        }))
    }
}

async fn look(credentials: Arc<Credentials>, changed: watch::Sender<u64>) {
    while !changed.is_closed() {
        credentials.remind_of_end();
        let now = credentials.generation();
        changed.send_if_modified(|generation| std::mem::replace(generation, now) != now);
        tokio::time::sleep(LOOK).await;
    }
}

/// What a connection will know about revocations.
pub(super) struct Guard(Option<News>);

impl Guard {
    /// The connection, which fails when the certificate of its peer is revoked.
    pub fn over(self, secured: Secured<Connection>) -> Guarded {
        let revoked: Pin<Box<dyn Future<Output = ()> + Send>> = match (self.0, &secured) {
            (Some(news), Secured::Tls(stream)) => {
                let session = stream.get_ref().1;
                let chain = session.peer_certificates().unwrap_or_default();
                let chain = chain.iter().map(|certificate| certificate.clone().into_owned());
                let identity = peer_identity(session).map(|identity| identity.to_string());
                Box::pin(revocation(news, chain.collect(), identity.unwrap_or_default()))
            }
            _ => Box::pin(pending()),
        };
        Guarded { secured, revoked }
    }
}

/// Ends when the certificate is revoked.
async fn revocation(mut news: News, chain: Vec<Certificate>, identity: String) {
    while news.generation.changed().await.is_ok() {
        if news.credentials.is_revoked(&chain) {
            let (action, object, outcome) = ("session", "", "ended: the certificate is revoked");
            tracing::info!(target: AUDIT, identity, action, object, outcome);
            return;
        }
    }
    // The server ends, and its connections with it.
    pending().await
}

/// A connection that fails when the certificate of its peer is revoked.
pub(super) struct Guarded {
    secured: Secured<Connection>,
    revoked: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl Guarded {
    pub fn secured(&self) -> &Secured<Connection> {
        &self.secured
    }
}

impl AsyncRead for Guarded {
    /// The server always reads, so this wakes it up when the certificate is revoked.
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.revoked.as_mut().poll(context) {
            Poll::Ready(()) => {
                // A future that has ended is not polled again.
                self.revoked = Box::pin(pending());
                Poll::Ready(Err(io::Error::new(io::ErrorKind::PermissionDenied, REVOKED)))
            }
            Poll::Pending => Pin::new(&mut self.secured).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Guarded {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.secured).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.secured).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.secured).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.secured).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.secured.is_write_vectored()
    }
}

const REVOKED: &str = "the certificate of the peer is revoked";
/// How often files are looked at: a list takes effect within this time.
const LOOK: Duration = Duration::from_secs(1);

type Certificate = tokio_rustls::rustls::pki_types::CertificateDer<'static>;
