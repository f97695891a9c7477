//! The operator of netsum on Kubernetes.
//!
//! Owns: the custom resources `Fabric` and `AggregationJob`, the fabric file from nodes, the admission of pods, the end of
//! jobs whose pods are gone. Must not know: data packets, how plans are made, how a controller stores jobs. Start reading at
//! [`resources`] (what users write), [`admission`] (what becomes of a pod) and [`jobs`] (which jobs must end).

pub mod admission;
pub mod cache;
pub mod certificate;
mod error;
pub mod fabric;
pub mod jobs;
pub mod names;
pub mod resources;
pub mod sweep;
pub mod topology;
pub mod webhook;

pub use error::OperatorError;
