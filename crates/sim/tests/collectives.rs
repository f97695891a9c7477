//! Collectives between hosts, step by step: everyone hears of everyone, nobody sends more than it must.

use netsum_sim::job::{HostAlgorithm, step_of, steps_of};
use netsum_sim::schedule::Collective;

const KINDS: [Collective; 9] = [
    Collective::Allreduce,
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::AllToAll,
    Collective::Broadcast { root: 1 },
    Collective::Reduce { root: 1 },
    Collective::Gather { root: 1 },
    Collective::Scatter { root: 1 },
    Collective::Barrier,
];

/// Follows who knows of whom through the messages of a step-by-step run: an operation is complete exactly at those
/// ranks, and with those contributions, that its definition demands. A message carries all that its sender knows.
#[test]
fn everyone_who_must_hears_of_everyone() {
    let cases = KINDS.iter().flat_map(|&kind| [4_000, 3_000_000].map(|bytes| (kind, bytes)));
    for ((kind, bytes), ranks) in cases.flat_map(|case| (2..=20u32).map(move |n| (case, n))) {
        let mut known: Vec<u32> = (0..ranks).map(|rank| 1 << rank).collect();
        for step in 0..steps_of(kind, HostAlgorithm::Ring, ranks, bytes) {
            let before = known.clone();
            let mut received = vec![0; ranks as usize];
            let mut awaited = Vec::new();
            for rank in 0..ranks {
                let part = step_of(kind, HostAlgorithm::Ring, (rank, ranks), step, bytes);
                awaited.push(part.receives);
                for (to, _) in part.sends {
                    assert!(to < ranks && to != rank, "{kind:?} of {ranks}");
                    received[to as usize] += 1;
                    known[to as usize] |= before[rank as usize];
                }
            }
            assert_eq!(received, awaited, "{kind:?} of {ranks}, {bytes} bytes, step {step}");
        }
        let all = (1u32 << ranks) - 1;
        let whole = |rank: usize| known[rank] == all;
        let from_root = |rank: usize| known[rank] & 0b10 != 0;
        let is_complete = match kind {
            Collective::Reduce { root } | Collective::Gather { root } => whole(root as usize),
            Collective::Broadcast { .. } | Collective::Scatter { .. } => {
                (0..ranks as usize).all(from_root)
            }
            _ => (0..ranks as usize).all(whole),
        };
        assert!(is_complete, "{kind:?} of {ranks}, {bytes} bytes: {known:?}");
    }
}

/// What a worker sends is what bounds demand, to the byte: (N−1)/N of the buffer, or all of it.
#[test]
fn each_worker_sends_no_more_than_it_must() {
    for (kind, bytes) in KINDS.iter().flat_map(|&kind| [8_000, 8_000_000].map(|b| (kind, b))) {
        let sent = |rank: u32| -> u64 {
            let steps = 0..steps_of(kind, HostAlgorithm::Ring, 8, bytes);
            let parts = steps.map(|s| step_of(kind, HostAlgorithm::Ring, (rank, 8), s, bytes));
            parts.flat_map(|part| part.sends).map(|(_, bytes)| bytes).sum()
        };
        let total: u64 = (0..8).map(sent).sum();
        let expected = match kind {
            Collective::Allreduce => 2 * 7 * bytes,
            Collective::AllGather | Collective::ReduceScatter | Collective::AllToAll => 7 * bytes,
            Collective::Broadcast { .. } | Collective::Reduce { .. } => 7 * bytes,
            Collective::Gather { .. } | Collective::Scatter { .. } => 7 * bytes / 8,
            Collective::Barrier => 0,
        };
        assert_eq!(total, expected, "{kind:?}");
    }
}
