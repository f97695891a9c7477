//! Which ranges of a memory are lent, to be read or to be written.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::Ordering;

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

/// The loans of a memory. Who asks while nothing is lent pays for one load.
pub(crate) struct Loans<W> {
    /// Loans that have not ended: at least those in the table.
    open: W,
    table: Mutex<Table>,
}

impl<W: Word> Loans<W> {
    /// None; `open` is 0.
    pub(crate) fn new(open: W) -> Loans<W> {
        Loans { open, table: Mutex::default() }
    }

    /// A loan that is in the way of such a use of that range. What its user did with the bytes, if it has ended, was
    /// before.
    #[inline]
    pub(crate) fn conflict(&self, range: &Range<usize>, wanted: Use) -> Option<Range<usize>> {
        if self.open.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.table.lock().conflict(range, wanted)
    }

    /// Notes a loan. Errors: the loan that is in its way.
    pub(crate) fn begin(&self, range: &Range<usize>, wanted: Use) -> Result<(), Range<usize>> {
        // A count that wrapped around would be taken for none.
        assert!(self.open.add(1, Ordering::Relaxed) < MOST, "too many loans of a buffer");
        let begun = self.table.lock().begin(range, wanted);
        if begun.is_err() {
            self.open.add(MINUS_ONE, Ordering::Release);
        }
        begun
    }

    /// Ends a loan that was noted.
    pub(crate) fn end(&self, range: &Range<usize>, wanted: Use) {
        self.table.lock().end(range, wanted);
        self.open.add(MINUS_ONE, Ordering::Release);
    }
}

/// Loans that are forgotten do not end, but stay counted.
const MOST: u32 = u32::MAX / 2;
const MINUS_ONE: u32 = u32::MAX;

#[derive(Default)]
struct Table {
    /// The loan that began when there was no other: most often there is none besides, and it takes no memory.
    first: Option<(Range<usize>, Use)>,
    /// The others by first byte and end; loans of no bytes are not here.
    users: BTreeMap<(usize, usize), Users>,
    /// Of the others, those that write.
    writers: usize,
    /// Bytes of the longest of the others since there was none.
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
        if let Some((other, of)) = &self.first
            && other.start < range.end
            && other.end > range.start
            && (wanted == Use::Write || *of == Use::Write)
        {
            return Some(other.clone());
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

    fn begin(&mut self, range: &Range<usize>, wanted: Use) -> Result<(), Range<usize>> {
        if range.is_empty() {
            return Ok(());
        }
        if let Some(other) = self.conflict(range, wanted) {
            return Err(other);
        }
        if self.first.is_none() && self.users.is_empty() {
            self.first = Some((range.clone(), wanted));
            return Ok(());
        }
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
        Ok(())
    }

    fn end(&mut self, range: &Range<usize>, wanted: Use) {
        if self.first.as_ref().is_some_and(|(first, of)| first == range && *of == wanted) {
            self.first = None;
            return;
        }
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

    fn overlap(one: &Range<usize>, other: &Range<usize>) -> bool {
        one.start.max(other.start) < one.end.min(other.end)
    }

    proptest! {
        /// Against a list of all loans: the same ones are refused, and what is named is in the way.
        #[test]
        fn loans_are_refused_that_overlap_and_no_others(
            steps in proptest::collection::vec((0..40usize, 0..12usize, wanted(), any::<bool>()), 1..80),
        ) {
            let loans = Loans::new(AtomicU32::new(0));
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
            prop_assert_eq!(loans.open.into_inner(), 0);
            let table = loans.table.into_inner();
            prop_assert!(table.users.is_empty() && table.first.is_none());
        }
    }

    /// What two users did is before what the owner does once nothing is lent, which it finds out by a load alone.
    #[test]
    fn an_owner_that_sees_no_loan_sees_what_its_users_did() {
        use loom::cell::UnsafeCell;
        use loom::sync::Arc;

        loom::model(|| {
            let shared = Arc::new((
                Loans::new(loom::sync::atomic::AtomicU32::new(0)),
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
            if shared.0.open.load(Ordering::Acquire) == 0 {
                shared.1.iter().for_each(|cell| cell.with_mut(|byte| assert!(!byte.is_null())));
            }
            users.into_iter().for_each(|user| user.join().unwrap());
        });
    }
}
