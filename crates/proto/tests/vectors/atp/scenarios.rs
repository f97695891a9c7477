//! Scenarios of the vectors. Every scenario is a plain sequence; the random ones have a fixed seed.

use netsum_proto::PortId;
use netsum_proto::atp::{Claim, Lease, Members, Policy, Rack, SwitchConfig};
use netsum_wire::atp::{Flags, Header, Kind, Level};
use netsum_wire::*;

use super::record::Record;
use super::table;
use crate::scenarios::Random;

type Scenario = (&'static str, &'static str, SwitchConfig, fn(&mut Record));

pub const STRAGGLER_NS: u64 = 1_000_000;
pub const PARENT: u32 = 99;
pub const OWN: JobId = JobId(1);
pub const OTHER: JobId = JobId(2);
pub const RESEND: Flags = Flags { resend: true, collision: false, overflow: false, ecn: false };

const ONE_SLOT: SwitchConfig =
    SwitchConfig { slots: 1, row_bytes: 8, policy: Policy::FirstCome, straggler_ns: STRAGGLER_NS };
const FRAMES: SwitchConfig = SwitchConfig { slots: 64, row_bytes: 1408, ..ONE_SLOT };
const FEW: SwitchConfig = SwitchConfig { slots: 7, row_bytes: 64, ..ONE_SLOT };
const PARTS: SwitchConfig = SwitchConfig { slots: 16, policy: Policy::Partition, ..FEW };
const PATIENT: Policy = Policy::Preempt { patience_ns: STRAGGLER_NS / 4 };
const YIELDING: SwitchConfig = SwitchConfig { policy: PATIENT, ..FEW };

pub const ALL: &[Scenario] = &[
    ("table-rack", "every event in every state, first level", ONE_SLOT, |r| {
        table::play(r, Level::Rack);
    }),
    ("table-server", "every event in every state, second level", ONE_SLOT, |r| {
        table::play(r, Level::Server);
    }),
    (
        "table-preempt",
        "every event in every state, first level, jobs of two priorities",
        SwitchConfig { policy: Policy::Preempt { patience_ns: u64::MAX }, ..ONE_SLOT },
        |r| table::play(r, Level::Rack),
    ),
    ("full-frames", "whole fragments of four workers, every arithmetic", FRAMES, full_frames),
    ("lengths", "every number of elements from 1 to 70", FRAMES, lengths),
    (
        "saturation",
        "every pair of values around the limits, and sums that return",
        FRAMES,
        saturation,
    ),
    ("children", "1 to 8 children, both levels, and 32", FRAMES, children),
    ("marks", "CE, ECN, overflow and collision flags, and their OR", FEW, marks),
    ("results", "results and requests on their way down, to all and to some", FEW, results),
    ("parties", "sums for one, and what one sends to all, with every kind", FEW, parties),
    ("window", "numbers too far ahead, too old, and across the wrap", FEW, window),
    ("epochs", "old and coming epochs, a new lease, jobs taken back", FEW, epochs),
    ("fin", "the end of an epoch", FEW, fin),
    ("malformed", "bytes that are no packet, and packets that nobody may send", FEW, malformed),
    ("limit", "a lease at its limit of slots", FEW, limit),
    ("partition", "leases with slots of their own", PARTS, partition),
    ("yield", "guarantees, priorities and patience", YIELDING, walk_with_claims),
    ("walk-rack", "random packets of three jobs, seven slots, first level", FEW, |r| {
        walk(r, Level::Rack);
    }),
    ("walk-server", "random packets of three jobs, seven slots, second level", FEW, |r| {
        walk(r, Level::Server);
    }),
];

/// Three children at ports 10 to 12.
pub fn lease(level: Level, job: JobId) -> Lease {
    let port = |i: u32| PortId(10 + i);
    let members = match level {
        Level::Rack => Members::Rack { workers: (0..3).map(port).collect(), rack: 1, racks: 2 },
        Level::Server => {
            Members::Server { racks: (0..3).map(|i| Rack { port: port(i), workers: 2 }).collect() }
        }
    };
    Lease {
        job,
        epoch: Epoch(1),
        tree: TreeId(0),
        members,
        parent: PortId(PARENT),
        window: 4,
        fragment_bytes: 8,
        claim: Claim::default(),
    }
}

/// Child `child`'s contribution: a worker's at a rack switch, a whole rack's at the server's.
pub fn contribution(level: Level, job: JobId, child: u8) -> Header {
    let (workers, racks, fan_ins) = match level {
        Level::Rack => (1 << child, 1 << 1, (3, 2)),
        Level::Server => (0b11, 1 << child, (2, 3)),
    };
    Header {
        kind: Kind::Contribution,
        level,
        flags: Flags::default(),
        arithmetic: Arithmetic::Wrapping,
        tree: TreeId(0),
        job,
        sequence: Sequence(0),
        chunk: 7,
        epoch: Epoch(1),
        n_elems: 1,
        rack_fan_in: fan_ins.0,
        server_fan_in: fan_ins.1,
        slot: SlotIndex(5),
        workers,
        racks,
        next_slot: SlotIndex(0),
        others: 0,
        parties: Parties::All,
    }
}

/// A header from the server to all workers.
pub fn down(kind: Kind, job: JobId) -> Header {
    let n_elems = if kind.has_payload() { 1 } else { 0 };
    Header { kind, n_elems, workers: 0, racks: 0, ..contribution(Level::Server, job, 0) }
}

/// `header` as child `child` of a lease sends it.
fn as_child(lease: &Lease, child: usize, header: Header) -> Header {
    let (level, rack_fan_in, server_fan_in, workers, racks) = match &lease.members {
        Members::Rack { workers, rack, racks } => {
            (Level::Rack, workers.len() as u8, *racks, 1 << child, 1 << rack)
        }
        Members::Server { racks } => {
            let workers = racks[child].workers;
            (Level::Server, workers, racks.len() as u8, Header::all(workers), 1 << child)
        }
    };
    let (job, tree, epoch) = (lease.job, lease.tree, lease.epoch);
    Header { level, rack_fan_in, server_fan_in, workers, racks, job, tree, epoch, ..header }
}

fn blank(sequence: u32, arithmetic: Arithmetic, n_elems: u16) -> Header {
    Header {
        sequence: Sequence(sequence),
        chunk: 0xc0de_0000u32.wrapping_add(sequence),
        slot: SlotIndex(sequence.wrapping_mul(5)),
        next_slot: SlotIndex(sequence ^ 0x5500),
        arithmetic,
        n_elems,
        ..contribution(Level::Rack, OWN, 0)
    }
}

fn with(level: Level, job: u32, children: u32, bytes: u16) -> Lease {
    let port = |i: u32| PortId(10 + i);
    let members = match level {
        Level::Rack => {
            Members::Rack { workers: (0..children).map(port).collect(), rack: 2, racks: 5 }
        }
        Level::Server => {
            let rack = |i: u32| Rack { port: port(i), workers: 1 + (i % 4) as u8 };
            Members::Server { racks: (0..children).map(rack).collect() }
        }
    };
    Lease { members, window: 64, fragment_bytes: bytes, ..lease(level, JobId(job)) }
}

fn random_payload(random: &mut Random, header: &Header) -> Vec<u8> {
    (0..header.payload_len() / 4).flat_map(|_| (random.next() as u32).to_le_bytes()).collect()
}

/// One fragment of all children with random values, then its result.
fn round(record: &mut Record, random: &mut Random, lease: &Lease, header: Header) {
    let ports: Vec<_> = lease.members.neighbours().collect();
    for (child, port) in ports.iter().enumerate() {
        let header = as_child(lease, child, header);
        let payload = random_payload(random, &header);
        record.packet(port.0, false, &header, &payload);
    }
    result(record, random, lease, header);
}

fn result(record: &mut Record, random: &mut Random, lease: &Lease, header: Header) {
    let whose = as_child(lease, 0, header);
    let header = Header { kind: Kind::Result, level: Level::Server, workers: 0, racks: 0, ..whose };
    let payload = random_payload(random, &header);
    record.packet(PARENT, false, &header, &payload);
}

const IN_SLOTS: [Arithmetic; 4] =
    [Arithmetic::Saturating, Arithmetic::Wrapping, Arithmetic::Min, Arithmetic::Max];

fn full_frames(record: &mut Record) {
    let mut random = Random(1);
    for (job, level) in [(1, Level::Rack), (2, Level::Server)] {
        let lease = with(level, job, 4, 1408);
        record.install(&lease);
        for (sequence, arithmetic) in (0..).zip(IN_SLOTS) {
            round(record, &mut random, &lease, blank(sequence, arithmetic, 352));
        }
    }
}

fn lengths(record: &mut Record) {
    let mut random = Random(2);
    let lease = with(Level::Rack, 3, 3, 1408);
    record.install(&lease);
    for sequence in 0..70 {
        let arithmetic = IN_SLOTS[sequence as usize % 4];
        round(record, &mut random, &lease, blank(sequence, arithmetic, sequence as u16 + 1));
    }
}

/// Values around both limits, around 0, and half way.
const EDGES: [i32; 14] = [
    0,
    1,
    -1,
    i32::MAX,
    i32::MAX - 1,
    i32::MIN,
    i32::MIN + 1,
    1 << 30,
    -(1 << 30),
    (1 << 30) - 1,
    -(1 << 30) - 1,
    2,
    0x5555_5555,
    -0x5555_5556,
];

fn words(values: impl IntoIterator<Item = i32>) -> Vec<u8> {
    values.into_iter().flat_map(i32::to_le_bytes).collect()
}

fn saturation(record: &mut Record) {
    let lease = with(Level::Rack, 4, 3, 1408);
    record.install(&lease);
    let mut sequence = 0;
    let mut round = |record: &mut Record, arithmetic, children: [Vec<u8>; 3]| {
        let n_elems = (children[0].len() / 4) as u16;
        for (child, payload) in children.iter().enumerate() {
            let header = as_child(&lease, child, blank(sequence, arithmetic, n_elems));
            record.packet(10 + child as u32, false, &header, payload);
        }
        result(record, &mut Random(3), &lease, blank(sequence, arithmetic, n_elems));
        sequence += 1;
    };
    for arithmetic in IN_SLOTS {
        for edge in EDGES {
            let all = || words(EDGES);
            // The third child undoes a part: saturated elements do not come back.
            let back = words(EDGES.map(|v| v.wrapping_neg()));
            round(record, arithmetic, [words([edge; EDGES.len()]), all(), back]);
        }
    }
    // One element of many, at every position of a block and after the last whole block.
    for place in [0, 1, 31, 32, 33, 62, 63, 64, 65, 66] {
        let one = |value| words((0..67).map(|i| if i == place { value } else { i }));
        round(record, Arithmetic::Saturating, [one(i32::MAX), one(1), one(-5)]);
        round(record, Arithmetic::Saturating, [one(-5), one(i32::MIN), one(-1)]);
    }
}

fn children(record: &mut Record) {
    let mut random = Random(4);
    for (base, level) in [(10, Level::Rack), (60, Level::Server)] {
        for count in (1..=8).chain([32]) {
            let lease = with(level, base + count, count, 1408);
            record.install(&lease);
            for sequence in 0..3 {
                let arithmetic = IN_SLOTS[sequence as usize];
                round(record, &mut random, &lease, blank(sequence, arithmetic, 9));
            }
        }
    }
}

fn marks(record: &mut Record) {
    let mut random = Random(5);
    for (job, level) in [(5, Level::Rack), (6, Level::Server)] {
        let lease = with(level, job, 3, 8);
        record.install(&lease);
        for sequence in 0..32 {
            for child in [0, 1, 1, 2] {
                let bit = || random.below(3) == 0;
                let [overflow, ecn, ce, collision] = std::array::from_fn({
                    let mut bit = bit;
                    move |_| bit()
                });
                let flags = Flags { resend: false, collision, overflow, ecn };
                let header = Header { flags, ..blank(sequence, Arithmetic::Saturating, 2) };
                let header = as_child(&lease, child, header);
                record.packet(10 + child as u32, ce, &header, &words([1, -7]));
            }
            result(record, &mut random, &lease, blank(sequence, Arithmetic::Saturating, 2));
        }
    }
}

fn results(record: &mut Record) {
    let mut random = Random(6);
    for (job, level) in [(7, Level::Rack), (8, Level::Server)] {
        let lease = with(level, job, 3, 8);
        record.install(&lease);
        let kinds = [
            Kind::Result,
            Kind::Waiting,
            Kind::FloatRequest,
            Kind::Mismatch,
            Kind::Done,
            Kind::Missing,
        ];
        let masks = [0, 1, 0b10, 0b100, 0b110, 0b1000, 0x8000_0000, u32::MAX];
        let mut sequence = 0;
        for kind in kinds {
            for racks in masks {
                for workers in [0, 0b10, 0b101, 0b1000] {
                    let first = as_child(&lease, 0, blank(sequence, Arithmetic::Wrapping, 1));
                    record.packet(10, false, &first, &words([5]));
                    let n_elems = u16::from(kind.has_payload());
                    let level = Level::Server;
                    let slot = if kind == Kind::Missing { SlotIndex(0) } else { first.slot };
                    let header = Header { kind, level, slot, workers, racks, n_elems, ..first };
                    let payload = random_payload(&mut random, &header);
                    let flags = Flags { ecn: random.below(4) == 0, ..Flags::default() };
                    let ce = random.below(4) == 0;
                    record.packet(PARENT, ce, &Header { flags, ..header }, &payload);
                    sequence += 1;
                    result(
                        record,
                        &mut random,
                        &lease,
                        blank(sequence - 1, Arithmetic::Wrapping, 1),
                    );
                }
            }
        }
    }
}

fn parties(record: &mut Record) {
    let mut random = Random(13);
    for (job, level) in [(7, Level::Rack), (8, Level::Server)] {
        let lease = Lease { window: 8, ..with(level, job, 3, 64) };
        record.install(&lease);
        for sequence in 0..120u32 {
            let arithmetic = IN_SLOTS[(sequence % 4) as usize];
            let n_elems = 1 + (sequence % 16) as u16;
            let parties = match random.below(5) {
                0 => Parties::All,
                1 => Parties::FromOne(random.below(64) as u8),
                2 => Parties::Nobody,
                _ => Parties::ToOne(random.below(64) as u8),
            };
            for child in 0..3 {
                // Now and then a child disagrees on who takes.
                let parties = match random.below(16) {
                    0 => Parties::ToOne(sequence as u8 % 64),
                    _ => parties,
                };
                let alone =
                    matches!(parties, Parties::FromOne(from) if usize::from(from % 3) == child);
                let header = match parties {
                    Parties::All | Parties::ToOne(_) => blank(sequence, arithmetic, n_elems),
                    _ if alone => blank(sequence, arithmetic, n_elems),
                    _ => Header {
                        kind: Kind::Ready,
                        slot: SlotIndex(0),
                        others: random.next() as u32,
                        ..blank(sequence, arithmetic, n_elems)
                    },
                };
                let resend = random.below(10) == 0;
                let flags = Flags { resend, ..Flags::default() };
                let header = as_child(&lease, child, Header { parties, flags, ..header });
                let payload = random_payload(&mut random, &header);
                record.packet(10 + child as u32, random.below(8) == 0, &header, &payload);
            }
            if !matches!(parties, Parties::Nobody) {
                result(record, &mut random, &lease, blank(sequence, arithmetic, n_elems));
            }
            if !matches!(parties, Parties::All) {
                let header = blank(sequence, arithmetic, 0);
                let (workers, racks) = (random.below(8) as u32, random.below(8) as u32);
                let level = Level::Server;
                let header = Header { kind: Kind::Done, level, workers, racks, ..header };
                let header = Header { job: lease.job, epoch: lease.epoch, ..header };
                record.packet(PARENT, random.below(8) == 0, &header, &[]);
            }
        }
    }
}

fn window(record: &mut Record) {
    let mut random = Random(7);
    for job in 1..=2 {
        let lease = Lease { window: 4, ..with(Level::Rack, job, 3, 8) };
        record.install(&lease);
        // Results advance in steps that a window allows, to the wrap and beyond it.
        let mut passed = 0u32;
        for step in 0..24u32 {
            for ahead in [-6i32, -5, -4, -1, 0, 3, 4, 5] {
                let sequence = passed.wrapping_add_signed(ahead);
                let header = as_child(&lease, 1, blank(sequence, Arithmetic::Wrapping, 1));
                record.packet(11, false, &header, &words([1]));
            }
            let to = passed.wrapping_add(step % 4);
            result(record, &mut random, &lease, blank(to, Arithmetic::Wrapping, 1));
            let far = passed.wrapping_add(40);
            result(record, &mut random, &lease, blank(far, Arithmetic::Wrapping, 1));
            passed = to.wrapping_add(1);
        }
    }
}

fn epochs(record: &mut Record) {
    let first = Lease { epoch: Epoch(0xffff), ..with(Level::Rack, 1, 3, 8) };
    let other = with(Level::Server, 2, 3, 8);
    record.install(&first);
    record.install(&other);
    let send = |record: &mut Record, lease: &Lease, epoch: u16, child: usize| {
        let header = as_child(lease, child, blank(0, Arithmetic::Wrapping, 1));
        let header = Header { epoch: Epoch(epoch), ..header };
        record.packet(10 + child as u32, false, &header, &words([3]));
    };
    for epoch in [0xffff, 0xfffe, 0, 0x7fff, 0x7ffe] {
        send(record, &first, epoch, 0);
    }
    send(record, &other, 1, 0);
    let next = Lease { epoch: Epoch(0), ..first.clone() };
    record.install(&next);
    for (epoch, child) in [(0xffff, 1), (0, 1), (0, 2), (1, 0), (0, 0)] {
        send(record, &next, epoch, child);
    }
    record.install(&next);
    record.revoke(JobId(1), Epoch(0xffff));
    send(record, &next, 0, 0);
    record.revoke(JobId(1), Epoch(0));
    send(record, &next, 0, 0);
    for child in 0..3 {
        send(record, &other, 1, child);
    }
}

fn fin(record: &mut Record) {
    for (job, level) in [(1, Level::Rack), (2, Level::Server)] {
        let lease = with(level, job, 3, 8);
        record.install(&lease);
        let header = |child, sequence| as_child(&lease, child, blank(sequence, Arithmetic::Max, 1));
        record.packet(10, false, &header(0, 0), &words([9]));
        record.packet(11, false, &header(1, 1), &words([9]));
        for child in [0, 1, 1, 2, 0] {
            let header = Header { kind: Kind::Fin, n_elems: 0, ..header(child, 2) };
            record.packet(10 + child as u32, false, &header, &[]);
        }
        record.packet(12, false, &header(2, 0), &words([9]));
    }
    let alone = with(Level::Server, 3, 1, 8);
    record.install(&alone);
    let header = as_child(&alone, 0, blank(0, Arithmetic::Max, 1));
    let header = Header { kind: Kind::Fin, n_elems: 0, ..header };
    record.packet(10, false, &header, &[]);
}

fn malformed(record: &mut Record) {
    let mut random = Random(8);
    for (job, level) in [(1, Level::Rack), (2, Level::Server)] {
        let lease = with(level, job, 3, 8);
        record.install(&lease);
        let good = as_child(&lease, 1, blank(0, Arithmetic::Saturating, 2));
        let mut packet = vec![0; netsum_wire::atp::HEADER_LEN];
        good.encode(packet.first_chunk_mut().unwrap());
        packet.extend(words([1, 2]));
        for len in [0, 1, 2, 4, 20, 45, 46, 50, 53] {
            record.bytes(11, false, &packet[..len]);
        }
        record.bytes(11, false, &[&packet[..], &[0]].concat());
        record.bytes(11, false, &[&packet[..], &[0; 4]].concat());
        for at in 0..netsum_wire::atp::HEADER_LEN {
            for bits in [0x01, 0x10, 0x80, 0xff] {
                let mut wrong = packet.clone();
                wrong[at] ^= bits;
                record.bytes(11, false, &wrong);
            }
        }
        let none = Header { n_elems: 0, ..good };
        record.packet(11, false, &none, &[]);
        let large = Header { n_elems: 3, ..good };
        record.packet(11, false, &large, &words([1, 2, 3]));
        for port in [10, 12, PARENT, 42] {
            record.packet(port, false, &good, &words([1, 2]));
        }
        for _ in 0..100 {
            let mut noise = packet.clone();
            for _ in 0..=random.below(4) {
                let at = random.below(noise.len() as u64) as usize;
                noise[at] = random.next() as u8;
            }
            record.bytes(10 + random.below(3) as u32, false, &noise);
        }
    }
}

fn limit(record: &mut Record) {
    let mut random = Random(9);
    let claim = Claim { limit: 2, ..Claim::default() };
    let lease = Lease { claim, ..with(Level::Rack, 1, 2, 8) };
    record.install(&lease);
    for base in (0..30).step_by(5) {
        for child in 0..2 {
            for sequence in base..base + 5 {
                let header = as_child(&lease, child, blank(sequence, Arithmetic::Wrapping, 2));
                record.packet(10 + child as u32, false, &header, &words([4, -4]));
            }
        }
        for sequence in base..base + 5 {
            result(record, &mut random, &lease, blank(sequence, Arithmetic::Wrapping, 2));
        }
    }
}

fn partition(record: &mut Record) {
    let mut random = Random(10);
    let claims = [6, 0, 9, 1];
    let leases: Vec<_> = (1..)
        .zip(claims)
        .map(|(job, guaranteed)| {
            let claim = Claim { guaranteed, ..Claim::default() };
            Lease { claim, ..with(Level::Rack, job, 2, 8) }
        })
        .collect();
    leases.iter().for_each(|lease| record.install(lease));
    for sequence in 0..12 {
        for lease in &leases {
            let ready = sequence >= 3;
            for child in 0..2 {
                let header = as_child(lease, child, blank(sequence, Arithmetic::Wrapping, 2));
                record.packet(10 + child as u32, false, &header, &words([4, -4]));
            }
            if ready {
                result(record, &mut random, lease, blank(sequence - 3, Arithmetic::Wrapping, 2));
            }
        }
    }
    // The first partition is freed and given to another job.
    record.revoke(JobId(1), Epoch(1));
    let claim = Claim { guaranteed: 6, ..Claim::default() };
    let late = Lease { claim, ..with(Level::Rack, 9, 3, 8) };
    record.install(&late);
    for sequence in 0..8 {
        round(record, &mut random, &late, blank(sequence, Arithmetic::Min, 2));
    }
}

fn walk_with_claims(record: &mut Record) {
    let claims = [(2, 7, 1), (0, 3, 1), (1, 5, 2)];
    let claims = claims.map(|(guaranteed, limit, priority)| Claim { guaranteed, limit, priority });
    random_walk(record, Random(11), Level::Rack, claims);
}

fn walk(record: &mut Record, level: Level) {
    random_walk(record, Random(12), level, [Claim::default(); 3]);
}

/// Packets of three jobs in random order, with occasional timers.
fn random_walk(record: &mut Record, mut random: Random, level: Level, claims: [Claim; 3]) {
    let leases: Vec<_> = (1..)
        .zip(claims)
        .map(|(job, claim)| Lease { claim, window: 8, ..with(level, job, 3, 64) })
        .collect();
    leases.iter().for_each(|lease| record.install(lease));
    let mut passed = [0u32; 3];
    for _ in 0..900 {
        record.wait(random.below(STRAGGLER_NS / 8));
        let which = random.below(3) as usize;
        let lease = &leases[which];
        let ahead = random.below(6) as u32;
        let sequence = passed[which] + ahead;
        let n_elems = 1 + (sequence % 16) as u16;
        let arithmetic = match random.below(40) {
            0 => Arithmetic::Float,
            _ => IN_SLOTS[(sequence % 4) as usize],
        };
        let chunk = 0xc0de_0000 + sequence + u32::from(random.below(40) == 0);
        let header = Header { chunk, ..blank(sequence, arithmetic, n_elems) };
        match random.below(24) {
            0 => record.timeout(),
            1..=3 => {
                let header = blank(passed[which], arithmetic, 1 + (passed[which] % 16) as u16);
                result(record, &mut random, lease, header);
                passed[which] += 1;
            }
            event => {
                let child = random.below(3) as usize;
                let flags = Flags { resend: event < 7, ..Flags::default() };
                let mut header = as_child(lease, child, Header { flags, ..header });
                if level == Level::Server && random.below(8) == 0 {
                    header.workers = 1;
                }
                let payload = random_payload(&mut random, &header);
                record.packet(10 + child as u32, random.below(8) == 0, &header, &payload);
            }
        }
    }
}
