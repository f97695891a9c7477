//! Protocol `atp` on UDP: the data threads of switches and servers ([`SlotDriver`]), and of workers
//! ([`SlotWorker`]).
//!
//! As in `panama`'s drivers one thread owns socket and machine, takes all that has arrived in one call and
//! sends what comes of it as trains. Everybody else talks to it by commands.

mod aggregator;
mod worker;
mod worker_thread;

pub use aggregator::{SlotDriver, SlotOptions, SlotRole, SlotSnapshot};
pub use worker::{SlotEvent, SlotOperation, SlotPlan, SlotStats, SlotWorker};
