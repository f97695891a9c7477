//! Which ranges of a memory are lent, to be read or to be written.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// What is done with bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// By any number of users at a time.
    Read,
    /// By one user, and by no reader meanwhile.
    Write,
}

/// The loans of a memory.
///
/// Most often there is at most one, which is kept in a word: it begins and ends by one locked instruction each, and
/// finding out that nothing is lent costs one load.
pub(crate) struct Loans<W, L> {
    /// 0: no loan; [`IN_TABLE`]: all are in the table, where there is at least one; else one loan, packed by [`pack`].
    word: W,
    table: L,
}

/// Loans in a process.
pub(crate) type ThreadLoans = Loans<AtomicU64, Mutex<Table>>;

impl<W: LoanWord, L: Lock> Loans<W, L> {
    /// No loans. `word` is 0.
    pub(crate) fn new(word: W, table: L) -> Loans<W, L> {
        Loans { word, table }
    }

    /// A loan that excludes such a use of that range. If there is none, what past users did with the bytes has happened
    /// before.
    #[inline]
    pub(crate) fn conflict(&self, range: &Range<usize>, wanted: Use) -> Option<Range<usize>> {
        match self.word.load() {
            0 => None,
            word => self.conflict_with(word, range, wanted),
        }
    }

    #[cold]
    fn conflict_with(&self, word: u64, range: &Range<usize>, wanted: Use) -> Option<Range<usize>> {
        if word == IN_TABLE {
            return self.table.with(|table| table.conflict(range, wanted));
        }
        let (other, of) = unpack(word);
        let overlaps = other.start < range.end && other.end > range.start && !range.is_empty();
        (overlaps && (wanted == Use::Write || of == Use::Write)).then_some(other)
    }

    /// Records a loan; loans of no bytes are not recorded. Errors: the loan that excludes it.
    pub(crate) fn begin(&self, range: &Range<usize>, wanted: Use) -> Result<(), Range<usize>> {
        if range.is_empty() {
            return Ok(());
        }
        // Only readers begin at the same time, and they do not exclude each other.
        if let Some(other) = self.conflict(range, wanted) {
            return Err(other);
        }
        let packed = pack(range, wanted);
        if packed.is_none_or(|packed| !self.word.replace(0, packed)) {
            self.table.with(|table| {
                self.move_to_table(table);
                table.begin(range, wanted);
            });
        }
        Ok(())
    }

    /// With the table locked: from here on all loans are there.
    fn move_to_table(&self, table: &mut Table) {
        loop {
            let word = self.word.load();
            if word == IN_TABLE {
                return;
            }
            // A single loan may end at this moment.
            if self.word.replace(word, IN_TABLE) {
                if word != 0 {
                    let (range, of) = unpack(word);
                    table.begin(&range, of);
                }
                return;
            }
        }
    }

    /// Ends a loan that was recorded.
    pub(crate) fn end(&self, range: &Range<usize>, wanted: Use) {
        let packed = pack(range, wanted);
        if range.is_empty() || packed.is_some_and(|packed| self.word.replace(packed, 0)) {
            return;
        }
        self.table.with(|table| {
            table.end(range, wanted);
            if table.users.is_empty() {
                let was_in_table = self.word.replace(IN_TABLE, 0);
                assert!(was_in_table, "only the end of the last loan empties the table");
            }
        });
    }
}

/// A word with acquire and release semantics.
pub(crate) trait LoanWord {
    fn load(&self) -> u64;
    /// Replaces `from` by `to`; whether it was there.
    fn replace(&self, from: u64, to: u64) -> bool;
}

/// A lock.
pub(crate) trait Lock {
    fn with<R>(&self, act: impl FnOnce(&mut Table) -> R) -> R;
}

impl LoanWord for AtomicU64 {
    #[inline(always)]
    fn load(&self) -> u64 {
        self.load(Ordering::Acquire)
    }

    #[inline(always)]
    fn replace(&self, from: u64, to: u64) -> bool {
        self.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

impl Lock for Mutex<Table> {
    fn with<R>(&self, act: impl FnOnce(&mut Table) -> R) -> R {
        act(&mut self.lock())
    }
}

/// A loan in a word: start, end, and in the lowest bit whether it writes. `None`: it is too far from the start.
#[inline]
fn pack(range: &Range<usize>, wanted: Use) -> Option<u64> {
    let end = range.end as u64;
    (end <= END_MAX)
        .then(|| (range.start as u64) << 32 | end << 1 | u64::from(wanted == Use::Write))
}

fn unpack(packed: u64) -> (Range<usize>, Use) {
    let range = (packed >> 32) as usize..(packed as u32 >> 1) as usize;
    (range, if packed & 1 == 1 { Use::Write } else { Use::Read })
}

/// 31 bits for each end of the range. A start is less than its end, so no loan is [`IN_TABLE`].
const END_MAX: u64 = (1 << 31) - 1;
const IN_TABLE: u64 = u64::MAX;

#[derive(Default)]
pub(crate) struct Table {
    /// Loans by first byte and end.
    users: BTreeMap<(usize, usize), Users>,
    /// Loans that write.
    writers: usize,
    /// Bytes of the longest loan since there was none.
    longest: usize,
}

#[derive(Clone, Copy)]
enum Users {
    Readers(usize),
    Writer,
}

impl Table {
    fn conflict(&self, range: &Range<usize>, wanted: Use) -> Option<Range<usize>> {
        if range.is_empty() {
            return None;
        }
        if self.users.is_empty() || wanted == Use::Read && self.writers == 0 {
            return None;
        }
        let first = (range.start.saturating_sub(self.longest), 0);
        let near = self.users.range(first..(range.end, 0)).rev();
        let mut in_the_way = near.filter(|((_, end), users)| {
            *end > range.start && (wanted == Use::Write || matches!(users, Users::Writer))
        });
        in_the_way.next().map(|((start, end), _)| *start..*end)
    }

    fn begin(&mut self, range: &Range<usize>, wanted: Use) {
        self.longest = self.longest.max(range.len());
        let place = (range.start, range.end);
        match (wanted, self.users.get_mut(&place)) {
            (Use::Read, Some(Users::Readers(count))) => *count += 1,
            (Use::Read, _) => drop(self.users.insert(place, Users::Readers(1))),
            (Use::Write, _) => {
                self.writers += 1;
                self.users.insert(place, Users::Writer);
            }
        }
    }

    fn end(&mut self, range: &Range<usize>, wanted: Use) {
        let place = (range.start, range.end);
        match self.users.get_mut(&place) {
            Some(Users::Readers(count)) if *count > 1 => *count -= 1,
            Some(_) => {
                self.users.remove(&place);
                self.writers -= usize::from(wanted == Use::Write);
            }
            None => {}
        }
        if self.users.is_empty() {
            self.longest = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn wanted() -> impl Strategy<Value = Use> {
        prop_oneof![Just(Use::Read), Just(Use::Write)]
    }

    /// Near the start, and too far from it for a word.
    fn starts() -> impl Strategy<Value = usize> {
        prop_oneof![0..40usize, (1 << 31) - 20..(1 << 31) + 20usize]
    }

    fn overlap(one: &Range<usize>, other: &Range<usize>) -> bool {
        one.start.max(other.start) < one.end.min(other.end)
    }

    proptest! {
        /// Against a list of all loans: the same ones are refused, and what is named is in the way.
        #[test]
        fn loans_are_refused_that_overlap_and_no_others(
            steps in proptest::collection::vec((starts(), 0..12usize, wanted(), any::<bool>()), 1..80),
        ) {
            let loans = ThreadLoans::new(AtomicU64::new(0), Mutex::default());
            let mut all: Vec<(Range<usize>, Use)> = Vec::new();
            for (at, len, wanted, ends) in steps {
                let range = at..at + len;
                let in_the_way = |(other, of): &(Range<usize>, Use)| {
                    overlap(other, &range) && (wanted == Use::Write || *of == Use::Write)
                };
                let found = loans.conflict(&range, wanted);
                prop_assert_eq!(found.is_some(), all.iter().any(in_the_way));
                if let Some(other) = &found {
                    prop_assert!(all.iter().any(|one| one.0 == *other && in_the_way(one)));
                }
                prop_assert_eq!(loans.begin(&range, wanted).err(), found.clone());
                if found.is_none() {
                    all.push((range, wanted));
                }
                if ends && !all.is_empty() {
                    let (range, of) = all.swap_remove(at % all.len());
                    loans.end(&range, of);
                }
            }
            all.iter().for_each(|(range, of)| loans.end(range, *of));
            prop_assert_eq!(loans.word.into_inner(), 0);
            prop_assert!(loans.table.into_inner().users.is_empty());
        }
    }

    impl LoanWord for loom::sync::atomic::AtomicU64 {
        fn load(&self) -> u64 {
            self.load(Ordering::Acquire)
        }

        fn replace(&self, from: u64, to: u64) -> bool {
            self.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        }
    }

    impl Lock for loom::sync::Mutex<Table> {
        fn with<R>(&self, act: impl FnOnce(&mut Table) -> R) -> R {
            act(&mut self.lock().unwrap())
        }
    }

    /// What users did is before what the owner does once nothing is lent. `count` loans begin before; if `again`, the
    /// first user lends its bytes once more.
    fn an_owner_sees_what_users_did(count: usize, again: bool) {
        use loom::cell::UnsafeCell;
        use loom::sync::Arc;

        loom::model(move || {
            let word = loom::sync::atomic::AtomicU64::new(0);
            let loans = Loans::new(word, loom::sync::Mutex::new(Table::default()));
            let cells: Vec<_> = (0..count).map(|_| UnsafeCell::new(0u8)).collect();
            let shared = Arc::new((loans, cells));
            let users: Vec<_> = (0..count)
                .map(|at| {
                    let wanted = if at == 0 { Use::Read } else { Use::Write };
                    shared.0.begin(&(at..at + 1), wanted).unwrap();
                    let shared = shared.clone();
                    loom::thread::spawn(move || {
                        let (loans, cells) = &*shared;
                        // SAFETY of all accesses here: loom checks that nobody else is in the cell.
                        match wanted {
                            Use::Read => {
                                if again {
                                    loans.begin(&(at..at + 1), Use::Read).unwrap();
                                    loans.end(&(at..at + 1), Use::Read);
                                }
                                cells[at].with(|byte| assert!(!byte.is_null()));
                            }
                            Use::Write => cells[at].with_mut(|byte| assert!(!byte.is_null())),
                        }
                        loans.end(&(at..at + 1), wanted);
                    })
                })
                .collect();
            let (loans, cells) = &*shared;
            let last = count - 1;
            if loans.conflict(&(last..count), Use::Write).is_none() {
                cells[last].with_mut(|byte| assert!(!byte.is_null()));
            }
            users.into_iter().for_each(|user| user.join().unwrap());
            assert_eq!(loans.word.load(Ordering::Relaxed), 0);
        });
    }

    #[test]
    fn an_owner_sees_what_one_user_did() {
        an_owner_sees_what_users_did(1, true);
    }

    #[test]
    fn an_owner_sees_what_two_users_did() {
        an_owner_sees_what_users_did(2, false);
    }
}
