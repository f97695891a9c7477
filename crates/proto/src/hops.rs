//! Sealed packets of one node: each hop of a tree has a key and a sequence of packet numbers per direction.
//!
//! A node accepts each number once and none that is far behind the highest (RFC 4303, section 3.4.3), so a recorded
//! packet has no effect, whatever happened in between. Keys are of one epoch: packets of others do not open. A child's
//! key is known to the child and its parent alone, so no other rank or switch can send in the child's name.

mod batch;

use std::sync::Arc;

use netsum_wire::seal::{self, FourPackets, HopKeys, SealKey};
use netsum_wire::tag::JobKey;
use netsum_wire::{JobId, TreeId};
use rustc_hash::{FxHashMap, FxHashSet};

use self::batch::Lanes;
pub use self::batch::{AT_ONCE, Checked, CheckedAhead, Unsealed};
use crate::lease::LeaseKey;
use crate::{DropReason, Lease, PortId};

/// The keys under which packets are sealed, one pair per hop. Of a lease: in the order of [`Lease::neighbours`],
/// children before the parent. Of a worker's plan: by tree.
pub type Secrets = Vec<HopKeys>;

/// Packets that may be overtaken by later ones: more than any queue of a path holds.
const REPLAY_WINDOW: u64 = 4096;
const WORD: u64 = 64;
const WORDS: usize = (REPLAY_WINDOW / WORD) as usize;

/// The numbers that were accepted, of the last `REPLAY_WINDOW` (a ring of bits as in RFC 6479).
#[derive(Clone, Debug)]
struct ReplayWindow {
    /// One past the highest accepted number.
    end: u64,
    accepted: Box<[u64; WORDS]>,
}

impl ReplayWindow {
    fn new() -> ReplayWindow {
        ReplayWindow { end: 0, accepted: Box::new([0; WORDS]) }
    }

    /// Accepts a number; false if it was accepted before, or may have been.
    fn accept(&mut self, number: u64) -> bool {
        // A word of the ring is cleared when the window reaches it, so the oldest word counts as left behind.
        if number / WORD + WORDS as u64 <= self.end.saturating_sub(1) / WORD {
            return false;
        }
        if number >= self.end {
            let reached = self.end.div_ceil(WORD)..=number / WORD;
            reached.take(WORDS).for_each(|word| self.accepted[word as usize % WORDS] = 0);
            self.end = number.saturating_add(1);
        }
        let word = &mut self.accepted[(number / WORD) as usize % WORDS];
        let bit = 1 << (number % WORD);
        let new = *word & bit == 0;
        *word |= bit;
        new
    }
}

/// The packet numbers of a hop whose packets somebody else handles, too: the in-kernel switch.
pub trait SharedNumbers: std::fmt::Debug + Send + Sync {
    /// The number of the next packet to be sent.
    fn next(&self) -> u64;

    /// Accepts the number of a received packet; false if it was accepted before, or may have been.
    fn accept(&self, number: u64) -> bool;
}

/// The packet numbers of a hop.
#[derive(Clone, Debug)]
enum Numbers {
    Own { next: u64, window: ReplayWindow },
    Shared(Arc<dyn SharedNumbers>),
}

impl Numbers {
    fn new() -> Numbers {
        Numbers::Own { next: 0, window: ReplayWindow::new() }
    }

    #[inline]
    fn next(&mut self) -> u64 {
        match self {
            Numbers::Own { next, .. } => {
                *next += 1;
                *next - 1
            }
            Numbers::Shared(shared) => shared.next(),
        }
    }

    #[inline]
    fn accept(&mut self, number: u64) -> bool {
        match self {
            Numbers::Own { window, .. } => window.accept(number),
            Numbers::Shared(shared) => shared.accept(number),
        }
    }

    /// Shares them, unless some were used without that. Returns whether they are shared.
    fn share(&mut self, with: Arc<dyn SharedNumbers>) -> bool {
        match self {
            Numbers::Own { next: 0, window } if window.end == 0 => {
                *self = Numbers::Shared(with);
                true
            }
            Numbers::Own { .. } => false,
            Numbers::Shared(shared) => std::ptr::addr_eq(Arc::as_ptr(shared), Arc::as_ptr(&with)),
        }
    }
}

/// One end of a hop.
#[derive(Clone, Debug)]
pub struct Hop {
    /// Of the packets sent, and of those received.
    keys: [JobKey; 2],
    send: SealKey,
    receive: SealKey,
    numbers: Numbers,
    /// Where several packets are sealed and opened at once.
    lanes: Option<Lanes>,
}

impl Hop {
    /// The child's end.
    pub fn to_parent(keys: HopKeys) -> Hop {
        Hop::new(keys.up, keys.down)
    }

    /// The parent's end.
    pub fn to_child(keys: HopKeys) -> Hop {
        Hop::new(keys.down, keys.up)
    }

    fn new(send: JobKey, receive: JobKey) -> Hop {
        Hop {
            keys: [send, receive],
            send: SealKey::new(&send),
            receive: SealKey::new(&receive),
            numbers: Numbers::new(),
            lanes: None,
        }
    }

    /// Seals a packet to be sent. `head`: as for [`SealKey::seal`].
    #[inline]
    pub fn seal(&mut self, head: &mut [u8], payload: &[u8]) {
        self.send.seal(self.numbers.next(), head, payload);
    }

    /// Like [`Hop::seal`], of the last packet in `out`, which begins at `start`. Returns whether the payload has gone to
    /// `out`, encrypted.
    #[inline]
    pub fn seal_last(&mut self, out: &mut Vec<u8>, start: usize, payload: &[u8]) -> bool {
        self.send.seal_last(self.numbers.next(), out, start, payload)
    }

    /// A sealed packet, from a whole unsealed one.
    pub fn sealed(&mut self, packet: &[u8]) -> Vec<u8> {
        let mut sealed = seal::with_room(packet);
        sealed.resize(sealed.len() + self.send.trailer_len(), 0);
        self.seal(&mut sealed, &[]);
        sealed
    }

    /// Checks a packet that was received over the hop, and decrypts it. Errors: `BadTag`, `Replay`.
    #[inline]
    pub fn open(&mut self, packet: &mut [u8]) -> Result<(), DropReason> {
        let number = self.receive.open(packet);
        self.accept(number)
    }

    #[inline]
    fn accept(&mut self, number: Option<u64>) -> Result<(), DropReason> {
        let number = number.ok_or(DropReason::BadTag)?;
        if self.numbers.accept(number) { Ok(()) } else { Err(DropReason::Replay) }
    }
}

/// The tags of a worker's packets in one epoch.
#[derive(Clone, Debug)]
pub enum WorkerTags {
    /// None: the fabric is trusted.
    None,
    /// Sealed packets, by tree. None: the keys have not arrived; until then nothing is accepted.
    Hops(Vec<Hop>),
}

impl WorkerTags {
    /// Tags of a plan under `secrets`.
    pub fn new(secrets: Option<Secrets>) -> WorkerTags {
        match secrets {
            Some(keys) => WorkerTags::Hops(keys.into_iter().map(Hop::to_parent).collect()),
            None => WorkerTags::None,
        }
    }

    /// Whether packets are sealed.
    #[inline]
    pub fn are_sealed(&self) -> bool {
        matches!(self, WorkerTags::Hops(hops) if !hops.is_empty())
    }

    /// Takes keys into use that have arrived after the plan. In other cases it changes nothing: packet numbers must not
    /// start again, and packets of a trusted fabric stay as they are.
    pub fn secure(&mut self, secrets: Secrets) {
        if matches!(self, WorkerTags::Hops(hops) if hops.is_empty()) {
            *self = WorkerTags::new(Some(secrets));
        }
    }

    /// Checks, and decrypts, a packet from the parent in a tree before the machine handles it. Errors: `BadTag`, `Replay`.
    #[inline]
    pub fn open(&mut self, tree: TreeId, packet: &mut [u8]) -> Result<(), DropReason> {
        let good = match self {
            WorkerTags::None => !seal::is_sealed(packet),
            WorkerTags::Hops(hops) => match hops.get_mut(usize::from(tree.0)) {
                Some(hop) => return hop.open(packet),
                None => false,
            },
        };
        if good { Ok(()) } else { Err(DropReason::BadTag) }
    }

    /// Seals a packet to the parent in a tree if packets are sealed: the last packet in `out`, which begins at `start`.
    /// Returns whether the payload has gone to `out`, encrypted.
    #[inline]
    pub fn seal_last(
        &mut self,
        tree: TreeId,
        out: &mut Vec<u8>,
        start: usize,
        payload: &[u8],
    ) -> bool {
        match self {
            WorkerTags::None => false,
            WorkerTags::Hops(hops) => {
                let hop = hops.get_mut(usize::from(tree.0));
                hop.is_some_and(|hop| hop.seal_last(out, start, payload))
            }
        }
    }
}

/// The hops between a switch and its neighbours in each tree with sealed packets.
#[derive(Clone, Debug, Default)]
pub struct Hops {
    hops: FxHashMap<(JobId, TreeId, PortId), Hop>,
    lanes: Option<&'static dyn FourPackets>,
}

impl Hops {
    /// Takes the keys of an installed lease into use, in place of those of its job and tree; without any, its packets
    /// are unsealed. Numbers go on if the keys are those in use.
    pub fn install(&mut self, lease: &Lease, secrets: Option<&Secrets>) {
        let keys = secrets.map_or(&[][..], Vec::as_slice);
        self.install_keys(lease.key(), &lease.neighbours(), lease.children(), keys);
    }

    fn install_keys(
        &mut self,
        lease: LeaseKey,
        neighbours: &[PortId],
        children: usize,
        keys: &[HopKeys],
    ) {
        let LeaseKey { job, tree, .. } = lease;
        let mut before: FxHashMap<_, _> =
            self.hops.extract_if(|key, _| (key.0, key.1) == (job, tree)).collect();
        for (at, (&port, &keys)) in neighbours.iter().zip(keys).enumerate() {
            let new = if at < children { Hop::to_child(keys) } else { Hop::to_parent(keys) };
            let old = before.remove(&(job, tree, port)).filter(|old| old.keys == new.keys);
            let hop = old.unwrap_or_else(|| self.prepare(new));
            self.hops.insert((job, tree, port), hop);
        }
    }

    /// Forgets the keys of all leases but `leases`.
    pub fn retain_leases(&mut self, leases: impl Iterator<Item = LeaseKey>) {
        if !self.hops.is_empty() {
            let here: FxHashSet<_> = leases.map(|lease| (lease.job, lease.tree)).collect();
            self.hops.retain(|&(job, tree, _), _| here.contains(&(job, tree)));
        }
    }

    /// Checks, and decrypts, a packet before any machine handles it: sealed in a tree with keys, unsealed in others.
    /// Errors: `BadTag`, `Replay`.
    #[inline]
    pub fn open(
        &mut self,
        job: JobId,
        tree: TreeId,
        from: PortId,
        packet: &mut [u8],
    ) -> Result<(), DropReason> {
        match self.hop(job, tree, from) {
            Some(hop) => hop.open(packet),
            None if seal::is_sealed(packet) => Err(DropReason::BadTag),
            None => Ok(()),
        }
    }

    /// Shares the packet numbers of a hop with somebody who handles its packets, too. False: the hop has used numbers
    /// without that, or there is no such hop.
    pub fn share(&mut self, lease: LeaseKey, to: PortId, with: Arc<dyn SharedNumbers>) -> bool {
        self.hop(lease.job, lease.tree, to).is_some_and(|hop| hop.numbers.share(with))
    }

    /// Whether no tree has keys.
    pub fn is_empty(&self) -> bool {
        self.hops.is_empty()
    }

    /// A whole packet, sealed if packets to that neighbour are.
    pub fn sealed(&mut self, job: JobId, tree: TreeId, to: PortId, packet: &[u8]) -> Vec<u8> {
        let hop = self.hop(job, tree, to);
        hop.map_or_else(|| packet.to_vec(), |hop| hop.sealed(packet))
    }

    /// The hop to a neighbour in a tree, if packets there are sealed.
    #[inline]
    pub fn hop(&mut self, job: JobId, tree: TreeId, neighbour: PortId) -> Option<&mut Hop> {
        if self.hops.is_empty() { None } else { self.hops.get_mut(&(job, tree, neighbour)) }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use netsum_wire::Epoch;
    use netsum_wire::panama;
    use netsum_wire::tag::Mac;
    use proptest::prelude::*;

    use super::*;

    fn keys(of: u8) -> HopKeys {
        HopKeys::new(Mac::SipHash, std::array::from_fn(|i| of ^ i as u8))
    }

    fn packet(hop: &mut Hop) -> Vec<u8> {
        let mut head = [0; panama::HEADER_LEN];
        head[0] = panama::VERSION;
        hop.sealed(&head)
    }

    impl Hop {
        fn take(&mut self, packet: &[u8]) -> Result<(), DropReason> {
            self.open(&mut packet.to_vec())
        }
    }

    impl WorkerTags {
        fn take(&mut self, tree: TreeId, packet: &[u8]) -> Result<(), DropReason> {
            self.open(tree, &mut packet.to_vec())
        }
    }

    fn lease(epoch: u16) -> LeaseKey {
        LeaseKey { job: JobId(1), epoch: Epoch(epoch), tree: TreeId(2) }
    }

    const CHILD: PortId = PortId(5);
    const PARENT: PortId = PortId(6);

    fn switch(of: u8) -> Hops {
        let mut hops = Hops::default();
        hops.install_keys(lease(1), &[CHILD, PARENT], 1, &[keys(of), keys(of + 1)]);
        hops
    }

    impl Hops {
        fn take(&mut self, from: PortId, packet: &[u8]) -> Result<(), DropReason> {
            self.open(JobId(1), TreeId(2), from, &mut packet.to_vec())
        }
    }

    #[test]
    fn a_packet_is_accepted_once_and_from_its_sender() {
        let mut hops = switch(0);
        let mut child = Hop::to_parent(keys(0));
        let first = packet(&mut child);
        assert_eq!(hops.take(PARENT, &first), Err(DropReason::BadTag), "another sender");
        assert_eq!(hops.take(CHILD, &first), Ok(()));
        assert_eq!(hops.take(CHILD, &first), Err(DropReason::Replay));
        let down = packet(hops.hop(JobId(1), TreeId(2), CHILD).unwrap());
        assert_eq!(hops.take(CHILD, &down), Err(DropReason::BadTag), "reflected");
        assert_eq!(child.take(&down), Ok(()));
        assert_eq!(child.take(&down), Err(DropReason::Replay));
        assert_eq!(child.take(&first), Err(DropReason::BadTag), "reflected");
        let mut parent = Hop::to_child(keys(1));
        assert_eq!(hops.take(PARENT, &packet(&mut parent)), Ok(()));
    }

    #[test]
    fn encrypted_packets_arrive_as_they_were() {
        let keys = HopKeys::new(Mac::AegisAead, std::array::from_fn(|i| i as u8));
        let (mut child, mut parent) = (Hop::to_parent(keys), Hop::to_child(keys));
        let plain: Vec<u8> = (0..)
            .take(panama::HEADER_LEN)
            .map(|i| if i == 0 { panama::VERSION } else { i })
            .collect();
        for payload in [&[][..], b"a gradient"] {
            let mut head = seal::with_room(&plain);
            assert!(child.seal_last(&mut head, 0, payload));
            assert!(payload.is_empty() || !head.windows(payload.len()).any(|part| part == payload));
            let once = head.clone();
            assert_eq!(parent.open(&mut head), Ok(()));
            assert_eq!(*seal::unsealed(&head), [&plain, payload].concat());
            assert_eq!(parent.take(&once), Err(DropReason::Replay));
            assert_eq!(child.take(&once), Err(DropReason::BadTag), "reflected");
        }
        // A key that encrypts accepts nothing else, and the other way round.
        let sealed = packet(&mut Hop::to_parent(HopKeys::new(Mac::Aegis, [7; 32])));
        assert_eq!(parent.take(&sealed), Err(DropReason::BadTag));
        let encrypted = packet(&mut child);
        let mut sealed = Hop::to_child(HopKeys::new(Mac::Aegis, [7; 32]));
        assert_eq!(sealed.take(&encrypted), Err(DropReason::BadTag));
    }

    #[test]
    fn only_sealed_packets_are_accepted_where_there_are_keys() {
        let mut hops = switch(0);
        let mut sealed = packet(&mut Hop::to_parent(keys(0)));
        assert_eq!(hops.open(JobId(1), TreeId(3), CHILD, &mut sealed), Err(DropReason::BadTag));
        sealed[0] = panama::VERSION;
        assert_eq!(hops.take(CHILD, &sealed), Err(DropReason::BadTag));
        assert_eq!(hops.open(JobId(1), TreeId(3), CHILD, &mut sealed), Ok(()), "of no key");
    }

    #[test]
    fn a_worker_whose_keys_are_on_their_way_accepts_nothing() {
        let tree = TreeId(0);
        let mut tags = WorkerTags::new(Some(Vec::new()));
        let mut unsealed = [0; panama::HEADER_LEN];
        unsealed[0] = panama::VERSION;
        let mut parent = Hop::to_child(keys(0));
        assert_eq!(tags.take(tree, &unsealed), Err(DropReason::BadTag));
        assert_eq!(tags.take(tree, &packet(&mut parent)), Err(DropReason::BadTag));
        tags.secure(vec![keys(0)]);
        assert_eq!(tags.take(tree, &packet(&mut parent)), Ok(()));
        tags.secure(vec![keys(1)]);
        assert_eq!(tags.take(tree, &packet(&mut parent)), Ok(()), "the first keys stay");
        let mut trusted = WorkerTags::new(None);
        trusted.secure(vec![keys(0)]);
        assert_eq!(trusted.take(tree, &unsealed), Ok(()));
        assert_eq!(trusted.take(tree, &packet(&mut parent)), Err(DropReason::BadTag));
    }

    #[test]
    fn keys_are_replaced_with_the_lease_and_numbers_go_on_with_the_keys() {
        let mut hops = switch(0);
        let mut child = Hop::to_parent(keys(0));
        let first = packet(&mut child);
        assert_eq!(hops.take(CHILD, &first), Ok(()));
        hops.install_keys(lease(1), &[CHILD, PARENT], 1, &[keys(0), keys(1)]);
        assert_eq!(hops.take(CHILD, &first), Err(DropReason::Replay), "the same lease again");
        hops.install_keys(lease(2), &[CHILD], 1, &[keys(9)]);
        assert_eq!(hops.take(CHILD, &packet(&mut child)), Err(DropReason::BadTag));
        assert_eq!(hops.take(CHILD, &packet(&mut Hop::to_parent(keys(9)))), Ok(()));
        assert!(hops.hop(JobId(1), TreeId(2), PARENT).is_none(), "a neighbour no more");
        hops.retain_leases([LeaseKey { tree: TreeId(3), ..lease(2) }].into_iter());
        assert!(hops.hop(JobId(1), TreeId(2), CHILD).is_none());
    }

    proptest! {
        /// The oracle remembers every number.
        #[test]
        fn no_number_is_accepted_twice(
            steps in prop::collection::vec((0u64..6000, any::<bool>()), 1..400),
            start in prop::sample::select(vec![0, 63, 64, 1 << 32, u64::MAX - 100_000]),
        ) {
            let mut window = ReplayWindow::new();
            let (mut accepted, mut highest) = (BTreeSet::new(), start);
            prop_assert!(window.accept(start));
            accepted.insert(start);
            for (distance, ahead) in steps {
                let number = match ahead {
                    true => highest.saturating_add(distance / 40),
                    false => highest.saturating_sub(distance),
                };
                let new = window.accept(number);
                prop_assert!(!(new && accepted.contains(&number)), "{} again", number);
                let recent = highest.saturating_sub(number) < REPLAY_WINDOW - WORD;
                prop_assert!(new || accepted.contains(&number) || !recent, "{} refused", number);
                if new {
                    accepted.insert(number);
                    highest = highest.max(number);
                }
            }
        }
    }

    #[test]
    fn a_jump_ahead_forgets_what_was_accepted() {
        let mut window = ReplayWindow::new();
        for number in [0, 1 << 40, (1 << 40) + 1] {
            assert!(window.accept(number) && !window.accept(number));
        }
        assert!(!window.accept(1) && !window.accept((1 << 40) - REPLAY_WINDOW));
        assert!(window.accept((1 << 40) - REPLAY_WINDOW + WORD + 1));
        assert!(window.accept(u64::MAX - 1), "a forger without the key cannot do this");
    }
}
