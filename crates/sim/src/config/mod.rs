//! The configuration of a run: one TOML file, every default written out beside the results.

mod build;
mod check;
mod jobs;
mod keys;
mod scenario;
mod scheme;
mod source;
mod table;
mod units;

use serde::{Deserialize, Serialize};

pub use build::{Built, Jobs};
pub use check::{load, parse};
pub use jobs::{Job, Layer, Mix};
pub use netsum_wire::SlotPolicy;
pub use scenario::{FaultEvent, Scenario};
pub use scheme::{Scheme, SchemeKind, Slots};
pub use source::ConfigError;
pub use units::Text;

use netsum_topo::{Bytes, Latency, Rate};

/// What is simulated.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Names the run in reports.
    #[serde(default = "defaults::name")]
    pub name: String,
    /// Everything random follows from it.
    #[serde(default = "defaults::seed")]
    pub seed: u64,
    /// Simulated time; nothing new starts after it.
    pub duration: Text<Latency>,
    /// How much longer the run may go on for flows and jobs that have started; 0 cuts them off.
    #[serde(default = "defaults::no_time")]
    pub drain: Text<Latency>,
    /// End the run with the last job, whatever flows are left.
    #[serde(default)]
    pub stop_with_jobs: bool,
    /// Of the tables: "csv" or "parquet".
    #[serde(default)]
    pub format: Format,
    /// Check conservation and order all the time instead of at the end: some times slower.
    #[serde(default)]
    pub checked: bool,
    /// Of the run, at most. Nothing that comes out depends on it, so the effective configuration does not name it.
    #[serde(default = "defaults::threads", skip_serializing)]
    pub threads: u16,
    /// Hosts, switches, links.
    pub fabric: Fabric,
    /// What every switch does.
    #[serde(default)]
    pub switch: Switch,
    /// Hosts' transport.
    #[serde(default)]
    pub tcp: Tcp,
    /// How all jobs reduce, but those that say otherwise.
    #[serde(default)]
    pub scheme: Scheme,
    /// Flows that are nobody's gradients.
    #[serde(default)]
    pub flows: Vec<Flows>,
    /// Training jobs, one by one.
    #[serde(default)]
    pub jobs: Vec<Job>,
    /// Training jobs, drawn until they make up a load.
    #[serde(default)]
    pub mix: Option<Mix>,
    /// A file of faults, relative to the configuration.
    #[serde(default)]
    pub scenario: Option<String>,
    /// Links that are looked at regularly.
    #[serde(default)]
    pub samples: Option<Samples>,
}

/// Of the tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Format {
    /// Lines of text, to be read while the run goes on.
    #[default]
    Csv,
    /// Typed columns, to be read once the run has ended or was interrupted.
    Parquet,
}

impl Format {
    /// Each.
    pub const ALL: [Format; 2] = [Format::Csv, Format::Parquet];

    /// As in a configuration and at the end of a file's name.
    pub fn name(self) -> &'static str {
        match self {
            Format::Csv => "csv",
            Format::Parquet => "parquet",
        }
    }
}

/// The fabric.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Fabric {
    /// k pods; k³/4 hosts.
    FatTree {
        /// Even.
        k: u32,
        /// Of every link.
        #[serde(default = "defaults::rate")]
        rate: Text<Rate>,
        /// Of every link.
        #[serde(default = "defaults::latency")]
        latency: Text<Latency>,
    },
    /// Racks under spines; oversubscribed if hosts have more than uplinks.
    LeafSpine {
        /// Racks.
        racks: u32,
        /// Hosts in each.
        hosts_per_rack: u32,
        /// Spines.
        spines: u32,
        /// Of a host's link.
        #[serde(default = "defaults::rate")]
        rate: Text<Rate>,
        /// Of a link between rack and spine.
        #[serde(default = "defaults::rate")]
        uplink_rate: Text<Rate>,
        /// Of every link.
        #[serde(default = "defaults::latency")]
        latency: Text<Latency>,
    },
    /// One switch.
    SingleSwitch {
        /// Hosts.
        hosts: u32,
        /// Of every link.
        #[serde(default = "defaults::rate")]
        rate: Text<Rate>,
        /// Of every link.
        #[serde(default = "defaults::latency")]
        latency: Text<Latency>,
    },
    /// Two switches, one link between them.
    Dumbbell {
        /// Hosts at each side.
        pairs: u32,
        /// Of a host's link.
        #[serde(default = "defaults::rate")]
        rate: Text<Rate>,
        /// Of the link in the middle.
        #[serde(default = "defaults::rate")]
        bottleneck: Text<Rate>,
        /// Of every link.
        #[serde(default = "defaults::latency")]
        latency: Text<Latency>,
    },
    /// A fabric file.
    File {
        /// Relative to the configuration.
        path: String,
        /// Where the file does not say.
        #[serde(default = "defaults::latency")]
        latency: Text<Latency>,
    },
}

/// What every switch does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Switch {
    /// A packet is marked if at least so many wait before it.
    pub mark_packets: u32,
    /// A packet is dropped if so many wait; with PAUSE, none is.
    pub queue_packets: u32,
    /// One memory for all output queues, besides the limit of each.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shared: Option<Shared>,
    /// PAUSE above `high_packets` from one link, until `low_packets`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pause: Option<Pause>,
    /// Between equal paths: "flow", "packet" or "destination".
    pub paths: Paths,
    /// For sums; of every switch, whatever a fabric file says of one.
    pub memory: Text<Bytes>,
    /// For protocols with slots.
    pub slots: Slots,
}

impl Default for Switch {
    /// PANAMA's threshold and memory; the queue of htsim's and ns-3's studies.
    fn default() -> Self {
        Switch {
            mark_packets: 85,
            queue_packets: 250,
            shared: None,
            pause: None,
            paths: Paths::Flow,
            memory: Text(Bytes(crate::simulation::MEMORY_BYTES)),
            slots: Slots::default(),
        }
    }
}

/// Memory of a switch's output queues, with dynamic thresholds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shared {
    /// Of one switch.
    pub bytes: Text<Bytes>,
    /// A queue may hold so many times what is free.
    #[serde(default = "defaults::alpha")]
    pub alpha: f64,
}

/// Thresholds of PAUSE, in packets that came by one link.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pause {
    /// XOFF above.
    pub high_packets: u32,
    /// XON at or below.
    pub low_packets: u32,
}

/// Choice between equal paths.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Paths {
    /// Hash of the flow.
    Flow,
    /// Hash of the packet.
    Packet,
    /// Digits of the destination.
    Destination,
}

/// Hosts' transport.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tcp {
    /// Payload of a segment.
    pub segment_bytes: u16,
    /// Added to it on the wire.
    pub header_bytes: u16,
    /// An acknowledgement on the wire.
    pub ack_bytes: u16,
    /// Segments.
    pub initial_window: u32,
    /// Socket buffer.
    pub socket: Text<Bytes>,
    /// Least time-out.
    pub min_rto: Text<Latency>,
    /// Whether marks are answered: DCTCP, or loss only.
    pub ecn: bool,
    /// DCTCP's g.
    pub gain: f64,
    /// DCTCP's first estimate.
    pub alpha: f64,
    /// Duplicate acknowledgements that mean loss.
    pub reordering: u32,
}

impl Default for Tcp {
    fn default() -> Self {
        let tcp = crate::tcp::TcpConfig::default();
        Tcp {
            segment_bytes: tcp.segment_bytes,
            header_bytes: tcp.header_bytes,
            ack_bytes: tcp.ack_bytes,
            initial_window: tcp.window_initial as u32,
            socket: Text(Bytes(4 << 20)),
            min_rto: Text(Latency(tcp.rto_min_ps / 1000)),
            ecn: tcp.ecn,
            gain: tcp.gain,
            alpha: tcp.alpha_initial,
            reordering: tcp.reordering,
        }
    }
}

/// Flows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Flows {
    /// Poisson arrivals between uniformly drawn hosts.
    Poisson {
        /// Share of the hosts' links that payload takes.
        load: f64,
        /// A published distribution, or a file of "bytes,share" lines.
        sizes: String,
    },
    /// Every host sends to another one, from time 0.
    Permutation {
        /// Each.
        bytes: u64,
    },
    /// A file of "start_us,src,dst,bytes" lines, hosts by number, in the order of their starts.
    Trace {
        /// Relative to the configuration.
        path: String,
    },
    /// One flow.
    One {
        /// When.
        #[serde(default = "defaults::no_time")]
        start: Text<Latency>,
        /// Host by number.
        src: u32,
        /// Host by number.
        dst: u32,
        /// Payload.
        bytes: u64,
    },
}

/// Links to be looked at.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Samples {
    /// How often.
    pub every: Text<Latency>,
    /// Each as "from>to", by the names of neighbours.
    pub links: Vec<String>,
}

mod defaults {
    use super::*;

    pub fn name() -> String {
        "run".to_owned()
    }
    pub fn seed() -> u64 {
        1
    }
    pub fn threads() -> u16 {
        1
    }
    pub fn alpha() -> f64 {
        1.0
    }
    pub fn rate() -> Text<Rate> {
        Text(Rate(10_000_000_000))
    }
    pub fn latency() -> Text<Latency> {
        Text(Latency(1_000))
    }
    pub fn no_time() -> Text<Latency> {
        Text(Latency(0))
    }
    pub fn steps() -> u32 {
        1
    }
    pub fn buckets() -> u32 {
        1
    }
    pub fn overlap() -> bool {
        true
    }
    pub fn workers() -> [u32; 2] {
        [16, 96]
    }
    pub fn models() -> Vec<String> {
        crate::job::MODELS.iter().map(|m| m.name.to_owned()).collect()
    }
    pub fn scale() -> f64 {
        1.0
    }
}
