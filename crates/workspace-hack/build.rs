//! Cargo takes dependencies of build scripts into account only where there is a build script.

fn main() {}
