//! Questions to the ranks of a job, and the answers that come over their streams.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc;
use tonic::Status;

use super::actor::Message;
use super::authorisation::Peer;
use super::owner::Owner;
use crate::limits::{ANSWERS_MAX, QUESTIONS_MAX};
use crate::pb;

/// The questions that wait for answers.
#[derive(Debug, Clone, Default)]
pub(super) struct Questions(Arc<Mutex<HashMap<u64, Open>>>);

#[derive(Debug)]
struct Open {
    job: u32,
    answers: mpsc::UnboundedSender<pb::RankAnswer>,
}

/// Forgets a question when its caller no longer waits.
struct Asking(Questions, u64);

impl Drop for Asking {
    fn drop(&mut self) {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.1);
    }
}

impl Questions {
    /// Asks the connected ranks of a job, and waits for their answers.
    pub async fn ask(
        &self,
        owner: &Owner,
        peer: Peer,
        request: pb::AskRanksRequest,
    ) -> Result<pb::AskRanksReply, Status> {
        let pb::AskRanksRequest { job, patience_ms } = request;
        let patience = Duration::from_millis(patience_ms.into()).min(PATIENCE_MAX);
        let (asking, mut answers) = self.open(job)?;
        let number = asking.1;
        let asked = owner.ask(|reply| Message::Ask(peer, job, number, reply)).await?;
        let asked = asked.map_err(|denied| Status::permission_denied(denied.to_string()))?;
        let asked = asked.ok_or_else(|| Status::not_found(format!("there is no job {job}")))?;
        let (mut found, mut bytes, mut left_out) = (HashMap::new(), 0, 0);
        let gather = async {
            while found.len() + left_out < asked.len()
                && let Some(answer) = answers.recv().await
            {
                match bytes + answer.evidence.len() <= ANSWERS_MAX {
                    true => {
                        bytes += answer.evidence.len();
                        found.insert(answer.rank, answer);
                    }
                    false => left_out += 1,
                }
            }
        };
        // What has come by then is the reply.
        let _ = tokio::time::timeout(patience, gather).await;
        let mut answers: Vec<_> = found.into_values().collect();
        answers.sort_unstable_by_key(|answer| answer.rank);
        Ok(pb::AskRanksReply { answers, left_out: left_out as u32 })
    }

    /// Takes the answer that came over the stream of a rank. Whoever guesses a number answers for its own rank only.
    pub fn take(&self, job: u32, rank: u32, answer: pb::Answer) {
        let open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(question) = open.get(&answer.number).filter(|question| question.job == job) {
            let _ = question.answers.send(pb::RankAnswer { rank, evidence: answer.evidence });
        }
    }

    fn open(&self, job: u32) -> Result<(Asking, mpsc::UnboundedReceiver<pb::RankAnswer>), Status> {
        let mut bytes = [0; 8];
        getrandom::fill(&mut bytes).map_err(|e| Status::internal(format!("no number: {e}")))?;
        let number = u64::from_le_bytes(bytes);
        let (answers, receiver) = mpsc::unbounded_channel();
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if open.len() >= QUESTIONS_MAX {
            let reason = format!("{QUESTIONS_MAX} questions to ranks are open; ask again");
            return Err(Status::resource_exhausted(reason));
        }
        open.insert(number, Open { job, answers });
        Ok((Asking(self.clone(), number), receiver))
    }
}

/// A rank answers within half a second.
const PATIENCE_MAX: Duration = Duration::from_secs(10);
