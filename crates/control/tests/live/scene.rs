//! A controller on a port, with switches that have no data path and workers that have no buffers.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use netsum_control::client::{
    self, ControllerEndpoint, LeaseOffer, SwitchClient, SwitchNotice, WorkerClient, WorkerNotice,
};
use netsum_control::decide::Settings;
use netsum_control::{Config, Controller, Security, epoch, pb};
use netsum_topo::{Addressing, Fabric, Plan, Rate, leaf_spine};

pub const PATIENCE: Duration = Duration::from_secs(8);
pub const SWITCHES: [&str; 4] = ["rack0", "rack1", "spine0", "spine1"];

pub fn fabric() -> Fabric {
    leaf_spine(2, 2, 2, Rate(10_000_000_000), Rate(10_000_000_000), Addressing::default()).unwrap()
}

pub fn settings() -> Settings {
    Settings {
        worker_grace_ms: 700,
        switch_expected_ms: 2_000,
        return_hold_ms: 100,
        min_bytes: 0,
        ..Settings::default()
    }
}

pub fn start(listen: SocketAddr, store: Option<PathBuf>) -> Controller {
    start_with(listen, store, settings())
}

pub fn start_with(listen: SocketAddr, store: Option<PathBuf>, settings: Settings) -> Controller {
    let security = Security::Trusted;
    Controller::start(Config { fabric: fabric(), listen, store, settings, security }).unwrap()
}

/// A controller without credentials.
pub fn at(address: impl ToString) -> ControllerEndpoint {
    ControllerEndpoint::trusted(address)
}

pub fn any_port() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

pub type Leases = Arc<Mutex<BTreeSet<(u32, u32, u32)>>>;

/// A switch without a data path: it installs leases and records them.
pub struct FakeSwitch {
    pub client: Option<Arc<SwitchClient>>,
    pub leases: Leases,
    /// All leases that it was ever offered.
    #[allow(dead_code, reason = "not all tests that share this file compare them")]
    pub offers: Arc<Mutex<Vec<LeaseOffer>>>,
    pub thread: JoinHandle<()>,
}

impl FakeSwitch {
    pub fn start(controller: impl ToString, name: &str) -> FakeSwitch {
        let (leases, offers) = (Leases::default(), Arc::<Mutex<Vec<LeaseOffer>>>::default());
        let offered = offers.clone();
        let (name, shared) = (name.to_owned(), leases.clone());
        let hello = move || hello(&name, &shared);
        let (client, notices) = SwitchClient::start(&at(controller), hello).unwrap();
        let client = Arc::new(client);
        let (shared, weak) = (leases.clone(), Arc::downgrade(&client));
        let thread = std::thread::spawn(move || {
            let mut known = 0;
            while let Ok(notice) = notices.recv() {
                match notice {
                    SwitchNotice::Incarnation(incarnation) => {
                        if ![0, incarnation].contains(&known) {
                            shared.lock().unwrap().clear();
                        }
                        known = incarnation;
                    }
                    SwitchNotice::Install(lease) => {
                        offered.lock().unwrap().push(LeaseOffer::clone(&lease));
                        shared.lock().unwrap().insert((lease.job, lease.tree, lease.epoch));
                        if let Some(client) = weak.upgrade() {
                            client.ack(&lease, Ok(()));
                        }
                    }
                    SwitchNotice::Revoke { job, up_to } => {
                        shared.lock().unwrap().retain(|lease| {
                            lease.0 != job.0 || epoch::is_newer(lease.2, up_to.0.into())
                        });
                    }
                    _ => {}
                }
            }
        });
        FakeSwitch { client: Some(client), leases, offers, thread }
    }

    pub fn client(&self) -> &SwitchClient {
        self.client.as_ref().unwrap()
    }

    /// Ends its stream, as when the process dies.
    pub fn die(mut self) {
        drop(self.client.take());
        self.thread.join().unwrap();
    }
}

pub fn hello(name: &str, leases: &Leases) -> pb::SwitchHello {
    let lease = |&(job, tree, epoch): &(u32, u32, u32)| pb::InstalledLease {
        job,
        tree,
        epoch,
        ..Default::default()
    };
    pb::SwitchHello {
        name: name.to_owned(),
        udp_address: fabric()
            .switch(name)
            .map(|switch| switch.address.to_string())
            .unwrap_or_default(),
        memory_bytes: 64 << 20,
        receive_buffer_bytes: 8 << 20,
        mtu: 65536,
        installed: leases.lock().unwrap().iter().map(lease).collect(),
        ..pb::SwitchHello::default()
    }
}

pub struct FakeWorker {
    pub client: WorkerClient,
    pub notices: Receiver<WorkerNotice>,
}

impl FakeWorker {
    pub fn join(controller: SocketAddr, job: u32, rank: u32) -> FakeWorker {
        FakeWorker::join_as(controller, join(job, rank))
    }

    pub fn join_as(controller: impl ToString, join: pb::Join) -> FakeWorker {
        let (client, notices) = WorkerClient::start(&at(controller), join, 4).unwrap();
        FakeWorker { client, notices }
    }

    /// The next notice other than `Connected`, `Away` and `RankKey`.
    pub fn next(&self) -> WorkerNotice {
        let end = Instant::now() + PATIENCE;
        loop {
            match self.notices.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(
                    WorkerNotice::Connected | WorkerNotice::Away { .. } | WorkerNotice::RankKey(..),
                ) => {}
                Ok(notice) => return notice,
                Err(error) => panic!("no notice: {error}"),
            }
        }
    }

    pub fn plan(&self) -> Plan {
        match self.next() {
            WorkerNotice::Plan(plan) => plan.plan,
            other => panic!("{other:?} instead of a plan"),
        }
    }

    pub fn wait_for(&self, wanted: impl Fn(&WorkerNotice) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !wanted(
            &self.notices.recv_timeout(end.saturating_duration_since(Instant::now())).unwrap(),
        ) {}
    }

    /// Nothing but the key that comes with each stream.
    pub fn receives_nothing_for(&self, time: Duration) {
        let end = Instant::now() + time;
        loop {
            match self.notices.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Err(RecvTimeoutError::Timeout) => return,
                Ok(WorkerNotice::RankKey(..)) => {}
                other => panic!("{other:?} instead of silence"),
            }
        }
    }
}

pub fn join(job: u32, rank: u32) -> pb::Join {
    let host = fabric().hosts[rank as usize].clone();
    pb::Join {
        job,
        rank,
        host: host.name,
        udp_address: format!("{}:{}", host.address, 6000 + rank),
        mesh_address: format!("{}:{}", host.address, 7000 + rank),
        pid: std::process::id(),
        mtu: 65536,
        ..pb::Join::default()
    }
}

pub struct Scene {
    pub address: SocketAddr,
    pub job: u32,
    pub switches: Vec<Option<FakeSwitch>>,
    pub workers: Vec<FakeWorker>,
}

impl Scene {
    /// Four switches, a job of four ranks, and their first plan.
    pub fn set(address: SocketAddr) -> Scene {
        let switches =
            SWITCHES.map(|name| Some(FakeSwitch::start(address, name))).into_iter().collect();
        let request =
            pb::CreateJobRequest { name: "test".to_owned(), size: 4, ..Default::default() };
        let reply = client::create_job(&at(address), request.clone(), PATIENCE).unwrap();
        let pb::CreateJobReply { job, incarnation } = reply;
        let join =
            |rank| pb::Join { incarnation, description: Some(request.clone()), ..join(job, rank) };
        let workers: Vec<FakeWorker> =
            (0..4).map(|rank| FakeWorker::join_as(address, join(rank))).collect();
        let scene = Scene { address, job, switches, workers };
        let plan = scene.plan();
        assert_eq!((plan.epoch, plan.trees.len(), plan.reason.as_str()), (1, 2, ""));
        assert_eq!((plan.order.to_string().as_str(), plan.fragment_bytes), ("[[0,1],[2,3]]", 8832));
        scene
    }

    /// The next plan, the same at all ranks.
    pub fn plan(&self) -> Plan {
        let plan = self.workers[0].plan();
        assert!(self.workers[1..].iter().all(|worker| worker.plan() == plan));
        plan
    }

    pub fn kill(&mut self, switch: usize) {
        self.switches[switch].take().unwrap().die();
    }

    pub fn revive(&mut self, switch: usize) {
        self.switches[switch] = Some(FakeSwitch::start(self.address, SWITCHES[switch]));
    }

    pub fn status(&self) -> pb::StatusReply {
        client::status(&at(self.address), PATIENCE).unwrap()
    }

    /// Waits until every switch holds the given number of leases.
    pub fn leases_become(&self, wanted: [usize; 4]) {
        let end = Instant::now() + PATIENCE;
        loop {
            let held =
                self.switches.iter().flatten().map(|switch| switch.leases.lock().unwrap().len());
            let held: Vec<usize> = held.collect();
            if held == wanted {
                return;
            }
            assert!(Instant::now() < end, "{held:?} instead of {wanted:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
