//! Sealed packets of `panama` over real sockets: sums under keys of hops, and packets of those who lack them.

use std::collections::BTreeSet;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use common::*;
use netsum_net::switch::{SwitchDriver, SwitchSnapshot};
use netsum_net::worker::{Event, WorkerPlan};
use netsum_proto::panama::{Lease, WorkerConfig};
use netsum_proto::{CongestionRule, Hop, Refusal, Secrets};
use netsum_wire::panama::{HEADER_LEN, Header, Kind, NO_CAP};
use netsum_wire::seal::{EXTENSION_LEN, HopKeys};
use netsum_wire::tag::Mac;
use netsum_wire::{Dtype, Epoch, Format, Rank, ReduceOp, TreeId, Vid};

mod common;

const FORMAT: Format = Format { dtype: Dtype::F32, op: ReduceOp::Sum };
const NUMEL: usize = 100_000;

/// The keys of a rank's hop, or above the ranks of a switch's.
fn keys(mac: Mac, epoch: u16, child: usize) -> HopKeys {
    let secret = std::array::from_fn(|i| (i + 64 * child + 7 * usize::from(epoch)) as u8);
    HopKeys::new(mac, secret)
}

fn install(switch: &SwitchDriver, lease: Lease<SocketAddr>, keys: Vec<HopKeys>) {
    switch.install_with(lease, Some(keys)).unwrap();
}

fn begin(
    members: &[Member],
    rank: usize,
    epoch: u16,
    switch: SocketAddr,
    secrets: Option<Secrets>,
) {
    let config = WorkerConfig {
        job: JOB,
        epoch: Epoch(epoch),
        rank: Rank(rank as u32),
        ranks: members.len() as u32,
        trees: 1,
        copies: false,
        window_max: WINDOW,
        fragment_bytes: FRAGMENT_BYTES,
        congestion: CongestionRule::PerBranch,
        partial: false,
    };
    let plan = WorkerPlan { config: config.into(), switches: vec![switch] };
    members[rank].driver.begin_with(plan, secrets);
}

/// A root over two racks of two ranks each.
struct Fabric {
    mac: Mac,
    root: SwitchDriver,
    racks: [SwitchDriver; 2],
    members: Vec<Member>,
}

impl Fabric {
    fn new(mac: Mac) -> Fabric {
        let fabric =
            Fabric { mac, root: switch(), racks: [switch(), switch()], members: members(4) };
        let address = |rack: usize| fabric.racks[rack].local_addr();
        let children = [(address(0), 0b11), (address(1), 0b1100)];
        let of_racks = [4, 5].map(|switch| keys(mac, 1, switch)).to_vec();
        install(&fabric.root, lease(1, 0, &children, None), of_racks);
        for (rack, switch) in fabric.racks.iter().enumerate() {
            let ranks = [2 * rack, 2 * rack + 1];
            let child = |rank: usize| (fabric.members[rank].driver.local_addr(), 1 << rank);
            let lease = lease(1, 0, &ranks.map(child), Some(fabric.root.local_addr()));
            let hops = [ranks[0], ranks[1], 4 + rack].map(|child| keys(mac, 1, child));
            install(switch, lease, hops.to_vec());
        }
        fabric
    }

    fn begin(&self) {
        for rank in 0..4 {
            self.begin_with(rank, Some(vec![keys(self.mac, 1, rank)]));
        }
    }

    fn begin_with(&self, rank: usize, secrets: Option<Secrets>) {
        begin(&self.members, rank, 1, self.racks[rank / 2].local_addr(), secrets);
    }

    /// Sums once and compares every bit.
    fn sum(&self, id: u64) {
        let inputs = |rank| operation(id, FORMAT, &numbers(Dtype::F32, rank, NUMEL));
        let buffers: Vec<_> =
            self.members.iter().enumerate().map(|(rank, m)| submit(m, inputs(rank))).collect();
        self.members.iter().for_each(|member| wait_done(member, id));
        // Racks of two, then the root: the same tree of additions as that of a star of four.
        let expected = expected(FORMAT, 4, NUMEL);
        assert!(buffers.iter().all(|buffer| bytes_of(buffer) == expected));
    }

    fn snapshots(&self) -> Vec<SwitchSnapshot> {
        let all = self.racks.iter().chain([&self.root]);
        all.map(|switch| switch.snapshot().unwrap()).collect()
    }
}

fn drops(snapshot: &SwitchSnapshot, reason: &str) -> u64 {
    snapshot.drops.iter().find(|(name, _)| *name == reason).map_or(0, |(_, count)| *count)
}

#[test]
fn sums_are_exact_under_keys_of_hops() {
    for mac in [Mac::SipHash, Mac::Aegis, Mac::AegisAead] {
        let fabric = Fabric::new(mac);
        fabric.begin();
        (0..3).for_each(|id| fabric.sum(id));
        for snapshot in fabric.snapshots() {
            assert_eq!((drops(&snapshot, "bad_tag"), drops(&snapshot, "replay")), (0, 0));
        }
    }
}

fn header(kind: Kind, vid: u32) -> Header {
    Header {
        kind,
        resent: false,
        congested_down: false,
        tree: TreeId(0),
        format: FORMAT,
        job: JOB,
        vid: Vid(vid),
        chunk: 0x5eed,
        epoch: Epoch(1),
        window_cap: NO_CAP,
        n_elems: if (kind as u8) <= Kind::Result as u8 { 352 } else { 0 },
        marks: 0,
        missing: 0,
        parties: netsum_wire::Parties::All,
        empty: false,
        asks: false,
        others: 0,
    }
}

fn unsealed(kind: Kind, vid: u32) -> Vec<u8> {
    let header = header(kind, vid);
    let mut packet = vec![0; HEADER_LEN];
    header.encode(packet.first_chunk_mut().unwrap());
    packet.resize(HEADER_LEN + header.payload_len(), 0x40);
    packet
}

fn sealed(hop: &mut Hop, kind: Kind, vid: u32) -> Vec<u8> {
    let packet = unsealed(kind, vid);
    hop.sealed(&packet)
}

/// Waits until the switch has dropped `count` packets for that reason.
fn wait_dropped(switch: &SwitchDriver, reason: &str, count: u64) {
    let end = Instant::now() + PATIENCE;
    while drops(&switch.snapshot().unwrap(), reason) < count {
        assert!(Instant::now() < end, "{:?}", switch.snapshot().unwrap().drops);
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Rank 0 is played by the test, from the address that the lease names.
#[test]
fn packets_without_the_hops_key_change_nothing_although_their_address_is_right() {
    let (mac, switch, members) = (Mac::Aegis, switch(), members(1));
    let socket = UdpSocket::bind((LOCAL, 0)).unwrap();
    let own = socket.local_addr().unwrap();
    let children = [(own, 1), (members[0].driver.local_addr(), 2)];
    let hops = [0, 1].map(|rank| keys(mac, 1, rank)).to_vec();
    install(&switch, lease(1, 0, &children, None), hops);
    let send = |packet: &[u8]| _ = socket.send_to(packet, switch.local_addr()).unwrap();

    let own_hop = || Hop::to_parent(keys(mac, 1, 0));
    let kinds = [Kind::Contribution, Kind::Acknowledgement, Kind::Fin, Kind::Mismatch];
    for kind in kinds {
        // No tag; another rank's key; a key of another epoch; the key of the other direction.
        send(&unsealed(kind, 0));
        send(&sealed(&mut Hop::to_parent(keys(mac, 1, 1)), kind, 0));
        send(&sealed(&mut Hop::to_parent(keys(mac, 2, 0)), kind, 0));
        send(&sealed(&mut Hop::to_child(keys(mac, 1, 0)), kind, 0));
        let mut changed = sealed(&mut own_hop(), kind, 0);
        *changed.last_mut().unwrap() ^= 1;
        send(&changed);
    }
    wait_dropped(&switch, "bad_tag", 5 * kinds.len() as u64);
    let tree = &switch.snapshot().unwrap().trees[0];
    assert_eq!(tree.counters.contributions + tree.counters.mismatches, 0, "{tree:?}");

    // The packet of the rank itself counts, once.
    let mut hop = own_hop();
    let packet = sealed(&mut hop, Kind::Contribution, 0);
    (0..3).for_each(|_| send(&packet));
    wait_dropped(&switch, "replay", 2);
    assert_eq!(switch.snapshot().unwrap().trees[0].counters.contributions, 1);
}

#[test]
fn a_worker_without_keys_and_a_switch_with_keys_do_not_talk() {
    let fabric = Fabric::new(Mac::Aegis);
    (0..3).for_each(|rank| {
        fabric.begin_with(rank, Some(vec![keys(Mac::Aegis, 1, rank)]));
    });
    fabric.begin_with(3, None);
    let op = |rank| operation(0, FORMAT, &numbers(Dtype::F32, rank, 64));
    let _buffers: Vec<_> =
        fabric.members.iter().enumerate().map(|(rank, m)| submit(m, op(rank))).collect();
    wait_dropped(&fabric.racks[1], "bad_tag", 1);
    assert_eq!(fabric.root.snapshot().unwrap().trees[0].counters.released, 0);
}

#[test]
fn a_key_that_comes_after_the_plan_is_taken_into_use() {
    let fabric = Fabric::new(Mac::Aegis);
    (0..4).for_each(|rank| fabric.begin_with(rank, Some(Vec::new())));
    let op = |rank| operation(0, FORMAT, &numbers(Dtype::F32, rank, NUMEL));
    let buffers: Vec<_> =
        fabric.members.iter().enumerate().map(|(rank, m)| submit(m, op(rank))).collect();
    wait_dropped(&fabric.racks[0], "bad_tag", 1);
    wait_dropped(&fabric.racks[1], "bad_tag", 1);
    for (rank, member) in fabric.members.iter().enumerate() {
        let secrets = || vec![keys(Mac::Aegis, 1, rank)];
        member.driver.secure(secrets());
        // Again changes nothing: packet numbers go on.
        member.driver.secure(secrets());
    }
    fabric.members.iter().for_each(|member| wait_done(member, 0));
    let expected = expected(FORMAT, 4, NUMEL);
    assert!(buffers.iter().all(|buffer| bytes_of(buffer) == expected));
    assert!(fabric.snapshots().iter().all(|snapshot| drops(snapshot, "replay") == 0));
}

/// A star of three ranks, of which the test plays rank 0 with its key.
struct Hostile {
    mac: Mac,
    switch: SwitchDriver,
    /// `members[0]` is not used.
    members: Vec<Member>,
    socket: UdpSocket,
    hop: Hop,
}

impl Hostile {
    fn new() -> Hostile {
        let (mac, switch, members) = (Mac::Aegis, switch(), members(3));
        let socket = UdpSocket::bind((LOCAL, 0)).unwrap();
        let of = |rank: usize| members[rank].driver.local_addr();
        let children = [(socket.local_addr().unwrap(), 1), (of(1), 2), (of(2), 4)];
        let hops = [0, 1, 2].map(|rank| keys(mac, 1, rank)).to_vec();
        install(&switch, lease(1, 0, &children, None), hops);
        Hostile { mac, switch, members, socket, hop: Hop::to_parent(keys(mac, 1, 0)) }
    }

    /// The honest ranks sum one fragment.
    fn submit(&self, fingerprint: u32) {
        for rank in [1, 2] {
            let secrets = vec![keys(self.mac, 1, rank)];
            begin(&self.members, rank, 1, self.switch.local_addr(), Some(secrets));
            let mut sum = operation(0, FORMAT, &numbers(Dtype::F32, rank, 352));
            sum.submission.fingerprint = fingerprint;
            submit(&self.members[rank], sum);
        }
    }

    fn send(&mut self, header: &Header, value: u8) {
        let mut head = vec![0; HEADER_LEN + EXTENSION_LEN];
        header.encode(head.first_chunk_mut().unwrap());
        let payload = vec![value; header.payload_len()];
        self.hop.seal(&mut head, &payload);
        self.socket.send_to(&[head, payload].concat(), self.switch.local_addr()).unwrap();
    }

    fn wait_contributions(&self, count: u64) {
        let end = Instant::now() + PATIENCE;
        while self.switch.snapshot().unwrap().trees[0].counters.contributions < count {
            assert!(Instant::now() < end, "{:?}", self.switch.snapshot().unwrap());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits until each honest rank has learned whose packets were refused.
    fn wait_refused(&self, expected: &[(u64, Refusal)]) {
        let (expected, end) = (expected.iter().copied().collect(), Instant::now() + PATIENCE);
        for member in &self.members[1..] {
            let mut told = BTreeSet::new();
            while told != expected {
                match member.events.recv_deadline(end) {
                    Ok(Event::Refused { id: 0, ranks, refusal }) => {
                        _ = told.insert((ranks, refusal))
                    }
                    Ok(Event::Mismatch { id: 0, .. } | Event::Silent { .. }) => {}
                    other => panic!("{other:?} after {told:?}"),
                }
            }
        }
    }
}

#[test]
fn a_member_that_contributes_to_something_else_is_known_by_its_packets() {
    let mut late = Hostile::new();
    late.submit(1);
    late.wait_contributions(2);
    late.send(&header(Kind::Contribution, 0), 0x40);
    late.wait_refused(&[(0b001, Refusal::Unlike)]);

    let mut early = Hostile::new();
    early.send(&header(Kind::Contribution, 0), 0x40);
    early.wait_contributions(1);
    // It cannot hide among those that were refused.
    let claim = Header { missing: 1, ..header(Kind::Mismatch, 0) };
    early.send(&claim, 0);
    early.submit(1);
    early.wait_refused(&[(0b010, Refusal::LikeOurs), (0b100, Refusal::LikeOurs)]);
    wait_dropped(&early.switch, "wrong_direction", 1);
}

#[test]
fn a_member_that_contributes_twice_with_different_values_is_named() {
    let mut hostile = Hostile::new();
    hostile.send(&header(Kind::Contribution, 0), 0x40);
    hostile.wait_contributions(1);
    hostile.send(&header(Kind::Contribution, 0), 0x40);
    wait_dropped(&hostile.switch, "duplicate", 1);
    hostile.send(&header(Kind::Contribution, 0), 0x41);
    wait_dropped(&hostile.switch, "contradiction", 1);
    // The others call the operation later, and ask why it does not end.
    hostile.submit(0x5eed);
    hostile.wait_refused(&[(0b001, Refusal::Changed)]);
}
