//! Collectives between hosts as steps: what each worker sends, and how many messages it awaits.

use crate::schedule::Collective;

/// An algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostAlgorithm {
    /// Ring (Patarasuk and Yuan 2009): 2(N−1) steps of a chunk to the next worker.
    Ring,
    /// Recursive halving, then doubling (Rabenseifner 2004); workers beyond a power of two fold into others.
    HalvingDoubling,
    /// Every worker is the server of its share: all send it their part, and receive the sum (BytePS).
    ParameterServer,
    /// The same in chunks, whose sums leave as soon as they are complete: netsum's own between hosts (`shares`).
    Shares,
}

/// One worker's part in one step: its sends, and the number of messages after which it continues.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Receiving ranks and bytes.
    pub sends: Vec<(u32, u64)>,
    /// Messages behind them that their receivers await in a later step: receiving ranks, bytes, and that step.
    pub ahead: Vec<(u32, u64, u32)>,
    /// Number of messages of this step to this worker.
    pub receives: u32,
}

impl Step {
    /// Sends one message, and awaits one.
    fn one(to: u32, bytes: u64) -> Step {
        Step { sends: vec![(to, bytes)], receives: 1, ..Step::default() }
    }

    /// All messages in the order in which they are sent, each with the step in which its receiver awaits it; this is
    /// number `step`.
    pub fn messages(&self, step: u32) -> impl Iterator<Item = (u32, u64, u32)> {
        let now = self.sends.iter().map(move |&(to, bytes)| (to, bytes, step));
        now.chain(self.ahead.iter().copied())
    }
}

impl HostAlgorithm {
    /// Number of steps of an allreduce of `bytes` among `ranks` workers.
    pub fn steps(self, ranks: u32, bytes: u64) -> u32 {
        let floor = ranks.max(1).ilog2();
        match self {
            HostAlgorithm::Ring => 2 * (ranks - 1),
            HostAlgorithm::HalvingDoubling => 2 * floor + 2,
            HostAlgorithm::ParameterServer => 2,
            HostAlgorithm::Shares => chunks(ranks, bytes) + 1,
        }
    }

    /// The part of `rank` in a step of an allreduce of `bytes`.
    pub fn step(self, rank: u32, ranks: u32, step: u32, bytes: u64) -> Step {
        if ranks == 1 {
            return Step::default();
        }
        match self {
            HostAlgorithm::Ring => ring(rank, ranks, step, bytes),
            HostAlgorithm::HalvingDoubling => halving_doubling(rank, ranks, step, bytes),
            HostAlgorithm::ParameterServer => {
                let others = (0..ranks).filter(|&r| r != rank);
                let size = |to| share(if step == 0 { to } else { rank }, ranks, bytes);
                let sends = others.map(|to| (to, size(to))).collect();
                Step { sends, receives: ranks - 1, ..Step::default() }
            }
            HostAlgorithm::Shares => shares(rank, ranks, step, bytes),
        }
    }
}

/// Number of chunks of a share.
fn chunks(ranks: u32, bytes: u64) -> u32 {
    bytes.div_ceil(ranks.into()).div_ceil(CHUNK_BYTES).clamp(1, PIECES_MAX) as u32
}

/// All contributions are sent at once. In step c the sum of chunk c is complete, in the last one all sums are there.
fn shares(rank: u32, ranks: u32, step: u32, bytes: u64) -> Step {
    let chunks = chunks(ranks, bytes);
    let size = |owner: u32, chunk: u32| share(chunk, chunks, share(owner, ranks, bytes));
    let others = || (1..ranks).map(move |distance| (rank + distance) % ranks);
    let mut part = Step { receives: ranks - 1, ..Step::default() };
    if step == 0 {
        part.sends = others().map(|to| (to, size(to, 0))).collect();
        let later = (1..chunks).flat_map(|chunk| others().map(move |to| (to, chunk)));
        part.ahead = later.map(|(to, chunk)| (to, size(to, chunk), chunk)).collect();
    } else if step < chunks {
        part.ahead = others().map(|to| (to, size(rank, step - 1), chunks)).collect();
    } else {
        part.sends = others().map(|to| (to, size(rank, step - 1))).collect();
        part.receives = chunks * (ranks - 1);
    }
    part
}

fn ring(rank: u32, ranks: u32, step: u32, bytes: u64) -> Step {
    let round = step % (ranks - 1);
    let first = rank + u32::from(step >= ranks - 1);
    let chunk = (first + ranks - round) % ranks;
    Step::one((rank + 1) % ranks, share(chunk, ranks, bytes))
}

fn halving_doubling(rank: u32, ranks: u32, step: u32, bytes: u64) -> Step {
    let levels = ranks.ilog2();
    let power = 1 << levels;
    let last = 2 * levels + 1;
    let (extra, partner) = (rank >= power, (rank + power) % (2 * power));
    let folds = partner < ranks;
    if step == 0 || step == last {
        // Workers beyond the power of two send their buffer first, and receive the sum last.
        let sends = folds && (extra == (step == 0));
        return Step {
            sends: if sends { vec![(partner, bytes)] } else { Vec::new() },
            receives: u32::from(folds && !sends),
            ..Step::default()
        };
    }
    if extra {
        return Step::default();
    }
    // Halving starts with the furthest worker; doubling runs in the opposite order.
    let level = if step <= levels { step } else { 2 * levels + 1 - step };
    Step::one(rank ^ power >> level, bytes >> level)
}

/// Bytes of a share if shares are as even as whole elements of four bytes allow.
pub(super) fn share(index: u32, ranks: u32, bytes: u64) -> u64 {
    let elements = bytes.div_ceil(4);
    let at = |i: u32| elements * u64::from(i) / u64::from(ranks);
    4 * (at(index + 1) - at(index))
}

/// Number of steps of an operation of `ranks` workers; an allreduce is by `algorithm`.
pub fn steps_of(kind: Collective, algorithm: HostAlgorithm, ranks: u32, bytes: u64) -> u32 {
    if ranks == 1 {
        return 0;
    }
    match kind {
        Collective::Allreduce => algorithm.steps(ranks, bytes),
        Collective::AllGather | Collective::ReduceScatter => ranks - 1,
        Collective::AllToAll | Collective::Gather { .. } | Collective::Scatter { .. } => 1,
        Collective::Broadcast { .. } | Collective::Reduce { .. } => match pieces(bytes) {
            1 => (ranks - 1).ilog2() + 1,
            pieces => pieces + ranks - 2,
        },
        Collective::Barrier => (ranks - 1).ilog2() + 1,
    }
}

/// The part of `rank` in a step of an operation of `bytes`, which are those of the whole buffer.
pub fn step_of(
    kind: Collective,
    algorithm: HostAlgorithm,
    (rank, ranks): (u32, u32),
    step: u32,
    bytes: u64,
) -> Step {
    let others = || (1..ranks).map(move |distance| (rank + distance) % ranks);
    match kind {
        Collective::Allreduce => algorithm.step(rank, ranks, step, bytes),
        // The two halves of a ring's allreduce.
        Collective::ReduceScatter => ring(rank, ranks, step, bytes),
        Collective::AllGather => {
            let chunk = (rank + ranks - step) % ranks;
            Step::one((rank + 1) % ranks, share(chunk, ranks, bytes))
        }
        Collective::AllToAll => {
            let sends = others().map(|to| (to, share(to, ranks, bytes))).collect();
            Step { sends, receives: ranks - 1, ..Step::default() }
        }
        Collective::Gather { root } if rank == root => {
            Step { receives: ranks - 1, ..Step::default() }
        }
        Collective::Gather { root } => {
            Step { sends: vec![(root, share(rank, ranks, bytes))], ..Step::default() }
        }
        Collective::Scatter { root } if rank == root => {
            let sends = others().map(|to| (to, share(to, ranks, bytes))).collect();
            Step { sends, ..Step::default() }
        }
        Collective::Scatter { .. } => Step { receives: 1, ..Step::default() },
        Collective::Broadcast { root } => {
            let (from, to) = down((rank + ranks - root) % ranks, ranks, step, bytes);
            let sends = to.map(|(place, bytes)| ((place + root) % ranks, bytes));
            let sends = sends.into_iter().collect();
            Step { sends, receives: from.is_some().into(), ..Step::default() }
        }
        // The same messages in the other direction and order.
        Collective::Reduce { root } => {
            let step = steps_of(kind, algorithm, ranks, bytes) - 1 - step;
            let (from, to) = down((rank + ranks - root) % ranks, ranks, step, bytes);
            let sends = from.map(|(place, bytes)| ((place + root) % ranks, bytes));
            let sends = sends.into_iter().collect();
            Step { sends, receives: to.is_some().into(), ..Step::default() }
        }
        // Dissemination (Hensgen, Finkel and Manber 1988).
        Collective::Barrier => Step::one((rank + (1 << step)) % ranks, 0),
    }
}

/// Number of pieces in which a buffer goes from rank to rank; one: by a binomial tree.
fn pieces(bytes: u64) -> u32 {
    bytes.div_ceil(PIECE_BYTES).clamp(1, PIECES_MAX) as u32
}

const PIECE_BYTES: u64 = 64 << 10;
/// As of netsum's ranks.
const CHUNK_BYTES: u64 = 256 << 10;
const PIECES_MAX: u64 = 64;

/// One step of a broadcast from place 0: from whom a place receives, and to whom it sends, each with the bytes.
fn down(place: u32, ranks: u32, step: u32, bytes: u64) -> (Option<Part>, Option<Part>) {
    let pieces = pieces(bytes);
    if pieces == 1 {
        let reach = 1 << step;
        let from = (reach..2 * reach).contains(&place).then(|| (place - reach, bytes));
        let to = (place < reach && place + reach < ranks).then(|| (place + reach, bytes));
        return (from, to);
    }
    // Along a chain: piece k goes from place p in step k + p.
    let size = |piece: u32| share(piece, pieces, bytes);
    let at = |place: u32| step.checked_sub(place).filter(|&piece| piece < pieces);
    let from = place.checked_sub(1).and_then(|from| Some((from, size(at(from)?))));
    let to = (place + 1 < ranks).then(|| Some((place + 1, size(at(place)?)))).flatten();
    (from, to)
}

/// A place, and bytes.
type Part = (u32, u64);

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [HostAlgorithm; 4] = [
        HostAlgorithm::Ring,
        HostAlgorithm::HalvingDoubling,
        HostAlgorithm::ParameterServer,
        HostAlgorithm::Shares,
    ];

    /// In every step, every worker is sent as many messages as it awaits, for all sizes of jobs.
    #[test]
    fn every_message_is_awaited() {
        for (algorithm, ranks) in ALL.iter().flat_map(|&all| (1..=40).map(move |n| (all, n))) {
            for bytes in [1_003, 40_000_003] {
                let steps = algorithm.steps(ranks, bytes);
                let mut incoming = vec![vec![0; ranks as usize]; steps as usize];
                let mut awaited = incoming.clone();
                for (rank, step) in (0..ranks).flat_map(|r| (0..steps).map(move |s| (r, s))) {
                    let part = algorithm.step(rank, ranks, step, bytes);
                    awaited[step as usize][rank as usize] = part.receives;
                    for (to, _, then) in part.messages(step) {
                        assert_ne!(to, rank);
                        incoming[then as usize][to as usize] += 1;
                    }
                }
                assert_eq!(incoming, awaited, "{algorithm:?}, {ranks} ranks");
            }
        }
    }

    /// 2(N−1)/N of the buffer is the lower bound of a worker's traffic if no other node adds.
    #[test]
    fn each_worker_sends_the_lower_bound() {
        for algorithm in ALL {
            for ranks in [2u32, 4, 8, 16] {
                let bytes = 16_000_000;
                let all = (0..algorithm.steps(ranks, bytes)).flat_map(|s| {
                    let messages = algorithm.step(1, ranks, s, bytes);
                    messages.messages(s).map(|(_, bytes, _)| bytes).collect::<Vec<u64>>()
                });
                let sent: u64 = all.sum();
                assert_eq!(sent, 2 * bytes * u64::from(ranks - 1) / u64::from(ranks));
            }
        }
    }

    /// Follows each worker's contributions through the ring: every chunk is complete at every worker.
    #[test]
    fn the_ring_completes_every_chunk() {
        let (n, bytes) = (7u32, 7 * 400);
        let mut held = vec![vec![1u64; n as usize]; n as usize];
        (0..n as usize).for_each(|r| held[r].iter_mut().for_each(|c| *c = 1 << r));
        for step in 0..HostAlgorithm::Ring.steps(n, bytes) {
            let before = held.clone();
            for rank in 0..n {
                let round = step % (n - 1);
                let chunk = ((rank + u32::from(step >= n - 1)) + n - round) % n;
                assert_eq!(ring(rank, n, step, bytes).sends[0].1, 400);
                let to = ((rank + 1) % n) as usize;
                let part = before[rank as usize][chunk as usize];
                match step < n - 1 {
                    true => held[to][chunk as usize] |= part,
                    false => held[to][chunk as usize] = part,
                }
            }
        }
        assert!(held.iter().flatten().all(|&c| c == (1 << n) - 1), "{held:?}");
    }
}
