//! Messages between two ranks of one host, compared with Open MPI and `ucx_perftest`: half a round trip, an exchange of
//! messages, and one-way messages with up to 64 in flight; seconds per message by size.
//!
//! Ours are measured over shared memory, TCP and TLS. Libraries alternate, and before each the latency between cores is measured, which varies in virtual machines. Our
//! messages are matched by rank and tag and recorded, as Open MPI's are matched; ucx_perftest has no exchange.
//! Libraries that are not installed (`mpicc.openmpi`, `ucx_perftest`) are skipped with a message.
//!
//! `cargo bench --profile release -p netsum-collective --bench host_messages -- [--sizes 8,1024] [--rounds N]
//! [--only netsum,open-mpi] [--out FILE]`

#[path = "../../../../bench/peers/ranks.rs"]
mod ranks;
#[path = "../../../../bench/record.rs"]
mod record;

#[path = "../host_allreduce/limits.rs"]
#[allow(dead_code)] // The part about sums.
mod limits;
mod ours;
mod peers;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use netsum_collective::Options;
use record::{commit, machine, median};
use serde_json::{Value, json};

/// Measurements, in the order of a library's output.
const SHAPES: [&str; 3] = ["half a round trip", "exchange", "one way"];

/// Seconds per message, by shape, bytes and library.
type Times = BTreeMap<(usize, usize, &'static str), Vec<f64>>;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let after = |name: &str| arguments.iter().skip_while(|a| *a != name).nth(1).cloned();
    let sizes: Vec<usize> = after("--sizes").map_or(SIZES.to_vec(), |list| {
        list.split(',').map(|n| n.parse().expect("bytes")).collect()
    });
    if let Some(rank) = after("--rank") {
        let shared_memory = !arguments.iter().any(|a| a == "--tcp");
        let credentials = after("--credentials").map(PathBuf::from);
        let options = Options { shared_memory, credentials, ..Options::default() };
        return ours::rank(rank.parse().expect("a rank"), &sizes, options);
    }
    let rounds: usize = after("--rounds").and_then(|n| n.parse().ok()).unwrap_or(5);
    let only = after("--only");
    let wanted = |name: &str| only.as_ref().is_none_or(|o| o.split(',').any(|each| each == name));
    let libraries: Vec<_> = peers::all().into_iter().filter(|l| wanted(l.name)).collect();
    let (mut times, mut hops) = (Times::new(), Vec::new());
    for round in 1..=rounds {
        for library in &libraries {
            let hop = limits::hop() * 1e9;
            eprintln!("round {round} of {rounds}: {} (hop {hop:.0} ns)", library.name);
            hops.push(hop);
            for (bytes, seconds) in library.run(&sizes) {
                for (shape, seconds) in seconds.into_iter().enumerate().filter(|(_, s)| *s > 0.0) {
                    times.entry((shape, bytes, library.name)).or_default().push(seconds);
                }
            }
        }
    }
    let cells = cells(&times);
    if let Some(file) = after("--out") {
        let of = |name| times.get(&(0, 8, name));
        let others = || {
            libraries
                .iter()
                .map(|l| l.name)
                .filter_map(|n| Some((n, of(n)?)))
                .filter(|l| l.0 != OURS)
        };
        let ratio = |theirs: &[f64]| of(OURS).map(|ours| median(theirs) / median(ours));
        let record = json!({
            "name": "host_messages",
            "unit": "s per message of 8 B between 2 ranks of one host, half a round trip",
            "higher_is_better": false,
            "ours": of(OURS).map(|seconds| figure(seconds)),
            "peers": others().map(|(name, s)| (name.to_owned(), figure(s))).collect::<serde_json::Map<_, _>>(),
            "ratio": others().map(|(name, s)| (name.to_owned(), json!(ratio(s)))).collect::<serde_json::Map<_, _>>(),
            "limit": "the time that a line of memory takes from core to core, in hops_ns",
            "hops_ns": hops,
            "cells": cells,
            "machine": machine(),
            "commit": commit(),
        });
        record::write(Path::new(&file), &record);
    }
}

/// Prints a table; returns its rows.
fn cells(times: &Times) -> Vec<Value> {
    let mut cases: Vec<(usize, usize)> =
        times.keys().map(|&(shape, bytes, _)| (shape, bytes)).collect();
    cases.dedup();
    let mut rows = Vec::new();
    for (shape, bytes) in cases {
        let mut line = format!("{:17} {bytes:>9} B:", SHAPES[shape]);
        let mut libraries = serde_json::Map::new();
        for ((.., name), seconds) in times.range((shape, bytes, "")..(shape, bytes + 1, "")) {
            let figure = figure(seconds);
            let micros = |what: &str| figure[what].as_f64().unwrap_or(0.0) * 1e6;
            line += &format!("  {name} {:.2} ({:.2})", micros("median"), micros("best"));
            libraries.insert((*name).to_owned(), figure);
        }
        println!("{line}  µs");
        rows.push(json!({"shape": SHAPES[shape], "bytes": bytes, "seconds": libraries}));
    }
    rows
}

fn figure(seconds: &[f64]) -> Value {
    let best = seconds.iter().copied().fold(f64::INFINITY, f64::min);
    json!({"median": median(seconds), "best": best})
}

const OURS: &str = "netsum";
const SIZES: [usize; 9] =
    [8, 64, 1 << 10, 8 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 64 << 20];
