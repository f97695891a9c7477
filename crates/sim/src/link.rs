//! One direction of a link: its queue, and the departure times of queued packets.

use crate::fifo::{Fifo, Pool};
use crate::packet::Packet;
use crate::visit::Visitor;

/// An output queue and the wire behind it. The departure of a packet is known when it is queued; only PAUSE changes it.
#[derive(Clone, Debug)]
#[repr(align(64))]
pub(crate) struct Link {
    /// When the link delivers next; for the calendar.
    pub at_ps: u64,
    /// When the last queued packet leaves.
    busy_until_ps: u64,
    /// Picoseconds per byte, times 2¹⁶.
    ps_per_byte_q16: u64,
    queue: Fifo,
    propagation_ns: u32,
    /// Node at the far end.
    pub to: u32,
    pub state: u8,
    /// Bytes that have arrived at the far end.
    pub bytes: u64,
}

/// The link starts at a host: its queue is unbounded, and equal segments are stored as runs.
pub(crate) const FROM_HOST: u8 = 1;
/// The link ends at a host.
pub(crate) const TO_HOST: u8 = 2;
/// The far end has sent PAUSE.
pub(crate) const PAUSED: u8 = 4;
/// The link is down.
pub(crate) const DEAD: u8 = 8;
/// The link loses a share of its packets.
pub(crate) const LOSSY: u8 = 16;
/// The link ends in another region.
pub(crate) const CROSSING: u8 = 32;
/// The link has an entry in the calendar of packets handed over by other regions.
pub(crate) const ENTERED: u8 = 64;

/// Departure unknown: the link is paused.
pub(crate) const NEVER: u64 = u64::MAX;

const _: () = assert!(size_of::<Link>() == 64);

impl Link {
    pub(crate) fn new(to: u32, rate_bps: u64, propagation_ns: u32, state: u8) -> Link {
        let q16 = ((8u128 * 1_000_000_000_000) << 16).div_ceil(u128::from(rate_bps));
        Link {
            at_ps: 0,
            busy_until_ps: 0,
            ps_per_byte_q16: q16 as u64,
            queue: Fifo::default(),
            propagation_ns,
            to,
            bytes: 0,
            state,
        }
    }

    /// Visits the state at `now_ps`. A link without packets that sends nothing has none but its number of bytes.
    pub(crate) fn visit(
        &mut self,
        v: &mut impl Visitor,
        (number, now_ps): (u32, u64),
        (pool, base): (&mut Pool, &[u32]),
    ) {
        let Link {
            // It follows from the queue.
            at_ps: _,
            busy_until_ps,
            // Constant.
            ps_per_byte_q16: _,
            queue,
            propagation_ns: _,
            to: _,
            state,
            bytes,
        } = self;
        v.count(bytes);
        let is_busy = *busy_until_ps >= now_ps;
        if queue.is_empty() && !is_busy && *state & PAUSED == 0 {
            return;
        }
        v.both(number, u32::from(*state) << 1 | u32::from(is_busy));
        if is_busy {
            v.time(busy_until_ps);
        }
        v.same(queue.len().into());
        queue.for_each_mut(pool, |packet| packet.visit(v, base));
    }

    #[inline]
    pub(crate) fn is(&self, state: u8) -> bool {
        self.state & state != 0
    }

    /// Transmission time of `bytes`, rounded up to a picosecond.
    #[inline]
    pub(crate) fn serialisation_ps(&self, bytes: u64) -> u64 {
        // 128 bits: minutes of traffic, or one packet on a slow link, exceed 2⁴⁸ of these units.
        ((u128::from(bytes) * u128::from(self.ps_per_byte_q16) + 0xffff) >> 16) as u64
    }

    #[inline]
    pub(crate) fn propagation_ps(&self) -> u64 {
        u64::from(self.propagation_ns) * 1000
    }

    pub(crate) fn queue(&self) -> &Fifo {
        &self.queue
    }

    /// Enqueues a packet; true if the link was empty, so that the caller must insert it into the calendar at
    /// `at_ps` (unless that is `NEVER`).
    #[inline]
    pub(crate) fn push(&mut self, now_ps: u64, mut packet: Packet, pool: &mut Pool) -> Option<u64> {
        let (run, one) = (packet.run(), self.serialisation_ps(u64::from(packet.bytes)));
        if self.is(PAUSED) {
            packet.at_ps = NEVER;
            self.queue.push(pool, packet);
            return None;
        }
        let start = self.busy_until_ps.max(now_ps);
        let contiguous = start == self.busy_until_ps && !self.queue.is_empty();
        self.busy_until_ps = start + one * u64::from(run);
        if self.is(FROM_HOST) && contiguous && self.queue.back(pool).extends_to(&packet) {
            self.queue.back(pool).aux += run;
            return None;
        }
        packet.at_ps = start + one + self.propagation_ps();
        let first = self.queue.is_empty();
        self.queue.push(pool, packet);
        first.then_some(packet.at_ps)
    }

    /// Dequeues the packet that arrives now; also returns when the next one arrives, if that is known.
    #[inline]
    pub(crate) fn pop(&mut self, pool: &mut Pool) -> (Packet, Option<u64>) {
        let front = self.queue.front(pool);
        let packet = *front;
        if packet.run() > 1 {
            let one = self.serialisation_ps(u64::from(packet.bytes));
            front.seq += 1;
            front.aux -= 1;
            front.at_ps = packet.at_ps.saturating_add(one);
            return (Packet { aux: 1, ..packet }, Some(front.at_ps));
        }
        self.queue.pop(pool);
        if self.queue.is_empty() {
            return (packet, None);
        }
        let next = self.queue.front(pool).at_ps;
        (packet, (next != NEVER).then_some(next))
    }

    /// When the first packet arrives; the queue must not be empty.
    #[inline]
    pub(crate) fn first_ps(&self, pool: &mut Pool) -> u64 {
        self.queue.front(pool).at_ps
    }

    /// Enqueues a packet that left a queue in another region; true if it is the first here.
    #[inline]
    pub(crate) fn land(&mut self, packet: Packet, pool: &mut Pool) -> bool {
        let first = self.queue.is_empty();
        self.queue.push(pool, packet);
        first
    }

    /// Number of packets that are neither on the wire nor in the transmitter.
    #[inline]
    pub(crate) fn waiting(&self, now_ps: u64, pool: &Pool) -> u32 {
        let mut started = 0;
        for packet in self.queue.iter(pool) {
            let one = self.serialisation_ps(u64::from(packet.bytes));
            if packet.at_ps == NEVER || packet.at_ps - self.propagation_ps() - one > now_ps {
                break;
            }
            started += 1;
        }
        self.queue.len() - started
    }

    /// Time until everything queued has left, in picoseconds.
    #[inline]
    pub(crate) fn backlog_ps(&self, now_ps: u64) -> u64 {
        self.busy_until_ps.saturating_sub(now_ps)
    }

    /// Bytes that are queued and have not left. Not meaningful for a paused link.
    pub(crate) fn queued_bytes(&self, now_ps: u64) -> u64 {
        (u128::from(self.backlog_ps(now_ps)) << 16).div_ceil(u128::from(self.ps_per_byte_q16))
            as u64
    }

    /// Pauses the link after the packet in the transmitter.
    pub(crate) fn pause(&mut self, now_ps: u64, pool: &mut Pool) {
        self.state |= PAUSED;
        let propagation = self.propagation_ps();
        let mut kept_until = now_ps.min(self.busy_until_ps);
        for _ in 0..self.queue.len() {
            let mut packet = self.queue.pop(pool);
            let one = self.serialisation_ps(u64::from(packet.bytes));
            let start = packet.at_ps - propagation - one;
            let started = match now_ps.checked_sub(start) {
                Some(since) => (since / one + 1).min(u64::from(packet.run())) as u32,
                None => 0,
            };
            if started > 0 {
                kept_until = start + one * u64::from(started);
            }
            if started == packet.run() {
                self.queue.push(pool, packet);
                continue;
            }
            if started > 0 {
                self.queue.push(pool, Packet { aux: started, ..packet });
                packet.seq += started;
                packet.aux -= started;
            }
            packet.at_ps = NEVER;
            self.queue.push(pool, packet);
        }
        self.busy_until_ps = kept_until;
    }

    /// Resumes the link; returns when it must be inserted into the calendar, if it had no entry.
    pub(crate) fn resume(&mut self, now_ps: u64, pool: &mut Pool) -> Option<u64> {
        self.state &= !PAUSED;
        let mut enter = None;
        for i in 0..self.queue.len() {
            let mut packet = self.queue.pop(pool);
            if packet.at_ps == NEVER {
                let one = self.serialisation_ps(u64::from(packet.bytes));
                let start = self.busy_until_ps.max(now_ps);
                packet.at_ps = start + one + self.propagation_ps();
                self.busy_until_ps = start + one * u64::from(packet.run());
                if i == 0 {
                    enter = Some(packet.at_ps);
                }
            }
            self.queue.push(pool, packet);
        }
        enter
    }
}

impl Packet {
    /// Whether `next` extends the last run in the queue.
    #[inline]
    pub(crate) fn extends_to(&self, next: &Packet) -> bool {
        self.kind() == crate::packet::Kind::Data
            && next.kind() == crate::packet::Kind::Data
            && self.flow == next.flow
            && self.bytes == next.bytes
            && self.ce() == next.ce()
            && self.seq + self.aux == next.seq
    }
}
