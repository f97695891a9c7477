//! netsum's format, the same in TOML and JSON.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::Source;
use crate::error::TopoError;
use crate::links::{LinkGraph, LinkKind, Role, Vertex, WeightedLink, builders};
use crate::units::{Latency, Rate};

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawGraph {
    name: String,
    #[serde(default)]
    gpu: Vec<RawGpu>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    switch: Vec<RawSwitch>,
    #[serde(default)]
    link: Vec<RawLink>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawGpu {
    name: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawSwitch {
    name: String,
    #[serde(default)]
    aggregates: bool,
    #[serde(default)]
    multicasts: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawLink {
    ends: [String; 2],
    #[serde(default = "unknown_rate")]
    rate: String,
    #[serde(default)]
    kind: Option<LinkKind>,
    #[serde(default)]
    latency: Option<String>,
    /// Number of parallel links of that rate.
    #[serde(default)]
    count: Option<u64>,
    #[serde(default)]
    one_way: bool,
}

/// Rate of links for which none is given: equal for all, until traffic shows the real rates, and low, so that little is
/// in flight on slow links.
fn unknown_rate() -> String {
    "100Mbit/s".to_owned()
}

pub(super) fn toml(source: &Source<'_>) -> Result<LinkGraph, TopoError> {
    let raw = toml::from_str(source.text)
        .map_err(|error| TopoError::syntax(source.text, source.file, &error))?;
    convert(source, &raw)
}

pub(super) fn json(source: &Source<'_>) -> Result<LinkGraph, TopoError> {
    let raw = serde_json::from_str(source.text)
        .map_err(|error| source.fault("JSON", error.to_string()))?;
    convert(source, &raw)
}

fn convert(source: &Source<'_>, raw: &RawGraph) -> Result<LinkGraph, TopoError> {
    let gpu = |gpu: &RawGpu| super::gpu(&gpu.name);
    let switch = |switch: &RawSwitch| Vertex {
        name: switch.name.clone(),
        role: Role::Switch { aggregates: switch.aggregates, multicasts: switch.multicasts },
    };
    let vertices: Vec<Vertex> =
        raw.gpu.iter().map(gpu).chain(raw.switch.iter().map(switch)).collect();
    let mut place = HashMap::new();
    for (index, vertex) in vertices.iter().enumerate() {
        place.entry(vertex.name.as_str()).or_insert(index);
    }
    let mut links = Vec::new();
    for (index, link) in raw.link.iter().enumerate() {
        let entry = format!("link {index} ({}–{})", link.ends[0], link.ends[1]);
        let fault = |problem: String| source.fault(entry.clone(), problem);
        let end = |name: &String| {
            let problem = || fault(format!("{name:?} is no [[gpu]] and no [[switch]]; add it"));
            place.get(name.as_str()).copied().ok_or_else(problem)
        };
        let rate: Rate = link.rate.parse().map_err(|error: TopoError| fault(error.to_string()))?;
        let count = link.count.unwrap_or(1);
        let problem = || fault(format!("count {count} with rate {rate} is not possible"));
        let total = rate.0.checked_mul(count).filter(|_| count > 0).ok_or_else(problem)?;
        let kind = link.kind.unwrap_or(LinkKind::Link);
        let latency_ns = match &link.latency {
            None => builders::latency_ns(kind),
            Some(text) => text.parse::<Latency>().map_err(|error| fault(error.to_string()))?.0,
        };
        let ends = [end(&link.ends[0])?, end(&link.ends[1])?];
        links.push(WeightedLink {
            ends,
            rate: Rate(total),
            latency_ns,
            kind,
            one_way: link.one_way,
        });
    }
    source.graph(&raw.name, vertices, links)
}

#[test]
fn links_without_rates_are_equal() {
    let source = Source {
        file: "pair.toml",
        text: "name = \"pair\"\ngpu = [{ name = \"a\" }, { name = \"b\" }]\nlink = [{ ends = [\"a\", \"b\"] }]",
    };
    assert_eq!(toml(&source).unwrap().links()[0].rate, "100Mbit/s".parse().unwrap());
}

/// The graph as TOML; reading it gives the same graph.
pub fn write_toml(graph: &LinkGraph) -> String {
    toml::to_string(&raw(graph)).expect("names and texts only")
}

/// The graph as JSON; reading it gives the same graph.
pub fn write_json(graph: &LinkGraph) -> String {
    serde_json::to_string_pretty(&raw(graph)).expect("names and texts only")
}

fn raw(graph: &LinkGraph) -> RawGraph {
    let name = |v: usize| graph.vertices()[v].name.clone();
    let switches = graph.vertices().iter().filter_map(|vertex| match vertex.role {
        Role::Gpu => None,
        Role::Switch { aggregates, multicasts } => {
            Some(RawSwitch { name: vertex.name.clone(), aggregates, multicasts })
        }
    });
    let links = graph.links().iter().map(|link| RawLink {
        ends: link.ends.map(name),
        rate: link.rate.to_string(),
        kind: Some(link.kind),
        latency: Some(Latency(link.latency_ns).to_string()),
        count: None,
        one_way: link.one_way,
    });
    RawGraph {
        name: graph.name().to_owned(),
        gpu: graph.gpus().into_iter().map(|gpu| RawGpu { name: name(gpu) }).collect(),
        switch: switches.collect(),
        link: links.collect(),
    }
}
