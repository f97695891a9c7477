//! Ranks as processes: what benchmarks that compare libraries share. Each includes this file as its module `ranks`.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

/// Of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The driver of an MPI library, built by its `compiler`; `None` if that is missing or fails.
pub fn mpi_driver(library: &str, compiler: &str) -> Option<PathBuf> {
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("mpi-{library}"));
    let source = root().join("bench/peers/mpi.c");
    let built = Command::new(compiler).arg("-O2").arg(source).arg("-o").arg(&program).status();
    built.is_ok_and(|status| status.success()).then_some(program)
}

/// Runs this program as `ranks` processes, hands every one everybody's address, and returns the lines of rank 0;
/// nothing if one fails. `arguments`: besides the rank's.
pub fn run_ours(ranks: usize, arguments: &[String]) -> Vec<String> {
    let start = |rank: usize| {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["--rank", &rank.to_string()]).args(arguments);
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

/// The lines of the first process until all have ended; nothing if one fails. `outputs`: what was taken from the
/// processes already.
pub fn finish(mut children: Vec<Child>, outputs: Vec<BufReader<ChildStdout>>) -> Vec<String> {
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
