//! The planner for Python: text in, JSON out.

use std::cell::RefCell;
use std::fmt::Display;
use std::time::Duration;

use netsum_plan::export::{Executor, export};
use netsum_plan::pack::{
    ArcLength, Budget, Group, KindCost, Loss, Packed, Progress, coarse, cost, explain, fastest,
    front, pack, pack_blink, pack_hybrid, pack_phases, pack_rings, pack_within, replan, report,
    without,
};
use netsum_plan::program::{
    check, read_msccl, read_mscclpp, verify_groups, verify_orbits, verify_plan,
};
use netsum_plan::{GROUP_PLAN_FORMAT, GroupPlan, ORBIT_PLAN_FORMAT, OrbitPlan, picture};
use netsum_topo::Rate;
use netsum_topo::links::{
    Collective, Format, ImportOptions, LinkGraph, TreePlan, built, import, link_classes, write_json,
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// A topology as netsum's JSON.
///
/// `source`: the text of a file named `file`, or with `file` None the name of a known machine. `gpus`: names or numbers
/// of the selected GPUs, all if empty. `kinds`: kinds of links to use, all if empty. ValueError describes the error and
/// its position.
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

/// The best plan for a collective, as the JSON of `netsum_plan::pack::Report`.
///
/// `graph`: JSON of [`topology`]. `collective`: as in a plan's JSON. `method`: "exact", "blink", "three-phase" or
/// "rings". `pieces`: shares become multiples of one over this, 0 for exact shares. `seconds`: how long method "exact"
/// may search, a fixed amount of work if None. `progress(seconds, reached)`: called about once a second of that search
/// with the part of the bound that is reached; False ends the search, an exception too.
#[pyfunction]
#[pyo3(signature = (graph, collective, method, pieces, seconds=None, progress=None))]
pub(crate) fn pack_trees(
    py: Python<'_>,
    graph: &str,
    collective: &str,
    method: &str,
    pieces: u64,
    seconds: Option<f64>,
    progress: Option<Py<PyAny>>,
) -> PyResult<String> {
    let graph = graph_of(graph)?;
    let collective: Collective = serde_json::from_str(collective).map_err(value)?;
    let limit = seconds.map(limit_of).transpose()?;
    let packed = py.detach(|| {
        let raised = RefCell::new(None);
        let watch = |at: Progress| watched(progress.as_ref(), at, &raised);
        let budget = match limit {
            Some(limit) => Budget::of_time(limit),
            None => Budget::standard(graph.gpus().len()),
        };
        let found = packed(&graph, collective, method, pieces, &budget.watched(&watch));
        raised.take().map_or(found, Err)
    })?;
    Ok(json(&report(&graph, &packed)))
}

/// Reports progress; whether the search goes on. An exception is kept in `raised`.
fn watched(progress: Option<&Py<PyAny>>, at: Progress, raised: &RefCell<Option<PyErr>>) -> bool {
    let Some(progress) = progress else { return true };
    let told = Python::attach(|py| {
        progress.call1(py, (at.elapsed.as_secs_f64(), at.reached))?.is_truthy(py)
    });
    told.unwrap_or_else(|error| {
        raised.replace(Some(error));
        false
    })
}

fn limit_of(seconds: f64) -> PyResult<Duration> {
    let limit = Duration::try_from_secs_f64(seconds).ok().filter(|limit| !limit.is_zero());
    limit.ok_or_else(|| value(format!("a search of {seconds} s is not possible; give more than 0")))
}

/// Plans of which none is dominated in rate, number of trees and height, as `points`, a list of reports; and `fastest`,
/// a list of sizes from which on each of some of them is the fastest.
#[pyfunction]
pub(crate) fn pack_front(py: Python<'_>, graph: &str, collective: &str) -> PyResult<String> {
    let graph = graph_of(graph)?;
    let collective: Collective = serde_json::from_str(collective).map_err(value)?;
    let points = py.detach(|| pack(&graph, collective).map(|best| front(&best))).map_err(value)?;
    let reports: Vec<_> = points.iter().map(|point| report(&graph, point)).collect();
    Ok(json(&serde_json::json!({ "points": reports, "fastest": fastest(&points) })))
}

/// The best trees that are alike for all ranks: JSON of `netsum_plan::OrbitPlan`.
#[pyfunction]
pub(crate) fn pack_orbits(py: Python<'_>, graph: &str, collective: &str) -> PyResult<String> {
    let graph = graph_of(graph)?;
    let collective: Collective = serde_json::from_str(collective).map_err(value)?;
    let plan = py.detach(|| netsum_plan::pack::pack_orbits(&graph, collective)).map_err(value)?;
    Ok(json(&plan))
}

/// The best trees of several process groups together: JSON of `netsum_plan::GroupPlan`.
///
/// `groups`: name, numbers of GPUs, collective (as in a plan's JSON), bytes.
#[pyfunction]
pub(crate) fn pack_groups(
    py: Python<'_>,
    graph: &str,
    groups: Vec<(String, Vec<usize>, String, u64)>,
) -> PyResult<String> {
    let graph = graph_of(graph)?;
    let all = graph.gpus();
    let group = |(name, ranks, collective, bytes): (String, Vec<usize>, String, u64)| {
        let gpu = |&rank: &usize| {
            let gpu = all.get(rank).copied();
            gpu.ok_or_else(|| value(format!("{name}: {rank} is no rank of {} GPUs", all.len())))
        };
        let gpus = ranks.iter().map(gpu).collect::<PyResult<Vec<usize>>>()?;
        let collective = serde_json::from_str(&collective).map_err(value)?;
        Ok(Group { name, gpus, collective, bytes })
    };
    let groups = groups.into_iter().map(group).collect::<PyResult<Vec<Group>>>()?;
    let plan = py.detach(|| {
        let budget = Budget::standard(all.len());
        netsum_plan::pack::pack_groups(&graph, &groups, &budget)
    });
    Ok(json(&plan.map_err(value)?))
}

/// Checks a plan that has its own proof, of `pack_orbits` or `pack_groups`, on a graph: the rate (bit/s; of groups the
/// rounds per second), and the one that no plan exceeds, if the plan proves it; fractions as text. None for others.
/// ValueError says what is wrong.
#[pyfunction]
pub(crate) fn verify_proven(
    py: Python<'_>,
    text: &str,
    graph: &str,
) -> PyResult<Option<(String, Option<String>)>> {
    let raw: serde_json::Value =
        serde_json::from_str(text).map_err(|error| value(format!("not a plan: {error}")))?;
    let graph = graph_of(graph)?;
    let format = raw.get("format").and_then(|format| format.as_str()).unwrap_or_default();
    let (rate, bound) = match format.to_owned().as_str() {
        ORBIT_PLAN_FORMAT => {
            let plan: OrbitPlan = serde_json::from_value(raw).map_err(value)?;
            (plan.rate_bps, py.detach(|| verify_orbits(&graph, &plan)).map_err(value)?)
        }
        GROUP_PLAN_FORMAT => {
            let plan: GroupPlan = serde_json::from_value(raw).map_err(value)?;
            (plan.rounds_per_s, py.detach(|| verify_groups(&graph, &plan)).map_err(value)?)
        }
        _ => return Ok(None),
    };
    Ok(Some((rate.to_string(), bound.map(|bound| bound.to_string()))))
}

/// The best trees on each kind of links separately, all finishing together: JSON of `netsum_plan::pack::Hybrid`.
///
/// `kinds`: name and seconds of set-up. `bytes`: of the buffer.
#[pyfunction]
pub(crate) fn pack_kinds(
    py: Python<'_>,
    graph: &str,
    collective: &str,
    kinds: Vec<(String, f64)>,
    bytes: f64,
) -> PyResult<String> {
    let graph = graph_of(graph)?;
    let collective: Collective = serde_json::from_str(collective).map_err(value)?;
    if !(1.0..1e18).contains(&bytes) {
        return Err(value(format!("a size of {bytes} bytes is not possible")));
    }
    let cost = |(kind, setup): &(String, f64)| {
        if !(0.0..1e6).contains(setup) {
            return Err(value(format!("{kind}: a set-up of {setup} s is not possible")));
        }
        Ok(KindCost { kind: kind.parse().map_err(PyValueError::new_err::<String>)?, setup: *setup })
    };
    let kinds = kinds.iter().map(cost).collect::<PyResult<Vec<_>>>()?;
    py.detach(|| pack_hybrid(&graph, collective, &kinds, bytes))
        .map(|found| json(&found))
        .map_err(value)
}

/// The error of a plan (JSON) on a graph, or without one of a program (MSCCL XML, MSCCL++ JSON); None if it is valid.
#[pyfunction]
#[pyo3(signature = (text, graph=None))]
pub(crate) fn verify_trees(text: &str, graph: Option<&str>) -> PyResult<Option<String>> {
    let fault = match graph {
        Some(graph) => verify_plan(&graph_of(graph)?, &plan_of(text)?),
        None if text.trim_start().starts_with('{') => check(&read_mscclpp(text).map_err(value)?),
        None => check(&read_msccl(text).map_err(value)?),
    };
    Ok(fault.err().map(|fault| fault.to_string()))
}

/// The rate (bits per second of a rank's buffer, a fraction as text) that no all-to-all on a graph exceeds, by the
/// lengths of links (JSON: a list of `from`, `to`, `length`). ValueError says why they prove nothing.
#[pyfunction]
pub(crate) fn distance_bound(graph: &str, lengths: &str) -> PyResult<String> {
    let lengths: Vec<ArcLength> = serde_json::from_str(lengths)
        .map_err(|error| value(format!("not a list of lengths: {error}")))?;
    let bound = netsum_plan::program::distance_bound(&graph_of(graph)?, &lengths);
    bound.map(|rate| rate.to_string()).map_err(value)
}

/// A plan in another form, "msccl" (XML), "mscclpp" (JSON) or "svg", and what to know about it, empty for "svg".
#[pyfunction]
pub(crate) fn export_trees(
    py: Python<'_>,
    plan: &str,
    graph: &str,
    format: &str,
) -> PyResult<(String, String)> {
    let (graph, plan) = (graph_of(graph)?, plan_of(plan)?);
    py.detach(|| verify_plan(&graph, &plan)).map_err(value)?;
    let executor = match format {
        "msccl" => Executor::Msccl,
        "mscclpp" => Executor::Mscclpp,
        "svg" => return Ok((picture(&graph, &plan), String::new())),
        _ => {
            return Err(value(format!("format {format:?} is unknown; use msccl, mscclpp or svg")));
        }
    };
    let exported = py.detach(|| export(&graph, &plan, executor)).map_err(value)?;
    let note = exported.note(executor);
    Ok((exported.text, note))
}

/// The graph without the losses, and their descriptions. `lost`: links (`a-b`) and vertices; `degraded`: links and
/// their present rates.
#[pyfunction]
pub(crate) fn graph_without(
    graph: &str,
    lost: Vec<String>,
    degraded: Vec<(String, String)>,
) -> PyResult<(String, Vec<String>)> {
    let graph = graph_of(graph)?;
    let (left, words) = without(&graph, &losses(&graph, &lost, &degraded)?).map_err(value)?;
    Ok((write_json(&left), words))
}

/// The best plan without the losses, from the plan in use (JSON): JSON of a report, descriptions of the losses, whether
/// the plan was mended, and the part of the buffer that keeps its trees.
#[pyfunction]
pub(crate) fn replan_trees(
    py: Python<'_>,
    graph: &str,
    plan: &str,
    lost: Vec<String>,
    degraded: Vec<(String, String)>,
) -> PyResult<(String, Vec<String>, bool, f64)> {
    let (graph, plan) = (graph_of(graph)?, plan_of(plan)?);
    let losses = losses(&graph, &lost, &degraded)?;
    let found = py.detach(|| replan(&graph, &plan, &losses)).map_err(value)?;
    Ok((json(&report(&found.graph, &found.packed)), found.lost, found.mended, found.kept))
}

fn losses(
    graph: &LinkGraph,
    lost: &[String],
    degraded: &[(String, String)],
) -> PyResult<Vec<Loss>> {
    let lost = lost.iter().map(|word| Loss::lost(graph, word).map_err(value));
    let slower = degraded.iter().map(|(word, rate)| {
        let rate: Rate = rate.parse().map_err(|error| value(format!("{word}: {error}")))?;
        Loss::slower(graph, word, rate).map_err(value)
    });
    lost.chain(slower).collect()
}

/// When aggregation helps an allreduce of `sizes` bytes: JSON of `netsum_plan::pack::Explanation`.
#[pyfunction]
pub(crate) fn explain_allreduce(graph: &str, sizes: Vec<f64>) -> PyResult<String> {
    if let Some(size) = sizes.iter().find(|size| !(1.0..1e18).contains(*size)) {
        return Err(value(format!("a size of {size} bytes is not possible")));
    }
    explain(&graph_of(graph)?, &sizes).map(|found| json(&found)).map_err(value)
}

/// Seconds of an allreduce of `sizes` bytes over the plan of a method, as processes run it, by the cost model.
#[pyfunction]
pub(crate) fn estimate_allreduce(graph: &str, method: &str, sizes: Vec<f64>) -> PyResult<Vec<f64>> {
    let graph = graph_of(graph)?;
    let budget = Budget::standard(graph.gpus().len());
    let packed = packed(&graph, Collective::Allreduce, method, 0, &budget)?;
    let trees = cost::Trees::of(&packed);
    Ok(sizes.into_iter().map(|size| trees.executed(size).seconds).collect())
}

/// Classes of equal GPU sets of three or more: numbers of the first set, and the number of sets.
#[pyfunction]
pub(crate) fn gpu_classes(graph: &str) -> PyResult<Vec<(Vec<usize>, usize)>> {
    let graph = graph_of(graph)?;
    if graph.gpus().len() > 16 {
        return Err(value("classes are enumerated for at most 16 GPUs; choose fewer"));
    }
    let classes = link_classes(&graph, 3..=graph.gpus().len());
    Ok(classes.into_iter().map(|class| (class.gpus, class.sets)).collect())
}

fn packed(
    graph: &LinkGraph,
    collective: Collective,
    method: &str,
    pieces: u64,
    budget: &Budget<'_>,
) -> PyResult<Packed> {
    let packed = match method {
        "exact" => pack_within(graph, collective, budget),
        "blink" => pack_blink(graph, collective),
        "three-phase" => pack_phases(graph, collective),
        "rings" if collective == Collective::Allreduce => {
            let none = || value("there is no ring on these links; use exact");
            Ok(pack_rings(graph).map_err(value)?.ok_or_else(none)?)
        }
        "rings" => return Err(value("rings are for allreduce; use exact")),
        _ => {
            return Err(value(format!(
                "method {method:?} is unknown; use exact, blink, three-phase or rings"
            )));
        }
    };
    let packed = packed.map_err(value)?;
    if pieces == 0 {
        return Ok(packed);
    }
    coarse(&packed, pieces)
        .ok_or_else(|| value(format!("{pieces} pieces are too few; give at least one per GPU")))
}

fn graph_of(text: &str) -> PyResult<LinkGraph> {
    import(text, "the graph", Some(Format::Json), &ImportOptions::default()).map_err(value)
}

fn plan_of(text: &str) -> PyResult<TreePlan> {
    serde_json::from_str(text).map_err(|error| value(format!("not a tree plan: {error}")))
}

fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).expect("reports are plain data")
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

fn value(error: impl Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}
