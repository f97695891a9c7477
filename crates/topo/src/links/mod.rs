//! Fabrics of GPUs: links of different kinds and rates, with or without switches.
//!
//! A [`LinkGraph`] has what a planner needs, without addresses, which [`crate::Fabric`] has.

mod builders;
mod classes;
mod import;
mod plan;

use std::collections::{HashMap, HashSet};

use serde::{Deserialize, Serialize};

pub use builders::{a100, built, dgx1p, dgx1v, dgx2, h100, mi250, torus};
pub use classes::{LinkClass, link_classes};
pub use import::{Format, ImportOptions, import, write_json, write_toml};

pub use plan::{Collective, PlannedFlow, TREE_PLAN_FORMAT, TreePlan};

use crate::error::TopoError;
use crate::fabric::Fabric;
use crate::units::Rate;

/// Kind of a link; plans can be restricted to some kinds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LinkKind {
    /// NVIDIA's NVLink, between GPUs or to an NVSwitch.
    Nvlink,
    /// AMD's xGMI, between GPUs.
    Xgmi,
    /// The bus of a server, and the link between its sockets.
    Pcie,
    /// Ethernet or InfiniBand.
    Nic,
    /// Any other link.
    Link,
}

impl std::str::FromStr for LinkKind {
    type Err = String;

    fn from_str(text: &str) -> Result<LinkKind, String> {
        Ok(match text {
            "nvlink" => LinkKind::Nvlink,
            "xgmi" => LinkKind::Xgmi,
            "pcie" => LinkKind::Pcie,
            "nic" => LinkKind::Nic,
            "link" => LinkKind::Link,
            _ => {
                return Err(format!(
                    "link kind {text:?} is unknown; use nvlink, xgmi, pcie, nic or link"
                ));
            }
        })
    }
}

/// Role of a vertex.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// Holds a buffer; can forward, and add what it receives.
    Gpu,
    /// Forwards data, and may have more functions.
    Switch {
        /// Adds data from several links and forwards the sum.
        aggregates: bool,
        /// Forwards one message on several links.
        multicasts: bool,
    },
}

/// A GPU or a switch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vertex {
    /// Unique in the graph.
    pub name: String,
    /// GPU or switch.
    pub role: Role,
}

/// A link, or all equal links between the same ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WeightedLink {
    /// Indices of both vertices.
    pub ends: [usize; 2],
    /// Rate of each direction, all parallel links together.
    pub rate: Rate,
    /// Time per message besides its bytes, in nanoseconds.
    pub latency_ns: u64,
    /// Kind of the link.
    pub kind: LinkKind,
    /// Whether it leads only from the first end to the second.
    pub one_way: bool,
}

/// GPUs, switches and the links between them. Every value passed the checks of [`LinkGraph::new`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkGraph {
    name: String,
    vertices: Vec<Vertex>,
    links: Vec<WeightedLink>,
}

/// An invalid entry of a graph.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GraphFault {
    /// As `link 3 (gpu0–gpu1)`.
    pub(crate) entry: String,
    /// What is wrong and what to do.
    pub(crate) problem: String,
}

impl LinkGraph {
    /// Checks names, ends and rates. Errors: [`TopoError::Shape`] naming `name` and the entry.
    pub fn new(
        name: &str,
        vertices: Vec<Vertex>,
        links: Vec<WeightedLink>,
    ) -> Result<LinkGraph, TopoError> {
        LinkGraph::checked(name, vertices, links).map_err(|fault| TopoError::Shape {
            shape: name.to_owned(),
            problem: format!("{}: {}", fault.entry, fault.problem),
        })
    }

    pub(crate) fn checked(
        name: &str,
        vertices: Vec<Vertex>,
        links: Vec<WeightedLink>,
    ) -> Result<LinkGraph, GraphFault> {
        let fault =
            |entry: String, problem: &str| GraphFault { entry, problem: problem.to_owned() };
        let gpus = vertices.iter().filter(|vertex| vertex.role == Role::Gpu).count();
        if gpus == 0 {
            return Err(fault("the graph".to_owned(), "it has no GPU; name at least one"));
        }
        if vertices.len() > VERTICES_MAX {
            let problem = format!("it has {} vertices; the most is {VERTICES_MAX}", vertices.len());
            return Err(fault("the graph".to_owned(), &problem));
        }
        let mut names = HashSet::new();
        for vertex in &vertices {
            let entry = || format!("vertex {:?}", vertex.name);
            if vertex.name.is_empty() || vertex.name.chars().any(char::is_control) {
                return Err(fault(
                    entry(),
                    "a name has at least one letter and no control characters",
                ));
            }
            if !names.insert(vertex.name.as_str()) {
                return Err(fault(entry(), "named twice; GPUs and switches need different names"));
            }
        }
        for (index, link) in links.iter().enumerate() {
            let [a, b] = link.ends;
            let entry = || {
                let of = |end: usize| vertices.get(end).map_or("?", |vertex| &vertex.name);
                format!("link {index} ({}–{})", of(a), of(b))
            };
            if a >= vertices.len() || b >= vertices.len() {
                return Err(fault(entry(), "an end is not a vertex of the graph"));
            }
            if a == b {
                return Err(fault(entry(), "both ends are the same; delete it"));
            }
            if link.rate.0 == 0 {
                return Err(fault(
                    entry(),
                    "its rate is 0: nothing could pass; give it, or delete the link",
                ));
            }
            if link.rate.0 > RATE_MAX {
                return Err(fault(entry(), "its rate is above 1000 Tbit/s; check the unit"));
            }
        }
        Ok(LinkGraph { name: name.to_owned(), vertices, links })
    }

    /// Name of the graph.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// All GPUs and switches; links and plans name them by index.
    pub fn vertices(&self) -> &[Vertex] {
        &self.vertices
    }

    /// All links.
    pub fn links(&self) -> &[WeightedLink] {
        &self.links
    }

    /// Indices of the GPUs, ascending: the rank of a GPU is its position here.
    pub fn gpus(&self) -> Vec<usize> {
        let is_gpu = |&v: &usize| self.vertices[v].role == Role::Gpu;
        (0..self.vertices.len()).filter(is_gpu).collect()
    }

    /// Directed links: both directions of each, or one.
    pub fn arcs(&self) -> impl Iterator<Item = (usize, usize, &WeightedLink)> {
        self.links.iter().flat_map(|link| {
            let [a, b] = link.ends;
            let back = (!link.one_way).then_some((b, a, link));
            std::iter::once((a, b, link)).chain(back)
        })
    }

    /// The graph with links of some kinds only; errors like [`LinkGraph::select`].
    pub fn only(&self, kinds: &[LinkKind]) -> Result<LinkGraph, TopoError> {
        let mut graph = self.clone();
        graph.links.retain(|link| kinds.contains(&link.kind));
        let gpus: Vec<String> =
            self.gpus().iter().map(|&gpu| self.vertices[gpu].name.clone()).collect();
        graph.select(&gpus)
    }

    /// The graph of some GPUs, in the order given, and of the switches between them.
    ///
    /// A GPU is named by its name or by its number among the GPUs. Errors: an unknown GPU, one
    /// named twice, or GPUs that cannot reach each other.
    pub fn select<T: AsRef<str>>(&self, gpus: &[T]) -> Result<LinkGraph, TopoError> {
        let names: Vec<&str> = gpus.iter().map(AsRef::as_ref).collect();
        let refuse = |problem: String| TopoError::Selection {
            graph: self.name.clone(),
            gpus: names.join(","),
            problem,
        };
        let known = self.gpus();
        let named: HashMap<&str, usize> =
            known.iter().map(|&v| (self.vertices[v].name.as_str(), v)).collect();
        let (mut chosen, mut seen) = (Vec::new(), HashSet::new());
        for name in &names {
            let by_name = named.get(name);
            let by_place = || name.parse::<usize>().ok().and_then(|place| known.get(place));
            let &vertex = by_name.or_else(by_place).ok_or_else(|| {
                let first = &self.vertices[known[0]].name;
                refuse(format!(
                    "no GPU {name:?}; there are {}, the first is {first:?}",
                    known.len()
                ))
            })?;
            if !seen.insert(vertex) {
                let name = &self.vertices[vertex].name;
                return Err(refuse(format!("GPU {name:?} is named twice; name it once")));
            }
            chosen.push(vertex);
        }
        if chosen.is_empty() {
            return Err(refuse("no GPU is named; name at least one".to_owned()));
        }
        let graph = self.induced(&chosen);
        graph.check_connected().map_err(refuse)?;
        Ok(graph)
    }

    /// The graph without connectivity checks: `chosen` GPUs, and the switches between them.
    pub(crate) fn induced(&self, chosen: &[usize]) -> LinkGraph {
        let mut keep: HashSet<usize> = chosen.iter().copied().collect();
        keep.extend((0..self.vertices.len()).filter(|&v| self.vertices[v].role != Role::Gpu));
        // A switch with a single neighbour is removed, and so are switches that only it connects.
        loop {
            let mut neighbours: HashMap<usize, HashSet<usize>> = HashMap::new();
            for link in &self.links {
                let [a, b] = link.ends;
                if keep.contains(&a) && keep.contains(&b) {
                    neighbours.entry(a).or_default().insert(b);
                    neighbours.entry(b).or_default().insert(a);
                }
            }
            let before = keep.len();
            keep.retain(|v| {
                self.vertices[*v].role == Role::Gpu
                    || neighbours.get(v).is_some_and(|others| others.len() > 1)
            });
            if keep.len() == before {
                break;
            }
        }
        let switches = (0..self.vertices.len())
            .filter(|v| keep.contains(v) && self.vertices[*v].role != Role::Gpu);
        let order: Vec<usize> = chosen.iter().copied().chain(switches).collect();
        let place: HashMap<usize, usize> =
            order.iter().enumerate().map(|(new, &old)| (old, new)).collect();
        let links = self.links.iter().filter_map(|link| {
            let ends = [*place.get(&link.ends[0])?, *place.get(&link.ends[1])?];
            Some(WeightedLink { ends, ..*link })
        });
        LinkGraph {
            name: self.name.clone(),
            vertices: order.iter().map(|&v| self.vertices[v].clone()).collect(),
            links: links.collect(),
        }
    }

    /// Whether all GPUs are connected; if not, names two that are not.
    pub(crate) fn check_connected(&self) -> Result<(), String> {
        let gpus = self.gpus();
        for backward in [false, true] {
            let mut next: Vec<Vec<usize>> = vec![Vec::new(); self.vertices.len()];
            for (from, to, _) in self.arcs() {
                let (from, to) = if backward { (to, from) } else { (from, to) };
                next[from].push(to);
            }
            let mut seen = vec![false; self.vertices.len()];
            seen[gpus[0]] = true;
            let mut stack = vec![gpus[0]];
            while let Some(here) = stack.pop() {
                for &other in &next[here] {
                    if !std::mem::replace(&mut seen[other], true) {
                        stack.push(other);
                    }
                }
            }
            if let Some(&lost) = gpus.iter().find(|&&gpu| !seen[gpu]) {
                let (a, b) = (&self.vertices[gpus[0]].name, &self.vertices[lost].name);
                let (from, to) = if backward { (b, a) } else { (a, b) };
                return Err(format!(
                    "disconnected: no way from {from:?} to {to:?}; add links, or choose GPUs that are joined"
                ));
            }
        }
        Ok(())
    }
}

impl From<&Fabric> for LinkGraph {
    /// Hosts as GPUs; switches add and multicast, as netsum's do.
    fn from(fabric: &Fabric) -> LinkGraph {
        let host = |name: &String| Vertex { name: name.clone(), role: Role::Gpu };
        let switch = |name: &String| Vertex {
            name: name.clone(),
            role: Role::Switch { aggregates: true, multicasts: true },
        };
        let vertices: Vec<Vertex> = (fabric.hosts.iter().map(|h| host(&h.name)))
            .chain(fabric.switches.iter().map(|s| switch(&s.name)))
            .collect();
        let place: HashMap<&str, usize> =
            vertices.iter().enumerate().map(|(i, vertex)| (vertex.name.as_str(), i)).collect();
        let links = fabric.links.iter().map(|link| WeightedLink {
            ends: [place[link.ends[0].as_str()], place[link.ends[1].as_str()]],
            rate: link.rate,
            latency_ns: link.latency.map_or(0, |latency| latency.0),
            kind: LinkKind::Nic,
            one_way: false,
        });
        let links = links.collect();
        LinkGraph { name: fabric.name.clone(), vertices, links }
    }
}

/// Far above the fabrics planned for (some thousands), and far below the limits of memory.
const VERTICES_MAX: usize = 1 << 16;

/// 1000 Tbit/s: products of rates and counts stay far below 2¹²⁷.
const RATE_MAX: u64 = 1_000_000_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selections_are_checked() {
        let graph = dgx1v(Rate(200_000_000_000));
        let refused = |gpus: &[&str]| graph.select(gpus).unwrap_err().to_string();
        assert!(refused(&["0", "gpu0"]).contains("GPU \"gpu0\" is named twice"));
        assert!(refused(&["0", "8"]).contains("no GPU \"8\"; there are 8"));
        assert!(refused(&[]).contains("no GPU is named"));
        let nvlink = graph.only(&[LinkKind::Nvlink]).unwrap();
        let error = nvlink.select(&["1", "4"]).unwrap_err().to_string();
        assert!(error.contains("disconnected: no way from \"gpu1\" to \"gpu4\""), "{error}");
    }

    #[test]
    fn ranks_follow_the_selection() {
        let graph = dgx1v(Rate(8)).select(&["5", "1"]).unwrap();
        assert_eq!(graph.vertices()[0].name, "gpu5");
        assert_eq!(graph.vertices()[1].name, "gpu1");
    }

    #[test]
    fn switches_with_one_neighbour_are_removed() {
        let graph = a100(2, Rate(100), Rate(10)).unwrap();
        let one_box = graph.select(&["0", "1", "2"]).unwrap();
        let switches: Vec<&str> =
            one_box.vertices()[3..].iter().map(|vertex| vertex.name.as_str()).collect();
        // The three are still connected by their NICs.
        assert_eq!(switches, ["nvswitch0", "network"]);
    }

    #[test]
    fn a_zero_rate_names_its_link() {
        let gpu = |name: &str| Vertex { name: name.to_owned(), role: Role::Gpu };
        let link = WeightedLink {
            ends: [0, 1],
            rate: Rate(0),
            latency_ns: 0,
            kind: LinkKind::Link,
            one_way: false,
        };
        let error = LinkGraph::new("g", vec![gpu("a"), gpu("b")], vec![link]).unwrap_err();
        assert!(error.to_string().contains("link 0 (a–b): its rate is 0"), "{error}");
        let error = LinkGraph::new("g", vec![gpu("a"), gpu("a")], vec![]).unwrap_err();
        assert!(error.to_string().contains("vertex \"a\": named twice"), "{error}");
    }
}
