//! Time of planning on one core: `--out FILE` writes the figures as JSON.
//!
//! Criterion takes the samples; cases of seconds run three times. The limit of a case is the project's promise. If
//! `.venv` has networkx, also the all-gather bound of two A100 boxes by bisection over its maximum flows
//! (`bench/peers/plan_bound.py`). ForestColl's Python needs 4.6 s for trees there, on a 2-core machine.
#![allow(missing_docs)]

#[path = "../../../bench/record.rs"]
mod record;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use criterion::{BatchSize, Criterion};
use netsum_plan::ocs::{closed, dp, shared};
use netsum_plan::pack::{
    Budget, Group, Loss, fastest, front, pack, pack_groups, pack_orbits, replan, without,
};
use netsum_plan::program::{verify_groups, verify_orbits, verify_plan};
use netsum_topo::links::{Collective, LinkGraph, LinkKind, built, link_classes};
use netsum_topo::{OcsPorts, OcsSpec};
use serde_json::{Value, json};

const ALL: [Collective; 5] = [
    Collective::Broadcast { root: 0 },
    Collective::Reduce { root: 0 },
    Collective::Allgather,
    Collective::ReduceScatter,
    Collective::Allreduce,
];

fn main() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("criterion");
    let mut bench = Bench {
        criterion: Criterion::default()
            .without_plots()
            .sample_size(10)
            .warm_up_time(Duration::from_millis(100))
            .measurement_time(Duration::from_millis(500))
            .output_directory(&folder),
        folder,
        cases: Vec::new(),
    };
    for name in ["dgx1p", "dgx1v"] {
        bench.fragments(name);
    }
    for (name, limit_ms) in [("dgx2", 50), ("mi250", 50), ("torus:4x4", 50), ("a100x2", 100)] {
        let graph = built(name).expect("a known machine");
        for collective in [Collective::Allgather, Collective::Allreduce] {
            bench.case(&format!("{name} {}", word(collective)), limit_ms, || {
                pack(&graph, collective).expect("a plan");
            });
        }
    }
    for name in ["torus:8x8x8", "a100x64", "leaf-spine:16x32x16"] {
        let graph = built(name).expect("a known machine");
        for collective in [ALL[0], Collective::Allgather, Collective::Allreduce] {
            let name = format!("{name} {}", word(collective));
            let planning = bench.long(&format!("{name}, with a plan"), 10_000, || {
                pack(&graph, collective).expect("a plan");
            });
            // A plan is verified in less time than it is found.
            let plan = pack(&graph, collective).expect("a plan").plan(&graph);
            bench.long(&format!("{name}, verified"), planning as u64, || {
                verify_plan(&graph, &plan).expect("it is right");
            });
        }
    }
    let torus = built("torus:16x16").expect("a known machine");
    let left = torus.links()[1..].to_vec();
    let faulty = LinkGraph::new("torus", torus.vertices().to_vec(), left).expect("it is connected");
    for collective in [ALL[0], Collective::Allgather, Collective::Allreduce] {
        let name = format!("torus:16x16 without a link, {}", word(collective));
        bench.long(&name, 20_000, || {
            let packed = pack(&faulty, collective).expect("a plan");
            assert_eq!(packed.gap(), 0.0, "{collective:?}");
        });
    }
    bench.replans();
    bench.symmetric();
    bench.groups();
    bench.front();
    bench.alltoall();
    bench.ocs();
    for case in &bench.cases {
        println!("{}", case["text"].as_str().unwrap_or_default());
    }
    let arguments: Vec<String> = std::env::args().collect();
    if let Some(at) = arguments.iter().position(|argument| argument == "--out") {
        let file = &arguments[at + 1];
        write(file, &bench.cases);
    }
}

struct Bench {
    criterion: Criterion,
    folder: PathBuf,
    cases: Vec<Value>,
}

impl Bench {
    /// Median and best time of one call, in milliseconds.
    fn measure(&mut self, name: &str, mut work: impl FnMut()) -> (f64, f64) {
        let id = name.replace(|letter: char| !letter.is_ascii_alphanumeric(), "_");
        self.criterion.bench_function(&id, |bencher| {
            bencher.iter_batched(|| (), |()| work(), BatchSize::PerIteration);
        });
        let file = self.folder.join(&id).join("new").join("sample.json");
        let text = std::fs::read_to_string(&file).expect("criterion writes its samples");
        let sample: Value = serde_json::from_str(&text).expect("samples are JSON");
        let list = |key: &str| -> Vec<f64> {
            let values = sample[key].as_array().expect("a list");
            values.iter().filter_map(Value::as_f64).collect()
        };
        let per_call = list("times").into_iter().zip(list("iters"));
        let mut times: Vec<f64> = per_call.map(|(time, calls)| time / calls / 1e6).collect();
        times.sort_by(f64::total_cmp);
        (times[times.len() / 2], times[0])
    }

    fn case(&mut self, name: &str, limit_ms: u64, work: impl FnMut()) {
        let times = self.measure(name, work);
        self.note(name, limit_ms, times);
    }

    /// A case that takes seconds: three runs. Returns the median in milliseconds.
    fn long(&mut self, name: &str, limit_ms: u64, mut work: impl FnMut()) -> f64 {
        let mut times: Vec<f64> = (0..3)
            .map(|_| {
                let start = Instant::now();
                work();
                start.elapsed().as_secs_f64() * 1e3
            })
            .collect();
        times.sort_by(f64::total_cmp);
        self.note(name, limit_ms, (times[1], times[0]));
        times[1]
    }

    /// The slowest class of 3 to 8 GPUs, for all five collectives with their bounds together.
    fn fragments(&mut self, name: &str) {
        let graph = built(name).and_then(|graph| graph.only(&[LinkKind::Nvlink]));
        let graph = graph.expect("a DGX-1");
        let classes = link_classes(&graph, 3..=8);
        let times = classes.iter().map(|class| {
            let names: Vec<String> = class.gpus.iter().map(usize::to_string).collect();
            let part: LinkGraph = graph.select(&names).expect("a class is connected");
            self.measure(&format!("{name} {}", names.join(",")), || {
                for collective in ALL {
                    pack(&part, collective).expect("a plan");
                }
            })
        });
        let slowest = times.max_by(|a, b| a.0.total_cmp(&b.0)).expect("there are classes");
        let name = format!("{name}, slowest of {} fragments, five collectives", classes.len());
        self.note(&name, 5, slowest);
    }

    /// New plans of 128 GPUs after the loss of a link: mended, and beside it a search from nothing, which must not be
    /// better.
    fn replans(&mut self) {
        for name in ["torus:8x16", "torus:4x4x8", "a100x16", "h100x16", "fat-tree:8"] {
            let graph = built(name).expect("a known machine");
            for collective in ALL {
                let old = pack(&graph, collective).expect("a plan").plan(&graph);
                // Not a host's only link.
                let lost = [Loss::Link(graph.links()[graph.links().len() - 1].ends)];
                let (left, _) = without(&graph, &lost).expect("it has the link");
                let name = format!("{name} without a link, {}", word(collective));
                let (mut gaps, mut kept) = ([0.0, 1.0], 0.0);
                self.long(&format!("{name}, mended"), 100, || {
                    let found = replan(&graph, &old, &lost).expect("a plan");
                    (gaps[0], kept) = (found.packed.gap(), found.kept);
                });
                let mended = self.cases.len() - 1;
                // The others are mirror images.
                if !matches!(collective, Collective::Reduce { .. } | Collective::ReduceScatter) {
                    self.long(&format!("{name}, anew"), 10_000, || {
                        gaps[1] = pack(&left, collective).expect("a plan").gap();
                    });
                }
                assert!(gaps[0] <= gaps[1], "{name}: {gaps:?}");
                self.cases[mended]["gap"] = json!(gaps[0]);
                self.cases[mended]["kept"] = json!(kept);
            }
        }
    }

    /// Fabrics that look the same from every rank: all trees of 1,024 GPUs, and trees of one of 16,384 GPUs.
    fn symmetric(&mut self) {
        let graph = built("h100x128").expect("a known machine");
        for collective in [Collective::Allgather, Collective::Allreduce] {
            let name = format!("h100x128 {}", word(collective));
            let mut plan = None;
            self.long(&format!("{name}, with all trees"), 5_000, || {
                let packed = pack(&graph, collective).expect("a plan");
                assert_eq!(packed.gap(), 0.0, "{name}");
                plan = Some(packed.plan(&graph));
            });
            let plan = plan.expect("it was planned");
            self.long(&format!("{name}, all trees verified"), 5_000, || {
                verify_plan(&graph, &plan).expect("it is right");
            });
        }
        for name in ["h100x128", "torus:128x128", "torus:16x32x32", "h100x2048"] {
            let graph = built(name).expect("a known machine");
            for collective in [Collective::Allgather, Collective::Allreduce] {
                let name = format!("{name} {}", word(collective));
                let mut plan = None;
                let planning = self.long(&format!("{name}, symmetric"), 60_000, || {
                    plan = Some(pack_orbits(&graph, collective).expect("a plan"));
                });
                let plan = plan.expect("it was planned");
                self.long(&format!("{name}, symmetric, verified"), planning as u64, || {
                    let bound = verify_orbits(&graph, &plan).expect("it is right");
                    assert_eq!(bound, Some(plan.rate_bps), "{name}");
                });
            }
        }
    }

    /// Tensor, data and pipeline parallelism on two boxes at the same time.
    fn groups(&mut self) {
        for name in ["a100x2", "dgx1v"] {
            let graph = built(name).expect("a known machine");
            let n = graph.gpus().len();
            let group = |name: &str, gpus: Vec<usize>, collective: Collective, bytes: u64| Group {
                name: name.to_owned(),
                gpus,
                collective,
                bytes,
            };
            let mut groups = Vec::new();
            for first in (0..n).step_by(4) {
                let ranks = (first..first + 4).collect();
                groups.push(group("tensor", ranks, Collective::Allreduce, 64 << 20));
            }
            for first in 0..4 {
                let ranks: Vec<usize> = (first..n).step_by(4).collect();
                groups.push(group("data", ranks.clone(), Collective::ReduceScatter, 16 << 20));
                groups.push(group("data", ranks, Collective::Allgather, 16 << 20));
            }
            let budget = || Budget::standard(n);
            let name = format!("{name}, {} groups together", groups.len());
            self.long(&name, 10_000, || {
                let plan = pack_groups(&graph, &groups, &budget()).expect("a plan");
                let bound = verify_groups(&graph, &plan).expect("it is right").expect("a bound");
                assert!(plan.rounds_per_s.to_f64() > (1.0 - 1e-6) * bound.to_f64(), "{name}");
            });
        }
    }

    /// From low trees for small buffers to the best rate for large ones.
    fn front(&mut self) {
        for name in ["dgx2", "a100x2"] {
            let graph = built(name).expect("a known machine");
            let best = pack(&graph, Collective::Allreduce).expect("a plan");
            self.long(&format!("{name} allreduce, front over sizes"), 20_000, || {
                assert!(!fastest(&front(&best)).is_empty(), "{name}");
            });
        }
    }

    /// All-to-all of up to 512 GPUs: regular fabrics to the bound, others with what is left to it.
    fn alltoall(&mut self) {
        let without = |name: &str| {
            let whole = built(name).expect("a known machine");
            let left = whole.links()[1..].to_vec();
            LinkGraph::new(name, whole.vertices().to_vec(), left).expect("it is connected")
        };
        for name in ["torus:8x8x8", "torus:16x32", "a100x64", "leaf-spine:16x32x16", "fat-tree:12"]
        {
            let graph = built(name).expect("a known machine");
            self.long(&format!("{name} all-to-all"), 10_000, || {
                let packed = pack(&graph, Collective::Alltoall).expect("a plan");
                assert_eq!(packed.gap(), 0.0, "{name}");
            });
        }
        for name in ["torus:16x16", "a100x64", "torus:8x8x8"] {
            let (graph, mut gap) = (without(name), 0.0);
            let name = format!("{name} without a link, all-to-all");
            self.long(&name, 10_000, || {
                gap = pack(&graph, Collective::Alltoall).expect("a plan").gap();
            });
            if let Some(case) = self.cases.last_mut() {
                case["gap"] = json!(gap);
                let text = case["text"].as_str().unwrap_or_default().to_owned();
                case["text"] = json!(format!("{text}, {:.3} % below its bound", 100.0 * gap));
            }
        }
    }

    /// Topologies behind a circuit switch, 2,048 workers: all numbers of devices at once by the dynamic programme.
    fn ocs(&mut self) {
        let spec = |workers: u32, devices: u32| {
            OcsSpec::new(workers, 8, devices, 8, OcsPorts::Simplex).expect("sound numbers")
        };
        let all = spec(2048, 2046u32.div_ceil(6) * 8);
        self.case("OCS N=2048, closed form", 1, || {
            closed(&all);
        });
        self.case("OCS N=2048, programme", 2_000, || {
            dp(&all);
        });
        for (workers, devices) in [(16, 12), (64, 40)] {
            let spec = spec(workers, devices);
            self.long(&format!("OCS N={workers}, shared devices, plan"), 60_000, || {
                shared(&spec);
            });
        }
    }

    fn note(&mut self, name: &str, limit_ms: u64, (median, best): (f64, f64)) {
        let holds = median <= limit_ms as f64;
        let mark = if holds { "ok" } else { "MISSED" };
        self.cases.push(json!({
            "case": name, "median": median, "best": best, "limit": limit_ms, "holds": holds,
            "text": format!("{name:50} {median:10.3} ms  (limit {limit_ms} ms) {mark}"),
        }));
    }
}

fn word(collective: Collective) -> &'static str {
    match collective {
        Collective::Allgather => "all-gather",
        Collective::Broadcast { .. } => "broadcast",
        Collective::Reduce { .. } => "reduce",
        Collective::ReduceScatter => "reduce-scatter",
        _ => "allreduce",
    }
}

/// Seconds of networkx for a bound alone, if it is installed.
fn peer() -> Option<f64> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let python = root.join(".venv/bin/python");
    let output = Command::new(python).arg(root.join("bench/peers/plan_bound.py")).output().ok()?;
    String::from_utf8_lossy(&output.stdout).trim().parse().ok()
}

fn write(file: &str, cases: &[Value]) {
    let of = |name: &str| cases.iter().find(|case| case["case"] == name);
    let main = of("a100x2 all-gather").expect("it was measured");
    let (mut peers, mut ratio) = (json!({}), json!({}));
    if let Some(seconds) = peer() {
        let ms = seconds * 1e3;
        peers["networkx, bound only"] = json!({"median": ms, "best": ms});
        ratio["networkx, bound only"] = json!(ms / main["median"].as_f64().unwrap_or(f64::NAN));
    }
    let value = json!({
        "name": "plan", "unit": "ms", "higher_is_better": false,
        "ours": {"median": main["median"], "best": main["best"]},
        "peers": peers, "ratio": ratio, "limit": "every case within its own limit",
        "cases": cases,
        "machine": record::machine(),
        "commit": record::commit(),
    });
    record::write(Path::new(file), &value);
}
