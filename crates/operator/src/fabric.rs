//! Keeps the fabric file in step with nodes, and says whether the fabric is ready.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Service};
use kube::api::{ListParams, Patch, PatchParams};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Api, Client, Resource, ResourceExt};
use netsum_control::client::{self, ControllerEndpoint};
use netsum_control::pb::StatusReply;
use serde_json::json;
use tokio::sync::Notify;

use crate::error::OperatorError;
use crate::names::{DIGEST, digest};
use crate::resources::{Fabric, FabricStatus};
use crate::topology::{NodeFacts, Rendered, render};

/// Whose the fabric is, and what its file goes to.
pub struct FabricKeeper {
    /// The API server.
    pub client: Client,
    /// The operator's namespace, which has all of the fabric's objects.
    pub namespace: String,
    /// Name of the Fabric, of the ConfigMap with its file, and of the controllers' StatefulSet.
    pub objects: Objects,
    /// The controllers, with the operator's credentials.
    pub controllers: ControllerEndpoint,
    /// Nodes of the cluster.
    pub nodes: Store<Node>,
    /// Fabrics of the namespace.
    pub fabrics: Store<Fabric>,
}

/// Names of the fabric's objects.
#[derive(Clone, Debug)]
pub struct Objects {
    /// The Fabric.
    pub fabric: String,
    /// The ConfigMap with the fabric file.
    pub config_map: String,
    /// The controllers.
    pub stateful_set: String,
    /// The label of the controllers' Services, one for each.
    pub services: String,
}

impl FabricKeeper {
    /// Runs until the process ends.
    pub async fn run(self, changed: Arc<Notify>) {
        let mut written = None;
        loop {
            let ready = match self.step(&mut written).await {
                Ok(ready) => ready,
                Err(error) => {
                    tracing::warn!(%error, "the fabric is not up to date; trying again");
                    false
                }
            };
            let pause = if ready { LOOK } else { LOOK_SOON };
            let _ = tokio::time::timeout(pause, changed.notified()).await;
            // Nodes come and go in crowds, and each new file restarts controllers.
            tokio::time::sleep(SETTLE).await;
        }
    }

    /// Writes what has changed; returns whether the fabric is ready. `written`: the digest of the file in the cluster.
    async fn step(&self, written: &mut Option<String>) -> Result<bool, OperatorError> {
        let key = ObjectRef::new(&self.objects.fabric).within(&self.namespace);
        let Some(fabric) = self.fabrics.get(&key).filter(|f| f.meta().deletion_timestamp.is_none())
        else {
            *written = None;
            return Ok(true);
        };
        let nodes: Vec<NodeFacts> =
            self.nodes.state().iter().filter_map(|node| NodeFacts::of(node)).collect();
        let controllers = self.addresses().await?;
        let status = match render(&self.objects.fabric, &fabric.spec, &nodes, &controllers) {
            Err(problem) => {
                let before = fabric.status.clone().unwrap_or_default();
                FabricStatus { ready: "False".to_owned(), message: problem, ..before }
            }
            Ok(rendered) => {
                let text = rendered.fabric.to_toml();
                let digest = digest(&text);
                if written.as_ref() != Some(&digest) {
                    self.write(&fabric, &text, &digest).await?;
                    tracing::info!(
                        digest,
                        hosts = rendered.fabric.hosts.len(),
                        switches = rendered.fabric.switches.len(),
                        "wrote the fabric file"
                    );
                    *written = Some(digest.clone());
                }
                let controllers = self.controllers.clone();
                let asked =
                    tokio::task::spawn_blocking(move || client::status(&controllers, ANSWER));
                let answer = asked.await.map_err(|_| OperatorError::Ended("a call"))?;
                judge(&rendered, digest, answer.map_err(|error| error.to_string()))
            }
        };
        let status = FabricStatus { observed_generation: fabric.meta().generation, ..status };
        if fabric.status.as_ref() != Some(&status) {
            let all: Api<Fabric> = Api::namespaced(self.client.clone(), &self.namespace);
            let patch = Patch::Merge(json!({"status": status}));
            let name = &self.objects.fabric;
            let patched = all.patch_status(name, &PatchParams::default(), &patch).await;
            patched.map_err(OperatorError::api(format!("status of Fabric {name}")))?;
        }
        Ok(status.ready == "True")
    }

    /// Addresses of the controllers' Services, in the order of their names.
    async fn addresses(&self) -> Result<Vec<SocketAddr>, OperatorError> {
        let services: Api<Service> = Api::namespaced(self.client.clone(), &self.namespace);
        let listed = services.list(&ListParams::default().labels(&self.objects.services)).await;
        let listed = listed.map_err(OperatorError::api("Services of controllers"))?;
        let mut found: Vec<(String, SocketAddr)> = listed.iter().filter_map(address).collect();
        found.sort();
        Ok(found.into_iter().map(|(_, address)| address).collect())
    }

    /// The controllers are told first: those that start meanwhile wait for the file.
    async fn write(&self, owner: &Fabric, text: &str, digest: &str) -> Result<(), OperatorError> {
        let Objects { config_map, stateful_set, .. } = &self.objects;
        let sets: Api<StatefulSet> = Api::namespaced(self.client.clone(), &self.namespace);
        let annotations = json!({DIGEST: digest});
        let patch = json!({"spec": {"template": {"metadata": {"annotations": annotations}}}});
        let patched = sets.patch(stateful_set, &PatchParams::default(), &Patch::Merge(patch)).await;
        patched.map_err(OperatorError::api(format!("StatefulSet {stateful_set}")))?;
        let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), &self.namespace);
        let map = json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": config_map, "ownerReferences": owner.owner_ref(&())},
            "data": {FILE: text},
        });
        let map = with_list(map);
        let applied = PatchParams::apply(MANAGER).force();
        let written = maps.patch(config_map, &applied, &Patch::Apply(map)).await;
        written.map_err(OperatorError::api(format!("ConfigMap {config_map}")))?;
        Ok(())
    }
}

/// The one owner as a list, as the API has it.
fn with_list(mut map: serde_json::Value) -> serde_json::Value {
    let owner = map["metadata"]["ownerReferences"].take();
    map["metadata"]["ownerReferences"] = if owner.is_null() { json!([]) } else { json!([owner]) };
    map
}

fn address(service: &Service) -> Option<(String, SocketAddr)> {
    let spec = service.spec.as_ref()?;
    let ip: IpAddr = spec.cluster_ip.as_deref()?.parse().ok()?;
    let port = u16::try_from(spec.ports.as_ref()?.first()?.port).ok()?;
    Some((service.name_any(), SocketAddr::new(ip, port)))
}

/// Compares what the controller knows with what it should know.
fn judge(rendered: &Rendered, digest: String, answer: Result<StatusReply, String>) -> FabricStatus {
    let fabric = &rendered.fabric;
    let mut problems = Vec::new();
    let (mut switches_up, mut jobs) = (0, 0);
    match answer {
        Err(problem) => problems.push(problem),
        Ok(known) => {
            let hosts: BTreeSet<_> = known.hosts.iter().map(|h| (&*h.name, &*h.address)).collect();
            let addresses: Vec<String> =
                fabric.hosts.iter().map(|host| host.address.to_string()).collect();
            let wanted: BTreeSet<_> =
                fabric.hosts.iter().zip(&addresses).map(|(h, a)| (&*h.name, &**a)).collect();
            let up: BTreeSet<&str> = known
                .switches
                .iter()
                .filter(|switch| switch.state == "up")
                .map(|switch| switch.name.as_str())
                .collect();
            let missing: Vec<&str> = fabric
                .switches
                .iter()
                .map(|switch| switch.name.as_str())
                .filter(|name| !up.contains(name))
                .collect();
            switches_up = (fabric.switches.len() - missing.len()) as u32;
            let over = |state: &str| matches!(state, "ended" | "abandoned");
            jobs = known.jobs.iter().filter(|job| !over(&job.state)).count() as u32;
            if known.fabric != fabric.name || hosts != wanted {
                problems.push("the controller that leads has another fabric file yet".to_owned());
            }
            if !missing.is_empty() {
                problems.push(format!("{} switches are not up: {}", missing.len(), some(&missing)));
            }
        }
    }
    let ready = problems.is_empty();
    if !rendered.left_out.is_empty() {
        let all: Vec<&str> = rendered.left_out.iter().map(String::as_str).collect();
        problems.push(format!("{} nodes are left out: {}", all.len(), some(&all)));
    }
    FabricStatus {
        ready: if ready { "True" } else { "False" }.to_owned(),
        message: problems.join("; "),
        observed_generation: None,
        hosts: fabric.hosts.len() as u32,
        switches: fabric.switches.len() as u32,
        switches_up,
        jobs,
        digest,
    }
}

/// The first few of many.
fn some(all: &[&str]) -> String {
    let shown = all.iter().take(SHOWN).copied().collect::<Vec<_>>().join(", ");
    if all.len() > SHOWN { format!("{shown}, …") } else { shown }
}

/// The key of the ConfigMap, and so the name of the file.
const FILE: &str = "fabric.toml";
/// Who owns the fields that the operator applies.
const MANAGER: &str = "netsum-operator";
const SHOWN: usize = 3;
/// How often the controller is asked, when all is well and when it is not.
const LOOK: Duration = Duration::from_secs(5);
const LOOK_SOON: Duration = Duration::from_secs(1);
const SETTLE: Duration = Duration::from_millis(300);
const ANSWER: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use netsum_control::pb::{Host, JobStatus, SwitchStatus};
    use netsum_topo::{Addressing, Rate, single_switch};

    use super::*;

    fn rendered() -> Rendered {
        let fabric = single_switch(2, Rate(1_000_000_000), Addressing::default()).unwrap();
        Rendered { fabric, left_out: Vec::new() }
    }

    fn known(rendered: &Rendered) -> StatusReply {
        let fabric = &rendered.fabric;
        let host = |host: &netsum_topo::Host| Host {
            name: host.name.clone(),
            address: host.address.to_string(),
        };
        let switch = |switch: &netsum_topo::Switch| SwitchStatus {
            name: switch.name.clone(),
            state: "up".to_owned(),
            ..SwitchStatus::default()
        };
        StatusReply {
            fabric: fabric.name.clone(),
            hosts: fabric.hosts.iter().map(host).collect(),
            switches: fabric.switches.iter().map(switch).collect(),
            ..StatusReply::default()
        }
    }

    #[test]
    fn a_fabric_is_ready_if_the_leader_has_it_and_all_switches_are_up() {
        let rendered = rendered();
        let mut reply = known(&rendered);
        let state = |state: &str| JobStatus { state: state.to_owned(), ..JobStatus::default() };
        reply.jobs = ["running", "ended", "abandoned", "joining"].map(state).to_vec();
        let status = judge(&rendered, "d".to_owned(), Ok(reply));
        assert_eq!((status.ready.as_str(), status.message.as_str()), ("True", ""));
        assert_eq!((status.hosts, status.switches, status.switches_up, status.jobs), (2, 1, 1, 2));
    }

    #[test]
    fn what_is_not_ready_is_said() {
        let mut rendered = rendered();
        let of = |rendered: &Rendered, answer| judge(rendered, String::new(), answer);
        let mut down = known(&rendered);
        down.switches[0].state = "down".to_owned();
        let status = of(&rendered, Ok(down));
        assert_eq!((status.ready.as_str(), status.switches_up), ("False", 0));
        assert!(status.message.starts_with("1 switches are not up: "), "{}", status.message);
        let mut old = known(&rendered);
        old.hosts.pop();
        let status = of(&rendered, Ok(old));
        assert!(status.message.contains("another fabric file"), "{}", status.message);
        let mut moved = known(&rendered);
        moved.hosts[0].address = "192.0.2.9".to_owned();
        assert_eq!(of(&rendered, Ok(moved)).ready, "False");
        let status = of(&rendered, Err("no answer".to_owned()));
        assert_eq!((status.ready.as_str(), status.message.as_str()), ("False", "no answer"));
        rendered.left_out.push("h9: it has no InternalIP".to_owned());
        let status = of(&rendered, Ok(known(&rendered)));
        assert_eq!(status.ready, "True");
        assert_eq!(status.message, "1 nodes are left out: h9: it has no InternalIP");
    }
}
