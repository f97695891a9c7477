//! How long planning takes, on one core: `--out FILE` writes the figures as JSON.
//!
//! Each case is run several times and its median taken. The limit of a case is that of the project's
//! promises; ForestColl's Python needs 4.6 s for the all-gather on two A100 boxes on a 2-core machine.

use std::process::Command;
use std::time::{Duration, Instant};

use netsum_plan::pack::{bound, pack};
use netsum_topo::links::{Collective, LinkGraph, LinkKind, built, link_classes};
use serde_json::{Value, json};

const ALL: [Collective; 5] = [
    Collective::Broadcast { root: 0 },
    Collective::Reduce { root: 0 },
    Collective::Allgather,
    Collective::ReduceScatter,
    Collective::Allreduce,
];

fn main() {
    let mut cases = vec![fragments("dgx1p"), fragments("dgx1v")];
    for (name, limit_ms) in [("dgx2", 50), ("mi250", 50), ("torus:4x4", 50), ("a100x2", 100)] {
        let graph = built(name).expect("a known machine");
        for collective in [Collective::Allgather, Collective::Allreduce] {
            let times = repeat(9, || {
                pack(&graph, collective).expect("a plan");
            });
            cases.push(case(&format!("{name} {}", word(collective)), limit_ms, &times));
        }
    }
    for name in ["torus:8x8x8", "a100x64"] {
        let graph = built(name).expect("a known machine");
        for collective in [Collective::Allgather, Collective::Allreduce] {
            let times = repeat(1, || {
                bound(&graph, collective).expect("a bound");
            });
            cases.push(case(&format!("{name} {}, bound only", word(collective)), 10_000, &times));
        }
    }
    for case in &cases {
        println!("{}", case["text"].as_str().unwrap_or_default());
    }
    let arguments: Vec<String> = std::env::args().collect();
    if let Some(at) = arguments.iter().position(|argument| argument == "--out") {
        let file = &arguments[at + 1];
        write(file, &cases).unwrap_or_else(|error| panic!("cannot write {file}: {error}"));
    }
}

/// The slowest class of 3 to 8 GPUs, all five collectives with their bounds together.
fn fragments(name: &str) -> Value {
    let graph = built(name).and_then(|graph| graph.only(&[LinkKind::Nvlink])).expect("a DGX-1");
    let parts: Vec<LinkGraph> = (link_classes(&graph, 3..=8).iter())
        .map(|class| {
            let names: Vec<String> = class.gpus.iter().map(usize::to_string).collect();
            graph.select(&names).expect("a class is connected")
        })
        .collect();
    let slowest = parts.iter().map(|part| {
        repeat(9, || {
            for collective in ALL {
                pack(part, collective).expect("a plan");
            }
        })
    });
    let slowest = slowest.max_by_key(|times| times[times.len() / 2]).expect("there are classes");
    case(&format!("{name}, slowest fragment, five collectives"), 5, &slowest)
}

/// Times of several runs, ascending.
fn repeat(runs: usize, mut work: impl FnMut()) -> Vec<Duration> {
    let mut times: Vec<Duration> = (0..runs)
        .map(|_| {
            let start = Instant::now();
            work();
            start.elapsed()
        })
        .collect();
    times.sort();
    times
}

fn case(name: &str, limit_ms: u64, times: &[Duration]) -> Value {
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let (median, best) = (ms(times[times.len() / 2]), ms(times[0]));
    let holds = median <= limit_ms as f64;
    let mark = if holds { "ok" } else { "MISSED" };
    json!({
        "case": name, "median": median, "best": best, "limit": limit_ms, "holds": holds,
        "text": format!("{name:50} {median:10.2} ms  (limit {limit_ms} ms) {mark}"),
    })
}

fn word(collective: Collective) -> &'static str {
    if collective == Collective::Allgather { "all-gather" } else { "allreduce" }
}

fn write(file: &str, cases: &[Value]) -> std::io::Result<()> {
    let of = |name: &str| cases.iter().find(|case| case["case"] == name);
    let main = of("a100x2 all-gather").expect("it was measured");
    let commit = Command::new("git").args(["rev-parse", "--short", "HEAD"]).output();
    let commit = commit.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    let value = json!({
        "name": "plan", "unit": "ms", "higher_is_better": false,
        "ours": {"median": main["median"], "best": main["best"]},
        "peers": {}, "ratio": {}, "limit": "every case within its own limit",
        "cases": cases,
        "machine": std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim(),
        "commit": commit.unwrap_or_default(),
    });
    if let Some(folder) = std::path::Path::new(file).parent() {
        std::fs::create_dir_all(folder)?;
    }
    std::fs::write(file, serde_json::to_string_pretty(&value)?)
}
