//! Keeps the controller's jobs in step with pods: a job whose pods are gone is stopped, and its leases are free.
//!
//! What follows from the states of pods, AggregationJobs and the controller is decided in [`plan`], without any of them.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{Resource, ResourceExt};
use netsum_control::pb::JobSummary;

use crate::names::{ClusterId, FINALIZER, identifying, job_name_of, job_of};
use crate::resources::{AggregationJob, AggregationJobStatus, JobEntry};

/// Namespace and name of an AggregationJob.
pub type Key = (String, String);

/// What the admitted pods of one AggregationJob are.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Group {
    /// Who owns them: their controllers, or they themselves.
    pub owners: Vec<OwnerReference>,
    /// Of those that are neither gone nor at their end: what names of their jobs begin with, and the UIDs of owners.
    pub live: BTreeMap<String, BTreeSet<String>>,
    /// Pods that are neither gone nor at their end.
    pub pods: u32,
}

/// What is to be done.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// AggregationJobs to be made, for these owners.
    pub create: Vec<(Key, Vec<OwnerReference>)>,
    /// AggregationJobs that lack the finalizer or owners, with the owners that they lack.
    pub adopt: Vec<(Key, Vec<OwnerReference>)>,
    /// Jobs without a live pod: number and name. Pods are newer than the operator's copies, so the API server is asked
    /// before one is stopped.
    pub orphans: Vec<(u32, String)>,
    /// Jobs of AggregationJobs that somebody deletes.
    pub doomed: Vec<(u32, String)>,
    /// AggregationJobs that may go: they have no jobs.
    pub release: Vec<Key>,
    /// States that have changed.
    pub statuses: Vec<(Key, AggregationJobStatus)>,
}

impl Plan {
    /// Whether a job must be stopped.
    pub fn stops(&self) -> bool {
        !self.orphans.is_empty() || !self.doomed.is_empty()
    }
}

/// Whether a pod's processes may run.
pub fn is_live(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    !matches!(phase, Some("Succeeded" | "Failed"))
}

/// Admitted pods by AggregationJob.
pub fn groups<'a>(pods: impl IntoIterator<Item = &'a Pod>) -> BTreeMap<Key, Group> {
    let mut groups = BTreeMap::<Key, Group>::new();
    for pod in pods {
        let (Some(namespace), Some(job), Some(name)) =
            (pod.namespace(), job_of(pod), job_name_of(pod))
        else {
            continue;
        };
        let group = groups.entry((namespace, job.to_owned())).or_default();
        let Some(owner) = owner(pod) else { continue };
        if is_live(pod) {
            group.pods += 1;
            let live = group.live.entry(identifying(name).to_owned()).or_default();
            live.insert(owner.uid.clone());
        }
        if !group.owners.iter().any(|known| known.uid == owner.uid) {
            group.owners.push(owner);
        }
    }
    groups
}

/// Whose end is the pod's end.
fn owner(pod: &Pod) -> Option<OwnerReference> {
    let own = || {
        Some(OwnerReference { controller: None, block_owner_deletion: None, ..pod.owner_ref(&())? })
    };
    match pod.owner_references().iter().find(|owner| owner.controller == Some(true)) {
        // As an owner of something else it does not control it, nor wait for it.
        Some(found) => {
            Some(OwnerReference { controller: None, block_owner_deletion: None, ..found.clone() })
        }
        None => own(),
    }
}

/// What to do about `jobs`, which are those of the controller that are not over. `groups` may be older than `jobs`.
pub fn plan<'a>(
    cluster: &ClusterId,
    groups: &BTreeMap<Key, Group>,
    resources: impl IntoIterator<Item = &'a AggregationJob>,
    jobs: &[JobSummary],
) -> Plan {
    let mut plan = Plan::default();
    let ours: Vec<&JobSummary> =
        jobs.iter().filter(|job| job.name.starts_with(&cluster.prefix())).collect();
    let mut doomed = BTreeSet::new();
    let mut known = BTreeSet::new();
    for resource in resources {
        let key = (resource.namespace().unwrap_or_default(), resource.name_any());
        let none = Group::default();
        let group = groups.get(&key).unwrap_or(&none);
        let prefix = cluster.group_prefix(&key.0, &key.1);
        let mut own: Vec<&JobSummary> =
            ours.iter().copied().filter(|job| job.name.starts_with(&prefix)).collect();
        if resource.meta().deletion_timestamp.is_some() {
            // Pods of another owner are of a newer training job with the same name.
            let owners = resource.owner_references();
            let is_of_ours = |uid: &String| owners.iter().any(|owner| owner.uid == *uid);
            own.retain(|job| match group.live.get(identifying(&job.name)) {
                Some(uids) => uids.iter().all(is_of_ours),
                None => true,
            });
            doomed.extend(own.iter().map(|job| job.job));
            if own.is_empty() && resource.finalizers().iter().any(|f| f == FINALIZER) {
                plan.release.push(key.clone());
            }
            known.insert(key);
            continue;
        }
        let missing = missing(&group.owners, resource.owner_references());
        let is_held = resource.finalizers().iter().any(|finalizer| finalizer == FINALIZER);
        if !missing.is_empty() || !is_held {
            plan.adopt.push((key.clone(), missing));
        }
        let status = status(group, &own);
        if resource.status.as_ref() != Some(&status) {
            plan.statuses.push((key.clone(), status));
        }
        known.insert(key);
    }
    for (key, group) in groups {
        if !known.contains(key) && !group.live.is_empty() {
            plan.create.push((key.clone(), group.owners.clone()));
        }
    }
    let live: BTreeSet<&str> =
        groups.values().flat_map(|group| group.live.keys()).map(String::as_str).collect();
    for job in ours {
        let entry = (job.job, job.name.clone());
        if doomed.contains(&job.job) {
            plan.doomed.push(entry);
        } else if !live.contains(identifying(&job.name)) {
            plan.orphans.push(entry);
        }
    }
    plan
}

/// Those of `owners` that are not in `present`.
pub fn missing(owners: &[OwnerReference], present: &[OwnerReference]) -> Vec<OwnerReference> {
    let is_present = |owner: &&OwnerReference| present.iter().any(|one| one.uid == owner.uid);
    owners.iter().filter(|owner| !is_present(owner)).cloned().collect()
}

fn status(group: &Group, jobs: &[&JobSummary]) -> AggregationJobStatus {
    let entry = |job: &&JobSummary| JobEntry {
        number: job.job,
        name: job.name.clone(),
        state: job.state.clone(),
        protocol: job.protocol.clone(),
        ranks: job.size,
        trees: job.trees,
    };
    let newest = jobs.last();
    let phase = match (group.pods, newest) {
        (0, _) => "Ended",
        (_, None) => "Pending",
        _ => "Running",
    };
    AggregationJobStatus {
        phase: phase.to_owned(),
        pods: group.pods,
        trees: newest.map_or(0, |job| job.trees),
        message: newest.map(|job| job.reason.clone()).unwrap_or_default(),
        jobs: jobs.iter().rev().take(JOBS_SHOWN).rev().map(entry).collect(),
    }
}

/// A pod that keeps starting anew makes a job each time.
const JOBS_SHOWN: usize = 16;

#[cfg(test)]
mod tests;
