//! Finds aggregation trees, and checks them by other means.
//!
//! Owns: the search for trees and the verifier of plans. Must not know: packets, gRPC, the
//! simulator, who asked. Start reading at [`aggregation_trees`]; [`verify`] says what a tree must be.
//! [`ocs`] synthesizes topologies behind an optical circuit switch.

mod error;
mod grow;
pub mod ocs;
pub mod pack;
mod picture;
pub mod program;
mod trees;
mod verify;

pub use error::{PackError, PlanError, Violation};
pub use picture::picture;
pub use trees::{Request, aggregation_trees};
pub use verify::{switch_links, verify, verify_set};
