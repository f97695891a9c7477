//! Tags and packet numbers in the kernel, packet by packet.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use netsum_net::xdp::{Hop, HopNumbers, Plane, PlaneOptions, Verdict};
use netsum_proto::atp::{self, Claim, Members, Policy, SwitchConfig};
use netsum_proto::row_machines::Standing;
use netsum_proto::{Hop as SealedHop, Lease, SharedNumbers};
use netsum_wire::atp::{Flags, HEADER_LEN, Header, Kind, Level};
use netsum_wire::seal::{HopKeys, with_room};
use netsum_wire::tag::Mac;
use netsum_wire::{Arithmetic, Epoch, JobId, Parties, Sequence, SlotIndex, TreeId};

use crate::rights::load;

const OWN: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 9, 9, 9), 7701);
const PARENT: u8 = 2;
const ELEMENTS: u16 = 352;

fn neighbour(number: u8) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::new(10, 1, 0, number), 7000)
}

fn keys(epoch: u16, neighbour: u8) -> HopKeys {
    HopKeys::new(Mac::Nh, std::array::from_fn(|i| i as u8 ^ neighbour ^ (epoch as u8) << 4))
}

/// A rack's switch with two workers and a parent.
struct Bench {
    plane: Plane,
    numbers: Vec<Arc<HopNumbers>>,
}

impl Bench {
    /// `None`, with a line, where the program cannot be loaded.
    fn new() -> Option<Bench> {
        let policy = Policy::FirstCome;
        let switch = SwitchConfig { slots: 4096, row_bytes: 1408, policy, straggler_ns: 1 << 40 };
        let plane = load(PlaneOptions { own: OWN, switch })?;
        let mut bench = Bench { plane, numbers: Vec::new() };
        bench.install(1, 4096);
        Some(bench)
    }

    fn install(&mut self, epoch: u16, window: u16) {
        let lease = lease(epoch, window);
        let keys: Vec<_> = (0..=PARENT).map(|number| keys(epoch, number)).collect();
        let hop = Hop { ifindex: 1, mac: [6; 6], own_mac: [8; 6] };
        self.numbers = self.plane.numbers(&lease, &keys).unwrap();
        let standing = Standing::Slots { first: 0, passed: 0 };
        self.plane.install(&lease, Some(&keys), standing, &[hop; 3]).unwrap();
    }

    /// What happens to a packet, and the reason for which it is dropped.
    fn take(&mut self, from: u8, packet: &[u8]) -> (Verdict, Option<&'static str>) {
        let before = self.drops();
        let verdict = self.plane.try_packet(neighbour(from), false, packet).unwrap();
        let after = self.drops();
        let mut new = after.into_iter().filter(|(reason, count)| before[reason] != *count);
        (verdict, new.next().map(|(reason, _)| reason))
    }

    fn drops(&self) -> BTreeMap<&'static str, u64> {
        self.plane.drops().unwrap().into_iter().map(|(d, n)| (d.label(), n)).collect()
    }
}

fn lease(epoch: u16, window: u16) -> Lease<SocketAddr> {
    Lease::Slots(atp::Lease {
        job: JobId(1),
        epoch: Epoch(epoch),
        tree: TreeId(0),
        members: Members::Rack {
            workers: (0..PARENT).map(|number| neighbour(number).into()).collect(),
            rack: 0,
            racks: 1,
        },
        parent: neighbour(PARENT).into(),
        window,
        fragment_bytes: ELEMENTS * 4,
        claim: Claim::default(),
    })
}

/// A worker's contribution, or a result, with room for the seal.
fn packet(kind: Kind, epoch: u16, worker: u8, sequence: u32, elements: u16) -> Vec<u8> {
    let up = kind == Kind::Contribution;
    let header = Header {
        kind,
        level: if up { Level::Rack } else { Level::Server },
        flags: Flags::default(),
        arithmetic: Arithmetic::Wrapping,
        tree: TreeId(0),
        job: JobId(1),
        sequence: Sequence(sequence),
        chunk: 7,
        epoch: Epoch(epoch),
        n_elems: elements,
        rack_fan_in: 2,
        server_fan_in: 1,
        slot: SlotIndex(sequence),
        workers: if up { 1 << worker } else { 0 },
        racks: u32::from(up),
        next_slot: SlotIndex(0),
        others: 0,
        parties: Parties::All,
    };
    let mut packet = vec![0; HEADER_LEN];
    header.encode(packet.first_chunk_mut().unwrap());
    packet.extend((0..u32::from(elements)).flat_map(|i| (i * 3 + sequence).to_le_bytes()));
    with_room(&packet)
}

fn sealed(hop: &mut SealedHop, mut packet: Vec<u8>) -> Vec<u8> {
    hop.seal(&mut packet, &[]);
    packet
}

#[test]
fn the_kernel_knows_the_sender_by_its_tag() {
    let Some(mut bench) = Bench::new() else { return };
    let contribution = |epoch, worker| packet(Kind::Contribution, epoch, worker, 0, 64);
    let child = |epoch, number| SealedHop::to_parent(keys(epoch, number));
    let bad = (Verdict::Taken, Some("bad_tag"));
    let sibling = sealed(&mut child(1, 1), contribution(1, 0));
    assert_eq!(bench.take(0, &sibling), bad, "a sibling's key");
    let other = sealed(&mut child(2, 0), contribution(1, 0));
    assert_eq!(bench.take(0, &other), bad, "another epoch's");
    let reflected = sealed(&mut SealedHop::to_child(keys(1, 0)), contribution(1, 0));
    assert_eq!(bench.take(0, &reflected), bad, "the key for results");
    let mut siphash = SealedHop::to_parent(HopKeys::new(Mac::SipHash, [1; 32]));
    assert_eq!(bench.take(0, &sealed(&mut siphash, contribution(1, 0))), bad, "another MAC");
    let mut unsealed = netsum_wire::seal::unsealed(&sibling).into_owned();
    assert_eq!(bench.take(0, &unsealed), bad, "unsealed");
    unsealed[45] = 1;
    assert_eq!(bench.take(0, &unsealed).1, Some("reserved_field"));
    assert_eq!(
        bench.take(0, &sealed(&mut child(1, 0), contribution(1, 0))),
        (Verdict::Taken, None)
    );
    assert_eq!(bench.plane.held().unwrap(), 1, "the one with the right key");
}

/// Of the header, the number, the tag and the payload, for payloads that end at each place of the hash.
#[test]
fn every_bit_of_a_packet_counts_in_the_kernel() {
    let Some(mut bench) = Bench::new() else { return };
    let mut child = SealedHop::to_parent(keys(1, 0));
    for elements in [1, 2, 3, 4, 5, 63, 352] {
        let good =
            sealed(&mut child, packet(Kind::Contribution, 1, 0, u32::from(elements), elements));
        let step = if elements > 5 { 13 } else { 1 };
        for bit in (0..good.len() * 8).step_by(step) {
            let mut other = good.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            let (verdict, reason) = bench.take(0, &other);
            assert!(
                reason.is_some() || verdict == Verdict::Passed(other),
                "bit {bit}: {verdict:?}"
            );
            assert_eq!(bench.plane.held().unwrap(), 0, "bit {bit} of {elements} elements");
        }
        assert_eq!(bench.take(0, &good), (Verdict::Taken, None), "{elements} elements");
        assert_eq!(bench.plane.held().unwrap(), 1);
        bench.plane.release(JobId(1), TreeId(0)).unwrap();
    }
}

#[test]
fn a_number_is_accepted_once_and_packets_may_overtake_each_other() {
    let Some(mut bench) = Bench::new() else { return };
    let mut child = SealedHop::to_parent(keys(1, 0));
    let packets: Vec<_> = (0..3000)
        .map(|number| sealed(&mut child, packet(Kind::Contribution, 1, 0, number, 4)))
        .collect();
    // In an order that is not that of the numbers.
    for number in (0..packets.len()).map(|i| i * 1009 % packets.len()) {
        assert_eq!(bench.take(0, &packets[number]), (Verdict::Taken, None), "number {number}");
    }
    for packet in &packets {
        assert_eq!(bench.take(0, packet), (Verdict::Taken, Some("replay")));
    }
    assert_eq!(bench.plane.held().unwrap(), 3000);
}

#[test]
fn packet_numbers_go_on_with_the_keys_and_start_again_with_others() {
    let Some(mut bench) = Bench::new() else { return };
    let mut child = SealedHop::to_parent(keys(1, 0));
    let first = sealed(&mut child, packet(Kind::Contribution, 1, 0, 0, 4));
    assert_eq!(bench.take(0, &first).1, None);
    assert_eq!([bench.numbers[0].next(), bench.numbers[0].next()], [0, 1]);
    bench.install(1, 100);
    assert_eq!(bench.take(0, &first).1, Some("replay"), "another lease with the same keys");
    assert_eq!(bench.numbers[0].next(), 2);
    bench.install(2, 100);
    assert_eq!(bench.take(0, &first).1, Some("bad_tag"));
    let mut child = SealedHop::to_parent(keys(2, 0));
    let first = sealed(&mut child, packet(Kind::Contribution, 2, 0, 0, 4));
    assert_eq!(bench.take(0, &first).1, None);
    assert_eq!(bench.numbers[0].next(), 0);
    bench.plane.remove(JobId(1), TreeId(0)).unwrap();
    assert_eq!(bench.take(0, &first).1, Some("unknown_sender"));
}

/// Without an interface for each child, results go to user space, which then notes their numbers.
#[test]
fn what_is_passed_on_is_accepted_once_by_user_space() {
    let Some(mut bench) = Bench::new() else { return };
    let mut parent = SealedHop::to_child(keys(1, PARENT));
    let result = sealed(&mut parent, packet(Kind::Result, 1, 0, 0, 4));
    for _ in 0..2 {
        assert_eq!(bench.take(PARENT, &result), (Verdict::Passed(result.clone()), None));
    }
    let numbers = &bench.numbers[usize::from(PARENT)];
    assert!(numbers.accept(0) && !numbers.accept(0));
    assert_eq!(bench.take(PARENT, &result), (Verdict::Taken, Some("replay")));
    let mut forged = result;
    *forged.last_mut().unwrap() ^= 1;
    assert_eq!(bench.take(PARENT, &forged), (Verdict::Taken, Some("bad_tag")));
}

/// The kernel and three threads of user space get the same packets at the same time.
#[test]
fn several_processors_accept_each_number_once() {
    const PACKETS: u32 = 4000;
    let Some(mut bench) = Bench::new() else { return };
    let mut child = SealedHop::to_parent(keys(1, 0));
    let packets: Vec<_> = (0..PACKETS)
        .map(|number| sealed(&mut child, packet(Kind::Contribution, 1, 0, number, 1)))
        .collect();
    let (numbers, accepted) = (bench.numbers[0].clone(), AtomicU64::new(0));
    let by_kernel = std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let own = (0..PACKETS).filter(|&number| numbers.accept(number.into())).count();
                accepted.fetch_add(own as u64, Ordering::Relaxed);
            });
        }
        packets.iter().rev().filter(|packet| bench.take(0, packet).1.is_none()).count()
    });
    assert_eq!(accepted.into_inner() + by_kernel as u64, u64::from(PACKETS));
    let sent: Vec<u64> = std::thread::scope(|scope| {
        let draw = || (0..1000).map(|_| numbers.next()).collect::<Vec<_>>();
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(draw)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let mut distinct = sent.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), sent.len());
}

#[test]
fn keys_of_another_mac_are_left_to_user_space() {
    let Some(mut bench) = Bench::new() else { return };
    let keys = vec![HopKeys::new(Mac::Aegis, [1; 32]); 3];
    let refused = bench.plane.numbers(&lease(1, 64), &keys).unwrap_err();
    assert!(refused.to_string().contains("Aegis"), "{refused}");
    let refused = bench.plane.numbers(&lease(1, 64), &keys[..2]).unwrap_err();
    assert_eq!(refused.to_string(), "keys of 2 hops for 3 neighbours");
}
