//! What is read of a file of PyTorch's profiler: the ranks, the process groups, and the events that say when a rank
//! computed or communicated.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// One rank's file.
#[derive(Deserialize)]
pub struct Trace {
    /// Absent if the profiler ran without process groups.
    #[serde(rename = "distributedInfo")]
    pub info: Option<Info>,
    /// Those that are read, in the order of their beginnings.
    #[serde(rename = "traceEvents", deserialize_with = "events")]
    pub events: Vec<Event>,
}

/// What a rank knew of its job.
#[derive(Deserialize)]
pub struct Info {
    /// Name of the default group's backend.
    #[serde(default)]
    pub backend: String,
    pub rank: u32,
    pub world_size: u32,
    /// Number of process groups; Older versions of PyTorch do not say.
    pub pg_count: Option<u64>,
    #[serde(default)]
    pub pg_config: Vec<Group>,
}

/// A process group.
#[derive(Deserialize)]
pub struct Group {
    pub pg_name: Value,
    #[serde(default)]
    pub ranks: Vec<u32>,
}

/// Where an event ran, or what it marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Category {
    /// An operator on the processor.
    Operator,
    /// One of PyTorch's own that computes.
    Native,
    /// A range with a name: runs of Gloo, steps of the profiler.
    Annotation,
    /// A call of the GPU's driver.
    Launch,
    /// A kernel or a copy on the GPU.
    Device,
}

/// An event with a beginning and an end, in nanoseconds since the first one of the file.
#[derive(Clone, Debug)]
pub struct Event {
    pub category: Category,
    pub name: String,
    pub begin_ns: u64,
    pub end_ns: u64,
    /// Thread of the processor.
    pub thread: Option<i64>,
    /// What it says of itself.
    pub args: Map<String, Value>,
}

impl Event {
    pub fn text(&self, key: &str) -> Option<&str> {
        self.args.get(key)?.as_str()
    }

    pub fn number(&self, key: &str) -> Option<u64> {
        let value = self.args.get(key)?;
        value.as_u64().or_else(|| value.as_str()?.parse().ok())
    }

    /// Whether the profile ended first.
    pub fn unfinished(&self) -> bool {
        self.args.get("finished") == Some(&Value::Bool(false))
    }
}

/// Reads a file. Errors say what is wrong with it.
pub fn read(text: &str) -> Result<Trace, String> {
    serde_json::from_str(text)
        .map_err(|error| format!("is not a trace of PyTorch's profiler: {error}"))
}

#[derive(Deserialize)]
struct Raw {
    #[serde(default)]
    ph: String,
    #[serde(default)]
    cat: String,
    #[serde(default)]
    name: String,
    ts: Option<f64>,
    dur: Option<f64>,
    #[serde(default)]
    tid: Value,
    #[serde(default)]
    args: Value,
}

/// An event with its times in microseconds of the file's clock.
struct Timed {
    begin_us: f64,
    lasts_us: f64,
    event: Event,
}

/// Reads the list of events, and keeps those of the categories above.
fn events<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Event>, D::Error> {
    struct Events;

    impl<'de> Visitor<'de> for Events {
        type Value = Vec<Timed>;

        fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
            f.write_str("a list of events")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<Timed>, A::Error> {
            let mut kept = Vec::new();
            while let Some(raw) = list.next_element::<Raw>()? {
                kept.extend(keep(raw));
            }
            Ok(kept)
        }
    }

    let mut timed = deserializer.deserialize_seq(Events)?;
    // Those that contain others first.
    timed.sort_by(|a, b| {
        let begin = a.begin_us.total_cmp(&b.begin_us);
        begin.then(b.lasts_us.total_cmp(&a.lasts_us))
    });
    let first_us = timed.first().map_or(0.0, |first| first.begin_us);
    let dated = timed.into_iter().map(|Timed { begin_us, lasts_us, event }| {
        let ns = |us: f64| if us < TIME_MAX_US { Some((us * 1e3).round() as u64) } else { None };
        let begin_ns = ns(begin_us - first_us);
        let both = begin_ns.zip(ns(lasts_us));
        let (begin_ns, lasts_ns) = both.ok_or_else(|| {
            serde::de::Error::custom(format!("{:?} has impossible times", event.name))
        })?;
        Ok(Event { begin_ns, end_ns: begin_ns + lasts_ns, ..event })
    });
    dated.collect()
}

/// The part of an event that is needed, if any.
fn keep(raw: Raw) -> Option<Timed> {
    let category = match raw.cat.as_str() {
        _ if raw.ph != "X" => return None,
        "cpu_op" if raw.name.starts_with(NATIVE) => Category::Native,
        "cpu_op" => Category::Operator,
        "user_annotation" => Category::Annotation,
        "cuda_runtime" | "cuda_driver" => Category::Launch,
        "kernel" | "gpu_memcpy" | "gpu_memset" => Category::Device,
        _ => return None,
    };
    let (begin_us, lasts_us) = (raw.ts?, raw.dur.unwrap_or(0.0).max(0.0));
    let communicates = match category {
        Category::Operator => {
            raw.name.starts_with(C10D) || raw.name.starts_with(FUNCTIONAL) || raw.name == PARAMETERS
        }
        Category::Annotation => raw.name.starts_with(GLOO),
        Category::Device => raw.name.starts_with(NCCL),
        Category::Native | Category::Launch => false,
    };
    if category == Category::Annotation && !communicates && !raw.name.starts_with(STEP) {
        return None;
    }
    let mut args = match raw.args {
        Value::Object(args) => args,
        _ => Map::new(),
    };
    if !communicates {
        args.retain(|key, _| key == CORRELATION);
    }
    let name =
        if communicates || category == Category::Annotation { raw.name } else { String::new() };
    let thread = raw.tid.as_i64();
    let event = Event { category, name, begin_ns: 0, end_ns: 0, thread, args };
    Some(Timed { begin_us, lasts_us, event })
}

/// How the names of PyTorch's own operators begin.
const NATIVE: &str = "aten::";
/// How the names of events begin that are about communication.
pub const C10D: &str = "c10d::";
pub const FUNCTIONAL: &str = "_c10d_functional::";
pub const GLOO: &str = "gloo:";
pub const NCCL: &str = "nccl";
/// Name of the operator with the parameters of an operation of NCCL.
pub const PARAMETERS: &str = "record_param_comms";
/// A step of the profiler.
pub const STEP: &str = "ProfilerStep#";
/// Number that a kernel and its launch have in common.
pub const CORRELATION: &str = "correlation";
/// From the first event of a file, and of an event: 10^6 s.
const TIME_MAX_US: f64 = 1e12;
