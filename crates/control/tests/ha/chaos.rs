//! Concurrent calls while controllers and members of etcd are killed and stopped, by seeds: every answer must be that of
//! one store, no number and no lease is given twice, and a running job does not notice.
//!
//! `NETSUM_HA_SEEDS=1..100` chooses the seeds.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Condvar, Mutex};
use std::time::Instant;

use netsum_control::client::{self, WorkerNotice};
use netsum_control::{ControlError, pb};

use crate::cluster::{CONTROLLERS, ControllerCluster};
use crate::history::{Call, Operation, Stopped, check};
use crate::scene::{FakeSwitch, FakeWorker, PATIENCE, SWITCHES, at, join};

const CALLERS: u64 = 4;
const CALLS: usize = 10;
/// Of all callers.
pub const ALL_CALLS: usize = CALLERS as usize * CALLS;
/// Faults per seed, one after the other.
pub const FAULTS: usize = 3;
/// In refusals by a leader whose store does not answer.
const NO_EFFECT: &str = "nothing was changed";
/// Jobs that a caller has at a time: an address may have 64 that wait for their ranks.
const JOBS_MAX: usize = 4;

/// A generator of numbers from a seed (splitmix64).
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % bound as u64) as usize
    }
}

/// How many calls have ended; faults begin and end at such counts.
#[derive(Default)]
pub struct Progress {
    ended: Mutex<usize>,
    changed: Condvar,
}

impl Progress {
    fn one_more(&self) {
        *self.ended.lock().unwrap() += 1;
        self.changed.notify_all();
    }

    pub fn wait_for(&self, count: usize) {
        let mut ended = self.ended.lock().unwrap();
        while *ended < count {
            ended = self.changed.wait(ended).unwrap();
        }
    }

    /// Waits until a fault is due; the number of calls at which it ends at the latest, but for two. Calls that wait for
    /// a fault's end do not end themselves, so faults begin somewhat earlier.
    pub fn wait_for_fault(&self, fault: usize, random: &mut Random) -> usize {
        let from = (fault + 1) * ALL_CALLS / (FAULTS + 1);
        self.wait_for(from - random.below(ALL_CALLS / 8));
        from
    }
}

pub fn seeds() -> Range<u64> {
    let given = std::env::var("NETSUM_HA_SEEDS").unwrap_or("1..3".to_owned());
    let (from, to) = given.split_once("..").expect("NETSUM_HA_SEEDS is FROM..TO");
    from.parse().unwrap()..to.parse().unwrap()
}

#[test]
fn calls_are_linearizable_while_controllers_and_etcd_die() {
    let Some(mut cluster) = ControllerCluster::start() else { return };
    let addresses = cluster.addresses();
    let switches: Vec<FakeSwitch> =
        SWITCHES.iter().map(|name| FakeSwitch::start(&addresses, name)).collect();
    let workers = running_job(&addresses);
    let epoch = workers[0].plan().epoch;
    for seed in seeds() {
        let history = play(&addresses, seed, |progress| disturb(&mut cluster, progress, seed));
        if let Err(problem) = check(&history) {
            panic!("seed {seed}: {problem}");
        }
        check_leases(&switches);
        eprintln!("seed {seed}: {} calls, term {}", history.len(), cluster.wait_for_leader(None).1);
    }
    check_notices(&workers, epoch);
}

/// The job has run on: its ranks know plans from `epoch` on, and no end.
pub fn check_notices(workers: &[FakeWorker], epoch: u16) {
    for worker in workers {
        while let Ok(notice) = worker.notices.try_recv() {
            let harmless = matches!(
                notice,
                WorkerNotice::Connected | WorkerNotice::Away { .. } | WorkerNotice::RankKey(..)
            );
            assert!(
                harmless || matches!(&notice, WorkerNotice::Plan(plan) if plan.plan.epoch >= epoch),
                "{notice:?}"
            );
        }
    }
}

/// A job with its four ranks.
pub fn running_job(addresses: &str) -> Vec<FakeWorker> {
    let request =
        pb::CreateJobRequest { name: "running".to_owned(), size: 4, ..Default::default() };
    let reply = client::create_job(&at(addresses), request.clone(), PATIENCE).unwrap();
    let pb::CreateJobReply { job, incarnation } = reply;
    let join =
        |rank| pb::Join { incarnation, description: Some(request.clone()), ..join(job, rank) };
    (0..4).map(|rank| FakeWorker::join_as(addresses, join(rank))).collect()
}

/// No lease is offered twice with different contents.
pub fn check_leases(switches: &[FakeSwitch]) {
    for (name, switch) in SWITCHES.iter().zip(switches) {
        let mut offers = BTreeMap::new();
        for offer in switch.offers.lock().unwrap().iter() {
            let key = (offer.job, offer.tree, offer.epoch);
            let before = offers.entry(key).or_insert_with(|| offer.clone());
            assert_eq!(before, offer, "{name} was offered two leases");
        }
    }
}

/// The calls of a seed to the controllers at `addresses`. `disturb`: makes faults meanwhile.
pub fn play(addresses: &str, seed: u64, disturb: impl FnOnce(&Progress)) -> Vec<Operation> {
    let progress = Progress::default();
    let mut history = Vec::new();
    std::thread::scope(|scope| {
        let callers: Vec<_> = (0..CALLERS)
            .map(|caller| {
                let progress = &progress;
                scope.spawn(move || Caller::new(seed, caller, addresses).run(progress))
            })
            .collect();
        disturb(&progress);
        history.extend(callers.into_iter().flat_map(|caller| caller.join().unwrap()));
    });
    // What is there in the end: without faults.
    let mut last = Caller::new(seed, CALLERS, addresses);
    history.extend(last.call(Caller::list));
    last.forget(&history);
    history
}

/// One thread of calls.
struct Caller {
    seed: u64,
    name: u64,
    addresses: String,
    random: Random,
    /// Jobs that it has created, and may stop.
    jobs: Vec<(String, u32)>,
    created: usize,
}

impl Caller {
    /// Callers ask different controllers first: one that should lead no longer must not be heard by all of them alike.
    fn new(seed: u64, name: u64, addresses: &str) -> Caller {
        let (random, jobs) = (Random(seed * 1_000 + name), Vec::new());
        let mut order: Vec<&str> = addresses.split(',').collect();
        order.rotate_left(name as usize % CONTROLLERS);
        Caller { seed, name, addresses: order.join(","), random, jobs, created: 0 }
    }

    fn run(mut self, progress: &Progress) -> Vec<Operation> {
        let mut calls = Vec::new();
        for _ in 0..CALLS {
            let kind = match (self.jobs.len(), self.random.below(4)) {
                (_, 0) => Caller::list,
                (0, _) => Caller::create,
                (JOBS_MAX, _) | (_, 1) => Caller::stop,
                _ => Caller::create,
            };
            calls.extend(self.call(kind));
            progress.one_more();
        }
        calls
    }

    /// Makes a call; `None`: it has had no effect, and says nothing.
    fn call(
        &mut self,
        make: impl FnOnce(&mut Caller) -> Option<(Call, bool)>,
    ) -> Option<Operation> {
        let start = Instant::now();
        let (call, is_answered) = make(self)?;
        Some(Operation { call, start, end: is_answered.then(Instant::now) })
    }

    fn create(&mut self) -> Option<(Call, bool)> {
        self.created += 1;
        let name = format!("{}-{}-{}", self.seed, self.name, self.created);
        let request = pb::CreateJobRequest { name: name.clone(), size: 2, ..Default::default() };
        match client::create_job(&at(&self.addresses), request, PATIENCE) {
            Ok(reply) => {
                self.jobs.push((name.clone(), reply.job));
                Some((Call::Create(name, Some(reply.job)), true))
            }
            Err(ControlError::Refused { reason, .. }) => {
                assert!(reason.contains(NO_EFFECT), "{name}: {reason}");
                None
            }
            Err(_) => Some((Call::Create(name, None), false)),
        }
    }

    fn stop(&mut self) -> Option<(Call, bool)> {
        let at_job = self.random.below(self.jobs.len());
        let (name, job) = self.jobs[at_job].clone();
        match client::stop_job(&at(&self.addresses), job, "", PATIENCE) {
            Ok(()) => {
                // Another stop of it may follow, which must be refused.
                if self.random.below(2) == 0 {
                    self.jobs.remove(at_job);
                }
                Some((Call::Stop(name, Stopped::Done), true))
            }
            Err(ControlError::Refused { reason, .. }) if reason.contains(NO_EFFECT) => None,
            Err(ControlError::Refused { reason, .. }) => {
                assert!(reason.contains("is over"), "{name}: {reason}");
                self.jobs.remove(at_job);
                Some((Call::Stop(name, Stopped::WasOver), true))
            }
            Err(_) => Some((Call::Stop(name, Stopped::Unknown), false)),
        }
    }

    /// The jobs of this seed; a call without an answer says nothing.
    fn list(&mut self) -> Option<(Call, bool)> {
        let mine = format!("{}-", self.seed);
        loop {
            let Ok(reply) = client::list_jobs(&at(&self.addresses), false, PATIENCE) else {
                continue;
            };
            let jobs = reply.jobs.into_iter().filter(|job| job.name.starts_with(&mine));
            return Some((Call::List(jobs.map(|job| (job.name, job.job)).collect()), true));
        }
    }

    /// Stops what is left of a seed, so that the next one has room.
    fn forget(&mut self, history: &[Operation]) {
        let Some(Call::List(jobs)) = history.last().map(|last| &last.call) else { return };
        for job in jobs.values() {
            while let Err(error) = client::stop_job(&at(&self.addresses), *job, "", PATIENCE) {
                if matches!(error, ControlError::Refused { .. }) {
                    break;
                }
            }
        }
    }
}

/// Faults, one after the other; in the end everything runs.
fn disturb(cluster: &mut ControllerCluster, progress: &Progress, seed: u64) {
    let mut random = Random(!seed);
    for fault in 0..FAULTS {
        let from = progress.wait_for_fault(fault, &mut random);
        let member = random.below(cluster.etcd.len());
        match random.below(6) {
            0 | 1 => {
                let (leader, _) = cluster.wait_for_leader(None);
                cluster.kill(leader);
                cluster.wait_for_leader(None);
                cluster.revive(leader);
            }
            2 | 3 => {
                let (leader, _) = cluster.wait_for_leader(None);
                cluster.pause(leader, true);
                cluster.wait_for_leader(Some(leader));
                // It still believes that it leads.
                cluster.pause(leader, false);
            }
            4 => {
                cluster.etcd.kill(member);
                let other = random.below(CONTROLLERS);
                cluster.kill(other);
                cluster.wait_for_leader(None);
                cluster.revive(other);
                cluster.etcd.revive(member);
            }
            _ => {
                cluster.etcd.pause(member, true);
                progress.wait_for((from + 2).min(ALL_CALLS));
                cluster.etcd.pause(member, false);
            }
        }
    }
}
