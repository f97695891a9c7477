//! Schemes by which jobs reduce, and the switches' share in them.

use netsum_lease::wire_bytes;
use netsum_proto::CongestionRule;
use netsum_proto::atp::{Claim, Policy};
use netsum_topo::Latency;
use netsum_wire::SlotPolicy;
use serde::{Deserialize, Serialize};

use super::Text;
use crate::aggregation::{PoolConfig, SlotConfig, SlotSharing, TreeConfig};
use crate::job::{self, HostAlgorithm};

/// How jobs reduce.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Scheme {
    /// Name of the scheme.
    pub kind: SchemeKind,
    /// Maximum number of trees per job; 1 to 64.
    pub trees: u8,
    /// For `ring` and `ring-no-ecn`: number of rings per job, which share the gradients evenly, each over connections of
    /// its own; 1 to 64. Jobs with schedules and fluids have one.
    pub rings: u8,
    /// Maximum number of fragments in flight per tree or server, 1 to 16,384; a constant for `switchml*` and
    /// `atp-no-control`; for `switchml` the number of slots of the pool.
    pub window: u16,
    /// Payload of a fragment; 64 to 8,960 in steps of 8.
    pub fragment_bytes: u16,
    /// Switches by name at which trees are rooted if possible; empty: those with the least load.
    pub roots: Vec<String>,
    /// For jobs with schedules, what goes through trees or slots: "allreduce", or "all", which is also reduce-scatter,
    /// all-gather, reduce, broadcast and barrier, of groups with at most 64 ranks. Trees, servers and pools then have
    /// copies, at most 32; with `panama`, `panama-per-branch`, `panama-coupled`, `switchml*`, `atp`, `atp-no-control`
    /// and `switchml`.
    pub collectives: Collectives,
    /// For `atp`: servers per job; 1 to 32.
    pub servers: u8,
    /// For `atp`: slots guaranteed to the job at each switch.
    pub guaranteed_slots: u32,
    /// For `atp`: priority beyond the guarantees; higher values win.
    pub priority: u8,
}

impl Default for Scheme {
    fn default() -> Self {
        Scheme {
            kind: SchemeKind::Panama,
            trees: 4,
            rings: 1,
            window: 512,
            fragment_bytes: 1408,
            roots: Vec::new(),
            collectives: Collectives::Allreduce,
            servers: 1,
            guaranteed_slots: 0,
            priority: 0,
        }
    }
}

/// The schemes of PANAMA's study, and more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SchemeKind {
    /// Each flow and job alone on the fabric; jobs as `panama`.
    #[serde(rename = "ideal")]
    Ideal,
    /// No packets: flows, and operations of jobs, are fluids with max-min shares of links. Jobs without a scheme of
    /// their own as `panama`.
    #[serde(rename = "fluid")]
    Fluid,
    /// Ring between hosts.
    #[serde(rename = "ring")]
    Ring,
    /// The same over connections that ignore marks; background flows react to them.
    #[serde(rename = "ring-no-ecn")]
    RingNoEcn,
    /// Halving and doubling between hosts.
    #[serde(rename = "halving-doubling")]
    HalvingDoubling,
    /// Every worker is the server of a share of the gradients.
    #[serde(rename = "parameter-server")]
    ParameterServer,
    /// The same in chunks, whose sums leave as soon as they are complete: netsum's own between hosts.
    #[serde(rename = "shares")]
    Shares,
    /// Trees without congestion control.
    #[serde(rename = "switchml*")]
    TreesNoControl,
    /// Trees with the paper's control: one window per tree, marks of all branches combined.
    #[serde(rename = "panama")]
    Panama,
    /// The same; a switch releases a sum once seven of eight children have contributed: 0.875, assumed to be the
    /// paper's 0.88.
    #[serde(rename = "panama-0.88")]
    Panama88,
    /// The same with fifteen of sixteen children.
    #[serde(rename = "panama-0.94")]
    Panama94,
    /// Trees with a virtual window per branch.
    #[serde(rename = "panama-per-branch")]
    PanamaPerBranch,
    /// The trees of a job share the increase of one window.
    #[serde(rename = "panama-coupled")]
    PanamaCoupled,
    /// Slots at the racks of workers and servers, first come first served; servers add the rest.
    #[serde(rename = "atp")]
    Atp,
    /// The same with a fixed window.
    #[serde(rename = "atp-no-control")]
    AtpNoControl,
    /// A static pool at one switch, without congestion control. At most 32 workers.
    #[serde(rename = "switchml")]
    Switchml,
}

/// What a schedule's groups do in the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Collectives {
    /// Allreduces alone.
    Allreduce,
    /// All that switches help with.
    All,
}

/// How switches share the slots of `atp`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Slots {
    /// Slots of a switch, and rows for pools of `switchml`, 1 to 2²⁰; absent: as many fragments of the run as `memory`
    /// holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u32>,
    /// "partition", "first-come" or "preempt".
    pub policy: SlotPolicy,
    /// Time without an addition after which a slot is flushed.
    pub straggler: Text<Latency>,
    /// With "preempt": time without an addition after which a slot yields to any job.
    pub patience: Text<Latency>,
}

impl Default for Slots {
    fn default() -> Self {
        Slots {
            count: None,
            policy: SlotPolicy::FirstCome,
            straggler: Text(Latency(20_000_000)),
            patience: Text(Latency(1_000_000)),
        }
    }
}

impl Slots {
    /// The sharing of slots; `memory_bytes` per switch, `fragment_bytes` of the run's scheme.
    pub(super) fn sharing(&self, memory_bytes: u64, fragment_bytes: u16) -> SlotSharing {
        let room = (memory_bytes / u64::from(fragment_bytes)).min(u64::from(SLOTS_MAX)) as u32;
        SlotSharing {
            slots: self.count.unwrap_or(room.max(1)),
            policy: match self.policy {
                SlotPolicy::Partition => Policy::Partition,
                SlotPolicy::FirstCome => Policy::FirstCome,
                SlotPolicy::Preempt => Policy::Preempt { patience_ns: self.patience.0.0 },
            },
            straggler_ns: self.straggler.0.0,
        }
    }
}

/// Maximum number of slots of a switch: the end of a job scans all of them.
pub(super) const SLOTS_MAX: u32 = 1 << 20;

impl Scheme {
    /// The scheme as jobs take it; `copies`: with trees or servers for all collectives.
    pub(super) fn of_jobs(&self, copies: bool) -> job::Scheme {
        let config = |congestion, release_permille| job::Scheme::Trees {
            trees: self.trees,
            config: TreeConfig {
                window_max: self.window,
                fragment_bytes: self.fragment_bytes,
                congestion,
                release_permille,
                copies,
            },
        };
        let rings = self.rings;
        let hosts = |algorithm| job::Scheme::Hosts { algorithm, ecn: true, rings };
        match self.kind {
            SchemeKind::Ring => hosts(HostAlgorithm::Ring),
            SchemeKind::RingNoEcn => {
                job::Scheme::Hosts { algorithm: HostAlgorithm::Ring, ecn: false, rings }
            }
            SchemeKind::HalvingDoubling => hosts(HostAlgorithm::HalvingDoubling),
            SchemeKind::ParameterServer => hosts(HostAlgorithm::ParameterServer),
            SchemeKind::Shares => hosts(HostAlgorithm::Shares),
            SchemeKind::TreesNoControl => config(CongestionRule::Fixed(self.window), 1000),
            SchemeKind::Panama | SchemeKind::Ideal | SchemeKind::Fluid => {
                config(CongestionRule::Panama, 1000)
            }
            SchemeKind::Panama88 => config(CongestionRule::Panama, 875),
            SchemeKind::Panama94 => config(CongestionRule::Panama, 937),
            SchemeKind::PanamaPerBranch => config(CongestionRule::PerBranch, 1000),
            SchemeKind::PanamaCoupled => {
                config(CongestionRule::Coupled { trees: self.trees }, 1000)
            }
            SchemeKind::Atp => {
                let packet_bytes = wire_bytes(self.fragment_bytes);
                self.slots(CongestionRule::Aimd { packet_bytes }, copies)
            }
            SchemeKind::AtpNoControl => self.slots(CongestionRule::Fixed(self.window), copies),
            SchemeKind::Switchml => job::Scheme::Pool(PoolConfig {
                slots: self.window,
                fragment_bytes: self.fragment_bytes,
                timeout_ns: PoolConfig::TIMEOUT_NS,
                copies,
            }),
        }
    }

    /// Whether jobs do all collectives in the network.
    pub(super) fn has_copies(&self) -> bool {
        self.collectives == Collectives::All
    }

    /// Whether the scheme can do all collectives in the network: sums that lack ranks, and hosts, cannot.
    pub(super) fn can_have_copies(&self) -> bool {
        matches!(
            self.kind,
            SchemeKind::Panama
                | SchemeKind::PanamaPerBranch
                | SchemeKind::PanamaCoupled
                | SchemeKind::TreesNoControl
                | SchemeKind::Atp
                | SchemeKind::AtpNoControl
                | SchemeKind::Switchml
        )
    }

    /// Whether the operations of jobs can be fluids: servers and pools add where the slots are, which packets decide.
    pub(super) fn can_flow(&self) -> bool {
        let packets = [SchemeKind::Atp, SchemeKind::AtpNoControl, SchemeKind::Switchml];
        !packets.contains(&self.kind)
    }

    fn slots(&self, congestion: CongestionRule, copies: bool) -> job::Scheme {
        let claim = Claim {
            guaranteed: self.guaranteed_slots,
            priority: self.priority,
            ..Claim::default()
        };
        job::Scheme::Slots {
            servers: self.servers,
            config: SlotConfig {
                window_max: self.window,
                fragment_bytes: self.fragment_bytes,
                congestion,
                claim,
                copies,
            },
        }
    }
}
