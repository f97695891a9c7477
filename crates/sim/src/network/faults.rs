//! Faults of links: loss, failure and return.

use std::sync::Arc;

use super::Network;
use super::loss::Loss;
use super::region::Region;
use crate::link::{DEAD, LOSSY};
use crate::random::Random;
use crate::routes::Routes;

impl Network {
    /// Sets the share of packets that a link loses from now on. `seed`, used when loss is first set, determines which.
    pub fn set_loss(&mut self, link: u32, share: f64, seed: u64) {
        for region in &mut self.regions {
            // One random stream per link: losses of a link do not depend on traffic elsewhere.
            let random = || Random::derived(seed ^ u64::from(link) << 32, "loss");
            let lossy = region.loss.entry(link).or_default().set_share(share, random);
            let state = &mut region.links[link as usize].state;
            *state = if lossy { *state | LOSSY } else { *state & !LOSSY };
        }
    }

    /// Sets which packets a link loses, by number: the packets that reach its far end from now on are numbered from 0.
    /// `packets` ascend.
    pub fn drop_packets(&mut self, link: u32, packets: &[u64]) {
        for region in &mut self.regions {
            region.loss.entry(link).or_default().set_list(packets);
            region.links[link as usize].state |= LOSSY;
        }
    }

    /// Both directions of an edge fail, with the packets on them, or return. Switches continue to use them until
    /// `reroute`.
    pub fn set_alive(&mut self, edge: u32, alive: bool) {
        for region in &mut self.regions {
            for link in [2 * edge, 2 * edge + 1] {
                let state = &mut region.links[link as usize].state;
                *state = if alive { *state & !DEAD } else { *state | DEAD };
            }
        }
    }

    /// Computes shortest paths over live edges.
    pub fn reroute(&mut self) {
        let alive = |edge: u32| self.is_alive(edge);
        let routes = Arc::new(Routes::new(&self.topology, self.switching.paths, alive));
        for region in &mut self.regions {
            region.common.routes = Arc::clone(&routes);
            region.calendar.forget_onward();
        }
    }

    /// Whether an edge is alive.
    pub fn is_alive(&self, edge: u32) -> bool {
        !self.hosts_region().links[2 * edge as usize].is(DEAD)
    }
}

impl Region {
    /// Whether a packet that arrives on a link is lost.
    pub(super) fn loses(&mut self, link: u32, state: u8) -> bool {
        state & DEAD != 0 || self.loss.get_mut(&link).is_some_and(Loss::takes)
    }
}
