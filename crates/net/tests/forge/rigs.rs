//! A job of three honest workers under a key, and one of another tenant with a hostile member, at real switches, for
//! each protocol whose packets carry tags.

use std::net::{SocketAddr, UdpSocket};

use crossbeam_channel::Receiver;
use netsum_net::Buffer;
use netsum_net::switch::{Role, SwitchDriver};
use netsum_net::worker::{Event, TreeOperation, WorkerDriver, WorkerPlan};
use netsum_proto::atp::{self, Claim, Members, Neighbour, Policy, Rack, Scaling, WorkerPosition};
use netsum_proto::operations::{Fragments, Submission};
use netsum_proto::{CongestionRule, DropReason, Lease, Secrets, WorkerConfig, panama, switchml};
use netsum_wire::seal::{HopKeys, SEALED_HEADER_LEN, SealKey};
use netsum_wire::tag::Mac;
use netsum_wire::{
    Arithmetic, Dtype, Epoch, Format, JobId, Parties, Protocol, Rank, ReduceOp, Sequence,
    SlotIndex, TreeId, Vid,
};

use crate::PATIENCE;
use crate::datagram::Spoofer;
use crate::kinds::To;
use crate::network::{ATTACKER, MEMBER, Network, OTHERS, SERVER, SWITCH, WORKERS_FROM};

pub const JOB: u32 = 1;
pub const OTHER_JOB: u32 = 2;
pub const EPOCH: u16 = 5;
/// First byte of the tag of a sealed packet.
pub const TAG_AT: usize = SEALED_HEADER_LEN - 8;
const ROW: u16 = 1408;
const WINDOW: u16 = 64;
const SLOTS: u32 = 256;
pub const WORKERS: usize = 3;
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
    /// Send in a worker's name to the switch, and in the switch's name to workers.
    spoofers: Option<[Spoofer; 2]>,
    up: Vec<(SocketAddr, SocketAddr)>,
    down: Vec<(SocketAddr, SocketAddr)>,
    _network: Network,
}

impl Rig {
    /// A switch to which all workers are connected, and a server behind it.
    pub fn atp(network: Network, mac: Mac) -> Rig {
        let server = Role::Server { row_bytes: ROW, rows: 64 * usize::from(WINDOW) };
        let wire = Wire { protocol: Protocol::Atp, mac };
        Rig::of("atp", network, wire, vec![switch(), server], |job, ranks, switches| {
            let key = (JobId(job), Epoch(EPOCH), TreeId(0));
            (atp_leases(key, ranks, switches[0], switches[1]), move |rank| atp_worker(key, rank))
        })
    }

    /// One switch with static pools.
    pub fn switchml(network: Network, mac: Mac) -> Rig {
        Rig::of(
            "switchml",
            network,
            Wire { protocol: Protocol::Switchml, mac },
            vec![switch()],
            |job, ranks, _| {
                let (job, epoch) = (JobId(job), Epoch(EPOCH));
                let (workers, slots) = (ranks.to_vec(), WINDOW);
                let lease = switchml::Lease {
                    tree: TreeId(0),
                    job,
                    epoch,
                    workers,
                    slots,
                    fragment_bytes: ROW,
                };
                let config = move |rank: usize| switchml::WorkerConfig {
                    copies: false,
                    job,
                    epoch,
                    worker: rank as u8,
                    workers: WORKERS as u8,
                    slots,
                    fragment_bytes: ROW,
                    timeout_ns: 10_000_000,
                };
                (vec![(0, lease.into())], move |rank| config(rank).into())
            },
        )
    }

    /// One switch, the root of a tree.
    pub fn panama(mac: Mac) -> Rig {
        Rig::of(
            "panama",
            Network::Loopback,
            Wire { protocol: Protocol::Panama, mac },
            vec![switch()],
            |job, ranks, _| {
                let (job, epoch, tree) = (JobId(job), Epoch(EPOCH), TreeId(0));
                let child = |(i, &port): (usize, &SocketAddr)| panama::Child {
                    port,
                    ranks: 1 << i,
                    branch: i as u8,
                };
                let lease = panama::Lease {
                    job,
                    epoch,
                    tree,
                    children: ranks.iter().enumerate().map(child).collect(),
                    parent: None,
                    slots: WINDOW,
                    fragment_bytes: ROW,
                    release_permille: 1000,
                };
                let config = move |rank: usize| panama::WorkerConfig {
                    job,
                    epoch,
                    rank: Rank(rank as u32),
                    ranks: WORKERS as u32,
                    trees: 1,
                    copies: false,
                    window_max: WINDOW,
                    fragment_bytes: ROW,
                    congestion: CongestionRule::PerBranch,
                    partial: false,
                };
                (vec![(0, lease.into())], move |rank| config(rank).into())
            },
        )
    }

    /// `roles`: of the switch that all workers are connected to, and of what is behind it. `job`: the leases of a job's
    /// ranks with the number of their switch, and the configuration of each worker.
    fn of<C: Fn(usize) -> WorkerConfig>(
        name: &'static str,
        network: Network,
        wire: Wire,
        roles: Vec<Role>,
        job: impl Fn(u32, &[SocketAddr], &[SocketAddr]) -> (Vec<(usize, Lease<SocketAddr>)>, C),
    ) -> Rig {
        let [outsider, member] = [ATTACKER, MEMBER].map(|node| {
            let at = (network.ip(node), 0);
            network.run(node, move || UdpSocket::bind(at).unwrap())
        });
        let spoofers = [ATTACKER, SWITCH].map(|node| network.run(node, Spoofer::new));
        let workers = network.workers(WORKERS_FROM..WORKERS_FROM + WORKERS);
        let others = network.workers(OTHERS..OTHERS + WORKERS - 1);
        let start = |(node, role)| network.switch(node, role);
        let switches: Vec<_> = [SWITCH, SERVER].into_iter().zip(roles).map(start).collect();
        let switches_at: Vec<_> = switches.iter().map(SwitchDriver::local_addr).collect();
        let entrance = switches_at[0];
        let address = |(worker, _): &(WorkerDriver, _)| worker.local_addr();
        let at: Vec<SocketAddr> = workers.iter().map(address).collect();
        let mut others_at: Vec<SocketAddr> = others.iter().map(address).collect();
        others_at.push(member.local_addr().unwrap());
        for (id, key, ranks, drivers) in
            [(JOB, Key::Own, &at, &workers), (OTHER_JOB, Key::Other, &others_at, &others)]
        {
            let (leases, config) = job(id, ranks, &switches_at);
            for (switch, lease) in leases {
                // The server has one neighbour, the switch.
                let hops =
                    if switch == 0 { 0..lease.neighbours().len() } else { WORKERS..WORKERS + 1 };
                switches[switch].install_with(lease, Some(key.secrets(wire.mac, hops))).unwrap();
            }
            for (rank, (worker, _)) in drivers.iter().enumerate() {
                let plan = WorkerPlan { config: config(rank), switches: vec![entrance] };
                worker.begin_with(plan, Some(key.secrets(wire.mac, rank..rank + 1)));
            }
        }
        let held: Vec<_> =
            others.iter().map(|(worker, _)| submit(worker, 1, vec![1; 4 * NUMEL])).collect();
        drop(held);
        let up = vec![(at[0], entrance)];
        let down = at.iter().map(|&worker| (entrance, worker)).collect();
        let [to_switch, to_workers] = spoofers;
        let spoofers = to_switch.zip(to_workers).map(|(up, down)| [up, down]);
        Rig {
            name,
            wire,
            switches,
            workers,
            _others: others,
            outsider,
            member,
            spoofers,
            up,
            down,
            _network: network,
        }
    }

    /// Waits until the kernel serves both jobs. False, with a line, where there is no switch in the kernel.
    #[cfg(feature = "xdp")]
    pub fn await_kernel(&self) -> bool {
        let switch = &self.switches[0];
        if !switch.in_kernel() {
            println!("skipped: no in-kernel switch here");
            return false;
        }
        let end = std::time::Instant::now() + PATIENCE;
        let served = || {
            let snapshot = switch.snapshot().unwrap();
            let slots = snapshot.slots.iter().filter(|slots| slots.in_kernel);
            slots.count() + snapshot.pools.iter().filter(|pool| pool.in_kernel).count()
        };
        while served() < 2 {
            assert!(std::time::Instant::now() < end, "the kernel serves {} jobs of 2", served());
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        true
    }

    /// Whether raw sockets are allowed here.
    pub fn can_spoof(&self) -> bool {
        self.spoofers.is_some()
    }

    pub fn spoofer(&self, to: To) -> Option<&Spoofer> {
        self.spoofers.as_ref().map(|[up, down]| if to == To::Switch { up } else { down })
    }

    /// Pairs of a neighbour and the target.
    pub fn targets(&self, to: To) -> &[(SocketAddr, SocketAddr)] {
        match to {
            To::Switch => &self.up,
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
            loop {
                match events.recv_timeout(PATIENCE) {
                    Ok(Event::Done { id: done, missing: 0 }) => break assert_eq!(done, id),
                    // A switch had no processor for a while.
                    Ok(Event::Silent { .. }) => {}
                    other => panic!("{}: {other:?} in sum {id}", self.name),
                }
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
    let submission = Submission {
        id,
        format,
        numel: NUMEL as u64,
        fingerprint: 7,
        fragments,
        pattern: Default::default(),
    };
    worker.submit(TreeOperation { submission, buffer: buffer.lend_all().into() });
    buffer
}

fn switch() -> Role {
    let (policy, straggler_ns) = (Policy::FirstCome, 20_000_000);
    Role::Switch(atp::SwitchConfig { slots: SLOTS, row_bytes: ROW, policy, straggler_ns })
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
        rank: Rank(rank as u32),
        ranks: WORKERS as u32,
        copies: false,
        places: vec![place],
        window_max: WINDOW,
        fragment_bytes: ROW,
        slots: SLOTS,
        congestion: CongestionRule::Aimd { packet_bytes: 1496 },
        scaling: Scaling::Shared,
    };
    config.into()
}

/// Whose secrets a packet is sealed with.
#[derive(Clone, Copy)]
pub enum Key {
    /// The attacked job's. The attacker has recorded such packets.
    Own,
    /// Those of the other job, which its hostile member has.
    Other,
}

/// The format of packets, and what protects them.
#[derive(Clone, Copy)]
pub struct Wire {
    protocol: Protocol,
    mac: Mac,
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
    /// Number of a sealed packet under its key.
    pub serial: u64,
}

impl Key {
    /// Of the hop between the switch and a child; above the ranks, that between the switch and the server.
    fn of_hop(self, mac: Mac, epoch: u16, child: usize) -> HopKeys {
        let job = match self {
            Key::Own => b"the job's secret",
            Key::Other => b"another's secret",
        };
        let secret = |i: usize| (i + 64 * child + 7 * usize::from(epoch)) as u8 ^ job[i % 16];
        HopKeys::new(mac, std::array::from_fn(secret))
    }

    /// What a switch has of all neighbours, or a worker of its own hop.
    fn secrets(self, mac: Mac, hops: std::ops::Range<usize>) -> Secrets {
        hops.map(|child| self.of_hop(mac, EPOCH, child)).collect()
    }
}

impl Wire {
    /// Bytes of the header of an unsealed packet.
    fn plain_len(self) -> usize {
        match self.protocol {
            Protocol::Atp => netsum_wire::atp::HEADER_LEN,
            Protocol::Switchml => netsum_wire::switchml::HEADER_LEN,
            Protocol::Panama => netsum_wire::panama::HEADER_LEN,
        }
    }

    /// A packet, with the tag of that key, or with none.
    pub fn packet(self, shape: &Shape, key: Option<Key>) -> Vec<u8> {
        let kind = match (self.protocol, shape.result) {
            (_, false) => 0,
            (Protocol::Panama, true) => 2,
            (Protocol::Atp | Protocol::Switchml, true) => 1,
        };
        let mut head = self.head(shape, kind, ELEMENTS);
        let payload = vec![shape.value; 4 * usize::from(ELEMENTS)];
        if let Some(key) = key {
            head.resize(SEALED_HEADER_LEN, 0);
            let HopKeys { up, down } = key.of_hop(self.mac, shape.epoch, shape.child.into());
            let key = SealKey::new(if shape.result { &down } else { &up });
            if key.seal_last(shape.serial, &mut head, 0, &payload) {
                return head;
            }
        }
        [head, payload].concat()
    }

    pub fn tagged(self, shape: &Shape, tag: u64) -> Vec<u8> {
        let mut packet = self.packet(shape, Some(Key::Own));
        packet[TAG_AT..][..8].copy_from_slice(&tag.to_be_bytes());
        packet
    }

    pub fn with_tag_of(self, shape: &Shape, other: &[u8]) -> Vec<u8> {
        let tag = other[TAG_AT..][..8].try_into().expect("eight bytes");
        self.tagged(shape, u64::from_be_bytes(tag))
    }

    pub fn fin(self) -> Vec<u8> {
        let kind = match self.protocol {
            Protocol::Atp => 5,
            Protocol::Switchml => 3,
            Protocol::Panama => 6,
        };
        self.control(kind, 0)
    }

    pub fn mismatch(self, number: u32) -> Vec<u8> {
        let kind = match self.protocol {
            Protocol::Atp | Protocol::Panama => 4,
            Protocol::Switchml => 2,
        };
        self.control(kind, number)
    }

    /// The acknowledgement that a switch has all below a number; others, which have none, get an empty result.
    pub fn acknowledgement(self, number: u32) -> Vec<u8> {
        self.control(if matches!(self.protocol, Protocol::Panama) { 5 } else { 1 }, number)
    }

    /// The notice that others are late; `switchml`, which has none, gets an empty result.
    pub fn waiting(self, number: u32) -> Vec<u8> {
        let kind = match self.protocol {
            Protocol::Atp => 2,
            Protocol::Switchml => 1,
            Protocol::Panama => 3,
        };
        self.control(kind, number)
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
            serial: 0,
        };
        self.head(&shape, kind, 0)
    }

    fn head(self, shape: &Shape, kind: u8, n_elems: u16) -> Vec<u8> {
        let mut head = vec![0; self.plain_len()];
        match self.protocol {
            Protocol::Atp => atp_header(shape, n_elems).encode(at(&mut head)),
            Protocol::Switchml => switchml_header(shape, kind, n_elems).encode(at(&mut head)),
            Protocol::Panama => panama_header(shape, n_elems).encode(at(&mut head)),
        }
        head[1] = head[1] & 0xf0 | kind;
        if matches!(self.protocol, Protocol::Switchml) {
            // Pools have no trees; the byte of the child takes the number's place.
            head[3] ^= shape.tree << 4;
        }
        head
    }
}

fn at<const N: usize>(head: &mut [u8]) -> &mut [u8; N] {
    head.first_chunk_mut().expect("a header's length")
}

fn atp_header(shape: &Shape, n_elems: u16) -> netsum_wire::atp::Header {
    netsum_wire::atp::Header {
        kind: netsum_wire::atp::Kind::Contribution,
        level: netsum_wire::atp::Level::Server,
        flags: netsum_wire::atp::Flags::default(),
        arithmetic: Arithmetic::Wrapping,
        tree: TreeId(shape.tree),
        job: JobId(shape.job),
        sequence: Sequence(shape.number),
        chunk: shape.chunk,
        epoch: Epoch(shape.epoch),
        n_elems,
        rack_fan_in: 1,
        server_fan_in: WORKERS as u8,
        slot: SlotIndex(shape.number),
        workers: 1,
        racks: 1 << shape.child,
        next_slot: SlotIndex(0),
        others: 0,
        parties: Parties::All,
    }
}

fn switchml_header(shape: &Shape, kind: u8, n_elems: u16) -> netsum_wire::switchml::Header {
    netsum_wire::switchml::Header {
        tree: TreeId(0),
        parties: Parties::All,
        kind: netsum_wire::switchml::Kind::Contribution,
        resent: false,
        arithmetic: Arithmetic::Wrapping,
        worker: if kind == 1 { netsum_wire::switchml::NOBODY } else { shape.child },
        job: JobId(shape.job),
        round: shape.number / u32::from(WINDOW),
        chunk: shape.chunk,
        epoch: Epoch(shape.epoch),
        slot: (shape.number % u32::from(WINDOW)) as u16,
        n_elems,
        next_exponent: 0,
    }
}

fn panama_header(shape: &Shape, n_elems: u16) -> netsum_wire::panama::Header {
    netsum_wire::panama::Header {
        kind: netsum_wire::panama::Kind::Contribution,
        resent: false,
        congested_down: false,
        tree: TreeId(shape.tree),
        format: Format { dtype: Dtype::I32, op: ReduceOp::Sum },
        job: JobId(shape.job),
        vid: Vid(shape.number),
        chunk: shape.chunk,
        epoch: Epoch(shape.epoch),
        window_cap: netsum_wire::panama::NO_CAP,
        n_elems,
        marks: 0,
        missing: 0,
        parties: netsum_wire::Parties::All,
        empty: false,
        asks: false,
        others: 0,
    }
}

const ELEMENTS: u16 = 8;
