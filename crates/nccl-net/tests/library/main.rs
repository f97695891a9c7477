//! NCCL's own library loads the plug-in and makes communicators of CollNet with it, without a GPU.
//!
//! `standin.c` replaces the CUDA runtime that is linked into NCCL, and `nvml.c` the library by which NCCL learns of
//! GPUs. Everything else is NCCL: it finds the plug-in by NCCL_NET_PLUGIN, connects CollNet over real switches, asks the
//! tuner and calls the profiler. No kernel runs, so that no value is summed: `schedules` does that.
//!
//! The library is that of `make setup-nccl` (NCCL's newest), or the one that torch has brought; without, this is
//! skipped.

#[allow(dead_code)] // Of what the other test does with switches, this one needs less.
#[path = "../schedules/fabric.rs"]
mod fabric;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use fabric::{Fabric, RANKS};

/// The first of this program's loopback blocks 127.X.0.0/16, apart from those of other test programs.
const FIRST_BLOCK: u8 = 190;

fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// NCCL's libraries on this machine.
fn installed() -> Vec<PathBuf> {
    let root = here().ancestors().nth(2).unwrap();
    let mut folders = vec![root.join(".venv/nccl")];
    let versions = std::fs::read_dir(root.join(".venv/lib")).into_iter().flatten().flatten();
    folders.extend(versions.map(|entry| entry.path().join("site-packages")));
    folders.extend(std::env::var("NETSUM_NCCL").ok().map(PathBuf::from));
    let libraries = folders.iter().map(|folder| folder.join("nvidia/nccl/lib/libnccl.so.2"));
    libraries.filter(|library| library.exists()).collect()
}

/// A folder of a test with what NCCL looks for: the plug-in under its name, and the stand-in of NVML; and the program.
fn build(test: &str) -> PathBuf {
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("library").join(test);
    std::fs::create_dir_all(&out).unwrap();
    let built = std::env::current_exe().unwrap();
    let plugin = built.parent().unwrap().join("libnccl_net_netsum.so");
    assert!(plugin.exists(), "no {}", plugin.display());
    let link = out.join("libnccl-net-netsum.so");
    let _ = std::fs::remove_file(&link);
    std::os::unix::fs::symlink(plugin, link).unwrap();
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let compile = |source: &str, arguments: &[&str], name: &str| {
        let source = here().join("tests/library").join(source);
        let mut command = Command::new(&compiler);
        command.args(["-O1", "-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter"]);
        let done =
            command.args(arguments).arg(source).arg("-o").arg(out.join(name)).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    };
    compile("nvml.c", &["-shared", "-fPIC"], "libnvidia-ml.so.1");
    compile("standin.c", &["-ldl"], "standin");
    out
}

/// Runs NCCL in a process per rank, each on a host of the fabric; returns what each of them said.
fn run(library: &Path, folder: &Path, controller: Option<&str>) -> Vec<String> {
    let id = folder.join(format!("id-{}", std::process::id()));
    let _ = std::fs::remove_file(&id);
    let start = |rank: usize| {
        let mut command = Command::new(folder.join("standin"));
        command.arg(library).args([rank.to_string(), RANKS.to_string()]).arg(&id);
        command
            .env("LD_LIBRARY_PATH", folder)
            .env("NCCL_NET_PLUGIN", "netsum")
            .env("NCCL_COLLNET_ENABLE", "1")
            .env("NCCL_HOSTID", format!("host{rank}"))
            .env("NCCL_TOPO_FILE", here().join("tests/library/topology.xml"))
            .env("NCCL_DEBUG", "INFO")
            .env("NCCL_DEBUG_SUBSYS", "INIT,NET,ENV,COLL,TUNING,GRAPH")
            .env("NCCL_DEBUG_FILE", "/dev/stderr")
            .env("NCCL_MAX_NCHANNELS", "2")
            .env("NCCL_SOCKET_IFNAME", "lo")
            .env("NETSUM_HOST", format!("h{rank}"))
            .env("NETSUM_TIMEOUT_S", "120")
            .env("NETSUM_RECORDER", folder.join("recorder"));
        match controller {
            Some(address) => command.env("NETSUM_CONTROLLER", address),
            None => command.env_remove("NETSUM_CONTROLLER").env("NETSUM_HOST", "127.0.0.1"),
        };
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let processes: Vec<_> = (0..RANKS).map(start).collect();
    let text = |(rank, output): (usize, Output)| {
        let said = [output.stderr, output.stdout].concat();
        let said = String::from_utf8_lossy(&said).into_owned();
        // To be looked at.
        std::fs::write(folder.join(format!("rank{rank}.log")), &said).unwrap();
        assert!(output.status.success(), "{}: {said}", output.status);
        said
    };
    let outputs = processes.into_iter().map(|process| process.wait_with_output().unwrap());
    outputs.enumerate().map(text).collect()
}

/// NCCL's version from the program's line "NCCL 23203: ncclCommInitRank returned 0".
fn version_of(log: &str) -> u32 {
    let line = log.lines().find(|line| line.contains("ncclCommInitRank returned")).unwrap();
    line.split([' ', ':']).nth(1).unwrap().parse().unwrap()
}

fn has(log: &str, words: &str) {
    assert!(log.contains(words), "no {words:?} in {log}");
}

#[test]
fn nccl_loads_the_plugin_and_connects_collnet_over_switches() {
    let libraries = installed();
    if libraries.is_empty() {
        eprintln!("skipped: NCCL is not installed (make setup-nccl)");
        return;
    }
    let folder = build("switches");
    let version = env!("CARGO_PKG_VERSION");
    for library in libraries {
        let fabric = Fabric::start();
        let dumps = folder.join("recorder");
        let _ = std::fs::remove_dir_all(&dumps);
        for (rank, log) in run(&library, &folder, Some(&fabric.controller())).iter().enumerate() {
            has(log, "Initialized NET plugin netsum");
            has(log, &format!("NET/netsum: version {version}"));
            has(log, &format!("COLLNET/netsum: version {version}"));
            has(log, "Using network netsum");
            has(log, &format!("COLLNET/netsum: joined as rank {rank} of {RANKS}"));
            has(log, &format!("TUNER/netsum: version {version}, {RANKS} ranks on {RANKS} nodes"));
            has(log, &format!("PROFILER/netsum: version {version}"));
            has(log, "ncclCommInitRank returned 0");
            has(log, "ncclCommDestroy returned 0");
            // Of allreduces of 1 KiB, 256 KiB and 64 MiB. Before 2.32, NCCL does not log what it takes.
            if version_of(log) < 23200 {
                continue;
            }
            let taken: Vec<bool> = log
                .lines()
                .filter_map(|line| line.split_once("Best tuning, algorithm, "))
                .map(|(_, algorithm)| algorithm.starts_with("COLLNET"))
                .collect();
            assert_eq!(taken, [false, true, true], "{log}");
        }
    }
}

#[test]
fn without_a_controller_nccl_uses_its_own_algorithms_over_the_plugin() {
    let Some(library) = installed().into_iter().next() else {
        eprintln!("skipped: NCCL is not installed (make setup-nccl)");
        return;
    };
    for log in run(&library, &build("hosts"), None) {
        has(&log, "Using network netsum");
        has(&log, "no device: NETSUM_CONTROLLER does not say whose switches add");
        has(&log, "TUNER/netsum");
        has(&log, "ncclCommInitRank returned 0");
        assert!(!log.contains("COLLNET/netsum: joined"), "{log}");
    }
}
