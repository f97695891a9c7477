//! The compared libraries, as processes.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::ranks::{finish, mpi_driver, root, run_ours};

/// A library.
pub struct Library {
    pub name: &'static str,
    how: How,
}

enum How {
    Ours { flags: &'static [&'static str] },
    Mpi { run: &'static str, flags: &'static [&'static str], program: PathBuf },
    Torch { python: PathBuf, backend: &'static str },
}

/// The libraries that are installed; names the missing ones.
pub fn all() -> Vec<Library> {
    let mut found = vec![
        Library { name: "netsum", how: How::Ours { flags: &[] } },
        Library { name: "netsum-tcp", how: How::Ours { flags: &["--tcp"] } },
    ];
    found.extend(mpi(
        "open-mpi",
        "mpicc.openmpi",
        "mpirun.openmpi",
        &["--allow-run-as-root", "--oversubscribe"],
    ));
    found.extend(mpi("mpich", "mpicc.mpich", "mpirun.mpich", &[]));
    let python = root().join(".venv/bin/python");
    let has_torch = Command::new(&python).args(["-c", "import torch, netsum"]).output();
    if has_torch.is_ok_and(|output| output.status.success()) {
        let torch =
            |name, backend| Library { name, how: How::Torch { python: python.clone(), backend } };
        found.extend([torch("gloo", "gloo"), torch("netsum-torch", "netsum")]);
    } else {
        println!(
            "skipped: gloo and netsum-torch; `make build setup` gives .venv with torch and netsum"
        );
    }
    found
}

fn mpi(
    name: &'static str,
    compiler: &'static str,
    run: &'static str,
    flags: &'static [&'static str],
) -> Option<Library> {
    if let Some(program) = mpi_driver(name, compiler) {
        return Some(Library { name, how: How::Mpi { run, flags, program } });
    }
    println!(
        "skipped: {name}; {compiler} is missing or fails (Debian: openmpi-bin libopenmpi-dev, mpich libmpich-dev)"
    );
    None
}

impl Library {
    /// Seconds per call of each block, by size.
    pub fn run(&self, ranks: usize, sizes: &[u64]) -> Vec<(u64, Vec<f64>)> {
        let sizes: Vec<String> = sizes.iter().map(u64::to_string).collect();
        let lines = match &self.how {
            How::Ours { flags } => {
                let (of, sizes) = (ranks.to_string(), sizes.join(","));
                let words =
                    ["--of", &of, "--blocks", BLOCKS, "--seconds", SECONDS, "--sizes", &sizes];
                let words = words.iter().chain(*flags).map(|word| (*word).to_owned());
                run_ours(ranks, &words.collect::<Vec<_>>())
            }
            How::Mpi { run, flags, program } => {
                let mut command = Command::new(run);
                command.args(*flags).args(["-n", &ranks.to_string()]).arg(program);
                let child = command
                    .args(["sums", BLOCKS, SECONDS])
                    .args(&sizes)
                    .stdout(Stdio::piped())
                    .spawn();
                finish(vec![child.expect("it was found")], Vec::new())
            }
            How::Torch { python, backend } => {
                // Probably still free when the ranks start.
                let port =
                    TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a port");
                let start = |rank: usize| {
                    let mut command = Command::new(python);
                    command.arg(root().join("bench/peers/allreduce.py")).arg(backend);
                    command.args([rank, ranks, port.port().into()].map(|n| n.to_string()));
                    command.args([BLOCKS, SECONDS]).args(&sizes).stdout(Stdio::piped());
                    // netsum prints its path on standard error.
                    command.stderr(Stdio::null()).spawn().expect("it was found")
                };
                finish((0..ranks).map(start).collect(), Vec::new())
            }
        };
        lines.iter().filter_map(|line| parse(line)).collect()
    }
}

/// Parses "bytes seconds seconds …".
fn parse(line: &str) -> Option<(u64, Vec<f64>)> {
    let mut words = line.split_whitespace();
    let bytes = words.next()?.parse().ok()?;
    Some((bytes, words.map(|word| word.parse().ok()).collect::<Option<_>>()?))
}

const BLOCKS: &str = "3";
/// Duration of a block.
const SECONDS: &str = "0.05";
