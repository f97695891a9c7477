//! Protocol `switchml` as the simulator drives it: a pool of slots at one switch.

use std::marker::PhantomData;

use netsum_lease::{Terms, leases};
use netsum_proto::atp::Claim;
use netsum_proto::switchml::{Content, Event, Fragments, Submission, Switch, Worker, WorkerConfig};
use netsum_proto::{Lease, PortId, Time};
use netsum_topo::{AggregationTree, Child, TreeNode};
use netsum_wire::switchml::{HEADER_LEN, Header};
use netsum_wire::{Epoch, JobId, TreeId};

use super::Aggregation;
use super::machines::{End, Machines, Ports, way_to_root};
use super::panama::UDP_BYTES;
use super::payload::{INTEGERS, Payload};
use super::protocol::{Protocol, WorkerEvent};
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
}

impl PoolConfig {
    /// SwitchML's.
    pub const TIMEOUT_NS: u64 = 10_000_000;
}

/// Protocol `switchml`.
pub struct SwitchMl<P>(PhantomData<P>);

impl<P: Payload> Protocol for SwitchMl<P> {
    type Payload = P;
    type Header = Header;
    type Node = Switch<P::Rows>;
    type Worker = Worker;

    const NUMBER: u16 = 2;

    fn wire_bytes(header: &Header) -> u16 {
        UDP_BYTES + HEADER_LEN as u16 + header.payload_len() as u16
    }

    fn handle(
        node: &mut Switch<P::Rows>,
        now: Time,
        from: PortId,
        _: bool,
        header: &Header,
        payload: &P::Owned,
    ) {
        // A drop has a reason, which the machine counts.
        let _ = node.handle(now, from, header, P::view(payload));
    }

    fn poll_node(node: &mut Switch<P::Rows>) -> Option<(PortId, Header, P::Owned)> {
        let transmit = node.poll_transmit()?;
        let rows = node.values();
        let payload = transmit.payload.map_or_else(P::nothing, |row| P::copy_row(rows, row));
        Some((transmit.to, transmit.header, payload))
    }

    fn flushed(node: &mut Switch<P::Rows>) {
        use netsum_proto::values::Values;
        node.values_mut().flushed();
    }

    fn leases(node: &Switch<P::Rows>) -> usize {
        node.leases().count()
    }

    fn revoke(node: &mut Switch<P::Rows>, job: JobId, epoch: Epoch) {
        node.revoke(job, epoch);
    }

    fn submit(worker: &mut Worker, id: u64, numel: u64) {
        let (format, fragments) = (INTEGERS, Fragments::All);
        worker.submit(Submission { id, format, numel, fingerprint: id as u32, fragments });
    }

    fn accept(worker: &mut Worker, now: Time, _: bool, header: &Header) -> Option<(u64, u64)> {
        let accepted = worker.handle(now, header).ok()??;
        match accepted.content {
            Content::Integers(elements) => Some((accepted.id, elements.start)),
            _ => None,
        }
    }

    fn poll_worker(worker: &mut Worker, now: Time, rank: u32) -> Option<(u8, Header, P::Owned)> {
        let outgoing = worker.poll_transmit(now)?;
        let payload = match &outgoing.payload {
            Some((id, Content::Integers(elements))) => {
                P::contribution(rank, *id, elements.start, elements.end - elements.start)
            }
            _ => P::nothing(),
        };
        Some((0, outgoing.header, payload))
    }

    fn event(worker: &mut Worker) -> Option<WorkerEvent> {
        Some(match worker.poll_event()? {
            Event::Done { id } => WorkerEvent::Done(id),
            Event::Mismatch { id } => WorkerEvent::Mismatch(id),
            Event::Silent { .. } => WorkerEvent::Silent,
        })
    }

    fn timeout(worker: &Worker) -> Option<Time> {
        worker.poll_timeout()
    }

    fn on_timeout(worker: &mut Worker, now: Time) {
        worker.handle_timeout(now);
    }
}

impl<P: Payload> Machines<SwitchMl<P>> {
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
        let PoolConfig { slots, fragment_bytes, timeout_ns } = *config;
        let id = TreeId(0);
        let (mut ports, mut up) = (Ports::default(), Vec::new());
        for (rank, &host) in (0..).zip(placement) {
            let (rising, falling) = self.pools.add_paths(net, &way_to_root(tree, rank, host));
            let from = PortId(falling);
            self.pools.set_end(rising, End::Node { node: tree.root.0, from });
            self.pools.set_end(falling, End::Worker(first + rank));
            ports.set(id, tree.root, Child::Rank(rank), from);
            up.push(vec![rising]);
        }
        let epoch = Epoch(1);
        let children = (0..placement.len() as u32).map(Child::Rank).collect();
        let node = TreeNode { switch: tree.root, children, parent: None };
        let terms = Terms {
            job: JobId(job),
            epoch,
            protocol: netsum_topo::Protocol::Switchml,
            trees: &[AggregationTree { root: tree.root, nodes: vec![node] }],
            window: slots,
            fragment_bytes,
            release_permille: 1000,
            slot_space: 0,
            claim: Claim::default(),
        };
        let granted = leases(&terms, |tree, node, neighbour| ports.at(tree, node, neighbour));
        let lease = granted.map_err(|error| error.to_string())?.remove(0).lease;
        let Lease::Pool(lease) = lease else { unreachable!("leases of switchml are of pools") };
        let rows = self.sharing.slots;
        let switch =
            self.pools.node(tree.root.0, || Switch::new(rows, ROW_BYTES, P::rows(ROW_BYTES)));
        switch
            .install(net.now(), lease)
            .map_err(|error| format!("switch {}: {error}", net.topology().name(tree.root)))?;
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
                    slots,
                    fragment_bytes,
                    timeout_ns,
                },
            )
        };
        Ok(self.pools.add_workers(net, job, placement, up, worker))
    }
}
