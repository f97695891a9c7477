//! The new machine's side of an enrolment.

use std::sync::Arc;

use rcgen::{CertificateParams, KeyPair};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::version::TLS13;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, OtherError, SignatureScheme};
use webpki::{EndEntityCert, KeyUsage};

use super::message::{pack, unpack};
use super::token::JoinToken;
use super::{PROTOCOL, fingerprint};
use crate::authority::{Issued, Signed, making, new_key, time};
use crate::certificate::Facts;
use crate::error::IdentityError;
use crate::identity::Role;
use crate::verifier::Trust;

/// A machine that is about to get its certificate: a token, and a new key.
pub struct Joining {
    token: JoinToken,
    key: KeyPair,
}

impl Joining {
    /// Draws a key.
    pub fn new(token: JoinToken) -> Result<Joining, IdentityError> {
        Ok(Joining { token, key: new_key()? })
    }

    /// Configuration of a TLS client: the server shows the authority of the token, and a certificate of its.
    pub fn client(&self) -> Result<ClientConfig, IdentityError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let algorithms = provider.signature_verification_algorithms;
        let fingerprint = *self.token.fingerprint();
        let mut client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(making("a client of enrolments"))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(ByFingerprint { fingerprint, algorithms }))
            .with_no_client_auth();
        client.alpn_protocols = vec![PROTOCOL.to_vec()];
        client.enable_sni = false;
        Ok(client)
    }

    /// The request: role, secret, and a certificate request (RFC 2986). It is for a server that has been verified.
    pub fn request(&self) -> Result<Vec<u8>, IdentityError> {
        let request = CertificateParams::default().serialize_request(&self.key);
        let request = request.map_err(making("a certificate request"))?;
        let role = self.token.role().to_string();
        Ok(pack(&[role.as_bytes(), self.token.secret(), request.der()]))
    }

    /// Takes a reply: the certificate is of the token's authority and role, and for the own key.
    pub fn accept(self, reply: &[u8]) -> Result<Issued, IdentityError> {
        let refused = |reason: &str| Err(IdentityError::NotGranted(reason.to_owned()));
        let Some([verdict, certificate, authority, list]) = unpack::<4>(reply) else {
            return refused(MALFORMED);
        };
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        match verdict {
            b"issued" => {}
            b"refused" => return refused(&shown(&text(certificate))),
            _ => return refused(MALFORMED),
        }
        let signed = Signed {
            certificate: text(certificate),
            authority: text(authority),
            revocations: Some(text(list)).filter(|list| !list.is_empty()),
        };
        self.check(signed)
    }

    fn check(self, signed: Signed) -> Result<Issued, IdentityError> {
        let refused = |reason: String| IdentityError::NotGranted(reason);
        let der = |pem: &str| {
            CertificateDer::from_pem_slice(pem.as_bytes())
                .map_err(|_| refused(MALFORMED.to_owned()))
        };
        let (certificate, authority) = (der(&signed.certificate)?, der(&signed.authority)?);
        if fingerprint(&authority) != *self.token.fingerprint() {
            return Err(refused(OTHER_AUTHORITY.to_owned()));
        }
        let fabric = Facts::of(&authority).ok().and_then(|facts| facts.fabric().map(str::to_owned));
        let fabric = fabric.ok_or_else(|| refused(MALFORMED.to_owned()))?;
        let mut trust = Trust::new(&fabric);
        trust.trust(&authority).map_err(refused)?;
        let usage = match self.token.role() {
            Role::Controller => KeyUsage::server_auth(),
            _ => KeyUsage::client_auth(),
        };
        let verified = trust.verify(&certificate, &[], UnixTime::now(), usage);
        let identity = verified.map_err(|error| refused(crate::tls::explain(&error)))?;
        if identity.role() != self.token.role() {
            let wanted = self.token.role();
            return Err(refused(format!(
                "the authority sent a certificate of {identity}, not {wanted}"
            )));
        }
        let facts = Facts::of(&certificate).map_err(|error| refused(error.to_string()))?;
        if facts.public_key != self.key.public_key_raw() {
            return Err(refused("the authority sent a certificate of another key".to_owned()));
        }
        let until = time(facts.valid_until.timestamp());
        Ok(Issued::of(identity, until, signed, &self.key))
    }
}

/// Verifies that the server has a certificate of the authority with this fingerprint, for the name of the request.
#[derive(Debug)]
struct ByFingerprint {
    fingerprint: [u8; 32],
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for ByFingerprint {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let authority = others.iter().find(|other| fingerprint(other) == self.fingerprint);
        let authority = authority.ok_or_else(other_authority)?;
        let unverified = |_| rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer);
        let anchor = webpki::anchor_from_trusted_cert(authority).map_err(unverified)?;
        let certificate = EndEntityCert::try_from(certificate).map_err(unverified)?;
        let usage = KeyUsage::server_auth();
        certificate
            .verify_for_usage(self.algorithms.all, &[anchor], &[], now, usage, None, None)
            .map_err(crate::verifier::unverified)?;
        // The authority's other certificates, of switches and controllers, lack the name.
        certificate.verify_is_valid_for_subject_name(name).map_err(|_| {
            rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(
                NoEnrolment,
            ))))
        })?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(crate::verifier::no_tls12())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, certificate, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

#[derive(Debug, thiserror::Error)]
#[error(
    "it is a process of the fabric that is not the authority; correct the address in the token"
)]
struct NoEnrolment;

#[derive(Debug, thiserror::Error)]
#[error("{OTHER_AUTHORITY}")]
struct OtherAuthority;

fn other_authority() -> rustls::Error {
    rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(OtherAuthority))))
}

/// The beginning of a sentence of the other side.
fn shown(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(SENTENCE_MAX).collect()
}

const SENTENCE_MAX: usize = 400;
const MALFORMED: &str = "the reply is malformed; use the same version of netsum on both machines";
const OTHER_AUTHORITY: &str = "its authority is not that of the token: either somebody is in between, or the \
                               authority is new; look after it, and make another token";
