//! Files of netsum's flight recorder, one per rank of a group, as schedules.
//!
//! Ranks keep their last operations, so what is replayed is what all of them have, or a part of it.

use serde::Deserialize;

use super::observed::{Observed, Timeline, add};
use super::{Builder, Collective, Names, Schedule, ScheduleError};

#[derive(Deserialize)]
struct Dump {
    format: u32,
    rank: u32,
    size: u32,
    operations: Vec<Operation>,
}

#[derive(Deserialize)]
struct Operation {
    number: Option<u64>,
    call: String,
    called_unix_s: f64,
    seconds: Option<f64>,
    error: Option<String>,
    bytes: Option<u64>,
}

/// Files of one group.
pub struct Recording<'a> {
    /// Name and text of each file, in any order.
    pub files: &'a [(String, String)],
    /// The folder, for errors.
    pub folder: &'a str,
    /// Numbers of the first operation and of the one after the last; `None`: all that every rank has.
    pub operations: Option<[u64; 2]>,
}

/// What a rank's file says of an operation that had ended.
struct Entry {
    /// `None` for messages.
    number: Option<u64>,
    observed: Observed,
    /// Why it cannot be replayed.
    problem: Option<String>,
}

/// Reads the files of a group.
pub fn parse(recording: &Recording) -> Result<Schedule, ScheduleError> {
    let fail = |reason: String| Err(ScheduleError::new(recording.folder, reason));
    let mut ranks: Vec<Option<(&str, Vec<Entry>)>> = Vec::new();
    for (file, text) in recording.files {
        let wrong = |reason: String| ScheduleError::new(file, reason);
        let dump: Dump = serde_json::from_str(text)
            .map_err(|error| wrong(format!("is not a file of netsum's recorder: {error}")))?;
        if dump.format != FORMAT {
            return Err(wrong(format!("format {}, and this netsum reads {FORMAT}", dump.format)));
        }
        if ranks.is_empty() && dump.size as usize == recording.files.len() {
            ranks.resize_with(dump.size as usize, || None);
        }
        if dump.size as usize != ranks.len() {
            let reason = format!(
                "it is of a group of {} ranks, and there are {} files of the group",
                dump.size,
                recording.files.len()
            );
            return Err(wrong(reason));
        }
        let Some(place) = ranks.get_mut(dump.rank as usize) else {
            return Err(wrong(format!("rank {} of {} is impossible", dump.rank, dump.size)));
        };
        if place.is_some() {
            return Err(wrong(format!("a second file of rank {}", dump.rank)));
        }
        // Only differences of a rank's times matter.
        let start_s =
            dump.operations.iter().map(|each| each.called_unix_s).fold(f64::MAX, f64::min);
        // From the first that has not ended on, nothing is known.
        let complete = dump.operations.iter().map_while(|each| entry(each, start_s).transpose());
        let mut complete = complete.collect::<Result<Vec<Entry>, _>>().map_err(wrong)?;
        complete.sort_by_key(|entry| entry.observed.called_ps);
        *place = Some((file, complete));
    }
    let ranks: Vec<(&str, Vec<Entry>)> = ranks.into_iter().flatten().collect();
    if ranks.is_empty() {
        return fail("there are no files of a group".to_owned());
    }
    let numbers = |(_, entries): &(&str, Vec<Entry>)| {
        let all = entries.iter().filter_map(|entry| entry.number);
        Some((all.clone().min()?, all.max()?.saturating_add(1)))
    };
    let known = ranks.iter().map(numbers).try_fold((0, u64::MAX), |(first, end), of| {
        of.map(|(least, most)| (first.max(least), end.min(most)))
    });
    let Some((first, end)) = known.filter(|(first, end)| first < end) else {
        return fail("no operation is in the files of all ranks".to_owned());
    };
    let [from, to] = recording.operations.unwrap_or([first, end]);
    if from < first || to > end || from >= to {
        return fail(format!(
            "operations {from} to {to} are not in all files, which have {first} to {end} in common"
        ));
    }
    let names = Names::Numbers(recording.folder.to_owned());
    let mut builder = Builder::new(names, ranks.len() as u32)?;
    let group = builder.group((0..ranks.len() as u32).collect())?;
    debug_assert_eq!(group, GROUP);
    for (rank, (file, entries)) in (0..).zip(&ranks) {
        let wrong = |reason: String| Err(ScheduleError::new(*file, reason));
        let at = |number| entries.iter().position(|entry| entry.number == Some(number));
        let Some((first, last)) = at(from).zip(at(to - 1)).filter(|(first, last)| first <= last)
        else {
            return wrong(format!("operations {from} to {to} were not called in this order"));
        };
        for (entry, wanted) in entries[first..=last].iter().zip(from..) {
            if let Some(problem) = &entry.problem {
                return wrong(problem.clone());
            }
            if entry.number != Some(wanted) {
                return wrong(format!("operation {wanted} was not called after the one before it"));
            }
        }
        let operations = entries.iter().map(|entry| entry.observed).collect();
        let timeline = Timeline { operations, ..Timeline::default() };
        add(&mut builder, rank, &timeline, first..last + 1)?;
    }
    builder.build()
}

/// An operation; `None` if it had not ended. Errors are about times that no clock shows.
fn entry(operation: &Operation, start_s: f64) -> Result<Option<Entry>, String> {
    let Some(seconds) = operation.seconds else { return Ok(None) };
    let times = [operation.called_unix_s - start_s, seconds];
    if times.iter().any(|time| !(0.0..TIME_MAX_S).contains(time)) {
        return Err(format!("{:?} has impossible times", operation.call));
    }
    let [called_ps, lasts_ps] = times.map(|s| (s * 1e12) as u64);
    let name = operation.number.unwrap_or(0);
    let (kind, problem) = match kind(operation) {
        Ok(kind) => (kind, None),
        Err(problem) => (Collective::Barrier, Some(problem)),
    };
    let (bytes, ended_ps) = (operation.bytes.unwrap_or(0), called_ps + lasts_ps);
    let observed = Observed { name, called_ps, ended_ps, kind, group: GROUP, bytes };
    Ok(Some(Entry { number: operation.number, observed, problem }))
}

/// What an operation was. Errors say why it cannot be replayed.
fn kind(operation: &Operation) -> Result<Collective, String> {
    let call = &operation.call;
    let Some(number) = operation.number else {
        return Err(format!("{call:?} is a message between two ranks, which is not replayed"));
    };
    if let Some(error) = &operation.error {
        return Err(format!("operation {number} ({call}) failed: {error}"));
    }
    let root = || {
        let text = call.rsplit(' ').next().unwrap_or_default();
        text.parse().map_err(|_| format!("operation {number}: {call:?} names no root"))
    };
    Ok(match call.split([' ', '[']).next().unwrap_or_default() {
        "allreduce" => Collective::Allreduce,
        "reduce_scatter" => Collective::ReduceScatter,
        "allgather" => Collective::AllGather,
        "alltoall" => Collective::AllToAll,
        "barrier" => Collective::Barrier,
        "broadcast" => Collective::Broadcast { root: root()? },
        "reduce" => Collective::Reduce { root: root()? },
        _ => return Err(format!("operation {number}: {call:?} cannot be replayed")),
    })
}

const FORMAT: u32 = 1;
const GROUP: u32 = 0;
/// Seconds from the first call of a file, and of an operation.
const TIME_MAX_S: f64 = 1e6;
