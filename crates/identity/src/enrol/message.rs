//! Requests and replies of an enrolment: parts of bytes, each after its length in 32 bits, big-endian.

/// Maximum bytes of a request; a certificate request takes some hundred.
pub const REQUEST_MAX: usize = 16 << 10;

/// Maximum bytes of a reply: two certificates, and a revocation list of at most 1 MiB.
pub const REPLY_MAX: usize = 2 << 20;

pub(super) fn pack(parts: &[&[u8]]) -> Vec<u8> {
    let mut message = Vec::new();
    for part in parts {
        message.extend((part.len() as u32).to_be_bytes());
        message.extend_from_slice(part);
    }
    message
}

/// The parts of a message; `None`: it has not exactly `N` of them.
pub(super) fn unpack<const N: usize>(mut message: &[u8]) -> Option<[&[u8]; N]> {
    let mut parts = [&[][..]; N];
    for part in &mut parts {
        let (len, rest) = message.split_first_chunk()?;
        (*part, message) = rest.split_at_checked(u32::from_be_bytes(*len) as usize)?;
    }
    message.is_empty().then_some(parts)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_packed_is_unpacked(a in any::<Vec<u8>>(), b in any::<Vec<u8>>()) {
            let message = pack(&[&a, &b]);
            prop_assert_eq!(unpack::<2>(&message), Some([&a[..], &b[..]]));
            prop_assert_eq!(unpack::<1>(&message), None);
            prop_assert_eq!(unpack::<3>(&message), None);
        }

        #[test]
        fn any_bytes_are_unpacked_or_refused(message in any::<Vec<u8>>()) {
            let _ = unpack::<3>(&message);
        }
    }
}
