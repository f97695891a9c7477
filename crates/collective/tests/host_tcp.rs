//! Every collective between ranks over TCP: the same cases, and the same bits.

#[path = "host/cases.rs"]
mod cases;
mod support;
