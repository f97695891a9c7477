//! Topologies behind an optical circuit switch: numbers in, JSON out.

use netsum_plan::ocs::{self, Method, OcsPlan};
use netsum_topo::{OcsPorts, OcsSpec};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(ocs_answer, module)?)?;
    module.add_function(wrap_pyfunction!(ocs_compare, module)?)?;
    module.add_function(wrap_pyfunction!(ocs_curve, module)?)?;
    module.add_function(wrap_pyfunction!(ocs_check, module)?)?;
    module.add_function(wrap_pyfunction!(ocs_share, module)?)
}

/// N, D, M, E.
type Numbers = (u32, u32, u32, u32);

/// A checked plan for `numbers` = (N, D, M, E) by `method`, with a comparison of all methods, as JSON. ValueError names
/// the invalid number.
#[pyfunction]
fn ocs_answer(py: Python<'_>, numbers: Numbers, paired: bool, method: &str) -> PyResult<String> {
    let (spec, method) = (spec(numbers, paired)?, method_of(method)?);
    json(&py.detach(|| ocs::answer(&spec, method)).map_err(value)?)
}

/// The comparison of all methods for (N, D, M, E), without a plan, as JSON.
#[pyfunction]
fn ocs_compare(numbers: Numbers, paired: bool) -> PyResult<String> {
    json(&ocs::compare(&spec(numbers, paired)?))
}

/// algbw for 0 to M devices by `method`, as texts like "16/15".
#[pyfunction]
fn ocs_curve(
    py: Python<'_>,
    numbers: Numbers,
    paired: bool,
    method: &str,
) -> PyResult<Vec<String>> {
    let (spec, method) = (spec(numbers, paired)?, method_of(method)?);
    let rates = py.detach(|| ocs::curve(&spec, method)).map_err(value)?;
    Ok(rates.iter().map(ToString::to_string).collect())
}

/// Replays a plan written as JSON, and returns the report as JSON. ValueError describes the violation.
#[pyfunction]
fn ocs_check(py: Python<'_>, plan: &str) -> PyResult<String> {
    let plan: OcsPlan = serde_json::from_str(plan)
        .map_err(|error| PyValueError::new_err(format!("not a plan: {error}")))?;
    json(&py.detach(|| ocs::check(&plan)).map_err(value)?)
}

/// Shares `pool` devices with `device_ports` ports among jobs (N, D), as JSON: devices, algbw and
/// gain of each. `method`: closed or shared.
#[pyfunction]
fn ocs_share(
    py: Python<'_>,
    jobs: Vec<(u32, u32)>,
    pool: u32,
    device_ports: u32,
    paired: bool,
    method: &str,
) -> PyResult<String> {
    let better = method_of(method)? == Method::Shared;
    let demand =
        |&(workers, ports): &(u32, u32)| spec((workers, ports, pool, device_ports), paired);
    let jobs = jobs.iter().map(demand).collect::<PyResult<Vec<_>>>()?;
    json(&py.detach(|| ocs::share_devices(&jobs, pool, device_ports, better)).map_err(value)?)
}

fn spec((n, d, m, e): Numbers, paired: bool) -> PyResult<OcsSpec> {
    let ports = if paired { OcsPorts::Paired } else { OcsPorts::Simplex };
    OcsSpec::new(n, d, m, e, ports).map_err(value)
}

fn method_of(name: &str) -> PyResult<Method> {
    name.parse().map_err(PyValueError::new_err::<String>)
}

fn json(answer: &impl serde::Serialize) -> PyResult<String> {
    serde_json::to_string(answer).map_err(value)
}

fn value(error: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}
