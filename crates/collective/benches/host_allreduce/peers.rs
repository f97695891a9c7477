//! The libraries that are compared, as processes.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// One of them.
pub struct Library {
    pub name: &'static str,
    how: How,
}

enum How {
    Ours { flags: &'static [&'static str] },
    Mpi { run: &'static str, flags: &'static [&'static str], program: PathBuf },
    Torch { python: PathBuf, backend: &'static str },
}

/// All that this machine has; the others are named.
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
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("allreduce-{name}"));
    let source = root().join("bench/peers/allreduce.c");
    let built = Command::new(compiler).arg("-O2").arg(source).arg("-o").arg(&program).status();
    if built.is_ok_and(|status| status.success()) {
        return Some(Library { name, how: How::Mpi { run, flags, program } });
    }
    println!(
        "skipped: {name}; {compiler} is missing or fails (Debian: openmpi-bin libopenmpi-dev, mpich libmpich-dev)"
    );
    None
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

impl Library {
    /// Seconds per call of each block, by size.
    pub fn run(&self, ranks: usize, sizes: &[u64]) -> Vec<(u64, Vec<f64>)> {
        let sizes: Vec<String> = sizes.iter().map(u64::to_string).collect();
        let lines = match &self.how {
            How::Ours { flags } => run_ours(ranks, &sizes, flags),
            How::Mpi { run, flags, program } => {
                let mut command = Command::new(run);
                command.args(*flags).args(["-n", &ranks.to_string()]).arg(program);
                let child =
                    command.args([BLOCKS, SECONDS]).args(&sizes).stdout(Stdio::piped()).spawn();
                finish(vec![child.expect("it was found")], Vec::new())
            }
            How::Torch { python, backend } => {
                // Free until the ranks are there, most likely.
                let port =
                    TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a port");
                let start = |rank: usize| {
                    let mut command = Command::new(python);
                    command.arg(root().join("bench/peers/allreduce.py")).arg(backend);
                    command.args([rank, ranks, port.port().into()].map(|n| n.to_string()));
                    command.args([BLOCKS, SECONDS]).args(&sizes).stdout(Stdio::piped());
                    // netsum says which path it takes.
                    command.stderr(Stdio::null()).spawn().expect("it was found")
                };
                finish((0..ranks).map(start).collect(), Vec::new())
            }
        };
        lines.iter().filter_map(|line| parse(line)).collect()
    }
}

/// Hands every rank everybody's address.
fn run_ours(ranks: usize, sizes: &[String], flags: &[&str]) -> Vec<String> {
    let start = |rank: usize| {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["--rank", &rank.to_string(), "--of", &ranks.to_string()]);
        command
            .args(["--blocks", BLOCKS, "--seconds", SECONDS, "--sizes", &sizes.join(",")])
            .args(flags);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("this program")
    };
    let mut children: Vec<Child> = (0..ranks).map(start).collect();
    let mut outputs = Vec::new();
    let mut addresses = String::new();
    for child in &mut children {
        let mut output = BufReader::new(child.stdout.take().expect("piped"));
        output.read_line(&mut addresses).expect("its address");
        outputs.push(output);
    }
    for child in &mut children {
        let input = child.stdin.as_mut().expect("piped");
        input.write_all(addresses.as_bytes()).expect("it waits for addresses");
    }
    finish(children, outputs)
}

/// What the first one prints until all have ended; nothing if one fails.
fn finish(
    mut children: Vec<Child>,
    outputs: Vec<BufReader<std::process::ChildStdout>>,
) -> Vec<String> {
    let first = outputs.into_iter().next();
    let first = first.or_else(|| children[0].stdout.take().map(BufReader::new));
    let lines: Vec<String> =
        first.into_iter().flat_map(BufRead::lines).map_while(Result::ok).collect();
    let ended = children.iter_mut().map(|child| child.wait().is_ok_and(|status| status.success()));
    let failed = ended.filter(|well| !well).count();
    if failed > 0 {
        eprintln!("{failed} of its processes failed");
        return Vec::new();
    }
    lines
}

/// "bytes seconds seconds …".
fn parse(line: &str) -> Option<(u64, Vec<f64>)> {
    let mut words = line.split_whitespace();
    let bytes = words.next()?.parse().ok()?;
    Some((bytes, words.map(|word| word.parse().ok()).collect::<Option<_>>()?))
}

const BLOCKS: &str = "3";
/// Of a block.
const SECONDS: &str = "0.05";
