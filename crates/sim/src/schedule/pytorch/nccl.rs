//! Operations over NCCL: kernels on the GPU that say what they do, for whom, and how much of it.
//!
//! A kernel is called when the kernels that were launched before it have ended, or when it was launched itself, whatever
//! came later: it may then still have waited for its stream. The GPU computes while another kernel runs, and while the
//! next one has not been launched, so that the processor, and not communication, holds it up.

use std::collections::{BTreeSet, HashMap};

use serde_json::Value;

use super::trace::{CORRELATION, Category, Event, Info, NCCL, PARAMETERS};
use super::{Call, Rank, State, element_bytes};
use crate::schedule::Collective;

/// Kernels of an operation.
struct Kernels<'a> {
    first: &'a Event,
    launched_ns: Option<u64>,
    begin_ns: u64,
    end_ns: u64,
}

/// Operations of a rank. Errors say what cannot be replayed.
pub fn read(events: &[Event], info: &Info) -> Result<Rank, String> {
    let launches = launches(events);
    let launched = |event: &Event| event.number(CORRELATION).and_then(|of| launches.get(&of));
    let mut computing: Vec<Computing> = Vec::new();
    let mut operations: Vec<Kernels> = Vec::new();
    let mut known: HashMap<u64, usize> = HashMap::new();
    let mut roots: HashMap<u64, u64> = HashMap::new();
    for event in events {
        match event.category {
            Category::Operator if event.name == PARAMETERS => {
                let both = event.number(EXTERNAL).zip(event.number("Rank"));
                roots.extend(both);
            }
            Category::Device if event.name.starts_with(NCCL) => {
                let id = event.number(EXTERNAL);
                if let Some(&at) = id.and_then(|id| known.get(&id)) {
                    let own = &mut operations[at];
                    own.end_ns = own.end_ns.max(event.end_ns);
                    continue;
                }
                known.extend(id.map(|id| (id, operations.len())));
                let (begin_ns, end_ns) = (event.begin_ns, event.end_ns);
                // Kernels of a graph are launched as one, in an order that is not known.
                let alone = launched(event).filter(|launch| launch.kernels == 1);
                let launched_ns = alone.map(|launch| launch.begin_ns.min(begin_ns));
                operations.push(Kernels { first: event, launched_ns, begin_ns, end_ns });
            }
            Category::Device => {
                let (begin_ns, end_ns) = (event.begin_ns, event.end_ns);
                let launched_ns = launched(event).map(|launch| launch.begin_ns.min(begin_ns));
                computing.push(Computing { launched_ns, begin_ns, end_ns });
            }
            _ => {}
        }
    }
    let busy = busy(&computing);
    // In the order of launches, which is that of a communicator.
    let order_ns = |of: &Computing| of.launched_ns.unwrap_or(of.begin_ns);
    computing.sort_by_key(order_ns);
    operations.sort_by_key(|own| own.launched_ns.unwrap_or(own.begin_ns));
    let mut before = computing.iter().peekable();
    let mut ends: BTreeSet<u64> = BTreeSet::new();
    let mut called_ns = 0;
    let mut groups = Groups::new(info);
    let mut calls = Vec::new();
    for own in operations {
        if let Some(launched_ns) = own.launched_ns {
            while let Some(of) = before.next_if(|of| order_ns(of) < launched_ns) {
                ends.insert(of.end_ns);
            }
            let last = ends.range(..=own.begin_ns).next_back();
            called_ns = called_ns.max(launched_ns).max(last.copied().unwrap_or(0));
        } else {
            called_ns = called_ns.max(own.begin_ns);
        }
        let root = own.first.number(EXTERNAL).and_then(|id| roots.get(&id)).copied();
        let (kind, group, bytes) = operation(own.first, &mut groups, root)?;
        let ended_ns = own.end_ns;
        calls.push(Call { called_ns, ended_ns, kind, group, bytes, state: State::Ended });
    }
    Ok(Rank { calls, groups: groups.found, busy, steps: None })
}

/// A kernel that does not communicate, or a copy.
struct Computing {
    launched_ns: Option<u64>,
    begin_ns: u64,
    end_ns: u64,
}

/// A call of the driver that kernels name.
struct Launch {
    begin_ns: u64,
    kernels: u32,
}

fn launches(events: &[Event]) -> HashMap<u64, Launch> {
    let mut launches = HashMap::new();
    let numbered = |event: &&Event| event.category == Category::Launch;
    for event in events.iter().filter(numbered) {
        if let Some(of) = event.number(CORRELATION) {
            launches.insert(of, Launch { begin_ns: event.begin_ns, kernels: 0 });
        }
    }
    for event in events.iter().filter(|event| event.category == Category::Device) {
        if let Some(launch) = event.number(CORRELATION).and_then(|of| launches.get_mut(&of)) {
            launch.kernels += 1;
        }
    }
    launches
}

/// When the GPU computed, or had nothing to do yet, from kernels by their beginnings.
fn busy(computing: &[Computing]) -> Vec<(u64, u64)> {
    let mut busy = Vec::new();
    let mut until_ns = None;
    for of in computing {
        let late =
            until_ns.zip(of.launched_ns).filter(|(until_ns, launched_ns)| until_ns < launched_ns);
        busy.extend(late);
        busy.push((of.begin_ns, of.end_ns));
        until_ns = until_ns.max(Some(of.end_ns));
    }
    busy
}

/// What a kernel does: the operation, the index of its group, and the bytes of the whole buffer.
fn operation(
    kernel: &Event,
    groups: &mut Groups,
    root: Option<u64>,
) -> Result<(Collective, u32, u64), String> {
    let name = &kernel.name;
    let Some(call) = kernel.text("Collective name") else {
        return Err(format!(
            "{name:?} does not say what it does: older versions of PyTorch write no sizes, and none does for several operations at once"
        ));
    };
    let group = groups.of(kernel).map_err(|reason| format!("{call:?}: {reason}"))?;
    let size = groups.found[group as usize].1.len() as u64;
    let root = || {
        // Without one, that of DistributedDataParallel.
        let root = root.unwrap_or(0);
        let known = u32::try_from(root).ok().filter(|_| root < size);
        known.ok_or_else(|| format!("{call:?}: its root {root} is no member of its group"))
    };
    let kind = match call {
        "allreduce" | "allreduce_coalesced" => Collective::Allreduce,
        "broadcast" | "_broadcast_oop" => Collective::Broadcast { root: root()? },
        "reduce" | "_reduce_oop" => Collective::Reduce { root: root()? },
        "allgather" | "all_gather" | "_allgather_base" | "allgather_into_tensor_coalesced" => {
            Collective::AllGather
        }
        "reduce_scatter" | "_reduce_scatter_base" | "reduce_scatter_tensor_coalesced" => {
            Collective::ReduceScatter
        }
        "all_to_all" | "all_to_allv" => Collective::AllToAll,
        "gather" => Collective::Gather { root: root()? },
        "scatter" => Collective::Scatter { root: root()? },
        "barrier" => Collective::Barrier,
        "send" | "recv" => {
            return Err(format!("{call:?} is a message between two ranks, which is not replayed"));
        }
        _ => return Err(format!("{call:?} cannot be replayed")),
    };
    let elements = |key: &str| kernel.number(key).ok_or_else(|| format!("{call:?} has no {key:?}"));
    let count = match kind {
        Collective::Barrier => return Ok((kind, group, 0)),
        Collective::AllGather => elements("Out msg nelems")?,
        Collective::Gather { .. } => elements("In msg nelems")?.saturating_mul(size),
        Collective::Scatter { .. } => elements("Out msg nelems")?.saturating_mul(size),
        _ => elements("In msg nelems")?,
    };
    let of = kernel.text("dtype").unwrap_or_default();
    let each = element_bytes(of)
        .ok_or_else(|| format!("{call:?} has elements of an unknown type {of:?}"))?;
    Ok((kind, group, count.saturating_mul(each)))
}

/// Process groups that a rank has named.
struct Groups<'a> {
    info: &'a Info,
    /// Ranks by name, as the rank knew them.
    listed: HashMap<String, &'a [u32]>,
    /// Indices in `found` by name, and by ranks if those are not listed.
    known: HashMap<(String, String), u32>,
    /// Names and ranks.
    found: Vec<(String, Vec<u32>)>,
}

impl Groups<'_> {
    fn new(info: &Info) -> Groups<'_> {
        let listed = info.pg_config.iter().map(|group| (plain(&group.pg_name), &group.ranks[..]));
        Groups { info, listed: listed.collect(), known: HashMap::new(), found: Vec::new() }
    }

    /// The index of a kernel's group. Errors say that its ranks are unknown.
    fn of(&mut self, kernel: &Event) -> Result<u32, String> {
        let name = kernel.args.get("Process Group Name").map(plain).unwrap_or_default();
        let listed = self.listed.get(&name).copied();
        let said = kernel.args.get("Process Group Ranks").map(plain).filter(|_| listed.is_none());
        let key = (name, said.unwrap_or_default());
        if let Some(&group) = self.known.get(&key) {
            return Ok(group);
        }
        let (name, said) = &key;
        // In large groups the text is cut off.
        let ranks = listed.map(<[u32]>::to_vec).or_else(|| serde_json::from_str(said).ok());
        let ranks =
            ranks.ok_or_else(|| format!("the ranks of its group {name:?} are unknown: {said}"))?;
        // An empty list stands for all.
        let all = ranks.is_empty().then(|| (0..self.info.world_size).collect());
        self.found.push((name.clone(), all.unwrap_or(ranks)));
        let group = self.found.len() as u32 - 1;
        self.known.insert(key, group);
        Ok(group)
    }
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Number that a kernel and its operator have in common.
const EXTERNAL: &str = "External id";
