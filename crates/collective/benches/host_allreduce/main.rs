//! Allreduce between ranks of one host, beside Gloo, Open MPI and MPICH: seconds per call by ranks and size.
//!
//! Every library runs float32 sums in place, in blocks of calls in a row; a block's time is that of its slowest rank.
//! The libraries take turns, so that a disturbance meets all. What is missing (`mpicc.openmpi`, `mpicc.mpich`, `.venv`
//! with torch) is left out with a line. netsum runs from Rust, and from torch as Gloo does.
//!
//! `cargo bench --profile release -p netsum-collective --bench host_allreduce -- [--ranks 2,4,8] [--sizes 8,1024]
//! [--rounds N] [--only netsum,open-mpi] [--out FILE]`

#[path = "../../../../bench/record.rs"]
mod record;

mod ours;
mod peers;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

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
    let mut times = Times::new();
    for &ranks in &ranks {
        for round in 0..rounds {
            for library in &libraries {
                eprintln!("{ranks} ranks, round {} of {rounds}: {}", round + 1, library.name);
                for (bytes, seconds) in library.run(ranks as usize, &sizes) {
                    let key = (library.name.to_owned(), ranks as usize, bytes);
                    times.entry(key).or_default().extend(seconds);
                }
            }
        }
    }
    let copy = copy_rate();
    let cells = cells(&times, copy);
    if let Some(file) = after("--out") {
        record::write(Path::new(&file), &summary(&times, cells, copy));
    }
}

/// A table for people, and its rows.
fn cells(times: &Times, copy: f64) -> Vec<Value> {
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
        // Every rank reads its values and writes the sums, and that is all that memory must see.
        let bound = of("netsum").map(|ours| bytes as f64 * ranks as f64 / copy / median(ours));
        if let Some(ahead) = ahead {
            line += &format!("  µs, ahead of the best {ahead:.2}");
        }
        println!("{line}");
        rows.push(json!({
            "ranks": ranks, "bytes": bytes, "seconds": libraries, "ahead_of_best_peer": ahead,
            "share_of_copy_rate": bound,
        }));
    }
    rows
}

fn figure(seconds: &[f64]) -> Value {
    let best = seconds.iter().copied().fold(f64::INFINITY, f64::min);
    json!({"median": median(seconds), "best": best})
}

/// The record of one case that stands for all, and all.
fn summary(times: &Times, cells: Vec<Value>, copy: f64) -> Value {
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
        "limit": format!("memory: one core copies {:.1} GB/s (256 MiB, bytes read)", copy / 1e9),
        "cells": cells,
        "machine": machine(),
        "commit": commit(),
    })
}

/// Bytes per second of one core that copies far more than the caches hold.
fn copy_rate() -> f64 {
    let from = vec![1u8; 256 << 20];
    let mut to = vec![0u8; 256 << 20];
    let once = |to: &mut Vec<u8>| {
        let start = Instant::now();
        to.copy_from_slice(std::hint::black_box(&from));
        // Else nobody reads the copy, and it is not made.
        std::hint::black_box(to);
        start.elapsed().as_secs_f64()
    };
    let best = (0..5).map(|_| once(&mut to)).fold(f64::INFINITY, f64::min);
    from.len() as f64 / best
}

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
