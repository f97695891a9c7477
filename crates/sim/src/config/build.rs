//! Builds a simulation's inputs from a checked configuration.

use std::collections::HashSet;
use std::path::Path;

use netsum_topo::{Addressing, Latency, Topology};

use super::source::{ConfigError, Source, TOML_MAX, read};
use super::table::{number, table, whole};
use super::units::rate_problem;
use super::{Config, Fabric, Flows, HostQueues, Paths, Scheme, Tcp, Text};
use crate::aggregation::SlotSharing;
use crate::faults::Fault;
use crate::job::JobSpec;
use crate::network::{HostQueue, Pause, SharedBuffer, Switching};
use crate::routes::PathChoice;
use crate::tcp::{SwiftConfig, TcpConfig};
use crate::workload::{FlowSizes, FlowSpec, Interpolation, permutation, poisson};

/// Inputs of a run.
pub struct Built {
    /// The graph.
    pub topology: Topology,
    /// Behaviour of switches.
    pub switching: Switching,
    /// Transport of hosts.
    pub tcp: TcpConfig,
    /// How switches share slots.
    pub sharing: SlotSharing,
    /// Flows, by start.
    pub flows: Vec<FlowSpec>,
    /// Jobs, by start.
    pub jobs: Jobs,
    /// Faults and their times.
    pub faults: Vec<(u64, Fault)>,
    /// Packets that links lose, by number.
    pub drops: Vec<(u32, Vec<u64>)>,
    /// Sampled links, as pairs of node numbers.
    pub samples: Vec<(u32, u32)>,
    /// Choices made, as text for users, such as the mean size of flows.
    pub notes: Vec<String>,
}

/// Jobs with their names.
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
        shared: config
            .switch
            .shared
            .as_ref()
            .map(|shared| SharedBuffer { bytes: shared.bytes.0.0, alpha: shared.alpha }),
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
        host_queue: match config.host.queue {
            HostQueues::FqCodel => {
                let small = config.host.small_queue.0.0;
                HostQueue::Fair { small_bytes: u32::try_from(small).unwrap_or(u32::MAX) }
            }
            HostQueues::Fifo => HostQueue::Fifo,
        },
        host_mark_ps: config.host.ce_threshold.map_or(u64::MAX, Text::ps),
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
    if matches!(config.fabric, Fabric::File { .. })
        && (!config.jobs.is_empty() || config.mix.is_some())
    {
        builder.notes.push(format!(
            "every switch has the memory ({}) and slots of [switch]; what the fabric file says of them is for daemons",
            config.switch.memory.0,
        ));
    }
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
    let (faults, drops) = match &config.scenario {
        Some(path) => super::scenario::load(&source.folder.join(path), &topology)?,
        None => Default::default(),
    };
    let notes = builder.notes;
    let (switch, fragment_bytes) = (&config.switch, config.scheme.fragment_bytes);
    let sharing = switch.slots.sharing(switch.memory.0.0, fragment_bytes);
    let tcp = tcp(&config.tcp);
    Ok(Built { topology, switching, tcp, sharing, flows, jobs, faults, drops, samples, notes })
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
            let path = source.folder.join(path);
            let (text, file) = (read(&path, TOML_MAX)?, path.display().to_string());
            (netsum_topo::Fabric::parse_simulated(&text, &file), latency, None)
        }
    };
    let built = match (&config.fabric, fabric) {
        (Fabric::File { .. }, fabric) => fabric?,
        (_, fabric) => fabric.map_err(|error| source.invalid("fabric", error.to_string()))?,
    };
    if let Fabric::File { path, .. } = &config.fabric {
        check_links(&source.folder.join(path), &built)?;
    }
    let topology = built.topology();
    let slowest =
        topology.hosts().map(|h| topology.edge(topology.neighbours(h)[0].1).rate_bps).min();
    let latency_ns = link_ns(latency.0).map_err(|why| source.invalid("fabric.latency", why))?;
    Ok((topology, latency_ns, rate.map_or(slowest.unwrap_or(0), |r| r.0)))
}

fn link_ns(latency: Latency) -> Result<u32, &'static str> {
    u32::try_from(latency.0).map_err(|_| "a link of more than 4 s is none")
}

/// Refuses link properties of a fabric file that the simulator does not support.
fn check_links(path: &Path, fabric: &netsum_topo::Fabric) -> Result<(), ConfigError> {
    let hosts: HashSet<&String> = fabric.hosts.iter().map(|host| &host.name).collect();
    let mut linked = HashSet::new();
    for (i, link) in fabric.links.iter().enumerate() {
        let second = link.ends.iter().find(|end| hosts.contains(end) && !linked.insert(*end));
        let second = second.map(|host| {
            let problem = "has a link already: the simulator wants exactly one per host";
            ("ends", format!("host {host:?} {problem}"))
        });
        let slow =
            rate_problem(link.rate).map(|problem| ("rate", format!("{} is {problem}", link.rate)));
        let long = link.latency.and_then(|latency| link_ns(latency).err());
        let long = long.map(|problem| ("latency", problem.to_owned()));
        if let Some((field, reason)) = slow.or(long).or(second) {
            let (text, file) = (read(path, TOML_MAX)?, path.display().to_string());
            let source = Source { text: &text, file: &file, folder: path };
            return Err(source.invalid(&format!("link.{i}.{field}"), reason));
        }
    }
    Ok(())
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
        rto_min_ps: tcp.min_rto.ps(),
        reordering: tcp.reordering,
        swift: tcp.swift.as_ref().map(|swift| SwiftConfig {
            target_ps: swift.target.ps(),
            range_ps: swift.range.ps(),
            increase: swift.increase,
            decrease: swift.decrease,
            decrease_max: swift.decrease_max,
        }),
    }
}

pub(super) struct Builder<'a> {
    pub(super) source: &'a Source<'a>,
    topology: &'a Topology,
    pub(super) config: &'a Config,
    pub(super) hosts: u32,
    pub(super) rate_bps: u64,
    pub(super) notes: Vec<String>,
    /// Number of workers on each host.
    pub(super) taken: Vec<u32>,
}

impl Builder<'_> {
    fn flows(&mut self, i: usize, flows: &Flows) -> Result<Vec<FlowSpec>, ConfigError> {
        let key = |field: &str| format!("flows.{i}.{field}");
        let until_ps = self.config.duration.ps();
        if self.hosts < 2 {
            return Err(self.source.invalid(&key("kind"), "one host has nobody to send to"));
        }
        match flows {
            Flows::Poisson { load, sizes } => {
                let sizes = self.sizes(sizes, &key("sizes"))?;
                let per_s =
                    load * f64::from(self.hosts) * self.rate_bps as f64 / 8.0 / sizes.mean();
                let expected = per_s * until_ps as f64 / 1e12;
                if expected > FLOWS_MAX {
                    let reason = format!(
                        "about {expected:.0} flows would come, more than {FLOWS_MAX:.0}; make the run shorter or the flows larger"
                    );
                    return Err(self.source.invalid(&key("load"), reason));
                }
                self.notes.push(format!(
                    "flows {i}: {} with a mean of {:.0} bytes, {per_s:.0} flows per second; the load counts payload",
                    sizes.name(),
                    sizes.mean(),
                ));
                let seed = self.config.seed ^ (i as u64) << 32;
                let flows = poisson(self.hosts, self.rate_bps, *load, sizes, seed);
                Ok(flows.take_while(|f| f.start_ps < until_ps).collect())
            }
            Flows::Permutation { bytes } => {
                self.check_bytes(*bytes).map_err(|why| self.source.invalid(&key("bytes"), why))?;
                Ok(permutation(self.hosts, *bytes, self.config.seed))
            }
            Flows::One { start, src, dst, bytes } => {
                let spec = FlowSpec { start_ps: start.ps(), src: *src, dst: *dst, bytes: *bytes };
                self.check_flow(&spec)
                    .map_err(|(field, reason)| self.source.invalid(&key(field), reason))?;
                Ok(vec![spec])
            }
            Flows::Trace { path } => self.trace(path),
        }
    }

    /// The invalid field of a flow, and the reason.
    fn check_flow(&self, flow: &FlowSpec) -> Result<(), (&'static str, String)> {
        let hosts = self.hosts;
        for (field, host) in [("src", flow.src), ("dst", flow.dst)] {
            if host >= hosts {
                return Err((field, format!("hosts are numbered from 0 to {}", hosts - 1)));
            }
        }
        if flow.src == flow.dst {
            return Err(("dst", "a flow needs two hosts".to_owned()));
        }
        if flow.start_ps >= self.config.duration.ps() {
            return Err(("start", "it starts after the run's duration".to_owned()));
        }
        self.check_bytes(flow.bytes).map_err(|reason| ("bytes", reason))
    }

    /// Checks that a flow or a job may have this many bytes.
    pub(super) fn check_bytes(&self, bytes: u64) -> Result<(), String> {
        let packet = self.config.tcp.segment_bytes.min(self.config.scheme.fragment_bytes);
        let most = u64::from(u32::MAX) * u64::from(packet);
        match bytes {
            0 => Err("there is at least one byte".to_owned()),
            _ if bytes > most => Err(format!(
                "{bytes} bytes are more than {most}: segments and fragments are counted with 32 bits"
            )),
            _ => Ok(()),
        }
    }

    fn sizes(&self, name: &str, key: &str) -> Result<FlowSizes, ConfigError> {
        if let Some(sizes) = FlowSizes::named(name) {
            return Ok(sizes);
        }
        let path = self.source.folder.join(name);
        let points = table(&path, 2, |row| Ok((number(row[0])?, number(row[1])?)))?;
        let sizes = FlowSizes::new(name, points, Interpolation::Linear);
        let sizes = sizes.ok_or_else(|| {
            format!(
                "{} is no distribution: sizes (from 1 byte on, or first 0 with share 0) and shares must ascend, the last share be 1",
                path.display()
            )
        });
        let sizes = sizes.and_then(|sizes| self.check_bytes(sizes.at(1.0)).map(|()| sizes));
        sizes.map_err(|reason| self.source.invalid(key, reason))
    }

    fn trace(&self, path: &str) -> Result<Vec<FlowSpec>, ConfigError> {
        let path = self.source.folder.join(path);
        let host = |cell: &str| whole(cell).map(|host| u32::try_from(host).unwrap_or(u32::MAX));
        let flows = table(&path, 4, |row| {
            let start_ps = (number(row[0])? * 1e6) as u64;
            let (src, dst, bytes) = (host(row[1])?, host(row[2])?, whole(row[3])?);
            let flow = FlowSpec { start_ps, src, dst, bytes };
            self.check_flow(&flow).map(|()| flow).map_err(|(field, why)| format!("{field}: {why}"))
        })?;
        if flows.is_empty() {
            return Err(ConfigError::Syntax {
                file: path.display().to_string(),
                line: 1,
                reason: "no flow stands here; write lines of start_us,src,dst,bytes".to_owned(),
            });
        }
        Ok(flows)
    }

    pub(super) fn roots(&self, scheme: &Scheme, key: &str) -> Result<Vec<u32>, ConfigError> {
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
        let every = self.topology.edges().flat_map(|(_, edge)| {
            let [a, b] = edge.ends.map(|node| node.0);
            [(a, b), (b, a)]
        });
        if samples.links == [ALL] {
            return Ok(every.collect());
        }
        let pairs = samples.links.iter().enumerate().map(|(i, link)| {
            let ends = link.split_once('>');
            let ends =
                ends.and_then(|(a, b)| Some((self.topology.find(a)?, self.topology.find(b)?)));
            let known = ends.filter(|&(a, b)| self.topology.edge_between(a, b).is_some());
            known.map(|(a, b)| (a.0, b.0)).ok_or_else(|| {
                let reason = format!(
                    "no link {link:?}; write \"from>to\" with the names of two neighbours, or [{ALL:?}]"
                );
                self.source.invalid(&format!("samples.links.{i}"), reason)
            })
        });
        pairs.collect()
    }
}

/// Stands for the directions of all links, where links are sampled.
const ALL: &str = "*";
/// Maximum number of randomly drawn flows: 2.4 GB.
const FLOWS_MAX: f64 = 1e8;
