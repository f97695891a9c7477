//! Fuzz targets of the protocols with slots: `atp` (switch, server and worker in one world) and `switchml`.

use std::collections::HashSet;

use netsum_proto::atp::{
    Claim, Lease, Members, Neighbour, Policy, Scaling, Server, ServerLease, Submission, Switch,
    SwitchConfig, Worker, WorkerConfig, WorkerPosition,
};
use netsum_proto::operations::Fragments;
use netsum_proto::values::{Rows, Values};
use netsum_proto::{Aggregator, CongestionRule, Pattern, PortId, Time, WorkerMachine, switchml};
use netsum_wire::atp::{HEADER_LEN, Header, Kind, Level};
use netsum_wire::{Dtype, Epoch, Format, JobId, Rank, ReduceOp, TreeId};

const EPOCH: Epoch = Epoch(3);
const ROW: u16 = 16;
const WINDOW: u16 = 4;
/// Slots, two windows of two jobs at the server, and packets in flight.
const ROWS: usize = 512;
/// The server's port at the switch, and the switch's at the server.
const BETWEEN: PortId = PortId(7);

/// Bytes are a packet of either protocol that encodes to the same bytes, or are refused with a reason.
pub fn decode(bytes: &[u8]) {
    if let Ok((header, payload)) = Header::decode(bytes) {
        let mut again = [0; HEADER_LEN];
        header.encode(&mut again);
        super::check_parts(bytes, &mut again, payload);
    }
    if let Ok((header, payload)) = netsum_wire::switchml::Header::decode(bytes) {
        let mut again = [0; netsum_wire::switchml::HEADER_LEN];
        header.encode(&mut again);
        super::check_parts(bytes, &mut again, payload);
    }
}

/// Bytes are packets to a switch that two jobs share, to their server, and to a worker of one of them.
/// Memory stays bounded, packets go to neighbours of the right lease, the worker accepts nothing twice,
/// and ended jobs leave nothing. Returns the server's results.
pub fn atp(bytes: &[u8]) -> u64 {
    let policy = match bytes.first().map_or(0, |b| b % 3) {
        0 => Policy::FirstCome,
        1 => Policy::Partition,
        _ => Policy::Preempt { patience_ns: 5_000 },
    };
    let config = SwitchConfig { slots: 4, row_bytes: ROW, policy, straggler_ns: 20_000 };
    let mut switch = Switch::new(config, Rows::new(ROWS, ROW.into()));
    let mut server = Server::new(ROW, Rows::new(ROWS, ROW.into()));
    for (job, tree) in [(1, 0), (1, 1), (2, 0), (2, 1)] {
        switch.install(Time(0), lease(job, tree)).expect("small leases fit");
        server.install(Time(0), server_lease(job, tree)).expect("small leases fit");
    }
    let mut worker = worker();
    let mut accepted = HashSet::new();
    let mut packet = Vec::new();
    let (mut rest, mut now) = (bytes, 0);
    while let Some(step) = next_packet(&mut rest, &mut packet) {
        now += 1000;
        switch.handle_timeout(Time(now));
        if let Ok((header, payload)) = Header::decode(&packet) {
            let from = PortId(u32::from(step & 7));
            if step & 0x18 != 0 {
                let _ = switch.handle(Time(now), from, step & 0x20 != 0, &header, payload);
            } else {
                let _ = server.handle(Time(now), BETWEEN, false, &header, payload);
            }
            if let Ok(Some(place)) = worker.handle(Time(now), false, &header) {
                assert!(accepted.insert(place.g), "fragment {} twice", place.g);
                assert_eq!(place.content.payload_len(), payload.len());
            }
            while let Some(place) = worker.poll_settled() {
                assert!(accepted.insert(place.g), "fragment {} twice", place.g);
            }
        }
        let mut passed = Vec::new();
        while let Some(sent) = switch.poll_transmit() {
            let ports = [sent.header.job.0 * 2, sent.header.job.0 * 2 + 1].map(PortId);
            assert!(sent.to == BETWEEN || ports.contains(&sent.to), "{sent:?}");
            let payload = sent.payload.map_or(&[][..], |row| switch.values().get(row));
            if sent.to == BETWEEN {
                passed.push((sent.header, payload.to_vec()));
            }
        }
        switch.values_mut().flushed();
        assert_eq!(switch.values().used(), switch.held() as usize);
        for (header, payload) in passed {
            let _ = server.handle(Time(now), BETWEEN, false, &header, &payload);
        }
        while let Some(sent) = server.poll_transmit() {
            assert_eq!(sent.to, BETWEEN);
        }
        server.values_mut().flushed();
        while worker.poll_event().is_some() {}
        let sent = std::iter::from_fn(|| worker.poll_transmit(Time(now))).take(1000).count();
        assert!(sent < 1000, "a worker sends at most a window at a time");
    }
    let results = server.leases().map(|(_, counters)| counters.results).sum();
    for job in 1..=2 {
        switch.revoke(JobId(job), EPOCH);
        server.revoke(JobId(job), EPOCH);
    }
    switch.values_mut().flushed();
    server.values_mut().flushed();
    assert_eq!((switch.held(), switch.values().used(), server.values().used()), (0, 0, 0));
    results
}

/// Bytes are packets to a `switchml` switch with the two pools of a job: its memory stays bounded. Returns its results.
pub fn switchml(bytes: &[u8]) -> u64 {
    let mut switch = switchml::Switch::new(16, ROW, Rows::new(32, ROW.into()));
    let workers = vec![PortId(0), PortId(1)];
    let (job, epoch, slots, fragment_bytes) = (JobId(1), EPOCH, 4, ROW);
    for tree in [TreeId(0), TreeId(1)] {
        let workers = workers.clone();
        let lease = switchml::Lease { job, epoch, tree, workers, slots, fragment_bytes };
        switch.install(Time(0), lease).expect("a small pool fits");
    }
    let mut rest = bytes;
    while let Some((&[worker, flags, round, slot], after)) = rest.split_first_chunk() {
        rest = after;
        let mut packet = vec![0x31, flags & 0x17, flags >> 6, worker & 1];
        packet.extend(1u32.to_be_bytes());
        packet.extend(u32::from(round & 7).to_be_bytes());
        packet.extend(u32::from(worker >> 7 & flags >> 5 & 1).to_be_bytes());
        packet.extend(EPOCH.0.to_be_bytes());
        packet.extend(u16::from(slot & 3).to_be_bytes());
        packet.extend([0, 2, 0, worker, slot >> 2 & 1, slot >> 3 & 3, slot >> 5 & 1]);
        packet.extend([0; 11]);
        // Of packets up, contributions alone have elements.
        packet.resize(packet.len() + if flags & 7 == 0 { 8 } else { 0 }, worker);
        if let Ok((header, payload)) = netsum_wire::switchml::Header::decode(&packet) {
            let from = PortId(u32::from(worker >> 1 & 1));
            let _ = switch.handle(Time(0), from, false, &header, payload);
        }
        while let Some(sent) = switch.poll_transmit() {
            assert!(sent.to.0 < 2);
        }
        switch.values_mut().flushed();
        assert!(switch.values().used() <= 16);
    }
    let sums = switch.leases().map(|(_, counters)| counters.completed).sum();
    switch.revoke(JobId(1), EPOCH);
    switch.values_mut().flushed();
    assert_eq!(switch.values().used(), 0);
    sums
}

fn lease(job: u32, tree: u8) -> Lease {
    Lease {
        job: JobId(job),
        epoch: EPOCH,
        tree: TreeId(tree),
        members: Members::Rack {
            workers: vec![PortId(job * 2), PortId(job * 2 + 1)],
            rack: 0,
            racks: 1,
        },
        parent: BETWEEN,
        window: WINDOW,
        fragment_bytes: ROW,
        claim: Claim { guaranteed: 2 * u32::from(tree == 0), limit: 3, priority: job as u8 },
    }
}

fn server_lease(job: u32, tree: u8) -> ServerLease {
    ServerLease {
        job: JobId(job),
        epoch: EPOCH,
        tree: TreeId(tree),
        racks: vec![vec![0, 1]],
        neighbours: vec![Neighbour { port: BETWEEN, racks: 1, workers: 3 }],
        window: WINDOW,
        fragment_bytes: ROW,
        slots: 4,
    }
}

fn worker() -> Worker {
    let place =
        WorkerPosition { level: Level::Rack, worker: 0, rack_fan_in: 2, rack: 0, server_fan_in: 1 };
    let mut worker = Worker::new(
        Time(0),
        WorkerConfig {
            job: JobId(1),
            epoch: EPOCH,
            rank: Rank(0),
            ranks: 2,
            copies: true,
            places: vec![place; 2],
            window_max: WINDOW,
            fragment_bytes: ROW,
            slots: 4,
            congestion: CongestionRule::Aimd { packet_bytes: 306 },
            scaling: Scaling::Shared,
        },
    );
    let patterns = [
        (Dtype::F32, Pattern::Allreduce),
        (Dtype::I32, Pattern::ReduceScatter([20, 30].into())),
        (Dtype::I32, Pattern::Broadcast(Rank(1))),
        (Dtype::I32, Pattern::Barrier),
    ];
    for (id, (dtype, pattern)) in (0..).zip(patterns) {
        let format = Format { dtype, op: ReduceOp::Sum };
        let numel = if pattern == Pattern::Barrier { 0 } else { 50 };
        let fragments = Fragments::All;
        worker.submit(Submission { id, format, numel, fingerprint: 0, fragments, pattern });
    }
    worker
}

/// The next packet and how it comes: a plausible one of which the bytes say each field.
fn next_packet(rest: &mut &[u8], packet: &mut Vec<u8>) -> Option<u8> {
    let (&[step, kind, flags, sequence, members], after) = rest.split_first_chunk()?;
    *rest = after;
    packet.clear();
    let usual = |byte: u8| byte < 0xc0;
    let kind = if usual(kind) { Kind::Contribution as u8 } else { kind & 0x17 };
    // Three of four packets come from where they say that they do.
    let job = if usual(flags) { u32::from(step & 7) / 2 } else { u32::from(flags & 3) };
    let sequence =
        if usual(sequence) { i32::from(sequence & 7) } else { i32::from(sequence as i8) };
    let worker = if usual(members) { 1 << (step & 1) } else { u32::from(members & 3) };
    let level = if step & 0x18 == 0 { 0x10 } else { 0 };
    let arithmetic = if usual(flags) { 0x10 } else { (flags & 7) << 4 };
    // Who contributes and who takes; what one rank contributes travels on the copy of the tree.
    let parties = step >> 6;
    let rank = if matches!(parties, 1 | 2) { members >> 2 & 1 } else { 0 };
    packet.extend([0x21, kind | level, flags & 0x0f | arithmetic, u8::from(parties == 2)]);
    packet.extend(job.to_be_bytes());
    packet.extend(sequence.to_be_bytes());
    packet.extend(u32::from(members == 0xff).to_be_bytes());
    packet.extend(EPOCH.0.to_be_bytes());
    packet.extend(2u16.to_be_bytes());
    packet.extend([2, 1]);
    packet.extend(u32::from(sequence as u8 & 3).to_be_bytes());
    packet.extend(worker.to_be_bytes());
    packet.extend(1u32.to_be_bytes());
    packet.extend([rank, parties]);
    packet.extend([0; 10]);
    let payload = if kind & 15 < 2 { 8 } else { 0 };
    packet.resize(HEADER_LEN + payload, members);
    Some(step)
}
