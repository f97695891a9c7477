//! The folders of authorities and of credentials, and the errors that name their files.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use netsum_identity::{Authority, Credentials, Identity, IdentityError, Role, Validity};
use rcgen::{CertificateRevocationListParams, Issuer, KeyIdMethod, KeyPair, SerialNumber};

const DAY: Duration = Duration::from_secs(24 * 3600);

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn chmod(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

fn identity(role: Role) -> Identity {
    Identity::new("lab", role).unwrap()
}

fn text(result: Result<impl Sized, IdentityError>) -> String {
    result.err().expect("it was accepted").to_string()
}

#[test]
fn an_authority_is_private_and_is_created_once() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("ca");
    let first = Authority::create(&folder, "lab").unwrap();
    assert_eq!((mode(&folder), mode(&folder.join("ca-key.pem"))), (0o700, 0o600));
    let again = Authority::create(&folder, "lab").unwrap();
    assert_eq!(first.certificate(), again.certificate());
    let error = text(Authority::create(&folder, "attic"));
    assert!(error.contains("the authority of fabric \"lab\", not of \"attic\""), "{error}");
    let error = text(Authority::create(&place.path().join("new"), "a/b"));
    assert!(error.contains("is not the name of a fabric"), "{error}");
    let error = text(Authority::open(&place.path().join("nowhere")));
    assert!(error.contains("nowhere/ca.pem") && error.contains("netsum ca init"), "{error}");
    chmod(&folder.join("ca-key.pem"), 0o644);
    let error = text(Authority::open(&folder));
    assert!(error.contains("ca-key.pem: others may read this key (its mode is 644)"), "{error}");
}

#[test]
fn an_authority_grants_what_its_fabric_may_have() {
    let place = tempfile::tempdir().unwrap();
    let authority = Authority::create(place.path(), "lab").unwrap();
    let other = Identity::new("attic", Role::Operator).unwrap();
    let error = text(authority.issue(&other, Validity::lasting(DAY)));
    assert!(error.contains("it cannot issue spiffe://attic/operator"), "{error}");
    let error = text(authority.issue(&identity(Role::Viewer), Validity::lasting(DAY * 36_500)));
    assert!(error.contains("cannot outlive its authority"), "{error}");
    let now = SystemTime::now();
    let error = text(authority.issue(&identity(Role::Viewer), Validity { from: now, until: now }));
    assert!(error.contains("must end after it begins"), "{error}");
}

#[test]
fn only_valid_certificates_of_the_authority_are_revoked_or_renewed() {
    let place = tempfile::tempdir().unwrap();
    let (ca, own) = (place.path().join("ca"), place.path().join("rack0"));
    let authority = Authority::create(&ca, "lab").unwrap();
    let rack0 = || Role::Switch("rack0".to_owned());
    let error = text(authority.revoke(&rack0()));
    assert!(
        error.contains("no valid certificate of switch/rack0; it has some of: none"),
        "{error}"
    );
    authority.refresh().unwrap();
    assert!(!ca.join("ca.crl").exists());
    for _ in 0..3 {
        authority.issue(&identity(rack0()), Validity::lasting(DAY)).unwrap().save(&own).unwrap();
    }
    authority.issue(&identity(Role::Operator), Validity::lasting(DAY)).unwrap();
    let issued = authority.renew(&own, Validity::lasting(DAY)).unwrap();
    assert_eq!(issued.identity(), &identity(rack0()));
    assert_eq!(authority.revoke(&rack0()).unwrap(), 4, "every certificate of the role");
    let error = text(authority.revoke(&rack0()));
    assert!(error.contains("it has some of: operator"), "{error}");
    let error = text(authority.renew(&own, Validity::lasting(DAY)));
    assert!(error.contains("spiffe://lab/switch/rack0 was revoked"), "{error}");
    // The revocations of earlier days stay in later lists, which new certificates bring along.
    authority.issue(&identity(rack0()), Validity::lasting(DAY)).unwrap().save(&own).unwrap();
    assert_eq!(
        std::fs::read(own.join("ca.crl")).unwrap(),
        std::fs::read(ca.join("ca.crl")).unwrap()
    );
    let elsewhere = Authority::create(&place.path().join("other"), "lab").unwrap();
    let error = text(elsewhere.renew(&own, Validity::lasting(DAY)));
    assert!(error.contains("has not issued this certificate"), "{error}");
}

#[test]
fn several_processes_may_use_an_authority() {
    let place = tempfile::tempdir().unwrap();
    let issue = |rank: usize| {
        let authority = Authority::create(place.path(), "lab").unwrap();
        let role = Role::Host(format!("h{rank}"));
        authority.issue(&identity(role), Validity::lasting(DAY)).unwrap();
    };
    std::thread::scope(|scope| {
        (0..8).for_each(|rank| drop(scope.spawn(move || issue(rank))));
    });
    let authority = Authority::open(place.path()).unwrap();
    for rank in 0..8 {
        assert_eq!(authority.revoke(&Role::Host(format!("h{rank}"))).unwrap(), 1);
    }
}

#[test]
fn credentials_are_read_or_refused_with_file_and_remedy() {
    let place = tempfile::tempdir().unwrap();
    let authority = Authority::create(&place.path().join("ca"), "lab").unwrap();
    let folder = place.path().join("viewer");
    let save = |validity| {
        authority.issue(&identity(Role::Viewer), validity).unwrap().save(&folder).unwrap();
    };
    let error = text(Credentials::open(&folder));
    assert!(error.contains("viewer/identity.pem") && error.contains("netsum ca issue"), "{error}");

    save(Validity::lasting(DAY));
    let viewer = Credentials::open(&folder).unwrap();
    assert_eq!(viewer.identity(), &identity(Role::Viewer));
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    assert!((now_s + 23 * 3600..now_s + 25 * 3600).contains(&viewer.expires_s()));
    assert_eq!((mode(&folder), mode(&folder.join("identity-key.pem"))), (0o700, 0o600));
    chmod(&folder.join("identity-key.pem"), 0o644);
    let error = text(Credentials::open(&folder));
    assert!(
        error.contains("identity-key.pem: others may read this key (its mode is 644)"),
        "{error}"
    );
    assert!(error.contains("chmod 600"), "{error}");

    save(Validity::lasting(DAY));
    std::fs::copy(place.path().join("ca/ca-key.pem"), folder.join("identity-key.pem")).unwrap();
    let error = text(Credentials::open(&folder));
    assert!(
        error.contains("identity-key.pem: this key does not fit the certificate in"),
        "{error}"
    );

    let now = SystemTime::now();
    save(Validity { from: now - 2 * DAY, until: now - DAY });
    let error = text(Credentials::open(&folder));
    assert!(error.contains("identity.pem: the certificate expired on"), "{error}");
    assert!(error.contains("netsum ca renew"), "{error}");
    save(Validity { from: now + DAY, until: now + 2 * DAY });
    let error = text(Credentials::open(&folder));
    assert!(error.contains("identity.pem: the certificate is not valid before"), "{error}");

    save(Validity::lasting(DAY));
    std::fs::copy(place.path().join("ca/ca.pem"), folder.join("identity.pem")).unwrap();
    let error = text(Credentials::open(&folder));
    assert!(error.contains("\"spiffe://lab\" is no identity"), "{error}");

    save(Validity::lasting(DAY));
    std::fs::write(folder.join("ca.crl"), old_list(&place.path().join("ca"))).unwrap();
    let error = text(Credentials::open(&folder));
    assert!(error.contains("ca.crl: a revocation list ended on"), "{error}");
    std::fs::remove_file(folder.join("ca.crl")).unwrap();
    std::fs::write(folder.join("ca.pem"), "nothing").unwrap();
    let error = text(Credentials::open(&folder));
    assert!(error.contains("ca.pem: it has no certificate in PEM"), "{error}");
    std::fs::write(folder.join("ca.pem"), vec![b'x'; 2 << 20]).unwrap();
    let error = text(Credentials::open(&folder));
    assert!(error.contains("ca.pem: it has more than 1048576 bytes"), "{error}");
}

/// A revocation list of the authority in a folder that ended yesterday.
fn old_list(folder: &Path) -> String {
    let text = |name| std::fs::read_to_string(folder.join(name)).unwrap();
    let key = KeyPair::from_pem(&text("ca-key.pem")).unwrap();
    let issuer = Issuer::from_ca_cert_pem(&text("ca.pem"), key).unwrap();
    let list = CertificateRevocationListParams {
        this_update: (SystemTime::now() - 2 * DAY).into(),
        next_update: (SystemTime::now() - DAY).into(),
        crl_number: SerialNumber::from(1),
        issuing_distribution_point: None,
        revoked_certs: Vec::new(),
        key_identifier_method: KeyIdMethod::Sha256,
    };
    list.signed_by(&issuer).unwrap().pem().unwrap()
}
