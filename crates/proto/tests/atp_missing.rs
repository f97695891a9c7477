//! Contributions that an `atp` server lacks: it asks for them when a worker waits, and they pass by the slots.

use netsum_proto::atp::*;
use netsum_proto::operations::{Fragments, Submission};
use netsum_proto::values::{Rows, Values};

use netsum_proto::{Aggregator, CongestionRule, DropReason, Pattern, PortId, Time, WorkerMachine};
use netsum_wire::atp::{Flags, Header, Kind, Level};
use netsum_wire::*;

const ROW: u16 = 16;
const WINDOW: u16 = 64;
const MS: u64 = 1_000_000;
const PAYLOAD: [u8; 16] = [1; 16];

/// Two racks of two workers; the server is connected to each rack's switch.
fn server() -> Server<Rows> {
    let neighbour = |rack: u32| Neighbour { port: PortId(rack), racks: 1 << rack, workers: 0b11 };
    let mut server = Server::new(ROW, Rows::new(512, ROW.into()));
    let lease = ServerLease {
        job: JobId(1),
        epoch: Epoch(1),
        tree: TreeId(0),
        racks: vec![vec![0, 1], vec![2, 3]],
        neighbours: vec![neighbour(0), neighbour(1)],
        window: WINDOW,
        fragment_bytes: ROW,
        slots: 8,
    };
    server.install(Time(0), lease).unwrap();
    server
}

fn header(kind: Kind, sequence: u32) -> Header {
    Header {
        kind,
        level: Level::Server,
        flags: Flags::default(),
        arithmetic: Arithmetic::Wrapping,
        tree: TreeId(0),
        job: JobId(1),
        sequence: Sequence(sequence),
        chunk: 7 + sequence,
        epoch: Epoch(1),
        n_elems: if kind.has_payload() { 4 } else { 0 },
        rack_fan_in: 2,
        server_fan_in: 2,
        slot: SlotIndex(0),
        others: 0,
        workers: 0,
        racks: 0,
        next_slot: SlotIndex(0),
        parties: Parties::All,
    }
}

/// A server, and what it sends: kind, racks, workers, sequence, others.
struct Told(Server<Rows>);

impl Told {
    /// A contribution of some workers of a rack.
    fn give(
        &mut self,
        rack: u32,
        workers: u32,
        sequence: u32,
        resend: bool,
    ) -> Vec<(Kind, u32, u32, u32, u32)> {
        let flags = Flags { resend, ..Flags::default() };
        let header =
            Header { flags, workers, racks: 1 << rack, ..header(Kind::Contribution, sequence) };
        let _ = self.0.handle(Time(0), PortId(rack), false, &header, &PAYLOAD);
        let sent = std::iter::from_fn(|| self.0.poll_transmit())
            .map(|sent| {
                let h = sent.header;
                (h.kind, h.racks, h.workers, h.sequence.0, h.others)
            })
            .collect();
        self.0.values_mut().flushed();
        sent
    }
}

#[test]
fn a_server_asks_for_what_is_missing_when_a_worker_waits() {
    let mut server = Told(server());
    // Of fragments 0, 2, 3 and 40 rack 1 lacks a worker, of 1 both workers; 4 lacks a worker of rack 0, 5 is unknown.
    for sequence in [0, 1, 2, 3, 40] {
        assert_eq!(server.give(0, 0b11, sequence, false), []);
    }
    for sequence in [0, 2, 3, 40] {
        assert_eq!(server.give(1, 0b01, sequence, false), []);
    }
    assert_eq!(server.give(0, 0b01, 4, false), []);
    assert_eq!(server.give(1, 0b11, 4, false), []);
    let asked = server.give(0, 0b01, 0, true);
    let waiting = (Kind::Waiting, 1, 0b01, 0, 0);
    assert_eq!(asked, [waiting, (Kind::Missing, 2, 0b10, 0, 0b111)], "0, 1, 2 and 3");
    // Not for the same again, but for 4; then there is nothing left.
    let waiting = (Kind::Waiting, 1, 0b10, 0, 0);
    assert_eq!(server.give(0, 0b10, 0, true), [waiting, (Kind::Missing, 1, 0b10, 4, 0)]);
    assert_eq!(server.give(0, 0b10, 0, true), [waiting]);
    // Fragment 40 comes into reach as others are done.
    let results = server.give(1, 0b10, 0, true);
    assert_eq!(results.len(), 2, "{results:?}");
    for sequence in 2..4 {
        let results = server.give(1, 0b10, sequence, true);
        assert!(results.iter().all(|sent| sent.0 == Kind::Result), "{results:?}");
    }
    let results = server.give(0, 0b10, 4, true);
    assert_eq!(results.len(), 2, "{results:?}");
    // Of 1 rack 1 lacks the other worker still: whose part has come by such a way is not all that is missing.
    assert_eq!(server.give(1, 0b10, 1, true), [(Kind::Missing, 2, 0b01, 1, 0)]);
    let results = server.give(1, 0b01, 1, true);
    assert_eq!(results.iter().filter(|sent| sent.0 == Kind::Result).count(), 2);
    assert_eq!(results.len(), 2, "{results:?}");
    assert_eq!(server.0.leases().next().unwrap().1.requested, 6);
}

#[test]
fn a_server_that_nobody_asks_asks_nobody() {
    let mut server = Told(server());
    for sequence in 0..8 {
        for (rack, workers) in [(0, 0b01), (0, 0b10), (1, 0b11)] {
            let sent = server.give(rack, workers, sequence, false);
            assert!(sent.iter().all(|sent| sent.0 == Kind::Result), "{sent:?}");
        }
    }
}

fn worker() -> Worker {
    let place =
        WorkerPosition { level: Level::Rack, worker: 0, rack_fan_in: 2, rack: 0, server_fan_in: 2 };
    let config = WorkerConfig {
        job: JobId(1),
        epoch: Epoch(1),
        rank: Rank(0),
        ranks: 4,
        copies: false,
        places: vec![place],
        window_max: 2,
        fragment_bytes: ROW,
        slots: 8,
        congestion: CongestionRule::Fixed(2),
        scaling: Scaling::Shared,
    };
    let mut worker = Worker::new(Time(0), config);
    worker.submit(Submission {
        id: 0,
        format: Format { dtype: Dtype::I32, op: ReduceOp::Sum },
        numel: 16,
        fingerprint: 7,
        fragments: Fragments::All,
        pattern: Pattern::Allreduce,
    });
    worker
}

fn sent(worker: &mut Worker, now: Time) -> Vec<(u32, bool)> {
    std::iter::from_fn(|| worker.poll_transmit(now))
        .map(|sent| (sent.header.sequence.0, sent.header.flags.resend))
        .collect()
}

#[test]
fn a_worker_sends_past_the_slots_what_others_wait_for() {
    let mut worker = worker();
    assert_eq!(sent(&mut worker, Time(0)), [(0, false), (1, false)]);
    let chunk = |sequence: u32| 7u32.wrapping_add(sequence.wrapping_mul(0x9e37_79b1));
    let missing = |sequence, others| Header { others, ..header(Kind::Missing, sequence) };
    // What is on its way is not sent again; the worker asks soon, long before a time-out.
    worker.handle(Time(MS / 10), false, &missing(0, 0b100)).unwrap();
    assert_eq!(sent(&mut worker, Time(MS / 10)), []);
    assert_eq!(worker.poll_timeout(), Some(Time(MS / 10 + MS / 4)));
    // What is not on its way any more is sent at once, and fragment 3 in its turn.
    worker.handle(Time(MS), false, &missing(1, 0)).unwrap();
    assert_eq!(sent(&mut worker, Time(MS)), [(1, true)]);
    for (sequence, then) in [(0, (2, false)), (1, (3, true))] {
        let result = Header { chunk: chunk(sequence), ..header(Kind::Result, sequence) };
        worker.handle(Time(2 * MS), false, &result).unwrap();
        assert_eq!(sent(&mut worker, Time(2 * MS)), [then]);
    }
    let late = worker.handle(Time(3 * MS), false, &missing(0, 0b1));
    assert_eq!(late, Err(DropReason::Duplicate), "all of them are complete");
}
