//! Topology, trees and plans as plain types, and the fabric file.
//!
//! Owns: the fabric file with its checks, the graph of hosts and switches, builders of common shapes, and the plan as a
//! type. Must not know: how a plan is found, packets, processes. Start reading at [`Fabric`] (the file), [`Topology`]
//! (the graph) and [`Plan`] (what the controller sends to workers and switches).

mod builders;
mod error;
mod fabric;
mod graph;
pub mod links;
mod ocs;
mod order;
mod parse;
mod plan;
mod ratio;
mod raw;
mod tree;
mod units;

pub use builders::{Addressing, dumbbell, fat_tree, leaf_spine, single_switch};
pub use error::{OrderError, TopoError};
pub use fabric::{DEFAULT_TENANT, Fabric, Host, Link, SLOTS_USUAL, Server, Switch, Tenant};
pub use graph::{Edge, EdgeId, Node, NodeId, NodeKind, Topology};
pub use ocs::{Circuit, OcsEnd, OcsNode, OcsPorts, OcsSpec};
pub use order::SumOrder;
pub use plan::{CongestionRule, Plan, Protocol, SlotPolicy};
pub use ratio::{Ratio, gcd, lcm};
pub use tree::{AggregationTree, Child, Parent, TreeNode};
pub use units::{Bytes, Latency, Rate};
