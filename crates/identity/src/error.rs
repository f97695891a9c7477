//! Errors of certificates and of their files.

use std::io;
use std::path::PathBuf;

/// An error of an identity, of the authority or of credentials. The text names the file and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// A text that is no identity.
    #[error(
        "{text:?} is not an identity; write spiffe://FABRIC/ with controller, operator, viewer, switch/NAME, host/NAME \
         or tenant/NAME, and names as in the fabric file"
    )]
    Malformed {
        /// The beginning of the text.
        text: String,
    },
    /// A text that is no role.
    #[error(
        "{text:?} is not a role; write controller, operator, viewer, switch/NAME, host/NAME or tenant/NAME, with the \
         name in the fabric file"
    )]
    Role {
        /// The beginning of the text.
        text: String,
    },
    /// A file cannot be read or written.
    #[error("{}: {source}; {remedy}", file.display())]
    File {
        /// The file or folder.
        file: PathBuf,
        /// The system's error.
        source: io::Error,
        /// What to do.
        remedy: &'static str,
    },
    /// A private key that others can read.
    #[error(
        "{}: others may read this key (its mode is {mode:o}); make it yours alone by `chmod 600`",
        file.display()
    )]
    Permissions {
        /// The file.
        file: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The content of a file is invalid.
    #[error("{}: {problem}", file.display())]
    Content {
        /// The file.
        file: PathBuf,
        /// What is wrong and what to do.
        problem: String,
    },
    /// A certificate is past its end.
    #[error(
        "{}: the certificate expired on {at}; renew it by `netsum ca renew`, or ask its authority for a new one",
        file.display()
    )]
    Expired {
        /// The file.
        file: PathBuf,
        /// The end of its validity, UTC.
        at: String,
    },
    /// A certificate's validity has not begun.
    #[error("{}: the certificate is not valid before {from}; check this machine's clock", file.display())]
    NotYetValid {
        /// The file.
        file: PathBuf,
        /// The beginning of its validity, UTC.
        from: String,
    },
    /// The private key belongs to another certificate.
    #[error(
        "{}: this key does not fit the certificate in {}; copy both files from the same place again",
        key.display(), certificate.display()
    )]
    KeyMismatch {
        /// The key's file.
        key: PathBuf,
        /// The certificate's file.
        certificate: PathBuf,
    },
    /// The folder has the authority of another fabric.
    #[error(
        "{}: this is the authority of fabric {found:?}, not of {wanted:?}; choose another folder",
        folder.display()
    )]
    OtherFabric {
        /// The authority's folder.
        folder: PathBuf,
        /// Its fabric.
        found: String,
        /// The requested fabric.
        wanted: String,
    },
    /// A request that the authority does not grant.
    #[error("{0}")]
    NotGranted(String),
    /// A certificate or key could not be made.
    #[error("{what}: {reason}")]
    Making {
        /// What was to be made.
        what: &'static str,
        /// The library's error.
        reason: String,
    },
}
