//! Protocols `atp` and `switchml` on real sockets: workers, two rack switches, the server's switch and servers on
//! loopback.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;
use netsum_net::switch::{Role, SwitchDriver, SwitchOptions, SwitchSnapshot};
use netsum_net::udp::SocketOptions;
use netsum_net::worker::{Event, TreeOperation, WorkerDriver, WorkerPlan};
use netsum_net::{Buffer, NetError};
use netsum_proto::atp::*;
use netsum_proto::handover::{Progress, resolve};
use netsum_proto::operations::Submission;
use netsum_proto::{CongestionRule, DropReason, Secrets, switchml};
use netsum_wire::atp::{HEADER_LEN, Header, Level};
use netsum_wire::fixed::Scale;
use netsum_wire::seal::{HopKeys, SealKey, with_room};
use netsum_wire::tag::Mac;
use netsum_wire::*;

const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const ROW: u16 = 1408;
const WINDOW: u16 = 64;
const SUM: Format = Format { dtype: Dtype::F32, op: ReduceOp::Sum };
const INTEGERS: Format = Format { dtype: Dtype::I32, op: ReduceOp::Sum };
/// Long enough for a machine that does much else.
const PATIENCE: Duration = Duration::from_secs(120);

fn start(role: Role) -> SwitchDriver {
    let bind = SocketAddr::new(LOCALHOST, 0);
    let socket = SocketOptions::default();
    SwitchDriver::start(&SwitchOptions { bind, memory: 1 << 20, role, socket, threads: 1 }).unwrap()
}

fn switch(slots: u32) -> SwitchDriver {
    let policy = Policy::FirstCome;
    let straggler_ns = 200_000_000;
    start(Role::Switch(SwitchConfig { slots, row_bytes: ROW, policy, straggler_ns }))
}

fn server() -> SwitchDriver {
    start(Role::Server { row_bytes: ROW, rows: 64 * usize::from(WINDOW) })
}

/// Two racks of two workers, and one worker at the switch of the servers' rack.
struct Fabric {
    slots: u32,
    racks: [SwitchDriver; 2],
    middle: SwitchDriver,
    servers: Vec<SwitchDriver>,
    /// Whether packets are sealed.
    sealed: bool,
    /// The number that each job's trees start at.
    first: u64,
}

struct Job {
    id: JobId,
    workers: Vec<(WorkerDriver, Receiver<Event>)>,
}

impl Fabric {
    fn new(slots: u32, servers: usize) -> Fabric {
        Fabric {
            slots,
            racks: [switch(slots), switch(slots)],
            middle: switch(slots),
            servers: (0..servers).map(|_| server()).collect(),
            sealed: false,
            first: 0,
        }
    }

    fn add_job(&self, job: u32, scaling: Scaling) -> Job {
        let workers: Vec<_> = (0..5).map(|_| WorkerDriver::start(LOCALHOST).unwrap()).collect();
        let job = Job { id: JobId(job), workers };
        self.begin(&job, 1, scaling);
        job
    }

    /// Leases and plans of an epoch.
    fn begin(&self, job: &Job, epoch: u16, scaling: Scaling) {
        let Job { id: job, workers } = job;
        let at: Vec<SocketAddr> = workers.iter().map(|(w, _)| w.local_addr()).collect();
        let (job, epoch) = (*job, Epoch(epoch));
        let middle = self.middle.local_addr();
        for (tree, server) in self.servers.iter().enumerate() {
            let tree = TreeId(tree as u8);
            let lease = |members, parent| {
                let claim = Claim::default();
                Lease {
                    job,
                    epoch,
                    tree,
                    members,
                    parent,
                    window: WINDOW,
                    fragment_bytes: ROW,
                    claim,
                }
            };
            for (rack, switch) in self.racks.iter().enumerate() {
                let workers = at[2 * rack..2 * rack + 2].to_vec();
                let members = Members::Rack { workers, rack: rack as u8, racks: 3 };
                let secrets = self.secrets(epoch, &at[2 * rack..2 * rack + 2], Some(switch));
                switch.install_starting_at(lease(members, middle), secrets, self.first).unwrap();
            }
            let racks = vec![
                Rack { port: self.racks[0].local_addr(), workers: 2 },
                Rack { port: self.racks[1].local_addr(), workers: 2 },
                Rack { port: at[4], workers: 1 },
            ];
            let children: Vec<SocketAddr> = racks.iter().map(|rack| rack.port).collect();
            let secrets = self.secrets(epoch, &children, Some(&self.middle));
            let grant = lease(Members::Server { racks }, server.local_addr());
            self.middle.install_starting_at(grant, secrets, self.first).unwrap();
            let neighbours = vec![Neighbour { port: middle, racks: 0b111, workers: u32::MAX }];
            let racks = vec![vec![0, 1], vec![2, 3], vec![4]];
            let (window, fragment_bytes, slots) = (WINDOW, ROW, self.slots);
            let lease =
                ServerLease { job, epoch, tree, racks, neighbours, window, fragment_bytes, slots };
            let secrets = self.secrets(epoch, &[middle], None);
            server.install_starting_at(lease, secrets, self.first).unwrap();
        }
        for (rank, (worker, _)) in workers.iter().enumerate() {
            let (rack, of_rack) = ((rank / 2) as u8, (rank % 2) as u8);
            let place = WorkerPosition {
                level: if rank == 4 { Level::Server } else { Level::Rack },
                worker: of_rack,
                rack_fan_in: if rank == 4 { 1 } else { 2 },
                rack,
                server_fan_in: 3,
            };
            let next_hop = self.racks.get(rank / 2).map_or(middle, SwitchDriver::local_addr);
            let servers = self.servers.len();
            let config = WorkerConfig {
                job,
                epoch,
                rank: Rank(rank as u32),
                ranks: 5,
                copies: false,
                places: vec![place; servers],
                window_max: WINDOW,
                fragment_bytes: ROW,
                slots: self.slots,
                congestion: CongestionRule::Aimd { packet_bytes: 1496 },
                scaling,
            };
            let config = config.into();
            let plan = WorkerPlan { config, switches: vec![next_hop; servers] };
            let secrets = self.secrets(epoch, &vec![at[rank]; servers], None);
            worker.begin_starting_at(plan, secrets, self.first);
        }
    }

    /// The keys of the hops above some neighbours; with a parent, also of that above the switch itself.
    fn secrets(
        &self,
        epoch: Epoch,
        children: &[SocketAddr],
        with_parent: Option<&SwitchDriver>,
    ) -> Option<Secrets> {
        let own = with_parent.map(SwitchDriver::local_addr);
        let below = children.iter().copied().chain(own);
        self.sealed.then(|| below.map(|child| keys(epoch.0, child.port())).collect())
    }

    fn snapshots(&self) -> Vec<SwitchSnapshot> {
        let all = self.racks.iter().chain([&self.middle]);
        all.map(|switch| switch.snapshot().unwrap()).collect()
    }
}

impl Job {
    /// Reduces one buffer per rank; the five results.
    fn reduce(&self, id: u64, format: Format, buffers: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
        let buffers = self.submit(id, format, buffers);
        self.await_done(id);
        read(&buffers)
    }

    fn submit(&self, id: u64, format: Format, buffers: Vec<Vec<u8>>) -> Vec<Buffer> {
        let numel = (buffers[0].len() / format.dtype.size()) as u64;
        let mut buffers: Vec<Buffer> = buffers.into_iter().map(Buffer::from_vec).collect();
        for ((worker, _), buffer) in self.workers.iter().zip(&mut buffers) {
            let fragments = Fragments::All;
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
        buffers
    }

    fn await_done(&self, id: u64) {
        for (_, events) in &self.workers {
            match events.recv_timeout(PATIENCE) {
                Ok(Event::Done { id: done, .. }) => assert_eq!(done, id),
                other => panic!("{other:?}"),
            }
        }
    }
}

fn read(buffers: &[Buffer]) -> Vec<Vec<u8>> {
    buffers.iter().map(|buffer| buffer.slice(0..buffer.len()).to_vec()).collect()
}

fn integers(numel: usize, seed: u32) -> Vec<Vec<u8>> {
    let value = |rank: u32, i: usize| {
        (i as u32).wrapping_mul(2_654_435_761).wrapping_add(rank * 40_503 + seed) as i32
    };
    let of = |rank| (0..numel).flat_map(|i| value(rank, i).to_le_bytes()).collect();
    (0..5).map(of).collect()
}

fn check_integers(results: &[Vec<u8>], inputs: &[Vec<u8>]) {
    let mut expected = inputs[0].clone();
    for input in &inputs[1..] {
        Arithmetic::Wrapping.combine(&mut expected, input);
    }
    assert!(results.iter().all(|result| *result == expected));
}

/// `bound`: the most by which an element may differ beyond rounding of float32.
fn check_floats(result: &[u8], inputs: &[Vec<u8>], bound: impl Fn(usize) -> f64) {
    let element =
        |bytes: &[u8], i: usize| f32::from_le_bytes(*bytes[i * 4..].first_chunk().unwrap());
    for i in 0..result.len() / 4 {
        let real: f64 = inputs.iter().map(|input| f64::from(element(input, i))).sum();
        let got = f64::from(element(result, i));
        let error = (got - real).abs();
        assert!(got == real || error <= bound(i) + 1e-6 * real.abs(), "element {i}: {error}");
    }
}

fn floats(numel: usize) -> Vec<Vec<u8>> {
    let value = |rank: usize, i: usize| match (i, rank) {
        // A fragment that 10⁸ does not fit, and one that nothing does.
        (500, 3) => 1e4,
        (900, 1) => f32::INFINITY,
        _ => ((i * 31 + rank * 17) % 1009) as f32 * 1e-4 - 0.05,
    };
    (0..5).map(|rank| (0..numel).flat_map(|i| value(rank, i).to_le_bytes()).collect()).collect()
}

#[test]
fn sums_are_exact_with_slots_for_all_and_with_ten_times_too_few() {
    for slots in [1024, 12] {
        let fabric = Fabric::new(slots, 2);
        let jobs = [fabric.add_job(1, Scaling::Shared), fabric.add_job(2, Scaling::Shared)];
        std::thread::scope(|scope| {
            for (seed, job) in jobs.iter().enumerate() {
                scope.spawn(move || {
                    for id in 0..3 {
                        let inputs = integers(100_000, seed as u32 * 1000 + id as u32);
                        let results = job.reduce(id, INTEGERS, inputs.clone());
                        check_integers(&results, &inputs);
                    }
                });
            }
        });
        let added: u64 =
            fabric.snapshots().iter().flat_map(|s| &s.slots).map(|s| s.counters.added).sum();
        let collisions: u64 =
            fabric.snapshots().iter().flat_map(|s| &s.slots).map(|s| s.counters.collisions).sum();
        assert!(added > 0);
        assert!(slots > 12 || collisions > 0, "{collisions} collisions, {added} added");
    }
}

#[test]
fn floats_travel_as_integers_and_fall_back() {
    let fabric = Fabric::new(1024, 1);
    let inputs = floats(20_000);
    for (id, scaling) in [(1, Scaling::Fixed(Scale::PAPER)), (2, Scaling::Shared)] {
        let job = fabric.add_job(id, scaling);
        let results = job.reduce(id.into(), SUM, inputs.clone());
        assert!(results.iter().all(|r| *r == results[0]), "the same bits at every rank");
        // The fragment with 10⁴ < 2¹⁴ shares a scale of 2¹³ among 5 < 2³ ranks: half a step each.
        let coarse = |i| scaling == Scaling::Shared && (352..704).contains(&i);
        check_floats(&results[0], &inputs, |i| if coarse(i) { 2.6 / 8192.0 } else { 1e-5 });
    }
    let server = fabric.servers[0].snapshot().unwrap();
    let requests: Vec<_> = server.servers.iter().map(|s| s.counters.float_requests).collect();
    assert_eq!(requests, [2, 0], "two fragments with the paper's scale, none with a shared one");
}

#[test]
fn leases_of_the_other_role_are_refused() {
    let fabric = Fabric::new(8, 1);
    fabric.add_job(1, Scaling::Shared);
    let lease = |members| Lease {
        job: JobId(9),
        epoch: Epoch(1),
        tree: TreeId(0),
        members,
        parent: fabric.middle.local_addr(),
        window: 1,
        fragment_bytes: ROW,
        claim: Claim::default(),
    };
    let address = fabric.racks[0].local_addr();
    let members = || Members::Rack { workers: vec![address], rack: 0, racks: 1 };
    let refused = fabric.servers[0].install(lease(members()));
    assert!(matches!(refused, Err(NetError::WrongRole("server"))));
    let twice = Members::Rack { workers: vec![address, address], rack: 0, racks: 1 };
    let refused = fabric.racks[1].install(lease(twice));
    assert!(matches!(refused, Err(NetError::DuplicateNeighbour { .. })));
    let none = Members::Rack { workers: vec![], rack: 0, racks: 1 };
    let refused = fabric.racks[1].install(lease(none));
    assert!(matches!(refused, Err(NetError::SlotLease(LeaseError::Members(0)))));
}

/// The servers die half-way: what some worker has is handed over, the rest is summed again by new ones.
#[test]
fn an_epoch_that_ends_early_loses_and_repeats_no_sum() {
    for (scaling, format) in [(Scaling::Shared, INTEGERS), (Scaling::Shared, SUM)] {
        let mut fabric = Fabric::new(64, 2);
        let job = fabric.add_job(1, scaling);
        let inputs = integers(400_000, 5);
        let inputs: Vec<Vec<u8>> = match format {
            SUM => floats(400_000),
            _ => inputs,
        };
        let buffers = job.submit(9, format, inputs.clone());
        while job.workers[0].0.stats().trees.iter().map(|t| t.results).sum::<u64>() < 100 {
            std::thread::sleep(Duration::from_micros(200));
        }
        fabric.servers = fabric.servers.drain(..).map(|_| server()).collect();
        let reports: Vec<Progress> = job.workers.iter().map(|(w, _)| w.freeze()).collect();
        let resolution = resolve(&reports);
        for serve in &resolution.serve {
            let result = job.workers[serve.from.0 as usize].0.fetch(&[serve.g]).remove(0);
            let result = result.expect("who has a result that another lacks still has it");
            for to in &serve.to {
                job.workers[to.0 as usize].0.deliver(vec![(serve.g, result.clone())]);
            }
        }
        let rest: Vec<_> =
            job.workers.iter().map(|(w, _)| w.resolve(resolution.finished.clone())).collect();
        fabric.begin(&job, 2, scaling);
        for ((worker, _), rest) in job.workers.iter().zip(rest) {
            rest.into_iter().for_each(|operation| worker.submit(operation));
        }
        job.await_done(9);
        let results = read(&buffers);
        assert!(results.iter().all(|r| *r == results[0]), "the same bits at every rank");
        match format {
            SUM => {
                check_floats(
                    &results[0],
                    &inputs,
                    |i| if i / 352 == 1 { 2.6 / 8192.0 } else { 1e-5 },
                )
            }
            _ => check_integers(&results, &inputs),
        }
    }
}

/// A tree's numbers have 32 bits in packets.
#[test]
fn sums_are_exact_while_the_numbers_of_trees_wrap_around() {
    for slots in [1024, 12] {
        let mut fabric = Fabric::new(slots, 2);
        fabric.first = (1 << 32) - 300;
        let job = fabric.add_job(1, Scaling::Shared);
        for id in 0..4 {
            let inputs = integers(100_000, id as u32);
            check_integers(&job.reduce(id, INTEGERS, inputs.clone()), &inputs);
        }
        let inputs = floats(20_000);
        let results = job.reduce(9, SUM, inputs.clone());
        assert!(results.iter().all(|r| *r == results[0]), "the same bits at every rank");
        check_floats(&results[0], &inputs, |i| if i / 352 == 1 { 2.6 / 8192.0 } else { 1e-5 });
        let submitted = job.workers[0].0.stats().submitted;
        assert!(submitted > 2 << 32, "{submitted}");
    }
}

/// Rounds of a pool's slots have 32 bits in packets.
#[test]
fn sums_are_exact_while_the_rounds_of_a_pool_wrap_around() {
    let middle = switch(32);
    let workers: Vec<_> = (0..5).map(|_| WorkerDriver::start(LOCALHOST).unwrap()).collect();
    let job = Job { id: JobId(3), workers };
    let workers: Vec<SocketAddr> = job.workers.iter().map(|(w, _)| w.local_addr()).collect();
    let (id, epoch, slots, first) = (job.id, Epoch(1), 16, (1 << 32) - 20);
    let lease =
        switchml::Lease { tree: TreeId(0), job: id, epoch, workers, slots, fragment_bytes: ROW };
    middle.install_starting_at(lease, None, first).unwrap();
    for (rank, (worker, _)) in job.workers.iter().enumerate() {
        let config = switchml::WorkerConfig {
            copies: false,
            job: id,
            epoch,
            worker: rank as u8,
            workers: 5,
            slots,
            fragment_bytes: ROW,
            timeout_ns: 10_000_000,
        };
        let plan = WorkerPlan { config: config.into(), switches: vec![middle.local_addr()] };
        worker.begin_starting_at(plan, None, first);
    }
    for operation in 0..4 {
        let inputs = integers(100_000, operation as u32);
        check_integers(&job.reduce(operation, INTEGERS, inputs.clone()), &inputs);
    }
    let submitted = job.workers[0].0.stats().submitted;
    assert!(submitted > u64::from(slots) << 32, "{submitted}");
}

#[test]
fn pools_of_one_switch() {
    let middle = switch(32);
    let workers: Vec<_> = (0..5).map(|_| WorkerDriver::start(LOCALHOST).unwrap()).collect();
    let job = Job { id: JobId(3), workers };
    let at: Vec<SocketAddr> = job.workers.iter().map(|(w, _)| w.local_addr()).collect();
    let (id, epoch, slots) = (job.id, Epoch(1), 16);
    let lease = |slots| {
        let workers = at.clone();
        switchml::Lease { tree: TreeId(0), job: id, epoch, workers, slots, fragment_bytes: ROW }
    };
    let full = middle.install(lease(33)).unwrap_err();
    assert!(full.to_string().contains("needs 66 rows, 64 are free"), "{full}");
    middle.install(lease(slots)).unwrap();
    for (rank, (worker, _)) in job.workers.iter().enumerate() {
        let config = switchml::WorkerConfig {
            copies: false,
            job: id,
            epoch,
            worker: rank as u8,
            workers: 5,
            slots,
            fragment_bytes: ROW,
            timeout_ns: 10_000_000,
        };
        let config = config.into();
        worker.begin(WorkerPlan { config, switches: vec![middle.local_addr()] });
    }
    let inputs = integers(100_000, 3);
    check_integers(&job.reduce(1, INTEGERS, inputs.clone()), &inputs);
    let mut inputs = floats(20_000);
    // Not even a pool's shared scale fits infinity: all of its fragment is NaN.
    inputs[1][900 * 4..][..4].copy_from_slice(&1f32.to_le_bytes());
    let results = job.reduce(2, SUM, inputs.clone());
    assert!(results.iter().all(|r| *r == results[0]), "the same bits at every rank");
    check_floats(&results[0], &inputs, |i| if i / 352 <= 2 { 2.6 / 8192.0 } else { 1e-5 });
    // What is under way when the epoch ends is completed or handed back whole.
    let buffers = job.submit(3, INTEGERS, integers(400_000, 3));
    let reports: Vec<Progress> = job.workers.iter().map(|(w, _)| w.freeze()).collect();
    let resolution = resolve(&reports);
    for serve in &resolution.serve {
        let result = job.workers[serve.from.0 as usize].0.fetch(&[serve.g]).remove(0);
        for to in &serve.to {
            let result = result.clone().expect("it is the last of its slot");
            job.workers[to.0 as usize].0.deliver(vec![(serve.g, result)]);
        }
    }
    let mut sum = integers(400_000, 3).remove(0);
    for other in &integers(400_000, 3)[1..] {
        let _ = Arithmetic::Wrapping.combine(&mut sum, other);
    }
    for (((worker, _), buffer), input) in job.workers.iter().zip(&buffers).zip(integers(400_000, 3))
    {
        let rest = worker.resolve(resolution.finished.clone());
        let fragments = match rest.first().map(|rest| &rest.submission.fragments) {
            Some(Fragments::Some(list)) => list.clone(),
            None => Vec::new(),
            other => panic!("{other:?}"),
        };
        let left: std::collections::HashSet<u32> = fragments.into_iter().collect();
        drop(rest);
        let bytes = buffer.slice(0..buffer.len());
        for (i, chunk) in bytes.chunks(ROW.into()).enumerate() {
            let expected = if left.contains(&(i as u32)) { &input } else { &sum };
            assert!(*chunk == expected[i * usize::from(ROW)..][..chunk.len()], "fragment {i}");
        }
    }
}

/// An attacker floods every process with packets of the job, forged in each way that needs no key:
/// the sums stay exact.
#[test]
fn a_flood_of_forged_packets_changes_no_sum() {
    let fabric = Fabric::new(64, 1);
    let job = fabric.add_job(1, Scaling::Shared);
    let victims: Vec<SocketAddr> = fabric
        .racks
        .iter()
        .chain([&fabric.middle])
        .chain(&fabric.servers)
        .map(SwitchDriver::local_addr)
        .collect();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let socket = UdpSocket::bind((LOCALHOST, 0)).unwrap();
            let mut n = 0u32;
            while !stop.load(Ordering::Relaxed) {
                for victim in &victims {
                    let _ = socket.send_to(&forged(n), victim);
                    n += 1;
                }
                std::thread::sleep(Duration::from_micros(50));
            }
        });
        for id in 0..4 {
            let inputs = integers(100_000, id as u32);
            let results = job.reduce(id, INTEGERS, inputs.clone());
            check_integers(&results, &inputs);
        }
        let met =
            |s: &SwitchSnapshot| s.drops.iter().any(|(reason, _)| *reason == "unknown_sender");
        let started = Instant::now();
        while !fabric.snapshots().iter().all(met) && started.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
        }
        stop.store(true, Ordering::Relaxed);
        assert!(fabric.snapshots().iter().all(met), "the attack came to every switch");
    });
}

fn forged(n: u32) -> Vec<u8> {
    let header = Header {
        kind: netsum_wire::atp::Kind::Contribution,
        level: if n & 1 == 0 { Level::Rack } else { Level::Server },
        flags: netsum_wire::atp::Flags { resend: n & 2 != 0, ..Default::default() },
        arithmetic: Arithmetic::Wrapping,
        tree: TreeId(0),
        job: JobId(1 + (n >> 8 & 1)),
        sequence: Sequence(n % 64),
        chunk: 7,
        epoch: Epoch(1),
        n_elems: 4,
        rack_fan_in: 2,
        server_fan_in: 3,
        slot: SlotIndex(n % 64),
        workers: 1 + (n >> 2 & 1),
        racks: 1 << (n % 3),
        next_slot: SlotIndex(0),
        others: 0,
        parties: Parties::All,
    };
    let mut packet = [0; HEADER_LEN];
    header.encode(&mut packet);
    [&packet[..], &[0xaa; 16]].concat()
}

/// Switches add what is signed, and nothing else; `switchml` too.
#[test]
fn packets_under_a_key_are_added_and_others_are_not() {
    let fabric = Fabric { sealed: true, ..Fabric::new(64, 2) };
    let job = fabric.add_job(1, Scaling::Shared);
    let inputs = integers(100_000, 1);
    check_integers(&job.reduce(0, INTEGERS, inputs.clone()), &inputs);
    assert!(fabric.snapshots().iter().all(|s| s.drops.iter().all(|(r, _)| *r != "bad_tag")));
    let middle = switch(64);
    let workers: Vec<_> = (0..3).map(|_| WorkerDriver::start(LOCALHOST).unwrap()).collect();
    let at: Vec<_> = workers.iter().map(|(worker, _)| worker.local_addr()).collect();
    let (id, epoch) = (JobId(7), Epoch(1));
    let secrets: Secrets = at.iter().map(|at| keys(1, at.port())).collect();
    let lease = switchml::Lease {
        tree: TreeId(0),
        job: id,
        epoch,
        workers: at,
        slots: 16,
        fragment_bytes: ROW,
    };
    middle.install_with(lease, Some(secrets.clone())).unwrap();
    for (rank, (worker, _)) in workers.iter().enumerate() {
        let config = switchml::WorkerConfig {
            copies: false,
            job: id,
            epoch,
            worker: rank as u8,
            workers: 3,
            slots: 16,
            fragment_bytes: ROW,
            timeout_ns: 10_000_000,
        };
        let config = config.into();
        let plan = WorkerPlan { config, switches: vec![middle.local_addr()] };
        // The last one has no key: its packets are not added, and it takes no results.
        worker.begin_with(plan, (rank < 2).then(|| vec![secrets[rank]]));
    }
    let job = Job { id, workers };
    job.submit(1, INTEGERS, integers(1000, 2)[..3].to_vec());
    let refused = || {
        let drops = middle.snapshot().unwrap().drops;
        drops.iter().any(|(reason, count)| *reason == "bad_tag" && *count > 0)
    };
    let started = Instant::now();
    while !refused() {
        assert!(started.elapsed() < PATIENCE, "nothing unsigned was refused");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(middle.snapshot().unwrap().pools[0].counters.completed, 0);
}

/// A worker computes no tag for packets of an address that is not its switch's.
#[test]
fn a_worker_looks_at_the_sender_before_the_tag() {
    let (driver, _events) = WorkerDriver::start(LOCALHOST).unwrap();
    let config = switchml::WorkerConfig {
        copies: false,
        job: JobId(1),
        epoch: Epoch(1),
        worker: 0,
        workers: 2,
        slots: 16,
        fragment_bytes: ROW,
        timeout_ns: 10_000_000,
    };
    let switch = std::net::UdpSocket::bind((LOCALHOST, 0)).unwrap();
    let switches = vec![switch.local_addr().unwrap()];
    let secrets = vec![keys(1, driver.local_addr().port())];
    driver.begin_with(WorkerPlan { config: config.into(), switches }, Some(secrets));
    let stranger = std::net::UdpSocket::bind((LOCALHOST, 0)).unwrap();
    let started = Instant::now();
    let dropped = |reason| driver.stats().drops.get(reason);
    while dropped(DropReason::UnknownSender) == 0 {
        stranger.send_to(&[0xff; 200], driver.local_addr()).unwrap();
        assert!(started.elapsed() < PATIENCE, "no packet of a stranger was dropped");
    }
    assert_eq!(dropped(DropReason::BadTag), 0);
    // A result that would be decoded.
    let header = netsum_wire::switchml::Header {
        tree: TreeId(0),
        parties: Parties::All,
        kind: netsum_wire::switchml::Kind::Result,
        resent: false,
        arithmetic: Arithmetic::Wrapping,
        worker: netsum_wire::switchml::NOBODY,
        job: JobId(1),
        round: 0,
        chunk: 0,
        epoch: Epoch(1),
        slot: 0,
        n_elems: 0,
        next_exponent: 0,
    };
    let mut untagged = [0; netsum_wire::switchml::HEADER_LEN];
    header.encode(&mut untagged);
    while dropped(DropReason::BadTag) == 0 {
        switch.send_to(&untagged, driver.local_addr()).unwrap();
        assert!(started.elapsed() < PATIENCE, "no packet without a tag was dropped");
    }
}

/// The keys of the hop above the worker or switch at a port.
fn keys(epoch: u16, port: u16) -> HopKeys {
    let [high, low] = port.to_be_bytes();
    HopKeys::new(Mac::Aegis, std::array::from_fn(|i| [high, low, epoch as u8, i as u8][i % 4]))
}

/// A process that can write any source address floods switches, server and workers of a job with what it can make without the key,
/// and with what it has seen in an epoch before: the sums stay exact, and every reason to drop is counted.
#[test]
fn a_process_that_speaks_in_others_names_changes_no_sum() {
    let fabric = Fabric { sealed: true, ..Fabric::new(64, 1) };
    let job = Job {
        id: JobId(1),
        workers: (0..5).map(|_| WorkerDriver::start(LOCALHOST).unwrap()).collect(),
    };
    fabric.begin(&job, 2, Scaling::Shared);
    let at = |driver: &SwitchDriver| driver.local_addr().port();
    let worker = |rank: usize| job.workers[rank].0.local_addr().port();
    let (rack, middle, server) = (at(&fabric.racks[0]), at(&fabric.middle), at(&fabric.servers[0]));
    // As a worker to its switch, as one switch to the other, as a switch to a worker.
    let lies = [
        (worker(0), rack),
        (middle, rack),
        (rack, middle),
        (worker(4), middle),
        (server, middle),
        (middle, server),
        (rack, worker(0)),
        (rack, worker(1)),
        (middle, worker(4)),
        (1, rack),
    ];
    let lies: Vec<_> = lies.iter().map(|(from, to)| format!("{from}>{to}")).collect();
    let mut attacker = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["attacker", "--exact", "--ignored", "--nocapture"])
        .env("NETSUM_LIES", lies.join(","))
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    for id in 0..6 {
        let inputs = integers(100_000, id as u32);
        let results = job.reduce(id, INTEGERS, inputs.clone());
        check_integers(&results, &inputs);
    }
    let wanted = [
        "bad_tag",
        "no_lease",
        "impossible_members",
        "payload_length",
        "truncated_header",
        "unknown_sender",
    ];
    let missing = || {
        let mut drops: Vec<&str> = Vec::new();
        fabric.snapshots().iter().for_each(|s| drops.extend(s.drops.iter().map(|(r, _)| *r)));
        wanted.into_iter().filter(|reason| !drops.contains(reason)).collect::<Vec<_>>()
    };
    let started = Instant::now();
    let mut skipped = false;
    while !missing().is_empty() {
        if let Some(status) = attacker.try_wait().unwrap() {
            assert!(status.success(), "the attacker failed: {status}");
            println!("skipped: raw sockets need root; no packet was forged");
            skipped = true;
            break;
        }
        assert!(started.elapsed() < PATIENCE, "never met: {:?}", missing());
        std::thread::sleep(Duration::from_millis(1));
    }
    let inputs = integers(100_000, 99);
    check_integers(&job.reduce(99, INTEGERS, inputs.clone()), &inputs);
    drop(attacker.stdin.take());
    assert!(attacker.wait().unwrap().success());
    let refused = job.workers[0].0.stats().drops.get(DropReason::BadTag);
    assert!(skipped || refused > 0, "no forged result came to a worker");
}

/// The other process. It stops when its input ends.
#[test]
#[ignore = "a process of its own, which another test starts"]
fn attacker() {
    use std::io::Read;
    let Ok(lies) = std::env::var("NETSUM_LIES") else { return };
    let lies: Vec<(u16, u16)> = lies
        .split(',')
        .map(|lie| lie.split_once('>').unwrap())
        .map(|(from, to)| (from.parse().unwrap(), to.parse().unwrap()))
        .collect();
    let raw = socket2::Socket::new(
        socket2::Domain::IPV4,
        socket2::Type::RAW,
        Some(socket2::Protocol::from(libc::IPPROTO_RAW)),
    );
    let Ok(raw) = raw else { return };
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut n = 0u32;
            while !stop.load(Ordering::Relaxed) {
                for &(from, to) in &lies {
                    let to_address = SocketAddr::new(LOCALHOST, to);
                    let _ = raw.send_to(&datagram(from, to, &lie(n, from)), &to_address.into());
                    n += 1;
                }
                std::thread::sleep(Duration::from_micros(100));
            }
        });
        let _ = std::io::stdin().read(&mut [0]);
        stop.store(true, Ordering::Relaxed);
    });
}

/// IPv4 and UDP headers before a packet; the system fills in lengths and checksum of IP.
fn datagram(from: u16, to: u16, packet: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x45, 0xe2, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0];
    bytes.extend([127, 0, 0, 1, 127, 0, 0, 1]);
    bytes.extend(from.to_be_bytes());
    bytes.extend(to.to_be_bytes());
    bytes.extend((8 + packet.len() as u16).to_be_bytes());
    bytes.extend([0, 0]);
    bytes.extend_from_slice(packet);
    bytes
}

/// What can be made without the key, and an honest packet of the epoch before.
fn lie(n: u32, from: u16) -> Vec<u8> {
    let mut packet = forged(n / 8);
    let kinds = [0, 0, 1, 1, 3, 4];
    packet[1] = packet[1] & 0x10 | kinds[(n / 64) as usize % kinds.len()];
    packet[17] = 2;
    match n % 8 {
        // Impossible fan-in; a truncated payload; less than a header; another job.
        0 => packet[20] = 33,
        1 => packet.truncate(HEADER_LEN + 7),
        2 => packet.truncate(n as usize % HEADER_LEN),
        3 => packet[7] = 0x63,
        6 => packet[17] = 3,
        _ => {}
    }
    if ![0, 1].contains(&packet.get(1).map_or(0, |kind| kind & 15)) && packet.len() > HEADER_LEN {
        packet.truncate(HEADER_LEN);
    }
    match n % 8 {
        // A wrong tag, or one of the epoch before, or none.
        4 => seal(packet, n, keys(3, from)),
        7 => {
            packet[17] = 1;
            seal(packet, n, keys(1, from))
        }
        _ => packet,
    }
}

fn seal(packet: Vec<u8>, number: u32, keys: HopKeys) -> Vec<u8> {
    let mut sealed = with_room(&packet);
    SealKey::new(&keys.up).seal(number.into(), &mut sealed, &[]);
    sealed
}
