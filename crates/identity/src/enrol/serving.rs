//! The authority's side of an enrolment.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rcgen::CertificateSigningRequestParams;
use rustls::ServerConfig;
use rustls::pki_types::CertificateSigningRequestDer;
use rustls::version::TLS13;

use super::message::{pack, unpack};
use super::pending::{Pending, PendingTokens};
use super::token::JoinToken;
use super::{NAME, PROTOCOL, fingerprint};
use crate::authority::{Authority, Signed, Validity, seconds};
use crate::error::IdentityError;
use crate::identity::{Identity, Role};

/// Answers requests of new machines, with the authority's key.
pub struct Enrolment {
    authority: Authority,
    lifetime: Duration,
    server: Arc<ServerConfig>,
}

/// The answer to a request.
pub struct Answer {
    /// For the machine.
    pub reply: Vec<u8>,
    /// Who got a certificate, or why nobody did, as a sentence.
    pub outcome: Result<Identity, String>,
}

impl Authority {
    /// Makes a token by which one machine gets one certificate of this role, within `lifetime`. `address`: where the
    /// authority will be served, as `host:port`.
    pub fn token(
        &self,
        role: &Role,
        address: &str,
        lifetime: Duration,
    ) -> Result<JoinToken, IdentityError> {
        let token = JoinToken::draw(role, address, fingerprint(&self.certificate_der()?))?;
        let _lock = self.lock()?;
        let now = SystemTime::now();
        let mut tokens = PendingTokens::read(self.folder(), seconds(now))?;
        tokens.add(Pending::new(token.secret(), seconds(now + lifetime), role))?;
        Ok(token)
    }

    /// How many tokens can be used.
    pub fn open_tokens(&self) -> Result<usize, IdentityError> {
        let (_lock, now_s) = (self.lock()?, seconds(SystemTime::now()));
        Ok(PendingTokens::read(self.folder(), now_s)?.open(now_s))
    }

    /// Uses a token: signs the key of a certificate request. What the request says otherwise has no meaning.
    fn enrol(
        &self,
        role: &Role,
        secret: &[u8],
        request: &[u8],
        lifetime: Duration,
    ) -> Result<(Identity, Signed), IdentityError> {
        let identity = Identity::new(self.fabric(), role.clone())?;
        let _lock = self.lock()?;
        let now_s = seconds(SystemTime::now());
        // The token first: what a stranger sends is not parsed. It is used up even if something fails later.
        PendingTokens::read(self.folder(), now_s)?.take(secret, role, now_s)?;
        let request = CertificateSigningRequestDer::from(request);
        let request = CertificateSigningRequestParams::from_der(&request).map_err(|error| {
            IdentityError::NotGranted(format!("the certificate request is invalid: {error}"))
        })?;
        let signed =
            self.sign_locked(&identity, Validity::lasting(lifetime), &request.public_key)?;
        Ok((identity, signed))
    }
}

impl Enrolment {
    /// Serves an authority; certificates are valid for `lifetime`.
    pub fn new(authority: Authority, lifetime: Duration) -> Result<Enrolment, IdentityError> {
        let (chain, key) = authority.certificate_of_server(NAME)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key));
        let mut server = server.map_err(|error| IdentityError::Making {
            what: "the server of enrolments",
            reason: error.to_string(),
        })?;
        server.alpn_protocols = vec![PROTOCOL.to_vec()];
        server.send_tls13_tickets = 0;
        Ok(Enrolment { authority, lifetime, server: Arc::new(server) })
    }

    /// Configuration of its TLS server.
    pub fn server(&self) -> Arc<ServerConfig> {
        self.server.clone()
    }

    /// How many tokens can be used.
    pub fn open_tokens(&self) -> Result<usize, IdentityError> {
        self.authority.open_tokens()
    }

    /// Answers a request.
    pub fn answer(&self, request: &[u8]) -> Answer {
        let issued = unpack::<3>(request).ok_or_else(|| MALFORMED.to_owned()).and_then(
            |[role, secret, request]| {
                let role = std::str::from_utf8(role).ok().and_then(|role| role.parse().ok());
                let role = role.ok_or_else(|| MALFORMED.to_owned())?;
                let issued = self.authority.enrol(&role, secret, request, self.lifetime);
                issued.map_err(|error| error.to_string())
            },
        );
        match issued {
            Ok((identity, signed)) => Answer { reply: reply(&signed), outcome: Ok(identity) },
            Err(reason) => Answer {
                reply: pack(&[b"refused", reason.as_bytes(), b"", b""]),
                outcome: Err(reason),
            },
        }
    }
}

fn reply(signed: &Signed) -> Vec<u8> {
    let list = signed.revocations.as_deref().unwrap_or_default();
    let parts = [signed.certificate.as_str(), &signed.authority, list].map(str::as_bytes);
    pack(&[b"issued", parts[0], parts[1], parts[2]])
}

const MALFORMED: &str = "the request is malformed; use the same version of netsum on both machines";
