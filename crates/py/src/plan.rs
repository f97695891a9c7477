//! The planner for Python: texts in, JSON out.

use netsum_topo::TopoError;
use netsum_topo::links::{Format, ImportOptions, LinkGraph, built, import, write_json};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// A topology as netsum's JSON.
///
/// `source`: the text of a file that is called `file`, or with `file` None the name of a known
/// machine. `gpus`: names or numbers of those wanted, all if empty. `kinds`: links to use, all if
/// empty. ValueError says what is wrong, and where.
#[pyfunction]
#[pyo3(signature = (source, file=None, format=None, gpus=vec![], kinds=vec![]))]
pub(crate) fn topology(
    source: &str,
    file: Option<&str>,
    format: Option<&str>,
    gpus: Vec<String>,
    kinds: Vec<String>,
) -> PyResult<String> {
    let graph = match file {
        None => built(source).map_err(value)?,
        Some(file) => {
            let format = format.map(format_of).transpose()?;
            import(source, file, format, &ImportOptions::default()).map_err(value)?
        }
    };
    Ok(write_json(&chosen(graph, &gpus, &kinds)?))
}

fn chosen(graph: LinkGraph, gpus: &[String], kinds: &[String]) -> PyResult<LinkGraph> {
    let graph = if gpus.is_empty() { graph } else { graph.select(gpus).map_err(value)? };
    if kinds.is_empty() {
        return Ok(graph);
    }
    let kinds = kinds
        .iter()
        .map(|kind| kind.parse().map_err(|problem: String| PyValueError::new_err(problem)));
    graph.only(&kinds.collect::<PyResult<Vec<_>>>()?).map_err(value)
}

fn format_of(name: &str) -> PyResult<Format> {
    Ok(match name {
        "toml" => Format::Toml,
        "json" => Format::Json,
        "fabric" => Format::Fabric,
        "nvidia-smi" => Format::NvidiaSmi,
        "nccl" => Format::NcclXml,
        "lstopo" => Format::LstopoXml,
        "node-link" => Format::NodeLink,
        _ => {
            let problem = format!(
                "format {name:?} is unknown; use toml, json, fabric, nvidia-smi, nccl, lstopo or node-link"
            );
            return Err(PyValueError::new_err(problem));
        }
    })
}

fn value(error: TopoError) -> PyErr {
    PyValueError::new_err(error.to_string())
}
