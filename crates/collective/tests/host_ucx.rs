//! Every collective between ranks that talk over UCX: the same cases, and the same bits.

#[path = "host/cases.rs"]
mod cases;
mod support;

/// UCX's shared memory, where the program itself takes what UCX chooses.
#[test]
fn the_same_in_ucx_shared_memory() {
    support::again_with_transports("shm", "the_same_in_ucx_shared_memory");
}
