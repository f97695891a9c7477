//! Operations over Gloo: an operator `c10d::…` where the rank called it, and a run `gloo:…` on another thread.
//!
//! The operators do not name their group, so that there may only be one. Runs begin in the order of the calls, or nearly
//! so, and say the sizes and types of the tensors.

use std::collections::{HashMap, VecDeque};

use serde_json::Value;

use super::trace::{C10D, Category, Event, GLOO, STEP};
use super::{Call, Rank, State, element_bytes};
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
        let tensors = shapes(event, name);
        let own: Vec<&Event> =
            (0..count).map_while(|at| take(waiting, &tensors, at, count)).collect();
        if own.iter().any(|run| run.begin_ns < event.begin_ns) {
            return Err(format!("a run of gloo:{run} began before {:?} was called", event.name));
        }
        let state = match own.iter().any(|run| run.unfinished()) {
            _ if own.len() < count => State::Called,
            true => State::Begun,
            false => State::Ended,
        };
        let bytes = match kind {
            Collective::Barrier => 0,
            _ => bytes(&own, kind, size)?,
        };
        let ended_ns = own.iter().map(|run| run.end_ns).max().unwrap_or(event.end_ns);
        calls.push(Call { called_ns: event.begin_ns, ended_ns, kind, group: 0, bytes, state });
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

/// Elements of the tensors that an operator hands over; empty if that is not known.
fn shapes(event: &Event, name: &str) -> Vec<u64> {
    let at = match name {
        "allreduce_" | "allreduce_coalesced_" | "broadcast_" | "reduce_" | "reduce_scatter_" => 0,
        _ => 1,
    };
    let input = event.args.get("Input Dims").and_then(|all| all.get(at));
    let Some(list) = input.and_then(Value::as_array) else { return Vec::new() };
    match list.iter().any(Value::is_array) {
        true => list.iter().filter_map(elements).collect(),
        false => input.and_then(elements).into_iter().collect(),
    }
}

/// Elements of a tensor.
fn elements(shape: &Value) -> Option<u64> {
    let mut lengths = shape.as_array()?.iter().map(Value::as_u64);
    lengths.try_fold(1, |product: u64, length| Some(product.saturating_mul(length?)))
}

/// Takes run `at` of the `count` of an operator that hands over these tensors.
fn take<'a>(
    waiting: &mut VecDeque<&'a Event>,
    tensors: &[u64],
    at: usize,
    count: usize,
) -> Option<&'a Event> {
    let sum = |all: &[u64]| all.iter().fold(0, |sum: u64, &each| sum.saturating_add(each));
    // A reduce-scatter of a list has as many runs as there are ranks, with one share each.
    let wanted = match count {
        1 => sum(tensors),
        _ => tensors.get(at).or(tensors.first()).copied().unwrap_or(0),
    };
    let has = |run: &&Event| {
        let list = run.args.get("Input Dims").and_then(Value::as_array);
        let own: Vec<u64> = list.into_iter().flatten().filter_map(elements).collect();
        sum(&own) == wanted
    };
    // Threads that take up runs at nearly the same time note it in any order.
    let found = waiting.iter().take(THREADS).position(has);
    waiting.remove(found.unwrap_or(0))
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
            let count =
                elements(shape).ok_or_else(|| format!("{:?} has a shape {shape}", run.name))?;
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

/// More than Gloo has for the runs of a group.
const THREADS: usize = 16;
