//! MSCCL++'s execution plans (JSON), written from plans, and read back as programs.
//!
//! Source: microsoft/mscclpp at 1f5f065d, `src/core/executor/execution_plan.cc` (fields and names that the executor
//! reads) and `src/core/include/execution_kernel.hpp` (semantics of operations).
//!
//! A flow is one thread block per GPU, which does its steps one after another; waits in a row are one operation, and so
//! are signals. Data is put into the receiver's memory,
//! sums on their way up into its scratch, and a signal announces each message. Thread blocks begin with a signal and a
//! wait per neighbour, so that no GPU writes to one that is still in the previous call.

use std::collections::{BTreeMap, HashMap, HashSet};

use netsum_topo::links::{Collective, TreePlan};
use serde::{Deserialize, Serialize};

use super::lower::Layout;
use super::{Action, Memory, MemoryLocation, Program, Step, Thread};
use crate::error::PackError;

/// A plan as the executor reads it, with the fields of MSCCL++.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    name: String,
    collective: String,
    protocol: String,
    inplace: bool,
    reuse_resources: bool,
    gpus: Vec<Gpu>,
    num_threads_per_block: u32,
    use_double_scratch_buffer: bool,
    buffer_alignment: u32,
    min_message_size: u64,
    max_message_size: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Gpu {
    id: usize,
    input_chunks: u64,
    output_chunks: u64,
    scratch_chunks: u64,
    threadblocks: Vec<Block>,
    channels: Vec<Channels>,
    remote_buffers: Vec<Remote>,
    semaphores: Vec<serde_json::Value>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Channels {
    channel_type: String,
    connected_to: Vec<usize>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Remote {
    rank: usize,
    #[serde(rename = "type")]
    memory: String,
    access_channel_types: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Block {
    id: usize,
    ops: Vec<Op>,
    channels: Vec<OwnChannels>,
    remote_buffer_refs: Vec<RemoteRefs>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct OwnChannels {
    channel_type: String,
    channel_ids: Vec<usize>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RemoteRefs {
    access_channel_type: String,
    remote_buffer_ids: Vec<usize>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Op {
    name: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    src_buff: Vec<Buffer>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    dst_buff: Vec<Buffer>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    channel_ids: Vec<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    channel_type: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reduce_op: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Buffer {
    /// Local memory.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    memory: Option<String>,
    /// Or the memory of another GPU, by its index among the thread block's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    buffer_id: Option<usize>,
    index: u64,
    size: u64,
}

/// The plan for MSCCL++'s executor.
///
/// Errors: switches that add, or more than its executor takes.
pub fn write_mscclpp(plan: &TreePlan) -> Result<String, PackError> {
    let collective = match plan.collective {
        Collective::Alltoall => return Err(refuse("an all-to-all is not written")),
        Collective::Allreduce => "allreduce",
        Collective::Allgather => "allgather",
        Collective::ReduceScatter => "reducescatter",
        Collective::Broadcast { .. } => "broadcast",
        Collective::Reduce { .. } => "reduce",
    };
    let layout = Layout::new(plan).map_err(|fault| refuse(&fault.to_string()))?;
    if layout.agent.len() > plan.gpus.len() {
        return Err(refuse("it knows GPUs only; plan without switches that add"));
    }
    if layout.pieces > PIECES_MAX {
        let problem = format!(
            "{} chunks are more than {PIECES_MAX}; round the shares to fewer",
            layout.pieces
        );
        return Err(refuse(&problem));
    }
    let ranks = plan.gpus.len();
    let shard = layout.pieces / ranks as u64;
    let (memory, inputs, outputs) = match plan.collective {
        Collective::Allgather => ("o", shard, layout.pieces),
        Collective::ReduceScatter => ("i", layout.pieces, shard),
        _ => ("i", layout.pieces, layout.pieces),
    };
    let mut gpus: Vec<Draft> = (0..ranks).map(|_| Draft::default()).collect();
    for flow in 0..plan.flows.len() {
        put_flow(&mut gpus, &layout, flow, memory);
    }
    let gpus = gpus.into_iter().enumerate().map(|(id, draft)| draft.finish(id, inputs, outputs));
    let gpus: Vec<Gpu> = gpus.collect();
    for block in gpus.iter().flat_map(|gpu| &gpu.threadblocks) {
        let channels = block.channels[0].channel_ids.len();
        let buffers = block.remote_buffer_refs[0].remote_buffer_ids.len();
        if block.ops.len() > OPS_MAX || channels.max(buffers) > CHANNELS_MAX {
            let problem = format!(
                "a thread block with {} operations and {channels} channels; it takes {OPS_MAX} and \
                 {CHANNELS_MAX}: use trees with fewer children",
                block.ops.len()
            );
            return Err(refuse(&problem));
        }
    }
    let file = File {
        name: plan.fabric.clone(),
        collective: collective.to_owned(),
        protocol: "Simple".to_owned(),
        inplace: true,
        reuse_resources: false,
        gpus,
        num_threads_per_block: 1024,
        use_double_scratch_buffer: false,
        buffer_alignment: 16,
        min_message_size: 0,
        max_message_size: u64::MAX,
    };
    Ok(serde_json::to_string_pretty(&file).expect("plain data"))
}

/// Thread blocks of all flows on one GPU.
#[derive(Default)]
struct Draft {
    connected_to: Vec<usize>,
    remote: Vec<Remote>,
    blocks: Vec<Block>,
    scratch: u64,
}

impl Draft {
    fn finish(self, id: usize, input_chunks: u64, output_chunks: u64) -> Gpu {
        Gpu {
            id,
            input_chunks,
            output_chunks,
            scratch_chunks: self.scratch,
            threadblocks: self.blocks,
            channels: vec![Channels {
                channel_type: MEMORY.to_owned(),
                connected_to: self.connected_to,
            }],
            remote_buffers: self.remote,
            semaphores: Vec::new(),
        }
    }

    /// A thread block connected to `neighbours`, which waits until they have begun.
    fn open(&mut self, neighbours: &[usize]) -> Block {
        let first = self.connected_to.len();
        self.connected_to.extend(neighbours);
        let channel_ids: Vec<usize> = (first..self.connected_to.len()).collect();
        let all: Vec<usize> = (0..neighbours.len()).collect();
        let mut ops = on_channels("signal", &all);
        ops.extend(on_channels("wait", &all));
        ops.push(named("nop"));
        Block {
            id: self.blocks.len(),
            ops,
            channels: vec![OwnChannels { channel_type: MEMORY.to_owned(), channel_ids }],
            remote_buffer_refs: vec![RemoteRefs {
                access_channel_type: MEMORY.to_owned(),
                remote_buffer_ids: Vec::new(),
            }],
        }
    }

    /// The index among `block`'s remote buffers of a memory of another GPU.
    fn remote(&mut self, block: &mut Block, rank: usize, memory: &str) -> usize {
        let same = |known: &Remote| known.rank == rank && known.memory == memory;
        let id = self.remote.iter().position(same).unwrap_or_else(|| {
            self.remote.push(Remote {
                rank,
                memory: memory.to_owned(),
                access_channel_types: vec![MEMORY.to_owned()],
            });
            self.remote.len() - 1
        });
        let own = &mut block.remote_buffer_refs[0].remote_buffer_ids;
        own.iter().position(|&known| known == id).unwrap_or_else(|| {
            own.push(id);
            own.len() - 1
        })
    }
}

/// A step of a flow on one GPU.
enum Event {
    /// Data arrives on a channel; `adds`: in the scratch at this index, to be added to the flow's pieces.
    Receive { channel: usize, adds: Option<u64> },
    /// Data is put at an index of a remote buffer, and announced on a channel.
    Send { channel: usize, buffer: usize, index: u64 },
}

/// One thread block on each GPU of the flow, with its steps in the order of the plan.
fn put_flow(gpus: &mut [Draft], layout: &Layout, flow: usize, memory: &str) {
    let (up, down) = layout.ways(flow);
    let mut neighbours: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for &(a, b) in up.iter().chain(&down) {
        for (one, other) in [(a, b), (b, a)] {
            let known = neighbours.entry(one).or_default();
            if !known.contains(&other) {
                known.push(other);
            }
        }
    }
    let mut blocks: BTreeMap<usize, (Block, Vec<Event>)> = BTreeMap::new();
    for (&gpu, others) in &neighbours {
        blocks.insert(gpu, (gpus[gpu].open(others), Vec::new()));
    }
    let channel = |gpu: usize, other: usize| {
        neighbours[&gpu].iter().position(|&known| known == other).expect("a neighbour")
    };
    let part = &layout.parts[flow];
    let size = part.end - part.start;
    let ways = up.iter().map(|way| (way, true)).chain(down.iter().map(|way| (way, false)));
    for (&(from, to), upward) in ways {
        let into = if upward { "s" } else { memory };
        let index = if upward { gpus[to].scratch } else { part.start };
        let (block, events) = blocks.get_mut(&from).expect("opened");
        let buffer = gpus[from].remote(block, to, into);
        events.push(Event::Send { channel: channel(from, to), buffer, index });
        let (_, events) = blocks.get_mut(&to).expect("opened");
        events.push(Event::Receive {
            channel: channel(to, from),
            adds: upward.then_some(gpus[to].scratch),
        });
        if upward {
            gpus[to].scratch += size;
        }
    }
    let own = Buffer { memory: Some(memory.to_owned()), buffer_id: None, index: part.start, size };
    for (gpu, (mut block, events)) in blocks {
        let alike = |a: &Event, b: &Event| {
            matches!(a, Event::Send { .. }) == matches!(b, Event::Send { .. })
        };
        for run in events.chunk_by(alike) {
            put_run(&mut block.ops, run, &own);
        }
        gpus[gpu].blocks.push(block);
    }
}

/// Operations of receives in a row, or of sends in a row: one barrier for all of them.
fn put_run(ops: &mut Vec<Op>, run: &[Event], own: &Buffer) {
    let channels: Vec<usize> = run.iter().map(|event| event.channel()).collect();
    let puts = run.iter().filter_map(|event| event.put(own));
    ops.extend(puts);
    let sends = matches!(run.first(), Some(Event::Send { .. }));
    if sends {
        ops.push(named("nop"));
        ops.extend(on_channels("signal", &channels));
        return;
    }
    ops.extend(on_channels("wait", &channels));
    ops.push(named("nop"));
    let before = ops.len();
    ops.extend(run.iter().filter_map(|event| event.addition(own)));
    if ops.len() > before {
        ops.push(named("nop"));
    }
}

impl Event {
    fn channel(&self) -> usize {
        match *self {
            Event::Receive { channel, .. } | Event::Send { channel, .. } => channel,
        }
    }

    fn put(&self, own: &Buffer) -> Option<Op> {
        let Event::Send { channel, buffer, index } = *self else { return None };
        let remote = Buffer { memory: None, buffer_id: Some(buffer), index, size: own.size };
        Some(Op {
            src_buff: vec![own.clone()],
            dst_buff: vec![remote],
            ..on_channel("put", channel)
        })
    }

    fn addition(&self, own: &Buffer) -> Option<Op> {
        let Event::Receive { adds: Some(index), .. } = *self else { return None };
        let scratch = Buffer { memory: Some("s".to_owned()), index, ..own.clone() };
        Some(Op {
            name: "re".to_owned(),
            src_buff: vec![own.clone(), scratch],
            dst_buff: vec![own.clone()],
            reduce_op: Some("sum".to_owned()),
            ..Op::default()
        })
    }
}

/// The operation on all channels, as few times as possible: on each channel once, and on a few at a time.
fn on_channels(name: &str, channels: &[usize]) -> Vec<Op> {
    let mut ops: Vec<Op> = Vec::new();
    for &channel in channels {
        match ops.last_mut() {
            Some(op)
                if op.channel_ids.len() < CHANNELS_PER_OP_MAX
                    && !op.channel_ids.contains(&channel) =>
            {
                op.channel_ids.push(channel);
            }
            _ => ops.push(on_channel(name, channel)),
        }
    }
    ops
}

/// By sender, receiver and channel the puts in order: the sending step, and the destination.
type Messages = HashMap<(usize, usize, usize), Vec<(Step, MemoryLocation)>>;

/// The program of an execution plan with the operations that [`write_mscclpp`] uses.
///
/// A message counts as written when the receiver waits for it. Errors: malformed JSON, or unsupported operations, with
/// the position.
pub fn read_mscclpp(text: &str) -> Result<Program, PackError> {
    let file: File = serde_json::from_str(text).map_err(|error| refuse(&error.to_string()))?;
    let ranks = file.gpus.len();
    let collective = match file.collective.as_str() {
        "allreduce" => Collective::Allreduce,
        "allgather" => Collective::Allgather,
        "reducescatter" => Collective::ReduceScatter,
        "broadcast" => {
            Collective::Broadcast { root: root_of(&file, |gpu| !receives(gpu.id, &file))? }
        }
        "reduce" => {
            Collective::Reduce { root: root_of(&file, |gpu| gpu.remote_buffers.is_empty())? }
        }
        other => return Err(refuse(&format!("collective {other:?} is not known here"))),
    };
    let chunks = |gpu: &Gpu| gpu.input_chunks.max(gpu.output_chunks);
    let pieces = file.gpus.first().map_or(0, chunks);
    if ranks == 0 || pieces == 0 || file.gpus.iter().any(|gpu| chunks(gpu) != pieces) {
        return Err(refuse("its GPUs have no chunks, or not equally many"));
    }
    let mut messages = Messages::new();
    for gpu in &file.gpus {
        for block in &gpu.threadblocks {
            let mut puts = HashMap::new();
            for (at, op) in block.ops.iter().enumerate() {
                let wrong =
                    || refuse(&format!("GPU {}, thread block {}, op {at}", gpu.id, block.id));
                match op.name.as_str() {
                    "put" => {
                        let (key, put) = message(gpu, block, op).ok_or_else(wrong)?;
                        if puts.insert(key, put).is_some() {
                            return Err(wrong());
                        }
                    }
                    "signal" => {
                        for key in peers(gpu, block, op).ok_or_else(wrong)? {
                            let sent = messages.entry((gpu.id, key.0, key.1)).or_default();
                            sent.extend(puts.remove(&key));
                        }
                    }
                    _ => {}
                }
            }
            if !puts.is_empty() {
                let place = format!("GPU {}, thread block {}", gpu.id, block.id);
                return Err(refuse(&format!("{place}: a put without a signal")));
            }
        }
    }
    let mut threads = Vec::new();
    for gpu in &file.gpus {
        let mut own = Vec::new();
        for block in &gpu.threadblocks {
            read_block(gpu, block, &messages, &mut own)?;
        }
        threads.push(own);
    }
    Ok(Program { collective, ranks, pieces, in_place: file.inplace, threads })
}

/// The GPU that alone does not receive, or does not send.
fn root_of(file: &File, is_root: impl Fn(&Gpu) -> bool) -> Result<usize, PackError> {
    let root = file.gpus.iter().position(is_root);
    root.ok_or_else(|| refuse(&format!("a {} without a root", file.collective)))
}

/// Whether another GPU writes to a GPU's memory.
fn receives(gpu: usize, file: &File) -> bool {
    file.gpus.iter().flat_map(|gpu| &gpu.remote_buffers).any(|remote| remote.rank == gpu)
}

/// Adds the threads of a block: one per channel and one for local operations, in one order.
fn read_block(
    gpu: &Gpu,
    block: &Block,
    messages: &Messages,
    threads: &mut Vec<Thread>,
) -> Result<(), PackError> {
    let mut by_channel: HashMap<Option<Key>, usize> = HashMap::new();
    let mut last: Option<(usize, usize)> = None;
    let mut counts = Counts::default();
    for (at, op) in block.ops.iter().enumerate() {
        let steps = counts.steps(gpu, block, messages, op);
        let wrong = || refuse(&format!("GPU {}, thread block {}, op {at}", gpu.id, block.id));
        for (key, mut step) in steps.ok_or_else(wrong)? {
            let thread = *by_channel.entry(key).or_insert_with(|| {
                let peer = key.map(|(peer, _)| peer);
                let channel = key.map_or(0, |(_, channel)| channel);
                threads.push(Thread { send: peer, receive: peer, channel, steps: Vec::new() });
                threads.len() - 1
            });
            step.after = last.filter(|&(other, _)| other != thread);
            threads[thread].steps.push(step);
            last = Some((thread, threads[thread].steps.len() - 1));
        }
    }
    Ok(())
}

/// The peer of a channel, and the number of the channel among those to that peer.
type Key = (usize, usize);

/// Messages of a block so far, by channel.
#[derive(Default)]
struct Counts {
    waits: HashMap<Key, usize>,
    sent: HashMap<Key, usize>,
    /// Channels with a put that is not announced.
    pending: HashSet<Key>,
}

impl Counts {
    /// The steps of an operation; `None` if it is none that is written here.
    fn steps(
        &mut self,
        gpu: &Gpu,
        block: &Block,
        messages: &Messages,
        op: &Op,
    ) -> Option<Vec<(Option<Key>, Step)>> {
        let mut steps = Vec::new();
        match op.name.as_str() {
            "nop" => {}
            "put" => {
                self.pending.insert(message(gpu, block, op)?.0);
            }
            "signal" => {
                for key in peers(gpu, block, op)? {
                    if !self.pending.remove(&key) {
                        continue;
                    }
                    let number = self.sent.entry(key).or_default();
                    *number += 1;
                    let sent = messages.get(&(gpu.id, key.0, key.1))?;
                    steps.push((Some(key), sent.get(*number - 1)?.0));
                }
            }
            "wait" => {
                for key in peers(gpu, block, op)? {
                    let number = self.waits.entry(key).or_default();
                    *number += 1;
                    // The first wait is for the start of the neighbour.
                    let Some(number) = number.checked_sub(2) else { continue };
                    let (step, to) = *messages.get(&(key.0, gpu.id, key.1))?.get(number)?;
                    steps.push((Some(key), Step { action: Action::Receive, from: to, to, ..step }));
                }
            }
            "re" => steps.push((None, addition(op)?)),
            _ => return None,
        }
        Some(steps)
    }
}

/// A local addition as a step.
fn addition(op: &Op) -> Option<Step> {
    let [own, more] = op.src_buff.as_slice() else { return None };
    let (to, from) = (local(own)?, local(more)?);
    let alike = op.dst_buff.as_slice() == [own.clone()] && own.size == more.size;
    let step = Step { action: Action::Reduce, from, to, count: own.size, after: None };
    alike.then_some(step)
}

/// By channel of the operation, the GPU at the other end, and the number of the channel between both.
fn peers(gpu: &Gpu, block: &Block, op: &Op) -> Option<Vec<Key>> {
    let all = &gpu.channels.first()?.connected_to;
    let key = |own: &usize| {
        let &id = block.channels.first()?.channel_ids.get(*own)?;
        let &peer = all.get(id)?;
        Some((peer, all[..id].iter().filter(|&&other| other == peer).count()))
    };
    op.channel_ids.iter().map(key).collect()
}

/// A put as its channel, the step that sends, and its destination.
fn message(gpu: &Gpu, block: &Block, op: &Op) -> Option<(Key, (Step, MemoryLocation))> {
    let ([from], [to]) = (op.src_buff.as_slice(), op.dst_buff.as_slice()) else { return None };
    let &id = block.remote_buffer_refs.first()?.remote_buffer_ids.get(to.buffer_id?)?;
    let remote = gpu.remote_buffers.get(id)?;
    let [key] = peers(gpu, block, op)?[..] else { return None };
    let to_place = MemoryLocation { memory: memory(&remote.memory)?, at: to.index };
    let place = local(from)?;
    let step = Step { action: Action::Send, from: place, to: place, count: from.size, after: None };
    (key.0 == remote.rank && from.size == to.size).then_some((key, (step, to_place)))
}

fn local(buffer: &Buffer) -> Option<MemoryLocation> {
    Some(MemoryLocation { memory: memory(buffer.memory.as_deref()?)?, at: buffer.index })
}

fn memory(letter: &str) -> Option<Memory> {
    Some(match letter {
        "i" => Memory::Input,
        "o" => Memory::Output,
        "s" => Memory::Scratch,
        _ => return None,
    })
}

fn named(name: &str) -> Op {
    Op { name: name.to_owned(), ..Op::default() }
}

fn on_channel(name: &str, channel: usize) -> Op {
    Op { channel_ids: vec![channel], channel_type: Some(MEMORY.to_owned()), ..named(name) }
}

fn refuse(problem: &str) -> PackError {
    PackError::Format { format: "MSCCL++ JSON", problem: problem.to_owned() }
}

const MEMORY: &str = "memory";
/// `MAX_OPERATION` and `MAX_CHANNEL` of its kernel.
const OPS_MAX: usize = 64;
const CHANNELS_MAX: usize = 16;
/// `MAX_CHANNEL_PER_OPERATION`.
const CHANNELS_PER_OP_MAX: usize = 8;
/// Messages must divide into this many chunks: a higher limit is of no use.
const PIECES_MAX: u64 = 1 << 15;
