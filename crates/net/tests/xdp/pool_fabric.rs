//! Workers around an in-kernel switch with their pools, each in a network namespace, with real packets between them.

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use netsum_net::switch::{PoolSnapshot, Role, SwitchDriver, SwitchOptions};
use netsum_net::udp::SocketOptions;
use netsum_net::worker::{WorkerDriver, WorkerPlan};
use netsum_proto::atp::{Policy, SwitchConfig};
use netsum_proto::policer::{Owner, RateLimit};
use netsum_proto::switchml::{Lease, WorkerConfig};
use netsum_wire::seal::HopKeys;
use netsum_wire::switchml::{HEADER_LEN, Header, Kind};
use netsum_wire::tag::Mac;
use netsum_wire::{Arithmetic, Epoch, JobId, Parties, TreeId};

use crate::fabric::{Job, ROW, wait};
use crate::lossy::Lossy;
use crate::namespace::Namespace;
use crate::rights;

/// Slots of a pool; the switch has room for three.
const SLOTS: u16 = 64;
/// The switch, and three workers.
const ADDRESSES: [&str; 4] = ["10.78.0.1", "10.78.0.10", "10.78.0.11", "10.78.0.12"];

fn address(node: usize) -> SocketAddr {
    SocketAddr::new(ADDRESSES[node].parse().unwrap(), 7701)
}

struct Fabric {
    spaces: Vec<Namespace>,
    switch: SwitchDriver,
}

impl Fabric {
    /// `None`, with a line, where there are no namespaces or no in-kernel switch.
    fn new() -> Option<Fabric> {
        let spaces: Vec<_> = (0..4).map(|_| Namespace::new()).collect::<Option<_>>()?;
        for node in 1..4 {
            let name = format!("to{node}");
            if !spaces[0].link(&name, ADDRESSES[0], &spaces[node], "to0", ADDRESSES[node]) {
                return None;
            }
        }
        let policy = Policy::FirstCome;
        let slots = 3 * u32::from(SLOTS);
        let config = SwitchConfig { slots, row_bytes: ROW, policy, straggler_ns: 50_000_000 };
        let switch = spaces[0].run(move || {
            let (role, socket) = (Role::Switch(config), SocketOptions::default());
            let options =
                SwitchOptions { bind: address(0), memory: 1 << 20, role, socket, threads: 1 };
            let interfaces: Vec<_> = (1..4).map(|node| format!("to{node}")).collect();
            SwitchDriver::start_behind(&options, &interfaces).unwrap()
        });
        if !switch.in_kernel() {
            rights::skip("no in-kernel switch here");
            return None;
        }
        Some(Fabric { spaces, switch })
    }

    /// Begins an epoch of a job with three workers; `trees`: 2 if it does all collectives.
    fn add_job(&self, job: u32, sealed: bool, trees: u8) -> Job {
        let (job, epoch) = (JobId(job), Epoch(1));
        let start = |node: usize| {
            let ip = address(node).ip();
            // No trains: one that is lost is one packet.
            let options = SocketOptions { segmentation: false, ..SocketOptions::default() };
            self.spaces[node].run(move || WorkerDriver::start_with(ip, &options).unwrap())
        };
        let workers: Vec<_> = (1..4).map(start).collect();
        let at: Vec<_> = workers.iter().map(|(worker, _)| worker.local_addr()).collect();
        let key = |tree: u8, worker: u8| {
            HopKeys::new(Mac::Nh, std::array::from_fn(|i| (worker | tree << 4) ^ i as u8))
        };
        for tree in 0..trees {
            let (tree, workers, slots, fragment_bytes) = (TreeId(tree), at.clone(), SLOTS, ROW);
            let keys = sealed.then(|| (0..3).map(|worker| key(tree.0, worker)).collect());
            let lease = Lease { job, epoch, tree, workers, slots, fragment_bytes };
            self.switch.install_with(lease, keys).unwrap();
        }
        for (number, (worker, _)) in (0..).zip(&workers) {
            let config = WorkerConfig {
                copies: trees == 2,
                job,
                epoch,
                worker: number,
                workers: 3,
                slots: SLOTS,
                fragment_bytes: ROW,
                timeout_ns: 10_000_000,
            };
            let switches = vec![address(0); trees.into()];
            let plan = WorkerPlan { config: config.into(), switches };
            let keys = sealed.then(|| (0..trees).map(|tree| key(tree, number)).collect());
            worker.begin_with(plan, keys);
        }
        Job { id: job, workers }
    }

    fn pools(&self) -> Vec<PoolSnapshot> {
        self.switch.snapshot().unwrap().pools
    }

    /// Lets packets be lost on all ways, as long as the result lives; `None`, with a line, where the system cannot.
    fn lose(&self) -> Option<Vec<Lossy>> {
        let of =
            |space: &Namespace, interface: String| space.run(move || Lossy::attach(&interface));
        let workers = self.spaces[1..].iter().map(|space| of(space, "to0".into()));
        workers.collect()
    }
}

#[test]
fn all_collectives_run_in_pools_in_the_kernel_with_loss() {
    let Some(fabric) = Fabric::new() else { return };
    for (job, sealed) in [(1, true), (2, false)] {
        let job = fabric.add_job(job, sealed, if sealed { 2 } else { 1 });
        job.reduce(0, 100_001);
        job.run_words(1);
        if sealed {
            job.run_all(3);
        }
        let pools: Vec<_> =
            fabric.pools().into_iter().filter(|pool| pool.lease.job == job.id).collect();
        let fragments = 100_001u64.div_ceil(352);
        let sums = pools[0].counters;
        assert!(sums.added >= 3 * fragments && sums.completed >= fragments, "{sums:?}");
        assert!(pools[0].in_kernel, "{pools:?}");
        if sealed {
            // Copies are multiplied in user space.
            let copies = pools[1].counters;
            assert!(!pools[1].in_kernel && copies.completed > 0, "{pools:?}");
        }
        if let Some(_lossy) = fabric.lose() {
            job.reduce(20, 100_001);
            if sealed {
                job.run_all(21);
            }
            let resent: u64 =
                job.workers.iter().flat_map(|(w, _)| w.stats().trees).map(|t| t.resent).sum();
            assert!(resent > 0, "nothing was lost");
            let repeated = fabric.pools().iter().any(|pool| pool.counters.duplicates > 0);
            assert!(repeated, "{:?}", fabric.pools());
        }
        fabric.switch.revoke(job.id, Epoch(1)).unwrap();
    }
    assert_eq!(fabric.pools(), []);
}

/// Packets of a pool wait for the kernel for 1.3 s at most. Then it stays in user space, which may have rounds of it, also
/// if its neighbours are found and its lease comes again.
#[test]
fn a_pool_whose_worker_is_unreachable_is_left_to_user_space() {
    let Some(fabric) = Fabric::new() else { return };
    let job = JobId(1);
    let workers = vec![address(1), "10.78.0.99:7000".parse().unwrap()];
    let (epoch, tree) = (Epoch(1), TreeId(0));
    assert!(fabric.spaces[0].ip(&["route add 10.78.0.99 dev to2".into()]));
    let lease = Lease { job, epoch, tree, workers, slots: SLOTS, fragment_bytes: ROW };
    fabric.switch.install(lease.clone()).unwrap();
    std::thread::sleep(Duration::from_millis(1500));
    let found = "neigh replace 10.78.0.99 lladdr 02:00:00:00:00:09 dev to2";
    assert!(fabric.spaces[0].ip(&[found.into()]));
    fabric.switch.install(lease).unwrap();
    let alone = fabric.add_job(2, true, 1);
    alone.reduce(0, 1000);
    let served: Vec<_> = fabric.pools().iter().map(|p| (p.lease.job, p.in_kernel)).collect();
    assert_eq!(served, [(job, false), (JobId(2), true)]);
}

/// Packets may wait in the socket while the kernel takes over their pool. Loopback leads there past the driver's hook.
#[test]
fn what_waits_in_the_socket_for_a_pool_in_the_kernel_does_not_count() {
    let Some(fabric) = Fabric::new() else { return };
    let job = fabric.add_job(1, false, 1);
    wait("the kernel to serve the pool", || fabric.pools()[0].in_kernel);
    for (number, (worker, _)) in (0..).zip(&job.workers) {
        let header = Header {
            kind: Kind::Contribution,
            resent: false,
            arithmetic: Arithmetic::Saturating,
            worker: number,
            job: job.id,
            round: 0,
            chunk: 0,
            epoch: Epoch(1),
            slot: 0,
            n_elems: 0,
            next_exponent: 0,
            tree: TreeId(0),
            parties: Parties::All,
        };
        let mut packet = [0; HEADER_LEN];
        header.encode(&mut packet);
        let from = worker.local_addr();
        let [added, removed] =
            ["add", "del"].map(|change| format!("addr {change} {}/32 dev lo", from.ip()));
        assert!(fabric.spaces[0].ip(&[added]));
        fabric.spaces[0].run(move || {
            let socket = UdpSocket::bind(from).unwrap();
            socket.send_to(&packet, address(0)).unwrap();
        });
        assert!(fabric.spaces[0].ip(&[removed]));
    }
    let taken = || {
        let snapshot = fabric.switch.snapshot().unwrap();
        let dropped = snapshot.drops.iter().find(|(reason, _)| *reason == "no_lease");
        (snapshot.pools[0].counters.added, dropped.map_or(0, |&(_, packets)| packets))
    };
    wait("three packets", || taken().0 + taken().1 == 3);
    assert_eq!(taken(), (0, 3));
    job.reduce(0, 20_000);
}

/// The kernel enforces no rates. The limit is more than the job can use.
#[test]
fn a_pool_with_a_limited_rate_is_served_in_user_space() {
    let Some(fabric) = Fabric::new() else { return };
    let limit = RateLimit { bytes_per_s: Some(1 << 40), packets_per_s: None };
    fabric.switch.own(JobId(1), Owner { tenant: None, limit }).unwrap();
    let job = fabric.add_job(1, true, 2);
    job.reduce(0, 20_000);
    job.run_all(1);
    assert!(fabric.pools().iter().all(|pool| !pool.in_kernel));
}

/// A lease of the next epoch replaces the last one's, in other slots, at a later round.
#[test]
fn the_next_epoch_of_a_pool_goes_on_in_the_kernel() {
    let Some(fabric) = Fabric::new() else { return };
    let job = fabric.add_job(1, true, 1);
    job.reduce(0, 50_000);
    let (epoch, tree) = (Epoch(2), TreeId(0));
    let workers: Vec<_> = job.workers.iter().map(|(worker, _)| worker.local_addr()).collect();
    let keys: Vec<_> = (0..3).map(|worker| HopKeys::new(Mac::Nh, [40 + worker; 32])).collect();
    let (slots, fragment_bytes, first) = (SLOTS, ROW, 5);
    let lease = Lease { job: job.id, epoch, tree, workers, slots, fragment_bytes };
    fabric.switch.install_starting_at(lease, Some(keys.clone()), first).unwrap();
    wait("the kernel to serve the pool", || fabric.pools().iter().all(|p| p.in_kernel));
    for (number, (worker, _)) in (0..).zip(&job.workers) {
        let config = WorkerConfig {
            copies: false,
            job: job.id,
            epoch,
            worker: number,
            workers: 3,
            slots,
            fragment_bytes,
            timeout_ns: 10_000_000,
        };
        let plan = WorkerPlan { config: config.into(), switches: vec![address(0)] };
        let key = keys[usize::from(number)];
        worker.begin_starting_at(plan, Some(vec![key]), first);
    }
    job.reduce(1, 50_000);
    let counters = fabric.pools()[0].counters;
    assert!(counters.completed >= 50_000u64.div_ceil(352), "{counters:?}");
}
