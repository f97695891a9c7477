//! Credentials: the files by which a process proves who it is, and verifies others.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::{Mutex, MutexGuard};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::{ClientConfig, ServerConfig};

use crate::certificate::Facts;
use crate::error::IdentityError;
use crate::files;
use crate::identity::Identity;
use crate::tls::{self, Presented};
use crate::verifier::{Between, Trust};

/// A folder with the files `identity.pem` (the certificate, and those between it and its authority), `identity-key.pem`
/// (its private key), `ca.pem` (trusted authorities) and, if certificates were revoked, `ca.crl` (their lists).
///
/// Files that change take effect for new connections: each connection asks whether they did. If the new files are
/// invalid, the old ones stay in use, and a warning says why.
#[derive(Debug)]
pub struct Credentials {
    folder: PathBuf,
    identity: Identity,
    current: Mutex<Current>,
}

#[derive(Debug)]
struct Current {
    loaded: Loaded,
    /// State of the files when they were read.
    stamps: Stamps,
    /// Why the files cannot be used; reported once.
    problem: String,
    /// How often new files were taken into use.
    generation: u64,
    /// When the log was last told that the certificate ends.
    reminded_s: Option<i64>,
}

#[derive(Debug)]
struct Loaded {
    identity: Identity,
    life: Life,
    trust: Arc<Trust>,
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
    rank_server: Arc<ServerConfig>,
    rank_client: Arc<ClientConfig>,
    page_server: Arc<ServerConfig>,
}

/// When a certificate is valid, in seconds since 1970.
#[derive(Clone, Copy, Debug)]
struct Life {
    from_s: i64,
    until_s: i64,
}

impl Life {
    /// Whether less than a tenth is left.
    fn ends_soon(self, now_s: i64) -> bool {
        self.until_s - now_s < (self.until_s - self.from_s) / 10
    }
}

impl Current {
    fn new(loaded: Loaded, stamps: Stamps, generation: u64) -> Current {
        Current { loaded, stamps, problem: String::new(), generation, reminded_s: None }
    }

    /// Whether the log must be told that the certificate ends: once a day.
    fn is_reminder_due(&mut self, now_s: i64) -> bool {
        let quiet = self.reminded_s.is_some_and(|last| now_s - last < REMINDER_S);
        if quiet || !self.loaded.life.ends_soon(now_s) {
            return false;
        }
        self.reminded_s = Some(now_s);
        true
    }
}

impl Credentials {
    /// Reads the files. Errors name the file and the remedy.
    pub fn open(folder: &Path) -> Result<Credentials, IdentityError> {
        let stamps = stamps(folder);
        let loaded = load(folder)?;
        let identity = loaded.identity.clone();
        let current = Mutex::new(Current::new(loaded, stamps, 0));
        Ok(Credentials { folder: folder.to_owned(), identity, current })
    }

    /// The identity, which stays the same.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The end of the certificate in use, in seconds since 1970.
    pub fn expires_s(&self) -> u64 {
        self.with_current(|loaded| loaded.life.until_s.max(0) as u64)
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Configuration of a server for a new connection: the client presents any identity of the same fabric.
    pub fn server(&self) -> Arc<ServerConfig> {
        self.with_current(|loaded| loaded.server.clone())
    }

    /// Configuration of a client for a new connection: the server is the controller of the same fabric.
    pub fn client(&self) -> Arc<ClientConfig> {
        self.with_current(|loaded| loaded.client.clone())
    }

    /// Configuration for a rank that accepts a connection of another: the other is a worker of the same fabric.
    pub fn rank_server(&self) -> Arc<ServerConfig> {
        self.with_current(|loaded| loaded.rank_server.clone())
    }

    /// Configuration for a rank that connects to another: the other is a worker of the same fabric.
    pub fn rank_client(&self) -> Arc<ClientConfig> {
        self.with_current(|loaded| loaded.rank_client.clone())
    }

    /// Configuration for a page of metrics: the reader presents any identity of the same fabric.
    pub fn page_server(&self) -> Arc<ServerConfig> {
        self.with_current(|loaded| loaded.page_server.clone())
    }

    /// How often changed files were taken into use. Asking takes them into use.
    pub fn generation(&self) -> u64 {
        self.current().generation
    }

    /// Whether the certificate of an open connection has been revoked since. `chain`: as the peer presented it. That it
    /// has expired, or that its authority is no longer trusted, counts for new connections only.
    pub fn is_revoked(&self, chain: &[CertificateDer<'_>]) -> bool {
        self.with_current(|loaded| loaded.trust.clone()).is_revoked(chain)
    }

    /// Warns in the log, once a day, if less than a tenth of the life of the certificate in use is left. A daemon calls
    /// this from time to time.
    pub fn remind_of_end(&self) {
        let mut current = self.current();
        let now = now_s();
        if !current.is_reminder_due(now) {
            return;
        }
        let (folder, hours) = (self.folder.display(), (current.loaded.life.until_s - now) / 3600);
        if hours >= 0 {
            tracing::warn!(%folder, hours, "the certificate ends soon; {RENEW}");
        } else {
            tracing::error!(%folder, "the certificate has ended, and new connections are refused; {RENEW}");
        }
    }

    fn with_current<T>(&self, take: impl FnOnce(&Loaded) -> T) -> T {
        take(&self.current().loaded)
    }

    fn current(&self) -> MutexGuard<'_, Current> {
        let mut current = self.current.lock();
        let now = stamps(&self.folder);
        if now != current.stamps {
            self.reload(&mut current, now);
        }
        current
    }

    /// Takes new files into use. Files that cannot be used are read again for the next connection: perhaps somebody is
    /// replacing them one after the other.
    fn reload(&self, current: &mut Current, stamps: Stamps) {
        match load(&self.folder).and_then(|loaded| self.same_identity(loaded)) {
            Ok(loaded) => {
                tracing::info!(folder = %self.folder.display(), "new credentials are in use");
                *current = Current::new(loaded, stamps, current.generation + 1);
            }
            Err(error) => {
                let problem = error.to_string();
                if problem != current.problem {
                    tracing::warn!(
                        problem,
                        "changed credentials cannot be used; the old ones stay in use"
                    );
                    current.problem = problem;
                }
            }
        }
    }

    fn same_identity(&self, loaded: Loaded) -> Result<Loaded, IdentityError> {
        if loaded.identity == self.identity {
            return Ok(loaded);
        }
        let problem = format!(
            "the identity has changed from {} to {}; restart the process",
            self.identity, loaded.identity
        );
        Err(files::invalid(&self.folder.join(CERTIFICATE), problem))
    }
}

/// The facts of the first certificate in a file.
pub(crate) fn facts(file: &Path) -> Result<Facts, IdentityError> {
    let chain = certificates(file, CREDENTIALS_REMEDY)?;
    Facts::of(&chain[0]).map_err(|problem| files::invalid(file, problem.to_string()))
}

fn load(folder: &Path) -> Result<Loaded, IdentityError> {
    let (file, key_file) = (folder.join(CERTIFICATE), folder.join(KEY));
    let chain = certificates(&file, CREDENTIALS_REMEDY)?;
    let facts = Facts::of(&chain[0]).map_err(|e| files::invalid(&file, e.to_string()))?;
    let identity = facts.identity().map_err(|e| files::invalid(&file, e.to_string()))?;
    check_times(&file, &facts)?;
    let key = files::read_private(&key_file, CREDENTIALS_REMEDY)?;
    let key = PrivateKeyDer::from_pem_slice(&key)
        .map_err(|_| files::invalid(&key_file, "it has no private key in PEM".to_owned()))?;
    let trust = Arc::new(trust(folder, &identity)?);
    let presented = Presented { chain, key };
    let unfit = |error: rustls::Error| match error {
        rustls::Error::InconsistentKeys(_) => {
            IdentityError::KeyMismatch { key: key_file.clone(), certificate: file.clone() }
        }
        error => files::invalid(&key_file, format!("the key cannot be used: {error}")),
    };
    let server = |between| tls::server(&trust, between, &presented).map(Arc::new).map_err(unfit);
    let client = |between| tls::client(&trust, between, &presented).map(Arc::new).map_err(unfit);
    Ok(Loaded {
        identity,
        trust: trust.clone(),
        life: Life { from_s: facts.valid_from.timestamp(), until_s: facts.valid_until.timestamp() },
        server: server(Between::ControllerAndClients)?,
        client: client(Between::ControllerAndClients)?,
        rank_server: server(Between::Ranks)?,
        rank_client: client(Between::Ranks)?,
        page_server: server(Between::PageAndReaders)?,
    })
}

fn trust(folder: &Path, identity: &Identity) -> Result<Trust, IdentityError> {
    let (authorities_file, lists_file) = (folder.join(AUTHORITIES), folder.join(REVOCATIONS));
    let authorities = certificates(&authorities_file, CREDENTIALS_REMEDY)?;
    let lists = match lists_file.exists() {
        true => revocation_lists(&lists_file)?,
        false => Vec::new(),
    };
    let mut trust = Trust::new(identity.fabric());
    for authority in &authorities {
        trust.trust(authority).map_err(|e| files::invalid(&authorities_file, e))?;
    }
    for list in &lists {
        check_list(&lists_file, list)?;
        trust.revoke(list).map_err(|e| files::invalid(&lists_file, e))?;
    }
    Ok(trust)
}

fn check_times(file: &Path, facts: &Facts) -> Result<(), IdentityError> {
    let now = now_s();
    if facts.valid_until.timestamp() < now {
        let at = facts.valid_until.to_string();
        return Err(IdentityError::Expired { file: file.to_owned(), at });
    }
    if facts.valid_from.timestamp() > now {
        let from = facts.valid_from.to_string();
        return Err(IdentityError::NotYetValid { file: file.to_owned(), from });
    }
    Ok(())
}

/// A list that is out of date would refuse every peer. It may be replaced in time, so the log says it before.
fn check_list(file: &Path, list: &CertificateRevocationListDer<'_>) -> Result<(), IdentityError> {
    let Ok((_, list)) = x509_parser::parse_x509_crl(list) else { return Ok(()) };
    let Some(end) = list.next_update() else { return Ok(()) };
    let left_s = end.timestamp() - now_s();
    if left_s < 0 {
        let problem = format!("a revocation list ended on {end}; {NEWER_LIST}");
        return Err(files::invalid(file, problem));
    }
    if left_s < LIST_WARNING_S {
        tracing::warn!(file = %file.display(), %end, "a revocation list ends soon; {NEWER_LIST}");
    }
    Ok(())
}

fn now_s() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64)
}

/// At least one certificate.
fn certificates(
    file: &Path,
    remedy: &'static str,
) -> Result<Vec<CertificateDer<'static>>, IdentityError> {
    let text = files::read(file, remedy)?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let all = all.map_err(|error| files::invalid(file, format!("damaged PEM: {error:?}")))?;
    match all.is_empty() {
        true => Err(files::invalid(file, "it has no certificate in PEM".to_owned())),
        false => Ok(all),
    }
}

fn revocation_lists(
    file: &Path,
) -> Result<Vec<CertificateRevocationListDer<'static>>, IdentityError> {
    let text = files::read(file, "remove it, or make it readable")?;
    let all: Result<Vec<_>, _> = CertificateRevocationListDer::pem_slice_iter(&text).collect();
    let all = all.map_err(|error| files::invalid(file, format!("damaged PEM: {error:?}")))?;
    match all.is_empty() {
        // An empty file would switch the check off without a word.
        true => Err(files::invalid(
            file,
            "it has no revocation list in PEM; remove it, or replace it".to_owned(),
        )),
        false => Ok(all),
    }
}

/// What tells that a file was replaced: its time, its size and its number.
type Stamp = Option<(i64, i64, u64, u64)>;
type Stamps = [Stamp; 4];

fn stamps(folder: &Path) -> Stamps {
    let stamp = |of: Metadata| (of.mtime(), of.mtime_nsec(), of.size(), of.ino());
    [CERTIFICATE, KEY, AUTHORITIES, REVOCATIONS]
        .map(|name| std::fs::metadata(folder.join(name)).ok().map(stamp))
}

/// The certificate and those between it and its authority.
pub(crate) const CERTIFICATE: &str = "identity.pem";
pub(crate) const KEY: &str = "identity-key.pem";
/// Trusted authorities.
pub(crate) const AUTHORITIES: &str = "ca.pem";
pub(crate) const REVOCATIONS: &str = "ca.crl";
const NEWER_LIST: &str = "sign a new one by `netsum ca revoke`, and copy it here";
const RENEW: &str = "renew it by `netsum ca renew`, and copy it here";
const REMINDER_S: i64 = 24 * 3600;
const LIST_WARNING_S: i64 = 30 * 24 * 3600;
const CREDENTIALS_REMEDY: &str =
    "make it by `netsum ca issue`, or name a folder with identity.pem, identity-key.pem and ca.pem";

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::authority::{Authority, Validity};

    #[test]
    fn the_log_is_told_of_the_end_once_a_day_in_the_last_tenth() {
        let place = tempfile::tempdir().unwrap();
        let (ca, own) = (place.path().join("ca"), place.path().join("own"));
        let authority = Authority::create(&ca, "lab").unwrap();
        let identity = Identity::new("lab", "switch/s".parse().unwrap()).unwrap();
        let lasting = |days: u64| Validity::lasting(Duration::from_secs(days * 24 * 3600));
        authority.issue(&identity, lasting(100)).unwrap().save(&own).unwrap();
        let credentials = Credentials::open(&own).unwrap();
        let (day, start) = (24 * 3600, now_s());
        let due = |after_s: i64| credentials.current().is_reminder_due(start + after_s);
        assert_eq!([due(0), due(89 * day), due(90 * day)], [false, false, true]);
        assert_eq!([due(90 * day + 60), due(91 * day - 1), due(91 * day)], [false, false, true]);
        assert!(due(101 * day), "and when it has ended");
        // A new certificate is in use.
        authority.renew(&own, lasting(300)).unwrap();
        assert_eq!((due(102 * day), credentials.generation()), (false, 1));
    }
}
