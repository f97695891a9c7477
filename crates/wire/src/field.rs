//! Header fields, and errors of decoding.

/// Why bytes are not a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum DecodeError {
    /// Fewer bytes than a header.
    #[error("truncated header")]
    TruncatedHeader,
    /// Unknown first byte.
    #[error("unknown protocol version")]
    UnknownVersion,
    /// A flags byte with an unknown kind or a reserved bit.
    #[error("unknown kind or flag")]
    UnknownKind,
    /// Unknown or unsupported format byte.
    #[error("unknown or unsupported number format")]
    UnknownFormat,
    /// Payload length does not match `n_elems`, kind and format.
    #[error("payload length does not match the header")]
    PayloadLength,
    /// A fragment without elements.
    #[error("empty fragment")]
    EmptyFragment,
    /// Reserved bytes are not zero.
    #[error("reserved field is not zero")]
    Reserved,
    /// A bitmap without members or with members beyond the fan-in, or a fan-in beyond its bitmap.
    #[error("impossible bitmap or fan-in")]
    Members,
}

#[inline(always)]
pub(crate) fn be16<const N: usize>(h: &[u8; N], at: usize) -> u16 {
    u16::from_be_bytes([h[at], h[at + 1]])
}

#[inline(always)]
pub(crate) fn be32<const N: usize>(h: &[u8; N], at: usize) -> u32 {
    u32::from_be_bytes([h[at], h[at + 1], h[at + 2], h[at + 3]])
}

#[inline(always)]
pub(crate) fn put16<const N: usize>(h: &mut [u8; N], at: usize, value: u16) {
    h[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

#[inline(always)]
pub(crate) fn put32<const N: usize>(h: &mut [u8; N], at: usize, value: u32) {
    h[at..at + 4].copy_from_slice(&value.to_be_bytes());
}
