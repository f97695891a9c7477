//! Protocol `switchml` against an oracle: on any network, every sum is exact, complete once, and bit-identical at every
//! rank.

#[path = "world/network.rs"]
mod network;
#[path = "slots/oracle.rs"]
mod oracle;
#[path = "slots/patterns.rs"]
mod patterns;
#[path = "switchml/scoped.rs"]
mod scoped;

use std::collections::BTreeMap;

use netsum_proto::switchml::*;
use netsum_proto::values::{Rows, Values};
use netsum_proto::{DropReason, Pattern, PortId, Time};
use netsum_wire::switchml::{HEADER_LEN, Header, Kind};
use netsum_wire::*;
use network::{Arrival, Faults, Network, Random, Start, start};
use oracle::Path;
use proptest::prelude::*;

const SECOND: u64 = 1_000_000_000;
/// Limit of simulated time.
const BOUND: Time = Time(3600 * SECOND);
const SUM: Format = Format { dtype: Dtype::F32, op: ReduceOp::Sum };
const SWITCH: usize = 9999;
const ROW: u16 = 32;

struct Host {
    machine: Worker,
    operations: Vec<(Submission, Vec<u8>, bool)>,
    /// By number, what is kept of the last complete fragments: the result, or the contribution if others take it.
    retained: BTreeMap<u64, Vec<u8>>,
    silent: bool,
    mismatch: bool,
    wake: Option<Time>,
}

/// Jobs of the same number of workers around one switch; host h is worker h mod n of job h / n + 1.
struct World {
    network: Network,
    workers: u8,
    slots: u16,
    /// Whether jobs have a second pool, for all collectives.
    copies: bool,
    start: Start,
    switch: Switch<Rows>,
    hosts: Vec<Host>,
}

impl World {
    fn new(seed: u64, faults: Faults, jobs: u32, workers: u8, slots: u16) -> World {
        World::starting_at(Start::default(), seed, faults, (jobs, false), workers, slots)
    }

    fn starting_at(
        start: Start,
        seed: u64,
        faults: Faults,
        (jobs, copies): (u32, bool),
        workers: u8,
        slots: u16,
    ) -> World {
        let rows = jobs * if copies { 4 } else { 2 } * u32::from(slots);
        let values = Rows::new(rows as usize + 1, ROW.into());
        let mut world = World {
            network: Network::new(seed, faults),
            workers,
            slots,
            copies,
            start,
            switch: Switch::new(rows, ROW, values),
            hosts: Vec::new(),
        };
        for job in 0..jobs {
            world.begin(job, 1);
        }
        world
    }

    /// Starts an epoch of a job; returns the machines of the last one.
    fn begin(&mut self, job: u32, epoch: u16) -> Vec<Worker> {
        let mut replaced = Vec::new();
        let first = job as usize * usize::from(self.workers);
        let ports = || (first..first + usize::from(self.workers)).map(|h| PortId(h as u32));
        let (job, epoch) = (self.job(job), Epoch(self.start.epoch.wrapping_add(epoch)));
        let (slots, fragment_bytes) = (self.slots, ROW);
        let (now, number) = (self.network.now, self.start.number);
        for tree in (0..if self.copies { 2 } else { 1 }).map(TreeId) {
            let workers = ports().collect();
            let lease = Lease { job, epoch, tree, workers, slots, fragment_bytes };
            self.switch.install_starting_at(now, lease, number).expect("all pools fit");
        }
        for worker in 0..self.workers {
            let (workers, timeout_ns, copies) = (self.workers, 10_000_000, self.copies);
            let config = WorkerConfig {
                copies,
                job,
                epoch,
                worker,
                workers,
                slots,
                fragment_bytes,
                timeout_ns,
            };
            let machine = Worker::starting_at(now, config, number);
            match self.hosts.get_mut(first + usize::from(worker)) {
                Some(host) => replaced.push(std::mem::replace(&mut host.machine, machine)),
                None => self.hosts.push(Host {
                    machine,
                    operations: Vec::new(),
                    retained: BTreeMap::new(),
                    silent: false,
                    mismatch: false,
                    wake: None,
                }),
            }
        }
        replaced
    }

    fn job(&self, index: u32) -> JobId {
        JobId(self.start.job.wrapping_add(index + 1))
    }

    fn submit_at(
        &mut self,
        host: usize,
        format: Format,
        numel: usize,
        buffer: Vec<u8>,
        pattern: Pattern,
    ) {
        let h = &mut self.hosts[host];
        let id = h.operations.len() as u64;
        let fingerprint = (numel as u32) << 8 ^ id as u32 ^ u32::from(format.code()) << 24;
        let fragments = Fragments::All;
        let what = Submission { id, format, numel: numel as u64, fingerprint, fragments, pattern };
        h.operations.push((what.clone(), buffer, false));
        h.machine.submit(what);
        self.pump(host);
    }

    fn submit(&mut self, job: usize, format: Format, numel: usize) {
        self.submit_pattern(job, format, numel, &Pattern::Allreduce);
    }

    fn submit_pattern(&mut self, job: usize, format: Format, numel: usize, pattern: &Pattern) {
        for worker in 0..usize::from(self.workers) {
            let host = job * usize::from(self.workers) + worker;
            let i = self.hosts[host].operations.len();
            let values = bits(format, numel, seed_of(host, i));
            self.submit_at(host, format, numel, values, pattern.clone());
        }
    }

    fn all_done(&self) -> bool {
        self.hosts.iter().all(|h| h.operations.iter().all(|o| o.2))
    }

    fn run(&mut self, until: Time, mut done: impl FnMut(&World) -> bool) -> bool {
        while !done(self) {
            let Some(at) = self.network.peek() else { return done(self) };
            if at > until {
                return false;
            }
            match self.network.next() {
                Some(arrival) => self.arrive(arrival),
                None => self.wake(),
            }
        }
        true
    }

    fn arrive(&mut self, Arrival { to, from, ce, packet }: Arrival) {
        assert!(!ce, "nothing marks here: the protocol would not listen");
        let Ok((header, payload)) = Header::decode(&packet) else { return };
        if to != SWITCH {
            self.take(to, &header, payload);
            return self.pump(to);
        }
        let _ = self.switch.handle(self.network.now, PortId(from as u32), false, &header, payload);
        while let Some(Transmit { to, header, payload }) = self.switch.poll_transmit() {
            let payload = payload.map_or(&[][..], |row| self.switch.values().get(row));
            self.network.send(SWITCH, to.0 as usize, encode(&header, payload));
        }
        self.switch.values_mut().flushed();
    }

    fn take(&mut self, host: usize, header: &Header, payload: &[u8]) {
        let host = &mut self.hosts[host];
        let most = Worker::settings(host.machine.config()).retained as u64;
        let mut keep = |g: u64, elements: &[u8]| {
            host.retained.insert(g, elements.to_vec());
            g.checked_sub(most).map(|old| host.retained.remove(&old));
        };
        let accepted = host.machine.handle(self.network.now, false, header);
        while let Some(settled) = host.machine.poll_settled() {
            keep(settled.g, &host.operations[settled.id as usize].1[place_of(&settled)]);
        }
        let Ok(Some(accepted)) = accepted else { return };
        let buffer = &mut host.operations[accepted.id as usize].1;
        let out = &mut buffer[place_of(&accepted)];
        host.machine.read(&accepted, payload, out);
        keep(accepted.g, out);
    }

    fn pump(&mut self, host: usize) {
        loop {
            let h = &mut self.hosts[host];
            let Some(mut outgoing) = h.machine.poll_transmit(self.network.now) else { break };
            let mut payload = vec![0; outgoing.header.payload_len()];
            if let Some((id, _)) = outgoing.payload {
                let (what, buffer, _) = &h.operations[id as usize];
                let size = what.format.dtype.size();
                let bytes = |r: std::ops::Range<u64>| {
                    &buffer[r.start as usize * size..r.end as usize * size]
                };
                h.machine.write(&mut outgoing, bytes, &mut payload);
            }
            self.network.send(host, SWITCH, encode(&outgoing.header, &payload));
        }
        let h = &mut self.hosts[host];
        while let Some(event) = h.machine.poll_event() {
            match event {
                Event::Done { id, .. } => {
                    let done = &mut h.operations[id as usize].2;
                    assert!(!std::mem::replace(done, true), "operation {id} is done twice");
                }
                Event::Mismatch { .. } | Event::Refused { .. } => h.mismatch = true,
                Event::Silent { .. } => h.silent = true,
            }
        }
        let deadline = h.machine.poll_timeout();
        if deadline != h.wake {
            h.wake = deadline;
            deadline.into_iter().for_each(|at| self.network.wake_at(at));
        }
    }

    fn wake(&mut self) {
        for host in 0..self.hosts.len() {
            if self.hosts[host].wake.is_some_and(|at| at <= self.network.now) {
                self.hosts[host].wake = None;
                self.hosts[host].machine.handle_timeout(self.network.now);
                self.pump(host);
            }
        }
    }

    /// Ends all jobs, and checks that the switch had enough memory and has all of it back.
    fn check_memory(&mut self, jobs: u32) -> Result<(), TestCaseError> {
        for job in 0..jobs {
            self.switch.revoke(self.job(job), Epoch(self.start.epoch.wrapping_add(9)));
        }
        self.switch.values_mut().flushed();
        prop_assert_eq!(self.switch.values().used(), 0);
        prop_assert_eq!(self.switch.drops().get(DropReason::NoMemory), 0);
        Ok(())
    }

    /// Checks that every element at every worker equals the oracle's.
    fn check(&self) -> Result<(), TestCaseError> {
        for (job, hosts) in self.hosts.chunks(self.workers.into()).enumerate() {
            let first = job * hosts.len();
            for (i, (what, ..)) in hosts[0].operations.iter().enumerate() {
                let (format, numel) = (what.format, what.numel as usize);
                let inputs: Vec<Vec<u8>> = (first..first + hosts.len())
                    .map(|host| bits(format, numel, seed_of(host, i)))
                    .collect();
                let element = |path, of: &[&[u8]]| match path {
                    Path::Floats => f32::NAN.to_le_bytes().to_vec(),
                    path => oracle::element(format, path, of),
                };
                let words = (None, ROW.into());
                let expected = patterns::results(&what.pattern, format, words, &inputs, element);
                for (rank, host) in hosts.iter().enumerate() {
                    let (got, pattern) = (&host.operations[i].1, &what.pattern);
                    prop_assert!(got == &expected[rank], "{i} {pattern:?} {format:?} rank {rank}");
                }
            }
        }
        Ok(())
    }
}

/// The bytes of a fragment in its operation's buffer.
fn place_of(accepted: &Accepted) -> std::ops::Range<usize> {
    let (size, elements) = (accepted.dtype.size(), accepted.content.elements().unwrap_or(0..0));
    elements.start as usize * size..elements.end as usize * size
}

fn encode(header: &Header, payload: &[u8]) -> Vec<u8> {
    let mut head = [0; HEADER_LEN];
    header.encode(&mut head);
    [&head[..], payload].concat()
}

fn seed_of(host: usize, operation: usize) -> u64 {
    (host as u64) << 20 | operation as u64
}

fn bits(format: Format, numel: usize, seed: u64) -> Vec<u8> {
    let mut random = Random(seed);
    let element = |i: usize| {
        let bits = random.next();
        let unit = (bits >> 40) as f32 / 8_388_608.0 - 1.0;
        let odd = i.is_multiple_of(61) && bits.is_multiple_of(4);
        let value = if odd { f32::INFINITY } else { unit * 2f32.powi((i / 8 % 60) as i32 - 30) };
        oracle::bits_of(format, bits, value)
    };
    (0..numel).flat_map(element).collect()
}

fn faults() -> impl Strategy<Value = Faults> {
    let faults = (0.0..0.08f64, 0.0..0.05f64, 0.0..0.03f64, 0..200_000u64);
    faults.prop_map(|(loss, duplication, corruption, jitter_ns)| Faults {
        loss,
        duplication,
        corruption,
        jitter_ns,
        marking: 0.0,
    })
}

fn format(random: &mut Random) -> Format {
    let words = oracle::WORDS[random.below(oracle::WORDS.len() as u64) as usize];
    if random.below(2) == 0 { words } else { SUM }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn every_sum_is_exact_and_identical_on_any_network(
        seed: u64, jobs in 1..=3u32, workers in 1..=12u8, slots in 1..=24u16,
        faults in faults(), restart: bool, start in start(),
    ) {
        let mut world = World::starting_at(start, seed, faults, (jobs, false), workers, slots);
        let mut random = Random(seed ^ 1);
        if restart {
            // An abandoned epoch, with packets still in flight.
            world.submit(0, SUM, 500);
            world.run(Time(random.below(3_000_000)), World::all_done);
            world.begin(0, 2);
            for host in &mut world.hosts[..workers.into()] {
                host.operations.clear();
                host.wake = None;
            }
        }
        for job in 0..jobs as usize {
            for _ in 0..=random.below(3) {
                let (format, numel) = (format(&mut random), 1 + random.below(300) as usize);
                world.submit(job, format, numel);
            }
        }
        prop_assert!(world.run(BOUND, World::all_done), "not done in time");
        world.check()?;
        world.check_memory(jobs)?;
    }
}

#[test]
fn the_pool_is_the_window_and_a_result_the_credit() {
    let mut world = World::new(1, Faults::default(), 1, 2, 8);
    world.submit(0, Format { dtype: Dtype::I32, op: ReduceOp::Sum }, 8 * 20);
    assert_eq!(world.hosts[0].machine.stats().sent, 8);
    assert!(world.run(BOUND, World::all_done));
    assert_eq!(world.hosts[0].machine.stats().sent, 20);
    world.submit(0, SUM, 8 * 20);
    assert!(world.run(BOUND, World::all_done));
    assert_eq!(world.hosts[0].machine.stats().sent, 20 + 8 + 20, "floats cost one batch more");
}

#[test]
fn pools_are_static() {
    let mut world = World::new(1, Faults::default(), 2, 2, 8);
    let lease = |slots| Lease {
        tree: TreeId(0),
        job: JobId(3),
        epoch: Epoch(1),
        workers: vec![PortId(70), PortId(71)],
        slots,
        fragment_bytes: ROW,
    };
    let full = LeaseError::NoMemory { needed: 2, free: 0 };
    assert_eq!(world.switch.install(Time(0), lease(1)), Err(full));
    world.switch.revoke(JobId(1), Epoch(1));
    assert_eq!(world.switch.install(Time(0), lease(8)), Ok(()));
    assert_eq!(world.switch.install(Time(0), lease(0)), Err(LeaseError::Slots));
}

#[test]
fn disagreement_and_dead_switches_are_reported() {
    let mut world = World::new(1, Faults::default(), 1, 3, 8);
    for host in 0..3 {
        let numel = if host == 1 { 101 } else { 100 };
        world.submit_at(host, SUM, numel, vec![0; numel * 4], Pattern::Allreduce);
    }
    world.run(Time(SECOND), |w| w.hosts.iter().all(|h| h.mismatch));
    assert!(world.hosts.iter().all(|h| h.mismatch));
    let mut world = World::new(1, Faults { loss: 1.0, ..Faults::default() }, 1, 3, 8);
    world.submit(0, SUM, 100);
    world.run(Time(5 * SECOND), |w| w.hosts.iter().all(|h| h.silent));
    assert!(world.hosts.iter().all(|h| h.silent));
}

#[test]
fn every_reason_to_drop_is_distinguished() {
    let mut world = World::new(1, Faults::default(), 2, 2, 4);
    let good = Header {
        tree: TreeId(0),
        parties: Parties::All,
        kind: Kind::Contribution,
        resent: false,
        arithmetic: Arithmetic::Wrapping,
        worker: 0,
        job: JobId(1),
        round: 0,
        chunk: 5,
        epoch: Epoch(1),
        slot: 0,
        n_elems: 8,
        next_exponent: 0,
    };
    let payload = [0; 64];
    let mut drop = |from: u32, header: Header| {
        let payload = &payload[..header.payload_len()];
        world.switch.handle(Time(0), PortId(from), false, &header, payload).err()
    };
    let refused = [
        (0, Header { job: JobId(7), ..good }, DropReason::NoLease),
        (0, Header { epoch: Epoch(0), ..good }, DropReason::StaleEpoch),
        (0, Header { epoch: Epoch(2), ..good }, DropReason::FutureEpoch),
        (2, good, DropReason::NotANeighbour),
        (1, good, DropReason::Members),
        (0, Header { slot: 4, ..good }, DropReason::Members),
        (0, Header { n_elems: 9, ..good }, DropReason::TooLarge),
        (0, Header { kind: Kind::Result, ..good }, DropReason::WrongDirection),
        (0, Header { round: 1, ..good }, DropReason::BeyondWindow),
        (0, Header { round: 2, ..good }, DropReason::BeyondWindow),
    ];
    for (from, header, reason) in refused {
        assert_eq!(drop(from, header), Some(reason), "{header:?}");
    }
    assert_eq!(drop(0, good), None);
    assert_eq!(drop(0, good), Some(DropReason::Duplicate));
    assert_eq!(
        drop(0, Header { round: 1, ..good }),
        Some(DropReason::BeyondWindow),
        "0 is not complete"
    );
    let other = Header { worker: 1, ..good };
    assert_eq!(drop(1, Header { chunk: 6, ..other }), Some(DropReason::Mismatch));
    assert_eq!(drop(1, other), None);
    for round in 1..3 {
        assert_eq!(drop(0, Header { round, ..good }), None);
        assert_eq!(drop(1, Header { round, ..other }), None);
    }
    assert_eq!(drop(0, good), Some(DropReason::TooOld));
    assert_eq!(
        drop(0, Header { round: 1, ..good }),
        Some(DropReason::Duplicate),
        "the shadow copy"
    );
}

#[test]
fn a_notice_names_the_worker_that_differs_from_the_first() {
    let mut switch = Switch::new(8, ROW, Rows::new(32, ROW.into()));
    let workers = vec![PortId(0), PortId(1), PortId(2)];
    let (job, epoch, slots, fragment_bytes) = (JobId(1), Epoch(1), 4, ROW);
    switch
        .install(Time(0), Lease { tree: TreeId(0), job, epoch, workers, slots, fragment_bytes })
        .unwrap();
    let (worker, workers, timeout_ns) = (2, 3, 1000);
    let config = WorkerConfig {
        copies: false,
        job,
        epoch,
        worker,
        workers,
        slots,
        fragment_bytes,
        timeout_ns,
    };
    let mut machine = Worker::new(Time(0), config);
    let format = Format { dtype: Dtype::I32, op: ReduceOp::Sum };
    let fragments = Fragments::All;
    machine.submit(Submission {
        id: 4,
        format,
        numel: 8,
        fingerprint: 0,
        fragments,
        pattern: Default::default(),
    });
    let sent = machine.poll_transmit(Time(0)).unwrap().header;
    let mut give = |from: u8, chunk: u32| {
        let header = Header { worker: from, chunk, ..sent };
        let payload = [0; ROW as usize];
        switch.handle(Time(0), PortId(from.into()), false, &header, &payload)
    };
    assert_eq!(give(0, sent.chunk), Ok(()));
    assert_eq!(give(1, sent.chunk ^ 1), Err(DropReason::Mismatch));
    for to in 0..3 {
        let notice = switch.poll_transmit().unwrap();
        assert_eq!((notice.to, notice.header.kind), (PortId(to), Kind::Mismatch));
        assert_eq!(machine.handle(Time(0), false, &notice.header), Ok(None));
    }
    assert_eq!(machine.poll_event(), Some(Event::Mismatch { id: 4, named: Some(1) }));
    assert_eq!(machine.poll_event(), None);
}
