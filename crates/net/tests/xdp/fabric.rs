//! Workers, two in-kernel switches and a server, each in a network namespace, with real packets between them.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;
use netsum_net::Buffer;
use netsum_net::switch::{Role, SwitchDriver, SwitchOptions};
use netsum_net::udp::SocketOptions;
use netsum_net::worker::{Event, TreeOperation, WorkerDriver, WorkerPlan};
use netsum_proto::atp::*;
use netsum_proto::operations::Submission;
use netsum_proto::policer::{Owner, RateLimit};
use netsum_proto::{CongestionRule, Pattern};
use netsum_wire::atp::Level;
use netsum_wire::seal::HopKeys;
use netsum_wire::tag::Mac;
use netsum_wire::*;

use crate::lossy;
use crate::namespace::Namespace;
use crate::rights;

pub const ROW: u16 = 1408;
const WINDOW: u16 = 64;
const SLOTS: u32 = 512;
/// Long enough for a machine that does much else.
const PATIENCE: Duration = Duration::from_secs(120);
/// Rack switch, the server's switch, server; workers 0 and 1 at the first, 2 at the second.
const ADDRESSES: [&str; 6] =
    ["10.77.0.1", "10.77.0.2", "10.77.0.3", "10.77.0.10", "10.77.0.11", "10.77.0.12"];

pub fn wait(what: &str, until: impl Fn() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !until() {
        assert!(Instant::now() < end, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

struct Fabric {
    spaces: Vec<Namespace>,
    rack: SwitchDriver,
    middle: SwitchDriver,
    server: SwitchDriver,
}

fn address(node: usize) -> SocketAddr {
    SocketAddr::new(ADDRESSES[node].parse().unwrap(), 7701)
}

impl Fabric {
    /// `None`, with a line, where there are no namespaces or no in-kernel switch.
    fn new() -> Option<Fabric> {
        let spaces: Option<Vec<_>> = (0..6).map(|_| Namespace::new()).collect();
        let spaces = spaces?;
        for (a, b) in [(0, 3), (0, 4), (0, 1), (1, 5), (1, 2)] {
            let name = |to: usize| format!("to{to}");
            let (here, there) = (&spaces[a], &spaces[b]);
            if !here.link(&name(b), ADDRESSES[a], there, &name(a), ADDRESSES[b]) {
                return None;
            }
        }
        let start = |node: usize, role, interfaces: &[&str]| {
            let bind = address(node);
            let options = SwitchOptions {
                bind,
                memory: 1 << 20,
                role,
                socket: SocketOptions::default(),
                threads: 1,
            };
            let interfaces: Vec<_> = interfaces.iter().map(|&i| i.to_owned()).collect();
            spaces[node].run(move || SwitchDriver::start_behind(&options, &interfaces).unwrap())
        };
        let config = SwitchConfig {
            slots: SLOTS,
            row_bytes: ROW,
            policy: Policy::FirstCome,
            straggler_ns: 50_000_000,
        };
        let rack = start(0, Role::Switch(config), &["to3", "to4", "to1"]);
        let middle = start(1, Role::Switch(config), &["to0", "to5", "to2"]);
        let server = start(2, Role::Server { row_bytes: ROW, rows: 64 * 64 }, &[]);
        if !rack.in_kernel() || !middle.in_kernel() {
            rights::skip("no in-kernel switch here");
            return None;
        }
        Some(Fabric { spaces, rack, middle, server })
    }

    /// A job whose packets are sealed.
    fn add_job(&self, job: u32) -> Job {
        self.add_job_with(job, true)
    }

    fn add_job_with(&self, job: u32, sealed: bool) -> Job {
        let job = self.begin(job, sealed, 1);
        self.wait_for_kernel(&job, 1);
        job
    }

    /// A job whose tree has a copy, for all collectives.
    fn add_collective_job(&self, job: u32) -> Job {
        let job = self.begin(job, true, 2);
        self.wait_for_kernel(&job, 2);
        job
    }

    fn wait_for_kernel(&self, job: &Job, trees: u8) {
        wait("the kernel to serve the job", || {
            let served = |switch: &SwitchDriver| {
                let leases = in_kernel(switch);
                (0..trees).all(|tree| leases.contains(&(job.id, TreeId(tree))))
            };
            served(&self.rack) && served(&self.middle)
        });
    }

    /// The same, in the kernel or not.
    fn begin(&self, job: u32, sealed: bool, trees: u8) -> Job {
        // Of each rank, of the rack switch and of the server's switch: the hop to its parent.
        let keys_of = |tree: u8, hops: &[u8]| {
            let byte = |hop: u8, i: usize| (hop | tree << 4) ^ i as u8;
            let key = |&hop: &u8| HopKeys::new(Mac::Nh, std::array::from_fn(|i| byte(hop, i)));
            sealed.then(|| hops.iter().map(key).collect::<Vec<_>>())
        };
        let workers: Vec<_> = (3..6)
            .map(|node| {
                let ip = address(node).ip();
                // No trains: one that is lost is one packet.
                let options = SocketOptions { segmentation: false, ..SocketOptions::default() };
                self.spaces[node].run(move || WorkerDriver::start_with(ip, &options).unwrap())
            })
            .collect();
        let at: Vec<_> = workers.iter().map(|(worker, _)| worker.local_addr()).collect();
        let (job, epoch) = (JobId(job), Epoch(1));
        for tree in (0..trees).map(TreeId) {
            let keys = |hops: &[u8]| keys_of(tree.0, hops);
            let lease = |members, parent| {
                let (window, fragment_bytes, claim) = (WINDOW, ROW, Claim::default());
                Lease { job, epoch, tree, members, parent, window, fragment_bytes, claim }
            };
            let members = Members::Rack { workers: at[..2].to_vec(), rack: 0, racks: 2 };
            self.rack.install_with(lease(members, address(1)), keys(&[0, 1, 3])).unwrap();
            let rack = Rack { port: address(0), workers: 2 };
            let members = Members::Server { racks: vec![rack, Rack { port: at[2], workers: 1 }] };
            self.middle.install_with(lease(members, address(2)), keys(&[3, 2, 4])).unwrap();
            let neighbours = vec![Neighbour { port: address(1), racks: 0b11, workers: u32::MAX }];
            let (racks, window, fragment_bytes) = (vec![vec![0, 1], vec![2]], WINDOW, ROW);
            let slots = SLOTS;
            let lease =
                ServerLease { job, epoch, tree, racks, neighbours, window, fragment_bytes, slots };
            self.server.install_with(lease, keys(&[4])).unwrap();
        }
        for (rank, (worker, _)) in workers.iter().enumerate() {
            let place = WorkerPosition {
                level: if rank == 2 { Level::Server } else { Level::Rack },
                worker: if rank == 2 { 0 } else { rank as u8 },
                rack_fan_in: if rank == 2 { 1 } else { 2 },
                rack: u8::from(rank == 2),
                server_fan_in: 2,
            };
            let config = WorkerConfig {
                job,
                epoch,
                rank: Rank(rank as u32),
                ranks: 3,
                copies: trees == 2,
                places: vec![place; usize::from(trees)],
                window_max: WINDOW,
                fragment_bytes: ROW,
                slots: SLOTS,
                congestion: CongestionRule::Aimd { packet_bytes: 1496 },
                scaling: Scaling::Shared,
            };
            let config = config.into();
            let above = address(usize::from(rank == 2));
            let plan = WorkerPlan { config, switches: vec![above; usize::from(trees)] };
            let keys = (0..trees).map(|tree| keys_of(tree, &[rank as u8]));
            worker.begin_with(plan, keys.collect::<Option<Vec<_>>>().map(|keys| keys.concat()));
        }
        Job { id: job, workers }
    }

    /// Loses packets that leave these nodes, as long as the result lives; `None`, with a line, where the system cannot.
    fn lose(&self, nodes: &[(usize, &str)]) -> Option<Vec<lossy::Lossy>> {
        nodes
            .iter()
            .map(|&(node, interface)| {
                let interface = interface.to_owned();
                self.spaces[node].run(move || lossy::Lossy::attach(&interface))
            })
            .collect()
    }
}

impl Fabric {
    /// Lets the last work of a job lose packets on all ways, where the system can, and waits until it holds no slot.
    fn end_with_loss(&self, job: Job, last: impl FnOnce(&Job)) {
        if let Some(_lossy) = self.lose(&[(3, "to0"), (4, "to0"), (5, "to1"), (2, "to1")]) {
            last(&job);
            let resent: u64 =
                job.workers.iter().flat_map(|(w, _)| w.stats().trees).map(|t| t.resent).sum();
            assert!(resent > 0, "nothing was lost");
        }
        drop(job);
        wait("all slots to be free", || {
            [&self.rack, &self.middle].iter().all(|s| s.snapshot().unwrap().slots_held == 0)
        });
    }
}

/// Leases that the kernel serves.
fn in_kernel(switch: &SwitchDriver) -> Vec<(JobId, TreeId)> {
    let slots = switch.snapshot().unwrap().slots;
    slots.iter().filter(|s| s.in_kernel).map(|s| (s.lease.job, s.lease.tree)).collect()
}

/// A job of three workers.
pub struct Job {
    pub id: JobId,
    pub workers: Vec<(WorkerDriver, Receiver<Event>)>,
}

impl Job {
    /// Runs an operation on `numel` integers, and checks what every rank gets.
    fn run(&self, id: u64, numel: usize, pattern: &Pattern, expected: impl Fn(u32, usize) -> u32) {
        let bytes = |words: &mut dyn Iterator<Item = u32>| -> Vec<u8> {
            words.flat_map(u32::to_le_bytes).collect()
        };
        let own = |rank: u32| bytes(&mut (0..numel).map(move |i| word(rank, i, id)));
        let expected = |rank: u32| bytes(&mut (0..numel).map(|i| expected(rank, i)));
        let format = Format { dtype: Dtype::I32, op: ReduceOp::Sum };
        self.run_as(format, id, pattern, own, expected);
    }

    /// Runs an operation on these bytes by rank, and checks what every rank gets.
    fn run_as(
        &self,
        format: Format,
        id: u64,
        pattern: &Pattern,
        own: impl Fn(u32) -> Vec<u8>,
        expected: impl Fn(u32) -> Vec<u8>,
    ) {
        let mut buffers: Vec<Buffer> = (0..3).map(|rank| Buffer::from_vec(own(rank))).collect();
        for ((worker, _), buffer) in self.workers.iter().zip(&mut buffers) {
            let numel = (buffer.len() / format.dtype.size()) as u64;
            let (fragments, pattern) = (Fragments::All, pattern.clone());
            let submission = Submission { id, format, numel, fingerprint: 7, fragments, pattern };
            worker.submit(TreeOperation { submission, buffer: buffer.lend_all().into() });
        }
        for (_, events) in &self.workers {
            loop {
                match events.recv_timeout(PATIENCE) {
                    Ok(Event::Done { id: done, .. }) => break assert_eq!(done, id),
                    // A switch had no processor for a while.
                    Ok(Event::Silent { .. }) => {}
                    other => panic!("{other:?}"),
                }
            }
        }
        for (rank, buffer) in (0..).zip(&buffers) {
            let got = buffer.slice(0..buffer.len());
            assert!(got == expected(rank), "rank {rank} of operation {id}, {format:?} {pattern:?}");
        }
    }

    /// Runs a reduce-scatter, an all-gather, a reduce, a broadcast and a barrier.
    pub fn run_all(&self, first: u64) {
        let sizes = [20_000, 30_003, 25_001];
        let numel = sizes.iter().sum::<usize>();
        let owner = |i: usize| (0..3).find(|&r| i < sizes[..=r].iter().sum()).unwrap() as u32;
        let shards: Arc<[u64]> = sizes.iter().map(|&n| n as u64).collect();
        let sum = |i, id| (0..3).fold(0, |sum: u32, rank| sum.wrapping_add(word(rank, i, id)));
        let taken = |id: u64, taker: &dyn Fn(usize) -> u32, rank: u32, i: usize| {
            if taker(i) == rank { sum(i, id) } else { word(rank, i, id) }
        };
        let id = first;
        let pattern = Pattern::ReduceScatter(shards.clone());
        self.run(id, numel, &pattern, |rank, i| taken(id, &owner, rank, i));
        let id = first + 1;
        self.run(id, numel, &Pattern::Allgather(shards), |_, i| word(owner(i), i, id));
        let id = first + 2;
        let (to, from) = (Pattern::Reduce(Rank(2)), Pattern::Broadcast(Rank(1)));
        self.run(id, 50_000, &to, |rank, i| taken(id, &|_| 2, rank, i));
        let id = first + 3;
        self.run(id, 50_000, &from, |_, i| word(1, i, id));
        self.run(first + 4, 0, &Pattern::Barrier, |_, _| unreachable!("it has no elements"));
    }

    /// Sums of int8, two to a word, and maxima of floats, which the kernel takes for those of integers.
    pub fn run_words(&self, first: u64) {
        let numel = 100_001;
        let number = |rank: u32, i: usize| i16::from(word(rank, i, first) as i8);
        let bytes = |of: &dyn Fn(usize) -> i16| -> Vec<u8> {
            (0..numel).flat_map(|i| of(i).to_le_bytes()).collect()
        };
        let int8 = Format { dtype: Dtype::I16FromI8, op: ReduceOp::Sum };
        let sum = |i| (0..3).map(|rank| number(rank, i)).sum();
        self.run_as(
            int8,
            first,
            &Pattern::Allreduce,
            |r| bytes(&|i| number(r, i)),
            |_| bytes(&sum),
        );
        let value = |rank: u32, i: usize| word(rank, i, first) as i32 as f32;
        let bytes = |of: &dyn Fn(usize) -> f32| -> Vec<u8> {
            (0..numel).flat_map(|i| of(i).to_le_bytes()).collect()
        };
        let float = Format { dtype: Dtype::F32, op: ReduceOp::Max };
        let most = |i| (0..3).map(|rank| value(rank, i)).fold(f32::NEG_INFINITY, f32::max);
        let own = |rank| bytes(&|i| value(rank, i));
        self.run_as(float, first + 1, &Pattern::Allreduce, own, |_| bytes(&most));
    }

    /// Reduces integers, and checks every rank's sum bit by bit.
    pub fn reduce(&self, id: u64, numel: usize) {
        let sum = |i: usize| (0..3).fold(0, |sum: u32, rank| sum.wrapping_add(word(rank, i, id)));
        self.run(id, numel, &Pattern::Allreduce, |_, i| sum(i));
    }
}

/// Element `i` of what a rank contributes to an operation.
fn word(rank: u32, i: usize, id: u64) -> u32 {
    (i as u32).wrapping_mul(2_654_435_761).wrapping_add(rank * 40_503 + id as u32)
}

#[test]
fn sums_through_two_levels_in_the_kernel_are_exact_with_loss() {
    let Some(fabric) = Fabric::new() else { return };
    let job = fabric.add_job(1);
    job.reduce(0, 100_001);
    let of = |switch: &SwitchDriver| switch.snapshot().unwrap().slots[0].counters;
    let (rack, middle) = (of(&fabric.rack), of(&fabric.middle));
    let fragments = 100_001u64.div_ceil(352);
    assert!(rack.added >= fragments && rack.completed > 0, "{rack:?}");
    assert!(middle.completed > 0 && middle.results >= fragments, "{middle:?}");
    fabric.end_with_loss(job, |job| job.reduce(1, 100_001));
}

#[test]
fn int8_and_comparisons_of_floats_are_combined_in_the_kernel_with_loss() {
    let Some(fabric) = Fabric::new() else { return };
    let job = fabric.add_job(1);
    job.run_words(0);
    // Two of int8 in a word, one float: 704 and 352 elements in a packet.
    let fragments = 100_001u64.div_ceil(704) + 100_001u64.div_ceil(352);
    let slots = fabric.rack.snapshot().unwrap().slots;
    let rack = slots[0].counters;
    assert!(slots[0].in_kernel && rack.added >= fragments && rack.completed > 0, "{slots:?}");
    fabric.end_with_loss(job, |job| job.run_words(2));
}

#[test]
fn all_collectives_run_in_the_kernel_with_loss() {
    let Some(fabric) = Fabric::new() else { return };
    let job = fabric.add_collective_job(1);
    job.run_all(0);
    let slots = fabric.rack.snapshot().unwrap().slots;
    let of = |tree| slots.iter().find(|s| s.lease.tree == TreeId(tree)).unwrap().counters;
    let (sums, copies) = (of(0), of(1));
    assert!(sums.completed > 0 && sums.results > 0, "{sums:?}");
    assert!(copies.added == 0 && copies.passed > 0 && copies.results > 0, "{copies:?}");
    fabric.end_with_loss(job, |job| job.run_all(5));
}

#[test]
fn two_jobs_share_the_slots_and_one_leaves() {
    let Some(fabric) = Fabric::new() else { return };
    let (first, second) = (fabric.add_job(1), fabric.add_job_with(2, false));
    std::thread::scope(|scope| {
        scope.spawn(|| (0..3).for_each(|id| first.reduce(id, 50_000)));
        scope.spawn(|| (0..3).for_each(|id| second.reduce(id, 50_000)));
    });
    fabric.rack.revoke(JobId(1), Epoch(1)).unwrap();
    second.reduce(3, 50_000);
    assert_eq!(in_kernel(&fabric.rack), [(JobId(2), TreeId(0))]);
}

/// The kernel enforces no rates. The limit is more than the job can use.
#[test]
fn a_job_with_a_limited_rate_is_served_in_user_space() {
    let Some(fabric) = Fabric::new() else { return };
    let limit = RateLimit { bytes_per_s: Some(1 << 40), packets_per_s: None };
    for (job, sealed) in [(1, true), (2, false)] {
        fabric.rack.own(JobId(job), Owner { tenant: None, limit }).unwrap();
        let job = fabric.begin(job, sealed, 1);
        job.reduce(0, 20_000);
    }
    assert_eq!(in_kernel(&fabric.rack), []);
    assert_eq!(fabric.rack.snapshot().unwrap().slots.len(), 2);
}

#[test]
fn without_the_interface_user_space_does_it_all() {
    let policy = Policy::FirstCome;
    let config = SwitchConfig { slots: 8, row_bytes: ROW, policy, straggler_ns: 1 << 30 };
    let bind = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
    let role = Role::Switch(config);
    let options =
        SwitchOptions { bind, memory: 1 << 20, role, socket: SocketOptions::default(), threads: 1 };
    let driver = SwitchDriver::start_behind(&options, &["nowhere0".into()]).unwrap();
    assert!(!driver.in_kernel());
    assert_eq!(driver.snapshot().unwrap().slots_held, 0);
}
