//! A worker's data plane: the machine of the plan's protocol, the buffers of operations in progress, and results
//! retained for other ranks. It models the data thread of `net` without threads and sockets.

use std::collections::BTreeMap;
use std::ops::Range;

use netsum_proto::handover::{Finished, Progress};
use netsum_proto::operations::Submission;
use netsum_proto::{
    AcceptedResult, DropReason, OutgoingPacket, PortId, Secrets, Time, Worker, WorkerConfig,
    WorkerMachine, WorkerTags, with_worker,
};
use netsum_wire::{PacketHeader, TreeId};

/// An operation that is summed on trees.
#[derive(Clone, Debug)]
pub struct TreeOperation {
    /// The submission to the machine.
    pub submission: Submission,
    /// The rank's elements, overwritten by results.
    pub buffer: Vec<u8>,
}

impl TreeOperation {
    /// The byte range of elements in the buffer.
    pub fn bytes(&self, elements: &Range<u64>) -> Range<usize> {
        let size = self.submission.format.dtype.size();
        elements.start as usize * size..elements.end as usize * size
    }
}

/// An event for the owner of a data plane.
#[derive(Clone, Debug)]
pub enum Event {
    /// An operation is complete; all sums are in its buffer.
    Done(TreeOperation),
    /// The workers disagree on the parameters of an operation.
    Mismatch(u64),
    /// A tree has not answered for this long, in nanoseconds.
    Silent(TreeId, u64),
}

/// An accepted result.
#[derive(Clone, Debug)]
pub struct Accepted {
    /// Operation number.
    pub id: u64,
    /// Range of elements.
    pub elements: Range<u64>,
}

struct Epoch {
    worker: Worker,
    retained: BTreeMap<u64, Vec<u8>>,
    window: usize,
    frozen: bool,
    tags: WorkerTags,
    switches: Vec<PortId>,
}

/// A worker's data plane.
#[derive(Default)]
pub struct DataPlane {
    epoch: Option<Epoch>,
    operations: BTreeMap<u64, TreeOperation>,
    backlog: Vec<TreeOperation>,
    finished: Vec<TreeOperation>,
}

impl DataPlane {
    /// Starts an epoch. `switches`: destination, by tree; `first`: number of results already completed by every tree.
    pub fn begin(
        &mut self,
        now: Time,
        config: WorkerConfig,
        switches: Vec<PortId>,
        secrets: Option<Secrets>,
        first: u64,
    ) {
        assert!(self.operations.is_empty(), "an epoch begins after the last one was resolved");
        let window = config.settings().retained;
        let tags = WorkerTags::new(secrets);
        let worker = Worker::starting_at(now, config, first);
        let retained = BTreeMap::new();
        self.epoch = Some(Epoch { worker, retained, window, frozen: false, tags, switches });
        for operation in std::mem::take(&mut self.backlog) {
            self.submit(operation);
        }
    }

    /// Takes keys into use that have arrived after the plan.
    pub fn secure(&mut self, secrets: Secrets) {
        if let Some(epoch) = &mut self.epoch {
            epoch.tags.secure(secrets);
        }
    }

    /// Starts an operation, or queues it until an epoch starts.
    pub fn submit(&mut self, operation: TreeOperation) {
        let Some(epoch) = self.epoch.as_mut().filter(|epoch| !epoch.frozen) else {
            self.backlog.push(operation);
            return;
        };
        let what = operation.submission.clone();
        let id = what.id;
        epoch.worker.submit(what);
        let twice = self.operations.insert(id, operation);
        assert!(twice.is_none(), "operation {id} is at work already");
    }

    /// Processes a packet of a switch; returns the accepted elements.
    pub fn take(
        &mut self,
        now: Time,
        from: PortId,
        ce: bool,
        packet: &mut [u8],
    ) -> Result<Option<Accepted>, DropReason> {
        let epoch = self.epoch.as_mut().filter(|epoch| !epoch.frozen).ok_or(DropReason::NoLease)?;
        let (switches, tags) = (&epoch.switches, &mut epoch.tags);
        let check = |tree: TreeId, packet: &mut [u8]| match switches.get(usize::from(tree.0)) {
            None => Err(DropReason::NoLease),
            Some(switch) if *switch != from => Err(DropReason::UnknownSender),
            Some(_) => tags.open(tree, packet),
        };
        let size = |id: u64| self.operations[&id].submission.format.dtype.size();
        let mut settled = Vec::new();
        let taken = with_worker!(&mut epoch.worker, machine => {
            take(machine, now, ce, packet, check, size, &mut settled)
        });
        for (g, id, elements) in settled {
            let operation = &self.operations[&id];
            epoch.keep(g, operation.buffer[operation.bytes(&elements)].to_vec());
        }
        let Some((g, id, elements, result)) = taken? else { return Ok(None) };
        epoch.keep(g, result.clone());
        let Some(elements) = elements else { return Ok(None) };
        let operation = self.operations.get_mut(&id).expect("the machine knows its operations");
        let place = operation.bytes(&elements);
        operation.buffer[place].copy_from_slice(&result);
        Ok(Some(Accepted { id, elements }))
    }

    /// The next packet to send, and its destination.
    pub fn poll_transmit(&mut self, now: Time) -> Option<(PortId, Vec<u8>)> {
        let epoch = self.epoch.as_mut().filter(|epoch| !epoch.frozen)?;
        let operations = &self.operations;
        let elements = |id: u64, range: Range<u64>| {
            let operation = &operations[&id];
            &operation.buffer[operation.bytes(&range)]
        };
        let worker = &mut epoch.worker;
        let sealed = epoch.tags.are_sealed();
        let (tree, mut packet) =
            with_worker!(worker, machine => next(machine, now, sealed, elements))?;
        epoch.tags.seal_last(tree, &mut packet, 0, &[]);
        Some((epoch.switches[usize::from(tree.0)], packet))
    }

    /// Current bytes of the given elements in an operation's buffer.
    pub fn peek(&self, id: u64, elements: &Range<u64>) -> Option<&[u8]> {
        let finished = || self.finished.iter().find(|operation| operation.submission.id == id);
        let operation = self.operations.get(&id).or_else(finished)?;
        Some(&operation.buffer[operation.bytes(elements)])
    }

    /// The time at which `handle_timeout` must be called.
    pub fn poll_timeout(&self) -> Option<Time> {
        let epoch = self.epoch.as_ref().filter(|epoch| !epoch.frozen)?;
        epoch.worker.poll_timeout()
    }

    /// Processes deadlines up to `now`.
    pub fn handle_timeout(&mut self, now: Time) {
        let Some(epoch) = self.epoch.as_mut().filter(|epoch| !epoch.frozen) else { return };
        epoch.worker.handle_timeout(now)
    }

    /// The next event for the owner.
    pub fn poll_event(&mut self) -> Option<Event> {
        if !self.finished.is_empty() {
            return Some(Event::Done(self.finished.remove(0)));
        }
        let epoch = self.epoch.as_mut()?;
        let done = |operations: &mut BTreeMap<u64, TreeOperation>, id| {
            Event::Done(operations.remove(&id).expect("an operation ends once"))
        };
        Some(match epoch.worker.poll_event()? {
            netsum_proto::Event::Done { id, .. } => done(&mut self.operations, id),
            netsum_proto::Event::Mismatch { id, .. } => Event::Mismatch(id),
            // It adds names to a mismatch.
            netsum_proto::Event::Refused { .. } => return self.poll_event(),
            netsum_proto::Event::Silent { tree, for_ns } => Event::Silent(tree, for_ns),
        })
    }

    /// Stops the epoch: nothing more is sent or accepted. Returns its progress.
    pub fn freeze(&mut self) -> Progress {
        let Some(epoch) = &mut self.epoch else { return Progress::default() };
        epoch.frozen = true;
        epoch.worker.progress()
    }

    /// Number of fragments submitted in this epoch.
    pub fn submitted(&self) -> u64 {
        self.epoch.as_ref().map_or(0, |epoch| epoch.worker.submitted())
    }

    /// Number of a tree's results so far.
    pub fn results(&self, tree: usize) -> u64 {
        let stats = self.epoch.as_ref().map(|epoch| epoch.worker.tree_stats());
        stats.and_then(|stats| stats.get(tree).map(|stats| stats.results)).unwrap_or(0)
    }

    /// Returns a retained result.
    pub fn fetch(&self, g: u64) -> Option<Vec<u8>> {
        self.epoch.as_ref()?.retained.get(&g).cloned()
    }

    /// Writes a result served by a peer; returns the accepted elements.
    pub fn deliver(&mut self, g: u64, payload: &[u8]) -> Option<Accepted> {
        let epoch = self.epoch.as_ref().filter(|epoch| epoch.frozen)?;
        if payload.is_empty() {
            return None;
        }
        let (id, elements) = epoch.worker.place_of(g)?;
        let operation = self.operations.get_mut(&id)?;
        let place = operation.bytes(&elements);
        if place.len() != payload.len() {
            return None;
        }
        operation.buffer[place].copy_from_slice(payload);
        Some(Accepted { id, elements })
    }

    /// Ends the frozen epoch; returns the remainder of each operation, also of those that are done here and contribute
    /// again.
    pub fn resolve(&mut self, finished: &Finished) -> Vec<TreeOperation> {
        let Some(epoch) = self.epoch.take() else { return std::mem::take(&mut self.backlog) };
        let repeated = epoch.worker.to_repeat(finished);
        let left = epoch.worker.remaining(finished);
        let mut remaining = Vec::new();
        for submission in left {
            let operation = self.operations.remove(&submission.id);
            let buffer = match operation {
                Some(operation) => operation.buffer,
                None => vec![0; submission.numel as usize * submission.format.dtype.size()],
            };
            remaining.push(TreeOperation { submission, buffer });
        }
        for (g, id, elements) in repeated {
            let operation = remaining.iter_mut().find(|operation| operation.submission.id == id);
            let operation = operation.expect("what is repeated is not finished");
            let place = operation.bytes(&elements);
            operation.buffer[place].copy_from_slice(&epoch.retained[&g]);
        }
        self.finished.extend(std::mem::take(&mut self.operations).into_values());
        remaining.append(&mut self.backlog);
        remaining
    }

    /// Ends the epoch and drops all operations.
    pub fn cancel(&mut self) {
        *self = DataPlane::default();
    }

    /// Sends the final packets to the switches if no operation is in progress.
    pub fn finish(&mut self) {
        let Some(epoch) = self.epoch.as_mut().filter(|epoch| !epoch.frozen) else { return };
        if !self.operations.is_empty() {
            return;
        }
        epoch.worker.finish()
    }
}

impl Epoch {
    /// Retains a result, replacing the one a full window earlier.
    fn keep(&mut self, g: u64, result: Vec<u8>) {
        self.retained.insert(g, result);
        // As in the data thread, the index is the fragment number modulo the window.
        let window = self.window as u64;
        if let Some(old) = g.checked_sub(window) {
            self.retained.remove(&old);
        }
    }
}

/// Fragment, operation, elements and their new values.
type Taken = (u64, u64, Option<Range<u64>>, Vec<u8>);

/// Processes a packet; `size`: element size of an operation; `settled`: number, operation and elements of fragments
/// that are complete without elements for this rank.
fn take<W: WorkerMachine>(
    machine: &mut W,
    now: Time,
    ce: bool,
    packet: &mut [u8],
    check: impl FnOnce(TreeId, &mut [u8]) -> Result<(), DropReason>,
    size: impl FnOnce(u64) -> usize,
    settled: &mut Vec<(u64, u64, Range<u64>)>,
) -> Result<Option<Taken>, DropReason> {
    let (header, _) = W::Header::decode(packet)?;
    check(header.tree(), packet)?;
    let payload = header.payload(packet);
    let accepted = machine.handle(now, ce, &header);
    while let Some(complete) = machine.poll_settled() {
        settled.push((complete.g(), complete.id(), complete.elements().unwrap_or_default()));
    }
    let Some(accepted) = accepted? else { return Ok(None) };
    let (g, id, elements) = (accepted.g(), accepted.id(), accepted.elements());
    let count = elements.as_ref().map_or(0, |range| (range.end - range.start) as usize);
    let mut out = vec![0; if count > 0 { count * size(id) } else { 0 }];
    machine.read(&accepted, payload, &mut out);
    Ok(Some((g, id, elements, out)))
}

/// The next packet, and its tree.
fn next<'a, W: WorkerMachine>(
    machine: &mut W,
    now: Time,
    sealed: bool,
    elements: impl Fn(u64, Range<u64>) -> &'a [u8],
) -> Option<(TreeId, Vec<u8>)> {
    let mut outgoing = machine.poll_transmit(now)?;
    let head_len = W::Header::head_len(sealed);
    let mut packet = vec![0; head_len + outgoing.header().payload_len()];
    let (head, payload) = packet.split_at_mut(head_len);
    if let Some(id) = outgoing.operation() {
        machine.write(&mut outgoing, |range| elements(id, range), payload);
    }
    outgoing.header().write(&mut head[..W::Header::LEN]);
    Some((outgoing.header().tree(), packet))
}
