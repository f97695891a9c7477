//! `make tls-check`: a controller's own process with credentials refuses each wrong peer with a sentence, which its audit
//! log has, and serves honest clients while thousands of connections stall.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use netsum_control::client::{self, ControllerEndpoint};
use netsum_control::pb;
use netsum_identity::{Authority, Credentials, Identity, Validity, server_name};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, ServerConnection};
use tokio::net::TcpSocket;

use crate::scene::{PATIENCE, fabric};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// A controller in a process of its own, and what it has logged.
struct Process {
    child: Child,
    address: SocketAddr,
    log: Arc<Mutex<Vec<String>>>,
    authority: Authority,
    folder: tempfile::TempDir,
}

impl Process {
    fn start() -> Process {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("fabric.toml");
        std::fs::write(&file, fabric().to_toml()).unwrap();
        let authority = Authority::create(&folder.path().join("ca"), &fabric().name).unwrap();
        let own = issue(&authority, &folder, "controller");
        let mut child = Command::new(env!("CARGO_BIN_EXE_netsum-controller"))
            .args(["--store", "none", "--listen", "127.0.0.1:0", "--json-log", "--fabric"])
            .arg(&file)
            .arg("--credentials")
            .arg(own)
            .env("RUST_LOG", "warn,netsum::audit=info")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("ready ").unwrap().parse().unwrap();
        let log = Arc::new(Mutex::new(Vec::new()));
        let (lines, kept) = (BufReader::new(child.stderr.take().unwrap()).lines(), log.clone());
        std::thread::spawn(move || {
            lines.map_while(Result::ok).for_each(|line| kept.lock().unwrap().push(line));
        });
        Process { child, address, log, authority, folder }
    }

    fn endpoint(&self, role: &str) -> ControllerEndpoint {
        let own = issue(&self.authority, &self.folder, role);
        ControllerEndpoint::with_credentials(self.address, Some(&own)).unwrap()
    }

    /// Waits until the audit log has an outcome with these words.
    fn is_in_the_audit_log(&self, words: &str) {
        let end = Instant::now() + 4 * PATIENCE;
        let has = |line: &String| {
            let line: serde_json::Value = serde_json::from_str(line).unwrap_or_default();
            let outcome = line["fields"]["outcome"].as_str().unwrap_or_default();
            line["target"] == "netsum::audit"
                && outcome.starts_with("denied: ")
                && outcome.contains(words)
        };
        while !self.log.lock().unwrap().iter().any(has) {
            assert!(Instant::now() < end, "{words:?} is not in\n{:#?}", self.log.lock().unwrap());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Resident memory in KiB: now, and the most so far.
    fn memory_kib(&self) -> (u64, u64) {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let field = |name: &str| -> u64 {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.trim_start_matches(':').trim().trim_end_matches(" kB").parse().unwrap()
        };
        (field("VmRSS"), field("VmHWM"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn issue(authority: &Authority, folder: &tempfile::TempDir, role: &str) -> PathBuf {
    let identity = Identity::new(authority.fabric(), role.parse().unwrap()).unwrap();
    let own = folder.path().join(format!("{}-{}", authority.fabric(), role.replace('/', "-")));
    authority.issue(&identity, Validity::lasting(DAY)).unwrap().save(&own).unwrap();
    own
}

/// A client that trusts anybody, with a certificate of that authority.
fn client_of(
    authority: &Authority,
    role: &str,
    validity: Validity,
    protocols: &[&[u8]],
) -> ClientConfig {
    let identity = Identity::new(authority.fabric(), role.parse().unwrap()).unwrap();
    let issued = authority.issue(&identity, validity).unwrap();
    let chain = vec![CertificateDer::from_pem_slice(issued.certificate().as_bytes()).unwrap()];
    let key = PrivateKeyDer::from_pem_slice(issued.key().as_bytes()).unwrap();
    let mut config = builder().with_client_auth_cert(chain, key).unwrap();
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    config
}

fn builder() -> rustls::ConfigBuilder<ClientConfig, rustls::client::WantsClientCert> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(TrustAnybody))
}

/// Completes a handshake as far as the controller lets it, sends `bytes`, and returns whether the controller has sent
/// anything but the end of the connection.
fn is_answered(address: SocketAddr, config: ClientConfig, bytes: &[u8]) -> bool {
    let mut tls = ClientConnection::new(Arc::new(config), server_name()).unwrap();
    let mut socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(4 * PATIENCE)).unwrap();
    let mut stream = rustls::Stream::new(&mut tls, &mut socket);
    // A server refuses a client after the client's own handshake has ended.
    let _ = stream.write_all(bytes).and_then(|()| stream.flush());
    stream.read(&mut [0; 64]).is_ok_and(|count| count > 0)
}

const H2: &[&[u8]] = &[b"h2"];
const HTTP_1: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: controller\r\n\r\n";

#[test]
fn each_wrong_peer_is_refused_with_a_sentence_in_the_audit_log() {
    let process = Process::start();
    let (at, now, ours) = (process.address, SystemTime::now(), &process.authority);
    let valid = Validity::lasting(DAY);
    let other_ca = Authority::create(&process.folder.path().join("other"), ours.fabric()).unwrap();
    let lost = client_of(ours, "tenant/default", valid, H2);
    ours.revoke(&"tenant/default".parse().unwrap()).unwrap();
    let list = process.folder.path().join("new.crl");
    std::fs::copy(ours.revocations_file(), &list).unwrap();
    let own = format!("{}-controller/ca.crl", ours.fabric());
    std::fs::rename(list, process.folder.path().join(own)).unwrap();

    let past = Validity { from: now - 2 * DAY, until: now - DAY };
    let future = Validity { from: now + DAY, until: now + 2 * DAY };
    let refused = [
        ("anonymous", builder().with_no_client_auth(), "it presented no certificate"),
        ("expired", client_of(ours, "operator", past, H2), "it has expired"),
        ("not yet valid", client_of(ours, "operator", future, H2), "it is not valid yet"),
        ("wrong CA", client_of(&other_ca, "operator", valid, H2), "does not have its authority"),
        ("revoked", lost, "it is revoked"),
        ("a server's certificate", client_of(ours, "controller", valid, H2), "can serve"),
        ("HTTP/1.1", client_of(ours, "operator", valid, &[b"http/1.1"]), "does not speak HTTP/2"),
        ("no protocol", client_of(ours, "operator", valid, &[]), "does not speak HTTP/2"),
    ];
    for (name, config, words) in refused {
        assert!(!is_answered(at, config, HTTP_1), "{name}: it was answered");
        process.is_in_the_audit_log(words);
    }
    // Of another fabric; crate identity tests two fabrics under one authority.
    let other = Authority::create(&process.folder.path().join("fabric"), "other").unwrap();
    assert!(!is_answered(at, client_of(&other, "operator", valid, H2), HTTP_1));

    for (bytes, words) in [
        (hello_of_tls(3), "it does not speak TLS 1.3"),
        (hello_of_tls(2), "it does not speak TLS 1.3"),
        (hello_of_tls(1), "it does not speak TLS 1.3"),
        (HTTP_1.to_vec(), "it does not speak TLS; give it credentials"),
        (
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
            "it does not speak TLS; give it credentials",
        ),
    ] {
        process.log.lock().unwrap().clear();
        let mut socket = TcpStream::connect(at).unwrap();
        socket.write_all(&bytes).unwrap();
        let mut answer = Vec::new();
        let _ = socket.read_to_end(&mut answer);
        assert_eq!(answer.first(), Some(&21), "not an alert of TLS: {answer:?}");
        process.is_in_the_audit_log(words);
    }
    // A valid certificate of another role.
    let request = pb::CreateJobRequest { size: 2, ..Default::default() };
    let error = client::create_job(&process.endpoint("viewer"), request, PATIENCE).unwrap_err();
    assert!(error.to_string().contains("viewer may not create a job"), "{error}");
    process.is_in_the_audit_log("viewer may not create a job");
    client::status(&process.endpoint("operator"), PATIENCE).unwrap();
}

/// RFC 5246, section 7.4.1.2, for TLS 1.`minor - 1`: one suite, P-256, no extension `supported_versions`.
fn hello_of_tls(minor: u8) -> Vec<u8> {
    let extensions = [
        &[0x00, 0x0a, 0x00, 0x04, 0x00, 0x02, 0x00, 0x17][..],
        &[0x00, 0x0b, 0x00, 0x02, 0x01, 0x00],
        &[0x00, 0x0d, 0x00, 0x04, 0x00, 0x02, 0x04, 0x03],
    ]
    .concat();
    let mut body =
        [&[0x03, minor][..], &[7; 32], &[0x00, 0x00, 0x02, 0xc0, 0x2b, 0x01, 0x00]].concat();
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

/// A process of the fabric that is no controller, in the controller's place.
#[test]
fn a_client_refuses_a_server_with_a_clients_certificate() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::create(&folder.path().join("ca"), &fabric().name).unwrap();
    let impostor = Credentials::open(&issue(&authority, &folder, "switch/rack0")).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for socket in listener.incoming() {
            let mut tls = ServerConnection::new(impostor.server()).unwrap();
            let mut socket = socket.unwrap();
            let _ = rustls::Stream::new(&mut tls, &mut socket).read(&mut [0]);
        }
    });
    let own = issue(&authority, &folder, "operator");
    let endpoint = ControllerEndpoint::with_credentials(address, Some(&own)).unwrap();
    let error = client::status(&endpoint, PATIENCE).unwrap_err().to_string();
    assert!(error.contains("only a controller's certificate can serve"), "{error}");
}

/// Connections that are silent, that stop in the middle of the handshake, and that send it byte by byte, from 20
/// addresses at once.
#[test]
fn thousands_of_stalled_connections_cost_bounded_memory_and_honest_clients_little() {
    let wanted = std::env::var("NETSUM_TLS_CONNECTIONS").map_or(10_000, |n| n.parse().unwrap());
    let files = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let count =
        files.maximum.map_or(wanted, |most| wanted.min((most as usize).saturating_sub(500)));
    let raised = rustix::process::Rlimit { current: files.maximum, maximum: files.maximum };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, raised).unwrap();
    let process = Process::start();
    let honest = process.endpoint("viewer");
    client::status(&honest, PATIENCE).unwrap();
    let before_kib = process.memory_kib().0;
    let hello = hello(&process);
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let held = Arc::new(Mutex::new(Vec::new()));
    for number in 0..count {
        runtime.spawn(stall(process.address, number, hello.clone(), held.clone()));
    }
    let started = Instant::now();
    let mut longest = Duration::ZERO;
    let mut answers = 0;
    while answers < 5 || held.lock().unwrap().len() < count {
        let asked = Instant::now();
        // The first call can meet the limit of handshakes in progress, which holds for some seconds.
        while client::status(&honest, PATIENCE).is_err() {
            assert!(asked.elapsed() < 8 * PATIENCE, "no answer for an honest client");
        }
        longest = longest.max(asked.elapsed());
        answers += 1;
        assert!(started.elapsed() < 30 * PATIENCE, "the connections were not made");
    }
    let (_, most_kib) = process.memory_kib();
    let made = held.lock().unwrap().iter().filter(|made| **made).count();
    println!(
        "{count} connections ({made} accepted by the system): {answers} answers to an honest client, the slowest after \
         {:.1} s; {} MiB more memory at most",
        longest.as_secs_f64(),
        most_kib.saturating_sub(before_kib) >> 10
    );
    assert!(most_kib < before_kib + (256 << 10), "{before_kib} KiB before, {most_kib} KiB at most");
    runtime.shutdown_background();
    process.is_in_the_audit_log("handshake");
    client::status(&honest, 4 * PATIENCE).unwrap();
}

/// The first bytes of a client of the fabric.
fn hello(process: &Process) -> Arc<[u8]> {
    let config = client_of(&process.authority, "viewer", Validity::lasting(DAY), H2);
    let mut tls = ClientConnection::new(Arc::new(config), server_name()).unwrap();
    let mut bytes = Vec::new();
    tls.write_tls(&mut bytes).unwrap();
    bytes.into()
}

/// Connects, says less than a whole handshake, and stays until the controller ends the connection.
async fn stall(to: SocketAddr, number: usize, hello: Arc<[u8]>, held: Arc<Mutex<Vec<bool>>>) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let from = SocketAddr::from((Ipv4Addr::new(127, 0, 9, (number % 20) as u8 + 1), 0));
    let socket = TcpSocket::new_v4().unwrap();
    let connected = match socket.bind(from) {
        Ok(()) => socket.connect(to).await,
        Err(error) => Err(error),
    };
    held.lock().unwrap().push(connected.is_ok());
    let Ok(mut stream) = connected else { return };
    match number % 3 {
        0 => {}
        1 => drop(stream.write_all(&hello).await),
        _ => {
            for byte in &hello[..] {
                if stream.write_all(&[*byte]).await.is_err() {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
    let _ = stream.read_to_end(&mut Vec::new()).await;
}

#[derive(Debug)]
struct TrustAnybody;

impl rustls::client::danger::ServerCertVerifier for TrustAnybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
        Ok(rustls::client::danger::ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        rustls::crypto::ring::default_provider()
            .signature_verification_algorithms
            .supported_schemes()
    }
}
