//! Speed of number conversions, in bytes of gradient per second of one core, compared with `memcpy` of the same bytes.
//!
//! `cargo bench --profile release -p netsum-wire --bench numbers -- [--out FILE]`. Buffers are larger than the caches
//! unless a name says "cached" (one fragment of 1,408 bytes, repeatedly). Rounds alternate.

#[path = "../../../bench/record.rs"]
mod record;

use std::hint::black_box;
use std::path::PathBuf;
use std::time::Instant;

use netsum_wire::fixed::{Exponent, Scale, dequantise, quantise};
use netsum_wire::{Arithmetic, Dtype};
use record::{commit, machine, median};
use serde_json::{Map, Value, json};

/// Twice the last-level cache of a large server core complex.
const LARGE: usize = 64 << 20;
const FRAGMENT: usize = 1408;
const ROUNDS: usize = 15;

type Kernel = fn(&[u8], &mut [u8]);

const WORK: [(&str, Kernel); 6] = [
    ("memcpy", |from, to| to.copy_from_slice(from)),
    ("quantise", |from, to| {
        black_box(quantise(Dtype::F32, from, Scale::PAPER, 8, to));
    }),
    ("exponents", |from, _| {
        for fragment in from.chunks(FRAGMENT) {
            black_box(Exponent::of(Dtype::F32, fragment));
        }
    }),
    ("dequantise", |from, to| dequantise(Dtype::F32, from, Scale::PAPER, to)),
    ("add_saturating", |from, to| {
        black_box(Arithmetic::Saturating.combine(to, from));
    }),
    ("add_wrapping", |from, to| {
        black_box(Arithmetic::Wrapping.combine(to, from));
    }),
];

fn main() {
    let out = std::env::args().skip_while(|a| a != "--out").nth(1).map(PathBuf::from);
    let mut detail = Map::new();
    for (suffix, len) in [("", LARGE), ("_cached", FRAGMENT)] {
        for (name, speeds) in measure(len) {
            println!("{name}{suffix}: {:.2} GB/s (best {:.2})", median(&speeds), best(&speeds));
            detail.insert(
                format!("{name}{suffix}"),
                json!({ "median": median(&speeds), "best": best(&speeds) }),
            );
        }
    }
    let ratio = detail["quantise"]["median"].as_f64().unwrap_or(f64::NAN)
        / detail["memcpy"]["median"].as_f64().unwrap_or(f64::NAN);
    println!("quantise / memcpy: {ratio:.2}");
    if let Some(file) = out {
        write(&file, &detail, ratio);
    }
}

/// Bytes of gradient per nanosecond, by round.
fn measure(len: usize) -> Vec<(&'static str, Vec<f64>)> {
    let value = |i: usize| ((i * 2_654_435_761) as u32 as f32 / u32::MAX as f32 - 0.5) * 1e-2;
    let from: Vec<u8> = (0..len / 4).flat_map(|i| value(i).to_le_bytes()).collect();
    let mut to = from.clone();
    let repeats = (LARGE / len).max(1);
    let mut speeds: Vec<(&str, Vec<f64>)> = WORK.iter().map(|(n, _)| (*n, Vec::new())).collect();
    for _ in 0..=ROUNDS {
        for ((_, work), (_, speeds)) in WORK.iter().zip(&mut speeds) {
            let started = Instant::now();
            for _ in 0..repeats {
                work(black_box(&from), black_box(&mut to));
            }
            speeds.push((len * repeats) as f64 / started.elapsed().as_nanos() as f64);
        }
    }
    // The first round touched the pages.
    speeds.iter_mut().for_each(|(_, s)| _ = s.remove(0));
    speeds
}

fn best(values: &[f64]) -> f64 {
    values.iter().copied().fold(0.0, f64::max)
}

fn write(file: &std::path::Path, detail: &Map<String, Value>, ratio: f64) {
    let json = json!({
        "name": "numbers",
        "unit": "GB of float32 gradient per second and core, quantised to int32",
        "higher_is_better": true,
        "ours": detail["quantise"],
        "peers": { "memcpy": detail["memcpy"] },
        "ratio": { "memcpy": ratio },
        "limit": "memory bandwidth of one core, as memcpy reaches it with as many bytes read and written",
        "machine": machine(),
        "commit": commit(),
        "detail": detail,
    });
    record::write(file, &json);
}
