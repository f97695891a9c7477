//! A network that loses, repeats, delays, marks and corrupts packets, all from one seed.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use netsum_proto::Time;
use proptest::prelude::*;

/// SplitMix64: reproducible, and good enough to choose faults.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    pub fn chance(&mut self, p: f64) -> bool {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64 <= p && p > 0.0
    }
}

/// Faults of the network.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    pub loss: f64,
    pub duplication: f64,
    pub corruption: f64,
    pub marking: f64,
    /// Maximum variation of delays, by which packets are reordered.
    pub jitter_ns: u64,
}

/// Initial numbers: of fragments (or of rounds) of each tree, and of the epoch and the job before the first.
#[derive(Clone, Copy, Debug, Default)]
pub struct Start {
    pub number: u64,
    pub epoch: u16,
    pub job: u32,
}

/// 0, or values such that 16, 31, 32 or 33 bits wrap during the test.
pub fn start() -> impl Strategy<Value = Start> {
    let bits = prop_oneof![4 => Just(32), 1 => Just(16), 1 => Just(31), 1 => Just(33)];
    let number = (bits, 0..300u64).prop_map(|(bits, before)| (1 << bits) - before);
    let number = prop_oneof![1 => Just(0), 3 => number];
    let epoch = prop_oneof![Just(0), Just(0x7fff), Just(u16::MAX - 1), Just(u16::MAX)];
    let job = prop_oneof![Just(0), Just(u32::MAX - 1)];
    (number, epoch, job).prop_map(|(number, epoch, job)| Start { number, epoch, job })
}

/// A packet that arrives.
pub struct Arrival {
    pub to: usize,
    pub from: usize,
    pub ce: bool,
    pub packet: Vec<u8>,
}

/// Nodes are numbers. Packets arrive, and nodes wake up, in the order of time.
pub struct Network {
    pub now: Time,
    pub faults: Faults,
    pub random: Random,
    /// By sender and receiver: bytes and packets.
    pub traffic: BTreeMap<(usize, usize), (u64, u64)>,
    /// A sender, or a receiver, whose packets are lost with that probability, besides `faults`, and how many were lost.
    pub lossy: Option<(Option<usize>, Option<usize>, f64)>,
    pub lost: u64,
    queue: BinaryHeap<Reverse<(Time, u64)>>,
    arrivals: BTreeMap<u64, Arrival>,
    sequence: u64,
}

impl Network {
    pub fn new(seed: u64, faults: Faults) -> Network {
        Network {
            now: Time(0),
            faults,
            random: Random(seed),
            traffic: BTreeMap::new(),
            lossy: None,
            lost: 0,
            queue: BinaryHeap::new(),
            arrivals: BTreeMap::new(),
            sequence: 0,
        }
    }

    pub fn send(&mut self, from: usize, to: usize, packet: Vec<u8>) {
        let traffic = self.traffic.entry((from, to)).or_default();
        *traffic = (traffic.0 + packet.len() as u64, traffic.1 + 1);
        let copies = 1 + u32::from(self.random.chance(self.faults.duplication));
        for _ in 0..copies {
            if self.random.chance(self.faults.loss) {
                continue;
            }
            if let Some((sender, receiver, share)) = self.lossy
                && (sender == Some(from) || receiver == Some(to))
                && self.random.chance(share)
            {
                self.lost += 1;
                continue;
            }
            let sum = checksum(&packet);
            let mut packet = packet.clone();
            if self.random.chance(self.faults.corruption) {
                self.corrupt(&mut packet);
            }
            let delay = 10_000 + self.random.below(self.faults.jitter_ns + 1);
            let ce = self.random.chance(self.faults.marking);
            let sequence = self.schedule(self.now.after(delay));
            // The kernel drops packets with a wrong checksum.
            if checksum(&packet) == sum {
                self.arrivals.insert(sequence, Arrival { to, from, ce, packet });
            }
        }
    }

    #[allow(dead_code)] // Not every test that has a network counts bytes.
    /// Bytes that a node has sent and received, with those of Ethernet, IP, UDP and a tag.
    pub fn traffic_of(&self, node: usize) -> (u64, u64) {
        let around = |sum: u64, packets: u64| sum + packets * (14 + 20 + 8 + 16);
        let of = |is_chosen: &dyn Fn(usize, usize) -> bool| {
            let chosen = self.traffic.iter().filter(|((from, to), _)| is_chosen(*from, *to));
            chosen.fold(0, |total, (_, &(bytes, packets))| total + around(bytes, packets))
        };
        (of(&|from, _| from == node), of(&|_, to| to == node))
    }

    /// Makes `next` return at `at`, if not earlier.
    pub fn wake_at(&mut self, at: Time) {
        self.schedule(at.max(self.now));
    }

    /// Time of the next event.
    pub fn peek(&self) -> Option<Time> {
        self.queue.peek().map(|Reverse((at, _))| *at)
    }

    /// Advances to the next event: a packet's arrival, or a wake-up.
    pub fn next(&mut self) -> Option<Arrival> {
        let Reverse((at, sequence)) = self.queue.pop()?;
        self.now = at;
        self.arrivals.remove(&sequence)
    }

    fn schedule(&mut self, at: Time) -> u64 {
        self.sequence += 1;
        self.queue.push(Reverse((at, self.sequence)));
        self.sequence
    }

    fn corrupt(&mut self, packet: &mut Vec<u8>) {
        let at = self.random.below(packet.len() as u64) as usize;
        if self.random.chance(0.3) {
            packet.truncate(at);
        } else {
            packet[at] ^= 1 << self.random.below(8);
        }
    }
}

/// UDP's checksum (RFC 1071) with the length, which protects a payload in transit.
fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(*w.get(1).unwrap_or(&0)));
    let mut sum: u32 = words.sum::<u32>() + bytes.len() as u32;
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}
