//! Scenarios of the vectors. Every scenario is a plain sequence; the random ones have a fixed seed.

use netsum_proto::PortId;
use netsum_proto::switchml::Lease;
use netsum_wire::switchml::{HEADER_LEN, Header, Kind};
use netsum_wire::*;

use super::record::{Record, Size};
use crate::scenarios::Random;

type Scenario = (&'static str, &'static str, Size, fn(&mut Record));

const FRAMES: Size = Size { slots: 64, row_bytes: 1408 };
const FEW: Size = Size { slots: 12, row_bytes: 64 };

pub const ALL: &[Scenario] = &[
    ("full-frames", "whole fragments of four workers, every arithmetic", FRAMES, full_frames),
    ("lengths", "every number of elements from 0 to 70", FRAMES, lengths),
    (
        "saturation",
        "every pair of values around the limits, and sums that return",
        FRAMES,
        saturation,
    ),
    ("workers", "1 to 8 workers, and 32", FRAMES, workers),
    ("rounds", "rounds too early, too late and across the wrap; repeated packets", FEW, rounds),
    ("exponents", "the greatest exponent of all workers", FEW, exponents),
    ("parties", "sums for one, what one sends to all, and nothing for nobody", FEW, parties),
    ("mismatch", "workers that disagree on a fragment or on their part in it", FEW, mismatch),
    ("epochs", "old and coming epochs, the end of one, jobs taken back", FEW, epochs),
    ("malformed", "bytes that are no packet, and packets that nobody may send", FEW, malformed),
    ("walk", "random packets of two jobs and two pools: early, late, repeated", FEW, walk),
];

const JOB: JobId = JobId(7);

/// Workers at ports 10 and up.
fn lease(workers: u32, slots: u16, fragment_bytes: u16) -> Lease {
    Lease {
        job: JOB,
        epoch: Epoch(1),
        tree: TreeId(0),
        workers: (10..10 + workers).map(PortId).collect(),
        slots,
        fragment_bytes,
    }
}

fn header(worker: u8, slot: u16, round: u32, n_elems: u16) -> Header {
    Header {
        kind: Kind::Contribution,
        resent: false,
        arithmetic: Arithmetic::Saturating,
        worker,
        job: JOB,
        round,
        chunk: 0xc0de_0000 | u32::from(slot) << 8 | round & 0xff,
        epoch: Epoch(1),
        slot,
        n_elems,
        next_exponent: -3,
        tree: TreeId(0),
        parties: Parties::All,
    }
}

fn values(random: &mut Random, elements: u16) -> Vec<u8> {
    (0..elements).flat_map(|_| (random.next() as i32 >> 3).to_le_bytes()).collect()
}

fn words(values: &[i32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

const ARITHMETICS: [Arithmetic; 4] =
    [Arithmetic::Saturating, Arithmetic::Wrapping, Arithmetic::Min, Arithmetic::Max];

/// A worker's packet for a fragment with these parties, with elements if it contributes any.
fn part(record: &mut Record, random: &mut Random, header: &Header) {
    let contributes = header.parties.contributes(1 << header.worker);
    let kind = if contributes { Kind::Contribution } else { Kind::Ready };
    let payload = if contributes { values(random, header.n_elems) } else { Vec::new() };
    record.packet(10 + u32::from(header.worker), &Header { kind, ..*header }, &payload);
}

fn full_frames(record: &mut Record) {
    let mut random = Random(1);
    record.install(&lease(4, 8, 1408), 0);
    for (round, arithmetic) in (0..).zip(ARITHMETICS) {
        for slot in 0..3 {
            for worker in [2, 0, 3, 1] {
                part(
                    record,
                    &mut random,
                    &Header { arithmetic, ..header(worker, slot, round, 352) },
                );
            }
        }
    }
}

fn lengths(record: &mut Record) {
    let mut random = Random(2);
    record.install(&lease(2, 1, 1408), 0);
    for elements in 0..=70 {
        for worker in [0, 1] {
            let arithmetic = ARITHMETICS[usize::from(elements) % 4];
            let header = header(worker, 0, elements.into(), elements);
            part(record, &mut random, &Header { arithmetic, ..header });
        }
    }
}

fn saturation(record: &mut Record) {
    let edge = [i32::MIN, i32::MIN + 1, -1, 0, 1, i32::MAX - 1, i32::MAX];
    let pairs: Vec<(i32, i32)> = edge.iter().flat_map(|&a| edge.map(|b| (a, b))).collect();
    let each = |of: fn(&(i32, i32)) -> i32| words(&pairs.iter().map(of).collect::<Vec<_>>());
    let (first, second) = (each(|pair| pair.0), each(|pair| pair.1));
    record.install(&lease(3, 2, 1408), 0);
    for (round, arithmetic) in (0..).zip(ARITHMETICS) {
        // The third brings some of those that saturated back.
        for (worker, payload) in (0..).zip([&first, &second, &first]) {
            let header = header(worker, 1, round, pairs.len() as u16);
            record.packet(10 + u32::from(worker), &Header { arithmetic, ..header }, payload);
        }
    }
}

fn workers(record: &mut Record) {
    let mut random = Random(3);
    for (epoch, n) in (1..).zip([1, 2, 3, 4, 5, 6, 7, 8, 32]) {
        record.install(&Lease { epoch: Epoch(epoch), ..lease(n, 4, 64) }, 0);
        for round in 0..2 {
            for worker in 0..n as u8 {
                let header = header(worker, 3, round, 5);
                part(record, &mut random, &Header { epoch: Epoch(epoch), ..header });
            }
        }
    }
}

fn rounds(record: &mut Record) {
    let mut random = Random(4);
    let first = u32::MAX - 2;
    record.install(&lease(2, 3, 64), first);
    let mut send = |worker: u8, ahead: u32, resent: bool| {
        let header = Header { resent, ..header(worker, 1, first.wrapping_add(ahead), 4) };
        part(record, &mut random, &header);
    };
    // Before the first, and beyond it.
    for ahead in [u32::MAX, 1, 2, 0x8000_0000] {
        send(0, ahead, false);
    }
    for ahead in 0..6 {
        send(0, ahead, false);
        send(0, ahead, false);
        send(0, ahead, true);
        send(0, ahead + 1, false);
        send(1, ahead, ahead % 2 == 0);
        send(1, ahead, false);
        // The answer to a lost result, also of the round before.
        send(0, ahead, true);
        send(1, ahead, true);
        send(1, ahead.wrapping_sub(1), true);
        send(0, ahead.wrapping_sub(2), true);
        send(0, ahead + 2, false);
    }
}

fn exponents(record: &mut Record) {
    record.install(&lease(3, 2, 64), 0);
    let sets = [[-32768, 5, -7], [3, 3, 32767], [-1, -2, -3], [0, -32768, 0]];
    for (round, set) in (0..).zip(sets) {
        for elements in [0, 2] {
            for (worker, next_exponent) in (0..).zip(set) {
                let slot = elements / 2;
                let header = Header { next_exponent, ..header(worker, slot, round, elements) };
                let payload = words(&vec![i32::from(worker); elements.into()]);
                record.packet(10 + u32::from(worker), &header, &payload);
            }
        }
    }
    // A repeated packet changes no exponent.
    let late = Header { next_exponent: 32767, resent: true, ..header(0, 1, 3, 2) };
    record.packet(10, &late, &words(&[0, 0]));
}

fn parties(record: &mut Record) {
    let mut random = Random(5);
    for tree in [0, 1] {
        record.install(&Lease { tree: TreeId(tree), ..lease(4, 3, 64) }, 0);
    }
    let all = [
        Parties::ToOne(0),
        Parties::ToOne(3),
        Parties::FromOne(1),
        Parties::FromOne(3),
        Parties::Nobody,
        Parties::All,
        // Nobody of this pool.
        Parties::ToOne(9),
        Parties::FromOne(63),
    ];
    for order in [[0, 1, 2, 3], [3, 1, 0, 2]] {
        for (round, parties) in (0..).zip(all) {
            let tree = TreeId(u8::from(order[0] == 3));
            let one = |worker, resent| {
                let elements = if parties == Parties::Nobody { 0 } else { 6 };
                Header { tree, parties, resent, ..header(worker, 2, round, elements) }
            };
            order.iter().for_each(|&worker| part(record, &mut random, &one(worker, false)));
            order.iter().for_each(|&worker| part(record, &mut random, &one(worker, true)));
        }
    }
}

fn mismatch(record: &mut Record) {
    let mut random = Random(6);
    record.install(&lease(3, 2, 64), 0);
    let good = header(1, 0, 0, 6);
    part(record, &mut random, &Header { worker: 0, ..good });
    let wrong = [
        Header { chunk: 1, ..good },
        Header { n_elems: 5, ..good },
        Header { n_elems: 7, resent: true, ..good },
        Header { arithmetic: Arithmetic::Max, ..good },
        Header { parties: Parties::ToOne(1), ..good },
        Header { parties: Parties::FromOne(0), ..good },
        Header { parties: Parties::FromOne(1), ..good },
    ];
    wrong.iter().for_each(|header| part(record, &mut random, header));
    // Elements of who has none to give, and none of who has.
    let to_others = Header { parties: Parties::FromOne(2), ..good };
    record.packet(11, &to_others, &values(&mut random, 6));
    record.packet(12, &Header { kind: Kind::Ready, worker: 2, ..to_others }, &[]);
    for worker in [2, 1] {
        part(record, &mut random, &Header { worker, ..good });
    }
    // After the sum, a packet of its round has come already.
    part(record, &mut random, &Header { chunk: 1, ..good });
}

fn epochs(record: &mut Record) {
    let mut random = Random(7);
    let first = lease(2, 3, 64);
    record.install(&first, 0);
    let mut sum = |record: &mut Record, epoch: u16, round: u32| {
        for worker in [0, 1] {
            let header = Header { epoch: Epoch(epoch), ..header(worker, 0, round, 3) };
            part(record, &mut random, &header);
        }
    };
    sum(record, 1, 0);
    sum(record, 0, 1);
    sum(record, 2, 1);
    // Half a round is left behind.
    record.packet(10, &header(0, 0, 1, 3), &words(&[1, 2, 3]));
    let fin =
        |worker, epoch| Header { kind: Kind::Fin, epoch: Epoch(epoch), ..header(worker, 0, 2, 0) };
    record.packet(10, &fin(0, 1), &[]);
    // The next epoch begins at a later round, with a worker more.
    record.install(&Lease { epoch: Epoch(2), ..lease(3, 3, 64) }, 1);
    sum(record, 1, 1);
    sum(record, 2, 1);
    record.packet(12, &Header { epoch: Epoch(2), ..header(2, 0, 1, 3) }, &words(&[7, 8, 9]));
    sum(record, 2, 2);
    record.revoke(JOB, Epoch(1));
    sum(record, 2, 3);
    record.revoke(JOB, Epoch(2));
    sum(record, 2, 2);
}

fn malformed(record: &mut Record) {
    let mut random = Random(8);
    record.install(&lease(2, 3, 64), 0);
    let good = header(0, 1, 0, 5);
    let mut bytes = vec![0; HEADER_LEN];
    good.encode(bytes.first_chunk_mut().unwrap());
    bytes.extend(values(&mut random, 5));
    let wrong = [(1, 6), (1, 0x20), (2, 4), (21, 4), (25, 4), (26, 1), (27, 1), (37, 1)];
    for (at, value) in wrong {
        let mut other = bytes.clone();
        other[at] = value;
        record.bytes(10, &other);
    }
    for len in [0, 1, 37, 38, 57] {
        record.bytes(10, &bytes[..len]);
    }
    let payload = values(&mut random, 17);
    let wrong = [
        Header { job: JobId(8), ..good },
        Header { tree: TreeId(1), ..good },
        Header { epoch: Epoch(0), ..good },
        Header { epoch: Epoch(2), ..good },
        Header { worker: 1, ..good },
        Header { worker: 2, ..good },
        Header { slot: 3, ..good },
        Header { n_elems: 17, ..good },
        Header { kind: Kind::Result, ..good },
        Header { kind: Kind::Mismatch, ..good },
        Header { kind: Kind::Done, ..good },
        Header { kind: Kind::Ready, parties: Parties::Nobody, epoch: Epoch(3), ..good },
    ];
    for header in wrong {
        record.packet(10, &header, &payload[..header.payload_len()]);
    }
    // A stranger, and who is another worker than it says.
    record.packet(30, &good, &payload[..20]);
    record.packet(11, &good, &payload[..20]);
    record.packet(10, &good, &payload[..20]);
    record.packet(11, &Header { worker: 1, ..good }, &payload[..20]);
}

fn walk(record: &mut Record) {
    let mut random = Random(9);
    let leases = [(7, 0), (7, 1), (8, 0)].map(|(job, tree)| Lease {
        job: JobId(job),
        tree: TreeId(tree),
        workers: (0..3).map(|worker| PortId(10 + 10 * (job - 7) + worker)).collect(),
        ..lease(3, 2, 64)
    });
    leases.iter().for_each(|lease| record.install(lease, 0));
    // By lease and slot: the round, and who has its result.
    let mut state = [[(0u32, [false; 3]); 2]; 3];
    for _ in 0..3000 {
        let (at, slot, worker) =
            (random.below(3) as usize, random.below(2) as usize, random.below(3) as usize);
        let (round, _) = state[at][slot];
        let off = [0, 0, 0, 0, 0, 0, 1, u32::MAX, 2, u32::MAX - 1][random.below(10) as usize];
        let wanted = round.wrapping_add(off);
        let parties = match (leases[at].tree.0, wanted % 4) {
            (1, _) => Parties::FromOne((wanted % 3) as u8),
            (_, 0) => Parties::ToOne((wanted % 3) as u8),
            (_, 1) => Parties::Nobody,
            _ => Parties::All,
        };
        let elements = if parties == Parties::Nobody { 0 } else { 1 + wanted as u16 % 9 };
        let header = Header {
            job: leases[at].job,
            tree: leases[at].tree,
            resent: random.below(3) == 0,
            arithmetic: ARITHMETICS[wanted as usize % 4],
            parties,
            next_exponent: random.below(9) as i16 - 4,
            ..header(worker as u8, slot as u16, wanted, elements)
        };
        let contributes = parties.contributes(1 << worker);
        let kind = if contributes { Kind::Contribution } else { Kind::Ready };
        let payload = if contributes { values(&mut random, elements) } else { Vec::new() };
        let port = leases[at].workers[worker].0;
        let sent = record.packet(port, &Header { kind, ..header }, &payload);
        // A round is over when all have its result; some results are lost.
        let (_, has) = &mut state[at][slot];
        if off == 0 {
            for got in sent.iter().filter(|_| random.below(4) > 0) {
                let worker = leases[at].workers.iter().position(|port| port.0 == got.port);
                has[worker.unwrap()] = true;
            }
        }
        if has.iter().all(|&has| has) {
            state[at][slot] = (round + 1, [false; 3]);
        }
    }
}
