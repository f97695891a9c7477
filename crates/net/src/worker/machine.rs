//! The state machine of any protocol's worker, as driven by the data thread.

use std::ops::Range;

use netsum_proto::{
    AcceptedResult, DropReason, OutgoingPacket, Time, Worker, WorkerMachine, with_worker,
};
use netsum_wire::{PacketHeader, TreeId};
use rustc_hash::FxHashMap;

use super::epoch::Active;
use super::retained::Retained;

/// Active operations by id.
pub(super) type Operations = FxHashMap<u64, Active>;

/// A packet to be sent.
#[derive(Clone)]
pub(super) struct Packet {
    /// Range in the scratch memory of the header, and of a quantised or encrypted payload.
    pub(super) head: Range<usize>,
    /// Id of the operation, and range of the payload in its buffer, if it is sent unchanged.
    pub(super) payload: Option<(u64, Range<usize>)>,
}

/// Handles a packet and writes its result into the buffer; `from` checks whether the sender belongs to a tree, and opens
/// the packet. Errors are reasons to drop the packet.
#[inline]
pub(super) fn take(
    worker: &mut Worker,
    now: Time,
    ce: bool,
    packet: &mut [u8],
    from: impl FnOnce(TreeId, &mut [u8]) -> Result<(), DropReason>,
    operations: &mut Operations,
    retained: &mut Retained,
) -> Result<(), DropReason> {
    with_worker!(worker, machine => take_by(machine, now, ce, packet, from, operations, retained))
}

/// The next packet to send and its tree. Appends the header, room for the extension of a sealed packet, and a
/// quantised payload to `scratch`.
#[inline]
pub(super) fn poll_transmit(
    worker: &mut Worker,
    now: Time,
    sealed: bool,
    operations: &Operations,
    scratch: &mut Vec<u8>,
) -> Option<(TreeId, Packet)> {
    with_worker!(worker, machine => {
        poll_transmit_by(machine, now, sealed, operations, scratch)
    })
}

fn take_by<W: WorkerMachine>(
    machine: &mut W,
    now: Time,
    ce: bool,
    packet: &mut [u8],
    from: impl FnOnce(TreeId, &mut [u8]) -> Result<(), DropReason>,
    operations: &mut Operations,
    retained: &mut Retained,
) -> Result<(), DropReason> {
    let (header, _) = W::Header::decode(packet)?;
    from(header.tree(), packet)?;
    let payload = header.payload(packet);
    let accepted = machine.handle(now, ce, &header);
    while let Some(settled) = machine.poll_settled() {
        let active =
            operations.get(&settled.id()).expect("the machine knows submitted operations only");
        let elements = settled.elements().unwrap_or_default();
        retained.keep(settled.g(), active.operation.buffer.slice(active.bytes(&elements)));
    }
    let Some(accepted) = accepted? else { return Ok(()) };
    let Some(elements) = accepted.elements() else {
        machine.read(&accepted, payload, &mut []);
        retained.keep(accepted.g(), &[]);
        return Ok(());
    };
    let active = operations.get_mut(&accepted.id());
    let active = active.expect("the machine knows submitted operations only");
    active.missing |= header.missing();
    let place = active.bytes(&elements);
    let out = active.operation.buffer.result_mut(place);
    machine.read(&accepted, payload, out);
    retained.keep(accepted.g(), out);
    Ok(())
}

fn poll_transmit_by<W: WorkerMachine>(
    machine: &mut W,
    now: Time,
    sealed: bool,
    operations: &Operations,
    scratch: &mut Vec<u8>,
) -> Option<(TreeId, Packet)> {
    let mut outgoing = machine.poll_transmit(now)?;
    let start = scratch.len();
    let is_in_place = W::is_in_place(&outgoing);
    let written = if is_in_place { 0 } else { outgoing.header().payload_len() };
    let head_len = W::Header::head_len(sealed);
    scratch.resize(start + head_len + written, 0);
    let (head, payload) = scratch[start..].split_at_mut(head_len);
    let id = outgoing.operation();
    if let Some(id) = id.filter(|_| !is_in_place) {
        let active = &operations[&id];
        let elements = |range| active.operation.buffer.slice(active.bytes(&range));
        machine.write(&mut outgoing, elements, payload);
    }
    let header = outgoing.header();
    header.write(&mut head[..W::Header::LEN]);
    let tree = header.tree();
    let in_place = id.filter(|_| is_in_place).zip(outgoing.elements());
    let payload = in_place.map(|(id, elements)| (id, operations[&id].bytes(&elements)));
    Some((tree, Packet { head: start..scratch.len(), payload }))
}
