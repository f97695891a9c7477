//! Does what [`crate::jobs`] decides.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::runtime::reflector::Store;
use kube::{Api, Client, ResourceExt};
use netsum_control::ControlError;
use netsum_control::client::{self, ControllerEndpoint};
use netsum_control::pb::JobSummary;
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::error::OperatorError;
use crate::jobs::{Key, Plan, groups, missing, plan};
use crate::names::{ClusterId, FINALIZER, JOB, identifying};
use crate::resources::{AggregationJob, AggregationJobSpec, AggregationJobStatus};

/// Stops jobs whose pods are gone.
pub struct Sweeper {
    /// The API server.
    pub client: Client,
    /// The controllers, with the operator's credentials.
    pub controllers: ControllerEndpoint,
    /// The cluster, whose jobs these are.
    pub cluster: ClusterId,
    /// Admitted pods.
    pub pods: Store<Pod>,
    /// AggregationJobs of all namespaces.
    pub resources: Store<AggregationJob>,
}

impl Sweeper {
    /// Runs until the process ends.
    pub async fn run(self, changed: Arc<Notify>) {
        let mut is_away = false;
        loop {
            match self.step().await {
                Ok(()) => is_away = false,
                Err(error) if is_away => tracing::debug!(%error, "still not up to date"),
                Err(error) => {
                    tracing::warn!(%error, "jobs are not up to date; trying again");
                    is_away = true;
                }
            }
            let _ = tokio::time::timeout(LOOK, changed.notified()).await;
            tokio::time::sleep(SETTLE).await;
        }
    }

    async fn step(&self) -> Result<(), OperatorError> {
        let pods = self.pods.state();
        let resources = self.resources.state();
        let groups = groups(pods.iter().map(|pod| &**pod));
        let listed = self.jobs().await;
        // Owners are noted also while no controller answers.
        let jobs = listed.as_deref().unwrap_or_default();
        let mut plan = plan(&self.cluster, &groups, resources.iter().map(|r| &**r), jobs);
        if listed.is_err() {
            plan = Plan { create: plan.create, adopt: plan.adopt, ..Plan::default() };
        }
        let mut outcome = Ok(());
        let mut note = |done: Result<(), OperatorError>| match done {
            // Somebody was faster; what is left to do is done in the next step.
            Err(error) if error.is_conflict() || error.is_absent() => {}
            Err(error) => outcome = Err(error),
            Ok(()) => {}
        };
        for (key, owners) in &plan.create {
            note(self.create(key, owners).await);
        }
        for (key, owners) in &plan.adopt {
            note(self.adopt(key, owners).await);
        }
        for (number, name) in &plan.doomed {
            note(self.stop(*number, name, "its AggregationJob is deleted").await);
        }
        if !plan.orphans.is_empty() {
            match self.confirmed(&plan.orphans).await {
                Ok(orphans) => {
                    for (number, name) in &orphans {
                        note(self.stop(*number, name, "its pods are gone").await);
                    }
                }
                Err(error) => note(Err(error)),
            }
        }
        for key in &plan.release {
            note(self.release(key).await);
        }
        for (key, status) in &plan.statuses {
            note(self.report(key, status).await);
        }
        listed?;
        outcome
    }

    /// Jobs that are not over, oldest first.
    async fn jobs(&self) -> Result<Vec<JobSummary>, OperatorError> {
        let controllers = self.controllers.clone();
        let asked = blocking(move || client::list_jobs(&controllers, false, ANSWER));
        let mut jobs = asked.await?.jobs;
        jobs.sort_by(|a, b| a.created_unix_s.total_cmp(&b.created_unix_s));
        Ok(jobs)
    }

    /// Those of the jobs without a live pod for which this is still so. A pod exists before its processes create jobs,
    /// and the API server is asked after the controller has listed these: what has no pod now has none any more.
    async fn confirmed(
        &self,
        orphans: &[(u32, String)],
    ) -> Result<Vec<(u32, String)>, OperatorError> {
        let all: Api<Pod> = Api::all(self.client.clone());
        let mut live = BTreeSet::new();
        let mut page = ListParams::default().labels(JOB).limit(PAGE);
        loop {
            let listed = all.list(&page).await.map_err(OperatorError::api("pods"))?;
            live.extend(
                groups(&listed.items).into_values().flat_map(|group| group.live.into_keys()),
            );
            match listed.metadata.continue_.filter(|more| !more.is_empty()) {
                Some(more) => page = page.continue_token(&more),
                None => break,
            }
        }
        let is_orphan = |(_, name): &&(u32, String)| !live.contains(identifying(name));
        Ok(orphans.iter().filter(is_orphan).cloned().collect())
    }

    async fn stop(
        &self,
        number: u32,
        name: &str,
        reason: &'static str,
    ) -> Result<(), OperatorError> {
        let controllers = self.controllers.clone();
        let stopped =
            blocking(move || client::stop_job(&controllers, number, reason, ANSWER)).await;
        match stopped {
            Ok(()) => tracing::info!(job = number, name, reason, "stopped a job"),
            // It has ended meanwhile, or the next step finds it again.
            Err(error) => tracing::debug!(job = number, name, %error, "could not stop a job"),
        }
        Ok(())
    }

    async fn create(&self, key: &Key, owners: &[OwnerReference]) -> Result<(), OperatorError> {
        let mut resource = AggregationJob::new(&key.1, AggregationJobSpec::default());
        resource.metadata.owner_references = Some(owners.to_vec());
        resource.metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
        let made = self.api(key).create(&PostParams::default(), &resource).await;
        made.map(drop).map_err(OperatorError::api(what(key)))
    }

    async fn adopt(&self, key: &Key, owners: &[OwnerReference]) -> Result<(), OperatorError> {
        let change = |finalizers: &mut Vec<String>| {
            if !finalizers.iter().any(|finalizer| finalizer == FINALIZER) {
                finalizers.push(FINALIZER.to_owned());
            }
        };
        self.change(key, owners, change).await
    }

    async fn release(&self, key: &Key) -> Result<(), OperatorError> {
        let change = |finalizers: &mut Vec<String>| finalizers.retain(|f| f != FINALIZER);
        self.change(key, &[], change).await
    }

    /// Adds owners and changes the finalizers; refused if the object has changed meanwhile.
    async fn change(
        &self,
        key: &Key,
        owners: &[OwnerReference],
        finalizers: impl FnOnce(&mut Vec<String>),
    ) -> Result<(), OperatorError> {
        let api = self.api(key);
        let present = api.get(&key.1).await.map_err(OperatorError::api(what(key)))?;
        let mut list = present.finalizers().to_vec();
        finalizers(&mut list);
        let mut metadata =
            json!({"finalizers": list, "resourceVersion": present.resource_version()});
        let more = missing(owners, present.owner_references());
        if !more.is_empty() {
            let all = [present.owner_references(), more.as_slice()].concat();
            metadata["ownerReferences"] = json!(all);
        }
        self.patch(key, json!({"metadata": metadata})).await
    }

    async fn patch(&self, key: &Key, patch: Value) -> Result<(), OperatorError> {
        let patched =
            self.api(key).patch(&key.1, &PatchParams::default(), &Patch::Merge(patch)).await;
        patched.map(drop).map_err(OperatorError::api(what(key)))
    }

    async fn report(&self, key: &Key, status: &AggregationJobStatus) -> Result<(), OperatorError> {
        let patch = Patch::Merge(json!({"status": status}));
        let patched = self.api(key).patch_status(&key.1, &PatchParams::default(), &patch).await;
        patched.map(drop).map_err(OperatorError::api(format!("status of {}", what(key))))
    }

    fn api(&self, key: &Key) -> Api<AggregationJob> {
        Api::namespaced(self.client.clone(), &key.0)
    }
}

/// Runs a call of the controller's client, which waits for the answer.
async fn blocking<T: Send + 'static>(
    call: impl FnOnce() -> Result<T, ControlError> + Send + 'static,
) -> Result<T, OperatorError> {
    let called = tokio::task::spawn_blocking(call).await;
    Ok(called.map_err(|_| OperatorError::Ended("a call"))??)
}

fn what(key: &Key) -> String {
    format!("AggregationJob {}/{}", key.0, key.1)
}

/// How often jobs and pods are compared at least: a job may be created when its pod is already gone.
const LOOK: Duration = Duration::from_secs(2);
const SETTLE: Duration = Duration::from_millis(100);
const ANSWER: Duration = Duration::from_secs(5);
const PAGE: u32 = 500;
