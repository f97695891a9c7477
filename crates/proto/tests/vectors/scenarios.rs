//! Scenarios of the vectors. Every scenario is a plain sequence; the random ones have a fixed seed.

use std::collections::BTreeSet;

use netsum_proto::PortId;
use netsum_proto::panama::{Child, Lease};
use netsum_wire::Parties;
use netsum_wire::panama::{Header, Kind, NO_CAP};
use netsum_wire::*;

use super::record::Record;

type Scenario = (&'static str, &'static str, fn(&mut Record));

pub const ALL: &[Scenario] = &[
    ("full-frames", "four children, whole fragments of float32", full_frames),
    ("lengths", "every number of elements from 1 to 40, float32 and bfloat16", lengths),
    ("special-values", "every pair of special float32 values, and four at a time", special_values),
    ("bfloat16", "special and random bfloat16 at the root", bfloat16),
    ("bfloat16-partials", "bfloat16 up as float32, and from below mixed with float32", partials),
    ("children", "1 to 8 children", children),
    ("marks", "CE, marks, window_cap, missing", marks),
    ("vids", "wrong, early, late, repeated and resent vids", vids),
    ("two-jobs", "two jobs and two trees in opposite order on two ports", two_jobs),
    ("mismatch", "children that disagree", mismatch),
    ("fin", "the end of an epoch, and the next one", fin),
    ("malformed", "bytes that are no packet, and packets that nobody may send", malformed),
    ("middle", "a node with a parent: partials up, results down, asked again", middle),
    ("other-formats", "every dtype and operation of the network", other_formats),
    (
        "parties",
        "fragments that one rank contributes or takes, or nobody, at a root and below one",
        parties,
    ),
    ("walk", "random packets of two jobs: early, late, repeated, resent, marked", walk),
];

/// A generator with a fixed sequence (splitmix64).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// A gradient, or occasionally arbitrary bits.
    fn float32(&mut self) -> u32 {
        let bits = self.next();
        match bits % 8 {
            0 => (bits >> 32) as u32,
            1 => (bits >> 32) as u32 & 0x807f_ffff,
            _ => ((bits >> 40) as f32 / 8_388_608.0 - 1.0).to_bits(),
        }
    }

    /// Elements as neighbours send them: results come from a root, so their NaNs are canonical.
    fn payload(&mut self, header: &Header) -> Vec<u8> {
        let n = usize::from(header.n_elems);
        if header.kind == Kind::Result {
            let sums = (0..n).map(|_| self.float32());
            let sums = sums.map(|x| if f32::from_bits(x).is_nan() { 0x7fc0_0000 } else { x });
            return match header.format.dtype {
                Dtype::Bf16 => sums.flat_map(|x| ((x >> 16) as u16).to_le_bytes()).collect(),
                _ => sums.flat_map(u32::to_le_bytes).collect(),
            };
        }
        match (header.format.dtype, header.kind) {
            (Dtype::F32, _) | (Dtype::F16 | Dtype::Bf16, Kind::Partial) => {
                (0..n).flat_map(|_| self.float32().to_le_bytes()).collect()
            }
            (Dtype::Bf16, _) => {
                (0..n).flat_map(|_| ((self.float32() >> 16) as u16).to_le_bytes()).collect()
            }
            _ => (0..header.payload_len()).map(|_| self.next() as u8).collect(),
        }
    }
}

const F32: Format = Format { dtype: Dtype::F32, op: ReduceOp::Sum };
const BF16: Format = Format { dtype: Dtype::Bf16, op: ReduceOp::Sum };

fn lease(job: u32, children: u32, parent: Option<u32>) -> Lease {
    let child = |i: u32| Child { port: PortId(i), ranks: 0x11 << i, branch: (3 * i + 1) as u8 };
    Lease {
        job: JobId(job),
        epoch: Epoch(0x0506),
        tree: TreeId(0),
        children: (0..children).map(child).collect(),
        parent: parent.map(PortId),
        slots: 4,
        fragment_bytes: 1408,
        release_permille: 1000,
    }
}

fn header(lease: &Lease, vid: u32, format: Format, n_elems: u16) -> Header {
    Header {
        kind: Kind::Contribution,
        resent: false,
        congested_down: false,
        tree: lease.tree,
        format,
        job: lease.job,
        vid: Vid(vid),
        chunk: 0xc0de_0000_u32.wrapping_add(vid),
        epoch: lease.epoch,
        window_cap: NO_CAP,
        n_elems,
        marks: 0,
        missing: 0,
        parties: Parties::All,
        empty: false,
        asks: false,
        others: 0,
    }
}

/// One vid of all children, each with random payload.
fn round(record: &mut Record, random: &mut Random, lease: &Lease, header: &Header) {
    for child in &lease.children {
        let payload = random.payload(header);
        record.packet(child.port.0, false, header, &payload);
    }
}

fn full_frames(record: &mut Record) {
    let mut random = Random(1);
    let lease = lease(0x0102_0304, 4, None);
    record.install(&lease);
    for vid in 0..6 {
        round(record, &mut random, &lease, &header(&lease, vid, F32, 352));
    }
}

fn lengths(record: &mut Record) {
    let mut random = Random(2);
    let lease = lease(2, 3, None);
    record.install(&lease);
    for vid in 0..80 {
        let format = if vid % 2 == 0 { F32 } else { BF16 };
        round(record, &mut random, &lease, &header(&lease, vid, format, vid as u16 / 2 + 1));
    }
}

/// Zeros, ones, infinities, NaNs (quiet, signalling, negative), ends of the subnormals and of the normals, and
/// powers of two around a tie.
const SPECIAL: [u32; 24] = [
    0x0000_0000,
    0x8000_0000,
    0x3f80_0000,
    0xbf80_0000,
    0x7f80_0000,
    0xff80_0000,
    0x7fc0_0000,
    0xffc0_0001,
    0x7f80_0001,
    0xff80_1234,
    0x0000_0001,
    0x8000_0001,
    0x007f_ffff,
    0x807f_ffff,
    0x0080_0000,
    0x8080_0000,
    0x7f7f_ffff,
    0xff7f_ffff,
    0x3380_0000,
    0x3400_0000,
    0x3400_0001,
    0x4b80_0000,
    0xcb80_0001,
    0x3f7f_ffff,
];

fn special_values(record: &mut Record) {
    let pairs = lease(3, 2, None);
    record.install(&pairs);
    let words = |values: &[u32]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>();
    let count = SPECIAL.len() as u16;
    for (vid, &special) in SPECIAL.iter().enumerate() {
        let h = header(&pairs, vid as u32, F32, count);
        record.packet(0, false, &h, &words(&[special; SPECIAL.len()]));
        record.packet(1, false, &h, &words(&SPECIAL));
    }
    let four = lease(4, 4, None);
    record.install(&four);
    let mut random = Random(3);
    for vid in 0..8 {
        let h = header(&four, vid, F32, 96);
        for child in 0..4 {
            let any: Vec<u32> =
                (0..96).map(|_| SPECIAL[random.below(SPECIAL.len() as u64) as usize]).collect();
            record.packet(child, false, &h, &words(&any));
        }
    }
}

fn bfloat16(record: &mut Record) {
    let lease = lease(5, 4, None);
    record.install(&lease);
    let mut random = Random(4);
    for vid in 0..8 {
        let h = header(&lease, vid, BF16, 100 + vid as u16);
        for child in 0..4 {
            let halves: Vec<u8> = (0..h.n_elems)
                .flat_map(|_| {
                    let special = SPECIAL[random.below(SPECIAL.len() as u64) as usize];
                    let any = if vid < 4 { special } else { random.float32() };
                    ((any >> 16) as u16).to_le_bytes()
                })
                .collect();
            record.packet(child, false, &h, &halves);
        }
    }
    round(record, &mut random, &lease, &header(&lease, 8, BF16, 352));
}

fn partials(record: &mut Record) {
    let mut random = Random(5);
    let up = lease(6, 3, Some(3));
    record.install(&up);
    for vid in 0..4 {
        round(record, &mut random, &up, &header(&up, vid, BF16, 33 + vid as u16));
        let result = Header { kind: Kind::Result, ..header(&up, vid, BF16, 33 + vid as u16) };
        record.packet(3, false, &result, &random.payload(&result));
    }
    let root = lease(7, 4, None);
    record.install(&root);
    for vid in 0..6 {
        for child in 0..4 {
            let kind = if (vid + child) % 2 == 0 { Kind::Partial } else { Kind::Contribution };
            let h = Header { kind, ..header(&root, vid, BF16, 17 + 3 * vid as u16) };
            let payload = random.payload(&h);
            record.packet(child, false, &h, &payload);
        }
    }
}

fn children(record: &mut Record) {
    let mut random = Random(6);
    for n in 1..=8 {
        let lease = lease(10 + n, n, None);
        record.install(&lease);
        for vid in 0..2 {
            round(record, &mut random, &lease, &header(&lease, vid, F32, 24));
        }
    }
}

fn marks(record: &mut Record) {
    let mut random = Random(7);
    let lease = lease(20, 4, None);
    record.install(&lease);
    for vid in 0..16 {
        for child in 0..4 {
            let h = Header {
                window_cap: [NO_CAP, 9, 3, 2][random.below(4) as usize],
                marks: random.next() as u32 & random.next() as u32 & random.next() as u32,
                missing: random.next() & random.next() & random.next(),
                resent: random.below(4) == 0,
                ..header(&lease, vid, F32, 4)
            };
            let payload = random.payload(&h);
            record.packet(child, random.below(3) == 0, &h, &payload);
        }
    }
}

fn vids(record: &mut Record) {
    let mut random = Random(8);
    let lease = lease(21, 2, None);
    record.install(&lease);
    let mut send = |port: u32, vid: u32, resent: bool| {
        let h = Header { resent, ..header(&lease, vid, F32, 5) };
        // The same payload whenever a vid is sent again.
        let payload = Random(u64::from(vid) << 8 | u64::from(port)).payload(&h);
        record.packet(port, random.below(4) == 0, &h, &payload);
    };
    for (port, vid) in [(0, u32::MAX), (0, 4), (1, 3), (0, 3), (0, 0), (0, 0), (1, 2), (1, 0)] {
        send(port, vid, false);
    }
    // Waiting, answered, late repetitions; then everything up to vid 11 with a hole at 9.
    for (port, vid) in [(1, 2), (1, 0), (0, 3), (0, 0), (1, 1), (0, 1), (0, 2), (1, 4), (0, 4)] {
        send(port, vid, true);
    }
    for vid in [5, 6, 7, 8, 10, 11] {
        send(0, vid, false);
        send(1, vid, false);
    }
    for (port, vid, resent) in [(0, 13, false), (0, 12, false), (0, 5, true), (1, 4, true)] {
        send(port, vid, resent);
    }
    for (port, vid, resent) in [(0, 9, false), (1, 9, true), (1, 9, true), (0, 5, true)] {
        send(port, vid, resent);
    }
    for (port, vid) in [(1, 8), (1, 12), (0, 13), (1, 13), (0, 8), (0, 0)] {
        send(port, vid, true);
    }
}

fn two_jobs(record: &mut Record) {
    let mut random = Random(9);
    let a = lease(30, 2, None);
    let b = Lease { tree: TreeId(1), ..a.clone() };
    let c = lease(31, 2, None);
    for lease in [&a, &b, &c] {
        record.install(lease);
    }
    for vid in 0..4 {
        for (port, order) in [(0, [&a, &b, &c]), (1, [&c, &b, &a])] {
            for lease in order {
                let h = header(lease, vid, F32, 8);
                let payload = random.payload(&h);
                record.packet(port, false, &h, &payload);
            }
        }
    }
    // A missing vid does not delay the others of a tree.
    for (port, vids) in [(0, [7, 6, 5]), (1, [5, 7, 6])] {
        for vid in vids {
            let h = header(&a, vid, F32, 8);
            let payload = random.payload(&h);
            record.packet(port, false, &h, &payload);
        }
    }
    round(record, &mut random, &a, &header(&a, 4, F32, 8));
}

fn mismatch(record: &mut Record) {
    let mut random = Random(10);
    for (job, parent) in [(40, None), (41, Some(3))] {
        let lease = lease(job, 3, parent);
        record.install(&lease);
        let good = header(&lease, 0, F32, 6);
        let wrong = [
            Header { chunk: 1, ..good },
            Header { n_elems: 5, ..good },
            Header { n_elems: 7, ..good },
            Header { format: BF16, ..good },
        ];
        record.packet(0, false, &good, &random.payload(&good));
        for h in wrong {
            record.packet(1, false, &h, &random.payload(&h));
        }
        record.packet(2, false, &good, &random.payload(&good));
        record.packet(1, true, &good, &random.payload(&good));
        let notice = Header { kind: Kind::Mismatch, n_elems: 0, ..header(&lease, 1, F32, 0) };
        record.packet(2, false, &notice, &[]);
    }
}

fn fin(record: &mut Record) {
    let mut random = Random(11);
    let first = lease(50, 3, None);
    record.install(&first);
    for vid in 0..2 {
        round(record, &mut random, &first, &header(&first, vid, F32, 4));
    }
    let fin = Header { kind: Kind::Fin, n_elems: 0, ..header(&first, 2, F32, 0) };
    for port in [0, 2, 2, 1] {
        record.packet(port, false, &fin, &[]);
    }
    let next = Lease { epoch: Epoch(first.epoch.0 + 1), ..first.clone() };
    record.install(&next);
    let stale = header(&first, 2, F32, 4);
    record.packet(0, false, &stale, &random.payload(&stale));
    round(record, &mut random, &next, &header(&next, 0, F32, 4));
}

fn malformed(record: &mut Record) {
    let mut random = Random(12);
    let lease = Lease { fragment_bytes: 64, ..lease(60, 2, Some(2)) };
    record.install(&lease);
    let good = header(&lease, 0, F32, 16);
    let payload = random.payload(&good);
    let mut bytes = vec![0; netsum_wire::panama::HEADER_LEN];
    good.encode(bytes.first_chunk_mut().unwrap());
    bytes.extend_from_slice(&payload);
    for (at, value) in
        [(0, 0x14), (1, 0x08), (1, 0x80), (3, 0x50), (3, 0x03), (21, 15), (21, 0), (36, 1)]
    {
        let mut wrong = bytes.clone();
        wrong[at] = value;
        record.bytes(0, false, &wrong);
    }
    for len in [0, 20, 37, 38, 101] {
        record.bytes(0, false, &bytes[..len]);
    }
    let wrong = [
        Header { job: JobId(61), ..good },
        Header { tree: TreeId(1), ..good },
        Header { epoch: Epoch(lease.epoch.0 - 1), ..good },
        Header { epoch: Epoch(lease.epoch.0 + 1), ..good },
        Header { kind: Kind::Result, ..good },
        Header { n_elems: 17, ..good },
        Header { format: BF16, n_elems: 17, ..good },
    ];
    for h in wrong {
        record.packet(0, false, &h, &random.payload(&h));
    }
    record.packet(3, false, &good, &payload);
    record.packet(2, false, &good, &payload);
    let result = Header { kind: Kind::Result, ..good };
    record.packet(2, false, &result, &payload);
    let flags = Header { resent: true, congested_down: true, ..good };
    record.packet(0, false, &flags, &payload);
    record.packet(1, false, &good, &payload);
}

fn middle(record: &mut Record) {
    let mut random = Random(13);
    let lease = lease(70, 3, Some(3));
    record.install(&lease);
    for vid in 0..12u32 {
        let up = header(&lease, vid, F32, 9);
        for child in 0..3 {
            let payload = random.payload(&up);
            record.packet(child, random.below(4) == 0, &up, &payload);
        }
        let again = Header { resent: true, ..up };
        if vid % 3 == 0 {
            // The partial goes up again, and the result is for who asked and for all.
            record.packet(1, false, &again, &random.payload(&up));
        }
        let down = Header {
            kind: Kind::Result,
            window_cap: 3,
            marks: random.next() as u32,
            missing: random.next(),
            ..up
        };
        let payload = random.payload(&down);
        let ce = random.below(2) == 0;
        record.packet(3, ce, &down, &payload);
        if vid % 4 == 1 {
            record.packet(3, ce, &down, &payload);
            record.packet(2, false, &again, &random.payload(&up));
        }
        if vid % 4 == 2 {
            record.packet(3, ce, &Header { chunk: 5, ..down }, &payload);
        }
    }
}

fn other_formats(record: &mut Record) {
    let mut random = Random(14);
    let lease = lease(80, 3, None);
    record.install(&lease);
    let mut vid = 0;
    for dtype in Dtype::ALL.into_iter().filter(|d| d.in_network()) {
        for op in ReduceOp::ALL.into_iter().filter(|o| o.in_network()) {
            round(record, &mut random, &lease, &header(&lease, vid, Format { dtype, op }, 21));
            vid += 1;
        }
    }
}

fn parties(record: &mut Record) {
    let mut random = Random(16);
    let of = [
        Parties::ToOne(1),
        Parties::FromOne(2),
        Parties::Nobody,
        Parties::ToOne(4),
        Parties::FromOne(5),
        Parties::All,
    ];
    for (job, parent) in [(90, None), (91, Some(3))] {
        let lease = lease(job, 3, parent);
        record.install(&lease);
        let up = |vid: u32, parties: Parties, child: &Child| {
            let n = if parties == Parties::Nobody { 0 } else { 9 };
            let empty = !parties.contributes(child.ranks);
            Header { parties, empty, ..header(&lease, vid, F32, n) }
        };
        for vid in 0..12u32 {
            let parties = of[vid as usize % of.len()];
            for child in &lease.children {
                let asks = !parties.takes(child.ranks) && random.below(2) == 0;
                let up = Header { asks, ..up(vid, parties, child) };
                let payload = if up.empty { Vec::new() } else { random.payload(&up) };
                record.packet(child.port.0, false, &up, &payload);
                if random.below(4) == 0 {
                    let again = Header { resent: true, ..up };
                    record.packet(child.port.0, false, &again, &payload);
                }
            }
            answer(record, &mut random, &lease, vid, parties);
        }
        // Contributions that one packet names, and packets that are not of such parties.
        let parties = Parties::FromOne(2);
        for child in &lease.children[..2] {
            let last = Header { asks: true, others: 0b11, ..up(14, parties, child) };
            send(record, &mut random, child.port.0, &last);
            send(record, &mut random, child.port.0, &Header { empty: false, ..last });
        }
        for vid in 12..15 {
            let contribution = up(vid, parties, &lease.children[2]);
            send(record, &mut random, 2, &Header { parties: Parties::FromOne(1), ..contribution });
            send(record, &mut random, 2, &contribution);
            answer(record, &mut random, &lease, vid, parties);
        }
    }
}

fn send(record: &mut Record, random: &mut Random, port: u32, header: &Header) {
    let payload = if header.empty { Vec::new() } else { random.payload(header) };
    record.packet(port, false, header, &payload);
}

/// The parent's answer to a fragment, if there is a parent.
fn answer(record: &mut Record, random: &mut Random, lease: &Lease, vid: u32, parties: Parties) {
    let Some(parent) = lease.parent else { return };
    let ranks = lease.children.iter().fold(0, |all, child| all | child.ranks);
    let n = if parties == Parties::Nobody { 0 } else { 9 };
    let kind = Kind::Result;
    let (empty, marks) = (!parties.takes(ranks), random.next() as u32);
    let down = Header { kind, parties, empty, marks, ..header(lease, vid, F32, n) };
    send(record, random, parent.0, &down);
}

fn walk(record: &mut Record) {
    let mut random = Random(15);
    let leases = [lease(90, 4, None), Lease { tree: TreeId(2), ..lease(91, 3, Some(3)) }];
    leases.iter().for_each(|l| record.install(l));
    // Per lease and sender, children and parent: the lowest vid that has not arrived, and later ones that have.
    let mut below = [[0u32; 4]; 2];
    let mut beyond = [const { [const { BTreeSet::<u32>::new() }; 4] }; 2];
    for _ in 0..600 {
        let which = random.below(2) as usize;
        let lease = &leases[which];
        let port = random.below(4) as usize;
        let down = which == 1 && port == 3;
        let oldest = *below[which].iter().min().unwrap();
        let vid = match random.below(8) {
            0 => oldest.saturating_sub(3) + random.below(9) as u32,
            1 | 2 => oldest + random.below(4) as u32,
            _ => below[which][port].min(oldest + 3),
        };
        let kind = if down { Kind::Result } else { Kind::Contribution };
        let format = if vid % 5 == 0 { BF16 } else { F32 };
        let n_elems = 1 + (vid * 7 % 13) as u16;
        let h =
            Header { kind, resent: random.below(4) == 0, ..header(lease, vid, format, n_elems) };
        let payload = Random(u64::from(vid) << 16 | (which << 8 | port) as u64).payload(&h);
        record.packet(port as u32, random.below(8) == 0, &h, &payload);
        if vid >= below[which][port] && vid < oldest + 4 {
            beyond[which][port].insert(vid);
            while beyond[which][port].remove(&below[which][port]) {
                below[which][port] += 1;
            }
        }
    }
}
