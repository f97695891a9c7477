//! Protocol `switchml` as the simulator drives it: a pool of slots at one switch.

use std::marker::PhantomData;

use netsum_lease::{Granted, Terms, leases};
use netsum_proto::atp::Claim;
use netsum_proto::switchml::{Switch, Worker, WorkerConfig};
use netsum_proto::{Aggregator, Lease, PortId, Time, WorkerMachine};
use netsum_topo::{AggregationTree, Child, TreeNode};
use netsum_wire::switchml::Header;
use netsum_wire::{Epoch, Format, JobId, TreeId};

use super::Aggregation;
use super::machines::{End, Machines, Ports, way_to_root};
use super::payload::Payload;
use super::protocol::Protocol;
use super::slots::ROW_BYTES;
use crate::network::Network;

/// How a job uses its pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolConfig {
    /// Slots: the window.
    pub slots: u16,
    /// Payload of a full fragment.
    pub fragment_bytes: u16,
    /// First time-out.
    pub timeout_ns: u64,
    /// Whether the job has a second pool, for what is copied: as [`super::TreeConfig::copies`].
    pub copies: bool,
}

impl PoolConfig {
    /// The paper's.
    pub const TIMEOUT_NS: u64 = netsum_proto::switchml::TIMEOUT_NS;
}

/// Protocol `switchml`.
pub struct Pools<P>(PhantomData<P>);

impl<P: Payload> Protocol for Pools<P> {
    type Payload = P;
    type Node = Switch<P::Rows>;
    type Worker = Worker;

    const NUMBER: u16 = 2;

    const FORMAT: Format = super::payload::INTEGERS;

    fn handle(
        node: &mut Switch<P::Rows>,
        now: Time,
        from: PortId,
        ce: bool,
        header: &Header,
        payload: &P::Owned,
    ) {
        // A drop has a reason, which the machine counts.
        let _ = node.handle(now, from, ce, header, P::view(payload));
    }

    fn poll_node(node: &mut Switch<P::Rows>) -> Option<(PortId, Header, P::Owned)> {
        let transmit = node.poll_transmit()?;
        let rows = node.values();
        let payload = transmit.payload.map_or_else(P::nothing, |row| P::copy_row(rows, row));
        Some((transmit.to, transmit.header, payload))
    }

    fn copied(worker: &Worker) -> Option<u8> {
        worker.config().copies.then_some(1)
    }
}

impl<P: Payload> Machines<Pools<P>> {
    /// Whether some switch holds a job's pool.
    pub(crate) fn is_leased(&self, job: u32) -> bool {
        self.nodes().any(|(_, node)| node.leases().any(|(lease, _)| lease.job == JobId(job)))
    }
}

impl<P: Payload> Aggregation<P> {
    /// Installs a job of `switchml`: a pool at the root of `tree`, a worker per host. Returns the number of the first
    /// worker. Errors are the switch's.
    pub(crate) fn add_pool_job(
        &mut self,
        net: &mut Network,
        job: u32,
        tree: &AggregationTree,
        placement: &[u32],
        config: &PoolConfig,
    ) -> Result<u32, String> {
        let first = self.pools.next_worker();
        let PoolConfig { slots, fragment_bytes, timeout_ns, copies } = *config;
        let children = (0..placement.len() as u32).map(Child::Rank).collect();
        let node = TreeNode { switch: tree.root, children, parent: None };
        let pool = AggregationTree { root: tree.root, nodes: vec![node] };
        let pools = vec![pool; if copies { 2 } else { 1 }];
        let (mut ports, mut up) = (Ports::default(), Vec::new());
        for (rank, &host) in (0..).zip(placement) {
            let way = way_to_root(tree, rank, host);
            let mut rising_of = |id| {
                let (rising, falling) = self.pools.add_paths(net, &way);
                let from = PortId(falling);
                self.pools.set_end(rising, End::Node { node: tree.root.0, from });
                self.pools.set_end(falling, End::Worker(first + rank));
                ports.set(TreeId(id), tree.root, Child::Rank(rank), from);
                rising
            };
            up.push((0..pools.len() as u8).map(&mut rising_of).collect());
        }
        let epoch = Epoch(1);
        let terms = Terms {
            job: JobId(job),
            epoch,
            protocol: netsum_topo::Protocol::Switchml,
            trees: &pools,
            copies,
            window: slots,
            fragment_bytes,
            release_permille: 1000,
            slot_space: 0,
            claim: Claim::default(),
        };
        let granted = leases(&terms, |tree, node, neighbour| ports.at(tree, node, neighbour));
        let granted = granted.map_err(|error| error.to_string())?;
        let rows = self.sharing.slots;
        let switch =
            self.pools.node(tree.root.0, || Switch::new(rows, ROW_BYTES, P::rows(ROW_BYTES)));
        for Granted { lease, .. } in granted {
            let Lease::Pool(lease) = lease else { unreachable!("leases of switchml are of pools") };
            switch
                .install(net.now(), lease)
                .map_err(|error| format!("switch {}: {error}", net.topology().name(tree.root)))?;
        }
        let (now, ranks) = (net.now(), placement.len() as u8);
        let worker = |rank| {
            let (worker, workers) = (rank as u8, ranks);
            Worker::new(
                now,
                WorkerConfig {
                    job: JobId(job),
                    epoch,
                    worker,
                    workers,
                    copies,
                    slots,
                    fragment_bytes,
                    timeout_ns,
                },
            )
        };
        Ok(self.pools.add_workers(net, job, placement, up, worker))
    }
}
