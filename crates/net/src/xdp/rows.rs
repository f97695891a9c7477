//! Slots of pools in the kernel's memory: each pool has a range.

use std::collections::BTreeMap;

/// Which slots pools have.
#[derive(Debug)]
pub(super) struct PoolRows {
    limit: u32,
    /// Number of slots by the first.
    taken: BTreeMap<u32, u32>,
}

impl PoolRows {
    pub(super) fn new(limit: u32) -> PoolRows {
        PoolRows { limit, taken: BTreeMap::new() }
    }

    /// The first of `slots` free ones; `None`: no gap is so large.
    pub(super) fn allot(&mut self, slots: u32) -> Option<u32> {
        let mut from = 0;
        for (&first, &len) in &self.taken {
            if first - from >= slots {
                break;
            }
            from = first + len;
        }
        (self.limit.saturating_sub(from) >= slots).then(|| {
            self.taken.insert(from, slots);
            from
        })
    }

    /// Frees a range; returns its length, 0 if there is none.
    pub(super) fn free(&mut self, first: u32) -> u32 {
        self.taken.remove(&first).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_fill_gaps_and_never_overlap() {
        let mut rows = PoolRows::new(10);
        assert_eq!([rows.allot(4), rows.allot(3), rows.allot(3)], [Some(0), Some(4), Some(7)]);
        assert_eq!(rows.allot(1), None);
        assert_eq!((rows.free(4), rows.free(4)), (3, 0));
        assert_eq!([rows.allot(4), rows.allot(2), rows.allot(1)], [None, Some(4), Some(6)]);
        assert_eq!((rows.free(0), rows.free(7)), (4, 3));
        assert_eq!([rows.allot(3), rows.allot(4), rows.allot(1)], [Some(0), None, Some(3)]);
        assert_eq!(PoolRows::new(0).allot(1), None);
    }
}
