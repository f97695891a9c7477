//! Real handshakes over sockets: the right pair works, everything else is refused with a sentence at both ends.

#[path = "handshakes/probes.rs"]
mod probes;

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use netsum_identity::{
    Authority, Credentials, Identity, Role, Validity, explain, page_name, peer_identity,
    server_name,
};
use rcgen::{CertificateParams, Issuer, KeyPair, SanType};
use rustls::{ClientConfig, ClientConnection, Connection, ServerConfig, ServerConnection};
use tempfile::TempDir;

const DAY: Duration = Duration::from_secs(24 * 3600);

/// Authorities and credentials in a temporary folder.
struct Place(TempDir);

impl Place {
    fn new() -> Place {
        Place(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn authority(&self, name: &str, fabric: &str) -> Authority {
        Authority::create(&self.path(name), fabric).unwrap()
    }

    /// The folder of new credentials.
    fn issue(&self, authority: &Authority, role: &str) -> PathBuf {
        self.issue_for(authority, role, Validity::lasting(DAY))
    }

    fn issue_for(&self, authority: &Authority, role: &str, validity: Validity) -> PathBuf {
        let identity = Identity::new(authority.fabric(), role.parse().unwrap()).unwrap();
        let folder = self.path(&role.replace('/', "-"));
        authority.issue(&identity, validity).unwrap().save(&folder).unwrap();
        folder
    }

    fn credentials(&self, authority: &Authority, role: &str) -> Credentials {
        Credentials::open(&self.issue(authority, role)).unwrap()
    }
}

/// The peer's identity, or why there is none.
type Outcome = Result<String, String>;

/// A connection's outcome at the server and at the client.
fn meet(server: Arc<ServerConfig>, client: Arc<ClientConfig>) -> (Outcome, Outcome) {
    let connection = ClientConnection::new(client, server_name()).unwrap();
    meet_client(server, |socket| outcome(&mut connection.into(), socket))
}

/// The same with any client.
fn meet_client(
    server: Arc<ServerConfig>,
    client: impl FnOnce(&mut TcpStream) -> Outcome,
) -> (Outcome, Outcome) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let serving = std::thread::spawn(move || {
        let mut socket = listener.accept().unwrap().0;
        outcome(&mut ServerConnection::new(server).unwrap().into(), &mut socket)
    });
    let outcome = client(&mut TcpStream::connect(address).unwrap());
    (serving.join().unwrap(), outcome)
}

fn outcome(connection: &mut Connection, socket: &mut TcpStream) -> Outcome {
    let ended = exchange(connection, socket);
    // The other side reads this side's reason before the connection is reset.
    socket.shutdown(std::net::Shutdown::Write).unwrap();
    let _ = io::copy(socket, &mut io::sink());
    ended.map_err(|error| explain(&error))?;
    Ok(peer_identity(connection).unwrap().to_string())
}

/// The handshake, and a byte in each direction: a server refuses a client after the client's own handshake has ended.
fn exchange(connection: &mut Connection, socket: &mut TcpStream) -> io::Result<()> {
    while connection.is_handshaking() {
        connection.complete_io(socket)?;
    }
    connection.writer().write_all(b"x")?;
    loop {
        connection.complete_io(socket)?;
        match connection.reader().read(&mut [0]) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            read => return read.map(drop),
        }
    }
}

fn refused(outcome: &Outcome, words: &str) {
    let reason = outcome.as_ref().expect_err("it was accepted");
    assert!(reason.contains(words), "{reason:?} lacks {words:?}");
}

/// Both ends refuse: the server with the first words, the client with the others.
fn refused_at_both(outcomes: (Outcome, Outcome), server: &str, client: &str) {
    refused(&outcomes.0, server);
    refused(&outcomes.1, client);
}

#[test]
fn the_right_pair_learns_each_others_identity() {
    let place = Place::new();
    let authority = place.authority("ca", "lab");
    let controller = place.credentials(&authority, "controller");
    for role in ["switch/rack0", "host/h0", "tenant/research", "operator", "viewer"] {
        let client = place.credentials(&authority, role);
        let (server, client) = meet(controller.server(), client.client());
        assert_eq!(server.unwrap(), format!("spiffe://lab/{role}"));
        assert_eq!(client.unwrap(), "spiffe://lab/controller");
    }
}

#[test]
fn certificates_outside_their_validity_are_refused() {
    let place = Place::new();
    let authority = place.authority("ca", "lab");
    let now = SystemTime::now();
    let (past, future) = (
        Validity { from: now - 2 * DAY, until: now - DAY },
        Validity { from: now + DAY, until: now + 2 * DAY },
    );
    let controller = place.credentials(&authority, "controller");
    let client = place.credentials(&authority, "viewer");
    for (validity, words, told) in [
        (past, "it has expired; renew it", "it has expired"),
        (future, "it is not valid yet; compare the clocks", "not valid yet"),
    ] {
        // Opened while valid, so that the peer must notice.
        let viewer = config(&authority, "viewer", validity);
        refused_at_both(meet(controller.server(), viewer.1), words, told);
        let server = config(&authority, "controller", validity);
        refused_at_both(meet(server.0, client.client()), told, words);
        // Between ranks, too.
        let rank = place.credentials(&authority, "host/h0");
        let other = config(&authority, "host/h1", validity);
        refused_at_both(meet(rank.rank_server(), other.1), words, told);
        refused_at_both(meet(other.0, rank.rank_client()), told, words);
    }
}

/// Configurations that do not check the own certificate's times.
fn config(
    authority: &Authority,
    role: &str,
    validity: Validity,
) -> (Arc<ServerConfig>, Arc<ClientConfig>) {
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    let identity = Identity::new(authority.fabric(), role.parse().unwrap()).unwrap();
    let issued = authority.issue(&identity, validity).unwrap();
    let chain = vec![CertificateDer::from_pem_slice(issued.certificate().as_bytes()).unwrap()];
    let key = PrivateKeyDer::from_pem_slice(issued.key().as_bytes()).unwrap();
    configs(authority.certificate(), chain, key)
}

/// Configurations with this certificate, which verify the other side by the usual library alone.
fn configs(
    authority: &str,
    chain: Vec<rustls::pki_types::CertificateDer<'static>>,
    key: rustls::pki_types::PrivateKeyDer<'static>,
) -> (Arc<ServerConfig>, Arc<ClientConfig>) {
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority.as_bytes()).unwrap()).unwrap();
    let clients = rustls::server::WebPkiClientVerifier::builder_with_provider(
        Arc::new(roots),
        provider.clone(),
    );
    let server = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(clients.build().unwrap())
        .with_single_cert(chain.clone(), key.clone_key());
    let client = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(TrustAnybody))
        .with_client_auth_cert(chain, key);
    (Arc::new(server.unwrap()), Arc::new(client.unwrap()))
}

#[derive(Debug)]
struct TrustAnybody;

impl rustls::client::danger::ServerCertVerifier for TrustAnybody {
    fn verify_server_cert(
        &self,
        _: &rustls::pki_types::CertificateDer<'_>,
        _: &[rustls::pki_types::CertificateDer<'_>],
        _: &rustls::pki_types::ServerName<'_>,
        _: &[u8],
        _: rustls::pki_types::UnixTime,
    ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
        Ok(rustls::client::danger::ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &rustls::pki_types::CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &rustls::pki_types::CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        rustls::crypto::ring::default_provider()
            .signature_verification_algorithms
            .supported_schemes()
    }
}

/// A scraper verifies the page's certificate by the usual library, and presents its own.
#[test]
fn the_usual_tools_read_a_page_of_a_switch() {
    use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject};
    let place = Place::new();
    let authority = place.authority("ca", "lab");
    let switch = place.credentials(&authority, "switch/rack0");
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority.certificate().as_bytes()).unwrap()).unwrap();
    let roots = Arc::new(roots);
    let builder = || {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider);
        builder.with_safe_default_protocol_versions().unwrap().with_root_certificates(roots.clone())
    };
    let viewer = place.issue(&authority, "viewer");
    let chain = vec![CertificateDer::from_pem_file(viewer.join("identity.pem")).unwrap()];
    let key = PrivateKeyDer::from_pem_file(viewer.join("identity-key.pem")).unwrap();
    let mut scraper = builder().with_client_auth_cert(chain, key).unwrap();
    scraper.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let scraper = Arc::new(scraper);
    let read = |server, client: Arc<ClientConfig>, name: String| {
        let name = ServerName::try_from(name).unwrap();
        let connection = ClientConnection::new(client, name).unwrap();
        meet_client(server, |socket| {
            exchange(&mut connection.into(), socket)
                .map(|()| String::new())
                .map_err(|e| explain(&e))
        })
    };
    let right = page_name("lab");
    let (served, _) = read(switch.page_server(), scraper.clone(), right.clone());
    assert_eq!(served.unwrap(), "spiffe://lab/viewer");
    // Neither another fabric's switch nor a process without a page passes for one.
    let (_, told) = read(switch.page_server(), scraper.clone(), page_name("other"));
    refused(&told, "not valid for name");
    let host = place.credentials(&authority, "host/h0");
    let (_, told) = read(host.page_server(), scraper, right.clone());
    assert!(told.is_err());
    // Nobody reads it without a certificate, and it is no controller.
    let (served, told) =
        read(switch.page_server(), Arc::new(builder().with_no_client_auth()), right);
    refused(&served, "it presented no certificate");
    refused(&told, "there is none; give credentials");
    let (_, told) = meet(switch.server(), Credentials::open(&viewer).unwrap().client());
    refused(&told, "not the fabric's controller");
}

#[test]
fn another_authority_is_refused() {
    let place = Place::new();
    let (ours, theirs) = (place.authority("ca", "lab"), place.authority("other", "lab"));
    let controller = place.credentials(&ours, "controller");
    let stranger = place.credentials(&theirs, "operator");
    // The client notices first.
    let outcomes = meet(controller.server(), stranger.client());
    refused_at_both(outcomes, "does not trust its authority", "ca.pem does not have its authority");
    // A client that trusts anybody is refused by the server.
    let (_, client) = config(&theirs, "operator", Validity::lasting(DAY));
    let outcomes = meet(controller.server(), client);
    refused_at_both(outcomes, "ca.pem does not have its authority", "does not trust its authority");
}

#[test]
fn revoked_certificates_are_refused_once_the_list_is_there() {
    let place = Place::new();
    let authority = place.authority("ca", "lab");
    let controller = place.credentials(&authority, "controller");
    let (lost, kept) =
        (place.credentials(&authority, "switch/rack0"), place.credentials(&authority, "viewer"));
    assert!(meet(controller.server(), lost.client()).0.is_ok());
    assert_eq!(authority.revoke(&Role::Switch("rack0".to_owned())).unwrap(), 1);
    let list = authority.revocations_file();
    std::fs::copy(&list, controller.folder().join("ca.crl")).unwrap();
    // The running server takes the list for its next connection.
    let outcomes = meet(controller.server(), lost.client());
    refused_at_both(outcomes, "it is revoked", "it is revoked; ask for a new one");
    assert!(meet(controller.server(), kept.client()).0.is_ok());
    // A new certificate of the same role is not revoked.
    let back = place.credentials(&authority, "switch/rack0");
    assert!(meet(controller.server(), back.client()).0.is_ok());
    // A revoked controller is refused by its clients.
    authority.revoke(&Role::Controller).unwrap();
    std::fs::copy(&list, kept.folder().join("ca.crl")).unwrap();
    refused(&meet(controller.server(), kept.client()).1, "it is revoked");
}

#[test]
fn a_list_of_another_authority_or_a_damaged_one_lets_nobody_pass() {
    let place = Place::new();
    let (ours, theirs) = (place.authority("ca", "lab"), place.authority("other", "lab"));
    place.issue(&theirs, "viewer");
    theirs.revoke(&Role::Viewer).unwrap();
    let folder = place.issue(&ours, "controller");
    let viewer = place.credentials(&ours, "viewer");
    std::fs::copy(theirs.revocations_file(), folder.join("ca.crl")).unwrap();
    let controller = Credentials::open(&folder).unwrap();
    refused(&meet(controller.server(), viewer.client()).0, "has no list of its authority");
    std::fs::write(folder.join("ca.crl"), "").unwrap();
    let error = Credentials::open(&folder).unwrap_err().to_string();
    assert!(error.contains("ca.crl: it has no revocation list"), "{error}");
}

#[test]
fn only_a_controller_can_serve() {
    let place = Place::new();
    let authority = place.authority("ca", "lab");
    let (switch, viewer) =
        (place.credentials(&authority, "switch/rack0"), place.credentials(&authority, "viewer"));
    let purpose = "only a controller's certificate can serve";
    refused(&meet(switch.server(), viewer.client()).1, purpose);
    // Even if another authority's certificate does not say what it is for.
    let folder = place.issue(&authority, "operator");
    let uris = ["spiffe://lab/switch/rack0"];
    let server = foreign(&place, &folder, &uris).server();
    refused(
        &meet(server, viewer.client()).1,
        "it is spiffe://lab/switch/rack0, not the fabric's controller",
    );
    // A controller is no client.
    let controller = place.credentials(&authority, "controller");
    refused(&meet(controller.server(), controller.client()).0, purpose);
}

/// Credentials with a certificate of the authority "ca" that `Authority` would not issue, in the place of those in
/// `folder`.
fn foreign(place: &Place, folder: &Path, uris: &[&str]) -> Credentials {
    foreign_files(place, folder, uris);
    Credentials::open(folder).unwrap()
}

fn foreign_files(place: &Place, folder: &Path, uris: &[&str]) {
    let text = |name| std::fs::read_to_string(place.path("ca").join(name)).unwrap();
    let key = KeyPair::from_pem(&text("ca-key.pem")).unwrap();
    let issuer = Issuer::from_ca_cert_pem(&text("ca.pem"), key).unwrap();
    let mut params = CertificateParams::default();
    params.subject_alt_names =
        uris.iter().map(|uri| SanType::URI((*uri).try_into().unwrap())).collect();
    let own = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&own, &issuer).unwrap();
    std::fs::write(folder.join("identity.pem"), certificate.pem()).unwrap();
    std::fs::write(folder.join("identity-key.pem"), own.serialize_pem()).unwrap();
}

#[test]
fn another_fabric_is_refused_even_with_the_same_authority() {
    let place = Place::new();
    let authority = place.authority("ca", "lab");
    let controller = place.credentials(&authority, "controller");
    let folder = place.issue(&authority, "operator");
    let stranger = foreign(&place, &folder, &["spiffe://attic/operator"]);
    // The client expects the controller of its own fabric.
    refused(
        &meet(controller.server(), stranger.client()).1,
        "it is spiffe://lab/controller, of another fabric than \"attic\"",
    );
    let (_, client) = foreign_configs(&place, &authority, &["spiffe://attic/operator"]);
    refused(
        &meet(controller.server(), client).0,
        "it is spiffe://attic/operator, of another fabric than \"lab\"",
    );
}

fn foreign_configs(
    place: &Place,
    authority: &Authority,
    uris: &[&str],
) -> (Arc<ServerConfig>, Arc<ClientConfig>) {
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    let folder = place.path("foreign");
    std::fs::create_dir_all(&folder).unwrap();
    foreign_files(place, &folder, uris);
    let chain = vec![CertificateDer::from_pem_file(folder.join("identity.pem")).unwrap()];
    let key = PrivateKeyDer::from_pem_file(folder.join("identity-key.pem")).unwrap();
    configs(authority.certificate(), chain, key)
}

#[test]
fn a_certificate_needs_exactly_one_identity() {
    let place = Place::new();
    let authority = place.authority("ca", "lab");
    let controller = place.credentials(&authority, "controller");
    for (uris, words) in [
        (&[][..], "the certificate has no identity; it needs the URI spiffe://FABRIC/ROLE"),
        (&["spiffe://lab/viewer", "spiffe://lab/operator"], "the certificate has 2 URIs"),
        (&["https://lab/operator"], "\"https://lab/operator\" is no identity"),
    ] {
        let (_, client) = foreign_configs(&place, &authority, uris);
        refused_at_both(meet(controller.server(), client), words, "see the other side's log");
    }
}

#[test]
fn a_client_without_certificate_is_refused() {
    let place = Place::new();
    let authority = place.authority("ca", "lab");
    let controller = place.credentials(&authority, "controller");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let client = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(TrustAnybody))
        .with_no_client_auth();
    refused_at_both(
        meet(controller.server(), Arc::new(client)),
        "it presented no certificate; give it credentials",
        "there is none; give credentials",
    );
}

#[test]
fn a_client_of_tls_1_2_or_without_tls_is_refused() {
    let place = Place::new();
    let authority = place.authority("ca", "lab");
    let controller = place.credentials(&authority, "controller");
    for (bytes, words) in [
        (client_hello_of_tls_1_2(), "it does not speak TLS 1.3"),
        (
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
            "it does not speak TLS; give it credentials",
        ),
    ] {
        let outcomes = meet_client(controller.server(), |socket| {
            socket.write_all(&bytes).unwrap();
            let mut answer = Vec::new();
            let _ = socket.read_to_end(&mut answer);
            // An alert, and nothing else.
            assert_eq!(answer.first(), Some(&21), "{answer:?}");
            Err(String::new())
        });
        refused(&outcomes.0, words);
    }
}

/// RFC 5246, section 7.4.1.2: one suite, P-256, ECDSA with SHA-256, no extension `supported_versions`.
fn client_hello_of_tls_1_2() -> Vec<u8> {
    let extensions = [
        &[0x00, 0x0a, 0x00, 0x04, 0x00, 0x02, 0x00, 0x17][..],
        &[0x00, 0x0b, 0x00, 0x02, 0x01, 0x00],
        &[0x00, 0x0d, 0x00, 0x04, 0x00, 0x02, 0x04, 0x03],
    ]
    .concat();
    let mut body =
        [&[0x03, 0x03][..], &[7; 32], &[0x00, 0x00, 0x02, 0xc0, 0x2b, 0x01, 0x00]].concat();
    body.extend((extensions.len() as u16).to_be_bytes());
    body.extend(extensions);
    let mut message = vec![0x01, 0x00];
    message.extend((body.len() as u16).to_be_bytes());
    message.extend(body);
    let mut record = vec![0x16, 0x03, 0x01];
    record.extend((message.len() as u16).to_be_bytes());
    record.extend(message);
    record
}

#[test]
fn a_server_without_tls_is_explained() {
    let place = Place::new();
    let authority = place.authority("ca", "lab");
    let client = place.credentials(&authority, "viewer").client();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let serving = std::thread::spawn(move || {
        let mut socket = listener.accept().unwrap().0;
        let _ = socket.read(&mut [0; 4096]);
        socket.shutdown(std::net::Shutdown::Write).unwrap();
        let _ = io::copy(&mut socket, &mut io::sink());
    });
    let mut socket = TcpStream::connect(address).unwrap();
    let mut connection = ClientConnection::new(client, server_name()).unwrap().into();
    let ended = exchange(&mut connection, &mut socket).map_err(|error| explain(&error));
    refused(&ended.map(|()| String::new()), "has the other side credentials, too?");
    drop(socket);
    serving.join().unwrap();
}

#[test]
fn renewed_files_are_used_by_new_connections() {
    let place = Place::new();
    let authority = place.authority("ca", "lab");
    let controller = place.credentials(&authority, "controller");
    let switch = place.credentials(&authority, "switch/rack0");
    let before = (controller.server(), switch.client());
    assert!(Arc::ptr_eq(&before.0, &controller.server()), "unchanged files are not read again");
    authority.renew(switch.folder(), Validity::lasting(2 * DAY)).unwrap();
    authority.renew(controller.folder(), Validity::lasting(2 * DAY)).unwrap();
    assert!(!Arc::ptr_eq(&before.0, &controller.server()));
    assert!(!Arc::ptr_eq(&before.1, &switch.client()));
    assert!(meet(controller.server(), switch.client()).0.is_ok());
    // The old certificate stays valid.
    assert!(meet(controller.server(), before.1).0.is_ok());
    // Files that cannot be used leave the old ones in use, until they are right again.
    let current = switch.client();
    let certificate = std::fs::read(switch.folder().join("identity.pem")).unwrap();
    std::fs::write(switch.folder().join("identity.pem"), "damaged").unwrap();
    assert!(Arc::ptr_eq(&current, &switch.client()));
    std::fs::write(switch.folder().join("identity.pem"), certificate).unwrap();
    assert!(!Arc::ptr_eq(&current, &switch.client()));
    // Another identity is not taken.
    let current = switch.client();
    let other = place.issue(&authority, "switch/rack1");
    for name in ["identity-key.pem", "identity.pem"] {
        std::fs::copy(other.join(name), switch.folder().join(name)).unwrap();
    }
    assert!(Arc::ptr_eq(&current, &switch.client()));
}
