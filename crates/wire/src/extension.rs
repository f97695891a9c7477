//! The bytes by which a sealed packet differs from an unsealed one.

use crate::DecodeError;

/// Bytes between header and payload: the packet number and the tag, eight bytes each.
pub const EXTENSION_LEN: usize = 16;
/// Second digit of the first byte of a sealed packet.
const SEALED: u8 = 2;
/// The same of an unsealed one.
pub(crate) const UNSEALED: u8 = 1;

/// The first byte of a protocol's sealed packets, from that of the unsealed ones.
pub(crate) const fn sealed_version(version: u8) -> u8 {
    version & 0xf0 | SEALED
}

/// Whether a packet is sealed, by its first byte.
#[inline]
pub fn is_sealed(packet: &[u8]) -> bool {
    packet.first().is_some_and(|version| version & 0x0f == SEALED)
}

/// What follows the header: the payload, without the extension of a sealed packet. `version`: that of unsealed packets.
#[inline]
pub(crate) fn payload(version: u8, first: u8, rest: &[u8]) -> Result<&[u8], DecodeError> {
    if first == version {
        Ok(rest)
    } else if first == sealed_version(version) {
        rest.get(EXTENSION_LEN..).ok_or(DecodeError::TruncatedHeader)
    } else {
        Err(DecodeError::UnknownVersion)
    }
}
