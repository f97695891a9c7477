//! The newest term that a switch or a worker has seen: messages of earlier ones are refused.

/// Refuses controllers that another one has replaced, however late they speak.
#[derive(Debug, Clone, Default)]
pub struct Fence {
    incarnation: u64,
    term: u64,
    refused: u64,
}

/// A controller speaks whose term is over.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("it leads in term {term}, and term {newest} has begun since; another controller leads")]
pub struct Stale {
    /// Its term.
    pub term: u64,
    /// The newest term.
    pub newest: u64,
}

impl Fence {
    /// Meets the store of the controller at the other end of a new stream. Terms of another store begin anew.
    pub fn meet(&mut self, incarnation: u64) {
        if self.incarnation != incarnation && self.incarnation != 0 {
            self.term = 0;
        }
        self.incarnation = incarnation;
    }

    /// Whether a message of that term counts. 0 is a controller of a version without terms, which has no others beside
    /// it.
    pub fn admit(&mut self, term: u64) -> Result<(), Stale> {
        if term != 0 && term < self.term {
            self.refused += 1;
            return Err(Stale { term, newest: self.term });
        }
        self.term = self.term.max(term);
        Ok(())
    }

    /// The newest term; 0: none was seen.
    pub fn term(&self) -> u64 {
        self.term
    }

    /// Number of messages that were refused.
    pub fn refused(&self) -> u64 {
        self.refused
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_spoke_before_is_refused_and_counted() {
        let mut fence = Fence::default();
        fence.meet(1);
        assert_eq!((fence.admit(5), fence.admit(5), fence.admit(7)), (Ok(()), Ok(()), Ok(())));
        let stale = fence.admit(6).unwrap_err();
        assert_eq!(stale, Stale { term: 6, newest: 7 });
        assert!(stale.to_string().contains("term 7 has begun"), "{stale}");
        assert_eq!((fence.admit(0), fence.term(), fence.refused()), (Ok(()), 7, 1));
        fence.meet(1);
        assert!(fence.admit(6).is_err(), "the same store");
        fence.meet(2);
        assert_eq!((fence.admit(1), fence.term(), fence.refused()), (Ok(()), 1, 2));
    }
}
