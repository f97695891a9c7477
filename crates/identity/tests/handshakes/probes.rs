//! What a scanner of TLS tries, at every kind of listener: old versions, a second handshake, resumed sessions, early
//! data, other names and other protocols.

use std::process::{Command, Stdio};

use rustls::pki_types::ServerName;
use rustls::{HandshakeKind, Stream};

use super::*;

struct Probed {
    name: &'static str,
    server: Arc<ServerConfig>,
    /// Of a client that may connect.
    client: Arc<ClientConfig>,
}

/// The listeners of a fabric: the controller's, a rank's, and a switch's page of metrics.
fn listeners(place: &Place) -> [Probed; 3] {
    let authority = place.authority("ca", "lab");
    let roles = ["controller", "tenant/a", "switch/rack0", "viewer"];
    let [controller, rank, switch, viewer] = roles.map(|role| place.credentials(&authority, role));
    // A page's readers compare DNS names, or nothing.
    let mut reader = ClientConfig::clone(&viewer.client());
    reader.dangerous().set_certificate_verifier(Arc::new(TrustAnybody));
    reader.alpn_protocols = vec![b"http/1.1".to_vec()];
    [
        Probed { name: "controller", server: controller.server(), client: viewer.client() },
        Probed { name: "rank", server: rank.rank_server(), client: rank.rank_client() },
        Probed { name: "page", server: switch.page_server(), client: Arc::new(reader) },
    ]
}

#[test]
fn versions_before_tls_1_3_are_refused_everywhere() {
    let place = Place::new();
    for Probed { name, server, .. } in listeners(&place) {
        for minor in 0..4 {
            let mut hello = client_hello_of_tls_1_2();
            // After the headers of record and message; 3.0 is SSL 3.
            hello[9..11].copy_from_slice(&[3, minor]);
            let outcomes = meet_client(server.clone(), |socket| {
                socket.write_all(&hello).unwrap();
                let mut answer = Vec::new();
                let _ = socket.read_to_end(&mut answer);
                assert_eq!(
                    (answer.first(), answer.len()),
                    (Some(&21), 7),
                    "no lone alert: {answer:?}"
                );
                Err(String::new())
            });
            assert!(outcomes.0.is_err(), "{name} takes version 3.{minor}");
        }
    }
}

/// Renegotiation: TLS 1.3 has none, so a handshake within a connection ends it.
#[test]
fn a_second_handshake_ends_the_connection() {
    let place = Place::new();
    for Probed { name, server, client } in listeners(&place) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut far = listener.accept().unwrap().0;
        let serving = std::thread::spawn(move || {
            let mut session = ServerConnection::new(server).unwrap();
            let mut stream = Stream::new(&mut session, &mut far);
            let first = stream.read(&mut [0]);
            stream.write_all(b"y").unwrap();
            (first, stream.read(&mut [0]))
        });
        let mut session = ClientConnection::new(client, server_name()).unwrap();
        // What follows the answer is not read together with the byte.
        let mut stream = Stream::new(&mut session, &mut near);
        stream.write_all(b"x").unwrap();
        stream.read_exact(&mut [0]).unwrap();
        near.write_all(&client_hello_of_tls_1_2()).unwrap();
        let (first, second) = serving.join().unwrap();
        assert_eq!(first.unwrap(), 1, "{name}");
        let error = second.expect_err("a handshake within a connection was taken");
        assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{name}: {error}");
    }
}

/// A resumed session, and data before its handshake has ended, would pass by the verification of certificates.
#[test]
fn no_session_is_resumed_and_no_early_data_taken() {
    let place = Place::new();
    for Probed { name, server, client } in listeners(&place) {
        let mut keen = ClientConfig::clone(&client);
        keen.resumption = rustls::client::Resumption::in_memory_sessions(8);
        keen.enable_early_data = true;
        let keen = Arc::new(keen);
        for _ in 0..2 {
            let outcomes = meet_client(server.clone(), |socket| {
                let mut session = ClientConnection::new(keen.clone(), server_name()).unwrap();
                assert!(session.early_data().is_none(), "{name} has given a ticket");
                let mut connection = Connection::from(session);
                let found = outcome(&mut connection, socket);
                assert_eq!(connection.handshake_kind(), Some(HandshakeKind::Full), "{name}");
                found
            });
            assert!(outcomes.0.is_ok() && outcomes.1.is_ok(), "{name}: {outcomes:?}");
        }
    }
}

/// The identity is in the certificate: what a client calls the server changes nothing, for good or bad.
#[test]
fn a_name_in_the_handshake_has_no_meaning() {
    let place = Place::new();
    for Probed { name, server, client } in listeners(&place) {
        let mut named = ClientConfig::clone(&client);
        named.enable_sni = true;
        for called in ["bank.example.com", "controller.netsum.invalid", "127.0.0.1"] {
            let called = ServerName::try_from(called).unwrap();
            let outcomes = meet_client(server.clone(), |socket| {
                let session = ClientConnection::new(Arc::new(named.clone()), called).unwrap();
                outcome(&mut session.into(), socket)
            });
            assert!(outcomes.0.is_ok() && outcomes.1.is_ok(), "{name}: {outcomes:?}");
        }
    }
    // A process of another role under the controller's name is none.
    let authority = Authority::open(&place.path("ca")).unwrap();
    let switch = place.credentials(&authority, "switch/rack1");
    let client = place.credentials(&authority, "viewer").client();
    let (_, outcome) = meet(switch.server(), client);
    refused(&outcome, "only a controller's certificate can serve");
}

/// Each listener has a protocol of its own, so nobody is led from one to another.
#[test]
fn a_client_of_another_listener_is_refused() {
    let place = Place::new();
    let all = listeners(&place);
    for to in &all {
        for from in &all {
            let mut client = ClientConfig::clone(&from.client);
            client.dangerous().set_certificate_verifier(Arc::new(TrustAnybody));
            let (server, _) = meet(to.server.clone(), Arc::new(client));
            assert_eq!(
                server.is_ok(),
                to.name == from.name,
                "{} at {}: {server:?}",
                from.name,
                to.name
            );
        }
    }
}

/// The same with the tool that everybody has.
#[test]
fn openssl_is_refused_with_old_versions_and_without_a_certificate() {
    if Command::new("openssl").arg("version").stdout(Stdio::null()).status().is_err() {
        eprintln!("skipped: openssl is missing; install it with your system's packages");
        return;
    }
    let place = Place::new();
    let [Probed { server, .. }, ..] = listeners(&place);
    let viewer = place.path("viewer");
    let file = |name: &str| viewer.join(name).display().to_string();
    let (cert, key) = (file("identity.pem"), file("identity-key.pem"));
    let own = ["-cert", &*cert, "-key", &*key];
    let cases: [(&[&str], bool); 6] = [
        (&["-tls1", "-cipher", "ALL:@SECLEVEL=0"], false),
        (&["-tls1_1", "-cipher", "ALL:@SECLEVEL=0"], false),
        (&["-tls1_2"], false),
        (&["-tls1_3"], false),
        (&["-tls1_3", "-alpn", "http/1.1", own[0], own[1], own[2], own[3]], false),
        (&["-tls1_3", "-alpn", "h2", own[0], own[1], own[2], own[3]], true),
    ];
    for (options, taken) in cases {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let server = server.clone();
        let serving = std::thread::spawn(move || {
            let mut socket = listener.accept().unwrap().0;
            let mut session = ServerConnection::new(server).unwrap();
            while session.is_handshaking() {
                session.complete_io(&mut socket).map_err(|error| explain(&error))?;
            }
            Ok::<_, String>(peer_identity(&session).unwrap().to_string())
        });
        let mut client = Command::new("openssl");
        client.args(["s_client", "-connect", &address]).args(options);
        client.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        client.status().unwrap();
        let found = serving.join().unwrap();
        assert_eq!(found.is_ok(), taken, "{options:?}: {found:?}");
        if taken {
            assert_eq!(found.unwrap(), "spiffe://lab/viewer");
        }
    }
}
