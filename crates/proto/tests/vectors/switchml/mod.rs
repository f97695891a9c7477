//! Vectors of protocol `switchml`'s switch.

pub mod record;
pub mod scenarios;
