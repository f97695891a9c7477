//! The hosts' algorithms over TCP.

#[path = "algorithms/cases.rs"]
mod cases;
mod support;
