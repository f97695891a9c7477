//! Measurements and their report.

use std::path::Path;
use std::time::Duration;

use netsum_net::xdp::WhyNot;
use netsum_net::xdp::stream::{Stream, WORKERS};
use netsum_wire::Arithmetic;
use serde_json::{Value, json};

use crate::record::{self, commit, machine, median};
use crate::wires;

/// Contributions per test run.
const CONTRIBUTIONS: u32 = 400_000;

/// One kind of fragment.
pub struct Case {
    name: String,
    elements: u16,
    /// Nanoseconds per contribution, by round.
    ours: Vec<f64>,
    bare: Vec<f64>,
}

pub fn measure(rounds: usize) -> Result<Vec<Case>, WhyNot> {
    let mut cases = Vec::new();
    let mut streams = Vec::new();
    for (name, arithmetic) in
        [("wrapping", Arithmetic::Wrapping), ("saturating", Arithmetic::Saturating)]
    {
        for (of, in_pool) in [("", false), ("pool-", true)] {
            for elements in [64, 128, 256, 352] {
                for (suffix, sealed) in [("", false), ("-sealed", true)] {
                    let stream = match in_pool {
                        false => Stream::new(arithmetic, elements, sealed)?,
                        true => wires::with_ports(|ports| {
                            Stream::in_pool(arithmetic, elements, sealed, ports)
                        })?,
                    };
                    streams.push((stream, arithmetic, sealed));
                    let name = format!("{of}{name}-{elements}{suffix}");
                    cases.push(Case { name, elements, ours: Vec::new(), bare: Vec::new() });
                }
            }
        }
    }
    for round in 0..=rounds {
        // Of the unsealed packets that precede sealed ones of the same kind.
        let mut unsealed = Duration::ZERO;
        for ((stream, arithmetic, sealed), case) in streams.iter().zip(&mut cases) {
            let before = stream.completed()?;
            let with_making = stream.time(CONTRIBUTIONS)?;
            let summed = stream.completed()? - before;
            assert_eq!(summed, u64::from(CONTRIBUTIONS / WORKERS), "fragments that were summed");
            // Making an unsealed frame takes a few stores, which are included in all figures. Senders seal.
            let making = stream.idle(CONTRIBUTIONS)?;
            let sealing = if *sealed {
                making.saturating_sub(unsealed)
            } else {
                unsealed = making;
                Duration::ZERO
            };
            let ours = with_making.saturating_sub(sealing);
            let bare = stream.bare_time(*arithmetic == Arithmetic::Saturating, CONTRIBUTIONS)?;
            // The first round warms the caches.
            if round > 0 {
                case.ours.push(ours.as_nanos() as f64);
                case.bare.push(bare.as_nanos() as f64);
            }
        }
    }
    Ok(cases)
}

pub fn print(case: &Case) {
    let Case { name, elements, ours, bare } = case;
    let (median, best) = (median(ours), best(ours));
    let (mpps, gbits) = rates(median, *elements);
    println!(
        "{name}: {median:.0} ns (best {best:.0}), {mpps:.1} Mpps, {gbits:.0} Gbit/s added; bare adder {:.0} (best {:.0})",
        record::median(bare),
        self::best(bare),
    );
}

pub fn print_ratios(cases: &[Case]) {
    for (name, ratio) in sealed_ratios(cases) {
        println!(
            "{name}: sealed packets take {:.2} times as long",
            ratio.as_f64().unwrap_or(f64::NAN)
        );
    }
}

pub fn print_wired(case: &wires::Case) {
    let wires::Case { name, ours, bare, summed } = case;
    println!(
        "veth, {name}: {:.2} M contributions/s (best {:.2}), {:.0} % of them summed; bare adder {:.2} (best {:.2})",
        median(ours) / 1e6,
        most(ours) / 1e6,
        summed * 100.0,
        median(bare) / 1e6,
        most(bare) / 1e6,
    );
}

pub fn write(file: &Path, cases: &[Case], wired: &[wires::Case]) {
    let main = cases.iter().find(|c| c.name == "saturating-256").expect("it is measured");
    let figure = |values: &[f64]| json!({ "median": median(values), "best": best(values) });
    let detail: serde_json::Map<_, _> = cases
        .iter()
        .map(|c| {
            let (mpps, gbits) = rates(median(&c.ours), c.elements);
            let value = json!({
                "ours_ns": figure(&c.ours), "bare_adder_ns": figure(&c.bare),
                "mpps": mpps, "gbits_added_per_second": gbits,
            });
            (c.name.clone(), value)
        })
        .collect();
    let rate = |values: &[f64]| json!({ "median": median(values), "best": most(values) });
    let wired: serde_json::Map<_, _> = wired
        .iter()
        .map(|c| {
            let value = json!({
                "ours_per_second": rate(&c.ours), "bare_adder_per_second": rate(&c.bare), "summed": c.summed,
            });
            (c.name.clone(), value)
        })
        .collect();
    let json: Value = json!({
        "name": "xdp",
        "unit": "ns of one core per contribution of 256 elements (saturating), its share of the result included",
        "higher_is_better": false,
        "ours": figure(&main.ours),
        "peers": { "bare_adder": figure(&main.bare) },
        "ratio": { "bare_adder": median(&main.ours) / median(&main.bare) },
        "limit": "instructions per element: the kernel compiles one of its own to one of the processor's, without vectors",
        "machine": machine(),
        "commit": commit(),
        "detail": detail,
        "sealed_to_unsealed": sealed_ratios(cases),
        "veth": wired,
    });
    record::write(file, &json);
}

/// Time of sealed packets over that of unsealed ones, by kind of fragment.
fn sealed_ratios(cases: &[Case]) -> serde_json::Map<String, Value> {
    let pairs = cases.chunks_exact(2);
    pairs
        .map(|pair| {
            let ratio = median(&pair[1].ours) / median(&pair[0].ours);
            (pair[0].name.clone(), json!(ratio))
        })
        .collect()
}

/// Million packets per second, and Gbit of payload per second.
fn rates(ns: f64, elements: u16) -> (f64, f64) {
    (1e3 / ns, f64::from(elements) * 32.0 / ns)
}

fn most(values: &[f64]) -> f64 {
    values.iter().copied().fold(0.0, f64::max)
}

fn best(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::INFINITY, f64::min)
}
