//! Traces of PyTorch's profiler (Kineto, Chrome's format), one file per rank, as schedules.
//!
//! Operations over Gloo ([`gloo`]) and over NCCL ([`nccl`]) are found in different events; what lies between them is
//! computing ([`super::observed`]).

mod gloo;
mod nccl;
mod trace;

use std::collections::HashMap;

use super::observed::{Observed, Timeline, add};
use super::{Builder, Collective, Names, Schedule, ScheduleError};
use trace::{Category, Event, GLOO, Info, NCCL};

/// Files of one job.
pub struct Profiles<'a> {
    /// Name and text of each rank's file, in any order.
    pub files: &'a [(String, String)],
    /// The folder, for errors.
    pub folder: &'a str,
    /// Numbers of a rank's first operation, from 0, and of the one after the last; `None`: all.
    pub operations: Option<[u64; 2]>,
}

/// An operation in a rank's file.
struct Call {
    called_ns: u64,
    /// If it has ended.
    ended_ns: u64,
    kind: Collective,
    /// Index among the rank's groups.
    group: u32,
    bytes: u64,
    /// How far it had come when the file ends.
    state: State,
}

/// What a file knows of an operation.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Its end.
    Ended,
    /// That it has begun.
    Begun,
    /// That it was called.
    Called,
}

/// What a rank's file says, with times in nanoseconds since its first event.
struct Rank {
    /// In the order of their calls.
    calls: Vec<Call>,
    /// Names and ranks of its groups.
    groups: Vec<(String, Vec<u32>)>,
    /// Beginnings and ends of computing, in any order.
    busy: Vec<(u64, u64)>,
    /// Beginning and end of the profiler's steps, if the rank computed from one to the other.
    steps: Option<(u64, u64)>,
}

/// Reads the files of a job.
pub fn parse(profiles: &Profiles) -> Result<Schedule, ScheduleError> {
    let size = profiles.files.len();
    let mut ranks: Vec<Option<(&str, Rank)>> = Vec::new();
    ranks.resize_with(size, || None);
    for (file, text) in profiles.files {
        let wrong = |reason: String| ScheduleError::new(file, reason);
        let trace = trace::read(text).map_err(wrong)?;
        let Some(info) = &trace.info else {
            let reason =
                "it has no distributedInfo: no process group was there when profiling began";
            return Err(wrong(reason.to_owned()));
        };
        if info.world_size as usize != size {
            let reason =
                format!("it is of a job of {} ranks, and there are {size} files", info.world_size);
            return Err(wrong(reason));
        }
        let Some(place) = ranks.get_mut(info.rank as usize) else {
            return Err(wrong(format!("rank {} of {size} is impossible", info.rank)));
        };
        if place.is_some() {
            return Err(wrong(format!("a second file of rank {}", info.rank)));
        }
        *place = Some((file, read(&trace.events, info).map_err(wrong)?));
    }
    let ranks: Vec<(&str, Rank)> = ranks.into_iter().flatten().collect();
    let mut builder = Builder::new(Names::Numbers(profiles.folder.to_owned()), size as u32)?;
    let groups = groups(&mut builder, &ranks)?;
    let complete = complete(&ranks, &groups);
    for (number, ((file, rank), groups)) in (0..).zip(ranks.iter().zip(&groups)) {
        let timeline = timeline(rank, groups, &complete);
        let count = timeline.operations.len();
        let [from, to] = profiles.operations.unwrap_or([0, count as u64]);
        if to > count as u64 || from > to || (from == to && profiles.operations.is_some()) {
            let reason = format!("operations {from} to {to} are not there, only 0 to {count}");
            return Err(ScheduleError::new(*file, reason));
        }
        add(&mut builder, number, &timeline, from as usize..to as usize)?;
    }
    builder.build()
}

/// Adds the groups of all ranks. Returns their indices, by rank and index among the rank's groups.
fn groups(builder: &mut Builder, ranks: &[(&str, Rank)]) -> Result<Vec<Vec<u32>>, ScheduleError> {
    let mut known: HashMap<&(String, Vec<u32>), u32> = HashMap::new();
    let mut all = Vec::new();
    for (file, rank) in ranks {
        let mut own = Vec::new();
        for group in &rank.groups {
            let index = match known.get(group) {
                Some(&index) => index,
                None => {
                    let added = builder.group(group.1.clone());
                    added.map_err(|error| ScheduleError::new(*file, error.reason))?
                }
            };
            known.insert(group, index);
            own.push(index);
        }
        all.push(own);
    }
    Ok(all)
}

/// Of each group, the number of operations before the first one that had not begun at some rank, or ended at none.
fn complete(ranks: &[(&str, Rank)], groups: &[Vec<u32>]) -> HashMap<u32, u64> {
    let mut begun: HashMap<u32, u64> = HashMap::new();
    let mut ended: HashMap<u32, u64> = HashMap::new();
    for ((_, rank), groups) in ranks.iter().zip(groups) {
        let mut counts = vec![0; groups.len()];
        let mut firsts = vec![[u64::MAX; 2]; groups.len()];
        for call in &rank.calls {
            let count = &mut counts[call.group as usize];
            let [not_begun, not_ended] = &mut firsts[call.group as usize];
            match call.state {
                State::Ended => {}
                State::Begun => *not_ended = (*not_ended).min(*count),
                State::Called => *not_begun = (*not_begun).min(*count),
            }
            *count += 1;
        }
        for (&group, [not_begun, not_ended]) in groups.iter().zip(firsts) {
            let least = begun.entry(group).or_insert(u64::MAX);
            *least = (*least).min(not_begun);
            let most = ended.entry(group).or_default();
            *most = (*most).max(not_ended);
        }
    }
    begun.into_iter().map(|(group, count)| (group, count.min(ended[&group]))).collect()
}

/// What a rank's events say. Errors say what cannot be replayed.
fn read(events: &[Event], info: &Info) -> Result<Rank, String> {
    let any = |category, prefix: &str| {
        events.iter().any(|event| event.category == category && event.name.starts_with(prefix))
    };
    if info.backend.contains("netsum") {
        return Err("the profiler does not learn when operations of netsum end: record them with NETSUM_RECORDER, \
                    and replay them with format = \"recorder\""
            .to_owned());
    }
    match (any(Category::Device, NCCL), any(Category::Annotation, GLOO)) {
        (true, true) => {
            Err("it has operations over NCCL and over Gloo, which do not say their group"
                .to_owned())
        }
        (true, false) => nccl::read(events, info),
        (false, true) if info.pg_count != Some(1) => Err(match info.pg_count {
            Some(count) => format!(
                "there are {count} process groups, and operations over Gloo do not say to which one they belong"
            ),
            None => {
                "it does not say how many process groups there are, as older versions of PyTorch"
                    .to_owned()
            }
        }),
        (false, true) => gloo::read(events, info.world_size),
        (false, false) => Err("it has no operations over Gloo or NCCL that have run".to_owned()),
    }
}

/// The operations that are to be replayed, and the rank's computing.
fn timeline(rank: &Rank, groups: &[u32], complete: &HashMap<u32, u64>) -> Timeline {
    let ps = |ns: u64| ns.saturating_mul(1_000);
    let mut counts = vec![0; groups.len()];
    let mut operations: Vec<Observed> = Vec::new();
    for call in &rank.calls {
        let group = groups[call.group as usize];
        counts[call.group as usize] += 1;
        if counts[call.group as usize] > complete[&group] {
            continue;
        }
        let ended_ps = if call.state == State::Ended { ps(call.ended_ns) } else { u64::MAX };
        let called_ps = ps(call.called_ns);
        let (name, kind, bytes) = (operations.len() as u64, call.kind, call.bytes);
        operations.push(Observed { name, called_ps, ended_ps, kind, group, bytes });
    }
    let mut busy: Vec<(u64, u64)> = Vec::new();
    let mut sorted = rank.busy.clone();
    sorted.sort_unstable();
    for (begin_ns, end_ns) in sorted {
        let (begin_ps, end_ps) = (ps(begin_ns), ps(end_ns));
        match busy.last_mut() {
            Some(last) if begin_ps <= last.1 => last.1 = last.1.max(end_ps),
            _ => busy.push((begin_ps, end_ps)),
        }
    }
    let firsts = [busy.first().map(|of| of.0), operations.first().map(|of| of.called_ps)];
    let ends = operations.iter().map(|of| of.ended_ps).filter(|&ended_ps| ended_ps < u64::MAX);
    let ends = ends.chain(busy.last().map(|of| of.1));
    let whole = firsts.into_iter().flatten().min().zip(ends.max());
    let span = rank.steps.map(|(begin_ns, end_ns)| (ps(begin_ns), ps(end_ns))).or(whole);
    Timeline { operations, busy, span }
}

/// Size of an element by PyTorch's or C++'s name of its type.
fn element_bytes(name: &str) -> Option<u64> {
    Some(match name.strip_prefix("c10::").unwrap_or(name) {
        "Bool" | "bool" | "Byte" | "unsigned char" | "Char" | "signed char" | "QInt8"
        | "QUInt8" => 1,
        name if name.starts_with("Float8_") => 1,
        "Half" | "BFloat16" | "Short" | "short" | "short int" | "UInt16" | "unsigned short" => 2,
        "Float" | "float" | "Int" | "int" | "UInt32" | "unsigned int" => 4,
        "Double" | "double" | "Long" | "long" | "long int" | "UInt64" | "unsigned long" => 8,
        "ComplexFloat" | "complex<float>" => 8,
        "ComplexDouble" | "complex<double>" => 16,
        _ => return None,
    })
}
