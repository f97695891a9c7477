//! What every store must do: one suite over SQLite, memory, and a cluster of three etcd processes.

#[path = "../support/etcd.rs"]
#[allow(dead_code, reason = "every test uses a part of it")]
mod etcd;
mod on_etcd;
mod over_tls;
mod suite;

use std::cell::Cell;

use netsum_control::{EtcdStore, MemoryStore, SqliteStore, Store};

use etcd::EtcdCluster;

/// Where a test keeps its store.
pub trait Places {
    /// Another empty store, each time.
    fn new_place(&self);
    /// Opens the store of the present place.
    fn open(&self) -> Box<dyn Store>;
    /// Whether two may have it open at the same time.
    fn is_shared(&self) -> bool;
}

struct Files {
    folder: tempfile::TempDir,
    number: Cell<u32>,
}

impl Places for Files {
    fn new_place(&self) {
        self.number.set(self.number.get() + 1);
    }

    fn open(&self) -> Box<dyn Store> {
        let file = self.folder.path().join(format!("{}.db", self.number.get()));
        Box::new(SqliteStore::open(&file).unwrap())
    }

    fn is_shared(&self) -> bool {
        false
    }
}

struct Memories(Cell<Option<MemoryStore>>);

impl Places for Memories {
    fn new_place(&self) {
        self.0.set(Some(MemoryStore::drawn().unwrap()));
    }

    fn open(&self) -> Box<dyn Store> {
        let store = self.0.take().expect("a place was made");
        self.0.set(Some(store.clone()));
        Box::new(store)
    }

    fn is_shared(&self) -> bool {
        true
    }
}

struct Clusters {
    etcd: EtcdCluster,
    number: Cell<u32>,
}

impl Places for Clusters {
    fn new_place(&self) {
        self.number.set(self.number.get() + 1);
    }

    fn open(&self) -> Box<dyn Store> {
        let fabric = format!("fabric {}", self.number.get());
        Box::new(EtcdStore::open(&self.etcd.endpoints(), None, &fabric).unwrap())
    }

    fn is_shared(&self) -> bool {
        true
    }
}

#[test]
fn sqlite_is_a_store() {
    let folder = tempfile::tempdir().unwrap();
    suite::run(&Files { folder, number: Cell::new(0) });
}

#[test]
fn memory_is_a_store() {
    suite::run(&Memories(Cell::new(None)));
}

#[test]
fn etcd_is_a_store() {
    let Some(etcd) = EtcdCluster::start(3) else { return };
    suite::run(&Clusters { etcd, number: Cell::new(0) });
}
