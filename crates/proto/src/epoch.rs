//! Comparison of epochs of packets and leases with the one in use.

use std::cmp::Ordering;

use netsum_wire::Epoch;

use crate::DropReason;

/// Order of two epochs. Numbers wrap around: half of them are before any.
pub(crate) fn compare(one: Epoch, other: Epoch) -> Ordering {
    (one.0.wrapping_sub(other.0) as i16).cmp(&0)
}

/// Checks that a packet belongs to the epoch in use.
#[inline]
pub(crate) fn check(packet: Epoch, at_work: Epoch) -> Result<(), DropReason> {
    match compare(packet, at_work) {
        Ordering::Equal => Ok(()),
        Ordering::Less => Err(DropReason::StaleEpoch),
        Ordering::Greater => Err(DropReason::FutureEpoch),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_wrap_around() {
        let check = |packet, at_work| check(Epoch(packet), Epoch(at_work));
        assert_eq!((check(7, 7), check(6, 7)), (Ok(()), Err(DropReason::StaleEpoch)));
        assert_eq!(check(2, 65_535), Err(DropReason::FutureEpoch));
        assert_eq!(check(65_535, 2), Err(DropReason::StaleEpoch));
    }
}
