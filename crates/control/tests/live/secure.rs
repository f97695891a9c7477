//! A controller with credentials: who may do what over real connections, revocation and renewal.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use netsum_control::client::{
    self, ControllerEndpoint, SwitchClient, SwitchNotice, WorkerClient, WorkerNotice,
};
use netsum_control::{Config, ControlError, Controller, Security, pb};
use netsum_identity::{Authority, Identity, Validity};
use netsum_topo::{Fabric, Tenant};

use crate::scene::{self, Leases, PATIENCE, any_port, hello, join, settings};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// A controller with credentials, and the authority that issues those of its clients.
struct Secure {
    folder: tempfile::TempDir,
    authority: Authority,
    controller: Controller,
}

impl Secure {
    fn start() -> Secure {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::create(&folder.path().join("ca"), &fabric().name).unwrap();
        let own = issue(&authority, folder.path(), "controller");
        let security = Security::of_folder(Some(&own)).unwrap();
        let controller = Controller::start(config(security)).unwrap();
        Secure { folder, authority, controller }
    }

    fn address(&self) -> SocketAddr {
        self.controller.address()
    }

    /// The folder of new credentials.
    fn issue(&self, role: &str) -> PathBuf {
        issue(&self.authority, self.folder.path(), role)
    }

    fn endpoint(&self, role: &str) -> ControllerEndpoint {
        ControllerEndpoint::with_credentials(self.address(), Some(&self.issue(role))).unwrap()
    }

    fn create_job(&self, role: &str, tenant: &str) -> Result<u32, ControlError> {
        let tenant = tenant.to_owned();
        let request = pb::CreateJobRequest { size: 2, tenant, ..Default::default() };
        client::create_job(&self.endpoint(role), request, PATIENCE).map(|reply| reply.job)
    }

    fn worker(&self, role: &str, join: pb::Join) -> (WorkerClient, Receiver<WorkerNotice>) {
        WorkerClient::start(&self.endpoint(role), join, 2).unwrap()
    }

    fn switch(&self, role: &str, name: &'static str) -> (SwitchClient, Receiver<SwitchNotice>) {
        let hello = move || hello(name, &Leases::default());
        SwitchClient::start(&self.endpoint(role), hello).unwrap()
    }

    /// The controller's list of revoked certificates becomes the authority's.
    fn publish_revocations(&self) {
        let own = self.folder.path().join("controller/ca.crl");
        let new = own.with_extension("new");
        std::fs::copy(self.authority.revocations_file(), &new).unwrap();
        std::fs::rename(new, own).unwrap();
    }
}

fn issue(authority: &Authority, folder: &Path, role: &str) -> PathBuf {
    let identity = Identity::new(authority.fabric(), role.parse().unwrap()).unwrap();
    let folder = folder.join(role.replace('/', "-"));
    authority.issue(&identity, Validity::lasting(DAY)).unwrap().save(&folder).unwrap();
    folder
}

/// The usual fabric with tenants a, whose jobs hosts h0 and h1 may join, and b.
fn fabric() -> Fabric {
    let mut tenants = ["default", "a", "b"].map(Tenant::named).to_vec();
    tenants[1].hosts = ["h0", "h1"].map(str::to_owned).to_vec();
    Fabric { tenants, ..scene::fabric() }
}

fn config(security: Security) -> Config {
    Config { fabric: fabric(), listen: any_port(), store: None, settings: settings(), security }
}

fn next<N>(notices: &Receiver<N>) -> N {
    notices.recv_timeout(PATIENCE).unwrap()
}

fn denied<T: std::fmt::Debug>(result: Result<T, ControlError>, words: &str) {
    let error = result.unwrap_err().to_string();
    assert!(error.contains(words), "{error:?} lacks {words:?}");
}

#[test]
fn jobs_are_created_and_stopped_by_their_tenant_or_an_operator() {
    let secure = Secure::start();
    let of_a = secure.create_job("tenant/a", "a").unwrap();
    let of_b = secure.create_job("operator", "b").unwrap();
    let of_default = secure.create_job("tenant/default", "").unwrap();
    denied(
        secure.create_job("tenant/a", "b"),
        "spiffe://leaf-spine/tenant/a may not create a job of tenant \"b\"; that needs a certificate of tenant/b or \
         of an operator",
    );
    denied(secure.create_job("tenant/a", ""), "may not create a job of tenant \"default\"");
    for role in ["host/h0", "switch/rack0", "viewer"] {
        denied(secure.create_job(role, "a"), "may not create a job");
        let stop = client::stop_job(&secure.endpoint(role), of_a, "", PATIENCE);
        denied(stop, "may not stop job");
    }
    let stop = |role, job| client::stop_job(&secure.endpoint(role), job, "", PATIENCE);
    denied(stop("tenant/a", of_b), "may not stop job");
    denied(stop("tenant/a", 9_999_999), "that the controller does not know");
    let rekey = |role, job| client::rekey_job(&secure.endpoint(role), job, PATIENCE);
    denied(rekey("tenant/a", of_b), "may not give job");
    denied(rekey("host/h0", of_a), "a new key");
    rekey("tenant/a", of_a).unwrap();
    rekey("operator", of_b).unwrap();
    stop("tenant/a", of_a).unwrap();
    stop("operator", of_b).unwrap();
    stop("operator", of_default).unwrap();
}

#[test]
fn anybody_of_the_fabric_may_look() {
    let secure = Secure::start();
    let job = secure.create_job("operator", "a").unwrap();
    for role in ["operator", "tenant/b", "host/h0", "switch/rack0", "viewer"] {
        let endpoint = secure.endpoint(role);
        assert_eq!(client::fabric(&endpoint, PATIENCE).unwrap().name, "leaf-spine");
        assert_eq!(client::status(&endpoint, PATIENCE).unwrap().jobs[0].job, job);
        assert_eq!(client::list_jobs(&endpoint, true, PATIENCE).unwrap().jobs.len(), 1);
    }
}

#[test]
fn workers_join_their_tenants_jobs_or_run_on_their_host() {
    let secure = Secure::start();
    let job = secure.create_job("tenant/a", "a").unwrap();
    let refused = |role, rank, words: &str| {
        let (_client, notices) = secure.worker(role, join(job, rank));
        match next(&notices) {
            WorkerNotice::Refused { reason } => assert!(reason.contains(words), "{reason}"),
            other => panic!("{other:?} instead of a refusal"),
        }
    };
    refused("tenant/b", 0, "spiffe://leaf-spine/tenant/b may not join job");
    refused(
        "host/h0",
        1,
        "on host \"h1\"; that needs a certificate of tenant/a or of an operator, or of host/h1",
    );
    refused("switch/rack0", 0, "may not join job");
    refused("viewer", 0, "may not join job");
    let held: Vec<_> = [("tenant/a", 0), ("host/h1", 1)]
        .map(|(role, rank)| {
            let (client, notices) = secure.worker(role, join(job, rank));
            assert_eq!(next(&notices), WorkerNotice::Connected, "{role}");
            client
        })
        .into();
    // A host joins jobs of the tenants that list it only.
    let other = secure.create_job("tenant/b", "b").unwrap();
    let (_client, notices) = secure.worker("host/h1", join(other, 1));
    let words = "that needs a certificate of tenant/b or of an operator; the tenant does not list host \"h1\"";
    match next(&notices) {
        WorkerNotice::Refused { reason } => assert!(reason.contains(words), "{reason}"),
        notice => panic!("{notice:?} instead of a refusal"),
    }
    // The host is that of the address, if the Join names none; an operator may join too.
    let job = secure.create_job("tenant/a", "a").unwrap();
    let unnamed = |rank| pb::Join { host: String::new(), ..join(job, rank) };
    let (_client, notices) = secure.worker("host/h0", unnamed(1));
    assert!(matches!(next(&notices), WorkerNotice::Refused { .. }));
    let (_first, notices) = secure.worker("host/h0", unnamed(0));
    assert_eq!(next(&notices), WorkerNotice::Connected);
    let (_second, notices) = secure.worker("operator", unnamed(1));
    assert_eq!(next(&notices), WorkerNotice::Connected);
    drop(held);
}

#[test]
fn a_job_whose_ranks_all_died_is_over() {
    let secure = Secure::start();
    let job = secure.create_job("tenant/a", "a").unwrap();
    let workers: Vec<_> = (0..2).map(|rank| secure.worker("tenant/a", join(job, rank))).collect();
    for (_, notices) in &workers {
        while !matches!(next(notices), WorkerNotice::Plan(_)) {}
    }
    drop(workers);
    let viewer = secure.endpoint("viewer");
    let end = Instant::now() + PATIENCE;
    while client::status(&viewer, PATIENCE).unwrap().jobs[0].state != "abandoned" {
        assert!(Instant::now() < end, "the job is not over");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_job_that_the_store_lacks_is_resumed_for_its_own_tenant_only() {
    let secure = Secure::start();
    let description =
        pb::CreateJobRequest { size: 2, tenant: "b".to_owned(), ..Default::default() };
    let join = pb::Join { description: Some(description), known_epoch: 1, ..join(4711, 0) };
    let (_client, notices) = secure.worker("tenant/a", join);
    match next(&notices) {
        WorkerNotice::Refused { reason } => {
            assert!(reason.contains("may not join job 4711 of tenant \"b\""), "{reason}");
        }
        other => panic!("{other:?} instead of a refusal"),
    }
}

#[test]
fn only_a_switchs_own_certificate_opens_its_session() {
    let secure = Secure::start();
    for role in ["switch/rack1", "host/h0", "tenant/a", "operator", "viewer"] {
        let (_client, notices) = secure.switch(role, "rack0");
        match next(&notices) {
            SwitchNotice::Refused { reason } => assert_eq!(
                reason,
                format!(
                    "spiffe://leaf-spine/{role} may not be switch \"rack0\"; that needs a certificate of switch/rack0"
                )
            ),
            other => panic!("{other:?} instead of a refusal"),
        }
    }
    let (_client, notices) = secure.switch("switch/rack0", "rack0");
    assert_eq!(next(&notices), SwitchNotice::Connected);
}

#[test]
fn a_revoked_certificate_opens_no_new_connection() {
    let secure = Secure::start();
    let lost = secure.endpoint("tenant/a");
    let operator = secure.endpoint("operator");
    client::status(&lost, PATIENCE).unwrap();
    secure.authority.revoke(&"tenant/a".parse().unwrap()).unwrap();
    secure.publish_revocations();
    denied(
        client::status(&lost, PATIENCE),
        "the other side refused this side's certificate: it is revoked; ask for a new one",
    );
    client::status(&operator, PATIENCE).unwrap();
    client::status(&secure.endpoint("tenant/a"), PATIENCE).unwrap();
}

/// The sessions of a switch and of a worker, and a bystander's.
#[test]
fn a_revoked_certificate_ends_its_open_sessions_and_no_others() {
    let secure = Secure::start();
    let job = secure.create_job("tenant/a", "a").unwrap();
    let (_switch, switch) = secure.switch("switch/rack0", "rack0");
    let (_worker, worker) = secure.worker("tenant/a", join(job, 0));
    let (_bystander, bystander) = secure.switch("switch/rack1", "rack1");
    assert_eq!(next(&switch), SwitchNotice::Connected);
    assert_eq!(next(&worker), WorkerNotice::Connected);
    assert_eq!(next(&bystander), SwitchNotice::Connected);
    for role in ["switch/rack0", "tenant/a"] {
        secure.authority.revoke(&role.parse().unwrap()).unwrap();
    }
    secure.publish_revocations();
    let revoked = "it is revoked; ask for a new one";
    let away = |notice: &SwitchNotice| matches!(notice, SwitchNotice::Away { reason } if reason.contains(revoked));
    while !away(&next(&switch)) {}
    while !matches!(next(&worker), WorkerNotice::Away { .. }) {}
    let viewer = secure.endpoint("viewer");
    let end = Instant::now() + PATIENCE;
    let state = |name: &str| {
        let switches = client::status(&viewer, PATIENCE).unwrap().switches;
        switches.into_iter().find(|switch| switch.name == name).unwrap().state
    };
    while state("rack0") == "up" && Instant::now() < end {}
    assert_ne!(state("rack0"), "up");
    assert_eq!(state("rack1"), "up");
    assert!(bystander.try_iter().all(|notice| !matches!(notice, SwitchNotice::Away { .. })));
}

#[test]
fn renewal_leaves_sessions_alone_and_serves_new_connections() {
    let secure = Secure::start();
    let own = secure.folder.path().join("controller");
    let (switch, notices) = secure.switch("switch/rack0", "rack0");
    assert_eq!(next(&notices), SwitchNotice::Connected);
    let viewer = secure.endpoint("viewer");
    client::status(&viewer, PATIENCE).unwrap();
    secure.authority.renew(&own, Validity::lasting(2 * DAY)).unwrap();
    secure.authority.renew(&secure.folder.path().join("viewer"), Validity::lasting(DAY)).unwrap();
    let renewed = std::fs::read_to_string(own.join("identity.pem")).unwrap();
    let serving = served_certificate(secure.address(), &viewer);
    assert!(renewed.replace('\n', "").contains(&serving), "the old certificate is served");
    let status = client::status(&viewer, PATIENCE).unwrap();
    let rack0 = status.switches.iter().find(|switch| switch.name == "rack0").unwrap();
    assert_eq!(rack0.state, "up");
    assert!(
        notices.try_iter().all(|notice| !matches!(notice, SwitchNotice::Away { .. })),
        "the session was interrupted"
    );
    drop(switch);
}

/// The base64 of the controller's certificate.
fn served_certificate(address: SocketAddr, client: &ControllerEndpoint) -> String {
    let Security::Tls(credentials) = client.security() else { panic!("no credentials") };
    let mut socket = TcpStream::connect(address).unwrap();
    let mut tls =
        rustls::ClientConnection::new(credentials.client(), netsum_identity::server_name())
            .unwrap();
    while tls.is_handshaking() {
        tls.complete_io(&mut socket).unwrap();
    }
    base64(&tls.peer_certificates().unwrap()[0])
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digits = |part: &[u8]| {
        let number = part.iter().fold(0u32, |number, &byte| number << 8 | u32::from(byte));
        let number = number << (8 * (3 - part.len()));
        let digit = |i: usize| DIGITS[(number >> (18 - 6 * i)) as usize % 64] as char;
        (0..=part.len()).map(digit).collect::<String>()
    };
    bytes.chunks(3).map(digits).collect()
}

#[test]
fn whoever_has_no_certificate_is_told_so() {
    let secure = Secure::start();
    denied(
        client::status(&ControllerEndpoint::trusted(secure.address()), PATIENCE),
        "it demands a certificate; set NETSUM_CREDENTIALS",
    );
    // A controller without credentials, and a client with them.
    let plain = Controller::start(config(Security::Trusted)).unwrap();
    let folder = secure.issue("viewer");
    let endpoint = ControllerEndpoint::with_credentials(plain.address(), Some(&folder)).unwrap();
    denied(client::status(&endpoint, PATIENCE), "it does not speak TLS; give it credentials");
}

#[test]
fn a_controller_needs_its_own_certificate() {
    let secure = Secure::start();
    let security = Security::of_folder(Some(&secure.issue("operator"))).unwrap();
    denied(
        Controller::start(config(security)),
        "the certificate is that of spiffe://leaf-spine/operator, not of spiffe://leaf-spine/controller",
    );
    denied(Security::of_folder(Some(Path::new("/nowhere"))), "/nowhere/identity.pem");
}

/// Slow, silent and wrong peers hold neither the controller nor each other.
#[test]
fn broken_handshakes_do_not_disturb_others() {
    let secure = Secure::start();
    let mut silent: Vec<TcpStream> =
        (0..100).map(|_| TcpStream::connect(secure.address()).unwrap()).collect();
    for socket in silent.iter_mut().take(50) {
        socket.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
    }
    client::status(&secure.endpoint("viewer"), PATIENCE).unwrap();
    // Those that sent rubbish get an alert and the end of the connection; the silent ones the end, in time.
    for (i, socket) in silent.iter_mut().enumerate() {
        socket.set_read_timeout(Some(4 * PATIENCE)).unwrap();
        let mut answer = Vec::new();
        let ended = socket.read_to_end(&mut answer);
        assert!(ended.is_ok() || i < 50, "{ended:?}");
        assert_eq!(answer.first().copied(), (i < 50).then_some(21), "{i}");
    }
    client::status(&secure.endpoint("viewer"), PATIENCE).unwrap();
}

/// A subscriber that keeps the lines of the audit log.
#[derive(Clone, Default)]
struct Audit(Arc<Mutex<Vec<u8>>>);

impl Write for Audit {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn every_decision_is_in_the_audit_log() {
    let audit = Audit::default();
    let writer = audit.clone();
    let subscriber = tracing_subscriber::fmt()
        .json()
        .with_env_filter("netsum::audit=info")
        .with_writer(move || writer.clone())
        .finish();
    // The controller's threads are its own; other tests of this program log too.
    tracing::subscriber::set_global_default(subscriber).unwrap();
    let secure = Secure::start();
    let job = secure.create_job("tenant/b", "b").unwrap();
    denied(secure.create_job("tenant/b", "a"), "may not");
    let (_client, notices) = secure.switch("switch/spine1", "spine1");
    assert_eq!(next(&notices), SwitchNotice::Connected);
    client::stop_job(&secure.endpoint("tenant/b"), job, "", PATIENCE).unwrap();
    denied(client::stop_job(&secure.endpoint("tenant/b"), job, "", PATIENCE), "is over");
    let wanted = [
        ("tenant/b", "create_job", "tenant b".to_owned(), format!("created job {job}")),
        ("tenant/b", "create_job", "tenant a".to_owned(), "denied: ".to_owned()),
        ("switch/spine1", "switch_session", "switch spine1".to_owned(), "done".to_owned()),
        ("tenant/b", "stop_job", format!("job {job} of tenant b"), "done".to_owned()),
        ("tenant/b", "stop_job", format!("job {job} of tenant b"), "failed: ".to_owned()),
    ];
    let end = Instant::now() + PATIENCE;
    loop {
        let text = String::from_utf8(audit.0.lock().unwrap().clone()).unwrap();
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let has = |(role, action, object, outcome): &(&str, &str, String, String)| {
            lines.iter().any(|line| {
                let field = |name: &str| line["fields"][name].as_str().unwrap_or_default();
                line["target"] == "netsum::audit"
                    && field("identity") == format!("spiffe://leaf-spine/{role}")
                    && (field("action"), field("object")) == (*action, object.as_str())
                    && field("outcome").starts_with(outcome)
            })
        };
        let missing: Vec<_> = wanted.iter().filter(|entry| !has(entry)).collect();
        if missing.is_empty() {
            return;
        }
        assert!(Instant::now() < end, "{missing:?} are not in\n{text}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn two_hosts_that_hold_all_handshakes_keep_nobody_out() {
    let secure = Secure::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    // As many as there are places. They connect before the viewer does, so they are accepted before it.
    let silent = runtime.block_on(async {
        let mut silent = Vec::new();
        for number in 0..1024 {
            let socket = tokio::net::TcpSocket::new_v4().unwrap();
            let host = [127, 0, 0, 2 + (number % 2) as u8];
            socket.bind(SocketAddr::from((host, 0))).unwrap();
            silent.push(socket.connect(secure.address()).await.unwrap());
        }
        silent
    });
    assert_eq!(client::fabric(&secure.endpoint("viewer"), PATIENCE).unwrap().name, "leaf-spine");
    drop(silent);
}
