//! From nodes to a fabric: hosts below the switches of their racks, and these below all spines.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use netsum_topo::{Bytes, Fabric, Host, Link, Rate, SLOTS_USUAL, SlotPolicy, Switch, Tenant};

use crate::names::{RACK, ROLE};
use crate::resources::{FabricSpec, TenantSpec};

/// What a node says of its place in the fabric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeFacts {
    /// Name of the node, and of the host or switch.
    pub name: String,
    /// Its internal address; `None`: it has not registered yet.
    pub address: Option<IpAddr>,
    /// The rack of which it is.
    pub rack: Option<String>,
    /// Whether it is a switch.
    pub is_switch: bool,
}

impl NodeFacts {
    /// Of a node; `None` if it has no place in the fabric.
    pub fn of(node: &Node) -> Option<NodeFacts> {
        let label = |key| node.labels().get(key).filter(|value| !value.is_empty()).cloned();
        let (rack, is_switch) = (label(RACK), label(ROLE).as_deref() == Some("switch"));
        if rack.is_none() && !is_switch {
            return None;
        }
        let addresses = node.status.as_ref().and_then(|status| status.addresses.as_ref());
        let internal = addresses.into_iter().flatten().find(|a| a.type_ == "InternalIP");
        let address = internal.and_then(|found| found.address.parse().ok());
        Some(NodeFacts { name: node.name_any(), address, rack, is_switch })
    }
}

/// A fabric and what was left out of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendered {
    /// The fabric, checked.
    pub fabric: Fabric,
    /// Nodes that have no place yet, each with the reason.
    pub left_out: Vec<String>,
}

/// The fabric of these nodes, or that of the file in `spec`, with `controllers`. Errors say what to correct.
pub fn render(
    name: &str,
    spec: &FabricSpec,
    nodes: &[NodeFacts],
    controllers: &[SocketAddr],
) -> Result<Rendered, String> {
    let (&controller, standbys) =
        controllers.split_first().ok_or("no Service of a controller has an address yet")?;
    let (mut fabric, left_out) = match &spec.file {
        Some(text) => {
            let file = format!("Fabric {name}, file");
            let fabric = Fabric::parse_simulated(text, &file).map_err(|e| e.to_string())?;
            (fabric, Vec::new())
        }
        None => from_nodes(name, spec, nodes)?,
    };
    (fabric.controller, fabric.standbys) = (controller, standbys.to_vec());
    if spec.file.is_none() {
        fabric.tenants = spec.tenants.iter().map(tenant).collect::<Result<_, _>>()?;
    }
    let checked = Fabric::parse(&fabric.to_toml(), &format!("Fabric {name}"));
    Ok(Rendered { fabric: checked.map_err(|error| error.to_string())?, left_out })
}

fn from_nodes(
    name: &str,
    spec: &FabricSpec,
    nodes: &[NodeFacts],
) -> Result<(Fabric, Vec<String>), String> {
    let rate =
        |text: &str, field| text.parse::<Rate>().map_err(|error| format!("spec.{field}: {error}"));
    let host_rate = rate(&spec.host_rate, "hostRate")?;
    let spine_rate = spec.spine_rate.as_deref().map_or(Ok(host_rate), |r| rate(r, "spineRate"))?;
    let memory = spec.memory.parse::<Bytes>().map_err(|error| format!("spec.memory: {error}"))?;
    let mut left_out = Vec::new();
    let mut sorted: Vec<&NodeFacts> = nodes.iter().collect();
    sorted.sort_by(|a, b| a.name.cmp(&b.name));
    let (mut hosts, mut switches, mut links) = (Vec::new(), Vec::new(), Vec::new());
    let (mut racks, mut spines) = (BTreeMap::<&str, Vec<&str>>::new(), Vec::new());
    for node in sorted.iter().filter(|node| node.is_switch) {
        let Some(address) = node.address else {
            left_out.push(format!("{}: it has no InternalIP", node.name));
            continue;
        };
        switches.push(Switch {
            name: node.name.clone(),
            address: SocketAddr::new(address, spec.port),
            memory,
            metrics: None,
            slots: SLOTS_USUAL,
            policy: SlotPolicy::default(),
        });
        match &node.rack {
            Some(rack) => racks.entry(rack).or_default().push(&node.name),
            None => spines.push(node.name.as_str()),
        }
    }
    if switches.is_empty() {
        return Err(format!("no node is a switch; label some: {ROLE}=switch"));
    }
    let link =
        |a: &str, b: &str, rate| Link { ends: [a.to_owned(), b.to_owned()], rate, latency: None };
    for node in sorted.iter().filter(|node| !node.is_switch) {
        let (Some(rack), Some(address)) = (&node.rack, node.address) else {
            left_out.push(format!("{}: it has no InternalIP", node.name));
            continue;
        };
        let Some(above) = racks.get(rack.as_str()) else {
            left_out.push(format!("{}: no node is the switch of rack {rack}", node.name));
            continue;
        };
        hosts.push(Host { name: node.name.clone(), address });
        links.extend(above.iter().map(|switch| link(&node.name, switch, host_rate)));
    }
    if hosts.is_empty() {
        return Err(format!("no node is a host of a rack with a switch; label some: {RACK}=NAME"));
    }
    if racks.len() > 1 && spines.is_empty() {
        return Err(format!(
            "{} racks have no spine between them; label a node {ROLE}=switch without a rack",
            racks.len()
        ));
    }
    for &switch in racks.values().flatten() {
        links.extend(spines.iter().map(|spine| link(switch, spine, spine_rate)));
    }
    let fabric = Fabric {
        name: name.to_owned(),
        controller: SocketAddr::from(([0, 0, 0, 0], 0)),
        standbys: Vec::new(),
        trusted: spec.trusted,
        hosts,
        switches,
        links,
        servers: Vec::new(),
        tenants: Vec::new(),
    };
    Ok((fabric, left_out))
}

fn tenant(spec: &TenantSpec) -> Result<Tenant, String> {
    let rate = spec.rate.as_deref().map(str::parse::<Rate>).transpose();
    let rate = rate.map_err(|error| format!("tenant {:?}: {error}", spec.name))?;
    Ok(Tenant {
        jobs: spec.jobs.unwrap_or(u32::MAX),
        guaranteed: spec.guaranteed.unwrap_or(0),
        limit: spec.limit.unwrap_or(u32::MAX),
        priority: spec.priority.unwrap_or(0),
        rate,
        packets_per_second: spec.packets_per_second,
        encrypt: spec.encrypt,
        hosts: spec.hosts.clone(),
        ..Tenant::named(&spec.name)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn node(name: &str, rack: Option<&str>, is_switch: bool, last: u8) -> NodeFacts {
        NodeFacts {
            name: name.to_owned(),
            address: Some(IpAddr::from([10, 0, 0, last])),
            rack: rack.map(str::to_owned),
            is_switch,
        }
    }

    fn spec() -> FabricSpec {
        FabricSpec {
            host_rate: "10Gbit/s".to_owned(),
            spine_rate: Some("40Gbit/s".to_owned()),
            memory: "64MiB".to_owned(),
            port: 7701,
            ..FabricSpec::default()
        }
    }

    fn controllers() -> Vec<SocketAddr> {
        vec!["10.1.0.1:7700".parse().unwrap(), "10.1.0.2:7700".parse().unwrap()]
    }

    #[test]
    fn two_racks_and_a_spine() {
        let nodes = [
            node("h1", Some("r1"), false, 1),
            node("h0", Some("r0"), false, 2),
            node("s", None, true, 3),
            node("t1", Some("r1"), true, 4),
            node("t0", Some("r0"), true, 5),
        ];
        let rendered = render("lab", &spec(), &nodes, &controllers()).unwrap();
        let Rendered { fabric, left_out } = rendered;
        assert_eq!(left_out, Vec::<String>::new());
        assert_eq!(fabric.controllers(), "10.1.0.1:7700,10.1.0.2:7700");
        let names: Vec<&str> = fabric.hosts.iter().map(|host| host.name.as_str()).collect();
        assert_eq!(names, ["h0", "h1"]);
        let links: Vec<String> = fabric
            .links
            .iter()
            .map(|l| format!("{}-{} {}", l.ends[0], l.ends[1], l.rate))
            .collect();
        let expected = ["h0-t0 10Gbit/s", "h1-t1 10Gbit/s", "t0-s 40Gbit/s", "t1-s 40Gbit/s"];
        assert_eq!(links, expected);
    }

    #[test]
    fn what_is_missing_is_said() {
        let host = node("h0", Some("r0"), false, 1);
        let fails =
            |nodes: &[NodeFacts]| render("lab", &spec(), nodes, &controllers()).unwrap_err();
        assert!(fails(std::slice::from_ref(&host)).contains("no node is a switch"));
        let switch = node("t0", Some("r0"), true, 2);
        assert!(fails(std::slice::from_ref(&switch)).contains("no node is a host"));
        let racks = [host.clone(), switch.clone(), node("t1", Some("r1"), true, 3)];
        assert!(fails(&racks).contains("2 racks have no spine"));
        let none = render("lab", &spec(), &[host.clone(), switch.clone()], &[]).unwrap_err();
        assert!(none.contains("no Service of a controller"));
        let wrong = FabricSpec { host_rate: "fast".to_owned(), ..spec() };
        let wrong = render("lab", &wrong, &[host, switch], &controllers()).unwrap_err();
        assert!(wrong.starts_with("spec.hostRate: "), "{wrong}");
    }

    #[test]
    fn nodes_without_a_place_are_left_out_and_the_others_stay() {
        let nameless = NodeFacts { address: None, ..node("h1", Some("r0"), false, 9) };
        let nodes = [
            node("h0", Some("r0"), false, 1),
            node("t0", Some("r0"), true, 2),
            nameless,
            node("h2", Some("r7"), false, 3),
        ];
        let Rendered { fabric, left_out } = render("lab", &spec(), &nodes, &controllers()).unwrap();
        assert_eq!(fabric.hosts.len(), 1);
        assert_eq!(left_out, ["h1: it has no InternalIP", "h2: no node is the switch of rack r7"]);
    }

    #[test]
    fn a_file_keeps_its_links_and_gets_the_controllers() {
        let file = "name = \"lab\"\n[[host]]\nname = \"a\"\naddress = \"10.0.0.1\"\n\
            [[switch]]\nname = \"s\"\naddress = \"10.0.0.2:7701\"\nmemory = \"1MiB\"\n\
            [[link]]\nends = [\"a\", \"s\"]\nrate = \"1Gbit/s\"\n";
        let given = FabricSpec { file: Some(file.to_owned()), ..spec() };
        let Rendered { fabric, .. } = render("lab", &given, &[], &controllers()).unwrap();
        assert_eq!(fabric.links.len(), 1);
        assert_eq!(fabric.controllers(), "10.1.0.1:7700,10.1.0.2:7700");
        let broken = FabricSpec { file: Some("name = 3".to_owned()), ..spec() };
        assert!(render("lab", &broken, &[], &controllers()).is_err());
    }

    proptest! {
        /// Every host hangs below each switch of its rack, every rack's switch below each spine, and the order in which
        /// nodes come does not matter.
        #[test]
        fn links_are_those_of_the_labels(
            hosts in proptest::collection::vec(0..4_usize, 1..20),
            switches in proptest::collection::vec(0..5_usize, 1..8),
            turn in 0..20_usize,
        ) {
            let rack = |number: usize| format!("r{number}");
            let mut nodes = Vec::new();
            for (i, &r) in hosts.iter().enumerate() {
                nodes.push(node(&format!("h{i}"), Some(&rack(r)), false, i as u8));
            }
            for (i, &r) in switches.iter().enumerate() {
                let of = rack(r);
                nodes.push(node(&format!("s{i}"), (r < 4).then_some(&*of), true, 100 + i as u8));
            }
            let expected = render("lab", &spec(), &nodes, &controllers());
            let by = turn % nodes.len();
            nodes.rotate_left(by);
            let got = render("lab", &spec(), &nodes, &controllers());
            prop_assert_eq!(&got, &expected);
            let Ok(Rendered { fabric, left_out }) = got else { return Ok(()) };
            let racks = |r: usize| switches.iter().filter(|&&s| s == r).count();
            let spines = racks(4);
            let placed: Vec<usize> = hosts.iter().copied().filter(|&r| racks(r) > 0).collect();
            prop_assert_eq!(fabric.hosts.len(), placed.len());
            prop_assert_eq!(left_out.len(), hosts.len() - placed.len());
            let below: usize = placed.iter().map(|&r| racks(r)).sum();
            let above = (switches.len() - spines) * spines;
            prop_assert_eq!(fabric.links.len(), below + above);
        }
    }
}
