//! Load generation by the program itself, for measurements: hw/xdp/bench.bpf.c.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::time::{Duration, Instant};

use netsum_proto::atp::{self, Claim, Members, Policy, SwitchConfig};
use netsum_proto::row_machines::Standing;
use netsum_proto::{Lease, switchml};
use netsum_wire::atp::{Flags, HEADER_LEN, Header, Kind, Level};
use netsum_wire::seal::{self, HopKeys};
use netsum_wire::switchml as switchml_wire;
use netsum_wire::tag::Mac;
use netsum_wire::{Arithmetic, Epoch, JobId, Parties, Sequence, SlotIndex, TreeId};

use super::layout::ROW_BYTES;
use super::plane::{Plane, PlaneOptions, ifindex, put};
use super::{Hop, Served, ServedCounters, WhyNot};

/// One job's fragments, one after the other: each worker's, and then, of `atp`, the result.
pub struct Stream {
    plane: Plane,
    packet: Vec<u8>,
    is_pool: bool,
}

/// The program that adds.
#[derive(Clone, Copy, Debug)]
pub enum Adder {
    /// The in-kernel switch.
    Switch,
    /// An adder without leases, senders, epochs or locks, which sends each sum back on one port.
    Bare {
        /// Whether sums saturate.
        saturating: bool,
    },
}

impl Adder {
    fn program(self) -> &'static str {
        match self {
            Adder::Switch => "netsum_switch",
            Adder::Bare { saturating: false } => "bare_wrapping",
            Adder::Bare { saturating: true } => "bare_saturating",
        }
    }
}

/// Workers of the job.
pub const WORKERS: u32 = 4;
const OWN: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 9, 9, 9), 7701);
const FIRST: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 0);
const PORT: u16 = 7000;
const JOB: JobId = JobId(1);
/// Slots of a pool, as hw/xdp/bench.bpf.c says.
const POOL_SLOTS: u16 = 512;

static PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/bench.o"));

impl Stream {
    /// Fragments of `elements`; values are small enough that nothing saturates. `sealed`: in sealed packets.
    pub fn new(arithmetic: Arithmetic, elements: u16, sealed: bool) -> Result<Stream, WhyNot> {
        // One interface for all: results are then forwarded without copies.
        Stream::with_ports(arithmetic, elements, sealed, &[1; WORKERS as usize + 1])
    }

    /// The same in a pool of `switchml`. `ports`: an interface for each worker.
    pub fn in_pool(
        arithmetic: Arithmetic,
        elements: u16,
        sealed: bool,
        ports: &[u32],
    ) -> Result<Stream, WhyNot> {
        let (job, epoch, tree, fragment_bytes) = (JOB, Epoch(1), TreeId(0), ROW_BYTES);
        let (workers, slots) = ((0..WORKERS).map(neighbour).collect(), POOL_SLOTS);
        let lease = switchml::Lease { job, epoch, tree, workers, slots, fragment_bytes };
        let header = switchml_wire::Header {
            kind: switchml_wire::Kind::Contribution,
            resent: false,
            arithmetic,
            worker: 0,
            job,
            round: 0,
            chunk: 7,
            epoch,
            slot: 0,
            n_elems: elements,
            next_exponent: 0,
            tree,
            parties: Parties::All,
        };
        let mut packet = vec![0; switchml_wire::HEADER_LEN];
        header.encode(packet.first_chunk_mut().expect("it has that length"));
        packet.extend(values(elements));
        let standing = Standing::Pool { round: 0 };
        Stream::with(arithmetic, elements, sealed, (&lease.into(), standing), ports, packet)
    }

    /// Fragments over wires between devices of the calling thread's namespace: those of the parent and of each worker,
    /// at the switch and at the far end.
    pub fn on_wires(
        arithmetic: Arithmetic,
        elements: u16,
        wires: &[(String, String)],
    ) -> Result<Stream, WhyNot> {
        let ports = wires.iter().map(|(near, _)| ifindex(near)).collect::<Result<Vec<_>, _>>()?;
        let mut stream = Stream::with_ports(arithmetic, elements, false, &ports)?;
        let feeders = stream.plane.map("feeders")?;
        // The parent is the first port, and sends last.
        let order = (1..wires.len()).chain([0]);
        for (feeder, (_, far)) in (0u32..).zip(order.map(|wire| &wires[wire])) {
            put(&feeders, &feeder.to_ne_bytes(), &ifindex(far)?.to_ne_bytes())?;
            stream.plane.attach_program("sink", far)?;
        }
        Ok(stream)
    }

    /// Attaches the switch, or the bare adder, to the near end of the wires.
    pub fn attach(&mut self, what: Adder, wires: &[(String, String)]) -> Result<(), WhyNot> {
        let program = what.program();
        wires.iter().try_for_each(|(near, _)| self.plane.attach_program(program, near))
    }

    /// Sends contributions over the wires, and for the switch their results; returns the time until all have arrived.
    /// Pin the thread: wires are served by the processor that sends.
    pub fn send(&self, to: Adder, contributions: u32) -> Result<Duration, WhyNot> {
        let start = Instant::now();
        match to {
            Adder::Switch => {
                let packets = contributions / WORKERS * (WORKERS + 1);
                self.plane.send_live("feed", &self.packet, packets)?;
            }
            Adder::Bare { .. } => {
                self.plane.send_live("feed_bare", &self.packet, contributions)?;
            }
        }
        Ok(start.elapsed())
    }

    fn with_ports(
        arithmetic: Arithmetic,
        elements: u16,
        sealed: bool,
        ports: &[u32],
    ) -> Result<Stream, WhyNot> {
        let lease = Lease::Slots(atp::Lease {
            job: JOB,
            epoch: Epoch(1),
            tree: TreeId(0),
            members: Members::Rack {
                workers: (0..WORKERS).map(neighbour).collect(),
                rack: 0,
                racks: 1,
            },
            parent: neighbour(WORKERS),
            window: 16384,
            fragment_bytes: ROW_BYTES,
            claim: Claim::default(),
        });
        // The parent comes last in a lease.
        let ports = [&ports[1..], &ports[..1]].concat();
        let standing = Standing::Slots { first: 0, passed: 0 };
        let packet = packet(arithmetic, elements);
        Stream::with(arithmetic, elements, sealed, (&lease, standing), &ports, packet)
    }

    /// `ports`: of the lease's neighbours.
    fn with(
        arithmetic: Arithmetic,
        elements: u16,
        sealed: bool,
        (lease, standing): (&Lease<SocketAddr>, Standing),
        ports: &[u32],
        packet: Vec<u8>,
    ) -> Result<Stream, WhyNot> {
        let policy = Policy::FirstCome;
        let switch =
            SwitchConfig { slots: 1024, row_bytes: ROW_BYTES, policy, straggler_ns: u64::MAX / 2 };
        let mut load = FIRST.octets().to_vec();
        load.extend(PORT.to_be_bytes());
        load.extend([WORKERS as u8, arithmetic as u8]);
        load.extend(elements.to_ne_bytes());
        load.extend(u16::from(sealed).to_ne_bytes());
        let options = PlaneOptions { own: OWN, switch };
        let mut plane = Plane::load_object(PROGRAM, options, load)?;
        let hop = |&ifindex: &u32| Hop { ifindex, mac: [2; 6], own_mac: [4; 6] };
        let hops: Vec<Hop> = ports.iter().map(hop).collect();
        let keys: Vec<HopKeys> =
            (0..hops.len()).map(|hop| HopKeys::new(Mac::Nh, [hop as u8; 32])).collect();
        plane.install(lease, sealed.then_some(&keys), standing, &hops)?;
        let packet = if sealed { seal::with_room(&packet) } else { packet };
        Ok(Stream { plane, packet, is_pool: matches!(lease, Lease::Pool(_)) })
    }

    /// Mean time of a contribution, including the reception of results. The program makes the frames itself, which
    /// takes `idle`.
    pub fn time(&self, contributions: u32) -> Result<Duration, WhyNot> {
        self.mean(if self.is_pool { "stream_in_pool" } else { "stream" }, contributions)
    }

    /// Time to make the frames of a contribution, with their tags.
    pub fn idle(&self, contributions: u32) -> Result<Duration, WhyNot> {
        self.mean(if self.is_pool { "idle_in_pool" } else { "idle" }, contributions)
    }

    fn mean(&self, program: &str, contributions: u32) -> Result<Duration, WhyNot> {
        let per_fragment = if self.is_pool { WORKERS } else { WORKERS + 1 };
        let packets = contributions / WORKERS * per_fragment;
        let mean = self.plane.time(program, &self.packet, packets)?;
        Ok(mean * per_fragment / WORKERS)
    }

    /// The same for the bare adder on the same frames.
    pub fn bare_time(&self, saturating: bool, contributions: u32) -> Result<Duration, WhyNot> {
        self.plane.time(Adder::Bare { saturating }.program(), &self.packet, contributions)
    }

    /// Number of fragments to which all workers have contributed so far.
    pub fn completed(&self) -> Result<u64, WhyNot> {
        let completed = |lease: Served| match lease.counters {
            ServedCounters::Slots(counters) => counters.completed,
            ServedCounters::Pool(counters) => counters.completed,
        };
        Ok(self.plane.leases()?.into_iter().map(completed).sum())
    }
}

fn packet(arithmetic: Arithmetic, elements: u16) -> Vec<u8> {
    let header = Header {
        kind: Kind::Contribution,
        level: Level::Rack,
        flags: Flags::default(),
        arithmetic,
        tree: TreeId(0),
        job: JOB,
        sequence: Sequence(0),
        chunk: 7,
        epoch: Epoch(1),
        n_elems: elements,
        rack_fan_in: WORKERS as u8,
        server_fan_in: 1,
        slot: SlotIndex(0),
        workers: 1,
        racks: 1,
        next_slot: SlotIndex(0),
        others: 0,
        parties: Parties::All,
    };
    let mut packet = vec![0; HEADER_LEN];
    header.encode(packet.first_chunk_mut().expect("it has that length"));
    packet.extend(values(elements));
    packet
}

fn values(elements: u16) -> impl Iterator<Item = u8> {
    (0..elements).flat_map(|i| (i32::from(i) - 99).to_le_bytes())
}

fn neighbour(number: u32) -> SocketAddr {
    (Ipv4Addr::from(u32::from(FIRST) + number), PORT).into()
}
