//! The in-kernel switch: the golden vectors by `BPF_PROG_TEST_RUN`, and real packets through network namespaces.
//!
//! Without the rights or the kernel that it needs every test says so in a line and passes.

#![cfg(feature = "xdp")]

mod fabric;
mod lossy;
mod namespace;
mod vectors;
