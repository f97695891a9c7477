//! Point-to-point messages, transferred directly between two callers' buffers.
//!
//! Between ranks of a host, short messages are sent and received on the caller's thread without allocating a pending
//! operation.

use std::sync::Arc;
use std::time::Instant;

use netsum_net::Buffer;
use netsum_net::mesh::{Channel, Key, Outgoing, Payload, Target, Wanted};

use crate::core::Core;
use crate::deadline::after;
use crate::terms::Terms;
use crate::work::{Helper, OperationSummary, Work};

/// Sends the whole buffer; completes when its bytes are in the kernel or in memory that the receiver reads.
pub(crate) fn send(core: &Arc<Core>, buffer: &Buffer, to: u32, tag: u64, terms: Terms) -> Work {
    let len = buffer.len();
    let operation = OperationSummary::Send { bytes: len, to, tag };
    if core.mesh.send_now(to, key(tag), 0, buffer.slice(0..len)) {
        return Work::ended_at_once(operation, Instant::now());
    }
    let called = Instant::now();
    let work = Work::helped(operation, called, helper(core, Some(to)));
    let outgoing = Outgoing {
        key: key(tag),
        fingerprint: 0,
        payload: Payload::Buffer(buffer.lend(0..len)),
        deadline: Some(after(called, terms.timeout)),
    };
    let (sent, core_then) = (work.clone(), core.clone());
    let done = move |outcome: Result<(), _>| {
        let explain = |e| core_then.explain(e, &sent.operation(), sent.elapsed(), &[to]);
        let outcome = outcome.map_err(explain);
        let failed = outcome.clone().err();
        sent.complete(outcome);
        if let Some(error) = failed {
            core_then.note(&error);
        }
    };
    core.mesh.send(to, outgoing, Some(Box::new(done)));
    work
}

/// Fills the whole buffer with the next message of `from`, or of any rank.
pub(crate) fn receive(
    core: &Arc<Core>,
    buffer: &mut Buffer,
    from: Option<u32>,
    tag: u64,
    terms: Terms,
) -> Work {
    let len = buffer.len();
    let operation = OperationSummary::Receive { bytes: len, from, tag };
    let called = Instant::now();
    let wanted = Wanted { from, key: key(tag), fingerprint: 0 };
    let polls = if terms.waits { POLLS } else { 1 };
    if let Some(source) = core.mesh.receive_now(&wanted, buffer, polls) {
        return Work::received_at_once(operation, called, source);
    }
    let work = Work::helped(operation, called, helper(core, from));
    let (received, core_then) = (work.clone(), core.clone());
    let done = move |outcome: Result<netsum_net::mesh::Received, _>| match outcome {
        Ok(message) => received.complete_from(message.from),
        Err(e) => {
            let others: Vec<u32> = (0..core_then.size).filter(|&r| r != core_then.rank).collect();
            let missing = from.map_or(others, |from| vec![from]);
            let error = core_then.explain(e, &received.operation(), received.elapsed(), &missing);
            received.complete(Err(error.clone()));
            core_then.note(&error);
        }
    };
    let target = Target::Buffer(buffer.lend_all());
    let deadline = Some(after(called, terms.timeout));
    core.mesh.receive_then(wanted, target, deadline, Box::new(done));
    work
}

/// Lets a thread that waits for the operation make progress for messages of `peer`, or of any rank.
fn helper(core: &Arc<Core>, peer: Option<u32>) -> Option<Helper> {
    if !core.mesh.needs_help(peer) {
        return None;
    }
    // A weak reference, because the group keeps its last operations.
    let core = Arc::downgrade(core);
    Some(Box::new(move |until, done| {
        if let Some(core) = core.upgrade() {
            core.mesh.help(peer, until, done);
        }
    }))
}

fn key(tag: u64) -> Key {
    Key { channel: Channel::PointToPoint, tag, part: 0 }
}

/// Polls for a message of a rank that keeps pace: a few microseconds.
const POLLS: u32 = 200;
