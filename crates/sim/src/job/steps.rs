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
}

/// One worker's part in one step: its sends, and the number of messages after which it continues.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Receiving ranks and bytes.
    pub sends: Vec<(u32, u64)>,
    /// Number of messages of this step to this worker.
    pub receives: u32,
}

impl HostAlgorithm {
    /// Number of steps of an allreduce among `ranks` workers.
    pub fn steps(self, ranks: u32) -> u32 {
        let floor = ranks.max(1).ilog2();
        match self {
            HostAlgorithm::Ring => 2 * (ranks - 1),
            HostAlgorithm::HalvingDoubling => 2 * floor + 2,
            HostAlgorithm::ParameterServer => 2,
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
                Step { sends: others.map(|to| (to, size(to))).collect(), receives: ranks - 1 }
            }
        }
    }
}

fn ring(rank: u32, ranks: u32, step: u32, bytes: u64) -> Step {
    let round = step % (ranks - 1);
    let first = rank + u32::from(step >= ranks - 1);
    let chunk = (first + ranks - round) % ranks;
    Step { sends: vec![((rank + 1) % ranks, share(chunk, ranks, bytes))], receives: 1 }
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
        };
    }
    if extra {
        return Step::default();
    }
    // Halving starts with the furthest worker; doubling runs in the opposite order.
    let level = if step <= levels { step } else { 2 * levels + 1 - step };
    Step { sends: vec![(rank ^ power >> level, bytes >> level)], receives: 1 }
}

/// Bytes of a share if shares are as even as whole elements of four bytes allow.
fn share(index: u32, ranks: u32, bytes: u64) -> u64 {
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
        Collective::Allreduce => algorithm.steps(ranks),
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
            Step { sends: vec![((rank + 1) % ranks, share(chunk, ranks, bytes))], receives: 1 }
        }
        Collective::AllToAll => {
            let sends = others().map(|to| (to, share(to, ranks, bytes))).collect();
            Step { sends, receives: ranks - 1 }
        }
        Collective::Gather { root } if rank == root => {
            Step { sends: Vec::new(), receives: ranks - 1 }
        }
        Collective::Gather { root } => {
            Step { sends: vec![(root, share(rank, ranks, bytes))], receives: 0 }
        }
        Collective::Scatter { root } if rank == root => {
            Step { sends: others().map(|to| (to, share(to, ranks, bytes))).collect(), receives: 0 }
        }
        Collective::Scatter { .. } => Step { sends: Vec::new(), receives: 1 },
        Collective::Broadcast { root } => {
            let (from, to) = down((rank + ranks - root) % ranks, ranks, step, bytes);
            let sends = to.map(|(place, bytes)| ((place + root) % ranks, bytes));
            Step { sends: sends.into_iter().collect(), receives: from.is_some().into() }
        }
        // The same messages in the other direction and order.
        Collective::Reduce { root } => {
            let step = steps_of(kind, algorithm, ranks, bytes) - 1 - step;
            let (from, to) = down((rank + ranks - root) % ranks, ranks, step, bytes);
            let sends = from.map(|(place, bytes)| ((place + root) % ranks, bytes));
            Step { sends: sends.into_iter().collect(), receives: to.is_some().into() }
        }
        // Dissemination (Hensgen, Finkel and Manber 1988).
        Collective::Barrier => Step { sends: vec![((rank + (1 << step)) % ranks, 0)], receives: 1 },
    }
}

/// Number of pieces in which a buffer goes from rank to rank; one: by a binomial tree.
fn pieces(bytes: u64) -> u32 {
    bytes.div_ceil(PIECE_BYTES).clamp(1, PIECES_MAX) as u32
}

const PIECE_BYTES: u64 = 64 << 10;
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

    const ALL: [HostAlgorithm; 3] =
        [HostAlgorithm::Ring, HostAlgorithm::HalvingDoubling, HostAlgorithm::ParameterServer];

    /// In every step, every worker is sent as many messages as it awaits, for all sizes of jobs.
    #[test]
    fn every_message_is_awaited() {
        for algorithm in ALL {
            for ranks in 1..=40 {
                for step in 0..algorithm.steps(ranks) {
                    let mut incoming = vec![0; ranks as usize];
                    let all: Vec<Step> =
                        (0..ranks).map(|r| algorithm.step(r, ranks, step, 1_000_003)).collect();
                    for (rank, step) in all.iter().enumerate() {
                        for &(to, _) in &step.sends {
                            assert_ne!(to as usize, rank);
                            incoming[to as usize] += 1;
                        }
                    }
                    let awaited: Vec<u32> = all.iter().map(|s| s.receives).collect();
                    assert_eq!(incoming, awaited, "{algorithm:?}, {ranks} ranks, step {step}");
                }
            }
        }
    }

    /// 2(N−1)/N of the buffer is the lower bound of a worker's traffic if no other node adds.
    #[test]
    fn each_worker_sends_the_lower_bound() {
        for algorithm in ALL {
            for ranks in [2u32, 4, 8, 16] {
                let bytes = 16_000_000;
                let sent: u64 = (0..algorithm.steps(ranks))
                    .flat_map(|s| algorithm.step(1, ranks, s, bytes).sends)
                    .map(|(_, bytes)| bytes)
                    .sum();
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
        for step in 0..HostAlgorithm::Ring.steps(n) {
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
