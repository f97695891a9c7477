//! The in-kernel switch: the golden vectors by `BPF_PROG_TEST_RUN`, and real packets through network namespaces.
//!
//! Without the necessary rights or kernel every test prints a message and passes.

#![cfg(feature = "xdp")]

mod fabric;
mod lossy;
#[path = "../common/namespace.rs"]
mod namespace;
mod seals;
mod vectors;
