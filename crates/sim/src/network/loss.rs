//! Which packets a link loses: a share of them at random, and some by their numbers.

use std::collections::VecDeque;

use crate::random::Random;

/// Loss on a link.
#[derive(Default)]
pub(super) struct Loss {
    share: f64,
    /// Set once there is a share.
    random: Option<Random>,
    /// Numbers of further packets to be lost, and the number of the next packet.
    listed: VecDeque<u64>,
    arrived: u64,
}

impl Loss {
    /// Sets the share of packets that are lost; whether any packet may be. `random` is for the first share.
    pub(super) fn set_share(&mut self, share: f64, random: impl FnOnce() -> Random) -> bool {
        self.random.get_or_insert_with(random);
        self.share = share;
        share > 0.0 || !self.listed.is_empty()
    }

    /// Sets which of the packets from now on are lost; they ascend.
    pub(super) fn set_list(&mut self, packets: &[u64]) {
        (self.listed, self.arrived) = (packets.iter().copied().collect(), 0);
    }

    /// Whether the packet that arrives is lost.
    pub(super) fn takes(&mut self) -> bool {
        let number = self.arrived;
        self.arrived += 1;
        let listed = self.listed.front() == Some(&number);
        if listed {
            self.listed.pop_front();
        }
        self.random.as_mut().is_some_and(|random| random.unit() < self.share) || listed
    }
}
