//! A fabric of real processes: controller, four switch daemons, four workers; a switch dies and returns.

use std::cell::RefCell;
use std::net::IpAddr;
use std::os::unix::net::UnixDatagram;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use netsum_control::client::{self, ControllerEndpoint, WorkerClient, WorkerNotice};
use netsum_control::decide::Settings;
use netsum_control::{Config, Controller, JobPlan, Security, pb};
use netsum_lease::{RankKeys, worker_secrets};
use netsum_net::Buffer;
use netsum_net::worker::{Event, TreeOperation, WorkerDriver, WorkerPlan};
use netsum_proto::CongestionRule;
use netsum_proto::handover::resolve;
use netsum_proto::panama::{Fragments, Submission, WorkerConfig};
use netsum_topo::{Addressing, Fabric, Rate, leaf_spine};
use netsum_wire::{Dtype, Encoding, Epoch, Format, Input, JobId, Rank, ReduceOp, reduce};

#[path = "support/blocks.rs"]
mod blocks;
#[path = "support/daemon.rs"]
mod daemon;

use daemon::Daemon;

const SIZE: u32 = 4;
const PATIENCE: Duration = Duration::from_secs(20);
const FORMAT: Format = Format { dtype: Dtype::F32, op: ReduceOp::Sum };
const NUMEL: usize = 1_000_003;

struct Worker {
    rank: u32,
    driver: WorkerDriver,
    events: crossbeam_channel::Receiver<Event>,
    session: WorkerClient,
    notices: mpsc::Receiver<WorkerNotice>,
    keys: RefCell<RankKeys>,
}

impl Worker {
    fn join(controller: &ControllerEndpoint, job: u32, rank: u32, host: IpAddr) -> Worker {
        let (driver, events) = WorkerDriver::start(host).unwrap();
        let join = pb::Join {
            job,
            rank,
            udp_address: driver.local_addr().to_string(),
            pid: std::process::id(),
            // Of an Ethernet: several fragments per train, as between machines.
            mtu: 1500,
            ..Default::default()
        };
        let (session, notices) = WorkerClient::start(controller, join, SIZE).unwrap();
        Worker { rank, driver, events, session, notices, keys: RefCell::default() }
    }

    /// The next plan with that many trees.
    fn plan(&self, trees: usize) -> JobPlan {
        let end = Instant::now() + PATIENCE;
        loop {
            match self.notices.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(WorkerNotice::Plan(plan)) if plan.plan.trees.len() == trees => return *plan,
                Ok(WorkerNotice::Plan(_) | WorkerNotice::Connected) => {}
                Ok(WorkerNotice::RankKey(id, key)) => self.keys.borrow_mut().insert(id, key),
                other => panic!("rank {} waits for {trees} trees: {other:?}", self.rank),
            }
        }
    }

    fn begin(&self, plan: &JobPlan) {
        let switches = plan.attachments(self.rank).unwrap();
        let secrets = worker_secrets(plan, &self.keys.borrow());
        assert!(secrets.is_some(), "the fabric is not trusted");
        let plan = &plan.plan;
        let plan = WorkerPlan {
            config: WorkerConfig {
                job: JobId(plan.job),
                epoch: Epoch(plan.epoch),
                rank: Rank(self.rank),
                ranks: SIZE,
                trees: plan.trees.len() as u8,
                copies: false,
                window_max: plan.window_max as u16,
                fragment_bytes: plan.fragment_bytes as u16,
                congestion: CongestionRule::PerBranch,
                partial: false,
            }
            .into(),
            switches: switches.iter().map(|a| a.address).collect(),
        };
        self.driver.begin_with(plan, secrets);
    }

    fn submit(&self, id: u64) -> Buffer {
        let mut buffer = Buffer::from_vec(numbers(self.rank));
        let submission = Submission {
            id,
            format: FORMAT,
            numel: NUMEL as u64,
            fingerprint: id as u32,
            fragments: Fragments::All,
            pattern: Default::default(),
        };
        self.driver.submit(TreeOperation { submission, buffer: buffer.lend_all().into() });
        buffer
    }

    fn wait_done(&self, id: u64) {
        loop {
            match self.events.recv_timeout(PATIENCE) {
                Ok(Event::Done { id: done, missing: 0 }) if done == id => return,
                Ok(Event::Done { .. } | Event::Silent { .. }) => {}
                other => panic!("rank {} waits for operation {id}: {other:?}", self.rank),
            }
        }
    }
}

fn numbers(rank: u32) -> Vec<u8> {
    let number = |i: usize| ((i * 31 + rank as usize * 7919) % 10_007) as f32 / 97.0 - 40.0;
    (0..NUMEL).flat_map(|i| number(i).to_le_bytes()).collect()
}

/// The sum in the order [[0,1],[2,3]]: what two racks under a spine compute.
fn expected() -> Vec<u8> {
    let add = |a: &[u8], b: &[u8]| {
        let input = |bytes| Some(Input { bytes, encoding: Encoding::Element });
        let mut out = vec![0; NUMEL * 4];
        reduce(FORMAT, &[input(a), input(b)], NUMEL, &mut out, Encoding::Element);
        out
    };
    add(&add(&numbers(0), &numbers(1)), &add(&numbers(2), &numbers(3)))
}

/// A fabric on a loopback block of its own while the socket is open.
fn fabric() -> (Fabric, UnixDatagram) {
    let (block, reserved) = blocks::reserve();
    let rate = Rate(10_000_000_000);
    let addressing = Addressing { base: [127, block], ..Addressing::default() };
    (leaf_spine(2, 2, 2, rate, rate, addressing).unwrap(), reserved)
}

fn all_get_the_sum(workers: &[Worker], id: u64, expected: &[u8]) {
    let buffers: Vec<_> = workers.iter().map(|w| w.submit(id)).collect();
    for (worker, buffer) in workers.iter().zip(buffers) {
        worker.wait_done(id);
        assert!(buffer.slice(0..buffer.len()) == expected, "rank {}", worker.rank);
    }
}

/// Ends the epoch at all workers as the collectives do, and begins the next with what is left.
fn move_to(workers: &[Worker], plan: &JobPlan) {
    let reports: Vec<_> = workers.iter().map(|w| w.driver.freeze()).collect();
    let resolution = resolve(&reports);
    for serve in resolution.serve {
        let result = workers[serve.from.0 as usize].driver.fetch(&[serve.g]);
        let result = result[0].clone().expect("it is retained");
        for to in serve.to {
            workers[to.0 as usize].driver.deliver(vec![(serve.g, result.clone())]);
        }
    }
    for worker in workers {
        let remaining = worker.driver.resolve(resolution.finished.clone());
        worker.begin(plan);
        remaining.into_iter().for_each(|operation| worker.driver.submit(operation));
    }
}

/// Heartbeats carry every switch's counters to the controller, links by name.
fn counters_arrive(controller: &ControllerEndpoint) {
    let end = Instant::now() + PATIENCE;
    loop {
        let status = client::status(controller, PATIENCE).unwrap();
        let counts = |s: &pb::SwitchStatus| s.trees.iter().any(|tree| tree.contributions > 1000);
        let named = |s: &pb::SwitchStatus| s.neighbours.iter().all(|n| !n.name.is_empty());
        if status.switches.iter().all(|s| s.state == "up" && counts(s) && named(s)) {
            return;
        }
        assert!(Instant::now() < end, "{:?}", status.switches);
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_spine_dies_under_load_and_comes_back() {
    lose_a_spine(|_| &[]);
}

/// Switches with different numbers of threads, and with one, understand each other.
#[test]
fn the_same_with_several_threads_in_switches() {
    lose_a_spine(|name| match name {
        "rack0" => &["--threads=3"],
        "rack1" => &[],
        _ => &["--threads=2"],
    });
}

fn lose_a_spine(options: fn(&str) -> &'static [&'static str]) {
    let ((fabric, _reserved), folder) = (fabric(), tempfile::tempdir().unwrap());
    let file = folder.path().join("fabric.toml");
    std::fs::write(&file, fabric.to_toml()).unwrap();
    let settings = Settings { return_hold_ms: 100, ..Settings::default() };
    let listen = fabric.controller;
    let config = Config {
        fabric: fabric.clone(),
        listen,
        store: None,
        settings,
        security: Security::Trusted,
    };
    let mut daemons: Vec<_> =
        fabric.switches.iter().map(|s| Daemon::start(&file, &s.name, options(&s.name))).collect();
    // Last, so that the switches have had to try again.
    let controller = Controller::start(config).unwrap();
    let address = ControllerEndpoint::trusted(controller.address());
    let job = pb::CreateJobRequest { name: "test".into(), size: SIZE, ..Default::default() };
    let job = client::create_job(&address, job, PATIENCE).unwrap().job;
    let hosts = fabric.hosts.iter().map(|host| host.address);
    let workers: Vec<_> =
        (0..SIZE).zip(hosts).map(|(rank, host)| Worker::join(&address, job, rank, host)).collect();

    let plans: Vec<_> = workers.iter().map(|w| w.plan(2)).collect();
    assert_eq!(plans[0].plan.order.to_string(), "[[0,1],[2,3]]");
    workers.iter().zip(&plans).for_each(|(worker, plan)| worker.begin(plan));
    let expected = expected();
    all_get_the_sum(&workers, 1, &expected);

    let spine = fabric.switches.iter().position(|s| s.name == "spine1").unwrap();
    let buffers: Vec<_> = workers.iter().map(|w| w.submit(2)).collect();
    drop(daemons.remove(spine));
    let plans: Vec<_> = workers.iter().map(|w| w.plan(1)).collect();
    assert!(plans[0].plan.reason.contains("spine1"), "{}", plans[0].plan.reason);
    move_to(&workers, &plans[0]);
    for (worker, buffer) in workers.iter().zip(buffers) {
        worker.wait_done(2);
        assert!(buffer.slice(0..buffer.len()) == expected, "rank {}", worker.rank);
    }

    daemons.push(Daemon::start(&file, "spine1", options("spine1")));
    let plans: Vec<_> = workers.iter().map(|w| w.plan(2)).collect();
    move_to(&workers, &plans[0]);
    all_get_the_sum(&workers, 3, &expected);
    counters_arrive(&address);

    for worker in workers {
        worker.driver.stop();
        worker.session.leave();
    }
    controller.stop();
}
