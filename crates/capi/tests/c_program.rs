//! The C interface, called between processes by a C program that the machine's compiler has built.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;

/// The C program, built once for all tests.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let built = std::env::current_exe().unwrap();
        // The library is in the same folder as the test programs.
        let libraries = built.parent().unwrap();
        assert!(
            libraries.join("libnetsum_nccl.so").exists(),
            "no library in {}",
            libraries.display()
        );
        let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("nccl_program");
        let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
        let compiled = Command::new(&compiler)
            .args(["-std=c11", "-D_DEFAULT_SOURCE", "-Wall", "-Wextra", "-Werror", "-O1"])
            .args(["-Wno-unused-but-set-variable", "-I"])
            .arg(here.join("include"))
            .arg(here.join("tests/program.c"))
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

fn start(rank: u32, ranks: u32, id: &Path, what: &str) -> Child {
    let mut command = Command::new(program());
    command.args([rank.to_string(), ranks.to_string()]).arg(id).arg(what);
    command.env_remove("NETSUM_CONTROLLER").env("NETSUM_TIMEOUT_S", "60");
    command.stderr(Stdio::piped()).spawn().unwrap()
}

/// Checks that all ranks succeed.
fn run(what: &str, ranks: u32) {
    let id = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("{what}-{ranks}-{}", std::process::id()));
    let _ = std::fs::remove_file(&id);
    let children: Vec<Child> = (0..ranks).map(|rank| start(rank, ranks, &id, what)).collect();
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
fn header_declares_all_library_symbols() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let header = std::fs::read_to_string(here.join("include/nccl.h")).unwrap();
    let sources: String = ["src/operations.rs", "src/communicators.rs"]
        .map(|file| std::fs::read_to_string(here.join(file)).unwrap())
        .concat();
    let names = |text: &str, before: &str| {
        let starts = text.match_indices(before).map(|(at, _)| &text[at + before.len()..]);
        let mut names: Vec<String> =
            starts.map(|rest| rest.split('(').next().unwrap().to_owned()).collect();
        names.sort();
        names
    };
    let mut declared = names(&header, "\nncclResult_t ");
    declared.extend(names(&header, "\nconst char* "));
    declared.sort();
    assert_eq!(declared, names(&sources, "pub extern \"C\" fn "));
}
