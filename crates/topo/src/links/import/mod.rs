//! Topologies from text: netsum's TOML and JSON, and the output of other tools.

mod lstopo;
mod nccl;
mod node_link;
mod own;
mod smi;
mod xml;

use super::{GraphFault, LinkGraph, Role, Vertex, WeightedLink};
use crate::error::TopoError;
use crate::fabric::Fabric;
use crate::units::Rate;

pub use own::{write_json, write_toml};

/// Format of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// netsum's, as TOML: `[[gpu]]`, `[[switch]]`, `[[link]]`.
    Toml,
    /// netsum's, as JSON with the same fields.
    Json,
    /// netsum's fabric file: hosts and aggregating switches.
    Fabric,
    /// `nvidia-smi topo -m`.
    NvidiaSmi,
    /// NCCL's or RCCL's topology file (`NCCL_TOPO_DUMP_FILE`).
    NcclXml,
    /// `lstopo --of xml` (hwloc 2).
    LstopoXml,
    /// networkx `node_link_data`.
    NodeLink,
}

/// Values that a text may lack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImportOptions {
    /// Rate of one NVLink (`NV1` in `nvidia-smi topo -m`), one direction.
    pub nvlink: Rate,
    /// Rate of a PCIe path where the text gives none.
    pub pcie: Rate,
    /// Whether the NVLinks of `nvidia-smi topo -m` lead to a switch; `None`: they do if a GPU shows
    /// more than [`NVLINKS_MAX`] in all.
    pub switched: Option<bool>,
    /// Unit of a bare number in node-link JSON.
    pub unit: Rate,
}

impl Default for ImportOptions {
    /// 25 GB/s per NVLink, 10 GB/s PCIe, bare numbers in GB/s.
    fn default() -> ImportOptions {
        let gbytes = |rate: u64| Rate(rate * 8_000_000_000);
        ImportOptions { nvlink: gbytes(25), pcie: gbytes(10), switched: None, unit: gbytes(1) }
    }
}

/// Most NVLinks of a GPU (Hopper, Blackwell): a higher total in a row of `nvidia-smi topo -m` repeats links that lead
/// to a switch.
pub const NVLINKS_MAX: u64 = 18;

/// Reads `text`; `file` names it in errors. `format`: `None` to detect it from the text.
///
/// Errors: [`TopoError::Import`] (or [`TopoError::Syntax`] for TOML) with the place and the reason.
pub fn import(
    text: &str,
    file: &str,
    format: Option<Format>,
    options: &ImportOptions,
) -> Result<LinkGraph, TopoError> {
    let source = Source { text, file };
    if text.len() > TEXT_MAX {
        return Err(source.fault("the file", format!("longer than {TEXT_MAX} bytes")));
    }
    let guessed = format.or_else(|| guess(text)).ok_or_else(|| {
        let problem = "not a topology that netsum knows; give its format (toml, json, fabric, \
                       nvidia-smi, nccl, lstopo, node-link)";
        source.fault("the file", problem.to_owned())
    })?;
    match guessed {
        Format::Toml => own::toml(&source),
        Format::Json => own::json(&source),
        Format::Fabric => Fabric::parse(text, file).map(|fabric| LinkGraph::from(&fabric)),
        Format::NvidiaSmi => smi::read(&source, options),
        Format::NcclXml => nccl::read(&source, options),
        Format::LstopoXml => lstopo::read(&source, options),
        Format::NodeLink => node_link::read(&source, options),
    }
}

fn guess(text: &str) -> Option<Format> {
    let start = text.trim_start();
    if start.starts_with('<') {
        return if text.contains("<topology") {
            Some(Format::LstopoXml)
        } else {
            text.contains("<system").then_some(Format::NcclXml)
        };
    }
    if start.starts_with('{') {
        let node_link = text.contains("\"nodes\"");
        return Some(if node_link { Format::NodeLink } else { Format::Json });
    }
    let header = |line: &str| line.split_whitespace().take(2).any(|word| word == "GPU0");
    if text.lines().take(20).any(header) {
        return Some(Format::NvidiaSmi);
    }
    // TOML: an array of tables, or an inline one.
    let array = |name: &str| {
        let inline = |line: &str| {
            let rest = line.trim_start().strip_prefix(name);
            rest.is_some_and(|rest| rest.trim_start().starts_with('='))
        };
        text.contains(&format!("[[{name}]]")) || text.lines().any(inline)
    };
    if array("host") {
        return Some(Format::Fabric);
    }
    array("gpu").then_some(Format::Toml)
}

/// A text, and its name in errors.
struct Source<'a> {
    text: &'a str,
    file: &'a str,
}

impl Source<'_> {
    fn fault(&self, place: impl Into<String>, problem: impl Into<String>) -> TopoError {
        let (place, problem) = (place.into(), problem.into());
        TopoError::Import { file: self.file.to_owned(), place, problem }
    }

    /// Checks the whole graph; its GPUs must be connected.
    fn graph(
        &self,
        name: &str,
        vertices: Vec<Vertex>,
        links: Vec<WeightedLink>,
    ) -> Result<LinkGraph, TopoError> {
        let fault = |fault: GraphFault| self.fault(fault.entry, fault.problem);
        let graph = LinkGraph::checked(name, vertices, links).map_err(fault)?;
        graph.check_connected().map_err(|problem| self.fault("the graph", problem))?;
        Ok(graph)
    }
}

fn gpu(name: impl Into<String>) -> Vertex {
    Vertex { name: name.into(), role: Role::Gpu }
}

/// A switch that only forwards.
fn relay(name: impl Into<String>) -> Vertex {
    Vertex { name: name.into(), role: Role::Switch { aggregates: false, multicasts: false } }
}

/// 64 MiB: the largest NCCL dumps are some hundreds of kilobytes.
const TEXT_MAX: usize = 64 << 20;
