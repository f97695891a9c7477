//! Cost of a packet's tag by message authentication code, in nanoseconds of one core.
//!
//! `cargo bench --profile release -p netsum-wire --bench tags -- [--out FILE]`. Each packet has a payload of its own in
//! the caches. Rounds alternate.

#[path = "../../../bench/record.rs"]
mod record;

use std::hint::black_box;
use std::path::PathBuf;
use std::time::Instant;

use netsum_wire::panama;
use netsum_wire::seal::{SEALED_HEADER_LEN, SealKey};
use netsum_wire::tag::{JobKey, Mac};
use record::{commit, machine, median};
use serde_json::{Map, Value, json};

const PAYLOADS: [usize; 3] = [256, 1088, 1440];
const MACS: [(&str, Mac); 3] = [("siphash", Mac::SipHash), ("aegis", Mac::Aegis), ("nh", Mac::Nh)];
const ROUNDS: usize = 15;
const PACKETS: u64 = 20_000;

fn main() {
    let out = std::env::args().skip_while(|a| a != "--out").nth(1).map(PathBuf::from);
    let mut detail = Map::new();
    for payload in PAYLOADS {
        for (name, times) in measure(payload) {
            println!(
                "{name}, {payload} bytes: {:.0} ns (best {:.0})",
                median(&times),
                best(&times)
            );
            let figure = json!({ "median": median(&times), "best": best(&times) });
            detail.insert(format!("{name}_{payload}"), figure);
        }
    }
    if let Some(file) = out {
        write(&file, &detail);
    }
}

/// Nanoseconds per packet, by round.
fn measure(payload: usize) -> Vec<(&'static str, Vec<f64>)> {
    let keys = MACS.map(|(name, mac)| (name, SealKey::new(&JobKey::new(mac, [7; 16]))));
    let mut packets: Vec<Vec<u8>> =
        (0..16u8).map(|i| vec![i; SEALED_HEADER_LEN + payload]).collect();
    packets.iter_mut().for_each(|packet| packet[0] = panama::VERSION);
    let mut times: Vec<(&str, Vec<f64>)> = MACS.iter().map(|(n, _)| (*n, Vec::new())).collect();
    for round in 0..=ROUNDS {
        for ((_, key), (_, times)) in keys.iter().zip(&mut times) {
            let started = Instant::now();
            for number in 0..PACKETS {
                key.seal(number, black_box(&mut packets[number as usize % 16]), &[]);
            }
            // The first round warms the caches.
            if round > 0 {
                times.push(started.elapsed().as_nanos() as f64 / PACKETS as f64);
            }
        }
    }
    times
}

fn best(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::INFINITY, f64::min)
}

fn write(file: &std::path::Path, detail: &Map<String, Value>) {
    let ratio = |of: &str| {
        let median = |name: &str| detail[name]["median"].as_f64().unwrap_or(f64::NAN);
        median("nh_1440") / median(of)
    };
    let json = json!({
        "name": "tags",
        "unit": "ns of one core to seal a packet with a payload of 1,440 bytes",
        "higher_is_better": false,
        "ours": detail["nh_1440"],
        "peers": { "aegis": detail["aegis_1440"], "siphash": detail["siphash_1440"] },
        "ratio": { "aegis": ratio("aegis_1440"), "siphash": ratio("siphash_1440") },
        "limit": "one product of 64-bit words for eight bytes",
        "machine": machine(),
        "commit": commit(),
        "detail": detail,
    });
    record::write(file, &json);
}
