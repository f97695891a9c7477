//! Chakra execution traces (MLCommons), the inputs of ASTRA-sim: a file `PREFIX.RANK.et` per rank with length-prefixed
//! protobuf messages, first one of metadata, then the nodes.
//!
//! Compute and memory nodes take their recorded duration, on one unit for the CPU and one for the device. The size of a
//! collective is that of a rank's input, as ASTRA-sim takes it. Groups are those of PyTorch's metadata nodes, or of a
//! JSON file of groups as ASTRA-sim has it; a collective without a group is one of all ranks.

use std::collections::HashMap;

use prost::Message;
use prost::encoding::decode_varint;

use super::{Builder, Collective, Names, Op, Schedule, ScheduleError};

/// The part of the schema's messages that is read; others are skipped.
#[derive(Clone, PartialEq, Message)]
struct Attribute {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(oneof = "Value", tags = "7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29")]
    value: Option<Value>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum Value {
    #[prost(int32, tag = "7")]
    Int32(i32),
    #[prost(int64, tag = "9")]
    Int64(i64),
    #[prost(uint32, tag = "11")]
    Uint32(u32),
    #[prost(uint64, tag = "13")]
    Uint64(u64),
    #[prost(sint32, tag = "15")]
    Sint32(i32),
    #[prost(sint64, tag = "17")]
    Sint64(i64),
    #[prost(fixed32, tag = "19")]
    Fixed32(u32),
    #[prost(fixed64, tag = "21")]
    Fixed64(u64),
    #[prost(sfixed32, tag = "23")]
    Sfixed32(i32),
    #[prost(sfixed64, tag = "25")]
    Sfixed64(i64),
    #[prost(bool, tag = "27")]
    Bool(bool),
    #[prost(string, tag = "29")]
    String(String),
}

#[derive(Clone, PartialEq, Message)]
struct InOut {
    #[prost(string, tag = "1")]
    values: String,
}

#[derive(Clone, PartialEq, Message)]
struct Recorded {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(string, tag = "2")]
    name: String,
    #[prost(int32, tag = "3")]
    kind: i32,
    #[prost(uint64, repeated, tag = "4")]
    ctrl_deps: Vec<u64>,
    #[prost(uint64, repeated, tag = "5")]
    data_deps: Vec<u64>,
    #[prost(uint64, tag = "7")]
    duration_micros: u64,
    #[prost(message, optional, tag = "8")]
    inputs: Option<InOut>,
    #[prost(message, repeated, tag = "10")]
    attr: Vec<Attribute>,
}

impl Recorded {
    fn value(&self, name: &str) -> Option<&Value> {
        self.attr.iter().find(|attr| attr.name == name)?.value.as_ref()
    }

    /// A whole number, however it is encoded.
    fn number(&self, name: &str) -> Option<i128> {
        Some(match *self.value(name)? {
            Value::Int32(v) | Value::Sint32(v) | Value::Sfixed32(v) => v.into(),
            Value::Int64(v) | Value::Sint64(v) | Value::Sfixed64(v) => v.into(),
            Value::Uint32(v) | Value::Fixed32(v) => v.into(),
            Value::Uint64(v) | Value::Fixed64(v) => v.into(),
            Value::Bool(v) => v.into(),
            Value::String(ref text) => text.parse().ok()?,
        })
    }

    fn text(&self, name: &str) -> Option<String> {
        match self.value(name)? {
            Value::String(text) => Some(text.clone()),
            _ => Some(self.number(name)?.to_string()),
        }
    }
}

/// A trace: the bytes of each rank's file, and where they come from.
pub struct Trace<'a> {
    /// By rank.
    pub files: &'a [Vec<u8>],
    /// What stands before the rank in names of files.
    pub prefix: &'a str,
    /// Ranks of groups by name: the text of a JSON object of lists.
    pub groups: Option<&'a str>,
}

/// Reads a trace.
pub fn parse(trace: &Trace) -> Result<Schedule, ScheduleError> {
    let names = Names::Ids(format!("{}.", trace.prefix), ".et".to_owned());
    let ranks = u32::try_from(trace.files.len()).unwrap_or(u32::MAX);
    let builder = Builder::new(names.clone(), ranks)?;
    let mut reader = Reader { names, builder, named: HashMap::new(), groups: HashMap::new() };
    if let Some(text) = trace.groups {
        reader.group_file(text)?;
    }
    for (rank, bytes) in (0..).zip(trace.files) {
        reader.rank(rank, bytes)?;
    }
    reader.builder.build()
}

struct Reader {
    names: Names,
    builder: Builder,
    /// Ranks of the groups that the trace names; of its metadata, by the rank whose file has them.
    named: HashMap<(Option<u32>, String), Vec<u32>>,
    groups: HashMap<(String, Vec<u32>), u32>,
}

impl Reader {
    fn group_file(&mut self, text: &str) -> Result<(), ScheduleError> {
        let groups: HashMap<String, Vec<u32>> = serde_json::from_str(text).map_err(|error| {
            let place = format!("groups of {}", self.names.source());
            ScheduleError::new(place, format!("no JSON object of lists of ranks: {error}"))
        })?;
        self.named.extend(groups.into_iter().map(|(name, ranks)| ((None, name), ranks)));
        Ok(())
    }

    fn rank(&mut self, rank: u32, mut bytes: &[u8]) -> Result<(), ScheduleError> {
        let names = self.names.clone();
        let broken = |reason: String| ScheduleError::new(names.rank(rank), reason);
        let mut nodes: HashMap<u64, u32> = HashMap::new();
        let mut waits: Vec<(u64, u32, u64)> = Vec::new();
        // The first message is metadata of the whole file.
        next_message(&mut bytes).map_err(broken)?;
        while !bytes.is_empty() {
            let message = next_message(&mut bytes).map_err(broken)?;
            let node = Recorded::decode(message)
                .map_err(|error| broken(format!("a message is no node of Chakra: {error}")))?;
            let index = self.node(rank, &node)?;
            if nodes.insert(node.id, index).is_some() {
                return Err(ScheduleError::new(
                    names.place(rank, node.id),
                    "a second node has this id",
                ));
            }
            let before = node.ctrl_deps.iter().chain(&node.data_deps);
            waits.extend(before.map(|&before| (node.id, index, before)));
        }
        for (id, node, before) in waits {
            let Some(&before) = nodes.get(&before) else {
                let reason = format!("it depends on node {before}, which is not there");
                return Err(ScheduleError::new(names.place(rank, id), reason));
            };
            self.builder.wait(rank, node, before, false)?;
        }
        Ok(())
    }

    fn node(&mut self, rank: u32, node: &Recorded) -> Result<u32, ScheduleError> {
        let place = |reason: String| ScheduleError::new(self.names.place(rank, node.id), reason);
        let size = || {
            let size = node.number("comm_size").ok_or("it has no comm_size")?;
            u64::try_from(size).map_err(|_| "its comm_size is negative or too large")
        };
        let other = |key: &str| {
            let other = node.number(key).ok_or_else(|| format!("it has no {key}"))?;
            u32::try_from(other).map_err(|_| format!("its {key} {other} is no rank"))
        };
        let tag = node.number("comm_tag").unwrap_or(0) as u32;
        let op = match node.kind {
            SEND => Op::Send {
                to: other("comm_dst").map_err(place)?,
                bytes: size().map_err(|why| place(why.to_owned()))?,
                tag,
            },
            RECV => Op::Recv {
                from: other("comm_src").map_err(place)?,
                bytes: size().map_err(|why| place(why.to_owned()))?,
                tag,
            },
            COLLECTIVE => {
                let bytes = match node.number("comm_type") {
                    Some(BARRIER) => 0,
                    _ => size().map_err(|why| place(why.to_owned()))?,
                };
                self.collective(rank, node, bytes)?
            }
            METADATA => {
                self.metadata(rank, node)?;
                NOTHING
            }
            INVALID => NOTHING,
            MEM_LOAD | MEM_STORE | COMPUTE => {
                let on_cpu = node.number("is_cpu_op").is_some_and(|value| value != 0);
                let ps = node.duration_micros.saturating_mul(1_000_000);
                Op::Compute { ps, unit: if on_cpu { CPU } else { DEVICE } }
            }
            STORAGE | BATCH | CHECKPOINT => {
                let ps = node.duration_micros.saturating_mul(1_000_000);
                Op::Compute { ps, unit: DISK }
            }
            other => return Err(place(format!("nodes of type {other} are not known"))),
        };
        self.builder.add(rank, node.id, op)
    }

    fn collective(&mut self, rank: u32, node: &Recorded, input: u64) -> Result<Op, ScheduleError> {
        let place = |reason: String| ScheduleError::new(self.names.place(rank, node.id), reason);
        let name = node.text("pg_name").filter(|name| !name.is_empty());
        let all = || (0..self.builder.ranks()).collect();
        let (name, ranks): (String, Vec<u32>) = match name {
            None => (String::new(), all()),
            Some(name) => {
                let of = |rank| self.named.get(&(rank, name.clone()));
                match of(Some(rank)).or_else(|| of(None)) {
                    Some(ranks) => (name, ranks.clone()),
                    // PyTorch's default group needs no metadata.
                    None if name == "0" => (name, all()),
                    None => {
                        return Err(place(format!("the ranks of its group {name:?} are unknown")));
                    }
                }
            }
        };
        let count = ranks.len() as u64;
        let of_root = || {
            let root = node.number("root_rank").or(node.number("comm_root")).unwrap_or(0);
            let found = ranks.iter().position(|&rank| i128::from(rank) == root);
            found
                .map(|root| root as u32)
                .ok_or_else(|| place(format!("its root {root} is no member of its group")))
        };
        let kind = match node.number("comm_type") {
            Some(0) => Collective::Allreduce,
            Some(1) => Collective::Reduce { root: of_root()? },
            Some(2) => Collective::AllGather,
            Some(3) => Collective::Gather { root: of_root()? },
            Some(4) => Collective::Scatter { root: of_root()? },
            Some(5) => Collective::Broadcast { root: of_root()? },
            Some(6) => Collective::AllToAll,
            Some(7 | 8) => Collective::ReduceScatter,
            Some(BARRIER) => Collective::Barrier,
            Some(other) => return Err(place(format!("its comm_type {other} is not known"))),
            None => return Err(place("it has no comm_type".to_owned())),
        };
        let bytes = match kind {
            Collective::AllGather | Collective::Gather { .. } => input.saturating_mul(count),
            _ => input,
        };
        let key = (name, ranks);
        let group = match self.groups.get(&key) {
            Some(&group) => group,
            None => {
                let group = self.builder.group(key.1.clone())?;
                self.groups.insert(key, group);
                group
            }
        };
        Ok(Op::Collective { kind, group, bytes, number: 0 })
    }

    /// Takes the groups from a metadata node of PyTorch: its inputs are a list with one text, a JSON list of groups.
    fn metadata(&mut self, rank: u32, node: &Recorded) -> Result<(), ScheduleError> {
        let Some(InOut { values }) = &node.inputs else { return Ok(()) };
        let list = values.len().checked_sub(2).and_then(|end| values.get(2..end));
        let Some(list) = list.filter(|list| list.contains("pg_name")) else { return Ok(()) };
        let groups: Vec<Group> = serde_json::from_str(list).map_err(|error| {
            let reason = format!("its groups are no JSON list: {error}");
            ScheduleError::new(self.names.place(rank, node.id), reason)
        })?;
        for Group { pg_name, ranks } in groups {
            let all = ranks.is_empty().then(|| (0..self.builder.ranks()).collect());
            self.named.insert((Some(rank), pg_name), all.unwrap_or(ranks));
        }
        Ok(())
    }
}

#[derive(serde::Deserialize)]
struct Group {
    pg_name: String,
    #[serde(default)]
    ranks: Vec<u32>,
}

/// Takes the next message with its length before it.
fn next_message<'a>(bytes: &mut &'a [u8]) -> Result<&'a [u8], String> {
    if bytes.is_empty() {
        return Err("it is empty; a trace begins with metadata".to_owned());
    }
    let length = decode_varint(bytes).map_err(|error| format!("a length is broken: {error}"))?;
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    let Some((message, rest)) = bytes.split_at_checked(length) else {
        return Err(format!("it ends within a message of {length} bytes"));
    };
    *bytes = rest;
    Ok(message)
}

/// Types of nodes.
const INVALID: i32 = 0;
const METADATA: i32 = 1;
const MEM_LOAD: i32 = 2;
const MEM_STORE: i32 = 3;
const COMPUTE: i32 = 4;
const SEND: i32 = 5;
const RECV: i32 = 6;
const COLLECTIVE: i32 = 7;
const STORAGE: i32 = 8;
const BATCH: i32 = 9;
const CHECKPOINT: i32 = 10;
/// Type of a collective.
const BARRIER: i128 = 9;
/// Units.
const DEVICE: u8 = 0;
const CPU: u8 = 1;
const DISK: u8 = 2;
const NOTHING: Op = Op::Compute { ps: 0, unit: DEVICE };
