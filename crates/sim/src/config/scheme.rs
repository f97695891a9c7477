//! How jobs reduce: schemes by name, and what switches do for them.

use netsum_lease::wire_bytes;
use netsum_proto::CongestionRule;
use netsum_proto::atp::{Claim, Policy};
use netsum_topo::Latency;
use netsum_wire::{Protocol, SlotPolicy};
use serde::{Deserialize, Serialize};

use super::Text;
use crate::aggregation::{PoolConfig, SlotConfig, SlotSharing, TreeConfig};
use crate::job::{self, HostAlgorithm};

/// How jobs reduce.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Scheme {
    /// Which.
    pub kind: SchemeKind,
    /// Trees per job, at most.
    pub trees: u8,
    /// Fragments in flight per tree or server, at most; for `switchml*` and `atp-no-control` always; for `switchml` the
    /// slots of the pool.
    pub window: u16,
    /// Payload of a fragment.
    pub fragment_bytes: u16,
    /// Switches by name at which trees shall be rooted if they can be; none: those with the least to do.
    pub roots: Vec<String>,
    /// For `atp`: servers per job.
    pub servers: u8,
    /// For `atp`: slots that are the job's at each switch whenever it asks.
    pub guaranteed_slots: u32,
    /// For `atp`: who yields to whom beyond the guarantees; more is stronger.
    pub priority: u8,
}

impl Default for Scheme {
    fn default() -> Self {
        Scheme {
            kind: SchemeKind::Panama,
            trees: 4,
            window: 512,
            fragment_bytes: 1408,
            roots: Vec::new(),
            servers: 1,
            guaranteed_slots: 0,
            priority: 0,
        }
    }
}

/// The schemes of PANAMA's study, and more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SchemeKind {
    /// Flows and jobs each alone on the fabric; jobs as `panama`.
    #[serde(rename = "ideal")]
    Ideal,
    /// No packets: flows are fluids that share links max-min at once. No jobs.
    #[serde(rename = "fluid")]
    Fluid,
    /// Ring between hosts.
    #[serde(rename = "ring")]
    Ring,
    /// The same over connections that do not answer marks; those of flows do.
    #[serde(rename = "ring-no-ecn")]
    RingNoEcn,
    /// Halving and doubling between hosts.
    #[serde(rename = "halving-doubling")]
    HalvingDoubling,
    /// Every worker serves a share.
    #[serde(rename = "parameter-server")]
    ParameterServer,
    /// Trees without congestion control.
    #[serde(rename = "switchml*")]
    TreesNoControl,
    /// Trees with the paper's control: one window per tree, marks of all branches in one.
    #[serde(rename = "panama")]
    Panama,
    /// The same; a switch sends on once seven of eight children are in: 0.875, which the paper is taken to have rounded.
    #[serde(rename = "panama-0.88")]
    Panama88,
    /// The same with fifteen of sixteen.
    #[serde(rename = "panama-0.94")]
    Panama94,
    /// Trees with a virtual window per branch.
    #[serde(rename = "panama-per-branch")]
    PanamaPerBranch,
    /// The increase of one window is shared by the trees of a job.
    #[serde(rename = "panama-coupled")]
    PanamaCoupled,
    /// Slots at the racks of workers and servers, whoever comes first; the rest at servers.
    #[serde(rename = "atp")]
    Atp,
    /// The same with a fixed window.
    #[serde(rename = "atp-no-control")]
    AtpNoControl,
    /// A static pool at one switch, and no control. At most 32 workers.
    #[serde(rename = "switchml")]
    Switchml,
}

/// How switches share the slots of `atp`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Slots {
    /// Slots of a switch, and rows for pools of `switchml`; none given: what `memory` has room for, in the run's
    /// fragments.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u32>,
    /// "partition", "first-come" or "preempt".
    pub policy: SlotPolicy,
    /// A slot in which nothing was added for so long is let go.
    pub straggler: Text<Latency>,
    /// With "preempt": a slot in which nothing was added for so long yields to anybody.
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
    /// What switches do; `memory_bytes` of each, `fragment_bytes` of the run's scheme.
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

/// Of one switch: all are looked at when a job ends.
pub(super) const SLOTS_MAX: u32 = 1 << 20;

impl Scheme {
    /// What jobs do.
    pub(super) fn of_jobs(&self) -> job::Scheme {
        let config = |congestion, release_permille| job::Scheme::Trees {
            trees: self.trees,
            config: TreeConfig {
                window_max: self.window,
                fragment_bytes: self.fragment_bytes,
                congestion,
                release_permille,
            },
        };
        let hosts = |algorithm| job::Scheme::Hosts { algorithm, ecn: true };
        match self.kind {
            SchemeKind::Ring => hosts(HostAlgorithm::Ring),
            SchemeKind::RingNoEcn => {
                job::Scheme::Hosts { algorithm: HostAlgorithm::Ring, ecn: false }
            }
            SchemeKind::HalvingDoubling => hosts(HostAlgorithm::HalvingDoubling),
            SchemeKind::ParameterServer => hosts(HostAlgorithm::ParameterServer),
            SchemeKind::TreesNoControl => config(CongestionRule::Fixed(self.window), 1000),
            SchemeKind::Fluid => unreachable!("a run of fluids has no jobs: it was checked"),
            SchemeKind::Panama | SchemeKind::Ideal => config(CongestionRule::Panama, 1000),
            SchemeKind::Panama88 => config(CongestionRule::Panama, 875),
            SchemeKind::Panama94 => config(CongestionRule::Panama, 937),
            SchemeKind::PanamaPerBranch => config(CongestionRule::PerBranch, 1000),
            SchemeKind::PanamaCoupled => {
                config(CongestionRule::Coupled { trees: self.trees }, 1000)
            }
            SchemeKind::Atp => {
                let packet_bytes = wire_bytes(Protocol::Atp, self.fragment_bytes);
                self.slots(CongestionRule::Aimd { packet_bytes })
            }
            SchemeKind::AtpNoControl => self.slots(CongestionRule::Fixed(self.window)),
            SchemeKind::Switchml => job::Scheme::Pool(PoolConfig {
                slots: self.window,
                fragment_bytes: self.fragment_bytes,
                timeout_ns: PoolConfig::TIMEOUT_NS,
            }),
        }
    }

    fn slots(&self, congestion: CongestionRule) -> job::Scheme {
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
            },
        }
    }
}
