//! What the admission changes in a pod: its environment, its network and the mount of its credentials, as a JSON patch.

use k8s_openapi::ByteString;
use netsum_topo::Protocol;
use serde_json::{Value, json};

use crate::names::{AGGREGATE, ClusterId, JOB, JOB_NAME, Membership};
use crate::resources::AggregationJobSpec;

/// Where containers find the credentials.
pub const CREDENTIALS: &str = "/var/run/secrets/netsum.dev";
/// The volume with them.
const VOLUME: &str = "netsum-credentials";

/// What is the same for all pods.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The controllers, as pods reach them.
    pub controllers: String,
    /// Secret with the credentials of ranks, in each namespace with such pods; `None`: the fabric has no certificates.
    pub credentials_secret: Option<String>,
    /// The cluster.
    pub cluster: ClusterId,
}

/// Answers an AdmissionReview about a new pod. `job` looks up the AggregationJob of a namespace and a name.
pub fn review(
    settings: &Settings,
    review: &Value,
    job: impl Fn(&str, &str) -> Option<AggregationJobSpec>,
) -> Value {
    let request = &review["request"];
    let answer = |more: Value| {
        let mut response = json!({"uid": request["uid"], "allowed": true});
        if let (Some(response), Value::Object(more)) = (response.as_object_mut(), more) {
            response.extend(more);
        }
        json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})
    };
    match mutate(settings, request, job) {
        Ok(patch) if patch.is_empty() => answer(json!({})),
        Ok(patch) => {
            let patch = ByteString(Value::Array(patch).to_string().into_bytes());
            answer(json!({"patchType": "JSONPatch", "patch": patch}))
        }
        Err(message) => {
            answer(json!({"allowed": false, "status": {"code": 422, "message": message}}))
        }
    }
}

fn mutate(
    settings: &Settings,
    request: &Value,
    job: impl Fn(&str, &str) -> Option<AggregationJobSpec>,
) -> Result<Vec<Value>, String> {
    let pod = &request["object"];
    let Some(wanted) = pod["metadata"]["annotations"][AGGREGATE].as_str() else {
        return Ok(Vec::new());
    };
    let protocol = match wanted {
        "off" | "false" => return Ok(Vec::new()),
        "on" | "true" | "" => None,
        "auto" => Some(wanted),
        name if name.parse::<Protocol>().is_ok() => Some(name),
        other => {
            return Err(format!(
                "annotation {AGGREGATE} is {other:?}; use on, off, auto, {}",
                Protocol::ALL.iter().map(|known| known.name()).collect::<Vec<_>>().join(", ")
            ));
        }
    };
    let namespace = request["namespace"].as_str().unwrap_or("default");
    let member = Membership::of_new_pod(pod, request["uid"].as_str().unwrap_or_default());
    let spec = job(namespace, &member.job).unwrap_or_default();
    let name = settings.cluster.job_name(namespace, &member.job, &member.incarnation);
    let mut patch = Patch { pod, operations: Vec::new() };
    patch.entry("/metadata/labels", JOB, &member.job);
    patch.entry("/metadata/annotations", JOB_NAME, &name);
    // Switches send sums to the node's address, which the fabric has.
    patch.put("/spec/hostNetwork", json!(true));
    if matches!(pod["spec"]["dnsPolicy"].as_str(), None | Some("ClusterFirst")) {
        patch.put("/spec/dnsPolicy", json!("ClusterFirstWithHostNet"));
    }
    let secret = settings.credentials_secret.as_ref();
    let secret = secret.map(|usual| spec.credentials_secret.as_ref().unwrap_or(usual));
    if let Some(secret) = secret {
        // Private to root and the pod's fsGroup; netsum refuses keys that others can read.
        let volume =
            json!({"name": VOLUME, "secret": {"secretName": secret, "defaultMode": 0o440}});
        patch.append("/spec/volumes", "name", volume);
    }
    let environment = environment(settings, &spec, protocol, &name, secret.is_some());
    let containers = pod["spec"]["containers"].as_array().map_or(0, Vec::len);
    for number in 0..containers {
        let container = format!("/spec/containers/{number}");
        if secret.is_some() {
            let mount = json!({"name": VOLUME, "mountPath": CREDENTIALS, "readOnly": true});
            patch.append(&format!("{container}/volumeMounts"), "name", mount);
        }
        patch.environment(&format!("{container}/env"), &environment);
    }
    Ok(patch.operations)
}

/// The variables of a rank, in order.
fn environment(
    settings: &Settings,
    spec: &AggregationJobSpec,
    protocol: Option<&str>,
    name: &str,
    credentials: bool,
) -> Vec<Value> {
    let value = |name: &str, value: String| json!({"name": name, "value": value});
    let mut all = vec![
        value("NETSUM_CONTROLLER", settings.controllers.clone()),
        json!({"name": "NETSUM_HOST", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}),
        value("NETSUM_JOB", name.to_owned()),
    ];
    let switch = |on: bool, yes: &str, no: &str| (if on { yes } else { no }).to_owned();
    let optional = [
        ("NETSUM_CREDENTIALS", credentials.then(|| CREDENTIALS.to_owned())),
        ("NETSUM_PROTOCOL", protocol.map(str::to_owned).or_else(|| spec.protocol.clone())),
        ("NETSUM_TENANT", spec.tenant.clone()),
        ("NETSUM_ENCRYPT", spec.encrypt.map(|on| switch(on, "on", "off"))),
        ("NETSUM_COLLECTIVES", spec.all_collectives.map(|on| switch(on, "all", "allreduce"))),
        ("NETSUM_MAX_TREES", spec.max_trees.map(|n| n.to_string())),
        ("NETSUM_MIN_BYTES", spec.min_bytes.map(|n| n.to_string())),
    ];
    all.extend(optional.into_iter().filter_map(|(name, text)| Some(value(name, text?))));
    all
}

/// Operations on a pod; each list or map is made by the first that needs it.
struct Patch<'a> {
    pod: &'a Value,
    operations: Vec<Value>,
}

impl Patch<'_> {
    fn put(&mut self, path: &str, value: Value) {
        self.operations.push(json!({"op": "add", "path": path, "value": value}));
    }

    /// Whether the pod has a value there, or an earlier operation has made one.
    fn has(&self, path: &str) -> bool {
        self.pod.pointer(path).is_some_and(|value| !value.is_null())
            || self.operations.iter().any(|operation| operation["path"] == path)
    }

    fn entry(&mut self, map: &str, key: &str, value: &str) {
        if !self.has(map) {
            self.put(map, json!({}));
        }
        self.put(&format!("{map}/{}", key.replace('~', "~0").replace('/', "~1")), json!(value));
    }

    /// Appends to a list what it does not have; `key` tells its members apart.
    fn append(&mut self, list: &str, key: &str, member: Value) {
        let members = self.pod.pointer(list).and_then(Value::as_array);
        if members.is_some_and(|all| all.iter().any(|one| one[key] == member[key])) {
            return;
        }
        if !self.has(list) {
            self.put(list, json!([]));
        }
        self.put(&format!("{list}/-"), member);
    }

    /// Adds variables. What the user has set stays, but for the job's name, by which its end is noticed.
    fn environment(&mut self, list: &str, variables: &[Value]) {
        let present = self.pod.pointer(list).and_then(Value::as_array);
        let job = |one: &Value| one["name"] == "NETSUM_JOB";
        if let Some(number) = present.and_then(|all| all.iter().position(job)) {
            let ours = variables.iter().find(|one| job(one)).cloned();
            self.operations.push(json!({
                "op": "replace", "path": format!("{list}/{number}"), "value": ours
            }));
        }
        for variable in variables {
            self.append(list, "name", variable.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> Settings {
        Settings {
            controllers: "c-0.netsum.svc:7700".to_owned(),
            credentials_secret: Some("netsum-credentials".to_owned()),
            cluster: ClusterId::of_uid("u"),
        }
    }

    fn request(pod: Value) -> Value {
        json!({"request": {"uid": "r-1", "namespace": "ml", "object": pod}})
    }

    fn pod(wanted: &str, env: Value) -> Value {
        let owner = json!({"name": "train", "uid": "u-7", "controller": true, "kind": "Job"});
        json!({
            "metadata": {"name": "train-0-x", "annotations": {AGGREGATE: wanted}, "ownerReferences": [owner]},
            "spec": {"containers": [{"name": "a", "env": env}, {"name": "b"}], "dnsPolicy": "ClusterFirst"},
        })
    }

    /// Applies the patch of an answer, by the rules of RFC 6902 for the operations in use.
    fn patched(mut pod: Value, answer: &Value) -> Value {
        assert_eq!(answer["response"]["allowed"], true, "{answer}");
        let patch: ByteString =
            serde_json::from_value(answer["response"]["patch"].clone()).unwrap();
        let operations: Vec<Value> = serde_json::from_slice(&patch.0).unwrap();
        for operation in operations {
            let path = operation["path"].as_str().unwrap();
            let (parent, key) = path.rsplit_once('/').unwrap();
            let key = key.replace("~1", "/").replace("~0", "~");
            let parent = pod.pointer_mut(parent).unwrap_or_else(|| panic!("no {path}"));
            match (parent, operation["op"].as_str().unwrap()) {
                (Value::Object(map), "add") => {
                    map.insert(key, operation["value"].clone());
                }
                (Value::Array(list), "add") => {
                    assert_eq!(key, "-");
                    list.push(operation["value"].clone());
                }
                (Value::Array(list), "replace") => {
                    list[key.parse::<usize>().unwrap()] = operation["value"].clone();
                }
                other => panic!("{other:?}"),
            }
        }
        pod
    }

    fn admit(pod: Value, spec: Option<AggregationJobSpec>) -> Value {
        let answer = review(&settings(), &request(pod.clone()), |namespace, job| {
            assert_eq!((namespace, job), ("ml", "train"));
            spec.clone()
        });
        patched(pod, &answer)
    }

    fn variables(pod: &Value, container: usize) -> Vec<(String, String)> {
        let env = pod["spec"]["containers"][container]["env"].as_array().unwrap();
        let text = |value: &Value| value.as_str().unwrap_or("from the node").to_owned();
        env.iter().map(|one| (text(&one["name"]), text(&one["value"]))).collect()
    }

    #[test]
    fn a_pod_gets_what_its_ranks_need() {
        let got = admit(pod("atp", Value::Null), None);
        let name = settings().cluster.job_name("ml", "train", "u-7");
        let expected = [
            ("NETSUM_CONTROLLER", "c-0.netsum.svc:7700"),
            ("NETSUM_HOST", "from the node"),
            ("NETSUM_JOB", &name),
            ("NETSUM_CREDENTIALS", CREDENTIALS),
            ("NETSUM_PROTOCOL", "atp"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(variables(&got, 0), expected);
        assert_eq!(variables(&got, 1), expected);
        assert_eq!(got["spec"]["hostNetwork"], true);
        assert_eq!(got["spec"]["dnsPolicy"], "ClusterFirstWithHostNet");
        assert_eq!(got["metadata"]["labels"][JOB], "train");
        assert_eq!(got["metadata"]["annotations"][JOB_NAME], name.as_str());
        assert_eq!(got["spec"]["volumes"][0]["secret"]["secretName"], "netsum-credentials");
        assert_eq!(got["spec"]["containers"][1]["volumeMounts"][0]["mountPath"], CREDENTIALS);
    }

    #[test]
    fn the_users_variables_stay_but_for_the_jobs_name() {
        let own = json!([{"name": "NETSUM_JOB", "value": "theirs"}, {"name": "NETSUM_HOST", "value": "h"}]);
        let got = variables(&admit(pod("on", own), None), 0);
        let name = settings().cluster.job_name("ml", "train", "u-7");
        assert_eq!(got[0], ("NETSUM_JOB".to_owned(), name));
        assert_eq!(got[1], ("NETSUM_HOST".to_owned(), "h".to_owned()));
        assert_eq!(got.len(), 4, "{got:?}");
    }

    #[test]
    fn settings_come_from_the_aggregation_job() {
        let spec = AggregationJobSpec {
            protocol: Some("switchml".to_owned()),
            tenant: Some("research".to_owned()),
            credentials_secret: Some("research".to_owned()),
            encrypt: Some(true),
            max_trees: Some(2),
            ..AggregationJobSpec::default()
        };
        let got = admit(pod("on", Value::Null), Some(spec.clone()));
        let variables =
            |pod| variables(pod, 0).into_iter().collect::<std::collections::BTreeMap<_, _>>();
        assert_eq!(variables(&got)["NETSUM_PROTOCOL"], "switchml");
        assert_eq!(variables(&got)["NETSUM_TENANT"], "research");
        assert_eq!(variables(&got)["NETSUM_ENCRYPT"], "on");
        assert_eq!(variables(&got)["NETSUM_MAX_TREES"], "2");
        assert_eq!(got["spec"]["volumes"][0]["secret"]["secretName"], "research");
        let got = admit(pod("atp", Value::Null), Some(spec));
        assert_eq!(variables(&got)["NETSUM_PROTOCOL"], "atp", "the annotation comes first");
    }

    #[test]
    fn an_admitted_pod_is_admitted_again_unchanged() {
        let once = admit(pod("on", Value::Null), None);
        let twice = admit(once.clone(), None);
        assert_eq!(once, twice);
    }

    #[test]
    fn others_pass_and_a_wrong_word_is_refused() {
        let job = |_: &str, _: &str| None;
        let plain = json!({"metadata": {"name": "x"}, "spec": {"containers": [{}]}});
        let answer = review(&settings(), &request(plain), job);
        assert_eq!(answer["response"], json!({"uid": "r-1", "allowed": true}));
        let answer = review(&settings(), &request(pod("ring", Value::Null)), job);
        assert_eq!(answer["response"]["allowed"], false);
        let message = answer["response"]["status"]["message"].as_str().unwrap();
        assert!(message.contains("use on, off, auto, panama"), "{message}");
        let nothing = review(&settings(), &json!({}), job);
        assert_eq!(nothing["response"]["allowed"], true);
    }
}
