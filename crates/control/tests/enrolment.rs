//! Machines that join by a token, over real connections: who gets a certificate, and why others get none.

use std::path::{Path, PathBuf};
use std::time::Duration;

use netsum_control::{Attempt, EnrolmentServer, join};
use netsum_identity::{Authority, Credentials, Identity, JoinToken, Validity};
use tempfile::TempDir;

const HOUR: Duration = Duration::from_secs(3600);
const SOON: Duration = Duration::from_secs(20);

/// An authority that is served, and folders of machines.
struct Place {
    folder: TempDir,
    authority: Authority,
    server: EnrolmentServer,
}

impl Place {
    fn new() -> Place {
        let folder = tempfile::tempdir().unwrap();
        let ca = folder.path().join("ca");
        let authority = Authority::create(&ca, "lab").unwrap();
        let server = EnrolmentServer::start(&ca, "127.0.0.1:0".parse().unwrap(), HOUR).unwrap();
        Place { folder, authority, server }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn token(&self, role: &str, lifetime: Duration) -> JoinToken {
        let address = self.server.address().to_string();
        self.authority.token(&role.parse().unwrap(), &address, lifetime).unwrap()
    }

    /// The error of a machine that is refused, and what the server reports.
    fn refused(&self, token: &JoinToken) -> (String, Attempt) {
        let folder = self.path("refused");
        let error = join(token, &folder).err().unwrap().to_string();
        assert!(!folder.exists(), "nothing is left of a machine that is refused");
        (error, self.server.next(SOON).unwrap())
    }

    fn refused_by_the_authority(&self, token: &JoinToken, words: &str) {
        let (error, attempt) = self.refused(token);
        assert!(error.contains(words), "{error}");
        assert!(attempt.outcome.unwrap_err().contains(words));
    }
}

fn text(folder: &Path, file: &str) -> String {
    std::fs::read_to_string(folder.join(file)).unwrap()
}

#[test]
fn a_token_gives_one_machine_a_certificate_of_its_role() {
    let place = Place::new();
    let (token, folder) = (place.token("host/h0", HOUR), place.path("h0"));
    assert_eq!(place.server.open_tokens().unwrap(), 1);
    let issued = join(&token, &folder).unwrap();
    assert_eq!(issued.identity().to_string(), "spiffe://lab/host/h0");
    let attempt = place.server.next(SOON).unwrap();
    assert_eq!(attempt.outcome.unwrap(), "spiffe://lab/host/h0");
    // The files are credentials, of the authority; its folder has nothing of the private key.
    assert_eq!(Credentials::open(&folder).unwrap().identity(), issued.identity());
    assert_eq!(text(&folder, "ca.pem"), place.authority.certificate());
    assert_eq!(place.server.open_tokens().unwrap(), 0);
    place.refused_by_the_authority(&token, "this token was used already");
    // It is in the register: it can be revoked.
    assert_eq!(place.authority.revoke(&"host/h0".parse().unwrap()).unwrap(), 1);
    let error = join(&place.token("host/h0", HOUR), &folder).err().unwrap().to_string();
    assert!(error.contains("h0 has credentials already; name another folder"), "{error}");
    // With a revocation list, new machines get it.
    let later = place.path("later");
    join(&place.token("switch/rack0", HOUR), &later).unwrap();
    assert_eq!(text(&later, "ca.crl"), text(&place.path("ca"), "ca.crl"));
}

#[test]
fn tokens_that_are_wrong_expired_or_for_another_role_are_refused() {
    let place = Place::new();
    let token = place.token("host/h0", HOUR);
    let words: Vec<String> = token.to_string().split(',').map(str::to_owned).collect();
    let with = |at: usize, word: &str| -> JoinToken {
        let mut words = words.clone();
        words[at] = word.to_owned();
        words.join(",").parse().unwrap()
    };
    let unknown = "the authority does not know this token";
    place.refused_by_the_authority(&with(3, &"0".repeat(32)), unknown);
    let other = "this token is for host/h0, not for operator; make another";
    place.refused_by_the_authority(&with(0, "operator"), other);
    let expired = place.token("host/h1", Duration::ZERO);
    place.refused_by_the_authority(&expired, "this token has expired; make another");
    // The token itself is still good.
    join(&token, &place.path("h0")).unwrap();
}

#[test]
fn a_server_that_is_not_the_tokens_authority_gets_no_secret() {
    let (place, impostor) = (Place::new(), Place::new());
    let role = "host/h0".parse().unwrap();
    let address = impostor.server.address().to_string();
    let token = place.authority.token(&role, &address, HOUR).unwrap();
    let (error, attempt) = impostor.refused(&token);
    assert!(error.contains("its authority is not that of the token"), "{error}");
    // The impostor saw the beginning of a handshake.
    assert!(attempt.outcome.is_err());
    // As does another process of the same fabric, such as a switch with its page of metrics.
    let identity = Identity::new("lab", "switch/rack0".parse().unwrap()).unwrap();
    let switch = place.path("switch");
    place.authority.issue(&identity, Validity::lasting(HOUR)).unwrap().save(&switch).unwrap();
    let chain = format!("{}{}", text(&switch, "identity.pem"), place.authority.certificate());
    let error = meet_server(&place, &chain, &text(&switch, "identity-key.pem"));
    assert!(error.contains("a process of the fabric that is not the authority"), "{error}");
}

/// What a machine says that meets a server with this certificate.
fn meet_server(place: &Place, chain: &str, key: &str) -> String {
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    let chain = CertificateDer::pem_slice_iter(chain.as_bytes()).collect::<Result<_, _>>().unwrap();
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let serving = std::thread::spawn(move || {
        let mut session = rustls::ServerConnection::new(std::sync::Arc::new(config)).unwrap();
        let mut socket = listener.accept().unwrap().0;
        while session.is_handshaking() && session.complete_io(&mut socket).is_ok() {}
    });
    let token = place.authority.token(&"host/h0".parse().unwrap(), &address, HOUR).unwrap();
    let error = join(&token, &place.path("refused")).err().unwrap().to_string();
    serving.join().unwrap();
    error
}

#[test]
fn an_authority_that_is_not_served_is_named() {
    let place = Place::new();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let token = place.authority.token(&"viewer".parse().unwrap(), &free.to_string(), HOUR).unwrap();
    let error = join(&token, &place.path("viewer")).err().unwrap().to_string();
    assert!(error.contains(&format!("cannot join by {free}: ")), "{error}");
    assert!(error.contains("does `netsum ca serve` run there?"), "{error}");
}

/// Of two machines with the same token, one gets a certificate.
#[test]
fn a_token_is_used_once_even_at_the_same_time() {
    let place = Place::new();
    let token = place.token("tenant/a", HOUR);
    let joined: Vec<bool> = std::thread::scope(|scope| {
        let join = |name: &'static str| {
            let (token, folder) = (&token, place.path(name));
            scope.spawn(move || join(token, &folder).is_ok())
        };
        let threads = ["m0", "m1", "m2"].map(join);
        threads.map(|thread| thread.join().unwrap()).into()
    });
    assert_eq!(joined.iter().filter(|joined| **joined).count(), 1, "{joined:?}");
}
