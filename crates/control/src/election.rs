//! Which of several controllers leads: what one of them does, as a machine without clock, sockets and store.
//!
//! The store keeps the leader's record: its address and its term. The leader writes it again and again. A controller that
//! follows looks at the record, and takes the leader's place when the record has not changed for [`LEASE_MS`] by its own
//! clock. It also asks the leader whether it leads: if nobody is at the leader's address, it need not wait.
//!
//! Nothing here must be exact: that only one leader's writes count is up to the terms, which the store compares at each
//! write, and peers at each message. A wrong guess costs a change of the leader.

/// Something to do, whose outcome is told by [`Candidate::answer`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Ask the store who leads.
    Look,
    /// Ask the leader whether it leads in that term.
    Probe {
        /// Its address.
        address: String,
        /// The term of its record.
        term: u64,
    },
    /// Become the leader in a new term, if the store is as at the last look.
    Campaign,
    /// Write the own record again.
    Renew,
}

/// The outcome of a [`Step`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The leader's record; `None`: nobody leads.
    Looked(Option<Record>),
    /// The leader leads in the term of its record, or in a later one.
    Leads,
    /// Nobody listens at the leader's address, or it does not lead.
    Gone,
    /// No answer in time, neither from the leader nor from the store.
    Silent,
    /// The term that has been won.
    Won(u64),
    /// Another controller was faster.
    Lost,
    /// The record is written.
    Renewed,
    /// The record is another controller's.
    Expired,
}

/// The leader's record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Where the leader is.
    pub address: String,
    /// Its term.
    pub term: u64,
    /// Another one whenever it is written.
    pub revision: i64,
}

/// A controller that leads or follows.
#[derive(Debug, Clone)]
pub struct Candidate {
    address: String,
    stage: Stage,
    /// The step under way, and when it began.
    asked: Option<(Step, u64)>,
    /// What comes next, and when.
    next: (Step, u64),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Stage {
    Following {
        /// The record that was seen last.
        leader: Option<Record>,
        /// When it was first seen like that.
        since_ms: u64,
        /// How often in a row nobody was at its address.
        gone: u32,
    },
    Leading {
        term: u64,
        /// When the last successful renewal began.
        renewed_ms: u64,
    },
}

impl Candidate {
    /// A controller at that address, which follows.
    pub fn new(address: impl Into<String>, now_ms: u64) -> Candidate {
        Candidate {
            address: address.into(),
            stage: Stage::Following { leader: None, since_ms: now_ms, gone: 0 },
            asked: None,
            next: (Step::Look, now_ms),
        }
    }

    /// The term in which it leads.
    pub fn term(&self) -> Option<u64> {
        match self.stage {
            Stage::Leading { term, .. } => Some(term),
            Stage::Following { .. } => None,
        }
    }

    /// Where the leader is, as far as this controller knows.
    pub fn leader(&self) -> Option<&str> {
        match &self.stage {
            Stage::Leading { .. } => Some(&self.address),
            Stage::Following { leader, gone: 0, .. } => {
                leader.as_ref().map(|record| &*record.address)
            }
            Stage::Following { .. } => None,
        }
    }

    /// The next step, if it is due and none is under way.
    pub fn poll(&mut self, now_ms: u64) -> Option<Step> {
        if self.asked.is_some() || self.next.1 > now_ms {
            return None;
        }
        let step = self.next.0.clone();
        self.asked = Some((step.clone(), now_ms));
        Some(step)
    }

    /// When the next step is due; `None`: one is under way.
    pub fn due_ms(&self) -> Option<u64> {
        self.asked.is_none().then_some(self.next.1)
    }

    /// Handles the outcome of the step under way.
    pub fn answer(&mut self, now_ms: u64, answer: Answer) {
        let Some((step, asked_ms)) = self.asked.take() else { return };
        match (step, answer) {
            (Step::Renew, answer) => self.renewed(now_ms, asked_ms, &answer),
            (_, Answer::Looked(leader)) => self.looked(now_ms, leader),
            (_, Answer::Gone) => self.gone(now_ms),
            (_, Answer::Won(term)) => {
                self.stage = Stage::Leading { term, renewed_ms: asked_ms };
                self.next = (Step::Renew, now_ms + RENEW_MS);
            }
            _ => {
                if let Stage::Following { gone, .. } = &mut self.stage {
                    *gone = 0;
                }
                self.next = (Step::Look, now_ms + LOOK_MS);
            }
        }
    }

    /// Ends the own term: the store or a peer has shown that it is over.
    pub fn step_down(&mut self, now_ms: u64) {
        self.asked = None;
        self.stage = Stage::Following { leader: None, since_ms: now_ms, gone: 0 };
        self.next = (Step::Look, now_ms);
    }

    fn looked(&mut self, now_ms: u64, found: Option<Record>) {
        let Stage::Following { leader, since_ms, gone } = &mut self.stage else { return };
        let same_leader = |a: &Option<Record>, b: &Option<Record>| {
            a.as_ref().map(|record| record.term) == b.as_ref().map(|record| record.term)
        };
        if !same_leader(leader, &found) {
            *gone = 0;
        }
        if *leader != found {
            *since_ms = now_ms;
            leader.clone_from(&found);
        }
        let is_old = now_ms >= *since_ms + LEASE_MS;
        self.next = match found {
            // The own address: the record is that of an earlier process there.
            Some(Record { address, term, .. }) if address != self.address && !is_old => {
                (Step::Probe { address, term }, now_ms)
            }
            _ => (Step::Campaign, now_ms),
        };
    }

    fn gone(&mut self, now_ms: u64) {
        let Stage::Following { gone, .. } = &mut self.stage else { return };
        *gone += 1;
        self.next = match *gone >= GONE_ENOUGH {
            true => (Step::Campaign, now_ms),
            false => (Step::Look, now_ms + GONE_AGAIN_MS),
        };
    }

    fn renewed(&mut self, now_ms: u64, asked_ms: u64, answer: &Answer) {
        let Stage::Leading { renewed_ms, .. } = &mut self.stage else { return };
        match answer {
            Answer::Renewed => {
                *renewed_ms = asked_ms;
                self.next = (Step::Renew, asked_ms.max(now_ms.saturating_sub(RENEW_MS)) + RENEW_MS);
            }
            Answer::Silent if now_ms < *renewed_ms + LEASE_MS => {
                self.next = (Step::Renew, now_ms + RENEW_AGAIN_MS);
            }
            _ => self.step_down(now_ms),
        }
    }
}

/// A leader whose record has not changed for so long is replaced, and believes so itself.
pub const LEASE_MS: u64 = 2_000;
/// How often the leader writes its record: three attempts may fail.
const RENEW_MS: u64 = 500;
const RENEW_AGAIN_MS: u64 = 100;
/// How often the others look.
const LOOK_MS: u64 = 200;
/// Nobody is at the leader's address if that is so twice: a process that starts has an instant without a listener, and
/// one that has just won may not know it yet.
const GONE_ENOUGH: u32 = 2;
const GONE_AGAIN_MS: u64 = 100;

#[cfg(test)]
mod tests {
    use super::*;

    fn record(term: u64, revision: i64) -> Option<Record> {
        Some(Record { address: "a:1".to_owned(), term, revision })
    }

    /// Lets a candidate take the step that it must take then.
    fn step(candidate: &mut Candidate, now_ms: u64, step: &Step, answer: Answer) {
        assert_eq!(candidate.poll(now_ms).as_ref(), Some(step), "at {now_ms} ms");
        assert_eq!(candidate.poll(now_ms), None, "one step at a time");
        candidate.answer(now_ms, answer);
    }

    fn leading(now_ms: u64) -> Candidate {
        let mut candidate = Candidate::new("b:1", now_ms);
        step(&mut candidate, now_ms, &Step::Look, Answer::Looked(None));
        step(&mut candidate, now_ms, &Step::Campaign, Answer::Won(7));
        candidate
    }

    #[test]
    fn a_leader_stays_as_long_as_its_record() {
        let mut candidate = leading(100);
        assert_eq!((candidate.term(), candidate.leader()), (Some(7), Some("b:1")));
        assert_eq!(candidate.poll(100 + RENEW_MS - 1), None);
        step(&mut candidate, 600, &Step::Renew, Answer::Renewed);
        step(&mut candidate, 1_100, &Step::Renew, Answer::Silent);
        step(&mut candidate, 600 + LEASE_MS - 1, &Step::Renew, Answer::Silent);
        assert_eq!(candidate.term(), Some(7), "its record is that of the renewal at 600 ms");
        step(&mut candidate, 600 + LEASE_MS + 99, &Step::Renew, Answer::Silent);
        assert_eq!((candidate.term(), candidate.leader()), (None, None));
        let mut expired = leading(0);
        step(&mut expired, 500, &Step::Renew, Answer::Expired);
        assert_eq!(expired.term(), None);
    }

    #[test]
    fn a_leader_that_is_gone_is_replaced_and_a_silent_one_is_not() {
        let mut candidate = Candidate::new("b:1", 0);
        let probe = Step::Probe { address: "a:1".to_owned(), term: 3 };
        let mut now_ms = 0;
        // It writes its record, though it does not answer.
        for revision in 0..30 {
            let answer = if revision == 0 { Answer::Leads } else { Answer::Silent };
            step(&mut candidate, now_ms, &Step::Look, Answer::Looked(record(3, revision)));
            assert_eq!(candidate.leader(), Some("a:1"));
            step(&mut candidate, now_ms, &probe, answer);
            now_ms += LOOK_MS;
        }
        step(&mut candidate, now_ms, &Step::Look, Answer::Looked(record(3, 30)));
        step(&mut candidate, now_ms, &probe, Answer::Gone);
        now_ms += GONE_AGAIN_MS;
        assert_eq!(candidate.leader(), None, "clients are not sent where nobody is");
        step(&mut candidate, now_ms, &Step::Look, Answer::Looked(record(3, 30)));
        step(&mut candidate, now_ms, &probe, Answer::Gone);
        step(&mut candidate, now_ms, &Step::Campaign, Answer::Lost);
        assert_eq!(candidate.term(), None);
        assert_eq!(candidate.poll(now_ms), None);
    }

    #[test]
    fn a_record_that_is_not_written_any_more_is_replaced() {
        let mut candidate = Candidate::new("b:1", 0);
        let probe = Step::Probe { address: "a:1".to_owned(), term: 3 };
        step(&mut candidate, 1_000, &Step::Look, Answer::Looked(record(3, 7)));
        step(&mut candidate, 1_000, &probe, Answer::Silent);
        step(&mut candidate, 1_000 + LEASE_MS - 1, &Step::Look, Answer::Looked(record(3, 7)));
        step(&mut candidate, 1_000 + LEASE_MS - 1, &probe, Answer::Silent);
        step(&mut candidate, 1_000 + LEASE_MS + 200, &Step::Look, Answer::Looked(record(3, 7)));
        step(&mut candidate, 1_000 + LEASE_MS + 200, &Step::Campaign, Answer::Won(4));
        assert_eq!(candidate.term(), Some(4));
    }

    #[test]
    fn a_new_record_begins_anew() {
        let mut candidate = Candidate::new("b:1", 0);
        let probe = |term| Step::Probe { address: "a:1".to_owned(), term };
        step(&mut candidate, 0, &Step::Look, Answer::Looked(record(3, 0)));
        step(&mut candidate, 0, &probe(3), Answer::Gone);
        step(&mut candidate, 100, &Step::Look, Answer::Looked(record(4, 0)));
        step(&mut candidate, 100, &probe(4), Answer::Gone);
        step(&mut candidate, 200, &Step::Look, Answer::Looked(record(4, 0)));
        step(&mut candidate, 200, &probe(4), Answer::Leads);
        assert_eq!(candidate.leader(), Some("a:1"));
    }

    #[test]
    fn the_record_of_an_earlier_process_is_replaced_at_once() {
        let mut candidate = Candidate::new("a:1", 0);
        step(&mut candidate, 0, &Step::Look, Answer::Looked(record(3, 0)));
        step(&mut candidate, 0, &Step::Campaign, Answer::Won(4));
        assert_eq!(candidate.term(), Some(4));
    }

    #[test]
    fn a_term_that_is_over_ends_and_another_may_follow() {
        let mut candidate = leading(0);
        assert_eq!(candidate.poll(500), Some(Step::Renew));
        candidate.step_down(600);
        candidate.answer(700, Answer::Renewed);
        assert_eq!(candidate.term(), None, "an answer from before does not bring the term back");
        step(&mut candidate, 700, &Step::Look, Answer::Looked(None));
        step(&mut candidate, 700, &Step::Campaign, Answer::Won(9));
        assert_eq!(candidate.term(), Some(9));
    }
}
