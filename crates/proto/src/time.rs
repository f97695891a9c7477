//! Time and neighbours as plain numbers, so that a driver, a test and the simulator can make them.

/// Nanoseconds since an origin that the driver chooses; it never decreases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

impl Time {
    /// This many nanoseconds later.
    pub fn after(self, ns: u64) -> Time {
        Time(self.0.saturating_add(ns))
    }

    /// Nanoseconds since `earlier`, 0 if that lies in the future.
    pub fn since(self, earlier: Time) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// A neighbour of a switch: whatever the driver can tell apart (an address, a port), by a number of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortId(pub u32);
