//! First contact: a new machine gets its certificate from the authority, by a token that the operator carries there.
//!
//! The operator makes a token for a role, and serves the authority while machines join. The token has the fingerprint
//! of the authority's certificate, by which the new machine knows that nobody is in between, and a secret, by which the
//! authority knows the machine. The machine draws its key itself; only its public half travels.

mod joining;
mod message;
mod pending;
mod serving;
mod token;

pub use joining::Joining;
pub use message::{REPLY_MAX, REQUEST_MAX};
pub use serving::{Answer, Enrolment};
pub use token::JoinToken;

use rustls::pki_types::{CertificateDer, ServerName};

/// The name in the certificate of a server of enrolments, which no other certificate has.
const NAME: &str = "enrolment.netsum.invalid";

/// The protocol of enrolments (ALPN, RFC 7301).
const PROTOCOL: &[u8] = b"netsum-enrol/1";

/// The name by which a new machine addresses the server.
pub fn enrolment_name() -> ServerName<'static> {
    ServerName::try_from(NAME).expect("it is a DNS name")
}

/// SHA-256 of a certificate.
fn fingerprint(certificate: &CertificateDer<'_>) -> [u8; 32] {
    sha256(certificate)
}

fn sha256(bytes: &[u8]) -> [u8; 32] {
    let mut hash = [0; 32];
    hash.copy_from_slice(ring::digest::digest(&ring::digest::SHA256, bytes).as_ref());
    hash
}
