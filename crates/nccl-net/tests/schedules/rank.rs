//! A rank: for each communicator a thread that does what NCCL's proxy thread does.

use std::collections::VecDeque;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::api::{self, CollNet, Net, Window, log};
use crate::bootstrap::{HANDLE, exchange, tell_progress};
use crate::counts::Counts;
use crate::held::Held;
use crate::oracle::{self, MAX, SUM, Values};
use crate::random::Random;
use crate::schedule::{Communicator, Kind, Operation, Plan};

pub struct Rank {
    rank: usize,
    meeting: PathBuf,
    collnet: CollNet,
    net: Net,
    counts: Counts,
}

/// An operation that was started, and what must come out.
struct Running {
    operation: Operation,
    request: usize,
    expected: Vec<u8>,
    memory: Memory,
    /// Where in `receive` the result is.
    result: Range<usize>,
}

/// Send and receive memory with guards around; in place, everything is in `receive`.
struct Memory {
    send: Vec<u8>,
    receive: Vec<u8>,
    registrations: [usize; 2],
}

const GUARD: usize = 64;
const GUARD_BYTE: u8 = 0xa5;
const HOST_MEMORY: i32 = 1;
const CUDA_MEMORY: i32 = 2;
const INVALID_ARGUMENT: i32 = 4;
const REMOTE_ERROR: i32 = 6;
const BYTE: i32 = 1;
const FLOAT: i32 = 7;

fn guarded(bytes: &[u8]) -> Vec<u8> {
    [&[GUARD_BYTE; GUARD], bytes, &[GUARD_BYTE; GUARD]].concat()
}

fn inner(memory: &mut [u8]) -> *mut u8 {
    memory[GUARD..].as_mut_ptr()
}

fn check_guards(memory: &[u8], what: &str) {
    let guards = memory[..GUARD].iter().chain(&memory[memory.len() - GUARD..]);
    assert!(guards.copied().all(|byte| byte == GUARD_BYTE), "{what}: bytes beside the result");
}

impl Rank {
    pub fn new(rank: usize, meeting: String, version: u32) -> Rank {
        let (collnet, net) = api::load(version);
        Rank { rank, meeting: meeting.into(), collnet, net, counts: Counts::default() }
    }

    /// Runs schedules, so many at once; sums must have gone through switches, and nothing may be left of a
    /// communicator.
    pub fn run(&self, first: u64, count: u64, at_once: u64) {
        // The first ones run alone: what a process has from its first communicator on is there then.
        let (mut number, end) = (first, first + count);
        while number < end && self.counts.communicators() == 0 {
            self.schedule(number);
            number += 1;
        }
        let before = Held::at_rest();
        // All ranks take the schedules in the same order, so that one whose ranks have all begun it can end.
        let next = AtomicU64::new(number);
        std::thread::scope(|scope| {
            for _ in 0..at_once {
                scope.spawn(|| {
                    while let number = next.fetch_add(1, Ordering::Relaxed)
                        && number < end
                    {
                        self.schedule(number);
                    }
                });
            }
        });
        let after = before.come_back();
        let (in_switches, by_hosts) = api::operations();
        assert!(in_switches > 0, "no switch has added: {:?}", log());
        let heap = after.heap.saturating_sub(before.heap);
        self.counts.write(&self.meeting, self.rank, [in_switches, by_hosts, heap as u64]);
    }

    fn schedule(&self, number: u64) {
        let plan = Plan::draw(number, |datatype, op| self.collnet.supports(datatype, op));
        std::thread::scope(|scope| {
            for communicator in &plan.communicators {
                if communicator.members.contains(&self.rank) {
                    scope.spawn(move || self.proxy(number, communicator));
                }
            }
        });
        tell_progress(&self.meeting);
    }

    fn join(&self, id: u64, members: &[usize], what: &str) -> (usize, usize) {
        let (collnet, size) = (self.collnet, members.len());
        let index = members.iter().position(|&member| member == self.rank).unwrap();
        self.net.init().unwrap();
        assert_eq!(self.net.devices(), 1);
        collnet.init().unwrap();
        assert_eq!(collnet.devices(), 1);
        let (kinds, largest) = collnet.limits();
        assert_eq!(kinds, HOST_MEMORY);
        assert!(largest > 1 << 20);
        let mut handle = [0; HANDLE];
        let listening = collnet.listen(&mut handle).unwrap();
        let mut all = exchange(&self.meeting, id << 1, (index, size), &handle);
        let communicator = collnet.connect(&mut all, index, listening);
        let communicator =
            communicator.unwrap_or_else(|code| panic!("{what}: connect: code {code}: {:?}", log()));
        collnet.close_listen(listening).unwrap();
        (communicator, index)
    }

    fn proxy(&self, number: u64, plan: &Communicator) {
        let cancels = if plan.cancels { ", which is cancelled" } else { "" };
        let what = format!("schedule {number}, rank {} of {:?}{cancels}", self.rank, plan.members);
        let (communicator, index) = self.join(plan.id, &plan.members, &what);
        let messages = Messages::connect(self, plan, index);
        let mut delays = Random::new(plan.id, 1000 + self.rank as u64);
        let mut running: VecDeque<Running> = VecDeque::new();
        let mut waiting = plan.operations.iter();
        let mut next = waiting.next();
        while next.is_some() || !running.is_empty() {
            if delays.one_in(16) {
                std::thread::sleep(Duration::from_micros(delays.bits() % 3000));
            }
            if let Some(operation) = next.filter(|_| running.len() < plan.window) {
                running.push_back(self.start(communicator, *operation, index, plan.members.len()));
                next = waiting.next();
            }
            if plan.cancels && next.is_none() {
                break;
            }
            let place = if running.is_empty() { continue } else { delays.below(running.len()) };
            let tested = self.collnet.test(running[place].request);
            if plan.cancels && tested == Err(REMOTE_ERROR) {
                // Another rank has closed it already.
                drop(running.remove(place));
                break;
            }
            let tested = tested.unwrap_or_else(|code| panic!("{what}: code {code}: {:?}", log()));
            if let Some(bytes) = tested {
                let ended = running.remove(place).unwrap();
                self.check(communicator, ended, bytes, &what);
            } else {
                std::thread::yield_now();
            }
        }
        self.counts.communicator(plan, running.len());
        messages.run(&mut delays, &what);
        // What NCCL has not seen done when it closes a communicator fails, and does not use the memory any more.
        self.collnet.close(communicator).unwrap();
        for ended in running {
            assert_eq!(self.collnet.test(ended.request), Err(INVALID_ARGUMENT), "{what}");
        }
        assert_eq!(self.collnet.close(communicator), Err(INVALID_ARGUMENT));
        self.collnet.finalize();
    }

    fn start(
        &self,
        communicator: usize,
        operation: Operation,
        index: usize,
        ranks: usize,
    ) -> Running {
        let Operation { kind, in_place, datatype, op, count, wild, seed, .. } = operation;
        let element = oracle::size(datatype);
        let values = Values { datatype, wild, seed };
        let each = operation.bytes();
        let (first, elements) = operation.window;
        let window = first..first + elements;
        let (begin, end) = (window.start * element, window.end * element);
        // Elements of the window that are a rank's.
        let part = |rank: usize| {
            let (first, last) = (rank * count, (rank + 1) * count);
            first.clamp(window.start, window.end)..last.clamp(window.start, window.end)
        };
        let mine = part(index);
        let all = |range: std::ops::Range<usize>| -> Vec<Vec<u8>> {
            (0..ranks).map(|rank| values.of(rank, range.clone())).collect()
        };
        let (send, expected) = match kind {
            Kind::Allreduce => {
                let mut all = all(0..count);
                let expected = oracle::combined(datatype, op, &all);
                (all.swap_remove(index), expected)
            }
            Kind::Allgather => {
                let parts = (0..ranks).map(|rank| {
                    let part = part(rank);
                    values.of(rank, part.start - rank * count..part.end - rank * count)
                });
                let parts: Vec<Vec<u8>> = parts.collect();
                let expected = parts.concat();
                (parts[index].clone(), expected)
            }
            Kind::ReduceScatter => {
                let sums = oracle::combined(datatype, op, &all(mine.clone()));
                (values.of(index, window.clone()), sums)
            }
        };
        let receive_bytes = expected.len();
        // In place, a rank's part is where NCCL has it: at its place in the window.
        let shift = (mine.start - window.start) * element;
        let (first, result) = match (in_place, kind) {
            (false, _) => (vec![0x33; receive_bytes], 0..receive_bytes),
            (true, Kind::Allreduce) => (send.clone(), 0..receive_bytes),
            (true, Kind::Allgather) => {
                let mut first = vec![0x33; receive_bytes];
                first[shift..shift + send.len()].copy_from_slice(&send);
                (first, 0..receive_bytes)
            }
            (true, Kind::ReduceScatter) => (send.clone(), shift..shift + receive_bytes),
        };
        let mut memory =
            Memory { send: guarded(&send), receive: guarded(&first), registrations: [0; 2] };
        let registrations = [&mut memory.send, &mut memory.receive]
            .map(|memory| self.collnet.register(communicator, memory, HOST_MEMORY).unwrap());
        memory.registrations = registrations;
        let to = inner(&mut memory.receive).wrapping_add(result.start);
        let from = match (in_place, kind) {
            (false, _) => inner(&mut memory.send),
            (true, Kind::Allreduce | Kind::ReduceScatter) => inner(&mut memory.receive),
            (true, Kind::Allgather) => to.wrapping_add(shift),
        };
        let window = Window { bytes_per_rank: each, offset: begin, bytes: end - begin };
        let [registration, _] = registrations;
        let started = match kind {
            Kind::Allreduce => {
                self.collnet.iallreduce(communicator, from, to, count, datatype, op, registration)
            }
            Kind::Allgather => {
                self.collnet.iallgather(communicator, from, to, window, registration)
            }
            Kind::ReduceScatter => {
                let (collnet, r) = (self.collnet, registration);
                collnet.ireducescatter(communicator, from, to, window, datatype, op, r)
            }
        };
        let request = started.unwrap_or_else(|code| panic!("code {code}: {:?}", log()));
        assert_ne!(request, 0, "fewer operations than NCCL may start run");
        Running { operation, request, expected, memory, result }
    }

    fn check(&self, communicator: usize, ended: Running, bytes: usize, what: &str) {
        self.counts.operation();
        let Running { operation, expected, mut memory, result, .. } = ended;
        let what = format!("{what}: {operation:?}");
        check_guards(&memory.receive, &what);
        check_guards(&memory.send, &what);
        let result = &memory.receive[GUARD + result.start..GUARD + result.end];
        assert_eq!(bytes, expected.len(), "{what}");
        if result != expected {
            let element = oracle::size(operation.datatype);
            let wrong = result.iter().zip(&expected).position(|(a, b)| a != b).unwrap() / element;
            let at = wrong * element..(wrong + 1) * element;
            let (have, want) = (&result[at.clone()], &expected[at]);
            panic!("{what}: element {wrong} is {have:?}, not {want:?}");
        }
        let [_, registration] = memory.registrations;
        let to = inner(&mut memory.receive);
        assert_eq!(self.collnet.iflush(communicator, to, bytes, registration), 0, "host memory");
        for registration in memory.registrations {
            self.collnet.deregister(communicator, registration).unwrap();
        }
    }

    /// Reduce-scatters and all-gathers, which run in switches or between hosts.
    pub fn scatters_and_gathers(&self, in_switches: bool) {
        const EACH: usize = 3;
        let (communicator, index) = self.join(1, &[0, 1, 2, 3], "all ranks");
        let count = 20_000;
        for seed in 0..EACH as u64 {
            for kind in [Kind::ReduceScatter, Kind::Allgather] {
                let (datatype, op, window) = (FLOAT, SUM, (0, count * 4));
                let operation = Operation {
                    kind,
                    in_place: false,
                    datatype,
                    op,
                    count,
                    window,
                    wild: true,
                    seed,
                };
                let started = self.start(communicator, operation, index, 4);
                let bytes = self.wait(started.request).unwrap();
                self.check(communicator, started, bytes, "NETSUM_COLLECTIVES");
            }
        }
        self.collnet.close(communicator).unwrap();
        let (network, hosts) = if in_switches { (2 * EACH, 0) } else { (0, 2 * EACH) };
        let words = format!(": {network} operations in switches, {hosts} by hosts");
        let log = log();
        assert!(log.iter().any(|line| line.ends_with(&words)), "{words}: {log:?}");
    }

    /// Rank 3 ends in the middle of a communicator: the others are told, and can close it.
    pub fn sees_a_death(&self) {
        let (communicator, index) = self.join(1, &[0, 1, 2, 3], "all ranks");
        let operation = |seed| Operation {
            kind: Kind::Allreduce,
            in_place: false,
            datatype: FLOAT,
            op: SUM,
            count: 50_000,
            window: (0, 0),
            wild: true,
            seed,
        };
        let first = self.start(communicator, operation(1), index, 4);
        let bytes = self.wait(first.request).unwrap();
        self.check(communicator, first, bytes, "before the death");
        if self.rank == 3 {
            std::process::exit(0);
        }
        let second = self.start(communicator, operation(2), index, 4);
        assert_eq!(self.wait(second.request), Err(REMOTE_ERROR));
        let said = log().iter().any(|line| line.contains("rank 3"));
        assert!(said, "{:?}", log());
        self.collnet.close(communicator).unwrap();
    }

    fn wait(&self, request: usize) -> Result<usize, i32> {
        loop {
            if let Some(bytes) = self.collnet.test(request)? {
                return Ok(bytes);
            }
            std::thread::yield_now();
        }
    }

    pub fn calls_wrongly(&self) {
        let (communicator, _) = self.join(1, &[0, 1, 2, 3], "all ranks");
        let (collnet, mut memory) = (self.collnet, vec![0; 64]);
        assert_eq!(collnet.register(communicator, &mut memory, CUDA_MEMORY), Err(INVALID_ARGUMENT));
        let of_device = collnet.register_dma_buf(communicator, &mut memory, CUDA_MEMORY, 3);
        assert_eq!(of_device, Err(INVALID_ARGUMENT));
        let at = memory.as_mut_ptr();
        let sum = |comm, to, count, datatype, op| {
            collnet.iallreduce(comm, at, to, count, datatype, op, 0)
        };
        assert_eq!(sum(communicator + 1_000_000, at, 4, FLOAT, SUM), Err(INVALID_ARGUMENT));
        assert_eq!(sum(communicator, std::ptr::null_mut(), 4, FLOAT, SUM), Err(INVALID_ARGUMENT));
        assert_eq!(sum(communicator, at, 4, 99, SUM), Err(INVALID_ARGUMENT));
        assert_eq!(sum(communicator, at, 4, FLOAT, 99), Err(INVALID_ARGUMENT));
        assert_eq!(sum(communicator, at, 1 << 30, FLOAT, MAX), Err(INVALID_ARGUMENT));
        let window = |bytes_per_rank, offset, bytes| Window { bytes_per_rank, offset, bytes };
        let outside = window(4, 8, 16);
        assert_eq!(collnet.iallgather(communicator, at, at, outside, 0), Err(INVALID_ARGUMENT));
        let cut = window(6, 0, 24);
        let scattered = collnet.ireducescatter(communicator, at, at, cut, FLOAT, SUM, 0);
        assert_eq!(scattered, Err(INVALID_ARGUMENT));
        assert!(collnet.test(77).is_err());
        assert!(!collnet.supports(99, SUM) && !collnet.supports(FLOAT, 99));
        assert!(collnet.supports(FLOAT, SUM));
        let strange = &mut [[7; HANDLE]];
        let listening = collnet.listen(&mut [0; HANDLE]).unwrap();
        assert_eq!(collnet.connect(strange, 0, listening), Err(INVALID_ARGUMENT));
        // NCCL does not close what listened if connecting failed.
        assert_eq!(collnet.close_listen(listening), Err(INVALID_ARGUMENT));
        let log = log();
        for words in [
            "is not the host's",
            "sockets send from the host's memory alone",
            "datatype 99 does not exist",
            "cuts elements of 4 bytes",
        ] {
            assert!(log.iter().any(|line| line.contains(words)), "{words}: {log:?}");
        }
        self.collnet.close(communicator).unwrap();
        self.loses_a_connection();
    }

    /// A connection of messages fails, another one is closed: the first one's messages say why it failed.
    fn loses_a_connection(&self) {
        let net = self.net;
        let connect = || {
            let mut handle = [0; HANDLE];
            let listening = net.listen(&mut handle).unwrap();
            let (mut sender, mut receiver) = (0, 0);
            while sender == 0 || receiver == 0 {
                if sender == 0 {
                    sender = net.connect(&mut handle).unwrap();
                }
                if receiver == 0 {
                    receiver = net.accept(listening).unwrap();
                }
            }
            net.close_listen(listening).unwrap();
            (sender, receiver)
        };
        let ((lost, receiver), (other, another)) = (connect(), connect());
        let mut memory = [[0; 64]; 3];
        let [first, second, third] = &mut memory;
        let message = net.isend(lost, first.as_mut_ptr(), 64).unwrap();
        while net.test(message).unwrap().is_none() {}
        let received = [first, second, third]
            .map(|memory| net.irecv(receiver, memory.as_mut_ptr(), 64).unwrap());
        net.close_send(lost).unwrap();
        let until = |request| {
            loop {
                match net.test(request) {
                    Ok(None) => std::thread::yield_now(),
                    ended => return ended,
                }
            }
        };
        assert_eq!(until(received[1]), Err(REMOTE_ERROR));
        net.close_send(other).unwrap();
        net.close_receive(another).unwrap();
        assert_eq!(until(received[0]), Ok(Some(64)), "it had arrived");
        assert_eq!(until(received[2]), Err(REMOTE_ERROR));
        net.close_receive(receiver).unwrap();
    }
}

/// Messages from each member to the next, over the other interface of the plug-in.
struct Messages<'a> {
    net: Net,
    plan: &'a Communicator,
    index: usize,
    sender: usize,
    receiver: usize,
}

impl<'a> Messages<'a> {
    fn connect(rank: &Rank, plan: &'a Communicator, index: usize) -> Messages<'a> {
        let (net, size) = (rank.net, plan.members.len());
        let mut handle = [0; HANDLE];
        let listening = net.listen(&mut handle).unwrap();
        let all = exchange(&rank.meeting, plan.id << 1 | 1, (index, size), &handle);
        let mut next = all[(index + 1) % size];
        let (mut sender, mut receiver) = (0, 0);
        while sender == 0 || receiver == 0 {
            if sender == 0 {
                sender = net.connect(&mut next).unwrap();
            }
            if receiver == 0 {
                receiver = net.accept(listening).unwrap();
            }
            std::thread::yield_now();
        }
        net.close_listen(listening).unwrap();
        Messages { net, plan, index, sender, receiver }
    }

    fn run(self, delays: &mut Random, what: &str) {
        let Messages { net, plan, index, sender, receiver } = self;
        let size = plan.members.len();
        let before = (index + size - 1) % size;
        let text = |from: usize, at: usize| {
            let seed = plan.id << 8 | at as u64;
            Values { datatype: BYTE, wild: false, seed }.of(from, 0..plan.messages[at])
        };
        let count = plan.messages.len();
        let mut sent: Vec<Vec<u8>> = (0..count).map(|at| text(index, at)).collect();
        // A message may be shorter than the memory for it.
        let longest = plan.messages.iter().copied().max().unwrap_or(0);
        let mut received: Vec<Vec<u8>> =
            (0..count).map(|_| guarded(&vec![0x33; longest])).collect();
        let mut requests = Vec::new();
        for at in 0..count {
            let memory = inner(&mut received[at]);
            requests.push((net.irecv(receiver, memory, longest).unwrap(), at));
            let bytes = sent[at].len();
            requests.push((net.isend(sender, sent[at].as_mut_ptr(), bytes).unwrap(), at));
        }
        while !requests.is_empty() {
            let place = delays.below(requests.len());
            let (request, at) = requests[place];
            assert_ne!(request, 0, "{what}");
            let tested = net.test(request);
            let tested = tested.unwrap_or_else(|code| panic!("{what}: code {code}: {:?}", log()));
            if let Some(bytes) = tested {
                assert_eq!(bytes, plan.messages[at], "{what}");
                requests.remove(place);
            } else if delays.one_in(8) {
                // The others' sums may take longer.
                std::thread::sleep(Duration::from_micros(delays.bits() % 500));
            } else {
                std::thread::yield_now();
            }
        }
        for (at, memory) in received.iter().enumerate() {
            check_guards(memory, what);
            let bytes = plan.messages[at];
            assert!(memory[GUARD..GUARD + bytes] == text(before, at), "{what}: message {at}");
        }
        net.close_send(sender).unwrap();
        net.close_receive(receiver).unwrap();
        assert_eq!(net.close_receive(receiver), Err(INVALID_ARGUMENT));
    }
}
