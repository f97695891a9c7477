//! The compared libraries, as processes.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use netsum_identity::{Authority, Identity, Role, Validity};
use tempfile::TempDir;

use crate::ranks::{mpi_driver, run_ours};

/// A library.
pub struct Library {
    pub name: &'static str,
    how: How,
}

enum How {
    Ours {
        flags: &'static [&'static str],
    },
    /// With credentials in this folder.
    Secured {
        folder: TempDir,
    },
    OpenMpi {
        program: PathBuf,
    },
    Perftest,
}

/// The libraries that are installed; names the missing ones.
pub fn all() -> Vec<Library> {
    let mut found = vec![
        Library { name: "netsum", how: How::Ours { flags: &[] } },
        Library { name: "netsum-tcp", how: How::Ours { flags: &["--tcp"] } },
        Library { name: "netsum-tls", how: How::Secured { folder: credentials() } },
    ];
    if let Some(program) = mpi_driver("open-mpi", "mpicc.openmpi") {
        found.push(Library { name: "open-mpi", how: How::OpenMpi { program } });
    } else {
        println!(
            "skipped: open-mpi; mpicc.openmpi is missing (Debian: openmpi-bin libopenmpi-dev)"
        );
    }
    if Command::new("ucx_perftest").arg("-h").output().is_ok() {
        found.push(Library { name: "ucx", how: How::Perftest });
    } else {
        println!("skipped: ucx; ucx_perftest is missing (Debian: ucx-utils)");
    }
    found
}

impl Library {
    /// Seconds per message by size: half a round trip, exchange, one way; 0 if unsupported.
    pub fn run(&self, sizes: &[usize]) -> Vec<(usize, [f64; 3])> {
        let words: Vec<String> = sizes.iter().map(usize::to_string).collect();
        match &self.how {
            How::Ours { flags } => {
                let flags: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
                ours(&words, &flags)
            }
            How::Secured { folder } => {
                let folder = folder.path().display().to_string();
                ours(&words, &["--tcp".to_owned(), "--credentials".to_owned(), folder])
            }
            How::OpenMpi { program } => {
                let mut command = Command::new("mpirun.openmpi");
                command.args(["--allow-run-as-root", "--oversubscribe", "-n", "2"]).arg(program);
                let output =
                    command.args(["messages", "0.05"]).args(&words).output().expect("it was found");
                String::from_utf8_lossy(&output.stdout).lines().filter_map(parse).collect()
            }
            How::Perftest => {
                let time = |test, bytes| perftest(test, bytes).unwrap_or(0.0);
                let times = |bytes| [time("tag_lat", bytes), 0.0, time("tag_bw", bytes)];
                sizes.iter().map(|&bytes| (bytes, times(bytes))).collect()
            }
        }
    }
}

fn ours(sizes: &[String], flags: &[String]) -> Vec<(usize, [f64; 3])> {
    let words = [&["--sizes".to_owned(), sizes.join(",")], flags].concat();
    run_ours(2, &words).iter().filter_map(|line| parse(line)).collect()
}

/// A folder with the credentials of a tenant.
fn credentials() -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let authority = Authority::create(&folder.path().join("ca"), "bench").expect("an authority");
    let tenant = Identity::new("bench", Role::Tenant("bench".to_owned())).expect("a name");
    let issued = authority.issue(&tenant, Validity::lasting(Duration::from_secs(24 * 3600)));
    issued.and_then(|issued| issued.save(folder.path())).expect("credentials");
    folder
}

/// ucx_perftest's seconds per message over shared memory.
fn perftest(test: &str, bytes: usize) -> Option<f64> {
    let port = TcpListener::bind("127.0.0.1:0").ok()?.local_addr().ok()?.port().to_string();
    let count = ((128 << 20) / bytes).clamp(10, 100_000).to_string();
    let start = |host: Option<&str>| -> Option<Child> {
        let mut command = Command::new("ucx_perftest");
        command.args(host).args([
            "-t",
            test,
            "-s",
            &bytes.to_string(),
            "-n",
            &count,
            "-p",
            &port,
            "-f",
        ]);
        command.env("UCX_TLS", "shm").env("UCX_LOG_LEVEL", "fatal");
        command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().ok()
    };
    let mut server = start(None)?;
    let mut answer = None;
    for _ in 0..50 {
        std::thread::sleep(Duration::from_millis(100));
        let output = start(Some("127.0.0.1"))?.wait_with_output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        // Iterations, then microseconds: 50th percentile, average, overall.
        let numbers = |line: &str| -> Vec<f64> {
            line.split_whitespace().filter_map(|word| word.parse().ok()).collect()
        };
        let last = text.lines().map(numbers).rfind(|numbers| numbers.len() >= 7);
        if let Some(numbers) = last.filter(|_| output.status.success()) {
            answer = Some(numbers[3] * 1e-6);
            break;
        }
    }
    // A server without a client waits forever.
    let _ = if answer.is_none() { server.kill() } else { Ok(()) };
    let _ = server.wait();
    answer
}

/// Parses "bytes seconds seconds seconds".
fn parse(line: &str) -> Option<(usize, [f64; 3])> {
    let mut words = line.split_whitespace();
    let bytes = words.next()?.parse().ok()?;
    let seconds: Vec<f64> = words.map(|word| word.parse().ok()).collect::<Option<_>>()?;
    Some((bytes, seconds.try_into().ok()?))
}
