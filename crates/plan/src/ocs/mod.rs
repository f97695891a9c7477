//! Allreduce with few aggregation devices behind an optical circuit switch: the circuits and lanes with which the
//! buffer is summed at the highest rate.
//!
//! Source: Tateiwa et al., partial in-network aggregation on direct-connect networks (SWoPP 2024, IPSJ HPC-195), "slide
//! n". Rates are in units of one port in one direction, and algbw is the size of the buffer over the time. A topology
//! is composed of disjoint parts, each with its share of the buffer:
//!
//! * a *tree* with k devices: algbw 1, 2(N−1) − k(E−2) worker ports, at least N. With k = 0 it is
//!   the slides' Line, with k = K = ⌈(N−2)/(E−2)⌉ their Full Tree, between them a Partial Tree;
//! * a *ring*: algbw N/(2(N−1)), N worker ports, each transmitter and receiver going elsewhere.
//!
//! [`closed`] and [`dp`] find the best composition of these. [`shared`] improves on it: a device may serve several
//! trees, and ports that do not make a whole ring carry a *mesh* of many light trees. [`bound`] is the upper bound.
//! [`synthesize`] builds a plan (circuits, trees, shares) and [`check`] replays it independently. [`answer`] combines
//! them. Start reading at [`closed`], then [`synthesize`].

mod answer;
mod bound;
mod build;
mod check;
mod closed;
mod composition;
mod crossed;
mod error;
mod fold;
mod forests;
mod jobs;
mod mesh;
mod pieces;
mod plan;
mod programme;
mod savings;
mod shared;
mod weave;

pub use answer::{Answer, Comparison, Method, answer, compare, curve};
pub use bound::{Bound, bound};
pub use build::synthesize;
pub use check::{Report, check};
pub use closed::closed;
pub use composition::{Composition, Piece, Woven};
pub use error::{JobsError, OcsViolation};
pub use jobs::{Grant, JobDemand, share_devices};
pub use plan::{Lane, OcsPlan};
pub use programme::dp;
pub use shared::shared;
