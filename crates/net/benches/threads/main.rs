//! A switch with several threads beside the same switch with one, under light clients.
//!
//! Jobs of one tree and four children stream fragments through a switch at one address. Rounds alternate between one
//! thread and `--threads`, with as many jobs as threads and with one job alone. What a switch with idle cores would do
//! follows from the packets per second of processor time, which a thread beside another must not lose; what this machine
//! shows is bounded by its cores, which clients and switch share.
//!
//! `cargo bench --profile release -p netsum-net --bench threads -- [--threads N] [--rounds N] [--seconds S] [--dtype
//! f32|f16|bf16] [--out FILE]`

mod light;
#[path = "../../../../bench/record.rs"]
mod record;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use netsum_net::CpuTime;
use netsum_net::switch::{Role, SwitchDriver, SwitchOptions, SwitchSnapshot};
use netsum_net::udp::{SocketOptions, Wake};
use netsum_proto::atp::{Policy, SwitchConfig};
use netsum_wire::Dtype;
use serde_json::{Value, json};

use light::{CHILDREN, FRAGMENT_BYTES, Job, WINDOW};
use record::{commit, machine, median};

const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// Nothing is lost on loopback while windows are kept, so this is a fault.
const STUCK: Duration = Duration::from_secs(5);

/// One switch under one load.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Side {
    threads: usize,
    jobs: usize,
}

/// One round of a side.
#[derive(Clone, Copy, Debug)]
struct Round {
    /// Packets into the switch per second.
    pps: f64,
    /// The same per second of processor time of its threads.
    pps_cpu: f64,
    /// Cores that the switch used.
    cores: f64,
    /// Cores that the clients used.
    client_cores: f64,
    /// Share of the busiest thread in the switch's processor time.
    busiest: f64,
}

struct Arguments {
    threads: usize,
    rounds: usize,
    seconds: f64,
    dtype: Dtype,
    out: Option<PathBuf>,
}

fn main() {
    let arguments = Arguments::parse();
    let n = arguments.threads;
    let sides = [(1, n), (n, n), (1, 1), (n, 1)].map(|(threads, jobs)| Side { threads, jobs });
    let mut rounds = sides.map(|_| Vec::new());
    for round in 0..arguments.rounds {
        // The order of sides alternates, too.
        for turn in 0..sides.len() {
            let at = (round + turn) % sides.len();
            let measured = round_of(&arguments, sides[at]);
            eprintln!("{:?}: {measured:.3?}", sides[at]);
            rounds[at].push(measured);
        }
    }
    let record = report(&arguments, &rounds);
    println!("{}", record["limit"].as_str().unwrap_or_default());
    println!("{:#}", record["ratio"]);
    if let Some(file) = &arguments.out {
        record::write(file, &record);
    }
}

fn round_of(arguments: &Arguments, side: Side) -> Round {
    let switch = switch(side.threads);
    let address = switch.local_addr();
    let mut jobs: Vec<Job> =
        (0..side.jobs).map(|n| Job::new(n as u32, LOCALHOST, address, arguments.dtype)).collect();
    for job in &jobs {
        switch.install(job.lease()).expect("the lease fits");
    }
    run(&mut jobs, Duration::from_millis(200));
    let (before, own_before) = (snapshot(&switch), CpuTime::of_this_thread());
    let start = Instant::now();
    run(&mut jobs, Duration::from_secs_f64(arguments.seconds));
    let seconds = start.elapsed().as_secs_f64();
    let (after, own) = (snapshot(&switch), CpuTime::of_this_thread());
    let packets = (contributions(&after) - contributions(&before)) as f64;
    assert!(packets > 0.0 && after.drops.is_empty(), "{:?}", after.drops);
    let all = before.threads.iter().zip(&after.threads);
    let cpu: Vec<f64> = all.map(|(a, b)| total(b.cpu) - total(a.cpu)).collect();
    let sum: f64 = cpu.iter().sum();
    Round {
        pps: packets / seconds,
        pps_cpu: packets / sum,
        cores: sum / seconds,
        client_cores: (total(own) - total(own_before)) / seconds,
        busiest: cpu.iter().copied().fold(0.0, f64::max) / sum,
    }
}

/// All clients in this thread.
fn run(jobs: &mut [Job], time: Duration) {
    let wake = Wake::new().expect("an eventfd");
    let (start, mut moved) = (Instant::now(), Instant::now());
    while start.elapsed() < time {
        let mut busy = false;
        jobs.iter_mut().for_each(|job| busy |= job.turn());
        if busy {
            moved = Instant::now();
        } else {
            assert!(moved.elapsed() < STUCK, "the switch has stopped to answer");
            jobs[0].socket().wait(&wake, Duration::from_micros(200));
        }
    }
}

fn switch(threads: usize) -> SwitchDriver {
    let slots = SwitchConfig {
        slots: 1,
        row_bytes: 4,
        policy: Policy::FirstCome,
        straggler_ns: 200_000_000,
    };
    let (bind, socket) = (SocketAddr::new(LOCALHOST, 0), SocketOptions::default());
    let role = Role::Switch(slots);
    let options = SwitchOptions { bind, memory: 256 << 20, role, socket, threads };
    SwitchDriver::start(&options).expect("it starts")
}

fn snapshot(switch: &SwitchDriver) -> SwitchSnapshot {
    switch.snapshot().expect("the switch runs")
}

fn contributions(snapshot: &SwitchSnapshot) -> u64 {
    snapshot.trees.iter().map(|tree| tree.counters.contributions).sum()
}

fn total(cpu: CpuTime) -> f64 {
    (cpu.user + cpu.system).as_secs_f64()
}

fn report(arguments: &Arguments, rounds: &[Vec<Round>; 4]) -> Value {
    let of = |rounds: &[Round], value: fn(&Round) -> f64| {
        let all: Vec<f64> = rounds.iter().map(value).collect();
        let best = all.iter().copied().fold(f64::NAN, f64::max);
        (median(&all), best)
    };
    let ratio = |over: usize, under: usize, value: fn(&Round) -> f64| {
        let ((median, best), (under, best_under)) =
            (of(&rounds[over], value), of(&rounds[under], value));
        json!({ "median": median / under, "best": best / best_under })
    };
    let side = |rounds: &[Round]| {
        let figure = |value: fn(&Round) -> f64| {
            let (median, best) = of(rounds, value);
            json!({ "median": median, "best": best })
        };
        json!({
            "packets_per_second": figure(|r| r.pps),
            "packets_per_cpu_second": figure(|r| r.pps_cpu),
            "switch_cores": figure(|r| r.cores),
            "client_cores": figure(|r| r.client_cores),
            "busiest_thread_share": figure(|r| r.busiest),
        })
    };
    let [one, several, ..] = rounds;
    let value = |rounds: &[Round], value: fn(&Round) -> f64| of(rounds, value).0;
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    // Processor time per packet: of the switch, and of the clients.
    let switch_s = 1.0 / value(one, |r| r.pps_cpu);
    let client_s = value(one, |r| r.client_cores / r.pps);
    // One thread takes a core; several take what the clients leave.
    let bound = (cores as f64 * switch_s / (switch_s + client_s)).min(arguments.threads as f64);
    let (ours, peer) = (of(several, |r| r.pps), of(one, |r| r.pps));
    json!({
        "name": "threads",
        "unit": "packets/s into the switch",
        "higher_is_better": true,
        "ours": { "median": ours.0, "best": ours.1 },
        "peers": { "one thread": { "median": peer.0, "best": peer.1 } },
        "ratio": {
            "rate": ratio(1, 0, |r| r.pps),
            "rate_per_cpu_second": ratio(1, 0, |r| r.pps_cpu),
            "rate_of_one_job": ratio(3, 2, |r| r.pps),
            "rate_per_cpu_second_of_one_job": ratio(3, 2, |r| r.pps_cpu),
        },
        "limit": format!(
            "{cores} cores for switch and clients: a packet costs the switch {:.0} ns and its clients {:.0} ns of \
             processor time, so {} threads could be {bound:.2} times as fast as one here",
            switch_s * 1e9, client_s * 1e9, arguments.threads,
        ),
        "machine": machine(),
        "commit": commit(),
        "threads": arguments.threads,
        "dtype": format!("{:?}", arguments.dtype),
        "children": CHILDREN,
        "window": WINDOW,
        "fragment_bytes": FRAGMENT_BYTES,
        "rounds": arguments.rounds,
        "detail": {
            "one thread": side(one),
            "several threads": side(several),
            "one thread, one job": side(&rounds[2]),
            "several threads, one job": side(&rounds[3]),
        },
    })
}

impl Arguments {
    fn parse() -> Arguments {
        let (rounds, seconds, dtype, out) = (7, 1.0, Dtype::F32, None);
        let mut arguments = Arguments { threads: 2, rounds, seconds, dtype, out };
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            let mut value = || words.next().unwrap_or_else(|| usage(&word));
            match word.as_str() {
                "--threads" => arguments.threads = parse(&value()),
                "--rounds" => arguments.rounds = parse(&value()),
                "--seconds" => arguments.seconds = parse(&value()),
                "--dtype" => {
                    arguments.dtype = match value().as_str() {
                        "f32" => Dtype::F32,
                        "f16" => Dtype::F16,
                        "bf16" => Dtype::Bf16,
                        other => usage(other),
                    }
                }
                "--out" => arguments.out = Some(value().into()),
                "--bench" => {}
                _ => usage(&word),
            }
        }
        arguments
    }
}

fn parse<T: std::str::FromStr>(text: &str) -> T {
    text.parse().unwrap_or_else(|_| usage(text))
}

fn usage(word: &str) -> ! {
    eprintln!(
        "not understood: {word}; options: --threads N --rounds N --seconds S --dtype f32|f16|bf16 --out FILE"
    );
    std::process::exit(2)
}
