//! Operations over Gloo: an operator `c10d::…` where the rank called it, and a run `gloo:…` on another thread.
//!
//! The operators do not name their group, so that there may only be one. Runs begin in the order of the calls, and say
//! the sizes and types of the tensors.

use std::collections::{HashMap, VecDeque};

use serde_json::Value;

use super::trace::{C10D, Category, Event, GLOO, STEP};
use super::{Call, Rank, element_bytes};
use crate::schedule::Collective;

/// Operations of a rank of `size`. Errors say what cannot be replayed.
pub fn read(events: &[Event], size: u32) -> Result<Rank, String> {
    let mut runs: HashMap<&str, VecDeque<&Event>> = HashMap::new();
    for event in events.iter().filter(|event| event.category == Category::Annotation) {
        if let Some(name) = event.name.strip_prefix(GLOO) {
            runs.entry(name).or_default().push_back(event);
        }
    }
    let mut calls = Vec::new();
    // What else each thread did that communicates.
    let mut threads: HashMap<Option<i64>, Vec<&Event>> = HashMap::new();
    for event in events.iter().filter(|event| event.category == Category::Operator) {
        let Some(name) = event.name.strip_prefix(C10D) else { continue };
        threads.entry(event.thread).or_default();
        let (kind, run, count) = operation(event, name, size)?;
        let waiting = runs.entry(run).or_default();
        let own: Vec<&Event> = waiting.drain(..count.min(waiting.len())).collect();
        if own.iter().any(|run| run.begin_ns < event.begin_ns) {
            return Err(format!("a run of gloo:{run} began before {:?} was called", event.name));
        }
        let complete = own.len() == count && own.iter().all(|run| !run.unfinished());
        let bytes = match kind {
            Collective::Barrier => 0,
            _ => bytes(&own, kind, size)?,
        };
        let ended_ns = own.iter().map(|run| run.end_ns).max().unwrap_or(event.end_ns);
        calls.push(Call { called_ns: event.begin_ns, ended_ns, kind, group: 0, bytes, complete });
    }
    let left = runs.iter().filter(|(_, left)| !left.is_empty());
    if let Some(name) = left.map(|(name, _)| name).min() {
        return Err(format!("a run of gloo:{name} belongs to no call"));
    }
    let categories = [Category::Operator, Category::Native];
    for event in events.iter().filter(|event| categories.contains(&event.category)) {
        if let Some(own) = threads.get_mut(&event.thread) {
            own.push(event);
        }
    }
    let busy = threads.values().flat_map(|own| busy(own)).collect();
    Ok(Rank {
        calls,
        groups: vec![(String::new(), (0..size).collect())],
        busy,
        steps: steps(events),
    })
}

/// What an operator is, the name of its runs, and how many it has.
fn operation(
    event: &Event,
    name: &str,
    size: u32,
) -> Result<(Collective, &'static str, usize), String> {
    let input = |key: &str, at: usize| event.args.get(key).and_then(|all| all.get(at));
    let root = |at: usize| {
        let root = input("Concrete Inputs", at).and_then(Value::as_str);
        root.and_then(|root| root.parse().ok()).ok_or_else(|| unshaped(&event.name))
    };
    Ok(match name {
        "allreduce_" | "allreduce_coalesced_" => (Collective::Allreduce, "all_reduce", 1),
        "broadcast_" => (Collective::Broadcast { root: root(2)? }, "broadcast", 1),
        "reduce_" => (Collective::Reduce { root: root(3)? }, "reduce", 1),
        "allgather_"
        | "_allgather_base_"
        | "allgather_coalesced_"
        | "allgather_into_tensor_coalesced_" => (Collective::AllGather, "all_gather", 1),
        "gather_" => (Collective::Gather { root: root(3)? }, "gather", 1),
        // Gloo sums all shares everywhere.
        "reduce_scatter_" => (Collective::ReduceScatter, "all_reduce", size as usize),
        "_reduce_scatter_base_" => (Collective::ReduceScatter, "all_reduce", 1),
        "reduce_scatter_tensor_coalesced_" => {
            let tensors = input("Input Dims", 0).and_then(Value::as_array);
            let count = tensors.ok_or_else(|| unshaped(&event.name))?.len();
            (Collective::ReduceScatter, "all_reduce", count)
        }
        "alltoall_" | "alltoall_base_" => (Collective::AllToAll, "all_to_all", 1),
        "barrier" => (Collective::Barrier, "barrier", 1),
        "send" | "recv_" | "recv_any_source_" => {
            let name = &event.name;
            return Err(format!("{name:?} is a message between two ranks, which is not replayed"));
        }
        "scatter_" => {
            return Err(format!("{:?}: the trace does not say how large it is", event.name));
        }
        _ => return Err(format!("{:?} cannot be replayed", event.name)),
    })
}

fn unshaped(name: &str) -> String {
    format!("{name:?} has no shapes: profile with record_shapes=True")
}

/// Bytes of the whole buffer.
fn bytes(runs: &[&Event], kind: Collective, size: u32) -> Result<u64, String> {
    let mut bytes: u64 = 0;
    for run in runs {
        let list = |key: &str| run.args.get(key).and_then(Value::as_array);
        let (Some(shapes), Some(types)) = (list("Input Dims"), list("Input type")) else {
            return Err(unshaped(&run.name));
        };
        for (shape, of) in shapes.iter().zip(types) {
            let lengths = shape.as_array().map(|all| all.iter().map(Value::as_u64));
            let count = lengths.and_then(|mut all| {
                all.try_fold(1, |product: u64, length| Some(product.saturating_mul(length?)))
            });
            let count = count.ok_or_else(|| format!("{:?} has a shape {shape}", run.name))?;
            let of = of.as_str().unwrap_or_default();
            let each = element_bytes(of)
                .ok_or_else(|| format!("{:?} has elements of an unknown type {of:?}", run.name))?;
            bytes = bytes.saturating_add(count.saturating_mul(each));
        }
    }
    Ok(match kind {
        Collective::AllGather | Collective::Gather { .. } => bytes.saturating_mul(size.into()),
        _ => bytes,
    })
}

/// From the beginning of the profiler's first step to the end of the last one.
fn steps(events: &[Event]) -> Option<(u64, u64)> {
    let mut steps = events.iter().filter(|event| event.name.starts_with(STEP));
    let first = steps.next()?;
    Some((first.begin_ns, steps.map(|step| step.end_ns).fold(first.end_ns, u64::max)))
}

/// When a thread was in operators of PyTorch, or in others that call none. Those around communication may wait for it.
fn busy(operators: &[&Event]) -> Vec<(u64, u64)> {
    // Of the others, only those that communicate have a name.
    let communicates = |event: &Event| !event.name.is_empty();
    let calls = operators.iter().filter(|event| communicates(event)).map(|event| event.begin_ns);
    let calls: Vec<u64> = calls.collect();
    let next = operators.iter().skip(1).map(|next| next.begin_ns).chain([u64::MAX]);
    let computing = operators.iter().zip(next).filter(|(event, next_ns)| {
        let call = calls.get(calls.partition_point(|&call_ns| call_ns < event.begin_ns));
        let alone = call.is_none_or(|&call_ns| call_ns >= event.end_ns);
        let known = event.category == Category::Native || event.end_ns <= *next_ns;
        alone && known && !communicates(event)
    });
    computing.map(|(event, _)| (event.begin_ns, event.end_ns)).collect()
}
