//! The program fed by itself, for measurements: hw/xdp/bench.bpf.c.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::time::Duration;

use netsum_proto::atp::{Claim, Lease, Members, Policy, SwitchConfig};
use netsum_wire::atp::{Flags, HEADER_LEN, Header, Kind, Level};
use netsum_wire::tag::JobKey;
use netsum_wire::{Arithmetic, Epoch, JobId, Sequence, SlotIndex, TreeId};

use super::layout::ROW_BYTES;
use super::plane::{Plane, PlaneOptions};
use super::{Hop, WhyNot};

/// One job's fragments, one after the other, each worker's and then the result.
pub struct Stream {
    plane: Plane,
    packet: Vec<u8>,
}

/// Workers of the job.
pub const WORKERS: u32 = 4;
const OWN: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 9, 9, 9), 7701);
const FIRST: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 0);
const PORT: u16 = 7000;
const JOB: JobId = JobId(1);

static PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/bench.o"));

impl Stream {
    /// Fragments of `elements`; values small enough that nothing saturates.
    pub fn new(
        arithmetic: Arithmetic,
        elements: u16,
        key: Option<JobKey>,
    ) -> Result<Stream, WhyNot> {
        let policy = Policy::FirstCome;
        let switch =
            SwitchConfig { slots: 1024, row_bytes: ROW_BYTES, policy, straggler_ns: u64::MAX / 2 };
        let mut load = FIRST.octets().to_vec();
        load.extend(PORT.to_be_bytes());
        load.extend([WORKERS as u8, arithmetic as u8]);
        load.extend(elements.to_ne_bytes());
        load.extend(u16::from(key.is_some()).to_ne_bytes());
        let options = PlaneOptions { own: OWN, switch };
        let mut plane = Plane::load_object(PROGRAM, options, load)?;
        let neighbour = |i: u32| SocketAddr::from((Ipv4Addr::from(u32::from(FIRST) + i), PORT));
        let workers = (0..WORKERS).map(neighbour).collect();
        let lease = Lease {
            job: JOB,
            epoch: Epoch(1),
            tree: TreeId(0),
            members: Members::Rack { workers, rack: 0, racks: 1 },
            parent: neighbour(WORKERS),
            window: 16384,
            fragment_bytes: ROW_BYTES,
            claim: Claim::default(),
        };
        // One interface for all: results are then handed on, and no copy is made of them.
        let hop = Hop { ifindex: 1, mac: [2; 6], own_mac: [4; 6] };
        plane.install(&lease, key, 0, 0, &[hop; WORKERS as usize + 1])?;
        Ok(Stream { plane, packet: packet(arithmetic, elements) })
    }

    /// Mean time of a contribution over many, what it costs to take the results included. The frames are made by the
    /// program itself; `idle` is what that takes.
    pub fn time(&self, contributions: u32) -> Result<Duration, WhyNot> {
        self.mean("stream", contributions)
    }

    /// What it takes to make the frames of a contribution, with their tags.
    pub fn idle(&self, contributions: u32) -> Result<Duration, WhyNot> {
        self.mean("idle", contributions)
    }

    fn mean(&self, program: &str, contributions: u32) -> Result<Duration, WhyNot> {
        let packets = contributions / WORKERS * (WORKERS + 1);
        let mean = self.plane.time(program, &self.packet, packets)?;
        Ok(mean * (WORKERS + 1) / WORKERS)
    }

    /// The same for the bare adder of the same frames.
    pub fn bare_time(&self, saturating: bool, contributions: u32) -> Result<Duration, WhyNot> {
        let program = if saturating { "bare_saturating" } else { "bare_wrapping" };
        self.plane.time(program, &self.packet, contributions)
    }

    /// Fragments of which all workers' contributions were added so far.
    pub fn completed(&self) -> Result<u64, WhyNot> {
        Ok(self.plane.leases()?.iter().map(|lease| lease.counters.completed).sum())
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
        tag: 0,
    };
    let mut packet = vec![0; HEADER_LEN];
    header.encode(packet.first_chunk_mut().expect("it has that length"));
    packet.extend((0..elements).flat_map(|i| (i32::from(i) - 99).to_le_bytes()));
    packet
}
