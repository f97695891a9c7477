//! Four workers and a switch.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;
use netsum_net::Buffer;
use netsum_net::switch::{Role, SwitchDriver, SwitchOptions};
use netsum_net::udp::SocketOptions;
use netsum_net::worker::{Event, Parts, TreeOperation, WorkerDriver, WorkerPlan};
use netsum_proto::atp::{Policy, SwitchConfig};
use netsum_proto::operations::{Fragments, Submission};
use netsum_proto::panama::{Child, Lease, WorkerConfig};
use netsum_proto::{CongestionRule, Pattern};
use netsum_wire::{Dtype, Epoch, Format, JobId, Rank, ReduceOp, TreeId};

use crate::{CORES, Counted, FRAGMENT_BYTES, RANKS, cores};

const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const JOB: JobId = JobId(1);
const EPOCH: Epoch = Epoch(1);
const WINDOW: u16 = 256;
const ELEMENTS: usize = 1 << 20;
/// Operations in flight.
const AHEAD: u64 = 2;
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    Allreduce,
    ReduceScatter,
    Allgather,
}

impl Kind {
    pub const ALL: [Kind; 3] = [Kind::Allreduce, Kind::ReduceScatter, Kind::Allgather];

    fn pattern(self) -> Pattern {
        let shards = || Arc::from([(ELEMENTS / RANKS) as u64; RANKS]);
        match self {
            Kind::Allreduce => Pattern::Allreduce,
            Kind::ReduceScatter => Pattern::ReduceScatter(shards()),
            Kind::Allgather => Pattern::Allgather(shards()),
        }
    }

    /// Packets of an operation that count.
    fn packets(self) -> u64 {
        let shard = (ELEMENTS / RANKS * 4).div_ceil(FRAGMENT_BYTES.into()) as u64;
        let each = match self {
            Kind::Allreduce => {
                return (ELEMENTS * 4).div_ceil(FRAGMENT_BYTES.into()) as u64 * RANKS as u64;
            }
            Kind::ReduceScatter => RANKS,
            Kind::Allgather => RANKS - 1,
        };
        shard * RANKS as u64 * each as u64
    }
}

/// A switch on its core.
pub fn start_switch(address: IpAddr) -> SwitchDriver {
    let switch = std::thread::spawn(move || {
        // The threads of a driver inherit the core of the thread that starts it.
        cores::pin(CORES[1]);
        let policy = Policy::FirstCome;
        let slots = SwitchConfig { slots: 1, row_bytes: 4, policy, straggler_ns: 200_000_000 };
        let (bind, role) = (SocketAddr::new(address, 0), Role::Switch(slots));
        let socket = SocketOptions::default();
        SwitchDriver::start(&SwitchOptions { bind, memory: 64 << 20, role, socket, threads: 1 })
            .expect("it starts")
    });
    switch.join().expect("it starts")
}

pub struct Workers {
    switch: SwitchDriver,
    workers: Vec<(WorkerDriver, Receiver<Event>)>,
}

impl Workers {
    pub fn start() -> Workers {
        let switch = start_switch(LOCALHOST);
        cores::pin(CORES[0]);
        let workers: Vec<_> = (0..RANKS).map(|_| WorkerDriver::start(LOCALHOST).unwrap()).collect();
        let child = |(rank, (worker, _)): (usize, &(WorkerDriver, _))| Child {
            port: worker.local_addr(),
            ranks: 1 << rank,
            branch: rank as u8,
        };
        let children: Vec<_> = workers.iter().enumerate().map(child).collect();
        // A tree and its copy.
        for tree in [TreeId(0), TreeId(1)] {
            let lease = Lease {
                job: JOB,
                epoch: EPOCH,
                tree,
                children: children.clone(),
                parent: None,
                slots: WINDOW,
                fragment_bytes: FRAGMENT_BYTES,
                release_permille: 1000,
            };
            switch.install(lease).unwrap();
        }
        for (rank, (worker, _)) in workers.iter().enumerate() {
            let config = WorkerConfig {
                job: JOB,
                epoch: EPOCH,
                rank: Rank(rank as u32),
                ranks: RANKS as u32,
                trees: 2,
                copies: true,
                window_max: WINDOW,
                fragment_bytes: FRAGMENT_BYTES,
                congestion: CongestionRule::PerBranch,
                partial: false,
            };
            let switches = vec![switch.local_addr(); 2];
            worker.begin(WorkerPlan { config: config.into(), switches });
        }
        Workers { switch, workers }
    }

    /// Does operations of a kind for `time`.
    pub fn run(&self, kind: Kind, time: Duration) -> Counted {
        // Kept until all operations are done.
        let mut buffers = Vec::new();
        let mut submit = |id: u64| {
            for (worker, _) in &self.workers {
                let mut buffer = Buffer::from_vec(vec![1; 4 * ELEMENTS]);
                let submission = Submission {
                    id,
                    format: Format { dtype: Dtype::F32, op: ReduceOp::Sum },
                    numel: ELEMENTS as u64,
                    fingerprint: 7,
                    fragments: Fragments::All,
                    pattern: kind.pattern(),
                };
                let parts = Parts::from(buffer.lend_all());
                worker.submit(TreeOperation { submission, buffer: parts });
                buffers.push(buffer);
            }
        };
        (0..AHEAD).for_each(&mut submit);
        let (mut ended, mut measured) = (0, None);
        let start = Instant::now();
        while start.elapsed() < time {
            self.wait_for(ended);
            ended += 1;
            submit(ended + AHEAD - 1);
            measured.get_or_insert((ended, self.cpu()));
        }
        let (first, before) = measured.expect("operations have ended");
        let (cpu, operations) = (self.cpu() - before, ended - first);
        (ended..ended + AHEAD).for_each(|id| self.wait_for(id));
        Counted { packets: operations * kind.packets(), cpu }
    }

    fn wait_for(&self, id: u64) {
        for (_, events) in &self.workers {
            loop {
                match events.recv_timeout(PATIENCE) {
                    Ok(Event::Done { id: done, .. }) if done == id => break,
                    Ok(Event::Done { .. } | Event::Silent { .. }) => {}
                    other => panic!("operation {id}: {other:?}"),
                }
            }
        }
    }

    fn cpu(&self) -> Duration {
        let cpu = self.switch.snapshot().expect("the switch runs").cpu;
        cpu.user + cpu.system
    }
}
