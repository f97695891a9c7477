//! Finds aggregation trees, and verifies them independently.
//!
//! Owns: the search for trees and the verifier of plans. Must not know: packets, gRPC, the simulator, the caller. Start
//! reading at [`aggregation_trees`]; [`verify`] defines a valid tree. [`ocs`] synthesizes topologies behind an optical
//! circuit switch.

mod distances;
mod error;
pub mod export;
mod group_plan;
mod grow;
pub mod ocs;
mod orbit_plan;
pub mod pack;
mod picture;
pub mod program;
mod request;
mod trees;
mod verify;

pub use error::{PackError, PlanError, Violation};
pub use group_plan::{GROUP_PLAN_FORMAT, GroupPlan, PlannedGroup};
pub use orbit_plan::{Automorphism, ORBIT_PLAN_FORMAT, OrbitPlan};
pub use picture::picture;
pub use request::Request;
pub use trees::aggregation_trees;
pub use verify::{switch_links, verify, verify_set};
