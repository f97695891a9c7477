//! Time and neighbours as plain numbers, which a driver, a test or the simulator can construct.

/// Nanoseconds since an origin that the driver chooses; it never decreases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

impl Time {
    /// The time `ns` nanoseconds later.
    pub fn after(self, ns: u64) -> Time {
        Time(self.0.saturating_add(ns))
    }

    /// Nanoseconds since `earlier`, 0 if that is in the future.
    pub fn since(self, earlier: Time) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// A neighbour of a switch: the driver assigns a number to each address or port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortId(pub u32);
