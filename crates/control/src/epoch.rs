//! Epochs of a job's plans: 1 to 65535, then 1 again; 0 means no plan.

/// Whether `epoch` is newer than `than`. Numbers wrap around: of two plans, the one less than half the range ahead is
/// newer.
pub fn is_newer(epoch: u32, than: u32) -> bool {
    epoch != 0 && (than == 0 || distance(epoch, than) > 0)
}

/// Distance from `than` to `epoch`; negative if behind.
pub(crate) fn distance(epoch: u32, than: u32) -> i16 {
    (epoch as u16).wrapping_sub(than as u16) as i16
}

/// The epoch after `epoch`.
pub(crate) fn next(epoch: u16) -> u16 {
    epoch.checked_add(1).unwrap_or(1)
}

/// The epoch before `epoch`.
pub(crate) fn previous(epoch: u16) -> u16 {
    if epoch <= 1 { u16::MAX } else { epoch - 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_wrap_around_without_zero() {
        assert_eq!((next(0), next(7), next(u16::MAX)), (1, 8, 1));
        assert_eq!((previous(8), previous(1)), (7, u16::MAX));
        assert!(is_newer(1, 65_535) && !is_newer(65_535, 1));
        assert!(is_newer(8, 7) && !is_newer(7, 7) && !is_newer(6, 7));
        assert!(is_newer(1, 0) && !is_newer(0, 0) && !is_newer(0, 9));
        assert!(is_newer(65_535, 0) && is_newer(40_000, 0));
    }
}
