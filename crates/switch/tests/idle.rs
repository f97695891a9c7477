//! A dozen idle jobs of one tenant hold the memory of real switch daemons; another tenant's job gets its trees.

use std::net::{IpAddr, UdpSocket};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use netsum_control::client::{self, ControllerEndpoint, WorkerClient, WorkerNotice};
use netsum_control::decide::Settings;
use netsum_control::{Config, Controller, JobPlan, Security, pb};
use netsum_topo::{Addressing, Bytes, Fabric, Rate, Tenant, leaf_spine};

#[path = "support/blocks.rs"]
mod blocks;
#[path = "support/daemon.rs"]
mod daemon;

use daemon::Daemon;

const PATIENCE: Duration = Duration::from_secs(60);
const SQUATTERS: usize = 12;
/// A window that fills a link.
const WINDOW: u32 = 32;
const IDLE: Duration = Duration::from_millis(200);

/// A job with a rank in each rack.
struct Job {
    ranks: Vec<(UdpSocket, WorkerClient, Receiver<WorkerNotice>)>,
}

impl Job {
    fn start(controller: &ControllerEndpoint, fabric: &Fabric, tenant: &str) -> Job {
        let hosts: Vec<IpAddr> = [0, 2].map(|host: usize| fabric.hosts[host].address).to_vec();
        let size = hosts.len() as u32;
        let request = pb::CreateJobRequest { size, tenant: tenant.into(), ..Default::default() };
        let job = client::create_job(controller, request, PATIENCE).unwrap().job;
        let join = |(rank, host): (u32, IpAddr)| {
            let socket = UdpSocket::bind((host, 0)).unwrap();
            let udp_address = socket.local_addr().unwrap().to_string();
            let pid = std::process::id();
            let join = pb::Join { job, rank, udp_address, pid, mtu: 1500, ..pb::Join::default() };
            let (session, notices) = WorkerClient::start(controller, join, size).unwrap();
            (socket, session, notices)
        };
        Job { ranks: (0..).zip(hosts).map(join).collect() }
    }

    /// The first plan that is as wanted.
    fn plan(&self, wanted: impl Fn(&JobPlan) -> bool) -> JobPlan {
        let end = Instant::now() + PATIENCE;
        loop {
            match self.ranks[0].2.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(WorkerNotice::Plan(plan)) if wanted(&plan) => return *plan,
                Ok(_) => {}
                Err(error) => panic!("no such plan: {error}"),
            }
        }
    }
}

#[test]
fn idle_jobs_of_one_tenant_make_room_for_anothers() {
    let (block, _reserved) = blocks::reserve();
    let addressing =
        Addressing { base: [127, block], memory: Bytes(1 << 20), ..Addressing::default() };
    let rate = Rate(10_000_000_000);
    let mut fabric = leaf_spine(2, 2, 2, rate, rate, addressing).unwrap();
    fabric.tenants = ["squatter", "other"].map(Tenant::named).to_vec();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("fabric.toml");
    std::fs::write(&file, fabric.to_toml()).unwrap();
    let settings = Settings { idle_yield_ms: IDLE.as_millis() as u64, ..Settings::default() };
    let (listen, security) = (fabric.controller, Security::Trusted);
    let _daemons: Vec<_> =
        fabric.switches.iter().map(|s| Daemon::start(&file, &s.name, &[])).collect();
    let config = Config { fabric: fabric.clone(), listen, store: None, settings, security };
    let controller = Controller::start(config).unwrap();
    let address = ControllerEndpoint::trusted(controller.address());

    let squatters: Vec<Job> = (0..SQUATTERS)
        .map(|_| {
            let job = Job::start(&address, &fabric, "squatter");
            job.plan(|_| true);
            job
        })
        .collect();
    let uptime = || client::status(&address, PATIENCE).unwrap().uptime_s;
    let idle_at = uptime() + IDLE.as_secs_f64();
    while uptime() < idle_at {}
    let status = client::status(&address, PATIENCE).unwrap();
    let full = |s: &pb::SwitchStatus| s.memory_leased_bytes > s.memory_bytes * 9 / 10;
    assert!(status.switches.iter().any(full), "{:?}", status.switches);

    let other = Job::start(&address, &fabric, "other");
    let plan = other.plan(|_| true).plan;
    assert_eq!((plan.trees.len(), plan.reason.as_str()), (2, ""));
    assert!(plan.window_max >= WINDOW, "{}", plan.window_max);
    let status = client::status(&address, PATIENCE).unwrap();
    let yielded = |job: &&pb::JobStatus| job.reason.contains("it made room for job");
    assert!(status.jobs.iter().any(|job| yielded(&job)), "{:?}", status.jobs);
    for (_, session, _) in squatters.into_iter().chain([other]).flat_map(|job| job.ranks) {
        session.leave();
    }
    controller.stop();
}
