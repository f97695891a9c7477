//! An etcd cluster on loopback, as processes of Debian's etcd-server.

use std::net::TcpStream;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// A cluster; its processes end with it.
pub struct EtcdCluster {
    members: Vec<Option<Child>>,
    block: Block,
    folder: TempDir,
    extra: Vec<String>,
    /// The certificates of members and of their clients, if they use TLS.
    certificates: Option<PathBuf>,
}

/// A block of loopback addresses that nobody else has; `netsum.fabric.reservations` reserves blocks in the same way.
pub struct Block {
    /// The second byte of its addresses.
    pub number: u8,
    _held: UnixDatagram,
}

impl Block {
    pub fn reserve() -> Block {
        let start = std::process::id();
        let free = (0..50).map(|at| 150 + ((start + at) % 50) as u8).find_map(|number| {
            let name = SocketAddr::from_abstract_name(format!("netsum/loopback-{number}")).unwrap();
            Some(Block { number, _held: UnixDatagram::bind_addr(&name).ok()? })
        });
        free.expect("a loopback block is free")
    }
}

impl EtcdCluster {
    /// A cluster of so many members that has elected a leader; `None`, and a line that says so, where etcd is missing.
    pub fn start(count: usize) -> Option<EtcdCluster> {
        EtcdCluster::start_with(count, &[])
    }

    /// The same, with further options of all members.
    pub fn start_with(count: usize, extra: &[&str]) -> Option<EtcdCluster> {
        EtcdCluster::start_over(count, extra, |_| None)
    }

    /// A cluster over TLS, whose members demand certificates of each other and of clients. `certificates`: makes, for
    /// the addresses of the members, a folder with `ca.pem`, `identity.pem` and `identity-key.pem`.
    pub fn start_secure(
        count: usize,
        certificates: impl FnOnce(&[String]) -> PathBuf,
    ) -> Option<EtcdCluster> {
        EtcdCluster::start_over(count, &[], |hosts| Some(certificates(hosts)))
    }

    fn start_over(
        count: usize,
        extra: &[&str],
        certificates: impl FnOnce(&[String]) -> Option<PathBuf>,
    ) -> Option<EtcdCluster> {
        let version = Command::new("etcd").arg("--version").stdout(Stdio::null()).status();
        if version.is_err() {
            eprintln!("skipped: etcd is missing; make setup-etcd installs it");
            return None;
        }
        // Its log is synchronised to disk at each write, which takes long where others write, too.
        let memory = Path::new("/dev/shm");
        let folder = match memory.is_dir() {
            true => tempfile::tempdir_in(memory),
            false => tempfile::tempdir(),
        };
        let extra = extra.iter().map(|option| (*option).to_owned()).collect();
        let (members, folder) = ((0..count).map(|_| None).collect(), folder.unwrap());
        let block = Block::reserve();
        let hosts = (1..=count).map(|member| format!("127.{}.9.{member}", block.number));
        let certificates = certificates(&hosts.collect::<Vec<_>>());
        let mut cluster = EtcdCluster { members, block, folder, extra, certificates };
        (0..count).for_each(|member| cluster.revive(member));
        cluster.wait_ready();
        Some(cluster)
    }

    /// The address of a member.
    pub fn address(&self, member: usize) -> String {
        format!("127.{}.9.{}:2379", self.block.number, member + 1)
    }

    /// All addresses, separated by commas.
    pub fn endpoints(&self) -> String {
        let all: Vec<String> = (0..self.members.len()).map(|at| self.address(at)).collect();
        all.join(",")
    }

    /// The number of the block whose addresses below 9 are free.
    pub fn block(&self) -> u8 {
        self.block.number
    }

    /// Starts a member, again or for the first time.
    pub fn revive(&mut self, member: usize) {
        let scheme = if self.certificates.is_some() { "https" } else { "http" };
        let url = |at: usize, port: u16| {
            format!("{scheme}://127.{}.9.{}:{port}", self.block.number, at + 1)
        };
        let peers: Vec<String> =
            (0..self.members.len()).map(|at| format!("m{at}={}", url(at, 2380))).collect();
        let process = Command::new("etcd")
            .args(["--name", &format!("m{member}")])
            .arg("--data-dir")
            .arg(self.folder.path().join(format!("m{member}")))
            .args(["--listen-client-urls", &url(member, 2379)])
            .args(["--advertise-client-urls", &url(member, 2379)])
            .args(["--listen-peer-urls", &url(member, 2380)])
            .args(["--initial-advertise-peer-urls", &url(member, 2380)])
            .args(["--initial-cluster", &peers.join(",")])
            .args(["--log-level", "error", "--logger", "zap"])
            .args(&self.extra)
            .args(self.tls_options())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        self.members[member] = Some(process.unwrap());
    }

    fn tls_options(&self) -> Vec<String> {
        let Some(folder) = &self.certificates else { return Vec::new() };
        let option = |name: &str, file: &str| format!("--{name}={}", folder.join(file).display());
        ["", "peer-"]
            .into_iter()
            .flat_map(|of| {
                [
                    option(&format!("{of}trusted-ca-file"), "ca.pem"),
                    option(&format!("{of}cert-file"), "identity.pem"),
                    option(&format!("{of}key-file"), "identity-key.pem"),
                    format!("--{of}client-cert-auth=true"),
                ]
            })
            .collect()
    }

    /// Kills a member.
    pub fn kill(&mut self, member: usize) {
        if let Some(mut process) = self.members[member].take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    /// Stops a member's process, or lets it go on.
    pub fn pause(&self, member: usize, paused: bool) {
        if let Some(process) = &self.members[member] {
            let signal = if paused { "-STOP" } else { "-CONT" };
            let kill = Command::new("kill").args([signal, &process.id().to_string()]).status();
            assert!(kill.unwrap().success());
        }
    }

    /// Whether a member's process runs.
    pub fn is_alive(&self, member: usize) -> bool {
        self.members[member].is_some()
    }

    /// Number of members.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Returns when all members answer.
    pub fn wait_ready(&self) {
        let until = Instant::now() + PATIENCE;
        let answers = || {
            let mut health = Command::new("etcdctl");
            health.env("ETCDCTL_API", "3").args(["--endpoints", &self.endpoints()]);
            if let Some(folder) = &self.certificates {
                health.arg("--cacert").arg(folder.join("ca.pem"));
                health.arg("--cert").arg(folder.join("identity.pem"));
                health.arg("--key").arg(folder.join("identity-key.pem"));
            }
            health.args(["endpoint", "health"]).stdout(Stdio::null()).stderr(Stdio::null());
            match health.status() {
                Ok(status) => status.success(),
                // Without its client: when all members listen.
                Err(_) => (0..self.len()).all(|at| TcpStream::connect(self.address(at)).is_ok()),
            }
        };
        while !answers() {
            assert!(Instant::now() < until, "etcd does not answer at {}", self.endpoints());
            std::thread::yield_now();
        }
    }
}

impl Drop for EtcdCluster {
    fn drop(&mut self) {
        (0..self.members.len()).for_each(|member| self.kill(member));
    }
}

/// How long tests wait for what must happen.
pub const PATIENCE: Duration = Duration::from_secs(60);
