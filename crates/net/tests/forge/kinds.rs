//! The kinds of forged packets: who seems to send them, whom they are for, how they are made, and for which reasons they
//! are dropped.

use netsum_wire::seal::SEALED_HEADER_LEN;

use crate::datagram::{Ip, PLAIN};
use crate::rigs::{EPOCH, JOB, Key, OTHER_JOB, Shape, TAG_AT, Wire};

/// Whose address a packet has.
#[derive(Clone, Copy, PartialEq)]
pub enum From {
    /// Nobody's of any lease.
    Outsider,
    /// A neighbour's of the target.
    Neighbour,
    /// That of a rank of another job, which has that job's key and no other.
    Member,
}

/// The target.
#[derive(Clone, Copy, PartialEq)]
pub enum To {
    Switch,
    Worker,
}

pub struct Kind {
    pub name: &'static str,
    pub from: From,
    pub to: To,
    pub ip: Ip,
    /// Of these, each packet is counted under one. Empty: some of the packets are valid.
    pub reasons: &'static [&'static str],
    pub make: fn(Wire, u64) -> Vec<u8>,
}

const UNKNOWN: &[&str] = &["unknown_sender"];
const BAD_TAG: &[&str] = &["bad_tag"];
/// What is complete is not added, or taken, again.
const OLD: &[&str] = &["replay", "too_old", "duplicate", "beyond_window", "unexpected", "overlap"];
/// The same; or it was another worker's.
const OLD_RESULT: &[&str] =
    &["replay", "too_old", "duplicate", "beyond_window", "unexpected", "overlap", "bad_tag"];
/// A header that is damaged is refused for what it says, or by its tag.
const DAMAGED: &[&str] = &[
    "bad_tag",
    "replay",
    "unknown_version",
    "unknown_kind",
    "unknown_format",
    "payload_length",
    "empty_fragment",
    "reserved_field",
    "impossible_members",
    "no_lease",
    "stale_epoch",
    "future_epoch",
    "too_old",
    "duplicate",
    "beyond_window",
    "unexpected",
    "overlap",
    "not_a_neighbour",
    "truncated_header",
];
const CE: Ip = Ip { ce: true, ..PLAIN };
const NO_CHECKSUM: Ip = Ip { checksum: false, ..PLAIN };

const fn up(
    name: &'static str,
    reasons: &'static [&'static str],
    make: fn(Wire, u64) -> Vec<u8>,
) -> Kind {
    Kind { name, from: From::Neighbour, to: To::Switch, ip: PLAIN, reasons, make }
}

const fn down(
    name: &'static str,
    reasons: &'static [&'static str],
    make: fn(Wire, u64) -> Vec<u8>,
) -> Kind {
    Kind { to: To::Worker, ..up(name, reasons, make) }
}

pub const KINDS: &[Kind] = &[
    Kind { from: From::Outsider, ..up("an outsider's address", UNKNOWN, sealed) },
    Kind { from: From::Outsider, ..down("an outsider's address, down", UNKNOWN, result) },
    up("no tag", BAD_TAG, |wire, n| wire.packet(&now(n), None)),
    up("a guessed tag", BAD_TAG, |wire, n| wire.tagged(&now(n), guess(n))),
    up("a tag of another job's key", BAD_TAG, |wire, n| wire.packet(&now(n), Some(Key::Other))),
    up("another tenant's job", &["not_a_neighbour", "no_lease", "bad_tag"], |wire, n| {
        wire.packet(&Shape { job: OTHER_JOB, ..now(n) }, Some(Key::Other))
    }),
    up("a tag of another packet", BAD_TAG, |wire, n| {
        let other = wire.packet(&Shape { number: 1, ..now(n) }, Some(Key::Own));
        wire.with_tag_of(&now(n), &other)
    }),
    up("an earlier epoch, replayed", &["stale_epoch", "bad_tag"], |wire, n| {
        wire.packet(&Shape { epoch: EPOCH - 1, ..now(n) }, Some(Key::Own))
    }),
    up("a later epoch", BAD_TAG, |wire, n| {
        wire.packet(&Shape { epoch: EPOCH + 1, ..now(n) }, None)
    }),
    up("a contribution of before, replayed", OLD, sealed),
    up("another child's contribution, replayed", &["impossible_members", "bad_tag"], |wire, n| {
        wire.packet(&Shape { child: 1, ..now(n) }, Some(Key::Own))
    }),
    up(
        "a result, replayed as a contribution",
        &["wrong_direction", "impossible_members", "bad_tag"],
        result,
    ),
    up("another tree", &["bad_tag", "no_lease"], |wire, n| {
        wire.with_tag_of(&Shape { tree: 1, ..now(n) }, &sealed(wire, n))
    }),
    up("a truncated header", &["truncated_header", "unknown_version"], |wire, n| {
        cut(sealed(wire, n), n as usize % SEALED_HEADER_LEN)
    }),
    up("a truncated payload", &["payload_length", "truncated_header"], |wire, n| {
        let packet = sealed(wire, n);
        let len = SEALED_HEADER_LEN + n as usize % (packet.len() - SEALED_HEADER_LEN);
        cut(packet, len)
    }),
    up("a tag that is cut short", &["truncated_header"], |wire, n| {
        cut(sealed(wire, n), TAG_AT + n as usize % 8)
    }),
    up("an extended packet", &["payload_length"], |wire, n| {
        [sealed(wire, n), vec![0; 1 + n as usize % 64]].concat()
    }),
    up("a flipped bit", DAMAGED, |wire, n| {
        let mut packet = sealed(wire, n);
        let bit = n as usize * 7 % (packet.len() * 8);
        packet[bit / 8] ^= 1 << (bit % 8);
        packet
    }),
    up(
        "a wrong version",
        &["unknown_version", "no_lease", "bad_tag", "unknown_kind", "reserved_field"],
        |wire, n| {
            let mut packet = sealed(wire, n);
            packet[0] = [0x00, 0x01, 0x41, 0x51, 0xff][n as usize % 5];
            packet
        },
    ),
    Kind {
        ip: NO_CHECKSUM,
        ..up("no UDP checksum", BAD_TAG, |wire, n| wire.packet(&now(n), None))
    },
    up("a forged fin", BAD_TAG, |wire, _| wire.fin()),
    up("a forged acknowledgement", &["bad_tag", "payload_length", "empty_fragment"], |wire, n| {
        wire.acknowledgement(n as u32)
    }),
    Kind {
        ip: CE,
        ..up("a forged congestion mark", BAD_TAG, |wire, n| wire.packet(&now(n), None))
    },
    down("a forged result", BAD_TAG, |wire, n| {
        wire.packet(&Shape { result: true, ..now(n) }, None)
    }),
    down("a forged mismatch", BAD_TAG, |wire, n| wire.mismatch(n as u32)),
    down("a forged notice to wait", BAD_TAG, |wire, n| wire.waiting(n as u32)),
    Kind {
        ip: CE,
        ..down("a marked result without a tag", BAD_TAG, |wire, n| {
            wire.packet(&Shape { result: true, ..now(n) }, None)
        })
    },
    down("a result of before, replayed", OLD_RESULT, result),
    down(
        "a contribution, replayed as a result",
        &["wrong_direction", "impossible_members", "bad_tag"],
        sealed,
    ),
    Kind {
        from: From::Member,
        ..up(
            "a member's packets in another job's name",
            &["bad_tag", "not_a_neighbour"],
            |wire, n| wire.packet(&now(n), Some(Key::Other)),
        )
    },
    // Valid packets of the member's own job, whose sums it may spoil: wrong chunks, other payloads under one number,
    // numbers far ahead, and the end of the epoch in between.
    Kind {
        from: From::Member,
        ..up("anything of a member in its own job", &[], |wire, n| {
            let shape = Shape { job: OTHER_JOB, child: 2, number: (n % 50) as u32, ..now(n) };
            wire.packet(
                &Shape { chunk: n as u32 % 3, result: n % 11 == 10, serial: n, ..shape },
                Some(Key::Other),
            )
        })
    },
];

/// A packet of an honest child; the first number of the epoch, which is complete.
fn now(n: u64) -> Shape {
    Shape {
        job: JOB,
        epoch: EPOCH,
        tree: 0,
        child: 0,
        number: 0,
        chunk: 7,
        result: false,
        value: n as u8 | 1,
        serial: 0,
    }
}

fn sealed(wire: Wire, n: u64) -> Vec<u8> {
    wire.packet(&now(n), Some(Key::Own))
}

fn result(wire: Wire, n: u64) -> Vec<u8> {
    wire.packet(&Shape { result: true, ..now(n) }, Some(Key::Own))
}

fn guess(n: u64) -> u64 {
    n.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1
}

fn cut(mut packet: Vec<u8>, len: usize) -> Vec<u8> {
    packet.truncate(len);
    packet
}
