//! Whether a failure to load the program is one of the machine or of the program.

use std::fs;
use std::path::Path;

use netsum_net::xdp::{Plane, PlaneOptions};

/// CAP_NET_ADMIN, CAP_PERFMON and CAP_BPF.
const NEEDED: u64 = 1 << 12 | 1 << 38 | 1 << 39;

/// Loads the program. `None`, with a line, where the system cannot; a program that a capable system refuses is a
/// failure.
pub fn load(options: PlaneOptions) -> Option<Plane> {
    Plane::load(options).map_err(|reason| skip(&reason.to_string())).ok()
}

/// Prints a line where the system has no in-kernel switch; panics where it should have one.
pub fn skip(reason: &str) {
    assert!(!system_can(), "this system loads programs, but not this one: {reason}");
    println!("skipped: {reason}");
}

fn system_can() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut lines = status.lines();
    let rights = lines.find_map(|line| line.strip_prefix("CapEff:"));
    let rights = rights.and_then(|rights| u64::from_str_radix(rights.trim(), 16).ok());
    rights.is_some_and(|rights| rights & NEEDED == NEEDED)
        && Path::new("/sys/kernel/btf/vmlinux").exists()
}
