//! A worker whose job does every collective, and switches that answer anything.

use std::collections::HashSet;
use std::sync::Arc;

use netsum_proto::handover::resolve;
use netsum_proto::panama::{Fragments, Submission, Worker, WorkerConfig};
use netsum_proto::{CongestionRule, Pattern, Time, WorkerMachine};
use netsum_wire::Parties;
use netsum_wire::panama::{Header, Kind};
use netsum_wire::{Dtype, Epoch, Format, JobId, Rank, ReduceOp, Vid};

const NUMEL: u64 = 100;
const RANK: u8 = 0;

/// Interprets bytes as changes to answers to what the worker has sent: four per answer. No fragment is complete twice,
/// and results with elements come for those that this rank takes only. Returns the number of complete fragments.
pub fn worker(bytes: &[u8]) -> usize {
    let mut worker = Worker::new(Time(0), config());
    for (id, pattern) in (0..).zip(patterns()) {
        let format = Format { dtype: Dtype::F32, op: ReduceOp::Sum };
        let fragments = Fragments::All;
        worker.submit(Submission { id, format, numel: NUMEL, fingerprint: 7, fragments, pattern });
    }
    let mut sent: Vec<Header> = Vec::new();
    let mut complete = HashSet::new();
    let mut now = 0;
    for change in bytes.chunks_exact(4) {
        now += 1_000_000;
        while let Some(outgoing) = worker.poll_transmit(Time(now)) {
            sent.push(outgoing.header);
            assert!(sent.len() < 1000 * (1 + bytes.len()), "a worker sends a window at a time");
        }
        let Some(header) = sent.get(usize::from(change[0]) % sent.len().max(1)) else { break };
        let answer = answer(header, change[1], change[2], change[3]);
        let outcome = worker.handle(Time(now), change[1] & 8 != 0, &answer);
        while let Some(settled) = worker.poll_settled() {
            assert!(complete.insert(settled.g), "fragment {} twice", settled.g);
        }
        if let Ok(Some(place)) = outcome {
            assert!(complete.insert(place.g), "fragment {} twice", place.g);
            assert!(place.elements.end <= NUMEL && answer.parties.takes(1 << RANK));
            assert_eq!(place.elements.end - place.elements.start, u64::from(answer.n_elems));
        }
        if worker.poll_timeout().is_some_and(|due| due <= Time(now)) {
            worker.handle_timeout(Time(now));
        }
        while worker.poll_event().is_some() {}
    }
    // The epoch ends, and no other rank has anything.
    let nothing = Worker::new(Time(0), WorkerConfig { rank: Rank(1), ..config() }).progress();
    let finished = resolve(&[worker.progress(), nothing]).finished;
    let repeated = worker.to_repeat(&finished);
    let rest = worker.remaining(&finished);
    let again = |id| rest.iter().any(|submission: &Submission| submission.id == id);
    assert!(repeated.iter().all(|fragment| again(fragment.id)), "what is repeated is a rest");
    complete.len()
}

/// A switch's answer to a packet, changed by three bytes.
fn answer(header: &Header, how: u8, others: u8, vid: u8) -> Header {
    let takes = header.parties.takes(1 << RANK);
    let near = if vid < 0xc0 { 0 } else { i32::from(vid as i8) };
    let mut answer = Header {
        kind: if how & 7 == 7 { Kind::Mismatch } else { Kind::Result },
        empty: takes == (how & 0x30 == 0x30),
        asks: false,
        resent: false,
        others: if others < 0x80 { 0 } else { u64::from(others) << (others & 31) },
        vid: Vid(header.vid.0.wrapping_add_signed(near)),
        marks: u32::from(how),
        ..*header
    };
    if how & 0xc0 == 0xc0 {
        answer.parties = [Parties::All, Parties::ToOne(1), Parties::FromOne(1), Parties::Nobody]
            [usize::from(others & 3)];
    }
    answer
}

fn config() -> WorkerConfig {
    WorkerConfig {
        job: JobId(1),
        epoch: Epoch(3),
        rank: Rank(RANK.into()),
        ranks: 2,
        trees: 4,
        copies: true,
        window_max: 4,
        fragment_bytes: 64,
        congestion: CongestionRule::PerBranch,
        partial: false,
    }
}

fn patterns() -> [Pattern; 6] {
    let shards = |first: u64| Arc::from([first, NUMEL - first]);
    [
        Pattern::ReduceScatter(shards(50)),
        Pattern::Allgather(shards(30)),
        Pattern::Reduce(Rank(1)),
        Pattern::Allreduce,
        Pattern::Broadcast(Rank(0)),
        Pattern::ReduceScatter(shards(0)),
    ]
}
