//! Training jobs, listed or drawn at random.

use netsum_proto::switchml::MAX_WORKERS;
use netsum_topo::Latency;
use serde::{Deserialize, Serialize};

use super::build::{Builder, Jobs};
use super::scheme::{Scheme, SchemeKind};
use super::source::ConfigError;
use super::units::TIME_MAX_NS;
use super::work::{Parallel, Ranks, Replay};
use super::{Text, defaults};
use crate::job::{self, Bucket, JobSpec, Model};
use crate::random::Random;

/// A training job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Job {
    /// Model name, which sets compute time and bytes; the alternative is to give both.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Compute time per step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compute: Option<Text<Latency>>,
    /// Bytes of gradients.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Number of workers, at least 1 and at most one per host, placed as near to each other as possible; the alternative
    /// is `hosts`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers: Option<u32>,
    /// Host of each rank, by number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hosts: Option<Vec<u32>>,
    /// Start time.
    #[serde(default = "defaults::no_time")]
    pub start: Text<Latency>,
    /// Number of training steps; at least 1.
    #[serde(default = "defaults::steps")]
    pub steps: u32,
    /// Minimum time between the starts of a worker's steps. If steps take less, all workers begin each step together.
    #[serde(default = "defaults::no_time")]
    pub period: Text<Latency>,
    /// Number of equal buckets of the gradients, 1 to 65,536, which are reduced during the backward pass; 1: no
    /// overlap.
    #[serde(default = "defaults::buckets")]
    pub buckets: u32,
    /// The backward pass layer by layer, in its order, in place of model, bytes and buckets; `compute` is the time
    /// before it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub layers: Vec<Layer>,
    /// Whether a layer's gradients are reduced while the next layers compute, or all gradients after the last layer.
    #[serde(default = "defaults::overlap")]
    pub overlap: bool,
    /// The job's scheme, if not the run's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheme: Option<Scheme>,
    /// For `atp`: hosts of the servers, by number; empty: hosts of the job.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub servers: Vec<u32>,
    /// A schedule with dependencies that is replayed in each step, in place of model, compute, bytes and workers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replay: Option<Replay>,
    /// A training step with tensor, pipeline, data and expert parallelism, in the same place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parallel: Option<Parallel>,
    /// Where the ranks of such a schedule are, and how they send; `hosts` then has one host for `per_host` ranks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ranks: Option<Ranks>,
}

/// The backward pass of one layer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Layer {
    /// Compute time.
    pub compute: Text<Latency>,
    /// Bytes of gradients that are ready afterwards; 0: none.
    pub bytes: u64,
}

/// Jobs drawn at random: a fixed set that produces a load and trains until the run ends, or, with `steps`, Poisson
/// arrivals of jobs that end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mix {
    /// Share of the hosts' links that gradients would take if each were sent once per step, without delays;
    /// above 0, all loads together at most 1.
    pub load: f64,
    /// Minimum and maximum number of workers of a job, at least 2, drawn uniformly.
    #[serde(default = "defaults::workers")]
    pub workers: [u32; 2],
    /// Models, drawn uniformly.
    #[serde(default = "defaults::models")]
    pub models: Vec<String>,
    /// Minimum time between the starts of steps: the compute time plus this many times the transmission time of the
    /// gradients on a free link; 0 to 100, 0: no minimum. With 2, every scheme that is no slower than an undisturbed
    /// ring does the same work in the same time.
    #[serde(default)]
    pub pace: f64,
    /// Scales compute times and gradients alike, above 0 and at most 1: steps per second of simulated time grow by its
    /// inverse.
    #[serde(default = "defaults::scale")]
    pub scale: f64,
    /// Hosts of a job: "rows", consecutive ones, those with the fewest workers, or "random", any ones, first those with
    /// the fewest workers.
    #[serde(default)]
    pub placement: MixPlacement,
    /// Order of a job's ranks, and so of its ring: "hosts", by number, or "random". Neither this nor `placement` changes
    /// which jobs are drawn.
    #[serde(default)]
    pub order: MixOrder,
    /// Number of steps after which a job ends. The arrival rate makes gradients take `load` on average.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<u32>,
}

/// Hosts of a mix's jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MixPlacement {
    /// Consecutive.
    #[default]
    Rows,
    /// At random.
    Random,
}

/// Order of the ranks of a mix's jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MixOrder {
    /// By the number of the host.
    #[default]
    Hosts,
    /// At random.
    Random,
}

impl Builder<'_> {
    pub(super) fn job(&mut self, i: usize, job: &Job) -> Result<(String, JobSpec), ConfigError> {
        match (&job.replay, &job.parallel) {
            (Some(replay), None) => return self.replay(i, job, replay),
            (None, Some(step)) => return self.parallel(i, job, step),
            (Some(_), Some(_)) => {
                let key = format!("jobs.{i}.parallel");
                return Err(self.source.invalid(&key, "a job has this or replay"));
            }
            (None, None) => {}
        }
        let fail = |field: &str, reason: String| {
            Err(self.source.invalid(&format!("jobs.{i}.{field}"), reason))
        };
        if job.ranks.is_some() {
            return fail(
                "ranks",
                "it is of jobs that replay a schedule, or are parallel".to_owned(),
            );
        }
        let model = match &job.model {
            Some(name) => Some(self.model(name, &format!("jobs.{i}.model"))?),
            None => None,
        };
        let compute_ps = job.compute.map(Text::ps).or(model.map(|m| (m.compute_s() * 1e12) as u64));
        let layered = !job.layers.is_empty();
        if layered && (model.is_some() || job.bytes.is_some() || job.buckets != 1) {
            return fail("layers", "they say what model, bytes and buckets would".to_owned());
        }
        if !layered && !job.overlap {
            return fail(
                "overlap",
                "it is of layers; without them buckets = 1 does not".to_owned(),
            );
        }
        let of_layers = layered
            .then(|| job.layers.iter().fold(0, |sum: u64, layer| sum.saturating_add(layer.bytes)));
        let bytes = job.bytes.or(of_layers).or(model.map(|m| m.gradient_bytes));
        let (Some(compute_ps), Some(bytes)) = (compute_ps, bytes) else {
            let reason = "give a model, or compute and either bytes or layers";
            return fail("model", reason.to_owned());
        };
        if let Err(reason) = self.check_bytes(bytes) {
            return fail(if layered { "layers" } else { "bytes" }, reason);
        }
        if job.steps == 0 {
            return fail("steps", "a job has at least one step".to_owned());
        }
        if job.buckets == 0 || job.buckets > BUCKETS_MAX {
            return fail("buckets", format!("gradients have 1 to {BUCKETS_MAX} buckets"));
        }
        let layers_ns =
            job.layers.iter().fold(0, |sum: u64, layer| sum.saturating_add(layer.compute.0.0));
        if layers_ns > TIME_MAX_NS {
            return fail("layers", "together they compute for more than 100000 s".to_owned());
        }
        if job.start.0.0 >= self.config.duration.0.0 {
            return fail("start", "it starts after the run's duration".to_owned());
        }
        let placement = match (&job.hosts, job.workers) {
            (Some(hosts), None) => hosts.clone(),
            (None, Some(workers)) if workers > self.hosts => {
                return fail(
                    "workers",
                    format!("{workers} workers on {} hosts: a host runs one of a job", self.hosts),
                );
            }
            (None, Some(workers)) if workers > 0 => self.place(workers),
            _ => return fail("workers", "give either workers, at least 1, or hosts".to_owned()),
        };
        let kind = job.scheme.as_ref().unwrap_or(&self.config.scheme).kind;
        if kind == SchemeKind::Switchml && placement.len() > MAX_WORKERS {
            let field = if job.hosts.is_some() { "hosts" } else { "workers" };
            return fail(field, too_many_for_a_pool(placement.len()));
        }
        let mut sorted = placement.clone();
        sorted.sort_unstable();
        let twice = sorted.windows(2).any(|w| w[0] == w[1]);
        if placement.is_empty() || twice || sorted.last().is_some_and(|&h| h >= self.hosts) {
            return fail("hosts", format!("each is another one, from 0 to {}", self.hosts - 1));
        }
        if let Some(wrong) = job.servers.iter().find(|&&host| host >= self.hosts) {
            return fail("servers", format!("host {wrong} is not from 0 to {}", self.hosts - 1));
        }
        let name = job.model.clone().unwrap_or_else(|| "job".to_owned());
        let (key, scheme) = match &job.scheme {
            Some(scheme) => (format!("jobs.{i}.scheme"), scheme),
            None => ("scheme".to_owned(), &self.config.scheme),
        };
        let roots = self.roots(scheme, &key)?;
        let scheme = scheme.of_jobs(false);
        let buckets = match layered {
            true => buckets_of_layers(compute_ps, job),
            false => buckets(compute_ps, bytes, job.buckets),
        };
        let start_ps = job.start.ps();
        Ok((
            name,
            JobSpec {
                start_ps,
                placement,
                steps: job.steps,
                period_ps: job.period.ps(),
                buckets,
                scheme,
                roots,
                servers: job.servers.clone(),
                work: None,
            },
        ))
    }

    /// Draws jobs with uniform workers and model: until they produce the load, with starts spread over a step; or, with
    /// `steps`, as Poisson arrivals.
    pub(super) fn mix(&mut self, mix: &Mix) -> Result<Jobs, ConfigError> {
        let [least, most] = mix.workers;
        if least < 2 || least > most || most > self.hosts {
            let reason = format!("give a range within 2 to {} hosts", self.hosts);
            return Err(self.source.invalid("mix.workers", reason));
        }
        if self.config.scheme.kind == SchemeKind::Switchml && most as usize > MAX_WORKERS {
            let reason = too_many_for_a_pool(most as usize);
            return Err(self.source.invalid("mix.workers", reason));
        }
        let models = mix.models.iter().map(|name| self.model(name, "mix.models"));
        let models = models.collect::<Result<Vec<Model>, _>>()?;
        if models.is_empty() {
            return Err(self.source.invalid("mix.models", "name at least one model"));
        }
        if mix.steps == Some(0) {
            return Err(self.source.invalid("mix.steps", "a job has at least one step"));
        }
        let roots = self.roots(&self.config.scheme, "scheme")?;
        let until_ps = self.config.duration.ps();
        let mut random = Random::derived(self.config.seed, "jobs");
        let mut places = Random::derived(self.config.seed, "places");
        let (mut jobs, mut load, mut now_s) = (Jobs::new(), 0.0, 0.0);
        // Running jobs, with the time at which each would end if undisturbed.
        let mut leaving: Vec<(f64, Vec<u32>)> = Vec::new();
        loop {
            let workers = least + random.below(u64::from(most - least) + 1) as u32;
            let model = models[random.below(models.len() as u64) as usize];
            let times = StepTimes::new(&model, mix, self.rate_bps);
            let of_hosts = f64::from(workers) / f64::from(self.hosts);
            let start_s = match mix.steps {
                None if load >= mix.load => break,
                None => random.unit() * times.step_s,
                Some(steps) => {
                    let mean_work_s = StepTimes::mean_reduce_s(&models, mix, self.rate_bps)
                        * f64::from(least + most)
                        / 2.0
                        / f64::from(self.hosts)
                        * f64::from(steps);
                    now_s += -(1.0 - random.unit()).ln() * mean_work_s / mix.load;
                    now_s
                }
            };
            let start_ps = (start_s * 1e12) as u64;
            if mix.steps.is_some() && start_ps >= until_ps {
                break;
            }
            load += match mix.steps {
                None => of_hosts * times.reduce_s / times.step_s,
                Some(steps) => {
                    of_hosts * times.reduce_s * f64::from(steps) * 1e12 / until_ps as f64
                }
            };
            for (_, hosts) in leaving.extract_if(.., |(end_s, _)| *end_s <= now_s) {
                hosts.into_iter().for_each(|host| self.taken[host as usize] -= 1);
            }
            let mut placement = match mix.placement {
                MixPlacement::Rows => self.place(workers),
                MixPlacement::Random => self.place_at_random(workers, &mut places),
            };
            if mix.order == MixOrder::Random {
                places.shuffle(&mut placement);
            }
            if let Some(steps) = mix.steps {
                leaving.push((now_s + times.step_s * f64::from(steps), placement.clone()));
            }
            let spec = JobSpec {
                start_ps: start_ps.min(until_ps - 1),
                placement,
                steps: mix.steps.unwrap_or(job::ENDLESS),
                period_ps: (times.period_s * 1e12) as u64,
                buckets: buckets((times.compute_s * 1e12) as u64, times.bytes, 1),
                scheme: self.config.scheme.of_jobs(false),
                roots: roots.clone(),
                servers: Vec::new(),
                work: None,
            };
            jobs.push((model.name.to_owned(), spec));
            if jobs.len() > JOBS_MAX {
                let reason = format!(
                    "it draws more than {JOBS_MAX} jobs; give less load, more steps or a larger scale"
                );
                return Err(self.source.invalid("mix.load", reason));
            }
        }
        if jobs.is_empty() {
            let note = "mix: no job arrives; make the run longer or the load higher";
            self.notes.push(note.to_owned());
            return Ok(jobs);
        }
        self.notes.push(format!(
            "mix: {} jobs, {} workers on {} hosts, a load of {load:.3} where each gradient is sent once per step",
            jobs.len(),
            jobs.iter().map(|(_, j)| j.placement.len()).sum::<usize>(),
            self.hosts,
        ));
        Ok(jobs)
    }

    fn model(&self, name: &str, key: &str) -> Result<Model, ConfigError> {
        Model::named(name).ok_or_else(|| {
            let known: Vec<&str> = job::MODELS.iter().map(|m| m.name).collect();
            self.source.invalid(
                key,
                format!("no model is named {name:?}; use one of {}", known.join(", ")),
            )
        })
    }

    /// Consecutive hosts with the fewest workers: hosts are numbered rack by rack, so consecutive hosts are near each
    /// other.
    pub(super) fn place(&mut self, workers: u32) -> Vec<u32> {
        let n = workers as usize;
        let mut here: u32 = self.taken[..n].iter().sum();
        let (mut least, mut start) = (here, 0);
        for first in 1..=self.taken.len() - n {
            here = here + self.taken[first + n - 1] - self.taken[first - 1];
            if here < least {
                (least, start) = (here, first);
            }
        }
        self.taken[start..start + n].iter_mut().for_each(|t| *t += 1);
        (start as u32..(start + n) as u32).collect()
    }

    /// Hosts at random, first those with the fewest workers; by number.
    fn place_at_random(&mut self, workers: u32, random: &mut Random) -> Vec<u32> {
        let mut hosts: Vec<u32> = (0..self.hosts).collect();
        random.shuffle(&mut hosts);
        hosts.sort_by_key(|&host| self.taken[host as usize]);
        hosts.truncate(workers as usize);
        hosts.iter().for_each(|&host| self.taken[host as usize] += 1);
        hosts.sort_unstable();
        hosts
    }
}

fn too_many_for_a_pool(workers: usize) -> String {
    format!(
        "{workers} workers; a pool of switchml takes {MAX_WORKERS}: use fewer, or \"switchml*\""
    )
}

/// Times of a step of a mix's job, in seconds.
struct StepTimes {
    compute_s: f64,
    bytes: u64,
    /// Transmission time of the gradients on a free link.
    reduce_s: f64,
    period_s: f64,
    step_s: f64,
}

impl StepTimes {
    fn new(model: &Model, mix: &Mix, rate_bps: u64) -> StepTimes {
        let compute_s = model.compute_s() * mix.scale;
        let bytes = ((model.gradient_bytes as f64 * mix.scale) as u64).max(1);
        let reduce_s = bytes as f64 * 8.0 / rate_bps as f64;
        let period_s = compute_s + mix.pace * reduce_s;
        StepTimes {
            compute_s,
            bytes,
            reduce_s,
            period_s,
            step_s: period_s.max(compute_s + reduce_s),
        }
    }

    fn mean_reduce_s(models: &[Model], mix: &Mix, rate_bps: u64) -> f64 {
        let all = models.iter().map(|model| StepTimes::new(model, mix, rate_bps).reduce_s);
        all.sum::<f64>() / models.len() as f64
    }
}

/// One bucket per layer that has gradients; without overlap one bucket at the end.
fn buckets_of_layers(compute_ps: u64, job: &Job) -> Vec<Bucket> {
    let mut ready_ps = compute_ps;
    let of = |layer: &Layer| {
        ready_ps += layer.compute.ps();
        Bucket { ready_ps, bytes: layer.bytes }
    };
    let all: Vec<Bucket> = job.layers.iter().map(of).collect();
    let last_ps = all.last().map_or(compute_ps, |bucket| bucket.ready_ps);
    match job.overlap {
        true => all.into_iter().filter(|bucket| bucket.bytes > 0).collect(),
        false => {
            vec![Bucket { ready_ps: last_ps, bytes: all.iter().map(|bucket| bucket.bytes).sum() }]
        }
    }
}

/// Buckets of equal size; the backward pass, two thirds of the compute time, produces them one after the other.
fn buckets(compute_ps: u64, bytes: u64, count: u32) -> Vec<Bucket> {
    let count = u64::from(count).min(bytes.div_ceil(4));
    let forward_ps = if count == 1 { compute_ps } else { compute_ps / 3 };
    let upto = |i: u64, whole: u64| (u128::from(whole) * u128::from(i) / u128::from(count)) as u64;
    let part = |i: u64| upto(i + 1, bytes) - upto(i, bytes);
    let ready = |i: u64| forward_ps + upto(i + 1, compute_ps - forward_ps);
    (0..count).map(|i| Bucket { ready_ps: ready(i), bytes: part(i) }).collect()
}

/// Maximum number of buckets of a job; each is a separate reduction.
const BUCKETS_MAX: u32 = 1 << 16;
/// Maximum number of jobs of a mix.
const JOBS_MAX: usize = 1 << 20;
