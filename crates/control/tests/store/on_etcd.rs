//! What only the store in etcd can meet: members that die, writes without an answer, batches that were interrupted.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::Instant;

use netsum_control::{Change, ControlError, EtcdStore, Store};

use crate::etcd::{EtcdCluster, PATIENCE};
use crate::suite::job;

const FABRIC: &str = "lab";

fn open(etcd: &EtcdCluster) -> EtcdStore {
    EtcdStore::open(&etcd.endpoints(), None, FABRIC).unwrap()
}

/// Writes a key as an earlier controller would have left it.
fn put(etcd: &EtcdCluster, key: &str, value: &[u8]) {
    let mut etcdctl = Command::new("etcdctl")
        .env("ETCDCTL_API", "3")
        .args(["--endpoints", &etcd.endpoints(), "put", &format!("/netsum/{FABRIC}/{key}")])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    etcdctl.stdin.take().unwrap().write_all(value).unwrap();
    assert!(etcdctl.wait().unwrap().success());
}

/// A part of a batch with one write: `next_job` becomes `number`.
fn part(number: &str) -> Vec<u8> {
    let write = [&[10, 8], &b"next_job"[..], &[18, number.len() as u8], number.as_bytes()].concat();
    [&[10, write.len() as u8], &write[..]].concat()
}

#[test]
fn a_batch_that_was_made_is_completed_and_another_forgotten() {
    let Some(etcd) = EtcdCluster::start(1) else { return };
    let mut store = open(&etcd);
    store.begin_term().unwrap();
    let first = store.load().unwrap().next_job;
    put(&etcd, "parts/00000000", &part("76"));
    put(&etcd, "parts/00000001", &part("77"));
    store.begin_term().unwrap();
    assert_eq!(store.load().unwrap().next_job, first, "its leader died before the batch was made");
    put(&etcd, "batch", b"2");
    store.begin_term().unwrap();
    assert_eq!(store.load().unwrap().next_job, first, "its parts were forgotten");
    put(&etcd, "parts/00000000", &part("78"));
    put(&etcd, "parts/00000001", &part("79"));
    put(&etcd, "parts/00000002", &part("80"));
    put(&etcd, "batch", b"2");
    store.begin_term().unwrap();
    assert_eq!(store.load().unwrap().next_job, 79, "its leader died after the batch was made");
    store.save(&[Change::NextJob(5)]).unwrap();
    store.begin_term().unwrap();
    assert_eq!(store.load().unwrap().next_job, 5, "the batch was completed once");
}

#[test]
fn writes_go_on_while_one_member_is_dead_or_silent() {
    let Some(mut etcd) = EtcdCluster::start(3) else { return };
    let mut store = open(&etcd);
    store.begin_term().unwrap();
    store.load().unwrap();
    for member in 0..etcd.len() {
        etcd.wait_ready();
        etcd.kill(member);
        save_in_some_term(&mut store, 100 + member as u32);
        etcd.revive(member);
        save_in_some_term(&mut store, 200 + member as u32);
        etcd.wait_ready();
        etcd.pause(member, true);
        save_in_some_term(&mut store, 300 + member as u32);
        etcd.pause(member, false);
    }
    assert_eq!(open_and_load(&etcd).next_job, 302);
}

/// Saves the number as a controller does: with a term of its own after each write whose outcome is unknown.
///
/// On a busy machine, etcd's election takes longer than a store waits for an answer.
fn save_in_some_term(store: &mut EtcdStore, number: u32) {
    let until = Instant::now() + PATIENCE;
    while let Err(error) = store.save(&[Change::NextJob(number)]) {
        assert!(matches!(error, ControlError::Uncertain { .. }), "{error}");
        assert!(Instant::now() < until, "no write in {PATIENCE:?}: {error}");
        while store.begin_term().and_then(|_| store.load()).is_err() {
            assert!(Instant::now() < until, "no term in {PATIENCE:?}: {error}");
        }
    }
}

fn open_and_load(etcd: &EtcdCluster) -> netsum_control::Saved {
    let mut store = open(etcd);
    store.begin_term().unwrap();
    store.load().unwrap()
}

#[test]
fn without_a_majority_an_outcome_is_unknown_until_the_next_term() {
    let Some(mut etcd) = EtcdCluster::start(3) else { return };
    let mut store = open(&etcd);
    store.begin_term().unwrap();
    store.load().unwrap();
    store.save(&[Change::NewJob(job(1))]).unwrap();
    etcd.kill(1);
    etcd.kill(2);
    let error = store.save(&[Change::NewJob(job(2))]).unwrap_err();
    assert!(matches!(error, ControlError::Uncertain { .. }), "{error}");
    assert!(error.to_string().contains(&etcd.address(0)), "{error}");
    assert!(store.confirm().is_err());
    etcd.revive(1);
    let error = store.save(&[Change::NewJob(job(3))]).unwrap_err();
    assert!(matches!(error, ControlError::Uncertain { .. }), "{error}");
    let jobs: Vec<u32> = open_and_load(&etcd).jobs.iter().map(|job| job.job).collect();
    assert!(jobs == [1] || jobs == [1, 2], "{jobs:?}");
}

#[test]
fn what_cannot_be_used_is_named() {
    let wrong = EtcdStore::open("10.0.0.1", None, FABRIC).unwrap_err().to_string();
    assert!(wrong.contains("etcd://10.0.0.1: it is not the address of a member"), "{wrong}");
    let Some(etcd) = EtcdCluster::start(1) else { return };
    // A layout of the future.
    put(&etcd, "meta", &[8, 77]);
    let newer = open(&etcd).begin_term().unwrap_err().to_string();
    assert!(newer.contains("its layout has version 77, this controller knows 1"), "{newer}");
    put(&etcd, "meta", b"\xff");
    let damaged = open(&etcd).begin_term().unwrap_err().to_string();
    assert!(damaged.contains("meta is damaged"), "{damaged}");
}
