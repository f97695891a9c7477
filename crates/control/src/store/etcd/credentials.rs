//! The controller's credentials for an etcd cluster.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::version::TLS13;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use tonic::codegen::Service;
use tonic::codegen::http::Uri;

use crate::error::ControlError;

/// A certificate for clients of etcd, and the authority of its members. The files are read anew for every connection,
/// so they may be replaced.
#[derive(Debug, Clone)]
pub struct EtcdCredentials {
    folder: PathBuf,
    /// As they were when the controller started; used while the files cannot be.
    first: Arc<ClientConfig>,
}

impl EtcdCredentials {
    /// Reads `ca.pem`, `identity.pem` and `identity-key.pem` of a folder. Errors name the file.
    pub fn open(folder: &Path) -> Result<EtcdCredentials, ControlError> {
        let first = EtcdCredentials::read(folder)?;
        Ok(EtcdCredentials { folder: folder.to_owned(), first })
    }

    fn current(&self) -> Arc<ClientConfig> {
        EtcdCredentials::read(&self.folder).unwrap_or_else(|problem| {
            tracing::warn!(%problem, "the credentials for etcd that the controller started with stay in use");
            self.first.clone()
        })
    }

    fn read(folder: &Path) -> Result<Arc<ClientConfig>, ControlError> {
        let fail = |name: &str, problem: String| ControlError::Store {
            file: folder.join(name),
            problem: format!("{problem}; it must be a PEM file for etcd's clients"),
        };
        let certificates = |name: &str| {
            let read = CertificateDer::pem_file_iter(folder.join(name));
            let all = read.and_then(Iterator::collect::<Result<Vec<_>, _>>);
            all.map_err(|error| fail(name, error.to_string()))
        };
        let mut roots = RootCertStore::empty();
        for authority in certificates(AUTHORITY)? {
            roots.add(authority).map_err(|error| fail(AUTHORITY, error.to_string()))?;
        }
        let key = PrivateKeyDer::from_pem_file(folder.join(KEY))
            .map_err(|error| fail(KEY, error.to_string()))?;
        let mode = std::fs::metadata(folder.join(KEY)).map_or(0, |found| found.mode() & 0o777);
        if mode & 0o077 != 0 {
            let problem = format!("others may read it (mode {mode:o}): chmod 600 it");
            return Err(ControlError::Store { file: folder.join(KEY), problem });
        }
        let provider = Arc::new(ring::default_provider());
        let versions =
            ClientConfig::builder_with_provider(provider).with_protocol_versions(&[&TLS13]);
        let config = versions
            .map_err(|error| fail(CERTIFICATE, error.to_string()))?
            .with_root_certificates(roots)
            .with_client_auth_cert(certificates(CERTIFICATE)?, key);
        let mut config = config.map_err(|error| fail(CERTIFICATE, error.to_string()))?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Arc::new(config))
    }

    /// Opens connections to a member, whose certificate must name the host of its address.
    pub(super) fn connector(
        &self,
        endpoint: &str,
    ) -> impl Service<Uri, Response = TokioIo<TlsStream<TcpStream>>, Error = io::Error, Future: Send>
    + Send
    + 'static {
        let (endpoint, credentials) = (endpoint.to_owned(), self.clone());
        tower::service_fn(move |_| {
            let (endpoint, credentials) = (endpoint.clone(), credentials.clone());
            async move {
                let config = credentials.current();
                let host = endpoint.rsplit_once(':').map_or(&*endpoint, |(host, _)| host);
                let name = ServerName::try_from(host.trim_matches(['[', ']']).to_owned())
                    .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
                let socket = TcpStream::connect(&endpoint).await?;
                socket.set_nodelay(true)?;
                TlsConnector::from(config).connect(name, socket).await.map(TokioIo::new)
            }
        })
    }
}

const AUTHORITY: &str = "ca.pem";
const CERTIFICATE: &str = "identity.pem";
const KEY: &str = "identity-key.pem";
