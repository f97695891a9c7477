//! The controller as a process: its start, its end, and what it uses.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use netsum_topo::Fabric;

use crate::fail;

/// The process, and its folder: [`stop`] ends it wherever the benchmark ends.
static RUNNING: Mutex<Option<(Child, tempfile::TempDir)>> = Mutex::new(None);

/// A running controller.
pub struct Daemon {
    id: u32,
    pub port: u16,
}

/// What the process has used, and uses.
#[derive(Clone, Copy)]
pub struct Usage {
    pub cpu: Duration,
    pub memory_bytes: u64,
}

impl Daemon {
    /// Starts the daemon with an SQLite store on all addresses of this machine.
    pub fn start(fabric: &Fabric) -> Daemon {
        let folder = tempfile::tempdir().unwrap_or_else(|error| fail(&error.to_string()));
        let file = folder.path().join("fabric.toml");
        std::fs::write(&file, fabric.to_toml()).unwrap_or_else(|error| fail(&error.to_string()));
        let mut command = Command::new(env!("CARGO_BIN_EXE_netsum-controller"));
        command.arg("--fabric").arg(&file).args(["--listen", "0.0.0.0:0"]);
        command.arg("--store").arg(folder.path().join("store.db"));
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child =
            command.spawn().unwrap_or_else(|error| fail(&format!("the controller: {error}")));
        let mut line = String::new();
        let mut output = BufReader::new(child.stdout.take().expect("it is piped"));
        let read = output.read_line(&mut line);
        let port = line.trim().rsplit_once(':').and_then(|(_, port)| port.parse().ok());
        let id = child.id();
        *RUNNING.lock().expect("nobody panics while it is locked") = Some((child, folder));
        match (read, port) {
            (Ok(_), Some(port)) => Daemon { id, port },
            _ => fail(&format!("the controller did not start: {line:?}")),
        }
    }

    pub fn usage(&self) -> Usage {
        let of = |file| std::fs::read_to_string(format!("/proc/{}/{file}", self.id));
        let (stat, status) = match (of("stat"), of("status")) {
            (Ok(stat), Ok(status)) => (stat, status),
            _ => fail("the controller has ended"),
        };
        let ticks = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
        let ticks: u64 = ticks.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
        let kib: u64 = line.trim().trim_end_matches(" kB").parse().unwrap_or_default();
        let cpu = Duration::from_millis(ticks * 1_000 / TICKS_PER_S);
        Usage { cpu, memory_bytes: kib << 10 }
    }
}

/// Ends the controller, if one runs.
pub fn stop() {
    let running = RUNNING.lock().map(|mut running| running.take());
    if let Ok(Some((mut child, _folder))) = running {
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// Of `/proc`, on every Linux that Rust's standard library supports.
const TICKS_PER_S: u64 = 100;
