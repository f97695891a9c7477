//! A worker's data plane: the machine of the plan's protocol, the buffers of operations under way, and the results that
//! other ranks may still lack. It does what the data thread of `net` does, without threads and sockets.

use std::collections::BTreeMap;
use std::ops::Range;

use netsum_proto::operations::Submission;
use netsum_proto::panama::{Finished, Progress};
use netsum_proto::{Drop, PortId, Time, atp, panama, switchml};
use netsum_wire::tag::JobKey;
use netsum_wire::{TreeId, atp as atp_wire, panama as panama_wire, switchml as switchml_wire};

use crate::lease::WorkerConfig;

/// An operation that trees carry.
#[derive(Clone, Debug)]
pub struct Operation {
    /// What to reduce.
    pub submission: Submission,
    /// The rank's elements, over which results are written.
    pub buffer: Vec<u8>,
}

impl Operation {
    /// Where elements lie in the buffer.
    pub fn bytes(&self, elements: &Range<u64>) -> Range<usize> {
        let size = self.submission.format.dtype.size();
        elements.start as usize * size..elements.end as usize * size
    }
}

/// What the owner of a data plane must know.
#[derive(Clone, Debug)]
pub enum Event {
    /// All sums of an operation are in its buffer.
    Done(Operation),
    /// The workers do not agree on what they reduce.
    Mismatch(u64),
    /// A tree has not answered for so long, nanoseconds.
    Silent(TreeId, u64),
}

/// A result that was accepted.
#[derive(Clone, Debug)]
pub struct Accepted {
    /// Operation.
    pub id: u64,
    /// Elements.
    pub elements: Range<u64>,
}

enum Machine {
    Panama(panama::Worker),
    Atp(atp::Worker, atp::Scaling),
    Switchml(switchml::Worker),
}

struct Epoch {
    machine: Machine,
    retained: BTreeMap<u64, Vec<u8>>,
    window: usize,
    frozen: bool,
    key: Option<JobKey>,
    switches: Vec<PortId>,
}

/// A worker's data plane.
#[derive(Default)]
pub struct DataPlane {
    epoch: Option<Epoch>,
    operations: BTreeMap<u64, Operation>,
    backlog: Vec<Operation>,
    finished: Vec<Operation>,
}

impl DataPlane {
    /// Starts an epoch. `switches`: where to send, by tree; `first`: results that every tree has behind it.
    pub fn begin(
        &mut self,
        now: Time,
        config: WorkerConfig,
        switches: Vec<PortId>,
        key: Option<JobKey>,
        first: u64,
    ) {
        assert!(self.operations.is_empty(), "an epoch begins after the last one was resolved");
        let (machine, window, key) = match config {
            WorkerConfig::Panama(config) => {
                let window = usize::from(config.window_max) * usize::from(config.trees);
                (Machine::Panama(panama::Worker::starting_at(now, config, first)), window, None)
            }
            WorkerConfig::Atp(config, scaling) => {
                let window = usize::from(config.window_max) * config.places.len();
                (Machine::Atp(atp::Worker::starting_at(now, config, first), scaling), window, key)
            }
            WorkerConfig::Switchml(config) => {
                let window = usize::from(config.slots);
                (Machine::Switchml(switchml::Worker::starting_at(now, config, first)), window, key)
            }
        };
        let retained = BTreeMap::new();
        self.epoch = Some(Epoch { machine, retained, window, frozen: false, key, switches });
        for operation in std::mem::take(&mut self.backlog) {
            self.submit(operation);
        }
    }

    /// Starts an operation; without an epoch it waits for one.
    pub fn submit(&mut self, operation: Operation) {
        let Some(epoch) = self.epoch.as_mut().filter(|epoch| !epoch.frozen) else {
            self.backlog.push(operation);
            return;
        };
        let what = operation.submission.clone();
        let id = what.id;
        match &mut epoch.machine {
            Machine::Panama(machine) => machine.submit(what),
            Machine::Atp(machine, scaling) => {
                machine.submit(atp::Submission { what, scaling: *scaling });
            }
            Machine::Switchml(machine) => machine.submit(what),
        }
        let twice = self.operations.insert(id, operation);
        assert!(twice.is_none(), "operation {id} is at work already");
    }

    /// Takes a packet of a switch; says which elements were accepted.
    pub fn take(
        &mut self,
        now: Time,
        from: PortId,
        ce: bool,
        packet: &[u8],
    ) -> Result<Option<Accepted>, Drop> {
        let epoch = self.epoch.as_mut().filter(|epoch| !epoch.frozen).ok_or(Drop::NoLease)?;
        if epoch.key.is_some_and(|key| !key.has_sealed(packet)) {
            return Err(Drop::BadTag);
        }
        let switches = &epoch.switches;
        let check = |tree: TreeId| match switches.get(usize::from(tree.0)) {
            None => Err(Drop::NoLease),
            Some(switch) if *switch != from => Err(Drop::UnknownSender),
            Some(_) => Ok(()),
        };
        let (g, id, elements, result) = match &mut epoch.machine {
            Machine::Panama(machine) => {
                let (header, payload) = panama_wire::Header::decode(packet)?;
                check(header.tree)?;
                let Some(accepted) = machine.handle(now, ce, &header)? else { return Ok(None) };
                (accepted.g, accepted.id, Some(accepted.elements), payload.to_vec())
            }
            Machine::Atp(machine, _) => {
                let (header, payload) = atp_wire::Header::decode(packet)?;
                check(header.tree)?;
                let Some(accepted) = machine.handle(now, ce, &header)? else { return Ok(None) };
                let elements = accepted.content.elements();
                let mut out = room(elements.as_ref(), accepted.dtype);
                machine.read(&accepted, payload, &mut out);
                (accepted.g, accepted.id, elements, out)
            }
            Machine::Switchml(machine) => {
                let (header, payload) = switchml_wire::Header::decode(packet)?;
                check(TreeId(0))?;
                let Some(accepted) = machine.handle(now, &header)? else { return Ok(None) };
                let elements = accepted.content.elements();
                let mut out = room(elements.as_ref(), accepted.dtype);
                machine.read(&accepted, payload, &mut out);
                (accepted.g, accepted.id, elements, out)
            }
        };
        epoch.keep(g, result.clone());
        let Some(elements) = elements else { return Ok(None) };
        let operation = self.operations.get_mut(&id).expect("the machine knows its operations");
        let place = operation.bytes(&elements);
        operation.buffer[place].copy_from_slice(&result);
        Ok(Some(Accepted { id, elements }))
    }

    /// The next packet to send, and where.
    pub fn poll_transmit(&mut self, now: Time) -> Option<(PortId, Vec<u8>)> {
        let epoch = self.epoch.as_mut().filter(|epoch| !epoch.frozen)?;
        let operations = &self.operations;
        let elements = |id: u64, range: Range<u64>| {
            let operation = &operations[&id];
            &operation.buffer[operation.bytes(&range)]
        };
        let (tree, mut packet) = match &mut epoch.machine {
            Machine::Panama(machine) => {
                let outgoing = machine.poll_transmit(now)?;
                let mut packet = vec![0; panama_wire::HEADER_LEN];
                outgoing.header.encode(packet.first_chunk_mut().expect("it has that length"));
                if let Some((id, range)) = outgoing.payload {
                    packet.extend_from_slice(elements(id, range));
                }
                (outgoing.tree, packet)
            }
            Machine::Atp(machine, _) => {
                let mut outgoing = machine.poll_transmit(now)?;
                let mut packet = vec![0; atp_wire::HEADER_LEN + outgoing.header.payload_len()];
                let (head, payload) = packet.split_first_chunk_mut().expect("it is longer");
                if let Some((id, _)) = outgoing.payload {
                    machine.write(&mut outgoing, |range| elements(id, range), payload);
                }
                outgoing.header.encode(head);
                (outgoing.header.tree, packet)
            }
            Machine::Switchml(machine) => {
                let mut outgoing = machine.poll_transmit(now)?;
                let len = switchml_wire::HEADER_LEN + outgoing.header.payload_len();
                let mut packet = vec![0; len];
                let (head, payload) = packet.split_first_chunk_mut().expect("it is longer");
                if let Some((id, _)) = outgoing.payload {
                    machine.write(&mut outgoing, |range| elements(id, range), payload);
                }
                outgoing.header.encode(head);
                (TreeId(0), packet)
            }
        };
        if let Some(key) = &epoch.key {
            key.seal(&mut packet, &[]);
        }
        Some((epoch.switches[usize::from(tree.0)], packet))
    }

    /// What stands in an operation's buffer.
    pub fn peek(&self, id: u64, elements: &Range<u64>) -> Option<&[u8]> {
        let finished = || self.finished.iter().find(|operation| operation.submission.id == id);
        let operation = self.operations.get(&id).or_else(finished)?;
        Some(&operation.buffer[operation.bytes(elements)])
    }

    /// When `handle_timeout` must be called.
    pub fn poll_timeout(&self) -> Option<Time> {
        let epoch = self.epoch.as_ref().filter(|epoch| !epoch.frozen)?;
        match &epoch.machine {
            Machine::Panama(machine) => machine.poll_timeout(),
            Machine::Atp(machine, _) => machine.poll_timeout(),
            Machine::Switchml(machine) => machine.poll_timeout(),
        }
    }

    /// Deadlines up to `now` have passed.
    pub fn handle_timeout(&mut self, now: Time) {
        let Some(epoch) = self.epoch.as_mut().filter(|epoch| !epoch.frozen) else { return };
        match &mut epoch.machine {
            Machine::Panama(machine) => machine.handle_timeout(now),
            Machine::Atp(machine, _) => machine.handle_timeout(now),
            Machine::Switchml(machine) => machine.handle_timeout(now),
        }
    }

    /// What the owner must know.
    pub fn poll_event(&mut self) -> Option<Event> {
        if !self.finished.is_empty() {
            return Some(Event::Done(self.finished.remove(0)));
        }
        let epoch = self.epoch.as_mut()?;
        let done = |operations: &mut BTreeMap<u64, Operation>, id| {
            Event::Done(operations.remove(&id).expect("an operation ends once"))
        };
        Some(match &mut epoch.machine {
            Machine::Panama(machine) => match machine.poll_event()? {
                panama::Event::Done { id, .. } => done(&mut self.operations, id),
                panama::Event::Mismatch { id } => Event::Mismatch(id),
                panama::Event::Silent { tree, for_ns } => Event::Silent(tree, for_ns),
            },
            Machine::Atp(machine, _) => match machine.poll_event()? {
                atp::Event::Done { id } => done(&mut self.operations, id),
                atp::Event::Mismatch { id } => Event::Mismatch(id),
                atp::Event::Silent { tree, for_ns } => Event::Silent(tree, for_ns),
            },
            Machine::Switchml(machine) => match machine.poll_event()? {
                switchml::Event::Done { id } => done(&mut self.operations, id),
                switchml::Event::Mismatch { id } => Event::Mismatch(id),
                switchml::Event::Silent { for_ns } => Event::Silent(TreeId(0), for_ns),
            },
        })
    }

    /// Stops the epoch: nothing more is sent or accepted.
    pub fn freeze(&mut self) -> Progress {
        let Some(epoch) = &mut self.epoch else { return Progress::default() };
        epoch.frozen = true;
        match &epoch.machine {
            Machine::Panama(machine) => machine.progress(),
            Machine::Atp(machine, _) => machine.progress(),
            Machine::Switchml(machine) => machine.progress(),
        }
    }

    /// Fragments that have a number in this epoch.
    pub fn submitted(&self) -> u64 {
        self.epoch.as_ref().map_or(0, |epoch| match &epoch.machine {
            Machine::Panama(machine) => machine.submitted(),
            Machine::Atp(machine, _) => machine.submitted(),
            Machine::Switchml(machine) => machine.submitted(),
        })
    }

    /// Results of a tree so far.
    pub fn results(&self, tree: usize) -> u64 {
        let stats = self.epoch.as_ref().and_then(|epoch| match &epoch.machine {
            Machine::Panama(machine) => machine.tree_stats().nth(tree),
            Machine::Atp(machine, _) => machine.tree_stats().nth(tree),
            Machine::Switchml(machine) => Some(machine.stats()),
        });
        stats.map_or(0, |stats| stats.results)
    }

    /// A retained result.
    pub fn fetch(&self, g: u64) -> Option<Vec<u8>> {
        self.epoch.as_ref()?.retained.get(&g).cloned()
    }

    /// Writes a result that a peer served to its place; says which elements.
    pub fn deliver(&mut self, g: u64, payload: &[u8]) -> Option<Accepted> {
        let epoch = self.epoch.as_ref().filter(|epoch| epoch.frozen)?;
        if payload.is_empty() {
            return None;
        }
        let (id, elements) = match &epoch.machine {
            Machine::Panama(machine) => machine.place_of(g).map(|at| (at.id, at.elements)),
            Machine::Atp(machine, _) => machine.place_of(g),
            Machine::Switchml(machine) => machine.place_of(g),
        }?;
        let operation = self.operations.get_mut(&id)?;
        let place = operation.bytes(&elements);
        if place.len() != payload.len() {
            return None;
        }
        operation.buffer[place].copy_from_slice(payload);
        Some(Accepted { id, elements })
    }

    /// Ends the frozen epoch; what is left of each operation.
    pub fn resolve(&mut self, finished: &Finished) -> Vec<Operation> {
        let Some(epoch) = self.epoch.take() else { return std::mem::take(&mut self.backlog) };
        let left = match epoch.machine {
            Machine::Panama(machine) => machine.remaining(finished),
            Machine::Atp(machine, _) => {
                machine.remaining(finished).into_iter().map(|rest| rest.what).collect()
            }
            Machine::Switchml(machine) => machine.remaining(finished),
        };
        let mut remaining = Vec::new();
        for submission in left {
            if let Some(operation) = self.operations.remove(&submission.id) {
                remaining.push(Operation { submission, ..operation });
            }
        }
        self.finished.extend(std::mem::take(&mut self.operations).into_values());
        remaining.append(&mut self.backlog);
        remaining
    }

    /// Ends the epoch and forgets all operations.
    pub fn cancel(&mut self) {
        *self = DataPlane::default();
    }

    /// Says goodbye to the switches if nothing is under way.
    pub fn finish(&mut self) {
        let Some(epoch) = self.epoch.as_mut().filter(|epoch| !epoch.frozen) else { return };
        if !self.operations.is_empty() {
            return;
        }
        match &mut epoch.machine {
            Machine::Panama(machine) => machine.finish(),
            Machine::Atp(machine, _) => machine.finish(),
            Machine::Switchml(machine) => machine.finish(),
        }
    }
}

impl Epoch {
    /// Keeps a result in place of the one a whole window before.
    fn keep(&mut self, g: u64, result: Vec<u8>) {
        self.retained.insert(g, result);
        // As in the data thread, a place is the fragment's number modulo the window.
        let window = self.window as u64;
        if let Some(old) = g.checked_sub(window) {
            self.retained.remove(&old);
        }
    }
}

fn room(elements: Option<&Range<u64>>, dtype: netsum_wire::Dtype) -> Vec<u8> {
    elements
        .map_or_else(Vec::new, |range| vec![0; (range.end - range.start) as usize * dtype.size()])
}
