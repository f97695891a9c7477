//! networkx `node_link_data`: nodes with `kind`, edges (or `links`) with `capacity`.
//!
//! A node is a switch if its `kind`, `type` or `role` is "switch", or `switch` is true. An edge's rate is the first of
//! `rate`, `capacity`, `bandwidth`, `weight`: text like "200Gbit/s", or a number in the unit of the options. An edge of
//! a directed graph has one direction.

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::{ImportOptions, Source, gpu};
use crate::error::TopoError;
use crate::links::{LinkGraph, LinkKind, Role, Vertex, WeightedLink, builders};
use crate::units::Rate;

#[derive(Deserialize)]
struct RawGraph {
    #[serde(default)]
    directed: bool,
    nodes: Vec<Map<String, Value>>,
    #[serde(alias = "links")]
    edges: Vec<Map<String, Value>>,
}

pub(super) fn read(source: &Source<'_>, options: &ImportOptions) -> Result<LinkGraph, TopoError> {
    let raw: RawGraph = serde_json::from_str(source.text)
        .map_err(|error| source.fault("JSON", error.to_string()))?;
    let mut vertices = Vec::new();
    let mut place = HashMap::new();
    for (index, node) in raw.nodes.iter().enumerate() {
        let entry = || format!("nodes[{index}]");
        let id = node.get("id").ok_or_else(|| source.fault(entry(), "it has no id"))?;
        if place.insert(id.to_string(), index).is_some() {
            return Err(source.fault(entry(), format!("id {id} is named twice")));
        }
        vertices.push(vertex(node, id));
    }
    let mut links = Vec::new();
    for (index, edge) in raw.edges.iter().enumerate() {
        let fault = |problem: String| source.fault(format!("edges[{index}]"), problem);
        let end = |name: &str| {
            let id = edge.get(name).ok_or_else(|| fault(format!("it has no {name}")))?;
            let known = place.get(&id.to_string()).copied();
            known.ok_or_else(|| fault(format!("{name} {id} is the id of no node")))
        };
        let ends = [end("source")?, end("target")?];
        let kind = match edge.get("kind") {
            None => LinkKind::Link,
            Some(value) => serde_json::from_value(value.clone())
                .map_err(|_| fault(format!("kind {value}; use nvlink, xgmi, pcie, nic or link")))?,
        };
        links.push(WeightedLink {
            ends,
            rate: rate(edge, options).map_err(fault)?,
            latency_ns: builders::latency_ns(kind),
            kind,
            one_way: raw.directed,
        });
    }
    source.graph("node-link", vertices, links)
}

fn vertex(node: &Map<String, Value>, id: &Value) -> Vertex {
    let says_switch = |key: &str| node.get(key).and_then(Value::as_str) == Some("switch");
    let yes = |key: &str| node.get(key).and_then(Value::as_bool).unwrap_or(false);
    let name = id.as_str().map_or_else(|| id.to_string(), str::to_owned);
    if ["kind", "type", "role"].into_iter().any(says_switch) || yes("switch") {
        let role = Role::Switch { aggregates: yes("aggregates"), multicasts: yes("multicasts") };
        return Vertex { name, role };
    }
    gpu(name)
}

fn rate(edge: &Map<String, Value>, options: &ImportOptions) -> Result<Rate, String> {
    let value =
        ["rate", "capacity", "bandwidth", "weight"].into_iter().find_map(|key| edge.get(key));
    match value {
        None => Err("it has no rate (rate, capacity, bandwidth or weight)".to_owned()),
        Some(Value::String(text)) => text.parse().map_err(|error: TopoError| error.to_string()),
        Some(Value::Number(number)) => {
            let in_bits = number.as_f64().unwrap_or(f64::NAN) * options.unit.0 as f64;
            // Below 2⁵³ the product of a short decimal and a rate rounds to the intended number.
            if (1.0..9.0e15).contains(&in_bits) {
                Ok(Rate(in_bits.round() as u64))
            } else {
                Err(format!("rate {number} is not possible; it must be positive"))
            }
        }
        Some(other) => Err(format!("rate {other} is neither a number nor a text")),
    }
}
