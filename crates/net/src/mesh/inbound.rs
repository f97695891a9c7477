//! Handling of received frames, independent of the transport.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use super::core::Core;
use super::error::MeshError;
use super::frame::{Channel, Frame, Key};
use super::limits::{CONTROL_MAX, REASON_MAX};
use super::receive::{Received, Slot, Target};
use crate::Buffer;

/// The target of a frame's payload.
pub(super) enum Body {
    None,
    Slot {
        slot: Arc<Slot>,
        left: usize,
        last: bool,
    },
    Kept {
        key: Key,
        fingerprint: u32,
        bytes: Vec<u8>,
        left: usize,
    },
    Refused {
        len: usize,
        left: usize,
    },
    /// Why the sender cannot continue, as text.
    LastWord {
        lost: u32,
        text: Vec<u8>,
        left: usize,
    },
    /// No payload follows: the bytes are read from the sender's memory.
    Fetch(Fetch),
    /// The sender's memory can no longer be read. The sender has failed: its connection tells why, or ends. After
    /// [`super::limits::GRACE`] without either the sender is lost for `reason`.
    Interrupted {
        slot: Arc<Slot>,
        reason: String,
        since: Instant,
    },
}

/// A message lent by its sender.
pub(super) struct Fetch {
    pub(super) id: u64,
    pub(super) slot: Arc<Slot>,
    /// Target memory; dropped when nothing more is written.
    pub(super) memory: Option<Buffer>,
    /// The part of the message that is still to be read.
    pub(super) range: Range<usize>,
    /// Address in the sender's memory.
    pub(super) at: u64,
}

impl Body {
    /// Number of payload bytes still to arrive.
    pub(super) fn left(&mut self) -> Option<&mut usize> {
        match self {
            Body::None | Body::Fetch(_) | Body::Interrupted { .. } => None,
            Body::Slot { left, .. }
            | Body::Kept { left, .. }
            | Body::Refused { left, .. }
            | Body::LastWord { left, .. } => Some(left),
        }
    }

    /// Appends bytes of the payload.
    pub(super) fn fill(&mut self, now: &[u8]) {
        match self {
            Body::Slot { slot, .. } => slot.fill(now),
            Body::Kept { bytes, .. } | Body::LastWord { text: bytes, .. } => {
                bytes.extend_from_slice(now)
            }
            Body::None | Body::Refused { .. } | Body::Fetch(_) | Body::Interrupted { .. } => {}
        }
    }

    /// Ends the receive that only this frame refers to because its message has begun, if the mesh has failed or the
    /// deadline has passed. The rest of the message is discarded.
    pub(super) fn expire(&self, failed: Option<&MeshError>, now: Instant) {
        let (Body::Slot { slot, .. }
        | Body::Fetch(Fetch { slot, .. })
        | Body::Interrupted { slot, .. }) = self
        else {
            return;
        };
        match failed {
            Some(reason) => slot.finish(Err(reason.clone())),
            None if slot.is_late(now) => slot.finish(Err(MeshError::Timeout)),
            None => {}
        }
    }

    /// Ends the receive, because the rest of the message will not arrive.
    pub(super) fn cut(&mut self, core: &Core, from: u32) {
        let reason = || {
            let cut = || MeshError::PeerLost { rank: from, reason: "it was cut off".to_owned() };
            core.failure().unwrap_or_else(cut)
        };
        match std::mem::replace(self, Body::None) {
            Body::Slot { slot, .. } | Body::Interrupted { slot, .. } => slot.finish(Err(reason())),
            Body::Fetch(Fetch { slot, memory, .. }) => {
                drop(memory);
                slot.give_back(from, Err(reason()));
            }
            // The connection has ended within the reason: its beginning is better than none.
            word @ Body::LastWord { .. } => finish(core, from, word),
            Body::None | Body::Kept { .. } | Body::Refused { .. } => {}
        }
    }
}

/// Handles a frame header; returns the target of the payload. `Err`: why the connection to the sender must end.
pub(super) fn begin(core: &Core, from: u32, frame: Frame) -> Result<Body, &'static str> {
    match frame {
        Frame::Eager { key, fingerprint, len } => {
            return begin_eager(core, from, key, fingerprint, len);
        }
        Frame::Announce { key, fingerprint, id, len } => {
            announced(core, from, key, fingerprint, id, len)?;
        }
        Frame::Ready { id } => {
            let peer = core.known_peer(from);
            core.with_outbox(from, peer, |outbox, _| outbox.ready(id));
        }
        Frame::Data { id, len } => {
            let (slot, last) = core.mailbox.lock().data(from, id, len)?;
            return Ok(Body::Slot { slot, left: len, last });
        }
        Frame::Borrow { id } => {
            let peer = core.known_peer(from);
            core.with_outbox(from, peer, |outbox, _| outbox.lend(id));
        }
        Frame::Lent { id, at, len } => return lent(core, from, id, at, len),
        Frame::Returned { id } => {
            let peer = core.known_peer(from);
            core.with_outbox(from, peer, |outbox, reports| outbox.completed(id, Ok(()), reports));
        }
        Frame::Credit { bytes } => core.known_peer(from).sending.lock().outbox.credit(bytes),
        Frame::Ping => {}
        Frame::Goodbye => core.gone(from),
        Frame::Lost { rank, len } => {
            let text = Vec::with_capacity(len.min(REASON_MAX));
            return match len {
                ..=REASON_MAX => Ok(Body::LastWord { lost: rank, text, left: len }),
                _ => Err("a reason longer than allowed"),
            };
        }
    }
    Ok(Body::None)
}

fn begin_eager(
    core: &Core,
    from: u32,
    key: Key,
    fingerprint: u32,
    len: usize,
) -> Result<Body, &'static str> {
    let mut mailbox = core.mailbox.lock();
    mailbox.hold(from, len)?;
    if !admitted(core, from, key, fingerprint) {
        return Ok(Body::Refused { len, left: len });
    }
    if let Some(slot) = mailbox.take_eager(from, key, len) {
        drop(mailbox);
        let fits = slot.accept(from, len as u64);
        let slot = if fits { slot } else { Slot::discarding() };
        return Ok(Body::Slot { slot, left: len, last: true });
    }
    Ok(Body::Kept { key, fingerprint, bytes: Vec::with_capacity(len), left: len })
}

/// Starts to read a requested message from the sender's memory.
fn lent(core: &Core, from: u32, id: u64, at: u64, len: usize) -> Result<Body, &'static str> {
    let (slot, last) = core.mailbox.lock().data(from, id, len)?;
    if !last {
        return Err("a message that is shorter than announced");
    }
    let Some(memory) = slot.lend(len) else {
        core.push_bare(from, Frame::Returned { id });
        return Ok(Body::None);
    };
    Ok(Body::Fetch(Fetch { id, slot, memory: Some(memory), range: 0..len, at }))
}

fn announced(
    core: &Core,
    from: u32,
    key: Key,
    fingerprint: u32,
    id: u64,
    len: u64,
) -> Result<(), &'static str> {
    let ask = {
        let mut mailbox = core.mailbox.lock();
        if key.channel == Channel::Control {
            mailbox.expect_control(from, id, len, control_slot(core, from, key, len)?)?;
            true
        } else if admitted(core, from, key, fingerprint) {
            mailbox.announce(from, key, fingerprint, id, len)?
        } else {
            false
        }
    };
    if ask {
        core.ask(from, id, len);
    }
    Ok(())
}

/// Handles the end of a payload.
pub(super) fn finish(core: &Core, from: u32, body: Body) {
    match body {
        Body::None | Body::Fetch(_) | Body::Interrupted { .. } => {}
        Body::Slot { slot, last, .. } => {
            if last {
                slot.complete(from);
            }
        }
        Body::Refused { len, .. } => core.mailbox.lock().free(from, len),
        Body::Kept { key, bytes, .. } if key.channel == Channel::Control => {
            core.mailbox.lock().free(from, bytes.len());
            core.events.control(from, key, bytes);
        }
        Body::Kept { key, fingerprint, bytes, .. } => {
            let mut mailbox = core.mailbox.lock();
            if admitted(core, from, key, fingerprint) {
                let delivery = mailbox.store(from, key, fingerprint, bytes);
                drop(mailbox);
                if let Some((slot, bytes)) = delivery {
                    slot.deliver(from, &bytes);
                }
            } else {
                mailbox.free(from, bytes.len());
            }
        }
        Body::LastWord { lost, text, .. } => {
            core.fail(error_of_abort(core.rank, from, lost, &text))
        }
    }
    core.return_credit(from);
}

/// The error that follows from a peer's last message. `why` is the peer's word, and is shown as text.
fn error_of_abort(own: u32, from: u32, lost: u32, why: &[u8]) -> MeshError {
    let (rank, what) = match lost {
        lost if lost == from => (from, "it was aborted".to_owned()),
        lost if lost == own => (from, "it has given this rank up".to_owned()),
        lost => (lost, format!("rank {from} has lost it")),
    };
    let why = String::from_utf8_lossy(why).replace(char::is_control, " ");
    let reason = if why.is_empty() { what } else { format!("{what}: {why}") };
    MeshError::PeerLost { rank, reason }
}

fn admitted(core: &Core, from: u32, key: Key, fingerprint: u32) -> bool {
    key.channel != Channel::Collective || core.events.admit(from, key, fingerprint)
}

/// The target of a long control message, which is passed to [`super::Events::control`].
fn control_slot(core: &Core, from: u32, key: Key, len: u64) -> Result<Arc<Slot>, &'static str> {
    if len > CONTROL_MAX as u64 {
        return Err("a control message longer than allowed");
    }
    let events = core.events.clone();
    let done = Box::new(move |outcome: Result<Received, MeshError>| {
        if let Ok(received) = outcome {
            events.control(from, key, received.bytes);
        }
    });
    Ok(Slot::new(Target::Bytes { max: CONTROL_MAX }, None, Some(done)))
}
