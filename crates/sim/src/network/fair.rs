//! Hosts whose flows have queues of their own ([`FairQueue`](crate::fair::FairQueue)). In front of the link is the
//! driver's ring: what is in it goes out in order.

use std::cmp::Reverse;

use super::region::{OWN_TIMER, Region};
use crate::fair::{Departure, QUANTUM};
use crate::link::PAUSED;
use crate::packet::Packet;

/// The ring holds this many full packets, and is filled when half of them have left.
const RING_PACKETS: u64 = 8;
/// The key of timers that fill a ring, with the link.
pub(super) const FILL: u64 = 1 << 61;

impl Region {
    /// Enqueues a packet or a run at the host from which the link begins.
    pub(super) fn enqueue_fairly(&mut self, link: u32, mut packet: Packet) {
        let host = self.host_of(link);
        let l = &self.links[link as usize];
        if self.fair[host].len() == 0 && !l.is(PAUSED) {
            let one_ps = l.serialisation_ps(u64::from(packet.bytes)).max(1);
            let room_ps = self.ring_ps(link).saturating_sub(l.backlog_ps(self.now_ps));
            let room = room_ps.div_ceil(one_ps).min(u64::from(packet.run())) as u32;
            if room == packet.run() {
                self.push(link, packet);
                return;
            }
            if room > 0 {
                self.push(link, Packet { aux: room, ..packet });
                packet.seq += room;
                packet.aux -= room;
            }
        }
        self.fair[host].push(packet, self.now_ps);
        self.fill_later(link);
    }

    /// Whether the small queue of a worker (its protocol and its number) has room for a packet in its host. If not, the
    /// `Timer` with this key fires once it is half empty. Hosts that send in order always have room.
    #[inline]
    pub(crate) fn poll_room(&mut self, uplink: u32, worker: (u16, u32), key: u64) -> bool {
        if self.fair.is_empty() {
            return true;
        }
        let host = self.host_of(uplink);
        self.fair[host].poll_room(worker, key)
    }

    /// Fills the ring of a link from its host's queue.
    pub(super) fn fill(&mut self, link: u32) {
        let host = self.host_of(link);
        self.fair[host].is_timed = false;
        if self.links[link as usize].is(PAUSED) {
            return;
        }
        let ring_ps = self.ring_ps(link);
        while self.links[link as usize].backlog_ps(self.now_ps) < ring_ps {
            let Some(Departure { mut packet, entered_ps, room_for }) =
                self.fair[host].pop(self.now_ps)
            else {
                return;
            };
            if let Some(key) = room_for {
                self.set_timer(self.now_ps, key);
            }
            let waited_ps = entered_ps.map_or(0, |at_ps| self.now_ps - at_ps);
            if waited_ps >= self.common.switching.host_mark_ps {
                self.counters[link as usize].marks += 1;
                packet.mark();
            }
            self.push(link, packet);
        }
        self.fill_later(link);
    }

    /// Sets the timer that fills a ring, if packets wait for it and no timer is set. A paused ring is filled when it
    /// may send again.
    pub(super) fn fill_later(&mut self, link: u32) {
        let host = self.host_of(link);
        let l = &self.links[link as usize];
        if self.fair[host].len() == 0 || self.fair[host].is_timed || l.is(PAUSED) {
            return;
        }
        let half_ps = self.ring_ps(link) / 2;
        let at_ps = self.now_ps + l.backlog_ps(self.now_ps).saturating_sub(half_ps);
        self.fair[host].is_timed = true;
        self.agenda.push(Reverse((at_ps, OWN_TIMER | FILL | u64::from(link))));
    }

    /// The host from which a link begins. The two directions of a link have consecutive numbers.
    pub(super) fn host_of(&self, link: u32) -> usize {
        self.links[(link ^ 1) as usize].to as usize
    }

    fn ring_ps(&self, link: u32) -> u64 {
        self.links[link as usize].serialisation_ps(RING_PACKETS * QUANTUM as u64)
    }
}
