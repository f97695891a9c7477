//! Verification of a peer's certificate: its chain and revocation by rustls-webpki, then its identity.

use std::sync::Arc;
use std::time::Duration;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::{
    CertificateDer, CertificateRevocationListDer, ServerName, TrustAnchor, UnixTime,
};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, OtherError, SignatureScheme,
};
use webpki::{
    CertRevocationList, EndEntityCert, ExpirationPolicy, KeyUsage, OwnedCertRevocationList,
    RevocationCheckDepth, RevocationOptionsBuilder, UnknownStatusPolicy,
};

use crate::certificate::{Facts, NoIdentity};
use crate::identity::{Identity, Role};

/// What a process trusts: one fabric, its authorities, and their revocation lists.
#[derive(Debug)]
pub(crate) struct Trust {
    fabric: String,
    authorities: Vec<TrustAnchor<'static>>,
    lists: Vec<CertRevocationList<'static>>,
    algorithms: WebPkiSupportedAlgorithms,
}

/// Verifies the peers of one kind of connection.
#[derive(Debug)]
pub(crate) struct Verifier {
    trust: Arc<Trust>,
    between: Between,
}

/// Whom a connection joins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Between {
    /// The controller, which serves, and any other process.
    ControllerAndClients,
    /// Two ranks of a job.
    Ranks,
    /// A process with a page of metrics, and any process that reads it.
    PageAndReaders,
}

/// An identity with a valid chain, which is nevertheless the wrong one.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WrongIdentity {
    #[error(transparent)]
    None(#[from] NoIdentity),
    #[error("it is {found}, of another fabric than {fabric:?}")]
    Fabric { found: Identity, fabric: String },
    #[error(
        "it is {found}, not the fabric's controller, and only a controller's certificate can serve; correct the \
         controller's address"
    )]
    NoController { found: Identity },
    #[error("it is {found}; workers have the certificate of a host, a tenant or an operator")]
    NoWorker { found: Identity },
}

impl Trust {
    /// Trusts no authority yet.
    pub fn new(fabric: &str) -> Trust {
        let algorithms = rustls::crypto::ring::default_provider().signature_verification_algorithms;
        let (authorities, lists) = (Vec::new(), Vec::new());
        Trust { fabric: fabric.to_owned(), authorities, lists, algorithms }
    }

    /// Trusts an authority. Error: what is wrong with its certificate.
    pub fn trust(&mut self, authority: &CertificateDer<'_>) -> Result<(), String> {
        let anchor = webpki::anchor_from_trusted_cert(authority)
            .map_err(|error| format!("a certificate in it is not an authority's: {error}"))?;
        self.authorities.push(anchor.to_owned());
        Ok(())
    }

    /// Respects a revocation list. Error: what is wrong with it.
    pub fn revoke(&mut self, list: &CertificateRevocationListDer<'_>) -> Result<(), String> {
        let list = OwnedCertRevocationList::from_der(list)
            .map_err(|error| format!("a revocation list in it is malformed: {error}"))?;
        self.lists.push(list.into());
        Ok(())
    }

    /// Verifies the certificate of a peer, which is used as `usage` says; returns the peer's identity.
    pub fn verify(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
        usage: KeyUsage,
    ) -> Result<Identity, rustls::Error> {
        let parsed = EndEntityCert::try_from(certificate).map_err(unverified)?;
        let lists: Vec<&CertRevocationList<'_>> = self.lists.iter().collect();
        let revocation = RevocationOptionsBuilder::new(&lists).ok().map(|options| {
            options
                .with_depth(RevocationCheckDepth::EndEntity)
                .with_status_policy(UnknownStatusPolicy::Deny)
                .with_expiration_policy(ExpirationPolicy::Enforce)
                .build()
        });
        parsed
            .verify_for_usage(
                self.algorithms.all,
                &self.authorities,
                intermediates,
                now,
                usage,
                revocation,
                None,
            )
            .map_err(unverified)?;
        self.identity(certificate).map_err(wrong)
    }

    /// Whether a client's certificate is revoked. Its end does not matter: it is judged as at that instant.
    pub fn is_revoked(&self, chain: &[CertificateDer<'_>]) -> bool {
        let [certificate, intermediates @ ..] = chain else { return false };
        let Ok(facts) = Facts::of(certificate) else { return false };
        let end = Duration::from_secs(facts.valid_until.timestamp().max(0) as u64);
        let now = UnixTime::now().min(UnixTime::since_unix_epoch(end));
        let verified = self.verify(certificate, intermediates, now, KeyUsage::client_auth());
        let revoked = rustls::Error::InvalidCertificate(CertificateError::Revoked);
        verified.is_err_and(|error| error == revoked)
    }

    fn identity(&self, certificate: &CertificateDer<'_>) -> Result<Identity, WrongIdentity> {
        let found = Facts::of(certificate)?.identity()?;
        match found.fabric() == self.fabric {
            true => Ok(found),
            false => Err(WrongIdentity::Fabric { found, fabric: self.fabric.clone() }),
        }
    }
}

impl Verifier {
    pub fn new(trust: Arc<Trust>, between: Between) -> Verifier {
        Verifier { trust, between }
    }

    /// Ranks serve each other with the certificates by which they are clients of the controller.
    fn verify_rank(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), rustls::Error> {
        let found = self.trust.verify(certificate, intermediates, now, KeyUsage::client_auth())?;
        match found.role().is_worker() {
            true => Ok(()),
            false => Err(wrong(WrongIdentity::NoWorker { found })),
        }
    }

    fn verify_controller(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), rustls::Error> {
        let found = self.trust.verify(certificate, intermediates, now, KeyUsage::server_auth())?;
        match found.role() {
            Role::Controller => Ok(()),
            _ => Err(wrong(WrongIdentity::NoController { found })),
        }
    }

    fn signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, certificate, signed, &self.trust.algorithms)
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        match self.between {
            Between::ControllerAndClients | Between::PageAndReaders => {
                self.verify_controller(certificate, intermediates, now)
            }
            Between::Ranks => self.verify_rank(certificate, intermediates, now),
        }
        .map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(no_tls12())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.trust.algorithms.supported_schemes()
    }
}

impl ClientCertVerifier for Verifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        match self.between {
            Between::ControllerAndClients | Between::PageAndReaders => {
                let usage = KeyUsage::client_auth();
                self.trust.verify(certificate, intermediates, now, usage).map(drop)
            }
            Between::Ranks => self.verify_rank(certificate, intermediates, now),
        }
        .map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(no_tls12())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.trust.algorithms.supported_schemes()
    }
}

fn wrong(error: WrongIdentity) -> rustls::Error {
    rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(error))))
}

pub(crate) fn no_tls12() -> rustls::Error {
    rustls::Error::General("TLS 1.2 is not offered".to_owned())
}

/// The error by which the peer is told the reason (RFC 8446, section 6.2).
pub(crate) fn unverified(error: webpki::Error) -> rustls::Error {
    use webpki::Error as E;
    let reason = match error {
        E::CertExpired { .. } => CertificateError::Expired,
        E::CertNotValidYet { .. } => CertificateError::NotValidYet,
        E::CertRevoked => CertificateError::Revoked,
        E::CrlExpired { .. } => CertificateError::ExpiredRevocationList,
        E::UnknownRevocationStatus | E::InvalidCrlSignatureForPublicKey => {
            CertificateError::UnknownRevocationStatus
        }
        // A bad signature: another authority has the same name.
        E::UnknownIssuer | E::InvalidSignatureForPublicKey => CertificateError::UnknownIssuer,
        E::RequiredEkuNotFoundContext(_) => CertificateError::InvalidPurpose,
        E::BadDer | E::BadDerTime => CertificateError::BadEncoding,
        other => CertificateError::Other(OtherError(Arc::new(other))),
    };
    rustls::Error::InvalidCertificate(reason)
}
