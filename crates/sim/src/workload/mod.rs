//! Flows that are not a training job's: sizes, arrivals, pairs.

mod arrivals;
mod sizes;

pub use arrivals::{permutation, poisson};
pub use sizes::{FlowSizes, Interpolation};

/// A flow of the workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowSpec {
    /// When it starts.
    pub start_ps: u64,
    /// From this host.
    pub src: u32,
    /// To this host, another one.
    pub dst: u32,
    /// Payload, at least 1.
    pub bytes: u64,
}
