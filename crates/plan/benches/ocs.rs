//! How long it takes to find, write out and check topologies behind a circuit switch, on one core.
//!
//! `cargo bench --profile release -p netsum-plan --bench ocs`. N = 2,048 is to take at most 1 ms by closed
//! form and 2 s by the programme, for all numbers of devices at once; the slides' takes under 5 minutes.
#![allow(missing_docs)]

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use netsum_plan::ocs::{bound, check, closed, dp, shared, synthesize};
use netsum_topo::{OcsPorts, OcsSpec};

fn spec(workers: u32, devices: u32) -> OcsSpec {
    OcsSpec::new(workers, 8, devices, 8, OcsPorts::Simplex).expect("sound numbers")
}

fn methods(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("ocs");
    group.sample_size(20);
    for workers in [64, 512, 2048] {
        // Enough devices for a full tree per port: the largest table.
        let all = spec(workers, (workers - 2).div_ceil(6) * 8);
        let half = all.with_devices(all.devices / 2);
        let id = |name: &str| BenchmarkId::new(name, workers);
        group.bench_function(id("closed"), |b| b.iter(|| closed(&half)));
        group.bench_function(id("bound"), |b| b.iter(|| bound(&half)));
        group.bench_function(id("dp"), |b| b.iter(|| dp(&all)));
        let plan = synthesize(&half, &closed(&half));
        group.bench_function(id("synthesize"), |b| b.iter(|| synthesize(&half, &closed(&half))));
        group.bench_function(id("check"), |b| b.iter(|| check(&plan)));
    }
    for (workers, devices) in [(16, 12), (64, 40), (64, 60), (128, 60)] {
        let id = BenchmarkId::new("shared", format!("{workers} workers, {devices} devices"));
        group.bench_function(id, |b| b.iter(|| shared(&spec(workers, devices))));
    }
    group.finish();
}

criterion_group!(benches, methods);
criterion_main!(benches);
