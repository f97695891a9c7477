//! Fuzz targets: arbitrary bytes must not crash netsum or change its results.
//!
//! `make fuzz` runs libFuzzer on every target of [`TARGETS`]. The same functions run on the kept inputs (`seeds`) and on
//! random bytes in the tests of crate `collective` (`tests/fuzz.rs`), with the stable compiler.

pub mod handover;
pub mod parsers;
pub mod sharded;
pub mod slots;

use std::collections::HashSet;

use netsum_proto::panama::{
    Child, Fragments, Lease, Memory, Slab, Submission, Switch, Transmit, Worker, WorkerConfig,
};
use netsum_proto::{Aggregator, CongestionRule, PortId, Time, WorkerMachine};
use netsum_topo::links::{Format, ImportOptions, import, write_json};
use netsum_wire::panama::{HEADER_LEN, Header};
use netsum_wire::seal::{SEALED_HEADER_LEN, TRAILER_LEN, is_encrypted, is_sealed};
use netsum_wire::{Dtype, Epoch, JobId, Rank, ReduceOp, TreeId};

/// What a target does with its input.
pub type Target = fn(&[u8]);

/// All targets: the name of each, as of its file in `fuzz_targets` and its folder in `seeds`.
pub const TARGETS: &[(&str, Target)] = &[
    ("controller", netsum_control::fuzzing::controller),
    ("decode", |bytes| {
        decode(bytes);
        slots::decode(bytes);
        parsers::tag(bytes);
    }),
    ("fabric", parsers::fabric),
    ("handover", |bytes| _ = handover::handover(bytes)),
    ("handshake", netsum_net::fuzzing::mesh_handshake),
    ("identity", parsers::identity),
    ("job_plan", netsum_control::fuzzing::plan),
    ("lease", parsers::lease),
    ("mesh", netsum_net::fuzzing::mesh_stream),
    ("plan", parsers::plan),
    ("ranks", parsers::ranks),
    ("rings", netsum_net::fuzzing::mesh_rings),
    ("schedule", parsers::schedule),
    ("sharded", |bytes| _ = sharded::worker(bytes)),
    ("slots", |bytes| {
        slots::decode(bytes);
        slots::atp(bytes);
        slots::switchml(bytes);
    }),
    ("switch", |bytes| _ = switch(bytes)),
    ("topology", topology),
    ("worker", |bytes| _ = worker(bytes)),
];

/// Runs a target by its name. libFuzzer's program begins in C++, so that nobody ignores SIGPIPE for it.
pub fn run(name: &str, bytes: &[u8]) {
    let (_, target) =
        TARGETS.iter().find(|(known, _)| *known == name).expect("a target of the list");
    netsum_net::without_sigpipe(|| target(bytes));
}

/// Exactly the windows of all leases below.
const MEMORY: u64 = 64 << 10;
const FRAGMENT_BYTES: u16 = 64;
const SLOTS: u16 = 4;
const EPOCH: u16 = 3;

/// Parses bytes as a topology in the format of the first byte; an accepted one survives writing and reading again.
pub fn topology(bytes: &[u8]) {
    let Some((&which, rest)) = bytes.split_first() else { return };
    let Ok(text) = std::str::from_utf8(rest) else { return };
    let formats = [
        Format::Toml,
        Format::Json,
        Format::NvidiaSmi,
        Format::NcclXml,
        Format::LstopoXml,
        Format::NodeLink,
    ];
    let format = formats.get(usize::from(which)).copied();
    let options = ImportOptions::default();
    if let Ok(graph) = import(text, "fuzz", format, &options) {
        assert_eq!(import(&write_json(&graph), "fuzz", Some(Format::Json), &options), Ok(graph));
    }
}

/// Decodes bytes as a packet, which must encode to the same bytes or be rejected with a reason.
pub fn decode(bytes: &[u8]) {
    if let Ok((header, payload)) = Header::decode(bytes) {
        let mut again = [0; HEADER_LEN];
        header.encode(&mut again);
        check_parts(bytes, &mut again, payload);
    }
}

/// Checks that a packet consists of such a header and payload. A sealed packet has another version, and a number and a
/// tag before its payload; of an encrypted one, half of the tag follows the payload.
fn check_parts(bytes: &[u8], header: &mut [u8], payload: &[u8]) {
    header[0] = bytes[0];
    // What an unsealed packet of atp reserves is not in a sealed one.
    let (len, start) = match is_sealed(bytes) {
        true => (HEADER_LEN, SEALED_HEADER_LEN),
        false => (header.len(), header.len()),
    };
    let end = bytes.len() - if is_encrypted(bytes) { TRAILER_LEN } else { 0 };
    assert_eq!((&bytes[..len], &bytes[start..end]), (&header[..len], payload));
}

/// Interprets bytes as packets from neighbours and other senders to a switch with three leases. Its memory stays
/// bounded, and it sends only well-formed packets to neighbours of the right lease. Returns the number of released sums.
pub fn switch(bytes: &[u8]) -> u64 {
    let mut switch = Switch::new(Slab::new(MEMORY));
    for lease in [
        lease(1, &[0, 1], None, 1000),
        lease(2, &[2, 3], Some(4), 1000),
        lease(3, &[5, 6, 7], None, 600),
    ] {
        switch.install(Time(0), lease).expect("three small leases fit");
    }
    let mut script = Script(bytes);
    let mut packet = Vec::new();
    let mut now = 0;
    while let Some(step) = script.next_packet(&mut packet) {
        now += 1000;
        if let Ok((header, payload)) = Header::decode(&packet) {
            let _ = switch.handle(Time(now), PortId(step.port.into()), step.ce, &header, payload);
        }
        if step.flush {
            drain(&mut switch);
        }
        assert!(switch.memory().used() <= switch.memory().limit());
    }
    drain(&mut switch);
    let released = switch.tree_counters().map(|(.., counters)| counters.released).sum();
    for job in 1..=3 {
        switch.revoke(JobId(job), Epoch(EPOCH));
    }
    switch.flushed();
    assert_eq!(switch.memory().used(), 0, "ended jobs leave nothing");
    released
}

/// Interprets bytes as packets to a worker with two trees and two operations. No fragment is accepted twice, or at a
/// wrong offset.
pub fn worker(bytes: &[u8]) -> usize {
    let config = WorkerConfig {
        job: JobId(1),
        epoch: Epoch(EPOCH),
        rank: Rank(0),
        ranks: 2,
        trees: 2,
        copies: false,
        window_max: SLOTS,
        fragment_bytes: FRAGMENT_BYTES,
        congestion: CongestionRule::PerBranch,
        partial: bytes.first().is_some_and(|b| b & 1 == 1),
    };
    let mut worker = Worker::new(Time(0), config);
    let format = netsum_wire::Format { dtype: Dtype::F32, op: ReduceOp::Sum };
    for id in 0..2 {
        let fragments = Fragments::All;
        worker.submit(Submission {
            id,
            format,
            numel: 100,
            fingerprint: 7,
            fragments,
            pattern: Default::default(),
        });
    }
    let mut script = Script(bytes);
    let mut packet = Vec::new();
    let mut accepted = HashSet::new();
    let mut now = 0;
    while let Some(step) = script.next_packet(&mut packet) {
        now += 1_000_000;
        let decoded = Header::decode(&packet);
        let taken = decoded.map(|(header, _)| (header, worker.handle(Time(now), step.ce, &header)));
        if let Ok((header, Ok(Some(place)))) = taken {
            assert!(accepted.insert(place.g), "fragment {} twice", place.g);
            assert!(place.elements.end <= 100 && place.id < 2);
            assert_eq!(place.elements.end - place.elements.start, u64::from(header.n_elems));
        }
        if worker.poll_timeout().is_some_and(|due| due <= Time(now)) {
            worker.handle_timeout(Time(now));
        }
        while worker.poll_event().is_some() {}
        let mut sent = 0;
        while worker.poll_transmit(Time(now)).is_some() {
            sent += 1;
            assert!(sent < 1000, "a worker sends at most a window at a time");
        }
    }
    accepted.len()
}

fn lease(job: u32, ports: &[u32], parent: Option<u32>, release_permille: u16) -> Lease {
    let child =
        |(i, &port): (usize, &u32)| Child { port: PortId(port), ranks: 1 << i, branch: i as u8 };
    Lease {
        job: JobId(job),
        epoch: Epoch(EPOCH),
        tree: TreeId(0),
        children: ports.iter().enumerate().map(child).collect(),
        parent: parent.map(PortId),
        slots: SLOTS,
        fragment_bytes: FRAGMENT_BYTES,
        release_permille,
    }
}

fn drain(switch: &mut Switch<Slab>) {
    while let Some(transmit) = switch.poll_transmit() {
        let (to, header) = match transmit {
            Transmit::Control { to, header } => (to, header),
            Transmit::Data { to, buffer } => {
                let packet = switch.memory().packet(buffer);
                (to, Header::decode(packet).expect("a switch sends packets").0)
            }
        };
        let of = switch.leases().find(|lease| lease.job == header.job).expect("a leased job");
        let neighbour = of.parent == Some(to) || of.children.iter().any(|child| child.port == to);
        assert!(neighbour, "{to:?} is not of job {}", header.job);
    }
    switch.flushed();
}

/// Bytes as a sequence of packets.
struct Script<'a>(&'a [u8]);

/// A received packet's circumstances.
struct Step {
    port: u8,
    ce: bool,
    flush: bool,
}

impl Script<'_> {
    /// The next packet: raw bytes, or (most often) a plausible one with fields from the script.
    fn next_packet(&mut self, packet: &mut Vec<u8>) -> Option<Step> {
        let how = self.byte()?;
        let stranger = if how >> 4 == 0xe { 8 } else { 0 };
        let step = Step { port: (how & 7) + stranger, ce: how & 8 != 0, flush: how & 16 != 0 };
        packet.clear();
        if how >> 4 == 0xf {
            let len = usize::from(self.byte()? & 63).min(self.0.len());
            let (raw, rest) = self.0.split_at(len);
            packet.extend_from_slice(raw);
            self.0 = rest;
            return Some(step);
        }
        let [kind, place, vid, count, rest] =
            [self.byte()?, self.byte()?, self.byte()?, self.byte()?, self.byte()?];
        // Three of four values of a byte select the usual case, so that random bytes reach deep states.
        let usual = |byte: u8| byte < 0xc0;
        let kind = match kind {
            0..0x80 => 0,
            0x80..0xb0 => 2,
            _ => kind & 0x3f,
        };
        let of_port = [1, 1, 2, 2, 2, 3, 3, 3][usize::from(step.port & 7)];
        let (job, epoch) = match usual(place) {
            true => (of_port, EPOCH),
            false => (u32::from(place & 3), u16::from(place >> 2 & 7)),
        };
        let vid = if usual(vid) { i32::from(vid & 7) } else { i32::from(vid as i8) };
        let count = if usual(count) { 8 } else { count & 31 };
        let (format, chunk) = if usual(rest) { (0, 0) } else { (usize::from(rest & 3), rest >> 2) };
        packet.extend([0x11, kind, u8::from(place == 0xff), [0x00, 0x30, 0x20, 0x10][format]]);
        packet.extend(job.to_be_bytes());
        packet.extend(vid.to_be_bytes());
        packet.extend(u32::from(chunk).to_be_bytes());
        packet.extend(epoch.to_be_bytes());
        packet.extend(u16::from(rest >> 2).to_be_bytes());
        packet.extend(u16::from(count).to_be_bytes());
        packet.extend([0; 16]);
        let size = match kind & 15 {
            0 | 2 => [4, 4, 2, 2][format],
            1 => 4,
            _ => 0,
        };
        packet.resize(HEADER_LEN + usize::from(count) * size, rest);
        Some(step)
    }

    fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }
}
