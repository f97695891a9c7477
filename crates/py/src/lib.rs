//! `netsum._core`: the Rust core for Python.
//!
//! Owns: the conversion of arguments, errors and callbacks only. Must not know: algorithms. Every call that can block
//! releases the interpreter lock; a panic becomes an exception. Start reading at [`group`].

mod ca;
mod callbacks;
mod enrolment;
mod errors;
mod group;
mod meeting;
mod ocs;
mod plan;
mod shared_scale;
mod stacks;
mod tree_plan;
mod work;
mod xla;

use std::path::PathBuf;
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use tracing_subscriber::EnvFilter;

/// The state of the controller at `controller` ("host:port"), as JSON. `credentials`: the folder of this process's.
#[pyfunction]
#[pyo3(signature = (controller, timeout_s, credentials=None))]
fn status(
    py: Python<'_>,
    controller: &str,
    timeout_s: f64,
    credentials: Option<PathBuf>,
) -> PyResult<String> {
    let (timeout, credentials) = (errors::seconds(timeout_s)?, credentials.as_deref());
    let answer =
        py.detach(|| netsum_collective::controller_status(controller, credentials, timeout));
    answer.map_err(|error| errors::raise(py, error))
}

/// The stragglers of all jobs between two statuses, as JSON, from these as `status` returns them.
#[pyfunction]
fn stragglers(py: Python<'_>, before: &str, now: &str, elapsed_s: f64) -> PyResult<String> {
    let found = netsum_collective::stragglers(before, now, elapsed_s);
    found.map_err(|error| errors::raise(py, error))
}

/// The last operations of the ranks of a job, as JSON.
#[pyfunction]
#[pyo3(signature = (controller, job, timeout_s, credentials=None))]
fn job_operations(
    py: Python<'_>,
    controller: &str,
    job: u32,
    timeout_s: f64,
    credentials: Option<PathBuf>,
) -> PyResult<String> {
    let (timeout, credentials) = (errors::seconds(timeout_s)?, credentials.as_deref());
    let answer =
        py.detach(|| netsum_collective::job_operations(controller, credentials, job, timeout));
    answer.map_err(|error| errors::raise(py, error))
}

/// A called collective: name and type, bytes, time of the call, and of its end if it has ended.
type CalledTuple = (String, u64, f64, Option<f64>);

/// The training steps in collectives, oldest first: as JSON a list of `netsum_collective::Step`; "[]" if the calls do
/// not repeat.
#[pyfunction]
fn training_steps(py: Python<'_>, called: Vec<CalledTuple>) -> String {
    let steps = py.detach(|| {
        let names: Vec<(&str, u64)> = called.iter().map(|c| (c.0.as_str(), c.1)).collect();
        let times: Vec<(f64, Option<f64>)> = called.iter().map(|c| (c.2, c.3)).collect();
        netsum_collective::training_steps(&names, &times)
    });
    serde_json::to_string(&steps).expect("steps are plain data")
}

/// Ends a job of the controller at `controller`; its ranks are told `reason`.
#[pyfunction]
#[pyo3(signature = (controller, job, reason, timeout_s, credentials=None))]
fn stop_job(
    py: Python<'_>,
    controller: &str,
    job: u32,
    reason: &str,
    timeout_s: f64,
    credentials: Option<PathBuf>,
) -> PyResult<()> {
    let (timeout, credentials) = (errors::seconds(timeout_s)?, credentials.as_deref());
    let stopped =
        py.detach(|| netsum_collective::stop_job(controller, credentials, job, reason, timeout));
    stopped.map_err(|error| errors::raise(py, error))
}

/// What the ranks of a job of the controller at `controller` are doing: JSON by rank, without those that do not answer.
#[pyfunction]
#[pyo3(signature = (controller, job, patience_s, timeout_s, credentials=None))]
fn ask_ranks(
    py: Python<'_>,
    controller: &str,
    job: u32,
    patience_s: f64,
    timeout_s: f64,
    credentials: Option<PathBuf>,
) -> PyResult<String> {
    let (patience, timeout) = (errors::seconds(patience_s)?, errors::seconds(timeout_s)?);
    let credentials = credentials.as_deref();
    let asked =
        py.detach(|| netsum_collective::ask_ranks(controller, credentials, job, patience, timeout));
    asked.map_err(|error| errors::raise(py, error))
}

/// What the process at a socket is doing, or, with the name of a group, all ranks of that group: JSON.
#[pyfunction]
fn ask_process(py: Python<'_>, socket: PathBuf, group: &str, patience_s: f64) -> PyResult<String> {
    let patience = errors::seconds(patience_s)?;
    let asked = py.detach(|| netsum_collective::responder::ask_process(&socket, group, patience));
    asked.map_err(|error| errors::raise(py, error))
}

/// The folder of the sockets at which this user's processes answer.
#[pyfunction]
fn socket_folder() -> PathBuf {
    netsum_collective::responder::socket_folder()
}

/// Gives a job of the controller at `controller` new keys.
#[pyfunction]
#[pyo3(signature = (controller, job, timeout_s, credentials=None))]
fn rekey_job(
    py: Python<'_>,
    controller: &str,
    job: u32,
    timeout_s: f64,
    credentials: Option<PathBuf>,
) -> PyResult<()> {
    let (timeout, credentials) = (errors::seconds(timeout_s)?, credentials.as_deref());
    let rekeyed = py.detach(|| netsum_collective::rekey_job(controller, credentials, job, timeout));
    rekeyed.map_err(|error| errors::raise(py, error))
}

/// Version of the core.
#[pyfunction]
const fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

#[pymodule]
fn _core(py: Python<'_>, module: &Bound<'_, PyModule>) -> PyResult<()> {
    // Warnings of the data path are shown to the user; NETSUM_LOG=debug shows more. A second import has no effect.
    let filter = EnvFilter::try_from_env("NETSUM_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let _ = log.try_init();
    let end_callbacks = wrap_pyfunction!(callbacks::end_callbacks, module)?;
    py.import("atexit")?.call_method1("register", (end_callbacks,))?;
    errors::register(py, module)?;
    module.add("PROTOCOLS", PyTuple::new(py, netsum_collective::PROTOCOLS)?)?;
    module.add("CONGESTION_RULES", PyTuple::new(py, netsum_collective::congestion_rules())?)?;
    module.add("NETWORKS", PyTuple::new(py, netsum_collective::networks())?)?;
    module.add_class::<group::Group>()?;
    module.add_class::<work::Work>()?;
    module.add_class::<shared_scale::SharedScale>()?;
    module.add_class::<meeting::Meeting>()?;
    module.add_function(wrap_pyfunction!(meeting::meet, module)?)?;
    module.add_function(wrap_pyfunction!(status, module)?)?;
    module.add_function(wrap_pyfunction!(stragglers, module)?)?;
    module.add_function(wrap_pyfunction!(ask_ranks, module)?)?;
    module.add_function(wrap_pyfunction!(ask_process, module)?)?;
    module.add_function(wrap_pyfunction!(socket_folder, module)?)?;
    module.add_function(wrap_pyfunction!(stacks::answer_stacks, module)?)?;
    module.add_function(wrap_pyfunction!(job_operations, module)?)?;
    module.add_function(wrap_pyfunction!(training_steps, module)?)?;
    module.add_function(wrap_pyfunction!(stop_job, module)?)?;
    module.add_function(wrap_pyfunction!(rekey_job, module)?)?;
    module.add_function(wrap_pyfunction!(group::explain_hosts, module)?)?;
    ca::register(module)?;
    enrolment::register(module)?;
    ocs::register(module)?;
    module.add_function(wrap_pyfunction!(plan::topology, module)?)?;
    module.add_function(wrap_pyfunction!(plan::pack_trees, module)?)?;
    module.add_function(wrap_pyfunction!(plan::pack_front, module)?)?;
    module.add_function(wrap_pyfunction!(plan::pack_kinds, module)?)?;
    module.add_function(wrap_pyfunction!(plan::pack_orbits, module)?)?;
    module.add_function(wrap_pyfunction!(plan::pack_groups, module)?)?;
    module.add_function(wrap_pyfunction!(plan::verify_proven, module)?)?;
    module.add_function(wrap_pyfunction!(plan::verify_trees, module)?)?;
    module.add_function(wrap_pyfunction!(plan::distance_bound, module)?)?;
    module.add_function(wrap_pyfunction!(plan::export_trees, module)?)?;
    module.add_function(wrap_pyfunction!(plan::graph_without, module)?)?;
    module.add_function(wrap_pyfunction!(plan::replan_trees, module)?)?;
    module.add_function(wrap_pyfunction!(plan::explain_allreduce, module)?)?;
    module.add_function(wrap_pyfunction!(plan::estimate_allreduce, module)?)?;
    module.add_function(wrap_pyfunction!(plan::gpu_classes, module)?)?;
    module.add_function(wrap_pyfunction!(xla::xla_handler, module)?)?;
    module.add_function(wrap_pyfunction!(version, module)?)?;
    Ok(())
}

/// How long a blocked call runs without checking for Ctrl-C.
const SIGNAL_CHECK: Duration = Duration::from_millis(200);
