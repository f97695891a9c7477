//! The bytes by which a sealed packet differs from an unsealed one.

use crate::DecodeError;

/// Bytes of the header that sealed packets of every protocol have; what an unsealed one has beyond is zero.
pub const HEADER_LEN: usize = 38;
/// Bytes that follow the header: the packet number and the tag, eight bytes each.
pub const EXTENSION_LEN: usize = 16;
/// Bytes before the payload of every sealed packet.
pub const SEALED_HEADER_LEN: usize = HEADER_LEN + EXTENSION_LEN;
/// Bytes that follow the payload of an encrypted packet: the second half of the tag.
pub const TRAILER_LEN: usize = 8;
/// Second digit of the first byte of a sealed packet.
const SEALED: u8 = 2;
/// The same of one that is encrypted, too.
const ENCRYPTED: u8 = 3;
/// The same of an unsealed one.
pub(crate) const UNSEALED: u8 = 1;

/// The first byte of a protocol's sealed packets, from that of the unsealed ones.
pub(crate) const fn sealed_version(version: u8) -> u8 {
    version & 0xf0 | SEALED
}

/// The first byte of a protocol's encrypted packets.
pub(crate) const fn encrypted_version(version: u8) -> u8 {
    version & 0xf0 | ENCRYPTED
}

/// Whether a packet is sealed, by its first byte; encrypted packets are.
#[inline]
pub fn is_sealed(packet: &[u8]) -> bool {
    packet.first().is_some_and(|version| matches!(version & 0x0f, SEALED | ENCRYPTED))
}

/// Whether a packet is encrypted, by its first byte.
#[inline]
pub fn is_encrypted(packet: &[u8]) -> bool {
    packet.first().is_some_and(|version| version & 0x0f == ENCRYPTED)
}

/// Splits a packet into the header that all its protocol's packets have, and the payload. `version`: the first byte of
/// unsealed packets, whose header has `len` bytes.
#[inline]
pub(crate) fn split(
    version: u8,
    len: usize,
    packet: &[u8],
) -> Result<(&[u8; HEADER_LEN], &[u8]), DecodeError> {
    let (header, rest) = packet.split_first_chunk().ok_or(DecodeError::TruncatedHeader)?;
    let first = header[0];
    let payload = if first == version {
        let (reserved, payload) = split_at(rest, len - HEADER_LEN)?;
        if reserved.iter().any(|&byte| byte != 0) {
            return Err(DecodeError::Reserved);
        }
        payload
    } else if first == sealed_version(version) {
        split_at(rest, EXTENSION_LEN)?.1
    } else if first == encrypted_version(version) {
        let payload = split_at(rest, EXTENSION_LEN)?.1;
        let len = payload.len().checked_sub(TRAILER_LEN).ok_or(DecodeError::TruncatedHeader)?;
        &payload[..len]
    } else {
        return Err(DecodeError::UnknownVersion);
    };
    Ok((header, payload))
}

#[inline]
fn split_at(bytes: &[u8], at: usize) -> Result<(&[u8], &[u8]), DecodeError> {
    bytes.split_at_checked(at).ok_or(DecodeError::TruncatedHeader)
}
