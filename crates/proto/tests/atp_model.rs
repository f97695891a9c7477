//! Exhaustive model: every order of events with 3 workers, 2 fragments, and up to 2 packets lost or repeated
//! (`faults`), at any place in any order. Every worker accepts each fragment's sum once, with each worker in it once;
//! when no packets and deadlines are left, all operations are done and no slot is held.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use netsum_proto::atp::*;
use netsum_proto::values::Values;
use netsum_proto::{CongestionRule, Pattern, PortId, Time, operations};
use netsum_wire::atp::{Header, Kind, Level};
use netsum_wire::*;

/// Counts in place of numbers: worker w contributes 256^w, so a sum shows how often it contains each.
#[derive(Clone, Default, Hash)]
struct Tally(Vec<Option<u32>>);

impl Values for Tally {
    type Payload = u32;
    type Buffer = usize;

    fn store(&mut self, payload: &u32) -> Option<usize> {
        let free = self.0.iter().position(Option::is_none).unwrap_or(self.0.len());
        self.0.resize(self.0.len().max(free + 1), None);
        self.0[free] = Some(*payload);
        Some(free)
    }

    fn combine(&mut self, into: usize, _: Arithmetic, payload: &u32) -> bool {
        *self.0[into].as_mut().expect("it is stored") += payload;
        false
    }

    fn add_floats(&mut self, _: &[usize]) -> Option<usize> {
        panic!("integers only")
    }

    /// The model reads returned buffers before the next event.
    fn free(&mut self, buffer: usize) {
        FREED.with_borrow_mut(|freed| freed.push(buffer));
    }

    fn flushed(&mut self) {
        FREED.with_borrow_mut(|freed| freed.drain(..).for_each(|buffer| self.0[buffer] = None));
        let used = self.0.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
        self.0.truncate(used);
    }
}

thread_local! {
    static FREED: std::cell::RefCell<Vec<usize>> = const { std::cell::RefCell::new(Vec::new()) };
}

const WORKERS: u32 = 3;
const EVERYBODY: u32 = 0x01_01_01;
const RACK: u32 = 10;
const MIDDLE: u32 = 11;
const SERVER: u32 = 20;

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Packet {
    to: u32,
    from: u32,
    header: Header,
    value: u32,
}

#[derive(Clone)]
struct State {
    workers: Vec<Worker>,
    switches: Vec<(u32, Switch<Tally>)>,
    server: Server<Tally>,
    in_flight: Vec<Packet>,
    accepted: [[bool; 2]; WORKERS as usize],
    /// The value that each worker gets, if it takes the results.
    results: [Option<u32>; WORKERS as usize],
    faults: u32,
    now: Time,
    timeouts: u32,
    above: [u32; WORKERS as usize],
}

impl State {
    /// Three workers of one rack, or two and one at the server's own switch.
    fn new(two_levels: bool, slots: u32, policy: Policy, faults: u32, pattern: &Pattern) -> State {
        let scoped = *pattern != Pattern::Allreduce;
        let trees = || (0..if scoped { 2 } else { 1 }).map(TreeId);
        let results = [0, 1, 2].map(|rank| match pattern {
            Pattern::Reduce(to) => (to.0 == rank).then_some(EVERYBODY),
            Pattern::Broadcast(from) => Some(1 << (8 * from.0)),
            _ => Some(EVERYBODY),
        });
        let port = PortId;
        let config = SwitchConfig { slots, row_bytes: 4, policy, straggler_ns: 30_000_000 };
        let switch = |members, parent| {
            let mut switch = Switch::new(config, Tally::default());
            let claim = Claim::default();
            let (job, epoch) = (JobId(1), Epoch(1));
            let parent = port(parent);
            for tree in trees() {
                let members = Members::clone(&members);
                let lease = Lease {
                    job,
                    epoch,
                    tree,
                    members,
                    parent,
                    window: 2,
                    fragment_bytes: 4,
                    claim,
                };
                switch.install(Time(0), lease).unwrap();
            }
            switch
        };
        let rack = |workers: u32, racks| Members::Rack {
            workers: (0..workers).map(port).collect(),
            rack: 0,
            racks,
        };
        let place = |level, worker, rack_fan_in, rack, server_fan_in| WorkerPosition {
            level,
            worker,
            rack_fan_in,
            rack,
            server_fan_in,
        };
        let (switches, places, above, racks, next) = if two_levels {
            let racks =
                vec![Rack { port: port(RACK), workers: 2 }, Rack { port: port(2), workers: 1 }];
            let switches = vec![
                (RACK, switch(rack(2, 2), MIDDLE)),
                (MIDDLE, switch(Members::Server { racks }, SERVER)),
            ];
            let places = [
                place(Level::Rack, 0, 2, 0, 2),
                place(Level::Rack, 1, 2, 0, 2),
                place(Level::Server, 0, 1, 1, 2),
            ];
            (switches, places, [RACK, RACK, MIDDLE], vec![vec![0, 1], vec![2]], MIDDLE)
        } else {
            let places = [0, 1, 2].map(|worker| place(Level::Rack, worker, 3, 0, 1));
            (vec![(RACK, switch(rack(3, 1), SERVER))], places, [RACK; 3], vec![vec![0, 1, 2]], RACK)
        };
        let mut server = Server::new(4, Tally::default());
        let neighbours = vec![Neighbour {
            port: port(next),
            racks: Header::all(racks.len() as u8),
            workers: u32::MAX,
        }];
        let (job, epoch) = (JobId(1), Epoch(1));
        for tree in trees() {
            let lease = ServerLease {
                job,
                epoch,
                tree,
                racks: racks.clone(),
                neighbours: neighbours.clone(),
                window: 2,
                fragment_bytes: 4,
                slots,
            };
            server.install(Time(0), lease).unwrap();
        }
        let worker = |(place, rank)| {
            let congestion = CongestionRule::Fixed(2);
            let config = WorkerConfig {
                job,
                epoch,
                rank: Rank(rank),
                ranks: WORKERS,
                copies: scoped,
                places: trees().map(|_| place).collect(),
                window_max: 2,
                fragment_bytes: 4,
                slots,
                congestion,
                scaling: Scaling::Shared,
            };
            let mut worker = Worker::new(Time(0), config);
            let format = Format { dtype: Dtype::I32, op: ReduceOp::Sum };
            let what = operations::Submission {
                id: 0,
                format,
                numel: 2,
                fingerprint: 7,
                fragments: Fragments::All,
                pattern: pattern.clone(),
            };
            worker.submit(what);
            worker
        };
        let workers = std::iter::zip(places, 0..).map(worker).collect();
        let mut state = State {
            workers,
            switches,
            server,
            faults,
            above,
            in_flight: Vec::new(),
            accepted: [[false; 2]; 3],
            results,
            now: Time(0),
            timeouts: 0,
        };
        (0..WORKERS).for_each(|w| state.pump_worker(w));
        state
    }

    fn pump_worker(&mut self, w: u32) {
        while let Some(outgoing) = self.workers[w as usize].poll_transmit(self.now) {
            let to = self.above[w as usize];
            self.in_flight.push(Packet {
                to,
                from: w,
                header: outgoing.header,
                value: 1 << (8 * w),
            });
        }
        while let Some(event) = self.workers[w as usize].poll_event() {
            assert!(!matches!(event, Event::Mismatch { .. }));
        }
    }

    fn send(&mut self, from: u32, sent: Vec<Transmit<usize>>, values: &Tally) {
        for Transmit { to, header, payload } in sent {
            let value = payload.map_or(0, |p| values.0[p].expect("it is stored"));
            self.in_flight.push(Packet { to: to.0, from, header, value });
        }
    }

    fn pump_switch(&mut self, i: usize) {
        let (node, switch) = &mut self.switches[i];
        let node = *node;
        let sent: Vec<_> = std::iter::from_fn(|| switch.poll_transmit()).collect();
        let values = switch.values().clone();
        switch.values_mut().flushed();
        self.send(node, sent, &values);
    }

    fn deliver(&mut self, packet: Packet) {
        let from = PortId(packet.from);
        if packet.to < WORKERS {
            let worker = &mut self.workers[packet.to as usize];
            let result = self.results[packet.to as usize];
            let accepted = worker.handle(self.now, false, &packet.header).ok().flatten();
            if accepted.is_some() {
                assert_eq!(Some(packet.value), result, "each worker once");
            }
            let settled = worker.poll_settled();
            assert!(settled.is_none() || result.is_none(), "it has the elements");
            if accepted.or(settled).is_some() {
                let number = packet.header.sequence.0 as usize;
                let place = &mut self.accepted[packet.to as usize][number];
                assert!(!std::mem::replace(place, true), "accepted once");
            }
            self.pump_worker(packet.to);
        } else if packet.to == SERVER {
            let _ = self.server.handle(self.now, from, false, &packet.header, &packet.value);
            let sent: Vec<_> = std::iter::from_fn(|| self.server.poll_transmit()).collect();
            let values = self.server.values().clone();
            self.server.values_mut().flushed();
            self.send(SERVER, sent, &values);
        } else {
            let i = self.switches.iter().position(|(node, _)| *node == packet.to).unwrap();
            let _ = self.switches[i].1.handle(self.now, from, false, &packet.header, &packet.value);
            self.pump_switch(i);
        }
    }

    /// No packet is in flight: time passes to the next deadline. False if there is none.
    fn pass_time(&mut self) -> bool {
        let workers = self.workers.iter().filter_map(Worker::poll_timeout);
        let switches = self.switches.iter().filter_map(|(_, s)| s.poll_timeout());
        let Some(next) = workers.chain(switches).min() else { return false };
        self.now = next.max(self.now);
        self.timeouts += 1;
        assert!(self.timeouts < 60, "it ends once the faults have ended");
        for w in 0..WORKERS {
            self.workers[w as usize].handle_timeout(self.now);
            self.pump_worker(w);
        }
        for i in 0..self.switches.len() {
            self.switches[i].1.handle_timeout(self.now);
            self.pump_switch(i);
        }
        true
    }

    fn digest(&self) -> u64 {
        let mut state = DefaultHasher::new();
        self.workers.iter().for_each(|w| w.digest(&mut state));
        self.switches.iter().for_each(|(_, s)| s.digest(&mut state));
        self.server.digest(&mut state);
        // Independent of order.
        let each = |p: &Packet| {
            let mut hasher = DefaultHasher::new();
            p.hash(&mut hasher);
            hasher.finish()
        };
        let in_flight = self.in_flight.iter().map(each).fold(0u64, u64::wrapping_add);
        (in_flight, self.in_flight.len(), self.accepted, self.faults, self.now).hash(&mut state);
        state.finish()
    }

    /// Whether a packet can be handled before all others: it has no effect, or it is the last result that its worker
    /// lacks, after which no packet changes the worker. Either way other orders lead to the same states, because time
    /// passes only if no packet is in flight.
    fn is_inert(&self, packet: &Packet) -> bool {
        let Some(accepted) = self.accepted.get(packet.to as usize) else { return false };
        let lacks = accepted.iter().filter(|&&a| !a).count();
        let new = !accepted[packet.header.sequence.0 as usize];
        let completes = matches!(packet.header.kind, Kind::Result | Kind::Done);
        let alone = !new && packet.header.others == 0;
        lacks == 0 || alone || completes && lacks == 1
    }

    /// Visits all possible next states.
    fn successors(&self, mut then: impl FnMut(State)) {
        // Requests arrive before all else, or not at all: with every order of them there are ten times as many states,
        // and the tests with a random network have those.
        let at_once = |p: &Packet| p.header.kind == Kind::Missing || self.is_inert(p);
        let first = self.in_flight.iter().position(at_once);
        let mut seen = HashSet::new();
        for (i, &packet) in self.in_flight.iter().enumerate() {
            if first.is_some_and(|first| first != i) || !seen.insert(packet) {
                continue;
            }
            let mut gone = self.clone();
            gone.in_flight.swap_remove(i);
            let useless = first.is_some()
                && packet.header.others == 0
                && self
                    .accepted
                    .get(packet.to as usize)
                    .is_some_and(|accepted| accepted[packet.header.sequence.0 as usize]);
            if self.faults > 0 && !useless {
                if first.is_none() {
                    let mut repeated = self.clone();
                    repeated.faults -= 1;
                    repeated.deliver(packet);
                    then(repeated);
                }
                let mut lost = gone.clone();
                lost.faults -= 1;
                then(lost);
            }
            gone.deliver(packet);
            then(gone);
        }
    }
}

/// Visits every reachable state; returns their number.
fn explore(start: State) -> usize {
    let mut seen = HashSet::from([start.digest()]);
    let mut open = vec![start];
    while let Some(mut state) = open.pop() {
        if state.in_flight.is_empty() {
            if state.pass_time() {
                if seen.insert(state.digest()) {
                    open.push(state);
                }
                continue;
            }
            assert_eq!(state.accepted, [[true; 2]; WORKERS as usize], "all is done");
            assert!(state.switches.iter().all(|(_, s)| s.held() == 0), "all slots are free");
            continue;
        }
        state.successors(|next| {
            if seen.insert(next.digest()) {
                open.push(next);
            }
        });
    }
    seen.len()
}

/// Number of faults in this run: `make model` allows two everywhere, which takes minutes.
fn faults(usual: u32) -> u32 {
    let wanted = std::env::var("NETSUM_MODEL_FAULTS").ok();
    wanted.map_or(usual, |text| text.parse().expect("NETSUM_MODEL_FAULTS is a number"))
}

fn check(two_levels: bool, slots: u32, policy: Policy, usual_faults: u32) {
    check_pattern(two_levels, slots, policy, usual_faults, &Pattern::Allreduce);
}

fn check_pattern(
    two_levels: bool,
    slots: u32,
    policy: Policy,
    usual_faults: u32,
    pattern: &Pattern,
) {
    let start = State::new(two_levels, slots, policy, faults(usual_faults), pattern);
    let states = explore(start);
    println!("{states} states");
    assert!(states > 1000, "the world came to nothing after {states} states");
}

#[test]
fn one_rack_and_a_slot_for_each_fragment() {
    check(false, 8, Policy::FirstCome, 2);
}

#[test]
fn one_rack_and_one_slot_for_both_fragments() {
    check(false, 1, Policy::FirstCome, 1);
}

#[test]
fn one_rack_whose_fragments_collide() {
    check(false, 1, Policy::Preempt { patience_ns: 0 }, 0);
}

#[test]
fn two_levels_and_one_slot() {
    check(true, 1, Policy::FirstCome, 0);
}

#[test]
fn one_worker_takes_the_sum() {
    for (two_levels, slots, faults) in [(false, 8, 1), (false, 1, 0), (true, 8, 0)] {
        let pattern = Pattern::Reduce(Rank(1));
        check_pattern(two_levels, slots, Policy::FirstCome, faults, &pattern);
    }
}

#[test]
fn one_worker_sends_to_all() {
    for (two_levels, rank) in [(false, 0), (true, 0), (true, 2)] {
        let pattern = Pattern::Broadcast(Rank(rank));
        check_pattern(two_levels, 1, Policy::FirstCome, 1, &pattern);
    }
}
