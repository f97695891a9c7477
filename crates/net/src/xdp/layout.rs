//! Binary layout of the in-kernel program's data: the structures of hw/xdp/state.h.

use std::net::{Ipv4Addr, SocketAddrV4};

use netsum_proto::atp::{Counters, Members, Policy, SwitchConfig};
use netsum_proto::registry::PoolCounters;
use netsum_proto::{DropReason, Lease};
use netsum_wire::atp::HEADER_LEN;
use netsum_wire::nh;
use netsum_wire::tag::{JobKey, Mac};
use netsum_wire::{JobId, TreeId};

use super::hops::Hop;

/// Largest payload of a slot in the kernel.
pub(super) const ROW_BYTES: u16 = 1408;
/// Bytes before the payload of an unsealed packet in a frame: Ethernet, IPv4, UDP and our header.
pub(super) const PAYLOAD_OFFSET: usize = PACKET_OFFSET + HEADER_LEN;
/// Bytes before our header.
pub(super) const PACKET_OFFSET: usize = 42;
/// Maximum number of leases.
pub(super) const MAX_LEASES: u32 = 1024;
/// Child number that represents the parent.
pub(super) const PARENT: u16 = 0xffff;
/// Replaces a lease's number for a job that user space serves.
pub(super) const IN_USER_SPACE: u32 = u32::MAX;

/// `struct lease` up to its endpoints, one endpoint, and all of it.
const LEASE_HEAD: usize = 64;
const ENDPOINT: usize = 64;
const MAX_FAN_IN: usize = 32;
/// The same, as the size of a map.
pub(super) const MAX_CHILDREN: u32 = 32;

const AT_SERVER: u8 = 1;
const FAN_OUT: u8 = 2;
const HAS_KEYS: u8 = 4;
const POOL: u8 = 8;

/// Reasons in the order of `enum drop`.
pub(super) const REASONS: [DropReason; 21] = [
    DropReason::TruncatedHeader,
    DropReason::UnknownKind,
    DropReason::UnknownFormat,
    DropReason::PayloadLength,
    DropReason::EmptyFragment,
    DropReason::Reserved,
    DropReason::Members,
    DropReason::BadTag,
    DropReason::Replay,
    DropReason::UnknownSender,
    DropReason::NoLease,
    DropReason::StaleEpoch,
    DropReason::FutureEpoch,
    DropReason::NotANeighbour,
    DropReason::WrongDirection,
    DropReason::TooLarge,
    DropReason::BeyondWindow,
    DropReason::TooOld,
    DropReason::Duplicate,
    DropReason::Mismatch,
    DropReason::Busy,
];

/// `struct config`.
pub(super) fn config(own: SocketAddrV4, switch: &SwitchConfig) -> Vec<u8> {
    let (policy, patience_ns) = match switch.policy {
        Policy::Partition => (0u16, 0),
        Policy::FirstCome => (1, 0),
        Policy::Preempt { patience_ns } => (2, patience_ns),
    };
    let mut bytes = own.ip().octets().to_vec();
    bytes.extend(own.port().to_be_bytes());
    bytes.extend(policy.to_ne_bytes());
    bytes.extend(patience_ns.to_ne_bytes());
    bytes.extend(switch.slots.to_ne_bytes());
    bytes.extend([0; 4]);
    bytes
}

/// `struct shared`.
pub(super) fn shared(now_ns: u64) -> Vec<u8> {
    let mut bytes = now_ns.to_ne_bytes().to_vec();
    bytes.extend([0; 8]);
    bytes
}

/// `next_row` of `struct shared`.
pub(super) fn next_row(shared: &[u8]) -> u32 {
    u32_at(shared, 8)
}

/// Whom and what a lease is for, in `struct lease`.
#[derive(Clone, Copy, Debug, Default)]
struct Terms {
    flags: u8,
    fragment_bytes: u16,
    /// Window, or slots of a pool.
    window: u16,
    rack: u8,
    fan_in: u8,
    priority: u8,
    guaranteed: u32,
    /// Most slots, or the first round of a pool.
    limit: u32,
    workers: [u8; MAX_FAN_IN],
}

impl Terms {
    /// `None`: the kernel has no such leases.
    fn new<P>(lease: &Lease<P>, round: u32) -> Option<Terms> {
        let mut terms = Terms::default();
        match lease {
            Lease::Slots(lease) => {
                let claim = &lease.claim;
                (terms.fragment_bytes, terms.window) = (lease.fragment_bytes, lease.window);
                (terms.priority, terms.guaranteed) = (claim.priority, claim.guaranteed);
                terms.limit = claim.limit;
                match &lease.members {
                    Members::Rack { rack, racks, .. } => {
                        (terms.rack, terms.fan_in) = (*rack, *racks);
                    }
                    Members::Server { racks } => {
                        (terms.flags, terms.fan_in) = (AT_SERVER, racks.len() as u8);
                        let bytes = terms.workers.iter_mut();
                        racks.iter().zip(bytes).for_each(|(rack, byte)| *byte = rack.workers);
                    }
                }
            }
            Lease::Pool(lease) => {
                (terms.fragment_bytes, terms.window) = (lease.fragment_bytes, lease.slots);
                (terms.flags, terms.limit) = (POOL, round);
            }
            Lease::Tree(_) | Lease::Server(_) => return None,
        }
        Some(terms)
    }
}

/// Where a lease's packets go in the kernel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'a> {
    /// The switch's own address.
    pub(super) own: SocketAddrV4,
    /// First slot.
    pub(super) first: u32,
    /// The next hop to each neighbour, in the order of [`Lease::neighbours`].
    pub(super) hops: &'a [Hop],
    /// If packets are sealed, the numbers of their keys in the same order.
    pub(super) sealed: Option<&'a [u32]>,
    /// Whether results are replicated in the kernel.
    pub(super) fan_out: bool,
}

/// `struct lease`. `round`: the first of a pool.
pub(super) fn lease(lease: &Lease<SocketAddrV4>, round: u32, place: &Place<'_>) -> Option<Vec<u8>> {
    let terms = Terms::new(lease, round)?;
    let Place { own, first, hops, sealed, fan_out } = *place;
    let (key, children) = (lease.key(), lease.children());
    let everyone = u32::MAX >> (32 - children);
    let flag = |set: bool, flag: u8| if set { flag } else { 0 };
    let flags = terms.flags | flag(fan_out, FAN_OUT) | flag(sealed.is_some(), HAS_KEYS);
    let mut bytes = Vec::with_capacity(LEASE_HEAD + ENDPOINT * (MAX_FAN_IN + 1));
    bytes.extend(key.job.0.to_ne_bytes());
    bytes.extend(everyone.to_ne_bytes());
    bytes.extend(key.epoch.0.to_ne_bytes());
    bytes.extend(terms.window.to_ne_bytes());
    bytes.extend(terms.fragment_bytes.to_ne_bytes());
    bytes.extend([key.tree.0, flags, children as u8, terms.rack, terms.fan_in, terms.priority]);
    bytes.extend(terms.guaranteed.to_ne_bytes());
    bytes.extend(terms.limit.to_ne_bytes());
    bytes.extend(first.to_ne_bytes());
    bytes.extend(terms.workers);
    let sealed = sealed.unwrap_or_default().iter().copied().chain(std::iter::repeat(0));
    let each = lease.neighbours().into_iter().zip(hops).zip(sealed);
    let endpoints: Vec<Vec<u8>> = each
        .map(|((neighbour, hop), sealed)| {
            let mut endpoint = endpoint(own, neighbour, hop);
            endpoint.extend(sealed.to_ne_bytes());
            endpoint.resize(ENDPOINT, 0);
            endpoint
        })
        .collect();
    // The parent comes first there.
    let (children, parent) = endpoints.split_at(children);
    bytes.extend(parent.first().map_or(&[0; ENDPOINT][..], Vec::as_slice));
    bytes.extend(children.concat());
    bytes.resize(LEASE_HEAD + ENDPOINT * (MAX_FAN_IN + 1), 0);
    Some(bytes)
}

/// `struct endpoint` up to its hop: the headers before a packet to a neighbour.
fn endpoint(own: SocketAddrV4, to: SocketAddrV4, hop: &Hop) -> Vec<u8> {
    let mut frame = Vec::with_capacity(ENDPOINT);
    frame.extend(hop.mac);
    frame.extend(hop.own_mac);
    frame.extend([0x08, 0x00]);
    // Version and length, DSCP 56 with ECT(0), total length, no identification, "do not fragment", 64 hops, UDP.
    frame.extend([0x45, 0xe2, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0]);
    frame.extend(own.ip().octets());
    frame.extend(to.ip().octets());
    frame.extend(own.port().to_be_bytes());
    frame.extend(to.port().to_be_bytes());
    // Length, and no checksum: sums have none to start from, and IPv4 allows it.
    frame.extend([0; 4]);
    let words = frame[14..34].as_chunks::<2>().0;
    let ip_sum: u32 = words.iter().map(|w| u32::from(u16::from_ne_bytes(*w))).sum();
    frame.resize(48, 0);
    frame.extend(hop.ifindex.to_ne_bytes());
    frame.extend(ip_sum.to_ne_bytes());
    frame
}

/// `struct hop_key`. `None`: a key of another MAC.
pub(super) fn hop_key(key: &JobKey) -> Option<Vec<u8>> {
    if key.mac() != Mac::Nh {
        return None;
    }
    let key = nh::Key::new(key.secret());
    let words = key.words(ROW_BYTES.into())?;
    Some(key.finish().iter().chain(words).flat_map(|word| word.to_ne_bytes()).collect())
}

/// `struct sender_key`.
pub(super) fn sender_key(from: SocketAddrV4, job: JobId, tree: TreeId) -> [u8; 12] {
    let ([a, b, c, d], [p, q], [j, k, l, m]) =
        (from.ip().octets(), from.port().to_be_bytes(), job.0.to_be_bytes());
    [a, b, c, d, p, q, tree.0, 0, j, k, l, m]
}

/// Empty cell.
pub(super) const NO_GUESS: [u8; 4] = [0; 4];
/// Number of cells, as a power of two.
const CELL_BITS: u32 = 14;

/// `cell_of`: the cell of a sender.
pub(super) fn cell(from: SocketAddrV4, job: JobId, tree: TreeId) -> [u8; 4] {
    let address = u32::from_ne_bytes(from.ip().octets());
    let port = u16::from_ne_bytes(from.port().to_be_bytes());
    let job = u32::from_ne_bytes(job.0.to_be_bytes());
    let mixed = address ^ job.wrapping_mul(0x85eb_ca6b) ^ u32::from(port) << 8 ^ u32::from(tree.0);
    (mixed.wrapping_mul(0x9e37_79b1) >> (32 - CELL_BITS)).to_ne_bytes()
}

/// Content of a cell.
pub(super) fn guess(lease: u32, child: u16) -> [u8; 4] {
    ((lease << 16 | u32::from(child)) + 1).to_ne_bytes()
}

/// `struct known_key`.
pub(super) fn known_key(from: SocketAddrV4) -> [u8; 8] {
    let ([a, b, c, d], [p, q]) = (from.ip().octets(), from.port().to_be_bytes());
    [a, b, c, d, p, q, 0, 0]
}

/// `struct job_key`.
pub(super) fn job_key(job: JobId, tree: TreeId) -> [u8; 8] {
    join(job.0.to_be_bytes(), u32::from(tree.0).to_ne_bytes())
}

/// `struct egress_key`.
pub(super) fn egress_key(ifindex: u32, job: JobId, tree: TreeId) -> Vec<u8> {
    [&ifindex.to_ne_bytes()[..], &job_key(job, tree)].concat()
}

/// `struct sender`.
pub(super) fn sender(lease: u32, child: u16) -> [u8; 4] {
    let ([a, b], [c, d]) = ((lease as u16).to_ne_bytes(), child.to_ne_bytes());
    [a, b, c, d]
}

/// `struct lease_state`.
pub(super) fn lease_state(passed: u32, now_ns: u64) -> Vec<u8> {
    let mut bytes = passed.to_ne_bytes().to_vec();
    bytes.extend([0; 4]);
    bytes.extend(now_ns.to_ne_bytes());
    bytes
}

/// Slots held and time of the last packet, from `struct lease_state`.
pub(super) fn held_and_heard(state: &[u8]) -> (u32, u64) {
    let last_seen = state[8..].first_chunk().map_or(0, |&b| u64::from_ne_bytes(b));
    (u32_at(state, 4), last_seen)
}

/// `struct order`: a sweep of rows `from..to`.
pub(super) fn order(from: u32, to: u32, older_than_ns: u64, release: Option<[u8; 8]>) -> Vec<u8> {
    let mut bytes = from.to_ne_bytes().to_vec();
    bytes.extend(to.to_ne_bytes());
    bytes.extend(older_than_ns.to_ne_bytes());
    bytes.extend(u32::from(release.is_some()).to_ne_bytes());
    bytes.extend(release.unwrap_or_default());
    bytes.extend([0; 4]);
    bytes
}

/// Figures of `enum counter`.
const COUNTERS: usize = 11;

/// `struct counters`, of one processor or of several together.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LeaseCounters([u64; COUNTERS]);

impl LeaseCounters {
    /// Adds those of one processor.
    pub(super) fn add(&mut self, bytes: &[u8]) {
        for (sum, value) in self.0.iter_mut().zip(bytes.as_chunks().0) {
            *sum += u64::from_ne_bytes(*value);
        }
    }

    pub(super) fn of_slots(self) -> Counters {
        let [
            added,
            completed,
            passed,
            collisions,
            duplicates,
            released,
            expired,
            preempted,
            results,
            ..,
        ] = self.0;
        Counters {
            added,
            completed,
            passed,
            collisions,
            duplicates,
            released,
            expired,
            preempted,
            results,
        }
    }

    pub(super) fn of_pool(self) -> PoolCounters {
        let [added, completed, _, _, duplicates, .., answered, mismatches] = self.0;
        PoolCounters { added, completed, duplicates, answered, mismatches }
    }
}

/// `struct rows`.
pub(super) fn rows(from: u32, to: u32) -> Vec<u8> {
    [from.to_ne_bytes(), to.to_ne_bytes()].concat()
}

/// Destination of a frame.
pub(super) fn destination(frame: &[u8]) -> Option<SocketAddrV4> {
    let head = frame.first_chunk::<PACKET_OFFSET>()?;
    let ip = Ipv4Addr::new(head[30], head[31], head[32], head[33]);
    Some(SocketAddrV4::new(ip, u16::from_be_bytes([head[36], head[37]])))
}

/// Destination of a frame that the program made, and the packet in it.
pub(super) fn split(frame: &[u8]) -> Option<(SocketAddrV4, &[u8])> {
    let to = destination(frame)?;
    let datagram = usize::from(u16::from_be_bytes([frame[38], frame[39]]));
    Some((to, frame.get(PACKET_OFFSET..34 + datagram)?))
}

/// A frame with `packet`, as a neighbour sends it. For tests and measurements.
pub(super) fn frame(from: SocketAddrV4, to: SocketAddrV4, ce: bool, packet: &[u8]) -> Vec<u8> {
    let hop = Hop { ifindex: 0, mac: [2; 6], own_mac: [4; 6] };
    let mut frame = endpoint(from, to, &hop);
    frame.truncate(PACKET_OFFSET);
    frame[15] |= if ce { 3 } else { 0 };
    frame[16..18].copy_from_slice(&(28 + packet.len() as u16).to_be_bytes());
    frame[38..40].copy_from_slice(&(8 + packet.len() as u16).to_be_bytes());
    frame.extend_from_slice(packet);
    frame
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes[at..].first_chunk().map_or(0, |&b| u32::from_ne_bytes(b))
}

fn join(a: [u8; 4], b: [u8; 4]) -> [u8; 8] {
    let ([a, b, c, d], [e, f, g, h]) = (a, b);
    [a, b, c, d, e, f, g, h]
}
