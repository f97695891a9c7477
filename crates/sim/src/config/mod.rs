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
mod work;

use serde::{Deserialize, Serialize};

pub use build::{Built, Jobs};
pub use check::{load, parse};
pub use jobs::{Job, Layer, Mix, MixOrder, MixPlacement};
pub use netsum_wire::SlotPolicy;
pub use scenario::{FaultEvent, Scenario};
pub use scheme::{Scheme, SchemeKind, Slots};
pub use source::ConfigError;
pub use units::Text;
pub use work::{Parallel, Ranks, Replay, TraceFormat};

use netsum_topo::{Bytes, Latency, Rate};

/// Configuration of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Name of the run in reports.
    #[serde(default = "defaults::name")]
    pub name: String,
    /// Seed of all random numbers.
    #[serde(default = "defaults::seed")]
    pub seed: u64,
    /// Simulated time, above 0, with `drain` at most an hour; nothing starts after it.
    pub duration: Text<Latency>,
    /// Additional time for flows and jobs that have started; 0 stops them at `duration`.
    #[serde(default = "defaults::no_time")]
    pub drain: Text<Latency>,
    /// End the run with the last job, even if flows are left.
    #[serde(default)]
    pub stop_with_jobs: bool,
    /// Format of the tables: "csv" or "parquet".
    #[serde(default)]
    pub format: Format,
    /// Check conservation and order during the run instead of at its end: several times slower.
    #[serde(default)]
    pub checked: bool,
    /// Skip what repeats itself exactly, instead of simulating it. Results do not depend on it, so the effective
    /// configuration omits it.
    #[serde(default = "defaults::skip_repeats", skip_serializing)]
    pub skip_repeats: bool,
    /// Maximum number of threads. Results do not depend on it, so the effective configuration omits it.
    #[serde(default = "defaults::threads", skip_serializing)]
    pub threads: u16,
    /// Hosts, switches and links.
    pub fabric: Fabric,
    /// Behaviour of all switches.
    #[serde(default)]
    pub switch: Switch,
    /// Hosts' own output queues.
    #[serde(default)]
    pub host: Host,
    /// Transport of hosts.
    #[serde(default)]
    pub tcp: Tcp,
    /// How jobs reduce, unless a job has its own scheme.
    #[serde(default)]
    pub scheme: Scheme,
    /// Background flows.
    #[serde(default)]
    pub flows: Vec<Flows>,
    /// Training jobs, listed.
    #[serde(default)]
    pub jobs: Vec<Job>,
    /// Training jobs, drawn at random for a load.
    #[serde(default)]
    pub mix: Option<Mix>,
    /// A file of faults, relative to the configuration.
    #[serde(default)]
    pub scenario: Option<String>,
    /// Links that are sampled regularly.
    #[serde(default)]
    pub samples: Option<Samples>,
}

/// Format of tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Format {
    /// Lines of text, readable during the run.
    #[default]
    Csv,
    /// Typed columns, readable once the run has ended or was interrupted.
    Parquet,
}

impl Format {
    /// All formats.
    pub const ALL: [Format; 2] = [Format::Csv, Format::Parquet];

    /// Name in configurations, and the files' extension.
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
        /// Number of pods; even.
        k: u32,
        /// Rate of every link.
        #[serde(default = "defaults::rate")]
        rate: Text<Rate>,
        /// Propagation time of every link.
        #[serde(default = "defaults::latency")]
        latency: Text<Latency>,
    },
    /// Racks under spines; oversubscribed if hosts have more than uplinks.
    LeafSpine {
        /// Number of racks.
        racks: u32,
        /// Hosts per rack.
        hosts_per_rack: u32,
        /// Number of spines.
        spines: u32,
        /// Rate of a host's link.
        #[serde(default = "defaults::rate")]
        rate: Text<Rate>,
        /// Rate of a link between rack and spine.
        #[serde(default = "defaults::rate")]
        uplink_rate: Text<Rate>,
        /// Propagation time of every link.
        #[serde(default = "defaults::latency")]
        latency: Text<Latency>,
    },
    /// One switch.
    SingleSwitch {
        /// Number of hosts.
        hosts: u32,
        /// Rate of every link.
        #[serde(default = "defaults::rate")]
        rate: Text<Rate>,
        /// Propagation time of every link.
        #[serde(default = "defaults::latency")]
        latency: Text<Latency>,
    },
    /// Two switches, one link between them.
    Dumbbell {
        /// Number of hosts at each switch.
        pairs: u32,
        /// Rate of a host's link.
        #[serde(default = "defaults::rate")]
        rate: Text<Rate>,
        /// Rate of the link between the switches.
        #[serde(default = "defaults::rate")]
        bottleneck: Text<Rate>,
        /// Propagation time of every link.
        #[serde(default = "defaults::latency")]
        latency: Text<Latency>,
    },
    /// A fabric file.
    File {
        /// Path, relative to the configuration.
        path: String,
        /// Propagation time of links for which the file has none.
        #[serde(default = "defaults::latency")]
        latency: Text<Latency>,
    },
}

/// Behaviour of switches.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Switch {
    /// A packet is marked if at least this many packets wait before it.
    pub mark_packets: u32,
    /// A packet is dropped if this many packets wait, at least 1; with PAUSE, no packet is dropped.
    pub queue_packets: u32,
    /// One memory for all output queues, in addition to the limit of each queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shared: Option<Shared>,
    /// PAUSE is sent to a link above `high_packets` and ended at `low_packets`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pause: Option<Pause>,
    /// Choice between equal paths: "flow", "packet" or "destination".
    pub paths: Paths,
    /// Memory for sums in every switch; overrides the fabric file.
    pub memory: Text<Bytes>,
    /// Slots of protocols with slots.
    pub slots: Slots,
}

impl Default for Switch {
    /// PANAMA's threshold and memory; the queue length of htsim's and ns-3's studies.
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
    /// Memory of one switch.
    pub bytes: Text<Bytes>,
    /// A queue may hold this many times the free memory; above 0.
    #[serde(default = "defaults::alpha")]
    pub alpha: f64,
}

/// Thresholds of PAUSE, in packets per ingress link.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pause {
    /// XOFF is sent above this.
    pub high_packets: u32,
    /// XON is sent at or below this, which is less than `high_packets`.
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

/// Hosts' own output queues, without a limit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Host {
    /// "fq-codel": a queue per flow, served in turns, the default of Linux. "fifo": first in, first out, so that a
    /// flow's share of its host's link follows its window.
    pub queue: HostQueues,
    /// With "fq-codel": most of a flow that waits in the queue, at least two packets. The rest is in the flow's socket,
    /// where nothing marks, or with the worker, which has not sent it.
    pub small_queue: Text<Bytes>,
    /// A packet that waits at least this long, above 0, is marked, as by Linux's `fq` and `fq_codel` with this option;
    /// absent: hosts do not mark.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ce_threshold: Option<Text<Latency>>,
}

impl Default for Host {
    /// What Linux does; of a worker's fragments 128 KiB at least wait in its host's queue.
    fn default() -> Self {
        Host { queue: HostQueues::FqCodel, small_queue: Text(Bytes(128 << 10)), ce_threshold: None }
    }
}

/// Order in which a host sends.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HostQueues {
    /// A queue per flow.
    FqCodel,
    /// One queue.
    Fifo,
}

/// Transport of hosts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tcp {
    /// Payload of a segment; at least 1, with `header_bytes` at most 65,535.
    pub segment_bytes: u16,
    /// Bytes added to it on the wire.
    pub header_bytes: u16,
    /// Size of an acknowledgement on the wire.
    pub ack_bytes: u16,
    /// Initial window in segments; at least 1.
    pub initial_window: u32,
    /// Size of the socket buffer; at least a segment.
    pub socket: Text<Bytes>,
    /// Minimum retransmission time-out; above 0.
    pub min_rto: Text<Latency>,
    /// Whether the transport reacts to marks (DCTCP) or to loss only.
    pub ecn: bool,
    /// DCTCP's gain g; above 0, at most 1.
    pub gain: f64,
    /// DCTCP's initial estimate; 0 to 1.
    pub alpha: f64,
    /// Number of later segments whose arrival indicates a loss; at least 1.
    pub reordering: u32,
    /// Windows follow delays, as Swift's, instead of marks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swift: Option<Swift>,
}

/// Swift's parameters (Kumar et al., SIGCOMM 2020), without pacing below one segment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Swift {
    /// Round-trip time that a large window aims at; links stay idle if the empty network's is longer.
    pub target: Text<Latency>,
    /// Longest time by which small windows aim at more.
    #[serde(default = "defaults::swift_range")]
    pub range: Text<Latency>,
    /// Segments by which a window grows in a round trip; above 0.
    #[serde(default = "defaults::swift_increase")]
    pub increase: f64,
    /// Part of the excess of the delay by which a window is cut; above 0, at most 1.
    #[serde(default = "defaults::swift_decrease")]
    pub decrease: f64,
    /// Largest cut, as a share of the window; above 0, below 1.
    #[serde(default = "defaults::swift_decrease_max")]
    pub decrease_max: f64,
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
            swift: None,
        }
    }
}

/// Background flows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Flows {
    /// Poisson arrivals between uniformly drawn hosts.
    Poisson {
        /// Share of the hosts' links that payload takes; above 0, all loads together at most 1.
        load: f64,
        /// A published distribution, or a file of "bytes,share" lines.
        sizes: String,
    },
    /// Every host sends to another one, from time 0.
    Permutation {
        /// Bytes of each flow.
        bytes: u64,
    },
    /// A file of "start_us,src,dst,bytes" lines, hosts by number, in the order of their starts.
    Trace {
        /// Path, relative to the configuration.
        path: String,
    },
    /// One flow.
    One {
        /// Start time.
        #[serde(default = "defaults::no_time")]
        start: Text<Latency>,
        /// Source host, by number.
        src: u32,
        /// Destination host, by number.
        dst: u32,
        /// Bytes of payload.
        bytes: u64,
    },
}

/// Links to be sampled.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Samples {
    /// Sampling interval; above 0.
    pub every: Text<Latency>,
    /// Links "from>to" between neighbours; `["*"]`: all of them, both ways.
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
    pub fn skip_repeats() -> bool {
        true
    }

    pub fn threads() -> u16 {
        1
    }
    pub fn swift_range() -> Text<Latency> {
        Text(Latency(0))
    }
    pub fn swift_increase() -> f64 {
        1.0
    }
    pub fn swift_decrease() -> f64 {
        0.8
    }
    pub fn swift_decrease_max() -> f64 {
        0.5
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
    pub fn one() -> u32 {
        1
    }
    pub fn nothing() -> Text<Bytes> {
        Text(Bytes(0))
    }
    pub fn sharding() -> crate::schedule::parallel::Sharding {
        crate::schedule::parallel::Sharding::None
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
