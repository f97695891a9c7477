//! Three controllers and three members of etcd, each a process.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use netsum_control::client;

use crate::etcd::EtcdCluster;
use crate::scene::{PATIENCE, at, fabric};

pub const CONTROLLERS: usize = 3;

/// The cluster; its processes end with it.
pub struct ControllerCluster {
    pub etcd: EtcdCluster,
    processes: Vec<Option<Child>>,
    folder: tempfile::TempDir,
}

impl ControllerCluster {
    /// A cluster with a leader; `None`, and a line that says so, where etcd is missing.
    pub fn start() -> Option<ControllerCluster> {
        let etcd = EtcdCluster::start(3)?;
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("fabric.toml"), fabric().to_toml()).unwrap();
        let processes = (0..CONTROLLERS).map(|_| None).collect();
        let mut cluster = ControllerCluster { etcd, processes, folder };
        (0..CONTROLLERS).for_each(|controller| cluster.revive(controller));
        cluster.wait_for_leader(None);
        Some(cluster)
    }

    /// The address of a controller.
    pub fn address(&self, controller: usize) -> String {
        format!("127.{}.8.{}:7700", self.etcd.block(), controller + 1)
    }

    /// All addresses, as clients take them.
    pub fn addresses(&self) -> String {
        let all: Vec<String> = (0..CONTROLLERS).map(|at| self.address(at)).collect();
        all.join(",")
    }

    /// Starts a controller, and returns when it serves.
    pub fn revive(&mut self, controller: usize) {
        let mut process = Command::new(env!("CARGO_BIN_EXE_netsum-controller"))
            .arg("--fabric")
            .arg(self.folder.path().join("fabric.toml"))
            .args(["--listen", &self.address(controller)])
            .args(["--store", &format!("etcd://{}", self.etcd.endpoints())])
            .args(["--min-bytes", "0", "--worker-grace", "0.7"])
            .env_remove("NETSUM_CREDENTIALS")
            .env("RUST_LOG", std::env::var("NETSUM_HA_LOG").unwrap_or("error".to_owned()))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut ready = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut ready).unwrap();
        assert!(ready.starts_with("ready "), "controller {controller}: {ready:?}");
        self.processes[controller] = Some(process);
    }

    /// Kills a controller.
    pub fn kill(&mut self, controller: usize) {
        if let Some(mut process) = self.processes[controller].take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    /// Stops a controller's process, or lets it go on.
    pub fn pause(&self, controller: usize, paused: bool) {
        let Some(process) = &self.processes[controller] else { return };
        let signal = if paused { "-STOP" } else { "-CONT" };
        let kill = Command::new("kill").args([signal, &process.id().to_string()]).status();
        assert!(kill.unwrap().success());
    }

    /// Ends a controller in order.
    pub fn stop(&mut self, controller: usize) {
        let Some(mut process) = self.processes[controller].take() else { return };
        let kill = Command::new("kill").arg(process.id().to_string()).status();
        assert!(kill.unwrap().success());
        assert!(process.wait().unwrap().success());
    }

    /// The controller that leads in the highest term, and that term.
    pub fn leader(&self, except: Option<usize>) -> Option<(usize, u64)> {
        let alive = |at: &usize| self.processes[*at].is_some() && Some(*at) != except;
        let term = |at: usize| {
            let reply = client::leader(&at_one(&self.address(at)), PATIENCE).ok()?;
            (reply.term > 0).then_some((at, reply.term))
        };
        (0..CONTROLLERS).filter(alive).filter_map(term).max_by_key(|(_, term)| *term)
    }

    /// Waits until a controller leads, other than `except`, which is not asked.
    pub fn wait_for_leader(&self, except: Option<usize>) -> (usize, u64) {
        let until = Instant::now() + 4 * PATIENCE;
        loop {
            if let Some(leader) = self.leader(except) {
                return leader;
            }
            assert!(Instant::now() < until, "no controller leads");
            std::thread::yield_now();
        }
    }
}

fn at_one(address: &str) -> client::ControllerEndpoint {
    at(address)
}

impl Drop for ControllerCluster {
    fn drop(&mut self) {
        (0..CONTROLLERS).for_each(|controller| self.kill(controller));
    }
}
