//! Every collective between ranks over UCX: the same cases, and the same bits.

#[path = "host/cases.rs"]
mod cases;
mod support;

/// UCX's shared memory, in addition to UCX's own choice.
#[test]
fn the_same_in_ucx_shared_memory() {
    support::again_with_transports("shm", "the_same_in_ucx_shared_memory");
}
