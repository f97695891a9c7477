//! Deadlines that move, on timers that do not.

use crate::network::Region;

/// The bits of a timer's key that say whose it is.
pub(crate) const CLASS: u64 = 0x7f << 56;

/// The earliest time at which somebody will be woken. A deadline that moves away costs a wake-up for nothing, one that
/// comes nearer a second timer.
#[derive(Clone, Copy)]
pub(crate) struct Timer {
    at_ps: u64,
}

impl Default for Timer {
    fn default() -> Self {
        Timer { at_ps: u64::MAX }
    }
}

impl Timer {
    /// A timer has gone off.
    pub(crate) fn ring(&mut self, now_ps: u64) {
        if self.at_ps <= now_ps {
            *self = Timer::default();
        }
    }

    /// Sees to it that `key` comes at `deadline_ps` or before.
    #[inline]
    pub(crate) fn set(&mut self, net: &mut Region, deadline_ps: u64, key: u64) {
        if deadline_ps < self.at_ps {
            self.at_ps = deadline_ps.max(net.now_ps());
            net.set_timer(self.at_ps, key);
        }
    }
}
