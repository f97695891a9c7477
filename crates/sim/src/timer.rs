//! Movable deadlines on timers that cannot be moved.

use crate::network::Region;
use crate::visit::Visitor;

/// The bits of a timer's key that contain its class.
pub(crate) const CLASS: u64 = 0x7f << 56;

/// The earliest timer that is set. A deadline that moves later costs one useless wake-up, one that moves earlier a
/// second timer.
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
    /// Visits the state. When the timer fires is of no consequence, as long as it is no later than the deadline: a
    /// wake-up before that only sets the next one.
    pub(crate) fn visit(&mut self, v: &mut impl Visitor) {
        let Timer { at_ps } = self;
        v.moves(at_ps);
    }

    /// Records that a timer has fired.
    pub(crate) fn ring(&mut self, now_ps: u64) {
        if self.at_ps <= now_ps {
            *self = Timer::default();
        }
    }

    /// Ensures that a timer `key` fires at `deadline_ps` or before.
    #[inline]
    pub(crate) fn set(&mut self, net: &mut Region, deadline_ps: u64, key: u64) {
        if deadline_ps < self.at_ps {
            self.at_ps = deadline_ps.max(net.now_ps());
            net.set_timer(self.at_ps, key);
        }
    }
}
