//! A store in etcd over TLS: members demand certificates of clients, and the controller checks theirs.

use std::net::{IpAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use netsum_control::{Change, EtcdCredentials, EtcdStore, Store};
use netsum_topo::{Addressing, Fabric, Rate, single_switch};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, SanType};
use tempfile::TempDir;

use crate::etcd::EtcdCluster;
use crate::suite::job;

const FABRIC: &str = "lab";

/// An authority of etcd's members and clients.
struct EtcdAuthority {
    certificate: String,
    issuer: Issuer<'static, KeyPair>,
}

impl EtcdAuthority {
    fn new() -> EtcdAuthority {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap().pem();
        EtcdAuthority { certificate, issuer: Issuer::new(params, key) }
    }

    /// A folder with a certificate for these addresses.
    fn issue(&self, folder: &Path, addresses: &[String]) -> PathBuf {
        let mut params = CertificateParams::default();
        let name = |address: &String| SanType::IpAddress(address.parse::<IpAddr>().unwrap());
        params.subject_alt_names = addresses.iter().map(name).collect();
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap().pem();
        std::fs::create_dir_all(folder).unwrap();
        std::fs::write(folder.join("ca.pem"), &self.certificate).unwrap();
        std::fs::write(folder.join("identity.pem"), certificate).unwrap();
        write_private(&folder.join("identity-key.pem"), &key.serialize_pem());
        folder.to_owned()
    }
}

fn write_private(file: &Path, text: &str) {
    std::fs::write(file, text).unwrap();
    std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o600)).unwrap();
}

/// What a store says that cannot begin a term.
fn refused(endpoints: &str, credentials: Option<&Path>) -> String {
    let credentials = credentials.map(|folder| EtcdCredentials::open(folder).unwrap());
    let mut store = EtcdStore::open(endpoints, credentials, FABRIC).unwrap();
    store.begin_term().unwrap_err().to_string()
}

#[test]
fn members_and_clients_know_each_other_by_certificates() {
    let place = TempDir::new().unwrap();
    let folder = |name: &str| place.path().join(name);
    let authority = EtcdAuthority::new();
    let started = EtcdCluster::start_secure(3, |hosts| {
        // Members reach each other from this address, and etcd looks for it in the certificate.
        let all: Vec<String> = hosts.iter().cloned().chain(["127.0.0.1".to_owned()]).collect();
        authority.issue(&folder("members"), &all)
    });
    let Some(etcd) = started else { return };
    let own = authority.issue(&folder("controller"), &[]);
    let mut store =
        EtcdStore::open(&etcd.endpoints(), Some(EtcdCredentials::open(&own).unwrap()), FABRIC)
            .unwrap();
    store.begin_term().unwrap();
    store.load().unwrap();
    store.save(&[Change::NewJob(job(7))]).unwrap();

    // Renewed files, of the same authority, are used by new connections; here those to other members.
    authority.issue(&folder("controller"), &[]);
    store.begin_term().unwrap();
    let jobs: Vec<u32> = store.load().unwrap().jobs.iter().map(|job| job.job).collect();
    assert_eq!(jobs, [7]);

    // A client without a certificate, with one of another authority, and one that trusts another authority.
    let plain = refused(&etcd.endpoints(), None);
    assert!(plain.contains("no member of etcd has answered"), "{plain}");
    let other = EtcdAuthority::new();
    let stranger = other.issue(&folder("stranger"), &[]);
    let trusts_other = refused(&etcd.endpoints(), Some(&stranger));
    assert!(trusts_other.contains("invalid peer certificate"), "{trusts_other}");
    std::fs::write(stranger.join("ca.pem"), &authority.certificate).unwrap();
    let unknown = refused(&etcd.endpoints(), Some(&stranger));
    assert!(unknown.contains("no member of etcd has answered"), "{unknown}");

    // A member at another address than its certificate names, as after a redirection.
    let elsewhere = refused(&redirect(etcd.address(0)), Some(&own));
    assert!(elsewhere.contains("not valid for name"), "{elsewhere}");

    // A controller process with the certificate of a client.
    let fabric = Fabric { name: FABRIC.to_owned(), ..fabric() };
    let file = place.path().join("lab.toml");
    std::fs::write(&file, fabric.to_toml()).unwrap();
    let mut controller = Command::new(env!("CARGO_BIN_EXE_netsum-controller"));
    controller.arg("--fabric").arg(&file);
    controller.args(["--store", &format!("etcd://{}", etcd.endpoints())]);
    controller.arg("--etcd-credentials").arg(&own).env_remove("NETSUM_CREDENTIALS");
    let copied = controller.arg("--backup").arg(place.path().join("backup.db")).output().unwrap();
    let said = String::from_utf8_lossy(&copied.stderr);
    assert!(copied.status.success(), "{said}");
    assert!(String::from_utf8_lossy(&copied.stdout).contains("1 jobs"), "{said}");
}

fn fabric() -> Fabric {
    single_switch(2, Rate(1_000_000_000), Addressing::default()).unwrap()
}

/// An address of this machine whose connections end at `target`.
fn redirect(target: String) -> String {
    let listener = TcpListener::bind("127.0.0.2:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for near in listener.incoming().flatten() {
            let Ok(far) = TcpStream::connect(&target) else { continue };
            let ends = [(&near, &far), (&far, &near)];
            for (from, to) in ends.map(|(a, b)| (a.try_clone().unwrap(), b.try_clone().unwrap())) {
                thread::spawn(move || {
                    let (mut from, mut to) = (from, to);
                    let _ = std::io::copy(&mut from, &mut to);
                    let _ = to.shutdown(std::net::Shutdown::Write);
                });
            }
        }
    });
    address
}

#[test]
fn a_key_that_others_may_read_is_refused() {
    let place = TempDir::new().unwrap();
    let own = EtcdAuthority::new().issue(place.path(), &[]);
    let key = own.join("identity-key.pem");
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).unwrap();
    let error = EtcdCredentials::open(&own).unwrap_err().to_string();
    assert!(error.contains("others may read it (mode 644)"), "{error}");
}
