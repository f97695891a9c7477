//! Allreduce between ranks of one host, compared with Gloo, Open MPI and MPICH: seconds per call by ranks and size.
//!
//! Every library runs float32 sums in place, in blocks of consecutive calls; a block's time is that of its slowest
//! rank. The libraries alternate, so that a disturbance affects all; before each, the latency between cores is
//! measured, which varies in virtual machines. Sums are compared with the cores' lower bound ([`limits`]), measured
//! when netsum has run. Libraries that are not installed (`mpicc.openmpi`, `mpicc.mpich`, `.venv` with torch) are
//! skipped with a message. netsum runs from Rust, and from torch as Gloo does.
//!
//! `cargo bench --profile release -p netsum-collective --bench host_allreduce -- [--ranks 2,4,8] [--sizes 8,1024]
//! [--rounds N] [--only netsum,open-mpi] [--out FILE]`

#[path = "../../../../bench/peers/ranks.rs"]
mod ranks;
#[path = "../../../../bench/record.rs"]
mod record;

mod limits;
mod ours;
mod peers;

use std::collections::BTreeMap;
use std::path::Path;

use record::{commit, machine, median};
use serde_json::{Value, json};

/// Seconds per call of every block, by library, ranks and bytes.
type Times = BTreeMap<(String, usize, u64), Vec<f64>>;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let after = |name: &str| arguments.iter().skip_while(|a| *a != name).nth(1).cloned();
    if let Some(rank) = after("--rank") {
        return ours::rank(rank.parse().expect("a rank"), &arguments);
    }
    let numbers = |name: &str, usual: &[u64]| -> Vec<u64> {
        let given =
            after(name).map(|list| list.split(',').map(|n| n.parse().expect("a number")).collect());
        given.unwrap_or_else(|| usual.to_vec())
    };
    let (ranks, sizes) = (numbers("--ranks", &[2, 4, 8]), numbers("--sizes", &SIZES));
    let rounds = numbers("--rounds", &[3])[0];
    let only = after("--only");
    let libraries: Vec<_> = peers::all()
        .into_iter()
        .filter(|l| only.as_ref().is_none_or(|only| only.split(',').any(|name| name == l.name)))
        .collect();
    let (mut times, mut hops) = (Times::new(), Vec::new());
    for &ranks in &ranks {
        for round in 0..rounds {
            for library in &libraries {
                let (round, hop) = (round + 1, limits::hop() * 1e9);
                eprintln!(
                    "{ranks} ranks, round {round} of {rounds}: {} (hop {hop:.0} ns)",
                    library.name
                );
                hops.push(hop);
                for (bytes, seconds) in library.run(ranks as usize, &sizes) {
                    let key = (library.name.to_owned(), ranks as usize, bytes);
                    times.entry(key).or_default().extend(seconds);
                }
                if library.name == "netsum" {
                    for &bytes in sizes.iter().filter(|&&bytes| bytes >= LIMITED_FROM) {
                        let least = limits::least(ranks as usize, bytes as usize);
                        let key = ("limit".to_owned(), ranks as usize, bytes);
                        times.entry(key).or_default().push(least);
                    }
                }
            }
        }
    }
    let cells = cells(&times);
    if let Some(file) = after("--out") {
        record::write(Path::new(&file), &summary(&times, cells, &hops));
    }
}

/// Prints a table; returns its rows.
fn cells(times: &Times) -> Vec<Value> {
    let mut cases: Vec<(usize, u64)> =
        times.keys().map(|&(_, ranks, bytes)| (ranks, bytes)).collect();
    cases.sort_unstable();
    cases.dedup();
    let mut rows = Vec::new();
    for (ranks, bytes) in cases {
        let of = |name: &str| times.get(&(name.to_owned(), ranks, bytes));
        let mut libraries = serde_json::Map::new();
        let mut line = format!("{ranks} ranks {bytes:>10} B:");
        for (name, ..) in times.keys().filter(|(_, r, b)| (*r, *b) == (ranks, bytes)) {
            let figure = figure(of(name).expect("listed"));
            line += &format!("  {name} {:.2}", figure["median"].as_f64().unwrap_or(0.0) * 1e6);
            libraries.insert(name.clone(), figure);
        }
        let peers = ["gloo", "open-mpi", "mpich"].iter().filter_map(|name| of(name));
        let best = peers.map(|seconds| median(seconds)).min_by(f64::total_cmp);
        let ahead = of("netsum").zip(best).map(|(ours, best)| best / median(ours));
        if let Some(ahead) = ahead {
            line += &format!("  µs, ahead of the best {ahead:.2}");
        }
        let share = of("limit").zip(of("netsum")).map(|(least, ours)| median(least) / median(ours));
        if let Some(share) = share {
            line += &format!("; limit by netsum {share:.2}");
        }
        println!("{line}");
        rows.push(json!({
            "ranks": ranks, "bytes": bytes, "seconds": libraries, "ahead_of_best_peer": ahead,
            "share_of_limit": share,
        }));
    }
    rows
}

fn figure(seconds: &[f64]) -> Value {
    let best = seconds.iter().copied().fold(f64::INFINITY, f64::min);
    json!({"median": median(seconds), "best": best})
}

/// The record: one representative case, and all cases.
fn summary(times: &Times, cells: Vec<Value>, hops: &[f64]) -> Value {
    let of = |name: &str| times.get(&(name.to_owned(), 2, 1 << 20));
    let peers = ["gloo", "open-mpi", "mpich"];
    let ours = of("netsum");
    let figures = peers.iter().filter_map(|&name| Some((name.to_owned(), figure(of(name)?))));
    let ratio = peers
        .iter()
        .filter_map(|&name| Some((name.to_owned(), json!(median(of(name)?) / median(ours?)))));
    json!({
        "name": "host_allreduce",
        "unit": "s per allreduce of 1 MiB between 2 ranks of one host",
        "higher_is_better": false,
        "ours": ours.map(|ours| figure(ours)),
        "peers": serde_json::Map::from_iter(figures),
        "ratio": serde_json::Map::from_iter(ratio),
        "limit": format!("{:.3e} s: both cores copy 1 MiB out of the other's cache", limits::least(2, 1 << 20)),
        "hops_ns": hops,
        "cells": cells,
        "machine": machine(),
        "commit": commit(),
    })
}

/// Smaller sums are dominated by the latency between cores.
const LIMITED_FROM: u64 = 64 << 10;
const SIZES: [u64; 12] = [
    8,
    64,
    1 << 10,
    4 << 10,
    16 << 10,
    64 << 10,
    256 << 10,
    1 << 20,
    4 << 20,
    16 << 20,
    64 << 20,
    256 << 20,
];
