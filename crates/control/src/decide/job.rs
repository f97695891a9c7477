//! A job as the controller sees it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use netsum_topo::{CongestionRule, DEFAULT_TENANT, NodeId, Plan, Protocol, SumOrder};

use netsum_wire::tag::JobKey;

use super::event::{Refusal, SessionId};
use super::suspicion::Suspicion;
use crate::pb;

/// What a job asked for, checked.
#[derive(Debug, Clone, PartialEq)]
pub struct JobSpec {
    /// For people.
    pub name: String,
    /// Ranks.
    pub size: u32,
    /// 1 to `TREES_MAX`.
    pub max_trees: u32,
    /// Above 0, at most 1.
    pub release_fraction: f32,
    /// How workers answer marks.
    pub congestion: CongestionRule,
    /// Smaller buffers go by the host path.
    pub min_bytes: u64,
    /// How sums are to be made; `None`: the controller chooses.
    pub protocol: Option<Protocol>,
    /// Whose it is.
    pub tenant: String,
    /// Between reals and integers of slots; 0: shared exponents.
    pub scale: f32,
}

/// Where a job stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Ranks are missing.
    Joining,
    /// All have been there.
    Running,
    /// Nobody is left, or it was stopped.
    Ended,
    /// No rank was connected for too long: its leases were taken back. Taken up again if a rank comes back.
    Abandoned,
}

impl Phase {
    /// Whether the job may still use leases.
    pub fn is_live(self) -> bool {
        matches!(self, Phase::Joining | Phase::Running)
    }
}

/// Where a rank stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemberState {
    /// Has not joined yet.
    Awaited,
    /// Its stream is open.
    Connected(SessionId),
    /// Its stream ended. It is lost if its peers agree that it is unreachable.
    Away {
        /// When the stream ended, in milliseconds.
        since_ms: u64,
        /// Its peers' opinion counts from this time on.
        grace_until_ms: u64,
    },
    /// Left in order.
    Left,
    /// Its peers found it unreachable.
    Lost,
}

impl MemberState {
    /// Whether the rank takes no part in the job any more.
    pub fn is_gone(self) -> bool {
        matches!(self, MemberState::Left | MemberState::Lost)
    }
}

/// A rank.
#[derive(Debug, Clone, PartialEq)]
pub struct Member {
    /// Where it stands.
    pub state: MemberState,
    /// Its host; `None` while awaited, or when the fabric no longer has it.
    pub host: Option<NodeId>,
    /// Where switches find it.
    pub udp_address: Option<SocketAddr>,
    /// For people.
    pub mesh_address: String,
    /// For people.
    pub pid: u32,
    /// Of its interface; 0 if unknown.
    pub mtu: u32,
    /// As last reported.
    pub statistics: pb::WorkerHeartbeat,
    /// When the last report of its open stream arrived.
    pub(super) reported_ms: Option<u64>,
}

/// A plan whose leases are not yet confirmed.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Pending {
    pub plan: Plan,
    /// Leases without an answer, by switch and tree.
    pub awaiting: BTreeSet<(NodeId, u8)>,
    pub deadline_ms: u64,
}

/// A lease that a switch did not install.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct LeaseRefusal {
    /// The job does not ask the switch again before this time.
    pub until_ms: u64,
    /// For people.
    pub why: String,
    /// The switch has not answered. A late answer, or a new stream, ends the refusal.
    pub is_late: bool,
}

/// A job.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    /// Never 0; not reused while the job is alive.
    pub id: u32,
    /// What was asked for.
    pub spec: JobSpec,
    /// The key of its packets' tags; `None`: it was made on a trusted fabric.
    pub key: Option<JobKey>,
    /// Seconds since 1970.
    pub created_unix_s: f64,
    pub(super) join_by_ms: u64,
    /// By rank. Shared with copies of the state until they change.
    pub members: Vec<Arc<Member>>,
    /// Where it stands.
    pub phase: Phase,
    /// The newest epoch that was given out, to switches or workers; 0 before the first. Wraps around.
    pub epoch: u16,
    /// Fixed with the first plan.
    pub order: Option<SumOrder>,
    /// Fixed with the first plan.
    pub fragment_bytes: Option<u32>,
    /// The plan that the workers have.
    pub current: Option<Plan>,
    pub(super) pending: Option<Pending>,
    /// Switches that may hold a lease of it.
    pub(super) granted: BTreeSet<NodeId>,
    /// Switches that are not asked for leases.
    pub(super) refusals: BTreeMap<NodeId, LeaseRefusal>,
    /// Plan anew at that time.
    pub(super) replan_at_ms: Option<u64>,
    /// Check at that time whether more trees are possible.
    pub(super) improve_at_ms: Option<u64>,
    /// Switches that seem not to answer on the data plane.
    pub(super) suspicion: Option<Suspicion>,
    /// Since when ranks report trees of the plan in use as silent.
    pub(super) silent_since_ms: Option<u64>,
    /// When a rank last reported new results of the plan in use.
    pub(super) worked_ms: Option<u64>,
    /// When the workers got their plan.
    pub(super) adopted_ms: u64,
    /// When a worker was last connected or a switch last counted its packets.
    pub(super) active_ms: u64,
}

impl JobSpec {
    /// Checks a request. `min_bytes`: where the request has none.
    pub fn check(request: &pb::CreateJobRequest, min_bytes: u64) -> Result<JobSpec, Refusal> {
        let invalid = |problem: String| Err(Refusal::Invalid(problem));
        let size = request.size;
        if size == 0 || size > RANKS_MAX {
            return invalid(format!("a job has 1 to {RANKS_MAX} ranks, not {size}"));
        }
        if request.name.len() > NAME_MAX {
            return invalid(format!("a job's name has at most {NAME_MAX} bytes"));
        }
        let protocol = match request.protocol.as_str() {
            "" => Some(Protocol::Panama),
            AUTO => None,
            name => match name.parse() {
                Ok(protocol) => Some(protocol),
                Err(problem) => return invalid(format!("{problem}, or {AUTO}")),
            },
        };
        if request.scale != 0.0 && !(request.scale.is_normal() && request.scale > 0.0) {
            return invalid(format!(
                "scale {} is no factor; use 0 for shared exponents, or 1e8 as ATP does",
                request.scale
            ));
        }
        let release_fraction =
            if request.release_fraction == 0.0 { 1.0 } else { request.release_fraction };
        if !(RELEASE_MIN..=1.0).contains(&release_fraction) {
            return invalid(format!(
                "release_fraction {release_fraction} is not between {RELEASE_MIN} and 1"
            ));
        }
        if release_fraction < 1.0 && protocol.is_some_and(|p| p != Protocol::Panama) {
            return invalid(
                "release_fraction below 1 is for protocol panama; others wait for all".to_owned(),
            );
        }
        if release_fraction < 1.0 && size > RANKS_NAMED {
            return invalid(format!(
                "release_fraction below 1 needs the missing ranks named in each packet, which holds {RANKS_NAMED}; \
                 this job has {size}"
            ));
        }
        let congestion = match request.congestion.as_str() {
            "" => CongestionRule::default(),
            rule => rule.parse().map_err(Refusal::Invalid)?,
        };
        Ok(JobSpec {
            name: request.name.clone(),
            size,
            max_trees: if request.max_trees == 0 {
                TREES_MAX
            } else {
                request.max_trees.min(TREES_MAX)
            },
            release_fraction,
            congestion,
            min_bytes: request.min_bytes.unwrap_or(min_bytes),
            // Sums of a part of the ranks are panama's.
            protocol: if release_fraction < 1.0 { Some(Protocol::Panama) } else { protocol },
            tenant: match request.tenant.as_str() {
                "" => DEFAULT_TENANT.to_owned(),
                tenant => tenant.to_owned(),
            },
            scale: request.scale,
        })
    }
}

impl Member {
    /// A rank that has not been heard of.
    pub fn awaited() -> Member {
        Member {
            state: MemberState::Awaited,
            host: None,
            udp_address: None,
            mesh_address: String::new(),
            pid: 0,
            mtu: 0,
            statistics: pb::WorkerHeartbeat::default(),
            reported_ms: None,
        }
    }

    /// Its open stream.
    pub fn session(&self) -> Option<SessionId> {
        match self.state {
            MemberState::Connected(session) => Some(session),
            _ => None,
        }
    }
}

impl Job {
    /// A job that nobody has joined; it fails unless all have by `join_by_ms`.
    pub fn new(id: u32, spec: JobSpec, created_unix_s: f64, join_by_ms: u64) -> Job {
        let members = (0..spec.size).map(|_| Arc::new(Member::awaited())).collect();
        Job {
            id,
            spec,
            key: None,
            created_unix_s,
            join_by_ms,
            members,
            phase: Phase::Joining,
            epoch: 0,
            order: None,
            fragment_bytes: None,
            current: None,
            pending: None,
            granted: BTreeSet::new(),
            refusals: BTreeMap::new(),
            replan_at_ms: None,
            improve_at_ms: None,
            suspicion: None,
            silent_since_ms: None,
            worked_ms: None,
            adopted_ms: 0,
            active_ms: 0,
        }
    }

    /// A rank, to be changed.
    pub fn member_mut(&mut self, rank: u32) -> &mut Member {
        Arc::make_mut(&mut self.members[rank as usize])
    }

    /// Whether every rank has joined once: without that nobody knows where it is.
    pub(super) fn is_complete(&self) -> bool {
        self.members.iter().all(|member| member.state != MemberState::Awaited)
    }

    /// Switches that plans avoid as they seem not to answer on the data plane.
    pub(super) fn avoided(&self) -> impl Iterator<Item = NodeId> {
        self.suspicion.iter().flat_map(Suspicion::avoided)
    }

    /// Whether plans have no trees for now, as none seems to work.
    pub(super) fn gives_up_trees(&self) -> bool {
        self.suspicion.as_ref().is_some_and(Suspicion::gives_up)
    }

    /// The key that leases and plans of that protocol carry.
    pub(super) fn key_message(&self, protocol: Protocol) -> Option<pb::JobKey> {
        self.key.filter(|_| protocol.has_tags()).map(pb::JobKey::from)
    }

    /// A switch that did not confirm leases in time answers again: the job may ask it for leases.
    pub(super) fn forgive(&mut self, now_ms: u64, switch: NodeId) {
        if self.refusals.get(&switch).is_some_and(|refusal| refusal.is_late) {
            self.refusals.remove(&switch);
            self.improve_at_ms = Some(now_ms);
        }
    }

    /// Open streams of its workers.
    pub(super) fn sessions(&self) -> impl Iterator<Item = SessionId> {
        self.members.iter().filter_map(|member| member.session())
    }

    /// Whether its plan, or the one being installed, has that switch as a node.
    pub(super) fn uses(&self, switch: NodeId) -> bool {
        self.plans()
            .any(|plan| plan.trees.iter().any(|tree| tree.switches().any(|other| other == switch)))
    }

    /// The plan that the workers have and the one being installed.
    pub(super) fn plans(&self) -> impl Iterator<Item = &Plan> {
        self.current.iter().chain(self.pending.iter().map(|pending| &pending.plan))
    }

    /// Whether the fabric could give more than the newest plan has.
    pub(super) fn is_degraded(&self) -> bool {
        self.plans().last().is_some_and(|plan| !plan.reason.is_empty())
    }
}

/// What a job says that leaves its protocol to the controller.
pub(crate) const AUTO: &str = "auto";

/// Beyond this, joining all streams at one controller is another design.
const RANKS_MAX: u32 = 4096;
const NAME_MAX: usize = 128;
/// Ranks that a packet's `missing` bitmap can tell apart.
const RANKS_NAMED: u32 = 64;
/// Leases count in thousandths.
const RELEASE_MIN: f32 = 0.001;
/// The most uplinks of a rack that a job may take at once.
const TREES_MAX: u32 = 16;
