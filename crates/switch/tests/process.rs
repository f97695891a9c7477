//! The daemon as a process: its line on stdout, its metrics, its end, its errors.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use netsum_control::client::{self, ControllerEndpoint};
use netsum_control::decide::Settings;
use netsum_control::{Config, Controller, Security};
use netsum_identity::{Authority, Identity, Validity, page_name};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};

struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_netsum-switch"));
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A port that was free a moment ago, on a loopback address that no other call gets: tests run at the same time, and the
/// system gives a port that is free again to the next who asks.
fn free() -> SocketAddr {
    static CALLS: AtomicU8 = AtomicU8::new(1);
    let [.., of_process] = std::process::id().to_be_bytes();
    let address = Ipv4Addr::new(127, 200, of_process, CALLS.fetch_add(1, Ordering::Relaxed));
    TcpListener::bind((address, 0)).unwrap().local_addr().unwrap()
}

fn ready_line(process: &mut Process) -> String {
    let mut line = String::new();
    let out = process.0.stdout.as_mut().unwrap();
    BufReader::new(out).read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}

fn get(address: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn serves_without_a_controller_and_stops_when_asked() {
    let (nobody, listen, metrics) = (free().to_string(), free().to_string(), free());
    let mut process = Process(
        command(&["--name", "s0", "--controller", &nobody, "--listen", &listen])
            .args(["--memory", "1MiB", "--metrics", &metrics.to_string()])
            .spawn()
            .unwrap(),
    );
    assert_eq!(ready_line(&mut process), format!("ready s0 {listen}"));
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    stranger.send_to(b"hello", &listen).unwrap();
    let end = Instant::now() + Duration::from_secs(10);
    let wanted = "netsum_switch_dropped_packets_total{switch=\"s0\",reason=\"unknown_sender\"} 1";
    let mut page = get(metrics, "/metrics");
    while !page.contains(wanted) && Instant::now() < end {
        page = get(metrics, "/metrics");
    }
    assert!(page.starts_with("HTTP/1.1 200 OK\r\n") && page.contains(wanted), "{page}");
    assert!(page.contains("netsum_switch_memory_limit_bytes{switch=\"s0\"} 1048576"), "{page}");
    assert!(page.contains("netsum_switch_leases{switch=\"s0\"} 0"), "{page}");
    assert!(page.ends_with("# EOF\n"), "{page}");
    assert!(get(metrics, "/").starts_with("HTTP/1.1 404"));
    assert_eq!(confinement(&process), ["0000000000000000", "1", "2"]);
    let pid = process.0.id().to_string();
    assert!(Command::new("kill").arg(&pid).status().unwrap().success());
    assert!(process.0.wait().unwrap().success());
}

/// A scraper that takes Prometheus's text format, as curl does. promtool's check is skipped where there is none.
#[test]
fn the_metrics_pass_promtool() {
    let (nobody, listen, metrics) = (free().to_string(), free().to_string(), free());
    let mut process = Process(
        command(&["--name", "s0", "--controller", &nobody, "--listen", &listen])
            .args(["--memory", "1MiB", "--metrics", &metrics.to_string(), "--log", "json"])
            .args(["--threads", "2"])
            .spawn()
            .unwrap(),
    );
    ready_line(&mut process);
    let mut stream = TcpStream::connect(metrics).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: */*\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, page) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.contains("Content-Type: text/plain; version=0.0.4"), "{head}");
    assert!(page.contains("# TYPE netsum_switch_cpu_seconds_total counter\n"), "{page}");
    for thread in 0..2 {
        let leases =
            format!("netsum_switch_thread_leases{{switch=\"s0\",thread=\"{thread}\"}} 0\n");
        assert!(page.contains(&leases), "{page}");
    }
    assert!(page.contains("netsum_switch_memory_limit_bytes{switch=\"s0\"} 1048576\n"), "{page}");
    check_by_promtool(page);
    // Each event of the log is an object with its fields.
    let log = BufReader::new(process.0.stderr.take().unwrap());
    let mut events =
        log.lines().map(|line| serde_json::from_str::<serde_json::Value>(&line.unwrap()).unwrap());
    let listening = events.find(|event| event["target"] == "netsum_switch::daemon").unwrap();
    assert_eq!(listening["level"], "INFO");
    assert_eq!(listening["fields"]["address"], listen);
}

fn check_by_promtool(page: &str) {
    let mut command = Command::new("promtool");
    command.args(["check", "metrics"]).stdin(Stdio::piped());
    let Ok(mut promtool) = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn() else {
        eprintln!("skipped: no promtool; make setup-metrics installs it");
        return;
    };
    promtool.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
    let verdict = promtool.wait_with_output().unwrap();
    let words = [verdict.stdout, verdict.stderr].map(|text| String::from_utf8(text).unwrap());
    assert!(verdict.status.success() && words.iter().all(String::is_empty), "{words:?}");
}

/// Resident memory of the process, in KiB.
fn resident(process: &Process) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{}/status", process.0.id())).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn a_flood_of_strangers_takes_no_memory() {
    let (nobody, listen, metrics) = (free().to_string(), free().to_string(), free());
    let mut process = Process(
        command(&["--name", "s0", "--controller", &nobody, "--listen", &listen])
            .args(["--memory", "1MiB", "--metrics", &metrics.to_string()])
            .spawn()
            .unwrap(),
    );
    ready_line(&mut process);
    let dropped = || {
        let page = get(metrics, "/metrics");
        let line = page.lines().find(|line| line.contains("reason=\"unknown_sender\""));
        line.map_or(0, |line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap())
    };
    // Headers of every protocol, and none; from many addresses. Some packets may be lost on the way.
    let flood = || {
        let strangers: Vec<_> = (0..100).map(|_| UdpSocket::bind("127.0.0.1:0").unwrap()).collect();
        for round in 0..100u8 {
            for stranger in &strangers {
                let packet = [[0x11, 0x12, 0x21, 0x31, round][usize::from(round % 5)]; 1400];
                stranger.send_to(&packet, &listen).unwrap();
            }
        }
    };
    // The first flood touches the receive memory.
    flood();
    while dropped() == 0 {}
    let before = resident(&process);
    (0..5).for_each(|_| flood());
    assert!(dropped() > 0);
    let after = resident(&process);
    assert!(after <= before + MARGIN_KIB, "{before} KiB became {after} KiB");
}

/// Allocators and scrapes of metrics.
const MARGIN_KIB: u64 = 2 << 10;

/// Effective capabilities, whether new privileges are refused, and whether system calls are filtered (2), of the data
/// thread and of all others.
fn confinement(process: &Process) -> [String; 3] {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", process.0.id())).unwrap();
    let of_task = |task: std::fs::DirEntry| {
        let text = std::fs::read_to_string(task.path().join("status")).unwrap();
        ["CapEff:", "NoNewPrivs:", "Seccomp:"].map(|name| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.trim().to_owned()
        })
    };
    let mut all: Vec<[String; 3]> = tasks.map(|task| of_task(task.unwrap())).collect();
    assert!(all.len() > 1, "the data thread is one of them");
    all.dedup();
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0)
}

#[test]
fn the_sandbox_can_be_left_out_and_a_user_must_exist() {
    let (nobody, listen) = (free().to_string(), free().to_string());
    let base = ["--name", "s0", "--controller", &nobody, "--listen", &listen];
    let mut process = Process(command(&base).arg("--no-sandbox").spawn().unwrap());
    assert_eq!(ready_line(&mut process), format!("ready s0 {listen}"));
    assert_eq!(confinement(&process)[2], "0");
    process.0.kill().unwrap();
    process.0.wait().unwrap();
    let mut text = String::new();
    process.0.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    assert!(text.contains("--no-sandbox"), "{text}");
    let got = output(&[&base[..], &["--user", "no such user"]].concat());
    let text = String::from_utf8(got.stderr).unwrap();
    assert!(text.contains("no user \"no such user\" in /etc/passwd"), "{text}");
    assert_eq!(got.status.code(), Some(1));
}

/// Without the in-kernel switch, for any reason, the process reports it and adds everything in user space.
#[test]
fn user_space_handles_packets_that_the_kernel_passes() {
    let (nobody, listen) = (free().to_string(), free().to_string());
    let mut process = Process(
        command(&["--name", "s0", "--controller", &nobody, "--listen", &listen])
            .args(["--dataplane", "xdp", "--port", "nowhere0"])
            .spawn()
            .unwrap(),
    );
    assert_eq!(ready_line(&mut process), format!("ready s0 {listen}"));
    let pid = process.0.id().to_string();
    assert!(Command::new("kill").arg(&pid).status().unwrap().success());
    assert!(process.0.wait().unwrap().success());
    let mut text = String::new();
    process.0.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    assert!(text.contains("no in-kernel switch") && text.contains("reason="), "{text}");
}

fn output(arguments: &[&str]) -> Output {
    command(arguments).output().unwrap()
}

#[test]
fn a_busy_port_and_a_wrong_fabric_are_named() {
    let taken = UdpSocket::bind("127.0.0.1:0").unwrap();
    let listen = taken.local_addr().unwrap().to_string();
    let got = output(&["--name=s0", "--controller=127.0.0.1:1", "--listen", &listen]);
    let text = String::from_utf8(got.stderr).unwrap();
    assert_eq!(got.status.code(), Some(1));
    assert!(text.contains(&listen) && text.contains("choose another port"), "{text}");
    assert!(got.stdout.is_empty());

    let metrics = TcpListener::bind("127.0.0.1:0").unwrap();
    let metrics = metrics.local_addr().unwrap().to_string();
    let listen = free().to_string();
    let got = output(&["--name=s", "--controller=a:1", "--listen", &listen, "--metrics", &metrics]);
    let text = String::from_utf8(got.stderr).unwrap();
    assert!(text.contains(&metrics) && text.contains("--metrics"), "{text}");

    let got = output(&["--name=s0", "--fabric=/nowhere.toml"]);
    let text = String::from_utf8(got.stderr).unwrap();
    assert_eq!(got.status.code(), Some(1));
    assert!(text.contains("/nowhere.toml"), "{text}");
    assert_eq!(output(&["--name=s0"]).status.code(), Some(2));
}

/// Reads the page of metrics as a scraper does, with the usual library and these credentials.
fn read_page(address: SocketAddr, credentials: &Path, fabric: &str) -> std::io::Result<String> {
    let file = |name| credentials.join(name);
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(file("ca.pem")).unwrap()).unwrap();
    let chain = vec![CertificateDer::from_pem_file(file("identity.pem")).unwrap()];
    let key = PrivateKeyDer::from_pem_file(file("identity-key.pem")).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)
        .unwrap();
    let name = ServerName::try_from(page_name(fabric)).unwrap();
    let session = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
    let mut stream = rustls::StreamOwned::new(session, TcpStream::connect(address)?);
    stream.sock.set_read_timeout(Some(Duration::from_secs(10)))?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

#[test]
fn a_switch_proves_who_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let rate = netsum_topo::Rate(10_000_000_000);
    let mut fabric =
        netsum_topo::single_switch(2, rate, netsum_topo::Addressing::default()).unwrap();
    fabric.switches[0].address = free();
    let metrics = free();
    let own = fabric.switches[0].address.to_string();
    let name = fabric.switches[0].name.clone();
    let authority = Authority::create(&folder.path().join("ca"), &fabric.name).unwrap();
    let issue = |role: &str| {
        let identity = Identity::new(&fabric.name, role.parse().unwrap()).unwrap();
        let own = folder.path().join(role.replace('/', "-"));
        let validity = Validity::lasting(Duration::from_secs(3600));
        authority.issue(&identity, validity).unwrap().save(&own).unwrap();
        own
    };
    let security = Security::of_folder(Some(&issue("controller"))).unwrap();
    let (listen, store, settings) = ("127.0.0.1:0".parse().unwrap(), None, Settings::default());
    let config = Config { fabric: fabric.clone(), listen, store, settings, security };
    let controller = Controller::start(config).unwrap();
    let address = controller.address().to_string();
    let start = |credentials: &Path| {
        let mut command = command(&["--name", &name, "--controller", &address, "--listen", &own]);
        command.args(["--metrics", &metrics.to_string()]).arg("--credentials").arg(credentials);
        command
    };

    let other = start(&issue("host/h0")).output().unwrap();
    let words = String::from_utf8(other.stderr).unwrap();
    assert_eq!(other.status.code(), Some(1), "{words}");
    assert!(words.contains(&format!("host/h0, not of switch/{name}; issue one by")), "{words}");
    let nothing = start(&folder.path().join("nothing")).output().unwrap();
    let words = String::from_utf8(nothing.stderr).unwrap();
    assert!(words.contains("nothing/identity.pem: "), "{words}");

    let mut process = Process(start(&issue(&format!("switch/{name}"))).spawn().unwrap());
    assert!(ready_line(&mut process).starts_with("ready"));
    let viewer = issue("viewer");
    let page = read_page(metrics, &viewer, &fabric.name).unwrap();
    assert!(page.starts_with("HTTP/1.1 200 OK\r\n") && page.ends_with("# EOF\n"), "{page}");
    let mut plain = TcpStream::connect(metrics).unwrap();
    plain.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer);
    assert!(answer.len() < 16, "{answer:?}");
    authority.revoke(&"viewer".parse().unwrap()).unwrap();
    let list = folder.path().join(format!("switch-{name}/ca.crl"));
    std::fs::copy(authority.revocations_file(), list).unwrap();
    let error = read_page(metrics, &viewer, &fabric.name).unwrap_err().to_string();
    assert!(error.contains("CertificateRevoked"), "{error}");
    let viewer = ControllerEndpoint::with_credentials(&address, Some(&viewer)).unwrap();
    let end = Instant::now() + Duration::from_secs(20);
    let state =
        || client::status(&viewer, Duration::from_secs(5)).unwrap().switches[0].state.clone();
    while state() != "up" && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(state(), "up");
}
