//! Sequence numbers: 64 bits inside the machines, their low 32 bits in packets.
//!
//! A machine that has the whole number (a worker) reconstructs it from a packet's 32 bits and a number nearby, as QUIC
//! does (RFC 9000, appendix A.3). A machine that has 32 bits only (an aggregator) compares with [`distance`]. Both are
//! correct as long as numbers in use are less than 2³¹ apart: windows are at most 2¹⁴.

/// The sequence number nearest to `near` whose low 32 bits are `wire`; `None` if it would be negative.
#[inline]
pub(crate) fn expand(wire: u32, near: u64) -> Option<u64> {
    near.checked_add_signed(distance(wire, near as u32).into())
}

/// Distance from `other` to `one`, negative if `one` is before.
#[inline]
pub(crate) fn distance(one: u32, other: u32) -> i32 {
    one.wrapping_sub(other) as i32
}

/// Raises `known` to `number` if that is later.
#[inline]
pub(crate) fn raise_to(known: &mut u32, number: u32) {
    if distance(number, *known) > 0 {
        *known = number;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_number_less_than_half_the_range_away_is_reconstructed(
            near in prop_oneof![0..1u64 << 33, any::<u64>()],
            away in i32::MIN + 1..=i32::MAX,
        ) {
            if let Some(number) = near.checked_add_signed(away.into()) {
                prop_assert_eq!(expand(number as u32, near), Some(number));
            }
        }
    }

    #[test]
    fn the_first_number_has_none_before_it() {
        assert_eq!(expand(u32::MAX, 0), None);
        assert_eq!(expand(u32::MAX, 1 << 32), Some((1 << 32) - 1));
        assert_eq!(expand(0, (1 << 32) - 1), Some(1 << 32));
    }
}
