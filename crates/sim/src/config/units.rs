//! Values with units.

use std::fmt::Display;
use std::str::FromStr;

use netsum_topo::{Bytes, Latency, Rate, TopoError};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

/// A value of [`netsum_topo`]'s units in a configuration, as "64MiB", "10Gbit/s", "5us". Values are limited so that
/// simulations do not overflow: a time of at most 100,000 s, a rate of at least 1 kbit/s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Text<T>(pub T);

impl Text<Latency> {
    /// The time in picoseconds.
    pub fn ps(self) -> u64 {
        self.0.0.saturating_mul(1000)
    }
}

impl<T: Display> Serialize for Text<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de, T: Unit> Deserialize<'de> for Text<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let value: T = text.parse().map_err(D::Error::custom)?;
        match value.problem() {
            None => Ok(Text(value)),
            Some(problem) => Err(D::Error::custom(format!("{text:?} is {problem}"))),
        }
    }
}

trait Unit: FromStr<Err = TopoError> {
    /// The reason why the simulator refuses the value, if it does.
    fn problem(&self) -> Option<&'static str> {
        None
    }
}

impl Unit for Bytes {}

impl Unit for Rate {
    fn problem(&self) -> Option<&'static str> {
        rate_problem(*self)
    }
}

impl Unit for Latency {
    fn problem(&self) -> Option<&'static str> {
        (self.0 > TIME_MAX_NS).then_some("more than 100000 s; a run has at most an hour")
    }
}

/// The reason why the simulator refuses a link's rate, if it does.
pub(super) fn rate_problem(rate: Rate) -> Option<&'static str> {
    (rate.0 < RATE_MIN_BPS).then_some("less than 1kbit/s: a packet would take minutes")
}

/// 100,000 s: in picoseconds, 64 times this (the longest time-out) plus the end of a run fits in 64 bits.
pub(super) const TIME_MAX_NS: u64 = 100_000_000_000_000;
const RATE_MIN_BPS: u64 = 1_000;
