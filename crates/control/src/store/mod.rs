//! Persistent state of a controller: jobs and their ranks as plain rows.

mod contract;
mod memory;
mod row;
mod sqlite;

pub use contract::{Change, JobRow, MemberRow, Saved, Store};
pub use memory::MemoryStore;
pub use sqlite::SqliteStore;

pub(crate) use row::{job_row, loaded, member_row};
