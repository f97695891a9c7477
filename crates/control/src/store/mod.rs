//! Persistent state of a controller: jobs and their ranks as plain rows.

mod backup;
mod contract;
mod etcd;
mod memory;
mod messages;
mod row;
mod sqlite;

pub use backup::{BackupSummary, backup, restore};
pub use contract::{Change, JobRow, MemberRow, Saved, Store};
pub use etcd::{EtcdCredentials, EtcdStore};
pub use memory::MemoryStore;
pub use sqlite::SqliteStore;

pub(crate) use etcd::{CallError, Cluster, Observed, OwnRecord, Threads};
pub(crate) use row::{job_row, loaded, member_row};
