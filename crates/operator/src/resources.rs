//! The custom resources as types; `netsum-operator crds` prints their definitions.

// The lint takes columns of one type for repetitions.
#![allow(clippy::duplicated_attributes)]

use kube::{CustomResource, CustomResourceExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A fabric: switches and hosts among the cluster's nodes, and how they are connected.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "netsum.dev",
    version = "v1alpha1",
    kind = "Fabric",
    namespaced,
    status = "FabricStatus",
    derive = "PartialEq",
    doc = "Switches and hosts among the cluster's nodes, and how they are connected.",
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.ready"),
    printcolumn(name = "Hosts", type_ = "integer", json_path = ".status.hosts"),
    printcolumn(name = "Switches", type_ = "integer", json_path = ".status.switches"),
    printcolumn(name = "Up", type_ = "integer", json_path = ".status.switchesUp"),
    printcolumn(name = "Jobs", type_ = "integer", json_path = ".status.jobs"),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.message")
)]
#[serde(rename_all = "camelCase")]
pub struct FabricSpec {
    /// Rate of the link between a host and each switch of its rack, as 25Gbit/s.
    pub host_rate: String,
    /// Rate of the link between a rack's switch and each spine; that of hosts if absent.
    pub spine_rate: Option<String>,
    /// Memory of each switch for aggregation, as 64MiB. The switches' pods must be given the same.
    #[serde(default = "usual_memory")]
    pub memory: String,
    /// UDP port of switches.
    #[serde(default = "usual_port")]
    pub port: u16,
    /// Whether nobody on this network forges packets, so that they carry no tags.
    #[serde(default)]
    pub trusted: bool,
    /// Owners of jobs, and their limits.
    #[serde(default)]
    pub tenants: Vec<TenantSpec>,
    /// A fabric file, as `netsum fabric discover` writes it, in place of what nodes' labels say. Its hosts and switches
    /// are called as nodes; its controllers are replaced.
    pub file: Option<String>,
}

/// An owner of jobs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TenantSpec {
    /// What jobs call it.
    pub name: String,
    /// Most jobs at a time.
    pub jobs: Option<u32>,
    /// Slots of each switch that each job gets on demand.
    pub guaranteed: Option<u32>,
    /// Most slots of each switch for a job.
    pub limit: Option<u32>,
    /// Decides beyond the guarantees.
    pub priority: Option<u8>,
    /// Most that its jobs together send to each switch, as 8Gbit/s.
    pub rate: Option<String>,
    /// The same in packets.
    pub packets_per_second: Option<u64>,
    /// Whether values in packets of its jobs are encrypted.
    #[serde(default)]
    pub encrypt: bool,
    /// Nodes whose own certificates may join its jobs.
    #[serde(default)]
    pub hosts: Vec<String>,
}

/// What the operator knows of a fabric.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FabricStatus {
    /// Whether a controller leads, has this fabric, and all switches are up: "True" or "False".
    pub ready: String,
    /// Why it is not, and what of it is left out.
    pub message: String,
    /// Of the generation that the operator has seen.
    pub observed_generation: Option<i64>,
    /// Hosts in the fabric file.
    pub hosts: u32,
    /// Switches in the fabric file.
    pub switches: u32,
    /// Switches that are connected to the controller.
    pub switches_up: u32,
    /// Jobs that are not over, of all clusters.
    pub jobs: u32,
    /// Of the fabric file.
    pub digest: String,
}

/// Jobs of a training job's pods.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "netsum.dev",
    version = "v1alpha1",
    kind = "AggregationJob",
    namespaced,
    status = "AggregationJobStatus",
    shortname = "aggjob",
    derive = "PartialEq",
    doc = "What pods of a training job ask of a fabric, and what they have got.",
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Pods", type_ = "integer", json_path = ".status.pods"),
    printcolumn(name = "Trees", type_ = "integer", json_path = ".status.trees"),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.message")
)]
#[serde(rename_all = "camelCase")]
pub struct AggregationJobSpec {
    /// panama, atp, switchml or auto; a pod's annotation comes first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
    /// The owner in the fabric.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Secret in this namespace with the credentials of the ranks; the operator's default if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub credentials_secret: Option<String>,
    /// Whether values in packets are encrypted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encrypt: Option<bool>,
    /// Whether switches do reduce-scatter, all-gather, broadcast and reduce, too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub all_collectives: Option<bool>,
    /// Most trees.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_trees: Option<u32>,
    /// Smaller buffers use the hosts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_bytes: Option<u64>,
}

/// What has become of the pods' jobs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AggregationJobStatus {
    /// Pending (no job yet), Running, Ended (no pod is alive).
    pub phase: String,
    /// Pods that are neither gone nor at their end.
    pub pods: u32,
    /// Trees of the newest job.
    pub trees: u32,
    /// Why it has fewer trees than the fabric could give, or why leases could not be taken back yet.
    pub message: String,
    /// Jobs in the controller, the newest last.
    #[serde(default)]
    pub jobs: Vec<JobEntry>,
}

/// A job in the controller.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct JobEntry {
    /// Its number, as in `netsum top`.
    pub number: u32,
    /// Its name.
    pub name: String,
    /// As the controller says: joining, planning or running.
    pub state: String,
    /// Of its plan.
    pub protocol: String,
    /// Ranks.
    pub ranks: u32,
    /// Trees of its plan.
    pub trees: u32,
}

fn usual_memory() -> String {
    "64MiB".to_owned()
}

fn usual_port() -> u16 {
    7701
}

/// The definitions of both resources, as a list that `kubectl apply` takes.
pub fn definitions() -> serde_json::Value {
    let mut list = serde_json::json!({
        "apiVersion": "v1",
        "kind": "List",
        "items": [Fabric::crd(), AggregationJob::crd()],
    });
    forget_unsigned(&mut list);
    list
}

/// Removes formats that Kubernetes does not know, and warns of to whoever applies the definitions: those of unsigned
/// integers, whose bounds say the same.
fn forget_unsigned(schema: &mut serde_json::Value) {
    match schema {
        serde_json::Value::Object(fields) => {
            let is_unsigned = |format: &serde_json::Value| {
                format.as_str().is_some_and(|format| format.starts_with("uint"))
            };
            if fields.get("format").is_some_and(is_unsigned) {
                fields.remove("format");
            }
            fields.values_mut().for_each(forget_unsigned);
        }
        serde_json::Value::Array(items) => items.iter_mut().for_each(forget_unsigned),
        _ => {}
    }
}
