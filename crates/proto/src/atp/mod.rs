//! Protocol `atp`: best-effort aggregation for many tenants (ATP, NSDI 2021).
//!
//! A fragment is named by job, tree (one per server) and sequence number. It requests one slot, which all workers
//! compute alike ([`SlotTable`]). A [`Switch`] adds it there if the slot is free or belongs to the fragment, and
//! forwards it otherwise: first at the switch of the workers' rack, then at that of the server's rack. The [`Server`]
//! adds whatever reaches it, each worker once, and sends the result down through the same switches, where it frees the
//! slot; the result is the acknowledgement. Workers send again, with `resend`, what is lost or stuck, and switches then
//! release their partial sums.
//!
//! docs/protocol-atp.md has the format and every event; docs/adr/ has the decisions on points that the paper leaves
//! open.

mod gather;
mod lease;
mod missing;
mod node;
mod payload;
mod place;
mod policy;
mod served;
mod server;
mod slots;
mod switch;
mod table;
mod tenant;
mod work;
mod worker;

pub use lease::{Claim, Lease, LeaseError, Members, Neighbour, Rack, ServerLease};
pub use node::{Node, NodeLease, NodeLeaseError};
pub use policy::Policy;
pub use served::ServerCounters;
pub use server::Server;
pub use slots::SlotState;
pub use switch::{Switch, SwitchConfig, Transmit};
pub use table::SlotTable;
pub use tenant::Counters;
pub use work::{Accepted, Content, Outgoing, Scaling, WorkerConfig, WorkerPosition, supports};
pub use worker::Worker;

pub use crate::aggregator::Aggregator;
pub use crate::flow::TreeStats;
pub use crate::operations::{Fragments, Submission};
pub use crate::worker::{Event, WorkerMachine};
