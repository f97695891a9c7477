//! What a switch's core does in reduce-scatters and all-gathers, beside allreduces and beside a bare copier of packets.
//!
//! Four real workers (core 0) do operations of 4 MiB through one switch (core 1) on loopback, two at a time; the switch
//! is the root of a tree and of its copy. Contributions are those with elements; an all-gather counts the copies that
//! leave. The copier sends each packet that it receives to the three other senders, and a switch does the same under the
//! same load, in trains that real workers, for whom one core is too little, do not send. Figures are per second of the
//! middle's processor time, so that the workers, which have more to do, do not count. Rounds alternate.
//!
//! `cargo bench --profile release -p netsum-net --bench collectives -- [--rounds N] [--seconds S] [--out FILE]`

mod copier;
#[path = "../switch/cores.rs"]
mod cores;
mod load;
mod multicast;
#[path = "../../../../bench/record.rs"]
mod record;
mod workers;

use std::path::Path;
use std::time::Duration;

use record::{commit, machine, median};
use serde_json::json;

use workers::{Kind, Workers};

/// Core of the workers, and of the switch or copier.
const CORES: [usize; 2] = [0, 1];
const RANKS: usize = 4;
const FRAGMENT_BYTES: u16 = 1408;

/// Packets, and seconds of the middle's processor time that they took.
#[derive(Clone, Copy, Debug)]
struct Counted {
    packets: u64,
    cpu: Duration,
}

impl Counted {
    fn per_second(self) -> f64 {
        self.packets as f64 / self.cpu.as_secs_f64()
    }
}

fn main() {
    let arguments: Vec<_> = std::env::args().collect();
    let after = |name: &str| arguments.iter().skip_while(|a| *a != name).nth(1);
    let rounds: usize = after("--rounds").and_then(|n| n.parse().ok()).unwrap_or(7);
    let seconds: f64 = after("--seconds").and_then(|s| s.parse().ok()).unwrap_or(1.0);
    let time = Duration::from_secs_f64(seconds);
    let mut rates = [(); 5].map(|()| Vec::new());
    for _ in 0..rounds {
        for (kind, rates) in Kind::ALL.into_iter().zip(&mut rates) {
            rates.push(Workers::start().run(kind, time).per_second());
        }
        rates[3].push(multicast::run(time).per_second());
        rates[4].push(copier::run(time).per_second());
    }
    let names = ["allreduce", "reduce-scatter", "all-gather", "copies", "copier"];
    let medians = rates.each_ref().map(|rates| median(rates));
    for (name, (median, rates)) in names.iter().zip(medians.iter().zip(&rates)) {
        let best = rates.iter().copied().fold(0.0, f64::max);
        println!("{name}: {:.3} M packets per CPU second (best {:.3})", median / 1e6, best / 1e6);
    }
    let [allreduce, scatter, gather, copies, copier] = medians;
    let ratios = [scatter / allreduce, copies / copier, gather / copier];
    println!(
        "reduce-scatter to allreduce {:.3}, copies to copier {:.3}, all-gather to copier {:.3}",
        ratios[0], ratios[1], ratios[2]
    );
    if let Some(file) = after("--out") {
        let rates =
            names.iter().zip(medians).map(|(name, median)| ((*name).to_owned(), median.into()));
        let record = json!({
            "name": "collectives",
            "unit": "contributions (all-gather: copies) per second of the middle's processor time",
            "higher_is_better": true,
            "ours": scatter, "peers": { "allreduce": allreduce },
            "ratio": {
                "reduce_scatter_to_allreduce": ratios[0],
                "copies_to_copier": ratios[1],
                "allgather_to_copier": ratios[2],
            },
            "detail": rates.collect::<serde_json::Map<_, _>>(),
            "rounds": rounds, "machine": machine(), "commit": commit(),
        });
        record::write(Path::new(file), &record);
    }
}
