//! Ranks with credentials: who is refused, and what both sides say. That messages arrive is tested with all other
//! transports ([`super::tests`]).

use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crossbeam_channel::{Sender, unbounded};
use netsum_identity::{Authority, Credentials, Identity, Role, Validity};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, SignatureScheme};
use tempfile::TempDir;

use super::connection::{Buffers, Connection};
use super::secure::Security;
use super::tls::TlsStream;
use super::*;
use crate::NetError;

struct Nobody;

impl Events for Nobody {
    fn control(&self, _: u32, _: Key, _: Vec<u8>) {}
    fn admit(&self, _: u32, _: Key, _: u32) -> bool {
        true
    }
    fn failed(&self, _: &MeshError) {}
}

const LOCAL: Ipv4Addr = Ipv4Addr::LOCALHOST;
const SOON: Duration = Duration::from_secs(20);
/// Long enough for a handshake on a busy machine.
const PATIENCE: Duration = Duration::from_secs(5);

/// Authorities of fabric `lab` in a folder, and credentials of theirs.
pub(super) struct Place(TempDir);

impl Place {
    pub(super) fn new() -> Place {
        Place(tempfile::tempdir().unwrap())
    }

    pub(super) fn authority(&self, name: &str) -> Authority {
        Authority::create(&self.0.path().join(name), "lab").unwrap()
    }

    pub(super) fn issue(&self, authority: &Authority, role: &str) -> Worker {
        let identity = Identity::new("lab", role.parse::<Role>().unwrap()).unwrap();
        let folder = self.0.path().join(role.replace('/', "-"));
        let lifetime = Duration::from_secs(3600);
        authority.issue(&identity, Validity::lasting(lifetime)).unwrap().save(&folder).unwrap();
        Worker(folder)
    }
}

/// The folder of a worker's credentials.
#[derive(Clone)]
pub(super) struct Worker(PathBuf);

impl Worker {
    fn credentials(&self) -> Arc<Credentials> {
        Arc::new(Credentials::open(&self.0).unwrap())
    }

    pub(super) fn listen(&self) -> Listener {
        Listener::bind(LOCAL.into(), Network::Tcp).unwrap().secured(self.credentials()).unwrap()
    }
}

/// A tenant whose credentials last as long as the tests.
pub(super) fn tenant() -> &'static Worker {
    static TENANT: OnceLock<(Place, Worker)> = OnceLock::new();
    let made = TENANT.get_or_init(|| {
        let place = Place::new();
        let worker = place.issue(&place.authority("ca"), "tenant/research");
        (place, worker)
    });
    &made.1
}

fn seat(listener: &Listener, number: u8) -> Seat {
    Seat {
        address: listener.address(),
        secret: [number; SECRET_LEN],
        network_address: None,
        occupant: listener.occupant(),
    }
}

pub(super) fn seats(listeners: &[Listener]) -> Vec<Seat> {
    listeners.iter().zip(0..).map(|(listener, number)| seat(listener, number)).collect()
}

fn join(
    listener: Listener,
    rank: u32,
    seats: &[Seat],
    patience: Duration,
) -> Result<Mesh, NetError> {
    let roster = Roster { group: 7, rank, seats: seats.to_vec() };
    listener.connect(&roster, Instant::now() + patience, SOON, Arc::new(Nobody))
}

/// Connects two ranks that do not accept each other; returns the errors of rank 0 and rank 1.
fn refused(listeners: [Listener; 2], seats: &[Seat]) -> [String; 2] {
    let [low, high] = listeners;
    std::thread::scope(|scope| {
        let low = scope.spawn(|| join(low, 0, seats, PATIENCE).err().unwrap().to_string());
        let high = join(high, 1, seats, PATIENCE).err().unwrap().to_string();
        [low.join().unwrap(), high]
    })
}

fn both_refuse(low: &Worker, high: &Worker, words: [&str; 2]) {
    let listeners = [low.listen(), high.listen()];
    let seats = seats(&listeners);
    let errors = refused(listeners, &seats);
    for (error, words) in errors.iter().zip(words) {
        assert!(error.contains(words), "{error:?} lacks {words:?}");
    }
}

#[test]
fn workers_of_different_roles_form_a_mesh() {
    let place = Place::new();
    let authority = place.authority("ca");
    let workers =
        ["tenant/research", "host/h0", "operator"].map(|role| place.issue(&authority, role));
    let listeners: Vec<_> = workers.iter().map(Worker::listen).collect();
    let seats = seats(&listeners);
    std::thread::scope(|scope| {
        let join = |(listener, rank)| {
            let seats = &seats;
            scope.spawn(move || join(listener, rank, seats, SOON).unwrap())
        };
        let joining: Vec<_> = listeners.into_iter().zip(0..).map(join).collect();
        let meshes: Vec<_> = joining.into_iter().map(|rank| rank.join().unwrap()).collect();
        assert!(meshes.iter().all(|mesh| mesh.failure().is_none()));
    });
}

#[test]
fn a_certificate_of_another_authority_is_refused() {
    let place = Place::new();
    let low = place.issue(&place.authority("ca"), "host/h0");
    let high = place.issue(&place.authority("other"), "host/h1");
    both_refuse(
        &low,
        &high,
        ["does not trust its authority", "ca.pem does not have its authority"],
    );
}

#[test]
fn a_revoked_certificate_is_refused() {
    let place = Place::new();
    let authority = place.authority("ca");
    let revoked = place.issue(&authority, "host/h1");
    authority.revoke(&"host/h1".parse().unwrap()).unwrap();
    // New credentials bring the list along.
    let low = place.issue(&authority, "host/h0");
    both_refuse(
        &low,
        &revoked,
        ["its certificate is refused: it is revoked", "it is revoked; ask for a new one"],
    );
}

/// Reports the failure of a mesh.
struct Failing(Sender<MeshError>);

impl Events for Failing {
    fn control(&self, _: u32, _: Key, _: Vec<u8>) {}
    fn admit(&self, _: u32, _: Key, _: u32) -> bool {
        true
    }
    fn failed(&self, reason: &MeshError) {
        let _ = self.0.send(reason.clone());
    }
}

#[test]
fn an_open_connection_ends_when_the_certificate_is_revoked() {
    let place = Place::new();
    let authority = place.authority("ca");
    let workers = ["host/h0", "host/h1", "host/h2"].map(|role| place.issue(&authority, role));
    let listeners: Vec<_> = workers.iter().map(Worker::listen).collect();
    let seats = seats(&listeners);
    let meshes: Vec<_> = std::thread::scope(|scope| {
        let join = |(listener, rank): (Listener, u32)| {
            let (failing, failed) = unbounded();
            let roster = Roster { group: 7, rank, seats: seats.clone() };
            let until = Instant::now() + SOON;
            scope.spawn(move || {
                let mesh = listener.connect(&roster, until, SOON, Arc::new(Failing(failing)));
                (mesh.unwrap(), failed)
            })
        };
        let joining: Vec<_> = listeners.into_iter().zip(0..).map(join).collect();
        joining.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    authority.revoke(&"host/h1".parse().unwrap()).unwrap();
    let list = place.0.path().join("ca/ca.crl");
    std::fs::copy(list, workers[0].0.join("ca.crl")).unwrap();
    let told = |rank: usize| meshes[rank].1.recv_timeout(SOON).unwrap().to_string();
    let revoked = "its certificate is revoked";
    assert_eq!(told(0), format!("rank 1 is lost: {revoked}"));
    // From rank 0, or from another rank that has heard of it.
    let told: [String; 2] = [1, 2].map(told);
    assert!(told[0].contains("given this rank up"), "{told:?}");
    assert!(told.iter().all(|told| told.ends_with(revoked)), "{told:?}");
}

#[test]
fn certificates_that_are_no_workers_are_refused() {
    let place = Place::new();
    let authority = place.authority("ca");
    let low = place.issue(&authority, "host/h0");
    for role in ["viewer", "switch/rack0"] {
        let high = place.issue(&authority, role);
        let words = format!("it is spiffe://lab/{role}; workers have the certificate of a host");
        both_refuse(&low, &high, [&words, "the other side refused this side's certificate"]);
    }
}

/// A member of the group that claims another rank's seat: it has a certificate of the same tenant, and has read all
/// secrets.
#[test]
fn a_member_cannot_take_the_seat_of_another() {
    let listeners = [(); 3].map(|()| tenant().listen());
    let seats = seats(&listeners[..2]);
    let [low, _high, thief] = listeners;
    let mut seats_of_thief = seats.clone();
    seats_of_thief[1].occupant = thief.occupant();
    std::thread::scope(|scope| {
        let low = scope.spawn(|| join(low, 0, &seats, PATIENCE).err().unwrap().to_string());
        let error = join(thief, 1, &seats_of_thief, PATIENCE).err().unwrap().to_string();
        assert!(error.contains("it refused the hello"), "{error}");
        let error = low.join().unwrap();
        assert!(error.contains("it has not the key that this rank has announced"), "{error}");
    });
}

/// Nor can it answer in another's place.
#[test]
fn a_member_cannot_answer_for_another() {
    let [low, high, thief] = [(); 3].map(|()| Security::new(tenant().credentials()).unwrap());
    let listener = TcpListener::bind((LOCAL, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let seat = |number, security: &Security| Seat {
        address,
        secret: [number; SECRET_LEN],
        network_address: None,
        occupant: Some(security.occupant()),
    };
    let until = Instant::now() + SOON;
    std::thread::scope(|scope| {
        // The thief knows all that rank 0 knows, except its key.
        let stolen = Roster { group: 7, rank: 0, seats: vec![seat(0, &thief), seat(1, &high)] };
        let answering = scope.spawn(move || {
            let stream = listener.accept().unwrap().0;
            thief.answer(&stream, &stolen, until, (&|| false, SOON)).map(|(rank, _)| rank)
        });
        let roster = Roster { group: 7, rank: 1, seats: vec![seat(0, &low), seat(1, &high)] };
        let error = high.call(TcpStream::connect(address).unwrap(), &roster, 0, until);
        let error = error.err().unwrap().to_string();
        assert_eq!(error, "it has not the key that this rank has announced");
        assert_eq!(answering.join().unwrap().unwrap(), 1);
    });
}

#[test]
fn a_rank_that_is_another_than_announced_is_refused() {
    let place = Place::new();
    let authority = place.authority("ca");
    let [low, high] = ["host/h0", "host/h1"].map(|role| place.issue(&authority, role));
    let listeners = [low.listen(), high.listen()];
    let mut seats = seats(&listeners);
    let other = Identity::new("lab", Role::Host("h2".to_owned())).unwrap();
    seats[1].occupant.as_mut().unwrap().identity = other;
    let [error, _] = refused(listeners, &seats);
    let words =
        "it is spiffe://lab/host/h1; that rank has announced itself as spiffe://lab/host/h2";
    assert!(error.contains(words), "{error}");
}

#[test]
fn ranks_with_and_without_credentials_do_not_mix() {
    let listeners = [tenant().listen(), Listener::bind(LOCAL.into(), Network::Tcp).unwrap()];
    let seats = seats(&listeners);
    let [secured, plain] = refused(listeners, &seats);
    assert!(
        secured.contains("rank 1 at") && secured.contains("it has no credentials"),
        "{secured}"
    );
    assert!(plain.contains("rank 0 at") && plain.contains("it has credentials"), "{plain}");
    assert!(plain.contains("set NETSUM_CREDENTIALS for all ranks, or for none"), "{plain}");
}

#[test]
fn a_plain_client_is_told_apart_from_a_rank() {
    let listeners = [tenant().listen(), tenant().listen()];
    let seats = seats(&listeners);
    let [low, _] = listeners;
    let address = low.address();
    let intruder = std::thread::spawn(move || {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(&[b'n'; 48]).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).map(|_| answer)
    });
    let error = join(low, 0, &seats, PATIENCE).err().unwrap().to_string();
    assert!(error.starts_with("ranks [1] have not connected within 5"), "{error}");
    assert!(
        error.contains("refused 127.0.0.1:") && error.contains("it does not speak TLS"),
        "{error}"
    );
    // An alert of TLS, and nothing else.
    let answer = intruder.join().unwrap().unwrap();
    assert_eq!((answer[0], answer.len()), (21, 7), "{answer:?}");
}

#[test]
fn a_server_without_tls_is_named() {
    let plain = TcpListener::bind((LOCAL, 0)).unwrap();
    let listeners = [tenant().listen(), tenant().listen()];
    let mut seats = seats(&listeners);
    seats[0].address = plain.local_addr().unwrap();
    let [_, high] = listeners;
    std::thread::spawn(move || {
        // As a rank without credentials: it reads a hello, and closes.
        for stream in plain.incoming() {
            let _ = stream.unwrap().read(&mut [0; 48]);
        }
    });
    let error = join(high, 1, &seats, PATIENCE).err().unwrap().to_string();
    assert!(error.starts_with("cannot reach rank 0"), "{error}");
    assert!(error.contains("has the other side credentials, too?"), "{error}");
}

/// A connection that sends the beginning of a handshake, byte by byte, ends at the deadline of the handshake.
#[test]
fn a_handshake_that_drips_in_does_not_delay_the_start() {
    let listeners = [tenant().listen(), tenant().listen()];
    let seats = seats(&listeners);
    let address = listeners[0].address();
    let mut dripping = TcpStream::connect(address).unwrap();
    // A record of TLS with a client hello of 512 bytes, of which no more arrives.
    dripping.write_all(&[22, 3, 1, 2, 0, 1, 0, 1]).unwrap();
    std::thread::scope(|scope| {
        let [low, high] = listeners;
        let low = scope.spawn(|| join(low, 0, &seats, SOON).unwrap());
        drop(join(high, 1, &seats, SOON).unwrap());
        drop(low.join().unwrap());
    });
    // The listener has closed the connection, although nothing was refused yet.
    let mut rest = Vec::new();
    let _ = dripping.read_to_end(&mut rest);
    assert!(rest.is_empty(), "{rest:?}");
}

/// Two ends of a connection whose keys must be renewed after `records`.
fn worn_out_after(records: u64) -> [Connection; 2] {
    use rustls::crypto::CipherSuiteCommon;
    use rustls::{SupportedCipherSuite, Tls13CipherSuite};
    let mut provider = rustls::crypto::ring::default_provider();
    let suite = rustls::crypto::ring::cipher_suite::TLS13_AES_128_GCM_SHA256;
    let suite = suite.tls13().expect("it is of TLS 1.3");
    let limited = Tls13CipherSuite {
        common: CipherSuiteCommon {
            suite: suite.common.suite,
            hash_provider: suite.common.hash_provider,
            confidentiality_limit: records,
        },
        hkdf_provider: suite.hkdf_provider,
        aead_alg: suite.aead_alg,
        quic: None,
    };
    // Configurations want it for ever.
    provider.cipher_suites = vec![SupportedCipherSuite::Tls13(Box::leak(Box::new(limited)))];
    let provider = Arc::new(provider);
    let folder = &tenant().0;
    let chain = vec![CertificateDer::from_pem_file(folder.join("identity.pem")).unwrap()];
    let key = PrivateKeyDer::from_pem_file(folder.join("identity-key.pem")).unwrap();
    let server = rustls::ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    let client = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(TrustAnybody))
        .with_no_client_auth();
    let name = netsum_identity::server_name();
    let client = rustls::ClientConnection::new(Arc::new(client), name).unwrap();
    let server = rustls::ServerConnection::new(Arc::new(server)).unwrap();
    let listener = TcpListener::bind((LOCAL, 0)).unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let accepted = listener.accept().unwrap().0;
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| shaken(server.into(), accepted));
        [shaken(client.into(), stream), serving.join().unwrap()]
    })
}

/// The connection after its handshake, non-blocking.
fn shaken(mut session: rustls::Connection, mut stream: TcpStream) -> Connection {
    while session.is_handshaking() {
        session.complete_io(&mut stream).unwrap();
    }
    stream.set_nonblocking(true).unwrap();
    Connection::Tls(Box::new(TlsStream::new(stream, session)))
}

fn write_all(connection: &Connection, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        match connection.write(&[IoSlice::new(bytes)]) {
            Ok(accepted) => bytes = &bytes[accepted..],
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
    }
    while !connection.flush().unwrap() {}
}

fn read_all(connection: &Connection, len: usize) -> Vec<u8> {
    let (mut buffers, mut all) = (Buffers::new(), Vec::new());
    all.extend_from_slice(connection.early(&mut buffers).unwrap());
    while all.len() < len {
        match connection.read(&mut buffers) {
            Ok(arrived) => all.extend_from_slice(arrived.bytes),
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
    }
    all
}

/// A key of AES-GCM is good for some 16 million records, which small messages use up in minutes.
#[test]
fn keys_are_renewed_before_they_are_worn_out() {
    let [one, other] = worn_out_after(50);
    for round in 0..300_u32 {
        let [ping, pong] = [round, !round].map(|number| number.to_be_bytes().repeat(10));
        write_all(&one, &ping);
        assert_eq!(read_all(&other, ping.len()), ping);
        write_all(&other, &pong);
        assert_eq!(read_all(&one, pong.len()), pong);
    }
    // Many records in one write, while the other side writes nothing.
    let long: Vec<u8> = (0..4_000_000_u32).map(|i| (i / 251) as u8).collect();
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| read_all(&other, long.len()));
        write_all(&one, &long);
        assert!(reading.join().unwrap() == long);
    });
}

#[derive(Debug)]
struct TrustAnybody;

impl ServerCertVerifier for TrustAnybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let provider = rustls::crypto::ring::default_provider();
        provider.signature_verification_algorithms.supported_schemes()
    }
}
