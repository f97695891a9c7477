//! TLS configurations, the identity of a connection's peer, and sentences for failures.

use std::error::Error;
use std::io;
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::NoServerSessionStorage;
use rustls::version::TLS13;
use rustls::{AlertDescription, CertificateError, ClientConfig, CommonState, ServerConfig};

use crate::certificate::Facts;
use crate::identity::Identity;
use crate::verifier::{Between, Trust, Verifier};

/// The protocol of connections to the controller (ALPN, RFC 7301): HTTP/2.
pub const PROTOCOL: &[u8] = b"h2";

/// The protocol of connections between ranks (ALPN, RFC 7301).
pub const RANK_PROTOCOL: &[u8] = b"netsum-mesh/1";

/// The protocol of pages of metrics (ALPN, RFC 7301): HTTP/1.1.
const PAGE_PROTOCOL: &[u8] = b"http/1.1";

/// The name by which a TLS client addresses the server. It is not sent, and not compared: the server's identity is.
pub fn server_name() -> ServerName<'static> {
    ServerName::try_from("controller.netsum.invalid").expect("it is a DNS name")
}

/// The identity of the peer, whose certificate the handshake has verified. `None`: the handshake has not ended.
pub fn peer_identity(connection: &CommonState) -> Option<Identity> {
    let certificate = connection.peer_certificates()?.first()?;
    Facts::of(certificate).ok()?.identity().ok()
}

/// Why a handshake or a connection failed, as a sentence with a remedy where there is one.
pub fn explain(error: &(dyn Error + 'static)) -> String {
    if let Some(error) = tls_error(error) {
        return explain_tls(error);
    }
    match innermost_io(error).map(io::Error::kind) {
        Some(io::ErrorKind::UnexpectedEof) => {
            "the connection was closed during the handshake; has the other side credentials, too?"
                .to_owned()
        }
        _ => innermost(error),
    }
}

/// What a process presents: its certificate with those between it and its authority, and its private key.
#[derive(Debug)]
pub(crate) struct Presented {
    pub chain: Vec<CertificateDer<'static>>,
    pub key: PrivateKeyDer<'static>,
}

pub(crate) fn server(
    trust: &Arc<Trust>,
    between: Between,
    presented: &Presented,
) -> Result<ServerConfig, rustls::Error> {
    let mut config = ServerConfig::builder_with_provider(provider(between))
        .with_protocol_versions(&[&TLS13])?
        .with_client_cert_verifier(Arc::new(Verifier::new(trust.clone(), between)))
        .with_single_cert(presented.chain.clone(), presented.key.clone_key())?;
    config.alpn_protocols = vec![protocol(between).to_vec()];
    // A resumed session would skip the verification of the peer.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

pub(crate) fn client(
    trust: &Arc<Trust>,
    between: Between,
    presented: &Presented,
) -> Result<ClientConfig, rustls::Error> {
    let mut config = ClientConfig::builder_with_provider(provider(between))
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Verifier::new(trust.clone(), between)))
        .with_client_auth_cert(presented.chain.clone(), presented.key.clone_key())?;
    config.alpn_protocols = vec![protocol(between).to_vec()];
    config.resumption = Resumption::disabled();
    config.enable_sni = false;
    Ok(config)
}

fn protocol(between: Between) -> &'static [u8] {
    match between {
        Between::ControllerAndClients => PROTOCOL,
        Between::Ranks => RANK_PROTOCOL,
        Between::PageAndReaders => PAGE_PROTOCOL,
    }
}

/// Ranks exchange gradients, so they prefer the fastest of the ciphers, all of which are good for decades.
fn provider(between: Between) -> Arc<CryptoProvider> {
    use rustls::CipherSuite::TLS13_AES_128_GCM_SHA256 as FASTEST;
    let mut provider = rustls::crypto::ring::default_provider();
    if between == Between::Ranks {
        provider.cipher_suites.sort_by_key(|suite| suite.suite() != FASTEST);
    }
    Arc::new(provider)
}

fn explain_tls(error: &rustls::Error) -> String {
    use rustls::Error as E;
    match error {
        E::InvalidCertificate(reason) => format!("its certificate is refused: {}", explain_certificate(reason)),
        E::AlertReceived(alert) => explain_alert(*alert),
        E::NoCertificatesPresented => {
            "it presented no certificate; give it credentials by --credentials or NETSUM_CREDENTIALS".to_owned()
        }
        E::NoApplicationProtocol => {
            "it does not speak HTTP/2; use netsum's clients, or others of gRPC".to_owned()
        }
        E::PeerIncompatible(_) => "it does not speak TLS 1.3; update it".to_owned(),
        E::InvalidMessage(_) => {
            "it does not speak TLS; give it credentials by --credentials or NETSUM_CREDENTIALS".to_owned()
        }
        other => other.to_string(),
    }
}

fn explain_certificate(reason: &CertificateError) -> String {
    use CertificateError as C;
    match reason {
        C::Expired | C::ExpiredContext { .. } => {
            "it has expired; renew it by `netsum ca renew`".to_owned()
        }
        C::NotValidYet | C::NotValidYetContext { .. } => {
            "it is not valid yet; compare the clocks of both machines".to_owned()
        }
        C::Revoked => "it is revoked; issue a new one if its owner may return".to_owned(),
        C::UnknownIssuer => {
            "ca.pem does not have its authority; use certificates of one authority on both sides"
                .to_owned()
        }
        C::ExpiredRevocationList | C::ExpiredRevocationListContext { .. } => {
            "this side's ca.crl is out of date; replace it by the authority's newest".to_owned()
        }
        C::UnknownRevocationStatus => {
            "this side's ca.crl has no list of its authority; add the authority's list".to_owned()
        }
        C::InvalidPurpose | C::InvalidPurposeContext { .. } => {
            "it is for the other side of a connection: only a controller's certificate can serve"
                .to_owned()
        }
        C::Other(other) => other.0.to_string(),
        other => other.to_string(),
    }
}

/// What the other side says about this side's certificate (RFC 8446, section 6.2).
fn explain_alert(alert: AlertDescription) -> String {
    use AlertDescription as A;
    let what = match alert {
        A::CertificateExpired => "it has expired, or is not valid yet by the other side's clock",
        A::CertificateRevoked => "it is revoked; ask for a new one",
        A::UnknownCA => {
            "the other side does not trust its authority; use certificates of one authority"
        }
        A::CertificateRequired => {
            "there is none; give credentials by --credentials or NETSUM_CREDENTIALS"
        }
        A::ProtocolVersion => return "the other side demands TLS 1.3".to_owned(),
        A::CertificateUnknown | A::BadCertificate | A::UnsupportedCertificate | A::AccessDenied => {
            "see the other side's log for the reason"
        }
        other => return format!("the other side ended the handshake: {other:?}"),
    };
    format!("the other side refused this side's certificate: {what}")
}

/// The error of TLS beneath others, some of which are wrapped in errors of I/O.
fn tls_error<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a rustls::Error> {
    chain(error).find_map(|error| {
        let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        error.downcast_ref().or_else(|| inner.and_then(|inner| inner.downcast_ref()))
    })
}

fn innermost_io<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a io::Error> {
    chain(error).filter_map(|error| error.downcast_ref()).last()
}

fn innermost(error: &(dyn Error + 'static)) -> String {
    chain(error).last().map(ToString::to_string).unwrap_or_default()
}

fn chain<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |&error| error.source())
}
