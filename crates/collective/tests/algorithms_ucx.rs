//! The algorithms of the host path over UCX.

#[path = "algorithms/cases.rs"]
mod cases;
mod support;

/// UCX's shared memory, in addition to UCX's own choice.
#[test]
fn the_same_in_ucx_shared_memory() {
    support::again_with_transports("shm", "the_same_in_ucx_shared_memory");
}
