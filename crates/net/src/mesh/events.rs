//! Callbacks to the owner of a mesh.

use super::error::MeshError;
use super::frame::Key;

/// Callbacks to the owner of a mesh, on the mesh's thread: they must be short and must not block.
pub trait Events: Send + Sync {
    /// A message on [`super::Channel::Control`].
    fn control(&self, from: u32, key: Key, bytes: Vec<u8>);

    /// Whether to keep a message on [`super::Channel::Collective`]. Called with a lock held: it must not call the mesh.
    fn admit(&self, from: u32, key: Key, fingerprint: u32) -> bool;

    /// The mesh has failed: every call returns this error from now on.
    fn failed(&self, reason: &MeshError);
}
