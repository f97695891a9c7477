//! Keeps the library in memory when NCCL unloads it.

fn main() {
    // NCCL closes a plug-in with its last communicator. Threads of a group that ends at that moment still run its code.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
