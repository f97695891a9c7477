//! Jobs whose steps are schedules with dependencies: traces of other tools.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use netsum_topo::{Bytes, Latency, Rate};
use netsum_wire::MAX_SCOPED_RANKS;
use serde::{Deserialize, Serialize};

use super::build::Builder;
use super::jobs::Job;
use super::source::{ConfigError, read};
use super::{Text, defaults};
use crate::job::{Bucket, JobSpec, LocalLinks, Work};
use crate::schedule::parallel::{self, Sharding};
use crate::schedule::{
    NODES_MAX, RANKS_MAX, Schedule, ScheduleError, chakra, goal, pytorch, recorder,
};

/// A schedule from files.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Replay {
    /// "goal": a schedule of LogGOPSim or ATLAHS in text. "chakra": execution traces PATH.0.et, PATH.1.et and so on, by
    /// rank, as ASTRA-sim takes them. "recorder": a folder with the files of a job's ranks, as NETSUM_RECORDER names
    /// it. "pytorch": a folder with a file NAME.json of PyTorch's profiler per rank, of operations over Gloo or NCCL.
    pub format: TraceFormat,
    /// Path, relative to the configuration.
    pub path: String,
    /// For `recorder`: name of the group, if the folder has files of several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// For `recorder` and `pytorch`: number of the first operation, and of the one after the last; absent: all that
    /// every rank has. For `pytorch` each rank counts its own from 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operations: Option<[u64; 2]>,
    /// For `chakra`: a JSON file of the ranks of each group by name, relative to the configuration; absent: the groups
    /// of the traces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub groups: Option<String>,
    /// Factor of all computing times, from 0 to 1000; 0: nobody computes.
    #[serde(default = "defaults::scale")]
    pub compute_scale: f64,
}

/// Format of a schedule's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TraceFormat {
    /// GOAL, in text.
    Goal,
    /// Chakra's execution traces.
    Chakra,
    /// Files of netsum's flight recorder.
    Recorder,
    /// Traces of PyTorch's profiler.
    Pytorch,
}

impl TraceFormat {
    fn name(self) -> &'static str {
        match self {
            TraceFormat::Goal => "goal",
            TraceFormat::Chakra => "chakra",
            TraceFormat::Recorder => "recorder",
            TraceFormat::Pytorch => "pytorch",
        }
    }
}

/// A training step with several kinds of parallelism, from a few numbers. There are `tensor` × `data` × `pipeline`
/// ranks, numbered in this order: those of a tensor group follow each other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parallel {
    /// Ranks that divide each layer: two allreduces of the activations per layer and pass.
    #[serde(default = "defaults::one")]
    pub tensor: u32,
    /// Stages, each with as many layers, that send activations on (1F1B).
    #[serde(default = "defaults::one")]
    pub pipeline: u32,
    /// Ranks with the same layers and other data.
    #[serde(default = "defaults::one")]
    pub data: u32,
    /// Ranks of a data group among which experts are divided: two all-to-alls of tokens per layer and pass. Divides
    /// `data`.
    #[serde(default = "defaults::one")]
    pub expert: u32,
    /// Layers of the model, a multiple of `pipeline`.
    pub layers: u32,
    /// Forward and backward passes of a step (gradient accumulation).
    #[serde(default = "defaults::one")]
    pub microbatches: u32,
    /// Time of one layer's forward pass of a microbatch.
    pub forward: Text<Latency>,
    /// Time of its backward pass; absent: twice the forward pass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backward: Option<Text<Latency>>,
    /// Time of the optimizer's step.
    #[serde(default = "defaults::no_time")]
    pub optimizer: Text<Latency>,
    /// Bytes between layers per microbatch, which stages send and tensor groups sum.
    #[serde(default = "defaults::nothing")]
    pub activations: Text<Bytes>,
    /// Bytes of one layer's parameters on a rank before sharding, and of its gradients.
    pub parameters: Text<Bytes>,
    /// Bytes that a rank sends to experts, per layer and microbatch.
    #[serde(default = "defaults::nothing")]
    pub tokens: Text<Bytes>,
    /// "none": gradients are summed by allreduces during the last backward pass. "optimizer" (ZeRO-1): they are
    /// reduce-scattered, and parameters gathered after the optimizer's step. "full" (ZeRO-3, FSDP): each layer's
    /// parameters are gathered before each pass of it, and its gradients reduce-scattered after each backward pass.
    #[serde(default = "defaults::sharding")]
    pub sharding: Sharding,
    /// With "full": how many layers ahead parameters are gathered.
    #[serde(default = "defaults::one")]
    pub prefetch: u32,
}

/// Where the ranks of a schedule are, and how they send.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Ranks {
    /// Ranks of a host, at least 1: the first ones on the first host, the next ones on the next host.
    pub per_host: u32,
    /// Rate at which a rank sends to others of its host, one message after the other.
    pub local_rate: Text<Rate>,
    /// Time that such a message takes in addition.
    pub local_latency: Text<Latency>,
    /// A sending node of at most this many bytes ends at once, that of a larger message with its acknowledgement by the
    /// receiver's host.
    pub eager: Text<Bytes>,
}

impl Default for Ranks {
    /// NVLink of an H100 in one direction; LogGOPSim's threshold.
    fn default() -> Self {
        Ranks {
            per_host: 1,
            local_rate: Text(Rate(3_600_000_000_000)),
            local_latency: Text(Latency(1_000)),
            eager: Text(Bytes(64 << 10)),
        }
    }
}

impl Builder<'_> {
    /// A job that replays files.
    pub(super) fn replay(
        &mut self,
        i: usize,
        job: &Job,
        replay: &Replay,
    ) -> Result<(String, JobSpec), ConfigError> {
        if !(0.0..=1000.0).contains(&replay.compute_scale) {
            let key = format!("jobs.{i}.replay.compute_scale");
            return Err(self.source.invalid(&key, "a scale is from 0 to 1000"));
        }
        if replay.groups.is_some() && replay.format != TraceFormat::Chakra {
            let key = format!("jobs.{i}.replay.groups");
            return Err(self.source.invalid(&key, "only traces of \"chakra\" have groups"));
        }
        if replay.group.is_some() && replay.format != TraceFormat::Recorder {
            let key = format!("jobs.{i}.replay.group");
            return Err(self.source.invalid(&key, "only files of \"recorder\" have one"));
        }
        let numbered = matches!(replay.format, TraceFormat::Recorder | TraceFormat::Pytorch);
        if replay.operations.is_some() && !numbered {
            let key = format!("jobs.{i}.replay.operations");
            let reason = "only files of \"recorder\" and \"pytorch\" have them";
            return Err(self.source.invalid(&key, reason));
        }
        let path = self.source.folder.join(&replay.path);
        let mut schedule = match replay.format {
            TraceFormat::Goal => {
                let text = read(&path, TEXT_MAX)?;
                goal::parse(&text, &path.display().to_string())?
            }
            TraceFormat::Chakra => {
                let groups = replay.groups.as_ref().map(|groups| self.source.folder.join(groups));
                let groups = groups.map(|path| read(&path, TEXT_MAX)).transpose()?;
                chakra_trace(&path, groups.as_deref())?
            }
            TraceFormat::Recorder => recording(&path, replay)?,
            TraceFormat::Pytorch => profiles(&path, replay)?,
        };
        schedule.scale(replay.compute_scale);
        let spec = self.scheduled(i, job, schedule)?;
        Ok((replay.format.name().to_owned(), spec))
    }

    /// A job that is described by a few numbers.
    pub(super) fn parallel(
        &mut self,
        i: usize,
        job: &Job,
        step: &Parallel,
    ) -> Result<(String, JobSpec), ConfigError> {
        let fail = |field: &str, reason: &str| {
            Err(self.source.invalid(&format!("jobs.{i}.parallel.{field}"), reason))
        };
        let counts = [
            ("tensor", step.tensor),
            ("pipeline", step.pipeline),
            ("data", step.data),
            ("expert", step.expert),
            ("layers", step.layers),
            ("microbatches", step.microbatches),
        ];
        if let Some((field, _)) = counts.into_iter().find(|&(_, count)| count == 0) {
            return fail(field, "there is at least one");
        }
        if !step.data.is_multiple_of(step.expert) {
            return fail("expert", "it divides the ranks of a data group");
        }
        if !step.layers.is_multiple_of(step.pipeline) {
            return fail("layers", "every stage of the pipeline has as many");
        }
        if u64::from(step.tensor) * u64::from(step.pipeline) > RANKS_MAX.into() {
            return fail("pipeline", "these are more than 65536 ranks");
        }
        let forward_ps = step.forward.ps();
        let described = parallel::Parallel {
            tensor: step.tensor,
            pipeline: step.pipeline,
            data: step.data,
            expert: step.expert,
            layers: step.layers,
            microbatches: step.microbatches,
            forward_ps,
            backward_ps: step.backward.map_or(2 * forward_ps, Text::ps),
            optimizer_ps: step.optimizer.ps(),
            activation_bytes: step.activations.0.0,
            parameter_bytes: step.parameters.0.0,
            token_bytes: step.tokens.0.0,
            sharding: step.sharding,
            prefetch: step.prefetch,
        };
        if described.ranks() > RANKS_MAX.into() {
            return fail("data", "these are more than 65536 ranks");
        }
        if described.nodes() > NODES_MAX as u64 {
            return fail("layers", "ranks, layers and microbatches make more than 2^24 nodes");
        }
        let place = format!("{}: jobs.{i}.parallel", self.source.file);
        let schedule = described.schedule(&place)?;
        Ok(("parallel".to_owned(), self.scheduled(i, job, schedule)?))
    }

    /// The job of a schedule.
    fn scheduled(
        &mut self,
        i: usize,
        job: &Job,
        schedule: Schedule,
    ) -> Result<JobSpec, ConfigError> {
        let fail = |field: &str, reason: String| {
            Err(self.source.invalid(&format!("jobs.{i}.{field}"), reason))
        };
        let others = [
            ("model", job.model.is_some()),
            ("compute", job.compute.is_some()),
            ("bytes", job.bytes.is_some()),
            ("workers", job.workers.is_some()),
            ("buckets", job.buckets != 1),
            ("layers", !job.layers.is_empty()),
            ("overlap", !job.overlap),
        ];
        if let Some((field, _)) = others.into_iter().find(|other| other.1) {
            return fail(field, "the files say what ranks there are and what they do".to_owned());
        }
        if job.steps == 0 {
            return fail("steps", "a job has at least one step".to_owned());
        }
        if job.start.0.0 >= self.config.duration.0.0 {
            return fail("start", "it starts after the run's duration".to_owned());
        }
        let ranks = job.ranks.clone().unwrap_or_default();
        if ranks.per_host == 0 {
            return fail("ranks.per_host", "a host has at least one rank".to_owned());
        }
        let count = schedule.ranks.len() as u32;
        let needed = count.div_ceil(ranks.per_host);
        let hosts = match &job.hosts {
            Some(hosts) if hosts.len() != needed as usize => {
                let per_host = ranks.per_host;
                return fail(
                    "hosts",
                    format!(
                        "{count} ranks, {per_host} per host, need {needed} hosts, not {}",
                        hosts.len()
                    ),
                );
            }
            Some(hosts) => {
                let mut sorted = hosts.clone();
                sorted.sort_unstable();
                let twice = sorted.windows(2).any(|w| w[0] == w[1]);
                if twice || sorted.last().is_some_and(|&host| host >= self.hosts) {
                    let last = self.hosts - 1;
                    return fail("hosts", format!("each is another one, from 0 to {last}"));
                }
                hosts.clone()
            }
            None if needed > self.hosts => {
                return fail(
                    "ranks.per_host",
                    format!("{count} ranks need {needed} hosts, and there are {}", self.hosts),
                );
            }
            None => self.place(needed),
        };
        if let Some(wrong) = job.servers.iter().find(|&&host| host >= self.hosts) {
            return fail("servers", format!("host {wrong} is not from 0 to {}", self.hosts - 1));
        }
        let packet = self.config.tcp.segment_bytes.min(self.config.scheme.fragment_bytes);
        let segments = schedule.segments_max(packet.into()).saturating_mul(job.steps.into());
        if segments > u32::MAX.into() {
            let reason = format!(
                "a rank may send {segments} segments or fragments, which are counted with 32 bits; use fewer steps"
            );
            return fail("steps", reason);
        }
        let (key, scheme) = match &job.scheme {
            Some(scheme) => (format!("jobs.{i}.scheme"), scheme),
            None => ("scheme".to_owned(), &self.config.scheme),
        };
        if scheme.rings > 1 {
            let reason = "a job with a schedule has one ring per group";
            return Err(self.source.invalid(&format!("{key}.rings"), reason));
        }
        let roots = self.roots(scheme, &key)?;
        let nodes: usize = schedule.ranks.iter().map(|rank| rank.nodes.len()).sum();
        self.notes
            .push(format!("job {i}: {count} ranks on {needed} hosts, {nodes} nodes per step"));
        let most = MAX_SCOPED_RANKS as usize;
        if scheme.has_copies() && schedule.groups.iter().any(|group| group.len() > most) {
            self.notes.push(format!(
                "job {i}: groups of more than {most} ranks do allreduces alone in the network; their other collectives go between hosts"
            ));
        }
        let placement = (0..count).map(|rank| hosts[(rank / ranks.per_host) as usize]).collect();
        let work = Work {
            schedule: Arc::new(schedule),
            eager_bytes: ranks.eager.0.0,
            local: LocalLinks {
                rate_bps: ranks.local_rate.0.0,
                latency_ps: ranks.local_latency.ps(),
            },
        };
        Ok(JobSpec {
            start_ps: job.start.ps(),
            placement,
            steps: job.steps,
            period_ps: job.period.ps(),
            buckets: vec![Bucket { ready_ps: 0, bytes: 0 }],
            scheme: scheme.of_jobs(scheme.has_copies()),
            roots,
            servers: job.servers.clone(),
            work: Some(work),
        })
    }
}

/// Reads the files of a group from a recorder's folder.
fn recording(folder: &Path, replay: &Replay) -> Result<Schedule, ConfigError> {
    let place = folder.display().to_string();
    let mut groups: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    for path in listed(folder)? {
        let name = path.file_name().and_then(|name| name.to_str());
        let name = name.and_then(|name| name.strip_prefix("netsum-")?.strip_suffix(".json"));
        let Some((group, rank)) = name.and_then(|name| name.rsplit_once("-rank")) else { continue };
        if !rank.is_empty() && rank.bytes().all(|b| b.is_ascii_digit()) {
            groups.entry(group.to_owned()).or_default().push(path);
        }
    }
    let known: Vec<&str> = groups.keys().map(String::as_str).collect();
    let group = match (&replay.group, &known[..]) {
        (Some(group), _) if groups.contains_key(group) => group.clone(),
        (Some(group), _) => {
            let reason = format!("no files of a group {group:?}; there are {known:?}");
            return Err(ScheduleError::new(place, reason).into());
        }
        (None, [one]) => (*one).to_owned(),
        (None, []) => {
            let reason = "no files netsum-GROUP-rankN.json, which NETSUM_RECORDER has written";
            return Err(ScheduleError::new(place, reason).into());
        }
        (None, _) => {
            let reason = format!("files of several groups: name one of {known:?}");
            return Err(ScheduleError::new(place, reason).into());
        }
    };
    let files = texts(&groups.remove(&group).unwrap_or_default())?;
    let operations = replay.operations;
    Ok(recorder::parse(&recorder::Recording { files: &files, folder: &place, operations })?)
}

/// Reads the traces of PyTorch's profiler in a folder.
fn profiles(folder: &Path, replay: &Replay) -> Result<Schedule, ConfigError> {
    let place = folder.display().to_string();
    let mut paths = listed(folder)?;
    let ends = |path: &PathBuf, end: &str| path.extension().is_some_and(|found| found == end);
    if let Some(packed) = paths.iter().find(|path| ends(path, "gz")) {
        let reason = "it is compressed, and is not read so: gunzip it";
        return Err(ScheduleError::new(packed.display().to_string(), reason).into());
    }
    paths.retain(|path| ends(path, "json"));
    if paths.is_empty() {
        let reason = "no files NAME.json, which export_chrome_trace or tensorboard_trace_handler has written";
        return Err(ScheduleError::new(place, reason).into());
    }
    if paths.len() > RANKS_MAX as usize {
        let reason = format!("{} files; a job has at most {RANKS_MAX} ranks", paths.len());
        return Err(ScheduleError::new(place, reason).into());
    }
    let files = texts(&paths)?;
    let operations = replay.operations;
    Ok(pytorch::parse(&pytorch::Profiles { files: &files, folder: &place, operations })?)
}

/// The files of a folder by name.
fn listed(folder: &Path) -> Result<Vec<PathBuf>, ConfigError> {
    let unreadable = |error: std::io::Error| ConfigError::Unreadable {
        path: folder.to_owned(),
        reason: error.to_string(),
    };
    let entries = std::fs::read_dir(folder).map_err(unreadable)?;
    let paths = entries.map(|entry| entry.map(|entry| entry.path()));
    let mut paths: Vec<PathBuf> = paths.collect::<Result<_, _>>().map_err(unreadable)?;
    paths.sort();
    Ok(paths)
}

/// Names and texts of files, together at most `TRACE_MAX`.
fn texts(paths: &[PathBuf]) -> Result<Vec<(String, String)>, ConfigError> {
    let mut left = TRACE_MAX;
    let mut files = Vec::new();
    for path in paths {
        let text = read(path, left)?;
        left -= text.len() as u64;
        files.push((path.display().to_string(), text));
    }
    Ok(files)
}

/// Reads the files of a trace, from rank 0 to the last one that there is.
fn chakra_trace(prefix: &Path, groups: Option<&str>) -> Result<Schedule, ConfigError> {
    let prefix = prefix.display().to_string();
    let mut files: Vec<Vec<u8>> = Vec::new();
    let mut left = TRACE_MAX;
    for rank in 0..RANKS_MAX {
        let path = Path::new(&format!("{prefix}.{rank}.et")).to_owned();
        let unreadable = |reason: String| ConfigError::Unreadable { path: path.clone(), reason };
        if rank > 0 && !path.exists() {
            break;
        }
        let file = std::fs::File::open(&path).map_err(|error| unreadable(error.to_string()))?;
        let mut bytes = Vec::new();
        let read = file.take(left + 1).read_to_end(&mut bytes);
        read.map_err(|error| unreadable(error.to_string()))?;
        let rest = left.checked_sub(bytes.len() as u64);
        left = rest.ok_or_else(|| {
            unreadable(format!("the files of all ranks have more than {} MiB", TRACE_MAX >> 20))
        })?;
        files.push(bytes);
    }
    Ok(chakra::parse(&chakra::Trace { files: &files, prefix: &prefix, groups })?)
}

impl From<ScheduleError> for ConfigError {
    fn from(error: ScheduleError) -> ConfigError {
        ConfigError::Schedule { place: error.place, reason: error.reason }
    }
}

/// Maximum size of a schedule in text, and of all traces of a job.
const TEXT_MAX: u64 = 1 << 30;
const TRACE_MAX: u64 = 2 << 30;
