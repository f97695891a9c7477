//! From a checked configuration to what the simulation takes.

use netsum_proto::CongestionRule;
use netsum_topo::{Addressing, Topology};

use super::check::{ConfigError, Source};
use super::table::table;
use super::{Config, Fabric, Flows, Job, Mix, Paths, Scheme, SchemeKind, Tcp};
use crate::aggregation::TreeConfig;
use crate::faults::Fault;
use crate::job::{self, Bucket, HostAlgorithm, JobSpec, Model};
use crate::network::{Pause, Switching};
use crate::random::Random;
use crate::routes::PathChoice;
use crate::tcp::TcpConfig;
use crate::workload::{FlowSizes, FlowSpec, Interpolation, permutation, poisson};

/// All that a run needs.
pub struct Built {
    /// The graph.
    pub topology: Topology,
    /// Switches.
    pub switching: Switching,
    /// Hosts.
    pub tcp: TcpConfig,
    /// Flows, by start.
    pub flows: Vec<FlowSpec>,
    /// Jobs, by start.
    pub jobs: Jobs,
    /// Faults and their times.
    pub faults: Vec<(u64, Fault)>,
    /// Links to be sampled, as pairs of node numbers.
    pub samples: Vec<(u32, u32)>,
    /// What was chosen: lines for people, such as the mean size of flows.
    pub notes: Vec<String>,
}

/// Jobs and their names.
pub type Jobs = Vec<(String, JobSpec)>;

pub(super) fn build(source: &Source, config: &Config) -> Result<Built, ConfigError> {
    let (topology, latency_ns, rate_bps) = fabric(source, config)?;
    let hosts = topology.hosts().count() as u32;
    if let Err(error) = crate::network::check(&topology) {
        return Err(source.invalid("fabric", error.to_string()));
    }
    let switching = Switching {
        mark_packets: config.switch.mark_packets,
        queue_packets: config.switch.queue_packets,
        pause: config
            .switch
            .pause
            .as_ref()
            .map(|p| Pause { high_packets: p.high_packets, low_packets: p.low_packets }),
        paths: match config.switch.paths {
            Paths::Flow => PathChoice::Flow,
            Paths::Packet => PathChoice::Packet,
            Paths::Destination => PathChoice::Destination,
        },
        latency_ns,
    };
    let mut builder = Builder {
        source,
        topology: &topology,
        config,
        hosts,
        rate_bps,
        notes: Vec::new(),
        taken: vec![0; hosts as usize],
    };
    let mut flows = Vec::new();
    for (i, spec) in config.flows.iter().enumerate() {
        flows.extend(builder.flows(i, spec)?);
    }
    flows.sort_by_key(|f| f.start_ps);
    let mut jobs = Vec::new();
    for (i, job) in config.jobs.iter().enumerate() {
        jobs.push(builder.job(i, job)?);
    }
    if let Some(mix) = &config.mix {
        jobs.extend(builder.mix(mix)?);
    }
    jobs.sort_by_key(|(_, job)| job.start_ps);
    let samples = builder.samples()?;
    let faults = match &config.scenario {
        Some(path) => super::scenario::load(&source.folder.join(path), &topology)?,
        None => Vec::new(),
    };
    let notes = builder.notes;
    Ok(Built { topology, switching, tcp: tcp(&config.tcp), flows, jobs, faults, samples, notes })
}

fn fabric(source: &Source, config: &Config) -> Result<(Topology, u32, u64), ConfigError> {
    let addressing = Addressing::default();
    let (fabric, latency, rate) = match &config.fabric {
        Fabric::FatTree { k, rate, latency } => {
            (netsum_topo::fat_tree(*k, rate.0, addressing), latency, Some(rate.0))
        }
        Fabric::LeafSpine { racks, hosts_per_rack, spines, rate, uplink_rate, latency } => {
            let fabric = netsum_topo::leaf_spine(
                *racks,
                *hosts_per_rack,
                *spines,
                rate.0,
                uplink_rate.0,
                addressing,
            );
            (fabric, latency, Some(rate.0))
        }
        Fabric::SingleSwitch { hosts, rate, latency } => {
            (netsum_topo::single_switch(*hosts, rate.0, addressing), latency, Some(rate.0))
        }
        Fabric::Dumbbell { pairs, rate, bottleneck, latency } => {
            (netsum_topo::dumbbell(*pairs, rate.0, bottleneck.0, addressing), latency, Some(rate.0))
        }
        Fabric::File { path, latency } => {
            (netsum_topo::Fabric::load(&source.folder.join(path)), latency, None)
        }
    };
    let built = match (&config.fabric, fabric) {
        (Fabric::File { .. }, fabric) => fabric?,
        (_, fabric) => fabric.map_err(|error| source.invalid("fabric", error.to_string()))?,
    };
    let topology = built.topology();
    let slowest =
        topology.hosts().map(|h| topology.edge(topology.neighbours(h)[0].1).rate_bps).min();
    let latency_ns = u32::try_from(latency.0.0)
        .map_err(|_| source.invalid("fabric.latency", "a link of more than 4 s is none"))?;
    Ok((topology, latency_ns, rate.map_or(slowest.unwrap_or(0), |r| r.0)))
}

fn tcp(tcp: &Tcp) -> TcpConfig {
    TcpConfig {
        segment_bytes: tcp.segment_bytes,
        header_bytes: tcp.header_bytes,
        ack_bytes: tcp.ack_bytes,
        window_initial: f64::from(tcp.initial_window),
        window_max: tcp.socket.0.0 as f64 / f64::from(tcp.segment_bytes),
        alpha_initial: tcp.alpha,
        gain: tcp.gain,
        ecn: tcp.ecn,
        rto_min_ps: tcp.min_rto.0.0 * 1000,
        reordering: tcp.reordering,
    }
}

impl Scheme {
    fn of_jobs(&self) -> job::Scheme {
        let config = |congestion, release_permille| job::Scheme::Trees {
            trees: self.trees,
            config: TreeConfig {
                window_max: self.window,
                fragment_bytes: self.fragment_bytes,
                congestion,
                release_permille,
            },
        };
        match self.kind {
            SchemeKind::Ring => job::Scheme::Hosts(HostAlgorithm::Ring),
            SchemeKind::HalvingDoubling => job::Scheme::Hosts(HostAlgorithm::HalvingDoubling),
            SchemeKind::ParameterServer => job::Scheme::Hosts(HostAlgorithm::ParameterServer),
            SchemeKind::SwitchMl => config(CongestionRule::Fixed(self.window), 1000),
            SchemeKind::Panama | SchemeKind::Ideal => config(CongestionRule::Panama, 1000),
            SchemeKind::Panama88 => config(CongestionRule::Panama, 880),
            SchemeKind::Panama94 => config(CongestionRule::Panama, 940),
            SchemeKind::PanamaPerBranch => config(CongestionRule::PerBranch, 1000),
        }
    }
}

struct Builder<'a> {
    source: &'a Source<'a>,
    topology: &'a Topology,
    config: &'a Config,
    hosts: u32,
    rate_bps: u64,
    notes: Vec<String>,
    /// Workers that each host has.
    taken: Vec<u32>,
}

impl Builder<'_> {
    fn flows(&mut self, i: usize, flows: &Flows) -> Result<Vec<FlowSpec>, ConfigError> {
        let key = |field: &str| format!("flows.{i}.{field}");
        let until_ps = self.config.duration.0.0 * 1000;
        if self.hosts < 2 {
            return Err(self.source.invalid(&key("kind"), "one host has nobody to send to"));
        }
        match flows {
            Flows::Poisson { load, sizes } => {
                let sizes = self.sizes(sizes, &key("sizes"))?;
                let per_s =
                    load * f64::from(self.hosts) * self.rate_bps as f64 / 8.0 / sizes.mean();
                self.notes.push(format!(
                    "flows {i}: {} with a mean of {:.0} bytes, {per_s:.0} flows per second; the load counts payload",
                    sizes.name(),
                    sizes.mean(),
                ));
                let seed = self.config.seed ^ (i as u64) << 32;
                let flows = poisson(self.hosts, self.rate_bps, *load, sizes, seed);
                Ok(flows.take_while(|f| f.start_ps < until_ps).collect())
            }
            Flows::Permutation { bytes: 0 } | Flows::One { bytes: 0, .. } => {
                Err(self.source.invalid(&key("bytes"), "a flow has at least one byte"))
            }
            Flows::Permutation { bytes } => Ok(permutation(self.hosts, *bytes, self.config.seed)),
            Flows::One { start, src, dst, bytes } => {
                let spec =
                    FlowSpec { start_ps: start.0.0 * 1000, src: *src, dst: *dst, bytes: *bytes };
                self.check_flow(&spec)
                    .map_err(|reason| self.source.invalid(&key("src"), reason))?;
                Ok(vec![spec])
            }
            Flows::Trace { path } => self.trace(path),
        }
    }

    fn check_flow(&self, flow: &FlowSpec) -> Result<(), String> {
        let hosts = self.hosts;
        if flow.src >= hosts || flow.dst >= hosts {
            return Err(format!("hosts are numbered from 0 to {}", hosts - 1));
        }
        if flow.src == flow.dst {
            return Err("a flow needs two hosts".to_owned());
        }
        if flow.start_ps >= self.config.duration.0.0 * 1000 {
            return Err("it starts after the run's duration".to_owned());
        }
        Ok(())
    }

    fn sizes(&self, name: &str, key: &str) -> Result<FlowSizes, ConfigError> {
        if let Some(sizes) = FlowSizes::named(name) {
            return Ok(sizes);
        }
        let path = self.source.folder.join(name);
        let points = table(&path, 2)?.into_iter().map(|(_, row)| (row[0], row[1])).collect();
        let sizes = FlowSizes::new(name, points, Interpolation::Linear);
        sizes.ok_or_else(|| {
            let reason = format!(
                "{} is no distribution: sizes and shares must ascend, the last share be 1",
                path.display()
            );
            self.source.invalid(key, reason)
        })
    }

    fn trace(&self, path: &str) -> Result<Vec<FlowSpec>, ConfigError> {
        let path = self.source.folder.join(path);
        let mut flows = Vec::new();
        for (line, row) in table(&path, 4)? {
            let flow = FlowSpec {
                start_ps: (row[0] * 1e6) as u64,
                src: row[1] as u32,
                dst: row[2] as u32,
                bytes: row[3] as u64,
            };
            let whole = row[1..].iter().all(|v| v.fract() == 0.0) && flow.bytes > 0;
            let checked = match whole {
                true => self.check_flow(&flow),
                false => Err("hosts and bytes are whole numbers, bytes at least 1".to_owned()),
            };
            checked.map_err(|reason| ConfigError::Syntax {
                file: path.display().to_string(),
                line,
                reason,
            })?;
            flows.push(flow);
        }
        Ok(flows)
    }

    fn job(&mut self, i: usize, job: &Job) -> Result<(String, JobSpec), ConfigError> {
        let fail = |field: &str, reason: String| {
            Err(self.source.invalid(&format!("jobs.{i}.{field}"), reason))
        };
        let model = match &job.model {
            Some(name) => Some(self.model(name, &format!("jobs.{i}.model"))?),
            None => None,
        };
        let compute_ps =
            job.compute.map(|c| c.0.0 * 1000).or(model.map(|m| (m.compute_s() * 1e12) as u64));
        let bytes = job.bytes.or(model.map(|m| m.gradient_bytes));
        let (Some(compute_ps), Some(bytes)) = (compute_ps, bytes) else {
            return fail("model", "give a model, or both compute and bytes".to_owned());
        };
        if bytes == 0 || job.steps == 0 || job.buckets == 0 {
            return fail("steps", "bytes, steps and buckets are at least 1".to_owned());
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
        let mut sorted = placement.clone();
        sorted.sort_unstable();
        let twice = sorted.windows(2).any(|w| w[0] == w[1]);
        if placement.is_empty() || twice || sorted.last().is_some_and(|&h| h >= self.hosts) {
            return fail("hosts", format!("each is another one, from 0 to {}", self.hosts - 1));
        }
        let name = job.model.clone().unwrap_or_else(|| "job".to_owned());
        let (key, scheme) = match &job.scheme {
            Some(scheme) => (format!("jobs.{i}.scheme"), scheme),
            None => ("scheme".to_owned(), &self.config.scheme),
        };
        let roots = self.roots(scheme, &key)?;
        let scheme = scheme.of_jobs();
        let buckets = buckets(compute_ps, bytes, job.buckets);
        let start_ps = job.start.0.0 * 1000;
        Ok((
            name,
            JobSpec { start_ps, placement, steps: job.steps, period_ps: 0, buckets, scheme, roots },
        ))
    }

    /// Jobs until they make up the load: workers and model drawn uniformly, starts spread over a step.
    fn mix(&mut self, mix: &Mix) -> Result<Jobs, ConfigError> {
        let [least, most] = mix.workers;
        if least < 2 || least > most || most > self.hosts {
            let reason = format!("give a range within 2 to {} hosts", self.hosts);
            return Err(self.source.invalid("mix.workers", reason));
        }
        let models = mix.models.iter().map(|name| self.model(name, "mix.models"));
        let models = models.collect::<Result<Vec<Model>, _>>()?;
        if models.is_empty() {
            return Err(self.source.invalid("mix.models", "name at least one model"));
        }
        let roots = self.roots(&self.config.scheme, "scheme")?;
        let mut random = Random::derived(self.config.seed, "jobs");
        let (mut jobs, mut load) = (Jobs::new(), 0.0);
        while load < mix.load {
            let workers = least + random.below(u64::from(most - least) + 1) as u32;
            let model = models[random.below(models.len() as u64) as usize];
            let compute_s = model.compute_s() * mix.scale;
            let bytes = ((model.gradient_bytes as f64 * mix.scale) as u64).max(1);
            let reduce_s = bytes as f64 * 8.0 / self.rate_bps as f64;
            let period_s = compute_s + mix.pace * reduce_s;
            let step_s = period_s.max(compute_s + reduce_s);
            load += f64::from(workers) / f64::from(self.hosts) * reduce_s / step_s;
            let start_ps = (random.unit() * step_s * 1e12) as u64;
            let start_ps = start_ps.min(self.config.duration.0.0 * 1000 - 1);
            let placement = self.place(workers);
            let buckets = buckets((compute_s * 1e12) as u64, bytes, 1);
            let scheme = self.config.scheme.of_jobs();
            let spec = JobSpec {
                start_ps,
                placement,
                steps: u32::MAX,
                period_ps: (period_s * 1e12) as u64,
                buckets,
                scheme,
                roots: roots.clone(),
            };
            jobs.push((model.name.to_owned(), spec));
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

    /// Hosts in a row, where the fewest workers are: hosts are numbered rack by rack, so a row is near.
    fn place(&mut self, workers: u32) -> Vec<u32> {
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

    fn roots(&self, scheme: &Scheme, key: &str) -> Result<Vec<u32>, ConfigError> {
        let of = |(i, name): (usize, &String)| {
            let found = self.topology.find(name).filter(|&node| self.topology.is_switch(node));
            found.map(|node| node.0).ok_or_else(|| {
                let reason = format!("no switch is named {name:?}");
                self.source.invalid(&format!("{key}.roots.{i}"), reason)
            })
        };
        scheme.roots.iter().enumerate().map(of).collect()
    }

    fn samples(&self) -> Result<Vec<(u32, u32)>, ConfigError> {
        let Some(samples) = &self.config.samples else { return Ok(Vec::new()) };
        if samples.every.0.0 == 0 {
            return Err(self.source.invalid("samples.every", "write a time like \"1ms\""));
        }
        let pairs = samples.links.iter().enumerate().map(|(i, link)| {
            let ends = link.split_once('>');
            let ends =
                ends.and_then(|(a, b)| Some((self.topology.find(a)?, self.topology.find(b)?)));
            let known = ends.filter(|&(a, b)| self.topology.edge_between(a, b).is_some());
            known.map(|(a, b)| (a.0, b.0)).ok_or_else(|| {
                let reason =
                    format!("no link {link:?}; write \"from>to\" with the names of two neighbours");
                self.source.invalid(&format!("samples.links.{i}"), reason)
            })
        });
        pairs.collect()
    }
}

/// Parts of equal size; the backward pass, two thirds of computing, hands them over one after the other.
fn buckets(compute_ps: u64, bytes: u64, count: u32) -> Vec<Bucket> {
    let count = u64::from(count).min(bytes.div_ceil(4));
    let forward_ps = if count == 1 { compute_ps } else { compute_ps / 3 };
    let part = |i: u64| bytes * (i + 1) / count - bytes * i / count;
    let ready = |i: u64| forward_ps + (compute_ps - forward_ps) * (i + 1) / count;
    (0..count).map(|i| Bucket { ready_ps: ready(i), bytes: part(i) }).collect()
}
