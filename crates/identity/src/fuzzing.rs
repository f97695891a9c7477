//! Parsers of credentials, for fuzz targets (`fuzz/` at the root of the repository). Each function takes any bytes, and
//! panics if a parser breaks its promises.

use std::sync::Arc;

use rustls::client::danger::ServerCertVerifier;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer, UnixTime};
use rustls::server::danger::ClientCertVerifier;

use crate::certificate::Facts;
use crate::enrol::{JoinToken, Joining};
use crate::identity::{Identity, Role};
use crate::verifier::{Between, Trust, Verifier};

/// The text of an identity, or of a token to join: what is read is written again.
pub fn identity(text: &str) {
    if let Ok(identity) = text.parse::<Identity>() {
        assert_eq!(identity.to_string(), text);
    }
    let _ = text.parse::<Role>();
    if let Ok(token) = text.parse::<JoinToken>() {
        assert!(token.to_string().parse::<JoinToken>().is_ok_and(|again| again == token));
    }
}

/// A file with certificates, keys and revocation lists in PEM, in any order. Nobody is let in by it: no authority is
/// trusted but those in the file, and `trusted` says whether these are.
pub fn pem(bytes: &[u8]) {
    let certificates: Vec<_> =
        CertificateDer::pem_slice_iter(bytes).filter_map(Result::ok).collect();
    let _ = PrivateKeyDer::from_pem_slice(bytes);
    let (nobody, mut trust) = (Arc::new(lists(bytes)), lists(bytes));
    let Some((first, others)) = certificates.split_first() else { return };
    certificate(first);
    certificates.iter().for_each(|one| drop(trust.trust(one)));
    let trust = Arc::new(trust);
    for between in BOTH {
        present(&Verifier::new(nobody.clone(), between), first, others);
        let verifier = Verifier::new(trust.clone(), between);
        let _ = verifier.verify_client_cert(first, others, now());
        let _ = verifier.verify_server_cert(first, others, &crate::tls::server_name(), &[], now());
    }
}

/// Trusts no authority, and respects the revocation lists of a file.
fn lists(bytes: &[u8]) -> Trust {
    let mut trust = Trust::new("f");
    for list in CertificateRevocationListDer::pem_slice_iter(bytes).filter_map(Result::ok) {
        let _ = trust.revoke(&list);
        let _ = x509_parser::parse_x509_crl(&list);
    }
    trust
}

/// A certificate as a peer presents it, or a reply to a machine that joins.
pub fn der(bytes: &[u8]) {
    let token = format!("viewer,h:1,{},{}", "0".repeat(64), "0".repeat(32));
    let joining = token.parse().and_then(Joining::new).expect("it is a token");
    assert!(joining.accept(bytes).is_err());
    let one = CertificateDer::from(bytes);
    certificate(&one);
    let nobody = Arc::new(Trust::new("f"));
    for between in BOTH {
        present(&Verifier::new(nobody.clone(), between), &one, &[]);
    }
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

const BOTH: [Between; 2] = [Between::ControllerAndClients, Between::Ranks];

/// 2026.
fn now() -> UnixTime {
    UnixTime::since_unix_epoch(std::time::Duration::from_secs(1_790_000_000))
}
