//! PAUSE: packets held at switches by ingress link, and the links paused.

use super::region::{OWN_TIMER, Region};
use super::{FROM_HOST, PAUSED, Pause};
use crate::packet::NO_LINK;

const RESUME: u64 = 1 << 62;

impl Region {
    #[inline]
    pub(super) fn hold(&mut self, ingress: u32) {
        let Some(Pause { high_packets, .. }) = self.common.switching.pause else { return };
        if ingress == NO_LINK {
            return;
        }
        let held = &mut self.held[ingress as usize];
        *held += 1;
        if *held == high_packets + 1 {
            self.ask(ingress, 0);
        }
    }

    #[inline]
    pub(super) fn release(&mut self, ingress: u32) {
        let Some(Pause { low_packets, .. }) = self.common.switching.pause else { return };
        if ingress == NO_LINK {
            return;
        }
        let held = &mut self.held[ingress as usize];
        *held -= 1;
        if *held == low_packets {
            self.ask(ingress, RESUME);
        }
    }

    /// Sends a PAUSE frame back over the link's wire; it does not queue.
    fn ask(&mut self, ingress: u32, what: u64) {
        let at_ps = self.now_ps + self.links[ingress as usize].propagation_ps();
        // The opposite direction of a link ends where the link begins.
        let sender = self.links[(ingress ^ 1) as usize].to;
        self.set_timer_at(sender, at_ps, OWN_TIMER | what | u64::from(ingress));
    }

    pub(super) fn on_pause_frame(&mut self, key: u64) {
        let link = key as u32;
        let (l, since) = (&mut self.links[link as usize], &mut self.paused_since_ps[link as usize]);
        let counters = &mut self.counters[link as usize];
        match (key & RESUME != 0, l.is(PAUSED)) {
            (false, false) => {
                l.pause(self.now_ps, &mut self.pool);
                counters.pauses += 1;
                *since = self.now_ps;
            }
            (true, true) => {
                counters.paused_ps += self.now_ps - *since;
                if let Some(at_ps) = l.resume(self.now_ps, &mut self.pool) {
                    self.enter(link, at_ps);
                }
                if self.links[link as usize].is(FROM_HOST) && !self.fair.is_empty() {
                    self.fill_later(link);
                }
            }
            _ => {}
        }
    }
}
