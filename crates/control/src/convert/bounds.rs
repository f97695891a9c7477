//! Sizes of the messages that come from the network, checked before anything is kept of them.

use crate::limits::{
    ADDRESS_MAX, BUCKETS_MAX, CALL_MAX, DROP_REASONS_MAX, EVIDENCE_MAX, JOBS_MAX, LATENESS_MAX,
    LEASES_MAX, NAME_MAX, NEIGHBOURS_MAX, PAUSES_MAX, PLAN_TEXT_MAX, RANKS_MAX, RECENT_MAX,
    TEXT_MAX, TREES_MAX,
};
use crate::pb;

/// A message whose texts and lists have limits.
pub(crate) trait Bounded {
    /// Errors: a sentence that names the first field over its limit, and the limit.
    fn check_sizes(&self) -> Result<(), String>;
}

impl Bounded for pb::CreateJobRequest {
    fn check_sizes(&self) -> Result<(), String> {
        text("name", &self.name, NAME_MAX)?;
        text("congestion", &self.congestion, NAME_MAX)?;
        text("protocol", &self.protocol, NAME_MAX)?;
        text("tenant", &self.tenant, NAME_MAX)
    }
}

impl Bounded for pb::StopJobRequest {
    fn check_sizes(&self) -> Result<(), String> {
        text("reason", &self.reason, TEXT_MAX)
    }
}

impl Bounded for pb::Join {
    fn check_sizes(&self) -> Result<(), String> {
        text("host", &self.host, NAME_MAX)?;
        text("udp_address", &self.udp_address, ADDRESS_MAX)?;
        text("mesh_address", &self.mesh_address, ADDRESS_MAX)?;
        self.description.as_ref().map_or(Ok(()), Bounded::check_sizes)?;
        self.plan.as_ref().map_or(Ok(()), Bounded::check_sizes)
    }
}

/// The plan that a rank brings back, which has no trees.
impl Bounded for pb::Plan {
    fn check_sizes(&self) -> Result<(), String> {
        list("plan.trees", self.trees.len(), 0)?;
        text("plan.order", &self.order, PLAN_TEXT_MAX)?;
        text("plan.reason", &self.reason, PLAN_TEXT_MAX)?;
        text("plan.choice", &self.choice, PLAN_TEXT_MAX)?;
        text("plan.congestion", &self.congestion, NAME_MAX)?;
        text("plan.protocol", &self.protocol, NAME_MAX)
    }
}

/// The limits of any job; the decision checks those of the rank's own.
impl Bounded for pb::WorkerHeartbeat {
    fn check_sizes(&self) -> Result<(), String> {
        list("trees", self.trees.len(), TREES_MAX as usize)?;
        list("silent_trees", self.silent_trees.len(), TREES_MAX as usize)?;
        list("unreachable_ranks", self.unreachable_ranks.len(), RANKS_MAX as usize)?;
        list("pauses", self.pauses.len(), PAUSES_MAX)?;
        self.pauses.iter().try_for_each(|pause| text("a pause's text", &pause.what, TEXT_MAX))?;
        list("recent", self.recent.len(), RECENT_MAX)?;
        self.recent.iter().try_for_each(|each| text("an operation's call", &each.call, CALL_MAX))
    }
}

impl Bounded for pb::Answer {
    fn check_sizes(&self) -> Result<(), String> {
        text("evidence", &self.evidence, EVIDENCE_MAX)
    }
}

impl Bounded for pb::SwitchHello {
    fn check_sizes(&self) -> Result<(), String> {
        text("name", &self.name, NAME_MAX)?;
        text("udp_address", &self.udp_address, ADDRESS_MAX)?;
        text("policy", &self.policy, NAME_MAX)?;
        list("installed", self.installed.len(), LEASES_MAX)
    }
}

impl Bounded for pb::SwitchHeartbeat {
    fn check_sizes(&self) -> Result<(), String> {
        list("neighbours", self.neighbours.len(), NEIGHBOURS_MAX)?;
        list("trees", self.trees.len(), LEASES_MAX)?;
        let address = |n: &pb::Neighbour| text("a neighbour's address", &n.address, ADDRESS_MAX);
        self.neighbours.iter().try_for_each(address)?;
        let of_trees = self.trees.iter().map(|tree| tree.drops.len()).sum();
        list("drops of trees", of_trees, LEASES_MAX)?;
        let children = self.trees.iter().flat_map(|tree| &tree.children);
        list("children of trees", children.clone().count(), LATENESS_MAX)?;
        children.into_iter().try_for_each(|child| {
            text("a child's address", &child.address, ADDRESS_MAX)?;
            text("a child's name", &child.name, NAME_MAX)?;
            list("a child's histogram", child.histogram.len(), BUCKETS_MAX)
        })?;
        self.trees.iter().try_for_each(|tree| {
            text("a tree's protocol", &tree.protocol, NAME_MAX)?;
            drops(&tree.drops)
        })?;
        list("tenants", self.tenants.len(), JOBS_MAX)?;
        let name = |tenant: &pb::SwitchTenant| text("a tenant's name", &tenant.tenant, NAME_MAX);
        self.tenants.iter().try_for_each(name)?;
        drops(&self.drops)
    }
}

impl Bounded for pb::LeaseAck {
    fn check_sizes(&self) -> Result<(), String> {
        text("reason", &self.reason, TEXT_MAX)
    }
}

impl pb::WorkerHeartbeat {
    /// Leaves out what a controller would refuse: older pauses and operations, and the ends of long texts.
    pub(crate) fn within_limits(mut self) -> pb::WorkerHeartbeat {
        self.pauses.drain(..self.pauses.len().saturating_sub(PAUSES_MAX));
        self.pauses.iter_mut().for_each(|pause| shorten(&mut pause.what));
        self.recent.drain(..self.recent.len().saturating_sub(RECENT_MAX));
        self
    }
}

/// Cuts a text for people to its limit.
pub(crate) fn shorten(text: &mut String) {
    if text.len() > TEXT_MAX {
        let room = TEXT_MAX - ELLIPSIS.len();
        let end = (0..=room).rev().find(|&end| text.is_char_boundary(end));
        text.truncate(end.unwrap_or_default());
        text.push_str(ELLIPSIS);
    }
}

fn drops(drops: &std::collections::BTreeMap<String, u64>) -> Result<(), String> {
    list("drops", drops.len(), DROP_REASONS_MAX)?;
    drops.keys().try_for_each(|reason| text("a reason of drops", reason, NAME_MAX))
}

fn text(field: &str, value: &str, limit: usize) -> Result<(), String> {
    match value.len() {
        length if length <= limit => Ok(()),
        length => Err(format!("{field} has {length} bytes; the limit is {limit}")),
    }
}

fn list(field: &str, length: usize, limit: usize) -> Result<(), String> {
    match length <= limit {
        true => Ok(()),
        false => Err(format!("{field} has {length} entries; the limit is {limit}")),
    }
}

const ELLIPSIS: &str = "…";

#[cfg(test)]
mod tests {
    use super::*;

    fn long(bytes: usize) -> String {
        "x".repeat(bytes)
    }

    fn refused(message: &impl Bounded) -> String {
        message.check_sizes().unwrap_err()
    }

    #[test]
    fn a_heartbeat_with_too_long_lists_is_refused_by_name() {
        let ok = pb::WorkerHeartbeat {
            trees: vec![pb::WorkerTree::default(); 16],
            pauses: vec![pb::Pause { what: long(256), ..Default::default() }; 32],
            silent_trees: vec![0; 16],
            unreachable_ranks: vec![0; 4096],
            ..Default::default()
        };
        ok.check_sizes().unwrap();
        let mut wrong = ok.clone();
        wrong.pauses.push(pb::Pause::default());
        assert_eq!(refused(&wrong), "pauses has 33 entries; the limit is 32");
        let mut wrong = ok.clone();
        wrong.pauses[7].what = long(257);
        assert_eq!(refused(&wrong), "a pause's text has 257 bytes; the limit is 256");
        let wrong = pb::WorkerHeartbeat { silent_trees: vec![0; 17], ..ok.clone() };
        assert_eq!(refused(&wrong), "silent_trees has 17 entries; the limit is 16");
        let wrong = pb::WorkerHeartbeat { unreachable_ranks: vec![0; 4097], ..ok.clone() };
        assert!(refused(&wrong).contains("unreachable_ranks has 4097 entries"));
        let wrong = pb::WorkerHeartbeat { trees: vec![pb::WorkerTree::default(); 17], ..ok };
        assert!(refused(&wrong).contains("trees has 17 entries"));
    }

    #[test]
    fn long_texts_are_refused_by_name() {
        let join = pb::Join { mesh_address: long(1 << 20), ..Default::default() };
        assert_eq!(refused(&join), "mesh_address has 1048576 bytes; the limit is 80");
        let join = pb::Join { udp_address: long(81), ..Default::default() };
        assert!(refused(&join).starts_with("udp_address has 81 bytes"));
        let join = pb::Join { host: long(129), ..Default::default() };
        assert!(refused(&join).starts_with("host has 129 bytes"));
        let description = pb::CreateJobRequest { tenant: long(129), ..Default::default() };
        let join = pb::Join { description: Some(description), ..Default::default() };
        assert!(refused(&join).starts_with("tenant has 129 bytes"));
        let plan = pb::Plan { trees: vec![pb::Tree::default()], ..Default::default() };
        let join = pb::Join { plan: Some(plan), ..Default::default() };
        assert!(refused(&join).starts_with("plan.trees has 1 entries"));
        let stop = pb::StopJobRequest { reason: long(257), job: 1 };
        assert!(refused(&stop).starts_with("reason has 257 bytes"));
        let ack = pb::LeaseAck { reason: long(257), ..Default::default() };
        assert!(refused(&ack).starts_with("reason has 257 bytes"));
    }

    #[test]
    fn reports_of_a_switch_are_bounded() {
        let installed = vec![pb::InstalledLease::default(); LEASES_MAX + 1];
        let hello = pb::SwitchHello { installed, ..Default::default() };
        assert!(refused(&hello).starts_with("installed has 16385 entries"));
        let trees = vec![pb::SwitchTree::default(); LEASES_MAX + 1];
        let report = pb::SwitchHeartbeat { trees, ..Default::default() };
        assert!(refused(&report).starts_with("trees has 16385 entries"));
        let neighbours = vec![pb::Neighbour { address: long(81), ..Default::default() }];
        let report = pb::SwitchHeartbeat { neighbours, ..Default::default() };
        assert!(refused(&report).starts_with("a neighbour's address has 81 bytes"));
        let drops = (0..65).map(|i| (i.to_string(), 0)).collect();
        let report = pb::SwitchHeartbeat { drops, ..Default::default() };
        assert!(refused(&report).starts_with("drops has 65 entries"));
    }

    #[test]
    fn a_worker_leaves_out_what_would_be_refused() {
        let pause = |at: usize| pb::Pause { what: "é".repeat(at), ..Default::default() };
        let sent =
            pb::WorkerHeartbeat { pauses: (100..140).map(pause).collect(), ..Default::default() };
        let sent = sent.within_limits();
        sent.check_sizes().unwrap();
        assert_eq!(sent.pauses.len(), PAUSES_MAX);
        assert_eq!(sent.pauses[0].what.chars().count(), 108);
        let last = &sent.pauses.last().unwrap().what;
        assert!(last.ends_with("é…") && last.len() <= TEXT_MAX, "{last}");
    }
}
