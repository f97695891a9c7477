//! The switches and workers of the cluster, as tasks.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{Duration, Instant};

use netsum_control::client::{
    self, ControllerEndpoint, SwitchClient, SwitchNotice, WorkerClient, WorkerNotice,
};
use netsum_control::pb;
use netsum_topo::{Addressing, Bytes, Fabric, Plan, Rate, leaf_spine};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout_at;

use crate::fail;

/// How large the cluster is.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub switches: usize,
    pub workers: usize,
    pub jobs: usize,
}

impl Shape {
    /// A leaf-spine with [`SPINES`] spines. A host has one worker.
    pub fn fabric(self) -> Fabric {
        let racks = self.switches.saturating_sub(SPINES).max(1);
        let hosts = self.workers.div_ceil(racks);
        let addressing = Addressing { memory: Bytes(AMPLE), ..Addressing::default() };
        let rate = Rate(100_000_000_000);
        let fabric = leaf_spine(racks as u32, hosts as u32, SPINES as u32, rate, rate, addressing);
        fabric.unwrap_or_else(|error| fail(&error.to_string()))
    }

    fn ranks(self) -> u32 {
        (self.workers / self.jobs.max(1)) as u32
    }
}

/// A new plan of a job, as one of its ranks has received it.
struct Arrival {
    job: usize,
    plan: Box<Plan>,
    at: Instant,
}

pub struct Cluster {
    shape: Shape,
    fabric: Fabric,
    controllers: Vec<ControllerEndpoint>,
    switches: BTreeMap<String, SwitchTask>,
    workers: Vec<WorkerClient>,
    arrivals: mpsc::UnboundedReceiver<Arrival>,
    arrived: mpsc::UnboundedSender<Arrival>,
}

/// A switch; its stream ends when the task does.
struct SwitchTask(JoinHandle<()>);

impl Drop for SwitchTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Cluster {
    pub fn new(shape: Shape, fabric: Fabric, controllers: Vec<ControllerEndpoint>) -> Cluster {
        let (arrived, arrivals) = mpsc::unbounded_channel();
        let (switches, workers) = (BTreeMap::new(), Vec::new());
        Cluster { shape, fabric, controllers, switches, workers, arrivals, arrived }
    }

    fn controller(&self, number: usize) -> &ControllerEndpoint {
        &self.controllers[number % self.controllers.len()]
    }

    /// Connects all switches; returns once the controller counts all of them as up.
    pub async fn connect_switches(&mut self, patience: Duration) {
        let (connected, mut connections) = mpsc::unbounded_channel();
        let names: Vec<String> =
            self.fabric.switches.iter().map(|switch| switch.name.clone()).collect();
        for (number, name) in names.iter().enumerate() {
            let task = self.switch(number, name, connected.clone());
            self.switches.insert(name.clone(), task);
        }
        let end = tokio::time::Instant::now() + patience;
        for number in 0..names.len() {
            if timeout_at(end, connections.recv()).await.is_err() {
                fail(&format!(
                    "{number} of {} switches connected within {patience:?}",
                    names.len()
                ));
            }
        }
    }

    fn switch(
        &self,
        number: usize,
        name: &str,
        connected: mpsc::UnboundedSender<()>,
    ) -> SwitchTask {
        let hello = pb::SwitchHello {
            name: name.to_owned(),
            udp_address: self
                .fabric
                .switch(name)
                .map(|s| s.address.to_string())
                .unwrap_or_default(),
            memory_bytes: AMPLE,
            receive_buffer_bytes: AMPLE,
            mtu: 9_000,
            ..pb::SwitchHello::default()
        };
        let controller = self.controller(number).clone();
        SwitchTask(tokio::spawn(async move {
            let (client, mut notices) = SwitchClient::spawn(&controller, move || hello.clone());
            while let Some(notice) = notices.recv().await {
                match notice {
                    SwitchNotice::Incarnation(_) => drop(connected.send(())),
                    SwitchNotice::Install(lease) => client.ack(&lease, Ok(())),
                    SwitchNotice::Refused { reason } => {
                        fail(&format!("a switch was refused: {reason}"))
                    }
                    _ => {}
                }
            }
        }))
    }

    /// Creates a job and joins its ranks; returns the time from the call until all ranks have a plan with all trees.
    pub async fn admit(&mut self, job: usize, patience: Duration) -> Duration {
        let (size, start) = (self.shape.ranks(), Instant::now());
        let request =
            pb::CreateJobRequest { name: format!("job{job}"), size, ..Default::default() };
        let (controller, description) = (self.controller(job).clone(), request.clone());
        let created =
            tokio::task::spawn_blocking(move || client::create_job(&controller, request, patience));
        let created = created.await.expect("the thread of the call ends");
        let created = created.unwrap_or_else(|error| fail(&error.to_string()));
        for rank in 0..size {
            let number = job * size as usize + rank as usize;
            let host = &self.fabric.hosts[number];
            let join = pb::Join {
                job: created.job,
                rank,
                host: host.name.clone(),
                udp_address: format!("{}:6000", host.address),
                mesh_address: format!("{}:7000", host.address),
                pid: number as u32 + 1,
                mtu: 9_000,
                incarnation: created.incarnation,
                description: Some(description.clone()),
                ..pb::Join::default()
            };
            let (client, mut notices) = WorkerClient::spawn(self.controller(number), join, size);
            let arrived = self.arrived.clone();
            tokio::spawn(async move {
                while let Some(notice) = notices.recv().await {
                    match notice {
                        WorkerNotice::Plan(plan) => {
                            let (plan, at) = (Box::new(plan.plan), Instant::now());
                            let _ = arrived.send(Arrival { job, plan, at });
                        }
                        WorkerNotice::Refused { reason } | WorkerNotice::JobFailed { reason } => {
                            fail(&format!("job {job}, rank {rank}: {reason}"))
                        }
                        _ => {}
                    }
                }
            });
            self.workers.push(client);
        }
        self.all_have(start, job..job + 1, patience, |plan| plan.reason.is_empty()).await;
        start.elapsed()
    }

    /// Ends a spine's stream. Returns for each job the seconds until all of its ranks have a plan without the spine.
    pub async fn kill_spine(&mut self, patience: Duration) -> Vec<f64> {
        let start = Instant::now();
        drop(self.switches.remove(SPINE));
        self.all_have(start, 0..self.shape.jobs, patience, |plan| plan.reason.contains(SPINE)).await
    }

    /// Connects the spine again. Returns the seconds until all jobs have all trees again.
    pub async fn revive_spine(&mut self, patience: Duration) -> f64 {
        let (start, (connected, _connections)) = (Instant::now(), mpsc::unbounded_channel());
        let task = self.switch(0, SPINE, connected);
        self.switches.insert(SPINE.to_owned(), task);
        let jobs = 0..self.shape.jobs;
        let times = self.all_have(start, jobs, patience, |plan| plan.reason.is_empty()).await;
        times.into_iter().fold(0.0, f64::max)
    }

    /// Waits until all ranks of some jobs have a plan that is wanted. Returns for each job the seconds from `start`.
    async fn all_have(
        &mut self,
        start: Instant,
        jobs: Range<usize>,
        patience: Duration,
        wanted: impl Fn(&Plan) -> bool,
    ) -> Vec<f64> {
        let ranks = self.shape.ranks();
        let (mut have, mut times) = (vec![0; jobs.len()], vec![0.0_f64; jobs.len()]);
        let (end, mut reason) = (tokio::time::Instant::now() + patience, String::new());
        while have.iter().any(|&count| count < ranks) {
            let Ok(Some(Arrival { job, plan, at })) = timeout_at(end, self.arrivals.recv()).await
            else {
                let done = have.iter().filter(|&&count| count >= ranks).count();
                fail(&format!(
                    "{done} of jobs {jobs:?} have new plans after {patience:?}: {reason}"
                ));
            };
            reason.clone_from(&plan.reason);
            if jobs.contains(&job) && wanted(&plan) {
                have[job - jobs.start] += 1;
                let time = &mut times[job - jobs.start];
                *time = time.max((at - start).as_secs_f64());
            }
        }
        times
    }
}

/// Bytes of memory and of receive buffer of a switch: idle jobs need not yield to others.
const AMPLE: u64 = 1 << 40;
/// A job uses at most 16 trees, so with as many spines every job uses each.
const SPINES: usize = 16;
const SPINE: &str = "spine0";
