//! Which ranges of a memory are lent, to be read or to be written.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::word::Word;

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
/// Most often there is at most one, which is kept in a word: it begins and ends by one locked instruction each, and who
/// asks while nothing is lent pays for two loads.
pub(crate) struct Loans<S, W> {
    /// One loan, packed by [`pack`]; 0: none.
    single: S,
    /// 1 while there are loans in the table; written with the table locked.
    others: W,
    table: Mutex<Table>,
}

impl<S: Single, W: Word> Loans<S, W> {
    /// No loans; both words are 0.
    pub(crate) fn new(single: S, others: W) -> Loans<S, W> {
        Loans { single, others, table: Mutex::default() }
    }

    /// A loan that excludes such a use of that range. If there is none, what past users did with the bytes has happened
    /// before.
    #[inline]
    pub(crate) fn conflict(&self, range: &Range<usize>, wanted: Use) -> Option<Range<usize>> {
        let single = self.single.load(Ordering::Acquire);
        if single != 0 {
            let (other, of) = unpack(single);
            if other.start < range.end
                && other.end > range.start
                && !range.is_empty()
                && (wanted == Use::Write || of == Use::Write)
            {
                return Some(other);
            }
        }
        if self.others.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.table.lock().conflict(range, wanted)
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
        if let Some(packed) = pack(range, wanted)
            && self.single.replace(0, packed, Ordering::Relaxed)
        {
            return Ok(());
        }
        let mut table = self.table.lock();
        table.begin(range, wanted);
        self.others.store(1, Ordering::Relaxed);
        Ok(())
    }

    /// Ends a loan that was recorded.
    pub(crate) fn end(&self, range: &Range<usize>, wanted: Use) {
        if range.is_empty() {
            return;
        }
        if let Some(packed) = pack(range, wanted)
            && self.single.replace(packed, 0, Ordering::Release)
        {
            return;
        }
        let mut table = self.table.lock();
        table.end(range, wanted);
        if table.users.is_empty() {
            self.others.store(0, Ordering::Release);
        }
    }
}

/// The word of a single loan.
pub(crate) trait Single {
    fn load(&self, order: Ordering) -> u64;
    /// Replaces `from` by `to`; whether it was there.
    fn replace(&self, from: u64, to: u64, order: Ordering) -> bool;
}

macro_rules! single {
    ($atomic:ty) => {
        impl Single for $atomic {
            #[inline(always)]
            fn load(&self, order: Ordering) -> u64 {
                self.load(order)
            }
            #[inline(always)]
            fn replace(&self, from: u64, to: u64, order: Ordering) -> bool {
                self.compare_exchange(from, to, order, Ordering::Relaxed).is_ok()
            }
        }
    };
}

single!(AtomicU64);
// The model checker's word.
#[cfg(test)]
single!(loom::sync::atomic::AtomicU64);

/// A loan in a word, which is not 0: start, end, and in the lowest bit whether it writes. `None`: it is too far from the
/// start.
#[inline]
fn pack(range: &Range<usize>, wanted: Use) -> Option<u64> {
    let end = range.end as u64;
    (end <= END_MAX)
        .then(|| (range.start as u64) << 33 | end << 1 | u64::from(wanted == Use::Write))
}

fn unpack(packed: u64) -> (Range<usize>, Use) {
    let range = (packed >> 33) as usize..((packed >> 1) & u64::from(u32::MAX)) as usize;
    (range, if packed & 1 == 1 { Use::Write } else { Use::Read })
}

/// 31 bits for the start, 32 for the end.
const END_MAX: u64 = (1 << 31) - 1;

#[derive(Default)]
struct Table {
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
    use std::sync::atomic::AtomicU32;

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
            let loans = Loans::new(AtomicU64::new(0), AtomicU32::new(0));
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
            prop_assert_eq!((loans.single.into_inner(), loans.others.into_inner()), (0, 0));
            prop_assert!(loans.table.into_inner().users.is_empty());
        }
    }

    /// What two users did is before what the owner does once nothing is lent, which it finds out by a load alone.
    #[test]
    fn an_owner_that_sees_no_loan_sees_what_its_users_did() {
        use loom::cell::UnsafeCell;
        use loom::sync::Arc;

        loom::model(|| {
            let shared = Arc::new((
                Loans::new(
                    loom::sync::atomic::AtomicU64::new(0),
                    loom::sync::atomic::AtomicU32::new(0),
                ),
                [UnsafeCell::new(0u8), UnsafeCell::new(0u8)],
            ));
            let users: Vec<_> = [Use::Read, Use::Write]
                .into_iter()
                .enumerate()
                .map(|(at, wanted)| {
                    shared.0.begin(&(at..at + 1), wanted).unwrap();
                    let shared = shared.clone();
                    loom::thread::spawn(move || {
                        // SAFETY of all accesses here: loom checks that nobody else is in the cell.
                        match wanted {
                            Use::Read => shared.1[at].with(|byte| assert!(!byte.is_null())),
                            Use::Write => shared.1[at].with_mut(|byte| assert!(!byte.is_null())),
                        }
                        shared.0.end(&(at..at + 1), wanted);
                    })
                })
                .collect();
            let words = (&shared.0.single, &shared.0.others);
            if words.0.load(Ordering::Acquire) == 0 && words.1.load(Ordering::Acquire) == 0 {
                shared.1.iter().for_each(|cell| cell.with_mut(|byte| assert!(!byte.is_null())));
            }
            users.into_iter().for_each(|user| user.join().unwrap());
        });
    }
}
