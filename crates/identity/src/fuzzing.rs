//! Parsers of credentials, for fuzz targets (`fuzz/` at the root of the repository). Each function takes any bytes, and
//! panics if a parser breaks its promises.

use rustls::client::danger::ServerCertVerifier;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer, UnixTime};
use rustls::server::danger::ClientCertVerifier;

use crate::certificate::Facts;
use crate::identity::{Identity, Role};
use crate::verifier::Verifier;

/// The text of an identity: what is read is written again.
pub fn identity(text: &str) {
    if let Ok(identity) = text.parse::<Identity>() {
        assert_eq!(identity.to_string(), text);
    }
    let _ = text.parse::<Role>();
}

/// A file with certificates, keys and revocation lists in PEM, in any order. Nobody is let in by it: no authority is
/// trusted but those in the file, and `trusted` says whether these are.
pub fn pem(bytes: &[u8]) {
    let certificates: Vec<_> =
        CertificateDer::pem_slice_iter(bytes).filter_map(Result::ok).collect();
    let _ = PrivateKeyDer::from_pem_slice(bytes);
    let mut verifier = Verifier::new("f");
    for list in CertificateRevocationListDer::pem_slice_iter(bytes).filter_map(Result::ok) {
        let _ = verifier.revoke(&list);
        let _ = x509_parser::parse_x509_crl(&list);
    }
    let Some((first, others)) = certificates.split_first() else { return };
    certificate(first);
    present(&verifier, first, others);
    certificates.iter().for_each(|one| drop(verifier.trust(one)));
    let _ = verifier.verify_client_cert(first, others, now());
}

/// A certificate as a peer presents it.
pub fn der(bytes: &[u8]) {
    let one = CertificateDer::from(bytes);
    certificate(&one);
    present(&Verifier::new("f"), &one, &[]);
}

fn certificate(one: &CertificateDer<'_>) {
    if let Ok(facts) = Facts::of(one) {
        let identity = facts.identity();
        let _ = facts.fabric();
        assert!(identity.is_err() || facts.fabric().is_some());
    }
}

/// Without an authority, nobody is verified.
fn present(verifier: &Verifier, one: &CertificateDer<'_>, others: &[CertificateDer<'_>]) {
    let name = crate::tls::server_name();
    assert!(verifier.verify_client_cert(one, others, now()).is_err());
    assert!(verifier.verify_server_cert(one, others, &name, &[], now()).is_err());
}

/// 2026.
fn now() -> UnixTime {
    UnixTime::since_unix_epoch(std::time::Duration::from_secs(1_790_000_000))
}
