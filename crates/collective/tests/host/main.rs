//! Every collective between ranks that share memory.

mod cases;
#[path = "../support/mod.rs"]
mod support;
