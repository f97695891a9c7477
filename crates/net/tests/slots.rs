//! Protocol `atp` on real sockets: workers, two rack switches, the server's switch and servers on loopback.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;
use netsum_net::slots::{
    SlotDriver, SlotEvent, SlotOperation, SlotOptions, SlotPlan, SlotRole, SlotSnapshot, SlotWorker,
};
use netsum_net::udp::SocketOptions;
use netsum_net::{Buffer, NetError};
use netsum_proto::atp::*;
use netsum_proto::{CongestionRule, operations};
use netsum_wire::atp::{HEADER_LEN, Header, Level};
use netsum_wire::fixed::Scale;
use netsum_wire::*;

const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const ROW: u16 = 1408;
const WINDOW: u16 = 64;
const SUM: Format = Format { dtype: Dtype::F32, op: ReduceOp::Sum };
const INTEGERS: Format = Format { dtype: Dtype::I32, op: ReduceOp::Sum };
/// Long enough for a machine that does much else.
const PATIENCE: Duration = Duration::from_secs(120);

fn start(role: SlotRole) -> SlotDriver {
    let bind = SocketAddr::new(LOCALHOST, 0);
    SlotDriver::start(&SlotOptions { bind, role, socket: SocketOptions::default() }).unwrap()
}

fn switch(slots: u32) -> SlotDriver {
    let policy = Policy::FirstCome;
    let straggler_ns = 200_000_000;
    start(SlotRole::Switch(SwitchConfig { slots, row_bytes: ROW, policy, straggler_ns }))
}

/// Two racks of two workers, and one worker at the switch of the servers' rack.
struct Fabric {
    slots: u32,
    racks: [SlotDriver; 2],
    middle: SlotDriver,
    servers: Vec<SlotDriver>,
}

struct Job {
    workers: Vec<(SlotWorker, Receiver<SlotEvent>)>,
}

impl Fabric {
    fn new(slots: u32, servers: usize) -> Fabric {
        let rows = 64 * usize::from(WINDOW);
        Fabric {
            slots,
            racks: [switch(slots), switch(slots)],
            middle: switch(slots),
            servers: (0..servers)
                .map(|_| start(SlotRole::Server { row_bytes: ROW, rows }))
                .collect(),
        }
    }

    fn add_job(&self, job: u32) -> Job {
        let options = SocketOptions::default();
        let workers: Vec<_> =
            (0..5).map(|_| SlotWorker::start(LOCALHOST, &options).unwrap()).collect();
        let at: Vec<SocketAddr> = workers.iter().map(|(w, _)| w.local_addr()).collect();
        let (job, epoch) = (JobId(job), Epoch(1));
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
                switch.install(lease(members, middle)).unwrap();
            }
            let racks = vec![
                Rack { port: self.racks[0].local_addr(), workers: 2 },
                Rack { port: self.racks[1].local_addr(), workers: 2 },
                Rack { port: at[4], workers: 1 },
            ];
            self.middle.install(lease(Members::Server { racks }, server.local_addr())).unwrap();
            let neighbours = vec![Neighbour { port: middle, racks: 0b111, workers: u32::MAX }];
            let racks = vec![vec![0, 1], vec![2, 3], vec![4]];
            let (window, fragment_bytes, slots) = (WINDOW, ROW, self.slots);
            let lease =
                ServerLease { job, epoch, tree, racks, neighbours, window, fragment_bytes, slots };
            server.install_server(lease).unwrap();
        }
        for (rank, (worker, _)) in workers.iter().enumerate() {
            let (rack, of_rack) = ((rank / 2) as u8, (rank % 2) as u8);
            let place = Place {
                level: if rank == 4 { Level::Server } else { Level::Rack },
                worker: of_rack,
                rack_fan_in: if rank == 4 { 1 } else { 2 },
                rack,
                server_fan_in: 3,
            };
            let next_hop = self.racks.get(rank / 2).map_or(middle, SlotDriver::local_addr);
            let servers = self.servers.len();
            let config = WorkerConfig {
                job,
                epoch,
                ranks: 5,
                places: vec![place; servers],
                window_max: WINDOW,
                fragment_bytes: ROW,
                slots: self.slots,
                congestion: CongestionRule::Aimd { packet_bytes: 1496 },
            };
            worker.begin(SlotPlan { config, next_hops: vec![next_hop; servers] });
        }
        Job { workers }
    }

    fn snapshots(&self) -> Vec<SlotSnapshot> {
        let all = self.racks.iter().chain([&self.middle]);
        all.map(|switch| switch.snapshot().unwrap()).collect()
    }
}

impl Job {
    /// Reduces one buffer per rank; the five results.
    fn reduce(
        &self,
        id: u64,
        format: Format,
        scaling: Scaling,
        buffers: Vec<Vec<u8>>,
    ) -> Vec<Vec<u8>> {
        let numel = (buffers[0].len() / format.dtype.size()) as u64;
        let buffers: Vec<Buffer> = buffers.into_iter().map(Buffer::from_vec).collect();
        for ((worker, _), buffer) in self.workers.iter().zip(&buffers) {
            let fragments = Fragments::All;
            let what = operations::Submission { id, format, numel, fingerprint: 7, fragments };
            let submission = Submission { what, scaling };
            worker.submit(SlotOperation { submission, buffer: buffer.clone() });
        }
        for (_, events) in &self.workers {
            match events.recv_timeout(PATIENCE) {
                Ok(SlotEvent::Done { id: done }) => assert_eq!(done, id),
                other => panic!("{other:?}"),
            }
        }
        buffers.iter().map(|buffer| buffer.slice(0..buffer.len()).to_vec()).collect()
    }
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
        let jobs = [fabric.add_job(1), fabric.add_job(2)];
        std::thread::scope(|scope| {
            for (seed, job) in jobs.iter().enumerate() {
                scope.spawn(move || {
                    for id in 0..3 {
                        let inputs = integers(100_000, seed as u32 * 1000 + id as u32);
                        let results = job.reduce(id, INTEGERS, Scaling::Shared, inputs.clone());
                        check_integers(&results, &inputs);
                    }
                });
            }
        });
        let added: u64 =
            fabric.snapshots().iter().flat_map(|s| &s.switch).map(|(.., c)| c.added).sum();
        let collisions: u64 =
            fabric.snapshots().iter().flat_map(|s| &s.switch).map(|(.., c)| c.collisions).sum();
        assert!(added > 0);
        assert!(slots > 12 || collisions > 0, "{collisions} collisions, {added} added");
    }
}

#[test]
fn floats_travel_as_integers_and_fall_back() {
    let fabric = Fabric::new(1024, 1);
    let job = fabric.add_job(1);
    let inputs = floats(20_000);
    for (id, scaling) in [(0, Scaling::Fixed(Scale::PAPER)), (1, Scaling::Shared)] {
        let results = job.reduce(id, SUM, scaling, inputs.clone());
        assert!(results.iter().all(|r| *r == results[0]), "the same bits at every rank");
        let element =
            |bytes: &[u8], i: usize| f32::from_le_bytes(*bytes[i * 4..].first_chunk().unwrap());
        assert_eq!(element(&results[0], 900), f32::INFINITY);
        for i in (0..20_000).filter(|&i| i != 900) {
            let real: f64 = inputs.iter().map(|input| f64::from(element(input, i))).sum();
            let error = (f64::from(element(&results[0], i)) - real).abs();
            // The fragment with 10⁴ < 2¹⁴ shares a scale of 2¹³ among 5 < 2³ ranks: half a step each.
            let coarse = scaling == Scaling::Shared && (352..704).contains(&i);
            let bound = if coarse { 2.6 / 8192.0 } else { 1e-5 + 1e-6 * real.abs() };
            assert!(error <= bound, "{scaling:?} element {i}: {error}");
        }
    }
    let server = fabric.servers[0].snapshot().unwrap();
    let (_, _, counters) = server.server[0];
    assert_eq!(
        counters.float_requests, 2,
        "two fragments with the paper's scale, none with a shared one"
    );
}

#[test]
fn leases_of_the_other_role_are_refused() {
    let fabric = Fabric::new(8, 1);
    fabric.add_job(1);
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
    assert!(matches!(refused, Err(NetError::SlotLease(LeaseError::DuplicateNeighbour(_)))));
}

/// An attacker floods every process with packets of the job, forged in each way that needs no key:
/// the sums stay exact.
#[test]
fn a_flood_of_forged_packets_changes_no_sum() {
    let fabric = Fabric::new(64, 1);
    let job = fabric.add_job(1);
    let victims: Vec<SocketAddr> = fabric
        .racks
        .iter()
        .chain([&fabric.middle])
        .chain(&fabric.servers)
        .map(SlotDriver::local_addr)
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
            let results = job.reduce(id, INTEGERS, Scaling::Shared, inputs.clone());
            check_integers(&results, &inputs);
        }
        let met = |s: &SlotSnapshot| s.drops.iter().any(|(reason, _)| *reason == "unknown_sender");
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
        tag: 0,
    };
    let mut packet = [0; HEADER_LEN];
    header.encode(&mut packet);
    [&packet[..], &[0xaa; 16]].concat()
}
