//! Exhaustive model of a job whose key changes while it sums: the controller's messages, a switch and two ranks, in
//! every order, with faults anywhere (`faults`): a packet is lost or repeated, the switch or the controller starts again.
//!
//! The machines, the keys and the seals are the real ones; the model has the streams between processes, the network, and
//! what the drivers do. Nobody accepts a packet under another key than that of the plan in use, or twice; every rank
//! accepts each sum once, with each rank in it once; when nothing is under way any more, all sums are there, and all
//! ranks use the newest plan.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

use netsum_lease::{
    Aggregator as Named, JobPlan, RankKeys, Terms, key_id, lease_secrets, leases, rank_key,
    worker_secrets,
};
use netsum_proto::atp::Claim;
use netsum_proto::handover::{
    Action, Frozen, Handover, Mode, Path, PendingOperation, Plan as HandoverPlan, Resume, Settings,
};
use netsum_proto::operations::{Fragments, Submission};
use netsum_proto::panama::{Memory, Switch, Transmit, Worker, WorkerConfig};
use netsum_proto::{
    Aggregator, CongestionRule, Event, Hops, Lease, PortId, Secrets, Time, WorkerMachine,
    WorkerTags,
};
use netsum_topo::{AggregationTree, Child, NodeId, Plan, Protocol, SumOrder, TreeNode};
use netsum_wire::PacketHeader;
use netsum_wire::panama::{HEADER_LEN, Header};
use netsum_wire::seal::{EXTENSION_LEN, is_sealed};
use netsum_wire::tag::{JobKey, Mac};
use netsum_wire::{Dtype, Epoch, Format, JobId, Rank, ReduceOp, TreeId};

const RANKS: usize = 2;
const SWITCH: usize = 2;
const JOB: JobId = JobId(1);
const TREE: TreeId = TreeId(0);
/// Elements of a fragment, all of which are the same number here.
const ELEMENTS: usize = 16;
const FRAGMENT_BYTES: u16 = 4 * ELEMENTS as u16;
/// Rank r contributes 256^r, so a sum shows how often it contains each.
const EVERYBODY: u32 = 0x0101;

/// A version of the plan, and the number of the job's key that it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Version {
    epoch: u16,
    key: u8,
}

impl HandoverPlan for Version {
    fn epoch(&self) -> Epoch {
        Epoch(self.epoch)
    }

    fn has_trees(&self) -> bool {
        true
    }

    fn continues(&self, _: &Version) -> bool {
        true
    }

    fn patience_ns(&self) -> u64 {
        u64::MAX / 4
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.extend([self.epoch as u8, self.key]);
    }

    fn decode(bytes: &[u8], _: u32) -> Result<Version, String> {
        match *bytes {
            [epoch, key] => Ok(Version { epoch: epoch.into(), key }),
            _ => Err("no plan".to_owned()),
        }
    }
}

fn job_key(number: u8) -> JobKey {
    JobKey::new(Mac::SipHash, [number; 16])
}

fn tree() -> AggregationTree {
    let children = vec![Child::Rank(0), Child::Rank(1)];
    let root = TreeNode { switch: NodeId(0), children, parent: None };
    AggregationTree { root: NodeId(0), nodes: vec![root] }
}

/// The plan as a rank has it.
fn job_plan(version: Version) -> JobPlan {
    let plan = Plan {
        job: JOB.0,
        epoch: version.epoch,
        order: SumOrder::flat(RANKS as u32),
        protocol: Protocol::Panama,
        choice: String::new(),
        trees: vec![tree()],
        copies: false,
        fragment_bytes: FRAGMENT_BYTES.into(),
        window_max: 4,
        slot_space: 0,
        scale: 0.0,
        release_fraction: 1.0,
        congestion: netsum_topo::CongestionRule::None,
        min_bytes: 0,
        reason: String::new(),
    };
    let aggregators = vec![Named { name: "s0".to_owned(), address: None }];
    JobPlan { plan, aggregators, key_id: key_id(&job_key(version.key)) }
}

/// The lease of the switch, and its keys.
fn grant(version: Version) -> (Lease, Option<Secrets>) {
    let trees = [tree()];
    let terms = Terms {
        job: JOB,
        epoch: Epoch(version.epoch),
        protocol: Protocol::Panama,
        trees: &trees,
        copies: false,
        window: 4,
        fragment_bytes: FRAGMENT_BYTES,
        release_permille: 1000,
        slot_space: 0,
        claim: Claim::default(),
    };
    let port = |_, _, child| match child {
        Child::Rank(rank) => PortId(rank),
        Child::Switch(_) => panic!("there is one switch"),
    };
    let granted = leases(&terms, port).unwrap().remove(0);
    let key = job_key(version.key);
    let name = |_| "s0".to_owned();
    (granted.lease, lease_secrets(&terms, TREE, &trees[0], NodeId(0), Some(&key), name))
}

/// What a model computes again and again.
fn granted(version: Version) -> &'static (Lease, Option<Secrets>) {
    type Grants = Vec<Vec<OnceLock<(Lease, Option<Secrets>)>>>;
    static GRANTS: OnceLock<Grants> = OnceLock::new();
    let empty = || (0..16).map(|_| (0..16).map(|_| OnceLock::new()).collect()).collect();
    let all = GRANTS.get_or_init(empty);
    all[usize::from(version.epoch)][usize::from(version.key)].get_or_init(|| grant(version))
}

/// Numbers in place of fragments.
#[derive(Clone, Default, Hash)]
struct Tally {
    /// Header and number.
    packets: Vec<Option<([u8; HEADER_LEN], u32)>>,
    freed: Vec<usize>,
}

fn value(payload: &[u8]) -> u32 {
    payload.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

/// The header of a stored packet.
fn decoded(head: &[u8; HEADER_LEN], value: u32) -> Header {
    let elements = u32::from(u16::from_be_bytes([head[20], head[21]]));
    let payload = (0..elements).flat_map(|_| value.to_le_bytes());
    let packet: Vec<u8> = head.iter().copied().chain(payload).collect();
    Header::decode(&packet).expect("it was encoded").0
}

impl Memory for Tally {
    type Payload = [u8];
    type Buffer = usize;

    fn store(&mut self, header: &Header, payload: &[u8]) -> Option<usize> {
        let free = self.packets.iter().position(Option::is_none).unwrap_or(self.packets.len());
        self.packets.resize(self.packets.len().max(free + 1), None);
        let mut head = [0; HEADER_LEN];
        header.encode(&mut head);
        self.packets[free] = Some((head, value(payload)));
        Some(free)
    }

    fn holds(&self, buffer: usize, payload: &[u8]) -> bool {
        self.packets[buffer].is_some_and(|(_, kept)| kept == value(payload))
    }

    fn reduce(
        &mut self,
        header: &Header,
        stored: &[Option<usize>],
        arriving: Option<(usize, &Header, &[u8])>,
    ) -> Option<usize> {
        let of = |&buffer: &usize| self.packets[buffer].expect("it is stored").1;
        let sum: u32 = stored.iter().flatten().map(of).sum();
        let sum = sum + arriving.map_or(0, |(_, _, payload)| value(payload));
        self.store(header, &sum.to_le_bytes())
    }

    fn mark_resent(&mut self, buffer: usize) {
        let (head, value) = self.packets[buffer].expect("it is stored");
        let header = Header { resent: true, ..decoded(&head, value) };
        header.encode(&mut self.packets[buffer].as_mut().expect("it is stored").0);
    }

    fn free(&mut self, buffer: usize) {
        self.freed.push(buffer);
    }

    fn flushed(&mut self) {
        self.freed.drain(..).for_each(|buffer| self.packets[buffer] = None);
        let used = self.packets.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
        self.packets.truncate(used);
    }

    fn cost(&self, _: u16) -> u64 {
        1
    }

    fn limit(&self) -> u64 {
        1 << 20
    }
}

/// A packet on its way, and the plan by which it was sealed.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Packet {
    to: usize,
    from: usize,
    bytes: Vec<u8>,
    sealed: Option<Version>,
}

impl Packet {
    fn number(&self) -> u64 {
        let bytes = self.bytes[HEADER_LEN..].first_chunk().expect("it is sealed");
        u64::from_be_bytes(*bytes)
    }
}

fn packet(header: &Header, value: u32) -> Vec<u8> {
    let mut packet = vec![0; HEADER_LEN];
    header.encode(packet.first_chunk_mut().unwrap());
    let elements = header.payload_len() / 4;
    packet.extend((0..elements).flat_map(|_| value.to_le_bytes()));
    packet
}

/// The numbers that one end of a hop has used: what its keys' state is.
#[derive(Clone, Copy, Default, Hash)]
struct Used {
    sent: u64,
    accepted: u64,
}

impl Used {
    /// Panics if the packet was accepted before.
    fn accept(&mut self, packet: &Packet) {
        let bit = 1 << packet.number();
        assert!(self.accepted & bit == 0, "a packet is accepted twice");
        self.accepted |= bit;
    }
}

/// A message of the controller to a rank.
#[derive(Clone, Copy, Hash)]
enum Told {
    Key(u8),
    Plan(Version),
}

#[derive(Clone)]
struct Member {
    worker: Option<Worker>,
    tags: WorkerTags,
    used: Used,
    keys: RankKeys,
    handover: Handover<Version>,
    frozen: bool,
    /// Results of this epoch, by fragment.
    retained: BTreeMap<u64, u32>,
    /// Sums that were accepted, by fragment of the operation.
    accepted: Vec<bool>,
}

impl Member {
    fn new(rank: u32, fragments: usize) -> Member {
        let settings = Settings {
            rank: Rank(rank),
            size: RANKS as u32,
            mode: Mode::Leaderless,
            timeout_ns: u64::MAX / 4,
        };
        Member {
            worker: None,
            tags: WorkerTags::None,
            used: Used::default(),
            keys: RankKeys::default(),
            handover: Handover::new(settings),
            frozen: false,
            retained: BTreeMap::new(),
            accepted: vec![false; fragments],
        }
    }

    fn plan(&self) -> Option<Version> {
        self.handover.plan().copied()
    }

    fn accept(&mut self, elements: &std::ops::Range<u64>, value: u32) {
        assert_eq!(value, EVERYBODY, "each rank once");
        let place = &mut self.accepted[elements.start as usize / ELEMENTS];
        assert!(!std::mem::replace(place, true), "a sum is accepted twice");
    }

    fn is_done(&self) -> bool {
        self.accepted.iter().all(|&accepted| accepted)
    }
}

/// A fault in what the model has in place of drivers and controller, to see that the checks find it.
#[derive(Clone, Copy, PartialEq)]
enum Bug {
    None,
    /// The switch goes on with the keys of the lease before.
    OldKeys,
    /// The controller gives a new key without a new epoch.
    SameEpoch,
    /// A rank accepts packets while it hands over.
    Unfrozen,
    /// After its restart the controller gives ranks no key.
    NoKey,
    /// A restarted switch gets the lease that it had.
    LeaseAgain,
    /// A rank without the plan's key speaks without tags.
    Untagged,
}

#[derive(Clone)]
struct State {
    bug: Bug,
    /// The last plan that the controller made, and whether ranks have been told.
    newest: Version,
    rekeys: u32,
    faults: u32,
    to_switch: VecDeque<Version>,
    installed: VecDeque<Version>,
    to_ranks: [VecDeque<Told>; RANKS],
    /// From each rank to the other.
    between: [VecDeque<Vec<u8>>; RANKS],
    members: Vec<Member>,
    switch: Switch<Tally>,
    hops: Hops,
    lease: Option<Version>,
    /// With the keys of that version, also before the switch started again.
    used: [Used; RANKS],
    used_with: Option<Version>,
    packets: Vec<Packet>,
    now: Time,
    waits: u32,
}

impl State {
    /// A job at work under its first plan, with one operation of some fragments.
    fn new(bug: Bug, fragments: usize, rekeys: u32, faults: u32) -> State {
        let newest = Version { epoch: 1, key: 1 };
        let mut state = State {
            bug: Bug::None,
            newest,
            rekeys: 0,
            faults: 0,
            to_switch: VecDeque::new(),
            installed: VecDeque::new(),
            to_ranks: Default::default(),
            between: Default::default(),
            members: (0..RANKS as u32).map(|rank| Member::new(rank, fragments)).collect(),
            switch: Switch::new(Tally::default()),
            hops: Hops::default(),
            lease: None,
            used: Default::default(),
            used_with: None,
            packets: Vec::new(),
            now: Time(0),
            waits: 0,
        };
        state.send_keys();
        state.to_switch.push_back(newest);
        while state.deliver_messages() {}
        let elements = (fragments * ELEMENTS) as u64;
        for rank in 0..RANKS {
            let deadline = Time(u64::MAX / 4);
            let operation = PendingOperation { sequence: 0, elements, deadline };
            state.members[rank].handover.handle_operation(operation);
            state.drive(rank);
        }
        State { bug, rekeys, faults, ..state }
    }

    /// Delivers a message of the streams, if there is one.
    fn deliver_messages(&mut self) -> bool {
        let Some(stream) = self.streams().next() else { return false };
        self.deliver_message(stream);
        true
    }

    /// Streams with messages.
    fn streams(&self) -> impl Iterator<Item = Stream> {
        let [first, second] =
            [0, 1].map(|rank| (!self.to_ranks[rank].is_empty()).then_some(Stream::Rank(rank)));
        let [third, fourth] =
            [0, 1].map(|rank| (!self.between[rank].is_empty()).then_some(Stream::Between(rank)));
        let switch = (!self.to_switch.is_empty()).then_some(Stream::Switch);
        let installed = (!self.installed.is_empty()).then_some(Stream::Installed);
        [switch, installed, first, second, third, fourth].into_iter().flatten()
    }

    fn deliver_message(&mut self, stream: Stream) {
        match stream {
            Stream::Switch => {
                let version = self.to_switch.pop_front().expect("it has a message");
                self.install(version);
            }
            Stream::Installed => {
                let version = self.installed.pop_front().expect("it has a message");
                if version == self.newest {
                    self.to_ranks.iter_mut().for_each(|to| to.push_back(Told::Plan(version)));
                }
            }
            Stream::Rank(rank) => {
                let told = self.to_ranks[rank].pop_front().expect("it has a message");
                self.tell(rank, told);
            }
            Stream::Between(from) => {
                let bytes = self.between[from].pop_front().expect("it has a message");
                let (to, now) = (1 - from, self.now);
                self.members[to].handover.handle_message(now, Rank(from as u32), &bytes).unwrap();
                self.drive(to);
            }
        }
    }

    // ---- The controller.

    fn send_keys(&mut self) {
        let key = self.newest.key;
        self.to_ranks.iter_mut().for_each(|to| to.push_back(Told::Key(key)));
    }

    /// Plans anew, with the job's key as it is now.
    fn replan(&mut self) {
        self.newest.epoch += 1;
        self.to_switch.push_back(self.newest);
    }

    fn rekey(&mut self) {
        self.rekeys -= 1;
        self.newest.key += 1;
        self.send_keys();
        match self.bug {
            Bug::SameEpoch => self.to_switch.push_back(self.newest),
            _ => self.replan(),
        }
    }

    /// The controller starts again with what it has stored: messages that were under way are lost, processes connect
    /// again.
    fn restart_controller(&mut self) {
        self.to_switch.clear();
        self.installed.clear();
        self.to_ranks.iter_mut().for_each(VecDeque::clear);
        if self.bug != Bug::NoKey {
            self.send_keys();
        }
        self.replan();
    }

    // ---- The switch.

    fn install(&mut self, version: Version) {
        let (lease, secrets) = granted(version);
        let Lease::Tree(of_panama) = lease else { panic!("a lease of another protocol") };
        if self.switch.install(self.now, of_panama.clone()).is_err() {
            return;
        }
        if self.bug != Bug::OldKeys || self.lease.is_none() {
            self.hops.install(lease, secrets.as_ref());
        }
        if self.used_with != Some(version) {
            (self.used, self.used_with) = (Default::default(), Some(version));
        }
        self.lease = Some(version);
        self.installed.push_back(version);
        self.pump_switch();
    }

    /// The switch starts again, without leases. The controller sees its session end.
    fn restart_switch(&mut self) {
        self.switch = Switch::new(Tally::default());
        (self.hops, self.lease) = Default::default();
        self.to_switch.clear();
        self.installed.clear();
        match self.bug {
            Bug::LeaseAgain => self.to_switch.push_back(self.newest),
            _ => self.replan(),
        }
    }

    fn take_at_switch(&mut self, packet: &Packet) {
        let from = PortId(packet.from as u32);
        let mut bytes = packet.bytes.clone();
        if self.hops.open(JOB, TREE, from, &mut bytes).is_err() {
            return;
        }
        assert_eq!(packet.sealed, self.lease, "the switch accepts a packet of another plan");
        if packet.sealed.is_some() {
            self.used[packet.from].accept(packet);
        }
        let (header, _) = Header::decode(&bytes).expect("a packet of the model");
        let payload = header.payload(&bytes);
        // Whether it counts, and why not, is the machine's affair.
        let _ = self.switch.handle(self.now, from, false, &header, payload);
        self.pump_switch();
    }

    fn pump_switch(&mut self) {
        while let Some(transmit) = self.switch.poll_transmit() {
            let (to, bytes) = match transmit {
                Transmit::Data { to, buffer } => {
                    let (head, value) = self.switch.memory().packets[buffer].expect("it is stored");
                    (to, packet(&decoded(&head, value), value))
                }
                Transmit::Control { to, header } => (to, packet(&header, 0)),
            };
            let bytes = self.hops.sealed(JOB, TREE, to, &bytes);
            let to = to.0 as usize;
            self.used[to].sent += 1;
            self.packets.push(Packet { to, from: SWITCH, bytes, sealed: self.lease });
        }
        self.switch.flushed();
    }

    // ---- The ranks.

    fn tell(&mut self, rank: usize, told: Told) {
        match told {
            Told::Key(number) => {
                let key = job_key(number);
                let member = &mut self.members[rank];
                member.keys.insert(key_id(&key), rank_key(&key, rank as u32));
                if let Some(plan) = member.plan()
                    && let Some(secrets) = worker_secrets(&job_plan(plan), &member.keys)
                {
                    member.tags.secure(secrets);
                }
                self.pump_rank(rank);
            }
            Told::Plan(version) => {
                self.members[rank].handover.handle_plan(self.now, version);
                self.drive(rank);
            }
        }
    }

    /// Does what the machine of the hand-over asks for.
    fn drive(&mut self, rank: usize) {
        let now = self.now;
        loop {
            let member = &mut self.members[rank];
            while let Some(transmit) = member.handover.poll_transmit() {
                self.between[rank].push_back(transmit.bytes);
            }
            let Some(action) = member.handover.poll_action() else { break };
            match action {
                Action::Freeze => {
                    member.frozen = true;
                    let worker = member.worker.as_ref().expect("the path is the network's");
                    let (progress, submitted) = (worker.progress(), worker.submitted());
                    member.handover.handle_frozen(now, Frozen::Fragments { progress, submitted });
                }
                Action::Fetch(fragments) => {
                    let of = |g| member.retained.get(g).map(|value| value.to_le_bytes().to_vec());
                    let results = fragments.iter().map(of).collect();
                    member.handover.handle_fetched(now, results);
                }
                Action::Deliver(results) => {
                    for (g, bytes) in results {
                        let place = member.worker.as_ref().and_then(|worker| worker.place_of(g));
                        if let Some((_, elements)) = place {
                            member.accept(&elements, value(&bytes));
                        }
                    }
                }
                Action::Resume(resume) => self.resume(rank, *resume),
                Action::Run { sequence, path } => {
                    assert_eq!(path, Path::Network);
                    let numel = (member.accepted.len() * ELEMENTS) as u64;
                    let what = submission(sequence, numel, Fragments::All);
                    member.worker.as_mut().expect("a path").submit(what);
                }
                Action::SilentTrees(trees) => assert!(trees.is_empty(), "trees fall silent"),
                other => panic!("{other:?}"),
            }
        }
        self.pump_rank(rank);
    }

    fn resume(&mut self, rank: usize, resume: Resume<Version>) {
        let (now, bug) = (self.now, self.bug);
        let member = &mut self.members[rank];
        let version = resume.plan.expect("plans have trees");
        let rest = match (member.worker.take(), &resume.finished) {
            (Some(worker), Some(finished)) => worker.remaining(finished),
            _ => Vec::new(),
        };
        let config = WorkerConfig {
            job: JOB,
            epoch: Epoch(version.epoch),
            rank: Rank(rank as u32),
            ranks: RANKS as u32,
            trees: 1,
            copies: false,
            window_max: 4,
            fragment_bytes: FRAGMENT_BYTES,
            congestion: CongestionRule::Fixed(4),
            partial: false,
        };
        let mut worker = Worker::new(now, config);
        rest.into_iter().for_each(|what| worker.submit(what));
        member.worker = Some(worker);
        let secrets = worker_secrets(&job_plan(version), &member.keys);
        let untagged = secrets.as_ref().is_some_and(Vec::is_empty);
        let secrets = secrets.filter(|_| !(untagged && bug == Bug::Untagged));
        member.tags = WorkerTags::new(secrets);
        (member.used, member.frozen) = (Used::default(), false);
        member.retained.clear();
    }

    fn take_at_rank(&mut self, packet: &Packet) {
        let (now, frozen) = (self.now, self.bug != Bug::Unfrozen);
        let member = &mut self.members[packet.to];
        if member.frozen && frozen {
            return;
        }
        let mut bytes = packet.bytes.clone();
        if member.tags.open(TREE, &mut bytes).is_err() {
            return;
        }
        assert_eq!(packet.sealed, member.plan(), "a rank accepts a packet of another plan");
        member.used.accept(packet);
        let (header, _) = Header::decode(&bytes).expect("a packet of the model");
        let payload = header.payload(&bytes);
        let Some(worker) = &mut member.worker else { return };
        if let Ok(Some(accepted)) = worker.handle(now, false, &header) {
            member.retained.insert(accepted.g, value(payload));
            member.accept(&accepted.elements, value(payload));
        }
        self.pump_rank(packet.to);
    }

    fn pump_rank(&mut self, rank: usize) {
        let now = self.now;
        let member = &mut self.members[rank];
        let Some(worker) = member.worker.as_mut().filter(|_| !member.frozen) else { return };
        while let Some(outgoing) = worker.poll_transmit(now) {
            let mut bytes = packet(&outgoing.header, 1 << (8 * rank));
            let payload = bytes.split_off(HEADER_LEN);
            let room = if member.tags.are_sealed() { EXTENSION_LEN } else { 0 };
            bytes.resize(HEADER_LEN + room, 0);
            if !member.tags.seal_last(TREE, &mut bytes, 0, &payload) {
                bytes.extend(payload);
            }
            let sealed = is_sealed(&bytes).then(|| member.handover.plan().copied()).flatten();
            member.used.sent += u64::from(sealed.is_some());
            self.packets.push(Packet { to: SWITCH, from: rank, bytes, sealed });
        }
        while let Some(event) = worker.poll_event() {
            assert!(matches!(event, Event::Done { .. }), "{event:?}");
        }
    }

    // ---- The world.

    fn deliver(&mut self, packet: &Packet) {
        match packet.to {
            SWITCH => self.take_at_switch(packet),
            _ => self.take_at_rank(packet),
        }
    }

    /// Nothing is under way: time passes to the next deadline. False if all is over.
    fn pass_time(&mut self) -> bool {
        if self.members.iter().all(Member::is_done) {
            return false;
        }
        let deadline = |member: &Member| {
            assert!(!member.handover.is_under_way(), "a hand-over hangs");
            member.worker.as_ref().and_then(Worker::poll_timeout)
        };
        let next = self.members.iter().filter_map(deadline).min().expect("a rank waits for ever");
        self.now = next.max(self.now);
        self.waits += 1;
        assert!(self.waits < 40, "it ends once the faults have ended");
        for rank in 0..RANKS {
            let worker = self.members[rank].worker.as_mut();
            worker.into_iter().for_each(|worker| worker.handle_timeout(self.now));
            self.pump_rank(rank);
        }
        true
    }

    /// Whether a packet has no effect, now or later: its receiver uses a later plan, or has stopped that one.
    fn is_stale(&self, packet: &Packet) -> bool {
        let Some(sealed) = packet.sealed else { return true };
        match packet.to {
            SWITCH => self.lease.is_some_and(|lease| sealed.epoch < lease.epoch),
            to => {
                let member = &self.members[to];
                let later = member.plan().is_some_and(|plan| sealed.epoch < plan.epoch);
                later || member.frozen && member.plan() == Some(sealed)
            }
        }
    }

    fn digest(&self) -> u64 {
        let mut state = DefaultHasher::new();
        for member in &self.members {
            member.worker.iter().for_each(|worker| worker.digest(&mut state));
            let hops = matches!(&member.tags, WorkerTags::Hops(hops) if !hops.is_empty());
            (hops, member.used, member.frozen, &member.retained, &member.accepted).hash(&mut state);
            (format!("{:?}", member.keys), format!("{:?}", member.handover)).hash(&mut state);
        }
        self.switch.digest(&mut state);
        (self.lease, self.used, self.used_with, self.newest, self.rekeys, self.faults, self.now)
            .hash(&mut state);
        (&self.to_switch, &self.installed, &self.to_ranks, &self.between).hash(&mut state);
        // Independent of order.
        let each = |packet: &Packet| {
            let mut hasher = DefaultHasher::new();
            packet.hash(&mut hasher);
            hasher.finish()
        };
        self.packets.iter().map(each).fold(0u64, u64::wrapping_add).hash(&mut state);
        state.finish()
    }

    /// Visits all possible next states.
    fn successors(&self, mut then: impl FnMut(State)) {
        let mut after = |change: &mut dyn FnMut(&mut State)| {
            let mut next = self.clone();
            change(&mut next);
            then(next);
        };
        if let Some(stale) = self.packets.iter().position(|packet| self.is_stale(packet)) {
            // When it arrives does not matter.
            return after(&mut |next| {
                let packet = next.packets.swap_remove(stale);
                next.deliver(&packet);
            });
        }
        let mut seen = HashSet::new();
        for (at, packet) in self.packets.iter().enumerate() {
            if !seen.insert(packet) {
                continue;
            }
            after(&mut |next| {
                next.packets.swap_remove(at);
                next.deliver(packet);
            });
            if self.faults > 0 {
                after(&mut |next| {
                    next.faults -= 1;
                    next.packets.swap_remove(at);
                });
                after(&mut |next| {
                    next.faults -= 1;
                    next.deliver(packet);
                });
            }
        }
        for stream in self.streams() {
            after(&mut |next| next.deliver_message(stream));
        }
        if self.rekeys > 0 {
            after(&mut State::rekey);
        }
        if self.faults > 0 {
            for restart in [State::restart_switch, State::restart_controller] {
                after(&mut |next| {
                    next.faults -= 1;
                    restart(next);
                });
            }
        }
    }

    fn is_quiet(&self) -> bool {
        self.packets.is_empty() && self.streams().next().is_none()
    }
}

#[derive(Clone, Copy, Debug)]
enum Stream {
    Switch,
    Installed,
    Rank(usize),
    Between(usize),
}

fn submission(id: u64, numel: u64, fragments: Fragments) -> Submission {
    let format = Format { dtype: Dtype::I32, op: ReduceOp::Sum };
    Submission { id, format, numel, fingerprint: 7, fragments, pattern: Default::default() }
}

/// Visits every reachable state; returns their number.
fn explore(start: State) -> usize {
    let mut seen = HashSet::from([start.digest()]);
    let mut open = vec![start];
    while let Some(mut state) = open.pop() {
        if state.is_quiet() && state.pass_time() {
            if seen.insert(state.digest()) {
                open.push(state);
            }
            continue;
        }
        if state.is_quiet() {
            let newest = Some(state.newest);
            assert!(state.members.iter().all(|member| member.plan() == newest), "the newest plan");
            assert_eq!(state.lease, newest, "the newest lease");
        }
        state.successors(|next| {
            if seen.insert(next.digest()) {
                open.push(next);
            }
        });
    }
    seen.len()
}

/// Number of faults in this run: `make model` allows two.
fn faults(usual: u32) -> u32 {
    let wanted = std::env::var("NETSUM_MODEL_FAULTS").ok();
    wanted.map_or(usual, |text| text.parse().expect("NETSUM_MODEL_FAULTS is a number"))
}

#[test]
fn no_order_of_events_loses_or_repeats_a_sum_while_keys_change() {
    let states = explore(State::new(Bug::None, 1, 1, faults(1)));
    println!("{states} states");
    assert!(states > 1000, "the world came to nothing after {states} states");
}

#[test]
fn planted_faults_are_found() {
    for (name, bug, faults) in [
        ("old keys", Bug::OldKeys, 0),
        ("no new epoch", Bug::SameEpoch, 0),
        ("unfrozen", Bug::Unfrozen, 0),
        ("no key", Bug::NoKey, 1),
        ("the same lease", Bug::LeaseAgain, 2),
        ("without tags", Bug::Untagged, 0),
    ] {
        let found = catch_unwind(AssertUnwindSafe(|| explore(State::new(bug, 1, 1, faults))));
        let problem = found.expect_err(name);
        let text = problem.downcast_ref::<String>().map(String::as_str);
        println!("{name}: {}", text.or(problem.downcast_ref::<&str>().copied()).unwrap_or("?"));
    }
}
