//! The libraries that are compared, as processes.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// One of them.
pub struct Library {
    pub name: &'static str,
    how: How,
}

enum How {
    Ours { flags: &'static [&'static str] },
    OpenMpi { program: PathBuf },
    Perftest,
}

/// All that this machine has; the others are named.
pub fn all() -> Vec<Library> {
    let mut found = vec![
        Library { name: "netsum", how: How::Ours { flags: &[] } },
        Library { name: "netsum-tcp", how: How::Ours { flags: &["--tcp"] } },
    ];
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("messages-open-mpi");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/peers/messages.c");
    let mut compiler = Command::new("mpicc.openmpi");
    let built = compiler.arg("-O2").arg(source).arg("-o").arg(&program).status();
    if built.is_ok_and(|status| status.success()) {
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
    /// Seconds per message by size: half a round trip, exchange, one way; 0 where it has none.
    pub fn run(&self, sizes: &[usize]) -> Vec<(usize, [f64; 3])> {
        let words: Vec<String> = sizes.iter().map(usize::to_string).collect();
        match &self.how {
            How::Ours { flags } => ours(&words, flags).iter().filter_map(|l| parse(l)).collect(),
            How::OpenMpi { program } => {
                let mut command = Command::new("mpirun.openmpi");
                command.args(["--allow-run-as-root", "--oversubscribe", "-n", "2"]).arg(program);
                let output = command.arg("0.05").args(&words).output().expect("it was found");
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

fn ours(sizes: &[String], flags: &[&str]) -> Vec<String> {
    let start = |rank: usize| {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["--rank", &rank.to_string(), "--sizes", &sizes.join(",")]).args(flags);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("this program")
    };
    let mut children: Vec<Child> = (0..2).map(start).collect();
    let mut addresses = String::new();
    let mut outputs = Vec::new();
    for child in &mut children {
        let mut output = BufReader::new(child.stdout.take().expect("piped"));
        output.read_line(&mut addresses).expect("its address");
        outputs.push(output);
    }
    for child in &mut children {
        let input = child.stdin.as_mut().expect("piped");
        input.write_all(addresses.as_bytes()).expect("it waits for addresses");
    }
    let lines = outputs.into_iter().next().into_iter().flat_map(BufRead::lines);
    let lines = lines.map_while(Result::ok).collect();
    let ended = children.iter_mut().all(|child| child.wait().is_ok_and(|s| s.success()));
    assert!(ended, "a rank failed");
    lines
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
    // One that nobody has called waits forever.
    let _ = if answer.is_none() { server.kill() } else { Ok(()) };
    let _ = server.wait();
    answer
}

/// "bytes seconds seconds seconds".
fn parse(line: &str) -> Option<(usize, [f64; 3])> {
    let mut words = line.split_whitespace();
    let bytes = words.next()?.parse().ok()?;
    let seconds: Vec<f64> = words.map(|word| word.parse().ok()).collect::<Option<_>>()?;
    Some((bytes, seconds.try_into().ok()?))
}
