//! What the owner of a mesh is told.

use super::error::MeshError;
use super::frame::Key;

/// What the owner of a mesh is told, by the mesh's thread: every call must be short and must not block.
pub trait Events: Send + Sync {
    /// A message on [`super::Channel::Control`].
    fn control(&self, from: u32, key: Key, bytes: Vec<u8>);

    /// Whether a message on [`super::Channel::Collective`] is to be kept. Called with a lock held: it may not call
    /// the mesh.
    fn admit(&self, from: u32, key: Key, fingerprint: u32) -> bool;

    /// The mesh has failed: every call returns this error from now on.
    fn failed(&self, reason: &MeshError);
}
