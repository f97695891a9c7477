//! Labels, annotations and names: what users write on pods and nodes, and how jobs of pods are called.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::Value;
use sha2::{Digest, Sha256};

/// On pods, by users: `on`, or the protocol of the job.
pub const AGGREGATE: &str = "netsum.dev/aggregate";
/// On pods, as an annotation by users who group pods themselves, and as a label by the admission: the name of the
/// AggregationJob.
pub const JOB: &str = "netsum.dev/aggregation-job";
/// On pods, by the admission: what names of the pod's jobs begin with, as `NETSUM_JOB`.
pub const JOB_NAME: &str = "netsum.dev/job-name";
/// On nodes: `switch`.
pub const ROLE: &str = "netsum.dev/role";
/// On nodes: the rack of a host or of its switch. A switch without a rack is a spine.
pub const RACK: &str = "netsum.dev/rack";
/// On the controllers' pods: of the fabric file with which they have started.
pub const DIGEST: &str = "netsum.dev/fabric-digest";
/// Keeps an AggregationJob until its leases are free.
pub const FINALIZER: &str = "netsum.dev/leases";

/// The length of a label's value.
const LABEL_MAX: usize = 63;
/// The length of a job's name, in bytes, of which the group's name takes some.
const JOB_NAME_MAX: usize = 96;
/// How many bytes of a job's name say whose it is; the rest is for people.
pub const IDENTIFYING: usize = 30;

/// Labels of controllers that start several kinds of pods for one training job.
const OWNER_LABELS: [&str; 2] =
    ["jobset.sigs.k8s.io/jobset-name", "training.kubeflow.org/job-name"];
const JOBSET_UID: &str = "jobset.sigs.k8s.io/jobset-uid";

/// A cluster among those that share a fabric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterId(String);

impl ClusterId {
    /// From the UID of the namespace `kube-system`, which lives as long as the cluster.
    pub fn of_uid(uid: &str) -> ClusterId {
        ClusterId(digest(uid))
    }

    /// With what the names of all jobs of this cluster begin.
    pub fn prefix(&self) -> String {
        format!("k8s-{}-", self.0)
    }

    /// With what the names of all jobs of an AggregationJob begin.
    pub fn group_prefix(&self, namespace: &str, job: &str) -> String {
        format!("{}{}-", self.prefix(), digest(&format!("{namespace}/{job}")))
    }

    /// The name of the jobs of pods of one incarnation of a training job.
    pub fn job_name(&self, namespace: &str, job: &str, incarnation: &str) -> String {
        let token = digest(incarnation);
        let mut name = format!("{}{token}.{namespace}.{job}", self.group_prefix(namespace, job));
        // All of it is ASCII, as the API demands of names.
        name.truncate(JOB_NAME_MAX);
        name
    }
}

/// The part of a job's name that says whose it is.
pub fn identifying(job_name: &str) -> &str {
    job_name.get(..IDENTIFYING).unwrap_or(job_name)
}

/// To which AggregationJob a new pod belongs, and to which incarnation of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Membership {
    /// Name of the AggregationJob, short enough for a label.
    pub job: String,
    /// What differs between two training jobs of one name, one after the other.
    pub incarnation: String,
}

impl Membership {
    /// Of a pod as it is in an admission request with the UID `request`.
    pub fn of_new_pod(pod: &Value, request: &str) -> Membership {
        let metadata = &pod["metadata"];
        let text = |value: &Value| value.as_str().filter(|t| !t.is_empty()).map(str::to_owned);
        let owner = metadata["ownerReferences"]
            .as_array()
            .and_then(|owners| owners.iter().find(|owner| owner["controller"] == true));
        let of_label = || OWNER_LABELS.iter().find_map(|&label| text(&metadata["labels"][label]));
        let generated = || {
            let prefix = text(&metadata["generateName"])?;
            Some(prefix.trim_end_matches('-').to_owned())
        };
        let job = text(&metadata["annotations"][JOB])
            .or_else(of_label)
            .or_else(|| text(&owner?["name"]))
            .or_else(|| text(&metadata["name"]))
            .or_else(generated)
            .unwrap_or_else(|| "pod".to_owned());
        let incarnation = text(&metadata["labels"][JOBSET_UID])
            .or_else(|| text(&owner?["uid"]))
            .unwrap_or_else(|| request.to_owned());
        Membership { job: as_label(job), incarnation }
    }
}

/// The AggregationJob of an admitted pod.
pub fn job_of(pod: &Pod) -> Option<&str> {
    pod.labels().get(JOB).map(String::as_str)
}

/// What the names of an admitted pod's jobs begin with.
pub fn job_name_of(pod: &Pod) -> Option<&str> {
    pod.annotations().get(JOB_NAME).map(String::as_str)
}

fn as_label(name: String) -> String {
    if name.len() <= LABEL_MAX {
        return name;
    }
    let digest = digest(&name);
    let kept: String = name.chars().take(LABEL_MAX - digest.len() - 1).collect();
    format!("{}-{digest}", kept.trim_end_matches(['-', '.']))
}

/// Eight hexadecimal digits of the text.
pub fn digest(text: &str) -> String {
    Sha256::digest(text).iter().take(4).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn pods_of_a_jobset_are_of_one_job_whatever_their_own_owners() {
        let pod = |owner: &str| {
            json!({"metadata": {
                "labels": {OWNER_LABELS[0]: "llm", JOBSET_UID: "u-1"},
                "ownerReferences": [{"name": owner, "uid": owner, "controller": true}],
            }})
        };
        let (a, b) = (pod("llm-leader-0"), pod("llm-workers-0"));
        assert_eq!(Membership::of_new_pod(&a, "r1"), Membership::of_new_pod(&b, "r2"));
        assert_eq!(Membership::of_new_pod(&a, "r1").job, "llm");
    }

    #[test]
    fn a_pod_belongs_to_its_controller_else_to_itself() {
        let owned = json!({"metadata": {"name": "t-0", "ownerReferences": [
            {"name": "other", "uid": "u0"}, {"name": "t", "uid": "u1", "controller": true}]}});
        let of = |pod: &Value| Membership::of_new_pod(pod, "r");
        assert_eq!(of(&owned), Membership { job: "t".into(), incarnation: "u1".into() });
        let bare = json!({"metadata": {"generateName": "probe-"}});
        assert_eq!(of(&bare), Membership { job: "probe".into(), incarnation: "r".into() });
        let chosen = json!({"metadata": {"name": "x", "annotations": {JOB: "mine"}}});
        assert_eq!(of(&chosen).job, "mine");
    }

    #[test]
    fn names_fit_and_keep_apart_what_is_truncated() {
        let cluster = ClusterId::of_uid("4f1c");
        let long = "a".repeat(80);
        let [one, two] = ["x", "y"].map(|end| as_label(format!("{long}{end}")));
        assert!(one.len() <= LABEL_MAX && two.len() <= LABEL_MAX && one != two);
        let name = cluster.job_name(&"n".repeat(63), &one, "u");
        assert!(name.len() <= JOB_NAME_MAX, "{name}");
        assert!(name.starts_with(&cluster.group_prefix(&"n".repeat(63), &one)));
        assert_ne!(identifying(&name), identifying(&cluster.job_name("n", &one, "u")));
        let again = cluster.job_name(&"n".repeat(63), &one, "v");
        assert_ne!(identifying(&name), identifying(&again), "another incarnation");
        assert_eq!(identifying(&name).len(), IDENTIFYING);
    }
}
