//! What every benchmark in Rust leaves behind: each includes this file as its module `record`.

use std::path::Path;
use std::process::Command;

/// The one in the middle. Panics if there is none.
#[allow(dead_code)] // Criterion and the switch's rounds have medians of their own.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// Processor, cores and kernel.
pub fn machine() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let cores = info.lines().filter(|line| line.starts_with("processor")).count();
    format!("{}, {cores} cores, Linux {}", model.map_or("unknown", |(_, m)| m), kernel.trim())
}

/// Of the sources, or "unknown".
pub fn commit() -> String {
    let output = Command::new("git").args(["rev-parse", "--short", "HEAD"]).output();
    let text = output.ok().and_then(|o| String::from_utf8(o.stdout).ok()).unwrap_or_default();
    if text.trim().is_empty() { "unknown".into() } else { text.trim().into() }
}

/// Writes a record and the folder that it goes to, or says why not and ends with 1.
pub fn write(file: &Path, record: &serde_json::Value) {
    let folder = file.parent().map_or(Ok(()), std::fs::create_dir_all);
    if let Err(error) = folder.and_then(|()| std::fs::write(file, format!("{record:#}\n"))) {
        eprintln!("cannot write {}: {error}", file.display());
        std::process::exit(1);
    }
}
