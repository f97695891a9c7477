//! Hand-overs of whole groups under random schedules: any order of messages between pairs, plans that reach some ranks
//! late or never, trees that die, further faults during a hand-over, numbers that wrap.

mod leaderless;
mod led;

use std::collections::VecDeque;

use netsum_proto::Time;
use netsum_proto::handover::{DecodeError, Handover, Plan, Transmit};
use netsum_wire::{Epoch, Rank};

/// A plan of these tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TestPlan {
    epoch: u16,
    trees: u8,
    /// Fragments of plans with the same number are the same.
    cut: u8,
}

impl Plan for TestPlan {
    fn epoch(&self) -> Epoch {
        Epoch(self.epoch)
    }

    fn has_trees(&self) -> bool {
        self.trees > 0
    }

    fn continues(&self, before: &TestPlan) -> bool {
        self.cut == before.cut
    }

    fn patience_ns(&self) -> u64 {
        PATIENCE_NS
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.epoch.to_be_bytes());
        out.extend([self.trees, self.cut]);
    }

    fn decode(bytes: &[u8], _: u32) -> Result<TestPlan, String> {
        match *bytes {
            [a, b, trees, cut] if trees <= MAX_TREES => {
                Ok(TestPlan { epoch: u16::from_be_bytes([a, b]), trees, cut })
            }
            _ => Err("no plan".to_owned()),
        }
    }
}

/// Messages between ranks: ordered for each pair, in any order otherwise.
#[derive(Default)]
struct Network {
    queues: Vec<(u32, u32, VecDeque<Vec<u8>>)>,
    /// A queue that is served only if all others are empty: its messages arrive after all that follow from others.
    slow: usize,
}

impl Network {
    fn send(&mut self, from: u32, transmit: Transmit) {
        let to = transmit.to.0;
        match self.queues.iter_mut().find(|(a, b, _)| (*a, *b) == (from, to)) {
            Some((_, _, queue)) => queue.push_back(transmit.bytes),
            None => self.queues.push((from, to, VecDeque::from([transmit.bytes]))),
        }
    }

    /// Any message that may arrive next.
    fn next(&mut self, random: &mut Random) -> Option<(u32, u32, Vec<u8>)> {
        if random.one_in(100) {
            self.slow = random.below(self.queues.len() as u64) as usize;
        }
        let filled = (0..self.queues.len()).filter(|&i| !self.queues[i].2.is_empty());
        let mut filled: Vec<usize> = filled.collect();
        if filled.len() > 1 || !random.one_in(10) {
            filled.retain(|&i| i != self.slow);
        }
        let &chosen = filled.get(random.below(filled.len() as u64) as usize)?;
        let (from, to, queue) = &mut self.queues[chosen];
        Some((*from, *to, queue.pop_front()?))
    }

    fn is_empty(&self) -> bool {
        self.queues.iter().all(|(_, _, queue)| queue.is_empty())
    }
}

/// A small generator (SplitMix64): the tests' schedule comes from one number.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// Every prefix of a message, and the message with one byte changed, is understood or refused.
fn mutate(machine: &Handover<TestPlan>, from: u32, bytes: &[u8], random: &mut Random) {
    let cut = random.below(bytes.len() as u64) as usize;
    let refused = machine.clone().handle_message(Time(u64::MAX / 2), Rank(from), &bytes[..cut]);
    assert!(refused.is_err_and(|error| error.from == Rank(from)), "a prefix is refused");
    let mut changed = bytes.to_vec();
    let at = random.below(bytes.len() as u64) as usize;
    changed[at] ^= 1 << random.below(8);
    let _ = machine.clone().handle_message(Time(u64::MAX / 2), Rank(from), &changed);
}

#[test]
fn a_message_of_another_release_is_refused_with_its_version() {
    use netsum_proto::handover::{Cause, Mode, Settings};
    let settings = Settings { rank: Rank(0), size: 2, mode: Mode::Led, timeout_ns: 1 };
    let mut machine: Handover<TestPlan> = Handover::new(settings);
    let error = machine.handle_message(Time(0), Rank(1), &[9, 1]).unwrap_err();
    assert_eq!(error.cause, Cause::Malformed(DecodeError::Version(9)));
    assert_eq!(
        error.to_string(),
        "the hand-over message of rank 1 cannot be taken: its format has version 9, this rank reads version 1"
    );
    assert!(machine.handle_message(Time(0), Rank(0), &[1, 2]).is_err(), "from itself");
    assert!(machine.handle_message(Time(0), Rank(2), &[1, 2]).is_err(), "from nobody");
}

const PATIENCE_NS: u64 = 1_000;
const MAX_TREES: u8 = 3;
