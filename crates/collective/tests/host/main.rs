//! Every collective between ranks that share memory.

mod cases;
mod early;
mod here;
#[path = "../support/mod.rs"]
mod support;
