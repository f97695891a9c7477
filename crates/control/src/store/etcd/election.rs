//! How controllers elect one of them: the leader's record, which the leader writes again and again.
//!
//! The record has no lease of etcd's: etcd extends all leases when it elects a leader of its own, so that after the loss
//! of a machine with both leaders the next controller would wait for several seconds more.

use std::time::Duration;

use prost::Message;

use super::Turn;
use super::client::CallError;
use super::cluster::{Cluster, Observed, observed};
use super::rows::{LEADER, TURN};
use crate::pb::etcd::{TxnRequest, TxnResponse};
use crate::pb::store::Leader;
use crate::store::contract::{draw_incarnation, next_term};

/// The own record of a leader.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct OwnRecord {
    record: Leader,
    revision: i64,
}

impl OwnRecord {
    /// The leader's term.
    pub fn term(&self) -> u64 {
        self.record.term
    }

    /// The record after a transaction that has written it, or has read what there is instead. `None`: another one's.
    fn after(record: Leader, answer: &TxnResponse) -> Option<OwnRecord> {
        if answer.succeeded {
            let revision = answer.header.as_ref().map_or(0, |header| header.revision);
            return Some(OwnRecord { record, revision });
        }
        // The answer to an earlier attempt may have been lost.
        let found = observed(answer);
        (found.leader.as_ref() == Some(&record))
            .then_some(OwnRecord { record, revision: found.leader_revision })
    }
}

impl Cluster {
    /// Becomes the leader in a new term, unless something has changed since `seen`. `None`: another controller was faster.
    pub async fn campaign(
        &self,
        address: &str,
        seen: &Observed,
        patience: Duration,
    ) -> Result<Option<OwnRecord>, CallError> {
        self.prepare(patience).await?;
        let nonce = draw_incarnation().map_err(|error| CallError::Refused(error.to_string()))?;
        let term = next_term(seen.term);
        let record = Leader { address: address.to_owned(), term, nonce };
        let request = TxnRequest {
            compare: vec![
                self.is_at(LEADER, seen.leader_revision),
                self.is_at(TURN, seen.turn_revision),
            ],
            success: vec![
                self.put(LEADER, record.encode_to_vec()),
                self.put(TURN, Turn { term, writes: 0 }.encode()),
            ],
            failure: vec![self.get(LEADER), self.get(TURN)],
        };
        let answer = self.etcd.txn(request, patience).await?;
        Ok(OwnRecord::after(record, &answer))
    }

    /// Writes the own record again, so that others see that its leader is there. `None`: it is another one's by now.
    pub async fn renew(
        &self,
        own: &OwnRecord,
        patience: Duration,
    ) -> Result<Option<OwnRecord>, CallError> {
        let request = TxnRequest {
            compare: vec![self.is_at(LEADER, own.revision)],
            success: vec![self.put(LEADER, own.record.encode_to_vec())],
            failure: vec![self.get(LEADER), self.get(TURN)],
        };
        let answer = self.etcd.txn(request, patience).await?;
        Ok(OwnRecord::after(own.record.clone(), &answer))
    }

    /// Deletes the own record, so that another controller leads at once.
    pub async fn resign(&self, own: &OwnRecord, patience: Duration) -> Result<(), CallError> {
        let request = TxnRequest {
            compare: vec![self.is_at(LEADER, own.revision)],
            success: vec![self.delete(LEADER)],
            failure: Vec::new(),
        };
        self.etcd.txn(request, patience).await.map(drop)
    }
}
