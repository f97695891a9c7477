//! Point to point: a message goes straight between two callers' buffers.

use std::sync::Arc;
use std::time::Instant;

use netsum_net::Buffer;
use netsum_net::mesh::{Channel, Key, Outgoing, Payload, Target, Wanted};

use crate::core::Core;
use crate::work::{Operation, Work};

/// Sends the whole buffer; done when its bytes are in the kernel's hands.
pub(crate) fn send(core: &Arc<Core>, buffer: Buffer, to: u32, tag: u64, deadline: Instant) -> Work {
    let len = buffer.len();
    let words = format!("send of {len} bytes to rank {to} (tag {tag})");
    let work = Work::new(Operation::Other(words), Instant::now());
    let outgoing = Outgoing {
        key: key(tag),
        fingerprint: 0,
        payload: Payload::Buffer(buffer, 0..len),
        deadline: Some(deadline),
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

/// Fills the whole buffer with the next message of `from`, or of anybody.
pub(crate) fn receive(
    core: &Arc<Core>,
    buffer: Buffer,
    from: Option<u32>,
    tag: u64,
    deadline: Instant,
) -> Work {
    let len = buffer.len();
    let whom = from.map_or_else(|| "any rank".to_owned(), |rank| format!("rank {rank}"));
    let words = format!("receive of {len} bytes from {whom} (tag {tag})");
    let work = Work::new(Operation::Other(words), Instant::now());
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
    let target = Target::Buffer { buffer, at: 0, len };
    let wanted = Wanted { from, key: key(tag), fingerprint: 0 };
    core.mesh.receive_then(wanted, target, Some(deadline), Box::new(done));
    work
}

fn key(tag: u64) -> Key {
    Key { channel: Channel::PointToPoint, tag, part: 0 }
}
