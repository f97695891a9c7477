//! Nothing but dependencies. With a package alone, cargo chooses fewer features for third-party crates than with the
//! whole workspace, and compiles them and all of netsum's crates once more; with this crate it chooses the same ones.
