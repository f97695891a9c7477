//! Protocol `panama`: streaming aggregation over several trees (PANAMA, MLSys 2021).
//!
//! The life of a fragment: a [`Worker`] assigns a tree and a vid to it, within that tree's window. Each [`Switch`] on
//! the way holds the children's fragments in port buffers until all `members` have contributed, adds them in child
//! order and releases one partial upward, at the root the result downward; the result is the acknowledgement. Both ends
//! retain what the other may still lack, so a fragment that is sent again under its vid is answered, never counted
//! twice. When a tree dies, [`resolve`] determines alike at every worker which results the peers can serve and what
//! must be summed again.
//!
//! docs/adr/ has the decisions on points that the paper leaves open.

mod lease;
mod memory;
mod slab;
mod switch;
mod tree;
mod visit;
mod worker;

pub use lease::{Child, Lease, LeaseError, MAX_BRANCHES, MAX_CHILDREN, buffers_per_fragment};
pub use memory::{Divisible, Memory};
pub use slab::{BufferId, OpenSum, Slab};
pub use switch::{Switch, Transmit};
pub use tree::TreeCounters;
pub use visit::visit_header;
pub use worker::{Accepted, Outgoing, Worker, WorkerConfig};

pub use crate::aggregator::Aggregator;
pub use crate::flow::TreeStats;
pub use crate::operations::{Fragments, Submission, elements_per_fragment, fragments_of};
pub use crate::pattern::Pattern;
pub use crate::worker::{Event, WorkerMachine};
