//! What a certificate says: its identity, its number and its times.

use std::fmt;

use rustls::pki_types::CertificateDer;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::time::ASN1Time;

use crate::identity::{Identity, SCHEME};

/// The parts of a certificate that this crate uses.
#[derive(Debug)]
pub(crate) struct Facts {
    /// Serial number, hexadecimal.
    pub serial: String,
    pub valid_from: ASN1Time,
    pub valid_until: ASN1Time,
    /// The bits of the public key.
    pub public_key: Vec<u8>,
    /// All URIs among its names.
    uris: Vec<String>,
}

/// Why a certificate has no identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NoIdentity {
    /// It is not X.509, version 3.
    Malformed,
    /// It has no URI, or several (SPIFFE X509-SVID, section 2).
    Uris(usize),
    /// Its URI is no identity.
    Uri(String),
}

impl Facts {
    pub fn of(certificate: &CertificateDer<'_>) -> Result<Facts, NoIdentity> {
        match x509_parser::parse_x509_certificate(certificate) {
            Ok(([], parsed)) => Facts::of_parsed(&parsed),
            _ => Err(NoIdentity::Malformed),
        }
    }

    fn of_parsed(certificate: &X509Certificate<'_>) -> Result<Facts, NoIdentity> {
        let names = certificate.subject_alternative_name().map_err(|_| NoIdentity::Malformed)?;
        let names = names.map_or(&[][..], |names| &names.value.general_names);
        let uri = |name: &GeneralName<'_>| match name {
            GeneralName::URI(uri) => Some((*uri).to_owned()),
            _ => None,
        };
        Ok(Facts {
            serial: certificate.raw_serial().iter().map(|byte| format!("{byte:02x}")).collect(),
            valid_from: certificate.validity().not_before,
            valid_until: certificate.validity().not_after,
            public_key: certificate.public_key().subject_public_key.data.to_vec(),
            uris: names.iter().filter_map(uri).collect(),
        })
    }

    /// The identity of a process.
    pub fn identity(&self) -> Result<Identity, NoIdentity> {
        let uri = self.uri()?;
        uri.parse().map_err(|_| NoIdentity::Uri(uri.chars().take(URI_SHOWN).collect()))
    }

    /// The fabric of an authority, whose URI has no role.
    pub fn fabric(&self) -> Option<&str> {
        self.uri().ok()?.strip_prefix(SCHEME)
    }

    fn uri(&self) -> Result<&str, NoIdentity> {
        match &self.uris[..] {
            [uri] => Ok(uri),
            uris => Err(NoIdentity::Uris(uris.len())),
        }
    }
}

impl fmt::Display for NoIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoIdentity::Malformed => f.write_str("the certificate is malformed"),
            NoIdentity::Uris(0) => f.write_str(
                "the certificate has no identity; it needs the URI spiffe://FABRIC/ROLE among its alternative names",
            ),
            NoIdentity::Uris(n) => write!(f, "the certificate has {n} URIs; it must have one, its identity"),
            NoIdentity::Uri(uri) => {
                write!(f, "the certificate's URI {uri:?} is no identity; it must be spiffe://FABRIC/ROLE")
            }
        }
    }
}

impl std::error::Error for NoIdentity {}

const URI_SHOWN: usize = 160;
