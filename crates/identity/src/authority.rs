//! A fabric's certificate authority: a folder with its key, its certificate and a register.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DistinguishedName,
    DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose,
    PKCS_ECDSA_P256_SHA256, PublicKeyData, RevocationReason, RevokedCertParams, SanType,
    SerialNumber,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::certificate::Facts;
use crate::credentials;
use crate::error::IdentityError;
use crate::files;
use crate::hex::{hexadecimal, unhexadecimal};
use crate::identity::{Identity, NAME_MAX, Role, SCHEME, is_name};
use crate::register::{Entry, Register};

/// The certificate authority of one fabric. Its keys are of ECDSA on P-256.
///
/// The folder, mode 0700, has `ca.pem`, `ca-key.pem`, `issued` (a line for each certificate), and `ca.crl` once a
/// certificate was revoked. Whoever can read `ca-key.pem` can be anybody; only the machine that issues certificates
/// needs the folder. Several processes may use it at the same time.
pub struct Authority {
    folder: PathBuf,
    fabric: String,
    certificate: String,
    ends: SystemTime,
    issuer: Issuer<'static, KeyPair>,
    register: Register,
}

/// When a certificate is valid.
#[derive(Clone, Copy, Debug)]
pub struct Validity {
    /// The first instant.
    pub from: SystemTime,
    /// The last instant.
    pub until: SystemTime,
}

/// A new certificate with its key, as PEM, and what its owner needs besides.
pub struct Issued {
    identity: Identity,
    until: SystemTime,
    key: String,
    signed: Signed,
}

/// A new certificate, that of its authority, and the authority's revocation list if there is one, as PEM.
pub(crate) struct Signed {
    pub certificate: String,
    pub authority: String,
    pub revocations: Option<String>,
}

impl Validity {
    /// From now on for `lifetime`. It begins a few minutes early, for clocks that are late.
    pub fn lasting(lifetime: Duration) -> Validity {
        let now = SystemTime::now();
        Validity { from: now - CLOCK_SKEW, until: now + lifetime }
    }
}

impl Authority {
    /// Creates the authority of a fabric in a folder, or opens it if it is there already. Error: the folder has the
    /// authority of another fabric.
    pub fn create(folder: &Path, fabric: &str) -> Result<Authority, IdentityError> {
        if !is_name(fabric) {
            return Err(IdentityError::NotGranted(format!(
                "{fabric:?} is not the name of a fabric; it has 1 to {NAME_MAX} letters, digits, '.', '_' or '-'"
            )));
        }
        files::make_folder(folder)?;
        let _lock = files::lock(folder)?;
        if folder.join(CERTIFICATE).exists() {
            return Authority::open(folder)?.of_fabric(fabric);
        }
        let (certificate, key) = own_certificate(fabric)?;
        // The certificate last: with it the authority exists.
        files::write(&folder.join(KEY), key.as_bytes(), files::PRIVATE)?;
        files::write(&folder.join(CERTIFICATE), certificate.as_bytes(), files::PUBLIC)?;
        Authority::open(folder)
    }

    /// Opens the authority in a folder.
    pub fn open(folder: &Path) -> Result<Authority, IdentityError> {
        let (file, key_file) = (folder.join(CERTIFICATE), folder.join(KEY));
        let remedy = "create an authority by `netsum ca init`, or name the folder of one";
        let certificate = files::read_text(&file, remedy)?;
        let key =
            files::read_private(&key_file, "restore it from a copy of the authority's folder")?;
        let not_ours = |problem: &str| files::invalid(&file, problem.to_owned());
        let der = CertificateDer::from_pem_slice(certificate.as_bytes())
            .map_err(|_| not_ours("it has no certificate; restore it from a copy"))?;
        let facts = Facts::of(&der).map_err(|problem| not_ours(&problem.to_string()))?;
        let fabric = facts.fabric().filter(|fabric| is_name(fabric)).ok_or_else(|| {
            not_ours("it is not an authority that `netsum ca init` made; issue certificates where it came from")
        })?;
        let key = std::str::from_utf8(&key).ok().and_then(|pem| KeyPair::from_pem(pem).ok());
        let key = key.ok_or_else(|| {
            files::invalid(&key_file, "it has no private key; restore it from a copy".to_owned())
        })?;
        let issuer = Issuer::from_ca_cert_pem(&certificate, key).map_err(making("the issuer"))?;
        Ok(Authority {
            folder: folder.to_owned(),
            fabric: fabric.to_owned(),
            ends: time(facts.valid_until.timestamp()),
            certificate,
            issuer,
            register: Register::in_folder(folder),
        })
    }

    /// The fabric.
    pub fn fabric(&self) -> &str {
        &self.fabric
    }

    /// The authority's certificate, as PEM.
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// Issues a certificate with a new key. Errors: an identity of another fabric; a validity that is empty or ends
    /// after the authority's own.
    pub fn issue(&self, identity: &Identity, validity: Validity) -> Result<Issued, IdentityError> {
        let _lock = files::lock(&self.folder)?;
        self.issue_locked(identity, validity)
    }

    /// Issues a new certificate, with a new key, for the identity of the certificate in `folder`, and replaces the
    /// files there. The old certificate stays valid until its end. Error: it is not of this authority, or is revoked.
    pub fn renew(&self, folder: &Path, validity: Validity) -> Result<Issued, IdentityError> {
        let file = folder.join(credentials::CERTIFICATE);
        let facts = credentials::facts(&file)?;
        let identity = facts.identity().map_err(|e| files::invalid(&file, e.to_string()))?;
        let lock = files::lock(&self.folder)?;
        let entries = self.register.read()?;
        match entries.iter().find(|entry| entry.serial == facts.serial) {
            Some(entry) if entry.revoked_s.is_none() && entry.role == *identity.role() => {}
            Some(_) => {
                let problem =
                    format!("{identity} was revoked; issue a new certificate if it may return");
                return Err(files::invalid(&file, problem));
            }
            None => {
                let problem = format!(
                    "the authority in {} has not issued this certificate, or it expired long ago; issue a new one",
                    self.folder.display()
                );
                return Err(files::invalid(&file, problem));
            }
        }
        let issued = self.issue_locked(&identity, validity)?;
        drop(lock);
        issued.save(folder)?;
        Ok(issued)
    }

    /// Revokes all certificates of a role, and writes `ca.crl`. Returns their number. Error: there is none.
    ///
    /// The list takes effect where it is copied to: first of all into the controller's credentials.
    pub fn revoke(&self, role: &Role) -> Result<usize, IdentityError> {
        let _lock = files::lock(&self.folder)?;
        let (mut entries, now) = (self.current()?, seconds(SystemTime::now()));
        let mut count = 0;
        for entry in entries.iter_mut().filter(|e| e.role == *role && e.revoked_s.is_none()) {
            entry.revoked_s = Some(now);
            count += 1;
        }
        if count == 0 {
            return Err(IdentityError::NotGranted(self.nothing_to_revoke(role, &entries)));
        }
        self.register.write(&entries)?;
        self.write_revocations(&entries)?;
        Ok(count)
    }

    /// Signs the revocation list anew, if there is one: a list is valid for a year.
    pub fn refresh(&self) -> Result<(), IdentityError> {
        let _lock = files::lock(&self.folder)?;
        self.refresh_locked(&self.current()?).map(drop)
    }

    /// The revocation list's file; it exists once a certificate was revoked.
    pub fn revocations_file(&self) -> PathBuf {
        self.folder.join(REVOCATIONS)
    }

    fn of_fabric(self, fabric: &str) -> Result<Authority, IdentityError> {
        if self.fabric == fabric {
            return Ok(self);
        }
        let (folder, found) = (self.folder, self.fabric);
        Err(IdentityError::OtherFabric { folder, found, wanted: fabric.to_owned() })
    }

    fn issue_locked(
        &self,
        identity: &Identity,
        validity: Validity,
    ) -> Result<Issued, IdentityError> {
        let key = new_key()?;
        let signed = self.sign_locked(identity, validity, &key)?;
        Ok(Issued::of(identity.clone(), validity.until, signed, &key))
    }

    /// Signs a certificate for a key; the folder must be locked.
    pub(crate) fn sign_locked(
        &self,
        identity: &Identity,
        validity: Validity,
        key: &impl PublicKeyData,
    ) -> Result<Signed, IdentityError> {
        self.check(identity, validity)?;
        let mut entries = self.current()?;
        let serial = drawn_serial()?;
        let certificate = leaf(identity, validity, &serial)?
            .signed_by(key, &self.issuer)
            .map_err(making("the certificate"))?;
        // Registered before it is given out, so that it can be revoked.
        entries.push(Entry {
            serial: hexadecimal(&serial),
            expires_s: seconds(validity.until),
            revoked_s: None,
            role: identity.role().clone(),
        });
        self.register.write(&entries)?;
        Ok(Signed {
            certificate: certificate.pem(),
            authority: self.certificate.clone(),
            revocations: self.refresh_locked(&entries)?,
        })
    }

    /// A certificate without identity for a server of this name, with the authority's, and its key. It is not in the
    /// register, so it cannot be revoked: it must not leave this process, and ends soon.
    pub(crate) fn certificate_of_server(
        &self,
        server: &str,
    ) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), IdentityError> {
        let (key, now) = (new_key()?, SystemTime::now());
        let mut params = CertificateParams::default();
        params.not_before = (now - CLOCK_SKEW).into();
        params.not_after = self.ends.min(now + SERVER_LASTS).into();
        params.serial_number = Some(SerialNumber::from_slice(&drawn_serial()?));
        params.distinguished_name = name(&self.fabric, "netsum enrolment");
        let dns = server.try_into().map_err(making("the DNS name"))?;
        params.subject_alt_names = vec![SanType::DnsName(dns)];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        let certificate =
            params.signed_by(&key, &self.issuer).map_err(making("the certificate"))?;
        let private = PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes());
        let private = private.map_err(|error| making("the key")(format!("{error:?}")))?;
        Ok((vec![certificate.der().clone(), self.certificate_der()?], private))
    }

    pub(crate) fn certificate_der(&self) -> Result<CertificateDer<'static>, IdentityError> {
        CertificateDer::from_pem_slice(self.certificate.as_bytes())
            .map_err(|error| files::invalid(&self.folder.join(CERTIFICATE), format!("{error:?}")))
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Keeps other processes from changing the folder until the result is dropped.
    pub(crate) fn lock(&self) -> Result<std::fs::File, IdentityError> {
        files::lock(&self.folder)
    }

    fn check(&self, identity: &Identity, validity: Validity) -> Result<(), IdentityError> {
        let refused = |reason: String| Err(IdentityError::NotGranted(reason));
        if identity.fabric() != self.fabric {
            return refused(format!(
                "the authority in {} is that of fabric {:?}; it cannot issue {identity}",
                self.folder.display(),
                self.fabric
            ));
        }
        if validity.until <= validity.from {
            return refused(
                "a certificate must end after it begins; give it a longer lifetime".to_owned(),
            );
        }
        if validity.until > self.ends {
            return refused(format!(
                "a certificate cannot outlive its authority, which ends on {}; give it a shorter lifetime",
                shown(self.ends)
            ));
        }
        Ok(())
    }

    /// The register without certificates that have expired for so long that no clock can be that late.
    fn current(&self) -> Result<Vec<Entry>, IdentityError> {
        let oldest = seconds(SystemTime::now()) - FORGET_AFTER.as_secs() as i64;
        let mut entries = self.register.read()?;
        entries.retain(|entry| entry.expires_s > oldest);
        Ok(entries)
    }

    /// Signs the list anew if there is one, and returns it.
    fn refresh_locked(&self, entries: &[Entry]) -> Result<Option<String>, IdentityError> {
        match self.revocations_file().exists() {
            true => self.write_revocations(entries).map(Some),
            false => Ok(None),
        }
    }

    /// RFC 5280, section 5.
    fn write_revocations(&self, entries: &[Entry]) -> Result<String, IdentityError> {
        let now = SystemTime::now();
        let since_1970 = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let list = CertificateRevocationListParams {
            this_update: now.into(),
            next_update: self.ends.min(now + REVOCATIONS_LAST).into(),
            // Grows with time, as section 5.2.3 demands.
            crl_number: SerialNumber::from(since_1970.as_millis() as u64),
            issuing_distribution_point: None,
            revoked_certs: entries.iter().filter_map(revoked).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let list = list.signed_by(&self.issuer).map_err(making("the revocation list"))?;
        let pem = list.pem().map_err(making("the revocation list"))?;
        files::write(&self.revocations_file(), pem.as_bytes(), files::PUBLIC)?;
        Ok(pem)
    }

    fn nothing_to_revoke(&self, role: &Role, entries: &[Entry]) -> String {
        let valid = entries.iter().filter(|entry| entry.revoked_s.is_none());
        let mut roles: Vec<String> = valid.map(|entry| entry.role.to_string()).collect();
        roles.sort();
        roles.dedup();
        roles.truncate(ROLES_SHOWN);
        let known = if roles.is_empty() { "none".to_owned() } else { roles.join(", ") };
        format!(
            "the authority in {} has no valid certificate of {role}; it has some of: {known}",
            self.folder.display()
        )
    }
}

impl Issued {
    pub(crate) fn of(
        identity: Identity,
        until: SystemTime,
        signed: Signed,
        key: &KeyPair,
    ) -> Issued {
        Issued { identity, until, key: key.serialize_pem(), signed }
    }

    /// The identity.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The end of its validity.
    pub fn until(&self) -> SystemTime {
        self.until
    }

    /// The certificate, as PEM.
    pub fn certificate(&self) -> &str {
        &self.signed.certificate
    }

    /// The private key, as PEM (PKCS #8).
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Writes the files that [`Credentials`](crate::Credentials) reads into a folder, which is made if necessary.
    /// Processes that use the folder take the new certificate for new connections.
    pub fn save(&self, folder: &Path) -> Result<(), IdentityError> {
        use crate::credentials::{AUTHORITIES, CERTIFICATE, KEY, REVOCATIONS};
        files::make_folder(folder)?;
        let write =
            |name, text: &str, mode| files::write(&folder.join(name), text.as_bytes(), mode);
        write(AUTHORITIES, &self.signed.authority, files::PUBLIC)?;
        if let Some(revocations) = &self.signed.revocations {
            write(REVOCATIONS, revocations, files::PUBLIC)?;
        }
        write(KEY, &self.key, files::PRIVATE)?;
        write(CERTIFICATE, &self.signed.certificate, files::PUBLIC)
    }
}

fn own_certificate(fabric: &str) -> Result<(String, String), IdentityError> {
    let (key, now) = (new_key()?, SystemTime::now());
    // Verifiers find an authority, and its revocation list, by name: that of a successor must differ.
    let number = hexadecimal(&drawn_serial()?[..4]);
    let mut params = CertificateParams::default();
    params.not_before = (now - CLOCK_SKEW).into();
    params.not_after = (now + AUTHORITY_LASTS).into();
    params.distinguished_name = name(fabric, &format!("netsum authority {number}"));
    params.subject_alt_names = vec![uri(&format!("{SCHEME}{fabric}"))?];
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let certificate = params.self_signed(&key).map_err(making("the authority's certificate"))?;
    Ok((certificate.pem(), key.serialize_pem()))
}

/// A process's certificate: controllers serve, all others are clients. Switches serve pages of metrics besides; they
/// get the name by which tools that know no identities verify them.
fn leaf(
    identity: &Identity,
    validity: Validity,
    serial: &[u8],
) -> Result<CertificateParams, IdentityError> {
    let mut params = CertificateParams::default();
    params.not_before = validity.from.into();
    params.not_after = validity.until.into();
    params.serial_number = Some(SerialNumber::from_slice(serial));
    params.distinguished_name =
        name(identity.fabric(), &format!("netsum {}", identity.role().kind()));
    params.subject_alt_names = names(identity)?;
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = match identity.role() {
        Role::Controller => vec![ExtendedKeyUsagePurpose::ServerAuth],
        Role::Switch(_) => {
            vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth]
        }
        _ => vec![ExtendedKeyUsagePurpose::ClientAuth],
    };
    params.use_authority_key_identifier_extension = true;
    Ok(params)
}

fn revoked(entry: &Entry) -> Option<RevokedCertParams> {
    Some(RevokedCertParams {
        serial_number: SerialNumber::from(unhexadecimal(&entry.serial)?),
        revocation_time: time(entry.revoked_s?).into(),
        reason_code: Some(RevocationReason::Unspecified),
        invalidity_date: None,
    })
}

fn name(fabric: &str, common: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::OrganizationName, fabric);
    name.push(DnType::CommonName, common);
    name
}

fn names(identity: &Identity) -> Result<Vec<SanType>, IdentityError> {
    let mut names = vec![uri(&identity.to_string())?];
    if let Role::Switch(_) = identity.role() {
        let name = page_name(identity.fabric());
        names.push(SanType::DnsName(name.try_into().map_err(making("the DNS name"))?));
    }
    Ok(names)
}

/// The DNS name in certificates of a fabric's switches; no resolver knows it (RFC 6761, section 6.4).
pub fn page_name(fabric: &str) -> String {
    format!("switch.{fabric}.netsum.invalid")
}

fn uri(text: &str) -> Result<SanType, IdentityError> {
    Ok(SanType::URI(text.try_into().map_err(making("the URI"))?))
}

pub(crate) fn new_key() -> Result<KeyPair, IdentityError> {
    KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(making("a key"))
}

/// 16 random bytes that are a positive number without leading zeros.
fn drawn_serial() -> Result<[u8; 16], IdentityError> {
    let mut serial = [0; 16];
    getrandom::fill(&mut serial).map_err(|error| IdentityError::Making {
        what: "a serial number",
        reason: error.to_string(),
    })?;
    serial[0] = serial[0] & 0x7f | 0x40;
    Ok(serial)
}

pub(crate) fn making<E: std::fmt::Display>(what: &'static str) -> impl Fn(E) -> IdentityError {
    move |error| IdentityError::Making { what, reason: error.to_string() }
}

pub(crate) fn seconds(time: SystemTime) -> i64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64)
}

pub(crate) fn time(seconds: i64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(seconds.max(0) as u64)
}

fn shown(time: SystemTime) -> String {
    let time = x509_parser::time::ASN1Time::from_timestamp(seconds(time));
    time.map_or_else(|_| "a date that cannot be written".to_owned(), |time| time.to_string())
}

const CERTIFICATE: &str = "ca.pem";
const KEY: &str = "ca-key.pem";
const REVOCATIONS: &str = "ca.crl";
const DAY: Duration = Duration::from_secs(24 * 3600);
const CLOCK_SKEW: Duration = Duration::from_secs(300);
const AUTHORITY_LASTS: Duration = Duration::from_secs(3653 * 24 * 3600);
/// Each use of the authority signs the list anew.
const REVOCATIONS_LAST: Duration = Duration::from_secs(365 * 24 * 3600);
/// As long as an operator may serve the authority at a time.
const SERVER_LASTS: Duration = Duration::from_secs(7 * 24 * 3600);
const FORGET_AFTER: Duration = DAY;
const ROLES_SHOWN: usize = 12;
