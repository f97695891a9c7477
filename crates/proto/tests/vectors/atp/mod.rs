//! Vectors of protocol `atp`'s switch, at both levels.

pub mod record;
pub mod scenarios;
mod table;
