//! The algorithms of the host path over TCP.

#[path = "algorithms/cases.rs"]
mod cases;
mod support;
