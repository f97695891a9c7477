//! Links that lose packets, die and come back.

use super::*;

impl Network {
    /// A link loses this share of its packets from now on, drawn from `seed` when it is first set.
    pub fn set_loss(&mut self, link: u32, share: f64, seed: u64) {
        if self.loss.iter().all(|&share| share == 0.0) {
            self.random = Random::derived(seed, "loss");
        }
        self.loss[link as usize] = share;
        let state = &mut self.links[link as usize].state;
        *state = if share > 0.0 { *state | LOSSY } else { *state & !LOSSY };
    }

    /// Both directions of an edge die, with what is on them, or come back. Switches go on using them until `reroute`.
    pub fn set_alive(&mut self, edge: u32, alive: bool) {
        for link in [2 * edge, 2 * edge + 1] {
            let state = &mut self.links[link as usize].state;
            *state = if alive { *state & !DEAD } else { *state | DEAD };
        }
    }

    /// Shortest paths over what is alive.
    pub fn reroute(&mut self) {
        let alive = |edge: u32| !self.links[2 * edge as usize].is(DEAD);
        self.routes = Routes::new(&self.topology, self.switching.paths, alive);
    }

    /// Whether an edge is alive.
    pub fn is_alive(&self, edge: u32) -> bool {
        !self.links[2 * edge as usize].is(DEAD)
    }

    pub(super) fn loses(&mut self, link: u32, state: u8) -> bool {
        state & DEAD != 0 || self.random.unit() < self.loss[link as usize]
    }
}
