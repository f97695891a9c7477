//! The user-space switch of protocols `atp` and `switchml`: contributions per second of its core, without tags, with
//! tags of each MAC, and encrypted.
//!
//! Four workers reduce float32 through one switch (and, with `atp`, a server), all real drivers on loopback, with trains
//! (UDP_SEGMENT, UDP_GRO). What a switch's core can do is what it added over the processor time that its thread took;
//! how fast a job is depends on the workers' cores too, and is told beside it. Rounds alternate.
//!
//! `cargo bench --profile release -p netsum-net --bench slots -- [--rounds N] [--out FILE]`

#[path = "../../../../bench/record.rs"]
mod record;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;
use netsum_net::Buffer;
use netsum_net::switch::{Role, SwitchDriver, SwitchOptions, SwitchSnapshot};
use netsum_net::udp::SocketOptions;
use netsum_net::worker::{Event, TreeOperation, WorkerDriver, WorkerPlan};
use netsum_proto::atp::*;
use netsum_proto::operations::Submission;
use netsum_proto::{CongestionRule, Secrets, switchml};
use netsum_wire::atp::Level;
use netsum_wire::seal::HopKeys;
use netsum_wire::tag::Mac;
use netsum_wire::*;
use record::{commit, machine, median};
use serde_json::json;

const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const WORKERS: usize = 4;
const WINDOW: u16 = 256;
const SLOTS: u32 = 4096;
const ELEMENTS: usize = 4 << 20;
const PATIENCE: Duration = Duration::from_secs(120);

/// Million contributions per second of the switch's core, of the job, and Gbit/s added per core, by round.
#[derive(Default)]
struct Figures {
    per_core: Vec<f64>,
    of_job: Vec<f64>,
}

fn main() {
    let arguments: Vec<_> = std::env::args().collect();
    let after = |name: &str| arguments.iter().skip_while(|a| *a != name).nth(1);
    let rounds: u64 = after("--rounds").and_then(|n| n.parse().ok()).unwrap_or(7);
    let kinds = [
        ("plain-352", 1408, Job::new(1408, None)),
        ("siphash-352", 1408, Job::new(1408, Some(Mac::SipHash))),
        ("aegis-352", 1408, Job::new(1408, Some(Mac::Aegis))),
        ("encrypted-352", 1408, Job::new(1408, Some(Mac::AegisAead))),
        ("switchml-plain-352", 1408, Job::in_pool(1408, None)),
        ("switchml-aegis-352", 1408, Job::in_pool(1408, Some(Mac::Aegis))),
        ("switchml-encrypted-352", 1408, Job::in_pool(1408, Some(Mac::AegisAead))),
        ("plain-64", 256, Job::new(256, None)),
    ];
    let mut figures = kinds.each_ref().map(|_| Figures::default());
    for round in 0..=rounds {
        for ((_, _, job), figures) in kinds.iter().zip(&mut figures) {
            let (per_core, of_job) = job.reduce(round);
            // The first round touches the pages and finds the window.
            if round > 0 {
                figures.per_core.push(per_core);
                figures.of_job.push(of_job);
            }
        }
    }
    let mut detail = serde_json::Map::new();
    for ((name, bytes, _), figures) in kinds.iter().zip(&figures) {
        let gbits = median(&figures.per_core) * f64::from(*bytes) * 8e-3;
        println!(
            "{name}: {:.2} Mpps per switch core (best {:.2}), {gbits:.1} Gbit/s added; the job {:.2} Mpps",
            median(&figures.per_core),
            best(&figures.per_core),
            median(&figures.of_job),
        );
        detail.insert(
            (*name).into(),
            json!({
                "mpps_per_core": figure(&figures.per_core), "mpps_of_job": figure(&figures.of_job),
                "gbits_added_per_second_and_core": gbits,
            }),
        );
    }
    for (name, plain, others) in [("atp", 0, [1, 2, 3].as_slice()), ("switchml", 4, &[5, 6])] {
        let per_core = |at: usize| median(&figures[at].per_core);
        let of_plain = others
            .iter()
            .map(|&at| format!("{} {:.2}", kinds[at].0, per_core(at) / per_core(plain)));
        println!("of {name} without tags: {}", of_plain.collect::<Vec<_>>().join(", "));
    }
    if let Some(file) = after("--out") {
        write(file.as_ref(), &figures, &detail);
    }
}

struct Job {
    switch: SwitchDriver,
    _server: Option<SwitchDriver>,
    workers: Vec<(WorkerDriver, Receiver<Event>)>,
    fragments: u64,
}

fn start(role: Role) -> SwitchDriver {
    let (bind, socket) = (SocketAddr::new(LOCALHOST, 0), SocketOptions::default());
    SwitchDriver::start(&SwitchOptions { bind, memory: 0, role, socket, threads: 1 })
        .expect("it starts")
}

impl Job {
    /// A job of `switchml`.
    fn in_pool(fragment_bytes: u16, mac: Option<Mac>) -> Job {
        let switch = start(Role::Switch(config(fragment_bytes)));
        let workers = workers();
        let (job, epoch, slots) = (JobId(1), Epoch(1), WINDOW);
        let at = workers.iter().map(|(w, _)| w.local_addr()).collect();
        let lease =
            switchml::Lease { tree: TreeId(0), job, epoch, workers: at, slots, fragment_bytes };
        switch.install_with(lease, secrets(mac, 0..WORKERS)).expect("the lease fits");
        for (rank, (worker, _)) in workers.iter().enumerate() {
            let config = switchml::WorkerConfig {
                copies: false,
                job,
                epoch,
                worker: rank as u8,
                workers: WORKERS as u8,
                slots,
                fragment_bytes,
                timeout_ns: 20_000_000,
            };
            let plan = WorkerPlan { config: config.into(), switches: vec![switch.local_addr()] };
            worker.begin_with(plan, secrets(mac, rank..rank + 1));
        }
        let fragments = (ELEMENTS * 4).div_ceil(usize::from(fragment_bytes)) as u64;
        Job { switch, _server: None, workers, fragments }
    }

    /// A job of `atp`.
    fn new(fragment_bytes: u16, mac: Option<Mac>) -> Job {
        // The workers' hops, then the server's.
        let secrets = |hops| secrets(mac, hops);
        let (switch, server) = (
            start(Role::Switch(config(fragment_bytes))),
            start(Role::Server { row_bytes: fragment_bytes, rows: 6 * usize::from(WINDOW) }),
        );
        let workers = workers();
        let (job, epoch, tree) = (JobId(1), Epoch(1), TreeId(0));
        let members = Members::Rack {
            workers: workers.iter().map(|(w, _)| w.local_addr()).collect(),
            rack: 0,
            racks: 1,
        };
        let (window, claim) = (WINDOW, Claim::default());
        let parent = server.local_addr();
        let lease = Lease { job, epoch, tree, members, parent, window, fragment_bytes, claim };
        switch.install_with(lease, secrets(0..WORKERS + 1)).expect("the lease fits");
        let neighbours = vec![Neighbour { port: switch.local_addr(), racks: 1, workers: u32::MAX }];
        let racks = vec![(0..WORKERS as u32).collect()];
        let slots = SLOTS;
        let lease =
            ServerLease { job, epoch, tree, racks, neighbours, window, fragment_bytes, slots };
        server.install_with(lease, secrets(WORKERS..WORKERS + 1)).expect("the lease fits");
        for (rank, (worker, _)) in workers.iter().enumerate() {
            let place = WorkerPosition {
                level: Level::Rack,
                worker: rank as u8,
                rack_fan_in: WORKERS as u8,
                rack: 0,
                server_fan_in: 1,
            };
            let config = WorkerConfig {
                job,
                epoch,
                rank: Rank(rank as u32),
                ranks: WORKERS as u32,
                copies: false,
                places: vec![place],
                window_max: WINDOW,
                fragment_bytes,
                slots: SLOTS,
                congestion: CongestionRule::Aimd { packet_bytes: fragment_bytes + 88 },
                scaling: Scaling::Shared,
            };
            let config = config.into();
            let plan = WorkerPlan { config, switches: vec![switch.local_addr()] };
            worker.begin_with(plan, secrets(rank..rank + 1));
        }
        let fragments = (ELEMENTS * 4).div_ceil(usize::from(fragment_bytes)) as u64;
        Job { switch, _server: Some(server), workers, fragments }
    }

    /// Million contributions per second: of the switch's core, of the job.
    fn reduce(&self, id: u64) -> (f64, f64) {
        let before = self.switch.snapshot().expect("it runs");
        let mut buffers: Vec<_> =
            (0..WORKERS).map(|_| Buffer::from_vec(vec![0; ELEMENTS * 4])).collect();
        let started = Instant::now();
        for ((worker, _), buffer) in self.workers.iter().zip(&mut buffers) {
            let format = Format { dtype: Dtype::F32, op: ReduceOp::Sum };
            let (numel, fragments) = (ELEMENTS as u64, Fragments::All);
            let submission = Submission {
                id,
                format,
                numel,
                fingerprint: 7,
                fragments,
                pattern: Default::default(),
            };
            worker.submit(TreeOperation { submission, buffer: buffer.lend_all().into() });
        }
        for (_, events) in &self.workers {
            match events.recv_timeout(PATIENCE) {
                Ok(Event::Done { .. }) => {}
                other => panic!("{other:?}"),
            }
        }
        let seconds = started.elapsed().as_secs_f64();
        let after = self.switch.snapshot().expect("it runs");
        let added = added(&after) - added(&before);
        let cpu = (after.cpu.user + after.cpu.system) - (before.cpu.user + before.cpu.system);
        let contributions = (self.fragments * WORKERS as u64) as f64;
        (added as f64 / cpu.as_secs_f64() / 1e6, contributions / seconds / 1e6)
    }
}

fn config(row_bytes: u16) -> SwitchConfig {
    SwitchConfig { slots: SLOTS, row_bytes, policy: Policy::FirstCome, straggler_ns: 200_000_000 }
}

fn workers() -> Vec<(WorkerDriver, Receiver<Event>)> {
    (0..WORKERS).map(|_| WorkerDriver::start(LOCALHOST).expect("it starts")).collect()
}

fn secrets(mac: Option<Mac>, hops: Range<usize>) -> Option<Secrets> {
    mac.map(|mac| hops.map(|hop| HopKeys::new(mac, [hop as u8; 32])).collect())
}

/// Fragments that the switch has added.
fn added(snapshot: &SwitchSnapshot) -> u64 {
    let slots = snapshot.slots.iter().map(|slots| slots.counters.added);
    slots.chain(snapshot.pools.iter().map(|pool| pool.counters.added)).sum()
}

fn write(file: &Path, figures: &[Figures], detail: &serde_json::Map<String, serde_json::Value>) {
    let [plain, siphash, aegis, encrypted, in_pool, aegis_pool, encrypted_pool, _] = figures else {
        unreachable!("there are eight kinds");
    };
    let per_plain =
        |plain: &Figures, other: &Figures| median(&other.per_core) / median(&plain.per_core);
    let ratio = |tags: &Figures| median(&plain.per_core) / median(&tags.per_core);
    let json = json!({
        "name": "slots",
        "unit": "million contributions of 352 elements per second of the switch's core",
        "higher_is_better": true,
        "ours": figure(&plain.per_core),
        "peers": { "siphash": figure(&siphash.per_core), "aegis": figure(&aegis.per_core) },
        "ratio": { "siphash": ratio(siphash), "aegis": ratio(aegis) },
        "of_plain": {
            "atp": { "aegis": per_plain(plain, aegis), "encrypted": per_plain(plain, encrypted) },
            "switchml": {
                "aegis": per_plain(in_pool, aegis_pool),
                "encrypted": per_plain(in_pool, encrypted_pool),
            },
        },
        "limit": "copies between kernel and process, in and out; with tags the MAC of every byte",
        "machine": machine(),
        "commit": commit(),
        "detail": detail,
    });
    record::write(file, &json);
}

fn figure(values: &[f64]) -> serde_json::Value {
    json!({ "median": median(values), "best": best(values) })
}

fn best(values: &[f64]) -> f64 {
    values.iter().copied().fold(0.0, f64::max)
}
