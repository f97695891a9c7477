//! PAUSE: packets held at switches by ingress link, and the links paused.

use super::region::{OWN_TIMER, Region};
use super::{FROM_HOST, Network, PAUSED, Pause};
use crate::link::NEVER;
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

impl Network {
    /// Links that wait for each other in circles, so that they stay paused for ever: a deadlock.
    ///
    /// A link resumes once at most `low_packets` of the packets that came over it are left at its end. Those that wait
    /// for a paused link leave when it resumes. So the links that never resume are the largest set of paused links in
    /// which each has more packets before other links of the set. Of these, links before which nothing waits, such as
    /// those of hosts, are not part of a circle.
    pub fn deadlocked(&self) -> Vec<u32> {
        let Some(Pause { low_packets, .. }) = self.pause() else { return Vec::new() };
        let paused = (0..self.link_count()).filter(|&link| self.queue(link).0.is(PAUSED));
        let mut stuck: Vec<u32> = paused.collect();
        let held = |links: &[u32]| {
            let mut held = vec![0; self.link_count() as usize];
            links.iter().flat_map(|&l| self.came_over(l)).for_each(|from| held[from as usize] += 1);
            held
        };
        shrink(&mut stuck, |all| {
            let held = held(all);
            move |link| held[link as usize] > low_packets
        });
        shrink(&mut stuck, |all| {
            let all = all.to_vec();
            move |link| self.came_over(link).any(|from| all.binary_search(&from).is_ok())
        });
        stuck
    }

    /// By packet that waits for a paused link, the link over which it came.
    fn came_over(&self, link: u32) -> impl Iterator<Item = u32> {
        let (l, pool) = self.queue(link);
        let waiting = l.queue().iter(pool).filter(|packet| packet.at_ps == NEVER);
        waiting.map(|packet| packet.ingress).filter(|&ingress| ingress != NO_LINK)
    }
}

/// Leaves out the links that do not stay, given the others, until all do.
fn shrink<F: Fn(u32) -> bool>(links: &mut Vec<u32>, stays: impl Fn(&[u32]) -> F) {
    loop {
        let (before, stays) = (links.len(), stays(links));
        links.retain(|&link| stays(link));
        if links.len() == before {
            return;
        }
    }
}
