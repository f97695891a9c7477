//! PAUSE: what is held at switches by input, and who is asked for silence.

use super::*;

impl Network {
    #[inline]
    pub(super) fn hold(&mut self, ingress: u32) {
        let Some(Pause { high_packets, .. }) = self.switching.pause else { return };
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
        let Some(Pause { low_packets, .. }) = self.switching.pause else { return };
        if ingress == NO_LINK {
            return;
        }
        let held = &mut self.held[ingress as usize];
        *held -= 1;
        if *held == low_packets {
            self.ask(ingress, RESUME);
        }
    }

    /// A PAUSE frame goes back over the link's wire; it waits for nothing.
    fn ask(&mut self, ingress: u32, what: u64) {
        let at = self.now_ps + self.links[ingress as usize].propagation_ps();
        self.agenda.push(Reverse((at, OWN_TIMER | what | u64::from(ingress))));
    }

    pub(super) fn obey(&mut self, key: u64) {
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
                if let Some(at) = l.resume(self.now_ps, &mut self.pool) {
                    self.calendar.insert(link, at, &mut LinkEntries(&mut self.links));
                }
            }
            _ => {}
        }
    }
}
