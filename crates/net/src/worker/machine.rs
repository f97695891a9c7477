//! The machine of whichever protocol the plan says, as the data thread drives it.

use std::ops::Range;

use netsum_proto::operations::Submission;
use netsum_proto::panama::{Finished, Progress, TreeStats};
use netsum_proto::{Drop, Time, atp, panama, switchml};
use netsum_wire::{TreeId, atp as atp_wire, panama as panama_wire, switchml as switchml_wire};
use rustc_hash::FxHashMap;

use super::epoch::Active;
use super::retained::Retained;
use super::{Event, PlanConfig};

/// Operations at work, by id.
pub(super) type Operations = FxHashMap<u64, Active>;

/// The worker's side of a protocol.
pub(super) enum Machine {
    Panama(panama::Worker),
    /// With the way from reals to integers.
    Atp(atp::Worker, atp::Scaling),
    Switchml(switchml::Worker),
}

/// A packet that waits to be sent.
#[derive(Clone)]
pub(super) struct Packet {
    /// Place in the scratch memory of the header, and of what was quantised.
    pub(super) head: Range<usize>,
    /// Operation, and where in its buffer the payload is, if it goes as it lies there.
    pub(super) payload: Option<(u64, Range<usize>)>,
}

impl Machine {
    pub(super) fn new(now: Time, config: PlanConfig) -> Machine {
        match config {
            PlanConfig::Panama(config) => Machine::Panama(panama::Worker::new(now, config)),
            PlanConfig::Atp(config, scaling) => {
                Machine::Atp(atp::Worker::new(now, config), scaling)
            }
            PlanConfig::Switchml(config) => Machine::Switchml(switchml::Worker::new(now, config)),
        }
    }

    /// Takes a packet and puts its result into the buffer; `from` says whether its sender may speak for a
    /// tree. Errors are reasons to drop it.
    pub(super) fn take(
        &mut self,
        now: Time,
        ce: bool,
        packet: &[u8],
        from: impl FnOnce(TreeId) -> Result<(), Drop>,
        operations: &mut Operations,
        retained: &mut Retained,
    ) -> Result<(), Drop> {
        match self {
            Machine::Panama(machine) => {
                let (header, payload) = panama_wire::Header::decode(packet)?;
                from(header.tree)?;
                let Some(accepted) = machine.handle(now, ce, &header)? else { return Ok(()) };
                let active = find(operations, accepted.id);
                active.missing |= header.missing;
                let place = active.bytes(&accepted.elements);
                active.operation.buffer.write(place.start, payload);
                retained.keep(accepted.g, payload);
            }
            Machine::Atp(machine, _) => {
                let (header, payload) = atp_wire::Header::decode(packet)?;
                from(header.tree)?;
                let Some(accepted) = machine.handle(now, ce, &header)? else { return Ok(()) };
                let Some(elements) = accepted.content.elements() else {
                    machine.read(&accepted, payload, &mut []);
                    retained.keep(accepted.g, &[]);
                    return Ok(());
                };
                let active = find(operations, accepted.id);
                let place = active.bytes(&elements);
                let out = active.operation.buffer.slice_mut(place);
                machine.read(&accepted, payload, out);
                retained.keep(accepted.g, out);
            }
            Machine::Switchml(machine) => {
                let (header, payload) = switchml_wire::Header::decode(packet)?;
                from(TreeId(0))?;
                let Some(accepted) = machine.handle(now, &header)? else { return Ok(()) };
                let Some(elements) = accepted.content.elements() else {
                    retained.keep(accepted.g, &[]);
                    return Ok(());
                };
                let active = find(operations, accepted.id);
                let place = active.bytes(&elements);
                let out = active.operation.buffer.slice_mut(place);
                machine.read(&accepted, payload, out);
                retained.keep(accepted.g, out);
            }
        }
        Ok(())
    }

    /// The next packet to send and its tree. What is quantised, and the header, goes to the end of
    /// `scratch`.
    pub(super) fn poll_transmit(
        &mut self,
        now: Time,
        operations: &Operations,
        scratch: &mut Vec<u8>,
    ) -> Option<(TreeId, Packet)> {
        let start = scratch.len();
        match self {
            Machine::Panama(machine) => {
                let outgoing = machine.poll_transmit(now)?;
                let head = room(scratch, panama_wire::HEADER_LEN);
                outgoing.header.encode(head.first_chunk_mut().expect("it has that length"));
                let payload = outgoing.payload.map(|(id, elements)| {
                    let place = operations[&id].bytes(&elements);
                    (id, place)
                });
                Some((outgoing.tree, Packet { head: start..scratch.len(), payload }))
            }
            Machine::Atp(machine, _) => {
                let mut outgoing = machine.poll_transmit(now)?;
                let head = room(scratch, atp_wire::HEADER_LEN + outgoing.header.payload_len());
                let (head, payload) = head.split_first_chunk_mut().expect("it is longer");
                if let Some((id, _)) = outgoing.payload {
                    let elements = |range| elements(operations, id, &range);
                    machine.write(&mut outgoing, elements, payload);
                }
                outgoing.header.encode(head);
                let packet = Packet { head: start..scratch.len(), payload: None };
                Some((outgoing.header.tree, packet))
            }
            Machine::Switchml(machine) => {
                let mut outgoing = machine.poll_transmit(now)?;
                let head = room(scratch, switchml_wire::HEADER_LEN + outgoing.header.payload_len());
                let (head, payload) = head.split_first_chunk_mut().expect("it is longer");
                if let Some((id, _)) = outgoing.payload {
                    let elements = |range| elements(operations, id, &range);
                    machine.write(&mut outgoing, elements, payload);
                }
                outgoing.header.encode(head);
                Some((TreeId(0), Packet { head: start..scratch.len(), payload: None }))
            }
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Time> {
        match self {
            Machine::Panama(machine) => machine.poll_timeout(),
            Machine::Atp(machine, _) => machine.poll_timeout(),
            Machine::Switchml(machine) => machine.poll_timeout(),
        }
    }

    pub(super) fn handle_timeout(&mut self, now: Time) {
        match self {
            Machine::Panama(machine) => machine.handle_timeout(now),
            Machine::Atp(machine, _) => machine.handle_timeout(now),
            Machine::Switchml(machine) => machine.handle_timeout(now),
        }
    }

    /// What the caller must hear; what a result lacks is known by the driver alone.
    pub(super) fn poll_event(&mut self) -> Option<Event> {
        Some(match self {
            Machine::Panama(machine) => match machine.poll_event()? {
                panama::Event::Done { id, missing } => Event::Done { id, missing },
                panama::Event::Mismatch { id } => Event::Mismatch { id },
                panama::Event::Silent { tree, for_ns } => Event::Silent { tree, for_ns },
            },
            Machine::Atp(machine, _) => match machine.poll_event()? {
                atp::Event::Done { id } => Event::Done { id, missing: 0 },
                atp::Event::Mismatch { id } => Event::Mismatch { id },
                atp::Event::Silent { tree, for_ns } => Event::Silent { tree, for_ns },
            },
            Machine::Switchml(machine) => match machine.poll_event()? {
                switchml::Event::Done { id } => Event::Done { id, missing: 0 },
                switchml::Event::Mismatch { id } => Event::Mismatch { id },
                switchml::Event::Silent { for_ns } => Event::Silent { tree: TreeId(0), for_ns },
            },
        })
    }

    pub(super) fn submit(&mut self, what: Submission) {
        match self {
            Machine::Panama(machine) => machine.submit(what),
            Machine::Atp(machine, scaling) => {
                machine.submit(atp::Submission { what, scaling: *scaling });
            }
            Machine::Switchml(machine) => machine.submit(what),
        }
    }

    /// Whether every operation is done.
    pub(super) fn is_idle(&self) -> bool {
        match self {
            Machine::Panama(machine) => machine.outstanding().next().is_none(),
            Machine::Atp(machine, _) => machine.outstanding().next().is_none(),
            Machine::Switchml(machine) => machine.outstanding().next().is_none(),
        }
    }

    pub(super) fn finish(&mut self) {
        match self {
            Machine::Panama(machine) => machine.finish(),
            Machine::Atp(machine, _) => machine.finish(),
            Machine::Switchml(machine) => machine.finish(),
        }
    }

    pub(super) fn progress(&self) -> Progress {
        match self {
            Machine::Panama(machine) => machine.progress(),
            Machine::Atp(machine, _) => machine.progress(),
            Machine::Switchml(machine) => machine.progress(),
        }
    }

    pub(super) fn submitted(&self) -> u64 {
        match self {
            Machine::Panama(machine) => machine.submitted(),
            Machine::Atp(machine, _) => machine.submitted(),
            Machine::Switchml(machine) => machine.submitted(),
        }
    }

    /// Operation and elements of a fragment whose result has not come.
    pub(super) fn place_of(&self, g: u64) -> Option<(u64, Range<u64>)> {
        match self {
            Machine::Panama(machine) => machine.place_of(g).map(|at| (at.id, at.elements)),
            Machine::Atp(machine, _) => machine.place_of(g),
            Machine::Switchml(machine) => machine.place_of(g),
        }
    }

    pub(super) fn remaining(self, finished: &Finished) -> Vec<Submission> {
        match self {
            Machine::Panama(machine) => machine.remaining(finished),
            Machine::Atp(machine, _) => {
                machine.remaining(finished).into_iter().map(|rest| rest.what).collect()
            }
            Machine::Switchml(machine) => machine.remaining(finished),
        }
    }

    pub(super) fn tree_stats(&self) -> Vec<TreeStats> {
        match self {
            Machine::Panama(machine) => machine.tree_stats().collect(),
            Machine::Atp(machine, _) => machine.tree_stats().collect(),
            Machine::Switchml(machine) => vec![machine.stats()],
        }
    }
}

fn find(operations: &mut Operations, id: u64) -> &mut Active {
    operations.get_mut(&id).expect("the machine knows submitted operations only")
}

fn elements<'a>(operations: &'a Operations, id: u64, range: &Range<u64>) -> &'a [u8] {
    let active = &operations[&id];
    active.operation.buffer.slice(active.bytes(range))
}

/// `len` more bytes at the end.
fn room(scratch: &mut Vec<u8>, len: usize) -> &mut [u8] {
    let start = scratch.len();
    scratch.resize(start + len, 0);
    &mut scratch[start..]
}
