//! A job of three honest workers under a key, and one of another tenant with a hostile member, at real switches on
//! loopback, for each protocol whose packets carry tags.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};

use crossbeam_channel::Receiver;
use netsum_net::Buffer;
use netsum_net::switch::{Role, SwitchDriver, SwitchOptions};
use netsum_net::udp::SocketOptions;
use netsum_net::worker::{Event, TreeOperation, WorkerDriver, WorkerPlan};
use netsum_proto::atp::{self, Claim, Members, Neighbour, Policy, Rack, Scaling, WorkerPosition};
use netsum_proto::operations::{Fragments, Submission};
use netsum_proto::{CongestionRule, DropReason, Lease, WorkerConfig, switchml};
use netsum_wire::tag::{JobKey, Mac};
use netsum_wire::{Arithmetic, Dtype, Epoch, Format, JobId, ReduceOp, Sequence, SlotIndex, TreeId};

use crate::PATIENCE;
use crate::kinds::To;

pub const JOB: u32 = 1;
pub const OTHER_JOB: u32 = 2;
pub const EPOCH: u16 = 5;
pub const KEY: JobKey = JobKey::new(Mac::SipHash, *b"the job's secret");
pub const OTHER_KEY: JobKey = JobKey::new(Mac::SipHash, *b"another's secret");
const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const ROW: u16 = 1408;
const WINDOW: u16 = 64;
const SLOTS: u32 = 256;
const WORKERS: usize = 3;
/// Enough for several windows.
const NUMEL: usize = 60_000;

/// Switches, workers and the sockets of attackers.
pub struct Rig {
    pub name: &'static str,
    pub wire: Wire,
    switches: Vec<SwitchDriver>,
    workers: Vec<(WorkerDriver, Receiver<Event>)>,
    /// Honest ranks of the other job.
    _others: Vec<(WorkerDriver, Receiver<Event>)>,
    pub outsider: UdpSocket,
    pub member: UdpSocket,
    up: Vec<(SocketAddr, SocketAddr)>,
    down: Vec<(SocketAddr, SocketAddr)>,
}

impl Rig {
    /// A switch to which all workers are connected, and a server behind it.
    pub fn atp() -> Rig {
        let rows = 64 * usize::from(WINDOW);
        let switches = vec![switch(), start(Role::Server { row_bytes: ROW, rows })];
        let (middle, server) = (switches[0].local_addr(), switches[1].local_addr());
        Rig::of("atp", Wire::Atp, switches, &[(middle, server)], |job, ranks| {
            let key = (JobId(job), Epoch(EPOCH), TreeId(0));
            (atp_leases(key, ranks, middle, server), move |rank| atp_worker(key, rank))
        })
    }

    /// One switch with static pools.
    pub fn switchml() -> Rig {
        Rig::of("switchml", Wire::Switchml, vec![switch()], &[], |job, ranks| {
            let (job, epoch) = (JobId(job), Epoch(EPOCH));
            let (workers, slots) = (ranks.to_vec(), WINDOW);
            let lease = switchml::Lease { job, epoch, workers, slots, fragment_bytes: ROW };
            let config = move |rank: usize| switchml::WorkerConfig {
                job,
                epoch,
                worker: rank as u8,
                workers: WORKERS as u8,
                slots,
                fragment_bytes: ROW,
                timeout_ns: 10_000_000,
            };
            (vec![(0, lease.into())], move |rank| config(rank).into())
        })
    }

    /// `between`: neighbours among the switches, by the direction of contributions. `job`: the leases of a job's ranks
    /// with the number of their switch, and the configuration of each worker.
    fn of<C: Fn(usize) -> WorkerConfig>(
        name: &'static str,
        wire: Wire,
        switches: Vec<SwitchDriver>,
        between: &[(SocketAddr, SocketAddr)],
        job: impl Fn(u32, &[SocketAddr]) -> (Vec<(usize, Lease<SocketAddr>)>, C),
    ) -> Rig {
        let [outsider, member] = [0; 2].map(|port| UdpSocket::bind((LOCALHOST, port)).unwrap());
        let workers: Vec<_> =
            (0..WORKERS).map(|_| WorkerDriver::start(LOCALHOST).unwrap()).collect();
        let others: Vec<_> =
            (0..WORKERS - 1).map(|_| WorkerDriver::start(LOCALHOST).unwrap()).collect();
        let entrance = switches[0].local_addr();
        let address = |(worker, _): &(WorkerDriver, _)| worker.local_addr();
        let at: Vec<SocketAddr> = workers.iter().map(address).collect();
        let mut others_at: Vec<SocketAddr> = others.iter().map(address).collect();
        others_at.push(member.local_addr().unwrap());
        for (id, key, ranks, drivers) in
            [(JOB, KEY, &at, &workers), (OTHER_JOB, OTHER_KEY, &others_at, &others)]
        {
            let (leases, config) = job(id, ranks);
            for (switch, lease) in leases {
                switches[switch].install_with(lease, Some(key)).unwrap();
            }
            for (rank, (worker, _)) in drivers.iter().enumerate() {
                let plan = WorkerPlan { config: config(rank), switches: vec![entrance] };
                worker.begin_with(plan, Some(key));
            }
        }
        let held: Vec<_> =
            others.iter().map(|(worker, _)| submit(worker, 1, vec![1; 4 * NUMEL])).collect();
        drop(held);
        let up = [&[(at[0], entrance)], between].concat();
        let down = at.iter().map(|&worker| (entrance, worker)).collect();
        Rig { name, wire, switches, workers, _others: others, outsider, member, up, down }
    }

    /// Pairs of a neighbour and the target.
    pub fn targets(&self, to: To) -> &[(SocketAddr, SocketAddr)] {
        match to {
            To::Switch => &self.up[..1],
            To::Worker => &self.down,
        }
    }

    /// Reduces, and compares every element at every rank.
    pub fn check_a_sum(&self, id: u64) {
        let value = |rank: usize, i: usize| {
            (i as u32).wrapping_mul(2_654_435_761).wrapping_add(rank as u32 * 40_503 + id as u32)
        };
        let input = |rank| (0..NUMEL).flat_map(|i| value(rank, i).to_le_bytes()).collect();
        let drivers = self.workers.iter().enumerate();
        let buffers: Vec<Buffer> =
            drivers.map(|(rank, (worker, _))| submit(worker, id, input(rank))).collect();
        for (_, events) in &self.workers {
            match events.recv_timeout(PATIENCE) {
                Ok(Event::Done { id: done, missing: 0 }) => assert_eq!(done, id),
                other => panic!("{}: {other:?} in sum {id}", self.name),
            }
        }
        let sum = |i| (0..WORKERS).fold(0u32, |sum, rank| sum.wrapping_add(value(rank, i)));
        let expected: Vec<u8> = (0..NUMEL).flat_map(|i| sum(i).to_le_bytes()).collect();
        for buffer in &buffers {
            assert!(buffer.slice(0..buffer.len()) == expected, "{}: sum {id} differs", self.name);
        }
    }

    /// Packets dropped for these reasons by all switches and workers.
    pub fn drops(&self, reasons: &[&str]) -> u64 {
        self.all_drops()
            .into_iter()
            .filter(|(reason, _)| reasons.contains(reason))
            .map(|(_, n)| n)
            .sum()
    }

    pub fn all_drops(&self) -> Vec<(&'static str, u64)> {
        let mut all = Vec::new();
        self.switches.iter().for_each(|switch| all.extend(switch.snapshot().unwrap().drops));
        for (worker, _) in &self.workers {
            let drops = worker.stats().drops;
            let of = |reason: &DropReason| (reason.label(), drops.get(*reason));
            all.extend(DropReason::ALL.iter().map(of).filter(|(_, n)| *n > 0));
        }
        all
    }
}

fn submit(worker: &WorkerDriver, id: u64, bytes: Vec<u8>) -> Buffer {
    let mut buffer = Buffer::from_vec(bytes);
    let format = Format { dtype: Dtype::I32, op: ReduceOp::Sum };
    let fragments = Fragments::All;
    let submission = Submission { id, format, numel: NUMEL as u64, fingerprint: 7, fragments };
    worker.submit(TreeOperation { submission, buffer: buffer.lend_all() });
    buffer
}

fn start(role: Role) -> SwitchDriver {
    let bind = SocketAddr::new(LOCALHOST, 0);
    let socket = SocketOptions::default();
    SwitchDriver::start(&SwitchOptions { bind, memory: 1 << 20, role, socket }).unwrap()
}

fn switch() -> SwitchDriver {
    let policy = Policy::FirstCome;
    start(Role::Switch(atp::SwitchConfig {
        slots: SLOTS,
        row_bytes: ROW,
        policy,
        straggler_ns: 20_000_000,
    }))
}

fn atp_leases(
    (job, epoch, tree): (JobId, Epoch, TreeId),
    ranks: &[SocketAddr],
    middle: SocketAddr,
    server: SocketAddr,
) -> Vec<(usize, Lease<SocketAddr>)> {
    let (window, fragment_bytes) = (WINDOW, ROW);
    let racks = ranks.iter().map(|&port| Rack { port, workers: 1 }).collect();
    let (members, parent, claim) = (Members::Server { racks }, server, Claim::default());
    let of_switch = atp::Lease { job, epoch, tree, members, parent, window, fragment_bytes, claim };
    let neighbours = vec![Neighbour { port: middle, racks: 0b111, workers: u32::MAX }];
    let racks = (0..WORKERS as u32).map(|rank| vec![rank]).collect();
    let of_server = atp::ServerLease {
        job,
        epoch,
        tree,
        racks,
        neighbours,
        window,
        fragment_bytes,
        slots: SLOTS,
    };
    vec![(0, of_switch.into()), (1, of_server.into())]
}

fn atp_worker((job, epoch, _): (JobId, Epoch, TreeId), rank: usize) -> WorkerConfig {
    let place = WorkerPosition {
        level: netsum_wire::atp::Level::Server,
        worker: 0,
        rack_fan_in: 1,
        rack: rank as u8,
        server_fan_in: WORKERS as u8,
    };
    let config = atp::WorkerConfig {
        job,
        epoch,
        ranks: WORKERS as u32,
        places: vec![place],
        window_max: WINDOW,
        fragment_bytes: ROW,
        slots: SLOTS,
        congestion: CongestionRule::Aimd { packet_bytes: 1496 },
        scaling: Scaling::Shared,
    };
    config.into()
}

/// The format of packets.
#[derive(Clone, Copy)]
pub enum Wire {
    Atp,
    Switchml,
}

/// What a forged packet says.
pub struct Shape {
    pub job: u32,
    pub epoch: u16,
    pub tree: u8,
    pub child: u8,
    pub number: u32,
    pub chunk: u32,
    /// Whether it is a result, not a contribution.
    pub result: bool,
    /// Of every byte of its payload.
    pub value: u8,
}

impl Wire {
    pub fn header_len(self) -> usize {
        match self {
            Wire::Atp => netsum_wire::atp::HEADER_LEN,
            Wire::Switchml => netsum_wire::switchml::HEADER_LEN,
        }
    }

    /// Place of the tag in a header.
    pub fn tag_at(self) -> usize {
        match self {
            Wire::Atp => 38,
            Wire::Switchml => 24,
        }
    }

    /// A packet, with the tag of that key, or 0.
    pub fn packet(self, shape: &Shape, key: Option<&JobKey>) -> Vec<u8> {
        let kind = u8::from(shape.result);
        let mut packet = self.head(shape, kind, ELEMENTS);
        packet.resize(packet.len() + 4 * usize::from(ELEMENTS), shape.value);
        if let Some(key) = key {
            let (head, payload) = packet.split_at_mut(self.header_len());
            key.seal(head, payload);
        }
        packet
    }

    pub fn tagged(self, shape: &Shape, tag: u64) -> Vec<u8> {
        let mut packet = self.packet(shape, None);
        packet[self.tag_at()..][..8].copy_from_slice(&tag.to_be_bytes());
        packet
    }

    pub fn with_tag_of(self, shape: &Shape, other: &[u8]) -> Vec<u8> {
        let tag = other[self.tag_at()..][..8].try_into().expect("eight bytes");
        self.tagged(shape, u64::from_be_bytes(tag))
    }

    pub fn fin(self) -> Vec<u8> {
        self.control(
            match self {
                Wire::Atp => 5,
                Wire::Switchml => 3,
            },
            0,
        )
    }

    pub fn mismatch(self, number: u32) -> Vec<u8> {
        self.control(
            match self {
                Wire::Atp => 4,
                Wire::Switchml => 2,
            },
            number,
        )
    }

    /// The notice that others are late; `switchml`, which has none, gets an empty result.
    pub fn waiting(self, number: u32) -> Vec<u8> {
        self.control(
            match self {
                Wire::Atp => 2,
                Wire::Switchml => 1,
            },
            number,
        )
    }

    /// A packet without payload and without tag.
    fn control(self, kind: u8, number: u32) -> Vec<u8> {
        let shape = Shape {
            job: JOB,
            epoch: EPOCH,
            tree: 0,
            child: 0,
            number,
            chunk: 7,
            result: false,
            value: 0,
        };
        self.head(&shape, kind, 0)
    }

    fn head(self, shape: &Shape, kind: u8, n_elems: u16) -> Vec<u8> {
        let (job, epoch) = (JobId(shape.job), Epoch(shape.epoch));
        let mut head = vec![0; self.header_len()];
        match self {
            Wire::Atp => {
                let header = netsum_wire::atp::Header {
                    kind: netsum_wire::atp::Kind::Contribution,
                    level: netsum_wire::atp::Level::Server,
                    flags: netsum_wire::atp::Flags::default(),
                    arithmetic: Arithmetic::Wrapping,
                    tree: TreeId(shape.tree),
                    job,
                    sequence: Sequence(shape.number),
                    chunk: shape.chunk,
                    epoch,
                    n_elems,
                    rack_fan_in: 1,
                    server_fan_in: WORKERS as u8,
                    slot: SlotIndex(shape.number),
                    workers: 1,
                    racks: 1 << shape.child,
                    next_slot: SlotIndex(0),
                    tag: 0,
                };
                header.encode(head.first_chunk_mut().expect("a header's length"));
                head[1] = head[1] & 0xf0 | kind;
            }
            Wire::Switchml => {
                let header = netsum_wire::switchml::Header {
                    kind: netsum_wire::switchml::Kind::Contribution,
                    resent: false,
                    arithmetic: Arithmetic::Wrapping,
                    worker: if kind == 1 { netsum_wire::switchml::NOBODY } else { shape.child },
                    job,
                    round: shape.number / u32::from(WINDOW),
                    chunk: shape.chunk,
                    epoch,
                    slot: (shape.number % u32::from(WINDOW)) as u16,
                    n_elems,
                    next_exponent: 0,
                    tag: 0,
                };
                header.encode(head.first_chunk_mut().expect("a header's length"));
                head[1] = kind;
                // Pools have no trees; the byte of the child takes the number's place.
                head[3] ^= shape.tree << 4;
            }
        }
        head
    }
}

const ELEMENTS: u16 = 8;
