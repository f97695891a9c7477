//! One controller with as many switches, workers and jobs as a large cluster has: 1,000, 10,000 and 200.
//!
//! The controller is the daemon, a process of its own. Switches and workers are the real clients, over gRPC on loopback,
//! as tasks of this process; switches confirm every lease and have no data path. Every job uses every spine, so the
//! death of one concerns all jobs.
//!
//! `cargo bench --profile release -p netsum-control --bench scale -- [--switches N] [--workers N] [--jobs N]
//! [--seconds N] [--out FILE]`
//!
//! One address may hold half of the controller's connections. Beyond that the benchmark needs several addresses, which it
//! makes in a network namespace of its own, as root.

mod cluster;
mod daemon;
#[path = "../../../../bench/record.rs"]
mod record;

use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use netsum_control::client::{self, ControllerEndpoint};
use serde_json::{Value, json};

use cluster::{Cluster, Shape};
use daemon::{Daemon, Usage};
use record::{commit, machine, median};

/// How long the whole cluster may take for one step before the benchmark gives up.
const PATIENCE: Duration = Duration::from_secs(120);
/// Connections of one address that are below the controller's limit on any system with the usual 20,000 open files.
const PER_ADDRESS: usize = 4_000;
const NAMESPACE: &str = "NETSUM_SCALE_NAMESPACE";

fn main() {
    let arguments: Vec<_> = std::env::args().collect();
    let after = |name: &str| arguments.iter().skip_while(|a| *a != name).nth(1);
    let number = |name: &str, usual: usize| match after(name).map(|text| text.parse()) {
        Some(Ok(number)) => number,
        Some(Err(_)) => fail(&format!("{name} takes a number")),
        None => usual,
    };
    let shape = Shape {
        switches: number("--switches", 1_000),
        workers: number("--workers", 10_000),
        jobs: number("--jobs", 200),
    };
    let seconds = number("--seconds", 10).max(1);
    let addresses = addresses(shape.switches + shape.workers);
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.unwrap_or_else(|error| fail(&format!("no runtime: {error}")));
    let detail = runtime.block_on(measure(shape, &addresses, Duration::from_secs(seconds as u64)));
    daemon::stop();
    println!("{detail:#}");
    if let Some(file) = after("--out") {
        let record = json!({
            "name": "scale", "unit": "s until 200 jobs have a plan without a spine that died",
            "higher_is_better": false, "ours": detail, "limit": "one thread decides, one stream per peer carries",
            "machine": machine(), "commit": commit(),
        });
        record::write(Path::new(file), &record);
    }
}

/// The addresses under which clients reach the controller. The kernel takes the same address for the client's end.
fn addresses(connections: usize) -> Vec<IpAddr> {
    let wanted = connections.div_ceil(PER_ADDRESS);
    if wanted == 1 {
        return vec![Ipv4Addr::LOCALHOST.into()];
    }
    let addresses = (1..=wanted).map(|n| Ipv4Addr::new(10, 77, 0, n as u8));
    if std::env::var_os(NAMESPACE).is_none() {
        let own = std::env::current_exe().unwrap_or_else(|error| fail(&error.to_string()));
        let mut again = Command::new("unshare");
        again.arg("--net").arg(own).args(std::env::args_os().skip(1)).env(NAMESPACE, "1");
        let error = again.exec();
        fail(&format!(
            "{connections} connections need a network namespace (unshare, as root): {error}"
        ));
    }
    ip(&["link", "set", "lo", "up"]);
    for address in addresses.clone() {
        ip(&["address", "add", &format!("{address}/32"), "dev", "lo"]);
    }
    addresses.map(IpAddr::from).collect()
}

fn ip(arguments: &[&str]) {
    match Command::new("ip").args(arguments).status() {
        Ok(status) if status.success() => {}
        other => fail(&format!("ip {}: {other:?}", arguments.join(" "))),
    }
}

async fn measure(shape: Shape, addresses: &[IpAddr], steady: Duration) -> Value {
    let fabric = shape.fabric();
    let daemon = Daemon::start(&fabric);
    let endpoints: Vec<ControllerEndpoint> = addresses
        .iter()
        .map(|address| ControllerEndpoint::trusted(format!("{address}:{}", daemon.port)))
        .collect();
    let idle = daemon.usage();
    let mut cluster = Cluster::new(shape, fabric, endpoints.clone());

    let start = Instant::now();
    cluster.connect_switches(PATIENCE).await;
    let switches_s = start.elapsed().as_secs_f64();
    println!("{} switches are connected after {switches_s:.2} s", shape.switches);

    let mut admitted = Vec::new();
    let start = Instant::now();
    for job in 0..shape.jobs {
        admitted.push(cluster.admit(job, PATIENCE).await.as_secs_f64());
    }
    let jobs_s = start.elapsed().as_secs_f64();
    println!("{} jobs have their plans after {jobs_s:.2} s", shape.jobs);
    let full = daemon.usage();

    tokio::time::sleep(steady).await;
    let quiet = daemon.usage();
    let heartbeats = (shape.switches + shape.workers) as f64;

    let mut status = Vec::new();
    for _ in 0..5 {
        let (endpoint, start) = (endpoints[0].clone(), Instant::now());
        let reply = tokio::task::spawn_blocking(move || client::status(&endpoint, PATIENCE)).await;
        reply
            .expect("the thread of the call ends")
            .unwrap_or_else(|error| fail(&error.to_string()));
        status.push(start.elapsed().as_secs_f64());
    }

    let before = daemon.usage();
    let replanned = cluster.kill_spine(PATIENCE).await;
    let after = daemon.usage();
    println!("{} jobs have new plans {:.2} s after a spine's death", shape.jobs, last(&replanned));
    let returned = cluster.revive_spine(PATIENCE).await;
    println!("the spine is used again by all of them after {returned:.2} s");
    json!({
        "switches": shape.switches, "workers": shape.workers, "jobs": shape.jobs,
        "connect_switches_s": switches_s,
        "admit_job_s": spread(&admitted),
        "admit_all_jobs_s": jobs_s,
        "steady_cores": (quiet.cpu - full.cpu).as_secs_f64() / steady.as_secs_f64(),
        "heartbeats_per_s": heartbeats,
        "status_s": spread(&status),
        "replan_s": spread(&replanned),
        "replan_cpu_s": (after.cpu - before.cpu).as_secs_f64(),
        "return_s": returned,
        "memory_mib": { "started": mib(idle), "all_jobs": mib(full), "at_the_end": mib(daemon.usage()) },
    })
}

fn mib(usage: Usage) -> f64 {
    usage.memory_bytes as f64 / f64::from(1 << 20)
}

fn last(values: &[f64]) -> f64 {
    values.iter().copied().fold(0.0, f64::max)
}

fn spread(values: &[f64]) -> Value {
    json!({ "median": median(values), "best": values.iter().copied().fold(f64::MAX, f64::min), "worst": last(values) })
}

fn fail(problem: &str) -> ! {
    daemon::stop();
    eprintln!("scale: {problem}");
    std::process::exit(1);
}
