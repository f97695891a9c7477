//! Real drivers on loopback, put together as a controller would.

#![allow(dead_code)] // Each test file uses its part.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;
use netsum_net::Buffer;
use netsum_net::switch::{Role, SwitchDriver, SwitchOptions};
use netsum_net::udp::SocketOptions;
use netsum_net::worker::{Event, TreeOperation, WorkerDriver, WorkerPlan};
use netsum_proto::CongestionRule;
use netsum_proto::atp::{Policy, SwitchConfig};
use netsum_proto::panama::{Child, Fragments, Lease, Submission, WorkerConfig};
use netsum_wire::{Dtype, Encoding, Epoch, Format, Input, JobId, Rank, ReduceOp, TreeId, reduce};

pub const JOB: JobId = JobId(7);
pub const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
pub const FRAGMENT_BYTES: u16 = 1408;
pub const WINDOW: u16 = 128;

/// Several seconds even on a busy machine; every wait is bounded by it.
pub const PATIENCE: Duration = Duration::from_secs(20);

pub struct Member {
    pub driver: WorkerDriver,
    pub events: Receiver<Event>,
}

pub fn switch() -> SwitchDriver {
    switch_with(64 << 20)
}

pub fn switch_with(memory: u64) -> SwitchDriver {
    switch_of(1, memory)
}

/// A switch with so many threads.
pub fn switch_of(threads: usize, memory: u64) -> SwitchDriver {
    SwitchDriver::start(&SwitchOptions {
        bind: SocketAddr::new(LOCAL, 0),
        memory,
        role: slots(64, 1408),
        socket: SocketOptions::default(),
        threads,
    })
    .unwrap()
}

/// A switch with so many slots for whoever comes first.
pub fn slots(slots: u32, row_bytes: u16) -> Role {
    let (policy, straggler_ns) = (Policy::FirstCome, 200_000_000);
    Role::Switch(SwitchConfig { slots, row_bytes, policy, straggler_ns })
}

pub fn members(n: usize) -> Vec<Member> {
    let start = |_| {
        let (driver, events) = WorkerDriver::start(LOCAL).unwrap();
        Member { driver, events }
    };
    (0..n).map(start).collect()
}

pub fn lease(
    epoch: u16,
    tree: u8,
    children: &[(SocketAddr, u64)],
    parent: Option<SocketAddr>,
) -> Lease<SocketAddr> {
    let child = |(i, &(address, ranks)): (usize, &(SocketAddr, u64))| Child {
        port: address,
        ranks,
        branch: i as u8,
    };
    Lease {
        job: JOB,
        epoch: Epoch(epoch),
        tree: TreeId(tree),
        children: children.iter().enumerate().map(child).collect(),
        parent,
        slots: WINDOW,
        fragment_bytes: FRAGMENT_BYTES,
        release_permille: 1000,
    }
}

/// A star: every switch is the root of one tree over all members.
pub fn star(epoch: u16, switches: &[&SwitchDriver], members: &[Member]) {
    star_starting_at(0, epoch, switches, members);
}

/// The same, whose trees have `first` sums behind them.
pub fn star_starting_at(first: u64, epoch: u16, switches: &[&SwitchDriver], members: &[Member]) {
    let children: Vec<_> =
        members.iter().enumerate().map(|(rank, m)| (m.driver.local_addr(), 1 << rank)).collect();
    for (tree, switch) in switches.iter().enumerate() {
        let lease = lease(epoch, tree as u8, &children, None);
        switch.install_starting_at(lease, None, first).unwrap();
    }
    let addresses: Vec<_> = switches.iter().map(|s| s.local_addr()).collect();
    for rank in 0..members.len() {
        begin_starting_at(first, epoch, members, rank, &addresses);
    }
}

pub fn begin(epoch: u16, members: &[Member], rank: usize, switches: &[SocketAddr]) {
    begin_starting_at(0, epoch, members, rank, switches);
}

fn begin_starting_at(
    first: u64,
    epoch: u16,
    members: &[Member],
    rank: usize,
    switches: &[SocketAddr],
) {
    let plan = WorkerPlan {
        config: WorkerConfig {
            job: JOB,
            epoch: Epoch(epoch),
            rank: Rank(rank as u32),
            ranks: members.len() as u32,
            trees: switches.len() as u8,
            copies: false,
            window_max: WINDOW,
            fragment_bytes: FRAGMENT_BYTES,
            congestion: CongestionRule::PerBranch,
            partial: false,
        }
        .into(),
        switches: switches.to_vec(),
    };
    members[rank].driver.begin_starting_at(plan, None, first);
}

/// An operation whose buffer the test keeps.
pub struct Operation {
    pub submission: Submission,
    pub buffer: Buffer,
}

impl From<Operation> for TreeOperation {
    fn from(input: Operation) -> TreeOperation {
        TreeOperation { submission: input.submission, buffer: input.buffer.into() }
    }
}

pub fn operation(id: u64, format: Format, bytes: &[u8]) -> Operation {
    Operation {
        submission: Submission {
            id,
            format,
            numel: (bytes.len() / format.dtype.size()) as u64,
            fingerprint: 0x5eed ^ id as u32,
            fragments: Fragments::All,
            pattern: Default::default(),
        },
        buffer: Buffer::from_vec(bytes.to_vec()),
    }
}

/// Submits an operation; its buffer, to be read when it is done.
pub fn submit(member: &Member, operation: Operation) -> Buffer {
    let Operation { submission, mut buffer } = operation;
    member.driver.submit(TreeOperation { submission, buffer: buffer.lend_all().into() });
    buffer
}

pub fn bytes_of(buffer: &Buffer) -> Vec<u8> {
    buffer.slice(0..buffer.len()).to_vec()
}

/// Waits until `id` is done; other operations may end meanwhile, nothing else may happen.
pub fn wait_done(member: &Member, id: u64) {
    let end = Instant::now() + PATIENCE;
    loop {
        match member.events.recv_deadline(end) {
            Ok(Event::Done { id: done, missing }) => {
                assert_eq!(missing, 0);
                if done == id {
                    return;
                }
            }
            Ok(Event::Silent { .. }) => {}
            other => panic!("waiting for operation {id}: {other:?}"),
        }
    }
}

/// Numbers whose sum depends on the order of additions, different at every rank.
pub fn numbers(dtype: Dtype, rank: usize, numel: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64.wrapping_mul(rank as u64 + 1);
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let real = |x: u64| ((x >> 40) as f32 / 1e6 - 8.0) * 2f32.powi((x & 15) as i32 - 8);
    let mut bytes = Vec::new();
    for _ in 0..numel {
        let x = next();
        match dtype {
            Dtype::F32 => bytes.extend(real(x).to_le_bytes()),
            Dtype::F16 => bytes.extend(half::f16::from_f32(real(x)).to_le_bytes()),
            Dtype::Bf16 => bytes.extend(half::bf16::from_f32(real(x)).to_le_bytes()),
            Dtype::I32 => bytes.extend((x as i32).to_le_bytes()),
            _ => bytes.extend((x as i64).to_le_bytes()),
        }
    }
    bytes
}

/// The balanced sum over positions, of elements or of partials.
pub fn combine(format: Format, inputs: &[(Vec<u8>, Encoding)], out: Encoding) -> Vec<u8> {
    let first = &inputs[0];
    let n = first.0.len() / first.1.size(format.dtype);
    let inputs: Vec<_> =
        inputs.iter().map(|(bytes, encoding)| Some(Input { bytes, encoding: *encoding })).collect();
    let mut sum = vec![0; n * out.size(format.dtype)];
    reduce(format, &inputs, n, &mut sum, out);
    sum
}

/// What a star of `ranks` workers must get.
pub fn expected(format: Format, ranks: usize, numel: usize) -> Vec<u8> {
    let inputs: Vec<_> =
        (0..ranks).map(|rank| (numbers(format.dtype, rank, numel), Encoding::Element)).collect();
    combine(format, &inputs, Encoding::Element)
}

pub fn format(dtype: Dtype, op: ReduceOp) -> Format {
    Format { dtype, op }
}
