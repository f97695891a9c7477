//! State of a job.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use netsum_lease::{key_id, rank_key};
use netsum_topo::{CongestionRule, DEFAULT_TENANT, NodeId, Plan, Protocol, SumOrder};

use netsum_wire::MAX_SCOPED_RANKS;
use netsum_wire::tag::JobKey;

use super::event::{Refusal, SessionId};
use super::suspicion::Suspicion;
use crate::limits::{NAME_MAX, RANKS_MAX, TREES_MAX};
use crate::pb;
use crate::pb::worker_event::Event as WorkerMessage;

/// A validated request for a job.
#[derive(Debug, Clone, PartialEq)]
pub struct JobSpec {
    /// Name for users.
    pub name: String,
    /// Number of ranks.
    pub size: u32,
    /// Maximum number of trees without copies, 1 to `TREES_MAX`; with copies of trees, to half of that.
    pub max_trees: u32,
    /// Release fraction, above 0, at most 1.
    pub release_fraction: f32,
    /// Reaction of workers to congestion marks.
    pub congestion: CongestionRule,
    /// Smaller buffers use the host path.
    pub min_bytes: u64,
    /// Requested protocol; `None`: the controller chooses.
    pub protocol: Option<Protocol>,
    /// Tenant of the job.
    pub tenant: String,
    /// Scale between reals and integers of slots; 0: shared exponents.
    pub scale: f32,
    /// Whether the payloads of its packets are encrypted, at its own request or its tenant's.
    pub encrypt: bool,
    /// Whether its trees have copies, so that switches do all collectives.
    pub all_collectives: bool,
}

/// Phase of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Waits for ranks that have not joined.
    Joining,
    /// All ranks have joined.
    Running,
    /// No rank is left, or the job was stopped.
    Ended,
    /// No rank was connected for too long, and the leases were revoked. The job resumes if a rank comes back.
    Abandoned,
}

impl Phase {
    /// Whether the job may still use leases.
    pub fn is_live(self) -> bool {
        matches!(self, Phase::Joining | Phase::Running)
    }
}

/// State of a rank.
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
        /// The peers' reports count from this time on.
        grace_until_ms: u64,
        /// Whether its stream ended as that of a process that died.
        hung_up: bool,
    },
    /// Has left.
    Left,
    /// Lost: its peers could not reach it.
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
    /// State of the rank.
    pub state: MemberState,
    /// Its host; `None` while awaited, or if the fabric no longer has it.
    pub host: Option<NodeId>,
    /// Address for switches.
    pub udp_address: Option<SocketAddr>,
    /// Mesh address, for users.
    pub mesh_address: String,
    /// Process id, for users.
    pub pid: u32,
    /// MTU of its interface; 0 if unknown.
    pub mtu: u32,
    /// Last reported statistics.
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
    /// Reason, for users.
    pub why: String,
    /// The switch has not answered. A late answer, or a new stream, ends the refusal.
    pub is_late: bool,
}

/// A job.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    /// Number; never 0, and not reused while the job is alive.
    pub id: u32,
    /// The request.
    pub spec: JobSpec,
    /// Number of the request that created it, drawn by the caller; 0: it had none.
    pub request: u64,
    /// The key for its packets' tags; `None`: created on a trusted fabric.
    pub key: Option<JobKey>,
    /// Address of the caller that created it; not stored.
    pub(super) creator: Option<IpAddr>,
    /// Time of creation, in seconds since 1970.
    pub created_unix_s: f64,
    pub(super) join_by_ms: u64,
    /// Ranks. Shared with copies of the state until they change.
    pub members: Vec<Arc<Member>>,
    /// Phase.
    pub phase: Phase,
    /// The newest epoch sent to switches or workers; 0 before the first. Wraps around.
    pub epoch: u16,
    /// Order of additions, fixed by the first plan.
    pub order: Option<SumOrder>,
    /// Fragment size, fixed by the first plan.
    pub fragment_bytes: Option<u32>,
    /// The plan that the workers have.
    pub current: Option<Plan>,
    /// Number of the key under which that plan was made; 0: none, or it is not known.
    pub plan_key: u64,
    pub(super) pending: Option<Pending>,
    /// Switches that may hold a lease of the job.
    pub(super) granted: BTreeSet<NodeId>,
    /// Switches that refused a lease; the job asks each of them again at its `until_ms`.
    pub(super) refusals: BTreeMap<NodeId, LeaseRefusal>,
    /// When to plan again.
    pub(super) replan_at_ms: Option<u64>,
    /// When to check whether more trees are possible.
    pub(super) improve_at_ms: Option<u64>,
    /// Switches that seem to be dead on the data plane.
    pub(super) suspicion: Option<Suspicion>,
    /// Since when ranks report trees of the plan in use as silent.
    pub(super) silent_since_ms: Option<u64>,
    /// When a rank last reported new results of the plan in use.
    pub(super) worked_ms: Option<u64>,
    /// When the workers received their plan.
    pub(super) adopted_ms: u64,
    /// When a worker was last connected or a switch last counted its packets.
    pub(super) active_ms: u64,
    /// For how long the streams of all its ranks have been over as those of processes that died, without any sign of
    /// life. Only time in which the controller ran counts.
    pub(super) vanished_for_ms: u64,
    /// When a switch last counted its packets.
    pub(super) carried_ms: u64,
    /// When a rank last reported operations that trees would have carried.
    pub(super) asked_ms: Option<u64>,
    /// Whether its plan is smaller than wanted while other jobs hold memory that they may yield.
    pub(super) awaits_room: bool,
    /// Why it has yielded its leases to another job, for users; `None`: it has not.
    pub(super) yielded: Option<String>,
}

impl JobSpec {
    /// Validates a request. `min_bytes`: default for requests without one.
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
        if request.all_collectives {
            let problem = if size > MAX_SCOPED_RANKS {
                format!("at most {MAX_SCOPED_RANKS} ranks, and this job has {size}")
            } else if release_fraction < 1.0 {
                "sums of all ranks, and this job has a release_fraction below 1".to_owned()
            } else {
                String::new()
            };
            if !problem.is_empty() {
                return invalid(format!("switches do all collectives for {problem} only"));
            }
        }
        let congestion = match request.congestion.as_str() {
            "" => CongestionRule::default(),
            rule => rule.parse().map_err(Refusal::Invalid)?,
        };
        Ok(JobSpec {
            name: request.name.clone(),
            size,
            max_trees: match (request.max_trees, request.all_collectives) {
                (0, false) => TREES_MAX,
                (0, true) => TREES_MAX / 2,
                (most, false) => most.min(TREES_MAX),
                (most, true) => most.min(TREES_MAX / 2),
            },
            release_fraction,
            congestion,
            min_bytes: request.min_bytes.unwrap_or(min_bytes),
            // Only panama supports sums of a part of the ranks.
            protocol: if release_fraction < 1.0 { Some(Protocol::Panama) } else { protocol },
            tenant: request.tenant_name().to_owned(),
            scale: request.scale,
            encrypt: request.encrypt,
            all_collectives: request.all_collectives,
        })
    }
}

impl JobSpec {
    /// Maximum number of trees, copies included.
    pub(super) fn trees_max(&self) -> u32 {
        self.max_trees * if self.all_collectives { 2 } else { 1 }
    }
}

impl pb::CreateJobRequest {
    /// The tenant of the job.
    pub(crate) fn tenant_name(&self) -> &str {
        match self.tenant.as_str() {
            "" => DEFAULT_TENANT,
            tenant => tenant,
        }
    }
}

impl Member {
    /// A rank that has not joined.
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
    /// A job without joined ranks; it fails unless all have joined by `join_by_ms`.
    pub fn new(id: u32, spec: JobSpec, created_unix_s: f64, join_by_ms: u64) -> Job {
        let members = (0..spec.size).map(|_| Arc::new(Member::awaited())).collect();
        Job {
            id,
            spec,
            request: 0,
            key: None,
            creator: None,
            created_unix_s,
            join_by_ms,
            members,
            phase: Phase::Joining,
            epoch: 0,
            order: None,
            fragment_bytes: None,
            current: None,
            plan_key: 0,
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
            vanished_for_ms: 0,
            carried_ms: 0,
            asked_ms: None,
            awaits_room: false,
            yielded: None,
        }
    }

    /// A rank, mutable.
    pub fn member_mut(&mut self, rank: u32) -> &mut Member {
        Arc::make_mut(&mut self.members[rank as usize])
    }

    /// Whether every rank has joined once: before, their hosts are unknown.
    pub(super) fn is_complete(&self) -> bool {
        self.members.iter().all(|member| member.state != MemberState::Awaited)
    }

    /// Whether its workers can agree on another plan: all have joined, and none is lost.
    pub(super) fn can_change_plans(&self) -> bool {
        self.is_complete() && self.members.iter().all(|member| member.state != MemberState::Lost)
    }

    /// Switches that plans avoid because they seem to be dead on the data plane.
    pub(super) fn avoided(&self) -> impl Iterator<Item = NodeId> {
        self.suspicion.iter().flat_map(Suspicion::avoided)
    }

    /// Whether plans currently have no trees, because none seems to work.
    pub(super) fn gives_up_trees(&self) -> bool {
        self.suspicion.as_ref().is_some_and(Suspicion::gives_up)
    }

    /// Number of its key; 0: it has none.
    pub(super) fn key_id(&self) -> u64 {
        self.key.as_ref().map_or(0, key_id)
    }

    /// Whether the plan in use was made under the key that ranks get. Otherwise it is about to be replaced.
    pub(super) fn plan_has_key(&self) -> bool {
        self.plan_key == 0 || self.plan_key == self.key_id()
    }

    /// A plan with the number of the key from which ranks derive theirs.
    pub(super) fn with_key_id(&self, plan: pb::Plan) -> pb::Plan {
        pb::Plan { key_id: self.key_id(), ..plan }
    }

    /// The message that brings a rank its key, unless the fabric is trusted.
    pub(super) fn rank_key_message(&self, rank: u32) -> Option<WorkerMessage> {
        let job_key = self.key.as_ref()?;
        let key = Some(rank_key(job_key, rank).into());
        Some(WorkerMessage::RankKey(pb::RankKey { key, key_id: key_id(job_key) }))
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

    /// Whether the stream of every rank that has not left ended as that of a process that died. Ranks without a plan
    /// cannot resume a job that is over, so nothing is concluded about theirs.
    pub(super) fn has_vanished(&self) -> bool {
        let vanished = |state| matches!(state, MemberState::Away { hung_up: true, .. });
        self.current.is_some()
            && self.members.iter().all(|member| member.state.is_gone() || vanished(member.state))
    }

    /// Whether its plan, or the one being installed, uses that switch as a node.
    pub(super) fn uses(&self, switch: NodeId) -> bool {
        self.plans()
            .any(|plan| plan.trees.iter().any(|tree| tree.switches().any(|other| other == switch)))
    }

    /// The plan that the workers have and the one being installed.
    pub(super) fn plans(&self) -> impl Iterator<Item = &Plan> {
        self.current.iter().chain(self.pending.iter().map(|pending| &pending.plan))
    }

    /// Whether the fabric could provide more than the newest plan uses.
    pub(super) fn is_degraded(&self) -> bool {
        self.plans().last().is_some_and(|plan| !plan.reason.is_empty())
    }
}

/// Protocol name of a job that leaves the choice to the controller.
pub(crate) const AUTO: &str = "auto";

/// Number of ranks that a packet's `missing` bitmap distinguishes.
const RANKS_NAMED: u32 = 64;
/// Leases use thousandths.
const RELEASE_MIN: f32 = 0.001;
