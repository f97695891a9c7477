//! Protocol `panama`: streaming aggregation over several trees (PANAMA, MLSys 2021).
//!
//! One fragment's life: [`Worker`] gives it to a tree and a vid, within that tree's window; each
//! [`Switch`] on the way holds the children's fragments in port buffers until all `members` are in, adds
//! them in child order and releases one partial upward, at the root the result downward; the result is
//! the acknowledgement. Both ends retain what the other may still lack, so a fragment that is sent again
//! under its vid is answered, never counted twice. When a tree dies, [`resolve`] tells every worker alike
//! which results the peers can serve and what must be summed again.
//!
//! The decisions where the paper leaves a hole are in docs/adr/.

mod lease;
mod memory;
mod slab;
mod switch;
mod tree;
mod worker;

pub use lease::{Child, Lease, LeaseError, MAX_BRANCHES, MAX_CHILDREN, buffers_per_fragment};
pub use memory::Memory;
pub use slab::{BufferId, OpenSum, Slab};
pub use switch::{Switch, Transmit};
pub use tree::TreeCounters;
pub use worker::{Accepted, Outgoing, Worker, WorkerConfig};

pub use crate::aggregator::Aggregator;
pub use crate::flow::TreeStats;
pub use crate::operations::{Fragments, Submission, elements_per_fragment, fragments_of};
pub use crate::worker::{Event, WorkerMachine};
