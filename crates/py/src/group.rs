//! A group of ranks. Buffers are passed as addresses and sizes: the caller keeps them alive until the Work is done.
//!
//! With `here`, the caller's own thread may run a collective, which then returns None instead of a Work.

#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use netsum_collective as core;
use netsum_collective::{
    Buffer, Combine, Dtype, Elements, Format, GroupConfig, LinkCost, Options, Terms,
};
use pyo3::prelude::*;
use serde::Serialize;

use crate::work::Work;
use crate::{callbacks, errors, tree_plan, xla};

/// One rank's handle to its group, with the group's size and timeout.
#[pyclass(frozen, weakref, module = "netsum._core")]
pub(crate) struct Group(Arc<core::Group>, u32, Duration);

/// Address and bytes (for reduce_scatter's inputs, elements) of host memory.
type Span = (usize, usize);

#[pymethods]
#[allow(clippy::too_many_arguments)] // Python passes them by name.
impl Group {
    /// Opens this rank's sockets; rank 0 registers the job with the controller, if there is one.
    #[new]
    #[pyo3(signature = (rank, size, name, controller, host, timeout_s, options))]
    fn new(
        py: Python<'_>,
        rank: u32,
        size: u32,
        name: String,
        controller: Option<String>,
        host: Option<String>,
        timeout_s: f64,
        mut options: BTreeMap<String, String>,
    ) -> PyResult<Group> {
        // Without a fabric, the route to the rendezvous selects the address of this machine that others reach.
        if let Ok(rendezvous) = std::env::var("MASTER_ADDR") {
            options.entry("rendezvous".to_owned()).or_insert(rendezvous);
        }
        let plan = tree_plan::source(&mut options);
        let plan = plan.map_err(|p| errors::raise(py, core::Error::Unsupported(p)))?;
        let options = Options::parse(&options).map_err(|error| errors::raise(py, error))?;
        let timeout = errors::seconds(timeout_s)?;
        let config = GroupConfig { rank, size, name, controller, host, timeout, options, plan };
        let group = py.detach(|| core::Group::new(config));
        Ok(Group(Arc::new(group.map_err(|error| errors::raise(py, error))?), size, timeout))
    }

    /// This rank's address for the other ranks; opaque.
    fn address(&self) -> Vec<u8> {
        self.0.address()
    }

    /// Blocks until all ranks are connected and, with a controller, the first plan has arrived.
    fn connect(&self, py: Python<'_>, addresses: Vec<Vec<u8>>) -> PyResult<()> {
        py.detach(|| self.0.connect(&addresses)).map_err(|error| errors::raise(py, error))
    }

    /// What all ranks are doing, as JSON by rank, without those that do not answer.
    fn ask(&self, py: Python<'_>, patience_s: f64) -> PyResult<String> {
        let patience = errors::seconds(patience_s)?;
        py.detach(|| self.0.ask(patience)).map_err(|error| errors::raise(py, error))
    }

    #[pyo3(signature = (ptr, numel, dtype, op, factor, timeout_s, here=false))]
    fn allreduce(
        &self,
        py: Python<'_>,
        ptr: usize,
        numel: usize,
        dtype: &str,
        op: &str,
        factor: f64,
        timeout_s: f64,
        here: bool,
    ) -> PyResult<Option<Work>> {
        let (dtype, how) = (dtype_of(py, dtype)?, combine(py, op, factor)?);
        let (buffer, terms) = (elements(py, ptr, numel, dtype)?, terms(timeout_s, here)?);
        ended_or_not(py, here, py.detach(|| self.0.allreduce(buffer, dtype, how, terms)))
    }

    /// Sums of several buffers, as (address, elements) each; small ones travel together. The Work ends with the last.
    #[pyo3(signature = (buffers, dtype, op, factor, timeout_s, here=false))]
    fn allreduce_all(
        &self,
        py: Python<'_>,
        buffers: Vec<Span>,
        dtype: &str,
        op: &str,
        factor: f64,
        timeout_s: f64,
        here: bool,
    ) -> PyResult<Option<Work>> {
        let (dtype, how) = (dtype_of(py, dtype)?, combine(py, op, factor)?);
        let buffers = buffers.into_iter().map(|(ptr, numel)| elements(py, ptr, numel, dtype));
        let buffers = buffers.collect::<PyResult<Vec<Buffer>>>()?;
        let terms = terms(timeout_s, here)?;
        ended_or_not(py, here, py.detach(|| self.0.allreduce_all(buffers, dtype, how, terms)))
    }

    #[pyo3(signature = (ptr, numel, dtype, op, factor, root, timeout_s, here=false))]
    fn reduce(
        &self,
        py: Python<'_>,
        ptr: usize,
        numel: usize,
        dtype: &str,
        op: &str,
        factor: f64,
        root: u32,
        timeout_s: f64,
        here: bool,
    ) -> PyResult<Option<Work>> {
        let (dtype, how) = (dtype_of(py, dtype)?, combine(py, op, factor)?);
        let (buffer, terms) = (elements(py, ptr, numel, dtype)?, terms(timeout_s, here)?);
        ended_or_not(py, here, py.detach(|| self.0.reduce(buffer, dtype, how, root, terms)))
    }

    /// `elements`, here and below: the type of the elements, by a name on which ranks must agree; "" means unspecified.
    #[pyo3(signature = (ptr, nbytes, root, timeout_s, here=false, elements=""))]
    fn broadcast(
        &self,
        py: Python<'_>,
        ptr: usize,
        nbytes: usize,
        root: u32,
        timeout_s: f64,
        here: bool,
        elements: &str,
    ) -> PyResult<Option<Work>> {
        let (buffer, terms) = (bytes((ptr, nbytes)), moving(timeout_s, here, elements)?);
        ended_or_not(py, here, py.detach(|| self.0.broadcast(buffer, root, terms)))
    }

    #[pyo3(signature = (outs, in_, timeout_s, here=false, elements=""))]
    fn allgather(
        &self,
        py: Python<'_>,
        outs: Vec<Span>,
        in_: Span,
        timeout_s: f64,
        here: bool,
        elements: &str,
    ) -> PyResult<Option<Work>> {
        let (outs, own, terms) = (all(outs), bytes(in_), moving(timeout_s, here, elements)?);
        ended_or_not(py, here, py.detach(|| self.0.allgather(outs, own, terms)))
    }

    #[pyo3(signature = (outs, in_, root, timeout_s, here=false, elements=""))]
    fn gather(
        &self,
        py: Python<'_>,
        outs: Vec<Span>,
        in_: Span,
        root: u32,
        timeout_s: f64,
        here: bool,
        elements: &str,
    ) -> PyResult<Option<Work>> {
        let (outs, own, terms) = (all(outs), bytes(in_), moving(timeout_s, here, elements)?);
        ended_or_not(py, here, py.detach(|| self.0.gather(outs, own, root, terms)))
    }

    #[pyo3(signature = (out, ins, root, timeout_s, here=false, elements=""))]
    fn scatter(
        &self,
        py: Python<'_>,
        out: Span,
        ins: Vec<Span>,
        root: u32,
        timeout_s: f64,
        here: bool,
        elements: &str,
    ) -> PyResult<Option<Work>> {
        let (own, ins, terms) = (bytes(out), all(ins), moving(timeout_s, here, elements)?);
        ended_or_not(py, here, py.detach(|| self.0.scatter(own, ins, root, terms)))
    }

    #[pyo3(signature = (out_ptr, ins, dtype, op, factor, timeout_s, here=false))]
    fn reduce_scatter(
        &self,
        py: Python<'_>,
        out_ptr: usize,
        ins: Vec<Span>,
        dtype: &str,
        op: &str,
        factor: f64,
        timeout_s: f64,
        here: bool,
    ) -> PyResult<Option<Work>> {
        let (dtype, how) = (dtype_of(py, dtype)?, combine(py, op, factor)?);
        let terms = terms(timeout_s, here)?;
        let own = ins.get(self.0.rank() as usize).map_or(0, |&(_, numel)| numel);
        let in_place = ins.get(self.0.rank() as usize).is_some_and(|&(ptr, _)| ptr == out_ptr);
        let output = if in_place { None } else { Some(elements(py, out_ptr, own, dtype)?) };
        let ins = ins.into_iter().map(|(ptr, numel)| elements(py, ptr, numel, dtype));
        let ins = ins.collect::<PyResult<Vec<Buffer>>>()?;
        ended_or_not(py, here, py.detach(|| self.0.reduce_scatter(output, ins, dtype, how, terms)))
    }

    #[pyo3(signature = (outs, ins, timeout_s, here=false, elements=""))]
    fn alltoall(
        &self,
        py: Python<'_>,
        outs: Vec<Span>,
        ins: Vec<Span>,
        timeout_s: f64,
        here: bool,
        elements: &str,
    ) -> PyResult<Option<Work>> {
        let (outs, ins, terms) = (all(outs), all(ins), moving(timeout_s, here, elements)?);
        ended_or_not(py, here, py.detach(|| self.0.alltoall(outs, ins, terms)))
    }

    #[pyo3(signature = (timeout_s, here=false))]
    fn barrier(&self, py: Python<'_>, timeout_s: f64, here: bool) -> PyResult<Option<Work>> {
        let terms = terms(timeout_s, here)?;
        ended_or_not(py, here, py.detach(|| self.0.barrier(terms)))
    }

    fn send(
        &self,
        py: Python<'_>,
        ptr: usize,
        nbytes: usize,
        dst: u32,
        tag: u64,
        timeout_s: f64,
    ) -> PyResult<Work> {
        let (buffer, timeout) = (bytes((ptr, nbytes)), errors::seconds(timeout_s)?);
        Ok(Work(py.detach(|| self.0.send(buffer, dst, tag, timeout))))
    }

    /// `src` None: from any rank; the Work then has the sender.
    #[pyo3(signature = (ptr, nbytes, src, tag, timeout_s))]
    fn recv(
        &self,
        py: Python<'_>,
        ptr: usize,
        nbytes: usize,
        src: Option<u32>,
        tag: u64,
        timeout_s: f64,
    ) -> PyResult<Work> {
        let (buffer, timeout) = (bytes((ptr, nbytes)), errors::seconds(timeout_s)?);
        Ok(Work(py.detach(|| self.0.receive(buffer, src, tag, timeout))))
    }

    /// A number by which compiled XLA programs refer to the group.
    fn number(&self) -> i64 {
        xla::register(&self.0, self.1, self.2)
    }

    /// Statistics and state of the group: JSON of `netsum_collective::GroupStats`, "{}" before it is connected.
    fn stats(&self, py: Python<'_>) -> String {
        py.detach(|| json_or_empty(self.0.stats()))
    }

    /// The algorithm of the host path for an operation of `nbytes` per rank, with the costs of all: JSON of
    /// `netsum_collective::Choice`.
    fn explain(
        &self,
        py: Python<'_>,
        operation: &str,
        nbytes: usize,
        dtype: &str,
        op: &str,
    ) -> PyResult<String> {
        let format = Format { dtype: dtype_of(py, dtype)?, op: combine(py, op, 1.0)?.reduce_op() };
        choice(py, self.0.explain(operation, format, nbytes))
    }

    /// The group and its last operations: JSON of `netsum_collective::Recorded`, "{}" if it is not connected. why: the
    /// reason for recording, as text.
    #[pyo3(signature = (why=""))]
    fn recorded(&self, py: Python<'_>, why: &str) -> String {
        py.detach(|| json_or_empty(self.0.recorded(why)))
    }

    /// Writes the result of `recorded` into a folder; returns the path of the file.
    #[pyo3(signature = (folder, why=""))]
    fn dump(&self, py: Python<'_>, folder: PathBuf, why: &str) -> PyResult<PathBuf> {
        py.detach(|| self.0.dump(&folder, why)).map_err(|error| errors::raise(py, error))
    }

    /// Leaves the job.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.0.close());
    }

    /// Fails all operations in progress, and every later call.
    fn abort(&self, py: Python<'_>, reason: &str) {
        py.detach(|| self.0.abort(reason));
    }
}

/// Like [`Group::explain`], for `ranks` on such links, without a group.
#[pyfunction]
#[allow(clippy::too_many_arguments)]
pub(crate) fn explain_hosts(
    py: Python<'_>,
    ranks: u32,
    latency_s: f64,
    bytes_per_s: f64,
    operation: &str,
    nbytes: usize,
    dtype: &str,
    op: &str,
) -> PyResult<String> {
    let ranks = ranks.max(1);
    let link = LinkCost {
        ranks,
        shared_memory: false,
        latency_s,
        bytes_per_s,
        by_distance: Vec::new(),
        across: None,
    };
    let format = Format { dtype: dtype_of(py, dtype)?, op: combine(py, op, 1.0)?.reduce_op() };
    choice(py, core::explain(&link, operation, format, nbytes, None, None))
}

fn json_or_empty(report: Option<impl Serialize>) -> String {
    report.map_or_else(
        || "{}".to_owned(),
        |report| serde_json::to_string(&report).expect("reports are plain data"),
    )
}

fn choice(py: Python<'_>, found: Result<core::Choice, core::Error>) -> PyResult<String> {
    let found = found.map_err(|error| errors::raise(py, error))?;
    Ok(serde_json::to_string(&found).expect("choices are plain data"))
}

fn terms(timeout_s: f64, here: bool) -> PyResult<Terms> {
    let timeout = errors::seconds(timeout_s)?;
    let terms = if here { Terms::here(timeout) } else { timeout.into() };
    Ok(terms.unless(callbacks::interrupted))
}

fn moving(timeout_s: f64, here: bool, elements: &str) -> PyResult<Terms> {
    Ok(terms(timeout_s, here)?.of(Elements::named(elements)))
}

/// With `here`, None for an operation that succeeded, which saves an object; else its error.
fn ended_or_not(py: Python<'_>, here: bool, work: core::Work) -> PyResult<Option<Work>> {
    if !work.is_done() {
        return Ok(Some(Work(work)));
    }
    match (callbacks::interrupt(), here) {
        (Some(interrupt), _) => Err(interrupt),
        (None, false) => Ok(Some(Work(work))),
        (None, true) => match work.outcome() {
            Ok(()) => Ok(None),
            Err(error) => Err(errors::raise(py, error)),
        },
    }
}

fn bytes((ptr, len): Span) -> Buffer {
    if len == 0 {
        return Buffer::from_vec(Vec::new());
    }
    // SAFETY: by this module's contract the caller passes memory of `len` bytes, keeps it alive, and does not access it
    // until the Work is done; netsum.torch holds the tensors in its own Work.
    unsafe { Buffer::from_raw(ptr as *mut u8, len, Box::new(())) }
}

fn elements(py: Python<'_>, ptr: usize, numel: usize, dtype: Dtype) -> PyResult<Buffer> {
    let len = numel.checked_mul(dtype.size());
    let len = len.ok_or_else(|| unsupported(py, format!("{numel} elements of {dtype}")))?;
    Ok(bytes((ptr, len)))
}

fn all(spans: Vec<Span>) -> Vec<Buffer> {
    spans.into_iter().map(bytes).collect()
}

fn dtype_of(py: Python<'_>, name: &str) -> PyResult<Dtype> {
    name.parse().map_err(|_| unsupported(py, format!("dtype {name} cannot be reduced")))
}

fn combine(py: Python<'_>, op: &str, factor: f64) -> PyResult<Combine> {
    match op {
        "avg" => Ok(Combine::Average),
        "premul_sum" => Ok(Combine::ScaledSum(factor)),
        _ => {
            let plain = op.parse().map(Combine::Plain);
            plain.map_err(|_| unsupported(py, format!("operation {op} does not exist")))
        }
    }
}

fn unsupported(py: Python<'_>, text: String) -> PyErr {
    errors::raise(py, core::Error::Unsupported(text))
}
