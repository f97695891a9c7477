//! Decisions about jobs, pods and AggregationJobs, beside an oracle that knows whose each job is.

use k8s_openapi::api::core::v1::PodStatus;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use proptest::prelude::*;

use super::*;
use crate::names::{JOB, JOB_NAME};
use crate::resources::AggregationJobSpec;

fn cluster() -> ClusterId {
    ClusterId::of_uid("this")
}

fn reference(uid: &str) -> OwnerReference {
    OwnerReference {
        api_version: "batch/v1".to_owned(),
        kind: "Job".to_owned(),
        name: format!("job-{uid}"),
        uid: uid.to_owned(),
        ..OwnerReference::default()
    }
}

fn pod(job: &str, owner: &str, number: usize, phase: &str) -> Pod {
    let controller = OwnerReference { controller: Some(true), ..reference(owner) };
    let name = cluster().job_name("ml", job, owner);
    Pod {
        metadata: ObjectMeta {
            namespace: Some("ml".to_owned()),
            name: Some(format!("{job}-{owner}-{number}")),
            uid: Some(format!("pod-{job}-{owner}-{number}")),
            labels: Some([(JOB.to_owned(), job.to_owned())].into()),
            annotations: Some([(JOB_NAME.to_owned(), name)].into()),
            owner_references: Some(vec![controller]),
            ..ObjectMeta::default()
        },
        status: Some(PodStatus { phase: Some(phase.to_owned()), ..PodStatus::default() }),
        ..Pod::default()
    }
}

fn resource(job: &str, owners: &[&str], is_deleted: bool) -> AggregationJob {
    let mut resource = AggregationJob::new(job, AggregationJobSpec::default());
    resource.metadata.namespace = Some("ml".to_owned());
    resource.metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
    resource.metadata.owner_references = Some(owners.iter().map(|uid| reference(uid)).collect());
    resource.metadata.deletion_timestamp = is_deleted.then_some(Time(Timestamp::UNIX_EPOCH));
    resource
}

fn running(number: u32, job: &str, owner: &str) -> JobSummary {
    let name = format!("{}/torch/0", cluster().job_name("ml", job, owner));
    JobSummary { job: number, name, size: 2, trees: 1, ..JobSummary::default() }
}

fn decide(pods: &[Pod], resources: &[AggregationJob], jobs: &[JobSummary]) -> Plan {
    plan(&cluster(), &groups(pods), resources, jobs)
}

fn numbers(jobs: &[(u32, String)]) -> Vec<u32> {
    jobs.iter().map(|(number, _)| *number).collect()
}

#[test]
fn pods_get_an_aggregation_job_that_their_owners_own() {
    let pods =
        [pod("a", "u1", 0, "Running"), pod("a", "u1", 1, "Pending"), pod("b", "u2", 0, "Failed")];
    let first = decide(&pods, &[], &[]);
    assert_eq!(first.create, [(("ml".into(), "a".into()), vec![reference("u1")])]);
    // Another Job of the same JobSet.
    let more = [pod("a", "u1", 0, "Running"), pod("a", "u9", 0, "Running")];
    let second = decide(&more, &[resource("a", &["u1"], false)], &[]);
    assert_eq!(second.adopt, [(("ml".into(), "a".into()), vec![reference("u9")])]);
    assert!(second.create.is_empty());
    let mut bare = pod("c", "u", 0, "Running");
    bare.metadata.owner_references = None;
    let third = decide(&[bare], &[], &[]);
    assert_eq!(third.create[0].1[0].kind, "Pod");
}

#[test]
fn a_job_ends_with_its_last_pod() {
    let jobs = [running(1, "a", "u1"), running(2, "b", "u2")];
    let half = [pod("a", "u1", 0, "Succeeded"), pod("a", "u1", 1, "Running")];
    assert_eq!(numbers(&decide(&half, &[], &jobs).orphans), [2]);
    let none = [pod("a", "u1", 0, "Succeeded"), pod("a", "u1", 1, "Failed")];
    assert_eq!(numbers(&decide(&none, &[], &jobs).orphans), [1, 2]);
}

#[test]
fn jobs_of_other_clusters_and_of_nobody_are_left_alone() {
    let other = ClusterId::of_uid("other").job_name("ml", "a", "u1");
    let named = |name: String| JobSummary { job: 5, name, ..JobSummary::default() };
    let jobs = [named(other), named("k8s-".to_owned()), named("slurm-12.0".to_owned())];
    assert!(!decide(&[], &[], &jobs).stops());
}

#[test]
fn a_deleted_aggregation_job_goes_after_its_jobs() {
    let (pods, held) = ([pod("a", "u1", 0, "Running")], [resource("a", &["u1"], true)]);
    let first = decide(&pods, &held, &[running(1, "a", "u1")]);
    assert_eq!(numbers(&first.doomed), [1]);
    assert!(first.release.is_empty() && first.create.is_empty());
    let second = decide(&pods, &held, &[]);
    assert_eq!(second.release, [("ml".into(), "a".into())]);
}

#[test]
fn a_newer_training_job_of_the_same_name_survives_the_deletion_of_the_older_one() {
    let (pods, held) = ([pod("a", "u2", 0, "Running")], [resource("a", &["u1"], true)]);
    let jobs = [running(1, "a", "u1"), running(2, "a", "u2")];
    let decided = decide(&pods, &held, &jobs);
    assert_eq!(numbers(&decided.doomed), [1]);
    assert!(decided.orphans.is_empty());
    let after = decide(&pods, &held, &jobs[1..]);
    assert_eq!(after.release, [("ml".into(), "a".into())], "it does not wait for the newer one");
    assert!(!after.stops());
}

#[test]
fn states_are_reported_once() {
    let pods = [pod("a", "u1", 0, "Running")];
    let mut held = resource("a", &["u1"], false);
    let jobs = [running(1, "a", "u1")];
    let status = decide(&pods, &[held.clone()], &jobs).statuses.pop().unwrap().1;
    assert_eq!((status.phase.as_str(), status.pods, status.trees), ("Running", 1, 1));
    held.status = Some(status);
    assert!(decide(&pods, &[held.clone()], &jobs).statuses.is_empty());
    assert_eq!(decide(&pods, &[held.clone()], &[]).statuses[0].1.phase, "Pending");
    assert_eq!(decide(&[], &[held], &[]).statuses[0].1.phase, "Ended");
}

proptest! {
    /// A job is stopped if and only if no live pod is of its incarnation, or its AggregationJob is being deleted and all
    /// these pods are of that one's owners. An AggregationJob is released only when no such job is left.
    #[test]
    fn exactly_the_jobs_without_pods_are_stopped(
        pods in proptest::collection::vec((0..3_usize, 0..3_usize, 0..4_usize), 0..12),
        held in proptest::collection::vec((0..3_usize, 0..3_usize, any::<bool>()), 0..3),
        started in proptest::collection::vec((0..3_usize, 0..3_usize), 0..8),
    ) {
        let phases = ["Pending", "Running", "Succeeded", "Failed"];
        let (jobs, owners) = (["a", "b", "c"], ["u1", "u2", "u3"]);
        let made: Vec<Pod> = pods
            .iter()
            .enumerate()
            .map(|(n, &(job, owner, phase))| pod(jobs[job], owners[owner], n, phases[phase]))
            .collect();
        let mut deleted = BTreeMap::new();
        for &(job, owner, is_deleted) in &held {
            deleted.insert(job, (owner, is_deleted));
        }
        let resources: Vec<AggregationJob> = deleted
            .iter()
            .map(|(&job, &(owner, is_deleted))| resource(jobs[job], &[owners[owner]], is_deleted))
            .collect();
        let running: Vec<JobSummary> = started
            .iter()
            .enumerate()
            .map(|(n, &(job, owner))| running(n as u32 + 1, jobs[job], owners[owner]))
            .collect();
        let decided = decide(&made, &resources, &running);
        let is_alive = |job, owner| {
            pods.iter().any(|&(j, o, phase)| (j, o) == (job, owner) && phase < 2)
        };
        let mut stopped: Vec<u32> = numbers(&decided.orphans);
        stopped.extend(numbers(&decided.doomed));
        stopped.sort_unstable();
        let expected: Vec<u32> = started
            .iter()
            .enumerate()
            .filter(|&(_, &(job, owner))| {
                !is_alive(job, owner) || deleted.get(&job) == Some(&(owner, true))
            })
            .map(|(n, _)| n as u32 + 1)
            .collect();
        prop_assert_eq!(stopped, expected);
        for (&job, &(owner, is_deleted)) in &deleted {
            let is_left = started
                .iter()
                .any(|&(j, o)| j == job && (!is_alive(job, o) || o == owner));
            let is_released = decided.release.iter().any(|(_, name)| name == jobs[job]);
            prop_assert_eq!(is_released, is_deleted && !is_left);
        }
    }
}
