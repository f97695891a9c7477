//! Forged packets: every kind of [`kinds`] against every protocol of [`rigs`], while a job of another tenant sums and
//! checks every element. No sum differs by a bit, no job ends, and every packet is counted by its reason.
//!
//! `NETSUM_FORGE_COUNT` is the number of packets of each kind (`make forge COUNT=1000000`). Kinds that write another
//! process's address need root; without it they are left out, and the test says so.

mod datagram;
mod kinds;
#[cfg_attr(
    not(feature = "xdp"),
    expect(dead_code, reason = "only the in-kernel switch needs namespaces")
)]
#[path = "../common/namespace.rs"]
mod namespace;
mod network;
mod rigs;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kinds::{From, KINDS, Kind, To};
use netsum_wire::tag::Mac;
use network::Network;
use rigs::Rig;

/// Long enough for a machine that does much else.
const PATIENCE: Duration = Duration::from_secs(120);
/// Packets that wait for their counters: fewer than the smallest socket buffer holds beside a job's own.
const BURST: u64 = 40;
const COUNT: u64 = 120;

fn count() -> u64 {
    std::env::var("NETSUM_FORGE_COUNT").map_or(COUNT, |count| count.parse().expect("a number"))
}

#[test]
fn forged_packets_of_atp_are_counted_and_change_nothing() {
    attack(&Rig::atp(Network::Loopback, Mac::SipHash));
}

#[test]
fn forged_packets_of_switchml_are_counted_and_change_nothing() {
    attack(&Rig::switchml(Network::Loopback, Mac::SipHash));
}

#[test]
fn forged_packets_of_panama_are_counted_and_change_nothing() {
    attack(&Rig::panama(Mac::SipHash));
}

#[test]
fn forged_packets_of_encrypted_jobs_are_counted_and_change_nothing() {
    let mac = Mac::AegisAead;
    attack(&Rig::atp(Network::Loopback, mac));
    attack(&Rig::switchml(Network::Loopback, mac));
    attack(&Rig::panama(mac));
}

#[cfg(feature = "xdp")]
#[test]
fn forged_packets_to_slots_in_the_kernel_are_counted_and_change_nothing() {
    attack_the_kernel(Rig::atp);
}

#[cfg(feature = "xdp")]
#[test]
fn forged_packets_to_pools_in_the_kernel_are_counted_and_change_nothing() {
    attack_the_kernel(Rig::switchml);
}

#[cfg(feature = "xdp")]
fn attack_the_kernel(rig: fn(Network, Mac) -> Rig) {
    let Some(network) = Network::around_a_switch() else { return };
    let rig = rig(network, Mac::Nh);
    if rig.await_kernel() {
        attack(&rig);
        assert!(rig.await_kernel(), "the kernel served both jobs to the end");
    }
}

fn attack(rig: &Rig) {
    if !rig.can_spoof() {
        println!("skipped: raw sockets need root; only packets from own addresses were sent");
    }
    rig.check_a_sum(0);
    let (over, mut sums) = (AtomicBool::new(false), 1);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for kind in KINDS {
                forge(rig, kind);
            }
            over.store(true, Ordering::Release);
        });
        // The attack ends between two sums, so that the last one is undisturbed.
        let mut last = false;
        while !last {
            last = over.load(Ordering::Acquire);
            rig.check_a_sum(sums);
            sums += 1;
        }
    });
    println!("{}: {} kinds, {} packets of each, {sums} sums", rig.name, KINDS.len(), count());
}

/// Sends the packets of one kind to each of its targets, and waits until all of them have been counted.
fn forge(rig: &Rig, kind: &Kind) {
    for &(neighbour, victim) in rig.targets(kind.to) {
        let before = rig.drops(kind.reasons);
        let mut sent = 0;
        while sent < count() {
            for _ in 0..BURST.min(count() - sent) {
                let packet = (kind.make)(rig.wire, sent);
                match (kind.from, rig.spoofer(kind.to)) {
                    (From::Outsider, _) => rig.outsider.send_to(&packet, victim).map(drop).unwrap(),
                    (From::Member, _) => rig.member.send_to(&packet, victim).map(drop).unwrap(),
                    (_, None) => return,
                    (From::Neighbour, Some(raw)) => raw.send(neighbour, victim, &packet, kind.ip),
                }
                sent += 1;
            }
            if !kind.reasons.is_empty() {
                await_drops(rig, kind, before + sent);
            }
        }
    }
}

fn await_drops(rig: &Rig, kind: &Kind, wanted: u64) {
    let started = Instant::now();
    loop {
        let counted = rig.drops(kind.reasons);
        if counted >= wanted {
            return;
        }
        assert!(
            started.elapsed() < PATIENCE,
            "{}, {}: {counted} drops instead of {wanted}; all: {:?}",
            rig.name,
            kind.name,
            rig.all_drops()
        );
        std::thread::sleep(Duration::from_micros(200));
    }
}

#[test]
fn there_are_twenty_kinds_and_each_target_is_attacked() {
    assert!(KINDS.len() >= 20, "{}", KINDS.len());
    for to in [To::Switch, To::Worker] {
        assert!(KINDS.iter().filter(|kind| kind.to == to).count() >= 3);
    }
}
