//! The C interface, called between processes by C programs that the machine's compiler has built.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;

/// A C program of `tests`, built once for all its tests.
struct Program {
    name: &'static str,
    built: OnceLock<PathBuf>,
}

/// Operations and messages.
static PROGRAM: Program = Program::new("program");
/// Communicators made from others, windows, parameters.
static CHANGES: Program = Program::new("changes");

impl Program {
    const fn new(name: &'static str) -> Program {
        Program { name, built: OnceLock::new() }
    }

    fn path(&self) -> &Path {
        self.built.get_or_init(|| {
            let here = Path::new(env!("CARGO_MANIFEST_DIR"));
            let built = std::env::current_exe().unwrap();
            // The library is in the same folder as the test programs.
            let libraries = built.parent().unwrap();
            assert!(
                libraries.join("libnetsum_nccl.so").exists(),
                "no library in {}",
                libraries.display()
            );
            let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("nccl_{}", self.name));
            let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
            let compiled = Command::new(&compiler)
                .args(["-std=c11", "-D_DEFAULT_SOURCE", "-Wall", "-Wextra", "-Werror", "-O1"])
                .args(["-Wno-unused-but-set-variable", "-Wno-unused-function", "-I"])
                .arg(here.join("include"))
                .arg(here.join(format!("tests/{}.c", self.name)))
                .arg("-o")
                .arg(&out)
                .arg("-L")
                .arg(libraries)
                .args(["-lnetsum_nccl", "-lm"])
                .arg(format!("-Wl,-rpath,{}", libraries.display()))
                .output()
                .unwrap_or_else(|error| panic!("{compiler}: {error}"));
            assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
            out
        })
    }

    fn start(&self, (rank, ranks): (u32, u32), id: &Path, what: &str) -> Child {
        let mut command = Command::new(self.path());
        command.args([rank.to_string(), ranks.to_string()]).arg(id).arg(what);
        command.env_remove("NETSUM_CONTROLLER").env("NETSUM_TIMEOUT_S", "60");
        command.stderr(Stdio::piped()).spawn().unwrap()
    }
}

/// Checks that all ranks succeed.
fn run(what: &str, ranks: u32) {
    run_of(&PROGRAM, what, ranks);
}

fn run_of(program: &Program, what: &str, ranks: u32) {
    let id = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("{what}-{ranks}-{}", std::process::id()));
    let _ = std::fs::remove_file(&id);
    let start = |rank| program.start((rank, ranks), &id, what);
    let children: Vec<Child> = (0..ranks).map(start).collect();
    let ended: Vec<Output> =
        children.into_iter().map(|child| child.wait_with_output().unwrap()).collect();
    let _ = std::fs::remove_file(&id);
    let said: String = ended.iter().map(|output| String::from_utf8_lossy(&output.stderr)).collect();
    assert!(
        ended.iter().all(|output| output.status.success()),
        "{what} with {ranks} ranks: {said}"
    );
}

#[test]
fn every_collective_in_every_type() {
    run("collectives", 2);
    run("collectives", 3);
}

#[test]
fn scaled_sums() {
    run("scaled_sums", 2);
}

#[test]
fn messages_in_a_group_do_not_block_each_other() {
    run("groups", 2);
    run("groups", 4);
}

#[test]
fn a_communicator_splits() {
    run("splits", 4);
}

#[test]
fn messages_in_the_patterns_of_osu() {
    run("messages", 2);
    run("messages", 4);
}

#[test]
fn exchanges_by_sends_and_receives() {
    run("exchanges", 1);
    run("exchanges", 3);
    run("exchanges", 4);
}

#[test]
fn floats_of_16_bits_with_every_operation() {
    run("halves", 2);
    run("halves", 3);
}

#[test]
fn parts_of_the_world_run_concurrently() {
    run("parts", 3);
    run("parts", 4);
}

#[test]
fn every_error_has_its_result_and_text() {
    run("errors", 2);
}

#[test]
fn an_abort_reaches_all_ranks() {
    run("aborts", 3);
}

#[test]
fn ranks_may_share_a_process() {
    run("one_process", 1);
}

#[test]
fn moves_between_all_ranks_with_and_without_configuration() {
    run_of(&CHANGES, "moves", 2);
    run_of(&CHANGES, "moves", 3);
}

#[test]
fn configurations_are_checked_member_by_member() {
    run_of(&CHANGES, "configurations", 2);
}

#[test]
fn communicators_shrink_with_and_without_their_operations() {
    run_of(&CHANGES, "shrinks", 4);
}

#[test]
fn a_communicator_shrinks_after_a_rank_has_died() {
    run_of(&CHANGES, "deaths", 3);
}

#[test]
fn revoked_communicators_split_and_shrink() {
    run_of(&CHANGES, "revocations", 3);
}

#[test]
fn a_communicator_grows_by_new_ranks() {
    run_of(&CHANGES, "grows", 3);
    run_of(&CHANGES, "grows", 4);
}

#[test]
fn signals_bring_what_was_put_before_them() {
    run_of(&CHANGES, "windows", 1);
    run_of(&CHANGES, "windows", 3);
}

#[test]
fn a_simulated_group_runs_nothing_and_takes_longer_with_more_bytes() {
    run_of(&CHANGES, "simulations", 2);
}

#[test]
fn parameters_memory_and_encryption() {
    run_of(&CHANGES, "parameters", 1);
}
