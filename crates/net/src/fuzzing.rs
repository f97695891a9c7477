//! Parsers of what other processes send, for fuzz targets (`fuzz/` at the root of the repository). Each function takes
//! any bytes, and panics if the parser breaks its promises.

use std::net::SocketAddrV4;

use crate::mesh::SECRET_LEN;
use crate::{accelerator, arena, mesh};

/// What the rank of a peer writes on its connection.
pub fn mesh_stream(bytes: &[u8]) {
    mesh::fuzzing::stream(bytes);
}

/// What the rank of a peer on this host writes into shared memory.
pub fn mesh_rings(bytes: &[u8]) {
    mesh::fuzzing::rings(bytes);
}

/// The first bytes on the ports where the ranks of a mesh, and those of a host, find each other. Only a process that
/// knows the secret is let in.
pub fn hellos(bytes: &[u8]) {
    mesh::fuzzing::hello(bytes);
    let secret = [7; SECRET_LEN];
    let named = arena::rank_in_hello(bytes, 4, &secret).expect("this process has descriptors left");
    let known = bytes.get(4..4 + SECRET_LEN).is_some_and(|theirs| theirs == secret);
    assert!(named.is_none_or(|rank| known && (1..4).contains(&rank)), "rank {named:?}");
}

/// What a process says to a rank that has credentials: in place of TLS, or within it, as a member of the same tenant
/// that claims another rank's seat. Nobody is let in.
pub fn mesh_handshake(bytes: &[u8]) {
    mesh::fuzzing::handshake(bytes);
}

/// A frame from an accelerator's line: what is taken out of it is built into the same addresses and packet again.
pub fn accelerator_frame(bytes: &[u8]) {
    let parts = |bytes: &[u8]| -> Option<(SocketAddrV4, SocketAddrV4, Vec<u8>)> {
        let (from, to, packet) = accelerator::parse(bytes)?;
        Some((from, to, packet.to_vec()))
    };
    if let Some((from, to, packet)) = parts(bytes) {
        let again = parts(&accelerator::build(from, to, false, &packet));
        assert_eq!(again, Some((from, to, packet)));
    }
}
