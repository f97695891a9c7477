//! From a checked configuration to what the simulation takes.

use netsum_topo::{Addressing, Topology};

use super::check::{ConfigError, Source};
use super::table::table;
use super::{Config, Fabric, Flows, Paths, Scheme, Tcp};
use crate::aggregation::SlotSharing;
use crate::faults::Fault;
use crate::job::JobSpec;
use crate::network::{Pause, SharedBuffer, Switching};
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
    /// How switches share slots.
    pub sharing: SlotSharing,
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
    let (switch, fragment_bytes) = (&config.switch, config.scheme.fragment_bytes);
    let sharing = switch.slots.sharing(switch.memory.0.0, fragment_bytes);
    let tcp = tcp(&config.tcp);
    Ok(Built { topology, switching, tcp, sharing, flows, jobs, faults, samples, notes })
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

pub(super) struct Builder<'a> {
    pub(super) source: &'a Source<'a>,
    topology: &'a Topology,
    pub(super) config: &'a Config,
    pub(super) hosts: u32,
    pub(super) rate_bps: u64,
    pub(super) notes: Vec<String>,
    /// Workers that each host has.
    pub(super) taken: Vec<u32>,
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
