//! Several controllers over an etcd cluster, all of them processes: who leads, what a deposed one may still say, and
//! whether all calls are answered as if there were one.

mod chaos;
mod cluster;
#[path = "../support/etcd.rs"]
#[allow(dead_code, reason = "every test uses a part of it")]
mod etcd;
mod history;
mod partition;
#[path = "../live/scene.rs"]
#[allow(dead_code, reason = "every test uses a part of it")]
mod scene;

use std::time::Instant;

use netsum_control::client::{self, ControllerEndpoint, SwitchClient, SwitchNotice, WorkerNotice};
use netsum_control::{
    Change, Config, ControlError, Controller, MemoryStore, Saved, Security, Store, pb,
};

use cluster::ControllerCluster;
use scene::{
    FakeSwitch, FakeWorker, Leases, PATIENCE, SWITCHES, any_port, at, fabric, hello, join, settings,
};

fn request() -> pb::CreateJobRequest {
    pb::CreateJobRequest { name: "test".to_owned(), size: 4, ..Default::default() }
}

#[test]
fn another_controller_leads_when_the_leader_dies() {
    let Some(mut cluster) = ControllerCluster::start() else { return };
    let all = at(cluster.addresses());
    let first = client::create_job(&all, request(), PATIENCE).unwrap();
    let mut numbers = vec![first.job];
    let mut term = 0;
    for _ in 0..3 {
        let (leader, new_term) = cluster.wait_for_leader(None);
        assert!(new_term > term, "term {new_term} after {term}");
        term = new_term;
        cluster.kill(leader);
        let killed = Instant::now();
        let reply = client::create_job(&all, request(), PATIENCE).unwrap();
        eprintln!("a job was accepted {:?} after the leader's death", killed.elapsed());
        assert_eq!(reply.incarnation, first.incarnation, "it is the same store");
        assert!(!numbers.contains(&reply.job));
        numbers.push(reply.job);
        cluster.revive(leader);
    }
    let (leader, _) = cluster.wait_for_leader(None);
    cluster.stop(leader);
    let stopped = Instant::now();
    client::create_job(&all, request(), PATIENCE).unwrap();
    eprintln!("a job was accepted {:?} after the leader had ended in order", stopped.elapsed());
    cluster.revive(leader);
    let (leader, _) = cluster.wait_for_leader(None);
    cluster.pause(leader, true);
    let stopped = Instant::now();
    client::create_job(&all, request(), PATIENCE).unwrap();
    eprintln!("a job was accepted {:?} after the leader had fallen silent", stopped.elapsed());
    cluster.pause(leader, false);
}

#[test]
fn a_controller_that_follows_names_the_leader() {
    let Some(cluster) = ControllerCluster::start() else { return };
    let (leader, _) = cluster.wait_for_leader(None);
    let follower = at(cluster.address((leader + 1) % cluster::CONTROLLERS));
    let until = Instant::now() + PATIENCE;
    loop {
        let refused = client::create_job(&follower, request(), PATIENCE).unwrap_err().to_string();
        // Right after the election it may not know yet.
        if refused.contains(&format!("the one at {} does", cluster.address(leader))) {
            break;
        }
        assert!(
            refused.contains("this controller does not lead") && Instant::now() < until,
            "{refused}"
        );
    }
    let reply = client::leader(&follower, PATIENCE).unwrap();
    assert_eq!((reply.term, reply.leader), (0, cluster.address(leader)));
}

#[test]
fn a_running_job_does_not_notice() {
    let Some(mut cluster) = ControllerCluster::start() else { return };
    let addresses = cluster.addresses();
    let mut switches: Vec<FakeSwitch> =
        SWITCHES.iter().map(|name| FakeSwitch::start(&addresses, name)).collect();
    let pb::CreateJobReply { job, incarnation } =
        client::create_job(&at(&addresses), request(), PATIENCE).unwrap();
    let join = |rank| pb::Join { incarnation, description: Some(request()), ..join(job, rank) };
    let workers: Vec<FakeWorker> =
        (0..4).map(|rank| FakeWorker::join_as(&addresses, join(rank))).collect();
    let plans: Vec<_> = workers.iter().map(FakeWorker::plan).collect();
    assert_eq!((plans[0].epoch, plans[0].trees.len()), (1, 2));
    for _ in 0..2 {
        let (leader, _) = cluster.wait_for_leader(None);
        cluster.kill(leader);
        for worker in &workers {
            worker.wait_for(|notice| matches!(notice, WorkerNotice::Away { .. }));
            worker.wait_for(|notice| *notice == WorkerNotice::Connected);
        }
        let connected = |status: &pb::StatusReply| {
            let ranks = &status.jobs[0].ranks;
            ranks.iter().all(|rank| rank.state == "connected")
                && status.switches.iter().all(|switch| switch.state == "up")
        };
        let until = Instant::now() + PATIENCE;
        let status = loop {
            let status = client::status(&at(&addresses), PATIENCE).unwrap();
            if connected(&status) {
                break status;
            }
            assert!(Instant::now() < until, "{:?}", status.jobs);
        };
        assert_eq!((status.jobs[0].epoch, status.jobs[0].trees.len()), (1, 2), "no new plan");
        cluster.revive(leader);
    }
    // The new leader plans: a switch dies while the old leader is stopped.
    let (leader, _) = cluster.wait_for_leader(None);
    cluster.pause(leader, true);
    cluster.wait_for_leader(Some(leader));
    switches.pop().unwrap().die();
    let plan = workers[0].plan();
    assert!(plan.epoch > 1 && plan.trees.len() == 1, "epoch {}: {}", plan.epoch, plan.reason);
    cluster.pause(leader, false);
    let status = client::status(&at(&addresses), PATIENCE).unwrap();
    assert_eq!(status.jobs[0].trees.len(), 1);
}

/// A store that does not tell its controller that another one leads: a fault that the peers must find.
struct Blind(MemoryStore);

impl Store for Blind {
    fn begin_term(&mut self) -> Result<u64, ControlError> {
        self.0.begin_term()
    }

    fn load(&mut self) -> Result<Saved, ControlError> {
        self.0.load()
    }

    fn save(&mut self, changes: &[Change]) -> Result<(), ControlError> {
        match self.0.save(changes) {
            Err(ControlError::Deposed { .. }) => Ok(()),
            saved => saved,
        }
    }

    fn confirm(&mut self) -> Result<(), ControlError> {
        Ok(())
    }

    fn place(&self) -> String {
        "blind".to_owned()
    }
}

#[test]
fn switches_and_workers_refuse_a_controller_whose_term_is_over() {
    let config = || Config {
        fabric: fabric(),
        listen: any_port(),
        store: None,
        settings: settings(),
        security: Security::Trusted,
    };
    let store = MemoryStore::drawn().unwrap();
    let old = Controller::start_with(config(), Box::new(Blind(store.clone()))).unwrap();
    let reply = client::create_job(&at(old.address()), request(), PATIENCE).unwrap();
    let new = Controller::start_with(config(), Box::new(Blind(store))).unwrap();
    let both = format!("{},{}", new.address(), old.address());
    let leases = Leases::default();
    let described = move || hello(SWITCHES[0], &leases);
    let (switch, notices) =
        SwitchClient::start(&ControllerEndpoint::trusted(&both), described).unwrap();
    let incarnation = reply.incarnation;
    let join = pb::Join { incarnation, description: Some(request()), ..join(reply.job, 0) };
    let worker = FakeWorker::join_as(&both, join);
    worker.wait_for(|notice| matches!(notice, WorkerNotice::RankKey(..)));
    while notices.recv_timeout(PATIENCE).unwrap() != SwitchNotice::Incarnation(incarnation) {}
    new.kill();
    // Both find the old one, which grants and sends keys as if it led.
    let is_refusal = |reason: &str| reason.contains("has begun since; another controller leads");
    loop {
        match notices.recv_timeout(PATIENCE).unwrap() {
            SwitchNotice::Away { reason } if is_refusal(&reason) => break,
            SwitchNotice::Away { .. } | SwitchNotice::Connected => {}
            other => panic!("{other:?} from a controller whose term is over"),
        }
    }
    let until = Instant::now() + PATIENCE;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        match worker.notices.recv_timeout(left).unwrap() {
            WorkerNotice::Away { reason } if is_refusal(&reason) => break,
            WorkerNotice::Away { .. } | WorkerNotice::Connected => {}
            other => panic!("{other:?} from a controller whose term is over"),
        }
    }
    switch.close();
    old.stop();
}
