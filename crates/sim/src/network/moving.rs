//! The path of a packet: off one link, through a switch, onto the next.

use std::cmp::Reverse;

use super::ahead::look_ahead;
use super::fair::FILL;
use super::region::{LinkTimes, OWN_TIMER, Region};
use super::{HostQueue, NetworkEvent, Switching};
use crate::calendar::Delivery;
use crate::link::{DEAD, FROM_HOST, LOSSY, TO_HOST};
use crate::packet::{Kind, NO_LINK, Packet};
use crate::routes::along;

impl Region {
    /// Advances to the next event for the caller, up to and including `until_ps`; `None` if there is none.
    pub fn next(&mut self, until_ps: u64) -> Option<NetworkEvent> {
        loop {
            let delivery = self.calendar.peek(&mut LinkTimes(&mut self.links));
            if self.calendar.is_new() {
                let (routes, links) = (&self.common.routes, (&*self.links, &self.pool));
                let batch = self.calendar.look_ahead();
                look_ahead(batch, &mut self.expected, links, (routes, &self.paths));
            }
            // A packet handed over to another region counts at its ingress until it arrives there, as if it arrived
            // here.
            let gone = self.gone.front().filter(|&&(at, link, _)| {
                let order = |entry| self.calendar.order(entry);
                delivery.is_none_or(|next| order((at, link)) < order((next.at_ps, next.link)))
            });
            let gone = gone.copied();
            let first = gone.map(|(at, ..)| at).or(delivery.map(|next| next.at_ps));
            let at = first.unwrap_or(u64::MAX);
            if let Some(&Reverse((timer, key))) = self.agenda.peek()
                && timer <= at
            {
                if timer > until_ps {
                    break;
                }
                self.agenda.pop();
                self.now_ps = timer;
                if key < OWN_TIMER {
                    return Some(NetworkEvent::Timer(key));
                }
                match key & FILL != 0 {
                    true => self.fill(key as u32),
                    false => self.on_pause_frame(key),
                }
                continue;
            }
            if at > until_ps {
                break;
            }
            if let Some((.., ingress)) = gone {
                self.gone.pop_front();
                self.now_ps = at;
                self.release(ingress);
                continue;
            }
            let Some(Delivery { link, .. }) = delivery else { break };
            debug_assert!(at >= self.now_ps, "time never decreases");
            self.now_ps = at;
            let onward = self.calendar.pop();
            if let Some(packet) = self.arrive(link, onward) {
                return Some(NetworkEvent::Packet(link, packet));
            }
        }
        self.now_ps = self.now_ps.max(until_ps.min(u64::MAX - 1));
        None
    }

    /// A timer of the current time whose key is below `below`; `None` if there is none.
    pub(crate) fn timer_now(&mut self, below: u64) -> Option<u64> {
        let &Reverse((at_ps, key)) = self.agenda.peek()?;
        let due = at_ps <= self.now_ps && key < below;
        due.then(|| self.agenda.pop()).map(|_| key)
    }

    /// Advances the time to `at_ps`; there is no event until then.
    pub(crate) fn wait_until(&mut self, at_ps: u64) {
        debug_assert!(at_ps >= self.now_ps, "time never decreases");
        self.now_ps = at_ps;
    }

    /// Handles the first packet of a link, which has reached the far end; `Some` if that is the packet's destination.
    /// `known`: the link on which it goes on, unless `NO_LINK`.
    #[inline]
    fn arrive(&mut self, link: u32, known: u32) -> Option<Packet> {
        let l = &mut self.links[link as usize];
        let (mut packet, next) = l.pop(&mut self.pool);
        debug_assert_eq!(packet.at_ps, self.now_ps, "a packet arrives when it was said to");
        let (to, state) = (l.to, l.state);
        if let Some(at) = next {
            self.calendar.insert(link, at, &mut LinkTimes(&mut self.links));
        }
        if self.common.switching.pause.is_some() {
            self.release(packet.ingress);
        }
        if state & (DEAD | LOSSY) != 0 && self.loses(link, state) {
            self.drop_packet(Some(link), &packet);
            return None;
        }
        self.links[link as usize].bytes += u64::from(packet.bytes);
        self.hops += 1;
        let onward = match packet.kind() {
            Kind::Data | Kind::Ack if state & TO_HOST != 0 => None,
            _ if known != NO_LINK => Some(known),
            Kind::Tree => along(&self.paths, link, &packet),
            _ => match self.common.routes.next(to, &packet) {
                Some(onward) => Some(onward),
                None => {
                    self.drop_packet(None, &packet);
                    return None;
                }
            },
        };
        match onward {
            Some(onward) => {
                packet.ingress = link;
                self.enqueue(onward, packet);
                None
            }
            None => {
                self.balance.delivered.0 += 1;
                self.balance.delivered.1 += u64::from(packet.bytes);
                Some(packet)
            }
        }
    }

    #[inline]
    pub(super) fn enqueue(&mut self, link: u32, mut packet: Packet) {
        if !self.links[link as usize].is(FROM_HOST) {
            let Switching { mark_packets, queue_packets, shared, pause, .. } =
                self.common.switching;
            if let Some(shared) = shared {
                let queued = |link: &u32| self.links[*link as usize].queued_bytes(self.now_ps);
                let used = self.common.siblings[link as usize].iter().map(queued).sum();
                if !shared.takes(queued(&link), used, u64::from(packet.bytes)) {
                    self.drop_packet(Some(link), &packet);
                    return;
                }
            }
            let l = &self.links[link as usize];
            // `len` includes packets on the wire, so this is seldom more than one comparison.
            if l.queue().len() >= mark_packets.min(queue_packets) {
                let waiting = l.waiting(self.now_ps, &self.pool);
                let counters = &mut self.counters[link as usize];
                if waiting >= mark_packets.min(queue_packets) {
                    counters.waiting_max = counters.waiting_max.max(waiting);
                }
                if waiting >= queue_packets && pause.is_none() {
                    self.drop_packet(Some(link), &packet);
                    return;
                }
                if waiting >= mark_packets {
                    counters.marks += 1;
                    packet.mark();
                }
            }
            if l.is(DEAD) {
                self.drop_packet(Some(link), &packet);
                return;
            }
            if pause.is_some() {
                self.hold(packet.ingress);
            }
        } else if self.common.switching.host_queue != HostQueue::Fifo {
            self.enqueue_fairly(link, packet);
            return;
        } else if self.common.switching.host_mark_ps != u64::MAX {
            packet = self.mark_late(link, packet);
        }
        self.push(link, packet);
    }

    /// Marks those packets of a run that will wait too long in their host's queue. Returns the last ones, which are all
    /// alike; the others are queued.
    fn mark_late(&mut self, link: u32, mut packet: Packet) -> Packet {
        let l = &self.links[link as usize];
        let one_ps = l.serialisation_ps(u64::from(packet.bytes));
        let early_ps = self.common.switching.host_mark_ps.saturating_sub(l.backlog_ps(self.now_ps));
        let early = early_ps.div_ceil(one_ps).min(u64::from(packet.run())) as u32;
        let late = packet.run() - early;
        if late == 0 {
            return packet;
        }
        if early > 0 {
            self.push(link, Packet { aux: early, ..packet });
            packet.seq += early;
            packet.aux -= early;
        }
        self.counters[link as usize].marks += u64::from(late);
        packet.mark();
        packet
    }

    #[inline]
    pub(super) fn push(&mut self, link: u32, packet: Packet) {
        let l = &mut self.links[link as usize];
        if let Some(at) = l.push(self.now_ps, packet, &mut self.pool) {
            self.enter(link, at);
        }
    }

    fn drop_packet(&mut self, link: Option<u32>, packet: &Packet) {
        if let Some(link) = link {
            self.counters[link as usize].drops += 1;
        }
        self.balance.dropped.0 += 1;
        self.balance.dropped.1 += u64::from(packet.bytes);
        if packet.kind() == Kind::Tree {
            self.lost.push((packet.dst() as u16, packet.seq));
        }
    }
}
