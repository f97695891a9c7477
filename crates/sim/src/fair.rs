//! A host's output queue with a queue per flow, served in turns: the deficit round robin of Linux's `fq_codel` (RFC
//! 8290).
//!
//! CoDel is left out. Hosts keep little of a flow in these queues, so that packets do not wait there for CoDel's 5 ms.
//! What TCP's windows allow is here at once, in order, and what is beyond its small queue counts as in the socket. A
//! worker puts no more here than its small queue takes, as it chooses among its trees for every packet: it asks
//! ([`FairQueue::poll_room`]) before each.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use crate::packet::{Kind, Packet};
use crate::visit::Visitor;

/// Bytes that a flow may send per turn: a full packet with its Ethernet header.
pub(crate) const QUANTUM: i64 = 1514;
/// A small queue takes this many packets, however long they are.
const LEAST_PACKETS: u32 = 2;

/// The packets that wait in a host, by flow.
pub(crate) struct FairQueue {
    /// Bytes of a flow that wait in the queue itself; the others are still in the flow's socket or with the worker.
    small_bytes: u32,
    /// Whether to measure how long packets wait in the queue itself.
    is_measured: bool,
    flows: Vec<FlowQueue>,
    /// Flows in `new` or `old`, by their keys.
    by_key: FxHashMap<u64, u32>,
    unused: Vec<u32>,
    /// Flows that had nothing waiting are served before the others, once.
    new: VecDeque<u32>,
    old: VecDeque<u32>,
    packets: u64,
    /// Whether a timer will fill the ring.
    pub(crate) is_timed: bool,
}

#[derive(Default)]
struct FlowQueue {
    key: u64,
    deficit: i64,
    /// Packets or runs of them.
    runs: VecDeque<Packet>,
    packets: u32,
    bytes: u64,
    /// The timer of a worker that waits for room.
    waiting: Option<u64>,
    /// When those packets entered the queue itself that are in it, if that is measured.
    entered_ps: VecDeque<u64>,
}

/// What makes packets one flow: the two directions of a flow are two, and a worker's trees are one, as the worker has
/// one socket.
fn key(packet: &Packet) -> u64 {
    match packet.kind() {
        Kind::Data => u64::from(packet.flow),
        Kind::Ack => 1 << 62 | u64::from(packet.flow),
        Kind::Tree => socket_key(packet.dst(), packet.aux),
    }
}

/// The key of what a socket of an aggregation protocol sends.
fn socket_key(protocol: u32, socket: u32) -> u64 {
    2 << 62 | u64::from(protocol) << 32 | u64::from(socket)
}

/// A packet that leaves the queue.
pub(crate) struct Departure {
    pub packet: Packet,
    /// When it entered the queue itself, if that is measured.
    pub entered_ps: Option<u64>,
    /// The timer of the worker that has waited for room.
    pub room_for: Option<u64>,
}

impl FlowQueue {
    /// Number of packets that are in the queue itself.
    fn inside(&self, small_bytes: u32) -> u32 {
        let bytes = self.runs.front().map_or(1, |first| u32::from(first.bytes).max(1));
        (small_bytes / bytes).max(LEAST_PACKETS).min(self.packets)
    }

    fn has_room(&self, small_bytes: u32) -> bool {
        self.bytes < u64::from(small_bytes) || self.packets < LEAST_PACKETS
    }

    /// Notes that packets enter the queue itself now, as far as it has room.
    fn enter(&mut self, now_ps: u64, small_bytes: u32) {
        let inside = self.inside(small_bytes) as usize;
        while self.entered_ps.len() < inside {
            self.entered_ps.push_back(now_ps);
        }
    }

    /// Appends a packet or a run. A segment that is sent again goes before those that are still in the socket.
    fn append(&mut self, packet: Packet, small_bytes: u32) {
        match self.runs.back_mut() {
            Some(last) if last.extends_to(&packet) => last.aux += packet.aux,
            Some(last) if packet.kind() == Kind::Data && packet.seq < last.seq => {
                self.insert(packet, self.inside(small_bytes));
            }
            _ => self.runs.push_back(packet),
        }
        self.packets += packet.run();
        self.bytes += u64::from(packet.run()) * u64::from(packet.bytes);
    }

    /// Inserts a packet behind the first `before` ones.
    fn insert(&mut self, packet: Packet, mut before: u32) {
        let mut at = 0;
        while let Some(run) = self.runs.get_mut(at)
            && before > 0
        {
            at += 1;
            if run.run() > before {
                let rest = Packet { seq: run.seq + before, aux: run.aux - before, ..*run };
                run.aux = before;
                self.runs.insert(at, rest);
                break;
            }
            before -= run.run();
        }
        self.runs.insert(at, packet);
    }
}

impl FairQueue {
    pub(crate) fn new(small_bytes: u32, is_measured: bool) -> FairQueue {
        FairQueue {
            small_bytes,
            is_measured,
            flows: Vec::new(),
            by_key: FxHashMap::default(),
            unused: Vec::new(),
            new: VecDeque::new(),
            old: VecDeque::new(),
            packets: 0,
            is_timed: false,
        }
    }

    pub(crate) fn len(&self) -> u64 {
        self.packets
    }

    /// Visits the state; `base` as in [`Packet::visit`]. Where a flow's queue is stored is of no consequence.
    pub(crate) fn visit(&mut self, v: &mut impl Visitor, base: &[u32]) {
        let FairQueue {
            small_bytes: _,
            is_measured: _,
            flows,
            by_key: _,
            unused: _,
            new,
            old,
            packets,
            is_timed,
        } = self;
        v.both(new.len() as u32, old.len() as u32);
        v.both(*packets as u32, (*is_timed).into());
        for &index in new.iter().chain(&*old) {
            let FlowQueue {
                key,
                deficit,
                runs,
                packets,
                // They follow from the runs.
                bytes: _,
                waiting,
                entered_ps,
            } = &mut flows[index as usize];
            v.same(*key);
            v.same(waiting.unwrap_or(0));
            v.same(*deficit as u64);
            v.both(runs.len() as u32, *packets);
            runs.iter().for_each(|run| run.visit_content(v, base));
            v.same(entered_ps.len() as u64);
            entered_ps.iter_mut().for_each(|at_ps| v.time(at_ps));
        }
    }

    /// Whether nothing waits and no flow has a turn.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.new.is_empty() && self.old.is_empty() && !self.is_timed
    }

    /// All packets and runs.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Packet> {
        self.flows.iter().flat_map(|flow| &flow.runs)
    }

    /// Whether a worker's small queue has room for a packet. If not, the departure that leaves it half empty has its
    /// timer.
    pub(crate) fn poll_room(&mut self, (protocol, socket): (u16, u32), timer: u64) -> bool {
        // Nothing of it waits.
        let Some(&index) = self.by_key.get(&socket_key(protocol.into(), socket)) else {
            return true;
        };
        let flow = &mut self.flows[index as usize];
        let has_room = flow.has_room(self.small_bytes);
        if !has_room {
            flow.waiting = Some(timer);
        }
        has_room
    }

    /// Appends a packet or a run to its flow.
    pub(crate) fn push(&mut self, packet: Packet, now_ps: u64) {
        let key = key(&packet);
        let index = *self.by_key.entry(key).or_insert_with(|| {
            let index = self.unused.pop().unwrap_or(self.flows.len() as u32);
            if index as usize == self.flows.len() {
                self.flows.push(FlowQueue::default());
            }
            let flow = &mut self.flows[index as usize];
            (flow.key, flow.deficit) = (key, QUANTUM);
            self.new.push_back(index);
            index
        });
        let flow = &mut self.flows[index as usize];
        self.packets += u64::from(packet.run());
        flow.append(packet, self.small_bytes);
        if self.is_measured {
            flow.enter(now_ps, self.small_bytes);
        }
    }

    /// Removes the next packet.
    pub(crate) fn pop(&mut self, now_ps: u64) -> Option<Departure> {
        loop {
            let is_new = !self.new.is_empty();
            let &index = if is_new { self.new.front() } else { self.old.front() }?;
            let flow = &mut self.flows[index as usize];
            if flow.deficit > 0
                && let Some(run) = flow.runs.front_mut()
            {
                let mut packet = *run;
                if run.run() > 1 {
                    packet.aux = 1;
                    run.seq += 1;
                    run.aux -= 1;
                } else {
                    flow.runs.pop_front();
                }
                // Whoever is alone begins a turn with each packet: otherwise what is left of its turns would be another
                // number after each packet, and no state would come back.
                if self.new.len() + self.old.len() == 1 {
                    flow.deficit = QUANTUM;
                }
                flow.deficit -= i64::from(packet.bytes);
                flow.packets -= 1;
                flow.bytes -= u64::from(packet.bytes);
                self.packets -= 1;
                let entered_ps = flow.entered_ps.pop_front();
                if self.is_measured {
                    flow.enter(now_ps, self.small_bytes);
                }
                // As the system reports a socket writable. Most packets go out with results, which find room before.
                let room_for = flow.waiting.filter(|_| flow.has_room(self.small_bytes / 2));
                if room_for.is_some() {
                    flow.waiting = None;
                }
                return Some(Departure { packet, entered_ps, room_for });
            }
            if is_new {
                self.new.pop_front()
            } else {
                self.old.pop_front()
            };
            if flow.deficit <= 0 {
                flow.deficit += QUANTUM;
                self.old.push_back(index);
            } else if is_new && !self.old.is_empty() {
                // Otherwise a flow that is always short of packets would always be new.
                self.old.push_back(index);
            } else {
                self.by_key.remove(&flow.key);
                self.unused.push(index);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(flow: u32, seq: u32, count: u32) -> Packet {
        Packet { aux: count, ..Packet::new(Kind::Data, flow, seq, 1502) }
    }

    fn order(queue: &mut FairQueue, count: usize) -> Vec<(u32, u32)> {
        (0..count).map(|_| queue.pop(0).unwrap().packet).map(|p| (p.flow, p.seq)).collect()
    }

    #[test]
    fn flows_take_turns_whatever_each_has_waiting() {
        let mut queue = FairQueue::new(1 << 17, false);
        queue.push(segment(1, 0, 1000), 0);
        queue.push(segment(2, 0, 3), 0);
        // A turn ends with the packet that uses the quantum up.
        let served = order(&mut queue, 8);
        assert_eq!(served.iter().filter(|(flow, _)| *flow == 2).count(), 3);
        assert_eq!(served.iter().filter(|(flow, _)| *flow == 1).count(), 5);
        assert_eq!(queue.len(), 995);
    }

    #[test]
    fn a_flow_that_had_nothing_waiting_comes_first() {
        let mut queue = FairQueue::new(1 << 17, false);
        (1..=4).for_each(|flow| queue.push(segment(flow, 0, 100), 0));
        order(&mut queue, 20);
        let ack = Packet::new(Kind::Ack, 1, 7, 54);
        queue.push(ack, 0);
        assert_eq!(queue.pop(0).unwrap().packet.kind(), Kind::Ack);
    }

    #[test]
    fn short_packets_get_as_many_bytes_as_long_ones() {
        let mut queue = FairQueue::new(1 << 17, false);
        for seq in 0..2000 {
            queue.push(Packet { bytes: 150, ..segment(1, seq, 1) }, 0);
            queue.push(segment(2, seq, 1), 0);
        }
        let served = order(&mut queue, 1100);
        let long = served.iter().filter(|(flow, _)| *flow == 2).count();
        assert!((98..=102).contains(&long), "{long} of 1100");
    }

    #[test]
    fn all_packets_of_a_flow_come_out_once_in_order() {
        use crate::random::Random;
        for seed in 0..50 {
            let mut random = Random::new(seed);
            let (mut queue, mut sent, mut received) =
                (FairQueue::new(1 << 17, false), [0; 6], [0; 6]);
            for _ in 0..3000 {
                let flow = random.below(6) as usize;
                if random.below(2) == 0 {
                    let count = 1 + random.below(5) as u32;
                    queue.push(segment(flow as u32, sent[flow], count), 0);
                    sent[flow] += count;
                } else if let Some(Departure { packet, .. }) = queue.pop(0) {
                    let next = &mut received[packet.flow as usize];
                    assert_eq!((packet.seq, packet.aux), (*next, 1));
                    *next += 1;
                }
            }
            while let Some(Departure { packet, .. }) = queue.pop(0) {
                received[packet.flow as usize] += 1;
            }
            assert_eq!((sent, queue.len()), (received, 0));
            assert!(queue.by_key.is_empty() && queue.unused.len() == queue.flows.len());
        }
    }

    #[test]
    fn only_what_the_small_queue_holds_has_begun_to_wait() {
        // Four packets fit.
        let mut queue = FairQueue::new(6_100, true);
        queue.push(segment(1, 0, 6), 10);
        let entered = (0..6).map(|i| queue.pop(20 + i).unwrap().entered_ps.unwrap());
        assert_eq!(entered.collect::<Vec<u64>>(), [10, 10, 10, 10, 20, 21]);
    }

    #[test]
    fn a_worker_is_called_once_when_its_small_queue_is_half_empty() {
        let (worker, timer) = ((7, 1 << 20), 99);
        let tree = |bytes| {
            Packet { aux: worker.1, ..Packet::new(Kind::Tree, 3, 0, bytes) }.to(worker.0.into())
        };
        for (small_bytes, held) in [(6_000, 5), (0, 2)] {
            let mut queue = FairQueue::new(small_bytes, false);
            // Others' packets take no room.
            queue.push(segment(1, 0, 100), 0);
            queue.push(Packet { aux: 0, ..tree(1476) }, 0);
            let mut pushed = 0;
            while queue.poll_room(worker, timer) {
                queue.push(tree(1476), 0);
                pushed += 1;
            }
            assert_eq!(pushed, held);
            let left = std::iter::from_fn(|| queue.pop(0));
            let own = left.filter(|left| left.packet.aux == worker.1);
            let calls: Vec<_> = own.map(|left| left.room_for).collect();
            let at = if held == 2 { 0 } else { 2 };
            let expected: Vec<_> = (0..held).map(|left| (left == at).then_some(timer)).collect();
            assert_eq!(calls, expected);
            assert!(queue.poll_room(worker, timer) && queue.is_at_rest());
        }
    }

    #[test]
    fn a_segment_that_is_sent_again_goes_before_those_in_the_socket() {
        let mut queue = FairQueue::new(6_100, false);
        queue.push(segment(1, 10, 6), 0);
        queue.push(segment(1, 3, 1), 0);
        queue.push(segment(1, 16, 2), 0);
        let order = order(&mut queue, 9);
        let seqs: Vec<u32> = order.into_iter().map(|(_, seq)| seq).collect();
        assert_eq!(seqs, [10, 11, 12, 13, 3, 14, 15, 16, 17]);
    }
}
