//! The state and statistics of a group.

use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use netsum_control::client::{self, ControllerEndpoint};
use netsum_control::{ControlError, pb};
use netsum_net::worker::WorkerStats;
use netsum_proto::panama::TreeStats;
use netsum_topo::links::TreePlan;
use serde::Serialize;

use crate::Error;
use crate::link_cost::LinkCost;
use crate::planned::Measured;
use crate::switch_cost::SwitchCost;

/// The coordinator's latest decisions, read by callers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Status {
    pub(crate) job: Option<u32>,
    pub(crate) epoch: u16,
    /// Why the controller cannot be reached, if it cannot.
    pub(crate) away: Option<String>,
    pub(crate) trees: bool,
    /// Protocol of the plan; empty before the first plan.
    pub(crate) protocol: String,
    /// Reason for the protocol; empty: the job requested it.
    pub(crate) choice: String,
    /// The tree plan in use.
    pub(crate) plan: Option<PlanView>,
    /// Smaller buffers use the host path, as long as the job runs.
    pub(crate) plan_from_bytes: u64,
    /// The plan's links as measured at the start.
    pub(crate) links: Vec<(Vec<String>, Measured)>,
    /// Why sums do not use (all) trees; empty: they do.
    pub(crate) reason: String,
    /// By tree the first switch on its path.
    pub(crate) switches: Vec<String>,
    pub(crate) pauses: Vec<Pause>,
    /// Counters of earlier epochs, by tree.
    pub(crate) past: Vec<Past>,
}

/// Statistics and state of a group.
#[derive(Clone, Debug, Serialize)]
pub struct GroupStats {
    /// Number of the job; `None` without a controller.
    pub job: Option<u32>,
    /// Epoch of the controller's plan; 0 before the first.
    pub epoch: u16,
    /// The path of sums now.
    pub path: SumPath,
    /// Protocol of the controller's plan; empty without one.
    pub protocol: String,
    /// Reason for the protocol; empty: the job requested it.
    pub choice: String,
    /// The tree plan over hosts in use.
    pub plan: Option<PlanView>,
    /// The tree plan's links as measured at the start.
    pub links: Vec<LinkView>,
    /// Why sums do not use (all) trees; empty: they do.
    pub reason: String,
    /// The aggregation trees.
    pub trees: Vec<TreeView>,
    /// Pauses so far.
    pub pauses: Vec<Pause>,
    /// Traffic of this rank.
    #[serde(flatten)]
    pub hosts: HostStats,
}

/// The path of sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SumPath {
    /// Switches add.
    Trees,
    /// Ranks add along a tree plan.
    Plan,
    /// Ranks add by the algorithms of the host path.
    Host,
}

/// Operations and bytes of this rank.
#[derive(Clone, Debug, Serialize)]
pub struct HostStats {
    /// Transport between ranks.
    pub hosts_by: &'static str,
    /// Parameters of the cost model.
    pub link: LinkCost,
    /// Those of switches, if they were measured.
    pub switches: Option<SwitchCost>,
    /// Bytes sent to other ranks.
    pub host_bytes_tx: u64,
    /// Bytes received from other ranks.
    pub host_bytes_rx: u64,
    /// Connections refused because they did not come from a rank of the group.
    pub host_strangers: u64,
    /// Completed operations.
    pub operations: u64,
    /// Completed sums on trees.
    pub network_operations: u64,
    /// Results that peers served to this rank between epochs.
    pub served: u64,
    /// Fragments that were summed again between epochs.
    pub redone: u64,
}

/// Summary of a tree plan over hosts.
#[derive(Clone, Debug, Serialize)]
pub struct PlanView {
    /// Epoch of the plan, from 1.
    pub epoch: u64,
    /// Number of trees.
    pub trees: usize,
    /// Rate of an allreduce, in GB/s.
    pub rate_gbytes: f64,
    /// Smaller buffers use the host path.
    pub from_bytes: u64,
}

/// A link of a tree plan as measured at the start.
#[derive(Clone, Debug, Serialize)]
pub struct LinkView {
    /// Names of the vertices that it passes.
    pub link: Vec<String>,
    /// As [`Measured::latency_s`].
    pub latency_s: f64,
    /// As [`Measured::rate_bps`].
    pub rate_bps: f64,
}

/// An interval in which no sums were possible on trees.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Pause {
    /// Reason.
    pub what: String,
    /// Start.
    pub at_unix_s: f64,
    /// Duration.
    pub seconds: f64,
}

impl Pause {
    /// A pause from `started` until now.
    pub(crate) fn since(started: Instant, what: String) -> Pause {
        let seconds = started.elapsed().as_secs_f64();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        Pause { what, at_unix_s: now.as_secs_f64() - seconds, seconds }
    }
}

/// Counters of a tree in past epochs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Past {
    results: u64,
    resent: u64,
    spurious: u64,
    marked: u64,
}

/// State of one aggregation tree at a rank; counters cover all epochs.
#[derive(Clone, Debug, Serialize)]
pub struct TreeView {
    /// Its number.
    pub tree: usize,
    /// The first switch on its path.
    pub switch: String,
    /// Window in fragments.
    pub window: u32,
    /// Smoothed round-trip time of a fragment.
    pub rtt_us: f64,
    /// Results received.
    pub results: u64,
    /// Fragments that were sent again.
    pub retransmits: u64,
    /// Of these, those that were not needed: the tree waited for others, or the result was on its way.
    pub spurious_retransmits: u64,
    /// Results with a congestion mark.
    pub marks: u64,
    /// Its share of the bytes sent on the socket, by packets.
    pub bytes_tx: u64,
    /// Its share of the bytes received, by packets.
    pub bytes_rx: u64,
    /// Ranks (mod 64) that the tree last reported as missing.
    pub waiting_for: u64,
}

impl Status {
    /// Records the tree plan in use, or that there is none.
    pub(crate) fn planned(&mut self, epoch: u64, plan: Option<&TreePlan>, reason: &str) {
        self.reason = reason.to_owned();
        self.plan = plan.map(|plan| PlanView {
            epoch,
            trees: plan.flows.len(),
            rate_gbytes: plan.rate_bps.to_f64() / 8e9,
            from_bytes: self.plan_from_bytes,
        });
    }

    /// Adds the counters of an epoch that has ended.
    pub(crate) fn keep(&mut self, trees: &[TreeStats]) {
        self.past.resize(self.past.len().max(trees.len()), Past::default());
        for (past, tree) in self.past.iter_mut().zip(trees) {
            past.results += tree.results;
            past.resent += tree.resent;
            past.spurious += tree.spurious;
            past.marked += tree.marked;
        }
    }

    pub(crate) fn into_stats(self, stats: &WorkerStats, hosts: HostStats) -> GroupStats {
        let path = match (self.trees, &self.plan) {
            (true, _) => SumPath::Trees,
            (false, Some(_)) => SumPath::Plan,
            (false, None) => SumPath::Host,
        };
        GroupStats {
            path,
            links: self.links.iter().map(link).collect(),
            trees: self.views(stats),
            job: self.job,
            epoch: self.epoch,
            protocol: self.protocol,
            choice: self.choice,
            plan: self.plan,
            reason: self.reason,
            pauses: self.pauses,
            hosts,
        }
    }

    pub(crate) fn heartbeat(
        &self,
        stats: &WorkerStats,
        group: pb::WorkerHeartbeat,
    ) -> pb::WorkerHeartbeat {
        let tree = |view: TreeView| pb::WorkerTree {
            tree: view.tree as u32,
            window: view.window,
            rtt_ns: (view.rtt_us * 1e3) as u64,
            results: view.results,
            retransmits: view.retransmits,
            spurious_retransmits: view.spurious_retransmits,
            marks: view.marks,
            bytes_tx: view.bytes_tx,
            bytes_rx: view.bytes_rx,
        };
        let pause = |pause: &Pause| pb::Pause {
            what: pause.what.clone(),
            at_unix_s: pause.at_unix_s,
            seconds: pause.seconds,
        };
        pb::WorkerHeartbeat {
            trees: self.views(stats).into_iter().map(tree).collect(),
            pauses: self.pauses.iter().map(pause).collect(),
            ..group
        }
    }

    /// The socket counts the bytes of all trees together: each tree's share is computed by its packets.
    fn views(&self, stats: &WorkerStats) -> Vec<TreeView> {
        let past = |tree: usize| self.past.get(tree).copied().unwrap_or_default();
        let sent: u64 = stats.trees.iter().map(|t| t.sent + t.resent).sum();
        let results: u64 = stats.trees.iter().map(|t| t.results).sum();
        let part = |bytes: u64, packets: u64, all: u64| {
            (u128::from(bytes) * u128::from(packets) / u128::from(all.max(1))) as u64
        };
        let view = |(tree, now): (usize, &TreeStats)| TreeView {
            tree,
            switch: self.switches.get(tree).cloned().unwrap_or_default(),
            window: now.window,
            rtt_us: now.rtt_ns as f64 / 1e3,
            results: past(tree).results + now.results,
            retransmits: past(tree).resent + now.resent,
            spurious_retransmits: past(tree).spurious + now.spurious,
            marks: past(tree).marked + now.marked,
            bytes_tx: part(stats.sent.bytes, now.sent + now.resent, sent),
            bytes_rx: part(stats.received.bytes, now.results, results),
            waiting_for: now.waiting_for,
        };
        stats.trees.iter().enumerate().map(view).collect()
    }
}

fn link((link, measured): &(Vec<String>, Measured)) -> LinkView {
    LinkView { link: link.clone(), latency_s: measured.latency_s, rate_bps: measured.rate_bps }
}

pub(crate) fn of_controller(
    address: &str,
    credentials: Option<&Path>,
    timeout: Duration,
) -> Result<String, Error> {
    let reply = client::status(&endpoint(address, credentials)?, timeout);
    let reply = reply.map_err(|e| controller_error(&e))?;
    serde_json::to_string(&reply).map_err(|e| Error::Internal(e.to_string()))
}

/// A controller, and the credentials of this process.
pub(crate) fn endpoint(
    address: &str,
    credentials: Option<&Path>,
) -> Result<ControllerEndpoint, Error> {
    ControllerEndpoint::with_credentials(address, credentials).map_err(|e| controller_error(&e))
}

pub(crate) fn controller_error(error: &ControlError) -> Error {
    Error::Controller(error.to_string())
}
