//! What regions hand over to each other: packets on the wire, and PAUSE.

use std::cmp::Reverse;

use super::region::{LinkTimes, OWN_TIMER, Region};
use crate::calendar::Delivery;
use crate::link::{ENTERED, NEVER};
use crate::packet::{NO_LINK, Packet};

/// What a region hands over to another one, before it is due.
#[derive(Default)]
pub(crate) struct Crossing {
    /// Packets in the order of arrival; `ingress` is the link that carries them.
    pub packets: Vec<Packet>,
    /// Times and keys of timers.
    timers: Vec<(u64, u64)>,
}

impl Crossing {
    /// When the first packet or timer is due.
    fn first_ps(&self) -> u64 {
        let packet = self.packets.first().map_or(u64::MAX, |packet| packet.at_ps);
        self.timers.iter().map(|&(at_ps, _)| at_ps).fold(packet, u64::min)
    }
}

impl Region {
    /// Moves packets that arrive in other regions before `before_ps` to the outbox. These packets are in or past their
    /// transmitter, so that later events cannot affect them. Returns the time of the next event, here or in the outbox;
    /// a packet not yet in the outbox arrives no sooner than the lookahead after this time.
    pub(crate) fn export(&mut self, before_ps: u64) -> u64 {
        while let Some(Delivery { at_ps, link, .. }) =
            self.exports.peek(&mut LinkTimes(&mut self.links))
            && at_ps < before_ps
        {
            self.exports.pop();
            let l = &mut self.links[link as usize];
            l.state &= !ENTERED;
            let front_ps = l.first_ps(&mut self.pool);
            if front_ps != at_ps {
                // A PAUSE has arrived since.
                if front_ps != NEVER {
                    self.enter(link, front_ps);
                }
                continue;
            }
            let (mut packet, next) = l.pop(&mut self.pool);
            let to = self.common.region_of[l.to as usize];
            if self.common.switching.pause.is_some() && packet.ingress != NO_LINK {
                self.gone.push_back((at_ps, link, packet.ingress));
            }
            packet.ingress = link;
            self.exported.0 += 1;
            self.exported.1 += u64::from(packet.bytes);
            self.outbox[usize::from(to)].packets.push(packet);
            if let Some(at_ps) = next {
                self.enter(link, at_ps);
            }
        }
        let times = &mut LinkTimes(&mut self.links);
        let delivery = self.calendar.peek(times).map_or(u64::MAX, |next| next.at_ps);
        let timer = self.agenda.peek().map_or(u64::MAX, |Reverse((at_ps, _))| *at_ps);
        let release = self.gone.front().map_or(u64::MAX, |&(at_ps, ..)| at_ps);
        let export = self.exports.peek(times).map_or(u64::MAX, |next| next.at_ps);
        let outbox = self.outbox.iter().map(Crossing::first_ps).fold(u64::MAX, u64::min);
        let export = export.saturating_sub(self.common.lookahead_ps);
        delivery.min(timer).min(release).min(outbox).min(export)
    }

    /// Takes the outbox for a region, and leaves `empty` in its place.
    pub(crate) fn take_outbox(&mut self, region: usize, crossing: &mut Crossing) {
        debug_assert!(crossing.packets.is_empty() && crossing.timers.is_empty());
        std::mem::swap(&mut self.outbox[region], crossing);
    }

    /// Accepts a packet that another region has handed over.
    #[inline]
    pub(crate) fn import(&mut self, mut packet: Packet) {
        let now_ps = self.now_ps;
        assert!(
            packet.at_ps > now_ps || now_ps == 0,
            "a packet of {} ps comes at {now_ps} ps",
            packet.at_ps
        );
        self.imported.0 += 1;
        self.imported.1 += u64::from(packet.bytes);
        // The sender accounts for the previous ingress.
        let link = std::mem::replace(&mut packet.ingress, NO_LINK);
        if self.links[link as usize].land(packet, &mut self.pool) {
            self.enter(link, packet.at_ps);
        }
    }

    /// Accepts the timers that another region has handed over.
    pub(crate) fn import_timers(&mut self, crossing: &mut Crossing) {
        for timer in crossing.timers.drain(..) {
            assert!(timer.0 > self.now_ps, "a message comes too late");
            self.agenda.push(Reverse(timer));
        }
    }

    /// Sets a timer in the region of a node, no sooner than the lookahead from now.
    pub(crate) fn set_timer_at(&mut self, node: u32, at_ps: u64, key: u64) {
        let region = self.common.region_of[node as usize];
        self.tell(usize::from(region), at_ps, key);
    }

    /// Sets a timer in every region, no sooner than the lookahead from now.
    pub(crate) fn set_timers(&mut self, at_ps: u64, key: u64) {
        debug_assert!(key < OWN_TIMER);
        (0..self.outbox.len()).for_each(|region| self.tell(region, at_ps, key));
    }

    fn tell(&mut self, region: usize, at_ps: u64, key: u64) {
        debug_assert!(at_ps >= self.now_ps + self.common.lookahead_ps);
        match region == usize::from(self.index) {
            true => self.agenda.push(Reverse((at_ps, key))),
            false => self.outbox[region].timers.push((at_ps, key)),
        }
    }
}
