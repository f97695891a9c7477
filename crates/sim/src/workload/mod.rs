//! Background flows: sizes, arrivals, pairs.

mod arrivals;
mod sizes;

pub use arrivals::{permutation, poisson};
pub use sizes::{FlowSizes, Interpolation};

/// A flow of the workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowSpec {
    /// When it starts.
    pub start_ps: u64,
    /// Source host.
    pub src: u32,
    /// Destination host, not the source.
    pub dst: u32,
    /// Payload, at least 1.
    pub bytes: u64,
}
