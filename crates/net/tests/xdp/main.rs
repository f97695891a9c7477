//! The in-kernel switch: the golden vectors by `BPF_PROG_TEST_RUN`, and real packets through network namespaces.
//!
//! Without the necessary rights or kernel every test prints a message and passes; a program that a kernel refuses to
//! somebody with these rights fails them.

#![cfg(feature = "xdp")]

mod fabric;
mod lossy;
#[path = "../common/namespace.rs"]
mod namespace;
mod pool_fabric;
mod pools;
mod rights;
mod seals;
mod vectors;
