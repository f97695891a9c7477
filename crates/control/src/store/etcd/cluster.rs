//! What controllers do at an etcd cluster: read and write the rows of one fabric, and elect a leader.

use std::time::Duration;

use super::Turn;
use super::client::{CallError, Etcd};
use super::credentials::EtcdCredentials;
use super::rows::{LAYOUT, LEADER, META, NEXT_JOB, Place, TURN, meta};
use crate::error::ControlError;
use crate::pb::etcd::compare::{CompareResult, CompareTarget, TargetUnion};
use crate::pb::etcd::request_op::Request;
use crate::pb::etcd::response_op::Response;
use crate::pb::etcd::{
    Compare, DeleteRangeRequest, KeyValue, PutRequest, RangeRequest, RequestOp, TxnRequest,
    TxnResponse,
};
use crate::pb::store::{Leader, Meta, Write};
use crate::store::contract::{draw_incarnation, first_job, next_term};
use prost::Message;

/// The rows of one fabric in an etcd cluster.
#[derive(Debug, Clone)]
pub(crate) struct Cluster {
    pub(super) etcd: Etcd,
    prefix: String,
}

/// Who leads, as the cluster says.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Observed {
    /// The leader's record.
    pub leader: Option<Leader>,
    /// The newest term; 0: there was none.
    pub term: u64,
    /// Changes whenever the leader writes its record.
    pub leader_revision: i64,
    pub(super) turn_revision: i64,
}

impl std::fmt::Display for CallError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (CallError::Silent(problem) | CallError::Refused(problem)) = self;
        f.write_str(problem)
    }
}

impl Cluster {
    /// The rows of a fabric at `host:port`, some of them separated by commas.
    pub fn new(
        endpoints: &str,
        credentials: Option<EtcdCredentials>,
        fabric: &str,
    ) -> Result<Cluster, ControlError> {
        let etcd = Etcd::new(endpoints, credentials)?;
        Ok(Cluster { etcd, prefix: format!("/netsum/{fabric}/") })
    }

    /// A name for users.
    pub fn place(&self) -> String {
        self.etcd.place()
    }

    /// Who leads.
    pub async fn observe(&self, patience: Duration) -> Result<Observed, CallError> {
        let reads = vec![self.get(LEADER), self.get(TURN)];
        let request = TxnRequest { compare: Vec::new(), success: reads, failure: Vec::new() };
        Ok(observed(&self.etcd.txn(request, patience).await?))
    }

    /// Begins a term without an election; whoever led is deposed.
    pub async fn seize(&self, patience: Duration) -> Result<u64, CallError> {
        self.prepare(patience).await?;
        loop {
            let seen = self.observe(patience).await?;
            let turn = Turn { term: next_term(seen.term), writes: 0 };
            let request = TxnRequest {
                compare: vec![self.is_at(TURN, seen.turn_revision)],
                success: vec![self.put(TURN, turn.encode()), self.delete(LEADER)],
                failure: Vec::new(),
            };
            if self.etcd.txn(request, patience).await?.succeeded {
                return Ok(turn.term);
            }
        }
    }

    /// The term in force, and its writes.
    pub async fn turn(&self, patience: Duration) -> Result<Turn, CallError> {
        let request = RangeRequest { key: self.key(TURN), ..RangeRequest::default() };
        let kvs = self.etcd.range(request, patience).await?.kvs;
        Ok(turn_of(&kvs))
    }

    /// Writes if the cluster is at `turn`, which then becomes `next`. Returns what the cluster is at now: `next` also
    /// if an earlier attempt has written.
    pub async fn write(
        &self,
        turn: Turn,
        next: Turn,
        writes: Vec<Write>,
        patience: Duration,
    ) -> Result<Turn, CallError> {
        let mut success: Vec<RequestOp> =
            writes.into_iter().map(|write| self.write_op(write)).collect();
        success.push(self.put(TURN, next.encode()));
        let is_at_turn = Compare {
            result: CompareResult::Equal.into(),
            target: CompareTarget::Value.into(),
            key: self.key(TURN),
            target_union: Some(TargetUnion::Value(turn.encode())),
        };
        let request =
            TxnRequest { compare: vec![is_at_turn], success, failure: vec![self.get(TURN)] };
        let answer = self.etcd.txn(request, patience).await?;
        Ok(if answer.succeeded { next } else { turn_of(&read(&answer, 0)) })
    }

    /// All rows at one time.
    pub(super) async fn read(&self, patience: Duration) -> Result<(Turn, Place), CallError> {
        let mut place = Place::default();
        let mut request = RangeRequest {
            key: self.prefix.clone().into_bytes(),
            range_end: after_prefix(self.prefix.as_bytes()),
            limit: PAGE,
            revision: 0,
        };
        loop {
            let answer = self.etcd.range(request.clone(), patience).await?;
            request.revision = match request.revision {
                0 => answer.header.map_or(0, |header| header.revision),
                revision => revision,
            };
            for KeyValue { key, value, .. } in answer.kvs {
                let name = String::from_utf8_lossy(&key[self.prefix.len().min(key.len())..]);
                place.add(name.into_owned(), value).map_err(CallError::Refused)?;
                request.key = [key, vec![0]].concat();
            }
            if !answer.more {
                let turn = place.turn().unwrap_or_default();
                return Ok((turn, place));
            }
        }
    }

    /// Makes the store, if there is none yet, and checks its layout.
    pub(super) async fn prepare(&self, patience: Duration) -> Result<(), CallError> {
        let incarnation =
            draw_incarnation().map_err(|error| CallError::Refused(error.to_string()))?;
        let new = Meta { layout: LAYOUT, incarnation };
        let request = TxnRequest {
            compare: vec![self.is_at(META, 0)],
            success: vec![
                self.put(META, new.encode_to_vec()),
                self.put(NEXT_JOB, first_job(incarnation).to_string().into_bytes()),
            ],
            failure: vec![self.get(META)],
        };
        let answer = self.etcd.txn(request, patience).await?;
        match read(&answer, 0).first() {
            Some(found) if !answer.succeeded => {
                meta(&found.value).map(drop).map_err(CallError::Refused)
            }
            _ => Ok(()),
        }
    }

    fn key(&self, name: &str) -> Vec<u8> {
        format!("{}{name}", self.prefix).into_bytes()
    }

    pub(super) fn get(&self, name: &str) -> RequestOp {
        let range = RangeRequest { key: self.key(name), ..RangeRequest::default() };
        RequestOp { request: Some(Request::RequestRange(range)) }
    }

    pub(super) fn put(&self, name: &str, value: Vec<u8>) -> RequestOp {
        let put = PutRequest { key: self.key(name), value };
        RequestOp { request: Some(Request::RequestPut(put)) }
    }

    pub(super) fn delete(&self, name: &str) -> RequestOp {
        let key = self.key(name);
        let range_end = if name.ends_with('/') { after_prefix(&key) } else { Vec::new() };
        let delete = DeleteRangeRequest { key, range_end };
        RequestOp { request: Some(Request::RequestDeleteRange(delete)) }
    }

    fn write_op(&self, write: Write) -> RequestOp {
        match write.value {
            Some(value) => self.put(&write.key, value),
            None => self.delete(&write.key),
        }
    }

    /// Whether a key was last changed at that revision; 0: it does not exist.
    pub(super) fn is_at(&self, name: &str, revision: i64) -> Compare {
        Compare {
            result: CompareResult::Equal.into(),
            target: CompareTarget::Mod.into(),
            key: self.key(name),
            target_union: Some(TargetUnion::ModRevision(revision)),
        }
    }
}

/// The keys that an operation of a transaction has read.
fn read(answer: &TxnResponse, number: usize) -> Vec<KeyValue> {
    match answer.responses.get(number).and_then(|answer| answer.response.clone()) {
        Some(Response::ResponseRange(range)) => range.kvs,
        _ => Vec::new(),
    }
}

/// Who leads, from a transaction that has read the leader's record and the turn.
pub(super) fn observed(answer: &TxnResponse) -> Observed {
    let (leader, turn) = (read(answer, 0), read(answer, 1));
    let revision = |kvs: &[KeyValue]| kvs.first().map_or(0, |kv| kv.mod_revision);
    Observed {
        leader: leader.first().and_then(|kv| Leader::decode(kv.value.as_slice()).ok()),
        term: turn_of(&turn).term,
        leader_revision: revision(&leader),
        turn_revision: revision(&turn),
    }
}

fn turn_of(kvs: &[KeyValue]) -> Turn {
    kvs.first().and_then(|kv| Turn::decode(&kv.value)).unwrap_or_default()
}

/// The first key after those with a prefix, which does not end in the highest byte.
fn after_prefix(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end
}

/// Keys that are read at once.
const PAGE: i64 = 500;
